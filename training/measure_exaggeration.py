"""What the exaggeration control does: pitch range and loudness contrast of the same sentences and voices at several settings.
    python3 measure_exaggeration.py --model DIR [--n 40] [--dev cuda]"""
import argparse, random
import numpy as np, torch
import features as ft
from evaluate import references
from metrics import pitch
from synthesize import Espeak, Flite, unpack
from tts import Tts

ap = argparse.ArgumentParser()
ap.add_argument('--model', required=True); ap.add_argument('--n', type=int, default=40); ap.add_argument('--seed', type=int, default=0); ap.add_argument('--human', default=''); ap.add_argument('--root', default='/tmp/synth')
ap.add_argument('--dev', default='cpu')
a = ap.parse_args()
T = Tts(a.model, a.dev)
es, fl = Espeak(unpack(a.root), 'exaggeration'), Flite(a.root)
R, sents, hi = references(a, es, fl)
rng = random.Random(a.seed + 3)
pool = [x for x in sents[hi:] if 40 < len(x) < 110]
refs = [T.reference(r[3]) for r in R]
jobs = [(i % len(R), rng.choice(pool)) for i in range(a.n)]


def measure(y):
    """-> pitch range (5 to 95 % of voiced frames, semitones), loudness range (10 to 90 % of active frames, dB), level (dB), seconds"""
    f = pitch(y).cpu().numpy()
    f = 12 * np.log2(f[f > 0])
    x = y[0].cpu().double().numpy()[:y.shape[1] // 480 * 480].reshape(-1, 480)
    e = 10 * np.log10((x ** 2).mean(1) + 1e-9)
    e = e[e > e.max() - 40]
    return np.quantile(f, .95) - np.quantile(f, .05) if len(f) > 20 else np.nan, np.quantile(e, .9) - np.quantile(e, .1), 10 * np.log10((10 ** (e / 10)).mean()), y.shape[1] / 24000


print('| exaggeration | pitch range, semitones | loudness range, dB | level, dB | seconds |\n| --- | --- | --- | --- | --- |')
for x in (0., .25, .5, .75, 1.):
    toks, _ = T.speak_batch([refs[i] for i, _ in jobs], [t for _, t in jobs], a.seed, exaggeration=x)
    m = []
    for (i, _), tk in zip(jobs, toks):
        torch.manual_seed(0)
        m.append(measure(T.wave(T.mel(refs[i], tk))))
    print(f'| {x:.2f} | ' + ' | '.join('%.1f' % v for v in np.nanmedian(np.array(m), 0)) + ' |', flush=True)
