// test_predicted.c -- shift=predicted: rows without what the layer below and the key say of them.
//
// Codes, restored rows and attention of several layers are those of tests/oracles/predicted.py.

#include "test_support.h"

enum { LAYERS = 3, QUERIES = 2, STEP = 5, SPEC = 160, MAX_ROWS = 96 };

typedef struct stack {
    kvl_context*   ctx;
    kvl_cache*     cache;
    kvl_layer_desc layers[LAYERS];
    kvl_rope       rope;
    int            q_heads, heads, dk, dv, rows, sink, recent;
    char           specs[LAYERS][SPEC];
    float*         k[LAYERS];                        // [MAX_ROWS, heads, dk]
    float*         v[LAYERS];
    float*         q[LAYERS];                        // [QUERIES, q_heads, dk]
    unsigned char* file;
    size_t         at;                               // of what it has still to compare
} stack;

// The first lines of a fixture; its data follow at s->at.
static void read_stack(const char* name, stack* s)
{
    char path[512];
    int halves, dims, used = 0;
    snprintf(path, sizeof path, KVLOOM_TEST_ROOT "/tests/fixtures/predicted_%s.bin", name);
    FILE* file = fopen(path, "rb");
    cr_assert(file, "%s", path);
    memset(s, 0, sizeof *s);
    s->file = (unsigned char*)test_alloc(1 << 16, 1);
    cr_assert(fread(s->file, 1, 1 << 16, file) > 64);
    fclose(file);
    const char* text = (const char*)s->file;
    cr_assert(sscanf(text, "%d %d %d %d %d %d %d %d %d %lf%n", &s->q_heads, &s->heads, &s->dk,
                     &s->dv, &s->rows, &s->sink, &s->recent, &halves, &dims, &s->rope.base,
                     &used) == 10);
    s->rope.split_halves = halves;
    s->rope.dims = dims;
    s->at = (size_t)used + 1;
    for (int i = 0; i < LAYERS; ++i) {
        const size_t num = strcspn(text + s->at, "\n");
        cr_assert(num < SPEC);
        memcpy(s->specs[i], text + s->at, num);
        s->at += num + 1;
    }
}

static void describe_stack(stack* s)
{
    for (int i = 0; i < LAYERS; ++i) {
        s->layers[i] = test_layer(s->specs[i], s->q_heads, s->heads, s->dk, s->dv);
        s->layers[i].rope = &s->rope;
    }
}

static kvl_status create_stack(stack* s, test_tables kind)
{
    kvl_cache_desc desc = { 0 };
    desc.num_layers = LAYERS;
    desc.layers = s->layers;
    desc.calibration = test_calibration(kind);
    return kvl_cache_create(s->ctx, &desc, &s->cache);
}

// window_len: of the layer in the middle; 0: none.
static void open_windowed(const char* name, const test_target* target, int window_len, stack* s)
{
    read_stack(name, s);
    describe_stack(s);
    s->layers[1].window_len = window_len;
    s->ctx = test_context(target, 2);
    test_ok(s->ctx, create_stack(s, TEST_TABLES), s->specs[0]);
    for (int i = 0; i < LAYERS; ++i) {
        const uint64_t seed = (uint64_t)i;
        s->k[i] = test_floats(MAX_ROWS * s->heads * s->dk);
        s->v[i] = test_floats(MAX_ROWS * s->heads * s->dv);
        s->q[i] = test_floats(QUERIES * s->q_heads * s->dk);
        test_rows(100 + seed, MAX_ROWS, s->heads, s->dk, s->k[i]);
        test_rows(200 + seed, MAX_ROWS, s->heads, s->dv, s->v[i]);
        test_queries(300 + seed, QUERIES, s->q_heads, s->dk, s->q[i]);
    }
}

static void open_stack(const char* name, const test_target* target, stack* s)
{
    open_windowed(name, target, 0, s);
}

static void close_stack(stack* s)
{
    kvl_cache_free(s->cache);
    kvl_context_destroy(s->ctx);
    for (int i = 0; i < LAYERS; ++i) {
        free(s->k[i]);
        free(s->v[i]);
        free(s->q[i]);
    }
    free(s->file);
}

