# tiny_models.py -- tiny random models of each architecture, the same as tests/test_model.c writes.
#
# A weight is an integer of a generator times a power of two, seeded by the tensor's name: the same
# in every language. All tensors are F32, so that nothing but the forward pass is compared.

import numpy as np

VOCAB = 259  # <unk> <s> </s> and the 256 bytes
HIDDEN = 64
FFN = 48
CONTEXT = 256
EPS = 2.0**-17
NUM_TOKENS = 80

# What the test program says of the same models.
MODELS = {
    "llama": dict(layers=2, q_heads=2, kv_heads=1, dim=32, base=10000.0, scale=0.5, factors=True,
                  halves=False, bias=False, qk_norm=False, gemma=False, output=True, window=0),
    "qwen2": dict(layers=2, q_heads=2, kv_heads=2, dim=32, base=1000000.0, scale=1.0, factors=False,
                  halves=True, bias=True, qk_norm=False, gemma=False, output=False, window=0),
    "qwen3": dict(layers=2, q_heads=3, kv_heads=1, dim=48, base=1000000.0, scale=1.0, factors=False,
                  halves=True, bias=False, qk_norm=True, gemma=False, output=True, window=0),
    "gemma3": dict(layers=7, q_heads=4, kv_heads=1, dim=32, base=1000000.0, scale=0.125,
                   factors=False, halves=True, bias=False, qk_norm=True, gemma=True, output=False,
                   window=8),
}


def seed_of(name):
    """FNV-1a of the name, 64 bits."""
    value = 14695981039346656037
    for byte in name.encode():
        value = (value ^ byte) * 1099511628211 % 2**64
    return value


def integers(name, count):
    """Integers from -32768 to 32767."""
    state, out = seed_of(name), np.empty(count, np.float64)
    for i in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out[i] = (state >> 48) - 32768
    return out


def tensor(name, shape):
    """Norms lie around 1, factors from 1 to 2, biases and embeddings reach 1, matrices 1/2."""
    values = integers(name, int(np.prod(shape))) * 2.0**-15
    if name == "rope_freqs.weight":
        values = 1.5 + values / 2
    elif name.endswith("norm.weight"):
        values = 1.0 + values / 4
    elif not name.endswith("bias") and name != "token_embd.weight":
        values = values / 2
    return values.astype(np.float32).reshape(shape)


def tokens():
    return [1] + [3 + (i * 37 + 11) % 256 for i in range(NUM_TOKENS - 1)]


def tensors(arch):
    """Name and shape, rows first, of every tensor in the order of the file."""
    m = MODELS[arch]
    q, kv = m["q_heads"] * m["dim"], m["kv_heads"] * m["dim"]
    out = [("token_embd.weight", (VOCAB, HIDDEN)), ("output_norm.weight", (HIDDEN,))]
    if m["output"]:
        out.append(("output.weight", (VOCAB, HIDDEN)))
    if m["factors"]:
        out.append(("rope_freqs.weight", (m["dim"] // 2,)))
    for i in range(m["layers"]):
        layer = [("attn_norm.weight", (HIDDEN,)), ("attn_q.weight", (q, HIDDEN)),
                 ("attn_k.weight", (kv, HIDDEN)), ("attn_v.weight", (kv, HIDDEN)),
                 ("attn_output.weight", (HIDDEN, q)), ("ffn_norm.weight", (HIDDEN,)),
                 ("ffn_gate.weight", (FFN, HIDDEN)), ("ffn_up.weight", (FFN, HIDDEN)),
                 ("ffn_down.weight", (HIDDEN, FFN))]
        if m["bias"]:
            layer += [("attn_q.bias", (q,)), ("attn_k.bias", (kv,)), ("attn_v.bias", (kv,))]
        if m["qk_norm"]:
            layer += [("attn_q_norm.weight", (m["dim"],)), ("attn_k_norm.weight", (m["dim"],))]
        if m["gemma"]:
            layer += [("post_%s_norm.weight" % s, (HIDDEN,)) for s in ("attention", "ffw")]
        out += [("blk.%d.%s" % (i, name), shape) for name, shape in layer]
    return out
