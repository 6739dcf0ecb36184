"""GPU pass over raw synthetic audio (and human clips): 24 kHz, level, expressive dynamics, then whatever is wanted of
audio, f0, mel, ph (50 Hz phoneme labels), tok (speech tokens), spk (CAMPPlus) and ve (voice encoder) embeddings.
    python3 prepare.py --ds DIR --want audio,f0,mel,ph [--human DIR] [--ck DIR] [--part 0/4]
Result: DIR/p<part>/*.npy + utt.npz + meta.pkl, utterances sorted by speaker, arrays flat over 25 Hz token positions."""
import argparse, glob, os, pickle, time
import numpy as np, torch, torch.nn.functional as F
import features as ft
from speech_text import encode, punc_norm
from synthesize import read_records

HUMAN_RATES = (13600, 14400, 15200, 16000, 16000, 16800, 17600, 18800)     # reading a 16 kHz clip at these rates warps pitch, formants, tempo


def human_utterances(folder, first_sid, cache):
    """Every clip in several warps; one speaker per clip and warp, each clip in two halves.  -> utterances, speakers, int16 samples"""
    import soundfile as sf
    U, S, chunks, off = [], [], [], 0
    for i, f in enumerate(sorted(glob.glob(folder + '/*.*'))):
        x, sr = sf.read(f, dtype='int16')
        assert sr == 16000
        chunks.append(x)
        for j, r in enumerate(HUMAN_RATES):
            if j and r == 16000 and HUMAN_RATES[j - 1] == 16000:
                continue
            sid = first_sid + len(S)
            S.append(dict(eng='human', voice=os.path.basename(f), rate=r, held=i % 25 == 7, gain=0., id=sid))
            h = len(x) // 2
            U += [[sid, -1, off, h, '', .5, None, None], [sid, -1, off + h, len(x) - h, '', .5, None, None]]
        off += len(x)
    return U, S, np.concatenate(chunks)


