// test_books.c -- levels that are not equally spaced: formats by hand, Lloyd-Max by its definition.
//
// Random rows are compared with NumPy's in test_codecs.c.

#include "test_support.h"

enum { DIM = 32 };

typedef struct hand {
    const char* spec;
    int         group;
    float       scale;                 // of the first group
    float       x[DIM];                // one row, of keys and of values
    uint16_t    codes[DIM];
} hand;

static void check_hand(const test_target* target, const hand* h)
{
    const kvl_layer_desc layer = test_layer(h->spec, 1, 1, DIM, DIM);
    test_cache c = test_open(target, &layer);
    const kvl_seq seq = test_seq(&c);
    test_append(&c, seq, h->x, h->x, 0, 1);
    for (int side = 0; side < 2; ++side) {
        test_codes got = test_read_codes(&c, seq, 0, side);
        cr_assert(got.c.num_groups == DIM / h->group && got.c.scales[0] == h->scale,
                  "%s on %s: %d groups, scale %.9g, expected %d and %.9g", h->spec, target->name,
                  got.c.num_groups, (double)got.c.scales[0], DIM / h->group, (double)h->scale);
        for (int i = 0; i < DIM; ++i)
            cr_assert(got.c.codes[i] == h->codes[i],
                      "%s on %s: channel %d, %g, has code %#x, expected %#x", h->spec, target->name,
                      i, (double)h->x[i], got.c.codes[i], h->codes[i]);
        test_codes_free(&got);
    }
    test_close(&c);
}

