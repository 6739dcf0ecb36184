"""S3 speech tokenizer (FSQ 3^8 at 25 Hz) and its training-only heads."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
from config import CFG

def rope_half(x, cos, sin):
    h = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., h:], x[..., :h]), -1) * sin


class FSMNAttn(nn.Module):
    def __init__(s, n, h, k=31):
        super().__init__()
        s.h = h; s.query = nn.Linear(n, n); s.key = nn.Linear(n, n, bias=False); s.value = nn.Linear(n, n); s.out = nn.Linear(n, n)
        s.fsmn_block = nn.Conv1d(n, n, k, groups=n, bias=False)

    def forward(s, x, bias, pad, cos, sin):
        B, T, D = x.shape
        q, k, v = (l(x) for l in (s.query, s.key, s.value))
        vm = v * pad
        mem = (s.fsmn_block(F.pad(vm.transpose(1, 2), (15, 15))).transpose(1, 2) + vm) * pad
        q, k, v = (t.view(B, T, s.h, -1) for t in (q, k, v))
        q, k = rope_half(q, cos, sin).to(v.dtype), rope_half(k, cos, sin).to(v.dtype)
        o = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=bias)
        return s.out(o.transpose(1, 2).reshape(B, T, D)) + mem


class TokBlock(nn.Module):
    def __init__(s, n, h):
        super().__init__()
        s.attn = FSMNAttn(n, h); s.attn_ln = nn.LayerNorm(n, eps=1e-5)
        s.mlp = nn.Sequential(nn.Linear(n, 4 * n), nn.GELU(), nn.Linear(4 * n, n)); s.mlp_ln = nn.LayerNorm(n)

    def forward(s, x, *a):
        x = x + s.attn(s.attn_ln(x), *a)
        return x + s.mlp(s.mlp_ln(x))


class TokEncoder(nn.Module):
    def __init__(s, c):
        super().__init__()
        n = c['state']
        s.conv1 = nn.Conv1d(c['n_mels'], n, 3, 2, 1); s.conv2 = nn.Conv1d(n, n, 3, 2, 1)
        s.blocks = nn.ModuleList([TokBlock(n, c['head']) for _ in range(c['layer'])])

    def forward(s, x, x_len):
        mk = lambda l, T: (torch.arange(T, device=x.device)[None] < l[:, None])
        x = F.gelu(s.conv1(x * mk(x_len, x.shape[-1])[:, None]))
        x_len = (x_len - 1) // 2 + 1
        x = F.gelu(s.conv2(x * mk(x_len, x.shape[-1])[:, None]))
        x_len = (x_len - 1) // 2 + 1
        x = x.transpose(1, 2); T = x.shape[1]
        m = mk(x_len, T); pad = m[..., None].to(x.dtype)
        bias = torch.zeros(m.shape, device=x.device, dtype=x.dtype).masked_fill(~m, -1e10 if x.dtype == torch.float32 else -1e4)[:, None, None]
        fr = torch.outer(torch.arange(T, device=x.device).float(), 1.0 / (10000.0 ** (torch.arange(0, 64, 2, device=x.device).float() / 64)))
        fr = torch.cat((fr, fr), -1)[None, :, None]
        cos, sin = fr.cos(), fr.sin()
        for b in s.blocks: x = b(x, bias, pad, cos, sin)
        return x, x_len


class Codebook(nn.Module):
    def __init__(s, n): super().__init__(); s.project_down = nn.Linear(n, 8)


class Quantizer(nn.Module):
    def __init__(s, n): super().__init__(); s._codebook = Codebook(n)


class S3Tokenizer(nn.Module):
    def __init__(s, c=CFG['tok']):
        super().__init__()
        s.encoder = TokEncoder(c); s.quantizer = Quantizer(c['state'])

    def latent(s, mel, mel_len):
        h, l = s.encoder(mel, mel_len)
        return (s.quantizer._codebook.project_down(h).float().tanh() * 0.9990000128746033), l

    def forward(s, mel, mel_len):
        z, l = s.latent(mel, mel_len)
        p = 3 ** torch.arange(8, device=z.device)
        return ((z.round() + 1).long() * p).sum(-1), l


def digits(tok):
    """token id -> 8 ternary digits in {-1,0,1}"""
    return torch.stack([(tok // 3 ** i) % 3 for i in range(8)], -1) - 1



class TokenizerHeads(nn.Module):
    """Training-only heads on the 8-dim code: phonemes, relative F0, energy, speaker-conditioned mel"""
    def __init__(s, nph, nspk, d=256):
        super().__init__()
        s.inp = nn.Conv1d(8, d, 5, padding=2)
        s.c = nn.ModuleList([nn.Sequential(nn.GELU(), nn.Conv1d(d, d, 5, padding=2), nn.GELU(), nn.Conv1d(d, d, 1)) for _ in range(2)])
        s.ph = nn.Linear(d, 2 * nph); s.f0 = nn.Linear(d, 2); s.uv = nn.Linear(d, 2); s.en = nn.Linear(d, 2)
        s.spk = nn.Embedding(nspk, 64)
        s.m = nn.Sequential(nn.Conv1d(d + 64, d, 3, padding=1), nn.GELU(), nn.Conv1d(d, d, 5, padding=2), nn.GELU(), nn.Conv1d(d, 160, 3, padding=1))

    def forward(s, z, sid):
        h = s.inp(z.transpose(1, 2))
        for c in s.c:
            h = h + c(h)
        m = s.m(torch.cat([h, s.spk(sid)[:, :, None].expand(-1, -1, h.shape[-1])], 1))
        h = F.gelu(h).transpose(1, 2)
        B, T, _ = h.shape
        r = lambda x: x.reshape(B, 2 * T, -1)
        return r(s.ph(h)), r(s.f0(h))[..., 0], r(s.uv(h))[..., 0], r(s.en(h))[..., 0], m.transpose(1, 2).reshape(B, 2 * T, 80)
