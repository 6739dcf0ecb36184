"""S3Gen flow: upsampling conformer encoder and mean-flow estimator, both trainable with chunk-causal masks."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
from config import CFG

def espnet_pe(T, d, dev):
    pos = torch.arange(T - 1, -T, -1, device=dev).float()[:, None]
    div = torch.exp(torch.arange(0, d, 2, device=dev).float() * -(math.log(10000.0) / d))
    pe = torch.zeros(2 * T - 1, d, device=dev)
    pe[:, 0::2] = torch.sin(pos * div); pe[:, 1::2] = torch.cos(pos * div)
    return pe[None]


class RelAttn(nn.Module):
    def __init__(s, h, n):
        super().__init__()
        s.h, s.dk = h, n // h
        for k in 'qkv': setattr(s, f'linear_{k}', nn.Linear(n, n))
        s.linear_out = nn.Linear(n, n); s.linear_pos = nn.Linear(n, n, bias=False)
        s.pos_bias_u = nn.Parameter(torch.empty(h, s.dk)); s.pos_bias_v = nn.Parameter(torch.empty(h, s.dk))
        nn.init.xavier_uniform_(s.pos_bias_u); nn.init.xavier_uniform_(s.pos_bias_v)

    def forward(s, x, allowed, pe):
        B, T, D = x.shape
        q, k, v = (l(x).view(B, T, s.h, s.dk) for l in (s.linear_q, s.linear_k, s.linear_v))
        p = s.linear_pos(pe.to(x.dtype)).view(1, -1, s.h, s.dk).transpose(1, 2)
        bd = (q + s.pos_bias_v).transpose(1, 2).to(p.dtype) @ p.transpose(-2, -1)                 # B,H,T,2T-1
        bd = F.pad(bd, (1, 0)).view(B, s.h, 2 * T, T)[:, :, 1:].reshape(B, s.h, T, 2 * T - 1)[..., :T]
        bias = (bd / math.sqrt(s.dk)).masked_fill(~allowed[:, None], -1e4)
        o = F.scaled_dot_product_attention((q + s.pos_bias_u).transpose(1, 2).to(v.dtype), k.transpose(1, 2), v.transpose(1, 2), attn_mask=bias.to(v.dtype))
        return s.linear_out(o.transpose(1, 2).reshape(B, T, D))


class FFN(nn.Module):
    def __init__(s, n, f): super().__init__(); s.w_1 = nn.Linear(n, f); s.w_2 = nn.Linear(f, n)
    def forward(s, x): return s.w_2(F.silu(s.w_1(x)))


class ConfLayer(nn.Module):
    def __init__(s, n, h, f):
        super().__init__()
        s.self_attn = RelAttn(h, n); s.feed_forward = FFN(n, f); s.norm_ff = nn.LayerNorm(n, eps=1e-12); s.norm_mha = nn.LayerNorm(n, eps=1e-12)

    def forward(s, x, m, pe):
        x = x + s.self_attn(s.norm_mha(x), m, pe)
        return x + s.feed_forward(s.norm_ff(x))


class Embed(nn.Module):
    def __init__(s, n): super().__init__(); s.out = nn.Sequential(nn.Linear(n, n), nn.LayerNorm(n, eps=1e-5), nn.Dropout(0.0)); s.n = n
    def forward(s, x): return s.out(x) * math.sqrt(s.n)


class PreLook(nn.Module):
    """3-token lookahead convolution; with `prompt` (B,) the lookahead of the first `prompt` positions stops at the prompt's end."""
    def __init__(s, n, l=3):
        super().__init__()
        s.l = l
        s.conv1 = nn.Conv1d(n, n, l + 1)
        s.conv2 = nn.Conv1d(n, n, 3)

    def forward(s, x, prompt=None):
        xt = x.transpose(1, 2)
        y = s.conv1(F.pad(xt, (0, s.l)))
        if prompt is not None:
            inside = (torch.arange(x.shape[1], device=x.device)[None] < prompt[:, None])[:, None]
            y = torch.where(inside, s.conv1(F.pad(xt * inside, (0, s.l))), y)
        return s.conv2(F.pad(F.leaky_relu(y), (2, 0))).transpose(1, 2) + x


class Up(nn.Module):
    def __init__(s, n): super().__init__(); s.conv = nn.Conv1d(n, n, 5)
    def forward(s, x): return s.conv(F.pad(x.transpose(1, 2).repeat_interleave(2, -1), (4, 0))).transpose(1, 2)


