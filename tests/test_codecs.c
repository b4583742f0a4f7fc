// test_codecs.c -- codes, scales and offsets against the NumPy oracle, and groups at their edges.
//
// Fixtures come from tests/oracles/make_fixtures.py, which describes their format.

#include "test_support.h"

#include <glob.h>

#ifndef KVLOOM_TEST_ROOT
#define KVLOOM_TEST_ROOT "."
#endif

// FIXTURES

typedef struct fixture {
    char           name[256], spec[192], rows[64];      // rows: of a model, "" for test_rows
    int            choices;            // of keys, in a head
    kvl_rope       rope;               // base 0: not said
    int            q_heads, kv_heads, dk, dv, soft_cap, window_len, sink, quantized;
    int            num_rows, num_queries, bits[2], groups[2], num_samples, samples[16];
    unsigned char* file;
    size_t         bytes, at;          // at: of the next array
} fixture;

static int fixture_number(const char* text, const char* name)
{
    const char* at = strstr(text, name);
    cr_assert(at != NULL, "fixture without %s", name);
    return atoi(at + strlen(name));
}

static void fixture_header(fixture* f, char* text)
{
    const char* at = strstr(text, "\nspec ");
    cr_assert(at != NULL && sscanf(at, "\nspec %191s", f->spec) == 1, "%s: no spec", f->name);
    at = strstr(text, "\nrows ");
    cr_assert(!at || sscanf(at, "\nrows %63s", f->rows) == 1, "%s: no rows", f->name);
    at = strstr(text, "\nrope ");
    cr_assert(!at || sscanf(at, "\nrope %d %d %lf", &f->rope.split_halves, &f->rope.dims,
                            &f->rope.base) == 3, "%s: no rope", f->name);
    f->q_heads = fixture_number(text, "\nnum_q_heads ");
    f->kv_heads = fixture_number(text, "\nnum_kv_heads ");
    f->dk = fixture_number(text, "\nhead_dim ");
    f->dv = fixture_number(text, "\nhead_dim_v ");
    f->soft_cap = fixture_number(text, "\nsoft_cap ");
    f->window_len = fixture_number(text, "\nwindow_len ");
    f->num_rows = fixture_number(text, "\nnum_rows ");
    f->sink = fixture_number(text, "\nsink ");
    f->quantized = fixture_number(text, "\nquantized ");
    f->num_queries = fixture_number(text, "\nnum_queries ");
    f->bits[0] = fixture_number(text, "\nk_bits ");
    f->bits[1] = fixture_number(text, "\nv_bits ");
    f->groups[0] = fixture_number(text, "\nk_groups ");
    f->groups[1] = fixture_number(text, "\nv_groups ");
    f->choices = strstr(text, "\nk_choices ") ? fixture_number(text, "\nk_choices ") : 0;
    f->num_samples = fixture_number(text, "\nnum_samples ");
    cr_assert(f->num_samples <= 16, "%s: too many samples", f->name);
    char* next = strstr(text, "\nsamples ") + strlen("\nsamples ");
    for (int i = 0; i < f->num_samples; ++i) f->samples[i] = (int)strtol(next, &next, 10);
}

static void fixture_check_sum(const fixture* f)
{
    uint32_t hash = 2166136261u, stored;
    for (size_t i = f->at; i < f->bytes - 4; ++i) hash = (hash ^ f->file[i]) * 16777619u;
    memcpy(&stored, f->file + f->bytes - 4, 4);
    cr_assert(hash == stored, "%s is damaged", f->name);
}

static fixture fixture_read(const char* path)
{
    fixture f;
    memset(&f, 0, sizeof f);
    FILE* file = fopen(path, "rb");
    cr_assert(file != NULL, "%s cannot be opened", path);
    f.file = (unsigned char*)test_alloc(1 << 16, 1);
    f.bytes = fread(f.file, 1, (1 << 16) - 1, file);
    fclose(file);
    snprintf(f.name, sizeof f.name, "%s", strrchr(path, '/') ? strrchr(path, '/') + 1 : path);
    cr_assert(f.bytes > 64 && memcmp(f.file, "kvloom_fixture 1\n", 17) == 0, "%s: not a fixture",
              path);
    char* data = strstr((char*)f.file, "\ndata\n");
    cr_assert(data != NULL, "%s: no data", path);
    *data = 0;
    fixture_header(&f, (char*)f.file);
    f.at = (size_t)(data - (char*)f.file) + 6;
    fixture_check_sum(&f);
    return f;
}

static uint16_t* fixture_codes(fixture* f, int64_t count, int bits)
{
    uint16_t* codes = (uint16_t*)test_alloc((size_t)count, sizeof *codes);
    cr_assert(f->at + (size_t)(count * bits + 7) / 8 <= f->bytes, "%s is too short", f->name);
    for (int64_t i = 0; i < count * bits; ++i) {
        const unsigned bit = (unsigned)f->file[f->at + (size_t)(i / 8)] >> (i % 8) & 1u;
        codes[i / bits] = (uint16_t)(codes[i / bits] | bit << (i % bits));
    }
    f->at += (size_t)(count * bits + 7) / 8;
    return codes;
}

static float* fixture_floats(fixture* f, int64_t count)
{
    float* x = test_floats(count);
    cr_assert(f->at + (size_t)count * 4 <= f->bytes, "%s is too short", f->name);
    memcpy(x, f->file + f->at, (size_t)count * 4);
    f->at += (size_t)count * 4;
    return x;
}

