"""End-to-end evaluation on held-out voices and sentences (CPU).
    python3 evaluate.py --model DIR --recognizer DIR --resemblyzer WHEEL [--dnsmos WHEEL] [--human DIR] [--n 40] --out DIR
Phoneme error rate by the separately trained recogniser, word error rate by pocketsphinx (flite and human-like voices), speaker likeness by Resemblyzer,
pitch, duration, DNSMOS, ends of speech; always beside the same numbers of the raw synthesiser (the ceiling) and of re-synthesis from true tokens."""
import argparse, glob, io, json, os, random, zipfile
import numpy as np, torch, torch.nn.functional as F
import features as ft
from net_recognizer import load_recognizer
from speech_text import encode, load_sentences, punc_norm, spoken, words
from synthesize import EVAL_SEED, Espeak, Flite, make_speakers, render, unpack
from tts import Tts, load_wave
from metrics import distance


def level(y):
    act = (y.abs() > .01 * y.abs().max()).float()
    y = y * .085 / ((y.pow(2).sum() / act.sum()).sqrt() + 1e-6)
    return y * min(1, .95 / y.abs().max().item())


def synth(s, text, es, fl, emo=.5):
    a, _ = render(s, text, es, fl, emo)
    y = ft.resample(torch.from_numpy(a.astype(np.float32) / 32768)[None], s['rate'], 24000)
    return level(F.pad(y, (0, -y.shape[1] % 960))) + 1e-4 * torch.randn(1, y.shape[1] + -y.shape[1] % 960)


