// kvl_sequence.h -- what is done with a sequence besides reading and growing: fork, truncate, drop,
// append and attend in one call, merge of partial results.
//
// The rules of a cut are arithmetic, in kvl_plan.h.  Here they are carried out: memory of all
// layers first, then rows, then pages.

#ifndef KVL_SEQUENCE_H
#define KVL_SEQUENCE_H

#include "kvl_device.h"
#include "kvl_ops.h"
#include "kvl_prefill.h"

// FORK

KVL__PUBLIC kvl_status kvl_seq_fork(kvl_cache* cache, kvl_seq handle, kvl_seq* out)
{
    kvl__seq* seq;
    KVL__USE_CACHE(cache);
    KVL__REQUIRE(cache->ctx, out, KVL_BAD_ARGUMENT, "out = NULL: must be given");
    *out = 0;
    KVL__TRY(kvl__need_seq(cache, handle, &seq));
    return kvl__seq_add(cache, seq, out);
}

// PAGES OF THE ENGINE'S CHOICE

KVL__PUBLIC kvl_status kvl_pages_needed(const kvl_cache* cache, int64_t num_rows,
                                        int64_t* num_pages)
{
    KVL__USE_CACHE(cache);
    KVL__REQUIRE(cache->ctx, num_pages, KVL_BAD_ARGUMENT, "num_pages = NULL: must be given");
    KVL__REQUIRE(cache->ctx, num_rows >= 0, KVL_BAD_ARGUMENT,
                 "num_rows = %lld: must not be negative", (long long)num_rows);
    *num_pages = 0;
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__config* c = &cache->layers[i].config;
        if (cache->layers[i].active)
            *num_pages = kvl__max_i64(*num_pages, kvl__num_pages(c, kvl__quantized_rows(c,
                                                                                        num_rows)));
    }
    return KVL_OK;
}

// What a layer has in pages stays where it is; the page that the next rows go into may change hands
// if another sequence has it too.
KVL__FN kvl_status kvl__check_pages(const kvl_cache* cache, int layer, const kvl__seq_layer* s,
                                    const int32_t* pages, int64_t num_pages)
{
    const int64_t page_size = cache->layers[layer].config.page_size;
    const int64_t end = s->table ? s->table->first + s->table->num : 0;
    KVL__REQUIRE(cache->ctx, num_pages >= end, KVL_BAD_ARGUMENT,
                 "num_pages = %lld: layer %d has rows in %lld", (long long)num_pages, layer,
                 (long long)end);
    for (int64_t p = s->table ? s->table->first : 0; p < end; ++p) {
        const kvl__page* page = kvl__page_of(kvl__page_at(s, p));
        const int shared = s->table->refs > 1 || page->uses->refs > 1;
        const int written = p == end - 1 && s->now.quantized % page_size != 0;
        KVL__REQUIRE(cache->ctx, pages[p] == page->number || (shared && written), KVL_BAD_ARGUMENT,
                     "pages[%lld] = %d: layer %d has the sequence's rows in page %d", (long long)p,
                     (int)pages[p], layer, (int)page->number);
    }
    return KVL_OK;
}

KVL__PUBLIC kvl_status kvl_seq_set_pages(kvl_cache* cache, kvl_seq handle, const int32_t* pages,
                                         int64_t num_pages)
{
    kvl__seq* seq;
    KVL__USE_CACHE(cache);
    KVL__REQUIRE(cache->ctx, cache->num_pages > 0, KVL_BAD_ARGUMENT,
                 "kvl_seq_set_pages: page tables are kvloom's own (kvl_cache_desc.num_pages = 0)");
    seq = kvl__seq_find(cache, handle);
    if (!seq) return kvl__need_seq(cache, handle, &seq);          // offloaded ones may have theirs
    KVL__REQUIRE(cache->ctx, num_pages >= 0 && num_pages <= INT32_MAX && (pages || !num_pages),
                 KVL_BAD_ARGUMENT, "num_pages = %lld: must be 0 to 2^31 - 1, with pages",
                 (long long)num_pages);
    for (int64_t p = 0; p < num_pages; ++p)
        KVL__REQUIRE(cache->ctx, pages[p] >= -1 && pages[p] < cache->num_pages, KVL_BAD_ARGUMENT,
                     "pages[%lld] = %d: must be a page from 0 to %lld, or -1 for none",
                     (long long)p, (int)pages[p], (long long)cache->num_pages - 1);
    for (int i = 0; i < cache->num_layers; ++i)
        if (cache->layers[i].active)
            KVL__TRY(kvl__check_pages(cache, i, &seq->layers[i], pages, num_pages));
    return kvl__seq_list_pages(cache, seq, pages, num_pages) ? KVL_OK : KVL_NO_MEMORY;
}