class UpsampleEncoder(nn.Module):
    def __init__(s, c):
        super().__init__()
        n = c['dim']
        s.embed = Embed(n); s.after_norm = nn.LayerNorm(n, eps=1e-5); s.pre_lookahead_layer = PreLook(n)
        s.encoders = nn.ModuleList([ConfLayer(n, c['heads'], c['ff']) for _ in range(c['blocks'])])
        s.up_layer = Up(n); s.up_embed = Embed(n)
        s.up_encoders = nn.ModuleList([ConfLayer(n, c['heads'], c['ff']) for _ in range(c['up_blocks'])])
        s.n = n

    def forward(s, x, allowed, prompt=None):
        """x (B,T,n); allowed (B or 1,T,T) bool: may query i see key j"""
        T = x.shape[1]
        x = s.pre_lookahead_layer(s.embed(x), prompt)
        pe = espnet_pe(T, s.n, x.device)
        for l in s.encoders:
            x = l(x, allowed, pe)
        x = s.up_embed(s.up_layer(x))
        allowed = allowed.repeat_interleave(2, 1).repeat_interleave(2, 2)
        pe = espnet_pe(2 * T, s.n, x.device)
        for l in s.up_encoders:
            x = l(x, allowed, pe)
        return s.after_norm(x)


class Transpose(nn.Module):
    def forward(s, x): return x.transpose(1, 2)


class CausalConv1d(nn.Conv1d):
    def forward(s, x): return super().forward(F.pad(x, (s.kernel_size[0] - 1, 0)))


class CausalBlock(nn.Module):
    def __init__(s, i, o): super().__init__(); s.block = nn.Sequential(CausalConv1d(i, o, 3), Transpose(), nn.LayerNorm(o), Transpose(), nn.Mish())
    def forward(s, x, m): return s.block(x * m) * m


class Resnet(nn.Module):
    def __init__(s, i, o, t):
        super().__init__()
        s.mlp = nn.Sequential(nn.Mish(), nn.Linear(t, o)); s.block1 = CausalBlock(i, o); s.block2 = CausalBlock(o, o); s.res_conv = nn.Conv1d(i, o, 1)

    def forward(s, x, m, t): return s.block2(s.block1(x, m) + s.mlp(t).unsqueeze(-1), m) + s.res_conv(x * m)


class DAttn(nn.Module):
    def __init__(s, n, h, d):
        super().__init__()
        s.h, s.d = h, d
        s.to_q = nn.Linear(n, h * d, bias=False); s.to_k = nn.Linear(n, h * d, bias=False); s.to_v = nn.Linear(n, h * d, bias=False)
        s.to_out = nn.ModuleList([nn.Linear(h * d, n), nn.Dropout(0.0)])

    def forward(s, x, bias):
        B, T, _ = x.shape
        q, k, v = (l(x).view(B, T, s.h, s.d).transpose(1, 2) for l in (s.to_q, s.to_k, s.to_v))
        return s.to_out[0](F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(B, T, -1))


class GELUProj(nn.Module):
    def __init__(s, i, o): super().__init__(); s.proj = nn.Linear(i, o)
    def forward(s, x): return F.gelu(s.proj(x))


class FF(nn.Module):
    def __init__(s, n): super().__init__(); s.net = nn.ModuleList([GELUProj(n, 4 * n), nn.Dropout(0.0), nn.Linear(4 * n, n)])
    def forward(s, x): return s.net[2](s.net[0](x))


class TBlock(nn.Module):
    def __init__(s, n, h, d): super().__init__(); s.norm1 = nn.LayerNorm(n); s.attn1 = DAttn(n, h, d); s.norm3 = nn.LayerNorm(n); s.ff = FF(n)
    def forward(s, x, bias):
        x = s.attn1(s.norm1(x), bias) + x
        return s.ff(s.norm3(x)) + x


class TimeMLP(nn.Module):
    def __init__(s, i, o): super().__init__(); s.linear_1 = nn.Linear(i, o); s.linear_2 = nn.Linear(o, o)
    def forward(s, x): return s.linear_2(F.silu(s.linear_1(x)))


class ConditionalDecoder(nn.Module):
    def __init__(s, e, meanflow=True):
        super().__init__()
        C, t = e['ch'], e['ch'] * 4
        s.time_mlp = TimeMLP(320, t)
        tb = lambda: nn.ModuleList([TBlock(C, e['heads'], e['hd']) for _ in range(e['n_blocks'])])
        s.down_blocks = nn.ModuleList([nn.ModuleList([Resnet(320, C, t), tb(), CausalConv1d(C, C, 3)])])
        s.mid_blocks = nn.ModuleList([nn.ModuleList([Resnet(C, C, t), tb()]) for _ in range(e['mid'])])
        s.up_blocks = nn.ModuleList([nn.ModuleList([Resnet(2 * C, C, t), tb(), CausalConv1d(C, C, 3)])])
        s.final_block = CausalBlock(C, C); s.final_proj = nn.Conv1d(C, 80, 1)
        s.time_embed_mixer = None
        if meanflow:
            s.time_embed_mixer = nn.Linear(2 * t, t, bias=False)
            with torch.no_grad():
                s.time_embed_mixer.weight.zero_(); s.time_embed_mixer.weight[:, :t].copy_(torch.eye(t))

    @staticmethod
    def temb(x, dim=320):
        h = dim // 2
        e = torch.exp(torch.arange(h, device=x.device).float() * -(math.log(10000) / (h - 1)))
        e = 1000 * x[:, None] * e[None]
        return torch.cat((e.sin(), e.cos()), -1)

    def forward(s, x, mask, mu, t, spks, cond, r=None, allowed=None):
        """x,mu,cond (B,80,T) mask (B,1,T) t,r (B,) spks (B,80); allowed (B,T,T) bool or None (full attention)"""
        T = x.shape[-1]
        te = s.time_mlp(s.temb(t))
        if s.time_embed_mixer is not None:
            te = s.time_embed_mixer(torch.cat([te, s.time_mlp(s.temb(r))], 1))
        x = torch.cat([x, mu, spks[:, :, None].expand(-1, -1, T), cond], 1)
        bias = None if allowed is None else allowed[:, None]

        def blk(res, tbs, x):
            x = res(x, mask, te).transpose(1, 2)
            for b_ in tbs:
                x = b_(x, bias)
            return x.transpose(1, 2)
        res, tb, down = s.down_blocks[0]
        x = blk(res, tb, x)
        skip, x = x, down(x * mask)
        for res, tb in s.mid_blocks:
            x = blk(res, tb, x)
        res, tb, up = s.up_blocks[0]
        x = up(blk(res, tb, torch.cat([x, skip], 1)) * mask)
        return s.final_proj(s.final_block(x, mask) * mask) * mask


