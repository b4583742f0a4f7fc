# file_basis.py -- puts matrices of one's own into a calibration file, for transform=file.
#
#     python3 tools/file_basis.py CALIBRATION.safetensors MATRICES.npz -o OUT.safetensors
#
# CALIBRATION is a file of kvloom-calibrate for the model (any --for, or none: its shapes are what
# is needed).  MATRICES has arrays named layer.<L>.k and layer.<L>.v, for the layers and sides that
# are to have one: T of shape [d, d] for all KV heads of the layer, or [heads, d, d].  T acts on
# columns, y = T x: what is stored is T k, and queries become T^-T q.  With --rows matrices act on
# rows, y = x P, as PyTorch modules have them.  (SpinQuant: R2 is layer.<L>.v with --rows.
# FlatQuant: the matrix of a layer's keys is layer.<L>.k with --rows.)
#
# OUT is CALIBRATION with layer.<L>.<side>.file_forward and file_query, float32 [heads, d, d]:
# F = T^T and Q = T^-1, inverted in float64.  A matrix that is not finite, of another shape, or
# whose condition is more than 1e6 is refused by name.  Needs NumPy and nothing else.

import argparse
import json
import re
import struct
import sys

import numpy as np

TYPES = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
WORST_CONDITION = 1e6


def fail(message):
    sys.exit("file_basis.py: " + message)


def read(path):
    """(texts, {name: array}) of a safetensors file."""
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    try:
        size = struct.unpack("<Q", raw[:8])[0]
        head = json.loads(raw[8:8 + size])
        texts = head.pop("__metadata__", {})
        arrays = {}
        for name, one in head.items():
            begin, end = one["data_offsets"]
            data = raw[8 + size + begin:8 + size + end]
            arrays[name] = np.frombuffer(data, TYPES[one["dtype"]]).reshape(one["shape"])
    except (ValueError, KeyError, TypeError, struct.error) as error:
        fail(f"{path}: not a calibration file: {error}")
    if "layers" not in arrays or not texts.get("format", "").startswith("kvloom calibration"):
        fail(f"{path}: not a calibration file of kvloom-calibrate")
    return texts, arrays


def write(path, texts, arrays):
    """Arrays of eight bytes first, so that all of them are aligned."""
    head, at, order = {"__metadata__": texts}, 0, []
    for dtype in ("F64", "F32"):
        for name, x in arrays.items():
            if x.dtype != TYPES[dtype]:
                continue
            head[name] = {"dtype": dtype, "shape": list(x.shape),
                          "data_offsets": [at, at + x.nbytes]}
            at += x.nbytes
            order.append(x)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for x in order:
            file.write(np.ascontiguousarray(x).tobytes())


def tables_of(name, given, heads, dim):
    """(F, Q) [heads, dim, dim] of a matrix that acts on columns."""
    t = np.asarray(given, np.float64)
    if t.ndim == 2:
        t = np.broadcast_to(t, (heads,) + t.shape)
    if t.shape != (heads, dim, dim):
        fail(f"{name}: shape {list(np.shape(given))}: must be [{dim}, {dim}] or "
             f"[{heads}, {dim}, {dim}]")
    if not np.isfinite(t).all():
        fail(f"{name}: must be finite")
    for head in range(heads):
        condition = np.linalg.cond(t[head])
        if not condition <= WORST_CONDITION:
            fail(f"{name}: head {head}: its condition is {condition:.3g}: must be at most "
                 f"{WORST_CONDITION:g}")
    return t.transpose(0, 2, 1), np.linalg.inv(t)


def main():
    parser = argparse.ArgumentParser(prog="file_basis.py", description=__doc__)
    parser.add_argument("calibration")
    parser.add_argument("matrices", help=".npz with layer.<L>.k and layer.<L>.v")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--rows", action="store_true", help="matrices act on rows, y = x P")
    options = parser.parse_args()
    texts, arrays = read(options.calibration)
    try:
        given = dict(np.load(options.matrices))
    except (OSError, ValueError) as error:
        fail(f"{options.matrices}: {error}")
    layers = arrays["layers"]
    for name, x in given.items():
        match = re.fullmatch(r"layer\.(\d+)\.([kv])", name)
        if not match or int(match[1]) >= len(layers):
            fail(f"{options.matrices}: {name}: must be layer.<L>.k or layer.<L>.v, L below "
                 f"{len(layers)}")
        shape = layers[int(match[1])]
        heads, dim = int(shape[1]), int(shape[2 if match[2] == "k" else 3])
        if options.rows:
            x = np.swapaxes(x, -1, -2)
        forward, query = tables_of(name, x, heads, dim)
        arrays[name + ".file_forward"] = np.ascontiguousarray(forward, "<f4")
        arrays[name + ".file_query"] = np.ascontiguousarray(query, "<f4")
    texts.pop("hash_tables", None)                     # it was of the arrays as they were
    write(options.output, texts, arrays)
    print(f"file_basis.py: {options.output}: {len(given)} matrices", file=sys.stderr)


if __name__ == "__main__":
    main()