KVL__PUBLIC kvl_status kvl_page_uses(const kvl_cache* cache, int32_t page, int* num)
{
    KVL__USE_CACHE(cache);
    KVL__REQUIRE(cache->ctx, num, KVL_BAD_ARGUMENT, "num = NULL: must be given");
    KVL__REQUIRE(cache->ctx, page >= 0 && page < cache->num_pages, KVL_BAD_ARGUMENT,
                 "page = %d: the cache has %lld that are handed in", (int)page,
                 (long long)cache->num_pages);
    *num = 0;
    for (int i = 0; i < cache->num_layers; ++i)
        if (cache->layers[i].active)
            *num = (int)kvl__max_i64(*num, kvl__pool_uses(&cache->layers[i], page)->refs);
    return KVL_OK;
}

// PROMPTS THAT BEGIN ALIKE

KVL__FN kvl_status kvl__check_prompt(kvl_context* ctx, const kvl_prompt* prompt)
{
    KVL__REQUIRE(ctx, prompt, KVL_BAD_ARGUMENT, "kvl_prompt = NULL: must be given");
    KVL__REQUIRE(ctx, prompt->end == 0, KVL_BAD_ARGUMENT,
                 "kvl_prompt.end = %u: must be 0: zero the whole desc first", prompt->end);
    KVL__REQUIRE(ctx, prompt->num_tokens >= 0 && prompt->num_tokens < (int64_t)1 << 40 &&
                 (prompt->num_tokens == 0 || prompt->tokens), KVL_BAD_ARGUMENT,
                 "num_tokens = %lld: must be 0 to 2^40, with tokens",
                 (long long)prompt->num_tokens);
    return KVL_OK;
}

// The part of a prompt after `parent`.
KVL__FN kvl__prefix_part kvl__prompt_part(const kvl__prefix* p, const kvl_prompt* prompt,
                                          kvl__prefix_node* parent)
{
    kvl__prefix_part part;
    part.parent = parent;
    part.salt = prompt->salt;
    part.first = parent ? parent->first + parent->num_tokens : 0;
    part.num_tokens = parent ? p->unit : p->sink_len;
    part.tokens = prompt->tokens + part.first;
    return part;
}

// The last node whose tokens are the prompt's and that ends at `most` or before, or NULL.
KVL__FN kvl__prefix_node* kvl__prompt_find(const kvl__prefix* p, const kvl_prompt* prompt,
                                           int64_t most)
{
    kvl__prefix_node *deepest = NULL, *node = NULL;
    do {
        const kvl__prefix_part part = kvl__prompt_part(p, prompt, deepest);
        if (part.first + part.num_tokens > most) return deepest;
        node = kvl__prefix_find(p, deepest, prompt->salt, part.tokens, part.num_tokens);
        if (node) deepest = node;
    } while (node);
    return deepest;
}

KVL__PUBLIC kvl_status kvl_seq_begin(kvl_cache* cache, const kvl_prompt* prompt, kvl_seq* out,
                                     int64_t* num_rows)
{
    KVL__USE_CACHE(cache);
    KVL__REQUIRE(cache->ctx, out && num_rows, KVL_BAD_ARGUMENT, "out, num_rows: must be given");
    *out = 0;
    *num_rows = 0;
    KVL__TRY(kvl__check_prompt(cache->ctx, prompt));
    int64_t most = prompt->num_tokens - 1;
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__config* c = &cache->layers[i].config;
        if (cache->layers[i].active)
            most = kvl__min_i64(most, c->sink_len + kvl__quantized_rows(c, prompt->num_tokens));
    }
    kvl__prefix_node* node =
        cache->prefix.max_bytes ? kvl__prompt_find(&cache->prefix, prompt, most) : NULL;
    if (!node) return kvl__seq_add(cache, NULL, out);
    KVL__TRY(kvl__seq_check_room(cache));
    const int64_t rows = node->first + node->num_tokens;
    kvl__prefix_touch(&cache->prefix, node);
    KVL__TRY(kvl__seq_add_made(cache, kvl__prefix_seq(cache, node), out));
    *num_rows = rows;
    return KVL_OK;
}

