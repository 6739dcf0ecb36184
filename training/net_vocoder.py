"""HiFT vocoder (mel -> wave with a sine source) and the training-only discriminators."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm
from config import CFG
import features as ft

class Snake(nn.Module):
    def __init__(s, c): super().__init__(); s.alpha = nn.Parameter(torch.ones(c))
    def forward(s, x):
        a = s.alpha[None, :, None]
        return x + (1.0 / (a + 1e-9)) * torch.sin(x * a) ** 2


def initw(m):
    if 'Conv' in m.__class__.__name__: m.weight.data.normal_(0, 0.01)


class ResBlock(nn.Module):
    def __init__(s, c, k, dil):
        super().__init__()
        mk = lambda d: weight_norm(nn.Conv1d(c, c, k, 1, dilation=d, padding=(k * d - d) // 2))
        s.convs1 = nn.ModuleList([mk(d) for d in dil]); s.convs2 = nn.ModuleList([mk(1) for d in dil])
        s.activations1 = nn.ModuleList([Snake(c) for _ in dil]); s.activations2 = nn.ModuleList([Snake(c) for _ in dil])

    def forward(s, x):
        for a1, c1, a2, c2 in zip(s.activations1, s.convs1, s.activations2, s.convs2): x = c2(a2(c1(a1(x)))) + x
        return x


class MSource(nn.Module):
    def __init__(s): super().__init__(); s.l_linear = nn.Linear(9, 1)


class F0Pred(nn.Module):
    def __init__(s, c):
        super().__init__()
        L = []
        for i in range(5): L += [weight_norm(nn.Conv1d(80 if i == 0 else c, c, 3, padding=1)), nn.ELU()]
        s.condnet = nn.Sequential(*L); s.classifier = nn.Linear(c, 1)

    def forward(s, x): return torch.abs(s.classifier(s.condnet(x).transpose(1, 2)).squeeze(-1))


class HiFT(nn.Module):
    def __init__(s, c=CFG['hift']):
        super().__init__()
        b = c['base']; rates, ks, nfft = [8, 5, 3], [16, 11, 7], 16
        s.m_source = MSource(); s.conv_pre = weight_norm(nn.Conv1d(80, b, 7, 1, 3))
        s.ups = nn.ModuleList([weight_norm(nn.ConvTranspose1d(b >> i, b >> (i + 1), k, u, (k - u) // 2)) for i, (u, k) in enumerate(zip(rates, ks))])
        s.source_downs = nn.ModuleList(); s.source_resblocks = nn.ModuleList(); s.resblocks = nn.ModuleList()
        for i, (u, k) in enumerate(zip([15, 3, 1], [7, 7, 11])):
            ch = b >> (i + 1)
            s.source_downs.append(nn.Conv1d(nfft + 2, ch, 1) if u == 1 else nn.Conv1d(nfft + 2, ch, u * 2, u, u // 2))
            s.source_resblocks.append(ResBlock(ch, k, (1, 3, 5)))
        for i in range(3):
            for k in (3, 7, 11): s.resblocks.append(ResBlock(b >> (i + 1), k, (1, 3, 5)))
        s.conv_post = weight_norm(nn.Conv1d(b >> 3, nfft + 2, 7, 1, 3))
        s.register_buffer('win', torch.hann_window(16), persistent=False)
        s.f0_predictor = F0Pred(c['f0_ch'])

    @torch.no_grad()
    def sines(s, f0, g=None):
        """f0 (B,T) at frame rate -> (B,480T,9): harmonics + noise as SineGen"""
        f = f0.float().repeat_interleave(480, 1)[:, None]
        k = torch.arange(1, 10, device=f.device)[None, :, None]
        th = 2 * math.pi * torch.cumsum((f * k / 24000).double(), -1).remainder(1).float()
        ph = (torch.rand(f.shape[0], 9, 1, device=f.device, generator=g) * 2 - 1) * math.pi; ph[:, 0] = 0
        uv = (f > 10).float()
        sw = 0.1 * torch.sin(th + ph)
        na = uv * 0.003 + (1 - uv) * 0.1 / 3
        return (sw * uv + na * torch.randn(sw.shape, device=f.device, generator=g)).transpose(1, 2)

    def source(s, f0): return torch.tanh(s.m_source.l_linear(s.sines(f0))).transpose(1, 2)

    def decode(s, x, src):
        with torch.autocast(x.device.type, enabled=False):
            st = torch.stft(src.float().squeeze(1), 16, 4, 16, s.win, return_complex=True)
            st = torch.cat([st.real, st.imag], 1)
        x = s.conv_pre(x)
        for i in range(3):
            x = s.ups[i](F.leaky_relu(x, 0.1))
            if i == 2: x = F.pad(x, (1, 0), mode='reflect')
            x = x + s.source_resblocks[i](s.source_downs[i](st))
            x = (s.resblocks[3 * i](x) + s.resblocks[3 * i + 1](x) + s.resblocks[3 * i + 2](x)) / 3
        x = s.conv_post(F.leaky_relu(x))
        with torch.autocast(x.device.type, enabled=False):
            x = x.float()
            mag = torch.exp(x[:, :9]).clamp(max=1e2); ph = torch.sin(x[:, 9:])
            y = s.istft(torch.complex(mag * torch.cos(ph), mag * torch.sin(ph)))
        return y.clamp(-.99, .99)

    def istft(s, z):
        """torch.istft(z, 16, 4, 16, win) without its check on the host, which a CUDA graph cannot hold.  z (B,9,T) -> (B,4(T-1))"""
        B, _, T = z.shape
        over = lambda x: F.fold(x, (1, 16 + 4 * (T - 1)), (1, 16), stride=(1, 4))[:, 0, 0, 8:-8]
        return over(torch.fft.irfft(z, 16, dim=1) * s.win[:, None]) / over((s.win ** 2)[None, :, None].expand(1, 16, T))

    def forward(s, mel, f0=None):
        f0p = s.f0_predictor(mel)
        return s.decode(mel, s.source(f0p.detach() if f0 is None else f0)), f0p



class PeriodDiscriminator(nn.Module):
    def __init__(s, p):
        super().__init__(); s.p = p; ch = [1, 24, 64, 160, 256]
        s.c = nn.ModuleList([weight_norm(nn.Conv2d(ch[i], ch[i + 1], (5, 1), (3, 1), (2, 0))) for i in range(4)]); s.o = weight_norm(nn.Conv2d(256, 1, (3, 1), 1, (1, 0)))

    def forward(s, y):
        B, L = y.shape; y = F.pad(y[:, None], (0, -L % s.p), mode='reflect').view(B, 1, -1, s.p); f = []
        for c in s.c: y = F.leaky_relu(c(y), .1); f.append(y)
        return s.o(y), f


class SpectrumDiscriminator(nn.Module):
    def __init__(s, n, h):
        super().__init__(); s.n, s.h = n, h
        s.c = nn.ModuleList([weight_norm(nn.Conv2d(1, 24, (3, 9), padding=(1, 4)))] + [weight_norm(nn.Conv2d(24, 24, (3, 9), (1, 2), (1, 4))) for _ in range(3)] + [weight_norm(nn.Conv2d(24, 24, 3, padding=1))]); s.o = weight_norm(nn.Conv2d(24, 1, 3, padding=1))

    def forward(s, y):
        with torch.autocast(y.device.type, enabled=False):
            y = torch.stft(y.float(), s.n, s.h, window=ft._dev('hann', y.device, s.n), return_complex=True).abs().clamp(min=1e-6).transpose(1, 2)[:, None]
            y = y ** .3
        f = []
        for c in s.c: y = F.leaky_relu(c(y), .1); f.append(y)
        return s.o(y), f


