"""Stage 'flow': tokens + prompt mel + speaker vector -> mel.
    python3 train_flow.py --ds DIR --ck DIR --minutes 15            needs mel, tok, spk
One network for all uses: most rows learn the zero-noise mean-flow map t=0 -> 1 (what ships), some the half steps of 2-step sampling and plain flow
matching from noise.  Three quarters of the rows see chunk-causal attention with random chunk sizes and a prompt that is a chunk of its own (its
lookahead convolution stops at the prompt's end), so that streaming with cached keys is exact; the rest see the reference's full attention.
With --hear (which needs audio as well, and a vocoder and a tokenizer in CK) some of the mels go on through the frozen vocoder, and what the two ears of
hearing.py hear in that sound counts too.
With --cross some of the heard rows speak the tokens of one synthetic voice after the prompt and with the vector of a human clip.  There is no true mel for
that: what counts is what the ears hear regardless of the voice (against the sound the tokens came from), and, as an anchor, the mel that the network gave
before this training.
The share --noisy of the rows is plain flow matching at r = t, on the reference's cosine times; one in five of these knows neither tokens nor voice nor prompt,
for guidance: export.py --standard makes a standard flow of the same weights."""
import argparse
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from common import *
from hearing import Hearing
from net_flow import Flow, TBlock, Resnet, ConfLayer, chunk_ids, chunk_mask
from net_vocoder import HiFT, Snake
from torch.nn.utils import parametrize

ap = stage_args(argparse.ArgumentParser())
ap.add_argument('--tokens', type=int, default=200)
ap.add_argument('--hear', type=float, default=0., help='weight of what the tokenizer hears in the vocoder\'s sound'); ap.add_argument('--listen', type=float, default=.5, help='weight of the listener, relative to that')
ap.add_argument('--ears', type=int, default=24, help='rows that are heard'); ap.add_argument('--graph', type=int, default=1); ap.add_argument('--share', default='.45,.30,.25', help='espeak, flite, human')
ap.add_argument('--cross', type=int, default=0, help='heard rows in a human voice; needs --hear and human clips'); ap.add_argument('--anchor', type=float, default=.4, help='weight of the mel before, in these')
ap.add_argument('--noisy', type=float, default=.125, help='share of the rows for the standard flow; 1: for that use alone'); ap.add_argument('--velocity', type=float, default=.3, help='weight of their squared error'); ap.add_argument('--rank', type=int, default=0); ap.add_argument('--world', type=int, default=1, help='processes, one per GPU'); ap.add_argument('--port', default='29611')
a = ap.parse_args()
a.seed += 100 * a.rank
log, DEV, amp = setup(a, f'flow{a.rank or ""}')
SHARE, NF = dict(enumerate(map(float, a.share.split(',')))), 60      # NF: frames of a mel that is heard


class Ears:
    """Hearing of the flow's mels through the vocoder, whose newest checkpoint is fetched now and then."""
    def __init__(s):
        s.hearing, s.vocoder, s.last, s.graph = Hearing(a.ck, DEV, amp, NF), None, 0., None
        assert s.hearing.ready and os.path.exists(a.ck + '/hift.safetensors'), 'a tokenizer and a vocoder are needed'
        s.fetch()

    def fetch(s):
        if time.time() - s.last < 60:
            return
        s.last = time.time()
        v = HiFT()
        load_into(v, a.ck, 'hift')
        for x in v.modules():
            if parametrize.is_parametrized(x):
                parametrize.remove_parametrizations(x, 'weight')
        v = compile_blocks(v.to(DEV).eval().requires_grad_(False), Snake, a.compile, True)
        if s.vocoder is None:
            s.vocoder = v
        else:
            s.vocoder.load_state_dict(v.state_dict())

    def listen(s, until):
        """Waits for the listener."""
        while not s.hearing.look() and time.time() < until:
            time.sleep(.5)
        log('the listener listens')

    def distance(s, x, y):
        with amp():
            g = s.vocoder(x)[0]
        return s.hearing(g, y, torch.full((len(x),), 2 * NF, device=DEV), a.cross)

    def capture(s, n):
        """Holds n rows from now on as CUDA graphs: forward and backward are some two thousand small kernels."""
        x, y = torch.randn(n, 80, NF, device=DEV, requires_grad=True), torch.randn(n, NF * 480, device=DEV) * .1
        s.graph = torch.cuda.make_graphed_callables(s.distance, (x, y), allow_unused_input=True)
        log('captured')

    def __call__(s, x, P, S, audio):
        """x (n,80,2T) mels, P (n,) prompt tokens, S (n,) where their sound starts in audio, in tokens -> the distances, on a crop after the prompt"""
        n, T2 = x.shape[0], x.shape[2]
        f = torch.minimum(2 * P + ((T2 - NF - 2 * P) * torch.rand(n, device=DEV)).long(), torch.full_like(P, T2 - NF))[:, None]
        i = f + torch.arange(NF, device=DEV)
        y = audio[(2 * S[:, None] + f) * 480 + torch.arange(NF * 480, device=DEV)].float() / 32768.
        return (s.graph or s.distance)(x.gather(2, i[:, None].expand(-1, 80, -1)), y)


