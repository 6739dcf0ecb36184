"""Hooks that record what happens inside the reference: module outputs and random draws."""
import contextlib

import torch
from torch.distributions.uniform import Uniform


class Capture(dict):
    """Outputs (or inputs) of hooked modules under plain names; the first call of each counts."""

    def __init__(self):
        super().__init__()
        self.hooks = []

    def put(self, name, value):
        if torch.is_tensor(value) and name not in self:
            self[name] = value.detach().clone()

    def out(self, module, name, index=0):
        pick = lambda o: o[index] if isinstance(o, (tuple, list)) else o
        self.hooks.append(module.register_forward_hook(lambda m, i, o: self.put(name, pick(o))))

    def inp(self, module, name):
        self.hooks.append(module.register_forward_pre_hook(lambda m, i: self.put(name, i[0])))

    def done(self):
        for h in self.hooks:
            h.remove()
        self.hooks = []
        return self


@contextlib.contextmanager
def recorded_draws(f16=False):
    """Yield a list that collects (kind, tensor) for every randn, randn_like and Uniform.sample in call order.
    f16: round each draw to float16 first, so that it can be stored in half the space without loss."""
    draws = []
    saved = torch.randn_like, torch.randn, Uniform.sample

    def wrap(f, kind):
        def g(*args, **kwargs):
            r = f(*args, **kwargs)
            r = r.half().to(r.dtype) if f16 else r
            draws.append((kind, r.clone()))
            return r
        return g

    torch.randn_like, torch.randn, Uniform.sample = (wrap(f, k) for f, k in zip(saved, ("randn_like", "randn", "uniform")))
    try:
        yield draws
    finally:
        torch.randn_like, torch.randn, Uniform.sample = saved


def hift_draws(draws):
    """The vocoder draws uniform phases, then noise, then a tensor nobody uses. -> phases (9), noise (9, L)"""
    i = next(k for k, (kind, _) in enumerate(draws) if kind == "uniform")
    phases = draws[i][1].reshape(-1).clone()
    phases[0] = 0.0  # the reference zeroes the fundamental's
    return phases, draws[i + 1][1][0]


def flow_z(draws, meanflow):
    """The initial x of the flow (1, 80, T). Mean-flow draws the generated part first, then the whole, and puts the
    first draw over the tail of the second."""
    d = [t for kind, t in draws if kind != "uniform"]
    if not meanflow:
        return d[0]
    z = d[1].clone()
    z[..., z.shape[-1] - d[0].shape[-1]:] = d[0]
    return z
