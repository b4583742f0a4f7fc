// fuzz_operations.c -- any bytes as operations on a few sequences.
//
// The first byte chooses the cache; each operation takes a byte, and what it needs of the next
// ones.  Whatever fails, the cache's bytes are the allocator's, every invariant that debug builds
// check holds, outputs are finite, and nothing is left in the end.

#include "fuzz_support.h"

enum { SEQS = 5, MOST_ROWS = 200, CALL_ROWS = 24, STEPS = 150 };

typedef struct world {
    const uint8_t* data;
    size_t         size;
    fuzz_memory    memory;
    uint64_t       live_before;
    kvl_context*   ctx;
    kvl_cache*     cache;
    kvl_seq        seqs[SEQS];
    int            rows[SEQS], away[SEQS], keeps;
    fuzz_bytes     files[SEQS];
    float          x[2][CALL_ROWS * FUZZ_HEADS * FUZZ_DIM];
} world;

static int next(world* w)
{
    if (w->size == 0) return 0;
    --w->size;
    return *w->data++;
}

static int keep(const void* bytes, size_t num, void* user)
{
    fuzz_bytes* b = (fuzz_bytes*)user;
    if (num > b->room - b->size) {
        b->room = 2 * (b->size + num);
        b->to = (uint8_t*)realloc(b->to, b->room);
        FUZZ_HOLDS(b->to);
    }
    memcpy(b->to + b->size, bytes, num);
    b->size += num;
    b->from = b->to;
    return 0;
}

static void forget(fuzz_bytes* b)
{
    free(b->to);
    memset(b, 0, sizeof *b);
}

static int place_of(const world* w)
{
    for (int i = 0; i < SEQS; ++i)
        if (!w->seqs[i]) return i;
    return -1;
}

static void enter(world* w, kvl_status status, kvl_seq seq, int64_t rows)
{
    const int place = place_of(w);
    FUZZ_HOLDS(status == KVL_OK || status == KVL_NO_MEMORY);
    FUZZ_HOLDS(status != KVL_OK || place >= 0);                // max_seqs
    if (status != KVL_OK) return;
    w->seqs[place] = seq;
    w->rows[place] = (int)rows;
}

// Rows that depend on their position, so that prompts begin alike.
static void append(world* w, int i, int with_attend)
{
    static float q[CALL_ROWS * FUZZ_Q_HEADS * FUZZ_DIM], o[CALL_ROWS * FUZZ_Q_HEADS * FUZZ_DIM];
    const int byte = next(w);
    const int32_t num = byte % CALL_ROWS, one = 1, name = num / 2;
    kvl_append_desc a;
    kvl_attend_desc t;
    memset(&a, 0, sizeof a);
    memset(&t, 0, sizeof t);
    if (w->rows[i] + num > MOST_ROWS) return;
    for (int32_t r = 0; r < num; ++r)
        for (int k = 0; k < FUZZ_DIM; ++k) {
            w->x[0][r * FUZZ_DIM + k] = (float)((w->rows[i] + r) * 7 % 31 + k) / 16 - 1;
            w->x[1][r * FUZZ_DIM + k] = (float)((w->rows[i] + r) * 5 % 29 - k) / 32;
        }
    a.num_seqs = t.num_seqs = 1;
    a.seqs = t.seqs = &w->seqs[i];
    a.num_rows = t.q_lens = &num;
    a.k.data = w->x[0];
    a.v.data = w->x[1];
    if (w->keeps && byte & 64 && num > 0) {
        a.num_kept = &one;
        a.kept = &name;
    }
    t.q.data = q;
    t.o.data = o;
    t.prefill = byte >= 128;
    const kvl_status status =
        with_attend ? kvl_append_attend(w->cache, &a, &t) : kvl_append(w->cache, &a);
    FUZZ_HOLDS(status == KVL_OK || status == KVL_NO_MEMORY || status == KVL_BAD_ARGUMENT);
    if (status != KVL_OK) return;
    w->rows[i] += num;
    for (int k = 0; with_attend && k < num * FUZZ_Q_HEADS * FUZZ_DIM; ++k)
        FUZZ_HOLDS(o[k] - o[k] == 0.0f);
}

static void save(world* w, int i, int offload)
{
    kvl_save_seq one;
    kvl_save_desc d;
    memset(&one, 0, sizeof one);
    memset(&d, 0, sizeof d);
    one.seq = w->seqs[i];
    d.num_seqs = 1;
    d.seqs = &one;
    d.write = keep;
    d.user = &w->files[i];
    forget(&w->files[i]);
    const kvl_status status = offload ? kvl_offload(w->cache, &d) : kvl_save(w->cache, &d);
    FUZZ_HOLDS(status == KVL_OK || status == KVL_NO_MEMORY);
    w->away[i] = offload && status == KVL_OK;
    if (status != KVL_OK) forget(&w->files[i]);
}

static void load(world* w, int i)
{
    kvl_load_desc d;
    kvl_loaded_seq* out = NULL;
    int num = 0;
    memset(&d, 0, sizeof d);
    if (w->files[i].size == 0) return;
    d.read = fuzz_read;
    d.user = &w->files[i];
    w->files[i].at = 0;
    if (w->away[i]) {
        const kvl_status status = kvl_reload(w->cache, &d, &w->seqs[i], 1);
        FUZZ_HOLDS(status == KVL_OK || status == KVL_NO_MEMORY);
        if (status == KVL_OK) w->away[i] = 0;
        return;
    }
    const kvl_status status = kvl_load(w->cache, &d, &out, &num);
    kvl_seq_rows rows = { 0 };
    if (status == KVL_OK) FUZZ_HOLDS(kvl_seq_get_rows(w->cache, 0, out->seq, &rows) == KVL_OK);
    enter(w, status, out ? out->seq : 0, rows.rows);
    kvl_loaded_free(w->ctx, out, num);
}

