#!/bin/bash
# First half: data, tokenizer, CAMPPlus.   bash run_first.sh SECONDS     (env: HUMAN = folder of 16 kHz clips, CK = checkpoints, HOURS, DS)
cd "$(dirname "$0")"; END=$(($(date +%s) + $1)); DS=${DS:-/dev/shm/first}; CK=${CK:-/tmp/ck}; PY=${PY:-python3}
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2 TORCHINDUCTOR_COMPILE_THREADS=4 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True PYTHONWARNINGS=ignore
mkdir -p $CK
$PY train_tokenizer.py --ds $DS --ck $CK --wait 1 --end $END 2>&1 & A=$!
$PY train_camplus.py --ds $DS --ck $CK --wait 1 --end $END --compile 0 2>&1 & B=$!
$PY synthesize.py --out $DS --hours ${HOURS:-36} --seed 11 2>&1 | grep -v 'udb failed\|Warning: maximum'
$PY prepare.py --ds $DS --human "$HUMAN" --want audio,f0,mel,ph
wait $A $B
