# bench_library.py -- decode attention of PyTorch on a CUDA device, beside kvloom-bench-gpu.
#
#     python3 tools/bench_library.py ROWS ... --json FILE
#
# One f16 query row of 32 heads over ROWS f16 rows of 8 KV heads of 128 channels, by
# scaled_dot_product_attention, whose kernels are those of FlashAttention or cuDNN: medians of 21,
# timed with events.  Where there is no PyTorch with a device, FILE gets null and the status is 0.

import json
import statistics
import sys

Q_HEADS, KV_HEADS, DIM, REPEATS = 32, 8, 128, 21


def measure(torch, rows):
    make = dict(device="cuda", dtype=torch.float16)
    q = torch.randn(1, Q_HEADS, 1, DIM, **make)
    k, v = (torch.randn(1, KV_HEADS, rows, DIM, **make) for _ in range(2))
    attend = torch.nn.functional.scaled_dot_product_attention
    times = []
    for i in range(REPEATS + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        attend(q, k, v, enable_gqa=True)
        end.record()
        end.synchronize()
        if i >= 3:
            times.append(1000 * begin.elapsed_time(end))
    us = statistics.median(times)
    return {"rows": rows, "attend_us": us, "gbps": 4 * rows * KV_HEADS * DIM / us / 1e3}


def main(args):
    path = args[args.index("--json") + 1]
    lengths = [int(x) for x in args[: args.index("--json")]]
    try:
        import torch

        there = torch.cuda.is_available()
    except ImportError:
        there = False
    result = None
    if there:
        results = [measure(torch, rows) for rows in lengths]
        result = {"library": "torch " + torch.__version__, "results": results}
    with open(path, "w") as out:
        json.dump(result, out)
        out.write("\n")


main(sys.argv[1:])
