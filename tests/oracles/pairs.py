# pairs.py -- bits and sizes of RoPE pairs as gen/parts/pairs.lua defines them, in NumPy.
#
#     python3 tests/oracles/pairs.py tests/fixtures/pairs.txt
#
# Writes what calibration must make of rows that tests/test_pairs.c makes too: the two sort what
# each next bit of each pair takes off, where the library gives one bit after the other.  A case is
# a line `case HEAD_DIM HALVES DIMS BASE BITS SHIFT`, then for each KV head the bits of channels,
# and their sizes.

import sys
import numpy as np
import make_fixtures as inputs

ROWS, Q_HEADS, KV_HEADS, MOST = 96, 4, 2, 6

# head dim, pairs (i, i + dims / 2), channels that turn, base, bits, shift of keys
CASES = [
    (64, 1, 64, 10000, 2, "none"), (64, 0, 64, 1000, 3, "mean"),
    (64, 1, 32, 10000, 1, "rotating-mean"), (80, 1, 80, 10000, 2, "none"),
    (80, 0, 48, 500, 4, "none"), (96, 0, 96, 10000, 2, "rotating-mean"),
    (96, 1, 64, 1000, 3, "none"), (128, 1, 128, 500000, 2, "none"),
    (128, 0, 96, 10000, 2, "mean"), (128, 1, 64, 10000, 4, "none"),
]


def channels_of(dim, halves, dims):
    """[dim / 2, 2]: those that turn, then neighbours."""
    turn = [(i, i + dims // 2) if halves else (2 * i, 2 * i + 1) for i in range(dims // 2)]
    return np.array(turn + [(i, i + 1) for i in range(dims, dim, 2)])


def turned_back(k, pairs, dims, base):
    """Keys [rows, dim] as they were at position 0."""
    out = k.copy()
    for i in range(dims // 2):
        a, b = pairs[i]
        angle = np.arange(len(k)) * float(base) ** (-2.0 * i / dims)
        z = (k[:, a] + 1j * k[:, b]) * np.exp(-1j * angle)
        out[:, a], out[:, b] = z.real, z.imag
    return out


def share(energy, bits):
    """The bits of pairs: those whose next bits take most off sum s 4^-n, at most MOST of a pair."""
    gains = [(-s * (4.0**-n - 4.0**-(n + 1)), i) for i, s in enumerate(energy)
             for n in range(MOST)]
    given = sorted(gains)[:len(energy) * bits]
    return np.bincount([i for _, i in given], minlength=len(energy))


def derive(k, q, case):
    """k [rows, dim], q [rows, group, dim] of a head -> bits, sizes [dim]."""
    dim, halves, dims, base, bits, shift = case
    pairs = channels_of(dim, halves, dims)
    x = turned_back(k, pairs, dims, base) if shift == "rotating-mean" else k
    x = x - x.mean(axis=0) if shift != "none" else x
    keys = np.array([np.mean(np.sum(x[:, p]**2, axis=1)) for p in pairs])
    queries = np.array([np.mean(np.sum(q[..., p]**2, axis=-1)) for p in pairs])
    n, out = share((keys + queries) / 2, bits), np.zeros((2, dim))
    for i, p in enumerate(pairs):
        out[0, p], out[1, p] = n[i], np.sqrt(keys[i] / 2)
    return out


def main():
    with open(sys.argv[1], "w", encoding="ascii") as file:
        for number, case in enumerate(CASES):
            dim = case[0]
            k = inputs.make_rows(40 + number, ROWS, KV_HEADS, dim).astype(np.float64)
            q = inputs.make_rows(80 + number, ROWS, Q_HEADS, dim).astype(np.float64) / 8
            print("case", *case, file=file)
            for head in range(KV_HEADS):
                group = Q_HEADS // KV_HEADS
                bits, sizes = derive(k[:, head], q[:, head * group:(head + 1) * group], case)
                print(*(int(n) for n in bits), file=file)
                print(*("%.9g" % x for x in sizes), file=file)


if __name__ == "__main__":
    main()
