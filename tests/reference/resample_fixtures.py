"""What soxr, torchaudio and scipy make of a signal that a formula gives: tests/fixtures/dsp/resample.safetensors.

python3 tests/reference/resample_fixtures.py
"""
import math
from pathlib import Path

import numpy as np
import scipy.signal
import soxr
import torch
import torchaudio
from safetensors.numpy import save_file

OUT = Path(__file__).resolve().parents[1] / "fixtures" / "dsp" / "resample.safetensors"
HQ = [(24000, 16000), (24000, 32000), (32000, 24000), (48000, 24000), (8000, 24000), (24000, 48000), (44100, 24000), (44100, 16000), (24000, 44100)]


def signal(n, from_hz, to_hz):
    """Five sines, the highest at 0.83 of the lower Nyquist frequency, which fade in."""
    t = np.arange(n, dtype=np.float64)
    nyquist = min(1.0, to_hz / from_hz)
    y = sum(0.1 * np.sin(math.pi * nyquist * f * t + k) for k, f in enumerate((0.031, 0.113, 0.371, 0.613, 0.829)))
    return (y * np.minimum(t / 200.0, 1.0)).astype(np.float32)


def main():
    d = {f"soxr_hq_{a}_{b}": soxr.resample(signal(701, a, b), a, b, quality="HQ") for a, b in HQ}
    x = signal(701, 24000, 16000)
    d["sinc_hann_24000_16000"] = torchaudio.transforms.Resample(24000, 16000)(torch.from_numpy(x)[None])[0].numpy()
    x = signal(701, 24000, 32000)
    d["scipy_poly_24000_32000"] = scipy.signal.resample_poly(x, 4, 3).astype(np.float32)
    OUT.parent.mkdir(exist_ok=True)
    save_file({k: np.ascontiguousarray(v) for k, v in d.items()}, OUT, metadata={"soxr": soxr.__version__, "scipy": scipy.__version__, "torchaudio": torchaudio.__version__})
    print(OUT.stat().st_size, {k: v.shape for k, v in d.items()})


main()
