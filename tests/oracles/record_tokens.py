#!/usr/bin/env python3
# record_tokens.py -- records token ids of a GGUF model with llama.cpp, for test_tokenizer.c.
#
#   pip install llama-cpp-python
#   python3 record_tokens.py MODEL.gguf > ../fixtures/tokenizer_NAME.txt
#
# Lines of the fixture; fields are split by one blank, texts are the hex of their bytes ("-" is the
# empty text):
#   vocab COUNT
#   special BOS EOS
#   eog ID ...                    all end-of-generation tokens, ascending
#   piece ID PRINTABLE HEX        bytes of a token; PRINTABLE 1 shows special tokens too
#   encode ADD_SPECIAL PARSE_SPECIAL HEX ID ...
#   chat ADD_GENERATION_PROMPT HEX ROLE HEX ROLE HEX ...    rendered text, then the messages
#
# llama.cpp replaces invalid UTF-8 by U+FFFD, which loses bytes; invalid texts are not recorded.
import ctypes
import sys

import jinja2
import llama_cpp

TEXTS = [
    "",
    "Hello world",
    " Hello  world   with    spaces",
    "The quick brown fox jumps over the lazy dog.",
    "I'm you're we've they'll he'd it's can't DON'T I'M",
    "12345 6 78 9.01 1,000,000 3.14159e-10",
    "line one\nline two\n\nline four\r\n\r\n\tindented\n",
    "\t\ttabs\tand  \t mixed \n \n  trailing   ",
    "   ",
    "\n\n\n\n\n",
    "caf\u00e9 d\u00e9j\u00e0 vu na\u00efve \u00c5ngstr\u00f6m stra\u00dfe \u0130stanbul",
    "e\u0301 combining a\u030a\u0327",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u6211\u5728\u5b66\u4e60\u3002",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c \u30ab\u30bf\u30ab\u30ca",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! "
    "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 "
    "\u05e9\u05dc\u05d5\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0966\u0967\u0968 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\U0001f600\U0001f680\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 "
    "\u2764\ufe0f \U0001f1eb\U0001f1f7",
    "\u00a0nbsp\u2003em\u3000ideographic\u200bzero\ufeffbom",
    "for (int i = 0; i < n; ++i) { a[i] += b[i]->c; } // done",
    "def f(x):\n    return x ** 2  # squared\n\n\nprint(f(3))\n",
    "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n",
    "<start_of_turn>user\nHi there<end_of_turn>\n<start_of_turn>model\n",
    "a<|endoftext|>b <|im_end|> c<|im_start|><|im_start|>d<eos><bos>e",
    "<|im_start<|im_end|>|> <unused1<unused12>3> <table><tr>",
    "$100 + 20% = \u20ac115; x^2 ~ |y| `code` #tag @user \\path\\to",
    "\u2581already\u2581escaped \u0120byte\u0120level <0x41>",
    "\u00bd \u2167 \u00b2 \u0663\u0664 \uff11\uff12\uff13 12\u00bd34",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "x" + " " * 70 + "y" + "\n" * 40 + "z",
    "https://example.org/a/b?c=d&e=f%20g antidisestablishmentarianism",
    "nul\x00byte \x01\x7f control",
]

CHATS = [
    [("user", "What is 2 + 2?")],
    [("system", "Be brief."), ("user", " Hello \n"), ("assistant", "Hi!"), ("user", "Bye")],
]


def hexed(data):
    return data.hex() or "-"


def encode(vocab, data, add_special, parse_special):
    room = len(data) + 16
    ids = (llama_cpp.llama_token * room)()
    count = llama_cpp.llama_tokenize(vocab, data, len(data), ids, room, add_special, parse_special)
    assert count >= 0, data
    return list(ids[:count])


def piece(vocab, token, printable):
    buffer = ctypes.create_string_buffer(1024)
    count = llama_cpp.llama_token_to_piece(vocab, token, buffer, 1024, 0, printable)
    assert count >= 0, token
    return buffer.raw[:count]


def print_chats(model):
    template = model.metadata.get("tokenizer.chat_template")
    if not template:
        return
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    render = environment.from_string(template).render
    for messages in CHATS:
        for prompt in (0, 1):
            text = render(messages=[{"role": r, "content": t} for r, t in messages],
                          add_generation_prompt=bool(prompt), bos_token="", eos_token="")
            turns = " ".join(r + " " + hexed(t.encode()) for r, t in messages)
            print("chat", prompt, hexed(text.encode()), turns)


def main():
    model = llama_cpp.Llama(sys.argv[1], vocab_only=True, verbose=False)
    vocab = llama_cpp.llama_model_get_vocab(model.model)
    count = llama_cpp.llama_vocab_n_tokens(vocab)
    name = model.metadata.get("general.name", "?")
    print(f"# made by tests/oracles/record_tokens.py with llama-cpp-python {llama_cpp.__version__}"
          f" from: {name}")
    print("vocab", count)
    print("special", llama_cpp.llama_vocab_bos(vocab), llama_cpp.llama_vocab_eos(vocab))
    print("eog", *[i for i in range(count) if llama_cpp.llama_vocab_is_eog(vocab, i)])
    for token in list(range(0, 20)) + list(range(100, count, count // 60)) + [count - 1]:
        for printable in (0, 1):
            print("piece", token, printable, hexed(piece(vocab, token, bool(printable))))
    for text in TEXTS:
        data = text.encode()
        for add_special, parse_special in ((0, 0), (1, 1)):
            ids = encode(vocab, data, bool(add_special), bool(parse_special))
            print("encode", add_special, parse_special, hexed(data), *ids)
    print_chats(model)


main()
