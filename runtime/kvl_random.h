// kvl_random.h -- seeded random numbers: Philox4x32-10 in the order of cuRAND's host generator.
//
// Random numbers are a function of seed and position: any stretch can be made anywhere, at any
// time.  J. K. Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011): ten rounds of
// two 32-bit products turn a counter of four words, under a key of two, into four random words.
//
// cuRAND's CURAND_RNG_PSEUDO_PHILOX4_32_10 deals these out to 65536 subsequences in turn:
//
//     words 4 q ... 4 q + 3   of counter (q / 65536, q % 65536) as two 64-bit halves, key = seed
//     uniform i               word i / 2^32 + 2^-33, in (0, 1]
//     normals 2 i, 2 i + 1    r sin(a), r cos(a) of r = sqrt(-2 log(uniform 2 i)),
//                             a = 2 pi uniform 2 i + 1 (Box and Muller), in floats
//
// A generator that was opened with cuRAND asks it where it is there; the numbers are the same.
// cuRAND takes 15 ms to begin at a position: ask for many at once.

#ifndef KVL_RANDOM_H
#define KVL_RANDOM_H

#include "kvl_driver.h"

// a * b + c must not be fused: normals are cuRAND's bit for bit.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#endif

enum { KVL__RANDOM_SUBSEQUENCES = 65536 };

typedef struct kvl__random {
    uint64_t              seed;
    kvl__curand_table     curand;
    kvl__curand_generator generator;     // NULL: our own numbers
} kvl__random;

// Ten rounds, in place.
KVL__FN void kvl__philox(uint32_t counter[4], uint32_t key_low, uint32_t key_high)
{
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = (uint64_t)0xd2511f53u * counter[0];
        const uint64_t b = (uint64_t)0xcd9e8d57u * counter[2];
        const uint32_t first = (uint32_t)(b >> 32) ^ counter[1] ^ key_low;
        const uint32_t third = (uint32_t)(a >> 32) ^ counter[3] ^ key_high;
        counter[0] = first;
        counter[1] = (uint32_t)b;
        counter[2] = third;
        counter[3] = (uint32_t)a;
        key_low += 0x9e3779b9u;
        key_high += 0xbb67ae85u;
    }
}

// The four words 4 quad ... 4 quad + 3.
KVL__FN void kvl__random_quad(uint64_t seed, uint64_t quad, uint32_t words[4])
{
    const uint64_t offset = quad / KVL__RANDOM_SUBSEQUENCES;
    words[0] = (uint32_t)offset;
    words[1] = (uint32_t)(offset >> 32);
    words[2] = (uint32_t)(quad % KVL__RANDOM_SUBSEQUENCES);
    words[3] = 0;
    kvl__philox(words, (uint32_t)seed, (uint32_t)(seed >> 32));
}

// Makes a generator; use_curand opens cuRAND where it is there.
KVL__FN void kvl__random_open(kvl__random* r, uint64_t seed, int use_curand)
{
    memset(r, 0, sizeof *r);
    r->seed = seed;
    if (!use_curand || !kvl__curand_open(&r->curand)) return;
    if (r->curand.create_host(&r->generator, KVL__CURAND_PHILOX) != 0) r->generator = NULL;
    if (!r->generator) return;
    if (r->curand.set_ordering(r->generator, KVL__CURAND_ORDER) == 0
        && r->curand.set_seed(r->generator, seed) == 0) return;
    r->curand.destroy(r->generator);
    r->generator = NULL;
}

KVL__FN void kvl__random_close(kvl__random* r)
{
    if (r->generator) r->curand.destroy(r->generator);
    r->generator = NULL;
}

KVL__FN int kvl__random_seek(const kvl__random* r, uint64_t first)
{
    return r->generator && r->curand.set_offset(r->generator, first) == 0;
}

// Words [first, first + num).
KVL__FN void kvl__random_bits(const kvl__random* r, uint64_t first, uint32_t* out, size_t num)
{
    if (kvl__random_seek(r, first) && r->curand.bits(r->generator, out, num) == 0) return;
    for (size_t i = 0; i < num;) {
        uint32_t words[4];
        kvl__random_quad(r->seed, (first + i) / 4, words);
        for (uint64_t k = (first + i) % 4; k < 4 && i < num; ++k, ++i) out[i] = words[k];
    }
}

KVL__FN float kvl__uniform_of_word(uint32_t word)
{
    return (float)word * 2.3283064e-10f + 2.3283064e-10f / 2.0f;
}

// Uniform numbers [first, first + num), in (0, 1].
KVL__FN void kvl__random_uniform(const kvl__random* r, uint64_t first, float* out, size_t num)
{
    if (kvl__random_seek(r, first) && r->curand.uniform(r->generator, out, num) == 0) return;
    for (size_t i = 0; i < num;) {
        uint32_t words[4];
        kvl__random_quad(r->seed, (first + i) / 4, words);
        for (uint64_t k = (first + i) % 4; k < 4 && i < num; ++k, ++i)
            out[i] = kvl__uniform_of_word(words[k]);
    }
}

// Two normal numbers of two words.
KVL__FN void kvl__normals_of_words(uint32_t x, uint32_t y, float pair[2])
{
    const float u = kvl__uniform_of_word(x);
    const float turn = 2.3283064e-10f * 6.2831855f;
    const float angle = (float)y * turn + turn / 2.0f;
    const float radius = sqrtf(-2.0f * logf(u));
    pair[0] = radius * sinf(angle);
    pair[1] = radius * cosf(angle);
}

// Normal numbers [first, first + num) of mean 0 and deviation 1.
KVL__FN void kvl__random_normal(const kvl__random* r, uint64_t first, float* out, size_t num)
{
    uint32_t words[4];
    if (kvl__random_seek(r, first)
        && r->curand.normal(r->generator, out, num, 0.0f, 1.0f) == 0) return;
    for (size_t i = 0; i < num;) {
        float pair[4];
        kvl__random_quad(r->seed, (first + i) / 4, words);
        kvl__normals_of_words(words[0], words[1], pair);
        kvl__normals_of_words(words[2], words[3], pair + 2);
        for (uint64_t k = (first + i) % 4; k < 4 && i < num; ++k, ++i) out[i] = pair[k];
    }
}

KVL__FN float kvl__sign_of_word(uint32_t word) { return word >> 31 ? -1.0f : 1.0f; }

// Signs [first, first + num), -1 or 1: of the first bit of each word.
KVL__FN void kvl__random_signs(const kvl__random* r, uint64_t first, float* out, size_t num)
{
    uint32_t words[4];
    if (kvl__random_seek(r, first)
        && r->curand.bits(r->generator, (unsigned*)(void*)out, num) == 0) {
        for (size_t i = 0; i < num; ++i) {
            memcpy(words, out + i, sizeof *words);
            out[i] = kvl__sign_of_word(words[0]);
        }
        return;
    }
    for (size_t i = 0; i < num;) {
        kvl__random_quad(r->seed, (first + i) / 4, words);
        for (uint64_t k = (first + i) % 4; k < 4 && i < num; ++k, ++i)
            out[i] = kvl__sign_of_word(words[k]);
    }
}

#if !defined(__clang__) && defined(__GNUC__)
#pragma GCC pop_options
#endif

#endif
