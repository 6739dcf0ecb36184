"""Time the PyTorch reference on this machine's NVIDIA card, with random weights of the released sizes.

    gpu_reference.py [--json FILE]

Speed does not depend on what the weights are. Needs PyTorch with CUDA, transformers, and on the Python path the reference's
`chatterbox`, `s3tokenizer`, `conformer` and `diffusers` (tests/reference/requirements.txt); librosa and omegaconf may be
missing. Medians after a warm-up, the card waited for on both sides of every measurement.
"""
import argparse
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import statistics
import sys
import time
import types
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"
import torch

PROMPT, TOKENS, RUNS = 250, 150, 5
NUMBERS = dict(f32=torch.float32, bf16=torch.bfloat16)


def stand_in():
    """Modules that the networks import but do not need, and the reference's package without its programs."""
    found = importlib.util.find_spec("chatterbox")
    if found is None:
        raise SystemExit("the reference is not here: no module chatterbox")
    package = types.ModuleType("chatterbox")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["chatterbox"] = package
    # diffusers asks for these; and transformers has to be imported before there seems to be a librosa.
    import transformers
    from transformers import GPT2Config, GPT2Model, LlamaConfig, LlamaModel, LlamaPreTrainedModel  # noqa: F401
    for name in ("CLIPTextModel", "CLIPTextModelWithProjection"):
        setattr(transformers, name, object)
    if importlib.util.find_spec("librosa") is None:
        filters = types.ModuleType("librosa.filters")
        filters.mel = lambda *, sr, n_fft, n_mels=128, **_: __import__("numpy").zeros((n_mels, n_fft // 2 + 1), "float32")
        librosa = types.ModuleType("librosa")
        librosa.__spec__ = importlib.machinery.ModuleSpec("librosa", None)
        librosa.filters = filters
        sys.modules |= {"librosa": librosa, "librosa.filters": filters}
    if importlib.util.find_spec("omegaconf") is None:
        omegaconf = types.ModuleType("omegaconf")

        class DictConfig(dict):
            def __init__(self, content=()):
                super().__init__(content)
                self.__dict__ = self

        omegaconf.DictConfig = DictConfig
        sys.modules["omegaconf"] = omegaconf


def milliseconds(work):
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) * 1e3


def median(work, runs=RUNS):
    work(), work()
    return round(statistics.median(milliseconds(work) for _ in range(runs)), 2)


def t3(R, kind, number):
    """A prompt of 250 positions, then tokens with the reference's own choice of each."""
    from transformers.generation.logits_process import (
        LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)
    m = R.build_t3(kind, raw=True).to("cuda", number)
    rows, dim = (1, 2)[not m.is_gpt], m.speech_emb.weight.shape[1]
    if m.is_gpt:
        chain = LogitsProcessorList([TemperatureLogitsWarper(0.8), TopKLogitsWarper(1000), TopPLogitsWarper(0.95), RepetitionPenaltyLogitsProcessor(1.2)])
    else:
        penalty, least, top = RepetitionPenaltyLogitsProcessor(1.2), MinPLogitsWarper(0.05), TopPLogitsWarper(1.0)
        chain = lambda ids, l: top(ids, least(ids, penalty(ids, l[:1] + 0.5 * (l[:1] - l[1:])) / 0.8))
    prompt = torch.randn(rows, PROMPT, dim, device="cuda", dtype=number)
    state = {}

    def feed(e):
        o = m.tfmr(inputs_embeds=e, past_key_values=state.get("past"), use_cache=True, return_dict=True)
        state.update(past=o.past_key_values, logits=m.speech_head(o.last_hidden_state[:, -1]))

    def prefill():
        state.clear()
        feed(prompt)

    def say(count):
        ids = torch.tensor([[6561]], device="cuda")
        for i in range(count):
            token = torch.multinomial(chain(ids, state["logits"].float()).softmax(-1), 1) % 6561
            ids = torch.cat([ids, token], 1)
            e = m.speech_emb(token)
            feed(e if m.is_gpt else (e + m.speech_pos_emb.get_fixed_embedding(i + 1).to(number)).repeat(rows, 1, 1))

    first = median(prefill)
    steps = []
    for _ in range(3):
        prefill()
        say(TOKENS - 50)
        steps.append(milliseconds(lambda: say(50)) / 50)
    return dict(prefill_ms=first, tokens_per_sec=round(1e3 / statistics.median(steps), 1))


def s3gen(R, meanflow):
    """Ten seconds of reference and 13 or 100 tokens: encoder and solver, and the vocoder with pitch and excitation; f32."""
    m = R.build_s3gen(meanflow, raw=True).to("cuda")
    ref = dict(prompt_token=torch.randint(0, 6561, (1, 250), device="cuda"), prompt_token_len=torch.tensor([250], device="cuda"),
               prompt_feat=torch.randn(1, 500, 80, device="cuda") - 4, prompt_feat_len=None, embedding=torch.randn(1, 192, device="cuda"))
    out = {}
    for count in (13, 100):
        tokens = torch.randint(0, 6561, (1, count), device="cuda")
        flow = lambda: m.flow_inference(tokens, ref_dict=ref, finalize=True, n_cfm_timesteps=2 if meanflow else 10)
        mel = flow()
        out[f"mel_{count}_ms"] = median(flow)
        out[f"vocoder_{count}_ms"] = median(lambda: m.hift_inference(mel, None))
    return out


@torch.inference_mode()
def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--json", help="also write the figures here")
    a = ap.parse_args()
    stand_in()
    sys.path.insert(0, str(next(p for p in (Path(__file__).parent, Path(__file__).parent.parent / "tests/reference") if (p / "refmodels.py").exists())))
    import refmodels as R
    parts = {f"t3_{kind}_{name}": (lambda kind=kind, number=number: t3(R, kind, number))
             for kind in ("english", "turbo", "nano") for name, number in NUMBERS.items()}
    parts |= dict(s3gen=lambda: s3gen(R, False), s3gen_meanflow=lambda: s3gen(R, True))
    results = dict(card=torch.cuda.get_device_name(), torch=torch.__version__)
    for name, part in parts.items():
        with contextlib.redirect_stdout(io.StringIO()):
            results[name] = part()
        print("reference", name, json.dumps(results[name]), flush=True)
        torch.cuda.empty_cache()
    if a.json:
        Path(a.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
