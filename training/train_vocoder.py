"""Stage 'hift': mel -> wave, spectral losses first, then adversarial, then also on the flow's own mels.
    python3 train_vocoder.py --ds DIR --ck DIR --minutes 15         needs audio, f0 (and mel, tok, spk + a flow and a tokenizer checkpoint)
A step launches some two thousand small kernels, so it is captured as a CUDA graph (--graph 0: not).  Besides the spectra, what the speech tokenizer hears
in the sound counts (--hear): it was supervised by phonemes, pitch and energy, and so tells mush from speech where a spectral distance hardly does; so does
the listener (train_listener.py) as soon as there is one."""
import argparse
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
import features as ft
from common import *
from net_flow import Flow, chunk_ids, chunk_mask
from hearing import Hearing
from torch.nn.utils import parametrize
from net_vocoder import HiFT, Snake, PeriodDiscriminator, SpectrumDiscriminator

ap = stage_args(argparse.ArgumentParser())
ap.add_argument('--gan', type=float, default=.22, help='share of the time before the adversarial part'); ap.add_argument('--own', type=float, default=.45, help='share before the flow\'s own mels')
ap.add_argument('--parts', type=int, default=1, help='parts to load'); ap.add_argument('--lr_d', type=float, default=2.5e-4)
ap.add_argument('--graph', type=int, default=1); ap.add_argument('--hear', type=float, default=4., help='weight of what the tokenizer hears'); ap.add_argument('--listen', type=float, default=2., help='weight of what the listener hears')
ap.add_argument('--share', default='.42,.30,.28', help='espeak, flite, human'); ap.add_argument('--ramp', type=int, default=800, help='steps over which new discriminators come in')
a = ap.parse_args()
log, DEV, amp = setup(a, 'hift')
NF = 40                                                        # frames per crop
SHARE = dict(enumerate(map(float, a.share.split(','))))


def spectral_loss(x, y, mel):
    l = 0.
    for n, h in ((2048, 240), (1024, 120), (512, 50), (256, 30)):
        w = ft._dev('hann', x.device, n)
        X = torch.stft(x, n, h, window=w, return_complex=True).abs().clamp(min=1e-5)
        Y = torch.stft(y, n, h, window=w, return_complex=True).abs().clamp(min=1e-5)
        l = l + (X - Y).pow(2).sum().add(1e-8).sqrt() / (Y.pow(2).sum().sqrt() + 1e-4) * .5 + (X.log() - Y.log()).abs().mean() * .5
        if n in mel:
            l = l + ((mel[n] @ X).clamp(min=1e-5).log() - (mel[n] @ Y).clamp(min=1e-5).log()).abs().mean()
    return l / 4


class OwnMels:
    """Pool of mels made by the flow from true tokens, prompted by the same speaker, with their sample positions."""
    def __init__(s, D, T=200, n=48):
        s.D, s.T, s.n, s.net = D, T, n, None
        ok = {k: np.where((D.rlen >= T + 2) & ~D.rheld & (D.rkind == k))[0] for k in SHARE}
        s.runs = {k: v for k, v in ok.items() if len(v)}

    def refresh_net(s):
        net = Flow()
        if load_into(net, a.ck, 'flow'):
            s.net = net.to(DEV).eval()
            log('own mels: flow checkpoint loaded')

    @torch.no_grad()
    def fill(s):
        D, T, n = s.D, s.T, s.n
        run = np.concatenate([np.random.choice(v, max(1, int(n * SHARE[k]))) for k, v in s.runs.items()])
        n = len(run)
        st = D.off[D.first[run]] + (np.random.rand(n) * (D.rlen[run] - T)).astype(np.int64)
        S = D.t(st)
        tok, mel = D.tok[S[:, None] + torch.arange(T, device=DEV)].long(), D.mel[2 * S[:, None] + torch.arange(2 * T, device=DEV)].float().transpose(1, 2)
        e = D.emb['sp0'][D.t(D.first[run])].float()
        P = T // 3
        al = chunk_mask(chunk_ids(T, P, 5, 10, DEV)).expand(n, -1, -1)
        with amp():
            mu, se = s.net.mu(tok, al, torch.full((n,), P, device=DEV)).float(), s.net.spk(e).float()
            z = torch.zeros(n, device=DEV)
            x = s.net.decoder.estimator(torch.zeros_like(mel), torch.ones(n, 1, 2 * T, device=DEV), mu, z, se, mel * (torch.arange(2 * T, device=DEV) < 2 * P), z + 1,
                                        al.repeat_interleave(2, 1).repeat_interleave(2, 2)).float()
        s.x, s.start, s.P = x, st, P

    def crops(s, B):
        i = np.random.randint(len(s.start), size=B)
        f = np.random.randint(2 * s.P, 2 * s.T - NF, size=B)
        mel = s.x[s.D.t(i)[:, None, None], torch.arange(80, device=DEV)[None, :, None], (s.D.t(f)[:, None] + torch.arange(NF, device=DEV))[:, None]]
        return mel, s.start[i] * 2 + f


