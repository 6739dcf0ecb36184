"""Checkpoints -> model folder with the reference's file layout and tensor names, f16.
    python3 export.py --ck DIR --out DIR [--standard 1]
--standard writes the same network as a standard flow, s3gen.safetensors: a mean flow's velocity over no time at all is the flow's velocity, and with both
ends at one time the mixer is one matrix more behind the time's projection."""
import argparse, json, os
import torch
import features as ft
from config import CFG
from safetensors.torch import load_file, save_file
from speech_text import VOCAB

# The prompt is a chunk of its own (its lookahead stops at its end), then first_chunk_tokens, then chunk_tokens each; attention sees its own and all
# earlier chunks.  Any sizes of 2 to 32 tokens were trained, and counting chunks from the first prompt token works as well.
CHUNKS = dict(chunk_tokens=10, prompt_is_chunk=True, first_chunk_tokens=5)


def fold_mixer(flow):
    """Mean flow -> standard flow: mixer([e, e]) = (A + B) e with e = W h + b, so W' = (A + B) W, b' = (A + B) b"""
    p = 'decoder.estimator.'
    mixer = flow[p + 'time_embed_mixer.weight'].double()
    both = mixer[:, :len(mixer)] + mixer[:, len(mixer):]
    out = {k: v for k, v in flow.items() if k != p + 'time_embed_mixer.weight'}
    for k in (p + 'time_mlp.linear_2.weight', p + 'time_mlp.linear_2.bias'):
        out[k] = (both @ flow[k].double()).float()
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('--ck', default='/tmp/ck'); ap.add_argument('--out', default='/tmp/model'); ap.add_argument('--t3', default='t3'); ap.add_argument('--temperature', type=float, default=.7)
    ap.add_argument('--cfg_weight', type=float, default=.5); ap.add_argument('--repetition_penalty', type=float, default=1.1); ap.add_argument('--steps', type=int, default=0, help='flow steps; 0: 1, or 10 of a standard flow')
    ap.add_argument('--standard', type=int, default=0)
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    get = lambda n: load_file(f'{a.ck}/{n}.safetensors')
    half = lambda sd: {k: (v.half() if v.is_floating_point() else v).contiguous() for k, v in sd.items()}
    s3 = {}
    for p, n in (('tokenizer.', 'tokenizer'), ('speaker_encoder.', 'camplus'), ('flow.', 'flow'), ('mel2wav.', 'hift')):
        s3.update({p + k: v for k, v in (fold_mixer(get(n)) if n == 'flow' and a.standard else get(n)).items()})
    s3 = half(s3)
    s3['tokenizer._mel_filters'] = ft._dev('mel', torch.device('cpu'), 16000, 400, 128, 0, 8000).float().clone().contiguous()
    s3['tokenizer.window'] = torch.hann_window(400)
    t3 = get(a.t3)
    for k, n in (('text_pos_emb.emb.weight', CFG['t3']['max_text'] + 2), ('speech_pos_emb.emb.weight', CFG['t3']['max_speech'] + 4)):
        t3[k] = t3[k][:n]
    save_file(half(t3), f'{a.out}/t3_cfg.safetensors')
    save_file(s3, f'{a.out}/{"s3gen" if a.standard else "s3gen_meanflow"}.safetensors')
    save_file(half(get('ve')), f'{a.out}/ve.safetensors')
    special = sorted(((k, v) for k, v in VOCAB.items() if len(k) > 1), key=lambda x: x[1])
    tok = dict(version='1.0', truncation=None, padding=None,
               added_tokens=[dict(id=v, content=k, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True) for k, v in special],
               normalizer=None, pre_tokenizer=None, post_processor=None, decoder=None,
               model=dict(type='BPE', dropout=None, unk_token='[UNK]', continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False, byte_fallback=False,
                          ignore_merges=False, vocab=dict(sorted(VOCAB.items(), key=lambda x: x[1])), merges=[]))
    cfg = dict(CFG, note='Chatterbox architecture at reduced size: trained from scratch on espeak-ng / flite speech and 50 minutes of LibriSpeech (CC BY 4.0); voice encoder: GE2E weights of Resemblyzer (Apache-2.0)',
               t3_sampling=dict(temperature=a.temperature, cfg_weight=a.cfg_weight, repetition_penalty=a.repetition_penalty, min_p=.05, top_p=1.0), cfm_steps=a.steps or (10 if a.standard else 1),
               cfm_noise_scale=float(a.standard), meanflow=not a.standard, expand_text=True,
               text_tokens_dict_size=256, speech_tokens_dict_size=6563, start_text=255, stop_text=0, start_speech=6561, stop_speech=6562, max_chars=160)
    cfg['flow'] = dict(cfg['flow'], chunk_causal=CHUNKS)
    json.dump(tok, open(a.out + '/tokenizer.json', 'w'))
    json.dump(cfg, open(a.out + '/config.json', 'w'), indent=1)
    sizes = {x: os.path.getsize(f'{a.out}/{x}') for x in sorted(os.listdir(a.out))}
    print(sizes, 'total', round(sum(sizes.values()) / 1e6, 2), 'MB')


if __name__ == '__main__':
    main()
