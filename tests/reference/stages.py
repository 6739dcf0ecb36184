"""Run one stage of the reference and return its inputs, intermediates and outputs as a dict of tensors.

Names are those of the Rust code and of the modules they come from. Every function works at both sizes.
"""
import math

import librosa
import numpy as np
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)

import refmodels as R
from capture import Capture, flow_z, hift_draws, recorded_draws
from chatterbox.models.voice_encoder.melspec import melspectrogram
from chatterbox.models.voice_encoder.voice_encoder import get_num_wins

START_SPEECH = 6561


def head(x, n):
    return x[..., :n]


# ------------------------------------------------------------------ front ends
def frontend(wav24, wav16, s3gen, ve):
    """Every transform from samples to features. wav24 and wav16 are independent inputs (wav16 feeds the 16 kHz ones)."""
    import pyloudnorm
    from librosa.filters import mel as slaney
    soxr = librosa.resample(wav24, orig_sr=24000, target_sr=16000)
    sinc = R.sg.get_resampler(24000, 16000, "cpu")(torch.from_numpy(wav24)[None])[0]
    loudness = pyloudnorm.Meter(24000).integrated_loudness(wav24)
    _, trim = librosa.effects.trim(wav16, top_db=20)
    _, trim_tone = librosa.effects.trim(np.concatenate([np.zeros(3000, np.float32), wav16[6000:14000], 0.001 * wav16[:5000]]), top_db=20)
    features = dict(soxr16=soxr, sinc16=sinc, ve_mel=melspectrogram(wav16, ve.hp),
                    s3_log_mel=s3gen.tokenizer.log_mel_spectrogram(torch.from_numpy(wav16)[None])[0],
                    mel24=R.sg.mel_spectrogram(torch.from_numpy(wav24)[None])[0],
                    fbank=R.xv.extract_feature(torch.from_numpy(wav16)[None])[0][0].T)
    return dict(features=features, loudness_lufs=torch.tensor([loudness]), gain_to_minus_27=torch.tensor([10 ** ((-27 - loudness) / 20)]),
                trim_index=torch.tensor(trim), trim_tone_index=torch.tensor(trim_tone),
                filters_ve40=slaney(sr=16000, n_fft=400, n_mels=40, fmin=0, fmax=8000),
                filters_s3_128=slaney(sr=16000, n_fft=400, n_mels=128),
                filters_mel24_80=slaney(sr=24000, n_fft=1920, n_mels=80, fmin=0, fmax=8000))


def voice_encoder(ve, wav16):
    c = Capture()
    c.out(ve.proj, "proj_out")
    c.hooks.append(ve.lstm.register_forward_hook(lambda m, i, o: c.put("lstm_last_hidden", o[1][0][-1])))
    trimmed, index = librosa.effects.trim(wav16, top_db=20)
    mel = melspectrogram(trimmed, ve.hp).T
    embedding = ve.embeds_from_wavs([wav16], sample_rate=16000)
    c.done()
    return dict(c, trim_index=torch.tensor(index), trimmed_mel=torch.from_numpy(mel.copy()),
                num_wins=torch.tensor(get_num_wins(len(mel), 77, 0.8, ve.hp)), speaker_emb=torch.from_numpy(embedding))


# ------------------------------------------------------------------ S3 tokenizer
def long_log_mel(frames):
    """A log-mel of any length from a formula, so that a test can make it: f64, k = row * frames + column."""
    k = torch.arange(128 * frames, dtype=torch.float64).reshape(128, frames)
    return (torch.sin(k ** 1.5 * 0.001 % (2 * math.pi)) * 0.5 - 0.2).float()


def code_margin(tokenizer, mel, length):
    """How near the nearest FSQ value is to a rounding boundary: codes may differ where this is below rounding noise."""
    hidden, _ = tokenizer.encoder(mel, length)
    v = torch.tanh(tokenizer.quantizer._codebook.project_down(hidden)) * 0.9990000128746033
    return (v.abs() - 0.5).abs().min().reshape(1)