static kvl_seq new_seq(stack* s)
{
    kvl_seq seq = 0;
    test_ok(s->ctx, kvl_seq_create(s->cache, &seq), "kvl_seq_create");
    return seq;
}

static kvl_append_desc rows_of(const stack* s, int layer, const kvl_seq* seq, int64_t first,
                               const int32_t* num)
{
    kvl_append_desc a = { 0 };
    a.layer = layer;
    a.num_seqs = 1;
    a.seqs = seq;
    a.num_rows = num;
    a.k.data = s->k[layer] + first * s->heads * s->dk;
    a.v.data = s->v[layer] + first * s->heads * s->dv;
    return a;
}

static kvl_status append(stack* s, int layer, kvl_seq seq, int64_t first, int num)
{
    const int32_t rows = num;
    const kvl_append_desc a = rows_of(s, layer, &seq, first, &rows);
    return kvl_append(s->cache, &a);
}

// Rows [first, first + num) of all layers, `each` at a time.
static void append_all(stack* s, kvl_seq seq, int64_t first, int num, int each)
{
    for (int done = 0, some; done < num; done += some) {
        some = num - done < each ? num - done : each;
        for (int i = 0; i < LAYERS; ++i)
            test_ok(s->ctx, append(s, i, seq, first + done, some), s->specs[i]);
    }
}

static kvl_attend_desc queries_of(const stack* s, int layer, const kvl_seq* seq,
                                  const int32_t* num, float* o, float* lse)
{
    kvl_attend_desc a = { 0 };
    a.layer = layer;
    a.num_seqs = 1;
    a.seqs = seq;
    a.q_lens = num;
    a.q.data = s->q[layer];
    a.o.data = o;
    a.lse = lse;
    return a;
}

// What a layer of a sequence has: restored rows, levels, attention.
typedef struct state {
    float    k[MAX_ROWS * 128], v[MAX_ROWS * 128], o[QUERIES * 256], lse[QUERIES * 8];
    uint16_t levels[2][MAX_ROWS * 128];              // [heads, quantized, head_dim]
    int      rows, quantized;
} state;

static void read_state(stack* s, int layer, kvl_seq seq, state* to)
{
    kvl_seq_rows at;
    const int32_t num = QUERIES;
    memset(to, 0, sizeof *to);
    test_ok(s->ctx, kvl_seq_get_rows(s->cache, layer, seq, &at), "rows");
    to->rows = (int)at.rows;
    to->quantized = (int)at.quantized;
    for (int head = 0; head < s->heads; ++head)
        for (int side = 0; side < 2; ++side) {
            kvl_codes codes = { 0 };
            codes.codes = to->levels[side] + head * at.quantized * (side ? s->dv : s->dk);
            test_ok(s->ctx, kvl_read_codes(s->cache, layer, seq, head, side, 0, at.quantized,
                                           &codes), "codes");
        }
    const kvl_attend_desc a = queries_of(s, layer, &seq, &num, to->o, to->lse);
    test_ok(s->ctx, kvl_attend(s->cache, &a), "attend");
    const kvl_rows k = { .data = to->k }, v = { .data = to->v };
    test_ok(s->ctx, kvl_restore(s->cache, layer, seq, 0, at.rows, &k, &v), "restore");
}

static void check_same(stack* s, kvl_seq a, kvl_seq b, const char* what)
{
    static state x, y;
    for (int i = 0; i < LAYERS; ++i) {
        read_state(s, i, a, &x);
        read_state(s, i, b, &y);
        cr_assert(x.rows == y.rows && x.quantized == y.quantized, "%s: layer %d", what, i);
        cr_assert(memcmp(x.levels, y.levels, sizeof x.levels) == 0, "%s: layer %d: codes", what, i);
        cr_assert(memcmp(x.k, y.k, sizeof x.k) == 0 && memcmp(x.v, y.v, sizeof x.v) == 0,
                  "%s: layer %d: rows", what, i);
        cr_assert(memcmp(x.o, y.o, sizeof x.o) == 0, "%s: layer %d: attention", what, i);
    }
}

// THE ORACLE