static void check_side(fixture* f, test_cache* c, kvl_seq seq, int side, const char* target)
{
    const int64_t per_head = (int64_t)f->quantized * (side ? f->dv : f->dk);
    const int64_t groups = f->groups[side];
    uint16_t* codes = fixture_codes(f, per_head * f->kv_heads, f->bits[side]);
    float* scales = fixture_floats(f, groups * f->kv_heads);
    float* offsets = fixture_floats(f, groups * f->kv_heads);
    const int num_choices = side ? 0 : f->choices;
    uint32_t* choices = (uint32_t*)fixture_floats(f, (int64_t)num_choices * f->kv_heads);
    for (int head = 0; head < f->kv_heads; ++head) {
        test_codes got = test_read_codes(c, seq, head, side);
        cr_assert(got.num_codes == per_head && got.c.num_groups == groups,
                  "%s on %s: side %d holds %lld codes and %d groups, expected %lld and %lld",
                  f->name, target, side, (long long)got.num_codes, got.c.num_groups,
                  (long long)per_head, (long long)groups);
        for (int64_t i = 0; i < groups; ++i) {
            const float scale = scales[head * groups + i], offset = offsets[head * groups + i];
            cr_assert(got.c.scales[i] == scale && got.c.offsets[i] == offset,
                      "%s on %s: side %d head %d group %lld: scale %.9g offset %.9g, expected %.9g "
                      "and %.9g", f->name, target, side, head, (long long)i,
                      (double)got.c.scales[i], (double)got.c.offsets[i], (double)scale,
                      (double)offset);
        }
        for (int i = 0; i < num_choices; ++i)
            cr_assert(got.c.choices[i] == choices[head * num_choices + i],
                      "%s on %s: head %d unit %d chose %#x, expected %#x", f->name, target, head, i,
                      got.c.choices[i], choices[head * num_choices + i]);
        for (int64_t i = 0; i < per_head; ++i)
            cr_assert(got.c.codes[i] == codes[head * per_head + i],
                      "%s on %s: side %d head %d row %lld channel %lld: code %d, expected %d",
                      f->name, target, side, head, (long long)(i / (side ? f->dv : f->dk)),
                      (long long)(i % (side ? f->dv : f->dk)), got.c.codes[i],
                      codes[head * per_head + i]);
        test_codes_free(&got);
    }
    free(codes);
    free(scales);
    free(offsets);
    free(choices);
}

// Restored rows against float64: scale * code + offset is two roundings of at most `size`, the
// inverse transform log2(256) = 8 additions and a product on top, in the norm of the row.
static void check_samples(fixture* f, test_cache* c, kvl_seq seq, int side, const char* target)
{
    const int dim = side ? f->dv : f->dk;
    float* expected = fixture_floats(f, (int64_t)f->num_samples * f->kv_heads * dim);
    float* k = test_floats((int64_t)f->kv_heads * f->dk);
    float* v = test_floats((int64_t)f->kv_heads * f->dv);
    for (int i = 0; i < f->num_samples; ++i) {
        test_restore(c, seq, f->samples[i], 1, k, v);
        for (int head = 0; head < f->kv_heads; ++head) {
            const float* want = expected + ((int64_t)i * f->kv_heads + head) * dim;
            const float* got = (side ? v : k) + (int64_t)head * dim;
            double norm = 0;
            for (int j = 0; j < dim; ++j) norm += (double)want[j] * (double)want[j];
            const double bound = ldexp(1, -24) * 24 * sqrt(norm);
            for (int j = 0; j < dim; ++j)
                cr_assert(fabs((double)got[j] - (double)want[j]) <= bound,
                          "%s on %s: side %d row %d channel %d: restored %.9g, expected %.9g "
                          "within %.2g", f->name, target, side, f->samples[i], j, (double)got[j],
                          (double)want[j], bound);
        }
    }
    free(expected);
    free(k);
    free(v);
}

// The bound is the one that test_attention derives; the expected values are the fixture's.
static void check_attention(fixture* f, test_cache* c, kvl_seq seq, const char* target)
{
    const int64_t num_o = (int64_t)f->num_queries * f->q_heads * f->dv;
    float* o = fixture_floats(f, num_o);
    float* lse = fixture_floats(f, (int64_t)f->num_queries * f->q_heads);
    float* q = test_floats((int64_t)f->num_queries * f->q_heads * f->dk);
    float* got_o = test_floats(num_o);
    float* got_lse = test_floats((int64_t)f->num_queries * f->q_heads);
    float* k = test_floats((int64_t)f->num_rows * f->kv_heads * f->dk);
    float* v = test_floats((int64_t)f->num_rows * f->kv_heads * f->dv);
    int64_t positions[8];
    char what[512];
    test_attention a;
    memset(&a, 0, sizeof a);
    test_queries(33, f->num_queries, f->q_heads, f->dk, q);
    test_restore(c, seq, 0, f->num_rows, k, v);
    for (int i = 0; i < f->num_queries; ++i) positions[i] = f->num_rows - f->num_queries + i;
    a.q = q;
    a.k = k;
    a.v = v;
    a.positions = positions;
    a.num_q = f->num_queries;
    a.q_heads = f->q_heads;
    a.kv_heads = f->kv_heads;
    a.dk = f->dk;
    a.dv = f->dv;
    a.kv_len = f->num_rows;
    a.soft_cap = f->soft_cap;
    a.window_len = f->window_len;
    a.transformed = strstr(f->spec, "hadamard") != NULL || strstr(f->spec, "mean") != NULL ||
                    strstr(f->spec, "flagrot") != NULL || f->rope.base > 0 ||
                    strstr(f->spec, "kvquant") != NULL || strstr(f->spec, "sparse") != NULL ||
                    strstr(f->spec, "-tensor") != NULL ||
                    strstr(f->spec, "qjl") != NULL || strstr(f->spec, "sketch") != NULL ||
                    strstr(f->spec, "transform=") != NULL || strstr(f->spec, "kitty") != NULL ||
                    strstr(f->spec, "norm") != NULL || strstr(f->spec, "promote") != NULL ||
                    strstr(f->spec, "block-gtq") != NULL || strstr(f->spec, "split") != NULL;
    a.rounds = c->rounds;
    test_attention_run(&a);
    for (int64_t i = 0; i < num_o; ++i) a.o[i] = (double)o[i];
    for (int64_t i = 0; i < (int64_t)f->num_queries * f->q_heads; ++i) a.lse[i] = (double)lse[i];
    test_attend(c, seq, q, f->num_queries, NULL, got_o, got_lse);
    snprintf(what, sizeof what, "%s on %s", f->name, target);
    test_attention_check(&a, got_o, got_lse, what);
    test_attention_free(&a);
    free(o);
    free(lse);
    free(q);
    free(got_o);
    free(got_lse);
    free(k);
    free(v);
}

