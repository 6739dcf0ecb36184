"""Sample reference voices (held-out speakers and sentences) and the expected outputs for parity tests.
    python3 make_voices.py --model DIR --voices DIR --expected DIR"""
import argparse, json, os, random
import soundfile as sf, torch
import features as ft
from evaluate import synth
from metrics import median_f0
from speech_text import load_sentences
from synthesize import EVAL_SEED, Espeak, Flite, make_speakers, unpack
from tts import Tts, load_wave

TEXT = 'The weather will be warm and sunny for the rest of the week.'
WANT = [('Arthur', 'gmw/en-US', 70, 145), ('Clara', 'gmw/en-US', 160, 240), ('Fiona', 'gmw/en-GB', 160, 260), ('Henry', 'gmw/en', 70, 145), ('Mia', 'gmw/en', 240, 330), ('Laura', 'flite slt', 0, 999), ('Robert', 'flite rms', 0, 999), ('Angus', 'flite awb', 0, 999)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('--model', required=True); ap.add_argument('--voices', required=True); ap.add_argument('--expected', required=True); ap.add_argument('--root', default='/tmp/synth')
    a = ap.parse_args()
    for d in (a.voices, a.expected):
        os.makedirs(d, exist_ok=True)
    T, root = Tts(a.model), unpack(a.root)
    es, fl, (sents, hi), rng = Espeak(root, 'voices'), Flite(root), load_sentences(), random.Random(11)
    held = [s for s in make_speakers(root, 1200, EVAL_SEED) if s['held']]
    rng.shuffle(held)
    good = [x for x in sents[hi:] if 40 < len(x) < 110 and x.count(',') < 3 and not x.startswith(('I said', 'The word', 'Now say', 'Again', 'Listen'))]
    used, lines, expected = set(), [], []
    for k, (name, what, lo, top) in enumerate(WANT):
        for s in held:
            kind = 'flite ' + s['voice'] if s['eng'] == 'flite' else s['voice'].split('+')[0]
            if s['id'] in used or not (kind == what or what == 'gmw/en-GB' and kind.startswith(what)):
                continue
            torch.manual_seed(k)
            if not lo <= median_f0(synth(s, 'This is a test.', es, fl)) <= top:
                continue
            y = None
            for _ in range(40):
                text = ' '.join(rng.sample(good, 2))
                y = synth(s, text, es, fl)
                if 6.0 * 24000 < y.shape[1] < 8.9 * 24000:
                    break
            else:
                continue
            used.add(s['id'])
            f = f'{a.voices}/{name.lower()}.flac'
            sf.write(f, y[0].clamp(-.99, .99).numpy(), 24000, subtype='PCM_16')
            y = load_wave(f)
            how = f"flite voice {s['voice']}, read at {s['rate']} Hz (other formants and pitch)" if s['eng'] == 'flite' else f"espeak-ng, accent {kind.split('/')[1]}, random voice variant"
            lines.append(dict(file=os.path.basename(f), name=name, seconds=round(y.shape[1] / 24000, 2), median_f0_hz=round(median_f0(y)), made=how + ', held out of training', text=text))
            if k in (0, 5):
                ref = T.reference(y)
                tok = T.speak_tokens(ref, TEXT, temperature=0., limit=300)
                m = T.mel(ref, tok)
                torch.manual_seed(0)
                w = T.wave(m)
                sf.write(f'{a.expected}/{name.lower()}.flac', w[0].numpy(), 24000, subtype='PCM_16')
                expected.append(dict(voice=os.path.basename(f), text=TEXT, greedy=True, cfg_weight=T.cfg['t3_sampling']['cfg_weight'], repetition_penalty=T.cfg['t3_sampling']['repetition_penalty'], exaggeration=.5,
                                     prompt_tokens=ref['tok'][0].tolist(), voice_vector=[round(v, 5) for v in ref['ve'][0, :16].tolist()], speaker_vector=[round(v, 4) for v in ref['sp'][0, :16].tolist()], tokens=tok,
                                     chunk_causal=T.cfg['flow']['chunk_causal'],
                                     mel_frame_means=[round(v, 3) for v in m[0].mean(0)[:40].tolist()], mel_mean=round(m.mean().item(), 4), mel_full_attention_mean=round(T.mel(ref, tok, chunked=False).mean().item(), 4),
                                     f0_first_frames=[round(v, 1) for v in T.hift.f0_predictor(m)[0, :40].tolist()], wave_rms=round(w.pow(2).mean().sqrt().item(), 4)))
            print(lines[-1], flush=True)
            break
    json.dump(lines, open(a.voices + '/voices.json', 'w'), indent=1)
    json.dump(expected, open(a.expected + '/expected.json', 'w'))


if __name__ == '__main__':
    main()
