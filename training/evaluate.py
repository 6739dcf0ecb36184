"""End-to-end evaluation on held-out voices and sentences.
    python3 evaluate.py --model DIR --recognizer DIR --resemblyzer WHEEL [--dnsmos WHEEL] [--human DIR] [--dev cuda] --out DIR
Phoneme error rate by the separately trained recogniser, word error rate by pocketsphinx (flite and human-like voices), speaker likeness by Resemblyzer,
pitch, duration, DNSMOS, ends of speech; always beside the same numbers of the raw synthesiser (the ceiling), of its true mel through the vocoder and of
re-synthesis from its true tokens.  --program PATH also speaks everything through that Myna: in one go, streamed, and in int8.  Writes rows.json and table.md."""
import argparse, glob, json, os, random, subprocess
import multiprocessing as mp
from concurrent.futures import ThreadPoolExecutor
import numpy as np, torch, torch.nn.functional as F
import features as ft
from metrics import Dnsmos, Resemblyzer, Words, difference, distance, median_f0, pitch, rate
from net_recognizer import load_recognizer
from speech_text import load_sentences, spoken, words
from synthesize import EVAL_SEED, Espeak, Flite, make_speakers, render, unpack
from tts import Tts, load_wave

KINDS = ('espeak', 'flite', 'human')
HOW = dict(raw='the synthesiser itself', voc='its mel through the vocoder', recon='its tokens through flow and vocoder', tts='text to speech', full='the same, full attention', myna='Myna, in one go', live='Myna, streamed', int8='Myna, in one go, int8')
SHORT = ('I said,', 'The word is', 'Now say', 'Again,', 'Listen,')      # how sentences that are about a single word begin
PROGRAM = dict(myna=[], live=['--stream'], int8=['--precision', 'int8'])


def level(y):
    act = (y.abs() > .01 * y.abs().max()).float()
    y = y * .085 / ((y.pow(2).sum() / act.sum()).sqrt() + 1e-6)
    return y * min(1, .95 / y.abs().max().item())


def synth(s, text, es, fl, emo=.5):
    a, _ = render(s, text, es, fl, emo)
    y = ft.resample(torch.from_numpy(a.astype(np.float32) / 32768)[None], s['rate'], 24000)
    return level(F.pad(y, (0, -y.shape[1] % 960))) + 1e-4 * torch.randn(1, y.shape[1] + -y.shape[1] % 960)


class Worker:
    """What a process of the pool holds: the synthesisers, or the slow judges."""
    def __init__(s, root, dnsmos, asr):
        torch.set_num_threads(1)
        s.es, s.fl = Espeak(root, f'ev{os.getpid()}'), Flite(root)
        s.words, s.mos = Words() if asr else None, Dnsmos(dnsmos) if dnsmos else None


def start_worker(*x):
    global W
    W = Worker(*x)


def make_raw(job):
    s, text, seed = job
    torch.manual_seed(seed)
    return synth(s, text, W.es, W.fl).numpy(), W.es.phonemes(spoken(text))


def make_phonemes(text):
    return W.es.phonemes(spoken(text))


def judge(job):
    y16, asr = job
    return W.words(y16) if asr and W.words else None, W.mos(y16) if W.mos else None


def references(a, es, fl):
    """20 held-out synthetic voices (12 espeak, 8 flite) and the human evaluation speakers: name, kind, speaker, reference audio"""
    rng, sents, hi = random.Random(a.seed), *load_sentences()
    held = [s for s in make_speakers(a.root, 1200, EVAL_SEED) if s['held']]
    R = []
    for s in rng.sample([s for s in held if s['eng'] == 'espeak'], 12) + [s for s in held if s['eng'] == 'flite'][:8]:
        text, y = '', torch.zeros(1, 0)
        while y.shape[1] < 5 * 24000 and len(text) < 400:
            text += ' ' + sents[rng.randrange(hi, len(sents))]
            y = synth(s, text.strip(), es, fl)
        R.append((s['voice'] + ('@%d' % s['rate'] if s['eng'] == 'flite' else ''), s['eng'], s, y[:, :240000]))
    for d in sorted(glob.glob(a.human + '/*')) if a.human else []:
        f = max(sorted(glob.glob(d + '/*.flac')), key=os.path.getsize)
        R.append((os.path.basename(d), 'human', None, level(load_wave(f))[:, :240000]))
    return R, sents, hi