static void check_levels(stack* s, int layer, const state* got)
{
    for (int side = 0; side < 2; ++side) {
        const int dim = side ? s->dv : s->dk;
        for (int r = 0; r < got->quantized; ++r)
            for (int h = 0; h < s->heads; ++h)
                for (int i = 0; i < dim; ++i, s->at += 2) {
                    const int expected = s->file[s->at] | s->file[s->at + 1] << 8;
                    const int code = got->levels[side][(h * got->quantized + r) * dim + i];
                    cr_assert(code == expected, "layer %d: %c of row %d, head %d, channel %d has "
                              "level %d, expected %d", layer, side ? 'v' : 'k', r, h, i, code,
                              expected);
                }
    }
}

// `num` rows of the fixture against x, every `step`th of `width`.  Restored rows are sums of floats
// that are rounded to 16 bits: where such a sum lies between two of these, the last bit of a float
// tells, and few values are a unit apart.
static void check_floats(stack* s, int layer, const char* what, const float* x, int num, int width,
                         int step, double most)
{
    const size_t first = s->at;
    int apart = 0;
    for (int r = 0; r < num; r += step)
        for (int i = 0; i < width; ++i, s->at += 4) {
            float expected;
            memcpy(&expected, s->file + s->at, 4);
            const double off = fabs((double)x[r * width + i] - (double)expected);
            cr_assert(off <= most * (1 + fabs((double)expected)), "layer %d: %s of row %d, number "
                      "%d is %.9g, expected %.9g", layer, what, r, i, (double)x[r * width + i],
                      (double)expected);
            apart += off > 1e-6 * (1 + fabs((double)expected));
        }
    cr_assert(step == 1 || 4 * apart * 100 <= (int)(s->at - first), "layer %d: %d of %d numbers of "
              "%s are apart", layer, apart, (int)(s->at - first) / 4, what);
}

static void check_oracle(const char* name, const test_target* target)
{
    static state got;
    stack s;
    open_stack(name, target, &s);
    const double unit = strstr(s.specs[0], "bf16") ? 0x1p-7 : 0x1p-10;
    const kvl_seq seq = new_seq(&s);
    append_all(&s, seq, 0, s.rows, s.rows);
    for (int i = 0; i < LAYERS; ++i) {
        read_state(&s, i, seq, &got);
        cr_assert_eq(got.quantized, s.rows - s.sink - s.recent);
        check_levels(&s, i, &got);
        check_floats(&s, i, "key", got.k, s.rows, s.heads * s.dk, STEP, unit);
        check_floats(&s, i, "value", got.v, s.rows, s.heads * s.dv, STEP, unit);
        check_floats(&s, i, "output", got.o, QUERIES, s.q_heads * s.dv, 1, unit / 8);
        check_floats(&s, i, "lse", got.lse, QUERIES, s.q_heads, 1, unit / 8);
    }
    close_stack(&s);
}

Test(predicted, layers_are_those_of_the_oracle)
{
    // Broken by another order of layers, sides, heads or channels that predict, by a prediction
    // from rows as they come, or by a rounding that is left out.
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    check_oracle("plane", &reference);
    check_oracle("affine", &reference);
}

Test(predicted, layers_are_those_of_the_oracle_on_the_host)
{
    // Broken by kernels that see rows with what was predicted, or a shift that is applied twice.
    test_target targets[TEST_MAX_TARGETS];
    if (test_targets(targets) < 2) return;
    check_oracle("plane", &targets[1]);
    check_oracle("affine", &targets[1]);
}

Test(predicted, layers_are_those_of_the_oracle_on_a_device)
{
    // Broken by halves of restored rows that are taken for each other, or rows that predict before
    // they are restored.
    const test_target cuda = test_cuda_target();
    check_oracle("plane", &cuda);
    check_oracle("affine", &cuda);
}

// SEQUENCES

static const test_target reference_target = { "reference", KVL_TARGET_REFERENCE, NULL };

static void check_order(const test_target* target, int each)
{
    static state up[LAYERS], down;
    stack s;
    open_stack("plane", target, &s);
    const kvl_seq once = new_seq(&s), slowly = new_seq(&s);
    append_all(&s, once, 0, 90, 90);
    append_all(&s, slowly, 0, 90, each);
    for (int i = 0; i < LAYERS; ++i) read_state(&s, i, once, &up[i]);
    for (int i = LAYERS - 1; i >= 0; --i) {
        read_state(&s, i, once, &down);
        cr_assert(memcmp(&down, &up[i], sizeof down) == 0, "layer %d", i);
    }
    check_same(&s, once, slowly, "one by one");
    close_stack(&s);
}

