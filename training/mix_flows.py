"""A flow between two checkpoints of one run: (1 - share) of the weights in A, share of those in B.
    python3 mix_flows.py --a CK --b CK --share 0.4 --out CK
Fine-tuning moves the weights little enough for the straight line between to be good, and along it one gain is traded for another."""
import argparse, os
from common import save
from safetensors.torch import load_file

ap = argparse.ArgumentParser()
ap.add_argument('--a', required=True); ap.add_argument('--b', required=True); ap.add_argument('--share', type=float, required=True); ap.add_argument('--out', required=True)
a = ap.parse_args()
os.makedirs(a.out, exist_ok=True)
x, y = (load_file(f'{d}/flow.safetensors') for d in (a.a, a.b))
save({k: (1 - a.share) * v.float() + a.share * y[k].float() if v.is_floating_point() else v for k, v in x.items()}, a.out, 'flow')
