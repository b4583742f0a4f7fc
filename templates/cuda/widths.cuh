// widths.cuh -- rows of the $(codec.title) whose channels have bits of their own.
//
// gen/parts/pairs.lua says how a row's codes are one string, which is cut into numbers of
// $(codec.bits) bits.

#include "widths.h"

enum { $(s "number_bits") = $(codec.bits) };

// Where each channel begins in the string of a row: begins [dim + 1], in bits, the last one its
// length.
INLINE void $(s "find_begins")(const float* record, int* begins)
{
    const float* bits = record + $(codec.table_at(codec.parts.levels.tables[1].name));
#pragma unroll 1
    for (int i = threadIdx.x; i <= $(s "dim"); i += cta_threads) {
        int begin = 0;
        for (int before = 0; before < i; ++before) begin += (int)bits[before];
        begins[i] = begin;
    }
    __syncthreads();
}

//% if kernel.writes then
// The numbers that codes [16, dim] are stored as, of the rows [first, end) of 16, become bits of
// x [16, row_stride].  A thread has a number of all rows: they begin and end in the same channels.
INLINE void $(s "join_codes")(const unsigned char* codes, const int* begins, int first, int end,
                         int row_stride, float* x)
{
    for (int at = threadIdx.x; at < $(s "dim"); at += cta_threads) {
        const int bit = at * $(s "number_bits"), after = bit + $(s "number_bits");
        int channel = 0;
        while (begins[channel + 1] <= bit) ++channel;
#pragma unroll 1
        for (int row = first; row < end; ++row) {
            uint32_t held = 0;
            for (int i = channel; i < $(s "dim") && begins[i] < after; ++i) {
                const uint32_t code = codes[row * $(s "dim") + i];
                const int up = begins[i] - bit;
                held |= up < 0 ? code >> -up : code << up;
            }
            x[row * row_stride + at] = float_of(held & $((1 << codec.bits) - 1));
        }
    }
}
//% end
//% if not kernel.writes or codec.sketches > 0 then
// One value in units of its size, and its code.
INLINE float $(s "read_level")(const unsigned char* page, int row, int channel, const int* begins,
                          uint32_t* code)
{
    const int begin = begins[channel], n = begins[channel + 1] - begin;
    const int skipped = begin % $(s "number_bits");
    uint32_t held = 0;
    for (int filled = 0, at = begin / $(s "number_bits"); filled < skipped + n; ++at) {
        held |= $(s "get_code")(page, row, at) << filled;
        filled += $(s "number_bits");
    }
    *code = held >> skipped & ((1u << n) - 1u);
    const float scale =
        $(s "read_scale")(page, $(s "group")($(codec.word_lane("row", "channel"))));
    return scale * $(s "width_values")[(1 << n) - 1 + *code];
}
//% end