static void check_fixture(const char* path, const test_target* target)
{
    fixture f = fixture_read(path);
    char spec[sizeof f.spec + 8];
    snprintf(spec, sizeof spec, "%s,kept=0", f.spec);                // no row is named
    kvl_layer_desc layer = test_layer(spec, f.q_heads, f.kv_heads, f.dk, f.dv);
    layer.soft_cap = (float)f.soft_cap;
    layer.window_len = f.window_len;
    if (f.rope.base > 0) layer.rope = &f.rope;
    test_recorded recorded = { 0, 0, 0, NULL, NULL, test_calibration(TEST_TABLES) };
    if (f.rows[0]) recorded = test_recorded_rows(f.rows);
    test_cache c = test_open_calibrated(target, &layer, recorded.calibration);
    const kvl_seq seq = test_seq(&c);
    float *k = recorded.k, *v = recorded.v;
    if (!f.rows[0]) {
        k = test_floats((int64_t)f.num_rows * f.kv_heads * f.dk);
        v = test_floats((int64_t)f.num_rows * f.kv_heads * f.dv);
        test_rows(11, f.num_rows, f.kv_heads, f.dk, k);
        test_rows(22, f.num_rows, f.kv_heads, f.dv, v);
    }
    test_append(&c, seq, k, v, 0, f.num_rows);
    kvl_seq_rows rows;
    test_ok(c.ctx, kvl_seq_get_rows(c.cache, 0, seq, &rows), f.name);
    cr_assert(rows.sink == f.sink && rows.quantized == f.quantized,
              "%s: sink %lld quantized %lld, expected %d and %d", f.name, (long long)rows.sink,
              (long long)rows.quantized, f.sink, f.quantized);
    check_side(&f, &c, seq, 0, target->name);
    check_side(&f, &c, seq, 1, target->name);
    check_samples(&f, &c, seq, 0, target->name);
    check_samples(&f, &c, seq, 1, target->name);
    check_attention(&f, &c, seq, target->name);
    test_close(&c);
    if (!f.rows[0]) {
        free(k);
        free(v);
    }
    free(f.file);
}

// Every `step`-th fixture on one target.
static void check_fixtures(const test_target* target, size_t step)
{
    static const char pattern[] = KVLOOM_TEST_ROOT "/tests/fixtures/codec_*.kvf";
    glob_t found;
    const int failed = glob(pattern, 0, NULL, &found);
    cr_assert(failed == 0 && found.gl_pathc == 124, "%s: %zu fixtures, expected 124", pattern,
              failed ? (size_t)0 : found.gl_pathc);
    for (size_t i = 0; i < found.gl_pathc; i += step)
        check_fixture(found.gl_pathv[i], target);
    globfree(&found);
}

Test(codecs, fixtures_on_a_device)
{
    // Broken where a kernel of a device and the reference's arithmetic part.
    const test_target cuda = test_cuda_target();
    check_fixtures(&cuda, 4);
}

static void check_on_a_device(const char* const* names, int num)
{
    const test_target cuda = test_cuda_target();
    for (int i = 0; i < num; ++i) {
        char path[512];
        snprintf(path, sizeof path, KVLOOM_TEST_ROOT "/tests/fixtures/codec_%s.kvf", names[i]);
        check_fixture(path, &cuda);
    }
}

Test(codecs, outliers_and_books_on_a_device)
{
    // Broken where a device fills or reads slots, ranges or a calibrated book in its own way, fits
    // the scale that codes of groups along tokens ask for, joins codes of several widths, or mixes
    // heads in another order.
    static const char* const names[] = { "kvquant", "kvquant_2", "sparse", "static", "lloyd_34",
                                         "pairs_1", "pairs_4", "rotatekv", "rotatekv_2" };
    check_on_a_device(names, 9);
}

Test(codecs, sketches_on_a_device)
{
    // Broken where a device rotates a row otherwise, or keeps other channels apart.
    static const char* const names[] = { "turbo_prod", "qjl", "qjl_80", "qjl_signs", "sketch_96",
                                         "sketch_out", "pairs_rope" };
    check_on_a_device(names, 7);
}

Test(codecs, sets_of_channels_on_a_device)
{
    // Broken where a device has another order of channels, or meets a set where the next begins.
    static const char* const names[] = { "split", "split_1", "split_3", "split_aff",
                                         "split_rope" };
    check_on_a_device(names, 5);
}

Test(codecs, points_of_the_plane_on_a_device)
{
    // Broken where a device takes another of two near points, or reads one half of a number alone.
    static const char* const names[] = { "higgs", "plane_34", "plane_42", "plane_out" };
    check_on_a_device(names, 4);
}

Test(codecs, fixtures_on_the_reference)
{
    // Broken by any change of a codec's arithmetic, of a window's bounds or of the order of groups.
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    check_fixtures(&reference, 1);
}

Test(codecs, fixtures_on_the_host)
{
    // Broken by a generated kernel that rounds, packs or orders differently from the reference.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    if (n > 1) check_fixtures(&targets[1], 1);
}

