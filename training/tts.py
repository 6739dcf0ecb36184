"""Plain PyTorch inference from an exported model folder: the yardstick for any other runtime.
    python3 tts.py --model DIR --ref clip.wav --text "Hello there." --out out.wav"""
import argparse, json, math, os
import numpy as np, torch, torch.nn.functional as F
import features as ft
from common import make_net
from speech_text import encode, punc_norm

# Part, file, prefix of its names there.  A standard flow's file is called s3gen.
PARTS = (('tokenizer', 's3gen_meanflow', 'tokenizer.'), ('camplus', 's3gen_meanflow', 'speaker_encoder.'), ('flow', 's3gen_meanflow', 'flow.'), ('hift', 's3gen_meanflow', 'mel2wav.'),
         ('t3', 't3_cfg', ''), ('ve', 've', ''))


class Tts:
    def __init__(s, folder, dev='cpu'):
        from safetensors.torch import load_file
        torch.set_grad_enabled(False)
        s.dev = dev
        s.cfg = json.load(open(folder + '/config.json'))
        files = {}
        for name, f, prefix in PARTS:
            if not os.path.exists(f'{folder}/{f}.safetensors'):
                f = f.removesuffix('_meanflow')
            sd = files[f] = files[f] if f in files else load_file(f'{folder}/{f}.safetensors')
            m = make_net(name)
            if name == 'flow' and not s.cfg['meanflow']:
                m.decoder.estimator.time_embed_mixer = None
            m.load_state_dict({k[len(prefix):]: v.float() if v.is_floating_point() else v for k, v in sd.items()
                               if k.startswith(prefix) and k not in ('tokenizer._mel_filters', 'tokenizer.window')})
            setattr(s, name, m.eval().to(dev))

    def tokens_of(s, y24):
        y16 = ft.resample(y24, 24000, 16000)
        n = y24.shape[1] // 960
        return s.tokenizer(ft.mel_s3(y16)[..., :4 * n], torch.tensor([4 * n], device=s.dev))[0]

    def voice_vector(s, y16):
        mv = ft.mel_ve(y16)
        if mv.shape[1] < 160:
            mv = F.pad(mv, (0, 0, 0, 160 - mv.shape[1]))
        return F.normalize(s.ve(torch.cat([mv[:, i:i + 160] for i in range(0, mv.shape[1] - 159, 77)])).mean(0, keepdim=True), dim=1)

    def reference(s, y24):
        """(1,L) at 24 kHz -> conditioning"""
        y24 = y24.to(s.dev)
        full16 = ft.resample(y24, 24000, 16000)
        y = y24[:, :240000 // 960 * 960] if y24.shape[1] >= 240000 else y24[:, :y24.shape[1] // 960 * 960]
        y16 = ft.resample(y, 24000, 16000)
        tok = s.tokens_of(y)
        return dict(tok=tok, feat=ft.mel24(y)[..., :2 * tok.shape[1]].transpose(1, 2), ve=s.voice_vector(full16), sp=s.camplus(ft.fbank(y16)))

    def speak_tokens(s, ref, text, seed=0, exaggeration=.5, limit=500, **kw):
        c = dict(s.cfg['t3_sampling'], **kw)
        cond = s.t3.cond(ref['ve'], ref['tok'][:, :150], torch.tensor([float(exaggeration)], device=s.dev))
        g = torch.Generator(s.dev).manual_seed(seed)
        ids = torch.tensor([encode(punc_norm(text))], device=s.dev)
        return s.t3.generate(cond, ids, limit, c['temperature'], c['cfg_weight'], c['repetition_penalty'], c['min_p'], g=g)

    def speak_batch(s, refs, texts, seed=0, exaggeration=.5, limit=480, rows=48, **kw):
        """Speech tokens of many texts, each in the voice of its reference -> lists of tokens, whether each ended by itself."""
        c, toks, done = dict(s.cfg['t3_sampling'], **kw), [None] * len(texts), [None] * len(texts)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        for b in range(0, len(order), rows):
            J = order[b:b + rows]
            cond = torch.cat([s.t3.cond(refs[i]['ve'], refs[i]['tok'][:, :150], torch.tensor([float(exaggeration)], device=s.dev)) for i in J])
            o, d = s.t3.generate_batch(cond, [encode(punc_norm(texts[i])) for i in J], limit, c['temperature'], c['cfg_weight'], c['repetition_penalty'], c['min_p'],
                                       g=torch.Generator(s.dev).manual_seed(seed + b))
            for i, x, e in zip(J, o, d):
                toks[i], done[i] = x or [0], e
        return toks, done

    def mel(s, ref, tokens, chunked=True, steps=None, cfg_rate=.7):
        cc = s.cfg['flow']['chunk_causal']
        return s.flow.inference(torch.tensor([tokens], device=s.dev), ref['tok'], ref['feat'], ref['sp'], steps or s.cfg['cfm_steps'], s.cfg['cfm_noise_scale'],
                                cc['chunk_tokens'] if chunked else None, cc['first_chunk_tokens'] if cc.get('prompt_is_chunk') else None, 0. if s.cfg['meanflow'] else cfg_rate)

    def wave(s, mel):
        return s.hift(mel)[0]

    def say(s, ref, text, seed=0, chunked=True, **kw):
        t = s.speak_tokens(ref, text, seed, **kw)
        torch.manual_seed(seed)
        return s.wave(s.mel(ref, t or [0], chunked)), t


def load_wave(path):
    import soundfile as sf
    y, sr = sf.read(path, dtype='float32', always_2d=True)
    g = math.gcd(sr, 24000)
    return ft.resample(torch.from_numpy(np.ascontiguousarray(y.mean(1)))[None], sr, 24000) if g > 10 else None


if __name__ == '__main__':
    ap = argparse.ArgumentParser()
    ap.add_argument('--model', required=True); ap.add_argument('--ref', required=True); ap.add_argument('--text', required=True); ap.add_argument('--out', default='out.wav'); ap.add_argument('--seed', type=int, default=0)
    a = ap.parse_args()
    import soundfile as sf
    t = Tts(a.model)
    y, n = t.say(t.reference(load_wave(a.ref)), a.text, a.seed)
    sf.write(a.out, y[0].numpy(), 24000, subtype='PCM_16')
    print(len(n), 'tokens', round(y.shape[1] / 24000, 2), 's')