static const hand hands[] = {
    // From the tables of OCP's 8-bit floats.  1.0 is 0x38; ties go to even: 17 is 16, 19 is 20.
    { "fp8", 32, 1,
      { 0, 1, -1, 448, -448, 449, -60000, 0.001953125f, 0.0009765625f, 0.00146484375f, 0.015625f,
        17, 19, 240, 0.875f, 1.125f, 1.0625f, 1.1875f, -0.017578125f, 2, 3, -3.5f, 0.5f, 0.25f,
        416, 432, 431, -0.0f, 100, 128, 120, 20 },
      { 0x00, 0x38, 0xb8, 0x7e, 0xfe, 0x7e, 0xfe, 0x01, 0x00, 0x01, 0x08,
        0x58, 0x5a, 0x77, 0x36, 0x39, 0x38, 0x3a, 0x89, 0x40, 0x44, 0xc6, 0x30, 0x28,
        0x7d, 0x7e, 0x7d, 0x80, 0x6c, 0x70, 0x6f, 0x5a } },
    { "fp8:levels=e5m2", 32, 1,
      { 0, 1, -1, 57344, -57344, 65504, 1.125f, 1.375f, 6.103515625e-5f, 1.52587890625e-5f,
        -1.52587890625e-5f, 7.62939453125e-6f, 2, 3, 0.5f, -0.75f, 1.25f, 1.5f, 1.75f, 1.625f,
        4, 8, 16, 32, 64, 128, 256, 512, 1024, 40960, 49152, -28672 },
      { 0x00, 0x3c, 0xbc, 0x7b, 0xfb, 0x7b, 0x3c, 0x3e, 0x04, 0x01,
        0x81, 0x00, 0x40, 0x42, 0x38, 0xba, 0x3d, 0x3e, 0x3f, 0x3e,
        0x44, 0x48, 0x4c, 0x50, 0x54, 0x58, 0x5c, 0x60, 0x64, 0x79, 0x7a, 0xf7 } },
    // The largest is below 8 = 2^3, so the shared exponent is 2 - 2 = 0, and 7.5 is cut to 6.
    { "mxfp4", 32, 1,
      { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.5f, -1, -1.5f, -2, -3, -4, -6, 7.5f,
        0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, 0.26f, -0.25f, -0.75f, -5, -5.1f, 0.7f, 2.4f,
        -7.5f, 3.6f },
      { 0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 7,
        0, 2, 2, 4, 4, 6, 6, 1, 8, 10, 14, 15, 1, 4, 15, 6 } },
    // Twice the same from 8 on: 8 has the exponent 3.
    { "mxfp4", 32, 2,
      { 8, 1, 2, 3, 4, 6, 12, 15, -8, -1, -2, -3, -4, -6, -12, -15 },
      { 6, 1, 2, 3, 4, 5, 7, 7, 14, 9, 10, 11, 12, 13, 15, 15 } },
    { "mxfp8", 32, 0.125f,                   // 63 < 64: 2^(5 - 8)
      { 63, 1, -1, 32, 56, 60, 61, 0.125f },
      { 0x7e, 0x50, 0xd0, 0x78, 0x7e, 0x7e, 0x7e, 0x38 } },
    { "mxfp8:b6,levels=e2m3", 32, 1,         // steps of 1/8 below 2, of 1/4 below 4, of 1/2 below 8
      { 7.5f, 7.75f, -7.5f, 0.125f, 1.875f, 2, 2.25f, 4, -4.5f, 0.0625f, 0.1875f, 1, 5 },
      { 31, 31, 63, 1, 15, 16, 17, 24, 57, 0, 2, 8, 26 } },
    { "mxfp8:b6,levels=e3m2", 32, 1,
      { 28, 31, -28, 0.0625f, 0.25f, 1, 1.25f, 2, -16, 0.03125f, 0.09375f },
      { 31, 31, 63, 1, 4, 12, 13, 16, 60, 0, 2 } },
    // 10 / 6 = 1.667 is between 1.625 and 1.75; 10 / 1.625 is beyond 6.
    { "nvfp4", 16, 1.625f,
      { 10, -10, 1.625f, 3.25f, 6.5f, 9.75f, 0.8125f, -4.875f },
      { 7, 15, 2, 4, 6, 7, 1, 13 } },
    // Halves of the levels come back as they are; the first has the largest magnitude.
    { "iq4_nl", 32, 0.5f,
      { -63.5f, -52, -41.5f, -32.5f, -24.5f, -17.5f, -11, -5, 0.5f, 6.5f, 12.5f, 19, 26.5f, 34.5f,
        44.5f, 56.5f, -63.5f, -52, -41.5f, -32.5f, -24.5f, -17.5f, -11, -5, 0.5f, 6.5f, 12.5f, 19,
        26.5f, 34.5f, 44.5f, 56.5f },
      { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 } },
    // A positive largest magnitude makes a negative scale.
    { "iq4_nl", 32, -2,
      { 254, 208, 166, 130, 98, 70, 44, 20, -2, -26, -50, -76, -106, -138, -178, -226,
        254, 208, 166, 130, 98, 70, 44, 20, -2, -26, -50, -76, -106, -138, -178, -226 },
      { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 } },
    { "q4_1", 32, 1,                         // from -3 to 12; ties go up
      { -3, 12, 0, 0.5f, 0.4f, 11.5f, -2.5f, 3, 5, -1 },
      { 0, 15, 3, 4, 3, 15, 1, 6, 8, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3,
        3, 3 } },
    { "q5_0", 32, 1,                         // the extreme is -16: d = -16 / -16
      { -16, 15, 0, 0.5f, -0.5f, 7, -7, 14.6f },
      { 0, 31, 16, 17, 16, 23, 9, 31, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16,
        16, 16, 16, 16, 16, 16, 16, 16, 16 } },
    { "q5_1", 32, 2,                         // from 0 to 62
      { 62, 1, 3, 5, 60.9f, 61 },
      { 31, 1, 2, 3, 30, 31 } },
    { "kv-int4", 32, 0.5f,                   // from -1 to 6.5
      { -1, 6.5f, 0, 0.25f, 0.2f, 3, -0.75f },
      { 0, 15, 2, 3, 2, 8, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2,
        2, 2 } },
};
enum { NUM_HANDS = (int)(sizeof hands / sizeof hands[0]) };

Test(books, formats_by_hand)
{
    // Broken by another bias, tie, saturation, order of codes or rule for a scale.
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    for (int i = 0; i < NUM_HANDS; ++i) check_hand(&reference, &hands[i]);
}