def s3_tokenizer(tokenizer, wav16, wav16_long, long_frames):
    """wav16 for the layer outputs, wav16_long for max_len, long_frames for the windows above 30 s."""
    c, e = Capture(), tokenizer.encoder
    c.out(e.conv1, "conv1_pre_gelu")
    c.out(e.conv2, "conv2_pre_gelu")
    for i, b in enumerate(e.blocks):
        c.out(b, f"block{i}")
    c.out(e.blocks[0].attn, "block0_attn")
    c.out(e.blocks[0].attn.fsmn_block, "block0_fsmn_conv")
    c.out(tokenizer.quantizer._codebook.project_down, "project_down")
    log_mel = tokenizer.log_mel_spectrogram(torch.from_numpy(wav16)[None])
    codes, n = tokenizer.forward([wav16], max_len=None)
    c.done()
    d = dict(c, n_samples=torch.tensor([len(wav16)]), log_mel=log_mel[0], codes=codes, codes_len=n,
             code_margin=code_margin(tokenizer, log_mel, torch.tensor([log_mel.shape[-1]])))
    d["n_samples_long"] = torch.tensor([len(wav16_long)])
    d["codes_no_max_len"], _ = tokenizer.forward([wav16_long], max_len=None)
    d["codes_max_len_20"], _ = tokenizer.forward([wav16_long], max_len=20)
    for frames in long_frames:
        mel = long_log_mel(frames)
        d[f"long{frames}_codes"], _ = tokenizer.quantize(mel[None], torch.tensor([frames]))
        d[f"long{frames}_mel_head"] = mel[:, :4]
    return d


# ------------------------------------------------------------------ speaker encoder, reference
def campplus(speaker_encoder, wav16):
    c, net = Capture(), speaker_encoder
    c.out(net.head, "head")
    c.out(net.head.layer1, "head_layer1")
    c.out(net.xvector.tdnn, "tdnn")
    for i in (1, 2, 3):
        c.out(getattr(net.xvector, f"block{i}"), f"block{i}")
        c.out(getattr(net.xvector, f"transit{i}"), f"transit{i}")
    c.out(net.xvector.block1.tdnnd1, "block1_tdnnd1")
    c.out(net.xvector.block1.tdnnd1.cam_layer, "block1_tdnnd1_cam")
    c.out(net.xvector.stats, "stats")
    w = torch.from_numpy(wav16)[None]
    x_vector = net.inference(w)
    c.done()
    return dict(c, n_samples=torch.tensor([len(wav16)]), x_vector=x_vector)


def embed_ref(s3gen, wav24, cases):
    """cases: name -> number of leading samples. Shapes differ: odd mel lengths, clips under a second."""
    d = {}
    for name, n in cases.items():
        r = s3gen.embed_ref(wav24[:n], 24000, device="cpu")
        w16 = R.sg.get_resampler(24000, 16000, "cpu")(torch.from_numpy(wav24[:n])[None])
        mel = s3gen.tokenizer.log_mel_spectrogram(w16)
        d |= {f"{name}.n_samples": torch.tensor([n]), f"{name}.prompt_token": r["prompt_token"],
              f"{name}.prompt_token_len": r["prompt_token_len"], f"{name}.prompt_feat": r["prompt_feat"],
              f"{name}.x_vector": r["embedding"],
              f"{name}.code_margin": code_margin(s3gen.tokenizer, mel, torch.tensor([mel.shape[-1]]))}
    return d


# ------------------------------------------------------------------ T3
def t3_conditioning(m, n_text, seed=51, prompt=None):
    hp, g = m.hp, torch.Generator().manual_seed(seed)
    speaker = torch.nn.functional.normalize(torch.rand(1, hp.speaker_embed_size, generator=g), dim=1)
    tokens = torch.randint(0, 6561, (1, prompt or hp.speech_cond_prompt_len), generator=g)
    body = torch.randint(1, 250, (1, n_text), generator=g)
    cond = R.cond_enc.T3Cond(speaker_emb=speaker, cond_prompt_speech_tokens=tokens, emotion_adv=0.7 * torch.ones(1, 1, 1))
    if not m.is_gpt:
        body = torch.cat([torch.tensor([[hp.start_text_token]]), body, torch.tensor([[hp.stop_text_token]])], 1)
    return cond, body