// Tokens whose rows a sequence has in pages as they came, in every layer.
KVL__FN kvl_status kvl__prompt_rows(const kvl_cache* cache, const kvl__seq* seq,
                                    const kvl_prompt* prompt, int64_t* most)
{
    *most = prompt->num_tokens;
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__layer* l = &cache->layers[i];
        const kvl__extent* now = &seq->layers[i].now;
        if (!l->active) continue;
        KVL__REQUIRE(cache->ctx, prompt->num_tokens <= now->rows, KVL_BAD_ARGUMENT,
                     "num_tokens = %lld: layer %d has %lld rows", (long long)prompt->num_tokens, i,
                     (long long)now->rows);
        KVL__REQUIRE(cache->ctx, kvl__gone_rows(now) == 0, KVL_UNSUPPORTED,
                     "layer %d: rows were dropped or released: cannot be remembered", i);
        *most = kvl__min_i64(*most, l->config.sink_len + now->quantized);
        if (now->altered) *most = kvl__min_i64(*most, now->altered - 1);
    }
    return KVL_OK;
}

KVL__PUBLIC kvl_status kvl_seq_remember(kvl_cache* cache, kvl_seq handle, const kvl_prompt* prompt)
{
    kvl__seq* seq;
    int64_t most;
    KVL__USE_CACHE(cache);
    KVL__TRY(kvl__need_seq(cache, handle, &seq));
    KVL__TRY(kvl__check_prompt(cache->ctx, prompt));
    KVL__TRY(kvl__prompt_rows(cache, seq, prompt, &most));
    kvl__prefix* p = &cache->prefix;
    kvl__prefix_node *node = NULL, *next = NULL;
    while (p->max_bytes) {
        const kvl__prefix_part part = kvl__prompt_part(p, prompt, node);
        if (part.first + part.num_tokens > most) break;
        next = kvl__prefix_find(p, node, prompt->salt, part.tokens, part.num_tokens);
        if (next) kvl__prefix_adopt(cache, next, seq);
        if (node) node->pinned = 1;
        if (!next) next = kvl__prefix_insert(cache, &part, seq);
        if (node) node->pinned = 0;
        if (!next) break;
        node = next;
    }
    kvl__prefix_touch(p, node);
    return KVL_OK;
}

// TRUNCATE

// The newest `num` rows of the history become the tail's first ones; tail_len: rows of the tail
// afterwards.
KVL__FN void kvl__return_history(const kvl__layer* l, const kvl__seq_layer* s, int64_t num,
                                 int64_t tail_len)
{
    for (int head = 0; head < l->config.num_kv_heads; ++head) {
        const kvl__windows w = kvl__windows_of(l, s, head);
        for (int side = 0; side < l->config.num_stored; ++side) {
            const int64_t dim = l->config.side[side].head_dim;
            uint16_t* from = w.tail[side] - l->keep_rows * dim;
            memmove(from + num * dim, from,
                    (size_t)((l->keep_rows - num + tail_len) * dim) * sizeof *from);
        }
    }
}

KVL__FN kvl__change kvl__change_of_cut(const kvl__cut* cut)
{
    kvl__change change;
    memset(&change, 0, sizeof change);
    change.kept = change.wanted = cut->to.quantized;
    change.gone = kvl__gone_rows(&cut->to);
    change.window = cut->returned > 0;
    return change;
}