static void prompt(world* w, int i)
{
    static int32_t tokens[MOST_ROWS];
    kvl_prompt p;
    kvl_seq seq;
    int64_t rows;
    memset(&p, 0, sizeof p);
    p.tokens = tokens;
    p.num_tokens = i < 0 ? 1 + next(w) % MOST_ROWS : w->rows[i];
    p.salt = i < 0 ? 0 : (uint64_t)(next(w) & 1);
    if (i < 0) {
        const kvl_status status = kvl_seq_begin(w->cache, &p, &seq, &rows);
        enter(w, status, seq, rows);
        return;
    }
    const kvl_status status = kvl_seq_remember(w->cache, w->seqs[i], &p);
    FUZZ_HOLDS(status == KVL_OK || status == KVL_UNSUPPORTED);
}

static void release(world* w, int i)
{
    FUZZ_HOLDS(kvl_seq_free(w->cache, w->seqs[i]) == KVL_OK);
    w->seqs[i] = 0;
    w->away[i] = 0;
    forget(&w->files[i]);
}

static void change(world* w, int i, int what)
{
    kvl_seq seq = 0;
    int exact;
    if (what == 0) {
        const int rows = w->rows[i] * next(w) / 255;
        const kvl_status check = kvl_truncate_check(w->cache, w->seqs[i], rows, &exact);
        const kvl_status status = kvl_truncate(w->cache, w->seqs[i], rows);
        FUZZ_HOLDS(status == check || status == KVL_NO_MEMORY);
        if (status == KVL_OK) w->rows[i] = rows;
    } else if (what == 1) {
        const kvl_status status = kvl_drop_oldest(w->cache, w->seqs[i], next(w));
        FUZZ_HOLDS(status != KVL_UNSUPPORTED && status != KVL_FILE);
    } else if (what == 2) {
        const kvl_status status = kvl_seq_fork(w->cache, w->seqs[i], &seq);
        enter(w, status, seq, w->rows[i]);
    } else {
        const int j = next(w) % SEQS, first = next(w), num = next(w) % CALL_ROWS;
        if (!w->seqs[j] || w->rows[j] + num > MOST_ROWS) return;
        if (kvl_copy_rows(w->cache, w->seqs[j], w->cache, w->seqs[i], first, num) == KVL_OK)
            w->rows[j] += num;
    }
}

static void step(world* w)
{
    const int byte = next(w), i = byte % SEQS, what = byte / SEQS % 13;
    kvl_stats stats;
    if (byte / SEQS >= 39) w->memory.fail_at = w->memory.calls + 1 + next(w) % 8;
    if (!w->seqs[i]) {
        kvl_seq seq = 0;
        if (what % 2) {
            const kvl_status status = kvl_seq_create(w->cache, &seq);
            enter(w, status, seq, 0);
        } else {
            prompt(w, -1);
        }
    } else if (w->away[i]) {
        if (what == 0) release(w, i);
        else if (what < 6) load(w, i);
        else FUZZ_HOLDS(kvl_truncate(w->cache, w->seqs[i], 0) == KVL_BAD_ARGUMENT);
    } else if (what == 0) release(w, i);
    else if (what < 4) append(w, i, what == 1);
    else if (what < 5) fuzz_attend(w->cache, w->seqs[i]);
    else if (what < 9) change(w, i, what - 5);
    else if (what < 11) save(w, i, what == 9);
    else if (what < 12) load(w, i);
    else prompt(w, i);
    w->memory.fail_at = 0;
    FUZZ_HOLDS(kvl_cache_stats(w->cache, &stats) == KVL_OK);
    FUZZ_HOLDS(stats.bytes == w->memory.live - w->live_before);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
{
    static const char* const specs[] = { "kivi:k2,v2,g16,sink=2,recent=16,chunk=16,page=16",
                                         "q8_0:sink=3,recent=0,page=16", "f16:page=32",
                                         "kivi:k3,v1,g32,sink=0,recent=5,kept=3" };
    static world w;
    kvl_cache_desc desc;
    memset(&w, 0, sizeof w);
    memset(&desc, 0, sizeof desc);
    w.data = data;
    w.size = size;
    const int what = next(&w);
    kvl_layer_desc layer = fuzz_layer(specs[what & 3]);
    layer.window_len = what & 4 ? 40 : 0;
    desc.num_layers = 1;
    desc.layers = &layer;
    desc.max_seqs = SEQS;
    desc.keep_len = what & 8 ? 20 : 0;
    desc.release_windows = what >> 2 & what >> 4 & 1;
    w.keeps = (what & 3) == 3;
    desc.prefix_bytes = what & 32 && !w.keeps ? 20000 : 0;
    desc.max_bytes = what & 64 ? 400000 : 0;
    w.ctx = fuzz_context(&w.memory);
    w.live_before = w.memory.live;
    const kvl_status status = kvl_cache_create(w.ctx, &desc, &w.cache);
    FUZZ_HOLDS(status == KVL_OK || status == KVL_NO_MEMORY);
    for (int i = 0; status == KVL_OK && w.size > 0 && i < STEPS; ++i) step(&w);
    for (int i = 0; i < SEQS; ++i)
        if (w.seqs[i]) release(&w, i);
    kvl_cache_free(w.cache);
    FUZZ_HOLDS(w.memory.live == w.live_before);
    kvl_context_destroy(w.ctx);
    FUZZ_HOLDS(w.memory.live == 0);
    return 0;
}
