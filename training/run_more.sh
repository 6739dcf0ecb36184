#!/bin/bash
# Goes on from checkpoints in CK: T3 on a growing data set, the vocoder, and the recogniser for evaluation.   bash run_more.sh SECONDS   (env: HUMAN, CK, DS, HOURS)
cd "$(dirname "$0")"; S=$(date +%s); END=$((S + $1)); DS=${DS:-/dev/shm/more}; CK=${CK:-/tmp/ck}; PY=${PY:-python3}; HOURS=${HOURS:-60}; N=$(($(nproc) * 7 / 8))
NG=${NG:-$(nvidia-smi -L | grep -c GPU)}; export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2 TORCHINDUCTOR_COMPILE_THREADS=4 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True PYTHONWARNINGS=ignore
on() { local g=$(( $1 % NG )); shift; CUDA_VISIBLE_DEVICES=$g "$@"; }
synth() { $PY synthesize.py --workers $N "$@" 2>&1 | grep synthesize; }
rm -rf $DS/shards; mkdir -p $DS/shards
on 0 $PY train_t3.py --ck $CK --end $END --shards $DS/shards --save_every 120 --lr 8e-4 & T=$!
on 1 $PY train_vocoder.py --ck $CK --end $END --ds $DS/d0 --wait 2 --parts 2 --own 0 --bs .33 --hear 8 --lr 3e-4 --save_every 120 & V=$!
synth --out $DS/d0 --hours $HOURS --seed 4242
for k in 0 1; do on $k $PY prepare.py --ds $DS/d0 --human "$HUMAN" --want audio,f0,mel,tok,spk,ve --ck $CK --part $k/2 --bs 64 & X="$X $!"; done
synth --out $DS/recognizer --hours 30 --seed 909
(on 0 $PY prepare.py --ds $DS/recognizer --want audio,f0 --bs 64; on 0 $PY train_recognizer.py --ds $DS/recognizer --ck $CK --minutes 4.5) &
wait $X; rm -f $DS/d0/*.i16; ln -s $DS/d0 $DS/shards/s0
for n in $(seq 30); do
    [ $(( END - $(date +%s) )) -gt 120 ] || break
    synth --out $DS/d$n --hours 80 --seed $((3000 + n)) --flite .3
    (on 0 $PY prepare.py --ds $DS/d$n --human "$HUMAN" --want tok,ve --ck $CK --bs 96; rm -f $DS/d$n/*.i16; ln -s $DS/d$n $DS/shards/s$n) &
done
wait $T $V