KVL__FN void kvl__cut_layer(kvl_cache* cache, const kvl__layer* l, kvl__seq_layer* s,
                            const kvl__cut* cut)
{
    const kvl__change change = kvl__change_of_cut(cut);
    const int64_t stay = cut->to.quantized;
    const int64_t tail_len = cut->to.rows - kvl__min_i64(cut->to.rows, l->config.sink_len) - stay;
    kvl__window_keep(cache, l, s);
    if (cut->returned > 0 && !kvl__on_device(cache))
        kvl__return_history(l, s, cut->returned, tail_len);
    kvl__pages_keep(cache, l, s, &change);
    s->now = cut->to;
    s->now.kept = kvl__kept_before(l, s, s->now.rows);
    kvl__record_update(cache, s, 1);
    KVL_ASSERT(kvl__seq_layer_holds(l, s));
}

KVL__FN kvl_status kvl__check_cut(const kvl_cache* cache, const kvl__seq* seq, int64_t num_rows)
{
    KVL__REQUIRE(cache->ctx, num_rows >= 0, KVL_BAD_ARGUMENT,
                 "num_rows = %lld: must not be negative", (long long)num_rows);
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__layer* l = &cache->layers[i];
        const kvl__extent* now = &seq->layers[i].now;
        const int64_t sink = l->config.sink_len, gone = kvl__gone_rows(now);
        if (!l->active) continue;
        KVL__REQUIRE(cache->ctx, num_rows <= now->rows, KVL_BAD_ARGUMENT,
                     "num_rows = %lld: layer %d has %lld rows", (long long)num_rows, i,
                     (long long)now->rows);
        KVL__REQUIRE(cache->ctx, num_rows <= sink || num_rows >= sink + gone, KVL_UNSUPPORTED,
                     "num_rows = %lld: layer %d has dropped rows %lld to %lld; 0 to %lld and %lld "
                     "to %lld are possible", (long long)num_rows, i, (long long)sink,
                     (long long)(sink + gone - 1), (long long)sink, (long long)(sink + gone),
                     (long long)now->rows);
    }
    return KVL_OK;
}

KVL__PUBLIC kvl_status kvl_truncate_check(const kvl_cache* cache, kvl_seq handle,
                                          int64_t num_rows, int* exact)
{
    kvl__seq* seq;
    KVL__USE_CACHE(cache);
    KVL__REQUIRE(cache->ctx, exact, KVL_BAD_ARGUMENT, "exact = NULL: must be given");
    KVL__TRY(kvl__need_seq(cache, handle, &seq));
    KVL__TRY(kvl__check_cut(cache, seq, num_rows));
    *exact = 1;
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__layer* l = &cache->layers[i];
        if (!l->active) continue;
        const kvl__cut cut = kvl__cut_at(&l->config, &seq->layers[i].now, num_rows);
        // What was released must be out of sight of the newest row that is left.
        const int64_t seen = num_rows - l->desc.window_len - l->config.sink_len;
        if (!cut.exact || (cut.to.released > 0 && cut.to.released > seen)) *exact = 0;
    }
    return KVL_OK;
}

// All memory of a cut of one layer.  The page that is cut keeps the bits of the rows that go: rows
// that come after them take their place.
KVL__FN kvl_status kvl__reserve_cut(kvl_cache* cache, const kvl__layer* l, kvl__seq_layer* s,
                                    const kvl__cut* cut)
{
    const kvl__change change = kvl__change_of_cut(cut);
    return kvl__pages_reserve(cache, l, s, &change) ? KVL_OK : kvl__cache_failure(cache);
}

