#!/bin/bash
# The table of ../models/README.md from a clean clone, in one command (Debian or Ubuntu on x86-64; network for packages only):   bash evaluate.sh
# Makes what it needs and does not find, in data/: a Python environment, sentences, synthesisers, the two packages that judge, and a recogniser of its own,
# trained on speech that no model here has heard.  With a GPU 11 minutes (one H100, 16 cores); without one the recogniser is smaller and the utterances are fewer.
#   MODEL (../models/embedded)   PROGRAM=a myna program, which then speaks everything as well   PEOPLE=a folder with one folder of clips a person (for the
#   human column: LibriSpeech test-other, speakers 1688 1998 2033 2414 2609)   N, N_HUMAN, KINDS, HOURS, MINUTES, SPEAKERS, DEV, PY=a Python that has the requirements
set -e
cd "$(dirname "$0")"; W=$PWD/data/evaluation; mkdir -p "$W"; MODEL=${MODEL:-../models/embedded}; N_HUMAN=${N_HUMAN:-50}
export PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
fail() { echo "evaluate.sh: $1" >&2; exit 2; }
if nvidia-smi -L > /dev/null 2>&1; then DEV=${DEV:-cuda}; else DEV=${DEV:-cpu}; fi
if [ "$DEV" = cpu ]; then N=${N:-60} HOURS=${HOURS:-6} MINUTES=${MINUTES:-60} SPEAKERS=${SPEAKERS:-300} SIZE=.25; else N=${N:-240} HOURS=${HOURS:-30} MINUTES=${MINUTES:-4.5} SPEAKERS=${SPEAKERS:-1200} SIZE=1; fi
if [ -z "$PY" ]; then
    [ -e "$W/venv/ready" ] || { python3 -m venv "$W/venv" && "$W/venv/bin/pip" install -q -r requirements.txt && touch "$W/venv/ready"; } || fail "no Python environment (apt-get install python3-venv)"
    PY=$W/venv/bin/python
fi
if ! [ -e data/sentences.txt.xz ]; then
    P="wordnet-base bible-kjv wamerican-small"
    { [ -e /usr/share/wordnet/data.noun ] && command -v bible && [ -e /usr/share/dict/american-english-small ]; } > /dev/null || apt-get install -y -q --no-install-recommends $P || fail "the sentences are made from these packages: apt-get install $P"
    $PY make_text.py
fi
[ -e data/synth.tar.xz ] || bash pack_synth.sh || fail "the synthesisers could not be fetched (apt-get update?)"
for x in Resemblyzer==0.1.4 speechmos==0.0.1.1; do
    ls "$W"/${x%%==*}-*.whl > /dev/null 2>&1 || $PY -m pip download -q --no-deps -d "$W" $x || fail "$x could not be fetched"
done
if ! [ -e "$W/recognizer/ready" ]; then
    D=$W/speech; R=$W/recognizer
    $PY synthesize.py --root "$W/synth" --out "$D" --hours $HOURS --speakers $SPEAKERS --seed 909
    $PY prepare.py --ds "$D" --want audio,f0 --bs 32 --dev $DEV
    $PY train_recognizer.py --ds "$D" --ck "$R" --minutes $MINUTES --bs $SIZE --dev $DEV
    touch "$R/ready"; rm -rf "$D"
fi
$PY evaluate.py --root "$W/synth" --model "$MODEL" --recognizer "$W/recognizer" --resemblyzer "$W"/Resemblyzer-*.whl --dnsmos "$W"/speechmos-*.whl --human "$PEOPLE" --n $N --n_human $N_HUMAN \
    --kinds ${KINDS:-espeak,flite,human} --program "$PROGRAM" --dev $DEV --out "$W/results"
echo "Rows, sounds and the table: $W/results"
