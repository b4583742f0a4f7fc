# record_rows.py -- real keys, values and queries of a layer: tests/fixtures/rows_*.bin.
#
#     build/bin/decode -m MODEL -f TEXT -n 1 --cache f16:sink=0,recent=256 --save SESSION
#     build/bin/kvloom-calibrate -m MODEL -f OTHER_TEXT -o CALIBRATION --for flagrot-auto
#     python3 record_rows.py SESSION CALIBRATION LAYER HEADS OUT       needs NumPy and safetensors
#
# OUT: the text of HEADER, then little-endian arrays without padding: k and v f16 [rows, heads, 64],
# queries f16 [heads, queries, 64], query_lse and mean f32 [heads, queries] and [heads, 64]: rows as
# they are appended, and the calibrated tables of those names (the queries rounded to f16).

import struct
import sys
import numpy as np
from safetensors import safe_open

ROWS, DIM, QUERIES = 97, 64, 32
HEADER = "kvloom_rows 1\nrows {} heads {} dim {} queries {}\n"


def sections(data):
    """(tag, index, payload) of a file that kvl_save wrote: runtime/kvl_file.h has the format."""
    at = 24
    while at < len(data):
        tag, index, size = struct.unpack_from("<4sIQ", data, at)
        yield tag, index, data[at + 16:at + 16 + size]
        at += 16 + size + 8


def session_rows(path, layer):
    """Keys and values [heads, rows, DIM] of a sequence whose rows are all in its tail."""
    with open(path, "rb") as file:
        data = file.read()
    for tag, index, payload in sections(data):
        if tag == b"LAYR" and index == layer:
            heads, dim = struct.unpack_from("<II", payload, 4)
        if tag == b"ROWS" and index == layer:
            rows = np.frombuffer(payload, "<f2", offset=56).reshape(heads, 2, -1, dim)
            return rows[:, 0], rows[:, 1]
    raise SystemExit(f"{path}: no rows of layer {layer}")


def main():
    session, calibration, layer, heads, out = sys.argv[1:]
    k, v = (x[:int(heads), :ROWS].transpose(1, 0, 2) for x in session_rows(session, int(layer)))
    if k.shape != (ROWS, int(heads), DIM):
        raise SystemExit(f"{session}: {k.shape}, not {ROWS} rows of {heads} heads of {DIM}")
    with safe_open(calibration, "np") as file:
        queries, lse, mean = (file.get_tensor(f"layer.{layer}.k.{name}")[:int(heads)]
                              for name in ("queries", "query_lse", "mean"))
    queries, lse = queries[:, :QUERIES], lse[:, :QUERIES]
    with open(out, "wb") as file:
        file.write(HEADER.format(ROWS, heads, DIM, queries.shape[1]).encode("ascii"))
        for array, kind in ((k, "<f2"), (v, "<f2"), (queries, "<f2"), (lse, "<f4"), (mean, "<f4")):
            file.write(np.ascontiguousarray(array).astype(kind).tobytes())


if __name__ == "__main__":
    main()
