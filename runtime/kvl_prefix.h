// kvl_prefix.h -- prompts that begin alike: a tree of remembered pages, found by token ids.
//
// A node stands for tokens [first, first + num_tokens) after those of its parent, and refers to the
// pages that hold their rows in every layer.  The first node of a branch, its root, has the tokens
// of the longest sink and a sequence that holds the sinks' rows; every other node has `unit`
// tokens, a multiple of each layer's page size.  Where a layer's sink is shorter than the root,
// nodes end within a page: the deeper node's version of it has more rows.
//
//     key of a node = hash of its tokens, seeded with its parent's key (a root: with the salt)
//
// A match is of parent and tokens, not of keys.  Nodes are in one list by use, parents before
// children: its tail is a leaf, and goes first.  Pages are immutable while a node refers to them,
// as any that have two references.

#ifndef KVL_PREFIX_H
#define KVL_PREFIX_H

#include "kvl_store.h"

enum { KVL__PREFIX_UNIT_MAX = 65536 };

struct kvl__prefix_node {
    kvl__prefix_node *parent, *next;       // next: of the same bucket
    kvl__prefix_node *newer, *older;       // by use
    kvl__seq* sinks;                       // of a root, where there are sinks
    uint64_t  salt, key, bytes;            // bytes: what it takes of the budget
    int64_t   first;                       // tokens before it
    int32_t   num_tokens, num_children, num_pages;
    int       pinned;
    int32_t*  tokens;                      // [num_tokens]
    unsigned char** pages;                 // [num_pages] contents, layer by layer
};

// SHAPE

// The lengths of nodes, from the layers.
KVL__FN kvl_status kvl__prefix_configure(kvl_cache* cache, uint64_t max_bytes)
{
    kvl__prefix* p = &cache->prefix;
    int64_t unit = 1;
    p->max_bytes = max_bytes;
    if (max_bytes == 0) return KVL_OK;
    for (int i = 0; i < cache->num_layers; ++i) {
        if (!cache->layers[i].active) continue;
        p->sink_len = kvl__max_i64(p->sink_len, cache->layers[i].config.sink_len);
        unit = kvl__lcm((int32_t)unit, cache->layers[i].config.page_size);
        KVL__REQUIRE(cache->ctx, unit <= KVL__PREFIX_UNIT_MAX, KVL_UNSUPPORTED,
                     "prefix_bytes: %lld tokens are a multiple of the page sizes of layers 0 to %d;"
                     " must be at most %d", (long long)unit, i, KVL__PREFIX_UNIT_MAX);
    }
    p->unit = unit;
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__config* c = &cache->layers[i].config;
        KVL__REQUIRE(cache->ctx, !cache->layers[i].active ||
                     (p->sink_len - c->sink_len) % kvl__group_rows(c) == 0, KVL_UNSUPPORTED,
                     "prefix_bytes: the longest sink is %lld, layer %d has sink = %d and groups of "
                     "%lld tokens, which must divide the difference", (long long)p->sink_len, i,
                     c->sink_len, (long long)kvl__group_rows(c));
    }
    return KVL_OK;
}

// Pages [first, end) of a layer that hold rows of tokens [from, to).
typedef struct kvl__prefix_range { int64_t first, end; } kvl__prefix_range;

KVL__FN kvl__prefix_range kvl__prefix_pages(const kvl__layer* l, int64_t from, int64_t to)
{
    kvl__prefix_range r = { 0, 0 };
    if (!l->active) return r;
    r.first = kvl__max_i64(0, from - l->config.sink_len) / l->config.page_size;
    r.end = kvl__num_pages(&l->config, kvl__max_i64(0, to - l->config.sink_len));
    return r;
}

// TREE

KVL__FN uint64_t kvl__prefix_key(uint64_t seed, const int32_t* tokens, int64_t num_tokens)
{
    return XXH3_64bits_withSeed(tokens, (size_t)num_tokens * sizeof *tokens, seed);
}

// The node of num_tokens tokens after `parent`, or NULL.
KVL__FN kvl__prefix_node* kvl__prefix_find(const kvl__prefix* p, const kvl__prefix_node* parent,
                                           uint64_t salt, const int32_t* tokens,
                                           int64_t num_tokens)
{
    if (p->num_buckets == 0) return NULL;
    const uint64_t key = kvl__prefix_key(parent ? parent->key : salt, tokens, num_tokens);
    kvl__prefix_node* node = p->buckets[key & (uint64_t)(p->num_buckets - 1)];
    while (node && !(node->key == key && node->parent == parent && node->salt == salt &&
                     node->num_tokens == num_tokens && (num_tokens == 0 ||
                     memcmp(node->tokens, tokens, (size_t)num_tokens * sizeof *tokens) == 0)))
        node = node->next;
    return node;
}

