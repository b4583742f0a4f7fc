# books.py -- levels that are not equally spaced, in NumPy, written from their definitions.
#
# Sources: the OCP microscaling formats 1.0 and OCP 8-bit floating point 1.0, ggml's
# quantize_row_iq4_nl_ref and kvalues_iq4nl, Lloyd and Max for the normal distribution, and
# TurboQuant (arXiv:2504.19874).  Encoding is float32 step by step; the nearest level is found in
# float64, where the distances of float32 numbers are exact.
#
#     python3 books.py      checks the floats against the PyPI package ml_dtypes

import math
import numpy as np
import plane

F32 = np.float32
F64 = np.float64

# exponent bits, mantissa bits, bias, greatest magnitude that is written
FLOATS = {"e2m1": (2, 1, 1, 7), "e2m3": (2, 3, 1, 31), "e3m2": (3, 2, 3, 31),
          "e4m3": (4, 3, 7, 126), "e5m2": (5, 2, 15, 123)}
NL4 = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]


def float_magnitudes(name):
    exponent, mantissa, bias, last = FLOATS[name]
    out = []
    for code in range(last + 1):
        e, m = divmod(code, 2**mantissa)
        fraction = m / 2**mantissa + (1 if e else 0)
        out.append(math.ldexp(fraction, max(e, 1) - bias))
    return np.array(out, F64)


def normal(t):
    return 0.5 * math.erfc(-t / math.sqrt(2))


def density(t):
    return math.exp(-t * t / 2) / math.sqrt(2 * math.pi)


def lloyd_levels(bits):
    """Levels that are the mean of what is nearest to them, by iteration."""
    c = np.linspace(-2.5, 2.5, 2**bits)
    for _ in range(100000):
        t = [-40.0, *((c[1:] + c[:-1]) / 2), 40.0]
        new = np.array([(density(a) - density(b)) / (normal(b) - normal(a))
                        for a, b in zip(t[:-1], t[1:])])
        done = np.max(np.abs(new - c)) < 1e-13
        c = new
        if done:
            return (c - c[::-1]) / 2
    raise AssertionError("no convergence")


_levels = {}


def levels_of(name, bits):
    """Values by code, float64 of float32."""
    if (name, bits) not in _levels:
        if name in FLOATS:
            half = 2**(bits - 1)
            values = np.zeros(2 * half)
            found = float_magnitudes(name)
            values[:len(found)], values[half:half + len(found)] = found, -found
        elif name == "plane":                # the first numbers of points, then the second ones
            values = plane.points_of(bits).T.ravel()
        else:
            values = np.array({"nl4": NL4, "signs": [-math.sqrt(math.pi / 2),
                                                     math.sqrt(math.pi / 2)]}.get(name)
                              or lloyd_levels(bits), F64)
            values = np.array([F32("%.9g" % v) for v in values], F32).astype(F64)
        _levels[name, bits] = values
    return _levels[name, bits]


def has_book(name):
    return name in FLOATS or name in ("nl4", "lloyd", "signs", "pairs", "plane")


def codes_of_plane(y, bits):
    """Of each two values the nearest point, as two levels; float32 step by step."""
    first, second = levels_of("plane", bits).astype(F32).reshape(2, -1)
    halves = ((first.astype(F64)**2 + second.astype(F64)**2) / 2).astype(F32)
    a, b = y[0::2, None], y[1::2, None]
    number = np.argmax((a * first + b * second) - halves, axis=1)
    return np.stack([number, number + 4**bits], axis=1).ravel().astype(np.uint16)


def codes_of(y, name, bits):
    """Codes of the nearest levels: of floats to even and with y's sign, else the upper one."""
    y = np.asarray(y, F32)
    if name == "plane":
        return codes_of_plane(y, bits)
    if name in FLOATS:
        levels = float_magnitudes(name)
        at = np.minimum(np.abs(y).astype(F64), levels[-1])
    else:
        levels, at = levels_of(name, bits), y.astype(F64)
        at = np.clip(at, levels[0], levels[-1])
    distance = np.abs(at[:, None] - levels[None, :])
    if name in ("lloyd", "pairs"):          # the middles are float32
        middles = ((levels[1:] + levels[:-1]) / 2).astype(F32).astype(F64)
        return np.sum(at[:, None] >= middles[None, :], axis=1).astype(np.uint16)
    best = distance.min(axis=1)
    code = np.zeros(len(y), np.int64)
    for i, row in enumerate(distance):
        equal = np.flatnonzero(row == best[i])
        code[i] = equal[-1]
        if name in FLOATS and len(equal) > 1:
            code[i] = equal[0] if equal[0] % 2 == 0 else equal[1]
    if name in FLOATS:
        code |= np.signbit(y).astype(np.int64) << (bits - 1)
    return code.astype(np.uint16)