def main():
    m = Flow().to(DEV)
    had = load_into(m, a.ck, 'flow')
    log('resumed', had, sum(p.numel() for p in m.parameters()), 'parameters')
    compile_blocks(m, (TBlock, Resnet, ConfLayer), a.compile)
    est = m.decoder.estimator
    ears = Ears() if a.hear else None
    before = None
    if a.cross:
        assert had and ears, '--cross goes on from a checkpoint, with ears'
        before = Flow()
        load_into(before, a.ck, 'flow')
        before = before.to(DEV).eval().requires_grad_(False)
    R = lambda *s: torch.rand(*s, device=DEV)
    wmel = torch.where(torch.arange(80, device=DEV) < 24, 1.5, .79)[None, :, None]

    def masks(n, T):
        P = (R(n) * .75 * T).long() * (R(n) > .05)
        size = torch.tensor([4, 6, 8, 10, 12, 16, 24, 32], device=DEV)[torch.randint(8, (n, 1), device=DEV)]
        first = 2 + (R(n, 1) * (size - 1)).long()
        al = chunk_mask(chunk_ids(T, P[:, None], first, size, DEV))
        full = R(n) < .25
        return al | full[:, None, None], P, torch.where(full, T, P)          # T: no boundary for the lookahead

    def step(tok, x1, e, S, two, other=None):
        """other: tokens, mels and vectors of the human clips that the last rows are prompted with"""
        n, T = tok.shape
        al, P, bound = masks(n, T)
        fa = al.repeat_interleave(2, 1).repeat_interleave(2, 2)
        pm = torch.arange(2 * T, device=DEV)[None] < 2 * P[:, None]
        C = a.cross if other else 0
        if C:
            tok = torch.cat([tok[:-C], torch.where(torch.arange(T, device=DEV) < P[-C:, None], other[0], tok[-C:])])
            x1, e = torch.cat([x1[:-C], torch.where(pm[-C:, None], other[1], 0.)]), torch.cat([e[:-C], other[2]])
        # prompts from real rooms: level, tilt and noise floor of the prompt mel only
        j = (R(n, 1, 1) < .25).float()
        tilt = torch.randn(n, 1, 1, device=DEV) * .4 * torch.linspace(-1, 1, 80, device=DEV)[None, :, None]
        cond = (x1 * (1 - j) + j * torch.logaddexp(x1 + tilt, -8.5 + 4.5 * R(n, 1, 1) + .3 * torch.randn_like(x1))) * pm[:, None]
        w = 3 ** torch.randint(0, 8, tok.shape, device=DEV)                   # T3 makes mistakes: some digits are wrong
        tok = torch.where(R(n, T) < .02, tok + (((tok // w) % 3 + torch.randint(1, 3, tok.shape, device=DEV)) % 3 - (tok // w) % 3) * w, tok)
        mask, lw = torch.ones(n, 1, 2 * T, device=DEV), torch.where(pm, .05, 1.)[:, None]
        if C:
            with torch.no_grad(), amp():
                z = torch.zeros(C, device=DEV)
                x0 = before.decoder.estimator(x1[-C:] * 0, mask[-C:], before.mu(tok[-C:], al[-C:], bound[-C:]).float(), z, before.spk(e[-C:]).float(), cond[-C:], z + 1, fa[-C:]).float()
            x1 = torch.cat([x1[:-C], torch.where(pm[-C:, None], x1[-C:], x0)])
            lw = torch.cat([lw[:-C], lw[-C:] * a.anchor])
        with amp():
            mu, se = m.mu(tok, al, bound), m.spk(e)
        mu, se = mu.float(), se.float()
        K = K_EARS if ears and not two else 0                                 # the last K rows, whole steps, are heard
        noisy = torch.arange(n, device=DEV) < int(n * a.noisy)                # plain flow matching rows
        z = torch.randn_like(x1) * noisy[:, None, None]
        t = torch.where(noisy, 1 - torch.cos(R(n) * torch.pi / 2), 0.)
        r = torch.where(noisy, t, torch.where((R(n) < .25) & (torch.arange(n, device=DEV) < n - K), .5, 1.))
        keep = (~noisy | (R(n) > .2)).float()[:, None]
        known = mu * keep[:, None], se * keep, cond * keep[:, None]
        xt = (1 - t)[:, None, None] * z + t[:, None, None] * x1
        if two:                                                               # second half step from the model's own first one
            with torch.no_grad(), amp():
                xt = .5 * est(xt * 0, mask, mu, t * 0, se, cond, t * 0 + .5, fa).float()
            t, r, noisy = t * 0 + .5, t * 0 + 1, noisy & False
        with amp():
            u = est(xt, mask, known[0], t, *known[1:], r, fa)
        d = u.float() - ((x1 - xt) * 2 if two else x1 - z)
        d = d * (.5 if two else 1.)
        l1, l2 = (d.abs() * wmel).mean(1, keepdim=True), d.pow(2).mean(1, keepdim=True)
        nz = noisy[:, None, None].float()
        aux = ((mu - x1).abs().mean(1, keepdim=True) * lw).sum() / lw.sum()
        w0 = lw * (1 - nz)
        with torch.no_grad():
            st = torch.stack([(d.abs().mean(1, keepdim=True) * w0).sum() / w0.sum().clamp(min=1), (l2 * lw * nz).sum() / (lw * nz).sum().clamp(min=1), aux])
        l = ((l1 * (1 - nz) + a.velocity * l2 * nz) * lw).sum() / lw.sum() + .05 * aux
        if K and S is not None:
            h = ears(u[-K:].float(), P[-K:], S[-K:], D.audio)                 # from t = 0 and x = 0, u is the mel
            l = l + a.hear * (h[0] + a.listen * h[1] + (C / K) * (h[2] + a.listen * h[3]))
            st = torch.cat([st, torch.stack(h).detach() * 8 / 7])
        return l, F.pad(st, (0, 7 - len(st)))

    T, B = a.tokens, max(8, int(56 * a.bs))
    shapes, K_EARS = ((T, B), (2 * T, B // 2)), min(a.ears, B // 2 - int(B // 2 * a.noisy))
    if a.compile:
        for T_, b in shapes:
            for two in (False, True)[:2 - (a.noisy == 1)]:
                l, _ = step(torch.randint(0, 6561, (b, T_), device=DEV), torch.randn(b, 80, 2 * T_, device=DEV), torch.randn(b, 192, device=DEV), None, two)
                l.backward()
            log('compiled', T_)
    P = list(m.parameters())                                                  # gradients live in one flat buffer; its last element is the stop flag
    flat, o = torch.zeros(sum(p.numel() for p in P) + 1, device=DEV), 0
    for p in P:
        p.grad = flat[o:o + p.numel()].view_as(p)
        o += p.numel()
    if a.world > 1:
        torch.distributed.init_process_group('nccl' if DEV != 'cpu' else 'gloo', init_method=f'tcp://127.0.0.1:{a.port}', rank=a.rank, world_size=a.world)
        torch.distributed.all_reduce(flat)
    D = Data(wait_for_parts(a.ds, a.wait, a.end or 1e12), ('mel', 'tok') + ('audio',) * bool(ears), DEV, log)
    if ears:
        if a.listen:
            ears.listen(a.end or 1e12)
        if a.graph and DEV.startswith('cuda'):
            ears.capture(K_EARS)
    lr = a.lr or (6e-4 if had else 1.2e-3)
    opt = torch.optim.AdamW(m.parameters(), lr, betas=(.9, .98), weight_decay=.01, fused=DEV != 'cpu')
    ema = Ema(m, .999)

    def pool(T, held):
        ok = (D.rlen >= T + 2) & (D.rheld == held)
        p = {k: np.where(ok & (D.rkind == k))[0] for k in SHARE}
        return {k: v for k, v in p.items() if len(v)}

    def get(pools, T, n, aug=.25):
        ks, w = list(pools), np.array([SHARE[k] for k in pools])
        cnt = np.maximum(1, np.floor(w / w.sum() * n)).astype(int)
        cnt[0] += n - cnt.sum()
        runs = np.concatenate([np.random.choice(pools[k], c) for k, c in zip(ks, cnt)])
        np.random.shuffle(runs)
        st = D.off[D.first[runs]] + (np.random.rand(n) * (D.rlen[runs] - T)).astype(np.int64)
        r = D.t(D.first[runs] + (np.random.rand(n) * (D.last[runs] - D.first[runs])).astype(np.int64))
        S = D.t(st)
        e = torch.where(R(n, 1) < aug, D.emb['sp1'][r].float(), D.emb['sp0'][r].float())
        return (D.tok[S[:, None] + torch.arange(T, device=DEV)].long(), D.mel[2 * S[:, None] + torch.arange(2 * T, device=DEV)].float().transpose(1, 2), e, S)

    @torch.no_grad()
    def evaluate():
        ema.swap()
        rs, rt = np.random.get_state(), torch.get_rng_state()
        out = []
        held = pool(T, True)
        for k in held:
            np.random.seed(3)
            n = B // 2
            tok, x1, e, _ = get({k: held[k]}, T, n, 0.)
            P = T // 2
            cond = x1 * (torch.arange(2 * T, device=DEV) < 2 * P)
            mask = torch.ones(n, 1, 2 * T, device=DEV)
            for nm, al in (('chunk 8', chunk_mask(chunk_ids(T, P, 4, 8, DEV)).expand(n, -1, -1)), ('full', torch.ones(n, T, T, dtype=torch.bool, device=DEV))):
                fa = al.repeat_interleave(2, 1).repeat_interleave(2, 2)
                with amp():
                    mu, se = m.mu(tok, al, torch.full((n,), P if nm != 'full' else T, device=DEV)).float(), m.spk(e).float()
                for steps in (1, 2):
                    x, g = torch.zeros_like(x1), torch.linspace(0, 1, steps + 1, device=DEV)
                    for i in range(steps):
                        with amp():
                            x = x + (g[i + 1] - g[i]) * est(x, mask, mu, g[i].expand(n), se, cond, g[i + 1].expand(n), fa).float()
                    out.append(f'{("espeak", "flite", "human")[k]}/{nm}/{steps}: {(x - x1)[:, :, 2 * P:].abs().mean().item():.3f}')
        np.random.set_state(rs)
        torch.set_rng_state(rt)
        ema.swap()
        log('EVAL held-out mel L1', '  '.join(out))

    def checkpoint():
        if a.rank:
            return
        ema.swap(); save(m.state_dict(), a.ck, 'flow'); ema.swap()
        if a.noisy < 1:                                                       # it looks at one and two steps from no noise
            evaluate()
    sc = Schedule(a, [opt], [lr], saver=checkpoint)
    train = {T_: pool(T_, False) for T_, _ in shapes}
    go, acc = True, torch.zeros(7, device=DEV)
    while go:
        T_, b = shapes[int(sc.i % 5 == 4 and len(train[2 * T]) > 0)]
        two = sc.i % 8 == 7 and a.noisy < 1
        if a.cross and not two:
            rows = [torch.cat(x) for x in zip(get(train[T_], T_, b - a.cross), get({k: v for k, v in train[T_].items() if k < 2}, T_, a.cross))]
            l, st = step(*rows, two, get({2: train[T_][2]}, T_, a.cross)[:3])
        else:
            l, st = step(*get(train[T_], T_, b), two)
        flat.zero_()
        l.backward()
        flat[-1] = float(not sc.step())
        if a.world > 1:
            torch.distributed.all_reduce(flat)
        if sc.i % 10 == 0 or a.steps < 10:
            go = float(flat[-1]) == 0
        flat[-1] = 0
        flat.nan_to_num_(0., 0., 0.)
        gn = flat.norm() / a.world
        flat.mul_((1.5 / (gn + 1e-6)).clamp(max=1.) / a.world)
        opt.step()
        ema.step()
        acc += st
        if sc.i % 200 == 0:
            s = (acc / 200).tolist()
            acc.zero_()
            if ears:
                ears.fetch()
            log(sc.i, f'{sc.frac():.2f} L1 {s[0]:.3f} noisy l2 {s[1]:.3f} mu {s[2]:.3f} heard {[round(x, 3) for x in s[3:]]} gn {gn.item():.2f} {sc.i / (time.time() - sc.t0):.1f}/s')
    checkpoint()
    log('done')


main()
