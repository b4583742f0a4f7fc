# bench_peers.py -- the measuring half of bench_peers.sh, for a Python that has llama_cpp.
#
# ggml's library is called by ctypes: one node, ggml_flash_attn_ext, of one query row; K and V are
# random, whole, and larger than the processor's caches at the lengths of the table.  kvloom's times
# are those of kvloom-bench, on as many threads, measured before and after ggml's: both are printed.

import argparse
import ctypes
import glob
import json
import os
import statistics
import subprocess
import sys
import time

import llama_cpp
import numpy

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p),
                ("no_alloc", ctypes.c_bool)]


def open_ggml():
    folder = os.path.join(os.path.dirname(llama_cpp.__file__), "lib")
    libraries = {}
    for name in ("ggml-base", "ggml-cpu"):
        found = glob.glob(os.path.join(folder, "lib%s.so" % name))
        if not found:
            sys.exit("bench_peers.py: %s has no lib%s.so" % (folder, name))
        libraries[name] = ctypes.CDLL(found[0], mode=ctypes.RTLD_GLOBAL)
    base, cpu = libraries["ggml-base"], libraries["ggml-cpu"]
    pointer, i64, f32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    for function, result, arguments in (
            (base.ggml_init, pointer, [InitParams]), (base.ggml_free, None, [pointer]),
            (base.ggml_new_tensor_4d, pointer, [pointer, ctypes.c_int] + [i64] * 4),
            (base.ggml_get_data, pointer, [pointer]),
            (base.ggml_nbytes, ctypes.c_size_t, [pointer]),
            (base.ggml_flash_attn_ext, pointer, [pointer] * 5 + [f32] * 3),
            (base.ggml_new_graph, pointer, [pointer]),
            (base.ggml_build_forward_expand, None, [pointer, pointer]),
            (base.ggml_quantize_chunk, ctypes.c_size_t,
             [ctypes.c_int, pointer, pointer, i64, i64, i64, pointer]),
            (cpu.ggml_cpu_init, None, []),
            (cpu.ggml_graph_compute_with_ctx, ctypes.c_int, [pointer, pointer, ctypes.c_int])):
        function.restype, function.argtypes = result, arguments
    cpu.ggml_cpu_init()
    return base, cpu


def fill(base, tensor, kind, shape, random):
    """Random rows: one stretch of them, over and over."""
    dim, rows, heads = shape
    stretch = random.standard_normal((min(rows, 4096), dim), dtype=numpy.float32)
    if kind == "f16":
        data = stretch.astype(numpy.float16).tobytes()
    else:
        room = ctypes.create_string_buffer(stretch.size * 4)
        size = base.ggml_quantize_chunk(TYPES[kind], stretch.ctypes.data, room, 0, len(stretch),
                                        dim, None)
        data = room.raw[:size]
    at, total = base.ggml_get_data(tensor), base.ggml_nbytes(tensor)
    for begin in range(0, total, len(data)):
        ctypes.memmove(at + begin, data, min(len(data), total - begin))


def time_ggml(base, cpu, kind, shape, threads, seconds):
    """Microseconds of one query row: median and best."""
    random = numpy.random.default_rng(1)
    dim, heads, kv_heads, rows = shape
    row_bytes = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}[kind] * dim
    size = int(2 * row_bytes * rows * kv_heads) + (64 << 20)
    ctx = base.ggml_init(InitParams(size, None, False))
    q = base.ggml_new_tensor_4d(ctx, TYPES["f32"], dim, 1, heads, 1)
    query = random.standard_normal(dim * heads, dtype=numpy.float32)
    ctypes.memmove(base.ggml_get_data(q), query.tobytes(), query.nbytes)
    sides = []
    for _ in range(2):
        tensor = base.ggml_new_tensor_4d(ctx, TYPES[kind], dim, rows, kv_heads, 1)
        fill(base, tensor, kind, (dim, rows, kv_heads), random)
        sides.append(tensor)
    o = base.ggml_flash_attn_ext(ctx, q, sides[0], sides[1], None, dim ** -0.5, 0.0, 0.0)
    times, end = [], time.perf_counter() + seconds
    work = base.ggml_init(InitParams(256 << 20, None, False))
    while len(times) < 5 or time.perf_counter() < end:
        graph = base.ggml_new_graph(work)
        base.ggml_build_forward_expand(graph, o)
        begin = time.perf_counter()
        if cpu.ggml_graph_compute_with_ctx(work, graph, threads) != 0:
            sys.exit("bench_peers.py: ggml_graph_compute failed")
        times.append((time.perf_counter() - begin) * 1e6)
        base.ggml_free(work)
        work = base.ggml_init(InitParams(256 << 20, None, False))
    base.ggml_free(work)
    base.ggml_free(ctx)
    return statistics.median(times), min(times)


