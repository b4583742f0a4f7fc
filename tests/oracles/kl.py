# kl.py -- what kvloom-eval measures, by NumPy in float64: an oracle for tools/eval_*.c.
#
#     python3 tests/oracles/kl.py FOLDER      recomputes KL from the logits of --dump-logits FOLDER,
#                                             and compares; status 1 if one is off by more than 1e-6
#     python3 tests/oracles/kl.py --pairs     > tests/fixtures/eval_pairs.txt
#     python3 tests/oracles/kl.py --windows   > tests/fixtures/eval_windows.txt
#
# --pairs: KL, -log p and -log q of pairs of logits that both sides make, some of them very peaked.
# --windows: two windows of 512 tokens on the tiny models of tiny_models.py, each position on the
# cache as it was when that position was the newest, with the codecs of codecs.py. Shares no code
# with the library.

import glob
import importlib.util
import os
import re
import sys

import numpy as np

import forward as plain
from tiny_models import HIDDEN, MODELS, VOCAB, tensor, tensors

HERE = os.path.dirname(os.path.abspath(__file__))
# By path, since the standard library has a module of the same name.
_spec = importlib.util.spec_from_file_location("kvl_codecs", os.path.join(HERE, "codecs.py"))
oracle = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(oracle)

CONTEXT, WINDOWS = 512, 2
CASES = [
    ("llama", "kivi:k2,v2,sink=4,recent=64"),
    ("llama", "kivi:k2,v2,sink=0,recent=0"),
    ("qwen2", "q4_0:sink=4,recent=64"),
    ("qwen3", "rtn:k2,v2,g16,sink=0,recent=0"),
]


def log_softmax(x):
    x = x.astype(np.float64)
    top = x.max(-1, keepdims=True)
    return x - top - np.log(np.exp(x - top).sum(-1, keepdims=True))


def divergence(base, cache):
    """KL(base || cache) of each row of logits, in nats."""
    p, q = log_softmax(base), log_softmax(cache)
    return (np.exp(p) * (p - q)).sum(-1)


# Pairs of logits: integers of a generator over 2^15, times a spread

class Lcg:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return self.state >> 48


def pairs():
    for index in range(24):
        size, spread = 5 + 37 * index, 2.0**(index % 8 - 1)
        change = 2.0**-(index % 6 * 3)
        r = Lcg(index + 1)
        base = np.array([(r.next() - 32768) * 2.0**-15 for _ in range(size)]) * spread
        other = base + np.array([(r.next() - 32768) * 2.0**-15 for _ in range(size)]) * change
        base, other = base.astype(np.float32), other.astype(np.float32)
        target = r.next() % size
        print("%d %.17g %.17g %.17g" % (index, divergence(base, other),
                                       -log_softmax(base)[target], -log_softmax(other)[target]))


# Windows on tiny models

def window_tokens(window):
    r = Lcg(1000 + window)
    return [1] + [3 + r.next() % 256 for _ in range(CONTEXT - 1)]


class Side:
    """The rows of one side of one layer by the number of tokens n: 16 bits or decoded codes."""

    def __init__(self, rows, codec, windows):
        rows = rows.astype(np.float32)
        held = oracle.window_rows(rows, windows["rows"])
        self.exact, self.coded = held.astype(np.float64), held.astype(np.float64)
        sink = self.sink = windows["sink"]
        self.windows = windows
        count = self.num_quantized(len(rows))
        for head in range(rows.shape[1]):
            encoded = oracle.encode(held[sink:sink + count, head], codec)
            self.coded[sink:sink + count, head] = oracle.decode(encoded, codec)

    def num_quantized(self, n):
        w = self.windows
        return oracle.num_quantized(n, w["sink"], w["recent"], w["chunk"])

    def at(self, n):
        out = self.exact[:n].copy()
        end = self.sink + self.num_quantized(n)
        out[self.sink:end] = self.coded[self.sink:end]
        return out