Test(books, formats_by_hand_on_the_host)
{
    // Broken by a vector path that finds another level: one width of lookup, one of arithmetic.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    if (n < 2) return;
    check_hand(&targets[1], &hands[0]);
    check_hand(&targets[1], &hands[2]);
}

// Restores what groups of equal rows decode to; levels [1 << bits] of the codes that occur.
static void find_levels(const char* spec, int bits, double* levels)
{
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    const kvl_layer_desc layer = test_layer(spec, 1, 1, 256, DIM);
    float* x = test_floats(256);
    float* k = test_floats(256);
    float v[DIM] = { 0 };
    int found[16] = { 0 }, num_found = 0;
    test_cache c = test_open(&reference, &layer);
    const kvl_seq seq = test_seq(&c);
    for (int i = 0; i < 256; ++i) x[i] = ldexpf((float)(i - 128), i % 2 ? -10 : 0);
    test_append(&c, seq, x, v, 0, 1);
    test_restore(&c, seq, 0, 1, k, v);
    test_codes got = test_read_codes(&c, seq, 0, 0);
    for (int i = 0; i < 256; ++i) {
        const int code = got.c.codes[i];
        levels[code] = (double)k[i] / (double)got.c.scales[0];
        num_found += !found[code];
        found[code] = 1;
    }
    cr_assert(num_found == 1 << bits, "%s: %d of %d levels occur", spec, num_found, 1 << bits);
    test_codes_free(&got);
    test_close(&c);
    free(x);
    free(k);
}

static double density(double t) { return exp(-0.5 * t * t) / sqrt(2 * 3.14159265358979323846); }
static double below(double t) { return 0.5 * erfc(-t / sqrt(2)); }

Test(books, lloyd_levels_are_means_of_what_is_nearest)
{
    // Broken by a level that is not Lloyd and Max's.  Their two conditions: a level is the mean of
    // a normal distribution between the middles beside it.  Levels come back within 2^-23; the
    // distortions are those of Max's table (IRE Trans. Inf. Theory 6, 1960), to four decimals.
    static const double distortions[5] = { 0, 0.3634, 0.1175, 0.0345, 0.0095 };
    for (int bits = 1; bits <= 4; ++bits) {
        double levels[16], distortion = 0;
        char spec[96];
        const int n = 1 << bits;
        snprintf(spec, sizeof spec, "rtn:k%d,k.levels=lloyd,k.fit=norm,k.meta=f16,kg256,sink=0,"
                 "recent=0", bits);
        find_levels(spec, bits, levels);
        for (int i = 0; i < n; ++i) {
            const double a = i ? 0.5 * (levels[i - 1] + levels[i]) : -40;
            const double b = i < n - 1 ? 0.5 * (levels[i] + levels[i + 1]) : 40;
            const double mass = below(b) - below(a), mean = (density(a) - density(b)) / mass;
            cr_assert(fabs(mean - levels[i]) < 1e-6, "%d bits: level %d is %.9g, the mean of its "
                      "part %.9g", bits, i, levels[i], mean);
            const double second = mass + a * density(a) - b * density(b);
            distortion += second - 2 * levels[i] * mean * mass + levels[i] * levels[i] * mass;
        }
        cr_assert(fabs(distortion - distortions[bits]) <= 0.5e-4,
                  "%d bits: distortion %.6g, expected %.6g", bits, distortion, distortions[bits]);
    }
}

// POINTS OF THE PLANE

enum { MAX_POINTS = 256, MAX_CORNERS = 64, MAX_PAIRS = 8192 };

typedef struct cell {
    int    num;
    double x[MAX_CORNERS][2];                          // counter-clockwise
} cell;

