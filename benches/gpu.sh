#!/usr/bin/env bash
# Correctness, then speed, of the CUDA kernels on a machine with a card, from binaries that were built without one:
#   benches/gpu.sh build FOLDER   builds (packaging/linux/cuda.sh fetches the compiler) and puts what is needed in FOLDER
#   FOLDER/gpu.sh [MODELS ...]    runs there: every kernel against the CPU, then the table of tokens a second; for each folder
#                                 with a model of the released size also the decoder against the CPU, its times, and those of
#                                 the whole program; at the end all of it beside what was asked for. Where Python has PyTorch
#                                 and the reference's modules (gpu_reference.py), beside the reference too
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ "${1:-}" = build ]; then
    folder=${2:?the folder to put the binaries in}
    cd "$here/.."
    [ -n "${CUDA_HOME:-}" ] || eval "$(packaging/linux/cuda.sh target/cuda)"
    mkdir -p "$folder"
    built() { # the path of the executable that cargo made of target $1
        python3 -c 'import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] == sys.argv[1]:
        print(message["executable"])' "$1"
    }
    # One of the program's tests, so that the program is built too.
    messages=$(cargo test --release --workspace --features cuda --no-run --lib --bench gpu --test boundaries --message-format json)
    cp "$(built myna_engine <<<"$messages")" "$folder/engine-tests"
    cp "$(built gpu <<<"$messages")" "$folder/gpu"
    cp target/release/myna "$folder/"
    strip "$folder/engine-tests" "$folder/gpu" "$folder/myna"
    cp "$0" benches/gpu_reference.py benches/gpu_table.py tests/reference/refmodels.py "$folder/"
    exit
fi
figures=$(mktemp -d)
trap 'rm -rf "$figures"' EXIT
export GPU_FIGURES=$figures/figures
touch "$GPU_FIGURES"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true
"$here/engine-tests" --test-threads 1 --nocapture cuda:: on_card
"$here/gpu"
for models in "$@"; do
    CARD_MODEL=$models "$here/engine-tests" --test-threads 1 --nocapture on_card::tests::the_released_size
    "$here/gpu" "$models"
    # Ten seconds of speech.
    "$here/myna" bench --device cuda --precision bf16 --model "$models" --voice Grace --tokens 250 --runs 5 --json --no-cache >"$figures/bench"
    tr -d '\n' <"$figures/bench" >>"$GPU_FIGURES"
    echo >>"$GPU_FIGURES"
    cat "$figures/bench"
done
reference=()
if python3 "$here/gpu_reference.py" --json "$figures/reference"; then reference=("$figures/reference"); fi
python3 "$here/gpu_table.py" "$GPU_FIGURES" "${reference[@]}"
