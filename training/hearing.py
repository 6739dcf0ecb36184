"""Two ears as training losses: how differently two sounds are heard.  A spectral distance hardly tells mush from speech; networks that were taught phonemes do.
The speech tokenizer is one ear; the listener, another architecture with another front end on other labels, is there so that a loss cannot be satisfied by
what one network happens to like.  The recogniser that judges in evaluate.py shares nothing with either."""
import json, os
import torch, torch.nn as nn, torch.nn.functional as F, torchaudio
import features as ft
from common import load_into
from net_tokenizer import S3Tokenizer


class Listener(nn.Module):
    """Frame-wise phoneme classifier: 24 kHz sound -> log mel of short windows (21 ms, 10 ms apart) -> dilated convolutions -> phonemes at 50 Hz"""
    def __init__(s, n, d=256, mels=64):
        super().__init__()
        s.inp = nn.Sequential(nn.Conv1d(mels, d, 5, padding=2), nn.GELU(), nn.Conv1d(d, d, 4, 2, 1))
        s.blocks = nn.ModuleList([nn.Sequential(nn.GELU(), nn.Conv1d(d, d, 3, padding=k, dilation=k), nn.GELU(), nn.Conv1d(d, d, 1)) for k in (1, 2, 4, 8, 1, 2, 4, 8)])
        s.out = nn.Conv1d(d, n, 1)
        s.register_buffer('fb', ft.mel_fb(24000, 512, mels, 0, 8000), persistent=False)
        s.register_buffer('win', torch.hann_window(512), persistent=False)

    def forward(s, y):
        """(B,L) at 24 kHz, L a multiple of 480 -> logits (B,n,L/480), the layers' outputs (B,d,L/480)"""
        with torch.autocast(y.device.type, enabled=False):
            x = torch.stft(F.pad(y.float()[:, None], (136, 136), mode='reflect')[:, 0], 512, 240, window=s.win, center=False, return_complex=True)
            x = (s.fb @ (x.real ** 2 + x.imag ** 2) + 1e-6).log() / 4 + 1.5
        x, f = s.inp(x), []
        for b in s.blocks:
            x = x + b(x)
            f.append(x)
        return s.out(F.gelu(x)), f


def load_listener(ck, dev):
    """The trained listener, or None as long as there is none"""
    if not os.path.exists(f'{ck}/listener.json'):
        return None
    m = Listener(json.load(open(f'{ck}/listener.json')))
    return m.to(dev).eval().requires_grad_(False) if load_into(m, ck, 'listener') else None


class Hearing(nn.Module):
    """Distance between two sounds (B,L) at 24 kHz: in the tokenizer's layers and latents, and in the listener's layers and phoneme probabilities."""
    def __init__(s, ck, dev, amp, frames):
        super().__init__()
        s.ck, s.dev, s.amp, s.frames = ck, dev, amp, frames
        s.tokenizer, s.down, s.listener = S3Tokenizer(), torchaudio.transforms.Resample(24000, 16000), None
        s.ready = load_into(s.tokenizer, ck, 'tokenizer')
        s.to(dev).eval().requires_grad_(False)

    def look(s):
        """Takes the listener in once it is there -> whether anything changed"""
        if s.listener is None:
            s.listener = load_listener(s.ck, s.dev)
            return s.listener is not None
        return False

    def features(s, y, n):
        f = []
        hooks = [b.register_forward_hook(lambda m, i, o: f.append(o)) for b in s.tokenizer.encoder.blocks]
        m = ft.mel_s3(s.down(y))[..., :2 * s.frames]
        with s.amp():
            z, _ = s.tokenizer.latent(m, n)
            [h.remove() for h in hooks]
            p, g = s.listener(y) if s.listener else (None, [])
        norm = lambda x: F.layer_norm(x.float(), x.shape[-1:])
        return [norm(x) for x in f] + [4 * z], [norm(x.transpose(1, 2)) for x in g[1::2]], p

    def forward(s, x, y, n, cross=0):
        """-> the tokenizer's distance, the listener's, and both for the last `cross` rows, where x is in another voice than y: there only what is the same in
        every voice is compared, the tokenizer's latents and the phoneme probabilities.  n (B,) mel frames that count, for the tokenizer."""
        with torch.no_grad():
            ty, ly, py = s.features(y, n)
        tx, lx, px = s.features(x, n)
        same = slice(0, len(x) - cross)
        a, zero = sum((p - q)[same].abs().mean() for p, q in zip(tx, ty)) / len(tx), torch.zeros((), device=x.device)
        latent = (tx[-1] - ty[-1])[-cross:].abs().mean() if cross else zero
        if px is None:
            return a, zero, latent, zero
        kl = F.kl_div(px.float().log_softmax(1), py.float().log_softmax(1), log_target=True, reduction='none').sum(1).mean(1)
        return a, sum((p - q)[same].abs().mean() for p, q in zip(lx, ly)) / len(lx) + .5 * kl[same].mean(), latent, kl[-cross:].mean() if cross else zero