class CFM(nn.Module):
    def __init__(s, e): super().__init__(); s.estimator = ConditionalDecoder(e)


def chunk_ids(T, prompt, first, size, device='cpu'):
    """Chunk number of each token: the prompt is chunk 0, then `first` tokens, then chunks of `size`.  All arguments may be (B,1) tensors."""
    i = torch.arange(T, device=device)[None] - prompt
    return torch.where(i < 0, torch.zeros_like(i), torch.where(i < first, torch.ones_like(i), 2 + (i - first).div(size, rounding_mode='floor')))


def chunk_mask(ids):
    """(B,T) chunk numbers -> (B,T,T): a position sees its own chunk and all earlier ones"""
    return ids[:, None, :] <= ids[:, :, None]


class Flow(nn.Module):
    def __init__(s, c=CFG['flow']):
        super().__init__()
        s.input_embedding = nn.Embedding(c['vocab'], c['dim'])
        s.spk_embed_affine_layer = nn.Linear(c['spk'], 80)
        s.encoder = UpsampleEncoder(c)
        s.encoder_proj = nn.Linear(c['dim'], 80)
        s.decoder = CFM(c['est'])

    def mu(s, tok, allowed=None, prompt=None):
        """tok (B,T) -> (B,80,2T)"""
        if allowed is None:
            allowed = torch.ones(1, tok.shape[1], tok.shape[1], dtype=torch.bool, device=tok.device)
        return s.encoder_proj(s.encoder(s.input_embedding(tok), allowed, prompt)).transpose(1, 2)

    def spk(s, e):
        return s.spk_embed_affine_layer(F.normalize(e, dim=1))

    @torch.no_grad()
    def inference(s, tok, prompt_tok, prompt_feat, emb, steps=1, noise_scale=0., chunk=None, first=None, cfg_rate=0.):
        """B=1: tok (1,n), prompt_tok (1,p), prompt_feat (1,2p,80), emb (1,192) -> mel (1,80,2n).
        A standard flow (no mixer) takes the reference's cosine schedule and may be guided: (1 + cfg_rate) v(all) - cfg_rate v(nothing known).
        chunk None: the reference's full attention; else chunk-causal, chunks of `chunk` tokens counted from the first prompt token,
        or, with `first`, the whole prompt as one chunk of its own, then `first` tokens, then chunks.  All of them stream exactly."""
        t = torch.cat([prompt_tok, tok], 1)
        T, P = t.shape[1], prompt_tok.shape[1]
        allowed, prompt = None, None
        if chunk and first:
            allowed, prompt = chunk_mask(chunk_ids(T, P, first, chunk, t.device)), torch.tensor([P], device=t.device)
        elif chunk:
            allowed = chunk_mask(torch.arange(T, device=t.device)[None] // chunk)
        mu = s.mu(t, allowed, prompt)
        cond = torch.zeros_like(mu)
        cond[:, :, :2 * P] = prompt_feat.transpose(1, 2)
        x = torch.randn_like(mu) * noise_scale
        est, ts = s.decoder.estimator, torch.linspace(0, 1, steps + 1, device=t.device)
        if est.time_embed_mixer is None:
            ts = 1 - torch.cos(ts * math.pi / 2)
        mask, e = torch.ones(1, 1, 2 * T, device=t.device), s.spk(emb)
        fa = None if allowed is None else allowed.repeat_interleave(2, 1).repeat_interleave(2, 2)
        for i in range(steps):
            v = est(x, mask, mu, ts[i][None], e, cond, ts[i + 1][None], fa)
            if cfg_rate:
                v = (1 + cfg_rate) * v - cfg_rate * est(x, mask, mu * 0, ts[i][None], e * 0, cond * 0, None, fa)
            x = x + (ts[i + 1] - ts[i]) * v
        return x[:, :, 2 * P:]