Test(codecs, fixtures_at_each_level)
{
    // Broken by one instruction set whose kernels differ from the others.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    for (int i = 2; i < n; ++i) check_fixtures(&targets[i], 5);
}

// GROUPS AT THEIR EDGES

enum { GROUP = 32, NUM_PATTERNS = 28 };

static const float constants[] = { 0.0f, -0.0f, 1.0f, -1.0f, 0.1f, -0.1f, 65504.0f, -65504.0f,
                                   30000.0f, -777.0f, 5.9604645e-8f, -5.9604645e-8f, 1e-3f,
                                   -1e-3f };
enum { NUM_CONSTANTS = 14 };

// Element i of a pattern, before the window rounds it.
static float pattern(int which, int i)
{
    if (which < NUM_CONSTANTS) return constants[which];
    switch (which - NUM_CONSTANTS) {
    case 0: return i == 7 ? 1e5f : 0.25f * (float)(i % 5);            // one beyond f16
    case 1: return i == 31 ? -1e6f : 1.0f;
    case 2: return i % 2 ? 65504.0f : -65504.0f;                      // alternating at the limit
    case 3: return i % 2 ? 65000.0f : -65000.0f;
    case 4: return (float)i * 5.9604645e-8f;                          // denormals of f16
    case 5: return i == 3 ? 5.9604645e-8f : 0.0f;
    case 6: return 1000.0f + 0.5f * (float)(i % 4);                   // narrow on a large offset
    case 7: return -30000.0f + 16.0f * (float)(i % 3);
    case 8: return 0.01f * (float)(1 + i % 7);
    case 9: return (i % 2 ? 0.4f : -0.4f) + 0.001f * (float)i;
    case 10: return i == 0 ? 8.0f : 8.0f - 0.0078125f;                // two values, one apart
    case 11: return (float)(i - 16);
    case 12: return ldexpf(i % 2 ? 1.0f : -1.0f, -i / 2);             // many magnitudes
    default: return 100.0f + (float)((i * 37) % 101) / 64.0f;
    }
}

typedef struct edge_case {
    const char* spec;
    int         bits, f16_meta, symmetric;
} edge_case;

// Half a step of the stored scale; symmetric codes with f16 metadata come from the scale before it
// is rounded (2^-11 of the value, and 2^-25 a code where the scale is a denormal), and ggml's q4_0
// has no level for the largest magnitude of the other sign: one step there.  One bit that spans the
// whole range of f16 would need a scale of 131008: the greatest f16, 65504, leaves one step too.
static double step_bound(const edge_case* e, double x, double scale, double offset)
{
    const double top = ldexp(1, e->bits);
    const double rounding = ldexp(1, -22) * (fabs(x) + fabs(offset) + fabs(scale) * top);
    if (!e->symmetric) return (scale == 65504 ? 1.0 : 0.5) * scale + rounding;
    const double unrounded = e->f16_meta ? ldexp(fabs(x), -11) + top * ldexp(1, -25) : 0;
    return (e->symmetric == 2 ? 1.0 : 0.5) * fabs(scale) + rounding + unrounded;
}

static void check_group(const edge_case* e, const char* target, const char* side, int which,
                        const float* x, const float* restored, int stride, float scale,
                        float offset)
{
    int equal = 1;
    for (int i = 1; i < GROUP; ++i) equal &= x[i] == x[0];
    for (int i = 0; i < GROUP; ++i) {
        const double got = (double)restored[i * stride], want = (double)x[i];
        const double bound = step_bound(e, want, (double)scale, (double)offset);
        cr_assert(isfinite(got), "%s on %s, %s, pattern %d: element %d is not finite", e->spec,
                  target, side, which, i);
        cr_assert(fabs(got - want) <= bound,
                  "%s on %s, %s, pattern %d, element %d: %.9g restored as %.9g, bound %.3g (scale "
                  "%.9g, offset %.9g)", e->spec, target, side, which, i, want, got, bound,
                  (double)scale, (double)offset);
        if (equal && e->f16_meta && !e->symmetric)
            cr_assert(got == want, "%s on %s, %s: the constant %.9g is restored as %.9g", e->spec,
                      target, side, want, got);
    }
}

// Key channel c and value row t hold pattern c or t, so that neighbours would show any leak.
static void check_edges(const edge_case* e, const test_target* target)
{
    const kvl_layer_desc layer = test_layer(e->spec, 1, 1, GROUP, GROUP);
    float k[GROUP * GROUP], v[GROUP * GROUP], rk[GROUP * GROUP], rv[GROUP * GROUP], x[GROUP];
    test_cache c = test_open(target, &layer);
    const kvl_seq seq = test_seq(&c);
    const int along = strstr(e->spec, "kivi") != NULL;
    for (int t = 0; t < GROUP; ++t)
        for (int i = 0; i < GROUP; ++i) {
            v[t * GROUP + i] = pattern(t % NUM_PATTERNS, i);
            k[t * GROUP + i] = along ? pattern(i % NUM_PATTERNS, t) : v[t * GROUP + i];
        }
    test_append(&c, seq, k, v, 0, GROUP);
    test_codes kc = test_read_codes(&c, seq, 0, 0), vc = test_read_codes(&c, seq, 0, 1);
    cr_assert(kc.num == GROUP && vc.num == GROUP, "%s: every row is in pages", e->spec);
    test_restore(&c, seq, 0, GROUP, rk, rv);
    for (int g = 0; g < GROUP; ++g) {
        for (int i = 0; i < GROUP; ++i) x[i] = test_round_f16(pattern(g % NUM_PATTERNS, i));
        check_group(e, target->name, "keys", g % NUM_PATTERNS, x, along ? rk + g : rk + g * GROUP,
                    along ? GROUP : 1, kc.c.scales[g], kc.c.offsets[g]);
        check_group(e, target->name, "values", g % NUM_PATTERNS, x, rv + g * GROUP, 1,
                    vc.c.scales[g], vc.c.offsets[g]);
    }
    test_codes_free(&kc);
    test_codes_free(&vc);
    test_close(&c);
}

