"""Phoneme recogniser for evaluation only: log mel -> 2-D convolutions -> bidirectional LSTM -> CTC.  Shares nothing with the models it judges."""
import json, torch, torch.nn as nn, torch.nn.functional as F
import features as ft


class Recognizer(nn.Module):
    def __init__(s, n, d=256):
        super().__init__()
        s.c1, s.c2, s.c3 = nn.Conv2d(1, 32, 3, (1, 2), 1), nn.Conv2d(32, 32, 3, (2, 2), 1), nn.Conv2d(32, 48, 3, (1, 2), 1)
        s.norm = nn.LayerNorm(480)
        s.rnn = nn.LSTM(480, d, 3, batch_first=True, bidirectional=True, dropout=.1)
        s.out = nn.Linear(2 * d, n + 1)

    def forward(s, y16):
        """(B,L) at 16 kHz -> (B,L/320,classes) logits at 50 Hz"""
        x = ft.fbank(F.pad(y16, (120, 120)))
        x = F.gelu(s.c3(F.gelu(s.c2(F.gelu(s.c1(x[:, None] / 4))))))
        x = s.norm(x.transpose(1, 2).flatten(2))
        return s.out(s.rnn(x)[0])

    @torch.no_grad()
    def decode(s, y16):
        p, o, last = s(y16)[0].argmax(-1).tolist(), [], 0
        for i in p:
            if i and i != last:
                o.append(s.names[i])
            last = i
        return o


def load_recognizer(folder):
    from safetensors.torch import load_file
    names = json.load(open(folder + '/recognizer.json'))
    m = Recognizer(len(names))
    m.load_state_dict({k: v.float() for k, v in load_file(folder + '/recognizer.safetensors').items()})
    m.names = [''] + names
    return m.eval()
