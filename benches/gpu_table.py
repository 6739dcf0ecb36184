"""Print what `gpu.sh` measured beside what was asked for and beside the PyTorch reference on the same card.

    gpu_table.py FIGURES [REFERENCE.json]

FIGURES: lines of JSON from the `gpu` bench (GPU_FIGURES) and from `myna bench --json`. All of Myna's are bf16 unless said.
"""
import json
import sys


def main():
    with open(sys.argv[1]) as f:
        lines = [json.loads(line) for line in f]
    reference = json.load(open(sys.argv[2])) if len(sys.argv) > 2 else {}
    find = lambda **wanted: next((l for l in lines if all(l.get(k) == v for k, v in wanted.items())), {})
    ref = lambda part, key: reference.get(part, {}).get(key)
    t3 = lambda name, rows, number="bf16": find(part="t3", variant=name, rows=rows, number=number)
    best = lambda name, key, pick: pick((v for v in (ref(f"t3_{name}_{n}", key) for n in ("f32", "bf16")) if v), default=None)
    rows = []
    for name, count, bar in (("English", 2, 1000), ("Turbo", 1, 1500), ("Nano", 1, 2500)):
        what = f"T3 {name}{', guided' if count == 2 else ''}, tokens/s"
        rows.append((what, t3(name, count).get("tokens_per_sec"), ">=", bar, best(name.lower(), "tokens_per_sec", max)))
        rows.append((f"{what}, int8", t3(name, count, "int8").get("tokens_per_sec"), ">=", None, None))
    for name, count in (("English", 2), ("Turbo", 1), ("Nano", 1)):
        rows.append((f"prefill of 250, {name}, ms", t3(name, count).get("prefill_ms"), "<=", 6, best(name.lower(), "prefill_ms", min)))
    for steps, part, bars in ((10, "s3gen", (40, 55)), (2, "s3gen_meanflow", (9, 12))):
        for tokens, bar in zip((13, 100), bars):
            own = find(part="s3gen", steps=steps, number="bf16", tokens=tokens)
            rows.append((f"mel, {steps} steps, {tokens} tokens, ms", own.get("mel_ms"), "<=", bar, ref(part, f"mel_{tokens}_ms")))
            if steps == 2:
                rows.append((f"pitch and vocoder, {tokens} tokens, ms", own.get("vocoder_ms"), "<=", None, ref(part, f"vocoder_{tokens}_ms")))
    for name, first, factor in (("english", 80, 0.04), ("turbo", 35, 0.02)):
        own = next((l for l in lines if l.get("variant") == name and "streamed_ttfa_ms" in l), {})
        rows.append((f"first sound, {name}, ms", own.get("streamed_ttfa_ms"), "<=", first, None))
        rows.append((f"real-time factor, {name}, in one go", own.get("rtf"), "<=", factor, None))
        rows.append((f"real-time factor, {name}, streamed", own.get("streamed_rtf"), "<=", factor, None))
    for steps, name in ((10, "guided"), (2, "mean flow")):
        own = find(part="memory", steps=steps, number="bf16")
        rows.append((f"S3Gen's memory beside its weights, {name}, MB", own.get("beside"), "<=", 700, None))
        grown = own["many"] - own["few"] if own else None
        rows.append((f"more of it after 500 jobs, {name}, MB", grown, "<=", None, None))
    shown = lambda v: "-" if v is None else f"{v:.0f}" if abs(v) >= 100 else f"{v:.1f}" if abs(v) >= 1 else f"{v:.3f}"
    print(f"| bf16 unless said | Myna | asked for | | reference, {reference.get('card', 'not here')} |\n|---|---|---|---|---|")
    for what, own, sign, bar, other in rows:
        kept = None if own is None or bar is None else own >= bar if sign == ">=" else own <= bar
        verdict = {None: "", True: "met", False: "MISSED"}[kept]
        print(f"| {what} | {shown(own)} | {'' if bar is None else f'{sign} {bar}'} | {verdict} | {shown(other)} |")


if __name__ == "__main__":
    main()