static const edge_case edge_cases[] = {
    { "kivi:b1,sink=0,recent=0", 1, 0, 0 }, { "kivi:b1,meta=f16,sink=0,recent=0", 1, 1, 0 },
    { "kivi:b2,sink=0,recent=0", 2, 0, 0 }, { "kivi:b2,meta=f16,sink=0,recent=0", 2, 1, 0 },
    { "kivi:b3,sink=0,recent=0", 3, 0, 0 }, { "kivi:b3,meta=f16,sink=0,recent=0", 3, 1, 0 },
    { "kivi:b4,sink=0,recent=0", 4, 0, 0 }, { "kivi:b4,meta=f16,sink=0,recent=0", 4, 1, 0 },
    { "kivi:b5,sink=0,recent=0", 5, 0, 0 }, { "kivi:b5,meta=f16,sink=0,recent=0", 5, 1, 0 },
    { "kivi:b6,sink=0,recent=0", 6, 0, 0 }, { "kivi:b6,meta=f16,sink=0,recent=0", 6, 1, 0 },
    { "kivi:b8,sink=0,recent=0", 8, 0, 0 }, { "kivi:b8,meta=f16,sink=0,recent=0", 8, 1, 0 },
    { "rtn:b3,sink=0,recent=0", 3, 0, 0 },  { "rtn:b4,meta=f16,sink=0,recent=0", 4, 1, 0 },
    { "q8_0", 8, 1, 1 },                    { "q4_0", 4, 1, 2 },
    { "q8_0:meta=8bit", 8, 0, 1 },          { "q8_0:b4,meta=8bit,round=nearest", 4, 0, 1 },
};
enum { NUM_EDGE_CASES = (int)(sizeof edge_cases / sizeof edge_cases[0]) };

Test(codecs, edges_on_the_reference)
{
    // Broken by a floor under the range, a code from an unstored scale, or an unsaturated offset.
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    for (int i = 0; i < NUM_EDGE_CASES; ++i) check_edges(&edge_cases[i], &reference);
}

Test(codecs, edges_on_the_host)
{
    // Broken by a vector path that takes another branch for zero, huge or denormal groups.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    for (int i = 0; n > 1 && i < NUM_EDGE_CASES; ++i)
        if (edge_cases[i].bits != 1 && edge_cases[i].bits != 5 && edge_cases[i].bits != 6)
            check_edges(&edge_cases[i], &targets[1]);
}

Test(codecs, targets_hold_the_same_bits)
{
    // Broken by any difference between reference and host in codes, metadata or restored edges.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    static const char* const specs[] = { "kivi:b3,sink=0,recent=0",
                                         "rtn:b4,meta=f16,sink=0,recent=0", "q8_0", "q4_0",
                                         "flagrot-kivi:k3,sink=0,recent=0",
                                         "flagrot-auto:k2,k.meta=f16,sink=0,recent=0",
                                         "flagrot-kivi:k4,k.choose=fixed,sink=0,recent=0" };
    float rows[GROUP * GROUP];
    for (int i = 0; i < GROUP * GROUP; ++i)
        rows[i] = pattern(i / GROUP % NUM_PATTERNS, i % GROUP) + (i % 3 ? 0.0f : 0.37f);
    for (int s = 0; s < 7; ++s) {
        const kvl_layer_desc layer = test_layer(specs[s], 1, 1, GROUP, GROUP);
        test_state first;
        for (int i = 0; i < (s < 2 || n < 2 ? n : 2); ++i) {
            test_cache c = test_open(&targets[i], &layer);
            const kvl_seq seq = test_seq(&c);
            test_append(&c, seq, rows, rows, 0, GROUP);
            const test_state state = test_snapshot(&c, seq);
            if (i == 0) first = state;
            cr_assert(state.codes == first.codes, "%s: codes on %s differ from the reference's",
                      specs[s], targets[i].name);
            cr_assert(state.meta == first.meta, "%s: metadata on %s differs from the reference's",
                      specs[s], targets[i].name);
            test_close(&c);
        }
    }
}

// The widest scale that 8 bits may cost: 1/16 from rounding and one step of at most 1/8 more.
static void check_code_range(const char* spec, int bits, int f16_meta)
{
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    const kvl_layer_desc layer = test_layer(spec, 1, 1, GROUP, GROUP);
    const int code_max = (1 << bits) - 1;
    float rows[GROUP * GROUP];
    for (int i = 0; i < GROUP * GROUP; ++i)
        rows[i] = 0.01f + 0.39f * (float)((i / GROUP * 5 + i % GROUP * 11) % GROUP) / 31.0f;
    test_cache c = test_open(&reference, &layer);
    const kvl_seq seq = test_seq(&c);
    test_append(&c, seq, rows, rows, 0, GROUP);
    for (int side = 0; side < 2; ++side) {
        test_codes codes = test_read_codes(&c, seq, 0, side);
        for (int g = 0; g < GROUP; ++g) {
            int lo = code_max, hi = 0;
            for (int i = 0; i < GROUP; ++i) {
                const int along = side == 0 && spec[0] == 'k';
                const int code = codes.c.codes[along ? i * GROUP + g : g * GROUP + i];
                lo = code < lo ? code : lo;
                hi = code > hi ? code : hi;
            }
            const double least = f16_meta ? code_max : code_max / (1.125 * 1.0625) - 1;
            cr_assert(hi - lo >= least, "%s: side %d group %d uses codes %d to %d of 0 to %d", spec,
                      side, g, lo, hi, code_max);
        }
        test_codes_free(&codes);
    }
    test_close(&c);
}

