#!/usr/bin/env bash
# Installs what Myna needs and runs it: the window, or, where there is no display, a first sentence as sound and a WAV.
set -euo pipefail
cd "$(dirname "$0")/../.."
packaging/linux/packages.sh run
if [ -n "${DISPLAY:-}${WAYLAND_DISPLAY:-}" ]; then
    exec cargo run --release --quiet -- "$@"
fi
exec cargo run --release --quiet -- say --text "Hello, I am Myna. I can speak in any voice that you let me hear." \
    --voice Grace --play --out myna-hello.wav
