"""Full-size checkpoints with random weights, and what the reference makes of them.   make_full.py OUT [part ...]

OUT/<variant>/ becomes a model folder with the file names of the real repositories (stand-in tokenizers), OUT/fixtures/
holds stage dumps <stage>.safetensors and end-to-end runs e2e_<variant>/ in the layout of `myna say --trace`: one file
per tensor, plus noise.safetensors and tokens.safetensors to replay, and run.json (text, options, timings).
About 12 GB and 20 minutes of two cores; at most 6 GB of memory. Nothing here is for the repository.

Parts: ve s3gen t3_<variant> e2e_<variant> stages perth (default: all).
"""
import argparse
import gc
import json
import os
import shutil
import time
from pathlib import Path

import librosa
import numpy as np
import soundfile
import torch
from safetensors.torch import load_file, save_file
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper

import refmodels as R
import stages

TEXT = "The quick brown fox jumps over the lazy dog, and then it rests in the shade."
TOKENIZER = dict(english="english", multilingual="multilingual", turbo="gpt2", nano="gpt2")


def tensors(d):
    out = {}
    for k, v in d.items():
        v = torch.from_numpy(np.ascontiguousarray(v)) if isinstance(v, np.ndarray) else v.detach()
        out[k] = (v.float() if v.is_floating_point() else v.long()).clone().contiguous()
    return out


def write(path, d):
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors(d), path)
    print(f"{path.stat().st_size / 1e6:9.2f} MB  {path}", flush=True)


def link(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    os.link(source, target)


def voice_file(out):
    """A 10 s reference clip on the 16-bit grid, so that every reader sees the same samples."""
    path = out / "fixtures/voice.wav"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, R.test_wave(24000, 10.0), 24000, subtype="PCM_16")
    return path


def make_ve(out):
    ve = R.build_ve()
    write(out / "english/ve.safetensors", ve.state_dict())
    for kind in ("turbo", "nano"):
        link(out / "english/ve.safetensors", out / kind / "ve.safetensors")
    (out / "multilingual").mkdir(parents=True, exist_ok=True)
    torch.save(ve.state_dict(), out / "multilingual/ve.pt")


def make_s3gen(out):
    mf = R.build_s3gen(True)
    write(out / "turbo/s3gen_meanflow.safetensors", mf.state_dict())
    link(out / "turbo/s3gen_meanflow.safetensors", out / "nano/s3gen_meanflow.safetensors")
    sd = {k: v for k, v in mf.state_dict().items() if "time_embed_mixer" not in k}
    (out / "multilingual").mkdir(parents=True, exist_ok=True)
    torch.save(sd, out / "multilingual/s3gen.pt")
    optional = ("tokenizer._mel_filters", "tokenizer.window")  # the real s3gen.safetensors may lack them
    write(out / "english/s3gen.safetensors", {k: v for k, v in sd.items() if k not in optional})


def load_s3gen(out, meanflow):
    m = R.build_s3gen(meanflow, raw=True)
    f = out / ("turbo/s3gen_meanflow.safetensors" if meanflow else "english/s3gen.safetensors")
    m.load_state_dict(load_file(f), strict=meanflow)
    return m


def load_ve(out):
    ve = R.build_ve(raw=True)
    ve.load_state_dict(load_file(out / "english/ve.safetensors"))
    return ve


def load_t3(out, kind):
    m = R.build_t3(kind, raw=True)
    m.load_state_dict(load_file(out / kind / R.T3_FILE[kind]))
    return m