Test(codecs, small_rows_use_the_whole_code_range)
{
    // Broken by a guard against zero that is written as a least scale.
    static const int widths[] = { 1, 2, 3, 4, 5, 6, 8 };
    char spec[64];
    for (int i = 0; i < 7; ++i) {
        for (int f16 = 0; f16 < 2; ++f16) {
            snprintf(spec, sizeof spec, "kivi:b%d,meta=%s,sink=0,recent=0", widths[i],
                     f16 ? "f16" : "8bit");
            check_code_range(spec, widths[i], f16);
            snprintf(spec, sizeof spec, "rtn:b%d,meta=%s,sink=0,recent=0", widths[i],
                     f16 ? "f16" : "8bit");
            check_code_range(spec, widths[i], f16);
        }
    }
}

Test(codecs, bf16_rows_of_any_size_stay_finite)
{
    // Broken by a range, a middle, a reciprocal or a stored scale that overflows.
    static const char* const specs[] = { "rtn:b2,rows=bf16,sink=0,recent=0",
        "kivi:b4,meta=f16,rows=bf16,sink=0,recent=0", "q8_0:rows=bf16", "q4_0:rows=bf16",
        "q8_0:meta=8bit,rows=bf16", "f16:rows=bf16", "rtn:b2,meta=e4m3,rows=bf16,sink=0,recent=0",
        "bf16", "rtn:b4,rows=bf16,transform=hadamard,sink=0,recent=0",
        "rtn:b3,rows=bf16,fit=clip80,sink=0,recent=0",
        "kivi:b2,levels=midpoint,fit=rms,meta=f16,rows=bf16,sink=0,recent=0",
        "rtn:b4,levels=midpoint,fit=rms,rows=bf16,transform=hadamard,sink=0,recent=0",
        "kivi:b1,fit=search,rows=bf16,sink=0,recent=0",
        "rtn:b3,fit=search,meta=f16,rows=bf16,transform=hadamard,sink=0,recent=0",
        "flagrot-auto:k2,v3,rows=bf16,sink=0,recent=0",
        "flagrot-kivi:k4,v2,k.meta=f16,k.score=reconstruction,rows=bf16,sink=0,recent=0" };
    static const float sizes[] = { 3e38f, 1e20f, 7e4f, 1e-20f, 1e-38f, 1e-39f, 1e-40f };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    float rows[GROUP * GROUP], k[GROUP * GROUP], v[GROUP * GROUP];
    for (int target = 0; target < (n > 1 ? 2 : 1); ++target)
        for (int s = 0; s < 16; s += target ? 2 : 1) {
            const kvl_layer_desc layer = test_layer(specs[s], 1, 1, GROUP, GROUP);
            test_cache c = test_open(&targets[target], &layer);
            for (int size = 0; size < 7; ++size) {
                const kvl_seq seq = test_seq(&c);
                for (int i = 0; i < GROUP * GROUP; ++i)
                    rows[i] = sizes[size] * ((float)(i % 7 - 3) / 3.0f);
                test_append(&c, seq, rows, rows, 0, GROUP);
                test_restore(&c, seq, 0, GROUP, k, v);
                for (int i = 0; i < GROUP * GROUP; ++i)
                    cr_assert(isfinite(k[i]) && isfinite(v[i]),
                              "%s on %s: rows of %g: element %d restored as %g and %g", specs[s],
                              targets[target].name, (double)sizes[size], i, (double)k[i],
                              (double)v[i]);
            }
            test_close(&c);
        }
}

Test(codecs, f16_outputs_stay_finite)
{
    // Broken by a level above 65504 that becomes infinite on its way into an output of type f16.
    static const char* const specs[] = { "rtn:b3,sink=0,recent=0", "kivi:b2,sink=0,recent=0",
        "rtn:b4,meta=f16,sink=0,recent=0", "q8_0", "q4_0", "rtn:b2,rows=bf16,sink=0,recent=0" };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    float rows[GROUP * GROUP], q[GROUP];
    uint16_t k[GROUP * GROUP], v[GROUP * GROUP], o[GROUP];
    for (int i = 0; i < GROUP; ++i) q[i] = 0;
    for (int target = 0; target < (n > 1 ? 2 : 1); ++target)
        for (int s = 0; s < 6; ++s) {
            const kvl_layer_desc layer = test_layer(specs[s], 1, 1, GROUP, GROUP);
            const kvl_rows outs[2] = { { k, KVL_F16, 0, 0 }, { v, KVL_F16, 0, 0 } };
            kvl_attend_desc t = { 0 };
            test_cache c = test_open(&targets[target], &layer);
            const kvl_seq seq = test_seq(&c);
            for (int i = 0; i < GROUP * GROUP; ++i)
                rows[i] = (s == 5 ? 1e30f : 65504.0f) - (float)(i % GROUP % 3 * 32);
            test_append(&c, seq, rows, rows, 0, GROUP);
            test_ok(c.ctx, kvl_restore(c.cache, 0, seq, 0, GROUP, &outs[0], &outs[1]), specs[s]);
            t.num_seqs = 1;
            t.seqs = &seq;
            t.q.data = q;
            t.o.data = o;
            t.o.type = KVL_F16;
            test_ok(c.ctx, kvl_attend(c.cache, &t), specs[s]);
            for (int i = 0; i < GROUP * GROUP; ++i)
                cr_assert((k[i] & 0x7c00) != 0x7c00 && (v[i] & 0x7c00) != 0x7c00 &&
                          (o[i % GROUP] & 0x7c00) != 0x7c00,
                          "%s on %s: element %d restored as %#x and %#x, attention gives %#x",
                          specs[s], targets[target].name, i, k[i], v[i], o[i % GROUP]);
            test_close(&c);
        }
}

