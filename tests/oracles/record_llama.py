#!/usr/bin/env python3
# record_llama.py -- records greedy tokens and two best logits of llama.cpp for test_decode.c.
#
#   pip install llama-cpp-python
#   python3 record_llama.py smollm2 MODEL.gguf > ../fixtures/llama_smollm2.txt
#   python3 record_llama.py gemma3 MODEL.gguf > ../fixtures/llama_gemma3.txt
#
# One thread, f16 cache, the prompt in one batch, then one token a step. An end token does not stop
# a recording: it is fed like any other, so that every prompt gives the same number of steps.
import hashlib
import os
import sys

import llama_cpp
import numpy as np
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

NUM_STEPS = 64

MONTHS = ("There are twelve months in a year. The first month is January. The second month is "
          "February. The third month is")
LOOP = "for i in range(1, 11):\n    print("

# Per model: name, kind, text. "text" is taken as it is, with the model's begin token where it wants
# one; "chat" is a user's message, put through the file's own template.
#
# The texts are such that a continuation is rarely a matter of taste. llama.cpp differs from itself,
# one batch against single steps or with flash attention, by 0.1 to 0.2 in the gap of the two best
# logits (root mean square; 0.5 at most): steps with a gap below that say nothing about a program.
PROMPTS = {
    "smollm2": [
        ("prose", "text", MONTHS),
        ("code", "text", LOOP),
        ("chat", "chat", "Write a Python function that adds two numbers."),
    ],
    "gemma3": [
        ("prose", "text", MONTHS),
    ],
}


def render_chat(llm, message):
    """Returns the file's chat template around one user message, begin token included as text."""
    def token_text(token):
        return llm._model.token_get_text(token) if token >= 0 else ""
    formatter = Jinja2ChatFormatter(template=llm.metadata["tokenizer.chat_template"],
                                    bos_token=token_text(llm.token_bos()),
                                    eos_token=token_text(llm.token_eos()))
    return formatter(messages=[{"role": "user", "content": message}]).prompt


def decode(llm, ids):
    """Feeds ids and returns the logits of the last one, as float32."""
    llm.eval(ids)
    pointer = llama_cpp.llama_get_logits_ith(llm.ctx, -1)
    return np.ctypeslib.as_array(pointer, shape=(llm.n_vocab(),)).copy()


def record(llm, kind, text):
    """Returns the prompt's ids and, for each step, best and second-best id with their logits."""
    chat = kind == "chat"
    rendered = render_chat(llm, text) if chat else text
    ids = llm.tokenize(rendered.encode(), add_bos=not chat, special=chat)
    llm.reset()
    logits = decode(llm, ids)
    steps = []
    for _ in range(NUM_STEPS):
        # The lower id wins a tie.
        best, second = np.argsort(-logits, kind="stable")[:2]
        steps.append((int(best), float(logits[best]), int(second), float(logits[second])))
        logits = decode(llm, [int(best)])
    return rendered, ids, steps


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in PROMPTS:
        sys.exit("usage: record_llama.py " + "|".join(PROMPTS) + " MODEL.gguf")
    model, path = sys.argv[1:]
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    llm = llama_cpp.Llama(path, n_ctx=512, n_threads=1, n_threads_batch=1, n_gpu_layers=0,
                          type_k=llama_cpp.GGML_TYPE_F16, type_v=llama_cpp.GGML_TYPE_F16,
                          verbose=False)
    print(f"# llama_{model}.txt -- greedy decoding by llama.cpp: {NUM_STEPS} steps a prompt.")
    version = llama_cpp.__version__
    print(f"# program: llama-cpp-python {version}, n_ctx 512, 1 thread, f16 cache, CPU")
    print(f"# model: {os.path.basename(path)}, SHA-256 {digest}")
    print(f"# command: python3 tests/oracles/record_llama.py {model} {os.path.basename(path)}")
    print("#   prompt NAME KIND HEX      text as it was split into tokens, hex of its bytes")
    print("#   ids COUNT ID ...          the prompt's tokens, begin token included")
    print("#   step ID LOGIT ID LOGIT    best and second-best token; the best one is fed next")
    for name, kind, text in PROMPTS[model]:
        rendered, ids, steps = record(llm, kind, text)
        print(f"prompt {name} {kind} {rendered.encode().hex()}")
        print("ids", len(ids), *ids)
        for best, logit, second, second_logit in steps:
            print(f"step {best} {logit:.5f} {second} {second_logit:.5f}")
        sys.stderr.write(rendered + llm.detokenize([s[0] for s in steps]).decode(errors="replace"))
        sys.stderr.write("\n----\n")


if __name__ == "__main__":
    main()