def run_bench(options, shape, specs, threads, seconds):
    dim, heads, kv_heads, rows = shape
    path = os.path.join(options.work, "bench.json")
    command = [os.path.join(options.bin, "kvloom-bench"), "--head-dim", str(dim), "--q-heads",
               str(heads), "--kv-heads", str(kv_heads), "--rows", str(rows), "--threads",
               str(threads), "--seconds", str(seconds), "--json", path]
    for spec in specs:
        command += ["--cache", spec]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(path) as file:
        root = json.load(file)
    root["by_cache"] = {one["cache"]: one for one in root["results"]}
    return root


def time_kvloom(options, shape, specs, threads, seconds):
    results = run_bench(options, shape, specs, threads, seconds)["by_cache"]
    return {spec: (one["attend_ns"] * 1e-3, one["attend_best_ns"] * 1e-3)
            for spec, one in results.items()}


def compare_attention(options, shape, threads):
    base, cpu = open_ggml()
    seconds = 0.2 if options.quick else 2.0
    specs = ["f16", "q4_0", "kivi:k2,v2,g32"]
    first = time_kvloom(options, shape, specs, threads, seconds)
    ggml = {kind: time_ggml(base, cpu, kind, shape, threads, seconds) for kind in ("f16", "q4_0")}
    second = time_kvloom(options, shape, specs, threads, seconds)
    print("Head dim %d, %d query heads, %d KV heads, %d rows, %d threads; microseconds a query row:"
          "\nmedian (best); kvloom before and after ggml\n" % (shape + (threads,)))
    print("| cache | attend us | x ggml f16 | x ggml q4_0 |\n|---|---|---|---|")
    for kind in ("f16", "q4_0"):
        print("| ggml %s | %.0f (%.0f) | %s | %s |" % ((kind,) + ggml[kind] + tuple(
            "%.2f" % (ggml[of][0] / ggml[kind][0]) for of in ("f16", "q4_0"))))
    for spec in specs:
        mine = 0.5 * (first[spec][0] + second[spec][0])
        print("| `%s` | %.0f, %.0f (%.0f) | %.2f | %.2f |" % (
            spec, first[spec][0], second[spec][0], min(first[spec][1], second[spec][1]),
            ggml["f16"][0] / mine, ggml["q4_0"][0] / mine))
    print(flush=True)


# THE FIGURES TO REACH