def make_t3(out, kind):
    m = R.build_t3(kind)
    write(out / kind / R.T3_FILE[kind], m.state_dict())
    n = len(m.tfmr.h if m.is_gpt else m.tfmr.layers)
    write(out / f"fixtures/t3_{kind}.safetensors", stages.t3(m, n_text=60, steps=200, columns=None, layers=(0, n // 2, n - 1)))


def make_stages(out):
    wav24, _ = librosa.load(voice_file(out), sr=24000)
    wav16 = librosa.resample(wav24, orig_sr=24000, target_sr=16000)
    f = out / "fixtures"
    ve = load_ve(out)
    std = load_s3gen(out, False)
    d = stages.frontend(wav24, wav16, std, ve)
    write(f / "frontend.safetensors", dict(d.pop("features"), **d, wav24=wav24, wav16=wav16))
    write(f / "voice_encoder.safetensors", stages.voice_encoder(ve, wav16))
    write(f / "s3_tokenizer.safetensors", stages.s3_tokenizer(std.tokenizer, wav16[16000:48160], wav16, (3100,)))
    write(f / "campplus.safetensors", stages.campplus(std.speaker_encoder, wav16))
    write(f / "embed_ref.safetensors", stages.embed_ref(std, wav24, dict(even=240000, odd=216480, short=16800)))
    ref = std.embed_ref(wav24, 24000, device="cpu")
    gen = torch.randint(0, 6561, (1, 50), generator=torch.Generator().manual_seed(11))
    write(f / "flow_std.safetensors", stages.flow(std, gen, ref, False, 21, False, keep_x=range(10), keep_v=(0, 9)))
    mel = torch.randn(1, 80, 100, generator=torch.Generator().manual_seed(31)) * 1.5 - 1.0
    write(f / "hift.safetensors", stages.hift(std, mel, 41, False, crop=4096))
    write(f / "vc.safetensors", stages.voice_conversion(std, wav16[32000:64000], wav24[:120000], 81, False))
    del std
    gc.collect()
    mf = load_s3gen(out, True)
    write(f / "flow_meanflow.safetensors", stages.flow(mf, gen, ref, True, 22, False, keep_x=(0, 1), keep_v=(0, 1)))


def make_perth(out):
    wav24, _ = librosa.load(voice_file(out), sr=24000)
    net, d = stages.perth_watermark(wav24)
    score = d.pop("score")
    d["scores_marked_plain"] = torch.tensor([score(d["marked24"]), score(wav24)])
    write(out / "fixtures/perth.safetensors", d)


class _Patch:
    """Record the logits that enter the first processor, and choose greedily within the codebook."""

    def __init__(self, first):
        self.first, self.logits = first, []

    def __enter__(self):
        self.saved = self.first.__call__, torch.multinomial
        call, logits = self.saved[0], self.logits

        def record(processor, ids, scores):
            logits.append(scores[0].clone())
            return call(processor, ids, scores)

        def greedy_in_codebook(probs, num_samples):  # random weights would choose the special ids as often as any
            return probs[..., :6561].argmax(-1, keepdim=True)

        self.first.__call__, torch.multinomial = record, greedy_in_codebook
        return self

    def __exit__(self, *_):
        self.first.__call__, torch.multinomial = self.saved


def make_e2e(out, kind, new_tokens):
    """The reference's own generate(), with what happens inside."""
    from chatterbox.mtl_tts import ChatterboxMultilingualTTS
    from chatterbox.tts import ChatterboxTTS
    from chatterbox.tts_turbo import ChatterboxTurboTTS
    gpt = kind in ("turbo", "nano")
    text_dir = Path(__file__).resolve().parent.parent / "fixtures/text" / TOKENIZER[kind]
    for p in text_dir.iterdir():
        shutil.copy(p, out / kind / p.name)
    t3, s3gen, ve = load_t3(out, kind), load_s3gen(out, gpt), load_ve(out)
    d, options = {}, {}
    if gpt:
        from transformers import AutoTokenizer
        del t3.tfmr.wte
        tts = ChatterboxTurboTTS(t3, s3gen, ve, AutoTokenizer.from_pretrained(out / kind), "cpu", model_label=kind.title())
        tts.tokenizer.pad_token = tts.tokenizer.pad_token or tts.tokenizer.eos_token
        inner = t3.inference_turbo
        t3.inference_turbo = lambda **kw: note(inner(**{**kw, "max_gen_len": new_tokens - 1}), kw)
    else:
        if kind == "multilingual":
            import chatterbox.models.tokenizers.tokenizer as tk
            tk.hf_hub_download = lambda repo_id, filename, cache_dir=None: str(out / kind / filename)
            tk.ChineseCangjieConverter._init_segmenter = lambda self: setattr(self, "segmenter", None)
            tts = ChatterboxMultilingualTTS(t3, s3gen, ve, tk.MTLTokenizer(str(out / kind / "grapheme_mtl_merged_expanded_v1.json")), "cpu")
            options["language_id"] = "en"
        else:
            from chatterbox.models.tokenizers import EnTokenizer
            tts = ChatterboxTTS(t3, s3gen, ve, EnTokenizer(str(out / kind / "tokenizer.json")), "cpu")
        inner = t3.inference
        t3.inference = lambda **kw: note(inner(**{**kw, "max_new_tokens": new_tokens}), kw)

    clock, timing = [time.time()], {}

    def lap(name):
        timing[name] = round(time.time() - clock[0], 3)
        clock[0] = time.time()

    def note(tokens, kw):
        d["text_tokens"], d["t3_tokens"] = kw["text_tokens"][:1], tokens[:1]
        lap("t3")
        return tokens

    def decode(speech_tokens, ref_dict, n_cfm_timesteps=None, **_):
        d["speech_tokens"] = torch.atleast_2d(speech_tokens)
        got = stages.s3gen_inference(s3gen, speech_tokens, ref_dict, 91, False, n_cfm_timesteps)
        d.update(got)
        lap("s3gen")
        return got["wav"], got["source"]

    s3gen.inference = decode
    torch.manual_seed(101)
    voice = voice_file(out)
    tts.prepare_conditionals(str(voice))
    lap("voice")
    with _Patch(TemperatureLogitsWarper if gpt else RepetitionPenaltyLogitsProcessor) as patch:
        marked = tts.generate(TEXT, **options)
    lap("watermark")
    c = tts.conds
    tts.conds.t3.cond_prompt_speech_emb = None
    torch.save(dict(t3=dict(c.t3.__dict__), gen=dict(c.gen)), out / kind / "conds.pt")
    wav = d.pop("wav")
    d |= dict(t3_logits=torch.stack(patch.logits), speaker_emb=c.t3.speaker_emb, cond_prompt_tokens=c.t3.cond_prompt_speech_tokens,
              prompt_token=c.gen["prompt_token"], prompt_feat=c.gen["prompt_feat"], x_vector=c.gen["embedding"], wav=wav, watermarked=marked)
    run = out / f"fixtures/e2e_{kind}"
    write(run / "noise.safetensors", {k: d.pop(k) for k in ("z", "phases", "noise")})
    write(run / "tokens.safetensors", dict(speech_tokens=d.pop("t3_tokens")[0]))
    for k, v in tensors(d).items():
        save_file({k: v}, run / f"{k}.safetensors")
    with open(run / "run.json", "w") as f:
        json.dump(dict(variant=kind, text=TEXT, voice="../voice.wav", options=options, timing_s=timing,
                       shapes={k: list(v.shape) for k, v in d.items()}), f, indent=1)
    print(kind, timing, {k: list(v.shape) for k, v in d.items()}, flush=True)


@torch.inference_mode()
def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("out", type=Path)
    ap.add_argument("parts", nargs="*")
    ap.add_argument("--threads", type=int, default=2, help="on a machine that others use, 1 is faster than 2")
    ap.add_argument("--tokens", type=int, default=200, help="speech tokens of the end-to-end runs")
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    parts = {"ve": make_ve, "s3gen": make_s3gen, "stages": make_stages, "perth": make_perth}
    for kind in ("nano", "turbo", "english", "multilingual"):
        parts[f"t3_{kind}"] = lambda out, kind=kind: make_t3(out, kind)
        parts[f"e2e_{kind}"] = lambda out, kind=kind: make_e2e(out, kind, a.tokens)
    for name in a.parts or parts:
        t = time.time()
        parts[name](a.out)
        gc.collect()
        print(f"-- {name}: {time.time() - t:.0f} s", flush=True)


if __name__ == "__main__":
    main()
