"""How many of n runs (held-out sentences and voices, sampling) never end by themselves or end far too early.
    python3 count_ends.py --model DIR --n 200"""
import argparse, random
import numpy as np, torch
from evaluate import references
from speech_text import encode, punc_norm
from synthesize import Espeak, Flite, unpack
from tts import Tts

ap = argparse.ArgumentParser()
ap.add_argument('--model', required=True); ap.add_argument('--n', type=int, default=200); ap.add_argument('--seed', type=int, default=0); ap.add_argument('--human', default=''); ap.add_argument('--root', default='/tmp/synth')
ap.add_argument('--set', default=''); ap.add_argument('--dev', default='cpu')
a = ap.parse_args()
T = Tts(a.model, a.dev)
es, fl = Espeak(unpack(a.root), 'ends'), Flite(a.root)
R, sents, hi = references(a, es, fl)
R = R[::2]
refs = [T.reference(r[3][:, :144000]) for r in R]
rng = random.Random(a.seed + 7)
c = dict(T.cfg['t3_sampling'], **{k: float(v) for k, v in (x.split('=') for x in a.set.split(',') if x)})
jobs = [(i % len(R), rng.choice(sents[hi:])) for i in range(a.n)]
# expected length: flite's own slt voice, 25 tokens a second
expect = lambda t: 4 + 1.35 * len(t)
endless, short, ratio = 0, [], []
for b in range(0, a.n, 50):
    J = sorted(jobs[b:b + 50], key=lambda j: len(j[1]))
    cond = torch.cat([T.t3.cond(refs[i]['ve'], refs[i]['tok'][:, :150], torch.tensor([.5], device=a.dev)) for i, _ in J])
    out, done = T.t3.generate_batch(cond, [encode(punc_norm(t)) for _, t in J], 420, c['temperature'], c['cfg_weight'], c['repetition_penalty'], c['min_p'], g=torch.Generator(a.dev).manual_seed(b))
    for (i, t), o, d in zip(J, out, done):
        endless += not d
        ratio.append(len(o) / expect(t))
        if ratio[-1] < .45:
            short.append((R[i][0], t, len(o)))
        if not d or ratio[-1] > 2.2:
            print('long:', R[i][0], repr(t), len(o), 'ended' if d else 'no end', flush=True)
print(f'{a.n} runs: {endless} without an end, {len(short)} shorter than 45 % of the expected length; length / expected: median {np.median(ratio):.2f}, 1 % {np.quantile(ratio, .01):.2f}, 99 % {np.quantile(ratio, .99):.2f}')
print(short)
