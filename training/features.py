"""Batched feature extraction on the GPU, numerically the same as the reference front ends (see check_ref.py)."""
import math, functools
import torch, torch.nn.functional as F


@functools.lru_cache(None)
def mel_fb(sr, n_fft, n_mels, fmin, fmax):
    """librosa.filters.mel (slaney scale, slaney norm) -> (n_mels, n_fft//2+1)"""
    import numpy as np
    def h2m(f):
        f = np.asarray(f, float); m = f / (200 / 3)
        return np.where(f >= 1000, 15 + np.log(np.maximum(f, 1e-9) / 1000) / (np.log(6.4) / 27), m)
    def m2h(m):
        m = np.asarray(m, float)
        return np.where(m >= 15, 1000 * np.exp((np.log(6.4) / 27) * (m - 15)), m * (200 / 3))
    ff = np.linspace(0, sr / 2, 1 + n_fft // 2)
    mf = m2h(np.linspace(h2m(fmin), h2m(fmax), n_mels + 2))
    d = np.diff(mf); r = mf[:, None] - ff[None]
    w = np.maximum(0, np.minimum(-r[:-2] / d[:-1, None], r[2:] / d[1:, None]))
    w *= (2.0 / (mf[2:] - mf[:-2]))[:, None]
    return torch.from_numpy(w).float()


@functools.lru_cache(None)
def _dev(kind, device, *a):
    if kind == 'hann': return torch.hann_window(a[0], device=device)
    if kind == 'mel': return mel_fb(*a).to(device)
    if kind == 'povey': return torch.hann_window(400, periodic=False, device=device).pow(0.85)
    if kind == 'kmel': return kaldi_mel().to(device)


def kaldi_mel(n=80, nfft=512, sr=16000., lo=20., hi=8000.):
    m = lambda f: 1127.0 * torch.log(1 + torch.as_tensor(f, dtype=torch.float64) / 700.)
    ml, mh = m(lo), m(hi); d = (mh - ml) / (n + 1)
    b = torch.arange(n, dtype=torch.float64)[:, None]
    left, cen, right = ml + b * d, ml + (b + 1) * d, ml + (b + 2) * d
    f = m(sr / nfft * torch.arange(nfft // 2, dtype=torch.float64))[None]
    w = torch.clamp(torch.minimum((f - left) / (cen - left), (right - f) / (right - cen)), min=0)
    return F.pad(w, (0, 1)).float()


def mel24(y):
    """Matcha/CosyVoice log mel, (B,L)@24k -> (B,80,L/480)"""
    y = F.pad(y.unsqueeze(1), (720, 720), mode='reflect').squeeze(1)
    s = torch.stft(y, 1920, 480, 1920, _dev('hann', y.device, 1920), center=False, return_complex=True)
    s = torch.sqrt(s.real.pow(2) + s.imag.pow(2) + 1e-9)
    return torch.log(torch.clamp(_dev('mel', y.device, 24000, 1920, 80, 0, 8000) @ s, min=1e-5))


def mel_s3(y, lens=None):
    """whisper style 128-mel @16k, (B,L) -> (B,128,L/160).  The floor (max-8) is per utterance."""
    s = torch.stft(y, 400, 160, window=_dev('hann', y.device, 400), return_complex=True)[..., :-1]
    m = _dev('mel', y.device, 16000, 400, 128, 0, 8000) @ (s.real ** 2 + s.imag ** 2)
    m = torch.clamp(m, min=1e-10).log10()
    m = torch.maximum(m, m.amax((1, 2), keepdim=True) - 8.0)
    return (m + 4.0) / 4.0


def mel_ve(y):
    """VoiceEncoder mel (power, no log) @16k, (B,L) -> (B,1+L/160,40)"""
    s = torch.stft(y, 400, 160, 400, _dev('hann', y.device, 400), center=True, pad_mode='reflect', return_complex=True)
    return (_dev('mel', y.device, 16000, 400, 40, 0, 8000) @ (s.real ** 2 + s.imag ** 2)).transpose(1, 2)


def fbank(y):
    """torchaudio.compliance.kaldi.fbank(num_mel_bins=80) minus the mean over time, (B,L)@16k -> (B,T,80)"""
    fr = y.unfold(1, 400, 160)
    fr = fr - fr.mean(-1, keepdim=True)
    fr = fr - 0.97 * F.pad(fr, (1, 0), mode='replicate')[..., :-1]
    fr = fr * _dev('povey', y.device)
    s = torch.fft.rfft(F.pad(fr, (0, 112)))
    m = torch.log(torch.clamp((s.real ** 2 + s.imag ** 2) @ _dev('kmel', y.device).T, min=1.1920928955078125e-07))
    return m - m.mean(1, keepdim=True)


def resample(y, a, b):
    import torchaudio.functional as AF
    return y if a == b else AF.resample(y, a, b)


def yin(y16, fmin=55., fmax=480., thr=0.18, W=480):
    """(B,L)@16k -> f0 (B,L/320) in Hz, 0 = unvoiced.  Frame i is centred on sample i*320+160."""
    B, L = y16.shape; T = L // 320
    tmax, tmin = int(16000 / fmin), int(16000 / fmax)
    N = W + tmax
    x = F.pad(y16, (N // 2 - 160, N))
    fr = x.unfold(1, N, 320)[:, :T]
    fr = fr - fr.mean(-1, keepdim=True)
    n = 1024
    a = torch.fft.rfft(fr[..., :W], n); b = torch.fft.rfft(fr, n)
    ac = torch.fft.irfft(a.conj() * b, n)[..., :tmax + 1]
    sq = F.pad(torch.cumsum(fr.double() ** 2, -1), (1, 0))
    e = (sq[..., W:W + tmax + 1] - sq[..., :tmax + 1]).float()
    d = (e[..., :1] + e - 2 * ac).clamp(min=0)
    cm = d[..., 1:] * torch.arange(1, tmax + 1, device=y16.device) / (torch.cumsum(d[..., 1:], -1) + 1e-9)   # index k -> lag k+1
    c = cm[..., tmin - 1:]
    loc = (c[..., 1:-1] <= c[..., :-2]) & (c[..., 1:-1] < c[..., 2:])
    ok = loc & (c[..., 1:-1] < thr)
    idx = torch.arange(ok.shape[-1], device=y16.device)
    first = torch.where(ok, idx, 10 ** 6).amin(-1)
    glob = torch.where(loc, c[..., 1:-1], 9.).argmin(-1)
    use = torch.where(first < 10 ** 6, first, glob)
    k = use + tmin                                  # index into cm of the minimum (centre), lag = k+1
    g = lambda o: cm.gather(-1, (k + o).clamp(0, tmax - 1)[..., None])[..., 0]
    y0, y1, y2 = g(-1), g(0), g(1)
    off = (0.5 * (y0 - y2) / (y0 - 2 * y1 + y2 + 1e-9)).clamp(-.5, .5)
    f0 = 16000. / (k + 1 + off)
    en = e[..., 0] / W
    v = (y1 < 0.32) & (en > 1e-6) & (en > 2e-4 * en.amax(-1, keepdim=True))
    return torch.where(v, f0, torch.zeros_like(f0))


def median3(x):
    p = F.pad(x[:, None], (1, 1), mode='replicate')[:, 0]
    return torch.stack([p[:, :-2], p[:, 1:-1], p[:, 2:]]).median(0).values


def random_channel(y, sr, p=0.7, g=None, snr=(12, 45)):
    """Random EQ / band limit / reverb / noise / gain per row, so that the reference encoders tolerate real microphones."""
    B, L = y.shape; dev = y.device
    R = lambda *s: torch.rand(*s, device=dev, generator=g)
    n = 1 << (L - 1).bit_length()
    X = torch.fft.rfft(y, n)
    f = torch.linspace(0, sr / 2, X.shape[-1], device=dev)
    lf = torch.log2(f.clamp(min=60) / 60)
    K = 9
    pts = (R(B, K) - .5) * 2 * (R(B, 1) * 10)
    pos = (lf / lf[-1] * (K - 1)).clamp(max=K - 1 - 1e-4)
    i0 = pos.long(); fr = pos - i0
    eq = pts[:, i0] * (1 - fr) + pts[:, i0 + 1] * fr
    lo = torch.where(R(B, 1) < .25, 60 + 300 * R(B, 1), torch.zeros(B, 1, device=dev))
    hi = torch.where(R(B, 1) < .3, 3300 + 4500 * R(B, 1), torch.full((B, 1), 1e9, device=dev))
    eq = eq - 24 * torch.log2(lo.clamp(min=1) / f.clamp(min=10)).clamp(0, 3) - 30 * torch.log2(f.clamp(min=1) / hi).clamp(0, 3)
    H = 10 ** (eq / 20)
    # reverb: exponentially decaying noise
    rt = .08 + .45 * R(B, 1); m = int(.5 * sr)
    t = torch.arange(m, device=dev) / sr
    rir = torch.randn(B, m, device=dev, generator=g) * torch.exp(-6.9 * t / rt)
    rir = rir / (rir.pow(2).sum(-1, keepdim=True).sqrt() + 1e-6) * (R(B, 1) * .7) * (R(B, 1) < .4)
    rir[:, 0] += 1
    yy = torch.fft.irfft(X * H * torch.fft.rfft(rir, n), n)[:, :L]
    rms = yy.pow(2).mean(-1, keepdim=True).sqrt() + 1e-6
    tilt = (f.clamp(min=50) / 1000) ** (-.5 * torch.randint(0, 3, (B, 1), device=dev, generator=g))
    nz = torch.fft.irfft(torch.fft.rfft(torch.randn(B, n, device=dev, generator=g)) * tilt, n)[:, :L]
    nz = nz / (nz.pow(2).mean(-1, keepdim=True).sqrt() + 1e-6) * rms * 10 ** (-(snr[0] + (snr[1] - snr[0]) * R(B, 1)) / 20)
    yy = yy + nz
    yy = yy * (y.pow(2).mean(-1, keepdim=True).sqrt() + 1e-6) / (yy.pow(2).mean(-1, keepdim=True).sqrt() + 1e-6) * 10 ** ((R(B, 1) - .5) * .7)
    return torch.where(R(B, 1) < p, yy, y).clamp(-1, 1)


def expressive_dynamics(y, emo, sr=24000):
    """Loudness contrast and level that follow the expressiveness emo (B,) in 0..1: 0.5 leaves the signal alone."""
    w = int(.06 * sr)
    e = F.avg_pool1d(F.pad(y[:, None] ** 2, (w, w), mode='constant'), 2 * w + 1, 1)[:, 0].sqrt()
    for _ in range(2):
        e = F.avg_pool1d(F.pad(e[:, None], (w, w), mode='replicate'), 2 * w + 1, 1)[:, 0]
    top = e.amax(1, keepdim=True) + 1e-6
    return y * ((e / top).clamp(min=.03, max=1.) / .35) ** (.7 * (emo[:, None] - .5))