KVL__FN void kvl__prefix_unlist(kvl__prefix* p, kvl__prefix_node* node)
{
    *(node->newer ? &node->newer->older : &p->newest) = node->older;
    *(node->older ? &node->older->newer : &p->oldest) = node->newer;
}

KVL__FN void kvl__prefix_list(kvl__prefix* p, kvl__prefix_node* node)
{
    node->newer = NULL;
    node->older = p->newest;
    *(p->newest ? &p->newest->newer : &p->oldest) = node;
    p->newest = node;
}

// The node and those above it are the last ones to go.
KVL__FN void kvl__prefix_touch(kvl__prefix* p, kvl__prefix_node* node)
{
    for (; node; node = node->parent) {
        kvl__prefix_unlist(p, node);
        kvl__prefix_list(p, node);
    }
}

KVL__FN uint64_t kvl__prefix_node_bytes(int64_t num_tokens, int64_t num_pages)
{
    return sizeof(kvl__prefix_node) + (uint64_t)num_pages * sizeof(unsigned char*) +
           (uint64_t)num_tokens * sizeof(int32_t);
}

// Gives up a node's reference to a page.
KVL__FN void kvl__prefix_page_leave(kvl_cache* cache, const kvl__layer* l, unsigned char* contents)
{
    kvl__uses* uses = kvl__page_of(contents)->uses;
    const int alone = uses->refs == uses->remembered;
    --uses->remembered;
    if (uses->refs == 1 && alone) cache->prefix.alone_bytes -= l->page_bytes;
    if (uses->refs == 1) kvl__page_release(cache, l, contents);
    else --uses->refs;
}

// A leaf goes.
KVL__FN void kvl__prefix_forget(kvl_cache* cache, kvl__prefix_node* node)
{
    kvl__prefix* p = &cache->prefix;
    kvl__prefix_node** at = &p->buckets[node->key & (uint64_t)(p->num_buckets - 1)];
    int page = 0;
    while (*at != node) at = &(*at)->next;
    *at = node->next;
    kvl__prefix_unlist(p, node);
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__prefix_range r = kvl__prefix_pages(&cache->layers[i], node->first,
                                                      node->first + node->num_tokens);
        for (int64_t k = r.first; k < r.end; ++k)
            kvl__prefix_page_leave(cache, &cache->layers[i], node->pages[page++]);
    }
    if (node->sinks) kvl__seq_release(cache, node->sinks);
    if (node->parent) --node->parent->num_children;
    --p->num_nodes;
    p->bytes -= node->bytes;
    kvl__cache_release(cache, node, kvl__prefix_node_bytes(node->num_tokens, node->num_pages));
}

// Forgets what was used least recently; returns whether there was anything.
KVL__FN int kvl__prefix_make_room(kvl_cache* cache)
{
    kvl__prefix_node* node = cache->prefix.oldest;
    while (node && (node->pinned || node->num_children > 0)) node = node->newer;
    if (node) kvl__prefix_forget(cache, node);
    return node != NULL;
}

KVL__FN void kvl__prefix_free(kvl_cache* cache)
{
    kvl__prefix* p = &cache->prefix;
    while (kvl__prefix_make_room(cache)) continue;
    kvl__cache_release(cache, p->buckets, (uint64_t)p->num_buckets * sizeof *p->buckets);
    p->buckets = NULL;
    p->num_buckets = 0;
}

// Room for one more node: about one a bucket.  0 if there is no memory for the first ones.
KVL__FN int kvl__prefix_grow(kvl_cache* cache)
{
    kvl__prefix* p = &cache->prefix;
    const int64_t num = p->num_buckets ? 2 * p->num_buckets : 64;
    if (p->num_nodes < p->num_buckets) return 1;
    kvl__prefix_node** more = (kvl__prefix_node**)kvl__cache_alloc(
        cache, (uint64_t)num * sizeof *more);
    if (!more) return p->num_buckets > 0;
    for (int64_t i = 0; i < p->num_buckets; ++i) {
        for (kvl__prefix_node *node = p->buckets[i], *next; node; node = next) {
            kvl__prefix_node** at = &more[node->key & (uint64_t)(num - 1)];
            next = node->next;
            node->next = *at;
            *at = node;
        }
    }
    kvl__cache_release(cache, p->buckets, (uint64_t)p->num_buckets * sizeof *p->buckets);
    p->buckets = more;
    p->num_buckets = num;
    return 1;
}

