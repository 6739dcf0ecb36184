"""Stage 't3': text + voice -> speech tokens.
    python3 train_t3.py --shards DIR --ck DIR --minutes 10
Reads every DIR/*/p*/ that holds tok.npy and emb.npz (prepare.py --want tok,ve) and looks for new ones while it runs, so that the data can grow.
Human clips take part as voices only (they have no text): sometimes a synthetic utterance is conditioned on the encoder vector and the
prompt tokens of a human clip, so that human references are not foreign to the model."""
import argparse, glob
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from common import *
from config import BOS, EOS
from net_t3 import T3, LLayer
from net_tokenizer import digits

ap = stage_args(argparse.ArgumentParser())
ap.add_argument('--shards', default='/tmp/t3'); ap.add_argument('--human', default='.22,.15', help='shares of the rows with a human vector, and with a human prompt as well'); ap.add_argument('--keep', type=int, default=64, help='newest shards kept on the device')
a = ap.parse_args()
log, DEV, amp = setup(a, 't3')
PL = 150                                               # prompt tokens
HUMAN = tuple(map(float, a.human.split(',')))


def corrupt(t, p):
    """Changes one ternary digit of a token with probability p."""
    w = 3 ** torch.randint(0, 8, t.shape, device=t.device)
    cur = (t // w) % 3
    new = (cur + torch.randint(1, 3, t.shape, device=t.device)) % 3
    return torch.where(torch.rand(t.shape, device=t.device) < p, t + (new - cur) * w, t)


class Shard:
    """One prepared folder as device tensors plus length buckets."""
    def __init__(s, folder, c):
        D = s.D = Data([folder], ('tok',), DEV, log)
        s.text, s.emo, s.start, s.ntok, s.ts, s.tl = D.t(D.text.astype(np.int64)), D.t(D.emo), D.t(D.start), D.t(D.ntok), D.t(D.ts), D.t(D.tl)
        s.f0 = D.t(D.f0mean)
        S = 34 + D.tl + 2 + D.ntok
        ok = (D.kind < 2) & (D.tl <= c['max_text']) & (S <= 640)
        s.train, s.valid = np.where(ok & ~D.val)[0], [np.where(ok & D.val & ~D.held)[0], np.where(ok & D.held & (D.kind == 0))[0], np.where(ok & D.held & (D.kind == 1))[0]]
        bk = (S + 63) // 64 * 64
        s.buckets = {int(k): s.train[bk[s.train] == k] for k in np.unique(bk[s.train])}
        s.human = D.t(np.where(D.kind == 2)[0])
        s.bk = bk


def batch(s, ids, Smax, train):
    D, B = s.D, len(ids)
    I, j = D.t(ids), torch.arange(Smax - 34, device=DEV)[None]
    Lt, Ls, R = s.tl[I][:, None], s.ntok[I][:, None], lambda *z: torch.rand(*z, device=DEV)
    ist, k = j < Lt, j - Lt - 2                                        # k: number of the speech token at this input position
    at = lambda i: D.tok[i.clamp(0, D.tok.numel() - 1)].long()
    sp = at(s.start[I][:, None] + k)
    valid = (k >= 0) & (k < Ls)
    tx = s.text[(s.ts[I][:, None] + j).clamp(max=s.text.numel() - 1)]
    if train:                                                          # some texts without capitals
        tx = torch.where((R(B, 1) < .12) & (tx >= 80) & (tx < 106), tx - 30, tx)
    x = torch.where(ist, tx, torch.where(valid, corrupt(sp, .03) if train else sp, torch.full_like(sp, BOS)))
    pos = torch.where(ist, j.expand(B, -1), torch.where(valid, k + 1, torch.zeros_like(k)))
    tgt = torch.where(k + 1 < Ls, at(s.start[I][:, None] + k + 1), torch.full_like(sp, EOS))
    tgt = torch.where((k >= -1) & (k < Ls), tgt, torch.full_like(tgt, -100))
    # the voice comes from another utterance of the same speaker, now and then from a human clip of similar pitch
    run = D.run[ids]
    r = D.t((D.first[run] + np.random.rand(B) * (D.last[run] - D.first[run])).astype(np.int64))
    hi = D.t(D.off[D.last[run]])
    q, noisy = R(B), R(B, 1) < (.35 if train else 0.)
    if train and len(s.human):
        h = s.human[torch.randint(len(s.human), (B, 8), device=DEV)]
        h = h.gather(1, (s.f0[h] - s.f0[I][:, None]).abs().argmin(1, keepdim=True))[:, 0]
        hv, hp = q < HUMAN[0], q < HUMAN[1]
        rv, rp = torch.where(hv, h, r), torch.where(hp, h, r)
        hi = torch.where(hp, s.start[h] + s.ntok[h], hi)
    else:
        rv = rp = r
    spk = torch.where(noisy, D.emb['ve1'][rv].float(), D.emb['ve0'][rv].float())
    ps = torch.minimum(s.start[rp], (hi - PL).clamp(min=0))
    pr = at(ps[:, None] + torch.arange(PL, device=DEV)[None])
    if train:
        spk = F.normalize(spk + .02 * torch.randn_like(spk), dim=1)
        pr = corrupt(pr, torch.where((q > .9)[:, None], .5, .05))
    em = s.emo[I] + (torch.randn(B, device=DEV) * .03 if train else 0)
    return x, pos, ist, tgt, spk, pr, em, (R(B) < .12) if train else torch.zeros(B, dtype=torch.bool, device=DEV)


def main():
    m = T3().to(DEV)
    c = m.c
    had = load_into(m, a.ck, 't3')
    log('resumed', had, sum(p.numel() for p in m.parameters()), 'parameters')
    compile_blocks(m, LLayer, a.compile, True)
    if a.compile:
        for b, S in ((9, 256), (11, 320)):
            with amp():
                m.tfmr(torch.randn(b, S, c['dim'], device=DEV)).sum().backward()
        m.zero_grad(set_to_none=True)
        log('compiled')
    dec = [p for n, p in m.named_parameters() if p.ndim > 1 and 'emb' not in n]
    rest = [p for n, p in m.named_parameters() if not (p.ndim > 1 and 'emb' not in n)]
    lr = a.lr or (6e-4 if had else 1.3e-3)
    opt = torch.optim.AdamW([dict(params=dec, weight_decay=.05), dict(params=rest, weight_decay=0.)], lr, betas=(.9, .98), fused=DEV != 'cpu')
    ema = Ema(m, .999)
    shards, seen, end = [], set(), a.end or time.time() + 1e9

    def look():
        for f in sorted(glob.glob(f'{a.shards}/*/p*/done')):
            if f not in seen and os.path.exists(f[:-4] + 'tok.npy') and os.path.exists(f[:-4] + 'emb.npz'):
                seen.add(f)
                shards.append(Shard(f[:-5], c))
                if len(shards) > a.keep:
                    shards.pop(1)                              # the first one also serves the validation
        return shards
    while not look():
        time.sleep(.5)
        if time.time() > end:
            raise SystemExit('no data')

    def loss(s, ids, Smax, train=True):
        x, pos, ist, tgt, spk, pr, em, drop = batch(s, ids, Smax, train)
        with amp():
            h = m.tfmr(m.embeds(m.cond(spk, pr, em), x, pos, ist, drop))[:, 34:]
            k = tgt != -100
            lg, t = m.speech_head(h[k]), tgt[k]
            l = F.cross_entropy(lg.float(), t)
            q = ist[:, :-1] & ist[:, 1:] & ~drop[:, None]
            lt = F.cross_entropy(m.text_head(h[:, :-1][q]).float(), x[:, 1:][q])
        return l, lt, lg, t

    best = [9e9]

    def evaluate():
        """Keeps the weights of the best validation so far as 't3'; the running ones are 't3_last'."""
        ema.swap()
        total = []
        with torch.no_grad():
            for nm, v in zip(('seen voices', 'held-out espeak', 'held-out flite'), shards[0].valid):
                r = []
                for b in range(0, min(len(v), 384), 64):
                    s = shards[0]
                    l, _, lg, t = loss(s, v[b:b + 64], int(s.bk[v[b:b + 64]].max()), False)
                    dg = (digits(lg.argmax(-1).clamp(max=6560)) == digits(t.clamp(max=6560))).float().mean()
                    e = t == EOS
                    r.append((l.item(), (lg.argmax(-1) == t).float().mean().item(), (lg.topk(5).indices == t[:, None]).any(1).float().mean().item(), dg.item(), (lg.argmax(-1)[e] == EOS).float().mean().item()))
                if r:
                    total.append(np.mean(r, 0)[0])
                    log('EVAL', nm, 'ce/top1/top5/digits/end', [round(float(z), 3) for z in np.mean(r, 0)])
        save(m.state_dict(), a.ck, 't3_last')
        if np.mean(total or [0]) < best[0]:
            best[0] = np.mean(total or [0])
            save(m.state_dict(), a.ck, 't3')
        ema.swap()

    def checkpoint():
        evaluate()
    sc = Schedule(a, [opt], [lr], saver=checkpoint, warm=300)
    tokens, go = int(65536 * a.bs), True
    while go:
        n = np.array([len(s.train) for s in shards], float)
        s = shards[np.random.choice(len(shards), p=n / n.sum())]
        keys = list(s.buckets)
        w = np.array([len(s.buckets[k]) * k for k in keys], float)
        k = keys[np.random.choice(len(keys), p=w / w.sum())]
        l, lt, lg, t = loss(s, np.random.choice(s.buckets[k], max(2, tokens // k)), k)
        opt.zero_grad(set_to_none=True)
        (l + .02 * lt).backward()
        gn = nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        go = sc.step()
        opt.step()
        ema.step()
        if sc.i % 200 == 1:
            look()
            log(sc.i, f'{sc.frac():.2f} ce {l.item():.3f} acc {(lg.argmax(-1) == t).float().mean().item():.3f} text {lt.item():.2f} gn {gn.item():.2f} shards {len(shards)}')
    checkpoint()
    log('done')


main()
