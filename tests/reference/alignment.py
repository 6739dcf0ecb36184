"""Write tests/fixtures/alignment/cases.json: verdicts of the alignment analyser of chatterbox-tts 0.1.7.

    alignment.py WHEEL_FOLDER OUT.json

WHEEL_FOLDER is the unpacked wheel (`pip download --no-deps chatterbox-tts==0.1.7`): the repository no longer has the
file. The attention is made by a formula, a ridge around a peak, so that only the peaks need to be stored; the Rust test
makes the same ridge.
"""
import importlib.util
import json
import random
import sys
from pathlib import Path

import torch

START_SPEECH, STOP_SPEECH, VOCAB = 6561, 6562, 6563


def ridge(peak, text_len):
    return [0.9 / (1 + 4 * (s - peak) ** 2) + 0.01 * ((s * 7) % 5) for s in range(text_len)]


def judge(analyser_class, text_len, peaks, tokens):
    """Rows 0 and 1 come together (the prefill's two BOS), then one a step."""
    class NoLayers:
        layers = [torch.nn.ModuleDict({"self_attn": torch.nn.Identity()}) for _ in range(30)]

    for layer in NoLayers.layers:
        layer.self_attn = layer["self_attn"]
    analyser = analyser_class(NoLayers, None, (0, text_len), eos_idx=STOP_SPEECH)
    positions, complete, verdicts = [], [], []
    for step, token in enumerate(tokens):
        rows = torch.tensor([ridge(peaks[step + 1], text_len)])
        if step == 0:
            rows = torch.cat([torch.zeros(text_len, text_len), torch.tensor([ridge(peaks[0], text_len)]), rows])
        analyser.last_aligned_attns = [rows] * 3
        stop = float(analyser.step(torch.zeros(1, VOCAB), next_token=token)[0, STOP_SPEECH])
        positions.append(int(analyser.text_position))
        complete.append(bool(analyser.complete))
        verdicts.append({0: 0, -2**15: 1, 2**15: 2}[stop])
    return positions, complete, verdicts


def paths():
    """name -> (text_len, peaks)"""
    steady = [min(0.4 * i, 11) for i in range(40)]
    yield "steady", 12, steady
    yield "rests on the end", 12, [min(0.6 * i, 11) for i in range(45)]
    yield "goes back to the beginning", 14, [min(0.8 * i, 13) for i in range(22)] + [0.5 * i for i in range(20)]
    yield "jumps ahead", 30, [0.3 * i for i in range(20)] + [0.3 * i + 15 for i in range(20)]
    yield "skips six", 30, [0.5 * i for i in range(16)] + [13.0] * 6 + [19.0] * 6 + [26.0] * 6
    yield "falls back three and four", 20, [0.5 * i for i in range(20)] + [6.6] * 5 + [2.6] * 5 + [9.0] * 5
    yield "runs ahead of its frames", 20, [9.0] * 25
    yield "six tokens", 6, [0.3 * i for i in range(40)]
    yield "seven tokens", 7, [0.2 * i for i in range(60)]
    for seed in range(6):
        r = random.Random(seed)
        n, peak, walk = r.randint(6, 40), 0.0, []
        for _ in range(3 * n + 20):
            walk.append(round(max(0.0, min(peak, n + 1.0)), 3))
            peak += r.uniform(-0.8, 1.5) if r.random() < 0.95 else r.uniform(-9, 9)
        yield f"walk {seed}", n, walk


def main():
    path = Path(sys.argv[1]) / "chatterbox/models/t3/inference/alignment_stream_analyzer.py"
    spec = importlib.util.spec_from_file_location("analyser", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.logger.disabled = True
    cases = []
    for name, text_len, peaks in paths():
        peaks = [round(p, 3) for p in peaks]
        tokens = [START_SPEECH] + list(range(100, 100 + len(peaks) - 2))
        if name == "steady":  # a repeated token, and the same one apart from itself
            tokens[20], tokens[25], tokens[27] = tokens[19], 7, 7
        positions, complete, verdicts = judge(module.AlignmentStreamAnalyzer, text_len, peaks, tokens)
        cases.append(dict(name=name, text_len=text_len, peaks=peaks, tokens=tokens, positions=positions,
                          complete=complete, verdicts=verdicts))
        print(name, [verdicts.count(v) for v in (0, 1, 2)], "complete" if complete[-1] else "open")
    out = Path(sys.argv[2])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


main()
