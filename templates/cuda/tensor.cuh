// tensor.cuh -- instructions of tensor cores, pairs of f16, and copies that a thread need not wait
// for.  The one place that asks for the architecture: sm_75 has smaller products, and no copies.

// c += a b, fragments of m16n8k16: lane 4 g + t has of a the rows g, g + 8 (a0, a1) at columns
// 2 t, 2 t + 1, then (a2, a3) at 8 more; of b column g at those rows; of c rows g (c[0], c[1]) and
// g + 8 at columns 2 t, 2 t + 1.  Products are exact.  Of 8 of them (from sm_90 on 16) and the sum
// so far, the bits 24 (25) or more below the greatest exponent are cut before they are added, and a
// code below the least normal f16 has the exponent of that one: beside the greatest factor x that
// meets a code, each product is cut at x 2^-14 (2^-15) or finer.
INLINE void multiply(float* c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                     uint32_t b1)
{
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%8}, "
        "{%0, %1, %2, %3};\n\t"
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%6, %7}, {%9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

// Lane 4 g + t: row g of an 8 x 8 matrix of f16, columns 2 t and 2 t + 1; becomes the transpose's.
INLINE uint32_t transposed(uint32_t x)
{
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

INLINE uint32_t pair_of(float low, float high)
{
    uint32_t x;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
#else
    asm("{\n\t.reg .b16 l, h;\n\tcvt.rn.f16.f32 l, %2;\n\tcvt.rn.f16.f32 h, %1;\n\t"
        "mov.b32 %0, {l, h};\n\t}" : "=r"(x) : "f"(high), "f"(low));
#endif
    return x;
}

INLINE uint32_t pair_mul(uint32_t a, uint32_t b)
{
    uint32_t x;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(x) : "r"(a), "r"(b));
    return x;
}

INLINE uint32_t pair_add(uint32_t a, uint32_t b)
{
    uint32_t x;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(x) : "r"(a), "r"(b));
    return x;
}

// a b + c, rounded once.
INLINE uint32_t pair_mul_add(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t x;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(x) : "r"(a), "r"(b), "r"(c));
    return x;
}

// a b - c
INLINE uint32_t pair_mul_sub(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t x;
    asm("{\n\t.reg .b32 n;\n\tneg.f16x2 n, %3;\n\tfma.rn.f16x2 %0, %1, %2, n;\n\t}"
        : "=r"(x) : "r"(a), "r"(b), "r"(c));
    return x;
}

INLINE float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// COPIES.  16 bytes into shared memory, of which a thread sees what it has waited for.

INLINE uint32_t shared_address(const void* at) { return (uint32_t)__cvta_generic_to_shared(at); }

template <int to_offset, int from_offset>
INLINE void copy_16(uint32_t to, const unsigned char* from)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16;"
                 : : "r"(to), "l"(from), "n"(to_offset), "n"(from_offset) : "memory");
#else
    const uint4 x = *(const uint4*)(from + from_offset);
    asm volatile("st.shared.v4.u32 [%0 + %5], {%1, %2, %3, %4};"
                 : : "r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "n"(to_offset) : "memory");
#endif
}

// What was asked for since the last of these is a group.
INLINE void copies_end()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}

// Waits until at most `left` groups are under way.
template <int left>
INLINE void copies_wait()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" : : "n"(left) : "memory");
#endif
}

// SHARED MEMORY, by addresses of its own: what is constant in one is part of the instruction.

INLINE uint32_t shared_4(uint32_t at)
{
    uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}

INLINE uint2 shared_8(uint32_t at)
{
    uint2 x;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at) : "memory");
    return x;
}

INLINE uint4 shared_16(uint32_t at)
{
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at) : "memory");
    return x;
}

INLINE void store_shared_8(uint32_t at, uint2 x)
{
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" : : "r"(at), "r"(x.x), "r"(x.y) : "memory");
}

INLINE void store_shared_16(uint32_t at, uint4 x)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 : : "r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

// x, which all lanes of a warp agree on: the compiler then knows that they do.
INLINE int uniform(int x)
{
#if __CUDA_ARCH__ >= 800
    uint32_t y;
    asm volatile("redux.sync.or.b32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
    return (int)y;
#else
    return __shfl_sync(0xffffffffu, x, 0);
#endif
}

// METADATA AS PAIRS OF F16: of four bytes two, which a selector names.

// Of bytes 2 pair and 2 pair + 1.
INLINE uint32_t high_selector(int pair) { return 0x1404 + pair * 0x2020; }
INLINE uint32_t low_selector(int pair) { return 0x4140 + pair * 0x0202; }

// (0, byte) in both halves.
INLINE uint32_t high_bytes(uint32_t word, uint32_t selector)
{
    return __byte_perm(word, 0, selector);
}

// (byte, 0x64) in both halves: 1024 + byte.
INLINE uint32_t low_bytes(uint32_t word, uint32_t selector)
{
    return __byte_perm(word, 0x64646464u, selector);
}

// The exponent of e5m3 is that of f16.
INLINE uint32_t pair_of_e5m3(uint32_t word, uint32_t selector)
{
    return high_bytes(word, selector) >> 1;
}

// Without the sign; the exponent of e4m3 is 7 less.
INLINE uint32_t pair_of_e4m3(uint32_t word, uint32_t selector)
{
    return pair_mul(high_bytes(word, selector) >> 1 & 0x3f803f80u, 0x58005800u);
}

// 2^((c - 8) / 4), c the high four bits: the root by its bytes, c / 4 in the exponent.
INLINE uint32_t pair_of_log4(uint32_t word, uint32_t selector)
{
    const uint32_t high = high_bytes(word, selector), c = high >> 12 & 0x00030003u;
    const uint32_t root = __byte_perm(0xbaa8c200u, 0x36353434u, (c | c >> 8) * 17u + 0x4040u);
    return root + (high >> 4 & 0x0c000c00u);
}

// 1024 + 128 + z
INLINE uint32_t pair_of_i8(uint32_t word, uint32_t selector)
{
    return low_bytes(word ^ 0x80808080u, selector);
}

// 1024 + 8 + z
INLINE uint32_t pair_of_low4(uint32_t word, uint32_t selector)
{
    return low_bytes(word & 0x0f0f0f0fu, selector);
}
