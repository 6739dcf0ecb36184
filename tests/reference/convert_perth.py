"""Write models/perth/perth.safetensors from the weights inside the resemble-perth package (1.0.1, MIT).

Encoder kernels are kept as f16. The detector's wide kernels, three quarters of the file, are kept as six bits with one scale
to an output channel: four values to three bytes, low bits first, each value + 32. Decisions stay the same (see --check).

    python convert_perth.py OUT.safetensors [--check CLIP ...]
"""
import argparse
import copy

import librosa
import numpy as np
import perth
import torch
from safetensors.torch import save_file

LIMIT = 31


def six_bits(weight):
    """(out, in, k) -> packed bytes (out, in * k * 3 / 4), scale (out, 1, 1). The scale is the best of some, in squares."""
    rows = weight.reshape(len(weight), -1)
    best = torch.full((len(rows), 1), torch.inf)
    scale = torch.zeros_like(best)
    for part in np.linspace(0.5, 1.0, 26):
        candidate = (rows.abs().amax(1, keepdim=True) / LIMIT * part).half().float()
        error = ((rows / candidate).round().clamp(-LIMIT, LIMIT) * candidate - rows).square().sum(1, keepdim=True)
        scale = torch.where(error < best, candidate, scale)
        best = torch.minimum(error, best)
    values = ((rows / scale).round().clamp(-LIMIT, LIMIT) + 32).int().reshape(len(rows), -1, 4)
    words = values[..., 0] | values[..., 1] << 6 | values[..., 2] << 12 | values[..., 3] << 18
    packed = torch.stack([words & 255, words >> 8 & 255, words >> 16], -1).to(torch.uint8).reshape(len(rows), -1)
    restored = ((values.reshape(len(rows), -1) - 32) * scale).reshape(weight.shape)
    return packed, scale.half().reshape(-1, 1, 1), restored


def convert(net):
    """The file's tensors, and a copy of the network with what they hold."""
    tensors, copied = {}, copy.deepcopy(net)
    for (name, value), restored in zip(net.state_dict().items(), copied.state_dict().values()):
        if not name.startswith(("encoder", "decoder")):
            continue
        if name.endswith("bias"):
            tensors[name] = value.clone()
        elif name.startswith("encoder") or value.shape[2] == 1:
            tensors[name] = value.half()
            restored.copy_(tensors[name].float())
        else:
            tensors[name + "_q6"], tensors[name + "_scale"], back = six_bits(value)
            restored.copy_(back)
    return tensors, copied


def check(before, after, clips):
    """Marks every clip and reads it back, with the weights as published and as shipped."""
    changed, furthest = 0, 0.0
    for path in clips:
        wav, _ = librosa.load(path, sr=24000)
        marked = before.apply_watermark(wav, sample_rate=24000)
        error = np.linalg.norm(after.apply_watermark(wav, sample_rate=24000) - marked) / np.linalg.norm(marked)
        scores = [[float(p.get_watermark(x, sample_rate=24000, round=False)) for x in (marked, wav)] for p in (before, after)]
        changed += [s >= 0.5 for s in scores[0]] != [s >= 0.5 for s in scores[1]]
        furthest = max(furthest, *np.abs(np.subtract(*scores)))
        print(f"{path}: marked {scores[0][0]:.4f} {scores[1][0]:.4f}, plain {scores[0][1]:.4f} {scores[1][1]:.4f}, signal {error:.1e}", flush=True)
    print(f"{len(clips)} clips, {changed} decisions changed, scores moved by {furthest:.3f} at most")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--check", nargs="*", default=[])
    args = parser.parse_args()
    marker = perth.PerthImplicitWatermarker()
    tensors, copied = convert(marker.perth_net)
    save_file(tensors, args.out, metadata={"source": "resemble-perth 1.0.1, implicit, step 250000", "license": "MIT, Resemble AI 2025"})
    check(marker, perth.PerthImplicitWatermarker(run_name=None, perth_net=copied), args.check)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
