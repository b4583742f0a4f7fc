# outliers.py -- the order of channels that gen/parts/outliers.lua defines, in NumPy.
#
#     python3 tests/oracles/outliers.py tests/fixtures/outliers.txt
#
# Writes what calibration must make of rows that tests/test_outliers.c makes too.  A case is a line
# `case HEAD_DIM NUMBER SHIFT` (NUMBER 0: the usual), then for keys and for values, of each KV head,
# the channels in the order of the sets.

import sys
import numpy as np
import make_fixtures as inputs

ROWS, KV_HEADS = 96, 2

# head dim, outliers, shift
CASES = [(64, 0, "none"), (64, 48, "mean"), (80, 0, "mean"), (96, 0, "none"), (96, 32, "mean"),
         (128, 0, "none"), (128, 0, "mean"), (256, 0, "none"), (256, 80, "mean")]


def usual(dim):
    return max(n for n in (16, 32, 64) if n == 16 or n <= dim / 4)


def deal(ranked):
    """Channels by rank, as many pieces as there are of the largest power of two, in turn."""
    piece = max(2**i for i in range(9) if len(ranked) % 2**i == 0)
    return np.concatenate([ranked[first::len(ranked) // piece]
                           for first in range(len(ranked) // piece)])


def order_of(x, number, shift):
    """x [rows, dim] of a head -> its channels."""
    x = x - x.mean(axis=0) if shift == "mean" else x
    ranked = np.argsort(-np.mean(x**2, axis=0), kind="stable")
    return np.concatenate([deal(ranked[:number]), deal(ranked[number:])])


def main():
    with open(sys.argv[1], "w", encoding="ascii") as file:
        for i, (dim, number, shift) in enumerate(CASES):
            print("case", dim, number, shift, file=file)
            for seed in (40 + i, 60 + i):
                x = inputs.make_rows(seed, ROWS, KV_HEADS, dim).astype(np.float64)
                for head in range(KV_HEADS):
                    print(*order_of(x[:, head], number or usual(dim), shift), file=file)


if __name__ == "__main__":
    main()