Test(predicted, rows_do_not_depend_on_the_order_of_calls)
{
    // Broken by restored rows of one layer that are taken for another's: layers read from the
    // lowest on, from the highest on, and after rows that came one by one.
    const test_target cuda = test_cuda_target();
    check_order(&reference_target, 1);
    check_order(&cuda, 11);
}

static void check_forks(const test_target* target)
{
    stack s;
    open_stack("plane", target, &s);
    const kvl_seq whole = new_seq(&s), cut = new_seq(&s);
    kvl_seq fork = 0;
    static state other;
    append_all(&s, whole, 0, 80, 80);
    append_all(&s, cut, 0, 50, 50);
    test_ok(s.ctx, kvl_seq_fork(s.cache, cut, &fork), "fork");
    // Other rows, read in every layer, then taken back: those of row 50 on are of 10 rows further.
    append_all(&s, cut, 60, 30, 30);
    for (int i = 0; i < LAYERS; ++i) read_state(&s, i, cut, &other);
    test_ok(s.ctx, kvl_truncate(s.cache, cut, 46), "truncate");
    append_all(&s, fork, 50, 30, 7);
    check_same(&s, whole, fork, "a fork");
    kvl_seq same = 0;
    test_ok(s.ctx, kvl_seq_fork(s.cache, cut, &same), "fork");
    append_all(&s, cut, 46, 34, 5);
    append_all(&s, same, 46, 34, 34);
    check_same(&s, cut, same, "a truncation");
    for (int i = 0; i < LAYERS; ++i) {
        static state full;
        read_state(&s, i, whole, &full);
        read_state(&s, i, cut, &other);
        // Rows that were in pages by age are the same again.
        const size_t bytes = 44 * (size_t)(s.heads * s.dk) * sizeof(float);
        cr_assert(memcmp(full.k, other.k, bytes) == 0, "layer %d: rows before the cut", i);
    }
    test_ok(s.ctx, kvl_drop_oldest(s.cache, whole, 20), "drop");
    test_ok(s.ctx, kvl_drop_oldest(s.cache, fork, 20), "drop");
    for (int i = LAYERS - 1; i >= 0; --i) {
        static float o[2][QUERIES * 256];
        const int32_t num = QUERIES;
        const kvl_attend_desc a = queries_of(&s, i, &whole, &num, o[0], NULL);
        const kvl_attend_desc b = queries_of(&s, i, &fork, &num, o[1], NULL);
        test_ok(s.ctx, kvl_attend(s.cache, &a), "attend");
        test_ok(s.ctx, kvl_attend(s.cache, &b), "attend");
        cr_assert(memcmp(o[0], o[1], sizeof o[0]) == 0, "layer %d: dropped rows", i);
    }
    close_stack(&s);
}

Test(predicted, forks_and_truncations_read_their_own_rows)
{
    // Broken by restored rows that outlive their codes, or that a fork shares with its origin.
    const test_target cuda = test_cuda_target();
    check_forks(&reference_target);
    check_forks(&cuda);
}

static void check_files(const test_target* target)
{
    stack s, t;
    open_stack("plane", target, &s);
    const kvl_seq seq = new_seq(&s);
    append_all(&s, seq, 0, 70, 70);
    test_bytes b = { 0 };
    kvl_save_seq one = { .seq = seq };
    kvl_save_desc save = { .num_seqs = 1, .seqs = &one, .write = test_put_bytes, .user = &b };
    kvl_load_desc load = { .read = test_take_bytes, .user = &b };
    kvl_loaded_seq* out;
    int num;
    test_ok(s.ctx, kvl_save(s.cache, &save), "save");
    test_ok(s.ctx, kvl_load(s.cache, &load, &out, &num), "load");
    check_same(&s, seq, out->seq, "a file");
    kvl_loaded_free(s.ctx, out, num);
    open_stack("affine", target, &t);
    b.at = 0;
    cr_assert(kvl_load(t.cache, &load, &out, &num) != KVL_OK, "a file of other layers");
    free(b.data);
    close_stack(&t);
    close_stack(&s);
}

