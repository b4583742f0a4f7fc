// kvl_trellis.h -- paths through a trellis: gen/parts/trellis.lua defines them.
//
// A code is h << 1 | x; the level it stands for depends on the x of codes before it in its group.

#ifndef KVL_TRELLIS_H
#define KVL_TRELLIS_H

#include "kvl_config.h"

// a * b + c must not be fused where codes are decided.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#endif

enum { KVL__MAX_STATES = 64 };

typedef struct kvl__trellis {
    int32_t  states, bits;             // of a code
    uint32_t h1, h0;                   // bit i for the delay i
} kvl__trellis;

KVL__FN kvl__trellis kvl__trellis_of(int32_t states, int32_t bits)
{
    static const uint32_t h1[] = { 002, 004, 004, 010, 0024 };
    static const uint32_t h0[] = { 005, 013, 023, 045, 0103 };
    int which = 0;
    while (which < 4 && (4 << which) < states) ++which;
    const kvl__trellis t = { 4 << which, bits, h1[which], h0[which] };
    return t;
}

KVL__FN int kvl__parity(uint32_t x)
{
    int ones = 0;
    for (; x; x &= x - 1) ++ones;
    return ones & 1;
}

// The sub-grid, 0 to 3, of the code whose x is bit 0 of history, x_{t-i} bit i.
KVL__FN int kvl__trellis_sub(const kvl__trellis* t, uint32_t history)
{
    return 2 * kvl__parity(history & t->h0) + kvl__parity(history & t->h1);
}

// The level of code i of a group of n.
KVL__FN int kvl__trellis_level(const kvl__trellis* t, const uint16_t* codes, int32_t n, int32_t i)
{
    uint32_t history = 0;
    for (int32_t delay = 0; 1 << delay < 2 * t->states; ++delay)
        history |= (uint32_t)(codes[((i - delay) % n + n) % n] & 1) << delay;
    return 4 * (codes[i] >> 1) + kvl__trellis_sub(t, history);
}

KVL__FN float kvl__path_clamp(float x, float lo, float hi)
{
    return x > lo ? (x < hi ? x : hi) : lo;
}

// The target that costs are of: no number becomes the lowest.
KVL__FN float kvl__path_target(const kvl__trellis* t, float y)
{
    return kvl__path_clamp(y, -8.0f, (float)(2 << t->bits) + 7.0f);
}

// What is above the two low bits in the level of sub-grid `sub` that is nearest to y.
KVL__FN int kvl__path_high(const kvl__trellis* t, float y, int sub)
{
    const float most = (float)((1 << (t->bits - 1)) - 1);
    return (int)kvl__path_clamp(rintf((y - (float)sub) * 0.25f), 0.0f, most);
}

// Costs of a group's values in each sub-grid, and which way led into each state.
typedef struct kvl__path {
    float    y[KVL__PATH_MOST], cost[KVL__PATH_MOST][4];
    uint64_t from[KVL__PATH_MOST];     // bit s: into state s from the greater of two states
    int      sub[KVL__MAX_STATES][2];  // of a state and the next x
} kvl__path;

// sums [states] of the states before the first value become those after the last.
KVL__FN void kvl__path_forward(const kvl__trellis* t, kvl__path* p, int32_t n, float* sums)
{
    const int32_t half = t->states / 2;
    for (int32_t i = 0; i < n; ++i) {
        float next[KVL__MAX_STATES];
        p->from[i] = 0;
        for (int32_t s = 0; s < t->states; ++s) {
            const int32_t a = s >> 1, b = a + half;
            const float by_a = sums[a] + p->cost[i][p->sub[a][s & 1]];
            const float by_b = sums[b] + p->cost[i][p->sub[b][s & 1]];
            next[s] = by_b < by_a ? by_b : by_a;
            if (by_b < by_a) p->from[i] |= (uint64_t)1 << s;
        }
        memcpy(sums, next, (size_t)t->states * sizeof *sums);
    }
}

KVL__FN void kvl__path_back(const kvl__trellis* t, const kvl__path* p, int32_t n, int32_t end,
                            uint16_t* codes, uint16_t* levels)
{
    const int32_t half = t->states / 2;
    for (int32_t i = n - 1, s = end; i >= 0; --i) {
        const int32_t before = (s >> 1) + (p->from[i] >> s & 1 ? half : 0);
        const int sub = p->sub[before][s & 1], high = kvl__path_high(t, p->y[i], sub);
        codes[i] = (uint16_t)(high << 1 | (s & 1));
        levels[i] = (uint16_t)(4 * high + sub);
        s = before;
    }
}

// Codes [n] and levels [n] of the path of least cost for y [n], in units of levels.  A state's sum
// without a condition on the beginning is a bound for all paths that end in it: states are tried
// from the least bound on, while there may be a better one.
KVL__FN void kvl__trellis_walk(const kvl__trellis* t, const float* y, int32_t n, uint16_t* codes,
                               uint16_t* levels)
{
    float bounds[KVL__MAX_STATES] = { 0 }, best = INFINITY;
    int32_t best_state = t->states;
    kvl__path p;
    for (int32_t s = 0; s < t->states; ++s)
        for (int x = 0; x < 2; ++x)
            p.sub[s][x] = kvl__trellis_sub(t, (uint32_t)s << 1 | (uint32_t)x);
    for (int32_t i = 0; i < n; ++i) {
        p.y[i] = kvl__path_target(t, y[i]);
        for (int d = 0; d < 4; ++d) {
            const float e = p.y[i] - (float)(4 * kvl__path_high(t, p.y[i], d) + d);
            p.cost[i][d] = e * e;
        }
    }
    kvl__path_forward(t, &p, n, bounds);
    for (;;) {
        float sums[KVL__MAX_STATES];
        int32_t least = 0;
        for (int32_t s = 1; s < t->states; ++s)
            if (bounds[s] < bounds[least]) least = s;
        if (!(bounds[least] <= best) || bounds[least] == INFINITY) return;
        bounds[least] = INFINITY;
        for (int32_t s = 0; s < t->states; ++s) sums[s] = s == least ? 0.0f : 1e30f;
        kvl__path_forward(t, &p, n, sums);
        if (sums[least] < best || (sums[least] == best && least < best_state)) {
            best = sums[least];
            best_state = least;
            kvl__path_back(t, &p, n, least, codes, levels);
        }
    }
}

#if !defined(__clang__) && defined(__GNUC__)
#pragma GCC pop_options
#endif

#endif
