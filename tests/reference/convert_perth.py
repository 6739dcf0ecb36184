"""Write models/perth/perth.safetensors from the weights inside the resemble-perth package (1.0.1, MIT).

The wide kernels, nearly all of the file, are kept as whole numbers with one scale to an output channel: 8 bits in the
encoder, 4 in the detector, low bits first, each value plus half the range. Rounding goes column by column and what a column
loses the later ones make up for on the sounds of assets/voices (GPTQ, Frantar et al. 2022, arXiv 2210.17323, algorithm 1), so
that marks and scores stay the same (see --check). Everything else is f16, biases f32.

    python convert_perth.py OUT.safetensors [--check CLIP ...]
"""
import argparse
import copy
import glob
import os

import librosa
import numpy as np
import perth
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

VOICES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../assets/voices/*.flac")
BITS = {"encoder": 8, "decoder": 4}
SPEEDS = {"slow_layers": 1.25, "normal_layers": 1.0, "fast_layers": 0.75}
BLOCK = 128


def row_scales(rows, most):
    """(out, n) -> (out, 1): of 31 scales the one with the least squared rounding error, in f16."""
    best = torch.full((len(rows), 1), torch.inf)
    scale = torch.zeros_like(best)
    for part in np.linspace(0.4, 1.0, 31):
        candidate = (rows.abs().amax(1, keepdim=True) / most * part).half().float()
        error = ((rows / candidate).round().clamp(-most, most) * candidate - rows).square().sum(1, keepdim=True)
        scale = torch.where(error < best, candidate, scale)
        best = torch.minimum(error, best)
    return scale


def quantise(rows, moments, bits):
    """(out, n) with the second moments (n, n) of its inputs -> whole numbers (out, n), scales (out, 1)."""
    most = 2 ** (bits - 1) - 1
    scale = row_scales(rows, most)
    order = moments.diagonal().argsort(descending=True)
    left, moments = rows[:, order].double(), moments[order][:, order]
    moments = moments + 0.01 * moments.diagonal().mean() * torch.eye(len(moments), dtype=torch.float64)
    inverse = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(moments)), upper=True)
    numbers = torch.zeros_like(left)
    for start in range(0, left.shape[1], BLOCK):
        end = min(start + BLOCK, left.shape[1])
        lost = torch.zeros(len(left), end - start, dtype=torch.float64)
        for j in range(start, end):
            numbers[:, j] = (left[:, j] / scale[:, 0]).round().clamp(-most, most)
            lost[:, j - start] = (left[:, j] - numbers[:, j] * scale[:, 0]) / inverse[j, j]
            left[:, j:end] -= lost[:, j - start, None] * inverse[j, j:end]
        left[:, end:] -= lost @ inverse[start:end, end:]
    restored = torch.zeros_like(numbers)
    restored[:, order] = numbers
    return restored.int(), scale


def pack(numbers, bits):
    """(out, n) -> bytes (out, n * bits / 8)."""
    ones = (numbers + 2 ** (bits - 1))[..., None] >> torch.arange(bits) & 1
    ones = ones.reshape(len(numbers), -1, 8) << torch.arange(8)
    return ones.sum(-1).to(torch.uint8)


def convert_stack(layers, name, inputs, tensors):
    """Replaces the kernels of one stack by what the file will hold and puts that into `tensors`; inputs are (1, 128, T)."""
    bits = BITS[name.split(".")[0]]
    for i, layer in enumerate(layers):
        conv, key = layer.conv, f"{name}.{i}.conv."
        wide = conv.kernel_size[0]
        tensors[key + "bias"] = conv.bias.clone()
        if wide == 1:
            tensors[key + "weight"] = conv.weight.half()
            conv.weight.copy_(tensors[key + "weight"].float())
        else:
            moments = 0
            for x in inputs:
                columns = F.unfold(F.pad(x, (wide // 2, wide // 2))[:, :, None], (1, wide))[0]
                moments = moments + (columns @ columns.T).double()
            numbers, scale = quantise(conv.weight.flatten(1), moments, bits)
            tensors[key + "weight_packed"] = pack(numbers, bits)
            tensors[key + "weight_scale"] = scale.half()[..., None]
            conv.weight.copy_((numbers * scale).reshape(conv.weight.shape))
        inputs = [layer(x) for x in inputs]


def convert(marker):
    """The file's tensors, and a copy of the network with what they hold."""
    net, tensors = copy.deepcopy(marker.perth_net), {}

    def magnitudes(wav):
        at_32_khz = torch.from_numpy(librosa.resample(wav, orig_sr=24000, target_sr=net.hp.sample_rate))
        return net.ap.signal_to_magphase(at_32_khz[None])[0][:, : net.subband]

    clips = [librosa.load(path, sr=24000)[0][:240000] for path in sorted(glob.glob(VOICES))]
    plain = [magnitudes(wav) for wav in clips]
    both = plain + [magnitudes(marker.apply_watermark(wav, sample_rate=24000)) for wav in clips]
    convert_stack(net.encoder.layers, "encoder.layers", plain, tensors)
    for name, speed in SPEEDS.items():
        heard = [F.interpolate(x, size=int(x.shape[2] * speed), mode="linear", align_corners=True) for x in both]
        convert_stack(getattr(net.decoder, name), f"decoder.{name}", heard, tensors)
    return tensors, net


def check(before, after, clips):
    """Marks every clip and reads it back, with the weights as published and as shipped."""
    changed, furthest, loudest = 0, 0.0, 0.0
    for path in clips:
        wav, _ = librosa.load(path, sr=24000)
        marked = before.apply_watermark(wav, sample_rate=24000)
        error = np.linalg.norm(after.apply_watermark(wav, sample_rate=24000) - marked) / np.linalg.norm(marked)
        scores = [[float(p.get_watermark(x, sample_rate=24000, round=False)) for x in (marked, wav)] for p in (before, after)]
        changed += [s >= 0.5 for s in scores[0]] != [s >= 0.5 for s in scores[1]]
        furthest, loudest = max(furthest, *np.abs(np.subtract(*scores))), max(loudest, error)
        print(f"{path}: marked {scores[0][0]:.4f} {scores[1][0]:.4f}, plain {scores[0][1]:.4f} {scores[1][1]:.4f}, signal {error:.1e}", flush=True)
    print(f"{len(clips)} clips, {changed} decisions changed, scores moved by {furthest:.3f} at most, the signal by {loudest:.1e}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--check", nargs="*", default=[])
    args = parser.parse_args()
    marker = perth.PerthImplicitWatermarker()
    tensors, copied = convert(marker)
    save_file(tensors, args.out, metadata={"source": "resemble-perth 1.0.1, implicit, step 250000", "license": "MIT, Resemble AI 2025"})
    check(marker, perth.PerthImplicitWatermarker(run_name=None, perth_net=copied), args.check)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
