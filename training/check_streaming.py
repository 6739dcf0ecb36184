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
P, N, first, size = 60, 60, 5, 12
tok = lambda n: torch.randint(0, 6561, (1, n), generator=g)
pt, t, other = tok(P), tok(N), tok(N)
feat, e = torch.randn(1, 2 * P, 80, generator=g) - 5, torch.randn(1, 192, generator=g)
for steps in (1, 2):
    whole = T.flow.inference(t, pt, feat, e, steps, 0., size, first)
    edge, worst = first, 0.
    while edge + 3 <= N:
        mixed = torch.cat([t[:, :edge + 3], other[:, edge + 3:]], 1)          # everything after the lookahead replaced
        part = T.flow.inference(mixed, pt, feat, e, steps, 0., size, first)[..., :2 * edge]
        cut = T.flow.inference(t[:, :edge + 3], pt, feat, e, steps, 0., size, first)[..., :2 * edge]
        worst = max(worst, (part - whole[..., :2 * edge]).abs().max().item(), (cut - whole[..., :2 * edge]).abs().max().item())
        edge += size
    full = T.flow.inference(t, pt, feat, e, steps, 0.)
    print(f'{steps} step(s): largest difference streamed / whole {worst:.2e}; chunk-causal / full attention {(full - whole).abs().mean():.3f}')
    assert worst < 1e-3
