"""Voice encoder (T3 conditioning) and CAMPPlus (flow conditioning), parameter names as in the reference checkpoints."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
from config import CFG

class VoiceEncoder(nn.Module):
    def __init__(s, c=CFG['ve']):
        super().__init__()
        s.lstm = nn.LSTM(c['num_mels'], c['hidden'], num_layers=c['layers'], batch_first=True)
        s.proj = nn.Linear(c['hidden'], c['embed'])
        s.similarity_weight = nn.Parameter(torch.tensor([10.])); s.similarity_bias = nn.Parameter(torch.tensor([-5.]))

    def forward(s, m):
        _, (h, _) = s.lstm(m)
        e = F.relu(s.proj(h[-1]))
        return e / (torch.linalg.norm(e, dim=1, keepdim=True) + 1e-8)

class BasicResBlock(nn.Module):
    def __init__(s, i, o, stride):
        super().__init__()
        s.conv1 = nn.Conv2d(i, o, 3, (stride, 1), 1, bias=False); s.bn1 = nn.BatchNorm2d(o)
        s.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False); s.bn2 = nn.BatchNorm2d(o)
        s.shortcut = nn.Sequential(nn.Conv2d(i, o, 1, (stride, 1), bias=False), nn.BatchNorm2d(o)) if stride != 1 or i != o else nn.Sequential()

    def forward(s, x):
        return F.relu(s.bn2(s.conv2(F.relu(s.bn1(s.conv1(x))))) + s.shortcut(x))


class FCM(nn.Module):
    def __init__(s, m, feat=80):
        super().__init__()
        s.conv1 = nn.Conv2d(1, m, 3, 1, 1, bias=False); s.bn1 = nn.BatchNorm2d(m)
        s.layer1 = nn.Sequential(BasicResBlock(m, m, 2), BasicResBlock(m, m, 1))
        s.layer2 = nn.Sequential(BasicResBlock(m, m, 2), BasicResBlock(m, m, 1))
        s.conv2 = nn.Conv2d(m, m, 3, (2, 1), 1, bias=False); s.bn2 = nn.BatchNorm2d(m)
        s.out_channels = m * (feat // 8)

    def forward(s, x):
        x = F.relu(s.bn1(s.conv1(x.unsqueeze(1))))
        x = F.relu(s.bn2(s.conv2(s.layer2(s.layer1(x)))))
        return x.flatten(1, 2)


def bnrelu(c):
    q = nn.Sequential(); q.add_module('batchnorm', nn.BatchNorm1d(c)); q.add_module('relu', nn.ReLU()); return q


class TDNN(nn.Module):
    def __init__(s, i, o, k, stride):
        super().__init__()
        s.linear = nn.Conv1d(i, o, k, stride, (k - 1) // 2, bias=False); s.nonlinear = bnrelu(o)

    def forward(s, x): return s.nonlinear(s.linear(x))


class CAMLayer(nn.Module):
    def __init__(s, b, o, k, dil):
        super().__init__()
        s.linear_local = nn.Conv1d(b, o, k, padding=(k - 1) // 2 * dil, dilation=dil, bias=False)
        s.linear1 = nn.Conv1d(b, b // 2, 1); s.linear2 = nn.Conv1d(b // 2, o, 1)

    def forward(s, x):
        seg = F.avg_pool1d(x, 100, 100, ceil_mode=True)
        seg = seg.repeat_interleave(100, -1)[..., :x.shape[-1]]
        c = x.mean(-1, keepdim=True) + seg
        return s.linear_local(x) * torch.sigmoid(s.linear2(F.relu(s.linear1(c))))


class CAMDense(nn.Module):
    def __init__(s, i, o, b, k, dil):
        super().__init__()
        s.nonlinear1 = bnrelu(i); s.linear1 = nn.Conv1d(i, b, 1, bias=False); s.nonlinear2 = bnrelu(b); s.cam_layer = CAMLayer(b, o, k, dil)

    def forward(s, x): return s.cam_layer(s.nonlinear2(s.linear1(s.nonlinear1(x))))


class CAMBlock(nn.ModuleList):
    def __init__(s, n, i, o, b, k, dil):
        super().__init__()
        for j in range(n): s.add_module(f'tdnnd{j + 1}', CAMDense(i + j * o, o, b, k, dil))

    def forward(s, x):
        for l in s: x = torch.cat([x, l(x)], 1)
        return x


class Transit(nn.Module):
    def __init__(s, i, o):
        super().__init__()
        s.nonlinear = bnrelu(i); s.linear = nn.Conv1d(i, o, 1, bias=False)

    def forward(s, x): return s.linear(s.nonlinear(x))


class StatsPool(nn.Module):
    def forward(s, x): return torch.cat([x.mean(-1), x.std(-1, unbiased=True)], -1)


class Dense(nn.Module):
    def __init__(s, i, o):
        super().__init__()
        s.linear = nn.Conv1d(i, o, 1, bias=False); s.nonlinear = nn.Sequential(); s.nonlinear.add_module('batchnorm', nn.BatchNorm1d(o, affine=False))

    def forward(s, x): return s.nonlinear(s.linear(x.unsqueeze(-1)).squeeze(-1))


class CAMPPlus(nn.Module):
    def __init__(s, c=CFG['spk']):
        super().__init__()
        s.head = FCM(c['m']); ch = c['init']; g = c['growth']
        s.xvector = nn.Sequential(); s.xvector.add_module('tdnn', TDNN(s.head.out_channels, ch, 5, 2))
        for i, (n, k, d) in enumerate(zip(c['blocks'], (3, 3, 3), (1, 2, 2))):
            s.xvector.add_module(f'block{i + 1}', CAMBlock(n, ch, g, c['bn'] * g, k, d)); ch += n * g
            s.xvector.add_module(f'transit{i + 1}', Transit(ch, ch // 2)); ch //= 2
        s.xvector.add_module('out_nonlinear', bnrelu(ch)); s.xvector.add_module('stats', StatsPool()); s.xvector.add_module('dense', Dense(ch * 2, c['embed']))
        for m in s.modules():
            if isinstance(m, nn.Conv1d):
                nn.init.kaiming_normal_(m.weight)
                if m.bias is not None: nn.init.zeros_(m.bias)

    def forward(s, x): return s.xvector(s.head(x.permute(0, 2, 1)))

