"""T3: text and voice -> speech tokens (Llama backbone)."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
from config import CFG, SOT, EOT, BOS, EOS
from net_tokenizer import digits, rope_half

def llama3_inv_freq(hd=64, theta=500000., factor=8., lo=1., hi=4., old=8192):
    inv = 1.0 / (theta ** (torch.arange(0, hd, 2).float() / hd)); wl = 2 * math.pi / inv
    sm = (old / wl - lo) / (hi - lo)
    return torch.where(wl > old / lo, inv / factor, torch.where(wl < old / hi, inv, (1 - sm) * inv / factor + sm * inv))


class RMSNorm(nn.Module):
    def __init__(s, n): super().__init__(); s.weight = nn.Parameter(torch.ones(n))
    def forward(s, x):
        h = x.float(); h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (s.weight * h).to(x.dtype)


class LAttn(nn.Module):
    def __init__(s, n, h):
        super().__init__()
        s.h, s.hd = h, 64
        for k in 'qkv': setattr(s, f'{k}_proj', nn.Linear(n, h * 64, bias=False))
        s.o_proj = nn.Linear(h * 64, n, bias=False)

    def forward(s, x, cos, sin, cache=None, mask=None):
        B, T, _ = x.shape
        q, k, v = (l(x).view(B, T, s.h, 64).transpose(1, 2) for l in (s.q_proj, s.k_proj, s.v_proj))
        q, k = rope_half(q, cos, sin).to(v.dtype), rope_half(k, cos, sin).to(v.dtype)
        if cache is not None:
            if cache: k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k, v]
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=T > 1 and mask is None)
        return s.o_proj(o.transpose(1, 2).reshape(B, T, -1))


class LMLP(nn.Module):
    def __init__(s, n, f): super().__init__(); s.gate_proj = nn.Linear(n, f, bias=False); s.up_proj = nn.Linear(n, f, bias=False); s.down_proj = nn.Linear(f, n, bias=False)
    def forward(s, x): return s.down_proj(F.silu(s.gate_proj(x)) * s.up_proj(x))


class LLayer(nn.Module):
    def __init__(s, n, h, f): super().__init__(); s.self_attn = LAttn(n, h); s.mlp = LMLP(n, f); s.input_layernorm = RMSNorm(n); s.post_attention_layernorm = RMSNorm(n)
    def forward(s, x, cos, sin, cache=None, mask=None):
        x = x + s.self_attn(s.input_layernorm(x), cos, sin, cache, mask)
        return x + s.mlp(s.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(s, n, h, layers, f):
        super().__init__()
        s.embed_tokens = nn.Embedding(8, n); s.layers = nn.ModuleList([LLayer(n, h, f) for _ in range(layers)]); s.norm = RMSNorm(n)
        s.register_buffer('inv', llama3_inv_freq(), persistent=False)

    def forward(s, x, pos0=0, caches=None, mask=None):
        p = torch.arange(pos0, pos0 + x.shape[1], device=x.device).float()
        fr = torch.outer(p, s.inv); fr = torch.cat((fr, fr), -1)[None, None]
        cos, sin = fr.cos(), fr.sin()
        for i, l in enumerate(s.layers): x = l(x, cos, sin, None if caches is None else caches[i], mask)
        return s.norm(x)


class AttnBlock2(nn.Module):
    def __init__(s, n, h):
        super().__init__()
        s.h = h; s.norm = nn.LayerNorm(n); s.to_q = nn.Linear(n, n); s.to_k = nn.Linear(n, n); s.to_v = nn.Linear(n, n); s.proj_out = nn.Linear(n, n)

    def forward(s, a, b):
        an, bn = s.norm(a), s.norm(b); sp = lambda t: t.view(t.shape[0], t.shape[1], s.h, -1).transpose(1, 2)
        o = F.scaled_dot_product_attention(sp(s.to_q(an)), sp(s.to_k(bn)), sp(s.to_v(bn)))
        return a + s.proj_out(o.transpose(1, 2).reshape(a.shape))


class Perceiver(nn.Module):
    def __init__(s, n, q, h):
        super().__init__()
        v = math.sqrt(3.0) * math.sqrt(2.0 / (q + q)); s.pre_attention_query = nn.Parameter(torch.empty(1, q, n).uniform_(-v, v)); s.attn = AttnBlock2(n, h)

    def forward(s, h):
        a = s.attn(s.pre_attention_query.expand(h.shape[0], -1, -1).to(h.dtype), h)
        return s.attn(a, a)


class CondEnc(nn.Module):
    def __init__(s, c):
        super().__init__()
        s.spkr_enc = nn.Linear(c['spk'], c['dim']); s.emotion_adv_fc = nn.Linear(1, c['dim'], bias=False); s.perceiver = Perceiver(c['dim'], c['queries'], c['perceiver_heads'])


class PosEmb(nn.Module):
    def __init__(s, n, d): super().__init__(); s.emb = nn.Embedding(n, d); s.emb.weight.data.normal_(0, .02)


class T3(nn.Module):
    def __init__(s, c=CFG['t3']):
        super().__init__()
        n = c['dim']; s.c = c
        s.tfmr = Llama(n, c['heads'], c['layers'], c['ff']); s.cond_enc = CondEnc(c)
        s.text_emb = nn.Embedding(c['text_vocab'], n); s.speech_emb = nn.Embedding(c['speech_vocab'], n)
        s.text_pos_emb = PosEmb(c['max_text'] + 2, n); s.speech_pos_emb = PosEmb(c['max_speech'] + 4, n)
        s.text_head = nn.Linear(n, c['text_vocab'], bias=False); s.speech_head = nn.Linear(n, c['speech_vocab'], bias=False)
        for m in s.modules():
            if isinstance(m, nn.Linear): nn.init.normal_(m.weight, 0, .02 if m is not s.speech_head else .01)
            if isinstance(m, nn.Linear) and m.bias is not None: nn.init.zeros_(m.bias)
            if isinstance(m, nn.Embedding): nn.init.normal_(m.weight, 0, .02)
        for l in s.tfmr.layers:
            for w in (l.self_attn.o_proj.weight, l.mlp.down_proj.weight): nn.init.normal_(w, 0, .02 / math.sqrt(2 * c['layers']))
        # FSQ codes are 8 ternary digits: start the token table as a sum of digit vectors (still a free table afterwards)
        with torch.no_grad():
            d = digits(torch.arange(6561)).float()
            s.speech_emb.weight[:6561] += d @ torch.randn(8, n) * .02
        nn.init.normal_(s.cond_enc.emotion_adv_fc.weight, 0, .2)

    def cond(s, spk, prompt, emo):
        """spk (B,E) prompt (B,P) tokens, emo (B,) -> (B,34,dim)"""
        pe = s.speech_emb(prompt) + s.speech_pos_emb.emb.weight[:prompt.shape[1]]
        return torch.cat([s.cond_enc.spkr_enc(spk)[:, None], s.cond_enc.perceiver(pe), s.cond_enc.emotion_adv_fc(emo[:, None, None])], 1)

    def embeds(s, cond, ids, pos, is_text, drop):
        """ids/pos (B,S-34), is_text mask; drop (B,) bool = CFG-uncond (text embedding zeroed, its position kept, as in the reference)"""
        te = s.text_emb(ids.clamp(max=s.c['text_vocab'] - 1)) * (~drop)[:, None, None] + s.text_pos_emb.emb(pos.clamp(max=s.c['max_text'] + 1))
        se = s.speech_emb(ids) + s.speech_pos_emb.emb(pos)
        return torch.cat([cond.to(te.dtype), torch.where(is_text[..., None], te, se)], 1)

    @torch.no_grad()
    def generate(s, cond, text, max_new=500, temperature=.8, cfg_weight=.5, rep=1.2, min_p=.05, top_p=1.0, g=None):
        """cond (1,34,n); text (1,Lt) including SOT/EOT.  Same procedure as reference T3.inference (two BOS embeddings)."""
        dev = text.device; Lt = text.shape[1]
        te = s.text_emb(text); te = torch.cat([te, torch.zeros_like(te)]) + s.text_pos_emb.emb.weight[:Lt]
        bos = (s.speech_emb.weight[BOS] + s.speech_pos_emb.emb.weight[0])[None, None].expand(2, 2, -1)
        x = torch.cat([cond.expand(2, -1, -1), te, bos], 1)
        caches = [[] for _ in s.tfmr.layers]; out = []; pos = 0
        for i in range(max_new):
            h = s.tfmr(x, pos, caches); pos += x.shape[1]
            l = s.speech_head(h[:, -1]).float(); l = l[:1] + cfg_weight * (l[:1] - l[1:])
            if rep != 1.0:
                ids = torch.tensor([[BOS] + out], device=dev); sc = l.gather(1, ids)
                l = l.scatter(1, ids, torch.where(sc < 0, sc * rep, sc / rep))
            if temperature <= 0: nt = int(l.argmax())
            else:
                p = torch.softmax(l / temperature, -1)
                p = torch.where(p < min_p * p.amax(), torch.zeros_like(p), p)
                if top_p < 1:
                    sp, si = p.sort(descending=True); cut = (sp.cumsum(-1) - sp) > top_p * sp.sum(); sp = sp.masked_fill(cut, 0); p = torch.zeros_like(p).scatter(1, si, sp)
                nt = int(torch.multinomial(p, 1, generator=g))
            if nt == EOS: break
            out.append(nt)
            x = (s.speech_emb.weight[nt] + s.speech_pos_emb.emb.weight[min(i + 1, s.c['max_speech'] + 3)])[None, None].expand(2, 1, -1)
        return out

    @torch.no_grad()
    def generate_batch(s, cond, texts, max_new=500, temperature=.8, cfg_weight=.5, rep=1.2, min_p=.05, top_p=1.0, g=None):
        """Many utterances at once (evaluation): cond (N,34,n), texts list of id lists -> list of token lists.  Rows are padded on the left."""
        N, dev = len(texts), cond.device
        L = max(len(t) for t in texts)
        bos = s.speech_emb.weight[BOS] + s.speech_pos_emb.emb.weight[0]
        x, ok = torch.zeros(2 * N, 34 + L + 2, cond.shape[-1], device=dev), torch.zeros(2 * N, 34 + L + 2, dtype=torch.bool, device=dev)
        for i, t in enumerate(texts):
            e = s.text_emb(torch.tensor(t, device=dev))
            for row, te in ((i, e), (N + i, e * 0)):
                z = torch.cat([cond[i], te + s.text_pos_emb.emb.weight[:len(t)], bos[None], bos[None]])
                x[row, -len(z):], ok[row, -len(z):] = z, True
        caches, out, done, pos = [[] for _ in s.tfmr.layers], [[] for _ in texts], [False] * N, 0
        seen = torch.zeros(N, s.speech_head.out_features, dtype=torch.bool, device=dev)
        seen[:, BOS] = True
        for i in range(max_new):
            T = x.shape[1]
            m = ok[:, None, None, :] if T == 1 else ok[:, None, None, :] & torch.ones(T, T, dtype=torch.bool, device=dev).tril()[None, None] | torch.eye(T, dtype=torch.bool, device=dev)
            h = s.tfmr(x, pos, caches, m)
            pos += T
            l = s.speech_head(h[:, -1]).float()
            l = l[:N] + cfg_weight * (l[:N] - l[N:])
            l = torch.where(seen, torch.where(l < 0, l * rep, l / rep), l)
            if temperature <= 0:
                nt = l.argmax(-1)
            else:
                p = torch.softmax(l / temperature, -1)
                p = torch.where(p < min_p * p.amax(-1, keepdim=True), torch.zeros_like(p), p)
                nt = torch.multinomial(p, 1, generator=g)[:, 0]
            seen[torch.arange(N), nt] = True
            for k, v in enumerate(nt.tolist()):
                done[k] = done[k] or v == EOS
                if not done[k]:
                    out[k].append(v)
            if all(done):
                break
            x = (s.speech_emb(nt) + s.speech_pos_emb.emb.weight[min(i + 1, s.c['max_speech'] + 3)])[:, None].repeat(2, 1, 1)
            ok = torch.cat([ok, torch.ones(2 * N, 1, dtype=torch.bool, device=dev)], 1)
        return out, done
