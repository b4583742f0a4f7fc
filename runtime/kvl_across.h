// kvl_across.h -- keys of all heads of a layer at once: mixed, in the layer's order, and back.
//
// gen/parts/grouped.lua has the definition.  A stored head has channels of any head, so that what
// reads one reads a row of all of them.

#ifndef KVL_ACROSS_H
#define KVL_ACROSS_H

#include "kvl_args.h"
#include "kvl_ref.h"

// Neighbouring heads that are mixed.
KVL__FN int kvl__across_heads(const kvl__codec* c, int num_kv_heads)
{
    int mixed = 1;
    while (2 * mixed <= c->numbers[KVL__STAGE_TRANSFORM] && num_kv_heads % (2 * mixed) == 0)
        mixed *= 2;
    return mixed;
}

// x [num_heads, dim] in place; its own inverse but for rounding.
KVL__FN void kvl__across_mix(float* x, int num_heads, int dim, int mixed)
{
    const int piece = dim & -dim, num = num_heads * dim;
    const float factor = (float)(1.0 / sqrt((double)(mixed * piece)));
    for (int stride = 1; stride < mixed * dim; stride = stride * 2 == piece ? dim : stride * 2)
        for (int i = 0; i < num; ++i) {
            const int upper = stride < dim ? i & stride : i / dim & stride / dim;
            if (upper) continue;
            const float a = x[i], b = x[i + stride];
            x[i] = a + b;
            x[i + stride] = a - b;
        }
    for (int i = 0; i < num; ++i) x[i] *= factor;
}

// Where the keys of a page are, of all heads.
typedef struct kvl__across {
    void               (*decode)(const kvl__decode_args*);
    const kvl__codec*    codec;
    const float*         tables;           // of head 0, record_floats to the next one's
    int64_t              record_floats, head_bytes;
    int                  num_heads;        // 0: none of this is used
} kvl__across;

// Rows [first, first + num) of head `head` of a page, its keys of head 0 at `page`, before RoPE.
KVL__FN void kvl__across_decode(const kvl__across* s, const unsigned char* page, int32_t page_size,
                                int head, int64_t first, int num, float* rows)
{
    enum { ROWS = 4 };                                       // decoded together
    const int dim = s->codec->head_dim, mixed = kvl__across_heads(s->codec, s->num_heads);
    const int base = head / mixed * mixed * dim;             // the first channel that is mixed in
    const float factor = (float)(1.0 / sqrt((double)mixed));
    const int64_t order = kvl__table_at(s->codec, "grouped_order");
    float mixture[ROWS][KVL__MAX_HEADS * KVL__MAX_STORED_DIM], x[ROWS * KVL__MAX_STORED_DIM];
    kvl__decode_args a;
    memset(&a, 0, sizeof a);
    a.codec = s->codec;
    a.page_size = page_size;
    a.rows = x;
    for (int done = 0; done < num; done += ROWS) {
        const int n = num - done < ROWS ? num - done : ROWS;
        a.first_row = (int32_t)(first + done);
        a.num_rows = n;
        for (int h = 0; h < s->num_heads; ++h) {
            a.tables = s->tables + h * s->record_floats;
            a.page = page + h * s->head_bytes;
            s->decode(&a);
            for (int i = 0; i < dim; ++i) {
                const int at = (int)a.tables[order + i] - base;
                if (at < 0 || at >= mixed * dim) continue;
                for (int r = 0; r < n; ++r) mixture[r][at] = x[r * dim + i];
            }
        }
        for (int r = 0; r < n; ++r, rows += dim) {
            for (int i = 0; i < dim; ++i) rows[i] = 0.0f;
            for (int h = 0; h < mixed; ++h) {
                const float* of_head = mixture[r] + h * dim;
                int odd = 0;
                for (int both = h & (head % mixed); both; both &= both - 1) odd ^= 1;
                for (int i = 0; i < dim; ++i) rows[i] += odd ? -of_head[i] : of_head[i];
            }
            kvl__hadamard(rows, dim, dim & -dim);
            for (int i = 0; i < dim; ++i) rows[i] *= factor;
        }
    }
}

#endif
