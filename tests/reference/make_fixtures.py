"""Write the tiny fixtures that the repository carries.   make_fixtures.py OUT [--only stage,stage] [--no-weights]

OUT/tiny/ gets tiny checkpoints with the real tensor names (F16 on disk; the reference ran in F32 on the rounded
values), stage inputs, intermediates and outputs, a manifest with versions, seeds and tolerances, and OUT/text/ stand-in
tokenizers. Full-size dumps, which are not committed, come from make_full.py.
"""
import argparse
import importlib.metadata
import json
from pathlib import Path

import librosa
import numpy as np
import torch
from safetensors.torch import save_file

import refmodels as R
import stages
import text_fixtures

COMPUTED = ("inv_freq", "_mel_filters", "window", "trim_fade")  # constants, never rounded
KEEP_F16 = ("wav24", "wav16", "noise", "marked24")  # inputs that hold float16 values exactly

TOLERANCE = {
    "frontend": "1e-4 relative to the largest value; resamplers 1e-4 (sinc) and 2e-3 (soxr, if another filter is used)",
    "voice_encoder": "1e-4", "s3_tokenizer": "codes equal (code_margin says how safe), hidden 1e-4", "campplus": "1e-4",
    "embed_ref": "x_vector 1e-4, prompt_feat 1e-4, tokens equal", "t3": "logits and hidden 1e-5, greedy tokens equal",
    "sampling": "1e-6; -inf at the same places", "flow_std": "1e-4", "flow_meanflow": "1e-4",
    "hift": "2e-3 from mel, 1e-4 with f0 and source replayed", "vc": "mel 1e-3, wav 5e-3, tokens equal",
    "perth": "1e-3 for the signal, 2e-2 for the scores",
}


def rounded(module):
    with torch.no_grad():
        for n, t in list(module.named_parameters()) + list(module.named_buffers()):
            if t.is_floating_point() and not n.endswith(COMPUTED):
                t.copy_(t.half().float())
    return module


def disk(v, f16):
    if isinstance(v, np.ndarray):
        v = torch.from_numpy(np.ascontiguousarray(v))
    v = v.detach().clone().contiguous()
    if not v.is_floating_point():
        return v.long()
    return v.half() if f16 else v.float()


class Writer:
    def __init__(self, root, only, weights):
        self.root, self.only, self.want_weights, self.shapes = root, only, weights, {}

    def wants(self, *names):
        return not self.only or any(n in self.only for n in names)

    def stage(self, name, tensors):
        out = {}
        for k, v in tensors.items():
            out[k] = disk(v, f16=k in KEEP_F16)
            if out[k].dtype == torch.float16:
                assert torch.equal(out[k].float(), disk(v, False)), f"{name}.{k} is not exact in float16"
        self._save(f"stages/{name}.safetensors", out)

    def weights(self, path, module, drop=()):
        if self.want_weights:
            sd = {k: disk(v, f16=not k.endswith(COMPUTED)) for k, v in module.state_dict().items() if k not in drop}
            self._save(path, sd)

    def _save(self, path, tensors):
        p = self.root / path
        p.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, p)
        if path.startswith("stages/"):
            self.shapes[path] = " ".join(f"{k}{list(v.shape)}".replace(" ", "") for k, v in sorted(tensors.items()))
        print(f"{p.stat().st_size / 1e3:8.1f} kB  {len(tensors):4} tensors  {path}", flush=True)

    def json(self, path, value):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        with open(self.root / path, "w") as f:
            json.dump(value, f, indent=1)


def ends(tensors, first, last):
    """Keep the first and last columns of long features."""
    return {f"{k}_head": v[..., :first] for k, v in tensors.items()} | {f"{k}_tail": v[..., -last:] for k, v in tensors.items()} | \
        {f"{k}_len": torch.tensor([v.shape[-1]]) for k, v in tensors.items()}


def signals():
    f16 = lambda x: x.astype(np.float16).astype(np.float32)
    wav24 = f16(R.test_wave(24000, 2.4))
    return wav24, f16(librosa.resample(wav24, orig_sr=24000, target_sr=16000))


def voiced_and_unvoiced(f0_predictor, frames):
    """A made-up mel for which the random F0 predictor is on both sides of the 10 Hz threshold, and not near it."""
    for seed in range(31, 1000):
        mel = torch.randn(1, 80, frames, generator=torch.Generator().manual_seed(seed)) * 1.5 - 1.0
        f0 = f0_predictor(mel)
        if 2 <= (f0 < 10).sum() <= frames - 3 and (f0 - 10).abs().min() > 2:
            return mel
    raise AssertionError("no such mel")


