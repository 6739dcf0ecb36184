"""Voice encoder = the GE2E weights of the Apache-2.0 `Resemblyzer` package (same architecture: 40 mels, 3 x 256 LSTM, 256 out), renamed.
Resemblyzer first raises the level of its input to -30 dBFS; this architecture gets raw audio, so the difference to a typical level is folded
into the first layer (the power mel is linear in it).
    python3 import_voice_encoder.py --wheel Resemblyzer-0.1.4-py3-none-any.whl --ck DIR"""
import argparse, io, zipfile
import torch
from common import save

ap = argparse.ArgumentParser()
ap.add_argument('--wheel', required=True); ap.add_argument('--ck', default='/tmp/ck'); ap.add_argument('--level', type=float, default=-23., help='typical level of references, dBFS')
a = ap.parse_args()
sd = torch.load(io.BytesIO(zipfile.ZipFile(a.wheel).read('resemblyzer/pretrained.pt')), map_location='cpu', weights_only=True)['model_state']
sd = {k.replace('linear.', 'proj.'): v for k, v in sd.items()}
sd['lstm.weight_ih_l0'] = sd['lstm.weight_ih_l0'] * 10 ** ((-30 - a.level) / 10)
print({k: tuple(v.shape) for k, v in sd.items() if v.ndim < 2 or 'l0' in k or 'proj' in k})
save(sd, a.ck, 've')
