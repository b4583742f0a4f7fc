# statistics.py -- what kvl_statistics must have after the rows of tests/test_calibration.c.
#
#     python3 tests/oracles/statistics.py tests/fixtures/statistics.txt
#     python3 tests/oracles/statistics.py --models tests/fixtures/statistics_models.txt
#     python3 tests/oracles/statistics.py --check FILE.safetensors
#
# The first forms write expected values, in float64 by the definitions of runtime/kvl_statistics.h,
# on rows of an LCG that both programs know, and on those of the tiny models of tests/tiny_model.h.
# The last reads a calibration file with the safetensors package where it is installed (else by the
# format's own rules), and checks what must hold in any.  Independent of the C: dense loops over
# heads and positions.

import json
import struct
import sys

import numpy as np

ROWS, Q_HEADS, KV_HEADS, DK, DV, OUT = 150, 4, 2, 32, 48, 40
SKIP_SINK, SKIP_RECENT, GROUP = 4, 32, 32
DIMS, BASE = 24, 1000.0


def rows(seed, shape):
    """Multiples of 2^-13, from -4 to 4: floats hold them exactly."""
    state, out = seed, np.empty(int(np.prod(shape)))
    for i in range(out.size):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out[i] = ((state >> 48) - 32768) * 2.0**-13
    return out.reshape(shape)


def outer(x, w=None):
    x = x.reshape(-1, x.shape[-1])
    return x.T @ (x if w is None else x * np.asarray(w).reshape(-1, 1))