def legacy(root, ve, ref):
    """What older checkpoints look like: flat state dicts and conds.pt, both from torch.save."""
    (root / "legacy").mkdir(parents=True, exist_ok=True)
    torch.save({k: disk(v, True) for k, v in ve.state_dict().items()}, root / "legacy/ve.pt")
    g = torch.Generator().manual_seed(71)
    speaker = torch.nn.functional.normalize(torch.rand(1, 24, generator=g), dim=1)
    t3 = dict(speaker_emb=speaker, clap_emb=None, cond_prompt_speech_tokens=torch.randint(0, 6561, (1, 20), generator=g),
              cond_prompt_speech_emb=None, emotion_adv=0.5 * torch.ones(1, 1, 1))
    gen = {k: (v[:, :10] if k == "prompt_token" else v[:, :20] if k == "prompt_feat" else v) for k, v in ref.items()}
    gen = {k: v.clone() if torch.is_tensor(v) else v for k, v in gen.items()}
    gen["prompt_token_len"] = torch.tensor([gen["prompt_token"].shape[1]])
    torch.save(dict(t3=t3, gen=gen), root / "legacy/conds.pt")
    used = dict(gen, prompt_token=gen["prompt_token"].float(), prompt_token_len=gen["prompt_token_len"].float())
    torch.save(dict(t3=t3, gen=used), root / "legacy/conds_float_tokens.pt")  # as the reference leaves it after one use
    return {f"t3.{k}": v for k, v in t3.items() if v is not None} | {f"gen.{k}": v for k, v in gen.items() if v is not None}


