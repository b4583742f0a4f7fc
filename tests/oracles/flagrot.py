# flagrot.py -- stages choose and score in NumPy, from the definitions in gen/parts/*.lua.
#
# Fits are those of codecs.py, with zeros whose lowest bit is a flag; scores are float64.

import numpy as np

F32 = np.float32
F64 = np.float64
HEAD_BIT = 1 << 31


def piece_of(head_dim, number):
    piece = 16
    while piece * 2 <= number and head_dim % (piece * 2) == 0:
        piece *= 2
    return piece


def f16_with_bit(value, bit):
    """An f16 value, or the one below it if its lowest bit is not `bit` (above, at the end)."""
    h = np.float16(value)
    if int(h.view(np.uint16)) & 1 == bit:
        return h
    below = np.nextafter(h, np.float16(-np.inf), dtype=np.float16)
    return np.nextafter(h, np.float16(np.inf), dtype=np.float16) if np.isinf(below) else below


def middle_with_bit(y, bit):
    """The nearest integer to float32 y whose lowest bit is `bit`, within -127 .. 127."""
    half = np.rint((F32(y) - F32(bit)) * F32(0.5))
    most = 63
    return F32(2) * np.clip(half, F32(-most - bit), F32(most)) + F32(bit)


def hadamard_matrix(n):
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(n)


def rotate(x, piece):
    """Pieces of the last axis by the matrix, in float64."""
    return (x.reshape(-1, piece) @ hadamard_matrix(piece)).reshape(x.shape)


class Chooser:
    """One head's choices, with the transform and the fit of codecs.py."""

    def __init__(self, hadamard, encode_group, side, head_dim, head):
        self.hadamard, self.encode_group = hadamard, encode_group
        self.side, self.dim = side, head_dim
        self.piece = side["choose_piece"]
        self.whole = head_dim & -head_dim
        self.tables = {name: x[head] for name, x in side["tables"].items()}
        self.least_margin = np.inf

    def bases(self, x):
        """float32 rows [n, d] as they are, in pieces rotated, and the head rotated."""
        return [x, self.hadamard(x, self.piece), self.hadamard(x, self.whole)]

    def fit(self, x, basis):
        """Rows of one unit -> codes, scales, offsets [groups], decoded rows (float32)."""
        along = x.T if self.side["axis"] == "per_channel" else x
        g = self.side["group"]
        groups = along.reshape(-1, g)
        codes, scales, offsets, decoded = [], [], [], []
        for i, group in enumerate(groups):
            flag = int(basis == 2) if i == 0 and self.side["choose"] == "unit" else None
            q, scale, offset = self.encode_group(group, self.side, flag)
            codes.append(q)
            scales.append(scale)
            offsets.append(offset)
            decoded.append(scale * q.astype(F32) + offset)
        def back(rows):
            rows = np.array(rows).reshape(along.shape)
            return rows.T if self.side["axis"] == "per_channel" else rows
        return back(codes), np.array(scales, F32), np.array(offsets, F32), back(decoded)

    def weights(self, plain):
        """p of each query and row."""
        logits = self.tables["queries"].astype(F64) @ plain.astype(F64).T
        return np.exp(np.minimum(logits - self.tables["query_lse"].astype(F64)[:, None], 0.0))

    def score(self, plain, e, first, count):
        part = e[:, first:first + count]
        if self.side["score"] == "attention":
            dots = self.tables["queries"][:, first:first + count].astype(F64) @ part.T
            return float((self.weights(plain) * dots**2).sum())
        if self.side["score"] == "channel":
            moment = self.tables["query_moment"].astype(F64)
            return float(np.einsum("ti,ij,tj->", part,
                                   moment[first:first + count, first:first + count], part))
        return float((part**2).sum())

    def unit(self, plain, x):
        """(choice bits, scores) of one unit: rows plain and less their shift; and each fit."""
        rows = self.bases(x)
        fits = [self.fit(r, basis) for basis, r in enumerate(rows)]
        errors = [(r - f[3]).astype(F64) for r, f in zip(rows, fits)]
        errors[1] = rotate(errors[1], self.piece)
        errors[2] = rotate(errors[2], self.whole)
        choice, mixed, scores = 0, errors[0].copy(), []
        for p in range(self.dim // self.piece):
            at = p * self.piece
            a, b = (self.score(plain, errors[m], at, self.piece) for m in (0, 1))
            self.note(a, b)
            scores += [a, b]
            if b < a:
                choice |= 1 << p
                mixed[:, at:at + self.piece] = errors[1][:, at:at + self.piece]
        a, b = (self.score(plain, e, 0, self.dim) for e in (mixed, errors[2]))
        self.note(a, b)
        scores += [a, b]
        return (HEAD_BIT if b < a else choice), scores, fits

    def note(self, a, b):
        if max(a, b) > 0:
            self.least_margin = min(self.least_margin, abs(a - b) / max(a, b))

    def basis_of(self, choice, channel):
        return 2 if choice & HEAD_BIT else choice >> (channel // self.piece) & 1

    def encode(self, plain, x):
        """All rows -> codes, scales, offsets as codecs.encode has them, and choices."""
        step = self.side["group"] if self.side["axis"] == "per_channel" else 1
        out = {"codes": [], "scales": [], "offsets": [], "choices": [], "scores": []}
        for t in range(0, len(x), step):
            choice, scores, fits = self.unit(plain[t:t + step], x[t:t + step])
            bases = np.array([self.basis_of(choice, c) for c in range(self.dim)])
            per = self.dim // len(fits[0][1])
            out["choices"].append(choice)
            out["scores"].append(scores)
            out["codes"].append(np.choose(bases, [f[0] for f in fits]))
            out["scales"].append(np.choose(bases[::per], [f[1] for f in fits]))
            out["offsets"].append(np.choose(bases[::per], [f[2] for f in fits]))
        return {"codes": np.concatenate(out["codes"]), "scales": np.stack(out["scales"]),
                "offsets": np.stack(out["offsets"]), "scores": np.array(out["scores"]),
                "choices": np.array(out["choices"], np.uint32)}

    def restore(self, x, choices):
        """float64 rows out of their bases."""
        step = len(x) // len(choices)
        out = x.copy()
        for t, choice in enumerate(choices):
            rows = out[t * step:(t + 1) * step]
            if choice & HEAD_BIT:
                rows[:] = rotate(rows, self.whole)
            for p in range(self.dim // self.piece):
                at = slice(p * self.piece, (p + 1) * self.piece)
                if not choice & HEAD_BIT and choice >> p & 1:
                    rows[:, at] = rotate(rows[:, at], self.piece)
        return out

    def fixed(self):
        """The choice of table `choice`."""
        table = self.tables["choice"]
        if table[-1]:
            return HEAD_BIT
        return sum(1 << p for p in range(len(table) - 1) if table[p])

    def to_fixed(self, x):
        """float32 rows into the bases of table `choice`."""
        rows, choice = self.bases(x), self.fixed()
        bases = np.array([self.basis_of(choice, c) for c in range(self.dim)])
        return np.choose(bases, rows)
