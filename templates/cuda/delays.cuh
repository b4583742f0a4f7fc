// delays.cuh -- what is later in a path gets what is earlier.

typedef uint32_t vu, vp;

// Halves of 16 bits, of which `span` count, move up by `left` bits, and get the last of `before`.
INLINE uint32_t shift_in(uint32_t now, uint32_t before, int left, int span)
{
    const uint32_t low = ((1u << left) - 1u) * 0x10001u;
    return (now << left & ~low) | (before >> (span - left) & low);
}

INLINE uint32_t swapped(uint32_t x) { return x << 16 | x >> 16; }
