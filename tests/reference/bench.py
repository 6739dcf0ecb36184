"""Time each stage of the reference on this machine's CPU, with random weights at full size.

    bench.py [--threads 2] [--json FILE] [part ...]      parts: t3_<variant> s3gen s3gen_meanflow voice watermark

Prints the median, minimum and maximum of the repetitions, and what share of the cores other processes used meanwhile:
with any competitor torch's barriers stall about tenfold, so compare only runs in which that share is near zero, and
take the reference again in the same session as the program it is compared with.
"""
import argparse
import gc
import json
import os
import statistics
import time

import librosa
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)

import refmodels as R
import stages

PER_SECOND = os.sysconf("SC_CLK_TCK")


def busy():
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:9]]
    return (sum(v) - v[3] - v[4]) / PER_SECOND


class Clock:
    """Wall times of repeated calls and the share of the machine that others used."""

    def __init__(self):
        self.times, self.other, self.wall = [], 0.0, 0.0

    def __call__(self, f, keep=True):
        b, c, t = busy(), time.process_time(), time.perf_counter()
        r = f()
        wall = time.perf_counter() - t
        if keep:
            self.times.append(wall)
            self.wall += wall
            self.other += max(0.0, busy() - b - (time.process_time() - c))
        return r

    def result(self):
        t = sorted(self.times)
        return dict(median_s=round(statistics.median(t), 5), min_s=round(t[0], 5), max_s=round(t[-1], 5), n=len(t),
                    others=round(self.other / max(self.wall, 1e-3) / os.cpu_count(), 3))


def timed(f, n=5):
    clock = Clock()
    clock(f, keep=False)
    for _ in range(n):
        clock(f)
    return clock.result()


def t3(kind, n_new=50, reps=3):
    """Prefill of 100 positions (turbo and nano: also 417, their full prompt) and 50 decode steps with sampling."""
    m = R.build_t3(kind, raw=True)
    gpt, hp, out = m.is_gpt, m.hp, {}
    for length in (100, 417) if gpt else (100,):
        prompt, n_text = (dict([(100, (60, 38)), (417, (375, 40))])[length]) if gpt else (150, 62)
        clock, step = Clock(), Clock()
        for r in range(reps + 1):
            cond, text = stages.t3_conditioning(m, n_text, prompt=prompt)
            state = {}

            def prefill():
                rows = 1 if gpt else 2
                e, _ = m.prepare_input_embeds(t3_cond=cond, text_tokens=text.repeat(rows, 1), cfg_weight=0.0 if gpt else 0.5,
                                              speech_tokens=torch.full((rows, 1), hp.start_speech_token))
                if not gpt:
                    bos = m.speech_emb(torch.tensor([[hp.start_speech_token]])) + m.speech_pos_emb.get_fixed_embedding(0)
                    e = torch.cat([e, bos.repeat(rows, 1, 1)], 1)
                assert e.shape[1] == length, e.shape
                feed(e)

            def feed(e):
                o = m.tfmr(inputs_embeds=e, past_key_values=state.get("past"), use_cache=True, return_dict=True)
                state.update(past=o.past_key_values, logits=m.speech_head(o.last_hidden_state[:, -1]))

            if gpt:
                chain = LogitsProcessorList([TemperatureLogitsWarper(0.8), TopKLogitsWarper(1000), TopPLogitsWarper(0.95), RepetitionPenaltyLogitsProcessor(1.2)])
            else:
                rp, mp, tp = RepetitionPenaltyLogitsProcessor(1.2), MinPLogitsWarper(0.05), TopPLogitsWarper(1.0)
                chain = lambda ids, l: tp(ids, mp(ids, rp(ids, l[:1] + 0.5 * (l[:1] - l[1:])) / 0.8))
            ids = torch.tensor([[hp.start_speech_token]])
            clock(prefill, keep=r > 0)
            for i in range(n_new):
                def decode():
                    token = torch.multinomial(chain(ids, state["logits"]).softmax(-1), 1) % 6561
                    e = m.speech_emb(token)
                    feed(e if gpt else (e + m.speech_pos_emb.get_fixed_embedding(i + 1)).repeat(2, 1, 1))
                    return token
                ids = torch.cat([ids, step(decode, keep=r > 0)], 1)
        d = step.result()
        out[f"prefill{length}"] = clock.result()
        out[f"decode_after_{length}"] = dict(d, rtf=round(d["median_s"] * 25, 3))
    return out


