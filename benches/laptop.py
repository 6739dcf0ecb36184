"""The speed of Myna beside the reference on this machine: measures both in turn and prints one table with ratios and bars.

    laptop.py --myna target/release/myna --models DIR --json FILE [--rounds N] [part ...]
    laptop.py --json FILE --table                     prints what FILE holds

parts: english turbo nano (T3, whole pipeline, memory, load), flow meanflow (S3Gen), voice, cache; all by default.

Runs with the Python that `tests/reference` needs; DIR holds the folders english, turbo and nano of `make_full.py` (time does
not depend on what weights are). Nothing else should be running: the table says what share of the cores others had while the
reference ran, and the load before Myna. Each measurement is added to FILE, and what it holds already is not measured again, so
that parts can be run one by one and go on where they were stopped. With several rounds reference and Myna take turns, and the
table has medians: where a machine changes its speed from minute to minute, ratios come out right all the same.
"""
import argparse
import json
import math
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import wave
from pathlib import Path

REFERENCE = Path(__file__).resolve().parent.parent / "tests" / "reference"
VARIANTS = ("english", "turbo", "nano")
# English at fewer steps than ten: the fewest whose mel is as near to ten steps as another seed's.
FEWER_STEPS = 4


def clip(folder):
    """A voice-like clip of ten seconds; what it sounds like does not change the time."""
    path = folder / "clip.wav"
    with wave.open(str(path), "wb") as f:
        f.setparams((1, 2, 24000, 0, "NONE", ""))
        value = lambda i: sum(math.sin(2 * math.pi * 110 * k * i / 24000) / k for k in range(1, 9)) * (0.6 + 0.4 * math.sin(i / 4000))
        f.writeframes(b"".join(struct.pack("<h", int(6000 * value(i))) for i in range(240000)))
    return path


def median(values):
    """Of numbers, and of each number in dictionaries; of anything else the first."""
    first = values[0]
    if isinstance(first, dict):
        return {key: median([value[key] for value in values if key in value]) for key in first}
    return statistics.median(values) if isinstance(first, (int, float)) else first


class Bench:
    def __init__(self, args, folder):
        self.myna_path, self.models, self.file, self.folder = args.myna, args.models, Path(args.json), folder
        self.results = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.round = 0

    def has(self, name):
        return len(self.results.get(name, [])) > self.round

    def keep(self, name, value):
        self.results.setdefault(name, []).append(value)
        self.file.write_text(json.dumps(self.results, indent=1))

    def reference(self, part):
        if self.has(f"reference {part}"):
            return
        out = self.folder / "reference.json"
        out.unlink(missing_ok=True)
        subprocess.run([sys.executable, "bench.py", "--json", out, part], cwd=REFERENCE, check=True, stdout=subprocess.DEVNULL)
        self.keep(f"reference {part}", json.loads(out.read_text())[part])

    def myna(self, name, variant, precision, *more, cache=False):
        if self.has(name):
            return
        command = [self.myna_path, "bench", "--model", Path(self.models) / variant, "--precision", precision, "--json", *map(str, more)]
        env = dict(os.environ, XDG_CACHE_HOME=str(self.folder / "cache"))
        done = subprocess.run(command if cache else [*command, "--no-cache"], check=True, stdout=subprocess.PIPE, env=env)
        self.keep(name, json.loads(done.stdout))

    def part(self, name):
        if name in VARIANTS:
            self.reference(f"t3_{name}")
            # As long as what S3Gen is measured with.
            self.myna(f"{name} int8", name, "int8", "--tokens", 100, "--runs", 1)
            self.myna(f"{name} int8 step", name, "int8", "--draft", "--tokens", 20)
            self.myna(f"{name} f32", name, "f32", "--tokens", 20, "--runs", 1)
            if name == "english":
                self.myna("english fewer", name, "int8", "--tokens", 100, "--runs", 1, "--steps", FEWER_STEPS)
        elif name in ("flow", "meanflow"):
            self.reference("s3gen" if name == "flow" else "s3gen_meanflow")
            for precision in ("int8", "f32"):
                variant = "english" if name == "flow" else "nano"
                self.myna(f"{name} {precision}", variant, precision, "--tokens", 100, "--runs", 1)
        elif name == "voice":
            self.reference("voice")
            for precision in ("int8", "f32"):
                self.myna(f"voice {precision}", "nano", precision, "--tokens", 10, "--runs", 3, "--voice", clip(self.folder))
        elif name == "cache":
            for variant in VARIANTS:
                if not self.has(f"{variant} second"):
                    self.results[f"{variant} first"] = self.results.get(f"{variant} first", [])[: self.round]
                for time in ("first", "second"):
                    self.myna(f"{variant} {time}", variant, "int8", "--draft", "--tokens", 2, cache=True)
        else:
            sys.exit(f"no part {name}")


