"""Stage 'listener': the second ear of the acoustic stages (hearing.py), a phoneme classifier on 50 Hz labels.
    python3 train_listener.py --ds DIR --ck DIR --minutes 2         needs audio, ph (one part: labels are numbered by part)"""
import argparse, json
import numpy as np, torch, torch.nn.functional as F
import features as ft
from common import *
from hearing import Listener

a = stage_args(argparse.ArgumentParser()).parse_args()
log, DEV, amp = setup(a, 'listener')
SHARE, NT = {0: .5, 1: .5}, 75                                 # espeak, flite; tokens per crop


def main():
    D = Data(wait_for_parts(a.ds, a.wait, a.end or 1e12)[:1], ('audio', 'ph'), DEV, log)
    labels = D.meta['labels']
    n = max(labels.values()) + 1
    m = Listener(n).to(DEV)
    flite = torch.zeros(n, dtype=torch.bool, device=DEV)
    for p, i in labels.items():
        flite[i] = p.startswith('f.')
    other = torch.stack([flite, ~flite])                       # classes that a domain never uses
    other[:, 0] = False
    kind, start, ntok = D.t(D.kind), D.t(D.start), D.t(D.ntok)
    lr = a.lr or 1.5e-3
    opt = torch.optim.AdamW(m.parameters(), lr, betas=(.9, .98), weight_decay=.02, fused=DEV != 'cpu')
    ema = Ema(m, .998)
    sc = Schedule(a, [opt], [lr])

    def loss(ids, train=True):
        I = D.t(ids)
        S = start[I] + (torch.rand(len(ids), device=DEV) * (ntok[I] - NT + 1).clamp(min=0)).long()
        y = D.audio[(S[:, None] * 960 + torch.arange(NT * 960, device=DEV)).clamp(max=D.audio.numel() - 1)].float() / 32768.
        ph = D.ph[(S[:, None] * 2 + torch.arange(2 * NT, device=DEV)).clamp(max=D.ph.numel() - 1)].long()
        ok = (ph != 255) & (torch.arange(2 * NT, device=DEV) < 2 * ntok[I][:, None])
        if train:
            y = ft.random_channel(y, 24000, .5)
        with amp():
            p = m(y)[0]
        p = p.float().transpose(1, 2).masked_fill(other[kind[I]][:, None] & (torch.rand(len(ids), 1, 1, device=DEV) < .5), -1e4)
        return F.cross_entropy(p[ok], ph[ok]), (p[ok].argmax(-1) == ph[ok]).float().mean()

    pools = {k: np.where(~D.val & (D.kind == k) & (D.ntok > 40))[0] for k in SHARE}
    B, go = max(4, int(128 * a.bs)), True
    while go:
        l, acc = loss(np.concatenate([np.random.choice(v, max(1, int(B * SHARE[k]))) for k, v in pools.items() if len(v)]))
        opt.zero_grad(set_to_none=True)
        l.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 2.)
        go = sc.step()
        opt.step()
        ema.step()
        if sc.i % 100 == 1:
            log(sc.i, f'{sc.frac():.2f} ce {l.item():.3f} accuracy {acc.item():.3f}')
    ema.swap()
    m.eval()
    with torch.no_grad():
        for k, nm in ((0, 'espeak'), (1, 'flite')):
            v = np.where(D.held & (D.kind == k) & (D.ntok > 40))[0][:256]
            if len(v):
                log('EVAL held-out', nm, 'frames right', round(loss(v, False)[1].item(), 3))
    save(m.state_dict(), a.ck, 'listener')
    json.dump(n, open(f'{a.ck}/listener.json', 'w'))
    log('done')


main()