def s3gen(meanflow):
    """250 prompt tokens and 100 generated (4 s): encoder, one estimator call, vocoder."""
    m = R.build_s3gen(meanflow, raw=True)
    f, rows, steps = m.flow, 1 if meanflow else 2, 2 if meanflow else 10
    x = f.input_embedding(torch.randint(0, 6561, (1, 350)))
    encode = lambda: f.encoder_proj(f.encoder(x, torch.tensor([350]))[0]).transpose(1, 2).contiguous()
    mu = encode().repeat(rows, 1, 1)
    spk, cond, t, mask = torch.randn(rows, 80), torch.zeros_like(mu), torch.full((rows,), 0.5), torch.ones(rows, 1, 700)
    out = dict(encoder=timed(encode), estimator=timed(lambda: f.decoder.estimator(mu, mask, mu, t, spk, cond, 2 * t if meanflow else None)))
    mel = torch.randn(1, 80, 200) - 4
    out["vocoder"] = timed(lambda: m.hift_inference(mel, None))
    total = out["encoder"]["median_s"] + steps * out["estimator"]["median_s"] + out["vocoder"]["median_s"]
    return dict(out, steps=steps, rtf=round(total / 4, 3))


def voice():
    """What preparing a voice from a 10 s clip costs."""
    import pyloudnorm
    m, ve, w24 = R.build_s3gen(False, raw=True), R.build_ve(raw=True), R.test_wave(24000, 10.0)
    down = lambda: librosa.resample(w24, orig_sr=24000, target_sr=16000)
    w16 = down()
    sinc = R.sg.get_resampler(24000, 16000, "cpu")(torch.from_numpy(w24)[None])
    out = dict(soxr_24_to_16=timed(down), embed_ref=timed(lambda: m.embed_ref(w24, 24000, device="cpu"), 3),
               campplus=timed(lambda: m.speaker_encoder.inference(sinc)), tokenizer_10s=timed(lambda: m.tokenizer(sinc)),
               tokenizer_6s=timed(lambda: m.tokenizer.forward([w16[:96000]], max_len=150)),
               voice_encoder=timed(lambda: ve.embeds_from_wavs([w16], sample_rate=16000)),
               loudness=timed(lambda: pyloudnorm.Meter(24000).integrated_loudness(w24)))
    return dict(out, total_s=round(sum(out[k]["median_s"] for k in ("soxr_24_to_16", "embed_ref", "tokenizer_6s", "voice_encoder")), 3))


def watermark():
    import perth
    p, w = perth.PerthImplicitWatermarker(), R.test_wave(24000, 4.0)
    return dict(apply_4s=timed(lambda: p.apply_watermark(w, sample_rate=24000)), detect_4s=timed(lambda: p.get_watermark(w, sample_rate=24000)))


@torch.inference_mode()
def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("parts", nargs="*")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--json", help="also write the results here, added to what the file holds")
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    parts = {f"t3_{k}": (lambda k=k: t3(k)) for k in R.KINDS}
    parts |= dict(s3gen=lambda: s3gen(False), s3gen_meanflow=lambda: s3gen(True), voice=voice, watermark=watermark)
    results = {}
    if a.json and os.path.exists(a.json):
        with open(a.json) as f:
            results = json.load(f)
    for name in a.parts or parts:
        results[name] = dict(parts[name](), threads=a.threads)
        print(name, json.dumps(results[name]), flush=True)
        gc.collect()
        if a.json:
            with open(a.json, "w") as f:
                json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