def attention_through(spec, q, k, v, window):
    dim = q.shape[2]
    key, value, windows = oracle.parse_spec(spec, dim, dim)
    if windows["chunk"] == 0:
        along = [s["group"] for s in (key, value) if s["axis"] == "per_channel"]
        windows["chunk"] = max(along) if along else 1
    keys, values = Side(k, key, windows), Side(v, value, windows)
    out = np.empty((len(q), q.shape[1], v.shape[2]))
    share = q.shape[1] // k.shape[1]
    for t in range(len(q)):
        first = max(0, t + 1 - window) if window else 0
        rows_k, rows_v = keys.at(t + 1)[first:], values.at(t + 1)[first:]
        for h in range(q.shape[1]):
            scores = rows_k[:, h // share] @ q[t, h] / np.sqrt(dim)
            weights = np.exp(scores - scores.max())
            out[t, h] = weights @ rows_v[:, h // share] / weights.sum()
    return out.reshape(len(q), -1)


def logits_of(arch, spec, ids):
    """forward.py's pass with another attention, logits of every row."""
    m = MODELS[arch]
    w = {name: tensor(name, shape).astype(np.float64) for name, shape in tensors(arch)}
    x = w["token_embd.weight"][ids] * (np.sqrt(HIDDEN) if m["gemma"] else 1.0)
    rows, dim = len(x), m["dim"]
    for i in range(m["layers"]):
        of = lambda name: w["blk.%d.%s" % (i, name)]
        windowed = m["window"] > 0 and i % 6 < 5
        base, scale = (10000.0, 1.0) if windowed else (m["base"], m["scale"])
        h = plain.rms_norm(x, of("attn_norm.weight"))
        q, k, v = (h @ of("attn_%s.weight" % s).T + (of("attn_%s.bias" % s) if m["bias"] else 0.0)
                   for s in "qkv")
        q, k, v = (y.reshape(rows, -1, dim) for y in (q, k, v))
        if m["qk_norm"]:
            q = plain.rms_norm(q, of("attn_q_norm.weight"))
            k = plain.rms_norm(k, of("attn_k_norm.weight"))
        q, k = (plain.rope(y, base, scale, m["halves"], w.get("rope_freqs.weight", 1.0))
                for y in (q, k))
        added = attention_through(spec, q, k, v, m["window"] if windowed else 0)
        added = added @ of("attn_output.weight").T
        if m["gemma"]:
            added = plain.rms_norm(added, of("post_attention_norm.weight"))
        x = x + added
        h = plain.rms_norm(x, of("ffn_norm.weight"))
        gated = plain.gate(h @ of("ffn_gate.weight").T, m["gemma"]) * (h @ of("ffn_up.weight").T)
        added = gated @ of("ffn_down.weight").T
        x = x + (plain.rms_norm(added, of("post_ffw_norm.weight")) if m["gemma"] else added)
    output = w.get("output.weight", w["token_embd.weight"])
    return plain.rms_norm(x, w["output_norm.weight"]) @ output.T


def windows():
    base = {}
    for arch, spec in CASES:
        for window in range(WINDOWS):
            ids = window_tokens(window)
            if (arch, window) not in base:
                base[arch, window] = logits_of(arch, "f16:", ids)
            logits = logits_of(arch, spec + ("" if ":" in spec else ":"), ids)
            kl = divergence(base[arch, window], logits)[:-1]
            targets = np.array(ids[1:])[:, None]
            nll = -np.take_along_axis(log_softmax(logits)[:-1], targets, 1).mean()
            nll_base = -np.take_along_axis(log_softmax(base[arch, window])[:-1], targets, 1).mean()
            print("%s %s %d %.9g %.9g %.9g" % (arch, spec, window, kl.mean(), nll, nll_base))


def check(folder):
    worst, count = 0.0, 0
    for path in sorted(glob.glob(os.path.join(folder, "kl-c*-w*.npy"))):
        cache, window = re.search(r"kl-c(\d+)-w(\d+)\.npy$", path).groups()
        load = lambda name: np.load(os.path.join(folder, name), mmap_mode="r")
        base, other = load("base-w%s.npy" % window), load("c%s-w%s.npy" % (cache, window))
        told = load("kl-c%s-w%s.npy" % (cache, window)).astype(np.float64)
        found = np.concatenate([divergence(base[i:i + 64], other[i:i + 64])
                                for i in range(0, len(base), 64)])
        # A float holds the told value: 2^-24 of it.
        error = np.abs(found - told) - 2.0**-23 * np.abs(told)
        print("cache %s, window %s: KL x1000 %.6f, largest error %.3g" %
              (cache, window, 1000 * found.mean(), max(error.max(), 0.0)))
        worst, count = max(worst, error.max()), count + 1
    if count == 0:
        sys.exit("%s: no kl-c*-w*.npy" % folder)
    if not worst <= 1e-6:
        sys.exit("KL is off by %g: at most 1e-6" % worst)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: kl.py FOLDER | --pairs | --windows")
    if sys.argv[1] == "--pairs":
        pairs()
    elif sys.argv[1] == "--windows":
        windows()
    else:
        check(sys.argv[1])


if __name__ == "__main__":
    main()
