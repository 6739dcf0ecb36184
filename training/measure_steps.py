"""What fewer steps of a standard flow, and guidance, cost: the same tokens and the same noise at several settings.
    python3 measure_steps.py --model STANDARD --meanflow MODEL --recognizer DIR --n 240 [--dev cuda]
STANDARD is what export.py --standard 1 wrote, MODEL the mean flow that it was made from.  Phoneme errors by the recogniser, and the distance of log mels (mean
absolute difference, natural logarithm) from the most steps with the same guidance, and of the mean flow from those without any."""
import argparse, os
import multiprocessing as mp
import torch
import features as ft
from evaluate import make_jobs, make_phonemes, references, start_worker
from metrics import distance, rate
from net_recognizer import load_recognizer
from synthesize import Espeak, Flite, unpack
from tts import Tts

ap = argparse.ArgumentParser()
ap.add_argument('--model', required=True); ap.add_argument('--meanflow', required=True); ap.add_argument('--recognizer', required=True); ap.add_argument('--n', type=int, default=240); ap.add_argument('--seed', type=int, default=0)
ap.add_argument('--root', default='/tmp/synth'); ap.add_argument('--dev', default='cpu'); ap.add_argument('--steps', default='10,8,6,4'); ap.add_argument('--rates', default='0,0.7'); ap.add_argument('--kinds', default='espeak,flite')
ap.add_argument('--workers', type=int, default=os.cpu_count())


def main(a):
    torch.set_num_threads(int(os.environ.get('OMP_NUM_THREADS', 2)))
    es, fl = Espeak(unpack(a.root), 'steps'), Flite(a.root)
    a.human, a.n_human, a.text = '', 0, ''
    R, sents, hi = references(a, es, fl)
    jobs, _, _ = make_jobs(a, R, sents, hi)
    with mp.get_context('spawn').Pool(a.workers, start_worker, (a.root, '', False)) as P:
        phones = P.map(make_phonemes, [t for _, t in jobs], 1)
    T, mean, rec = Tts(a.model, a.dev), Tts(a.meanflow, a.dev), load_recognizer(a.recognizer).to(a.dev)
    refs = {i: T.reference(R[i][3]) for i in sorted({i for i, _ in jobs})}
    toks, _ = T.speak_batch([refs[i] for i, _ in jobs], [t for _, t in jobs], a.seed)
    ways = [(r, n) for r in map(float, a.rates.split(',')) for n in map(int, a.steps.split(','))]
    kinds = a.kinds.split(',')
    errors, far = {}, {}

    def note(way, kind, mel, ph, base):
        y = ft.resample(T.wave(mel), 24000, 16000)
        errors.setdefault((way, kind), []).append([distance(ph, rec.decode(y)), len(ph)])
        far.setdefault((way, kind), []).append(float((mel - base).abs().mean()))
    for j, ((i, _), tk, ph) in enumerate(zip(jobs, toks, phones)):
        base = {}
        for r, n in ways:
            torch.manual_seed(a.seed + j)                                     # the same noise every time
            mel = T.mel(refs[i], tk, steps=n, cfg_rate=r)
            note((r, n), R[i][1], mel, ph, base.setdefault(r, mel))
        note('mean', R[i][1], mean.mel(refs[i], tk), ph, base[ways[0][0]])
    print('| ' + ' | '.join(['flow'] + [f'{k}: phoneme errors, % | {k}: log-mel distance' for k in kinds]) + ' |\n' + '| --- ' * (1 + 2 * len(kinds)) + '|')
    for way in ['mean'] + ways:
        name = f'mean flow, {mean.cfg["cfm_steps"]} step' if way == 'mean' else f'standard, {way[1]} steps' + (f', guidance {way[0]:g}' if way[0] else '')
        cells = ['%.1f ± %.1f | %.3f' % (*rate(errors[way, k]), sum(far[way, k]) / len(far[way, k])) for k in kinds]
        print('| ' + ' | '.join([name] + cells) + ' |')


if __name__ == '__main__':
    main(ap.parse_args())