KVL__PUBLIC kvl_status kvl_truncate(kvl_cache* cache, kvl_seq handle, int64_t num_rows)
{
    kvl__seq* seq;
    kvl_status status = KVL_OK;
    KVL__USE_CACHE(cache);
    KVL__TRY(kvl__need_seq(cache, handle, &seq));
    KVL__TRY(kvl__check_cut(cache, seq, num_rows));
    for (int i = 0; i < cache->num_layers && status == KVL_OK; ++i) {
        const kvl__layer* l = &cache->layers[i];
        if (!l->active) continue;
        const kvl__cut cut = kvl__cut_at(&l->config, &seq->layers[i].now, num_rows);
        status = kvl__reserve_cut(cache, l, &seq->layers[i], &cut);
    }
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__layer* l = &cache->layers[i];
        if (!l->active) continue;
        const kvl__cut cut = kvl__cut_at(&l->config, &seq->layers[i].now, num_rows);
        const kvl__change change = kvl__change_of_cut(&cut);
        if (status != KVL_OK) kvl__pages_drop(cache, l, &seq->layers[i], &change);
        else kvl__cut_layer(cache, l, &seq->layers[i], &cut);
        if (status == KVL_OK && kvl__predicts(&l->config))
            kvl__restored_cut(seq, seq->layers[i].now.quantized);
    }
    return status != KVL_OK ? status : kvl__device_done(cache);
}

// DROP

KVL__FN kvl__change kvl__change_of_drop(const kvl__extent* now, int64_t num_rows)
{
    kvl__extent to = *now;
    kvl__change change;
    to.dropped += num_rows;
    memset(&change, 0, sizeof change);
    change.kept = change.wanted = now->quantized;
    change.gone = kvl__gone_rows(&to);
    return change;
}

KVL__PUBLIC kvl_status kvl_drop_oldest(kvl_cache* cache, kvl_seq handle, int64_t num_rows)
{
    kvl__seq* seq;
    int failed = 0;
    KVL__USE_CACHE(cache);
    KVL__TRY(kvl__need_seq(cache, handle, &seq));
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__extent* now = &seq->layers[i].now;
        const int64_t left = now->rows - cache->layers[i].config.sink_len - now->dropped;
        KVL__REQUIRE(cache->ctx, !cache->layers[i].active || (num_rows >= 0 &&
                     num_rows <= kvl__max_i64(0, left)), KVL_BAD_ARGUMENT,
                     "num_rows = %lld: layer %d has %lld rows after its sink", (long long)num_rows,
                     i, (long long)kvl__max_i64(0, left));
    }
    for (int i = 0; i < cache->num_layers && !failed; ++i) {
        const kvl__change change = kvl__change_of_drop(&seq->layers[i].now, num_rows);
        if (cache->layers[i].active)
            failed = !kvl__pages_reserve(cache, &cache->layers[i], &seq->layers[i], &change);
    }
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__change change = kvl__change_of_drop(&seq->layers[i].now, num_rows);
        if (!cache->layers[i].active) continue;
        if (failed) kvl__pages_drop(cache, &cache->layers[i], &seq->layers[i], &change);
        else kvl__pages_keep(cache, &cache->layers[i], &seq->layers[i], &change);
        if (!failed) seq->layers[i].now.dropped += num_rows;
        if (!failed) kvl__record_update(cache, &seq->layers[i], 0);
        KVL_ASSERT(kvl__seq_layer_holds(&cache->layers[i], &seq->layers[i]));
    }
    return failed ? kvl__cache_failure(cache) : kvl__device_done(cache);
}

// APPEND AND ATTEND

typedef struct kvl__step_job {
    kvl__append_job        append;         // first, so that one pointer is both
    kvl__attend_job        attend;
    const kvl_attend_desc* d;
} kvl__step_job;

KVL__FN kvl_status kvl__check_step(const kvl_cache* cache, const kvl_append_desc* a,
                                   const kvl_attend_desc* t)
{
    KVL__REQUIRE(cache->ctx, t->layer == a->layer && t->num_seqs == a->num_seqs, KVL_BAD_ARGUMENT,
                 "layer = %d, num_seqs = %d: the append has %d and %d", t->layer, t->num_seqs,
                 a->layer, a->num_seqs);
    KVL__REQUIRE(cache->ctx, !t->q_positions, KVL_BAD_ARGUMENT,
                 "q_positions: must be NULL: each row is its own query's newest");
    KVL__REQUIRE(cache->ctx, !t->row_begins && !t->row_ends, KVL_BAD_ARGUMENT,
                 "row_begins, row_ends: must be NULL: each row sees all before it");
    for (int i = 0; i < a->num_seqs; ++i) {
        KVL__REQUIRE(cache->ctx, t->seqs[i] == a->seqs[i], KVL_BAD_ARGUMENT,
                     "seqs[%d] = %#llx: the append has %#llx", i, (unsigned long long)t->seqs[i],
                     (unsigned long long)a->seqs[i]);
        KVL__REQUIRE(cache->ctx, kvl__q_len(t, i) == kvl__append_len(a, i), KVL_BAD_ARGUMENT,
                     "q_lens[%d] = %lld: the append has %lld rows", i,
                     (long long)kvl__q_len(t, i), (long long)kvl__append_len(a, i));
    }
    return KVL_OK;
}

