// kvl_layout.h -- sizes of a page, and its linear byte order: the one of the reference and of
// files.
//
// A page is [num_kv_heads] x { keys, values }; one side of one head is | codes | scales | zeros |.
// Linear order: the code of (row, channel) lies at bit (row head_dim + channel) bits of the codes,
// low bits first; scales and zeros are arrays of groups, per token [row][group of channels], per
// channel [group of rows][channel].  Generated programs order the codes and groups to suit their
// vectors (gen/layout.lua), in the same number of bytes.

#ifndef KVL_LAYOUT_H
#define KVL_LAYOUT_H

#include "kvl_config.h"

typedef struct kvl__side_layout {
    int64_t codes_bytes, num_groups;
    int32_t scale_bytes, zero_bytes;       // of one group
    int64_t scales_at, zeros_at, bytes;
} kvl__side_layout;

KVL__FN kvl__side_layout kvl__layout_of(const kvl__codec* c, int32_t page_size)
{
    const kvl__word* meta = kvl__word_of(c, KVL__STAGE_META);
    const int affine = c->words[KVL__STAGE_LEVELS] == KVL__LEVELS_AFFINE;
    kvl__side_layout l;
    l.codes_bytes = (int64_t)page_size * c->head_dim * c->bits / 8;
    l.num_groups = c->group_size ? (int64_t)page_size * c->head_dim / c->group_size : 0;
    l.scale_bytes = meta->scale_bytes;
    l.zero_bytes = affine ? meta->zero_bytes : 0;
    l.scales_at = l.codes_bytes;
    l.zeros_at = l.scales_at + l.num_groups * l.scale_bytes;
    l.bytes = l.zeros_at + l.num_groups * l.zero_bytes;
    return l;
}

// Index of the group of (row, channel) in the linear arrays.
KVL__FN int64_t kvl__group_of(const kvl__codec* c, int64_t row, int32_t channel)
{
    if (c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_CHANNEL)
        return row / c->group_size * c->head_dim + channel;
    return row * (c->head_dim / c->group_size) + channel / c->group_size;
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

#endif
