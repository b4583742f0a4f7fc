// test_sequence.c -- random operations on many sequences, against a model of plain rows.
//
// The model has, for each sequence, the rows as they were appended and what a read must give; where
// rows are follows from the rules of the manual, written here once more.  What codes come to is
// read once, when a row is quantized, and must be the same bits for ever after, whatever forks,
// cuts, files and neighbours do; rows of a prompt come to the same codes in every sequence.
// Attention is compared with float64 over the rows that are read.
// KVLOOM_TEST_STEPS sets the number of steps (20000); each test takes its part of them.

#include "test_support.h"

enum { Q_HEADS = 4, HEADS = 2, DIM = 32, ROW = HEADS * DIM, SEQS = 6 };
enum { MOST_ROWS = 400, CALL_ROWS = 60 };              // of a sequence, of a call
enum { PROMPTS = 3, COMMON = 90, PREFIX_BYTES = 1 << 17 };       // COMMON: tokens of all prompts

typedef struct setup {
    const char* spec;
    int         sink, recent, chunk, group, page;      // group: rows of one along tokens, or 1
    int         keep_len, window_len, release_windows;
    double      error;                                 // of a value, in parts of its row's range
} setup;

static const setup setups[] = {
    { "kivi:k2,v2,kg16,vg16,sink=4,recent=24,chunk=16", 4, 24, 16, 16, 64, 0, 0, 0, 0.5 },
    { "kivi:k2,v2,kg16,vg16,sink=4,recent=24,chunk=16", 4, 24, 16, 16, 64, 11, 0, 0, 0.5 },
    { "kivi:k4,v4,g32,sink=0,recent=5,chunk=64", 0, 5, 64, 32, 64, 0, 0, 0, 0.2 },
    { "rtn:b4,g32,sink=3,recent=9,chunk=1,page=16", 3, 9, 1, 1, 16, 0, 0, 0, 0.2 },
    { "rtn:b4,g32,sink=3,recent=9,chunk=1,page=16", 3, 9, 1, 1, 16, 6, 50, 1, 0.2 },
    { "q8_0:sink=0,recent=0,chunk=24,page=48", 0, 0, 24, 1, 48, 0, 30, 0, 0.05 },
    { "f16:sink=2,recent=0,chunk=1,page=64", 2, 0, 1, 1, 64, 0, 0, 0, 0 },
    { "kivi:k8,v4,kg16,vg16,k.shift=rotating-mean,sink=4,recent=24,chunk=16", 4, 24, 16, 16, 64,
      11, 0, 0, 0.2 },
};
enum { SETUPS = sizeof setups / sizeof *setups };

// One side of a row: as it was appended, rounded to f16, and what a read gives.
typedef struct side {
    float source[ROW], now[ROW];
} side;

typedef struct model {
    kvl_seq    seq;                    // 0: none
    int        rows, quantized, dropped, released, history;
    int        altered;                // 1 + the first row that was read back from codes, or 0
    int        prompt, prompt_len;     // its first rows are those of a prompt's tokens
    test_bytes away;                   // where its rows are; size 0: in the cache
    side       side[2][MOST_ROWS];
} model;

typedef struct world {
    const setup* s;
    const char*  target;
    kvl_context* ctx;
    kvl_cache*   cache;
    test_memory  memory;
    uint64_t     live_before;          // bytes of the context alone
    test_lcg     lcg;
    model        models[SEQS];
    int          step, on_device;
    int          known[PROMPTS];       // rows of a prompt whose codes are in `codes`
    side         codes[PROMPTS][2][MOST_ROWS];
    float        in_k[CALL_ROWS * ROW], in_v[CALL_ROWS * ROW], q[CALL_ROWS * Q_HEADS * DIM];
    float        o[CALL_ROWS * Q_HEADS * DIM], lse[CALL_ROWS * Q_HEADS];
    float        k[MOST_ROWS * ROW], v[MOST_ROWS * ROW];           // what was read
} world;