// Rows of one sequence that the next step takes: its first one may complete a chunk, the others do
// not, so that pages stay as they are while all of them are attended to.
KVL__FN int64_t kvl__step_rows(const kvl__config* c, const kvl__extent* now, int64_t left)
{
    int64_t num = kvl__min_i64(left, 1);
    const int64_t quantized = kvl__max_i64(now->quantized, kvl__quantized_rows(c, now->rows + 1));
    while (num < left && kvl__quantized_rows(c, now->rows + num + 1) <= quantized) ++num;
    return num;
}

// Returns the number of rows that it has done.
KVL__FN int64_t kvl__step(kvl__step_job* job)
{
    kvl__append_job* append = &job->append;
    int64_t num_rows = 0;
    for (int i = 0; i < append->num_seqs; ++i) {
        kvl__append_seq* a = &append->seqs[i];
        a->num_rows = kvl__step_rows(&append->l->config, &a->s->now, a->left);
        a->left -= a->num_rows;
        num_rows += a->num_rows;
    }
    kvl__append_rows(append, num_rows);
    for (int i = 0; i < append->num_seqs && append->cache->device.status == KVL_OK; ++i) {
        kvl__append_seq* a = &append->seqs[i];
        const int64_t first = a->s->now.rows - a->num_rows;
        for (int64_t r = 0; r < a->num_rows; ++r)
            kvl__attend_add(&job->attend, a->s, first + r, 0, INT64_MAX, a->first_row + r);
        a->first_row += a->num_rows;
    }
    kvl__attend_wave(&job->attend);
    return num_rows;
}

// Attends to the rows of the call in 16 bits, and to the others as they are before it.
KVL__FN kvl_status kvl__prefill_step(kvl__step_job* job, int64_t num_rows)
{
    kvl__append_job* append = &job->append;
    kvl__prefill p;
    KVL__TRY(kvl__prefill_make(&p, append));
    kvl_status status = kvl__append_reserve(append, 1);
    if (status == KVL_OK) {
        kvl__prefill_start(&p, num_rows);
        job->attend.l = &p.layer;
        for (int i = 0; i < p.append.num_seqs; ++i) {
            const kvl__append_seq* a = &p.append.seqs[i];
            const int64_t first = a->s->now.rows - a->num_rows;
            for (int64_t r = 0; r < a->num_rows; ++r)
                kvl__attend_add(&job->attend, a->s, first + r, 0, INT64_MAX, a->first_row + r);
        }
        kvl__attend_wave(&job->attend);
        kvl__append_rows(append, num_rows);
        status = kvl__append_end(append);
    }
    kvl__prefill_free(&p);
    return status;
}

KVL__FN kvl_status kvl__append_attend_checked(kvl__append_job* append, const kvl_append_desc* d)
{
    kvl__step_job* job = (kvl__step_job*)(void*)append;
    int64_t num_rows;
    KVL__TRY(kvl__append_check(append, d, &num_rows));
    if (num_rows == 0) return KVL_OK;
    KVL__REQUIRE(append->cache->ctx, !append->captured, KVL_UNSUPPORTED, "kvl_append_attend: the "
                 "stream is being captured: call kvl_append and kvl_attend");
    KVL__TRY(kvl__attend_job_of(append->cache, job->d, num_rows, &job->attend));
    for (int i = 0; i < append->num_seqs; ++i)
        if (append->seqs[i].num_rows > 0) {
            kvl__extent now = append->seqs[i].s->now;
            now.rows += append->seqs[i].num_rows;
            KVL__TRY(kvl__check_released(append->cache, append->l, &now, i,
                                         append->seqs[i].s->now.rows, append->seqs[i].num_rows));
        }
    if (job->d->prefill) return kvl__prefill_step(job, num_rows);
    KVL__TRY(kvl__append_reserve(append, 1));
    for (int i = 0; i < append->num_seqs; ++i)
        append->seqs[i].left = append->seqs[i].num_rows;
    while (num_rows > 0 && append->cache->device.status == KVL_OK) num_rows -= kvl__step(job);
    return kvl__append_end(append);
}

