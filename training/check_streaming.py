"""Proof that chunk-causal decoding is exact: the mel of a chunk does not depend on anything later than its 3 lookahead tokens, and the encoder
and decoder state of the prompt does not depend on the generated tokens.      python3 check_streaming.py --model DIR [--ref clip]"""
import argparse
import torch
from net_flow import Flow
from tts import Tts

ap = argparse.ArgumentParser()
ap.add_argument('--model', required=True)
a = ap.parse_args()
T = Tts(a.model)
g = torch.Generator().manual_seed(0)
P, N = 61, 60
tok = lambda n: torch.randint(0, 6561, (1, n), generator=g)
pt, t, other = tok(P), tok(N), tok(N)
feat, e = torch.randn(1, 2 * P, 80, generator=g) - 5, torch.randn(1, 192, generator=g)
for steps in (1, 2):
    for size, first in ((8, None), (12, 5)):
        run = lambda x: T.flow.inference(x, pt, feat, e, steps, 0., size, first)
        whole, worst = run(t), 0.
        edge = first or size - P % size                                      # tokens of the first chunk
        while edge + 3 <= N:
            for x in (torch.cat([t[:, :edge + 3], other[:, edge + 3:]], 1), t[:, :edge + 3]):     # what follows the lookahead: replaced, or absent
                worst = max(worst, (run(x) - whole[..., :run(x).shape[-1]])[..., :2 * edge].abs().max().item())
            edge += size
        print(f'{steps} step(s), chunks of {size}{", the prompt one chunk" if first else ""}: largest difference streamed / whole {worst:.2e}; mean difference to full attention '
              f'{(T.flow.inference(t, pt, feat, e, steps, 0.) - whole).abs().mean():.3f}')
        assert worst < 1e-3
