#!/usr/bin/env bash
# Correctness, then speed, of the CUDA kernels on a machine with a card, from binaries that were built without one:
#   benches/gpu.sh build FOLDER   builds (packaging/linux/cuda.sh fetches the compiler) and puts what is needed in FOLDER
#   FOLDER/gpu.sh [MODELS ...]    runs there: every kernel against the CPU, then the table of tokens a second; for each folder
#                                 with an S3Gen checkpoint of the released size also the decoder against the CPU, and its times
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
    messages=$(cargo test --release --workspace --features cuda --no-run --message-format json)
    cp "$(built myna_engine <<<"$messages")" "$folder/engine-tests"
    messages=$(cargo test --release --workspace --features cuda --bench gpu --no-run --message-format json)
    cp "$(built gpu <<<"$messages")" "$folder/gpu"
    strip "$folder/engine-tests" "$folder/gpu"
    cp "$0" "$folder/"
    exit
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true
"$here/engine-tests" --test-threads 1 --nocapture cuda:: on_card
"$here/gpu"
for models in "$@"; do
    CARD_MODEL=$models "$here/engine-tests" --test-threads 1 --nocapture on_card::tests::the_released_size
    "$here/gpu" "$models"
done
