# codecs.py -- kvloom's codecs, windows and attention in NumPy, written from their definitions.
#
# An independent twin of the library for the tests: it shares no code with runtime/, gen/ or
# templates/.  Sources: ggml's quantize_row_q8_0_ref and quantize_row_q4_0_ref, KIVI
# (arXiv:2402.02750), and the arithmetic that the comments of gen/parts/*.lua define.
#
# Encoding is float32 step by step, one rounding an operation, since codes must agree to the bit.
# Decoding and attention are float64: they are what the library approximates.
#
#     python3 codecs.py      checks q8_0 and q4_0 against the PyPI package gguf, where it is there

import os
import re
import sys
import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import books
import flagrot
import sketch
import trellis

F32 = np.float32
F64 = np.float64
F16_MAX = F32(65504)


# 16-bit rows

def to_f16(x):
    """Nearest f16 to float32 x, ties to even; beyond the range the greatest finite one."""
    with np.errstate(over="ignore"):
        h = np.asarray(x, F32).astype(np.float16)
    h = np.where(np.isinf(h), np.copysign(np.float16(65504), h), h)
    return h.astype(np.float16)


def f16_not_below(x):
    """The smallest finite f16 >= x > 0, or the greatest f16."""
    h = to_f16(x)
    up = np.nextafter(h, np.float16(np.inf), dtype=np.float16)
    h = np.where(h.astype(F32) < x, up, h)
    return np.where(np.isinf(h), np.float16(65504), h).astype(np.float16)


def bf16_bits(x):
    """Bits of the nearest bf16, ties to even; beyond the range the greatest finite one."""
    u = np.asarray(x, F32).view(np.uint32).astype(np.uint64)
    r = ((u + 0x7fff + (u >> 16 & 1)) >> 16).astype(np.uint32)
    r = np.where((r & 0x7fff) == 0x7f80, r - 1, r)
    return r.astype(np.uint16)


def bf16_value(bits):
    return (bits.astype(np.uint32) << 16).view(F32)


def window_rows(x, rows):
    """Rows as a window of type `rows` holds them, as float32."""
    return bf16_value(bf16_bits(x)) if rows == "bf16" else to_f16(x).astype(F32)


# Hadamard

def hadamard_piece(head_dim):
    return head_dim & -head_dim


def random_signs(dim):
    """Of transform=signed_hadamard."""
    out = []
    for i in range(dim):
        h = (i + 1) * 2654435761 % 2**32
        h = (h ^ (h >> 15)) * 2246822519 % 2**32
        h ^= h >> 13
        out.append(-1 if h % 2 else 1)
    return np.array(out)


