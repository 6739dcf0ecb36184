"""Spectrograms of held-out sentences: the synthesiser, and the model in that voice.
    python3 plot_spectrograms.py --model DIR --out spectrograms.png"""
import argparse, random
import matplotlib
matplotlib.use('Agg')
import matplotlib.pyplot as plt
import torch
import features as ft
from evaluate import references, synth
from synthesize import Espeak, Flite, unpack
from tts import Tts

ap = argparse.ArgumentParser()
ap.add_argument('--model', required=True); ap.add_argument('--out', required=True); ap.add_argument('--seed', type=int, default=0); ap.add_argument('--root', default='/tmp/synth'); ap.add_argument('--human', default='')
a = ap.parse_args()
T = Tts(a.model)
es, fl = Espeak(unpack(a.root), 'plot'), Flite(a.root)
R, sents, hi = references(a, es, fl)
rng = random.Random(a.seed + 5)
pool = [x for x in sents[hi:] if 35 < len(x) < 60 and x.startswith(('I ', 'My ', 'Please ', 'Could ', 'He ', 'If '))]
fig, ax = plt.subplots(3, 2, figsize=(9, 6.4))
for row, i in enumerate((0, 14, 18)):
    text = rng.choice(pool)
    torch.manual_seed(a.seed)
    raw = synth(R[i][2], text, es, fl)
    ours, _ = T.say(T.reference(R[i][3]), text, a.seed)
    for col, y in enumerate((raw, ours)):
        ax[row, col].imshow(ft.mel24(y)[0].numpy(), origin='lower', aspect='auto', cmap='gray_r', vmin=-9, vmax=1, extent=(0, y.shape[1] / 24000, 0, 80), interpolation='nearest')
        ax[row, col].set_title(('synthesiser: ' if col == 0 else 'Myna: ') + (text if col == 0 else R[i][1] + ' ' + R[i][0].split('/')[-1]), fontsize=7)
        ax[row, col].tick_params(labelsize=6)
fig.supylabel('mel band', fontsize=7)
fig.supxlabel('seconds', fontsize=7)
fig.tight_layout()
fig.savefig(a.out, dpi=80, pil_kwargs=dict(optimize=True))
