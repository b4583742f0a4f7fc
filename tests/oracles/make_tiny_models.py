# make_tiny_models.py -- writes the tiny models as GGUF; compares forward.py with llama.cpp.
#
#     python3 tests/oracles/make_tiny_models.py FOLDER [--llama]
#
# Needs the package gguf; with --llama also llama-cpp-python, and prints the largest difference of a
# logit for each architecture.

import os
import sys

import numpy as np
from gguf import GGUFWriter

from forward import forward
from tiny_models import CONTEXT, EPS, FFN, HIDDEN, MODELS, VOCAB, tensor, tensors, tokens


def write(arch, path):
    m, w = MODELS[arch], GGUFWriter(path, arch)
    w.add_block_count(m["layers"])
    w.add_context_length(CONTEXT)
    w.add_embedding_length(HIDDEN)
    w.add_feed_forward_length(FFN)
    w.add_head_count(m["q_heads"])
    w.add_head_count_kv(m["kv_heads"])
    w.add_key_length(m["dim"])
    w.add_value_length(m["dim"])
    w.add_rope_dimension_count(m["dim"])
    w.add_layer_norm_rms_eps(EPS)
    w.add_rope_freq_base(m["base"])
    if m["scale"] != 1.0:
        w.add_string("%s.rope.scaling.type" % arch, "linear")
        w.add_float32("%s.rope.scaling.factor" % arch, 1.0 / m["scale"])
    if m["window"]:
        w.add_sliding_window(m["window"])
    w.add_tokenizer_model("llama")
    w.add_token_list(["<unk>", "<s>", "</s>"] + ["<0x%02X>" % i for i in range(256)])
    w.add_token_scores([0.0] * VOCAB)
    w.add_token_types([2, 3, 3] + [6] * 256)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    for name, shape in tensors(arch):
        w.add_tensor(name, tensor(name, shape))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def compare(arch, path):
    import llama_cpp
    llm = llama_cpp.Llama(path, n_ctx=CONTEXT, n_threads=2, n_threads_batch=2, verbose=False,
                          type_k=0, type_v=0)
    llm.eval(tokens())
    theirs = np.ctypeslib.as_array(llama_cpp.llama_get_logits(llm._ctx.ctx), (VOCAB,)).copy()
    ours = forward(arch)
    print("%s: logits reach %.3f, largest difference %.6f" %
          (arch, np.abs(ours).max(), np.abs(ours - theirs).max()))


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    for arch in MODELS:
        path = os.path.join(folder, "tiny-%s.gguf" % arch)
        write(arch, path)
        if "--llama" in sys.argv[2:]:
            compare(arch, path)


if __name__ == "__main__":
    main()
