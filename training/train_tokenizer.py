"""Stage 'tokenizer': S3-type tokenizer (FSQ 3^8 at 25 Hz), supervised by phonemes, F0, energy and a speaker-conditioned mel.
    python3 train_tokenizer.py --ds DIR --ck DIR --minutes 5        needs audio, f0, ph (synthetic and human)"""
import argparse, json
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
import features as ft
from common import *
from net_tokenizer import S3Tokenizer, TokenizerHeads, TokBlock

a = stage_args(argparse.ArgumentParser()).parse_args()
log, DEV, amp = setup(a, 'tokenizer')
SHARE = {0: .48, 1: .27, 2: .25}                    # espeak, flite, human


def main():
    m = S3Tokenizer().to(DEV)
    log('resumed', load_into(m, a.ck, 'tokenizer'))
    compile_blocks(m, TokBlock, a.compile, True)
    if a.compile:                                   # compile while the data is being made
        for nt in (100, 200):
            with amp():
                m.latent(torch.randn(8 + nt // 100, 128, 4 * nt, device=DEV), torch.full((8 + nt // 100,), 4 * nt, device=DEV))[0].sum().backward()
        m.zero_grad(set_to_none=True)
        log('compiled')
    D = Data(wait_for_parts(a.ds, a.wait, a.end or 1e12), ('audio', 'f0', 'ph'), DEV, log)
    labels = D.meta['labels']
    nph = max(labels.values()) + 1
    flite = torch.zeros(nph, dtype=torch.bool, device=DEV)
    for p, i in labels.items():
        flite[i] = p.startswith('f.')
    other = torch.stack([flite, ~flite, torch.zeros_like(flite)])       # classes that a domain never uses
    other[:, 0] = False
    kind = D.t(D.kind)
    H = TokenizerHeads(nph, D.nspk).to(DEV)
    P = list(m.parameters()) + list(H.parameters())
    lr = a.lr or 1.5e-3
    opt = torch.optim.AdamW(P, lr, betas=(.9, .98), weight_decay=.02, fused=DEV != 'cpu')
    ema = Ema(m, .998)

    def checkpoint():
        ema.swap(); save(m.state_dict(), a.ck, 'tokenizer'); ema.swap()
    sc = Schedule(a, [opt], [lr], saver=checkpoint)
    fm, start, ntok, sid = D.t(D.f0mean), D.t(D.start), D.t(D.ntok), D.t(D.sid)

    def losses(ids, nt, train=True):
        I = D.t(ids)
        n = ntok[I]
        S = start[I] + (torch.rand(len(ids), device=DEV) * (n - nt + 1).clamp(min=0)).long()
        L = n.clamp(max=nt)
        j = torch.arange(nt * 960, device=DEV)[None]
        y = D.audio[(S[:, None] * 960 + j).clamp(max=D.audio.numel() - 1)].float() / 32768. * (j < L[:, None] * 960)
        j = torch.arange(2 * nt, device=DEV)[None]
        i, mk = (S[:, None] * 2 + j).clamp(max=D.f0.numel() - 1), j < 2 * L[:, None]
        y16 = ft.resample(y, 24000, 16000)
        mel = ft.mel_s3(ft.random_channel(y16, 16000, .5) if train else y16)[..., :4 * nt]
        tm = ft.mel24(y)[..., :2 * nt].transpose(1, 2)
        with amp():
            z, _ = m.latent(mel, L * 4)
        zq = z + (z.round() - z).detach()
        if train:
            zq = torch.where(torch.rand(len(ids), 1, 1, device=DEV) < .1, z, zq)
        with amp():
            lp, lf, lu, le, lm = H(zq, sid[I])
        lp = lp.float().masked_fill(other[kind[I]][:, None], -1e4)
        ph, f0 = D.ph[i].long(), D.f0[i].float()
        v, pm = (f0 > 0) & mk, mk & (ph != 255)
        cp = F.cross_entropy(lp[pm], ph[pm])
        acc = (lp[pm].argmax(-1) == ph[pm]).float().mean()
        rel = (f0.clamp(min=1).log() - fm[I][:, None]) / .2
        lF = ((lf.float() - rel).abs() * v).sum() / v.sum().clamp(min=1)
        lU = (F.binary_cross_entropy_with_logits(lu.float(), (f0 > 0).float(), reduction='none') * mk).sum() / mk.sum()
        e = tm.mean(-1)
        em = (e * mk).sum(1, keepdim=True) / mk.sum(1, keepdim=True)
        lE = ((le.float() - (e - em) / 2).abs() * mk).sum() / mk.sum()
        lM = ((lm.float() - tm).abs() * mk[..., None]).sum() / mk.sum() / 80
        return cp + .7 * lF + .4 * lU + .4 * lE + .6 * lM, dict(ph=cp, acc=acc, f0=lF, uv=lU, en=lE, mel=lM), zq, L

    pools = {k: np.where(~D.val & (D.kind == k) & (D.ntok > 40))[0] for k in SHARE}
    pools = {k: v for k, v in pools.items() if len(v)}
    B, go = max(4, int(160 * a.bs)), True
    while go:
        nt = 200 if np.random.rand() < .35 else 100
        b = B * 120 // nt
        ids = np.concatenate([np.random.choice(v, max(1, int(b * SHARE[k]))) for k, v in pools.items()])
        l, d, _, _ = losses(ids, nt)
        opt.zero_grad(set_to_none=True)
        l.backward()
        nn.utils.clip_grad_norm_(P, 2.0)
        go = sc.step()
        opt.step()
        ema.step()
        if sc.i % 100 == 1:
            log(sc.i, f'{sc.frac():.2f} loss {l.item():.3f}', ' '.join(f'{k} {v.item():.3f}' for k, v in d.items()))
    ema.swap()
    m.eval()
    save(m.state_dict(), a.ck, 'tokenizer')
    json.dump(labels, open(f'{a.ck}/phonemes.json', 'w'))
    with torch.no_grad():
        for nm, pool in [('seen speakers', D.val & ~D.held & (D.kind < 2)), ('held-out espeak', D.held & (D.kind == 0)), ('held-out flite', D.held & (D.kind == 1)), ('held-out human', D.held & (D.kind == 2))]:
            s, r, cnt = np.where(pool)[0][:512], [], torch.zeros(6561, device=DEV)
            for b in range(0, len(s), 64):
                _, d, zq, L = losses(s[b:b + 64], 150, False)
                r.append({k: v.item() for k, v in d.items()})
                t = ((zq.round() + 1).long() * 3 ** torch.arange(8, device=DEV)).sum(-1)
                cnt += torch.bincount(t[torch.arange(150, device=DEV)[None] < L[:, None]], minlength=6561)
            if r:
                p = cnt / cnt.sum()
                log('EVAL', nm, {k: round(float(np.mean([x[k] for x in r])), 3) for k in r[0]}, f'used codes {(cnt > 0).sum().item()} entropy {-(p[p > 0] * p[p > 0].log2()).sum().item():.2f} bit')
    log('done')


main()
