"""Build the reference's own Chatterbox modules with seeded random weights, at full or tiny size.

No trained weights are needed. Default initialisation leaves parts of the networks dead (T3 blocks that are silent
beside the embeddings, 23 distinct speech codes, x-vectors that coincide, an F0 that is always voiced), and a dead part
hides mistakes. So the weights are re-scaled here until every part matters, and every constant tensor (norm gains, zero
biases, BatchNorm statistics, Snake alphas) is perturbed so that an implementation which drops one cannot pass.
"""
import copy
import functools
import inspect
import math
import os
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import numpy as np
import s3tokenizer.model_v2 as s3v2
import torch
from chatterbox.models.s3gen import s3gen as sg
from chatterbox.models.s3gen import xvector as xv
from chatterbox.models.s3gen.transformer import upsample_encoder as ue
from chatterbox.models.t3 import T3
from chatterbox.models.t3 import llama_configs as lc
from chatterbox.models.t3.modules import cond_enc
from chatterbox.models.t3.modules.t3_config import T3Config
from chatterbox.models.voice_encoder import VoiceEncConfig, VoiceEncoder
from chatterbox.models.voice_encoder.melspec import melspectrogram

SEED = 0
KINDS = ("english", "multilingual", "turbo", "nano")
T3_FILE = dict(english="t3_cfg.safetensors", multilingual="t3_mtl23ls_v2.safetensors",
               turbo="t3_turbo_v1.safetensors", nano="t3_nano_v1.safetensors")

# Dimensions, in the schema of a model folder's config.json.
_LLAMA = dict(backbone="llama", queries=32, perceiver_heads=4)
_GPT = dict(backbone="gpt2", speech_vocab=6563)
FULL = dict(
    ve=dict(num_mels=40, hidden=256, embed=256, layers=3, partial=160),
    tok=dict(n_mels=128, state=1280, head=20, layer=6),
    spk=dict(m=32, init=128, growth=32, bn=4, blocks=[12, 24, 16], embed=192),
    flow=dict(dim=512, heads=8, ff=2048, blocks=6, up_blocks=4, vocab=6561, spk=192,
              est=dict(ch=256, heads=8, hd=64, n_blocks=4, mid=12)),
    hift=dict(base=512, f0_ch=512),
    t3=dict(
        english=dict(_LLAMA, dim=1024, heads=16, layers=30, ff=4096, text_vocab=704, speech_vocab=8194,
                     max_text=2048, max_speech=4096, prompt=150, spk=256),
        multilingual=dict(_LLAMA, dim=1024, heads=16, layers=30, ff=4096, text_vocab=2454, speech_vocab=8194,
                          max_text=2048, max_speech=4096, prompt=150, spk=256),
        turbo=dict(_GPT, dim=1024, heads=16, layers=24, ff=4096, text_vocab=50276, positions=8196, prompt=375, spk=256),
        nano=dict(_GPT, dim=768, heads=12, layers=12, ff=3072, text_vocab=50276, positions=8196, prompt=375, spk=256),
    ),
)
TINY = dict(
    ve=dict(num_mels=40, hidden=32, embed=24, layers=3, partial=160),
    tok=dict(n_mels=128, state=32, head=2, layer=2),
    spk=dict(m=8, init=16, growth=4, bn=2, blocks=[3, 4, 3], embed=24),
    flow=dict(dim=12, heads=2, ff=32, blocks=2, up_blocks=4, vocab=6561, spk=24,
              est=dict(ch=16, heads=2, hd=6, n_blocks=2, mid=2)),
    hift=dict(base=16, f0_ch=16),
    t3=dict(
        english=dict(_LLAMA, dim=12, heads=2, layers=3, ff=32, text_vocab=704, speech_vocab=6600, queries=8,
                     max_text=96, max_speech=320, prompt=20, spk=24),
        multilingual=dict(_LLAMA, dim=8, heads=2, layers=2, ff=32, text_vocab=1000, speech_vocab=6700, queries=8,
                          max_text=96, max_speech=320, prompt=20, spk=24),
        turbo=dict(_GPT, dim=12, heads=2, layers=2, ff=48, text_vocab=320, positions=512, prompt=30, spk=24),
        nano=dict(_GPT, dim=8, heads=2, layers=3, ff=32, text_vocab=320, positions=512, prompt=30, spk=24),
    ),
)


