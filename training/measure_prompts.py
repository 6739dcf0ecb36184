"""Where the errors with a human reference come from: the same sentences with tokens and prompts of a human or of a synthetic voice, in all combinations.
    python3 measure_prompts.py --model DIR --recognizer DIR --resemblyzer WHEEL --human DIR --n 150 [--dev cuda]
Each person is paired with the held-out flite voice of nearest pitch.  Phoneme errors, and the likeness to the person and to the synthetic voice."""
import argparse, os
import multiprocessing as mp
import numpy as np, torch
import features as ft
from evaluate import make_jobs, make_raw, references, start_worker
from metrics import Resemblyzer, distance, median_f0, rate
from net_recognizer import load_recognizer
from synthesize import Espeak, Flite, unpack
from tts import Tts

ap = argparse.ArgumentParser()
ap.add_argument('--model', required=True); ap.add_argument('--recognizer', required=True); ap.add_argument('--resemblyzer', required=True); ap.add_argument('--human', required=True)
ap.add_argument('--n', type=int, default=150); ap.add_argument('--seed', type=int, default=0); ap.add_argument('--root', default='/tmp/synth'); ap.add_argument('--dev', default='cpu'); ap.add_argument('--workers', type=int, default=4)


def main(a):
    torch.set_num_threads(int(os.environ.get('OMP_NUM_THREADS', 2)))
    T, rec, emb = Tts(a.model, a.dev), load_recognizer(a.recognizer).to(a.dev), Resemblyzer(a.resemblyzer, a.dev)
    R, sents, hi = references(a, Espeak(unpack(a.root), f'prompts{os.getpid()}'), Flite(a.root))
    a.kinds, a.n_human, a.n, a.text = 'human', a.n, 0, ''
    jobs, _, people = make_jobs(a, R, sents, hi)
    pitch = [median_f0(r[3]) for r in R]
    pair = {h: min((i for i, r in enumerate(R) if r[1] == 'flite'), key=lambda i: abs(np.log(pitch[i] / pitch[h]))) for h in people}
    refs = {i: T.reference(R[i][3]) for i in {*pair, *pair.values()}}
    vec = {i: emb(R[i][3]) for i in refs}
    with mp.get_context('spawn').Pool(a.workers, start_worker, (a.root, '', False)) as P:
        raws = P.map(make_raw, [(R[pair[h]][2], t, j) for j, (h, t) in enumerate(jobs)], 1)
    say = lambda who: T.speak_batch([refs[i] for i in who], [t for _, t in jobs], a.seed)[0]
    of_person, of_synth = say([h for h, _ in jobs]), say([pair[h] for h, _ in jobs])
    errors, like = {}, {}
    for j, ((h, _), x, y, (raw, ph)) in enumerate(zip(jobs, of_person, of_synth, raws)):
        H, S, raw = refs[h], refs[pair[h]], torch.from_numpy(raw).to(a.dev)
        true = T.tokens_of(raw)[0].tolist()
        torch.manual_seed(a.seed + j)
        ways = {'the synthetic voice itself': raw}
        for tokens, name in ((true, 'its true tokens'), (y, 'T3 with the synthetic voice'), (x, 'T3 with the person')):
            for ref, to in ((S, 'the synthetic voice'), (H, 'the person')):
                ways[f'{name}, flow with {to}'] = T.wave(T.mel(ref, tokens))
        ways['its true tokens, flow with the person\'s prompt and the synthetic vector'] = T.wave(T.mel(dict(H, sp=S['sp']), true))
        for k, w in ways.items():
            errors.setdefault(k, []).append([distance(ph, rec.decode(ft.resample(w, 24000, 16000))), len(ph)])
            e = emb(w)
            like.setdefault(k, []).append((float(vec[h] @ e), float(vec[pair[h]] @ e)))
    print('| | phoneme errors, % | likeness to the person / the synthetic voice |\n| --- | --- | --- |')
    for k, e in errors.items():
        print('| %s | %.1f ± %.1f | %.2f / %.2f |' % (k, *rate(e), *np.mean(like[k], 0)))


if __name__ == '__main__':
    main(ap.parse_args())
