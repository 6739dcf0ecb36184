"""Compare a run of myna with a recorded run of the reference, stage by stage.

    compare.py RUN -- myna say ... [arguments that choose model, voice and text as in RUN/run.json]
    compare.py RUN --trace DIR

RUN is an e2e_<variant>/ folder of make_full.py. The first form appends `--trace DIR --noise RUN/noise.safetensors
--force-tokens RUN/tokens.safetensors --json` to the command, so that both made the same random draws and were fed the
same speech tokens. Every stage then runs on what myna's own earlier stages gave. For each tensor it prints the relative
error |a - b| / |b|; integers must be equal. Exit status 1 if any tensor is missing, misshapen or over its tolerance.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

# In the order of the pipeline. F0 rounding is integrated into phase, hence the wider bounds from `source` on.
# One code in 200 may fall the other way on a rounding border.
TOLERANCE = dict(text_tokens=0, speaker_emb=1e-4, cond_prompt_tokens=5e-3, prompt_token=5e-3, prompt_feat=1e-4, x_vector=1e-4,
                 t3_logits=1e-4, speech_tokens=0, mu=1e-4, mel=1e-3, f0=1e-3, source=1e-2, wav=2e-2, watermarked=2e-2)


# The vocoder alone: the same mel and the same noise in both programs.
OF_RECORDED_MEL = dict(f0=1e-4, source=1e-3, wav=1e-3)


def run(command, recording, *more):
    """Runs myna with the recording's noise and tokens; -> the folder of its trace."""
    trace = Path(tempfile.mkdtemp(prefix="trace-"))
    replay = ["--noise", str(recording / "noise.safetensors"), "--force-tokens", str(recording / "tokens.safetensors")]
    done = subprocess.run([*command, "--trace", str(trace), *replay, "--json", *more], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{command[0]} ended with {done.returncode}")
    print(done.stdout.strip()[-2000:], file=sys.stderr)
    return trace


def load(folder, name):
    path = folder / f"{name}.safetensors"
    return load_file(path)[name] if path.exists() else None


def squeeze(t):
    while t.ndim > 1 and t.shape[0] == 1:
        t = t[0]
    return t


def compare(name, ours, theirs, cfg_weight):
    """-> (error, note). Integers: the share of positions that differ."""
    if name == "t3_logits" and ours.ndim == 3 and ours.shape[1] == 2:  # guidance not yet applied
        ours = ours[:, 0] + cfg_weight * (ours[:, 0] - ours[:, 1])
    ours, theirs, note = squeeze(ours), squeeze(theirs), ""
    if name == "prompt_feat" and ours.shape == theirs.T.shape and ours.shape != theirs.shape:
        ours = ours.T
    if ours.shape != theirs.shape:
        if ours.ndim != theirs.ndim or ours.shape[1:] != theirs.shape[1:] and ours.shape[:-1] != theirs.shape[:-1]:
            return float("inf"), f"shape {list(ours.shape)}, reference {list(theirs.shape)}"
        note = f"shape {list(ours.shape)}, reference {list(theirs.shape)}: common part"
        cut = tuple(slice(0, min(a, b)) for a, b in zip(ours.shape, theirs.shape))
        ours, theirs = ours[cut], theirs[cut]
    if not theirs.is_floating_point():
        return float((ours.long() != theirs.long()).float().mean()), note
    a, b = ours.double(), theirs.double()
    return float((a - b).norm() / b.norm().clamp_min(1e-30)), note


def greedy_tokens(logits, history, penalty):
    """The codes that each step would choose after `history`: argmax of (steps, vocab) logits with repetition penalty."""
    chosen = []
    for i, step in enumerate(logits[: len(history)]):
        step, seen = step[:6561].clone(), history[:i].unique()
        step[seen] = torch.where(step[seen] > 0, step[seen] / penalty, step[seen] * penalty)
        chosen.append(step.argmax())
    return torch.stack(chosen)


def compare_greedy(run, trace, spec, cfg_weight):
    """-> (share of steps at which the greedy choice differs, steps), the reference having chosen greedily itself."""
    history = load_file(run / "tokens.safetensors")["speech_tokens"].long()
    penalty = 2.0 if spec["variant"] == "multilingual" else 1.2
    ours, theirs = load(trace, "t3_logits"), squeeze(load(run, "t3_logits"))
    if ours.ndim == 3 and ours.shape[1] == 2:
        ours = ours[:, 0] + cfg_weight * (ours[:, 0] - ours[:, 1])
    ours, theirs = (greedy_tokens(squeeze(t), history, penalty) for t in (ours, theirs))
    return float((ours != theirs).float().mean()), len(theirs), float((theirs != history[: len(theirs)]).float().mean())


def main():
    argv = sys.argv[1:]
    command = argv[argv.index("--") + 1:] if "--" in argv else []
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("run", type=Path)
    ap.add_argument("--trace", type=Path, help="an existing trace folder: run nothing")
    ap.add_argument("--cfg-weight", type=float, default=0.5)
    ap.add_argument("--scale", type=float, default=1.0, help="multiply every tolerance, for reduced precision")
    ap.add_argument("--only", default="", help="comma separated tensor names")
    a = ap.parse_args(argv[: argv.index("--")] if "--" in argv else argv)
    if a.trace is None and not command:
        ap.error("give a command after -- or --trace")
    trace = a.trace or run(command, a.run)
    spec = json.loads((a.run / "run.json").read_text())
    names = [n for n in a.only.split(",") if n] or list(TOLERANCE)
    print(f"| {spec['variant']} | shape | error | bound | |\n|---|---|---|---|---|")
    bad = False
    rows = [(name, name, trace, TOLERANCE[name]) for name in names]
    if command and not a.only:
        of_recorded = run(command, a.run, "--force-mel", str(a.run / "mel.safetensors"))
        rows += [(f"{name}, from the recorded mel", name, of_recorded, OF_RECORDED_MEL[name]) for name in OF_RECORDED_MEL]
    for title, name, trace_of, bound in rows:
        theirs, ours, bound = load(a.run, name), load(trace_of, name), bound * a.scale
        if theirs is None or ours is None:
            error, note = float("inf"), "not in the trace" if theirs is not None else "not recorded"
        else:
            error, note = compare(name, ours, theirs, a.cfg_weight)
        ok = error <= bound
        bad |= not ok
        shape = list(theirs.shape) if theirs is not None else "-"
        print(f"| {title} | {shape} | {error:.2e} | {bound:.0e} | {'' if ok else 'FAIL '}{note} |")
    if "t3_logits" in names:
        error, steps, check = compare_greedy(a.run, trace, spec, a.cfg_weight)
        bad |= error > 0
        print(f"| greedy choice | [{steps}] | {error:.2e} | 0e+00 | {'FAIL ' if error else ''}(the recorded tokens differ at {check:.1%}) |")
    sys.exit(bad)


if __name__ == "__main__":
    main()
