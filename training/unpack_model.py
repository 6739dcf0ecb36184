"""Model folder -> checkpoints, the inverse of export.py, so that training can go on from shipped weights.
    python3 unpack_model.py --model DIR --ck DIR"""
import argparse, os
from safetensors.torch import load_file
from common import save
from tts import PARTS

ap = argparse.ArgumentParser()
ap.add_argument('--model', required=True); ap.add_argument('--ck', default='/tmp/ck')
a = ap.parse_args()
os.makedirs(a.ck, exist_ok=True)
for name, f, prefix in PARTS:
    sd = load_file(f'{a.model}/{f}.safetensors')
    save({k[len(prefix):]: v for k, v in sd.items() if k.startswith(prefix) and k not in ('tokenizer._mel_filters', 'tokenizer.window')}, a.ck, name)
    print(name)