KVL__PUBLIC kvl_status kvl_append_attend(kvl_cache* cache, const kvl_append_desc* append,
                                         const kvl_attend_desc* attend)
{
    kvl__step_job job;
    memset(&job, 0, sizeof job);
    KVL__USE_CACHE(cache);
    KVL__TRY(kvl__check_append_desc(cache, append, &job.append.l));
    KVL__TRY(kvl__check_attend_desc(cache, attend, &job.attend.l));
    KVL__TRY(kvl__check_step(cache, append, attend));
    job.d = attend;
    return kvl__append_run(&job.append, cache, append, kvl__append_attend_checked);
}

// MERGE

// A logit without a value takes its share of a row.
KVL__FN void kvl__merge_sink(const kvl_merge_desc* d, int64_t row)
{
    const float sink = d->sink_logits[row % d->num_heads], lse = d->lse[row];
    const float most = fmaxf(sink, lse);
    float* o = d->o + row * d->head_dim;
    if (sink == -INFINITY) return;
    const float sum = expf(sink - most) + expf(lse - most), share = expf(lse - most) / sum;
    for (int i = 0; i < d->head_dim; ++i) o[i] *= share;
    d->lse[row] = most + logf(sum);
}

KVL__PUBLIC kvl_status kvl_merge(kvl_context* ctx, const kvl_merge_desc* d)
{
    KVL__TRY(kvl__check_context(ctx));
    KVL__REQUIRE(ctx, d, KVL_BAD_ARGUMENT, "kvl_merge_desc = NULL: must be given");
    KVL__REQUIRE(ctx, d->end == 0, KVL_BAD_ARGUMENT,
                 "kvl_merge_desc.end = %u: must be 0: zero the whole desc first", d->end);
    KVL__REQUIRE(ctx, d->num_rows >= 0, KVL_BAD_ARGUMENT, "num_rows = %lld: must not be negative",
                 (long long)d->num_rows);
    KVL__REQUIRE(ctx, d->head_dim >= 1, KVL_BAD_ARGUMENT, "head_dim = %d: must be at least 1",
                 d->head_dim);
    KVL__REQUIRE(ctx, d->num_rows == 0 || (d->o_a && d->lse_a && d->o_b && d->lse_b && d->o &&
                 d->lse), KVL_BAD_ARGUMENT, "o_a, lse_a, o_b, lse_b, o, lse: must all be given");
    KVL__REQUIRE(ctx, !d->sink_logits || d->num_heads >= 1, KVL_BAD_ARGUMENT,
                 "num_heads = %d: must be at least 1 with sink_logits", d->num_heads);
    if (ctx->gpu) return kvl__device_merge_results(ctx, d);
    for (int64_t row = 0; row < d->num_rows; ++row)
        KVL__REQUIRE(ctx, d->lse_a[row] < INFINITY && d->lse_b[row] < INFINITY, KVL_BAD_ARGUMENT,
                     "lse of row %lld = %g and %g: must be numbers below infinity", (long long)row,
                     (double)d->lse_a[row], (double)d->lse_b[row]);
    for (int i = 0; d->sink_logits && i < d->num_heads; ++i)
        KVL__REQUIRE(ctx, d->sink_logits[i] < INFINITY, KVL_BAD_ARGUMENT,
                     "sink_logits[%d] = %g: must be a number below infinity", i,
                     (double)d->sink_logits[i]);
    for (int64_t row = 0; row < d->num_rows; ++row) {
        kvl__merge_row(d, row);
        if (d->sink_logits) kvl__merge_sink(d, row);
    }
    return KVL_OK;
}

#endif
