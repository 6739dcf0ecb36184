"""Synthetic speech, made in-process through the espeak-ng and flite libraries on all CPU cores.

Speakers are random espeak-ng voice variants (pitch, formants, tone, breath ...), the stock variants, and flite voices with other formant
scales and pitches.  Speakers marked 'held' (and the last sentences of the list) are never trained on.
    python3 synthesize.py --out DIR --hours 60 --seed 1
Writes raw int16 per worker (w*.i16, w*.pkl) and info.pkl.  The libraries come from data/synth.tar.xz (see pack_synth.sh)."""
import argparse, ctypes, os, pickle, random, shutil, subprocess, time
import multiprocessing as mp
import numpy as np
from speech_text import load_sentences, sample_text, spoken

HERE = os.path.dirname(os.path.abspath(__file__))
ACCENTS = ['gmw/en-US', 'gmw/en', 'gmw/en-GB-x-rp', 'gmw/en-GB-scotland', 'gmw/en-US-nyc', 'gmw/en-GB-x-gbclan', 'gmw/en-GB-x-gbcwmd', 'gmw/en-029']
ACCENT_WEIGHTS = [46, 18, 12, 6, 6, 5, 4, 3]
STOCK_SKIP = {'fast', 'UniRobot', 'Demonic', 'announcer', 'whisper', 'whisperf', 'robosoft5', 'robosoft6', 'robosoft7', 'robosoft8', 'anikaRobot', 'AnxiousAndy', 'Tweaky'}
FLITE_F0 = dict(awb=(127., 28.), slt=(166., 28.), kal16=(105., 12.), rms=None)       # mean and deviation; rms has no F0 control
FLITE_HELD_RATES = (14800, 17200)
EVAL_SEED = 1234                                                                      # the speaker list that evaluation uses


def unpack(root='/tmp/synth'):
    if not os.path.exists(root + '/espk/libespeak-ng.so.1'):
        os.makedirs(root, exist_ok=True)
        subprocess.check_call(['tar', 'xJf', f'{HERE}/data/synth.tar.xz', '-C', root])
    return root


def random_variant(rng, name):
    """Text of a random espeak-ng voice variant file."""
    kind = rng.random()
    if kind < .46:
        f0, fs = rng.uniform(68, 140), rng.gauss(1.0, .045)        # male-like
    elif kind < .88:
        f0, fs = rng.uniform(140, 250), rng.gauss(1.12, .045)      # female-like
    else:
        f0, fs = rng.uniform(190, 300), rng.gauss(1.22, .05)       # child-like
    fs = min(max(fs, .86), 1.34)
    U = rng.uniform
    L = [f'name {name}', 'language variant', f'pitch {f0:.0f} {f0 * U(1.22, 1.62):.0f}', f'flutter {rng.choice([0, 1, 2, 3, 4, 6, 10])}',
         f'roughness {rng.choice([0, 0, 0, 1, 2, 3, 4])}', f'voicing {U(60, 160):.0f}', f'consonants {U(70, 135):.0f} {U(70, 135):.0f}']
    if rng.random() < .22:
        L.append(f'klatt {rng.choice([1, 2, 3, 4, 5, 6])}')
    for i in range(9):
        fr = fs * rng.gauss(1.0, .025 if i < 4 else .04)
        h = U(75, 130) if i < 3 else U(35, 125)
        L.append(f'formant {i} {100 * fr:.0f} {h:.0f} {U(75, 160):.0f}')
    if rng.random() < .5:
        L.append('tone 100 %d 600 %d 1200 %d 2000 %d 3000 %d' % tuple(U(60, 255) for _ in range(5)))
    if rng.random() < .3:
        L.append('breath ' + ' '.join('%d' % U(0, 14) for _ in range(8)))
    if rng.random() < .12:
        L.append(f'echo {U(10, 140):.0f} {U(3, 12):.0f}')
    if rng.random() < .3:
        L.append('stressAdd ' + ' '.join('%d' % U(-30, 40) for _ in range(8)))
    return '\n'.join(L) + '\n'


