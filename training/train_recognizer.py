"""Stage 'recognizer' (evaluation only): CTC over canonical en-US phonemes, on a data set of its own (another seed), with channel and speed changes.
    python3 train_recognizer.py --ds DIR --ck DIR --minutes 4       needs audio"""
import argparse, json
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
import features as ft
from common import *
from metrics import distance
from net_recognizer import Recognizer

a = stage_args(argparse.ArgumentParser()).parse_args()
log, DEV, amp = setup(a, 'recognizer')


def main():
    D = Data(wait_for_parts(a.ds, a.wait, a.end or 1e12)[:1], ('audio',), DEV, log)
    names = sorted(D.meta['phones'], key=D.meta['phones'].get)
    m = Recognizer(len(names)).to(DEV)
    log('resumed', load_into(m, a.ck, 'recognizer'))
    lr = a.lr or 1.2e-3
    opt = torch.optim.AdamW(m.parameters(), lr, betas=(.9, .98), weight_decay=.02)
    ema = Ema(m, .998)

    def checkpoint():
        ema.swap(); save(m.state_dict(), a.ck, 'recognizer'); ema.swap()
        json.dump(names, open(f'{a.ck}/recognizer.json', 'w'))
    sc = Schedule(a, [opt], [lr], saver=checkpoint)
    ok = (D.kind < 2) & (D.pl > 1) & (D.ntok < 300) & (D.pl < 2 * D.ntok * .8)
    pools = [np.where(ok & ~D.val & (D.kind == k))[0] for k in (0, 1)]
    sizes = [np.arange(0)] * 2
    B, phones = max(4, int(64 * a.bs)), D.phones

    def batch(ids, train=True):
        nt = -(-int(D.ntok[ids].max()) // 25) * 25
        y = D.crop_audio(D.start[ids] * 960, nt * 960) * (torch.arange(nt * 960, device=DEV)[None] < D.t(D.ntok[ids])[:, None] * 960)
        sr = int(np.random.choice([21600, 24000, 24000, 26400])) if train else 24000
        y = ft.resample(y, sr, 16000)
        if train:
            y = ft.random_channel(y, 16000, .7, snr=(5, 45))
        tgt = np.concatenate([phones[D.ps[i]:D.ps[i] + D.pl[i]] for i in ids]).astype(np.int64)
        n = np.floor(D.ntok[ids] * 50 / 25 * 24000 / sr).astype(np.int64)
        return y, torch.as_tensor(n), D.t(tgt), torch.as_tensor(D.pl[ids])
    go, order = True, [v[np.argsort(D.ntok[v])] for v in pools]
    while go:
        ids = []
        q = np.random.rand()
        for v, b in zip(order, (B * 6 // 10, B * 4 // 10)):                # neighbours in length
            j = min(len(v) - 1, int(q * len(v)))
            w = v[max(0, j - 400):j + 400]
            ids.append(np.random.choice(w, b))
        ids = np.concatenate(ids)
        y, n, t, tl = batch(ids)
        with amp():
            lg = m(y)
        n = n.clamp(max=lg.shape[1])
        l = F.ctc_loss(lg.float().log_softmax(-1).transpose(0, 1), t, n.to(DEV), tl.to(DEV), zero_infinity=True)
        opt.zero_grad(set_to_none=True)
        l.backward()
        nn.utils.clip_grad_norm_(m.parameters(), 5.)
        go = sc.step()
        opt.step()
        ema.step()
        if sc.i % 100 == 1:
            log(sc.i, f'{sc.frac():.2f} ctc {l.item():.3f}')
    checkpoint()
    ema.swap()
    m.eval()
    with torch.no_grad():
        for k, nm in ((0, 'espeak'), (1, 'flite')):
            ids = np.where(ok & D.held & (D.kind == k))[0][:96]
            e = c = 0
            for i in ids:
                y, n, t, _ = batch(np.array([i]), False)
                p = m(y)[0, :int(n[0])].argmax(-1).tolist()
                h = [x for j, x in enumerate(p) if x and (j == 0 or p[j - 1] != x)]
                e, c = e + distance(t.tolist(), h), c + len(t)
            log('EVAL held-out', nm, 'phoneme error rate', round(e / max(1, c), 4))
    log('done')


main()
