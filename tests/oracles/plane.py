# plane.py -- points of the plane that quantize a normal distribution with least squared error.
#
#     python3 tests/oracles/plane.py > gen/points.lua        needs NumPy and SciPy
#     python3 tests/oracles/plane.py --check                 what gen/points.lua has
#
# Of 4^bits points the distortion E |x - nearest point|^2 / 2, x normal in two dimensions, is least
# where each point is the mean of what is nearest to it (Lloyd).  Both are sums over the edges of
# the cells, without error but for rounding and one smooth integral: with the density f,
# grad f = -x f, so that for a cell
#     integral of x f = -sum over edges of n f(h) (F(b) - F(a))
# n the edge's normal, h its distance from 0, a and b where it begins and ends along itself, F the
# distribution of one dimension; and in the angle t seen from 0
#     mass = 1 / (2 pi) sum of the integrals of (1 - exp(-r^2 / 2)) dt
# From random points, steps of L-BFGS lead to a minimum; of STARTS of them the least is taken.  It
# is turned so that the point that is farthest from 0 lies on the first axis.

import os
import re
import sys
import numpy as np
from scipy.optimize import minimize
from scipy.spatial import Voronoi
from scipy.special import ndtr

STARTS = {2: 40, 3: 30, 4: 8}
FAR = 400.0                     # four points that close the outer cells where there is no mass
NODES, WEIGHTS = np.polynomial.legendre.leggauss(40)
LUA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "gen", "points.lua")


def cells(points):
    """Mass [n] and integral of x f [n, 2] of each point's cell."""
    n = len(points)
    far = FAR * np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])
    v = Voronoi(np.concatenate([points, far]))
    ridges = np.array(v.ridge_vertices)
    closed = ridges.min(axis=1) >= 0
    pair, ends = v.ridge_points[closed], v.vertices[ridges[closed]]
    mass, first = np.zeros(n + 4), np.zeros((n + 4, 2))
    # Seen from the first point of each pair, the normal points to the second.
    normal = v.points[pair[:, 1]] - v.points[pair[:, 0]]
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    along = np.stack([-normal[:, 1], normal[:, 0]], axis=1)       # counter-clockwise
    h = np.sum(ends[:, 0] * normal, axis=1)
    s = np.sort(np.sum(ends * along[:, None, :], axis=2), axis=1)
    push = np.exp(-h * h / 2) / np.sqrt(2 * np.pi) * (ndtr(s[:, 1]) - ndtr(s[:, 0]))
    near = np.clip(s, -10, 10)
    half = (near[:, 1] - near[:, 0]) / 2
    at = (near[:, 1] + near[:, 0])[:, None] / 2 + half[:, None] * NODES
    r2 = h[:, None]**2 + at**2
    seen = h * half * np.sum(WEIGHTS * -np.expm1(-r2 / 2) / np.maximum(r2, 1e-300), axis=1)
    angle = lambda t: np.arctan2(t, np.abs(h)) * np.sign(h)
    seen += angle(s[:, 1]) - angle(near[:, 1]) + angle(near[:, 0]) - angle(s[:, 0])
    for side, sign in ((0, 1), (1, -1)):
        np.add.at(mass, pair[:, side], sign * seen / (2 * np.pi))
        np.add.at(first, pair[:, side], -sign * normal * push[:, None])
    return mass[:n], first[:n]


def distortion(flat):
    """A value's squared error, and its gradient."""
    points = flat.reshape(-1, 2)
    mass, first = cells(points)
    error = 2 - 2 * np.sum(points * first) + np.sum(mass[:, None] * points**2)
    return error / 2, (mass[:, None] * points - first).ravel()


def least(bits, rng):
    best = None
    for _ in range(STARTS[bits]):
        found = minimize(distortion, rng.standard_normal(2 * 4**bits), jac=True,
                         method="L-BFGS-B", options={"maxiter": 4000, "ftol": 1e-15, "gtol": 1e-8})
        if best is None or found.fun < best.fun:
            best = found
    points = best.x.reshape(-1, 2)
    for _ in range(2000):                    # Lloyd's steps bring each point to its mean
        mass, first = cells(points)
        means = first / mass[:, None]
        if np.max(np.abs(means - points)) < 1e-9:
            break
        points = points + 1.5 * (means - points)
    top = points[np.argmax(np.sum(points**2, axis=1))]
    c, s = top / np.linalg.norm(top)
    points = np.round(points @ np.array([[c, -s], [s, c]]), 7) + 0.0
    return points[np.lexsort((points[:, 1], points[:, 0]))]


def report(bits, points):
    mass, first = cells(points)
    off = np.max(np.abs(first / mass[:, None] - points))
    return "%.6f" % distortion(points.ravel())[0], off


def write():
    rng = np.random.default_rng(20250131)
    out = ["-- points.lua -- points of the plane of least squared error for two normal values.",
           "--",
           "-- Made by tests/oracles/plane.py, which says how.  By bits of a value: 4^bits points.",
           "", "return {"]
    for bits in sorted(STARTS):
        points = least(bits, rng)
        error, off = report(bits, np.float32(points).astype(float))
        out.append("    -- squared error of a value %s; points within %.0e of their means"
                   % (error, max(off, 1e-7)))
        out.append("    [%d] = {" % bits)
        text = ["%.7f, %.7f," % tuple(p) for p in points]
        for i in range(0, len(text), 3):
            out.append("        " + "  ".join(text[i:i + 3]))
        out.append("    },")
        print(bits, error, off, file=sys.stderr)
    print("\n".join(out + ["}"]))


def points_of(bits):
    """Those of gen/points.lua, float64 of float32 [4^bits, 2]."""
    with open(LUA, encoding="ascii") as f:
        body = re.search(r"\[%d\] = \{(.*?)\}" % bits, f.read(), re.S).group(1)
    numbers = re.sub(r"--.*", "", body).replace(",", " ").split()
    return np.array(numbers, np.float32).astype(np.float64).reshape(-1, 2)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        for b in sorted(STARTS):
            print(b, *report(b, points_of(b)))
    else:
        write()