def make_speakers(root, n_random=1200, seed=EVAL_SEED, n_flite=160):
    """Deterministic list of speakers.  Stock and flite 'held' speakers are the same for every seed."""
    rng = random.Random(seed)
    S = []
    for i in range(n_random):
        name = f'r{seed % 1000:03d}x{i:04d}'
        S.append(dict(eng='espeak', vfile=random_variant(rng, name), voice=rng.choices(ACCENTS, ACCENT_WEIGHTS)[0] + '+' + name, rate=22050,
                      wpm=rng.uniform(125, 195), held=i % 30 == 7))
    for k, v in enumerate(sorted(x for x in os.listdir(root + '/espk/espeak-ng-data/voices/!v/') if x not in STOCK_SKIP)):
        S.append(dict(eng='espeak', voice=rng.choices(ACCENTS, ACCENT_WEIGHTS)[0] + '+' + v, rate=22050, wpm=rng.uniform(130, 185), held=k % 20 == 3))
    for v in FLITE_F0:
        for r in FLITE_HELD_RATES:
            S.append(dict(eng='flite', voice=v, rate=r, f0=1.0, wpm=1.0, held=True))
        for j in range(n_flite // 4):
            r = rng.choice([x for x in range(13600, 19601, 400) if x not in FLITE_HELD_RATES]) if j else 16000
            S.append(dict(eng='flite', voice=v, rate=r, f0=rng.choice([1.0, rng.uniform(.75, 1.35)]) if j else 1.0, wpm=rng.uniform(.88, 1.14), held=False))
    for i, s in enumerate(S):
        s['id'], s['gain'] = i, rng.gauss(0, 2.0)
    return S


class Espeak:
    def __init__(self, root, tag=''):
        class EvId(ctypes.Union):
            _fields_ = [('number', ctypes.c_int), ('name', ctypes.c_char_p), ('string', ctypes.c_char * 8)]

        class Ev(ctypes.Structure):
            _fields_ = [('type', ctypes.c_int), ('uid', ctypes.c_uint), ('text_position', ctypes.c_int), ('length', ctypes.c_int),
                        ('audio_position', ctypes.c_int), ('sample', ctypes.c_int), ('user', ctypes.c_void_p), ('id', EvId)]
        d = root + '/espk'
        # own copy of the data: espeak-ng lists at most 350 voices, so a random variant file exists only while it is used
        self.data = f'{root}/data{tag}'
        if not os.path.exists(self.data):
            shutil.copytree(d + '/espeak-ng-data', self.data + '/espeak-ng-data')
        for lib in ('libpcaudio.so.0', 'libsonic.so.0'):
            ctypes.CDLL(f'{d}/{lib}', mode=ctypes.RTLD_GLOBAL)
        self.L = ctypes.CDLL(d + '/libespeak-ng.so.1')
        CB = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(Ev))
        self.buf, self.ev, self.cur = [], [], None

        def cb(wav, n, ev):
            if n > 0 and wav:
                self.buf.append(ctypes.string_at(wav, 2 * n))
            i = 0
            while ev[i].type != 0:
                if ev[i].type == 7:
                    self.ev.append((ev[i].sample, ev[i].id.string.decode('latin1')))
                i += 1
            return 0
        self.cb = CB(cb)
        assert self.L.espeak_Initialize(2, 4000, self.data.encode(), 1 | 0x8000) == 22050
        self.L.espeak_SetSynthCallback(self.cb)
        f = self.L.espeak_TextToPhonemes
        f.restype, f.argtypes = ctypes.c_char_p, [ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, ctypes.c_int]

    def voice(self, voice, vfile=None):
        if voice == self.cur:
            return
        p = f"{self.data}/espeak-ng-data/voices/!v/{voice.split('+')[-1]}"
        if vfile:
            open(p, 'w').write(vfile)
        r = self.L.espeak_SetVoiceByName(voice.encode())
        if vfile:
            os.remove(p)
        if r != 0:
            raise RuntimeError(voice)
        self.cur = voice

    def synth(self, voice, text, wpm, pitch_range, pitch=50, vfile=None):
        self.voice(voice, vfile)
        for p, v in ((1, int(wpm)), (2, 100), (3, int(pitch)), (4, int(pitch_range))):
            self.L.espeak_SetParameter(p, v, 0)
        self.buf.clear()
        self.ev.clear()
        b = text.encode()
        self.L.espeak_Synth(b, len(b) + 1, 0, 1, 0, 1, None, None)
        self.L.espeak_Synchronize()
        return np.frombuffer(b''.join(self.buf), np.int16), list(self.ev)

    def phonemes(self, text):
        """Phonemes of the text in the plain en-US voice, stress and length removed: the recogniser's target."""
        self.voice('gmw/en-US')
        p, out = ctypes.c_char_p(text.encode()), []
        while p.value is not None:
            r = self.L.espeak_TextToPhonemes(ctypes.byref(p), 1, ord('_') << 8)
            for w in (r or b'').decode('latin1').split():
                for x in w.split('_'):
                    x = x.strip("',;:=|!%-").replace('#', '').replace('2', '')
                    if x and not x.startswith('('):
                        out += {'@L': ['@', 'l'], 'a': ['a'], 'I': ['I'], '0': ['A'], 'A:': ['A'], 'i:': ['i'], 'u:': ['u'], 'O:': ['O'], '3:': ['3']}.get(x, [x.rstrip(':')])
        return out