Test(predicted, files_give_them_back)
{
    // Broken by a sequence whose rows are restored before its lower layers are there, or by a file
    // that other predictors read.
    const test_target cuda = test_cuda_target();
    check_files(&reference_target);
    check_files(&cuda);
}

static void check_calls(const test_target* target)
{
    enum { FIRST = 70, MORE = QUERIES };
    static float o[3][QUERIES * 256];
    const int32_t rows = MORE;
    stack s;
    open_stack("plane", target, &s);
    const kvl_seq once = new_seq(&s), steps = new_seq(&s), prefill = new_seq(&s);
    append_all(&s, once, 0, FIRST, FIRST);
    append_all(&s, steps, 0, FIRST, FIRST);
    append_all(&s, prefill, 0, FIRST, FIRST);
    for (int i = 0; i < LAYERS; ++i) {
        const kvl_append_desc a = rows_of(&s, i, &once, FIRST, &rows);
        const kvl_attend_desc q = queries_of(&s, i, &once, &rows, o[0], NULL);
        test_ok(s.ctx, kvl_append_attend(s.cache, &a, &q), "append and attend");
        for (int r = 0; r < MORE; ++r) {
            const int32_t num = 1;
            kvl_attend_desc one = queries_of(&s, i, &steps, &num, o[1] + r * s.q_heads * s.dv,
                                             NULL);
            one.q.data = s.q[i] + r * s.q_heads * s.dk;
            test_ok(s.ctx, append(&s, i, steps, FIRST + r, 1), "append");
            test_ok(s.ctx, kvl_attend(s.cache, &one), "attend");
        }
        cr_assert(memcmp(o[0], o[1], sizeof o[0]) == 0, "layer %d", i);
        kvl_append_desc b = rows_of(&s, i, &prefill, FIRST, &rows);
        kvl_attend_desc p = queries_of(&s, i, &prefill, &rows, o[2], NULL);
        p.prefill = 1;
        test_ok(s.ctx, kvl_append_attend(s.cache, &b, &p), "prefill");
        double off = 0, size = 0;
        for (int n = 0; n < MORE * s.q_heads * s.dv; ++n) {
            off += pow((double)o[2][n] - (double)o[0][n], 2);
            size += pow((double)o[0][n], 2);
        }
        cr_assert(off > 0 && off < 0.1 * size, "layer %d: prefill is %g of %g off", i, off, size);
    }
    check_same(&s, once, steps, "steps");
    check_same(&s, once, prefill, "prefill");
    close_stack(&s);
}

Test(predicted, a_call_that_reads_as_it_appends)
{
    // Broken by rows that are encoded or read a step too early: the steps of one call are those of
    // many; and with prefill=1 by pages that the second sequence of a call does not find.
    const test_target cuda = test_cuda_target();
    check_calls(&reference_target);
    check_calls(&cuda);
}

// What two sequences of two caches have in a layer, but for the last bits of restored rows.
static void check_alike(stack* a, kvl_seq one, stack* b, kvl_seq other, int layer, int step)
{
    static state x, y;
    read_state(a, layer, one, &x);
    read_state(b, layer, other, &y);
    const int rows = x.rows * a->heads;
    const struct { const float *got, *wanted; int num; double most; } all[] = {
        { x.k, y.k, rows * a->dk, 0x1p-10 }, { x.v, y.v, rows * a->dv, 0x1p-10 },
        { x.o, y.o, QUERIES * a->q_heads * a->dv, 0x1p-13 },
        { x.lse, y.lse, QUERIES * a->q_heads, 0x1p-13 } };
    cr_assert(x.rows == y.rows && x.quantized == y.quantized, "step %d, layer %d", step, layer);
    cr_assert(memcmp(x.levels, y.levels, sizeof x.levels) == 0, "step %d, layer %d: codes", step,
              layer);
    for (int i = 0; i < 4; ++i)
        for (int n = 0; n < all[i].num; ++n) {
            const double wanted = (double)all[i].wanted[n], got = (double)all[i].got[n];
            cr_assert(fabs(got - wanted) <= all[i].most * (1 + fabs(wanted)), "step %d, layer %d: "
                      "number %d of list %d is %.9g, expected %.9g", step, layer, n, i, got,
                      wanted);
        }
}

