#!/bin/bash
# Goes on from checkpoints in CK: the flow and the vocoder, each for what the two ears hear in its sound (hearing.py), and the second ear itself.
#   bash run_ears.sh SECONDS   (env: HUMAN, CK, DS, HOURS)
cd "$(dirname "$0")"; END=$(($(date +%s) + $1)); DS=${DS:-/dev/shm/ears}; CK=${CK:-/tmp/ck}; PY=${PY:-python3}; N=$(($(nproc) * 7 / 8))
NG=${NG:-$(nvidia-smi -L | grep -c GPU)}; export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2 TORCHINDUCTOR_COMPILE_THREADS=4 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True PYTHONWARNINGS=ignore
on() { local g=$(( $1 % NG )); shift; CUDA_VISIBLE_DEVICES=$g "$@"; }
A="--ck $CK --ds $DS --end $END --wait 2"
flow() { on 0 $PY train_flow.py $A --hear 1.5 --share .36,.40,.24 --lr 5e-4 --save_every 100 "$@"; }
(flow || flow --graph 0) & F=$!
on 1 $PY train_vocoder.py $A --parts 2 --own 0 --bs .4 --hear 20 --listen 6 --share .36,.38,.26 --lr 3e-4 --save_every 60 & V=$!
$PY synthesize.py --workers $N --out $DS --hours ${HOURS:-50} --seed 5151 --flite .42 2>&1 | grep synthesize
for k in 0 1; do on $k $PY prepare.py --ds $DS --human "$HUMAN" --want audio,f0,mel,tok,spk,ph --ck $CK --part $k/2 --bs 64 & X="$X $!"; done
wait $X; rm -f $DS/*.i16
on 0 $PY train_listener.py --ds $DS --ck $CK --minutes .8
wait $F $V