// The points that pairs of a grid over [-4, 4]^2 decode to, by number.
static int find_points(int bits, double (*points)[2])
{
    enum { D = 256, ROWS = 2 * MAX_PAIRS / D, SIDE = 90 };
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    char spec[96];
    int found[MAX_POINTS] = { 0 }, num_found = 0;
    float* x = test_floats(ROWS * D);
    float* k = test_floats(ROWS * D);
    float* v = test_floats(ROWS * DIM);
    snprintf(spec, sizeof spec, "rtn:k%d,k.levels=plane,k.fit=norm,k.meta=one,kg256,sink=0,"
             "recent=0", bits);
    const kvl_layer_desc layer = test_layer(spec, 1, 1, D, DIM);
    for (int i = 0; i < MAX_PAIRS; ++i) {
        x[2 * i] = 8.0f * (float)(i % SIDE) / (SIDE - 1) - 4.0f;
        x[2 * i + 1] = 8.0f * (float)(i / SIDE) / (SIDE - 1) - 4.0f;
    }
    test_cache c = test_open(&reference, &layer);
    const kvl_seq seq = test_seq(&c);
    test_append(&c, seq, x, v, 0, ROWS);
    test_restore(&c, seq, 0, ROWS, k, v);
    test_codes got = test_read_codes(&c, seq, 0, 0);
    for (int i = 0; i < MAX_PAIRS; ++i) {
        const int number = got.c.codes[2 * i], other = got.c.codes[2 * i + 1];
        cr_assert(number < 1 << 2 * bits && other == number + (1 << 2 * bits),
                  "%d bits: levels %d and %d of a pair", bits, number, other);
        points[number][0] = (double)k[2 * i];
        points[number][1] = (double)k[2 * i + 1];
        num_found += !found[number];
        found[number] = 1;
    }
    test_codes_free(&got);
    test_close(&c);
    free(x);
    free(k);
    free(v);
    return num_found;
}

// What is left of a cell on p's side of the line between p and q.
static void cut_cell(cell* c, const double* p, const double* q)
{
    const double n[2] = { q[0] - p[0], q[1] - p[1] };
    const double bound = 0.5 * (q[0] * q[0] + q[1] * q[1] - p[0] * p[0] - p[1] * p[1]);
    cell out = { 0, { { 0 } } };
    for (int i = 0; i < c->num; ++i) {
        const double *a = c->x[i], *b = c->x[(i + 1) % c->num];
        const double at_a = n[0] * a[0] + n[1] * a[1] - bound;
        const double at_b = n[0] * b[0] + n[1] * b[1] - bound;
        if (at_a <= 0) memcpy(out.x[out.num++], a, sizeof out.x[0]);
        if ((at_a < 0 && at_b > 0) || (at_a > 0 && at_b < 0)) {
            const double t = at_a / (at_a - at_b);
            for (int j = 0; j < 2; ++j) out.x[out.num][j] = a[j] + t * (b[j] - a[j]);
            ++out.num;
        }
        cr_assert(out.num < MAX_CORNERS - 1);
    }
    *c = out;
}

// What an edge from a to b adds to the integral of the density and of x times it: the first by the
// angle t that it is seen under, (1 - exp(-r^2 / 2)) dt / 2 pi; the second since x times the
// density is its gradient's negative.
static void add_edge(const double* a, const double* b, double* mass, double* first)
{
    enum { STEPS = 400 };
    const double length = hypot(b[0] - a[0], b[1] - a[1]);
    if (length < 1e-13) return;
    const double t[2] = { (b[0] - a[0]) / length, (b[1] - a[1]) / length };
    const double n[2] = { t[1], -t[0] }, h = n[0] * a[0] + n[1] * a[1];
    const double from = t[0] * a[0] + t[1] * a[1], to = from + length;
    const double lo = fmin(fmax(from, -9), 9), hi = fmin(fmax(to, -9), 9);
    const double step = (hi - lo) / STEPS, share = density(h) * (below(to) - below(from));
    double sum = 0;
    for (int i = 0; step > 0 && i <= STEPS; ++i) {                 // Simpson's rule
        const double s = lo + step * i, r = h * h + s * s;
        const double y = r > 1e-12 ? -expm1(-0.5 * r) / r * h : 0.5 * h;
        sum += step / 3 * y * (i == 0 || i == STEPS ? 1 : i % 2 ? 4 : 2);
    }
    sum += atan2(h * (lo - from), h * h + lo * from) + atan2(h * (to - hi), h * h + to * hi);
    *mass += sum / (2 * 3.14159265358979323846);
    first[0] -= n[0] * share;
    first[1] -= n[1] * share;
}

