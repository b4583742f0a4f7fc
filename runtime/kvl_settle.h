// kvl_settle.h -- between two calls, what a cache keeps of its pages is as small as they allow.
//
// Pages that go leave free places in the lists of counts.  Once the other pages' counts fit into
// fewer lists, the emptiest one is given back: its counts take places of other lists, and the pages
// and tables that point at them are told.  A sliding window that lets pages go leaves a table with
// free entries.  So the bytes of a cache follow from the pages that it has, not from the order in
// which pages came and went, and kvl_estimate can say them.
//
// That is done at the end of a call, when every page is in a table, a prefix or out of use.

#ifndef KVL_SETTLE_H
#define KVL_SETTLE_H

#include "kvl_prefix.h"

// LISTS OF COUNTS

// Where the counts of a list have gone, place by place; NULL: the place was free.
typedef struct kvl__uses_moved {
    const kvl__uses_list* from;
    kvl__uses*      uses[KVL__USES];
    kvl__uses_list* list[KVL__USES];
} kvl__uses_moved;

// Returns whether the page's count was one of them.
KVL__FN int kvl__uses_tell(const kvl__uses_moved* m, kvl__page* page)
{
    if (page->list != m->from) return 0;
    const int64_t place = page->uses - m->from->of;
    page->list = m->list[place];
    page->uses = m->uses[place];
    return 1;
}

// Returns how many pages had their counts in the list.
KVL__FN int kvl__uses_tell_table(const kvl__uses_moved* m, kvl__table* table)
{
    const uintptr_t first = (uintptr_t)m->from->of, bytes = sizeof m->from->of;
    int told = 0;
    for (int64_t i = 0; table && i < table->num; ++i) {
        kvl__uses** uses = &kvl__table_uses(table)[i];
        if ((uintptr_t)*uses - first >= bytes) continue;
        kvl__page* page = kvl__page_of(kvl__table_pages(table)[i]);
        told += kvl__uses_tell(m, page);
        *uses = page->uses;
    }
    return told;
}

KVL__FN int kvl__uses_tell_all(const kvl__uses_moved* m, kvl_cache* cache, kvl__layer* l)
{
    int told = 0;
    for (int slot = 0; slot < cache->capacity; ++slot)
        if (cache->slots[slot])
            told += kvl__uses_tell_table(m, cache->slots[slot]->layers[l - cache->layers].table);
    for (const kvl__prefix_node* node = cache->prefix.newest; node; node = node->older)
        for (int i = 0; i < node->num_pages; ++i)
            told += kvl__uses_tell(m, kvl__page_of(node->pages[i]));
    for (kvl__page* page = l->spare; page; page = page->next) told += kvl__uses_tell(m, page);
    return told;
}

// Whether the lists with room and the full ones hold the counts of all pages: none is lost.
KVL__FN int kvl__uses_hold(const kvl__layer* l)
{
    int64_t with_room = 0, in_them = 0;
    for (const kvl__uses_list* list = l->uses; list; list = list->next) {
        ++with_room;
        in_them += list->num;
    }
    return in_them + (l->num_uses_lists - with_room) * KVL__USES == l->num_uses;
}

// Gives the emptiest list of a layer back; the others have room for what is in it.
KVL__FN void kvl__uses_join(kvl_cache* cache, kvl__layer* l)
{
    unsigned char is_free[KVL__USES] = { 0 };
    kvl__uses_moved m;
    kvl__uses_list* from = l->uses;
    for (kvl__uses_list* list = l->uses; list; list = list->next)
        if (list->num < from->num) from = list;
    if (from->next) from->next->prev = from->prev;
    *(from->prev ? &from->prev->next : &l->uses) = from->next;
    for (int32_t n = from->num, place = from->free; n < KVL__USES; ++n) {
        is_free[place] = 1;
        place = (int32_t)from->of[place].refs;
    }
    m.from = from;
    l->num_uses -= from->num;
    for (int place = 0; place < KVL__USES; ++place) {
        m.uses[place] = is_free[place] ? NULL : kvl__uses_take(cache, l, &m.list[place]);
        if (m.uses[place]) *m.uses[place] = from->of[place];
    }
    const int told = kvl__uses_tell_all(&m, cache, l);
    KVL_ASSERT(told == from->num);
    (void)told;
    --l->num_uses_lists;
    kvl__cache_release(cache, from, sizeof *from);
}

// TABLES

// Gives a sequence a table no larger than its pages ask for.  One that is shared stays, and so does
// one for whose successor there is no memory.
KVL__FN void kvl__table_settle(kvl_cache* cache, kvl__seq_layer* s)
{
    kvl__table* old = s->table;
    const int64_t entries = old ? kvl__table_entries(old->num) : 0;
    if (!old || old->refs > 1 || entries == old->entries) return;
    if (kvl__over_budget(cache, kvl__table_bytes(entries) +
                         kvl__device_table_bytes(cache, entries))) return;
    int (*make_room)(kvl_cache*) = cache->make_room;
    cache->make_room = NULL;                              // no prompt is forgotten for this
    kvl__table* table = kvl__table_create(cache, entries);
    cache->make_room = make_room;
    if (!table) return;
    table->first = old->first;
    table->num = old->num;
    kvl__table_move(table, 0, old, 0, old->num);
    s->table = table;
    kvl__table_free(cache, old);
    if (kvl__on_device(cache)) kvl__table_update(cache, table, 0);
    kvl__record_update(cache, s, 0);
}

KVL__FN void kvl__settle(kvl_cache* cache)
{
    if (!cache->is_loose) return;
    cache->is_loose = 0;
    for (int i = 0; i < cache->num_layers; ++i) {
        kvl__layer* l = &cache->layers[i];
        KVL_ASSERT(kvl__uses_hold(l));
        while (kvl__uses_fit_fewer(l)) kvl__uses_join(cache, l);
        for (int slot = 0; slot < cache->capacity && l->release_slack; ++slot)
            if (cache->slots[slot]) kvl__table_settle(cache, &cache->slots[slot]->layers[i]);
    }
}

#endif