def dims(tiny):
    return TINY if tiny else FULL


def model_config(kind, tiny):
    """The config.json of a model folder of this kind and size."""
    d, gpt = dims(tiny), kind in ("turbo", "nano")
    sampling = (dict(temperature=0.8, top_k=1000, top_p=0.95, repetition_penalty=1.2) if gpt else
                dict(temperature=0.8, cfg_weight=0.5, repetition_penalty=1.2, min_p=0.05, top_p=1.0))
    t3 = d["t3"][kind]
    return dict(variant=kind, **{k: d[k] for k in ("ve", "tok", "spk", "flow", "hift")}, t3=t3, t3_sampling=sampling,
                cfm_steps=2 if gpt else 10, cfm_noise_scale=1.0, meanflow=gpt,
                text_tokens_dict_size=t3["text_vocab"], speech_tokens_dict_size=t3["speech_vocab"],
                start_text=255, stop_text=0, start_speech=6561, stop_speech=6562)


# ------------------------------------------------------------------ keeping random weights alive
@torch.no_grad()
def perturb(module, seed):
    """Move every constant tensor off its constant."""
    g = torch.Generator().manual_seed(seed)
    rn = lambda t: torch.randn(t.shape, generator=g, dtype=torch.float32).to(t.dtype)
    skip = ("_mel_filters", "window", "inv_freq", "trim_fade", "similarity_weight", "similarity_bias")
    for name, p in list(module.named_parameters()) + list(module.named_buffers()):
        if not p.is_floating_point() or name.endswith(skip):
            continue
        if name.endswith("running_var"):
            p.copy_(0.75 + 0.5 * torch.rand(p.shape, generator=g))
        elif name.endswith("running_mean"):
            p.copy_(0.1 * rn(p))
        elif name.endswith("time_embed_mixer.weight"):
            p.add_(rn(p) * (0.5 / math.sqrt(2 * p.shape[0])))
        elif p.numel() > 1 and bool((p == p.flatten()[0]).all()):
            p.add_((0.1 if p.flatten()[0] != 0 else 0.05) * rn(p))


def _finish(module, seed):
    perturb(module, seed)
    module.eval()
    for p in module.parameters():
        p.requires_grad_(False)
    return module


@torch.no_grad()
def _scale_t3(t3, seed):
    """Init with std 0.02 whatever the width leaves attention near uniform and the blocks almost silent beside the
    N(0,1) embeddings. Draw the block matrices again at gain/sqrt(fan_in)."""
    g = torch.Generator().manual_seed(seed + 77)

    def redraw(p, gain, fan_in):
        p.copy_(torch.randn(p.shape, generator=g) * (gain / math.sqrt(fan_in)))

    for n, p in t3.tfmr.named_parameters():
        if n == "wpe.weight":
            p.mul_(5.0)
        if p.ndim != 2:
            continue
        if n.endswith(("q_proj.weight", "k_proj.weight")):
            redraw(p, 1.5, p.shape[1])
        elif n.endswith(("v_proj.weight", "gate_proj.weight", "up_proj.weight")):
            redraw(p, 1.0, p.shape[1])
        elif n.endswith(("o_proj.weight", "down_proj.weight")):
            redraw(p, 0.5, p.shape[1])
        elif n.endswith("attn.c_attn.weight"):  # GPT-2 Conv1D: (in, 3 * out)
            redraw(p, 1.0, p.shape[0])
            p[:, : 2 * p.shape[0]].mul_(1.5)
        elif n.endswith("mlp.c_fc.weight"):
            redraw(p, 1.0, p.shape[0])
        elif n.endswith("c_proj.weight"):
            redraw(p, 0.5, p.shape[0])
    t3.text_emb.weight.mul_(0.5)
    t3.speech_emb.weight.mul_(0.5)
    if t3.text_pos_emb is not None:
        t3.text_pos_emb.emb.weight.mul_(5.0)
        t3.speech_pos_emb.emb.weight.mul_(5.0)
    t3.speech_head.weight.mul_(3.0)