def hadamard(x, piece):
    """Pieces of the last axis: butterflies of stride 1, 2, 4, ..., then f32(1 / sqrt(piece))."""
    x = np.asarray(x)
    kind = x.dtype.type
    y = x.reshape(-1, piece).copy()
    stride = 1
    while stride < piece:
        z = y.reshape(-1, piece // (2 * stride), 2, stride)
        a, b = z[:, :, 0, :], z[:, :, 1, :]
        y = np.stack([a + b, a - b], axis=2).reshape(-1, piece)
        stride *= 2
    factor = F32(1.0 / np.sqrt(F64(piece))) if kind is F32 else kind(1.0 / np.sqrt(F64(piece)))
    return (y * factor).astype(kind).reshape(x.shape)


# 8-bit scales: 5 exponent and 3 mantissa bits, no sign

E5M3 = np.array([m * 2.0**-17 if e == 0 else (8 + m) * 2.0**(e - 18)
                 for e in range(32) for m in range(8)], F64)


# The same with a sign bit, which is free, 4 exponent bits and bias 8: all codes finite.
E4M3 = np.array([m * 2.0**-10 if e == 0 else (8 + m) * 2.0**(e - 11)
                 for e in range(16) for m in range(8)], F64)


def nearest_scale(x, table):
    """Index of the nearest stored value (ties to the even index), at least 1 if x > 0."""
    x = F64(x)
    if x >= table[-1]:
        return len(table) - 1
    below = int(np.searchsorted(table, x, side="right")) - 1
    left, right = x - table[below], table[below + 1] - x
    index = below if left < right or (left == right and below % 2 == 0) else below + 1
    return max(index, 1) if x > 0 else 0


# One group: fit, metadata, codes

def fit_affine_f16(x, bits, flag=None):
    code_max = F32(2**bits - 1)
    lo, hi = x.min() + F32(0), x.max() + F32(0)
    with np.errstate(over="ignore"):
        scale = to_f16((hi - lo) / code_max)
        if hi > lo and scale == 0:
            scale = np.float16(2.0**-24)
        offset = to_f16(lo).astype(F32)
        if flag is not None:
            offset = F32(flagrot.f16_with_bit(offset, flag))
            if hi == lo:
                scale = to_f16(max(lo - offset, F32(0)))
        need = max((hi - offset) / (code_max + F32(0.5)), F32(2) * (offset - lo))
        if F32(scale) < need:
            scale = f16_not_below(need)
    return F32(scale), F32(offset)


def fit_affine_8bit(x, bits, table=E5M3, flag=None):
    code_max, unit = F32(2**bits - 1), F32(2.0**(bits - 5))
    lo, hi = x.min() + F32(0), x.max() + F32(0)
    mid = F32(0.5) * lo + F32(0.5) * hi
    with np.errstate(over="ignore"):
        wanted = max((hi - lo) / code_max, abs(mid) / (F32(127) * unit))
        half = F32(0.5) * (hi - lo)
    index = nearest_scale(wanted, table)
    while True:
        scale = F32(table[index])
        zero = F32(0)
        if scale > 0:
            zero = np.clip(mid / (scale * unit), F32(-127), F32(127))
        zero = np.rint(zero) if flag is None else flagrot.middle_with_bit(zero, flag)
        miss = half + abs(mid - zero * (scale * unit))
        if miss <= scale * F32(2**(bits - 1)) or index == len(table) - 1:
            break
        index += 1
    return scale, scale * (zero * unit - code_max * F32(0.5))


def fit_symmetric(x, bits, fit):
    """The scale before it is stored, and max|x|."""
    magnitude = np.abs(x)
    top = magnitude.max()
    if fit == "absmax":
        d = top / F32(2**(bits - 1) - 1)
    else:
        d = x[int(np.argmax(magnitude))] / F32(-(2**(bits - 1)))
    return np.clip(d, -F16_MAX, F16_MAX) + F32(0), top


def store_symmetric(d, top, bits, meta):
    """(stored scale, the scale that codes come from)."""
    if meta == "f16":
        return F32(to_f16(d)), d
    table = E4M3 if meta == "e4m3" else E5M3
    index = nearest_scale(d, table)
    if top > F32(table[index]) * F32(2**(bits - 1) - 0.5) and index < len(table) - 1:
        index += 1
    return F32(table[index]), F32(table[index])


LOG4 = np.array([2.0**((i - 8) / 4) for i in range(16)], F64)


def log4_pair(wanted, middle, bits):
    """Scale and middle in 4 bits each: the scale of the nearest exponent."""
    index = int(np.sum(wanted >= (2.0**((np.arange(15) - 7.5) / 4)).astype(F32)))
    scale = F32(LOG4[index])
    unit = F32(2.0**(bits - 3))
    zero = np.rint(np.clip(middle / (unit * scale), F32(-8), F32(7)))
    return scale, scale * (zero * unit - F32((2**bits - 1) / 2))


def near_affine(wanted, middle, bits, meta):
    """The stored (scale, offset) nearest to a scale and a middle."""
    half_range = F32((2**bits - 1) / 2)
    if meta == "log4":
        return log4_pair(wanted, middle, bits)
    if meta == "f16":
        scale = F32(max(to_f16(wanted), np.float16(2.0**-24)))
        return scale, F32(to_f16(middle - scale * half_range))
    unit = F32(2.0**(bits - 5))
    stored = E4M3 if meta == "e4m3" else E5M3
    index = max(nearest_scale(max(wanted, abs(middle) / (F32(127) * unit)), stored), 1)
    scale = F32(stored[index])
    zero = np.clip(np.rint(middle / (scale * unit)), F32(-127), F32(127))
    return scale, scale * (zero * unit - half_range)


def running(terms):
    """Sum in order, in float32."""
    return np.cumsum(np.asarray(terms, F32), dtype=F32)[-1]


def refit(y, s, m, bits, states=0):
    top = F32(2**bits - 1)
    c = np.rint(np.clip((y - m) * (F32(1) / s) + top / 2, F32(0), top)) - top / 2
    if states:
        c = trellis.walk((y - m) * (F32(1) / s) + top / 2, bits - 1, states)[1] - top / 2
    n, sum_c, sum_cc = F32(len(y)), running(c), running(c * c)
    sum_cy, sum_y = running(c * y), running(y)
    det = n * sum_cc - sum_c * sum_c
    if not det > F32(1e-6) * n * sum_cc:
        return s, m
    better = (n * sum_cy - sum_c * sum_y) / det
    return (better, (sum_y - better * sum_c) / n) if better > 0 else (s, m)


def search_pair(x, bits, meta, first, states=0):
    """The best of the pair `first` and seven that come from shrunk ranges."""
    lo, hi = x.min() + F32(0), x.max() + F32(0)
    mid, half = F32(0.5) * lo + F32(0.5) * hi, F32(0.5) * hi - F32(0.5) * lo
    if not half > F32(2.0**-100):
        return first
    unit, top = F32(1) / half, F32(2**bits - 1)
    pairs = [first]
    for i in range(7):
        shrink = F32(1 - (0.11 if bits - (states > 0) == 1 else 0.085) * i)
        s, m = F32(2) * shrink / top, F32(0)
        for _ in range(2):
            s, m = refit((x - mid) * unit, s, m, bits, states)
        pairs.append(near_affine(s * half, mid + m * half, bits, meta))
    errors = []
    for scale, offset in pairs:
        inverse = F32(1) / scale if scale != 0 else F32(0)
        q = np.rint(np.clip((x - offset) * inverse, F32(0), top))
        if states:
            q = trellis.walk((x - offset) * inverse, bits - 1, states)[1]
        errors.append(running((((x - (scale * q + offset)) * unit).astype(F32))**2))
    return pairs[int(np.argmin(errors))]


# QuEST's alpha of each width (arXiv:2502.05003).
RMS_ALPHA = {1: 0.79788456, 2: 1.49353462, 3: 2.05106835, 4: 2.51393058, 5: 2.91609388,
             6: 3.27659728, 8: 3.88493868}


def rms(x):
    """Square root of the mean of squares that are summed in order."""
    total = F32(0)
    for v in np.clip(x, F32(-2.0**57), F32(2.0**57)):
        total = F32(total + v * v)
    return np.sqrt(total / F32(len(x)))


def clip_row(x, percent):
    """Rows [n, d] clipped to the magnitude at place min(d - 1, percent d / 100) of each."""
    d = x.shape[1]
    bound = np.sort(np.abs(x), axis=1)[:, min(d - 1, percent * d // 100)][:, None]
    return np.clip(x, -bound, bound)


def round_codes(y, bits, rounding, zero_point):
    top = F32(2**bits - 1)
    if rounding == "nearest_up":
        q = np.floor(y + F32(zero_point + 0.5))
    elif rounding == "nearest_away":
        q = np.copysign(np.floor(np.abs(y).astype(F64) + 0.5), y) + zero_point
    else:
        q = np.rint(y) + F32(zero_point)
    return np.clip(q, 0, top).astype(np.uint16)


def shrunk(lo, hi, percent, top):
    """A share of a range, its zero point a whole number (fit=shrink)."""
    share = F32(percent / 100)
    low, high = lo * share, hi * share
    step = (high - low) / top
    if not lo < hi:
        return lo, hi
    point = np.clip(-low / step, F32(-65504), F32(65504)) if step > 0 else F32(0)
    lo = -(np.rint(point) * step) + F32(0)
    return lo, lo + step * top


def encode_span(x, side):
    """Codes from scale and minimum as they are found; what is stored is rounded."""
    top = F32(2**side["bits"] - 1)
    lo, hi = x.min() + F32(0), x.max() + F32(0)
    if side["fit"].startswith("shrink"):
        lo, hi = shrunk(lo, hi, int(side["fit"][6:] or 80), top)
    step = (hi - lo) / top
    inverse = F32(1) / step if step > 2.0**-126 else F32(0)
    if side["meta"] == "f16":
        scale, offset = F32(to_f16(step)), F32(to_f16(lo))
    else:
        step = step if hi > lo else abs(lo)
        step = max(step, F32(2.0**-24)) if step > 0 else step
        inverse = F32(1) / step if step > 0 else F32(0)
        scale, zero = F32(to_f16(step)), F32(to_f16(-lo / step if step > 0 else F32(0)))
        offset = -scale * zero + F32(0)
    codes = round_codes(np.clip((x - lo) * inverse, F32(0), top), side["bits"], side["round"], 0)
    return codes, scale, offset


def encode_group(x, side, flag=None, widths=None):
    """codes, scale, offset of one group x (float32), with x ~ scale * code + offset."""
    x = np.asarray(x, F32)
    if books.has_book(side["levels"]):
        tables = {"8bit": E5M3, "e4m3": E4M3}
        codes, scale = books.encode_group(x, side, nearest_scale, tables, to_f16, widths)
        return codes, scale, F32(0)
    if side["fit"] == "span" or side["fit"].startswith("shrink"):
        return encode_span(x, side)
    states = trellis.states_of(side)
    bits = side["bits"] + (states > 0)           # of what scales are multiplied with
    if side["meta"] == "static":
        most = F32(2**bits - 1)
        scale = F32(2) / most
        offset = scale * (F32(-0.5) * most)
        y = np.clip((x - offset) * (F32(0.5) * most), F32(0), most)
        return round_codes(y, bits, side["round"], 0), scale, offset
    if side["levels"] == "affine":
        if side["meta"] == "log4":
            lo, hi = x.min() + F32(0), x.max() + F32(0)
            scale, offset = log4_pair((hi - lo) / F32(2**bits - 1), F32(0.5) * lo + F32(0.5) * hi,
                                      bits)
        elif side["meta"] == "f16":
            scale, offset = fit_affine_f16(x, bits, flag)
        else:
            table = E4M3 if side["meta"] == "e4m3" else E5M3
            scale, offset = fit_affine_8bit(x, bits, table, flag)
        if side["fit"] == "search":
            scale, offset = search_pair(x, bits, side["meta"], (scale, offset), states)
        inverse = F32(1) / scale if scale != 0 else F32(0)
        if states:
            return trellis.walk((x - offset) * inverse, bits - 1, states)[1], scale, offset
        with np.errstate(over="ignore"):
            y = np.clip((x - offset) * inverse, F32(0), F32(2**bits - 1))
        return round_codes(y, bits, side["round"], 0), scale, offset
    if side["levels"] == "midpoint":
        d = F32(F32(2 * RMS_ALPHA[bits] / (2**bits - 1)) * rms(x))
        scale = F32(to_f16(d)) if side["meta"] == "f16" else F32(E5M3[nearest_scale(d, E5M3)])
        if d > 0 and scale == 0:
            scale = F32(2.0**-24)
        offset = -scale * F32((2**bits - 1) / 2)
        inverse = F32(1) / scale if scale != 0 else F32(0)
        y = np.clip((x - offset) * inverse, F32(0), F32(2**bits - 1))
        return round_codes(y, bits, side["round"], 0), scale, offset + F32(0)
    zero_point = 2**(bits - 1)
    d, top = fit_symmetric(x, bits, side["fit"])
    scale, from_scale = store_symmetric(d, top, bits, side["meta"])
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        inverse = F32(1) / from_scale
        inverse = inverse if np.isfinite(inverse) else F32(0)
        codes = round_codes(x * inverse, bits, side["round"], zero_point)
    return codes, scale, -scale * F32(zero_point) + F32(0)


# Dense transforms

DENSE = ("balance", "balance_output", "eigen", "whiten", "flat", "file")


def multiply(x, matrix):
    """x matrix in float32, in the order of channels, product and addition rounded once together."""
    y = np.zeros((x.shape[0], matrix.shape[1]), F32)
    for i in range(x.shape[1]):
        y = (y.astype(F64) + x[:, i:i + 1].astype(F64) * matrix[i].astype(F64)).astype(F32)
    return y


# Feedback

def four_sums(row, e):
    """row @ e in four interleaved sums, product and addition rounded once together."""
    s = np.zeros((4, e.shape[1]), F32)
    for i in range(len(row)):
        s[i % 4] = (s[i % 4].astype(np.longdouble) + F64(row[i]) * e[i].astype(F64)).astype(F32)
    return (s[0] + s[1]) + (s[2] + s[3])


def four_squares(x):
    s = np.zeros(4, F32)
    for t, v in enumerate(x):
        s[t % 4] += v * v
    return (s[0] + s[1]) + (s[2] + s[3])


def codes_of(t, scale, offset, bits):
    inverse = np.where(scale != 0, F32(1) / np.where(scale != 0, scale, F32(1)), F32(0))
    q = np.rint(np.clip((t - offset) * inverse.astype(F32), F32(0), F32(2**bits - 1)))
    return q.astype(F32), scale * q + offset


def encode_feedback(x, side, head):
    """x [n, d] in the basis -> codes, scales, offsets, of groups along tokens or channels."""
    g, order, bits = side["group"], side["tables"]["order"], side["bits"]
    along = side["axis"] == "per_channel"
    n, d = x.shape
    codes = np.zeros((n, d), np.uint16)
    shape = (n // g, d) if along else (n, d // g)
    scales, offsets = np.zeros(shape, F32), np.zeros(shape, F32)
    states = trellis.states_of(side)
    plain = {**side, "round": f"trellis{states}" if states else "nearest"}
    if states and not along:
        return trellis.encode_guided(x, side, head, plain, encode_group, four_sums)
    for row in range(0, n, g if along else n):
        rows = slice(row, row + g if along else n)
        y = x[rows].T[order]
        e, q = np.zeros_like(y), np.zeros_like(y)
        for t in range(n if not along else 0):
            for i in range(d // g):
                _, scales[t, i], offsets[t, i] = encode_group(x[t, i * g:i * g + g], plain)
        for sweep in range(2 if states else int(side["round"][8:] or 2) + 1):
            table = side["tables"]["price" if sweep else "factor"][head]
            for j in range(d):
                extra = four_sums(table[j][:d if sweep else j], e[:d if sweep else j])
                t, c = y[j] + extra, order[j]
                if along:
                    found, scale, offset = encode_group(t, plain)
                    new_q, back = codes_of(t, scale, offset, bits)
                    if states:
                        new_q, back = found, scale * found.astype(F32) + offset
                    if sweep and not four_squares(t - back) < four_squares(e[j] + extra):
                        continue
                    scales[row // g, c], offsets[row // g, c] = scale, offset
                else:
                    new_q, back = codes_of(t, scales[:, c // g], offsets[:, c // g], bits)
                q[j], e[j] = new_q, y[j] - back
        codes[rows][:, order] = q.T
    return {"codes": codes, "scales": scales, "offsets": offsets}


# One side (keys or values) of one head

def encode(rows, side, head=0):
    """rows [n, d] as the window holds them -> dict of codes [n, d], scales, offsets."""
    if not side["sketch"]:
        return encode_codes(rows, side, head)
    encoded = encode_codes(rows, side, head)
    left = np.asarray(rows, F32) - decode_codes(encoded, side, head).astype(F32)
    return {**encoded, "sketch": sketch.store(left, *side["sketch"])}


def encode_codes(rows, side, head):
    if side["levels"] == "nothing":
        return {"codes": np.zeros(rows.shape, np.uint16), "scales": None, "offsets": None}
    x = np.asarray(rows, F32)
    chosen = None
    if side["choose"] != "none":
        chosen = flagrot.Chooser(hadamard, encode_group, side, x.shape[1], head)
    if side["shift"] in ("mean", "middle"):
        x = x - side["tables"][side["shift"]][head]
    norms = token_norms(x) if side["norms"] else None
    if side["norms"]:
        x = x / np.where(norms > 0, norms, F32(1))[:, None]
    if side["dense"]:
        x = multiply(np.clip(x, F32(-2.0**18), F32(2.0**18)), side["tables"]["forward"][head])
    elif side["shift"] != "none" or side["transform"] or side["choose"] != "none":
        x = np.clip(x, F32(-2.0**119), F32(2.0**119))
    if side["outliers"]:
        return encode_sets(x, side, head)
    x = to_basis(x, side)
    if side["choose"] == "fixed":
        x = chosen.to_fixed(x)
    if "base" in side["tables"]:
        x = x / side["tables"]["base"][head]
    if side["meta"] == "static":
        x = x / side["tables"]["half"][head]
    slots = side["extra"]
    if slots:
        x, slots = take_out(x, np.asarray(rows, F32), side)
    if side["levels"] == "kmeans":
        return {**encode_book(x, side["tables"]["book"][head], side), "slots": slots}
    if side["fit"].startswith("clip"):
        x = clip_row(x, int(side["fit"][4:] or 96))
    if side["choose"] == "unit":
        encoded = chosen.encode(np.asarray(rows, F32), x)
        assert chosen.least_margin > 1e-5, "two scores are within 1e-5: take another case"
        return encoded
    if side["levels"] == "f16":
        return {"codes": to_f16(x).view(np.uint16), "scales": None, "offsets": None}
    if side["levels"] == "bf16":
        return {"codes": bf16_bits(x), "scales": None, "offsets": None}
    if side["round"].startswith("feedback"):
        return {**encode_feedback(x, side, head), "norms": norms}
    if side["promoted"]:
        return encode_promoted(x, side)
    g = side["group"]
    along = x if side["axis"] == "per_token" else x.T
    groups = along.reshape(along.shape[0], along.shape[1] // g, g)
    codes = np.zeros(groups.shape, np.uint16)
    scales, offsets = np.zeros(groups.shape[:2], F32), np.zeros(groups.shape[:2], F32)
    for i in range(groups.shape[0]):
        for j in range(groups.shape[1]):
            widths = None
            if side["levels"] == "pairs":
                widths = side["tables"]["bits"][head, j * g:j * g + g]
            codes[i, j], scales[i, j], offsets[i, j] = encode_group(groups[i, j], side,
                                                                    widths=widths)
    codes = codes.reshape(along.shape)
    if side["axis"] == "per_channel":
        codes, scales, offsets = codes.T, scales.T, offsets.T
    return {"codes": codes, "scales": scales, "offsets": offsets, "slots": slots, "norms": norms}


def to_basis(x, side):
    """Rows with the signs and the Hadamard of a side."""
    if side["signs"]:
        x = (x * random_signs(x.shape[1])).astype(F32)
    return hadamard(x, side["transform"]) if side["transform"] else x


def sets_of(side, dim):
    """Channels in the order of the sets, and the side of each set: one more bit in the first."""
    for first, last in ((0, side["outliers"]), (side["outliers"], dim)):
        piece = side["transform"] if side["transform"] >= 0 else hadamard_piece(last - first)
        yield first, last, {**side, "bits": side["bits"] + (first == 0), "group": last - first,
                            "transform": piece, "outliers": 0}


def encode_sets(x, side, head):
    """Strongest channels and others, each as a head of their own; scales [n, 2]."""
    order = side["tables"]["outliers"][head]
    parts = []
    for first, last, one in sets_of(side, x.shape[1]):
        y = to_basis(x[:, order[first:last]], one)
        groups = [encode_group(row, one) for row in y]
        parts.append([np.array(column) for column in zip(*groups)])
    codes, scales, offsets = zip(*parts)
    return {"codes": np.concatenate(codes, axis=1), "scales": np.stack(scales, axis=1),
            "offsets": np.stack(offsets, axis=1).astype(F32)}


def decode_sets(encoded, side, head):
    codes, order = encoded["codes"], side["tables"]["outliers"][head]
    x = np.zeros(codes.shape)
    for i, (first, last, one) in enumerate(sets_of(side, codes.shape[1])):
        y = codes[:, first:last]
        if books.has_book(one["levels"]):
            y = books.levels_of(one["levels"], one["bits"])[y]
        y = encoded["scales"][:, i:i + 1].astype(F64) * y + encoded["offsets"][:, i:i + 1]
        y = hadamard(y, one["transform"]) if one["transform"] else y
        x[:, order[first:last]] = y * random_signs(last - first) if one["signs"] else y
    return x + side["tables"]["mean"][head].astype(F64) if side["shift"] == "mean" else x


def token_norms(x):
    """The root mean squares of rows [n, d] as they are stored."""
    return np.array([F32(E5M3[nearest_scale(rms(row), E5M3)]) for row in x], F32)


def encode_promoted(x, side):
    """Groups along tokens whose strongest channels have 2 bits more; low: [n, d], else 0."""
    g, (n, d), most = side["group"], x.shape, 2**side["bits"] - 1
    codes, low = np.zeros((n, d), np.uint16), np.zeros((n, d), np.uint16)
    scales, offsets = np.zeros((n // g, d), F32), np.zeros((n // g, d), F32)
    for i in range(n // g):
        rows = x[i * g:i * g + g]
        sums = np.cumsum(np.abs(rows), axis=0, dtype=F32)[-1]
        strong = set(np.argsort(-sums, kind="stable")[:side["promoted"]])
        for c in range(d):
            y = rows[:, c]
            if c not in strong:
                codes[i * g:i * g + g, c], scales[i, c], offsets[i, c] = encode_group(y, side)
                continue
            lo, hi = y.min(), y.max()
            if lo < hi:
                hi = lo * F32(0.75 / (most + 0.75)) + hi * F32(most / (most + 0.75))
            _, scale, offset = encode_group(np.array([lo, hi], F32), side)
            inverse = F32(1) / scale if scale != 0 else F32(0)
            t = np.rint(np.clip((y - offset) * inverse * F32(4), F32(0), F32(4 * most + 3)))
            codes[i * g:i * g + g, c], low[i * g:i * g + g, c] = t // 4, t % 4
            scales[i, c], offsets[i, c] = scale, offset
    return {"codes": codes, "scales": scales, "offsets": offsets, "low": low}


def take_out(x, rows, side):
    """Rows without their farthest values; slots: channels and values of each row."""
    x, slots = x.copy(), []
    for y, row in zip(x, rows):
        channels = np.argsort(-np.abs(y), kind="stable")[:side["extra"]]
        slots.append((channels, row[channels]))
        for first in range(0, len(y), side["group"]):
            group = range(first, first + side["group"])
            last = next(i for i in group if i not in channels)
            for i in group:
                if i in channels:
                    y[i] = y[last]
                else:
                    last = i
    return x, slots


def encode_book(x, book, side):
    book = book[:2**side["bits"]]
    bounds = F32(0.5) * (book[:-1] + book[1:])
    shape = (len(x), x.shape[1] // side["group"])
    return {"codes": np.searchsorted(bounds, x, side="right").astype(np.uint16),
            "scales": np.ones(shape, F32), "offsets": np.zeros(shape, F32)}


def decode(encoded, side, head=0):
    """float64 rows in the original basis."""
    x = decode_codes(encoded, side, head)
    return x + sketch.read(encoded["sketch"]) if "sketch" in encoded else x


def decode_codes(encoded, side, head):
    codes = encoded["codes"]
    if side["outliers"]:
        return decode_sets(encoded, side, head)
    if side["levels"] == "nothing":
        return codes.astype(F64)
    if side["levels"] == "f16":
        x = codes.view(np.float16).astype(F64)
    elif side["levels"] == "bf16":
        x = bf16_value(codes).astype(F64)
    else:
        axis = 1 if side["axis"] == "per_token" else 0
        scales = np.repeat(encoded["scales"].astype(F64), side["group"], axis=axis)
        offsets = np.repeat(encoded["offsets"].astype(F64), side["group"], axis=axis)
        if side["levels"] == "pairs":
            codes = books.levels_of_widths(codes, side["tables"]["bits"][head])
        elif books.has_book(side["levels"]):
            codes = books.levels_of(side["levels"], side["bits"])[codes]
        x = scales * codes + offsets
        if side["promoted"]:
            x = x + scales * encoded["low"] / 4
    if side["levels"] == "kmeans":
        x = side["tables"]["book"][head].astype(F64)[codes]
    if "base" in side["tables"]:
        x = x * side["tables"]["base"][head].astype(F64)
    if side["meta"] == "static":
        x = x * side["tables"]["half"][head].astype(F64)
    x = hadamard(x, side["transform"]) if side["transform"] else x
    x = x * random_signs(x.shape[1]) if side["signs"] else x
    if side["choose"] != "none":
        chosen = flagrot.Chooser(hadamard, encode_group, side, x.shape[1], head)
        fixed = side["choose"] == "fixed"
        x = chosen.restore(x, [chosen.fixed()] if fixed else encoded["choices"])
    x = x @ side["tables"]["query"][head].astype(F64).T if side["dense"] else x
    if side["norms"]:
        x = x * encoded["norms"].astype(F64)[:, None]
    if side["shift"] != "none":
        x = x + side["tables"][side["shift"]][head].astype(F64)
    for row, (channels, values) in zip(x, encoded.get("slots") or []):
        row[channels] = values
    return x


# Specs

def _side(bits, group, axis, fit, levels, meta, rounding="nearest"):
    return {"bits": bits, "group": group, "axis": axis, "fit": fit, "levels": levels,
            "meta": meta, "round": rounding, "transform": 0, "dense": "", "shift": "none",
            "signs": False, "choose": "none", "choose_piece": 0, "score": "none",
            "place": "post_rope", "rope": None, "extra": 0, "sketch": None, "grouped": 0,
            "norms": False, "promoted": 0, "outliers": 0, "tables": {}}


def _copy(side):
    return {**side, "tables": {}}


# bits, group (0: the head), axis, fit, levels, meta, round
PLAIN = {
    "q5_0": (5, 32, "per_token", "signed_absmax", "symmetric", "f16", "nearest_up"),
    "q4_1": (4, 32, "per_token", "span", "affine", "f16", "nearest_up"),
    "q5_1": (5, 32, "per_token", "span", "affine", "f16", "nearest_up"),
    "iq4_nl": (4, 32, "per_token", "squares", "nl4", "f16"),
    "kv-int8": (8, 0, "per_token", "span", "affine", "f16_point", "nearest_up"),
    "kv-int4": (4, 0, "per_token", "span", "affine", "f16_point", "nearest_up"),
    "fp8": (8, 0, "per_token", "amax", "e4m3", "one"),
    "mxfp4": (4, 32, "per_token", "shared", "e2m1", "e8m0"),
    "mxfp8": (8, 32, "per_token", "shared", "e4m3", "e8m0"),
    "nvfp4": (4, 16, "per_token", "amax", "e2m1", "e4m3fn"),
    "fp8-tensor": (8, 0, "per_token", "amax", "e4m3", "tensor"),
    "nvfp4-tensor": (4, 16, "per_token", "amax", "e2m1", "e4m3fn_tensor"),
}


def _preset(name):
    """(key side, value side, windows)"""
    if name in ("f16", "bf16"):
        side = _side(16, 0, "per_token", "none", name, "none")
        return side, _copy(side), {"sink": 0, "recent": 0, "rows": name}
    if name == "q8_0":
        side = _side(8, 32, "per_token", "absmax", "symmetric", "f16", "nearest_away")
        return side, _copy(side), {"sink": 0, "recent": 0, "rows": "f16"}
    if name == "q4_0":
        side = _side(4, 32, "per_token", "signed_absmax", "symmetric", "f16", "nearest_up")
        return side, _copy(side), {"sink": 0, "recent": 0, "rows": "f16"}
    if name.startswith("turboquant"):
        key = _side(4, 0, "per_token", "matched", "lloyd", "f16")
        key.update(transform=-1, signs=True)
        if name == "turboquant-split":
            key.update(bits=2, outliers=-1)
        if name == "turboquant-prod":
            value = _copy(key)
            key.update(bits=3, fit="norm", sketch=(1, False))
            return key, value, {"sink": 4, "recent": 128, "rows": "f16"}
        value = _side(4, 0, "per_token", "minmax", "affine", "f16")
        return key, value if name == "turboquant" else _copy(key), {"sink": 4, "recent": 128,
                                                                    "rows": "f16"}
    if name == "higgs":
        side = _side(2, 0, "per_token", "norm", "plane", "f16")
        side.update(transform=-1, signs=True)
        return side, _copy(side), {"sink": 4, "recent": 128, "rows": "f16"}
    if name == "block-gtq":
        key = _side(2, 0, "per_token", "norm", "pairs", "f16")
        value = _side(2, 0, "per_token", "matched", "lloyd", "f16")
        value.update(transform=-1, signs=True)
        return key, value, {"sink": 4, "recent": 128, "rows": "f16"}
    if name == "qjl":
        key = _side(0, 0, "per_token", "none", "nothing", "none")
        key.update(sketch=(2, True))
        value = _side(2, 32, "per_token", "minmax", "affine", "f16")
        return key, value, {"sink": 4, "recent": 128, "rows": "f16"}
    if name == "qjl-signs":
        key = _side(1, 0, "per_token", "norm", "signs", "f16")
        key.update(transform=-1, signs=True)
        value = _side(2, 32, "per_token", "minmax", "affine", "f16")
        return key, value, {"sink": 4, "recent": 128, "rows": "f16"}
    if name in PLAIN:
        side = _side(*PLAIN[name])
        return side, _copy(side), {"sink": 0, "recent": 0, "rows": "f16"}
    if name in ("flagrot-kivi", "flagrot-auto"):
        key = _side(2, 32, "per_channel" if name == "flagrot-kivi" else "per_token", "minmax",
                    "affine", "e4m3")
        key.update(choose="unit", score="attention", score_number=32,
                   shift="mean" if name == "flagrot-auto" else "none")
        value = _side(2, 32, "per_token", "minmax", "affine", "8bit")
        return key, value, {"sink": 4, "recent": 128, "rows": "f16"}
    if name == "kvquant":
        key = _side(3, "head", "per_token", "static", "kmeans", "static")
        value = _side(3, "head", "per_token", "minmax", "affine", "f16")
        key.update(place="pre_rope", shift="middle", extra=1)
        value.update(extra=1)
        return key, value, {"sink": 4, "recent": 0, "rows": "f16"}
    if name in ("oscar-norm", "kitty"):
        norms = name == "oscar-norm"
        key = _side(2, 32 if norms else 128, "per_channel", "minmax", "affine",
                    "8bit" if norms else "f16")
        value = _side(2, 32 if norms else 0, "per_token", "minmax", "affine", key["meta"])
        if norms:
            key.update(transform=-1, norms=True)
            value.update(transform=-1)
        else:
            key.update(promoted=8)
        return key, value, {"sink": 0 if norms else 32, "recent": 128, "rows": "f16"}
    if name == "rotatekv":
        key = _side(2, 0, "per_token", "shrink80", "affine", "f16_point")
        value = _copy(key)
        key.update(place="pre_rope", grouped=4)
        value.update(transform=-1)
        return key, value, {"sink": 20, "recent": 0, "rows": "f16"}
    bits, axis = {"rtn": (4, "per_token"), "kivi": (2, "per_channel")}[name]
    key = _side(bits, 32, axis, "minmax", "affine", "8bit")
    value = _side(bits, 32, "per_token", "minmax", "affine", "8bit")
    return key, value, {"sink": 4, "recent": 128, "rows": "f16"}


def _set_stage(side, stage, word, head_dim):
    if stage == "extra" and word == "token_norm":
        side["norms"] = True
        return
    if stage == "extra" and word.startswith("outliers"):
        side["outliers"] = int(word[8:] or -1)
        return
    if stage == "extra" and word.startswith("promote"):
        side["promoted"] = int(word[7:] or 8)
        return
    if stage == "extra" and word.startswith("sketch"):
        apart = word.startswith("sketch_apart")
        number = word[len("sketch_apart" if apart else "sketch"):]
        side["extra"], side["sketch"] = 0, (int(number or 1 + apart), apart)
        return
    if stage == "extra":
        side["norms"], side["promoted"], side["outliers"] = False, 0, 0
        side["extra"] = 0 if word == "none" else int(word[6:] or 1)
        return
    if stage in ("choose", "score"):
        name, number = re.fullmatch(r"([a-z]+)(\d*)", word).groups()
        side[stage] = name
        if number:
            side[stage + "_number"] = int(number)
    elif stage == "transform" and word.startswith("grouped"):
        side["grouped"], side["transform"] = int(word[7:] or 4), 0
    elif stage == "transform" and word in DENSE:
        side["dense"], side["transform"] = word, 0
    elif stage == "transform":
        found = re.fullmatch(r"(?:signed_)?hadamard(\d*)", word)
        side["signs"] = word.startswith("signed")
        side["transform"] = int(found.group(1) or -1) if found else 0
    else:
        side[stage] = word


def parse_spec(spec, head_dim_k, head_dim_v):
    """A subset of the grammar: what the fixtures use.  -> (key side, value side, windows)"""
    head, _, rest = spec.partition(":")
    names = head.split("/")
    key, _, windows = _preset(names[0])
    value = _preset(names[-1])[1]
    windows["chunk"] = 0
    for item in filter(None, rest.split(",")):
        name, equals, word = item.partition("=")
        if equals and name in ("sink", "recent", "chunk", "page"):
            windows[name] = int(word)
        elif equals and name == "rows":
            windows["rows"] = word
        elif equals:
            for side, dim, letter in ((key, head_dim_k, "k"), (value, head_dim_v, "v")):
                if "." not in name or name[0] == letter:
                    _set_stage(side, name.split(".")[-1], word, dim)
        else:
            letters, number = re.fullmatch(r"([kvbg]+)(\d+)", item).groups()
            what = "group" if letters.endswith("g") else "bits"
            sides = {"k": [key], "v": [value]}.get(letters[0], [key, value])
            for side in sides:
                side[what] = int(number)
    for side, dim in ((key, head_dim_k), (value, head_dim_v)):
        side["group"] = dim if side["group"] == "head" else side["group"]
        if side["outliers"] < 0:
            side["outliers"] = max(16, 2**(dim.bit_length() - 3))
        if side["transform"] < 0 and not side["outliers"]:
            side["transform"] = hadamard_piece(dim)
        side["group"] = side["group"] or (
            0 if side["levels"] in ("f16", "bf16", "nothing") else dim)
    if key["choose"] != "none":
        key["choose_piece"] = flagrot.piece_of(head_dim_k, key.get("choose_number", 32))
    return key, value, windows


def num_quantized(num_rows, sink, recent, chunk):
    return max(0, num_rows - sink - recent) // chunk * chunk


# Keys before RoPE

def turn(x, positions, rope, direction):
    """float64 x [n, d], row i turned to positions[i], or back from it (direction -1)."""
    halves, dims, base = rope
    pair = np.arange(dims // 2)
    a, b = (pair, pair + dims // 2) if halves else (2 * pair, 2 * pair + 1)
    angles = np.asarray(positions, F64)[:, None] * F64(base) ** (-2.0 * pair / dims)
    c, s = np.cos(angles), direction * np.sin(angles)
    y = x.astype(F64)
    y[:, a], y[:, b] = x[:, a] * c - x[:, b] * s, x[:, b] * c + x[:, a] * s
    return y


# Keys of all heads together

def mix(x, most):
    """x [n, heads, d] of one type: neighbouring heads mixed by one Hadamard; its own inverse."""
    n, heads, d = x.shape
    kind, piece, mixed = x.dtype.type, hadamard_piece(d), 1
    while 2 * mixed <= most and heads % (2 * mixed) == 0:
        mixed *= 2
    y = x.reshape(n, heads // mixed, mixed, d // piece, piece)
    for axis, size in ((4, piece), (2, mixed)):
        y = np.moveaxis(y, axis, -1)
        for k in range(size.bit_length() - 1):
            z = y.reshape(*y.shape[:-1], size >> (k + 1), 2, 1 << k)
            a, b = z[..., 0, :], z[..., 1, :]
            y = np.stack([a + b, a - b], axis=-2).reshape(y.shape)
        y = np.moveaxis(y, -1, axis)
    factor = kind(F32(1 / np.sqrt(F64(mixed * piece)))) if kind is F32 \
        else kind(1 / np.sqrt(F64(mixed * piece)))
    return (y * factor).reshape(n, heads, d)


def grouped_rows(held, at, side, windows):
    """Rows at, before RoPE, heads mixed, the layer's channels in their order."""
    x = np.stack([turn(held[at, h].astype(F64), at, side["rope"], -1).astype(F32)
                  for h in range(held.shape[1])], axis=1)
    order = side["tables"]["order"].astype(np.int64).reshape(-1)
    y = mix(x, side["grouped"]).reshape(len(at), -1)[:, order]
    return window_rows(y, windows["rows"]).reshape(x.shape)


def grouped_back(y, at, side):
    """float64 rows of stored heads [n, heads, d] as keys after RoPE."""
    order = side["tables"]["order"].astype(np.int64).reshape(-1)
    x = np.zeros((len(at), y.shape[1] * y.shape[2]))
    x[:, order] = y.reshape(len(at), -1)
    x = mix(x.reshape(y.shape), side["grouped"])
    return np.stack([turn(x[:, h], at, side["rope"], 1) for h in range(x.shape[1])], axis=1)


# A cache of one layer

def cache_rows(x, side, windows):
    """x [n, heads, d] float32 -> (rows as attention sees them, float64; list of encoded heads)."""
    held = window_rows(x, windows["rows"])
    rows = held.astype(F64)
    sink = windows["sink"]
    nq = num_quantized(len(x), sink, windows["recent"], windows["chunk"])
    encoded = []
    at, unrotated = np.arange(sink, sink + nq), side["place"] == "pre_rope"
    if side["grouped"]:
        kept = grouped_rows(held, at, side, windows)
        encoded = [encode(kept[:, head], side, head) for head in range(x.shape[1])]
        back = [decode(one, side, head) for head, one in enumerate(encoded)]
        rows[at] = grouped_back(np.stack(back, axis=1), at, side)
        return rows, encoded
    for head in range(x.shape[1]):
        kept = held[at, head]
        if unrotated:
            kept = window_rows(turn(kept.astype(F64), at, side["rope"], -1).astype(F32),
                               windows["rows"])
        encoded.append(encode(kept, side, head))
        back = decode(encoded[-1], side, head)
        rows[at, head] = turn(back, at, side["rope"], 1) if unrotated else back
    return rows, encoded


def attend(q, k, v, positions, softmax_scale=0.0, soft_cap=0.0, window_len=0):
    """q [n, q_heads, dk], k [rows, heads, dk], v [rows, heads, dv] -> o, lse in float64.

    The query at position p sees rows 0 .. min(p, rows - 1), of these the newest window_len counted
    from p.  Over no rows o = 0 and lse = -inf.
    """
    scale = softmax_scale or float(F32(1.0 / np.sqrt(k.shape[2])))
    o = np.zeros((q.shape[0], q.shape[1], v.shape[2]))
    lse = np.full(q.shape[:2], -np.inf)
    share = q.shape[1] // k.shape[1]
    for i, p in enumerate(positions):
        first = max(0, p - window_len + 1) if window_len else 0
        end = min(p, len(k) - 1) + 1
        if first >= end:
            continue
        for h in range(q.shape[1]):
            s = k[first:end, h // share] @ q[i, h].astype(F64) * scale
            if soft_cap:
                s = soft_cap * np.tanh(s / soft_cap)
            top = s.max()
            p_row = np.exp(s - top)
            total = p_row.sum()
            o[i, h] = p_row @ v[first:end, h // share] / total
            lse[i, h] = top + np.log(total)
    return o, lse


def check_against_gguf():
    from gguf import GGMLQuantizationType, quants
    rng = np.random.default_rng(1)
    rows = (rng.standard_normal((4000, 32)) * np.exp(rng.uniform(-6, 6, (4000, 1)))).astype(F32)
    rows = window_rows(np.concatenate([rows, np.zeros((1, 32), F32), -rows[:50]]), "f16")
    for name, kind in (("q8_0", GGMLQuantizationType.Q8_0), ("q4_0", GGMLQuantizationType.Q4_0)):
        ours = encode(rows, _preset(name)[0])
        theirs = quants.quantize(rows, kind)
        scale = theirs[:, :2].copy().view(np.float16).astype(F32)
        if name == "q8_0":
            codes = theirs[:, 2:].copy().view(np.int8).astype(np.int32) + 128
        else:
            codes = np.concatenate([theirs[:, 2:] & 15, theirs[:, 2:] >> 4], axis=1)
        assert np.array_equal(ours["scales"], scale), name + ": scales differ"
        assert np.array_equal(ours["codes"], codes), name + ": codes differ"
        print(f"{name}: {len(rows)} groups equal gguf's")


if __name__ == "__main__":
    check_against_gguf()
