#!/bin/sh
# Fetches NVIDIA's compiler (CUDA 13.0, no driver or card needed) into a folder and prints the variables a build needs:
#   eval "$(packaging/linux/cuda.sh target/cuda)" && cargo build --release --features cuda
set -eu
folder=${1:?the folder to put the compiler in}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
home=$folder/nvidia/cu13
if [ ! -x "$home/bin/nvcc" ]; then
    python3 -m pip download -q --no-deps --only-binary=:all: -d "$folder/wheels" \
        'nvidia-cuda-nvcc==13.0.*' 'nvidia-nvvm==13.0.*' 'nvidia-cuda-crt==13.0.*' \
        'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*' >&2
    for wheel in "$folder"/wheels/*.whl; do
        python3 -m zipfile -e "$wheel" "$folder"
    done
    # Archives of Python forget what may be run.
    chmod +x "$home"/bin/* "$home"/nvvm/bin/*
fi
echo "export CUDA_HOME='$home'"
