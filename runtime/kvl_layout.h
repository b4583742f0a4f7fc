// kvl_layout.h -- sizes of a page, and its linear byte order: the one of the reference and of
// files.
//
// A page is [num_kv_heads] x { keys, values }; one side of one head is | codes | scales | zeros |
// extra | pad |: what rows have beside their codes, then up to a multiple of 16 bytes.
// Linear order: the code of (row, channel) lies at bit (row head_dim + channel) bits of the codes,
// low bits first; scales and zeros are arrays of groups, per token [row][group of channels], per
// channel [group of rows][channel].  Generated programs order the codes and groups to suit their
// vectors (gen/layout.lua), in the same number of bytes: the tile order.  A host's program turns
// its pages into the linear order by itself; what a device has is turned here.  Where channels are
// in sets, a side is that of the first set, then that of the second.

#ifndef KVL_LAYOUT_H
#define KVL_LAYOUT_H

#include "kvl_args.h"
#include "kvl_config.h"

typedef struct kvl__side_layout {
    int32_t page_size;
    int64_t codes_bytes, num_groups;
    int32_t scale_bytes, zero_bytes;       // of one group
    int64_t scales_at, zeros_at, extra_at, bytes;
    int32_t extra_rows, extra_bytes;       // rows that share what is beside codes, its bytes
    int32_t row_slots;                     // values of a row that are stored as they are
} kvl__side_layout;

KVL__FN int64_t kvl__set_at(const kvl__codec* c, int set, int32_t page_size);

// Of a side in sets page_size and bytes alone: others are those of each set.
KVL__FN kvl__side_layout kvl__layout_of(const kvl__codec* c, int32_t page_size)
{
    const kvl__word* meta = kvl__word_of(c, KVL__STAGE_META);
    const int affine = c->words[KVL__STAGE_LEVELS] == KVL__LEVELS_AFFINE;
    kvl__side_layout l;
    l.page_size = page_size;
    l.codes_bytes = (int64_t)page_size * c->head_dim * c->bits / 8;
    l.num_groups = c->group_size ? (int64_t)page_size * c->head_dim / c->group_size : 0;
    l.scale_bytes = meta->scale_bytes;
    l.zero_bytes = affine ? meta->zero_bytes : 0;
    l.scales_at = l.codes_bytes;
    l.zeros_at = l.scales_at + l.num_groups * l.scale_bytes;
    l.extra_at = l.zeros_at + l.num_groups * l.zero_bytes;
    l.row_slots = kvl__row_slots(c);
    l.extra_rows = kvl__extra_rows(c);
    l.extra_bytes = kvl__extra_bytes(c);
    l.bytes = kvl__round_up(l.extra_at + (int64_t)page_size / l.extra_rows * l.extra_bytes, 16);
    if (kvl__is_split(c)) l.bytes = kvl__set_at(c, kvl__num_sets(c), page_size);
    return l;
}

// Where a set begins in the side of a page; of the number of sets, where the last one ends.
KVL__FN int64_t kvl__set_at(const kvl__codec* c, int set, int32_t page_size)
{
    int64_t at = 0;
    for (int i = 0; i < set; ++i) {
        const kvl__codec s = kvl__set_of(c, i);
        at += kvl__layout_of(&s, page_size).bytes;
    }
    return at;
}

// Index of the group of (row, channel) in the linear arrays.
KVL__FN int64_t kvl__group_of(const kvl__codec* c, int64_t row, int32_t channel)
{
    if (c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_CHANNEL)
        return row / c->group_size * c->head_dim + channel;
    return row * (c->head_dim / c->group_size) + channel / c->group_size;
}

// Groups that num rows have a part in, from the first row of a group along tokens on.
KVL__FN int64_t kvl__num_groups(const kvl__codec* c, int64_t num)
{
    const int64_t unit = c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_CHANNEL ? c->group_size : 1;
    if (kvl__is_split(c)) return num * kvl__num_sets(c);
    return c->group_size ? (num + unit - 1) / unit * unit * c->head_dim / c->group_size : 0;
}

KVL__FN int kvl__get_code(const unsigned char* codes, int64_t bit, int bits)
{
    unsigned value = codes[bit >> 3];
    if ((bit & 7) + bits > 8) value |= (unsigned)codes[(bit >> 3) + 1] << 8;
    return (int)(value >> (bit & 7) & ((1u << bits) - 1u));
}

// In the place of whatever bits were there.
KVL__FN void kvl__put_code(unsigned char* codes, int64_t bit, int bits, int code)
{
    const unsigned value = (unsigned)code << (bit & 7), mask = ((1u << bits) - 1u) << (bit & 7);
    unsigned char* at = codes + (bit >> 3);
    at[0] = (unsigned char)((at[0] & ~mask) | (value & 255u));
    if ((bit & 7) + bits > 8) at[1] = (unsigned char)((at[1] & ~(mask >> 8)) | value >> 8);
}

// What turns a page of a side in sets is asked of a set, whose codec is s.
KVL__FN kvl__linear_args kvl__linear_of_set(const kvl__linear_args* a, const kvl__codec* s, int set)
{
    const int64_t at = kvl__set_at((const kvl__codec*)a->codec, set, a->page_size);
    kvl__linear_args of = *a;
    of.codec = s;
    of.page = a->page + at;
    of.linear = a->linear + at;
    return of;
}