Test(books, points_are_means_of_what_is_nearest)
{
    // Broken by a point that is not Lloyd's, in two dimensions: the mean of a normal distribution
    // over the cell of what is nearest to it.  A pair of f32 numbers comes back as it is.
    static const double distortions[5] = { 0, 0, 0.1076, 0.0295, 0.0077 };
    static double points[MAX_POINTS][2];
    for (int bits = 2; bits <= 4; ++bits) {
        const int num = 1 << 2 * bits, found = find_points(bits, points);
        double distortion = 1, all = 0;
        cr_assert(found == num, "%d bits: %d of %d points occur", bits, found, num);
        for (int i = 0; i < num; ++i) {
            cell c = { 4, { { -40, -40 }, { 40, -40 }, { 40, 40 }, { -40, 40 } } };
            double mass = 0, first[2] = { 0, 0 };
            for (int j = 0; j < num; ++j)
                if (j != i) cut_cell(&c, points[i], points[j]);
            for (int j = 0; j < c.num; ++j)
                add_edge(c.x[j], c.x[(j + 1) % c.num], &mass, first);
            for (int j = 0; j < 2; ++j) {
                cr_assert(fabs(first[j] / mass - points[i][j]) < 2e-6, "%d bits: point %d has "
                          "%.9g, the mean of its cell %.9g", bits, i, points[i][j],
                          first[j] / mass);
                distortion += points[i][j] * (0.5 * mass * points[i][j] - first[j]);
            }
            all += mass;
        }
        cr_assert(fabs(all - 1) < 1e-9, "%d bits: the cells have %.12g", bits, all);
        cr_assert(fabs(distortion - distortions[bits]) <= 0.5e-4,
                  "%d bits: distortion %.6g, expected %.6g", bits, distortion, distortions[bits]);
    }
}

Test(books, a_matched_scale_keeps_the_norm)
{
    // Broken by a correction that is left out or inverted: the norm of a restored row is the row's,
    // within the rounding of an f16 scale, where the plain norm's is off by percents.
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    static const char* const specs[] = { "turboquant-mse:b2,sink=0,recent=0",
                                         "turboquant-mse:b2,fit=norm,sink=0,recent=0" };
    enum { D = 64, ROWS = 16 };
    float x[ROWS * D], k[ROWS * D], v[ROWS * D];
    double worst[2] = { 0, 0 };
    test_rows(7, ROWS, 1, D, x);
    for (int s = 0; s < 2; ++s) {
        const kvl_layer_desc layer = test_layer(specs[s], 1, 1, D, D);
        test_cache c = test_open(&reference, &layer);
        const kvl_seq seq = test_seq(&c);
        test_append(&c, seq, x, x, 0, ROWS);
        test_restore(&c, seq, 0, ROWS, k, v);
        for (int t = 0; t < ROWS; ++t) {
            double norm = 0, got = 0;
            for (int i = 0; i < D; ++i) {
                const double held = (double)test_round_f16(x[t * D + i]);
                norm += held * held;
                got += (double)v[t * D + i] * (double)v[t * D + i];
            }
            const double off = fabs(sqrt(got / norm) - 1);
            worst[s] = off > worst[s] ? off : worst[s];
        }
        test_close(&c);
    }
    cr_assert(worst[0] < ldexp(1, -11) + 1e-6, "matched: a norm is off by %g", worst[0]);
    cr_assert(worst[1] > 0.005, "norm alone: the worst is off by %g", worst[1]);
}

