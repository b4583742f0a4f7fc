# forward.py -- the forward pass of the tiny models in float64: an oracle for examples/decode.
#
#     python3 tests/oracles/forward.py > tests/fixtures/model_logits.txt
#
# Prints the logits after the last token, "architecture id logit". Needs NumPy.

import sys

import numpy as np

from tiny_models import EPS, HIDDEN, MODELS, tensor, tensors, tokens


def rms_norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


def rope(x, base, scale, halves, factors):
    """x [rows, heads, dim], turned by the row's position."""
    rows, _, dim = x.shape
    angle = np.arange(rows)[:, None] * scale * base ** (-np.arange(0, dim, 2) / dim) / factors
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    first = slice(0, dim // 2) if halves else slice(0, dim, 2)
    second = slice(dim // 2, dim) if halves else slice(1, dim, 2)
    out = np.empty_like(x)
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def attention(q, k, v, window):
    """Causal; a row sees the newest `window` rows, itself included; 0: all."""
    rows, heads, dim = q.shape
    distance = np.arange(rows)[:, None] - np.arange(rows)[None, :]
    hidden = (distance < 0) | ((distance >= window) if window else False)
    out = np.empty((rows, heads, v.shape[2]))
    for head in range(heads):
        kv = head // (heads // k.shape[1])
        scores = np.where(hidden, -np.inf, q[:, head] @ k[:, kv].T / np.sqrt(dim))
        weights = np.exp(scores - scores.max(1, keepdims=True))
        out[:, head] = weights @ v[:, kv] / weights.sum(1, keepdims=True)
    return out.reshape(rows, -1)


def gate(x, gelu):
    if gelu:
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x / (1 + np.exp(-x))


def forward(arch, see=None):
    """The last logits. see(layer, q, k, v, output matrix, window): what attention takes."""
    m = MODELS[arch]
    w = {name: tensor(name, shape).astype(np.float64) for name, shape in tensors(arch)}
    x = w["token_embd.weight"][tokens()] * (np.sqrt(HIDDEN) if m["gemma"] else 1.0)
    rows, dim = len(x), m["dim"]
    for i in range(m["layers"]):
        of = lambda name: w["blk.%d.%s" % (i, name)]
        windowed = m["window"] > 0 and i % 6 < 5
        base, scale = (10000.0, 1.0) if windowed else (m["base"], m["scale"])
        factors = w.get("rope_freqs.weight", 1.0)
        h = rms_norm(x, of("attn_norm.weight"))
        q, k, v = (h @ of("attn_%s.weight" % s).T + (of("attn_%s.bias" % s) if m["bias"] else 0.0)
                   for s in "qkv")
        q, k, v = (y.reshape(rows, -1, dim) for y in (q, k, v))
        if m["qk_norm"]:
            q, k = rms_norm(q, of("attn_q_norm.weight")), rms_norm(k, of("attn_k_norm.weight"))
        q, k = (rope(y, base, scale, m["halves"], factors) for y in (q, k))
        if see:
            see(i, q, k, v, of("attn_output.weight"), m["window"] if windowed else 0)
        added = attention(q, k, v, m["window"] if windowed else 0) @ of("attn_output.weight").T
        x = x + (rms_norm(added, of("post_attention_norm.weight")) if m["gemma"] else added)
        h = rms_norm(x, of("ffn_norm.weight"))
        up = h @ of("ffn_up.weight").T
        added = (gate(h @ of("ffn_gate.weight").T, m["gemma"]) * up) @ of("ffn_down.weight").T
        x = x + (rms_norm(added, of("post_ffw_norm.weight")) if m["gemma"] else added)
    output = w.get("output.weight", w["token_embd.weight"])
    return output @ rms_norm(x[-1], w["output_norm.weight"])


def main():
    for arch in MODELS:
        for index, value in enumerate(forward(arch)):
            sys.stdout.write("%s %d %.9g\n" % (arch, index, value))


if __name__ == "__main__":
    main()