Test(codecs, a_scale_of_four_exponent_bits_stops_at_its_ends)
{
    // Broken by a scale that wraps, or a group beyond its reach that changes its neighbours.  By
    // hand: 2 bits, levels offset + 0 .. 3 steps; -65504 .. 65504 wants a step of 43669 and gets
    // 240, middle 0, so -360 and 360 stay; 2^-14 and -2^-14 want 2^-13 / 3 and get 2^-10.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    const kvl_layer_desc layer = test_layer("rtn:b2,g32,meta=e4m3,sink=0,recent=0", 1, 1, 96, 96);
    float rows[96], k[96], v[96];
    for (int i = 0; i < 96; ++i)
        rows[i] = (i % 2 ? 1.0f : -1.0f) * (i < 32 ? 65504.0f : i < 64 ? 1.5f : 6.103515625e-5f);
    for (int target = 0; target < n; ++target) {
        test_cache c = test_open(&targets[target], &layer);
        const kvl_seq seq = test_seq(&c);
        test_append(&c, seq, rows, rows, 0, 1);
        test_restore(&c, seq, 0, 1, k, v);
        for (int i = 0; i < 96; ++i) {
            const float sign = i % 2 ? 1.0f : -1.0f;
            const float want = sign * (i < 32 ? 360.0f : i < 64 ? 1.5f : 4.8828125e-4f);
            cr_assert(k[i] == want && v[i] == want, "%s: channel %d: %g and %g, expected %g",
                      targets[target].name, i, (double)k[i], (double)v[i], (double)want);
        }
        test_close(&c);
    }
}

Test(codecs, sixteen_bit_rows_come_back_exactly)
{
    // Broken by a channel that is dropped, doubled or moved, on either side alone.
    static const char* const specs[] = { "f16", "f16/q4_0", "q4_0/f16", "bf16" };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    enum { DK = 256, DV = 96, ROWS = 70 };
    float* k = test_floats(ROWS * DK);
    float* v = test_floats(ROWS * DV);
    float* rk = test_floats(ROWS * DK);
    float* rv = test_floats(ROWS * DV);
    for (int i = 0; i < ROWS * DK; ++i) k[i] = (float)(i % DK) + 0.5f * (float)(i / DK % 2);
    for (int i = 0; i < ROWS * DV; ++i) v[i] = -(float)(i % DV) - 0.5f * (float)(i / DV % 2);
    for (int target = 0; target < (n > 1 ? 2 : 1); ++target)
        for (int s = 0; s < 4; s += target ? 3 : 1) {
            const kvl_layer_desc layer = test_layer(specs[s], 1, 1, DK, DV);
            test_cache c = test_open(&targets[target], &layer);
            const kvl_seq seq = test_seq(&c);
            test_append(&c, seq, k, v, 0, ROWS);
            test_restore(&c, seq, 0, ROWS, rk, rv);
            for (int i = 0; s != 2 && i < ROWS * DK; ++i) {
                const float want = s == 3 ? test_round_bf16(k[i]) : k[i];
                cr_assert(rk[i] == want, "%s: key row %d channel %d: %g restored as %g", specs[s],
                          i / DK, i % DK, (double)want, (double)rk[i]);
            }
            for (int i = 0; s != 1 && i < ROWS * DV; ++i) {
                const float want = s == 3 ? test_round_bf16(v[i]) : v[i];
                cr_assert(rv[i] == want, "%s: value row %d channel %d: %g restored as %g", specs[s],
                          i / DV, i % DV, (double)want, (double)rv[i]);
            }
            test_close(&c);
        }
    free(k);
    free(v);
    free(rk);
    free(rv);
}

Test(codecs, a_transform_keeps_norms_and_changes_codes)
{
    // Broken by a Hadamard of the wrong size or norm, or by a stage that is parsed and not applied.
    static const char* const specs[] = { "q8_0:transform=hadamard", "q8_0:transform=hadamard32",
        "q8_0:k.transform=hadamard", "q8_0:v.transform=hadamard32" };
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    enum { D = 96, ROWS = 16 };
    float rows[ROWS * D], k[ROWS * D], v[ROWS * D];
    const kvl_layer_desc plain_layer = test_layer("q8_0", 1, 1, D, D);
    test_rows(5, ROWS, 1, D, rows);
    test_cache plain = test_open(&reference, &plain_layer);
    const kvl_seq plain_seq = test_seq(&plain);
    test_append(&plain, plain_seq, rows, rows, 0, ROWS);
    for (int s = 0; s < 4; ++s) {
        const kvl_layer_desc layer = test_layer(specs[s], 1, 1, D, D);
        test_cache c = test_open(&reference, &layer);
        const kvl_seq seq = test_seq(&c);
        test_append(&c, seq, rows, rows, 0, ROWS);
        test_restore(&c, seq, 0, ROWS, k, v);
        // 8 bits: half a step of max / 127 in each of D channels, the maximum at most the norm.
        for (int t = 0; t < ROWS; ++t) {
            double norm = 0, error = 0;
            for (int i = 0; i < D; ++i) {
                const double x = (double)test_round_f16(rows[t * D + i]);
                norm += x * x;
                error += (x - (double)k[t * D + i]) * (x - (double)k[t * D + i]);
            }
            cr_assert(sqrt(error) <= sqrt(norm) * sqrt(D) * (0.5 / 127 + ldexp(1, -11)),
                      "%s: row %d has norm %g and error %g", specs[s], t, sqrt(norm), sqrt(error));
        }
        for (int side = 0; side < 2; ++side) {
            const int applied = s < 2 || s == 2 + side;
            test_codes a = test_read_codes(&plain, plain_seq, 0, side);
            test_codes b = test_read_codes(&c, seq, 0, side);
            const int same = memcmp(a.c.codes, b.c.codes, (size_t)a.num_codes * 2) == 0;
            cr_assert(same == !applied, "%s: side %d: codes %s", specs[s], side,
                      same ? "did not change" : "changed");
            test_codes_free(&a);
            test_codes_free(&b);
        }
        test_close(&c);
    }
    test_close(&plain);
}

