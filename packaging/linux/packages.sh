#!/usr/bin/env bash
# Installs the Debian packages that Myna needs: `packages.sh run` to build and run, `packages.sh test` for the tests too.
set -euo pipefail

build=(build-essential pkg-config libasound2-dev)
run=(libasound2 libasound2-plugins libx11-6 libx11-xcb1 libxcursor1 libxi6 libxkbcommon0 libxkbcommon-x11-0 libgl1 libegl1
    libgl1-mesa-dri libwayland-client0 libwayland-egl1)
test=(xvfb xdotool x11-utils mesa-vulkan-drivers libvulkan1 pulseaudio pulseaudio-utils)

wanted=("${build[@]}" "${run[@]}")
if [ "${1:-run}" = test ]; then
    wanted+=("${test[@]}")
fi
missing=()
for package in "${wanted[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo)
fi
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
