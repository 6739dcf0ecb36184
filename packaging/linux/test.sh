#!/usr/bin/env bash
# Installs what the tests need and runs them all. They need no display, no sound card and no network.
set -euo pipefail
cd "$(dirname "$0")/../.."
packaging/linux/packages.sh test
exec cargo test --release --workspace "$@"
