"""What evaluation measures sound with."""
import io, zipfile
import numpy as np, torch, torch.nn.functional as F
import features as ft
from speech_text import words


def distance(r, h):
    """Edit distance"""
    d = np.arange(len(h) + 1)
    for i in range(1, len(r) + 1):
        p = d.copy()
        d[0] = i
        for j in range(1, len(h) + 1):
            d[j] = min(p[j] + 1, d[j - 1] + 1, p[j - 1] + (r[i - 1] != h[j - 1]))
    return int(d[len(h)])


class Resemblyzer:
    """The package's encoder, with its level normalisation (its weights also seed this model's voice encoder; they were never trained here)."""
    def __init__(s, wheel, dev='cpu'):
        from net_voice import VoiceEncoder
        sd = torch.load(io.BytesIO(zipfile.ZipFile(wheel).read('resemblyzer/pretrained.pt')), map_location='cpu', weights_only=True)['model_state']
        s.m = VoiceEncoder(dict(num_mels=40, hidden=256, embed=256, layers=3))
        s.m.load_state_dict({k.replace('linear.', 'proj.'): v for k, v in sd.items()})
        s.m.eval().to(dev)
        s.dev = dev

    @torch.no_grad()
    def __call__(s, y24):
        y = ft.resample(y24.to(s.dev), 24000, 16000)
        y = y * 10 ** (-30 / 20) / (y.pow(2).mean().sqrt() + 1e-9)
        if y.shape[1] < 25600:
            y = y.repeat(1, 25600 // y.shape[1] + 1)
        m = ft.mel_ve(y)
        return F.normalize(s.m(torch.cat([m[:, i:i + 160] for i in range(0, m.shape[1] - 159, 77)])).mean(0, keepdim=True), dim=1)[0].cpu()


class Dnsmos:
    def __init__(s, wheel):
        import onnxruntime as ort
        o = ort.SessionOptions()
        o.intra_op_num_threads = 1
        s.s = ort.InferenceSession(zipfile.ZipFile(wheel).read('speechmos/dnsmos_models/sig_bak_ovr.onnx'), o, providers=['CPUExecutionProvider'])

    def __call__(s, y16):
        """Overall quality with the package's polynomial; y16 numpy at 16 kHz"""
        n = int(9.01 * 16000)
        y = np.tile(y16, -(-n // len(y16)))[:n]
        v = s.s.run(None, {'input_1': y[None].astype(np.float32)})[0][0][2]
        return float(np.polyval([-.06766283, 1.11546468, .04602535], v))


class Words:
    """pocketsphinx with its en-US model"""
    def __init__(s):
        from pocketsphinx import Decoder
        s.d = Decoder(samprate=16000, loglevel='FATAL')

    def __call__(s, y16):
        b = (np.clip(np.concatenate([np.zeros(3200), y16 * .7 / (abs(y16).max() + 1e-6), np.zeros(3200)]), -1, 1) * 32767).astype(np.int16).tobytes()
        s.d.start_utt()
        s.d.process_raw(b, full_utt=True)
        s.d.end_utt()
        h = s.d.hyp()
        return words(h.hypstr) if h else []


def pitch(y24):
    """F0 (frames at 50 Hz, 0 = unvoiced)"""
    return ft.median3(ft.yin(ft.resample(y24, 24000, 16000)))[0]


def median_f0(y24):
    f = pitch(y24)
    return float(f[f > 0].median()) if (f > 0).sum() > 5 else 0.


def rate(pairs, draws=1000):
    """(errors, length) of many utterances -> per cent of the whole, half the width of its 95 % interval (bootstrap over utterances)"""
    x = np.array(pairs, float)
    k = np.random.RandomState(0).randint(len(x), size=(draws, len(x)))
    b = 100 * x[k, 0].sum(1) / np.maximum(1, x[k, 1].sum(1))
    return 100 * x[:, 0].sum() / max(1, x[:, 1].sum()), (np.quantile(b, .975) - np.quantile(b, .025)) / 2


def difference(pairs, draws=2000):
    """((errors, length), (errors, length)) of the same utterances said in two ways -> first minus second in points, and its 95 % interval (as above)"""
    x = np.array(pairs, float)
    k = np.random.RandomState(0).randint(len(x), size=(draws, len(x)))
    f = lambda y: 100 * (y[..., 0, 0].sum(-1) / y[..., 0, 1].sum(-1) - y[..., 1, 0].sum(-1) / y[..., 1, 1].sum(-1))
    d = f(x[k])
    return f(x), np.quantile(d, .025), np.quantile(d, .975)