// REMEMBER

// A stretch of a prompt, as the node that it would be.
typedef struct kvl__prefix_part {
    kvl__prefix_node* parent;
    uint64_t          salt;
    const int32_t*    tokens;      // [num_tokens]
    int64_t           first, num_tokens;
} kvl__prefix_part;

// A node that holds nothing yet, in the tree: its pages and sinks are to follow.
KVL__FN kvl__prefix_node* kvl__prefix_add(kvl_cache* cache, const kvl__prefix_part* part,
                                          int64_t num_pages)
{
    kvl__prefix* p = &cache->prefix;
    if (!kvl__prefix_grow(cache)) return NULL;
    kvl__prefix_node* node = (kvl__prefix_node*)kvl__cache_alloc(
        cache, kvl__prefix_node_bytes(part->num_tokens, num_pages));
    if (!node) return NULL;
    node->pages = (unsigned char**)(void*)(node + 1);
    node->tokens = (int32_t*)(void*)(node->pages + num_pages);
    if (part->num_tokens > 0)
        memcpy(node->tokens, part->tokens, (size_t)part->num_tokens * sizeof *node->tokens);
    node->parent = part->parent;
    node->salt = part->salt;
    node->first = part->first;
    node->num_tokens = (int32_t)part->num_tokens;
    node->num_pages = (int32_t)num_pages;
    node->key = kvl__prefix_key(part->parent ? part->parent->key : part->salt, part->tokens,
                                part->num_tokens);
    kvl__prefix_node** at = &p->buckets[node->key & (uint64_t)(p->num_buckets - 1)];
    node->next = *at;
    *at = node;
    if (part->parent) ++part->parent->num_children;
    ++p->num_nodes;
    kvl__prefix_list(p, node);
    return node;
}

// A sequence that has `from`'s windows, and no rows in pages.
KVL__FN kvl__seq* kvl__prefix_sinks(kvl_cache* cache, const kvl__seq* from)
{
    kvl__seq* seq = kvl__seq_make(cache, from);
    for (int i = 0; seq && i < cache->num_layers; ++i) {
        kvl__seq_layer* s = &seq->layers[i];
        kvl__table_leave(cache, &cache->layers[i], s->table);
        s->table = NULL;
        memset(&s->now, 0, sizeof s->now);
    }
    return seq;
}

KVL__FN uint64_t kvl__prefix_sinks_bytes(const kvl_cache* cache)
{
    uint64_t bytes = kvl__seq_bytes(cache) + kvl__records_of_seq_bytes(cache);
    for (int i = 0; i < cache->num_layers; ++i)
        if (cache->layers[i].active) bytes += kvl__window_alloc_bytes(cache, &cache->layers[i]);
    return bytes;
}

// Makes the node of a part from a sequence that has its rows quantized; NULL: no memory, or it is
// beyond the budget.
KVL__FN kvl__prefix_node* kvl__prefix_insert(kvl_cache* cache, const kvl__prefix_part* part,
                                             const kvl__seq* seq)
{
    kvl__prefix* p = &cache->prefix;
    const int64_t end = part->first + part->num_tokens;
    const int with_sinks = !part->parent && p->sink_len > 0;
    int64_t num_pages = 0;
    uint64_t bytes = 0;
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__prefix_range r = kvl__prefix_pages(&cache->layers[i], part->first, end);
        num_pages += r.end - r.first;
        bytes += (uint64_t)(r.end - r.first) * cache->layers[i].page_bytes;
    }
    bytes += kvl__prefix_node_bytes(part->num_tokens, num_pages);
    if (with_sinks) bytes += kvl__prefix_sinks_bytes(cache);
    if (bytes > p->max_bytes) return NULL;
    while (p->bytes > p->max_bytes - bytes)
        if (!kvl__prefix_make_room(cache)) return NULL;
    kvl__seq* sinks = with_sinks ? kvl__prefix_sinks(cache, seq) : NULL;
    kvl__prefix_node* node =
        sinks || !with_sinks ? kvl__prefix_add(cache, part, num_pages) : NULL;
    if (!node) {
        if (sinks) kvl__seq_release(cache, sinks);
        return NULL;
    }
    node->sinks = sinks;
    node->bytes = bytes;
    p->bytes += bytes;
    num_pages = 0;
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__prefix_range r = kvl__prefix_pages(&cache->layers[i], part->first, end);
        for (int64_t k = r.first; k < r.end; ++k) {
            unsigned char* contents = kvl__page_at(&seq->layers[i], k);
            ++kvl__page_of(contents)->uses->refs;
            ++kvl__page_of(contents)->uses->remembered;
            node->pages[num_pages++] = contents;
        }
    }
    return node;
}