class Resemblyzer:
    """The package's encoder, with its level normalisation (its weights also seed this model's voice encoder; they were never trained here)."""
    def __init__(s, wheel):
        from net_voice import VoiceEncoder
        sd = torch.load(io.BytesIO(zipfile.ZipFile(wheel).read('resemblyzer/pretrained.pt')), map_location='cpu', weights_only=True)['model_state']
        s.m = VoiceEncoder(dict(num_mels=40, hidden=256, embed=256, layers=3))
        s.m.load_state_dict({k.replace('linear.', 'proj.'): v for k, v in sd.items()})
        s.m.eval()

    def __call__(s, y24):
        y = ft.resample(y24, 24000, 16000)
        y = y * 10 ** (-30 / 20) / (y.pow(2).mean().sqrt() + 1e-9)
        if y.shape[1] < 25600:
            y = y.repeat(1, 25600 // y.shape[1] + 1)
        m = ft.mel_ve(y)
        return F.normalize(s.m(torch.cat([m[:, i:i + 160] for i in range(0, m.shape[1] - 159, 77)])).mean(0, keepdim=True), dim=1)[0]


class Dnsmos:
    def __init__(s, wheel):
        import onnxruntime as ort
        o = ort.SessionOptions()
        o.intra_op_num_threads = 1
        s.s = ort.InferenceSession(zipfile.ZipFile(wheel).read('speechmos/dnsmos_models/sig_bak_ovr.onnx'), o, providers=['CPUExecutionProvider'])

    def __call__(s, y24):
        """overall quality with the package's polynomial"""
        y = ft.resample(y24, 24000, 16000)[0].numpy()
        n = int(9.01 * 16000)
        while len(y) < n:
            y = np.concatenate([y, y])
        v = s.s.run(None, {'input_1': y[None, :n].astype(np.float32)})[0][0][2]
        return float(np.polyval([-.06766283, 1.11546468, .04602535], v))


def asr_decoder():
    from pocketsphinx import Decoder
    d = Decoder(samprate=16000, loglevel='FATAL')

    def run(y24):
        y = ft.resample(y24, 24000, 16000)[0].numpy()
        b = (np.clip(np.concatenate([np.zeros(3200), y * .7 / (abs(y).max() + 1e-6), np.zeros(3200)]), -1, 1) * 32767).astype(np.int16).tobytes()
        d.start_utt()
        d.process_raw(b, full_utt=True)
        d.end_utt()
        h = d.hyp()
        return words(h.hypstr) if h else []
    return run


def median_f0(y):
    f = ft.median3(ft.yin(ft.resample(y, 24000, 16000)))[0]
    return float(f[f > 0].median()) if (f > 0).sum() > 5 else 0.


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


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('--model', required=True); ap.add_argument('--recognizer', required=True); ap.add_argument('--resemblyzer', required=True); ap.add_argument('--dnsmos', default='')
    ap.add_argument('--human', default=''); ap.add_argument('--n', type=int, default=40, help='utterances on synthetic voices'); ap.add_argument('--n_human', type=int, default=10); ap.add_argument('--out', default='')
    ap.add_argument('--seed', type=int, default=0); ap.add_argument('--root', default='/tmp/synth'); ap.add_argument('--resynthesis', type=int, default=1); ap.add_argument('--full', type=int, default=0, help='also full attention')
    ap.add_argument('--set', default='', help='sampling overrides, e.g. temperature=0.5,cfg_weight=0.5'); ap.add_argument('--asr', type=int, default=1); ap.add_argument('--text', default='', help='file with sentences instead of the held-out list')
    a = ap.parse_args()
    torch.set_num_threads(int(os.environ.get('OMP_NUM_THREADS', 2)))
    torch.manual_seed(a.seed)
    T = Tts(a.model)
    unpack(a.root)
    es, fl = Espeak(a.root, f'ev{os.getpid()}'), Flite(a.root)
    rec, emb, mos, asr = load_recognizer(a.recognizer), Resemblyzer(a.resemblyzer), Dnsmos(a.dnsmos) if a.dnsmos else None, asr_decoder() if a.asr else None
    R, sents, hi = references(a, es, fl)
    rng = random.Random(a.seed + 1)
    pool = [l.strip() for l in open(a.text)] if a.text else [x for x in sents[hi:] if 12 < len(x) < 110 and not x.startswith(('I said,', 'The word is', 'Now say', 'Again,', 'Listen,'))]
    syn, hum = [i for i, r in enumerate(R) if r[1] != 'human'], [i for i, r in enumerate(R) if r[1] == 'human']
    jobs = [(syn[j % len(syn)], rng.choice(pool)) for j in range(a.n)] + [(hum[j % len(hum)], rng.choice(pool)) for j in range(a.n_human) if hum]
    refs = {i: T.reference(R[i][3]) for i in sorted({j[0] for j in jobs})}
    ref_emb = torch.stack([emb(r[3]) for r in R])
    c = dict(T.cfg['t3_sampling'], **{k: float(v) for k, v in (x.split('=') for x in a.set.split(',') if x)})
    toks, done = [], []
    for b in range(0, len(jobs), 32):
        J = jobs[b:b + 32]
        cond = torch.cat([T.t3.cond(refs[i]['ve'], refs[i]['tok'][:, :150], torch.tensor([.5])) for i, _ in J])
        o, d = T.t3.generate_batch(cond, [encode(punc_norm(t)) for _, t in J], 480, c['temperature'], c['cfg_weight'], c['repetition_penalty'], c['min_p'], g=torch.Generator().manual_seed(a.seed + b))
        toks, done = toks + o, done + d
    rows = []
    for (i, text), tk, ended in zip(jobs, toks, done):
        name, kind, s, yr = R[i]
        ph, wd = es.phonemes(spoken(text)), words(text)
        w = dict(tts=T.wave(T.mel(refs[i], tk or [0])))
        raw = synth(s, text, es, fl) if s else None
        if raw is not None:
            w['raw'] = raw
            if a.resynthesis:
                w['recon'] = T.wave(T.mel(refs[i], T.tokens_of(raw)[0].tolist()))
        if a.full:
            w['full'] = T.wave(T.mel(refs[i], tk or [0], chunked=False))
        r = dict(voice=name, kind=kind, text=text, ended=ended, tokens=len(tk))
        for k, y in w.items():
            r['per_' + k] = [int(distance(ph, rec.decode(ft.resample(y, 24000, 16000)))), len(ph)]
            if asr and kind != 'espeak':
                h = asr(y)
                r['wer_' + k], r['hyp_' + k] = [int(distance(wd, h)), len(wd)], ' '.join(h)
            if mos:
                r['mos_' + k] = mos(y)
        e = emb(w['tts'])
        others = hum if kind == 'human' else syn
        sim = ref_emb[others] @ e
        r['sim'], r['top1'] = float(sim[others.index(i)]), bool(sim.argmax() == others.index(i))
        r['sim_wrong'] = float((sim.sum() - sim[others.index(i)]) / (len(others) - 1))
        if raw is not None:
            simr = ref_emb[others] @ emb(raw)
            r['sim_raw'], r['top1_raw'] = float(simr[others.index(i)]), bool(simr.argmax() == others.index(i))
            r['duration'] = w['tts'].shape[1] / raw.shape[1]
        fa, fb = median_f0(yr), median_f0(w['tts'])
        r['semitones'] = abs(12 * np.log2(fb / fa)) if fa and fb else None
        rows.append(r)
        if a.out:
            os.makedirs(a.out, exist_ok=True)
            import soundfile as sf
            for k, y in w.items():
                sf.write(f'{a.out}/{len(rows) - 1:03d}_{k}.wav', y[0].numpy(), 24000, subtype='PCM_16')
            json.dump(rows, open(a.out + '/rows.json', 'w'), indent=1)
    for kind in ('espeak', 'flite', 'human'):
        q = [r for r in rows if r['kind'] == kind]
        if not q:
            continue
        rate = lambda k: round(100 * sum(r[k][0] for r in q if k in r) / max(1, sum(r[k][1] for r in q if k in r)), 1) if any(k in r for r in q) else None
        mean = lambda k: round(float(np.mean([r[k] for r in q if r.get(k) is not None])), 3) if any(r.get(k) is not None for r in q) else None
        print(kind, len(q), 'utterances', json.dumps({'PER % raw/recon/tts/full': [rate('per_' + k) for k in ('raw', 'recon', 'tts', 'full')], 'WER % raw/recon/tts/full': [rate('wer_' + k) for k in ('raw', 'recon', 'tts', 'full')],
              'top1': mean('top1'), 'top1 raw': mean('top1_raw'), 'sim same/wrong/raw': [mean('sim'), mean('sim_wrong'), mean('sim_raw')], 'median semitones': round(float(np.median([r['semitones'] for r in q if r['semitones'] is not None])), 2),
              'DNSMOS raw/recon/tts': [mean('mos_raw'), mean('mos_recon'), mean('mos_tts')], 'duration ratio': mean('duration'), 'not ended': sum(not r['ended'] for r in q),
              'too short': sum(r.get('duration') is not None and r['duration'] < .6 for r in q)}), flush=True)


if __name__ == '__main__':
    main()