class Flite:
    def __init__(self, root):
        d, G, P = root + '/flt/', ctypes.RTLD_GLOBAL, ctypes.c_void_p
        ctypes.CDLL(d + 'libasound.so.2', mode=G)
        self.f = f = ctypes.CDLL(d + 'libflite.so.1', mode=G)
        for n in ('usenglish', 'cmulex'):
            ctypes.CDLL(d + f'libflite_{n}.so.1', mode=G)
        f.flite_init()

        class Wave(ctypes.Structure):
            _fields_ = [('type', ctypes.c_char_p), ('sr', ctypes.c_int), ('n', ctypes.c_int), ('ch', ctypes.c_int), ('s', ctypes.POINTER(ctypes.c_short))]
        for n, r, a in (('flite_synth_text', P, [ctypes.c_char_p, P]), ('utt_wave', ctypes.POINTER(Wave), [P]), ('utt_relation', P, [P, ctypes.c_char_p]),
                        ('relation_head', P, [P]), ('item_next', P, [P]), ('item_feat_string', ctypes.c_char_p, [P, ctypes.c_char_p]),
                        ('item_feat_float', ctypes.c_float, [P, ctypes.c_char_p]), ('delete_utterance', None, [P]), ('feat_set_float', None, [P, ctypes.c_char_p, ctypes.c_float])):
            g = getattr(f, n)
            g.restype, g.argtypes = r, a
        self.v = {}
        for n in FLITE_F0:
            r = getattr(ctypes.CDLL(d + f'libflite_cmu_us_{n}.so.1', mode=G), f'register_cmu_us_{n}')
            r.restype = P
            self.v[n] = P(r(None))

    def synth(self, s, text, tempo=1.0, emo=.5):
        """-> int16 at the nominal 16 kHz (to be read as s['rate'] Hz), [(seconds, phone)] in the nominal time"""
        v, warp = self.v[s['voice']], s['rate'] / 16000
        feats = ctypes.cast(v, ctypes.POINTER(ctypes.c_void_p))[1]       # struct cst_voice { name; features; ... }
        self.f.feat_set_float(feats, b'duration_stretch', warp / (s['wpm'] * tempo))
        if FLITE_F0[s['voice']]:
            m, d = FLITE_F0[s['voice']]
            self.f.feat_set_float(feats, b'int_f0_target_mean', m * s['f0'] / warp ** .5)
            self.f.feat_set_float(feats, b'int_f0_target_stddev', d * (.2 + 1.6 * emo))
        u = self.f.flite_synth_text(text.encode(), v)
        w = self.f.utt_wave(u)
        a = np.ctypeslib.as_array(w[0].s, (w[0].n,)).copy()
        i, t, ev = self.f.relation_head(self.f.utt_relation(u, b'Segment')), 0., []
        while i:
            ev.append((t, self.f.item_feat_string(i, b'name').decode()))
            t = self.f.item_feat_float(i, b'end')
            i = self.f.item_next(i)
        self.f.delete_utterance(u)
        return a, ev


def render(s, text, es, fl, emo=.5, tempo=1.0, pitch=50):
    """-> int16 samples at s['rate'] Hz, [(seconds, phone)]"""
    if s['eng'] == 'espeak':
        a, ev = es.synth(s['voice'], spoken(text), s['wpm'] * tempo, max(4, min(100, 100 * emo)), pitch, s.get('vfile'))
        return a, [(n / 22050, p) for n, p in ev]
    a, ev = fl.synth(s, spoken(text), tempo, emo)
    return a, [(t * 16000 / s['rate'], 'f.' + p) for t, p in ev]


