# predicted.py -- layers whose rows are predicted from the layer below, in NumPy.
#
#     python3 tests/oracles/predicted.py [FOLDER]      needs NumPy; tests/fixtures by default
#
# Written from gen/parts/predicted.lua, on the codecs of codecs.py.  predicted_NAME.bin is a line
#     q heads, KV heads, head_dim, head_dim_v, rows, sink, recent, RoPE halves, dims and base
# then a line with the spec of each of LAYERS layers, and of each, little-endian:
#     levels of keys, of values   u16 [quantized, KV heads, head_dim]
#     keys, values                f32 [rows, KV heads, head_dim], every STEPth
#     o, lse                      f32 [QUERIES, q heads, head_dim_v], at the newest positions
# Rows and tables are those of make_fixtures.py, of other seeds.

import os
import sys
import numpy as np
import make_fixtures as made
from make_fixtures import oracle

LAYERS, QUERIES, STEP = 3, 2, 5
F32, F64 = np.float32, np.float64

# name, q heads, KV heads, head_dim, head_dim_v, rows, sink, recent, rope, spec, bits of layers
CASES = [
    ("plane", 4, 2, 32, 48, 33, 2, 4, (1, 32, 10000.0),
     "higgs:%s,k.place=pre_rope,shift=predicted,sink=2,recent=4", ("k4,v4", "k2,v3", "k2,v2")),
    ("affine", 2, 1, 64, 32, 30, 0, 3, (0, 48, 1000.0),
     "rtn:%s,g16,meta=f16,k.place=pre_rope,shift=predicted,k.transform=hadamard32,rows=bf16,"
     "sink=0,recent=3", ("k4,v4", "k3,v2", "k2,v3")),
]


def table(letter, layer, heads, inputs, dim):
    """float64 [heads, inputs, dim], as test_calibration has it."""
    seed = f"{heads}.{inputs}.{dim} {layer}.{letter}.predicted"
    lcg = made.Lcg(made.fnv(seed.encode("ascii")))
    bell = np.array([lcg.bell() for _ in range(heads * inputs * dim)], np.int64)
    return bell.reshape(heads, inputs, dim) * 2.0**-17


def predictions(w, x):
    """p float32 [n, heads, dim] of restored rows x [n, inputs - 1] by tables w."""
    x = np.concatenate([x.astype(F64), np.ones((len(x), 1))], axis=1)
    return np.einsum("ni,hid->nhd", x, w).astype(F32)


def code(rows, p, side, windows):
    """Encoded heads of rows without p, and what is restored of them."""
    kept = oracle.window_rows(rows.astype(F32) - p, windows["rows"])
    heads = [oracle.encode(kept[:, h], side, h) for h in range(kept.shape[1])]
    back = np.stack([oracle.decode(one, side, h) for h, one in enumerate(heads)], axis=1)
    return heads, oracle.window_rows(back.astype(F32) + p, windows["rows"])


def layer_of(case, layer, below):
    """Codes, rows as attention sees them, and restored rows for the next layer."""
    _, hq, heads, dk, dv, n, sink, recent, rope, spec, bits = case
    key, value, windows = oracle.parse_spec(spec % bits[layer], dk, dv)
    for side in (key, value):
        side["shift"] = "none"
    nq = n - sink - recent
    at = np.arange(sink, sink + nq)
    k = oracle.window_rows(made.make_rows(100 + layer, n, heads, dk), windows["rows"])
    v = oracle.window_rows(made.make_rows(200 + layer, n, heads, dv), windows["rows"])
    turned = np.stack([oracle.turn(k[at, h].astype(F64), at, rope, -1).astype(F32)
                       for h in range(heads)], axis=1)
    p = predictions(table("k", layer, heads, heads * dk + 1, dk), below[0].reshape(nq, -1))
    k_heads, kr = code(turned, p, key, windows)
    x = np.concatenate([kr.reshape(nq, -1), below[1].reshape(nq, -1)], axis=1)
    p = predictions(table("v", layer, heads, heads * (dk + dv) + 1, dv), x)
    v_heads, vr = code(v[at], p, value, windows)
    seen = [k.astype(F64), v.astype(F64)]
    seen[0][at] = np.stack([oracle.turn(kr[:, h].astype(F64), at, rope, 1)
                            for h in range(heads)], axis=1)
    seen[1][at] = vr
    return (k_heads, v_heads), seen, (kr, vr)


def make(case):
    name, hq, heads, dk, dv, n, sink, recent, rope, spec, bits = case
    out = "%d %d %d %d %d %d %d %d %d %g\n" % (hq, heads, dk, dv, n, sink, recent, *rope)
    out += "".join(spec % b + "\n" for b in bits)
    data = out.encode("ascii")
    nq = n - sink - recent
    below = (np.zeros((nq, heads, dk)), np.zeros((nq, heads, dv)))
    for layer in range(LAYERS):
        codes, seen, below = layer_of(case, layer, below)
        for side in codes:
            data += np.stack([one["codes"] for one in side], axis=1).astype("<u2").tobytes()
        for rows in seen:
            data += rows[::STEP].astype("<f4").tobytes()
        q = made.make_queries(300 + layer, QUERIES, hq, dk)
        for x in oracle.attend(q, *seen, range(n - QUERIES, n)):
            data += x.astype("<f4").tobytes()
    return name, data


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(made.HERE, "..", "fixtures")
    for one, content in map(make, CASES):
        with open(os.path.join(folder, f"predicted_{one}.bin"), "wb") as file:
            file.write(content)
        print(one, len(content))