#define HOLDS(w, cond, ...)                                                             \
    do {                                                                                \
        if (cond) break;                                                                \
        char text[256];                                                                 \
        snprintf(text, sizeof text, __VA_ARGS__);                                       \
        cr_assert(0, "%s on %s, step %d: %s: %s (%s)", (w)->s->spec, (w)->target,       \
                  (w)->step, #cond, text, kvl_context_message((w)->ctx));               \
    } while (0)

static int min_of(int a, int b) { return a < b ? a : b; }
static int max_of(int a, int b) { return a > b ? a : b; }
static int random_to(world* w, int n) { return n > 0 ? test_uniform(&w->lcg, n) : 0; }

// THE RULES

static int due(const setup* s, int rows)
{
    const int aged = rows - s->sink - s->recent;
    return aged > 0 ? aged / s->chunk * s->chunk : 0;
}

static int gone(const model* m) { return max_of(m->dropped, m->released); }

// Rows after the sink in pages that neither the newest query nor one keep_len earlier sees.
static int released(const setup* s, const model* m)
{
    const int unseen = m->rows - s->window_len - s->keep_len - s->sink;
    if (!s->release_windows || unseen <= 0) return 0;
    return min_of(unseen, m->quantized) / s->page * s->page;
}

// What is left of a group that was cut returns to the tail, as it is read.
static void model_settle(const setup* s, model* m)
{
    const int stay = m->quantized / s->group * s->group;
    for (int r = s->sink + stay; r < s->sink + m->quantized; ++r)
        for (int i = 0; i < 2 * ROW; ++i) {
            side* x = &m->side[i / ROW][r];
            x->source[i % ROW] = x->now[i % ROW] = test_round_f16(x->now[i % ROW]);
        }
    m->quantized = stay;
}

// Rows [first, first + num) of the call.
static void model_append(const world* w, model* m, int first, int num)
{
    const setup* s = w->s;
    const int keep = (s->keep_len + s->chunk - 1) / s->chunk * s->chunk;
    if (num > 0) model_settle(s, m);
    for (int r = 0; r < num; ++r, ++m->rows) {
        for (int i = 0; i < ROW; ++i) {
            side *k = &m->side[0][m->rows], *v = &m->side[1][m->rows];
            k->source[i] = k->now[i] = test_round_f16(w->in_k[(first + r) * ROW + i]);
            v->source[i] = v->now[i] = test_round_f16(w->in_v[(first + r) * ROW + i]);
        }
    }
    const int quantized = max_of(m->quantized, due(s, m->rows));
    m->history = min_of(keep, m->history + quantized - m->quantized);
    m->quantized = quantized;
    m->released = max_of(m->released, released(s, m));
}

// Rows of a group that is cut keep their codes until rows follow, unless the history has them.
static void model_cut(const world* w, model* m, int rows)
{
    const setup* s = w->s;
    const int aged = max_of(0, rows - s->sink);
    int stay = m->quantized <= aged ? m->quantized : aged / s->group * s->group;
    if (rows == m->rows) return;
    if (m->quantized - due(s, rows) <= m->history) stay = due(s, rows);
    const int as_they_were = m->quantized - stay <= m->history;
    m->history = as_they_were ? m->history - (m->quantized - stay) : 0;
    if (m->altered > rows) m->altered = 0;
    if (!as_they_were && aged > stay && (!m->altered || m->altered > 1 + s->sink + stay))
        m->altered = 1 + s->sink + stay;
    for (int r = s->sink + stay; r < rows && as_they_were; ++r)
        for (int i = 0; i < 2; ++i)
            memcpy(m->side[i][r].now, m->side[i][r].source, sizeof m->side[i][r].now);
    m->rows = rows;
    m->quantized = as_they_were ? stay : aged;
    m->dropped = min_of(m->dropped, aged);
    m->released = min_of(m->released, aged);
}

// Whether one of q_len queries from `position` on, of a sequence of `rows` rows, sees what was
// released.
static int sees_released(const world* w, const model* m, int position, int q_len, int rows)
{
    for (int p = position; p < position + q_len; ++p) {
        const int first = max_of(p + 1 - w->s->window_len, w->s->sink + m->dropped);
        if (m->released && first < min_of(p + 1, rows) && first < w->s->sink + m->released)
            return 1;
    }
    return 0;
}

// CHECKS

static void read_rows(world* w, model* m, int first, int num, float* k, float* v)
{
    kvl_rows rows[2] = { { k, KVL_F32, 0, 0 }, { v, KVL_F32, 0, 0 } };
    const kvl_status status = kvl_restore(w->cache, 0, m->seq, first, num, &rows[0], &rows[1]);
    HOLDS(w, status == KVL_OK, "kvl_restore of %d, %d", first, num);
}

// Rows [first, end) have come to codes: near to the source, and fixed from now on.
static void learn_codes(world* w, model* m, int first, int end)
{
    first = max_of(first, w->s->sink + gone(m));
    if (first >= end) return;
    read_rows(w, m, first, end - first, w->k, w->v);
    for (int i = 0; i < 2; ++i) {
        const float* got = i ? w->v : w->k;
        float most = 0;
        for (int r = 0; r < m->rows * ROW; ++r)
            most = fmaxf(most, fabsf(m->side[i][r / ROW].source[r % ROW]));
        for (int r = first; r < end; ++r)
            for (int j = 0; j < ROW; ++j) {
                const float x = got[(r - first) * ROW + j];
                const double off = fabs((double)x - (double)m->side[i][r].source[j]);
                HOLDS(w, off <= w->s->error * (double)most, "side %d row %d is off by %g", i, r,
                      off);
                m->side[i][r].now[j] = x;
            }
    }
}

static void check_rows(world* w, model* m)
{
    kvl_seq_rows rows = { 0 };
    const int sink = min_of(m->rows, w->s->sink), behind = min_of(m->rows, sink + gone(m));
    HOLDS(w, kvl_seq_get_rows(w->cache, 0, m->seq, &rows) == KVL_OK, "kvl_seq_get_rows");
    HOLDS(w, rows.rows == m->rows && rows.sink == sink && rows.quantized == m->quantized &&
          rows.tail == m->rows - sink - m->quantized && rows.dropped == gone(m),
          "%d rows %d quantized %d dropped: %lld, %lld, %lld", m->rows, m->quantized, gone(m),
          (long long)rows.rows, (long long)rows.quantized, (long long)rows.dropped);
    read_rows(w, m, 0, sink, w->k, w->v);
    read_rows(w, m, behind, m->rows - behind, w->k + sink * ROW, w->v + sink * ROW);
    for (int i = 0; i < 2; ++i)
        for (int r = 0, at = 0; r < m->rows; ++r) {
            if (r >= sink && r < behind) continue;
            const float* got = (i ? w->v : w->k) + ROW * at++;
            HOLDS(w, memcmp(got, m->side[i][r].now, sizeof m->side[i][r].now) == 0,
                  "side %d, row %d of %d changed", i, r, m->rows);
        }
}

static void check_memory(world* w)
{
    kvl_stats stats;
    int64_t rows = 0;
    int seqs = 0;
    for (int i = 0; i < SEQS; ++i) {
        if (!w->models[i].seq) continue;
        ++seqs;
        if (w->models[i].away.size) continue;
        rows += w->models[i].rows - gone(&w->models[i]);
    }
    HOLDS(w, kvl_cache_stats(w->cache, &stats) == KVL_OK, "kvl_cache_stats");
    HOLDS(w, stats.bytes == w->memory.live - w->live_before, "%llu bytes, the allocator has %llu",
          (unsigned long long)stats.bytes, (unsigned long long)(w->memory.live - w->live_before));
    HOLDS(w, stats.num_seqs == seqs && stats.num_rows == rows, "%d sequences, %lld rows",
          stats.num_seqs, (long long)stats.num_rows);
    HOLDS(w, stats.bytes == stats.page_bytes + stats.window_bytes + stats.other_bytes, "bytes");
}

// The query at `position` against float64 over the rows that it sees.
static void check_query(world* w, const model* m, int position, const float* q, const float* o,
                        const float* lse)
{
    test_attention a;
    int64_t last = -1;
    char what[256];
    memset(&a, 0, sizeof a);
    for (int r = 0; r < m->rows && r <= position; ++r) {
        if (w->s->window_len && r <= position - w->s->window_len) continue;
        if (r >= w->s->sink && r < w->s->sink + m->dropped) continue;
        ++last;
        memcpy(w->k + last * ROW, m->side[0][r].now, sizeof m->side[0][r].now);
        memcpy(w->v + last * ROW, m->side[1][r].now, sizeof m->side[1][r].now);
    }
    a.q = q;
    a.k = w->k;
    a.v = w->v;
    a.positions = &last;
    a.num_q = 1;
    a.q_heads = Q_HEADS;
    a.kv_heads = HEADS;
    a.dk = a.dv = DIM;
    a.kv_len = last + 1;
    snprintf(what, sizeof what, "%s on %s, step %d", w->s->spec, w->target, w->step);
    test_attention_run(&a);
    test_attention_check(&a, o, lse, what);
    test_attention_free(&a);
}

// STEPS

static model* random_model(world* w)
{
    model* m = &w->models[random_to(w, SEQS)];
    return m->seq && !m->away.size ? m : NULL;
}

static model* free_model(world* w)
{
    for (int i = 0; i < SEQS; ++i)
        if (!w->models[i].seq) return &w->models[i];
    return NULL;
}

static int is_done(world* w, kvl_status status)
{
    HOLDS(w, status == KVL_OK || status == KVL_NO_MEMORY, "%s", kvl_status_text(status));
    return status == KVL_OK;
}

static void fill(world* w, int rows)
{
    for (int i = 0; i < rows * ROW; ++i) {
        w->in_k[i] = (float)(test_bell(&w->lcg) + 700 * (i % 5)) / 1024;
        w->in_v[i] = (float)test_bell(&w->lcg) / 2048;
    }
}

static kvl_attend_desc attend_desc(world* w, const kvl_seq* seqs, int num_seqs)
{
    kvl_attend_desc t = { 0 };
    for (int i = 0; i < CALL_ROWS * Q_HEADS * DIM; ++i) w->q[i] = (float)test_bell(&w->lcg) / 8192;
    t.num_seqs = num_seqs;
    t.seqs = seqs;
    t.q.data = w->q;
    t.o.data = w->o;
    t.lse = w->lse;
    return t;
}

static void attend(world* w, model* m)
{
    const int q_len = min_of(m->rows, 1 + random_to(w, 3));
    const int position = random_to(w, 3) ? m->rows - q_len : random_to(w, m->rows + 40);
    const int64_t positions = position;
    const int32_t q_lens = q_len;
    kvl_attend_desc t = attend_desc(w, &m->seq, 1);
    t.q_lens = &q_lens;
    t.q_positions = &positions;
    const kvl_status status = kvl_attend(w->cache, &t);
    if (q_len > 0 && sees_released(w, m, position, q_len, m->rows)) {
        HOLDS(w, status == KVL_BAD_ARGUMENT, "position %d sees what was released", position);
        return;
    }
    if (!is_done(w, status)) return;
    for (int i = 0; i < q_len; ++i)
        check_query(w, m, position + i, w->q + i * Q_HEADS * DIM, w->o + i * Q_HEADS * DIM,
                    w->lse + i * Q_HEADS);
}

// Rows for a random part of the sequences, in one call; with queries if `step` is set, which read
// the rows of the call in 16 bits if it is 2.
static void append(world* w, int step)
{
    model* models[SEQS];
    kvl_seq seqs[SEQS];
    int32_t lens[SEQS];
    int num = 0, total = 0, refused = 0;
    for (int i = 0; i < SEQS; ++i) {
        model* m = &w->models[(i + w->step) % SEQS];
        if (!m->seq || m->away.size || random_to(w, 2)) continue;
        const int most = random_to(w, 3) ? 3 : 40;
        lens[num] = min_of(random_to(w, most), min_of(MOST_ROWS - m->rows, CALL_ROWS - total));
        total += lens[num];
        refused |= step && sees_released(w, m, m->rows, lens[num], m->rows + lens[num]);
        seqs[num] = m->seq;
        models[num++] = m;
    }
    kvl_append_desc a = { 0 };
    kvl_attend_desc t = attend_desc(w, seqs, num);
    fill(w, total);
    t.q_lens = a.num_rows = lens;
    a.num_seqs = num;
    a.seqs = seqs;
    a.k.data = w->in_k;
    a.v.data = w->in_v;
    t.prefill = step > 1;
    const kvl_status status = step ? kvl_append_attend(w->cache, &a, &t) : kvl_append(w->cache, &a);
    if (refused) {
        HOLDS(w, status == KVL_BAD_ARGUMENT, "a query sees what was released");
        return;
    }
    if (!is_done(w, status)) return;
    for (int i = 0, at = 0; i < num; at += lens[i++]) {
        model* m = models[i];
        const int before = lens[i] ? m->quantized / w->s->group * w->s->group : m->quantized;
        model_append(w, m, at, lens[i]);
        const int last = at + lens[i] - 1;
        if (step > 1 && lens[i])                      // rows are as they came, and older ones were
            check_query(w, m, m->rows - 1, w->q + last * Q_HEADS * DIM, w->o + last * Q_HEADS * DIM,
                        w->lse + last * Q_HEADS);
        learn_codes(w, m, w->s->sink + before, w->s->sink + m->quantized);
        if (step == 1 && lens[i])
            check_query(w, m, m->rows - 1, w->q + last * Q_HEADS * DIM, w->o + last * Q_HEADS * DIM,
                        w->lse + last * Q_HEADS);
        check_rows(w, m);
    }
}

static void fork_one(world* w, const model* m)
{
    model* to = free_model(w);
    kvl_seq seq = 0;
    const kvl_status status = kvl_seq_fork(w->cache, m->seq, &seq);
    HOLDS(w, to || status == KVL_NO_MEMORY, "a sequence beyond max_seqs");
    if (!is_done(w, status)) return;
    *to = *m;
    to->seq = seq;
}

static void truncate_one(world* w, model* m)
{
    const int t = random_to(w, 3) ? m->rows - random_to(w, min_of(m->rows + 1, 12))
                                  : random_to(w, m->rows + 1);
    const int impossible = t > w->s->sink && t < w->s->sink + gone(m);
    int exact = -1;
    const kvl_status check = kvl_truncate_check(w->cache, m->seq, t, &exact);
    const kvl_status status = kvl_truncate(w->cache, m->seq, t);
    HOLDS(w, impossible == (check == KVL_UNSUPPORTED), "%d of %d rows: %s", t, m->rows,
          kvl_status_text(check));
    if (impossible) {
        HOLDS(w, status == KVL_UNSUPPORTED, "%d of %d rows", t, m->rows);
        return;
    }
    if (!is_done(w, status)) return;
    model_cut(w, m, t);
    m->prompt_len = min_of(m->prompt_len, t);
    const int sight = !m->released || m->released <= m->rows - w->s->window_len - w->s->sink;
    HOLDS(w, exact == (!m->altered && m->quantized == due(w->s, t) && sight), "exact = %d", exact);
}

static void drop_some(world* w, model* m)
{
    const int left = max_of(0, m->rows - w->s->sink - m->dropped);
    const int num = random_to(w, min_of(left + 1, random_to(w, 4) ? 10 : 400));
    if (is_done(w, kvl_drop_oldest(w->cache, m->seq, num))) m->dropped += num;
}

// PROMPTS

static int32_t token_of(int prompt, int i) { return i < COMMON ? 7 + i : 1000 * prompt + i; }

// Rows that depend on the token alone.
static void fill_prompt(world* w, int prompt, int first, int num)
{
    for (int r = 0; r < num; ++r) {
        test_lcg lcg = { (uint64_t)token_of(prompt, first + r) * 77 + 5 };
        for (int i = 0; i < ROW; ++i) {
            w->in_k[r * ROW + i] = (float)(test_bell(&lcg) + 700 * (i % 5)) / 1024;
            w->in_v[r * ROW + i] = (float)test_bell(&lcg) / 2048;
        }
    }
}

// Codes of rows that whole pages hold are those of the prompt, whoever made them.
static void compare_prompt(world* w, const model* m, int end)
{
    for (int r = w->s->sink; r < end; ++r)
        for (int i = 0; i < 2; ++i) {
            side* known = &w->codes[m->prompt][i][r];
            if (r >= w->known[m->prompt]) *known = m->side[i][r];
            HOLDS(w, memcmp(known->now, m->side[i][r].now, sizeof known->now) == 0,
                  "prompt %d, row %d has other codes", m->prompt, r);
        }
    w->known[m->prompt] = max_of(w->known[m->prompt], end);
}

static kvl_status append_rows(world* w, const model* m, int num)
{
    const int32_t rows = num;
    kvl_append_desc a = { 0 };
    a.num_seqs = 1;
    a.seqs = &m->seq;
    a.num_rows = &rows;
    a.k.data = w->in_k;
    a.v.data = w->in_v;
    return kvl_append(w->cache, &a);
}

static void appended(world* w, model* m, int num)
{
    const int before = m->quantized / w->s->group * w->s->group;
    model_append(w, m, 0, num);
    learn_codes(w, m, w->s->sink + before, w->s->sink + m->quantized);
    check_rows(w, m);
}

// A sequence of a prompt: what is remembered, and the rest.
static void begin_one(world* w)
{
    model* to = free_model(w);
    int32_t tokens[MOST_ROWS];
    const int prompt = random_to(w, PROMPTS), len = 1 + random_to(w, 250);
    int64_t rows = -1;
    kvl_seq seq = 0;
    kvl_prompt p = { tokens, len, 0, 0 };
    for (int i = 0; i < len; ++i) tokens[i] = token_of(prompt, i);
    const kvl_status status = kvl_seq_begin(w->cache, &p, &seq, &rows);
    HOLDS(w, to || status == KVL_NO_MEMORY, "a sequence beyond max_seqs");
    if (!is_done(w, status)) return;
    memset(to, 0, offsetof(model, side));
    to->seq = seq;
    to->prompt = prompt;
    HOLDS(w, rows >= 0 && rows < len && rows <= w->s->sink + due(w->s, len), "%lld of %d rows",
          (long long)rows, len);
    for (int done = 0, num; done < rows; done += num) {
        num = min_of((int)rows - done, CALL_ROWS);
        fill_prompt(w, prompt, done, num);
        model_append(w, to, 0, num);
    }
    to->quantized = max_of(0, (int)rows - w->s->sink);
    to->history = to->released = 0;
    learn_codes(w, to, w->s->sink, to->rows);
    compare_prompt(w, to, to->rows);
    check_rows(w, to);
    for (int num; to->rows < len; ) {
        num = min_of(len - to->rows, CALL_ROWS);
        fill_prompt(w, prompt, to->rows, num);
        if (!is_done(w, append_rows(w, to, num))) break;
        appended(w, to, num);
    }
    to->prompt_len = to->rows;
}

static void remember_one(world* w, const model* m)
{
    int32_t tokens[MOST_ROWS];
    const int num = m->prompt_len - random_to(w, min_of(m->prompt_len + 1, 70));
    kvl_prompt p = { tokens, num, 0, 0 };
    for (int i = 0; i < num; ++i) tokens[i] = token_of(m->prompt, i);
    const kvl_status status = kvl_seq_remember(w->cache, m->seq, &p);
    HOLDS(w, status == (gone(m) ? KVL_UNSUPPORTED : KVL_OK), "%s", kvl_status_text(status));
    if (status != KVL_OK) return;
    int end = min_of(num, w->s->sink + m->quantized);
    if (m->altered) end = min_of(end, m->altered - 1);
    if (end > w->s->sink)
        compare_prompt(w, m, w->s->sink + (end - w->s->sink) / w->s->page * w->s->page);
}

// FILES

static int saved(world* w, const test_bytes* b, kvl_status status)
{
    HOLDS(w, status == KVL_OK || status == KVL_NO_MEMORY || (b->limit && status == KVL_FILE), "%s",
          kvl_status_text(status));
    return status == KVL_OK;
}

// One or two sequences into a file, and out of it as new ones; a damaged file changes nothing.
static void save_and_load(world* w, const model* m)
{
    const model* list[2] = { m, random_model(w) };
    const int num_seqs = list[1] ? 1 + random_to(w, 2) : 1;
    kvl_save_seq seqs[2] = { { .seq = m->seq }, { .seq = list[1] ? list[1]->seq : 0 } };
    test_bytes b = { .limit = random_to(w, 8) ? 0 : (size_t)(1 + random_to(w, 4000)) };
    kvl_save_desc d = { .num_seqs = num_seqs, .seqs = seqs, .write = test_put_bytes, .user = &b };
    kvl_load_desc from = { .read = test_take_bytes, .user = &b };
    kvl_loaded_seq* out = NULL;
    int num = 0, places = 0;
    for (int i = 0; i < SEQS; ++i) places += !w->models[i].seq;
    if (saved(w, &b, kvl_save(w->cache, &d))) {
        const int damaged = random_to(w, 4) == 0;
        if (damaged) b.data[((size_t)random_to(w, 4096) << 12 | (size_t)random_to(w, 4096)) %
                            b.size] ^= (unsigned char)(1 << random_to(w, 8));
        const kvl_status status = kvl_load(w->cache, &from, &out, &num);
        HOLDS(w, !damaged || status != KVL_OK, "a damaged file is loaded");
        HOLDS(w, status != KVL_OK || places >= num_seqs, "sequences beyond max_seqs");
        if (!damaged && is_done(w, status))
            for (int i = 0; i < num; ++i) {
                model* to = free_model(w);
                *to = *list[i];
                to->seq = out[i].seq;
                check_rows(w, to);
            }
    }
    kvl_loaded_free(w->ctx, out, num);
    free(b.data);
}

static void offload_one(world* w, model* m)
{
    kvl_seq_rows rows;
    kvl_save_seq one = { .seq = m->seq };
    test_bytes b = { .limit = random_to(w, 8) ? 0 : (size_t)(1 + random_to(w, 4000)) };
    kvl_save_desc d = { .num_seqs = 1, .seqs = &one, .write = test_put_bytes, .user = &b };
    if (!saved(w, &b, kvl_offload(w->cache, &d))) {
        free(b.data);
        return;
    }
    m->away = b;
    HOLDS(w, kvl_seq_get_rows(w->cache, 0, m->seq, &rows) == KVL_BAD_ARGUMENT, "rows are away");
}

static void reload_one(world* w)
{
    for (int i = 0; i < SEQS; ++i) {
        model* m = &w->models[i];
        if (!m->seq || !m->away.size) continue;
        kvl_load_desc from = { .read = test_take_bytes, .user = &m->away };
        m->away.at = 0;
        if (!is_done(w, kvl_reload(w->cache, &from, &m->seq, 1))) return;
        free(m->away.data);
        memset(&m->away, 0, sizeof m->away);
        check_rows(w, m);
        return;
    }
}

// Rows of one sequence are appended to another, or to itself, as they are read.
static void copy_some(world* w, const model* m)
{
    model* to = random_model(w);
    const int first = random_to(w, 2) ? 0 : w->s->sink + gone(m);
    const int end = first ? m->rows : min_of(m->rows, gone(m) ? w->s->sink : m->rows);
    if (!to || first >= end) return;
    const int num = min_of(1 + random_to(w, end - first), min_of(MOST_ROWS - to->rows, CALL_ROWS));
    const kvl_status status = kvl_copy_rows(w->cache, to->seq, w->cache, m->seq, first, num);
    // What a mean that turns with positions was subtracted at must stay where it is.
    const int moved = strstr(w->s->spec, "rotating-mean") && first != to->rows;
    HOLDS(w, !moved || status == KVL_UNSUPPORTED, "rows %d go to %d", first, to->rows);
    if (moved || !is_done(w, status)) return;
    for (int r = 0; r < num; ++r) {
        memcpy(w->in_k + r * ROW, m->side[0][first + r].now, sizeof m->side[0][0].now);
        memcpy(w->in_v + r * ROW, m->side[1][first + r].now, sizeof m->side[1][0].now);
    }
    appended(w, to, num);
}

static void free_one(world* w, model* m)
{
    HOLDS(w, kvl_seq_free(w->cache, m->seq) == KVL_OK, "kvl_seq_free");
    HOLDS(w, kvl_truncate(w->cache, m->seq, 0) == KVL_BAD_ARGUMENT, "a freed handle");
    free(m->away.data);
    m->away.data = NULL;
    m->away.size = 0;
    m->seq = 0;
}

// Files and prompts; files of caches on a device have tests of their own.
static void rarer_step(world* w, model* m)
{
    const int what = random_to(w, 13);
    if (what < 3) begin_one(w);
    else if (what < 5) remember_one(w, m);
    else if (w->on_device) return;
    else if (what < 7) save_and_load(w, m);
    else if (what < 8) offload_one(w, m);
    else if (what < 11) reload_one(w);
    else copy_some(w, m);
}

static void one_step(world* w)
{
    model* m = random_model(w);
    const int what = random_to(w, 100), fails = random_to(w, 16) == 0;
    if (fails) w->memory.fail_at = w->memory.calls + 1 + random_to(w, 3);
    if (!m || what < 4) {
        model* to = free_model(w);
        kvl_seq seq = 0;
        if (to && is_done(w, kvl_seq_create(w->cache, &seq))) {
            memset(to, 0, offsetof(model, side));
            to->seq = seq;
        }
    } else if (what < 34) {
        append(w, 0);
    } else if (what < 48) {
        append(w, 1 + random_to(w, 2));
    } else if (what < 60) {
        attend(w, m);
    } else if (what < 71) {
        rarer_step(w, m);
    } else if (what < 78) {
        fork_one(w, m);
    } else if (what < 90) {
        truncate_one(w, m);
    } else if (what < 95) {
        drop_some(w, m);
    } else {
        model* other = &w->models[random_to(w, SEQS)];
        free_one(w, other->seq ? other : m);
    }
    w->memory.fail_at = 0;
    check_memory(w);
    m = &w->models[w->step % SEQS];
    if (m->seq && !m->away.size) check_rows(w, m);
}

static void run(const test_target* target, const setup* s, int steps, uint64_t seed)
{
    world* w = (world*)test_alloc(1, sizeof *w);
    kvl_context_desc cd = { 0 };
    kvl_cache_desc desc = { 0 };
    kvl_layer_desc layer = test_layer(s->spec, Q_HEADS, HEADS, DIM, DIM);
    w->s = s;
    w->target = target->name;
    w->on_device = target->target == KVL_TARGET_CUDA;
    w->lcg.state = seed;
    test_memory_init(&w->memory);
    cd.target = target->target;
    cd.isa = target->isa;
    cd.exact = 1;
    cd.allocator = test_memory_allocator(&w->memory);
    cd.device_allocator = test_memory_device_allocator(&w->memory);
    const kvl_status status = kvl_context_create(&cd, &w->ctx);
    test_ok(w->ctx, status, target->name);
    layer.window_len = s->window_len;
    desc.num_layers = 1;
    desc.layers = &layer;
    desc.max_seqs = SEQS;
    desc.keep_len = s->keep_len;
    desc.release_windows = s->release_windows;
    desc.prefix_bytes = PREFIX_BYTES;
    desc.calibration = test_calibration(TEST_TABLES);
    // The first cache leaves its kernels with the context.
    test_ok(w->ctx, kvl_cache_create(w->ctx, &desc, &w->cache), s->spec);
    kvl_cache_free(w->cache);
    w->live_before = w->memory.live;
    test_ok(w->ctx, kvl_cache_create(w->ctx, &desc, &w->cache), s->spec);
    for (w->step = 0; w->step < steps; ++w->step) one_step(w);
    for (int i = 0; i < SEQS; ++i)
        if (w->models[i].seq) free_one(w, &w->models[i]);
    kvl_stats stats;
    test_ok(w->ctx, kvl_cache_stats(w->cache, &stats), "kvl_cache_stats");
    cr_assert(stats.page_bytes == stats.prefix_bytes && stats.prefix_bytes <= PREFIX_BYTES &&
              stats.saved_bytes == 0, "%s: %llu bytes of pages are left", s->spec,
              (unsigned long long)stats.page_bytes);
    kvl_cache_free(w->cache);
    cr_assert(w->memory.live == w->live_before, "%s: the cache left bytes", s->spec);
    kvl_context_destroy(w->ctx);
    cr_assert(w->memory.live == 0 && w->memory.wrong_sizes == 0, "%s: bytes are left", s->spec);
    free(w);
}

static int num_steps(void)
{
    const char* text = getenv("KVLOOM_TEST_STEPS");
    return text ? atoi(text) : 20000;
}

Test(sequence, random_operations_agree_with_the_model_on_the_reference, .timeout = 7200)
{
    // Broken by an operation that is applied to one of the two stores, or by shared pages written.
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    for (int i = 0; i < SETUPS; ++i)
        run(&reference, &setups[i], num_steps() / 2 / SETUPS, 1000 + (uint64_t)i);
}

Test(sequence, random_operations_agree_with_the_model_on_the_host, .timeout = 7200)
{
    // Broken by what the reference's layout hides: tiles, lanes, kernels that read past their rows.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    for (int i = 0; i < SETUPS && n > 1; ++i)
        run(&targets[1 + i % (n - 1)], &setups[i], num_steps() / 2 / SETUPS, 2000 + (uint64_t)i);
}