// THE TILE ORDER

// Where a code of a lane and a word lies in a cell: one of its planes of `width` bits, which begins
// at byte `at`; shift within the byte.
KVL__FN int kvl__plane_at(int width, int at, int lane, int word, int* shift)
{
    const int k = word / 2, each = 16 / width;
    int left = word % 2 * 16 + k % each * width;
    if (width == 1) {                          // lanes l and l + 8 share a word
        left += lane / 8 * 8;
        at += lane % 8 * 4;
    } else {
        at += (k / each * 16 + lane) * 4;
    }
    *shift = left % 8;
    return at + left / 8;
}

KVL__FN int kvl__tile_get(const unsigned char* cell, int bits, int lane, int word)
{
    int code = 0, low = 0, shift;
    for (int width = 8; width > 0; width /= 2) {
        if (bits - low < width) continue;
        const int at = kvl__plane_at(width, 32 * low, lane, word, &shift);
        code |= (cell[at] >> shift & ((1 << width) - 1)) << low;
        low += width;
    }
    return code;
}

KVL__FN void kvl__tile_put(unsigned char* cell, int bits, int lane, int word, int code)
{
    int low = 0, shift;
    for (int width = 8; width > 0; width /= 2) {
        if (bits - low < width) continue;
        const int mask = (1 << width) - 1;
        unsigned char* at = cell + kvl__plane_at(width, 32 * low, lane, word, &shift);
        *at = (unsigned char)((*at & ~(mask << shift)) | (code >> low & mask) << shift);
        low += width;
    }
}

// The group of (row, channel) in the arrays of a page.
KVL__FN int64_t kvl__tile_group(const kvl__codec* c, int32_t page_size, int64_t row,
                                int32_t channel)
{
    if (c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_CHANNEL) return kvl__group_of(c, row, channel);
    return channel / c->group_size * (int64_t)page_size + row;
}

KVL__FN void kvl__tile_meta(const kvl__linear_args* a, const kvl__side_layout* l)
{
    const kvl__codec* c = (const kvl__codec*)a->codec;
    const int along = c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_CHANNEL;
    const int32_t row_step = along ? c->group_size : 1, step = along ? 1 : c->group_size;
    for (int32_t row = 0; row < a->num_rows; row += row_step) {
        for (int32_t i = 0; i < c->head_dim; i += step) {
            const int64_t tile = kvl__tile_group(c, a->page_size, row, i);
            const int64_t linear = kvl__group_of(c, row, i);
            for (int one = 0; one < 2; ++one) {
                const int64_t at = one ? l->zeros_at : l->scales_at;
                const int64_t bytes = one ? l->zero_bytes : l->scale_bytes;
                unsigned char* page = a->page + at + tile * bytes;
                unsigned char* file = a->linear + at + linear * bytes;
                if (a->into_page) memcpy(page, file, (size_t)bytes);
                else memcpy(file, page, (size_t)bytes);
            }
        }
    }
}

// What rows have beside their codes is the same in both orders.
KVL__FN void kvl__copy_extra(const kvl__linear_args* a, const kvl__side_layout* l)
{
    unsigned char *page = a->page + l->extra_at, *linear = a->linear + l->extra_at;
    const int64_t units = (a->num_rows + l->extra_rows - 1) / l->extra_rows;
    memcpy(a->into_page ? page : linear, a->into_page ? linear : page,
           (size_t)(units * l->extra_bytes));
}

KVL__FN void kvl__tile_linear(const kvl__linear_args* a, int is_value)
{
    const kvl__codec* c = (const kvl__codec*)a->codec;
    const kvl__side_layout l = kvl__layout_of(c, a->page_size);
    for (int set = 0; kvl__is_split(c) && set < kvl__num_sets(c); ++set) {
        const kvl__codec s = kvl__set_of(c, set);
        const kvl__linear_args of = kvl__linear_of_set(a, &s, set);
        kvl__tile_linear(&of, is_value);
    }
    if (kvl__is_split(c)) return;
    for (int32_t row = 0; row < a->num_rows; ++row) {
        for (int32_t i = 0; i < c->head_dim; ++i) {
            unsigned char* cell = a->page + (row / 16 * (c->head_dim / 16) + i / 16) * 32 * c->bits;
            const int64_t bit = ((int64_t)row * c->head_dim + i) * c->bits;
            const int lane = is_value ? i % 16 : row % 16, word = is_value ? row % 16 : i % 16;
            unsigned char* linear = a->linear + bit / 8;
            if (c->bits == 16) {
                unsigned char* at = cell + (word * 16 + lane) * 2;
                memcpy(a->into_page ? at : linear, a->into_page ? linear : at, 2);
            } else if (a->into_page) {
                kvl__tile_put(cell, c->bits, lane, word, kvl__get_code(a->linear, bit, c->bits));
            } else {
                kvl__put_code(a->linear, bit, c->bits, kvl__tile_get(cell, c->bits, lane, word));
            }
        }
    }
    if (c->group_size) kvl__tile_meta(a, &l);
    kvl__copy_extra(a, &l);
}

KVL__FN void kvl__tile_linear_keys(const kvl__linear_args* a) { kvl__tile_linear(a, 0); }
KVL__FN void kvl__tile_linear_values(const kvl__linear_args* a) { kvl__tile_linear(a, 1); }

#endif