def worker(k, root, out, jobs, order, at, spk, sents, hi, seed):
    """Does the jobs `order` and writes w<k>.i16 and, after each job, one pickle more into w<k>.pkl; at[k] says which job is under way."""
    os.nice(5)
    es, fl = Espeak(root, k), Flite(root)
    with open(f'{out}/w{k}.i16', 'wb') as audio, open(f'{out}/w{k}.pkl', 'wb') as records:
        off = 0
        for i, j in enumerate(order):
            at[k] = i
            (sid, n), rng, done = jobs[j], random.Random(f'{seed}-{j}'), []
            s = spk[sid]
            for _ in range(n):
                text = sample_text(rng, sents, *((hi, len(sents)) if s['held'] else (0, hi)))
                emo = min(1., max(.04, rng.triangular(0, 1.05, .5)))
                tempo, pitch = rng.uniform(.88, 1.14), 50 + rng.gauss(0, 2)
                try:
                    a, ev = render(s, text, es, fl, emo, tempo, pitch)
                except Exception:
                    continue
                if not .45 < len(a) / s['rate'] < 16 or np.abs(a).max(initial=0) < 500:
                    continue
                audio.write(a.tobytes())
                done.append([sid, k, off, len(a), text, emo, ev, None])
                off += len(a)
            for m in done:
                m[7] = es.phonemes(spoken(m[4]))
            audio.flush()
            pickle.dump(done, records)
            records.flush()
    at[k] = len(order)


def read_records(path):
    """All complete records of one worker, also of one that died while it wrote."""
    out = []
    with open(path, 'rb') as f:
        try:
            while True:
                out += pickle.load(f)
        except (EOFError, pickle.UnpicklingError):
            return out


class Crew:
    """Worker processes that may crash or hang inside the C libraries: whoever does is replaced, and only its present job is lost."""
    def __init__(s, jobs, workers, *rest, patience=60.):
        s.jobs, s.rest, s.patience, s.lost = jobs, rest, patience, 0
        s.at = mp.RawArray('i', workers + 4096)
        s.live, s.count = {}, 0
        for k in range(workers):
            s.start(list(range(k, len(jobs), workers)))

    def start(s, order):
        if s.count >= len(s.at):
            raise RuntimeError('too many synthesiser processes died')
        k, s.count = s.count, s.count + 1
        root, out, *rest = s.rest
        p = mp.Process(target=worker, args=(k, root, out, s.jobs, order, s.at, *rest), daemon=True)
        p.start()
        s.live[k] = [p, order, -1, time.time()]

    def run(s):
        while s.live:
            time.sleep(.1)
            for k, w in list(s.live.items()):
                p, order, seen, since = w
                if s.at[k] != seen:
                    w[2:] = s.at[k], time.time()
                elif p.is_alive() and time.time() - since > s.patience:
                    p.kill()
                    p.join()
                if p.is_alive():
                    continue
                del s.live[k]
                if s.at[k] < len(order):
                    s.lost += 1
                    s.start(order[s.at[k] + 1:])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('--out', default='/tmp/ds'); ap.add_argument('--hours', type=float, default=60)
    ap.add_argument('--flite', type=float, default=.28, help='share of flite'); ap.add_argument('--workers', type=int, default=os.cpu_count())
    ap.add_argument('--speakers', type=int, default=1200); ap.add_argument('--seed', type=int, default=EVAL_SEED); ap.add_argument('--root', default='/tmp/synth')
    a = ap.parse_args()
    if os.path.exists(a.out + '/raw.done'):
        return
    os.makedirs(a.out, exist_ok=True)
    t0 = time.time()
    spk = make_speakers(unpack(a.root), a.speakers, a.seed)
    sents, hi = load_sentences()
    rng, jobs = random.Random(a.seed), []
    for eng, frac in (('espeak', 1 - a.flite), ('flite', a.flite)):
        ss = [s for s in spk if s['eng'] == eng]
        per = max(3, int(a.hours * 3600 * frac / 5.9 / len(ss)))
        for s in ss:
            n = min(per, 12) if s['held'] else per
            jobs += [(s['id'], min(20, n - c)) for c in range(0, n, 20)]
    rng.shuffle(jobs)
    jobs.sort(key=lambda j: spk[j[0]]['eng'] != 'flite')               # flite is slower: deal both kinds evenly
    crew = Crew(jobs, a.workers, a.root, a.out, spk, sents, hi, a.seed)
    crew.run()
    tot = sum(m[3] / spk[m[0]]['rate'] for k in range(crew.count) for m in read_records(f'{a.out}/w{k}.pkl'))
    pickle.dump(dict(spk=spk, workers=crew.count), open(a.out + '/info.pkl', 'wb'))
    open(a.out + '/raw.done', 'w').write('1')
    print(f'synthesize: {tot / 3600:.2f} h from {len(spk)} speakers in {time.time() - t0:.1f} s, {crew.lost} of {len(jobs)} jobs lost', flush=True)


if __name__ == '__main__':
    main()