def llama_processors(logits, ids, cfg_weight=0.5, temperature=0.8, repetition_penalty=1.2, min_p=0.05, top_p=1.0):
    """The reference's order; logits (2, V), or (1, V) for a run without guidance. -> each stage in order, by name."""
    s = {}
    s["cfg"] = logits[:1] + cfg_weight * (logits[:1] - logits[1:]) if len(logits) == 2 else logits
    s["rep_penalty"] = RepetitionPenaltyLogitsProcessor(repetition_penalty)(ids, s["cfg"])
    s["temperature"] = s["rep_penalty"] / temperature
    s["min_p"] = MinPLogitsWarper(min_p)(ids, s["temperature"])
    s["top_p"] = TopPLogitsWarper(top_p)(ids, s["min_p"])
    return s


def gpt_processors(logits, ids, temperature=0.8, top_k=1000, top_p=0.95, repetition_penalty=1.2):
    s = dict(temperature=TemperatureLogitsWarper(temperature)(ids, logits))
    s["top_k"] = TopKLogitsWarper(top_k)(ids, s["temperature"])
    s["top_p"] = TopPLogitsWarper(top_p)(ids, s["top_k"])
    s["rep_penalty"] = RepetitionPenaltyLogitsProcessor(repetition_penalty)(ids, s["top_p"])
    return s


def t3_greedy(m, cond, text, steps, guidance=True, stage_steps=(), capture=None, forced=None):
    """Teacher-forced with its own greedy choices (argmax of the processed logits), or with `forced`. Logits 0 are the
    prefill's, logits i come after feeding token i - 1: steps + 1 of them. A stop token does not stop it."""
    hp, gpt = m.hp, m.is_gpt
    rows = 2 if guidance and not gpt else 1
    embeds, len_cond = m.prepare_input_embeds(
        t3_cond=cond, text_tokens=text.repeat(rows, 1), speech_tokens=torch.full((rows, 1), hp.start_speech_token),
        cfg_weight=0.5 if rows == 2 else 0.0)
    if not gpt:  # the second BOS
        bos = m.speech_emb(torch.tensor([[hp.start_speech_token]])) + m.speech_pos_emb.get_fixed_embedding(0)
        embeds = torch.cat([embeds, bos.repeat(rows, 1, 1)], 1)
    o = m.tfmr(inputs_embeds=embeds, use_cache=True, return_dict=True)
    if capture is not None:
        capture.done()
    hidden, past = o.last_hidden_state.clone(), o.past_key_values
    logits = [m.speech_head(hidden[:, -1])]
    ids, tokens, margins, recorded = torch.tensor([[START_SPEECH]]), [], [], {}
    for i in range(steps + 1):
        s = gpt_processors(logits[-1], ids) if gpt else llama_processors(logits[-1], ids, top_p=0.8 if i >= 20 else 1.0)
        if i in stage_steps:
            recorded[i] = s
        last = list(s.values())[-1]
        top2 = last.topk(2).values[0]
        token = last.argmax(-1, keepdim=True) if forced is None or i >= len(forced) else forced[i].reshape(1, 1)
        margins.append(float(top2[0] - top2[1]))
        tokens.append(int(token))
        if i == steps:
            break
        ids = token if gpt and i == 0 else torch.cat([ids, token], 1)
        e = m.speech_emb(token)
        if not gpt:
            e = (e + m.speech_pos_emb.get_fixed_embedding(i + 1)).repeat(rows, 1, 1)
        o = m.tfmr(inputs_embeds=e, past_key_values=past, use_cache=True, return_dict=True)
        past = o.past_key_values
        logits.append(m.speech_head(o.last_hidden_state[:, -1]))
    return dict(embeds=embeds, len_cond=len_cond, hidden=hidden, logits=torch.stack(logits), tokens=torch.tensor(tokens),
                margins=torch.tensor(margins), stages=recorded)