@torch.inference_mode()
def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("out", type=Path)
    ap.add_argument("--only", default="")
    ap.add_argument("--no-weights", action="store_true")
    a = ap.parse_args()
    torch.set_num_threads(2)
    w = Writer(a.out / "tiny", set(filter(None, a.only.split(","))), not a.no_weights)
    if w.wants("text"):
        text_fixtures.main(a.out)

    wav24, wav16 = signals()
    ve = rounded(R.build_ve(True))
    meanflow = rounded(R.build_s3gen(True, True))
    std = R.build_s3gen(False, True)  # one set of weights for both
    std.load_state_dict({k: v for k, v in meanflow.state_dict().items() if "time_embed_mixer" not in k}, strict=True)
    w.weights("shared/ve.safetensors", ve)
    w.weights("shared/s3gen_meanflow.safetensors", meanflow)
    for kind in R.KINDS:
        w.json(f"{kind}/config.json", R.model_config(kind, True))

    if w.wants("frontend"):
        d = stages.frontend(wav24, wav16, std, ve)
        features = {k: torch.as_tensor(np.ascontiguousarray(v)) for k, v in d.pop("features").items()}
        long = {k: features.pop(k) for k in ("soxr16", "sinc16")}
        d = {k: (v[:, ::23 if "mel24" in k else 7] if k.startswith("filters") else v) for k, v in d.items()}
        w.stage("frontend", dict(d, wav24=wav24, wav16=wav16, **ends(long, 2000, 600), **ends(features, 30, 6)))
    if w.wants("voice_encoder"):
        d = stages.voice_encoder(ve, wav16)
        d["trimmed_mel"] = d["trimmed_mel"][:40]
        w.stage("voice_encoder", d)
    if w.wants("s3_tokenizer"):
        w.stage("s3_tokenizer", stages.s3_tokenizer(std.tokenizer, wav16[6000:14160], wav16, (3100, 5300)))
    if w.wants("campplus"):
        d = stages.campplus(std.speaker_encoder, wav16)
        crop = {k: v[..., :12] for k, v in d.items() if k not in ("stats", "x_vector", "n_samples", "head_layer1")}
        w.stage("campplus", d | crop | {"head_layer1": d["head_layer1"][..., :4]})
    ref = std.embed_ref(wav24[:48000], 24000, device="cpu")
    if w.wants("embed_ref"):
        d = stages.embed_ref(std, wav24, dict(even=48000, odd=36000, short=16800, short_even=19200))
        keep = {k: v[:, :20] for k, v in d.items() if k.endswith("prompt_feat")}
        shapes = {k + "_shape": torch.tensor(v.shape) for k, v in d.items() if k.endswith("prompt_feat")}
        w.stage("embed_ref", d | keep | shapes)
    for kind in R.KINDS:
        if w.wants("t3", f"t3_{kind}"):
            m = rounded(R.build_t3(kind, True))
            w.weights(f"{kind}/{R.T3_FILE[kind]}", m)
            w.stage(f"t3_{kind}", stages.t3(m, n_text=14, steps=50, columns=40))
    if w.wants("sampling"):
        w.stage("sampling", stages.sampling())
    prompt = 12
    short_ref = dict(prompt_token=ref["prompt_token"][:, :prompt], prompt_token_len=torch.tensor([prompt]),
                     prompt_feat=ref["prompt_feat"][:, : 2 * prompt], prompt_feat_len=None, embedding=ref["embedding"])
    gen = torch.randint(0, 6561, (1, 7), generator=torch.Generator().manual_seed(11))
    if w.wants("flow_std"):
        d = stages.flow(std, gen, short_ref, False, 21, True, keep_x=(1,), keep_v=(0,))
        d.pop("cond")  # prompt_feat, then zeros
        w.stage("flow_std", d)
    if w.wants("flow_meanflow"):
        d = stages.flow(meanflow, gen, short_ref, True, 22, True, keep_x=(1,), keep_v=(0, 1))
        w.stage("flow_meanflow", {k: v for k, v in d.items() if k.startswith(("step", "time")) or k in ("z", "t", "r", "mel")})
    if w.wants("hift"):
        mel = voiced_and_unvoiced(std.mel2wav.f0_predictor, 8)
        w.stage("hift", stages.hift(std, mel, 41, True, crop=64))
    if w.wants("vc"):
        d = stages.voice_conversion(std, wav16[8000:10560], wav24[6000:18000], 81, True)
        d.pop("source")
        w.stage("vc", d)
    if w.wants("perth"):
        _, d = stages.perth_watermark(wav24[:48000])
        score, marked = d.pop("score"), d["marked24"].astype(np.float16).astype(np.float32)
        scores = [score(d["marked24"]), score(marked), score(wav24[:48000])]
        w.stage("perth", dict(n_samples=torch.tensor([48000]), wav32_head=d["wav32"][:2000], mag_sub_head=d["mag_sub"][:, 40:52], mask=d["mask"],
                              marked_sub_head=d["marked_sub"][:, 40:52], marked24=marked, marked24_head=d["marked24"][:2000],
                              scores_marked_f32_marked_f16_plain=torch.tensor(scores)))
        print("watermark scores", scores)
    if w.wants("legacy"):
        w.stage("legacy_conds", legacy(w.root, ve, ref))

    versions = {p: importlib.metadata.version(p) for p in ("chatterbox-tts", "s3tokenizer", "torch", "torchaudio", "transformers", "tokenizers", "librosa", "soxr",
                                                           "diffusers", "resemble-perth", "pyloudnorm", "pykakasi", "numpy")}
    path = w.root / "manifest.json"
    old = json.loads(path.read_text()) if path.exists() and w.only else {}
    w.json("manifest.json", dict(
        reference="github.com/resemble-ai/chatterbox 5de7a54", versions=versions, seed=R.SEED, tolerance=TOLERANCE,
        tolerance_is="relative error |a-b|/|b| (2-norm) of a whole tensor unless said otherwise; cast everything to F32 after loading",
        weights="F16 on disk, computed in F32 on the rounded values; shared/ holds what all four variants use. "
                "The standard flow has the weights of s3gen_meanflow without flow.decoder.estimator.time_embed_mixer.weight",
        inputs="wav24, wav16 are in stages/frontend; n_samples is how many leading samples a stage took. s3_tokenizer took wav16[6000:14160] "
               "and the whole of wav16 for codes_no_max_len and codes_max_len_20; vc took wav16[8000:10560] as the source and wav24[6000:18000] as the target",
        draws=dict(flow="z is the initial x, (1,80,T). Mean-flow in the reference draws the generated part first and lays it over the tail of a second draw; z is the result",
                   hift="phases (9), the first 0 as the reference sets it; noise (9,L), standard normal before scaling"),
        crops="X_head and X_tail are the first and last columns of X, X_len its full length; filters_* keep every 7th bin, filters_mel24_80 every 23rd; hift keeps 64 columns of long "
              "intermediates; campplus 12; t3 step_logits keep the columns listed in logit_columns",
        meanflow="speech_tokens, prompt_token, prompt_feat, x_vector, mu and spks are those of flow_std",
        t3="step_logits[i] follow from teacher forcing greedy_tokens[:i]; Llama rows are conditional, unconditional; greedy = argmax after all processors "
           "(llama: cfg 0.5, repetition 1.2 over 6561 and what was generated, temperature 0.8, min_p 0.05, top_p 1.0, from step 20 on 0.8; "
           "gpt2: temperature 0.8, top_k 1000, top_p 0.95, repetition 1.2 over what was generated, at the first step over 6561)",
        long_mel="k = row*F + column in f64; sin((k^1.5 * 0.001) mod 2 pi) * 0.5 - 0.2 as f32, shape (128, F)",
        files={**old.get("files", {}), **w.shapes}))
    total = sum(p.stat().st_size for p in w.root.rglob("*") if p.is_file())
    print(f"total {total / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