Test(predicted, a_device_restores_in_any_order)
{
    // Broken where the host takes rows for restored in a layer that the device has elsewhere: by
    // windows, cuts, forks and appends between calls that read.  Digits read a layer, a appends 13
    // rows to each layer, b one row, f goes on with a fork, t cuts 11 rows off.
    static const char steps[] = "aa2b012b0b21bf2ta102b20a1";
    const test_target cuda = test_cuda_target(), *const targets[2] = { &cuda, &reference_target };
    stack s[2];
    kvl_seq seqs[2];
    int rows = 0, from = 0;
    for (int i = 0; i < 2; ++i) {
        open_windowed("plane", targets[i], 20, &s[i]);
        seqs[i] = new_seq(&s[i]);
    }
    for (int at = 0; steps[at]; ++at) {
        const char what = steps[at];
        const int more = what == 'a' ? 13 : what == 'b';
        if (what >= '0' && what <= '2')
            check_alike(&s[0], seqs[0], &s[1], seqs[1], what - '0', at);
        if (what == 't') rows -= 11;
        for (int i = 0; i < 2; ++i) {
            kvl_seq fork = 0;
            if (more) append_all(&s[i], seqs[i], from, more, more);
            if (what == 't') test_ok(s[i].ctx, kvl_truncate(s[i].cache, seqs[i], rows), "cut");
            if (what != 'f') continue;
            test_ok(s[i].ctx, kvl_seq_fork(s[i].cache, seqs[i], &fork), "fork");
            seqs[i] = fork;
        }
        rows += more;
        from += more;
    }
    for (int i = 0; i < 2; ++i) close_stack(&s[i]);
}

Test(predicted, copied_rows_are_read_by_their_new_owner)
{
    // Broken by restored rows that stay with the sequence that the copy is made in.
    test_target targets[TEST_MAX_TARGETS];
    const int num = test_targets(targets);
    for (int i = 0; i < num; ++i) {
        stack s;
        open_stack("plane", &targets[i], &s);
        const kvl_seq whole = new_seq(&s), copy = new_seq(&s);
        append_all(&s, whole, 0, 60, 60);
        append_all(&s, copy, 0, 40, 40);
        static state x, y;
        for (int layer = 0; layer < LAYERS; ++layer) read_state(&s, layer, copy, &x);
        test_ok(s.ctx, kvl_copy_rows(s.cache, copy, s.cache, whole, 40, 20), "copy");
        for (int layer = LAYERS - 1; layer >= 0; --layer) {
            read_state(&s, layer, copy, &x);
            read_state(&s, layer, whole, &y);
            cr_assert(x.rows == 60 && memcmp(x.k, y.k, 34 * (size_t)(s.heads * s.dk) * 4) == 0,
                      "%s: layer %d", targets[i].name, layer);
        }
        close_stack(&s);
    }
}

static void check_memory(const test_target* target)
{
    stack s;
    uint64_t estimate = 0;
    kvl_cache_desc desc = { 0 };
    kvl_stats used;
    open_stack("plane", target, &s);
    desc.num_layers = LAYERS;
    desc.layers = s.layers;
    test_ok(s.ctx, kvl_estimate(s.ctx, &desc, 1, 90, &estimate), "estimate");
    const kvl_seq seq = new_seq(&s);
    append_all(&s, seq, 0, 90, 90);
    test_ok(s.ctx, kvl_cache_stats(s.cache, &used), "memory");
    cr_assert(used.bytes == estimate, "%s: %llu bytes, estimated %llu", target->name,
              (unsigned long long)used.bytes, (unsigned long long)estimate);
    close_stack(&s);
}

Test(predicted, memory_is_what_was_estimated)
{
    // Broken by restored rows that are not counted, or by predictors that are counted twice.
    const test_target cuda = test_cuda_target();
    check_memory(&reference_target);
    check_memory(&cuda);
}

