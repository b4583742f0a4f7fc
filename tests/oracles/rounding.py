# rounding.py -- what ways of rounding lose of a model's values at 2 bits, and what any must lose.
#
#     python3 rounding.py CALIBRATION.safetensors [GROUP]          needs NumPy and safetensors
#
# Rows are normal with the second moment that a calibration of loom has of each layer's and head's
# values in their stored basis (whiten), and an error e costs e^T A e with A the output's price
# there, of mean 1, damped by 0.02.  Each way has the best of 26 grids of a group, its middle and
# scale exact; printed is the mean cost of a value.  The last line is D(R) = 2^(-2 R) of a normal
# value times the geometric mean of A's eigenvalues: no code of 2 bits a value with this price and
# these moments is better (Cover and Thomas, Elements of Information Theory, 10.3).

import sys
import numpy as np
from safetensors import safe_open
import trellis

BITS, STATES, ROWS = 2, 8, 128


def lower(a):
    """F unit lower, D: e^T A e = sum of D_j (e_j + sum over i < j of F_ji e_i)^2."""
    flipped = np.linalg.cholesky(a[::-1, ::-1])
    d = np.diag(flipped)
    return (flipped / d)[::-1, ::-1].T, d[::-1] ** 2


def cost(e, a):
    return np.einsum("ti,ij,tj->", e, a, e) / e.size


def grids(y, group, levels, error):
    """Scale and lowest level of each value, those of the shrunk range that errs least."""
    parts = y.reshape(len(y), -1, group)
    low, high = parts.min(2, keepdims=True), parts.max(2, keepdims=True)
    best = [np.full(low.shape, np.inf), low, low]
    for shrink in np.linspace(1.0, 0.5, 26):
        scale = (high - low) * shrink / (levels - 1)
        offset = (low + high) / 2 - scale * (levels - 1) / 2
        e = error(parts, scale, offset).sum(2, keepdims=True)
        best = [np.where(e < best[0], new, old) for new, old in zip([e, scale, offset], best)]
    return [np.broadcast_to(x, parts.shape).reshape(y.shape) for x in best[1:]]


def nearest(y, scale, offset, levels):
    return y - (np.clip(np.rint((y - offset) / scale), 0, levels - 1) * scale + offset)


def by_levels(y, a, group, feedback, sweeps):
    levels = 2**BITS
    scale, offset = grids(y, group, levels, lambda x, s, o: nearest(x, s, o, levels) ** 2)
    order = np.argsort(-np.diag(a))
    y, scale, offset, a = y[:, order], scale[:, order], offset[:, order], a[np.ix_(order, order)]
    factor, _ = lower(a)
    e = np.zeros_like(y)

    def rounded(j, moved):
        target = y[:, j] + moved
        return nearest(target, scale[:, j], offset[:, j], levels) - moved

    for j in range(y.shape[1]):
        e[:, j] = rounded(j, e[:, :j] @ factor[j, :j] if feedback else 0.0)
    for _ in range(sweeps):
        for j in range(y.shape[1]):
            e[:, j] = rounded(j, e @ a[j] / a[j, j] - e[:, j])
    return cost(e, a)


def ways(y, base, factor, d, scale, offset, begin):
    """Sums [rows, states] and errors of the best ways through a group; begin: their state."""
    rows, half, n = len(y), STATES // 2, y.shape[1]
    at = np.arange(STATES)
    sums = np.zeros((rows, STATES)) if begin is None else np.where(at == begin[:, None], 0.0, 1e30)
    e = np.zeros((rows, STATES, n))
    for j in range(n):
        w = ((y[:, j] + base[:, j])[:, None] + e[:, :, :j] @ factor[j, :j] - offset[:, j, None])
        w = w / scale[:, j, None]
        into = []
        for k in range(2):
            s = (at >> 1) + k * half
            sub = np.array([trellis.sub_grid(int(v), int(t) & 1, STATES) for v, t in zip(s, at)])
            level = 4 * np.clip(np.rint((w[:, s] - sub) / 4), 0, 2 ** (BITS - 1) - 1) + sub
            costs = sums[:, s] + d[j] * ((w[:, s] - level) * scale[:, j, None]) ** 2
            into.append((costs, e[:, s], y[:, j, None] - level * scale[:, j, None]
                         - offset[:, j, None]))
        second = into[1][0] < into[0][0]
        sums = np.where(second, into[1][0], into[0][0])
        e = np.where(second[:, :, None], into[1][1], into[0][1])
        e[:, :, j] = np.where(second, into[1][2], into[0][2])
    return sums, e


def by_paths(y, a, group, feedback):
    levels = 2 ** (BITS + 1)
    # A path's error where its grid reaches: that of one finer level in three.
    scale, offset = grids(y, group, levels, lambda x, s, o: s**2 / 3
                          + (x - np.clip(x, o, o + s * (levels - 1))) ** 2)
    factor, d = lower(a) if feedback else (np.eye(len(a)), np.ones(len(a)))
    e = np.zeros_like(y)
    for first in range(0, y.shape[1], group):
        part = slice(first, first + group)
        base = e[:, :first] @ factor[part, :first].T
        begin = None
        for _ in range(2):
            sums, all_ways = ways(y[:, part], base, factor[part, part], d[part], scale[:, part],
                                  offset[:, part], begin)
            begin = sums.argmin(1) if begin is None else begin
        e[:, part] = all_ways[np.arange(len(y)), begin]
    return cost(e, a)


def main(path, group=64):
    generator = np.random.default_rng(1)
    totals, heads = np.zeros(6), 0
    with safe_open(path, "np") as file:
        def table(layer, name):
            return file.get_tensor(f"layer.{layer}.{name}").astype(float)
        names = set(file.keys())
        layers = [l for l in range(1000) if f"layer.{l}.v.whiten_forward" in names]
        for layer in layers:
            for forward, query, price, moment in zip(*(table(layer, name) for name in (
                    "v.whiten_forward", "v.whiten_query", "stat.output_outer",
                    "stat.value_outer"))):
                a, m = query @ price @ query.T, forward @ moment @ forward.T
                a = a / np.trace(a) * len(a) + 0.02 * np.eye(len(a))
                m = m / np.trace(m) * len(m) + 1e-6 * np.eye(len(m))
                y = generator.standard_normal((ROWS, len(m))) @ np.linalg.cholesky(m).T
                bound = np.exp(np.log(np.linalg.eigvalsh(a)).mean()) * 2.0 ** (-2 * BITS)
                totals += [by_levels(y, a, group, False, 0), by_levels(y, a, group, True, 0),
                           by_levels(y, a, group, True, 2), by_paths(y, a, group, False),
                           by_paths(y, a, group, True), bound]
                heads += 1
    print(f"{heads} heads, {ROWS} rows each, groups of {group}: cost of a value")
    for name, total in zip(("nearest", "feedback", "feedback2", "trellis", "feedback_trellis",
                            "bound"), totals / heads):
        print(f"{name:17} {total:.4f}")


if __name__ == "__main__":
    main(sys.argv[1], *(int(x) for x in sys.argv[2:]))
