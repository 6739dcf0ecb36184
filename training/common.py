"""Shared by all stages: networks by name, checkpoints, data, EMA, time-based schedule, logging."""
import math, os, pickle, random, time
import numpy as np, torch
from config import CFG

T0 = time.time()


class Log:
    def __init__(s, stage, folder):
        os.makedirs(folder, exist_ok=True)
        s.stage, s.f = stage, open(f'{folder}/log_{stage}.txt', 'a')

    def __call__(s, *x):
        t = f'[{s.stage} {time.time() - T0:6.1f}s] ' + ' '.join(str(i) for i in x)
        print(t, flush=True)
        s.f.write(t + '\n')
        s.f.flush()


def make_net(name):
    import net_voice, net_tokenizer, net_flow, net_vocoder, net_t3
    return dict(ve=net_voice.VoiceEncoder, camplus=net_voice.CAMPPlus, tokenizer=net_tokenizer.S3Tokenizer, flow=net_flow.Flow, hift=net_vocoder.HiFT, t3=net_t3.T3)[name]()


def load_into(m, ck, name, strict=True):
    """Loads <ck>/<name>.safetensors (f16) into m; False if there is none."""
    from safetensors.torch import load_file
    f = f'{ck}/{name}.safetensors'
    if not os.path.exists(f):
        return False
    m.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in load_file(f).items()}, strict=strict)
    return True


def load_net(name, ck, dev='cpu'):
    m = make_net(name)
    if not load_into(m, ck, name):
        raise FileNotFoundError(f'{ck}/{name}.safetensors')
    return m.to(dev).eval()


def save(sd, ck, name):
    from safetensors.torch import save_file
    sd = {k: (v.detach().half() if v.is_floating_point() else v.detach()).cpu().contiguous().clone() for k, v in sd.items()}
    save_file(sd, f'{ck}/tmp_{name}')
    os.replace(f'{ck}/tmp_{name}', f'{ck}/{name}.safetensors')


def seed_all(n):
    torch.manual_seed(n + 1)
    random.seed(n)
    np.random.seed(n)