def print_targets(options, threads):
    """What kvloom-bench tells of the targets: ratios to the f16 cache and to memory."""
    low, q4 = "kivi:k2,v2,g32", "q4_0"
    seconds = 0.2 if options.quick else 2.0
    lengths = {rows: 2048 if options.quick else rows for rows in (512, 16384, 65536, 262144)}
    print("| figure | target | measured |\n|---|---|---|")
    for dim, heads, kv_heads, rows in ((128, 32, 8, 65536), (128, 32, 8, 262144),
                                       (64, 9, 3, 16384), (64, 9, 3, 65536)):
        root = run_bench(options, (dim, heads, kv_heads, lengths[rows]), [low, q4], threads,
                         seconds)
        ratio = {spec: one["ratio_f16"] for spec, one in root["by_cache"].items()}
        what = "head dim %d, GQA %d, %d rows" % (dim, heads // kv_heads, rows)
        print("| 2.5 bits, %s | %sx f16 | %.2fx |" % (what, 4.5 if dim == 128 else 3.5, ratio[low]))
        if dim == 128:
            print("| 4.5 bits, %s | 2.8x f16 | %.2fx |" % (what, ratio[q4]))
            print("| f16, %s, of the copy rate | 0.85 | %.2f |" % (
                what, root["by_cache"]["f16"]["ratio_copy"]), flush=True)
    root = run_bench(options, (128, 8, 8, lengths[262144]), [low], threads, seconds)
    print("| 2.5 bits, head dim 128, GQA 1, 262144 rows, of the read rate | 0.85 | %.2f |" % (
        root["by_cache"][low]["gbps"] / root["read_gbps"]))
    root = run_bench(options, (128, 32, 8, lengths[512]), [low, q4], threads, seconds)
    print("| 512 rows, 2.5 and 4.5 bits | 1x f16 | %.2fx, %.2fx |" % tuple(
        root["by_cache"][spec]["ratio_f16"] for spec in (low, q4)))
    print(flush=True)


# TOKENS

def decode_kvloom(options, spec, prompt, threads, count):
    path = os.path.join(options.work, "decode.json")
    text = os.path.join(options.work, "prompt.txt")
    with open(text, "w") as file:
        file.write(prompt)
    command = [os.path.join(options.bin, "decode"), "-m", options.model, "-f", text, "-n",
               str(count), "-t", str(threads), "--temp", "0", "--cache", spec, "--json", path]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in done.stderr.splitlines():
        words = line.split()
        if words[:1] == ["generated"]:
            return float(words[3])
    sys.exit("bench_peers.py: decode: %s" % done.stderr.strip()[-500:])


def decode_llama(options, kind, prompt, threads, count):
    llm = llama_cpp.Llama(options.model, n_ctx=8192, n_threads=threads,
                          n_threads_batch=threads, n_gpu_layers=0, verbose=False, flash_attn=True,
                          type_k=TYPES[kind], type_v=TYPES[kind])
    tokens = llm.tokenize(prompt.encode())
    llm.eval(tokens)
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        llm.eval([tokens[-1]])
        llama_cpp.llama_get_logits_ith(llm.ctx, -1)
        times.append(time.perf_counter() - begin)
    llm.close()
    return len(tokens), 1.0 / statistics.median(times)


def compare_tokens(options, sentences, threads):
    prompt = "The lighthouse stood at the end of a long stone pier. " * sentences
    count = 16 if options.quick else 64
    num, f16 = decode_llama(options, "f16", prompt, threads, count)
    _, q4 = decode_llama(options, "q4_0", prompt, threads, count)
    print("After %d tokens, %d threads\n" % (num, threads))
    print("| decoder | tokens/s | x llama.cpp f16 | x llama.cpp q4_0 |\n|---|---|---|---|")
    rows = [("llama.cpp f16", f16), ("llama.cpp q4_0", q4)]
    for spec in ("f16", "kivi:k2,v2,g32"):
        rows.append(("`decode --cache %s`" % spec,
                     decode_kvloom(options, spec, prompt, threads, count)))
    for name, rate in rows:
        print("| %s | %.1f | %.2f | %.2f |" % (name, rate, rate / f16, rate / q4))
    print(flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--model")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    print("llama-cpp-python %s\n" % llama_cpp.__version__)
    print_targets(options, threads)
    compare_attention(options, (128, 32, 8, 4096 if options.quick else 65536), threads)
    compare_attention(options, (64, 9, 3, 4096 if options.quick else 16384), threads)
    if options.model:
        for sentences in (1,) if options.quick else (1, 160, 550):
            compare_tokens(options, sentences, threads)


main()