def unrotated(k, dims, base, halves):
    """Sum of keys [rows, d], each turned back to position 0."""
    out = k.copy()
    angle = np.arange(len(k))[:, None] * base ** (-2 * np.arange(dims // 2) / dims)
    first = np.arange(dims // 2) if halves else np.arange(0, dims, 2)
    second = first + (dims // 2 if halves else 1)
    out[:, first] = np.cos(angle) * k[:, first] + np.sin(angle) * k[:, second]
    out[:, second] = np.cos(angle) * k[:, second] - np.sin(angle) * k[:, first]
    return out.sum(0)


def turn_moments(k, dims, base):
    """Of keys [rows, d] with z = cos, sin of each pair's angle, and of z, within groups."""
    half = k.shape[1] // 2
    turns = np.zeros(half)
    turns[:dims // 2] = base ** (-2 * np.arange(dims // 2) / dims)
    angle = np.arange(len(k))[:, None] * turns
    z = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)

    def within(x):
        x = x[:len(x) // GROUP * GROUP].reshape(-1, GROUP, x.shape[1])
        return (x - x.mean(axis=1, keepdims=True)).reshape(-1, x.shape[2])
    return within(k).T @ within(z), within(z).T @ within(z)


def statistics(q, k, v, w_o, window=0, cap=0.0):
    """One dict a KV head, of rows [rows, heads, dim] of one sequence, w_o [out, q heads, dv]."""
    rows, q_heads, dk = q.shape
    group, result = q_heads // k.shape[1], []
    for h in range(k.shape[1]):
        lse = np.zeros((group, rows))
        seen, price = np.zeros((group, rows)), np.zeros((group, rows))
        attended = np.zeros((group, rows, v.shape[2]))
        for g in range(group):
            w = w_o[:, h * group + g, :]
            for i in range(rows):
                first = max(0, i + 1 - window) if window else 0
                s = k[first:i + 1, h] @ q[i, h * group + g] / np.sqrt(dk)
                s = cap * np.tanh(s / cap) if cap else s
                lse[g, i] = s.max() + np.log(np.exp(s - s.max()).sum())
                p = np.exp(s - lse[g, i])
                o = p @ v[first:i + 1, h]
                attended[g, i] = o
                for t in range(max(first, SKIP_SINK), i + 1 - SKIP_RECENT):
                    pt = p[t - first]
                    seen[g, i] += pt * (1 - pt)
                    price[g, i] += pt**2 * ((w @ (v[t, h] - o)) ** 2).sum()
        qs = q[:, h * group:(h + 1) * group].transpose(1, 0, 2)
        grouped = k[:rows // GROUP * GROUP, h].reshape(-1, GROUP, dk)
        residuals = grouped - grouped.mean(axis=1, keepdims=True)
        result.append({
            "key_sum": k[:, h].sum(0), "value_sum": v[:, h].sum(0), "query_sum": qs.sum((0, 1)),
            "key_outer": outer(k[:, h]), "key_group_outer": outer(residuals),
            "query_outer": outer(qs), "query_seen_outer": outer(qs, seen),
            "query_output_outer": outer(qs, price), "value_outer": outer(v[:, h]),
            "attended_outer": outer(attended),
            "output_outer": sum(w_o[:, h * group + g].T @ w_o[:, h * group + g]
                                for g in range(group)),
            "query_seen_weight": seen.sum(), "query_output_weight": price.sum(),
            "lse": lse,
        })
    return result


# A whole matrix as three numbers that every element takes part in, and its size for tolerances.
def digest(x):
    x = np.atleast_1d(np.asarray(x, np.float64)).reshape(-1)
    i = np.arange(x.size)
    return [x.sum(), (x * np.cos(0.37 * i)).sum(), (x * ((i * 7919) % 97 - 48) / 48).sum(),
            np.abs(x).sum()]


def line(*words, value):
    return " ".join(map(str, words)) + " " + " ".join(f"{x:.17g}" for x in digest(value)) + "\n"


def write(path):
    k, v = rows(1, (ROWS, KV_HEADS, DK)), rows(2, (ROWS, KV_HEADS, DV)) + 2.0
    q, w_o = rows(3, (ROWS, Q_HEADS, DK)) * 0.25, rows(4, (OUT, Q_HEADS, DV)) * 0.25
    with open(path, "w") as out:
        for case, (window, cap, halves) in enumerate([(0, 0.0, 0), (70, 0.0, 1), (0, 2.0, 0)]):
            for h, head in enumerate(statistics(q, k, v, w_o, window, cap)):
                head["key_unrotated_sum"] = unrotated(k[:, h], DIMS, BASE, halves)
                head["key_turn_outer"], head["turn_outer"] = turn_moments(k[:, h], DIMS, BASE)
                for name, value in head.items():
                    out.write(line(case, h, name, value=value))


def write_models(path):
    """Of the tiny models of tiny_models.py, as forward.py runs them: every layer and head."""
    from forward import forward
    from tiny_models import MODELS
    with open(path, "w") as out:
        for arch in MODELS:
            def see(layer, q, k, v, w_o, window):
                w_o = w_o.reshape(len(w_o), q.shape[1], -1)
                for h, head in enumerate(statistics(q, k, v, w_o, window)):
                    for name, value in head.items():
                        if name != "lse":
                            out.write(line(arch, layer, h, name, value=value))
            forward(arch, see)


def read(path):
    """The arrays and the metadata of a file."""
    try:
        from safetensors import safe_open
        with safe_open(path, "numpy") as f:
            return {name: f.get_tensor(name) for name in f.keys()}, f.metadata()
    except ImportError:
        data = open(path, "rb").read()
        size, = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + size])
        meta, arrays = header.pop("__metadata__"), {}
        for name, one in header.items():
            a, b = one["data_offsets"]
            kind = {"F32": "<f4", "F64": "<f8"}[one["dtype"]]
            part = data[8 + size + a:8 + size + b]
            arrays[name] = np.frombuffer(part, kind).reshape(one["shape"])
        return arrays, meta


def check(path):
    arrays, meta = read(path)
    assert meta["format"] == "kvloom calibration 1", meta
    layers = arrays["layers"]
    for i, (q_heads, kv_heads, dk, dv, scale, cap, window) in enumerate(layers):
        def stat(name):
            return arrays[f"layer.{i}.stat.{name}"]
        n, shape = stat("rows")[0], (int(kv_heads), int(dk), int(dk))
        for name in ("key_outer", "key_group_outer", "query_outer", "query_seen_outer"):
            m = stat(name)
            assert m.shape == shape and m.dtype == np.float64, name
            assert np.array_equal(m, m.transpose(0, 2, 1)), name
            least = np.linalg.eigvalsh(m)[:, 0]
            assert (least > -1e-9 * np.trace(m, axis1=1, axis2=2)).all(), (name, least)
        mean = stat("key_sum") / n
        within = stat("key_outer") / n - mean[:, :, None] * mean[:, None, :]
        grouped = stat("key_group_outer") / stat("grouped_rows")[0]
        assert (np.trace(grouped, axis1=1, axis2=2) <=
                1.2 * np.trace(within, axis1=1, axis2=2)).all(), "groups vary more than the whole"
        assert np.isfinite(stat("query_sample")).all()
        assert stat("query_sample").shape[2] == dk + 1
        if f"layer.{i}.k.mean" in arrays:
            assert np.array_equal(arrays[f"layer.{i}.k.mean"], mean.astype(np.float32))
    print(f"{path}: {len(arrays)} arrays hold; model {meta.get('model', '?')}")


if __name__ == "__main__":
    forms = {"--check": check, "--models": write_models}
    forms[sys.argv[1]](sys.argv[2]) if sys.argv[1] in forms else write(sys.argv[1])