Test(books, signs_are_right_in_the_mean)
{
    // Broken by another factor than sqrt(pi / 2), or by a rotation that is not one.  For any k, the
    // mean over normal q of (q . k')(q . k) is k' . k, which an unbiased sketch makes k . k.  Of a
    // row of 64 it is off by sqrt((pi / 2 - 1) / 64) = 9.4 % in the root mean square, of 512 rows
    // by 0.42 %: four times that is allowed.  Levels of least squared error give 2 / pi.
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    const kvl_layer_desc layer = test_layer("qjl-signs:sink=0,recent=0", 1, 1, 64, 64);
    enum { D = 64, ROWS = 512 };
    float* x = test_floats(ROWS * D);
    float* k = test_floats(ROWS * D);
    float* v = test_floats(ROWS * D);
    double same = 0, all = 0;
    test_queries(3, ROWS, 1, D, x);
    test_cache c = test_open(&reference, &layer);
    const kvl_seq seq = test_seq(&c);
    test_append(&c, seq, x, x, 0, ROWS);
    test_restore(&c, seq, 0, ROWS, k, v);
    for (int i = 0; i < ROWS * D; ++i) {
        same += (double)k[i] * (double)x[i];
        all += (double)x[i] * (double)x[i];
    }
    cr_assert(fabs(same / all - 1) < 0.017, "k' . k is %.4f of k . k", same / all);
    test_close(&c);
    free(x);
    free(k);
    free(v);
}

Test(books, what_does_not_fit_is_refused)
{
    // Broken by a combination that is taken, or by a message without its name and rule.
    static const char* const specs[][2] = {
        { "fp8:k4", "k4: bits with levels = e4m3, fit = amax must be one of 8" },
        { "fp8:k.fit=minmax", "k.fit = minmax: is for levels = affine, not e4m3" },
        { "kivi:k.fit=amax", "k.fit = amax: is for levels = e2m1, e2m3, e3m2, e4m3, e5m2, lloyd, "
                             "nl4, signs, not affine" },
        { "mxfp4:v.round=nearest_up", "v.round = nearest_up: levels = e2m1 take the nearest" },
        { "mxfp4:meta=log4", "k.meta = log4: is for levels = affine, not e2m1" },
        { "kivi:k.meta=e8m0", "k.meta = e8m0: cannot store what fit = minmax finds" },
        { "q4_1:meta=8bit", "k.meta = 8bit: cannot store what fit = span finds" },
        { "iq4_nl:meta=8bit", "k.meta = 8bit: cannot store the sign that the scale of fit = "
                              "squares has" },
        { "turboquant:v.levels=lloyd", "v.fit = minmax: is for levels = affine, not lloyd" },
        { "higgs:k.fit=matched", "k.fit = matched: is for levels = e2m1, e2m3, e3m2, e4m3, e5m2, "
                                 "lloyd, nl4, signs, not plane" },
        { "higgs:v.axis=per_channel", "v.levels = plane: needs v.axis = per_token" },
        { "higgs:kg1", "kg1: group size must be from 2 to 4096" },
        { "higgs:k.extra=outliers", "k.extra = outliers: needs k.levels of one width" },
        { "higgs:k5", "k5: bits with levels = plane, fit = norm must be one of 2, 3, 4" },
        { "higgs:round=nearest_up", "k.round = nearest_up: levels = plane take the nearest" },
        { "mxfp4:round=feedback2", "k.round = feedback: is for levels = affine, not e2m1" },
    };
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    kvl_context* ctx = test_context(&reference, 1);
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; ++i) {
        const kvl_layer_desc layer = test_layer(specs[i][0], 1, 1, 64, 64);
        kvl_cache_desc desc = { 0 };
        kvl_cache* cache;
        desc.num_layers = 1;
        desc.layers = &layer;
        const kvl_status status = kvl_cache_create(ctx, &desc, &cache);
        cr_assert(status == KVL_BAD_ARGUMENT && strstr(kvl_context_message(ctx), specs[i][1]),
                  "%s: '%s', expected '%s'", specs[i][0], kvl_context_message(ctx), specs[i][1]);
    }
    kvl_context_destroy(ctx);
}
