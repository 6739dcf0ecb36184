#!/bin/bash
# Second half: T3, flow and vocoder at the same time on all GPUs.   bash run_second.sh SECONDS   (env: HUMAN, CK with tokenizer, camplus, ve; HOURS, DS)
cd "$(dirname "$0")"; S=$(date +%s); END=$((S + $1)); DS=${DS:-$([ "$(df -BG --output=avail /dev/shm | tail -1 | tr -dc 0-9)" -ge 90 ] && echo /dev/shm/second || echo /tmp/second)}; CK=${CK:-/tmp/ck}; PY=${PY:-python3}; HOURS=${HOURS:-160}; DEV=${DEV:-cuda}
NG=${NG:-$(nvidia-smi -L | grep -c GPU)}; export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=3 TORCHINDUCTOR_COMPILE_THREADS=4 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True PYTHONWARNINGS=ignore NCCL_NVLS_ENABLE=0
on() { local g=$(( $1 % NG )); shift; CUDA_VISIBLE_DEVICES=$g "$@"; }
el() { echo "== $1 at $(( $(date +%s) - S )) s"; }
mkdir -p $CK $DS; rm -rf $DS/shards; mkdir -p $DS/shards
A="--ck $CK --end $END --dev $DEV"; W=$([ $NG -ge 4 ] && echo 2 || echo 1)
synth() { $PY synthesize.py "$@" 2>&1 | grep synthesize; }
on 0 $PY train_t3.py $A --shards $DS/shards --save_every 150 2>&1 & T=$!
for k in $(seq 0 $((W - 1))); do on $((1 + k)) $PY train_flow.py $A --ds $DS/d0 --wait $NG --rank $k --world $W --save_every 90 2>&1 & F="$F $!"; done
on 3 $PY train_vocoder.py $A --ds $DS/d0 --wait $NG --parts ${VPARTS:-1} 2>&1 & V=$!
synth --out $DS/d0 --hours $HOURS --seed 1234; el synthesized
for k in $(seq 0 $((NG - 1))); do on $k $PY prepare.py --ds $DS/d0 --human "$HUMAN" --want audio,f0,mel,tok,spk,ve --ck $CK --part $k/$NG --bs 64 --dev $DEV & X="$X $!"; done
wait $X; rm -f $DS/d0/*.i16; ln -s $DS/d0 $DS/shards/s0; el prepared
(   # more and more data for T3
    for n in $(seq ${SHARDS:-5}); do
        [ $(( END - $(date +%s) )) -gt 300 ] || break
        nice -n 10 $PY synthesize.py --out $DS/d$n --hours $HOURS --seed $((2000 + n)) --workers $(( $(nproc) * 3 / 4 )) 2>&1 | grep synthesize
        on 3 nice $PY prepare.py --ds $DS/d$n --human "$HUMAN" --want tok,ve --ck $CK --bs 96 --dev $DEV; rm -f $DS/d$n/*.i16
        ln -s $DS/d$n $DS/shards/s$n; el "shard $n"
    done
) &
wait $T $F $V; el finished
