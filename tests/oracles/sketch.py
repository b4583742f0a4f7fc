# sketch.py -- extra=sketch and sketch_apart in NumPy, from what gen/parts/sketch.lua defines.
#
# Rotations are matrices here.  `python3 sketch.py` checks the estimator: unbiased within sampling
# error, over random rows or random matrices, and of the variance that theory gives.

import math
import numpy as np

F32, F64 = np.float32, np.float64
APART, UNIT = 8, 32


def signs(dim, i):
    out = np.zeros(dim)
    for c in range(dim):
        h = (c + 1 + 1024 * (i + 1)) * 2654435761 % 2**32
        h = (h ^ (h >> 15)) * 2246822519 % 2**32
        h ^= h >> 13
        out[c] = -1 if h % 2 else 1
    return out


def rotation(dim, j):
    """Q_j as a matrix, float64: three rounds of signs, Hadamards of pieces, a transposition."""
    n = dim & -dim
    h = np.array([[(-1)**bin(a & b).count("1") for b in range(n)] for a in range(n)]) / math.sqrt(n)
    pieces = np.kron(np.eye(dim // n), h)
    channels = np.arange(dim).reshape(dim // n, n).T.reshape(-1)     # the one that comes to place c
    q = np.eye(dim)
    for i in range(3 * j, 3 * j + 3):
        q = (pieces @ (signs(dim, i)[:, None] * q))[channels]
    return q


def gain(dim):
    return math.sqrt(math.pi) * math.exp(math.lgamma((dim + 1) / 2) - math.lgamma(dim / 2)) / dim


def norms(r):
    """Of rows, in float32 and in order, as f16."""
    total = np.zeros(len(r), F32)
    for c in range(r.shape[1]):
        total = (total + r[:, c] * r[:, c]).astype(F32)
    return np.sqrt(total).astype(np.float16)


def sketch_of(r, rotations, turn):
    """norm [n], signs [n, rotations, d] of rows."""
    turned = np.stack([r.astype(F64) @ turn(r.shape[1], j).T for j in range(rotations)], 1)
    return {"norm": norms(r), "signs": np.where(turned < 0, -1, 1)}


def store(r, number, apart, turn=rotation):
    """Parts of the residuals r [n, d]: sketches, with the channels of each row that they have."""
    r = np.asarray(r, F32)
    if not apart:
        return [(np.ones(r.shape, bool), sketch_of(r, number, turn))]
    out = np.zeros(r.shape, bool)
    for first in range(0, len(r), UNIT):
        unit = r[first:first + UNIT]
        sums = np.zeros(r.shape[1], F32)
        for row in unit:
            sums = (sums + row * row).astype(F32)
        out[first:first + UNIT, np.argsort(-sums, kind="stable")[:APART]] = True
    return [(~out, sketch_of(np.where(out, F32(0), r), number, turn)),
            (out, sketch_of(np.where(out, r, F32(0)), 1, turn))]


def read(parts, turn=rotation):
    """What the sketches add to rows, float64."""
    total = 0
    for channels, s in parts:
        n, rotations, dim = s["signs"].shape
        back = sum(s["signs"][:, j].astype(F64) @ turn(dim, j) for j in range(rotations))
        total = total + channels * back * (gain(dim) / rotations * s["norm"].astype(F64))[:, None]
    return total


def measure(error, q, r):
    """How much of q . r an estimate has too much, and the mean error."""
    exact = r.astype(F64) @ q
    return np.sum(error * exact) / np.sum(exact**2), error.mean()


def check_rotations(dim, number, rows=64000):
    """Over rows of random directions  q . r' - q . r  is 0 in the mean, has nothing of q . r, and
    its mean square is  |q|^2 |r|^2 (g^2 d - 1) / (d rotations): for these very rotations."""
    rng = np.random.default_rng(dim + number)
    r, q = rng.standard_normal((rows, dim)).astype(F32), rng.standard_normal(dim)
    error = read(store(r, number, False)) @ q - r.astype(F64) @ q
    slope, mean = measure(error, q, r)
    square = (q @ q) * (gain(dim)**2 * dim - 1) / number
    print(f"dim {dim}, {number} rotations: slope {slope:.5f}, mean {mean:.5f}, mean square "
          f"{np.mean(error**2):.2f}, in theory {square:.2f}")
    assert abs(np.mean(error**2) / square - 1) < 0.03
    assert abs(mean) < 4 * math.sqrt(square / rows)
    assert abs(slope) < 4 * math.sqrt(square / rows / (q @ q))


def check_apart(dim, number, draws=400, rows=64):
    """The same over random orthogonal matrices, for rows with outlying channels."""
    rng = np.random.default_rng(dim)
    found = []
    for _ in range(draws):
        matrices = [np.linalg.qr(rng.standard_normal((dim, dim)))[0] for _ in range(number)]
        r, q = rng.standard_normal((rows, dim)).astype(F32), rng.standard_normal(dim)
        r[:, rng.choice(dim, 4, False)] *= 20
        parts = store(r, number, True, lambda d, j: matrices[j])
        found.append(measure(read(parts, lambda d, j: matrices[j]) @ q - r.astype(F64) @ q, q, r))
    mean, spread = np.mean(found, 0), np.std(found, 0) / math.sqrt(draws)
    print(f"dim {dim}, {number} rotations and channels apart: slope {mean[0]:.5f} +- "
          f"{spread[0]:.5f}, mean {mean[1]:.5f} +- {spread[1]:.5f}")
    assert np.all(np.abs(mean) < 4 * spread)


if __name__ == "__main__":
    for j in range(4):
        for d in (64, 80, 96, 128):
            assert np.allclose(rotation(d, j) @ rotation(d, j).T, np.eye(d))
    for d, n in ((64, 1), (80, 2), (128, 1), (128, 4)):
        check_rotations(d, n)
    check_apart(128, 2)
