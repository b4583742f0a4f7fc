// test_random.c -- Philox4x32-10, alone and in cuRAND's order.
//
// Breaks when a round, a key step or the order of words is wrong.  Expected: the known-answer file
// of Random123 (kat_vectors, philox4x32 10), and numbers that cuRAND 10.4 printed for one seed;
// where libcurand is on this machine, long stretches are compared with it.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "kvl_random.h"

#include <criterion/criterion.h>

static const uint64_t seed = 0x0123456789abcdefu;

Test(random, known_answers_of_philox)
{
    static const struct { uint32_t counter[4], key[2], out[4]; } known[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u } },
        { { 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu }, { 0xffffffffu, 0xffffffffu },
          { 0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu } },
        { { 0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u }, { 0xa4093822u, 0x299f31d0u },
          { 0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u } },
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i) {
        uint32_t words[4];
        memcpy(words, known[i].counter, sizeof words);
        kvl__philox(words, known[i].key[0], known[i].key[1]);
        for (int k = 0; k < 4; ++k) cr_assert_eq(words[k], known[i].out[k], "%zu, word %d", i, k);
    }
}

// Printed by cuRAND's host generator.
Test(random, known_answers_in_order)
{
    static const struct { uint64_t at; uint32_t word; } known[] = {
        { 0, 0xb850222eu }, { 1, 0xc58cb04bu }, { 2, 0x14a7a020u }, { 3, 0x7a84fff9u },
        { 4, 0xfa9dff5eu }, { 5, 0x6c10844bu }, { 262143, 0xa2b781bau }, { 262144, 0xadca1466u },
        { 262147, 0xb299da3fu }, { 1000003, 0xafde002du }, { 4194303, 0x87aa93e7u } };
    static const float uniform[] = { 0x1.70a044p-1f, 0x1.8b196p-1f, 0x1.4a7a02p-4f, 0x1.ea14p-2f };
    static const float normal[] = { -0x1.9b2fd8p-1f, 0x1.c2d7b4p-4f, 0x1.341f6p-2f,
                                    -0x1.1c9b68p+1f };
    kvl__random r;
    float got[5];
    kvl__random_open(&r, seed, 0);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i) {
        uint32_t word;
        kvl__random_bits(&r, known[i].at, &word, 1);
        cr_assert_eq(word, known[i].word, "word %d", (int)known[i].at);
    }
    kvl__random_uniform(&r, 0, got, 4);
    cr_assert_eq(memcmp(got, uniform, sizeof uniform), 0);
    kvl__random_normal(&r, 0, got, 4);
    for (int i = 0; i < 4; ++i)      // the C library's sine, cosine and logarithm are in it
        cr_assert_lt(fabsf(got[i] - normal[i]), 1e-6f, "%a", (double)got[i]);
    kvl__random_signs(&r, 0, got, 5);
    cr_assert(got[0] == -1.0f && got[1] == -1.0f && got[2] == 1.0f && got[3] == 1.0f
              && got[4] == -1.0f);
}

// A stretch is the same however it is cut.
Test(random, positions)
{
    enum { NUM = 3000 };
    static uint32_t whole[NUM], part[NUM];
    static float a[NUM], b[NUM];
    kvl__random r;
    kvl__random_open(&r, 7, 0);
    kvl__random_bits(&r, 262100, whole, NUM);
    for (size_t at = 0, n = 1; at < NUM; at += n, n = n % 11 + 1) {
        if (n > NUM - at) n = NUM - at;
        kvl__random_bits(&r, 262100 + at, part + at, n);
    }
    cr_assert_eq(memcmp(whole, part, sizeof whole), 0);
    kvl__random_normal(&r, 101, a, NUM);
    for (size_t at = 0, n = 1; at < NUM; at += n, n = n % 7 + 1)
        kvl__random_normal(&r, 101 + at, b + at, n > NUM - at ? NUM - at : n);
    cr_assert_eq(memcmp(a, b, sizeof a), 0);
    kvl__random_uniform(&r, 3, a, NUM);
    for (size_t i = 0; i < NUM; ++i) kvl__random_uniform(&r, 3 + i, b + i, 1);
    cr_assert_eq(memcmp(a, b, sizeof a), 0);
}

// Moments of 2^20 normal numbers; four deviations of the estimates themselves.
Test(random, moments)
{
    enum { NUM = 1 << 20 };
    static float x[NUM];
    double sum = 0, squares = 0, fourths = 0, signs = 0;
    kvl__random r;
    kvl__random_open(&r, 2026, 0);
    kvl__random_normal(&r, 0, x, NUM);
    for (int i = 0; i < NUM; ++i) {
        const double s = (double)x[i] * (double)x[i];
        sum += (double)x[i];
        squares += s;
        fourths += s * s;
    }
    cr_assert_lt(fabs(sum / NUM), 4 * 1.0 / 1024);
    cr_assert_lt(fabs(squares / NUM - 1), 4 * sqrt(2.0) / 1024);
    cr_assert_lt(fabs(fourths / NUM - 3), 4 * sqrt(96.0) / 1024);
    kvl__random_signs(&r, 0, x, NUM);
    for (int i = 0; i < NUM; ++i) signs += (double)x[i];
    cr_assert_lt(fabs(signs / NUM), 4 * 1.0 / 1024);
}

// The same numbers as cuRAND, over more than one turn of the subsequences.
Test(random, equal_to_curand)
{
    enum { NUM = 3 * 4 * KVL__RANDOM_SUBSEQUENCES + 77 };
    static uint32_t bits[2][NUM];
    static float x[2][NUM];
    static const uint64_t seeds[] = { 0, 1, 0x0123456789abcdefu, 0xffffffffffffffffu };
    static const uint64_t firsts[] = { 0, 5, 262143, 10000019 };
    for (int i = 0; i < 4; ++i) {
        kvl__random own, other;
        kvl__random_open(&own, seeds[i], 0);
        kvl__random_open(&other, seeds[i], 1);
        if (!other.generator) cr_skip_test("no cuRAND");
        cr_assert_null(own.generator);
        kvl__random_bits(&own, firsts[i], bits[0], NUM);
        kvl__random_bits(&other, firsts[i], bits[1], NUM);
        cr_assert_eq(memcmp(bits[0], bits[1], sizeof bits[0]), 0, "bits, seed %d", i);
        kvl__random_uniform(&own, firsts[i], x[0], NUM);
        kvl__random_uniform(&other, firsts[i], x[1], NUM);
        cr_assert_eq(memcmp(x[0], x[1], sizeof x[0]), 0, "uniform, seed %d", i);
        kvl__random_normal(&own, firsts[i], x[0], NUM);
        kvl__random_normal(&other, firsts[i], x[1], NUM);
        cr_assert_eq(memcmp(x[0], x[1], sizeof x[0]), 0, "normal, seed %d", i);
        kvl__random_signs(&own, firsts[i], x[0], NUM);
        kvl__random_signs(&other, firsts[i], x[1], NUM);
        cr_assert_eq(memcmp(x[0], x[1], sizeof x[0]), 0, "signs, seed %d", i);
        kvl__random_close(&other);
    }
}