def running(terms):
    return np.cumsum(np.asarray(terms, F32), dtype=F32)[-1]


# Scales

E4M3FN = float_magnitudes("e4m3")


def store_scale(wanted, meta, nearest_scale, tables, to_f16):
    wanted = F32(wanted)
    if meta in ("one", "tensor", "head"):
        return F32(1)
    if meta == "e8m0":
        if wanted == 0:
            return F32(2.0**-127)
        m, e = math.frexp(float(wanted))                     # m in [1/2, 1)
        return F32(math.ldexp(1.0, max(-127, e - 1 + (m >= 0.75))))
    if meta == "f16":
        h = F32(to_f16(wanted))
        return F32(2.0**-24) if wanted > 0 and h == 0 else h
    table = E4M3FN if meta.startswith("e4m3fn") else tables[meta]
    return F32(table[nearest_scale(wanted, table)])


def codes_of_widths(y, widths):
    """Of values y [d] with bits of their own: the nearest of lloyd's levels of so many, else 0."""
    return np.array([codes_of(y[i:i + 1], "lloyd", n)[0] if n else 0
                     for i, n in enumerate(widths)], np.uint16)


def levels_of_widths(codes, widths):
    """float64 levels of codes [n, d]."""
    out = np.zeros(codes.shape)
    for i, n in enumerate(widths):
        out[:, i] = levels_of("lloyd", n)[codes[:, i]] if n else 0
    return out


def encode_group(x, side, nearest_scale, tables, to_f16, widths=None):
    """codes, stored scale of one group; widths: of values whose bits differ."""
    x = np.asarray(x, F32)
    name, bits, fit = side["levels"], side["bits"], side["fit"]
    levels = levels_of(name, bits)
    top = F32(np.max(levels) if -np.min(levels) < np.max(levels) else -np.min(levels))
    squares = running(np.clip(x, F32(-2.0**57), F32(2.0**57))**2)
    if fit == "amax":
        wanted = np.abs(x).max() / top
    elif fit == "shared":
        amax = float(np.abs(x).max())
        power = math.floor(math.log2(amax)) - math.floor(math.log2(top)) if amax > 0 else 0
        wanted = F32(math.ldexp(1.0, power)) if amax > 0 else F32(0)
    elif fit == "squares":
        extreme = x[int(np.argmax(np.abs(x)))]
        wanted = F32(0) if abs(extreme) < 1e-15 else extreme / F32(levels[0])
    else:
        wanted = np.sqrt(squares / F32(len(x)))
    scale = store_scale(wanted, side["meta"], nearest_scale, tables, to_f16)
    inverse = F32(1) / scale if scale > 0 else F32(0)
    if fit in ("squares", "matched"):
        inverse = F32(1) / wanted if abs(wanted) > 2.0**-126 else F32(0)
    if widths is not None:
        return codes_of_widths(x * inverse, widths), scale
    with np.errstate(over="ignore"):
        codes = codes_of(x * inverse, name, bits)
    level = levels[codes].astype(F32)
    if fit == "matched":
        again = np.sqrt(squares / running(level * level))
    elif fit == "squares":
        w = x * x
        again = running(w * level * x) / running(w * level * level) if scale != 0 else F32(0)
    else:
        return codes, scale
    return codes, store_scale(again, side["meta"], nearest_scale, tables, to_f16)


def check_against_ml_dtypes():
    import ml_dtypes
    kinds = {"e2m1": ml_dtypes.float4_e2m1fn, "e2m3": ml_dtypes.float6_e2m3fn,
             "e3m2": ml_dtypes.float6_e3m2fn, "e4m3": ml_dtypes.float8_e4m3fn,
             "e5m2": ml_dtypes.float8_e5m2}
    rng = np.random.default_rng(2)
    for name, kind in kinds.items():
        top = float_magnitudes(name)[-1]
        y = np.concatenate([rng.standard_normal(4000) * top / 3, rng.standard_normal(4000),
                            rng.integers(-64, 64, 4000) * top / 128.0, [0.0, -0.0, top, -top]])
        y = np.clip(y.astype(F32), -top, top).astype(F32)
        theirs = y.astype(kind).view(np.uint8)
        ours = codes_of(y, name, {"e2m1": 4, "e2m3": 6, "e3m2": 6}.get(name, 8))
        assert np.array_equal(ours, theirs), name
        print(f"{name}: {len(y)} codes equal ml_dtypes'")
    scales = np.abs(rng.standard_normal(2000)).astype(F32) * 2.0**rng.integers(-30, 30, 2000)
    powers = 2.0**np.floor(np.log2(scales))
    theirs = powers.astype(F32).astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)
    assert np.array_equal(theirs.astype(int) - 127, np.floor(np.log2(scales)).astype(int))
    print("e8m0: powers of two equal ml_dtypes'")


if __name__ == "__main__":
    check_against_ml_dtypes()
