#!/usr/bin/env python3
# record_quants.py -- writes tests/fixtures/quants.bin: groups of each GGUF type and their values.
#
# The values are computed by the PyPI package gguf (gguf.quants.dequantize), which shares no code
# with examples/decode. Run with gguf and numpy installed:
#
#   python3 tests/oracles/record_quants.py tests/fixtures/quants.bin
#
# The file, little-endian: "KVLQNT01", then one record a type:
#
#   | type: u32 | n: u32 | num_bytes: u32 | num_bytes bytes: n weights | n values: f32 |
#
# Codes are random bytes. Scales and offsets are random halves of magnitude 2^-7 to 2, either sign,
# and in the first group of a type one is subnormal.

import struct
import sys

import numpy
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

# Type, groups, and byte positions of the halves in a group.
RECORDS = [
    ("F32", 24, []),
    ("F16", 48, []),
    ("BF16", 48, []),
    ("Q4_0", 3, [0]),
    ("Q4_1", 3, [0, 2]),
    ("Q5_0", 3, [0]),
    ("Q5_1", 3, [0, 2]),
    ("Q8_0", 3, [0]),
    ("Q4_K", 2, [0, 2]),
    ("Q5_K", 2, [0, 2]),
    ("Q6_K", 2, [208]),
]


def random_half(random):
    sign = int(random.integers(0, 2)) << 15
    exponent = int(random.integers(8, 16)) << 10
    return sign | exponent | int(random.integers(0, 1024))


def weights_of(name, num_groups, halves, random):
    kind = GGMLQuantizationType[name]
    group_size, group_bytes = GGML_QUANT_SIZES[kind]
    if name == "F32":
        return random.standard_normal(num_groups).astype("<f4").tobytes()
    if name == "F16":
        special = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00]
        plain = [random_half(random) for _ in range(num_groups - len(special))]
        return struct.pack("<%dH" % num_groups, *special, *plain)
    if name == "BF16":
        special = [0x0000, 0x8000, 0x0080, 0x7F7F, 0xFF7F, 0x3F80]
        plain = [0x3C00 + int(v) for v in random.integers(0, 1024, num_groups - len(special))]
        return struct.pack("<%dH" % num_groups, *special, *plain)
    data = bytearray(random.integers(0, 256, num_groups * group_bytes, dtype=numpy.uint8).tobytes())
    for group in range(num_groups):
        for at in halves:
            half = random_half(random) if group > 0 or at != halves[0] else 0x0123
            struct.pack_into("<H", data, group * group_bytes + at, half)
    return bytes(data)


def main():
    random = numpy.random.default_rng(20)
    with open(sys.argv[1], "wb") as out:
        out.write(b"KVLQNT01")
        for name, num_groups, halves in RECORDS:
            kind = GGMLQuantizationType[name]
            data = weights_of(name, num_groups, halves, random)
            values = quants.dequantize(numpy.frombuffer(data, dtype=numpy.uint8), kind)
            values = values.reshape(-1).astype("<f4")
            out.write(struct.pack("<3I", int(kind), values.size, len(data)))
            out.write(data)
            out.write(values.tobytes())


main()