def make_jobs(a, R, sents, hi):
    """(voice, sentence) of n utterances in synthetic voices, each in turn, and of n_human in human ones"""
    rng = random.Random(a.seed + 1)
    pool = [l.strip() for l in open(a.text)] if a.text else [x for x in sents[hi:] if 12 < len(x) < 110 and not x.startswith(SHORT)]
    syn, hum = [i for i, r in enumerate(R) if r[1] != 'human'], [i for i, r in enumerate(R) if r[1] == 'human']
    jobs = [(syn[j % len(syn)], rng.choice(pool)) for j in range(a.n)] + [(hum[j % len(hum)], rng.choice(pool)) for j in range(a.n_human) if hum]
    return [(i, t) for i, t in jobs if R[i][1] in a.kinds.split(',')], syn, hum


def speak_with(program, model, clip, text, out, options):
    """-> the file"""
    r = subprocess.run([program, 'say', '--model', model, '--voice', clip, '--text=' + text, '--out', out, '--json', '--threads', '2'] + options, capture_output=True, text=True)
    if r.returncode:
        raise RuntimeError(r.stderr)
    return out


def table(rows):
    """Markdown, one column a kind of voice"""
    cols = [(k, [r for r in rows if r['kind'] == k]) for k in KINDS]
    cols = [(k, q) for k, q in cols if q]
    L = ['| | ' + ' | '.join(f"{k} voices: {len(q)} utterances, {len({r['voice'] for r in q})} voices" for k, q in cols) + ' |', '| --- |' + ' --- |' * len(cols)]
    add = lambda name, f: L.append(f'| {name} | ' + ' | '.join(f(q) for _, q in cols) + ' |')
    has = lambda k: any(r.get(k) is not None for r in rows)

    def errors(key):
        def f(q):
            x = [r[key] for r in q if r.get(key)]
            return '%.1f ± %.1f' % rate(x) if x else '–'
        return f

    def mean(key, form='%.2f'):
        def f(q):
            x = [r[key] for r in q if r.get(key) is not None]
            return form % np.mean(x) if x else '–'
        return f
    for what, name in (('per', 'phoneme errors, %'), ('wer', 'word errors (pocketsphinx), %')):
        for k in HOW:
            if has(f'{what}_{k}'):
                add(f'{name}: {HOW[k]}', errors(f'{what}_{k}'))
    for k in HOW:
        if has('top1_' + k):
            add(f'nearest voice is its own: {HOW[k]}', mean('top1_' + k, '%.3f'))
    add('likeness to its own / to another reference', lambda q: mean('sim_tts')(q) + ' / ' + mean('sim_wrong')(q))
    add('pitch, median distance to the reference, semitones', lambda q: '%.2f' % np.median([r['semitones'] for r in q if r['semitones'] is not None]))
    for key, name in (('f0_corr', 'F0 correlation, re-synthesis with the original'), ('mel_recon', 'log-mel distance to the original, re-synthesis'), ('mel_voc', 'log-mel distance to the original, vocoder alone')):
        if has(key):
            add(name, mean(key))
    add('length / the synthesiser\'s', mean('duration'))
    for k in HOW:
        if has('mos_' + k):
            add(f'DNSMOS: {HOW[k]}', mean('mos_' + k))
    for what, name in (('per', 'phoneme errors'), ('wer', 'word errors')):
        for k, base in (('tts', 'raw'), ('myna', 'raw'), ('live', 'myna'), ('int8', 'myna')):
            def gap(q):
                x = [(r[f'{what}_{k}'], r[f'{what}_{base}']) for r in q if r.get(f'{what}_{k}') and r.get(f'{what}_{base}')]
                return '%.1f (%.1f to %.1f)' % difference(x) if x else '–'
            if has(f'{what}_{k}') and has(f'{what}_{base}'):
                add(f'{name}, points: {HOW[k]} – {HOW[base]} (95 % interval)', gap)
    add('no end / shorter than 60 % of the synthesiser', lambda q: f"{sum(not r['ended'] for r in q)} / {sum((r.get('duration') or 1) < .6 for r in q)}")
    return '\n'.join(L)


