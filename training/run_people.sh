#!/bin/bash
# Goes on from checkpoints in CK with the flow alone: intelligible in human voices too, and a better standard flow of the same weights.
#   bash run_people.sh SECONDS   (env: HUMAN, CK, DS, HOURS, SHARE)     What it trained goes to CK/people, what is between that and the start to CK.
cd "$(dirname "$0")"; END=$(($(date +%s) + $1)); DS=${DS:-/dev/shm/people}; CK=${CK:-/tmp/ck}; PY=${PY:-python3}; mkdir -p $CK/people
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2 TORCHINDUCTOR_COMPILE_THREADS=4 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True PYTHONWARNINGS=ignore
cp $CK/{flow,hift,tokenizer}.safetensors $CK/people/
$PY train_flow.py --ck $CK/people --ds $DS --end $END --wait 1 --hear 1.5 --cross 10 --noisy .25 --velocity .5 --share .34,.38,.28 --lr 4e-4 --save_every 100 & F=$!
$PY synthesize.py --out $DS --hours ${HOURS:-20} --seed 6161 --flite .42 2>&1 | grep synthesize
$PY prepare.py --ds $DS --human "$HUMAN" --want audio,mel,tok,spk,ph --ck $CK --bs 64; rm -f $DS/*.i16
$PY train_listener.py --ds $DS --ck $CK/people --minutes .6
wait $F && $PY mix_flows.py --a $CK --b $CK/people --share ${SHARE:-.4} --out $CK