def setup(args, stage):
    """Common start of a stage -> log, device, autocast factory."""
    seed_all(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False   # features stay exact; networks run under bf16 autocast
    if args.compile:
        import torch._dynamo as dyn
        dyn.config.suppress_errors = True
        dyn.config.cache_size_limit = 64
    kind = 'cuda' if args.dev.startswith('cuda') else 'cpu'
    return Log(stage, args.ck), args.dev, (lambda: torch.autocast(kind, dtype=torch.bfloat16))


def stage_args(ap):
    ap.add_argument('--ds', default='/tmp/ds'); ap.add_argument('--ck', default='/tmp/ck'); ap.add_argument('--dev', default='cuda')
    ap.add_argument('--end', type=float, default=0, help='unix time at which to stop'); ap.add_argument('--minutes', type=float, default=5, help='if --end is not given')
    ap.add_argument('--steps', type=int, default=10 ** 9); ap.add_argument('--bs', type=float, default=1., help='batch size factor'); ap.add_argument('--compile', type=int, default=1)
    ap.add_argument('--seed', type=int, default=0); ap.add_argument('--save_every', type=float, default=60); ap.add_argument('--lr', type=float, default=0)
    ap.add_argument('--wait', type=int, default=0, help='wait for the data of this many parts')
    return ap


def compile_blocks(m, classes, on, dynamic=False):
    if on:
        for x in m.modules():
            if isinstance(x, classes):
                x.compile(dynamic=dynamic)
    return m


def wait_for_parts(ds, n, end):
    """Folders of the prepared parts, once all n are there (0: those present)."""
    while n and not all(os.path.exists(f'{ds}/p{k}/done') for k in range(n)):
        time.sleep(.5)
        if time.time() > end:
            raise SystemExit('no data')
    return [f'{ds}/p{k}' for k in range(n or 64) if os.path.exists(f'{ds}/p{k}/done')]


class Captured:
    """Calls fn(), after a few ordinary calls as one CUDA graph: fn must work on fixed tensors and never wait for the device."""
    def __init__(s, fn, on, warm=4):
        s.fn, s.on, s.left, s.graph = fn, on, warm, None

    def __call__(s):
        if not s.on:
            return s.fn()
        if s.left:
            s.left -= 1
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                s.fn()
            torch.cuda.current_stream().wait_stream(side)
            return
        if s.graph is None:
            torch.cuda.synchronize()
            s.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(s.graph):
                s.fn()
        s.graph.replay()


class FlatGradients:
    """All gradients in one buffer, so that clipping is two kernels and a step with a bad gradient does nothing."""
    def __init__(s, params, dev):
        params = [p for p in params if p.requires_grad]
        s.flat, o = torch.zeros(sum(p.numel() for p in params), device=dev), 0
        for p in params:
            p.grad = s.flat[o:o + p.numel()].view_as(p)
            o += p.numel()

    def clip(s, limit):
        """-> the norm before"""
        s.flat.nan_to_num_(0., 0., 0.)
        n = s.flat.norm()
        s.flat.mul_((limit / (n + 1e-6)).clamp(max=1.))
        return n


class Ema:
    def __init__(s, m, d=.999):
        s.d, s.n = d, 0
        s.p = [p for p in m.state_dict().values() if p.is_floating_point()]
        s.s = [p.detach().clone() for p in s.p]

    @torch.no_grad()
    def step(s):
        s.n += 1
        torch._foreach_lerp_(s.s, s.p, 1 - min(s.d, (1 + s.n) / (10 + s.n)))

    @torch.no_grad()
    def swap(s):
        for p, q in zip(s.p, s.s):
            t = p.clone()
            p.copy_(q)
            q.copy_(t)


class Schedule:
    """Warm-up, then cosine over the time that is left; saves now and then."""
    def __init__(s, args, opts, lrs, floor=.03, saver=None, warm=150):
        s.a, s.o, s.l, s.floor, s.saver, s.warm, s.i, s.t0, s.last = args, opts, lrs, floor, saver, warm, 0, None, time.time()

    def frac(s):
        return 0. if s.t0 is None else min(1., (time.time() - s.t0) / max(1e-9, s.end - s.t0))

    def step(s):
        """Call once per step; False = time is up."""
        if s.t0 is None:
            s.t0 = time.time()
            s.end = s.a.end or s.t0 + 60 * s.a.minutes
        s.i += 1
        if s.saver and time.time() - s.last > s.a.save_every:
            s.last = time.time()
            s.saver()
        k = min(1., s.i / s.warm) * (s.floor + (1 - s.floor) * .5 * (1 + math.cos(math.pi * s.frac())))
        for o, l in zip(s.o, s.l):
            for g in o.param_groups:
                if torch.is_tensor(g['lr']):                # a captured step reads it from there
                    g['lr'].fill_(l * k)
                else:
                    g['lr'] = l * k
        return time.time() < s.end and s.i < s.a.steps


class Data:
    """Prepared parts on the device: flat arrays over token positions, utterance tables, speakers."""
    def __init__(s, parts, names, dev, log=print, fraction=1.):
        s.dev, tabs, arrays = dev, [], {n: [] for n in names}
        base = 0
        s.meta, s.emb, texts, phones = None, {}, [], []
        tb = pb = 0
        for p in parts:
            u = dict(np.load(p + '/utt.npz'))
            meta = pickle.load(open(p + '/meta.pkl', 'rb'))
            s.meta = s.meta or meta
            n = len(u['sid'])
            if fraction < 1:                      # the first speakers only
                n = int(np.searchsorted(u['sid'], np.quantile(u['sid'], fraction)))
            T = int(u['off'][n])
            mult = dict(audio=960, f0=2, mel=2, ph=2, tok=1)
            for k in names:
                x = np.load(f'{p}/{k}.npy', mmap_mode='r')[:T * mult[k]]
                arrays[k].append(torch.from_numpy(np.ascontiguousarray(x)).to(dev))
            if os.path.exists(p + '/emb.npz'):
                e = np.load(p + '/emb.npz')
                for k in e.files:
                    s.emb.setdefault(k, []).append(torch.from_numpy(e[k][:n]).to(dev))
            tabs.append({k: u[k][:n] for k in ('sid', 'f0mean', 'emo', 'kind', 'held')} | dict(ntok=np.diff(u['off'])[:n], start=u['off'][:n] + base,
                        ts=u['toff'][:n] + tb, tl=np.diff(u['toff'])[:n], ps=u['poff'][:n] + pb, pl=np.diff(u['poff'])[:n]))
            texts.append(u['text'])
            phones.append(u['phones'])
            base, tb, pb = base + T, tb + len(u['text']), pb + len(u['phones'])
        t = {k: np.concatenate([x[k] for x in tabs]) for k in tabs[0]}
        for k, v in t.items():
            setattr(s, k, v)
        s.off = np.concatenate([s.start, [base]]).astype(np.int64)
        s.N = len(s.sid)
        s.text, s.phones = np.concatenate(texts), np.concatenate(phones)
        for k in names:
            setattr(s, k, torch.cat(arrays[k]) if len(arrays[k]) > 1 else arrays[k][0])
        s.emb = {k: torch.cat(v) for k, v in s.emb.items()}
        # speakers = runs of equal sid (parts hold different speakers)
        cut = np.flatnonzero(np.diff(s.sid)) + 1
        s.first, s.last = np.concatenate([[0], cut]), np.concatenate([cut, [s.N]])
        s.run = np.repeat(np.arange(len(s.first)), s.last - s.first)
        s.rlen = s.off[s.last] - s.off[s.first]
        s.rheld, s.rkind = s.held[s.first], s.kind[s.first]
        rng = np.random.RandomState(5)
        s.val = s.held | (rng.rand(s.N) < .004)
        s.nspk = s.meta['nspk']
        log(f'data: {s.N} utterances {s.off[-1] / 90000:.1f} h, {len(s.first)} speakers, kinds {np.bincount(s.kind).tolist()}')

    def t(s, x, dtype=None):
        return torch.as_tensor(x, device=s.dev, dtype=dtype)

    def crop_audio(s, starts, n):
        i = s.t(starts)[:, None] + torch.arange(n, device=s.dev)[None]
        return s.audio[i.clamp(0, s.audio.numel() - 1)].float() / 32768.