def _noise_wave(seed, sr=16000, seconds=2.0):
    """Noise and tone mixtures, used only to calibrate the random weights."""
    r = np.random.default_rng(seed)
    n = int(sr * seconds)
    t = np.arange(n) / sr
    x = np.convolve(r.standard_normal(n), r.standard_normal(6) / 3, "same")
    x = x * (0.3 + np.abs(np.sin(2 * np.pi * r.uniform(0.3, 3) * t)))
    x = x + np.sin(2 * np.pi * r.uniform(80, 900) * t) * r.uniform(0.2, 2)
    return torch.from_numpy((0.08 * x).astype(np.float32))


@torch.no_grad()
def _scale_s3gen(m):
    """Calibrate on synthetic noise: FSQ projection centred with unit spread (else every code is the same), CAMPPlus
    output statistics from six clips (else all x-vectors coincide), F0 around N(40, 60) Hz before abs (both sides of
    the 10 Hz voicing threshold), a louder source and iSTFT head."""
    wavs = [_noise_wave(100 + i) for i in range(6)]
    book = m.tokenizer.quantizer._codebook
    hidden = []
    for w in wavs[:3]:
        mel = m.tokenizer.log_mel_spectrogram(w[None])
        h, _ = m.tokenizer.encoder(mel, torch.tensor([mel.shape[-1]]))
        hidden.append(h[0])
    h = torch.cat(hidden)
    book.project_down.weight.div_((h @ book.project_down.weight.T).std(0, keepdim=True).T)
    book.project_down.bias.copy_(-(h @ book.project_down.weight.T).mean(0))

    dense = m.speaker_encoder.xvector.dense
    got = []
    hook = dense.linear.register_forward_hook(lambda a, i, o: got.append(o.reshape(-1)))
    for w in wavs:
        m.speaker_encoder.inference(w[None])
    hook.remove()
    got = torch.stack(got)
    dense.nonlinear.batchnorm.running_mean.copy_(got.mean(0))
    dense.nonlinear.batchnorm.running_var.copy_(got.var(0) + 1e-6)

    f0, g = m.mel2wav.f0_predictor, torch.Generator().manual_seed(5)
    h = f0.condnet(1.5 * torch.randn(1, 80, 400, generator=g)).transpose(1, 2)[0]
    c = f0.classifier
    c.weight.mul_(60.0 / (h @ c.weight.T)[:, 0].std())
    c.bias.fill_(float(40.0 - (h @ c.weight.T)[:, 0].mean()))
    m.mel2wav.m_source.l_linear.weight.mul_(3.0)
    m.mel2wav.conv_post.parametrizations.weight.original0.mul_(6.0)


@torch.no_grad()
def _scale_ve(ve):
    """Power mels are tiny numbers: 25-fold input weights, then centre the projection so that ReLU passes about half."""
    ve.lstm.weight_ih_l0.mul_(25.0)
    ve.proj.weight.mul_(3.0)
    outs = []
    for i in range(4):
        mel = torch.from_numpy(melspectrogram(_noise_wave(200 + i).numpy(), ve.hp).T.copy()).float()[None, :160]
        outs.append(ve.proj(ve.lstm(mel)[1][0][-1])[0])
    ve.proj.bias.sub_(torch.stack(outs).mean(0))


