"""Stage 'camplus': the flow's speaker encoder, speaker classification (additive margin) over synthetic and warped human speakers.
    python3 train_camplus.py --ds DIR --ck DIR --minutes 5          needs audio"""
import argparse
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
import features as ft
from common import *
from net_voice import CAMPPlus

a = stage_args(argparse.ArgumentParser()).parse_args()
log, DEV, amp = setup(a, 'camplus')


def main():
    m = CAMPPlus().to(DEV)
    log('resumed', load_into(m, a.ck, 'camplus'))
    D = Data(wait_for_parts(a.ds, a.wait, a.end or 1e12), ('audio',), DEV, log)
    R, lengths = 3, (43200, 86400)                         # 1.8 s and 3.6 s: two input shapes only
    pools = {k: np.where(~D.rheld & (D.rkind == k) & (D.rlen * 960 > 2 * lengths[0]))[0] for k in (0, 1, 2)}
    pools = {k: v for k, v in pools.items() if len(v)}
    train = np.concatenate(list(pools.values()))
    number = np.full(len(D.first), -1)
    number[train] = np.arange(len(train))
    K = len(train)
    W = nn.Parameter(torch.randn(K, 192, device=DEV) * .05)
    lr = a.lr or 1.5e-3
    opt = torch.optim.AdamW([dict(params=m.parameters()), dict(params=[W])], lr, betas=(.9, .98), weight_decay=.02, fused=DEV != 'cpu')
    ema = Ema(m, .998)

    def checkpoint():
        ema.swap(); save(m.state_dict(), a.ck, 'camplus'); ema.swap()
    sc = Schedule(a, [opt], [lr], saver=checkpoint)

    def wav(spk, n, aug):
        lo, ln = np.repeat(D.off[D.first[spk]], R) * 960, np.repeat(D.rlen[spk], R) * 960
        y = D.crop_audio(lo + (np.random.rand(len(lo)) * np.maximum(1, ln - n)).astype(np.int64), n)
        y = ft.random_channel(ft.resample(y, 24000, 16000), 16000, aug)
        return y

    S, go = max(6, int(72 * a.bs)), True
    share = {0: .55, 1: .15, 2: .30}
    while go:
        n = lengths[int(np.random.rand() < .4)]
        spk = np.concatenate([np.random.choice(v, max(1, int(S * share[k]) * lengths[0] // n), replace=False if len(v) > S else True) for k, v in pools.items()])
        lab = D.t(np.repeat(number[spk], R))
        x = ft.fbank(wav(spk, n, .6))
        with amp():
            e = m(x)
        c = F.normalize(e.float(), dim=1) @ F.normalize(W, dim=1).T
        l = F.cross_entropy(30. * (c - .15 * min(1., sc.frac() * 3) * F.one_hot(lab, K)), lab)
        opt.zero_grad(set_to_none=True)
        l.backward()
        nn.utils.clip_grad_norm_(m.parameters(), 3.0)
        go = sc.step()
        opt.step()
        ema.step()
        if sc.i % 100 == 1:
            log(sc.i, f'{sc.frac():.2f} loss {l.item():.3f} acc {(c.argmax(1) == lab).float().mean().item():.3f}')
    ema.swap()
    m.eval()
    save(m.state_dict(), a.ck, 'camplus')
    with torch.no_grad():
        for k, nm in ((0, 'espeak'), (1, 'flite'), (2, 'human')):
            q = np.where(D.rheld & (D.rkind == k) & (D.rlen * 960 > lengths[1]))[0][:64]
            if len(q) < 4:
                continue
            for aug in (0., 1.):
                e = F.normalize(m(ft.fbank(wav(q, lengths[1], aug))).float(), dim=1).view(len(q), R, -1)
                sim = e[:, 0] @ e[:, 1].T
                off = ~torch.eye(len(q), dtype=torch.bool, device=DEV)
                log('EVAL held-out', nm, f'augmented {aug}: same {sim.diag().mean():.3f} other {sim[off].mean():.3f} first rank of {len(q)}: {(sim.argmax(1) == torch.arange(len(q), device=DEV)).float().mean():.3f}')
    log('done')


main()