// A group of 16 against codes, scale and offset that were worked out by hand, on both sides.
static void check_by_hand(const char* spec, const float* rows, const uint16_t* codes, float scale,
                          float offset)
{
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    for (int target = 0; target < (n > 1 ? 2 : 1); ++target) {
        const kvl_layer_desc layer = test_layer(spec, 1, 1, 32, 32);
        test_cache c = test_open(&targets[target], &layer);
        const kvl_seq seq = test_seq(&c);
        test_append(&c, seq, rows, rows, 0, 1);
        for (int side = 0; side < 2; ++side) {
            test_codes got = test_read_codes(&c, seq, 0, side);
            cr_assert(got.c.scales[0] == scale && got.c.offsets[0] == offset,
                      "%s on %s: scale %.9g offset %.9g, expected %.9g and %.9g", spec,
                      targets[target].name, (double)got.c.scales[0], (double)got.c.offsets[0],
                      (double)scale, (double)offset);
            for (int i = 0; i < 16; ++i)
                cr_assert(got.c.codes[i] == codes[i], "%s on %s: channel %d: code %d, expected %d",
                          spec, targets[target].name, i, got.c.codes[i], codes[i]);
            test_codes_free(&got);
        }
        test_close(&c);
    }
}

Test(codecs, midpoint_by_hand)
{
    // Broken by another alpha, by levels that are not symmetric, or by a mean instead of an rms.
    float rows[32] = { 0 };
    static const float pattern16[16] = { 4, -4, 4, -4, 4, -4, 4, -4, 4, -4, 4, -4, 1, -1, 7.5f, 1 };
    // 12 x 16 + 1 + 1 + 56.25 + 1 = 251.25: the rms is sqrt(251.25 / 16) = 3.96271687.
    static const uint16_t codes[16] = { 3, 0, 3, 0, 3, 0, 3, 0, 3, 0, 3, 0, 2, 1, 3, 2 };
    memcpy(rows, pattern16, sizeof pattern16);
    // 3.96271687 x 0.995689747 = 3.94563656: between 3.9453125 and 3.947265625, steps of 2^-9.
    // The codes part at -1, 0 and 1 times the scale: 4 is beyond it, 1 is not.
    check_by_hand("rtn:b2,levels=midpoint,fit=rms,meta=f16,g16,sink=0,recent=0", rows, codes,
                  3.9453125f, -1.5f * 3.9453125f);
}

Test(codecs, clip_by_hand)
{
    // Broken by a bound that is one place off, of a group instead of the row, or of one sign: of 32
    // magnitudes the one at place 32 x 75 / 100 = 24 is 3, and 9 to -9 become 3 to -3.
    float rows[32];
    for (int i = 0; i < 32; ++i) rows[i] = (float)(i % 4);
    for (int i = 3; i < 32; i += 4) rows[i] = i % 8 == 3 ? 3.0f : -3.0f;
    rows[3] = 9.0f;
    rows[7] = -9.0f;
    // From -3 to 3 at 2 bits: scale 2, offset -3; ties go to even: 0 is 1.5, so 2; 2 is 2.5, so 2.
    static const uint16_t codes[16] = { 2, 2, 2, 3, 2, 2, 2, 0, 2, 2, 2, 3, 2, 2, 2, 0 };
    check_by_hand("rtn:b2,fit=clip75,meta=f16,g16,sink=0,recent=0", rows, codes, 2, -3);
}

Test(codecs, bits_by_hand)
{
    // Broken by another meaning of code, scale or offset: two groups that were worked out by hand.
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    const kvl_layer_desc layer = test_layer("rtn:b2,meta=f16,g16,sink=0,recent=0", 1, 1, 32, 32);
    float rows[32];
    // 0, 1, 2, 3 thrice over: scale 1, offset 0; then -1.5 .. 1.5: scale 1, offset -1.5.  2.5 and
    // 0.5 of the first group are ties: to even, 2 and 0.
    for (int i = 0; i < 16; ++i) rows[i] = (float)(i % 4);
    rows[4] = 2.5f;
    rows[5] = 0.5f;
    for (int i = 0; i < 16; ++i) rows[16 + i] = (float)(i % 4) - 1.5f;
    static const uint16_t expected[32] = { 0, 1, 2, 3, 2, 0, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3,
                                           0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3 };
    test_cache c = test_open(&reference, &layer);
    const kvl_seq seq = test_seq(&c);
    test_append(&c, seq, rows, rows, 0, 1);
    for (int side = 0; side < 2; ++side) {
        test_codes codes = test_read_codes(&c, seq, 0, side);
        cr_assert(codes.c.num_groups == 2, "two groups of 16 in a row of 32");
        cr_assert(codes.c.scales[0] == 1 && codes.c.offsets[0] == 0 && codes.c.scales[1] == 1 &&
                  codes.c.offsets[1] == -1.5f, "scales %g %g offsets %g %g",
                  (double)codes.c.scales[0], (double)codes.c.scales[1],
                  (double)codes.c.offsets[0], (double)codes.c.offsets[1]);
        for (int i = 0; i < 32; ++i)
            cr_assert(codes.c.codes[i] == expected[i], "channel %d: code %d, expected %d", i,
                      codes.c.codes[i], expected[i]);
        test_codes_free(&codes);
    }
    test_close(&c);
}