def finish(a, P, rows, sounds):
    """The slow judges, on all cores; then the table."""
    jobs = [(y, rows[int(j)]['kind'] != 'espeak') for j, _, y in sounds]
    for (j, k, _), (heard, mos) in zip(sounds, P.imap(judge, jobs, 2)):
        r = rows[int(j)]
        if heard is not None:
            wd = words(r['text'])
            r['wer_' + k], r['hyp_' + k] = [distance(wd, heard), len(wd)], ' '.join(heard)
        if mos is not None:
            r['mos_' + k] = mos
    P.close()
    json.dump(rows, open(a.out + '/rows.json', 'w'), indent=1)
    t = table(rows)
    open(a.out + '/table.md', 'w').write(t + '\n')
    print(t)
    for r in rows:
        if not r['top1_tts']:
            print('taken for another:', r['voice'], '->', r['nearest'], '(so was the raw clip)' if r.get('top1_raw') is False else '')


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('--model', required=True); ap.add_argument('--recognizer', required=True); ap.add_argument('--resemblyzer', required=True); ap.add_argument('--dnsmos', default='')
    ap.add_argument('--human', default=''); ap.add_argument('--n', type=int, default=200, help='utterances on synthetic voices'); ap.add_argument('--n_human', type=int, default=50); ap.add_argument('--out', required=True)
    ap.add_argument('--seed', type=int, default=0); ap.add_argument('--root', default='/tmp/synth'); ap.add_argument('--full', type=int, default=0, help='also full attention'); ap.add_argument('--dev', default='cpu')
    ap.add_argument('--set', default='', help='sampling overrides, e.g. temperature=0.5,cfg_weight=0.5'); ap.add_argument('--asr', type=int, default=1); ap.add_argument('--text', default='', help='file with sentences instead of the held-out list')
    ap.add_argument('--kinds', default='espeak,flite,human'); ap.add_argument('--what', default='raw,voc,recon,tts', help='which of these')
    ap.add_argument('--program', default='', help='a myna program to speak everything as well'); ap.add_argument('--workers', type=int, default=os.cpu_count()); ap.add_argument('--wavs', type=int, default=20, help='utterances whose sound is kept')
    ap.add_argument('--sounds', type=int, default=0, help='keep everything that was spoken, for --judge'); ap.add_argument('--judge', type=int, default=0, help='only judge what an earlier run with --sounds 1 spoke')
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    unpack(a.root)
    P = mp.get_context('spawn').Pool(a.workers, start_worker, (a.root, a.dnsmos, a.asr))
    if a.judge:
        rows, z = json.load(open(a.out + '/rows.json')), np.load(a.out + '/sounds.npz')
        return finish(a, P, rows, [(*map(str, k.split(' ')), z[k].astype(np.float32) / 32767) for k in z.files])
    torch.set_num_threads(int(os.environ.get('OMP_NUM_THREADS', 2)))
    torch.manual_seed(a.seed)
    T, emb, rec = Tts(a.model, a.dev), Resemblyzer(a.resemblyzer, a.dev), load_recognizer(a.recognizer).to(a.dev)
    es, fl = Espeak(a.root, f'ev{os.getpid()}'), Flite(a.root)
    R, sents, hi = references(a, es, fl)
    (jobs, syn, hum), what = make_jobs(a, R, sents, hi), a.what.split(',')
    raws = P.map_async(make_raw, [(R[i][2], t, j) for j, (i, t) in enumerate(jobs) if R[i][2]], 1)
    phones = P.map_async(make_phonemes, [t for i, t in jobs if not R[i][2]], 1)
    refs = {i: T.reference(R[i][3]) for i in sorted({j[0] for j in jobs})}
    ref_emb = torch.stack([emb(r[3]) for r in R])
    over = {k: float(v) for k, v in (x.split('=') for x in a.set.split(',') if x)}
    import soundfile as sf
    said, crew = {}, ThreadPoolExecutor(max(1, a.workers // 2))
    if a.program:
        for i in refs:
            sf.write(f'{a.out}/reference_{i}.wav', R[i][3][0].clamp(-1, 1).numpy(), 24000, subtype='PCM_16')
        for j, (i, text) in enumerate(jobs):
            for k, options in PROGRAM.items():
                said[j, k] = crew.submit(speak_with, a.program, a.model, f'{a.out}/reference_{i}.wav', text, f'{a.out}/said_{j}_{k}.wav', options + ['--seed', str(j)])
    toks, done = T.speak_batch([refs[i] for i, _ in jobs], [t for _, t in jobs], a.seed, **over)
    raws, phones = iter(raws.get()), iter(phones.get())
    rows, sounds = [], []
    for j, ((i, text), tk, ended) in enumerate(zip(jobs, toks, done)):
        name, kind, s, yr = R[i]
        torch.manual_seed(a.seed + j)
        w = dict(tts=T.wave(T.mel(refs[i], tk)))
        raw = None
        if s:
            raw, ph = next(raws)
            raw = w['raw'] = torch.from_numpy(raw).to(a.dev)
            true = ft.mel24(raw)
            if 'voc' in what:
                w['voc'] = T.wave(true)
            if 'recon' in what:
                w['recon'] = T.wave(T.mel(refs[i], T.tokens_of(raw)[0].tolist()))
        else:
            ph = next(phones)
        if a.full:
            w['full'] = T.wave(T.mel(refs[i], tk, chunked=False))
        if a.program:
            for k in PROGRAM:
                w[k] = load_wave(said[j, k].result())
                os.remove(said[j, k].result())
        r = dict(voice=name, kind=kind, text=text, ended=ended, tokens=len(tk))
        others = hum if kind == 'human' else syn
        for k, y in w.items():
            y16 = ft.resample(y, 24000, 16000)
            r['per_' + k] = [distance(ph, rec.decode(y16.to(a.dev))), len(ph)]
            sounds.append((j, k, y16[0].cpu().numpy()))
            if k in ('raw', 'tts', *PROGRAM):
                sim = ref_emb[others] @ emb(y)
                r['sim_' + k], r['top1_' + k] = float(sim[others.index(i)]), bool(sim.argmax() == others.index(i))
                if k == 'tts':
                    r['sim_wrong'], r['nearest'] = float((sim.sum() - sim[others.index(i)]) / (len(others) - 1)), R[others[int(sim.argmax())]][0]
            if j < a.wavs:
                sf.write(f'{a.out}/{j:03d}_{k}.wav', y[0].clamp(-1, 1).cpu().numpy(), 24000, subtype='PCM_16')
        if raw is not None:
            r['duration'] = w['tts'].shape[1] / raw.shape[1]
            if 'recon' in w:
                fa, fb = pitch(raw), pitch(w['recon'])
                n = min(len(fa), len(fb))
                v = (fa[:n] > 0) & (fb[:n] > 0)
                if v.sum() > 20:
                    c = float(torch.corrcoef(torch.stack([fa[:n][v].log(), fb[:n][v].log()]))[0, 1])
                    r['f0_corr'] = c if np.isfinite(c) else None                    # a monotone voice has none
            for k in {'recon', 'voc'} & w.keys():
                m = ft.mel24(w[k])
                n = min(m.shape[2], true.shape[2])
                r['mel_' + k] = float((m[..., :n] - true[..., :n]).abs().mean())
        fa, fb = median_f0(yr), median_f0(w['tts'].cpu())
        r['semitones'] = abs(12 * np.log2(fb / fa)) if fa and fb else None
        rows.append(r)
    if a.sounds:
        np.savez(a.out + '/sounds.npz', **{f'{j} {k}': (y.clip(-1, 1) * 32767).astype(np.int16) for j, k, y in sounds if rows[j]['kind'] != 'espeak'})
    finish(a, P, rows, sounds)


if __name__ == '__main__':
    main()