# ------------------------------------------------------------------ T3
def t3_config(kind, tiny=False):
    """The T3Config its loader makes; at tiny size a backbone of our dimensions is registered under a new name."""
    if kind in ("english", "multilingual"):
        hp = T3Config.english_only() if kind == "english" else T3Config.multilingual()
    else:
        hp = T3Config(text_tokens_dict_size=50276)
        hp.llama_config_name = "GPT2_small" if kind == "nano" else "GPT2_medium"
        hp.speech_tokens_dict_size = 6563
        hp.input_pos_emb = None
        hp.speech_cond_prompt_len = 375
        hp.use_perceiver_resampler = False
        hp.emotion_adv = False
    if tiny:
        t = TINY["t3"][kind]
        c = copy.deepcopy(lc.LLAMA_CONFIGS[hp.llama_config_name])
        if t["backbone"] == "llama":
            c.update(hidden_size=t["dim"], intermediate_size=t["ff"], num_hidden_layers=t["layers"],
                     num_attention_heads=t["heads"], num_key_value_heads=t["heads"], head_dim=t["dim"] // t["heads"])
            hp.max_text_tokens, hp.max_speech_tokens = t["max_text"], t["max_speech"]
        else:
            c.update(n_embd=t["dim"], hidden_size=t["dim"], n_head=t["heads"], n_layer=t["layers"],
                     n_positions=t["positions"], n_ctx=t["positions"], vocab_size=t["text_vocab"],
                     bos_token_id=t["text_vocab"] - 1, eos_token_id=t["text_vocab"] - 1)
        hp.llama_config_name = f"tiny_{kind}"
        lc.LLAMA_CONFIGS[hp.llama_config_name] = c
        hp.text_tokens_dict_size = t["text_vocab"]
        hp.speech_tokens_dict_size = t["speech_vocab"]
        hp.speech_cond_prompt_len = t["prompt"]
        hp.speaker_embed_size = t["spk"]
    return hp


def build_t3(kind, tiny=False, seed=SEED, raw=False):
    """raw: skip the re-scaling (for timing, where values do not matter)."""
    hp = t3_config(kind, tiny)
    perceiver = cond_enc.Perceiver
    if tiny and hp.use_perceiver_resampler:
        t = TINY["t3"][kind]
        cond_enc.Perceiver = functools.partial(
            perceiver, pre_attention_query_token=t["queries"], pre_attention_query_size=t["dim"],
            embedding_dim=t["dim"], num_attn_heads=t["perceiver_heads"])
    try:
        torch.manual_seed(seed)
        m = T3(hp)
    finally:
        cond_enc.Perceiver = perceiver
    if raw:
        return m.eval()
    _scale_t3(m, seed)
    return _finish(m, seed + 1)


# ------------------------------------------------------------------ S3Gen
class _patched:
    """Temporarily replace attributes: [(object, name, value)]."""

    def __init__(self, pairs):
        self.pairs = pairs

    def __enter__(self):
        self.old = [(o, n, getattr(o, n)) for o, n, _ in self.pairs]
        for o, n, v in self.pairs:
            setattr(o, n, v)

    def __exit__(self, *_):
        for o, n, v in self.old:
            setattr(o, n, v)


def _tiny_constructors():
    """Replacements for the classes that S3Token2Wav constructs with hard-coded sizes."""
    d = TINY

    def tokenizer(name):
        make, c = s3v2.precompute_freqs_cis, d["tok"]
        config = s3v2.S3TokenizerV2.__init__.__defaults__[0]
        saved = copy.copy(config.__dict__)
        config.n_audio_state, config.n_audio_head, config.n_audio_layer = c["state"], c["head"], c["layer"]
        try:
            with _patched([(s3v2, "precompute_freqs_cis", lambda _dim, end: make(c["state"] // c["head"], end))]):
                t = s3tok(name)
        finally:
            t.config = copy.copy(config)
            config.__dict__.update(saved)
        return t

    s3tok, make_encoder, make_estimator = sg.S3Tokenizer, sg.UpsampleConformerEncoder, sg.ConditionalDecoder

    def campplus(**kw):
        c = d["spk"]
        scope = dict(vars(xv))
        exec(inspect.getsource(xv.CAMPPlus).replace("(12, 24, 16)", str(tuple(c["blocks"])))
             .replace("super()", "super(CAMPPlus, self)"), scope)
        default = xv.FCM.__init__.__defaults__  # (block, num_blocks, m_channels, feat_dim)
        with _patched([(xv.FCM.__init__, "__defaults__", (default[0], default[1], c["m"], default[3]))]):
            return scope["CAMPPlus"](**kw, growth_rate=c["growth"], bn_size=c["bn"], init_channels=c["init"],
                                     embedding_size=c["embed"])

    def encoder(**kw):
        c = d["flow"]
        kw.update(output_size=c["dim"], input_size=c["dim"], attention_heads=c["heads"], linear_units=c["ff"],
                  num_blocks=c["blocks"])
        ahead, up = ue.PreLookaheadLayer, ue.Upsample1D
        with _patched([(ue, "PreLookaheadLayer", lambda channels, pre_lookahead_len: ahead(c["dim"], pre_lookahead_len)),
                       (ue, "Upsample1D", lambda channels, out_channels, stride: up(c["dim"], c["dim"], stride))]):
            return make_encoder(**kw)

    def estimator(**kw):
        c = d["flow"]["est"]
        kw.update(channels=[c["ch"]], attention_head_dim=c["hd"], n_blocks=c["n_blocks"], num_mid_blocks=c["mid"],
                  num_heads=c["heads"])
        return make_estimator(**kw)

    p = functools.partial
    return [(sg, "S3Tokenizer", tokenizer), (sg, "CAMPPlus", campplus), (sg, "UpsampleConformerEncoder", encoder),
            (sg, "ConditionalDecoder", estimator),
            (sg, "CausalMaskedDiffWithXvec", p(sg.CausalMaskedDiffWithXvec, input_size=d["flow"]["dim"], spk_embed_dim=d["spk"]["embed"])),
            (sg, "HiFTGenerator", p(sg.HiFTGenerator, base_channels=d["hift"]["base"])),
            (sg, "ConvRNNF0Predictor", p(sg.ConvRNNF0Predictor, cond_channels=d["hift"]["f0_ch"]))]


def build_s3gen(meanflow=False, tiny=False, seed=SEED, raw=False):
    with _patched(_tiny_constructors() if tiny else []):
        torch.manual_seed(seed)
        m = sg.S3Token2Wav(meanflow=meanflow)
    if raw:
        return m.eval()
    _finish(m, seed + 2)
    _scale_s3gen(m)
    return m


def build_ve(tiny=False, seed=SEED, raw=False):
    hp = VoiceEncConfig()
    if tiny:
        hp.ve_hidden_size, hp.speaker_embed_size = TINY["ve"]["hidden"], TINY["ve"]["embed"]
    torch.manual_seed(seed)
    m = VoiceEncoder(hp)
    if raw:
        return m.eval()
    _finish(m, seed + 3)
    _scale_ve(m)
    return m


# ------------------------------------------------------------------ test signal
def test_wave(sr=24000, seconds=10.0, seed=1234):
    """A fixed, speech-like signal with a near-silent beginning and end."""
    rng = np.random.default_rng(seed)
    n = int(round(sr * seconds))
    t = np.arange(n) / sr
    f0 = 120 + 40 * np.sin(2 * np.pi * 0.7 * t) + 15 * np.sin(2 * np.pi * 3.1 * t)
    phase = 2 * np.pi * np.cumsum(f0) / sr
    y = np.zeros(n)
    for k in range(1, 25):
        y += np.sin(k * phase + 0.3 * k) / k ** 1.2 * (1 + 0.5 * np.sin(2 * np.pi * (0.5 + 0.13 * k) * t))
    env = np.clip(np.sin(2 * np.pi * 2.3 * t) + 0.4, 0, 1) ** 0.7
    y = 0.12 * y * env + 0.01 * rng.standard_normal(n) * (0.3 + env)
    y += 0.03 * rng.standard_normal(n) * (np.sin(2 * np.pi * 1.1 * t) > 0.8)
    y[: int(0.15 * sr)] *= 0.001
    y[-int(0.12 * sr):] *= 0.001
    return y.astype(np.float32)
