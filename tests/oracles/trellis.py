# trellis.py -- round=trellis and round=feedback_trellis in NumPy, from the comments of their parts.
#
#     python3 trellis.py     checks the search for paths against all paths of 8 values

import itertools
import re
import sys
import numpy as np

F32 = np.float32

# Octal, as printed: bit i is the delay i.
H1 = {4: 0o2, 8: 0o4, 16: 0o4, 32: 0o10, 64: 0o24}
H0 = {4: 0o5, 8: 0o13, 16: 0o23, 32: 0o45, 64: 0o103}


def states_of(side):
    found = re.fullmatch(r"(?:feedback_)?trellis(\d*)", side["round"])
    return int(found.group(1) or 8) if found else 0


def levels_of(codes, states):
    """Levels of one group's codes, by the definition."""
    x, n = [int(c) & 1 for c in codes], len(codes)
    levels = []
    for t in range(n):
        s1 = sum(x[(t - i) % n] for i in range(7) if H0[states] >> i & 1) % 2
        s0 = sum(x[(t - i) % n] for i in range(7) if H1[states] >> i & 1) % 2
        levels.append(4 * (int(codes[t]) >> 1) + 2 * s1 + s0)
    return np.array(levels, np.uint16)


def sub_grid(state, x, states):
    history = state << 1 | x
    return 2 * (bin(history & H0[states]).count("1") % 2) + bin(history & H1[states]).count("1") % 2


def nearest_high(y, sub, bits):
    return np.clip(np.rint((y - F32(sub)) * F32(0.25)), 0, 2**(bits - 1) - 1).astype(F32)


def target(y, bits):
    return np.clip(np.asarray(y, F32), F32(-8), F32(2**(bits + 1) + 7))


def walk(y, bits, states):
    """(codes, levels) of the best path, by a search from every state in turn."""
    y = target(y, bits)
    n, half = len(y), states // 2
    ends = np.arange(states)
    into = {x: np.array([sub_grid(s, x, states) for s in range(states)]) for x in (0, 1)}
    before = np.stack([ends >> 1, (ends >> 1) + half])
    subs = np.where(ends % 2 == 0, into[0][before], into[1][before])
    # [start, state]
    sums = np.where(ends[:, None] == ends[None, :], F32(0), F32(1e30)).astype(F32)
    ways = np.zeros((n, states, states), np.uint8)
    for t in range(n):
        high = np.array([nearest_high(y[t], d, bits) for d in range(4)], F32)
        cost = (y[t] - (4 * high + np.arange(4, dtype=F32)))**2
        by = sums[:, before] + cost[subs]
        ways[t] = by[:, 1] < by[:, 0]
        sums = np.where(ways[t], by[:, 1], by[:, 0])
    start = int(np.argmin(np.diagonal(sums)))
    codes, levels, state = np.zeros(n, np.uint16), np.zeros(n, np.uint16), start
    for t in range(n - 1, -1, -1):
        x = state & 1
        state = (state >> 1) + half * int(ways[t, start, state])
        sub = sub_grid(state, x, states)
        high = int(nearest_high(y[t], sub, bits))
        codes[t], levels[t] = high << 1 | x, 4 * high + sub
    assert state == start and np.array_equal(levels, levels_of(codes, states))
    return codes, levels


def fused(row, e):
    """row . e in order, product and addition rounded once together."""
    total = F32(0)
    for a, b in zip(row, e):
        total = F32(np.longdouble(total) + np.longdouble(a) * np.longdouble(b))
    return total


def guided_group(y, scale, offset, rows, cost, bits, states):
    """Ways with errors of their own, of one token's group: (levels, errors)."""
    inverse = F32(1) / scale if scale != 0 else F32(0)
    end = 0
    for second in (False, True):
        sums = {s: F32(1e30) if second and s != end else F32(0) for s in range(states)}
        errors = {s: np.zeros(0, F32) for s in range(states)}
        codes = {s: [] for s in range(states)}
        for j in range(len(y["own"])):
            w = {s: target((y["with"][j] + fused(rows[j], errors[s]) - offset) * inverse, bits)
                 for s in range(states)}
            new = {}
            for to in range(states):
                options = []
                for s in (to >> 1, (to >> 1) + states // 2):
                    sub = sub_grid(s, to & 1, states)
                    level = F32(4 * nearest_high(w[s], sub, bits) + sub)
                    e = (w[s] - level) * scale
                    options.append((sums[s] + cost[j] * (e * e), s, level))
                total, s, level = options[1] if options[1][0] < options[0][0] else options[0]
                new[to] = (total, np.append(errors[s], y["own"][j] - (scale * level + offset)),
                           codes[s] + [(int(level) >> 2) << 1 | to & 1])
            sums, errors, codes = ({s: new[s][i] for s in range(states)} for i in range(3))
        if not second:
            end = min(range(states), key=lambda s: (sums[s], s))
    return levels_of(codes[end], states), errors[end].astype(F32)


def encode_guided(x, side, head, plain, encode_group, four_sums):
    """x [n, d] in the basis -> levels, scales, offsets of groups along channels."""
    n, d = x.shape
    g, bits, states = side["group"], side["bits"], states_of(side)
    factor, cost = side["tables"]["factor"][head], side["tables"]["cost"][head]
    levels = np.zeros((n, d), np.uint16)
    scales, offsets = np.zeros((n, d // g), F32), np.zeros((n, d // g), F32)
    for t in range(n):
        e = np.zeros((d, 1), F32)
        for i in range(d // g):
            at = slice(i * g, i * g + g)
            _, scales[t, i], offsets[t, i] = encode_group(x[t, at], plain)
            known = [F32(x[t, j] + four_sums(factor[j][:i * g], e[:i * g])[0])
                     for j in range(i * g, i * g + g)]
            rows = [factor[j][at] for j in range(i * g, i * g + g)]
            levels[t, at], e[at, 0] = guided_group({"own": x[t, at], "with": known}, scales[t, i],
                                                   offsets[t, i], rows, cost[at], bits, states)
    return {"codes": levels, "scales": scales, "offsets": offsets}


def check_all_paths():
    rng = np.random.default_rng(1)
    for bits in (1, 2):
        for _ in range(20):
            y = (rng.standard_normal(8) * 2**bits * 0.6 + 2**bits).astype(F32)
            found = walk(y, bits, 4)[1]
            best = min(sum((y - levels_of([2 * h + x for h, x in zip(high, path)], 4))**2)
                       for path in itertools.product((0, 1), repeat=8)
                       for high in [[0] * 8] if bits == 1) if bits == 1 else min(
                sum(min((v - (4 * h + level))**2 for h in (0, 1)) for v, level in
                    zip(y, levels_of(path, 4))) for path in itertools.product((0, 1), repeat=8))
            assert abs(np.sum((y - found)**2) - best) < 1e-4 * best, "a better path exists"
    print("paths of 8 values, 4 states: none is better")


if __name__ == "__main__":
    sys.exit(check_all_paths())