class Batches:
    """Iterates over the utterances of one part: (row numbers, leveled 24 kHz audio, valid samples)"""
    def __init__(s, ds, dev, human=None, part=0, parts=1, bs=48):
        info = pickle.load(open(ds + '/info.pkl', 'rb'))
        s.spk, s.dev, s.bs, U = info['spk'], dev, bs, []
        done = [k for k in range(info['workers']) if os.path.exists(f'{ds}/w{k}.pkl')]
        for k in done:
            U += read_records(f'{ds}/w{k}.pkl')
        s.raw = {}
        if human:
            HU, HS, x = human_utterances(human, len(s.spk), ds)
            U, s.spk = U + HU, s.spk + HS
            s.raw[-1] = torch.from_numpy(x).to(dev)
        U = [u for u in U if u[0] % parts == part]
        U.sort(key=lambda u: (u[0], u[1], u[2]))
        s.U, s.rates = U, np.array([s.spk[u[0]]['rate'] for u in U])
        s.n24 = np.array([int(np.ceil(u[3] * 24000 / r)) for u, r in zip(U, s.rates)])
        s.ntok = (s.n24 + 959) // 960
        s.off = np.concatenate([[0], np.cumsum(s.ntok)])
        s.emo = np.array([u[5] for u in U], np.float32)
        s.kind = np.array([dict(espeak=0, flite=1, human=2)[s.spk[u[0]]['eng']] for u in U])
        for k in done:
            if os.path.getsize(f'{ds}/w{k}.i16'):
                s.raw[k] = np.memmap(f'{ds}/w{k}.i16', np.int16, 'r')

    def __iter__(s):
        gains = np.array([x['gain'] for x in s.spk], np.float32)
        for r in np.unique(s.rates):
            ids = np.where(s.rates == r)[0]
            ids = ids[np.argsort(s.n24[ids])]
            for b in range(0, len(ids), s.bs):
                ii = ids[b:b + s.bs]
                L = max(s.U[i][3] for i in ii)
                buf = np.zeros((len(ii), L), np.int16)
                for j, i in enumerate(ii):
                    _, k, o, n = s.U[i][:4]
                    buf[j, :n] = s.raw[k][o:o + n].cpu().numpy() if k < 0 else s.raw[k][o:o + n]
                x = torch.from_numpy(buf).to(s.dev).float() / 32768.
                y = ft.resample(x, int(r), 24000)
                Lt = -(-int(s.ntok[ii].max()) // 20) * 20 * 960          # few distinct shapes
                y = F.pad(y, (0, max(0, Lt - y.shape[1])))[:, :Lt]
                ln = torch.as_tensor(s.n24[ii], device=s.dev)
                y = y * (torch.arange(Lt, device=s.dev)[None] < ln[:, None])
                emo = torch.as_tensor(s.emo[ii], device=s.dev)
                syn = torch.as_tensor(s.kind[ii] < 2, device=s.dev)[:, None]
                y = torch.where(syn, ft.expressive_dynamics(y, emo), y)
                act = (y.abs() > .01 * y.abs().amax(1, keepdim=True)).float()
                rms = (y.pow(2).sum(1) / act.sum(1).clamp(min=1)).sqrt()
                g = torch.as_tensor(gains[[s.U[i][0] for i in ii]], device=s.dev) + 4 * (emo - .5) * syn[:, 0]
                g = .085 * 10 ** (g / 20) / (rms + 1e-6)
                g = torch.minimum(g, .95 / (y.abs().amax(1) + 1e-6))
                yield ii, y * g[:, None] + 1e-4 * torch.randn_like(y), ln


def phoneme_labels(B, inv=None):
    """50 Hz labels: 255 = unlabelled, 0 = silence; espeak and flite phones are separate classes"""
    if inv is None:
        from collections import Counter
        C = Counter(p for u in B.U if u[6] for _, p in u[6] if not p.startswith('_') and p != 'f.pau')
        inv = {p: i + 1 for i, p in enumerate(sorted(p for p, c in C.most_common(180) if c > 40))}
    ph = np.full(int(B.off[-1]) * 2, 255, np.uint8)
    for i, u in enumerate(B.U):
        if u[6] is None:
            continue
        o, n = int(B.off[i]) * 2, int(B.ntok[i]) * 2
        lab = np.zeros(n, np.uint8)
        pr = [min(n, int(round(t * 50))) for t, _ in u[6]] + [n]
        for (_, p), s, e in zip(u[6], pr[:-1], pr[1:]):
            if e > s:
                lab[s:e] = inv.get(p, 0)
        ph[o:o + n] = lab
    return ph, inv


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('--ds', default='/tmp/ds'); ap.add_argument('--dev', default='cuda'); ap.add_argument('--bs', type=int, default=48)
    ap.add_argument('--want', default='audio,f0,mel,ph'); ap.add_argument('--human', default=''); ap.add_argument('--ck', default='/tmp/ck'); ap.add_argument('--part', default='0/1')
    ap.add_argument('--labels', default='', help='phonemes.json with a fixed label set')
    a = ap.parse_args()
    part, parts = map(int, a.part.split('/'))
    dev, want, out, t0 = a.dev, set(a.want.split(',')), f'{a.ds}/p{part}', time.time()
    if os.path.exists(out + '/done'):
        return
    os.makedirs(out, exist_ok=True)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False        # token rounding must equal inference
    torch.manual_seed(part)
    B = Batches(a.ds, dev, a.human, part, parts, a.bs)
    N, T = len(B.U), int(B.off[-1])
    A, Z = {}, lambda *s, d: torch.zeros(*s, dtype=d, device=dev)
    if 'audio' in want: A['audio'] = Z(T * 960, d=torch.int16)
    if 'f0' in want: A['f0'] = Z(T * 2, d=torch.float16)
    if 'mel' in want: A['mel'] = Z(T * 2, 80, d=torch.float16)
    if 'tok' in want: A['tok'] = Z(T, d=torch.int16)
    fm = np.zeros(N, np.float32)
    from common import load_net
    tk = load_net('tokenizer', a.ck, dev) if 'tok' in want else None
    sp = load_net('camplus', a.ck, dev) if 'spk' in want else None
    ve = load_net('ve', a.ck, dev) if 've' in want else None
    E = {}
    if sp is not None: E.update(sp0=Z(N, 192, d=torch.float16), sp1=Z(N, 192, d=torch.float16))
    if ve is not None: E.update(ve0=Z(N, 256, d=torch.float16), ve1=Z(N, 256, d=torch.float16))
    amp = torch.autocast('cuda' if dev.startswith('cuda') else 'cpu', dtype=torch.bfloat16)
    with torch.no_grad():
        for ii, y, ln in B:
            o, n = torch.as_tensor(B.off[ii], device=dev), torch.as_tensor(B.ntok[ii], device=dev)
            Lt = y.shape[1] // 960
            put = lambda name, x, m: A[name].index_copy_(0, (o[:, None] * m + torch.arange(Lt * m, device=dev))[torch.arange(Lt * m, device=dev)[None] < n[:, None] * m],
                                                         x[torch.arange(Lt * m, device=dev)[None] < n[:, None] * m].to(A[name].dtype))
            y16 = ft.resample(y, 24000, 16000)
            if 'audio' in want: put('audio', (y * 32767).round().clamp(-32767, 32767), 960)
            if 'f0' in want or 've' in want:
                f = ft.median3(ft.yin(y16 if 'f0' in want else y16[:, :48000]))
                v = f > 0
                fm[ii] = ((f.clamp(min=1).log() * v).sum(1) / v.sum(1).clamp(min=1)).cpu().numpy()
                if 'f0' in want: put('f0', f, 2)
            if 'mel' in want: put('mel', ft.mel24(y).transpose(1, 2), 2)
            if tk is not None:
                m = torch.arange(y16.shape[1], device=dev)[None] < (n * 640)[:, None]
                put('tok', tk(ft.mel_s3(y16 * m)[..., :4 * Lt], n * 4)[0], 1)
            I = torch.as_tensor(ii, device=dev)
            if sp is not None or ve is not None:
                k = min(int(B.ntok[ii].min()), 250) // 15 * 15 * 640
                for v in (0, 1):
                    z = y16[:, :max(k, 640 * 30)]
                    if v: z = ft.random_channel(z, 16000, 1.)
                    if z.shape[1] < 26000: z = torch.cat([z, z], 1)[:, :26000] if z.shape[1] >= 13000 else F.pad(z, (0, 26000 - z.shape[1]))
                    if sp is not None:
                        with amp: c = sp(ft.fbank(z))
                        E[f'sp{v}'][I] = c.to(torch.float16)
                    if ve is not None:
                        mv = ft.mel_ve(z)
                        ps = [mv[:, s:s + 160] for s in range(0, mv.shape[1] - 159, 77)]
                        e = ve(torch.cat(ps)).view(len(ps), len(ii), -1).mean(0)
                        E[f've{v}'][I] = F.normalize(e, dim=1).to(torch.float16)
    for k, x in A.items(): np.save(f'{out}/{k}.npy', x.cpu().numpy())
    if E: np.savez(f'{out}/emb.npz', **{k: x.cpu().numpy() for k, x in E.items()})
    if 'ph' in want:
        import json
        ph, inv = phoneme_labels(B, json.load(open(a.labels)) if a.labels else None)
        np.save(out + '/ph.npy', ph)
    else: inv = None
    txt = [np.array(encode(punc_norm(u[4])) if u[4] else [], np.int16) for u in B.U]
    phones = sorted({p for u in B.U for p in (u[7] or ())})
    pid = {p: i + 1 for i, p in enumerate(phones)}
    can = [np.array([pid[p] for p in u[7] or ()], np.uint8) for u in B.U]
    cat = lambda L: (np.concatenate(L) if L else np.zeros(0, np.int16), np.concatenate([[0], np.cumsum([len(x) for x in L])]))
    (tx, toff), (cn, coff) = cat(txt), cat(can)
    np.savez(out + '/utt.npz', sid=np.array([u[0] for u in B.U]), off=B.off, n24=B.n24, f0mean=fm, emo=B.emo, kind=B.kind, text=tx, toff=toff, phones=cn, poff=coff,
             held=np.array([B.spk[u[0]]['held'] for u in B.U]))
    pickle.dump(dict(nspk=len(B.spk), labels=inv, phones=pid, words=[u[4] for u in B.U if B.spk[u[0]]['held']]), open(out + '/meta.pkl', 'wb'))
    open(out + '/done', 'w').write('1')
    print(f'prepare {a.part}: {N} utterances, {T / 90000:.2f} h, {time.time() - t0:.1f} s, kinds {np.bincount(B.kind).tolist()}', flush=True)


if __name__ == '__main__':
    main()
