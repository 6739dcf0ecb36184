"""Edit distance."""
import numpy as np


def distance(r, h):
    d = np.arange(len(h) + 1)
    for i in range(1, len(r) + 1):
        p = d.copy()
        d[0] = i
        for j in range(1, len(h) + 1):
            d[j] = min(p[j] + 1, d[j - 1] + 1, p[j - 1] + (r[i - 1] != h[j - 1]))
    return int(d[len(h)])