def t3(m, n_text, steps, columns, layers=None, prompt=None, stage_steps=(5, 25)):
    """columns: how many vocabulary columns of the step logits to keep (None: all); those of the greedy tokens are
    always among them. layers: which layers' outputs to keep (None: all)."""
    gpt = m.is_gpt
    cond, text = t3_conditioning(m, n_text, prompt=prompt)
    c, ce = Capture(), m.cond_enc
    c.out(ce.spkr_enc, "cond_spkr")
    c.out(ce, "cond_emb")
    if ce.perceiver is not None:
        c.inp(ce.perceiver, "cond_prompt_emb")
        c.out(ce.perceiver.attn, "perceiver_pass1")
        c.out(ce.perceiver, "perceiver_out")
        c.out(ce.emotion_adv_fc, "cond_emotion")
    blocks = m.tfmr.h if gpt else m.tfmr.layers
    for i, l in enumerate(blocks):
        if layers is None or i in layers:
            c.out(l, f"layer{i}")
    c.out(blocks[0].attn if gpt else blocks[0].self_attn, "layer0_attn")
    c.out(blocks[0].mlp, "layer0_mlp")
    run = t3_greedy(m, cond, text, steps, stage_steps=stage_steps, capture=c)
    vocab = m.hp.speech_tokens_dict_size
    keep = torch.arange(vocab) if columns is None else torch.tensor(sorted(
        {*range(0, vocab, vocab // columns), vocab - 1, 6561, 6562, *run["tokens"].tolist()}))
    # transformers creates the causal mask once; each hooked block returned (rows, L, dim)
    d = dict(c, speaker_emb=cond.speaker_emb, cond_prompt_speech_tokens=cond.cond_prompt_speech_tokens,
             emotion_adv=cond.emotion_adv, text_tokens=text, prefill_embeds=run["embeds"],
             len_cond=torch.tensor([run["len_cond"]]), final_hidden_last=run["hidden"][:, -1],
             logit_columns=keep, step_logits=run["logits"][..., keep],
             greedy_tokens=run["tokens"], greedy_margin=run["margins"])
    for i, stages in run["stages"].items():
        for name, v in stages.items():
            d[f"stage.step{i}.{name}"] = v[..., keep]
    if not gpt:
        d["rope_inv_freq"] = m.tfmr.rotary_emb.inv_freq
        cond.cond_prompt_speech_emb = None
        plain = t3_greedy(m, cond, text, min(steps, 50), guidance=False)
        d |= dict(nocfg_step_logits=plain["logits"][..., keep], nocfg_greedy_tokens=plain["tokens"],
                  nocfg_greedy_margin=plain["margins"])
    return d


def sampling(vocab=200):
    """The logits processors alone, on made-up logits. ids.<case> are the ids the penalty sees, as the reference has
    them at that step (Llama: with the initial 6561, here vocab - 1; GPT-2: without, except at the first token)."""
    g = torch.Generator().manual_seed(61)
    d = {}
    for i, (n, par) in enumerate([(0, {}), (12, dict(cfg_weight=0.0, temperature=1.0, top_p=0.7)),
                                  (40, dict(cfg_weight=1.5, temperature=0.4, repetition_penalty=2.0, min_p=0.2))]):
        logits = 1.3 * torch.randn(2, vocab, generator=g)
        ids = torch.cat([torch.tensor([[vocab - 1]]), torch.randint(0, vocab, (1, n), generator=g)], 1)
        d |= {f"llama{i}.logits": logits, f"llama{i}.ids": ids}
        d |= {f"llama{i}.{k}": v for k, v in llama_processors(logits, ids, **par).items()}
        p = dict(cfg_weight=0.5, temperature=0.8, repetition_penalty=1.2, min_p=0.05, top_p=1.0) | par
        d[f"llama{i}.cfg_temp_rep_minp_topp"] = torch.tensor([p[k] for k in ("cfg_weight", "temperature", "repetition_penalty", "min_p", "top_p")])
    for i, (n, par) in enumerate([(0, {}), (12, dict(top_k=50)), (40, dict(top_k=20, top_p=0.6, temperature=1.3, repetition_penalty=1.7))]):
        logits = 1.3 * torch.randn(1, vocab, generator=g)
        if i == 2:  # ties at the top-k threshold are all kept
            logits[0, logits[0].topk(22).indices[18:]] = logits[0].topk(19).values[-1]
        ids = torch.randint(0, vocab, (1, n), generator=g) if n else torch.tensor([[vocab - 1]])
        d |= {f"gpt{i}.logits": logits, f"gpt{i}.ids": ids}
        d |= {f"gpt{i}.{k}": v for k, v in gpt_processors(logits, ids, **par).items()}
        p = dict(temperature=0.8, top_k=1000, top_p=0.95, repetition_penalty=1.2) | par
        d[f"gpt{i}.temp_topk_topp_rep"] = torch.tensor([float(p[k]) for k in ("temperature", "top_k", "top_p", "repetition_penalty")])
    return d


# ------------------------------------------------------------------ flow
def flow(m, gen_token, ref, meanflow, seed, f16_draws, keep_x=(0,), keep_v=(0,), parts=True):
    c, f = Capture(), m.flow
    e, es = f.encoder, f.decoder.estimator
    if parts and not meanflow:  # the encoder is the same network for both solvers
        c.out(f.spk_embed_affine_layer, "spk")
        c.out(f.input_embedding, "token_emb")
        c.out(e.embed, "embed_scaled")
        c.out(e.embed, "pos_table", index=1)
        c.out(e.pre_lookahead_layer, "pre_lookahead")
        for i, l in enumerate(e.encoders):
            c.out(l, f"enc{i}")
        c.out(e.encoders[0].self_attn, "enc0_attn")
        c.out(e.up_layer, "up_layer")
        c.out(e.up_embed, "up_embed_scaled")
        for i, l in enumerate(e.up_encoders):
            c.out(l, f"up_enc{i}")
        c.out(e.after_norm, "after_norm")
    if parts:
        c.out(es.time_mlp, "time_mlp_t")
        if meanflow:
            c.out(es.time_embed_mixer, "time_mixed")
        down, up = es.down_blocks[0], es.up_blocks[0]
        c.out(down[0], "down_resnet")
        c.out(down[0].block1, "down_resnet_block1")
        c.out(down[1][0].attn1, "down_tf0_attn")
        for j, b in enumerate(down[1]):
            c.out(b, f"down_tf{j}")
        c.out(down[2], "down_conv")
        for i, b in enumerate(es.mid_blocks):
            if i in (0, 1, len(es.mid_blocks) - 1):
                c.out(b[0], f"mid{i}_resnet")
                c.out(b[1][-1], f"mid{i}_tf_last")
        c.out(up[0], "up_resnet")
        c.out(up[1][-1], "up_tf_last")
        c.out(up[2], "up_conv")
        c.out(es.final_block, "final_block")
    steps, forward = [], es.forward

    def recording(*args, **kw):
        x = args[0] if args else kw["x"]
        v = forward(*args, **kw)
        steps.append((x.clone(), v.clone(), kw["t"].clone(), kw["r"].clone() if kw.get("r") is not None else None, kw))
        return v

    es.forward = recording
    torch.manual_seed(seed)
    ref_in = {k: (v.clone() if torch.is_tensor(v) else v) for k, v in ref.items()}
    try:
        with recorded_draws(f16_draws) as draws:
            mel = m.flow_inference(gen_token, ref_dict=ref_in, finalize=True)
    finally:
        es.forward = forward
        c.done()
    intermediates = {k: v[:1] for k, v in c.items()}  # the conditional row
    kw = steps[0][4]
    d = dict(intermediates, speech_tokens=gen_token, prompt_token=ref["prompt_token"], prompt_feat=ref["prompt_feat"],
             x_vector=ref["embedding"], z=flow_z(draws, meanflow), mu=kw["mu"][:1], cond=kw["cond"][:1], spks=kw["spks"][:1],
             t=torch.stack([s[2][0] for s in steps]), mel=mel)
    if meanflow:
        d["r"] = torch.stack([s[3][0] for s in steps])
    for i, (x, v, *_) in enumerate(steps):
        if i in keep_x:
            d[f"step{i}.x"] = x[:1]
        if i in keep_v:
            d[f"step{i}.v"] = v  # both rows of guidance
    return d


# ------------------------------------------------------------------ vocoder
def hift(s3gen, mel, seed, f16_draws, crop=None):
    """crop: keep only so many columns of the long intermediates."""
    v, c = s3gen.mel2wav, Capture()
    c.out(v.f0_predictor, "f0")
    c.out(v.m_source.l_sin_gen, "sine_waves")
    c.out(v.conv_pre, "conv_pre")
    for i in range(3):
        c.inp(v.ups[i], f"up{i}_in")
        c.out(v.ups[i], f"up{i}")
        c.out(v.source_downs[i], f"source_down{i}")
        c.out(v.source_resblocks[i], f"source_res{i}")
        c.inp(v.resblocks[3 * i], f"fused{i}")
        c.out(v.resblocks[3 * i], f"res{3 * i}")
    c.inp(v.conv_post, "conv_post_in")
    c.out(v.conv_post, "conv_post")
    torch.manual_seed(seed)
    with recorded_draws(f16_draws) as draws:
        wav, source = v.inference(speech_feat=mel, cache_source=torch.zeros(1, 1, 0))
    c.done()
    phases, noise = hift_draws(draws)
    stft = torch.cat(v._stft(source.squeeze(1)), 1)
    cache = 0.5 * source[:, :, :480].flip(-1).clone()
    torch.manual_seed(seed)
    with recorded_draws(f16_draws):
        wav_cached, _ = v.inference(speech_feat=mel, cache_source=cache)
    faded = wav.clone()
    faded[:, : len(s3gen.trim_fade)] *= s3gen.trim_fade
    long = dict(c, source_stft=stft)
    f0 = long.pop("f0")
    return dict({k: head(t, crop) if crop else t for k, t in long.items()}, mel=mel, f0=f0, phases=phases, noise=noise,
                source=source, wav=wav, wav_faded_head=head(faded, 1200), trim_fade=s3gen.trim_fade,
                cache_source=cache, wav_cached_head=head(wav_cached, 1200))


# ------------------------------------------------------------------ whole chains
def s3gen_inference(s3gen, speech_tokens, ref, seed, f16_draws, n_cfm_timesteps=None):
    """S3Token2Wav.inference, with what happened inside."""
    c, es = Capture(), s3gen.flow.decoder.estimator
    c.hooks.append(es.register_forward_pre_hook(lambda m, a, kw: c.put("mu", kw["mu"][:1]), with_kwargs=True))
    c.out(s3gen.mel2wav.f0_predictor, "f0")
    c.hooks.append(s3gen.flow.encoder_proj.register_forward_hook(lambda m, i, o: c.put("mu", o.transpose(1, 2))))
    torch.manual_seed(seed)
    ref_in = {k: (v.clone() if torch.is_tensor(v) else v) for k, v in ref.items()}
    inner, mels = s3gen.hift_inference, []
    s3gen.hift_inference = lambda mel, cache: (mels.append(mel.clone()), inner(mel, cache))[1]
    try:
        with recorded_draws(f16_draws) as draws:
            wav, source = type(s3gen).inference(s3gen, speech_tokens, ref_dict=ref_in, n_cfm_timesteps=n_cfm_timesteps)
    finally:
        del s3gen.hift_inference
        c.done()
    phases, noise = hift_draws(draws)
    return dict(c, z=flow_z(draws, s3gen.meanflow), phases=phases, noise=noise, mel=mels[0], source=source, wav=wav)


def voice_conversion(s3gen, wav16_source, wav24_target, seed, f16_draws):
    """Without the watermark, which `perth` covers."""
    ref = s3gen.embed_ref(wav24_target, 24000, device="cpu")
    codes, _ = s3gen.tokenizer(torch.from_numpy(wav16_source)[None])
    out = s3gen_inference(s3gen, codes, ref, seed, f16_draws)
    return dict(out, n_samples_source=torch.tensor([len(wav16_source)]), n_samples_target=torch.tensor([len(wav24_target)]),
                speech_tokens=codes, prompt_token=ref["prompt_token"], x_vector=ref["embedding"])


def perth_watermark(wav24):
    import perth
    p = perth.PerthImplicitWatermarker()
    net = p.perth_net
    wav32 = librosa.resample(wav24, orig_sr=24000, target_sr=32000)
    mag, _ = net.ap.signal_to_magphase(wav32)
    marked_mag, mask = net.encoder(mag[None])
    marked = p.apply_watermark(wav24, sample_rate=24000)
    score = lambda w: float(p.get_watermark(w, sample_rate=24000, round=False))
    return net, dict(wav32=wav32, mag_sub=mag[: net.subband], mask=mask, marked_sub=marked_mag[0, : net.subband],
                     marked24=marked, score=score)