// A reference of a sequence to a page that a node has.
KVL__FN void kvl__prefix_page_join(kvl_cache* cache, const kvl__layer* l, unsigned char* contents)
{
    kvl__uses* uses = kvl__page_of(contents)->uses;
    if (uses->refs == uses->remembered) cache->prefix.alone_bytes -= l->page_bytes;
    ++uses->refs;
}

// The sequence's own full pages of the node's rows give way to the node's.
KVL__FN void kvl__prefix_adopt(kvl_cache* cache, const kvl__prefix_node* node, kvl__seq* seq)
{
    const int64_t end = node->first + node->num_tokens;
    int page = 0;
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__layer* l = &cache->layers[i];
        const kvl__prefix_range r = kvl__prefix_pages(l, node->first, end);
        kvl__table* table = seq->layers[i].table;
        for (int64_t k = r.first; k < r.end; ++k) {
            unsigned char* shared = node->pages[page++];
            unsigned char* own = kvl__table_pages(table)[k - table->first];
            const int64_t page_end = (k + 1) * l->config.page_size + l->config.sink_len;
            if (own == shared || page_end > end) continue;
            kvl__prefix_page_join(cache, l, shared);
            kvl__page_release(cache, l, own);
            kvl__table_put(table, k - table->first, shared);
        }
        if (kvl__on_device(cache) && r.end > r.first)
            kvl__table_update(cache, table, r.first - table->first);
    }
}

// BEGIN

// The table of a layer's pages up to those of `deepest`; NULL: no memory.
KVL__FN kvl__table* kvl__prefix_table(kvl_cache* cache, int layer,
                                      const kvl__prefix_node* deepest)
{
    const kvl__layer* l = &cache->layers[layer];
    const int64_t num = kvl__prefix_pages(l, 0, deepest->first + deepest->num_tokens).end;
    kvl__table* table = kvl__table_create(cache, kvl__table_entries(num));
    if (!table) return NULL;
    table->num = num;
    for (const kvl__prefix_node* node = deepest; node; node = node->parent) {
        const int64_t end = node->first + node->num_tokens;
        unsigned char** pages = node->pages;
        for (int i = 0; i < layer; ++i) {
            const kvl__prefix_range r = kvl__prefix_pages(&cache->layers[i], node->first, end);
            pages += r.end - r.first;
        }
        const kvl__prefix_range r = kvl__prefix_pages(l, node->first, end);
        for (int64_t k = r.first; k < r.end; ++k) {
            if (kvl__table_pages(table)[k]) continue;  // a deeper node's page has more rows
            kvl__table_put(table, k, pages[k - r.first]);
            kvl__prefix_page_join(cache, l, pages[k - r.first]);
        }
    }
    if (kvl__on_device(cache)) kvl__table_update(cache, table, 0);
    return table;
}

// A sequence that has the rows up to those of `deepest`; NULL: no memory.
KVL__FN kvl__seq* kvl__prefix_seq(kvl_cache* cache, kvl__prefix_node* deepest)
{
    const kvl__prefix_node* root = deepest;
    const int64_t rows = deepest->first + deepest->num_tokens;
    int failed = 0;
    while (root->parent) root = root->parent;
    deepest->pinned = 1;
    kvl__seq* seq = kvl__seq_make(cache, root->sinks);
    for (int i = 0; seq && !failed && i < cache->num_layers; ++i) {
        const kvl__layer* l = &cache->layers[i];
        kvl__seq_layer* s = &seq->layers[i];
        if (!l->active) continue;
        const int64_t quantized = rows - l->config.sink_len;
        if (quantized > 0) {
            kvl__table_leave(cache, l, s->table);
            s->table = kvl__prefix_table(cache, i, deepest);
            failed = !s->table;
        }
        if (failed) continue;
        s->now.rows = rows;
        s->now.quantized = quantized;
        kvl__record_update(cache, s, 1);
        KVL_ASSERT(kvl__seq_layer_holds(l, s));
    }
    deepest->pinned = 0;
    if (!failed) return seq;
    kvl__seq_release(cache, seq);
    return NULL;
}

#endif