def main():
    m = HiFT().to(DEV)
    had = load_into(m, a.ck, 'hift')
    log('resumed', had, sum(p.numel() for p in m.parameters()), 'parameters')
    if not had:
        with torch.no_grad():
            m.f0_predictor.classifier.weight.mul_(40)
            m.f0_predictor.classifier.bias.fill_(60.)
    compile_blocks(m, Snake, a.compile, True)
    Ds = nn.ModuleList([PeriodDiscriminator(p) for p in (2, 3, 5, 7, 11)] + [SpectrumDiscriminator(n, h) for n, h in ((2048, 512), (1024, 256), (512, 128))]).to(DEV)
    hadD = load_into(Ds, a.ck, 'hift_discriminators')
    hear = Hearing(a.ck, DEV, amp, NF)
    D = Data(wait_for_parts(a.ds, a.wait, a.end or 1e12)[:a.parts], ('audio', 'f0', 'mel', 'tok') if a.own < 1 else ('audio', 'f0'), DEV, log)
    own = OwnMels(D) if a.own < 1 else None
    cuda = DEV.startswith('cuda')
    number = lambda x: torch.tensor(float(x), device=DEV) if cuda else x
    lr = a.lr or (4e-4 if had else 8e-4)
    gm, gd = FlatGradients(m.parameters(), DEV), FlatGradients(Ds.parameters(), DEV)
    og = torch.optim.AdamW(m.parameters(), number(lr), betas=(.8, .99), weight_decay=.01, fused=cuda, capturable=cuda)
    od = torch.optim.AdamW(Ds.parameters(), number(a.lr_d), betas=(.8, .99), weight_decay=.01, fused=cuda, capturable=cuda)
    ema = Ema(m, .999)

    def checkpoint():
        ema.swap(); save(m.state_dict(), a.ck, 'hift'); ema.swap()
        save(Ds.state_dict(), a.ck, 'hift_discriminators')
    sc = Schedule(a, [og, od], [lr, a.lr_d], .1, saver=checkpoint)
    mel_fb = {n: ft.mel_fb(24000, n, 80 if n >= 1024 else 40, 0, 12000).to(DEV) for n in (2048, 1024, 512)}
    pools = {k: np.where(~D.val & (D.kind == k) & (D.ntok > 25))[0] for k in SHARE}
    pools = {k: v[D.off[v] > 4] for k, v in pools.items()}
    pools = {k: (v, D.ntok[v] / D.ntok[v].sum()) for k, v in pools.items() if len(v)}
    counts = {k: max(1, int(64 * a.bs * SHARE[k])) for k in pools}
    B = sum(counts.values())

    def get(frames, mel=None):
        """frames: first frame of each crop -> mel (true unless given), wave, f0"""
        full = D.crop_audio(frames * 480 - 960, (NF + 4) * 480)
        f0 = D.f0[(D.t(frames)[:, None] + torch.arange(NF, device=DEV)[None]).clamp(0, D.f0.numel() - 1)].float()
        return ft.mel24(full)[..., 2:2 + NF] if mel is None else mel, full[:, 960:960 + NF * 480], f0

    def draw():
        ids = np.concatenate([np.random.choice(v, counts[k], p=p) for k, (v, p) in pools.items()])
        return get(D.off[ids] * 2 + (np.random.rand(len(ids)) * np.maximum(1, D.ntok[ids] * 2 - NF)).astype(np.int64))

    # what a step reads and writes
    mel, y, f0 = torch.zeros(B, 80, NF, device=DEV), torch.zeros(B, NF * 480, device=DEV), torch.zeros(B, NF, device=DEV)
    true_f0, weight, st = torch.zeros((), dtype=torch.bool, device=DEV), torch.zeros((), device=DEV), torch.zeros(7, device=DEV)
    lens = torch.full((B,), 2 * NF, device=DEV)

    def step(gan):
        with amp(), parametrize.cached():
            fp = m.f0_predictor(mel)
            g = m.decode(mel, m.source(torch.where(true_f0, f0, fp.detach().float())))
        if gan:
            Ds.requires_grad_(True)
            with amp(), parametrize.cached():
                ld = sum((1 - d(y)[0].float()).pow(2).mean() + d(g.detach())[0].float().pow(2).mean() for d in Ds)
            gd.flat.zero_()
            ld.backward()
            gd.clip(10.)
            od.step()
            Ds.requires_grad_(False)
            st[3] = ld.detach()
        v = f0 > 0
        lf, ls = ((fp.float() - f0).abs() / 40).mean(), spectral_loss(g, y, mel_fb)
        l = 15 * ls + 2 * lf
        if hear.ready and a.hear:
            lt, ll, _, _ = hear(g, y, lens)
            l = l + a.hear * lt + a.listen * ll
            st[5], st[6] = lt.detach(), ll.detach()
        if gan:
            with amp(), parametrize.cached():
                lg = lfm = 0.
                for d in Ds:
                    q, fq = d(g)
                    with torch.no_grad():
                        _, fr = d(y)
                    lg = lg + (1 - q.float()).pow(2).mean()
                    lfm = lfm + sum((x.float() - z.float()).abs().mean() for x, z in zip(fq, fr)) / len(fq)
            l = l + weight * (lg + 2 * lfm)
        gm.flat.zero_()
        l.backward()
        st[4] = gm.clip(20.)
        og.step()
        st[0], st[1], st[2] = ls.detach(), ((fp - f0).abs() * v).sum().detach() / v.sum().clamp(min=1), ((fp > 10) != v).float().mean()

    capture = lambda: {k: Captured(lambda k=k: step(k), a.graph and cuda) for k in (False, True)}
    run = capture()
    go, t_net, t_ear, since = True, 0., time.time(), None
    while go:
        f = sc.frac()
        if time.time() - t_ear > 10:
            t_ear = time.time()
            if hear.look():                                    # what was captured does not hold the listener
                log('the listener listens')
                run = capture()
        use_own = False
        if own and f > a.own:
            if time.time() - t_net > 60:
                t_net = time.time()
                own.refresh_net()
            use_own = own.net is not None and sc.i % 3 != 0
            if use_own and (sc.i % 12 == 1 or not hasattr(own, 'x')):
                own.fill()
        if use_own:
            x, frames = own.crops(B)
            x = get(frames, x)
        else:
            x = draw()
        for to, z in zip((mel, y, f0), x):
            to.copy_(z)
        gan = bool(had or f >= a.gan) and sc.i > 3
        if gan and since is None:
            log('adversarial part starts')
            since = sc.i - (a.ramp if hadD else 0)
        true_f0.fill_(bool(np.random.rand() < (.2 if had else max(.2, 1 - 3 * f))))
        weight.fill_(min(1., max(0., (sc.i - since) / a.ramp - .25)) if gan else 0.)
        run[gan]()
        ema.step()
        go = sc.step()
        if sc.i % 200 == 1:
            s = st.tolist()
            log(sc.i, f'{f:.2f} own {int(use_own)} spec {s[0]:.3f} f0 {s[1]:.1f} Hz voicing errors {s[2]:.3f} D {s[3]:.3f} gn {s[4]:.1f} heard {s[5]:.3f} {s[6]:.3f} {sc.i / (time.time() - sc.t0):.1f}/s')
    checkpoint()
    ema.swap()
    m.eval()
    with torch.no_grad():
        for k, nm in ((0, 'espeak'), (1, 'flite'), (2, 'human')):
            ids = np.where(D.held & (D.kind == k) & (D.ntok > 45))[0][:128]
            if len(ids):
                mel, y, f0 = get(D.off[ids] * 2 + 8)
                g, fp = m(mel)
                v = (f0 > 0) & (fp > 10)
                log('EVAL held-out', nm, 'spec', round(spectral_loss(g, y, mel_fb).item(), 3), 'mel L1', round((ft.mel24(g) - ft.mel24(y)).abs().mean().item(), 3),
                    'f0 mae', round(((fp - f0).abs() * v).sum().item() / max(1, v.sum().item()), 2), 'voicing errors', round(((fp > 10) != (f0 > 0)).float().mean().item(), 3))
    log('done')


main()