def table(results):
    r = {name: median(rounds) for name, rounds in results.items() if rounds}
    print("| what | reference | Myna | ratio | bar | |\n|---|---|---|---|---|---|")

    def row(what, reference, myna, ratio, bar, ok):
        print(f"| {what} | {reference} | {myna} | {ratio} | {bar} | {'' if ok else 'missed'} |")

    def faster(what, ref_s, myna_s, least, unit=1e3):
        """Both in seconds; how many times as fast."""
        ratio = ref_s / myna_s
        row(what, f"{ref_s * unit:.0f} ms", f"{myna_s * unit:.0f} ms", f"{ratio:.2f} ×", f"≥ {least} ×", ratio >= least)

    # 45, 80 and 250 tokens/s on a machine on which the reference has 10.2, 18 and 55.
    for variant, least in (("english", 4.4), ("turbo", 4.4), ("nano", 4.5)):
        ref = r.get(f"reference t3_{variant}")
        for precision in ("int8", "f32"):
            ours, step = r.get(f"{variant} {precision}"), r.get(f"{variant} int8 step")
            if not (ref and ours and step):
                continue
            decode = ref.get("decode_after_417") or ref["decode_after_100"]
            theirs, ms = decode["median_s"] * 1e3, ours["t3_ms_per_token"]
            behind = f"; {1e3 / step['drafts'][0]['pass_ms']:.1f} with 300 behind it" if precision == "int8" else ""
            bar, ok = (f"≥ {least} ×", theirs / ms >= least) if precision == "int8" else ("", True)
            row(f"T3 {variant} {precision}, one token", f"{1e3 / theirs:.1f} tokens/s", f"{1e3 / ms:.1f}{behind}",
                f"{theirs / ms:.2f} ×", bar, ok)
            limit = ours["limits"]["read_gb_per_sec"]
            few = [k for k in ours["kernels"] if k["kernel"] == "product" and not k["many_rows"]]
            got = sum(k["bytes"] for k in few) / max(1e-9, sum(k["ms"] for k in few)) / 1e6
            row(f"T3 {variant} {precision}, weights read", "", f"{got:.1f} of {limit:.1f} GB/s", f"{got / limit:.0%}",
                "≥ 70 %" if (variant, precision) == ("english", "int8") else "", precision != "int8" or variant != "english" or got / limit >= 0.7)
    for name, title in (("flow", "standard flow, 10 steps"), ("meanflow", "mean flow, 2 steps")):
        ref = r.get("reference s3gen" if name == "flow" else "reference s3gen_meanflow")
        for precision, least in (("f32", 1.3), ("int8", 3)):
            ours = r.get(f"{name} {precision}")
            if ref and ours:
                theirs = ref["encoder"]["median_s"] + ref["steps"] * ref["estimator"]["median_s"]
                faster(f"{title}, {precision}", theirs, ours["flow_ms"] / 1e3, least)
        if ref and (ours := r.get(f"{name} f32")):
            faster(f"HiFT, 200 frames ({name})", ref["vocoder"]["median_s"], ours["vocoder_ms"] / 1e3, 1.5)
    # Factors of the whole pipeline, and of the reference's in one go on the machine on which they were asked for.
    for variant, part, name, rtf, of in (
        ("nano", "s3gen_meanflow", "nano int8", 0.45, 1.1),
        ("turbo", "s3gen_meanflow", "turbo int8", 0.75, 2.1),
        ("english", "s3gen", "english int8", 1.6, 6.3),
        ("english", "s3gen", "english fewer", 1.0, 6.3),
    ):
        if not (ours := r.get(name)):
            continue
        found, theirs, share, ok = ours["streamed_rtf"], "", "", ours["streamed_rtf"] <= rtf
        if (t3 := r.get(f"reference t3_{variant}")) and (s3gen := r.get(f"reference {part}")):
            whole = (t3.get("decode_after_417") or t3["decode_after_100"])["rtf"] + s3gen["rtf"]
            theirs, share, ok = f"{whole:.2f} in one go", f"{found / whole:.2f}", ok or found / whole <= rtf / of
        steps = f", {FEWER_STEPS} steps" if name == "english fewer" else ""
        row(f"streamed real-time factor, {variant} int8{steps}", theirs, f"{found:.2f}", share, f"≤ {rtf}, or {rtf / of:.2f} of the reference", ok)
    for variant, ttfa in (("nano", 0.5), ("turbo", 0.8), ("english", 2.0)):
        if ours := r.get(f"{variant} int8"):
            row(f"first sound, {variant} int8", "", f"{ours['streamed_ttfa_ms'] / 1e3:.2f} s", "", f"≤ {ttfa} s", ours["streamed_ttfa_ms"] <= ttfa * 1e3)
    if (ref := r.get("reference voice")):
        for precision in ("f32", "int8"):
            if ours := r.get(f"voice {precision}"):
                share = ours["voice_ms"] / 1e3 / ref["total_s"]
                row(f"voice of 10 s, {precision}", f"{ref['total_s'] * 1e3:.0f} ms", f"{ours['voice_ms']:.0f} ms", f"{share:.2f}", "≤ 0.8", share <= 0.8)
    for variant in VARIANTS:
        a, b = r.get(f"{variant} int8"), r.get(f"{variant} f32")
        if a and b:
            share = a["loaded_rss_bytes"] / b["loaded_rss_bytes"]
            row(f"memory when loaded, {variant} int8 of f32", f"{b['loaded_rss_bytes'] / 1e6:.0f} MB", f"{a['loaded_rss_bytes'] / 1e6:.0f} MB",
                f"{share:.0%}", "≤ 45 %" if variant == "english" else "", variant != "english" or share <= 0.45)
        a, b = r.get(f"{variant} first"), r.get(f"{variant} second")
        if a and b:
            row(f"load, {variant} int8: first and second start", "", f"{a['load_ms'] / 1e3:.1f} s, {b['load_ms'] / 1e3:.2f} s", "", "≤ 1 s", b["load_ms"] <= 1e3)
    runs = [run for rounds in results.values() for run in rounds]
    loads = [run["load_average"] for run in runs if "load_average" in run]
    others = [part["others"] for run in runs for part in run.values() if isinstance(part, dict) and "others" in part]
    print(f"\nMedians of {max(map(len, results.values()), default=0)} rounds. Load averages {min(loads, default=0):.1f} to {max(loads, default=0):.1f}; others had at most {max(others, default=0):.1%} of the cores beside the reference.")


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("parts", nargs="*", help=" ".join((*VARIANTS, "flow", "meanflow", "voice", "cache")))
    ap.add_argument("--myna", type=lambda path: Path(path).resolve())
    ap.add_argument("--models", type=Path)
    ap.add_argument("--json", required=True)
    ap.add_argument("--rounds", type=int, default=1, help="how often reference and Myna take turns")
    ap.add_argument("--table", action="store_true", help="measure nothing")
    args = ap.parse_args()
    if not args.table:
        if not (args.myna and args.models):
            ap.error("--myna and --models are needed")
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(args, Path(folder))
            for part in args.parts or (*VARIANTS, "flow", "meanflow", "voice", "cache"):
                for bench.round in range(args.rounds):
                    bench.part(part)
    table(json.loads(Path(args.json).read_text()))


if __name__ == "__main__":
    main()