// REFUSALS

Test(predicted, an_order_that_breaks_them_is_refused)
{
    // Broken by rows that are predicted from rows that are not there: nothing changes then.
    stack s;
    kvl_seq_rows at;
    open_stack("plane", &reference_target, &s);
    const kvl_seq seq = new_seq(&s);
    test_ok(s.ctx, append(&s, 0, seq, 0, 40), "the lowest layer");
    cr_assert(append(&s, 2, seq, 0, 40) == KVL_BAD_ARGUMENT);
    const char* message = kvl_context_message(s.ctx);
    cr_assert(strstr(message, "layer 2: k.shift = predicted: sequence 0 of the batch would have 40 "
                     "rows, which are predicted from those of layer 1: it has 0: append to it "
                     "first"), "%s", message);
    test_ok(s.ctx, append(&s, 1, seq, 0, 39), "the next one");
    cr_assert(append(&s, 1, seq, 39, 2) == KVL_BAD_ARGUMENT);
    cr_assert(append(&s, 2, seq, 0, 40) == KVL_BAD_ARGUMENT);
    test_ok(s.ctx, kvl_seq_get_rows(s.cache, 2, seq, &at), "rows");
    cr_assert_eq(at.rows, 0);
    test_ok(s.ctx, append(&s, 1, seq, 39, 1), "the last row");
    test_ok(s.ctx, append(&s, 2, seq, 0, 40), "the highest layer");
    close_stack(&s);
}

static void expect_refused(stack* s, int layer, const char* spec, const char* message)
{
    const char* before = s->layers[layer].spec;
    s->layers[layer].spec = spec;
    const kvl_status status = create_stack(s, TEST_TABLES);
    cr_assert(status != KVL_OK && strstr(kvl_context_message(s->ctx), message),
              "%s: '%s', expected '%s'", spec, kvl_context_message(s->ctx), message);
    s->layers[layer].spec = before;
}

Test(predicted, what_they_cannot_serve_is_refused)
{
    // Broken by a composition that is taken and read wrongly, or by a message without its name.
    stack s;
    read_stack("plane", &s);
    describe_stack(&s);
    s.ctx = test_context(&reference_target, 1);
    expect_refused(&s, 1, "higgs:sink=2,recent=4", "layer 2: k.shift = predicted: rows are "
                   "predicted from layer 1, which has k.shift = none: must be predicted too");
    expect_refused(&s, 0, "higgs:k.place=pre_rope,shift=predicted,sink=2,recent=5",
                   "layer 1: k.shift = predicted: sink = 2, recent = 4");
    expect_refused(&s, 0, "higgs:k.shift=predicted", "k.shift = predicted: needs k.place = "
                   "pre_rope, not post_rope");
    expect_refused(&s, 0, "higgs:k.place=pre_rope,k.shift=predicted",
                   "k.shift = predicted, v.shift = none: predicted goes with predicted");
    expect_refused(&s, 0, "kivi:k.place=pre_rope,shift=predicted",
                   "k.shift = predicted: needs k.axis = per_token");
    expect_refused(&s, 0, "higgs:k.place=pre_rope,shift=predicted,k.extra=sketch1",
                   "k.shift = predicted: needs k.extra = none, not sketch");
    kvl_cache_desc desc = { 0 };
    desc.num_layers = LAYERS;
    desc.layers = s.layers;
    desc.calibration = test_calibration(TEST_TABLES);
    desc.release_windows = 1;
    cr_assert(kvl_cache_create(s.ctx, &desc, &s.cache) == KVL_UNSUPPORTED &&
              strstr(kvl_context_message(s.ctx), "release_windows = 1"));
    cr_assert(create_stack(&s, TEST_TABLES_EMPTY) == KVL_BAD_ARGUMENT &&
              strstr(kvl_context_message(s.ctx), "layer.0.k.predicted@b4,g32,pre_rope,predicted"),
              "%s", kvl_context_message(s.ctx));
    cr_assert(create_stack(&s, TEST_TABLES_SPOILT) == KVL_BAD_ARGUMENT &&
              strstr(kvl_context_message(s.ctx), "must be finite"));
    kvl_context_destroy(s.ctx);
    free(s.file);
}
