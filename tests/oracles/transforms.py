# transforms.py -- closed-form changes of basis in SciPy, written from the papers' equations.
#
#     python3 transforms.py [FOLDER]   writes transform_32.txt; FOLDER is tests/fixtures by default
#
# An independent twin of examples/calibration/transform_basis.c.
# WUSH (arXiv:2512.00956) comes from the singular
# values of M^1/2 L rather than from the eigenvalues of L^T M L; the determinant gives the constant
# of the geometric-mean decomposition.  Eigenvectors have the sign that transform_matrix.h fixes.
#
# Inputs are not stored: class Lcg and test_transform.c make the same integers, whose moments are
# sums of products below 2^53, so exact in both.
#
# The file: lines `name rows columns`, then the numbers of each row on a line, 9 digits.

import os
import sys
import numpy as np
import scipy.linalg as la

DIM, ROWS = 32, 256
MOMENT_SEED, PRICE_SEED = 101, 202


class Lcg:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 40) % 2048 - 1024


def samples(seed):
    """[ROWS, DIM] integers: mixed neighbours, so that channels correlate, each with its size."""
    lcg = Lcg(seed)
    x = np.array([lcg.next() for _ in range(ROWS * DIM)], np.int64).reshape(ROWS, DIM)
    size = np.array([1 + (i * 7 + seed) % 13 for i in range(DIM)], np.int64)
    return (x + np.roll(x, 1, axis=1) * 2) * size


def moment(seed):
    x = samples(seed).astype(np.float64)
    return x.T @ x


def damped(s, gamma):
    return s + gamma * np.trace(s) / len(s) * np.eye(len(s))


def with_signs(vectors):
    v = vectors.copy()
    for k in range(v.shape[1]):
        if v[np.argmax(np.abs(v[:, k])), k] < 0:
            v[:, k] = -v[:, k]
    return v


def scaled(t, m):
    return t * np.sqrt(np.trace(m) / np.trace(t @ m @ t.T))


def balance(m, a):
    m, a = damped(m, .01), damped(a, .01)
    lower = la.cholesky(a, lower=True)
    _, s, ut = la.svd(la.sqrtm(m) @ lower)
    u = with_signs(ut.T)
    h = la.hadamard(DIM) / np.sqrt(DIM)
    return scaled(h @ np.diag(s**-.5) @ u.T @ lower.T, m)


def eigen(a):
    _, v = la.eigh(damped(a, .01))
    r = with_signs(v[:, ::-1]) @ (la.hadamard(DIM) / np.sqrt(DIM))
    bits = DIM.bit_length() - 1
    order = [int(format(i, f"0{bits}b")[::-1], 2) for i in range(DIM)]
    return r[:, order].T


def whiten(m):
    m = damped(m, .01)
    return scaled(la.hadamard(DIM) / np.sqrt(DIM) @ la.inv(la.sqrtm(m)).real, m)


def flat(m, a):
    """(T^T T, the constant D, A as damped): what no choice of P changes."""
    m, a = damped(m / np.trace(m) * DIM, .01), damped(a / np.trace(a) * DIM, .05)
    w = la.fractional_matrix_power(m, -.4).real
    back = la.inv(w)
    a0 = damped(back @ a @ back, .03)
    scale = np.trace(m) / np.trace(w @ m @ w)
    constant = np.exp(np.linalg.slogdet(a0)[1] / DIM) / scale
    return scale * w @ w, np.array([[constant]])


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(
        os.path.dirname(os.path.abspath(__file__)), "..", "fixtures")
    m, a = moment(MOMENT_SEED), moment(PRICE_SEED)
    gram, constant = flat(m, a)
    arrays = [("balance", balance(m, a)), ("eigen", eigen(a)), ("whiten", whiten(m)),
              ("flat_gram", gram), ("flat_constant", constant)]
    with open(os.path.join(folder, "transform_32.txt"), "w", encoding="ascii") as file:
        for name, x in arrays:
            file.write(f"{name} {x.shape[0]} {x.shape[1]}\n")
            for row in x:
                file.write(" ".join(f"{v:.9g}" for v in row) + "\n")


if __name__ == "__main__":
    main()
