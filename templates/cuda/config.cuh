// config.cuh -- the shape that this program is for, and where the rows of a sequence are.

enum { head_dim_k = $(config.k.head_dim), head_dim_v = $(sides[2].outputs) };
enum { num_heads = $(config.num_heads), page_size = $(config.page_size) };    // of a KV head

// One KV head's part of a page: its keys, then its values.
//% local two = config.num_stored ~= 1             -- else values are in the keys
enum { keys_bytes = $(sides[1].layout.page_bytes) };
enum { values_bytes = $(two and sides[2].layout.page_bytes or 0) };

INLINE float f32_of_row(uint32_t h) { return $("f32_of_" .. config.rows)(h); }
INLINE uint32_t row_of_f32(float x) { return $(config.rows .. "_of_f32")(x); }

// The 16-bit rows of one KV head: keys [0], values [1].
typedef struct head_windows {
    uint16_t* sink[2];
    uint16_t* ring[2];
} head_windows;

INLINE head_windows windows_of(const kvl__device_seq* s, const kvl__device_windows& w, int head)
{
    const int64_t rows = w.sink_len + w.ring_rows;
    head_windows h;
    //% if two then
    h.sink[0] = (uint16_t*)s->window + head * rows * (head_dim_k + head_dim_v);
    h.sink[1] = h.sink[0] + w.sink_len * (int64_t)head_dim_k;
    h.ring[0] = h.sink[1] + w.sink_len * (int64_t)head_dim_v;
    h.ring[1] = h.ring[0] + w.ring_rows * (int64_t)head_dim_k;
    //% else
    h.sink[0] = h.sink[1] = (uint16_t*)s->window + head * rows * head_dim_k;
    h.ring[0] = h.ring[1] = h.sink[0] + w.sink_len * (int64_t)head_dim_k;
    //% end
    return h;
}

// The record of calibrated numbers of a head: keys' [0], values' [1].
INLINE const float* record_of(const uint64_t* tables, const int32_t* floats, int side, int head)
{
    return (const float*)tables[side] + head * (int64_t)floats[side];
}

// Rows in pages when a sequence has `rows` rows.
INLINE int quantized_rows(const kvl__device_seq* s, const kvl__device_windows& w, int rows)
{
    const int aged = rows - w.sink_len - w.recent_len;
    return most_of((int)s->quantized, aged > 0 ? aged / w.chunk_len * w.chunk_len : 0);
}

// Keys [0] or values [1] of one head in a page that is in the table.
INLINE unsigned char* page_at(const kvl__device_seq* s, int page, int head, int side)
{
    enum { values_at = $(two and "keys_bytes" or 0) };
    return (unsigned char*)((const uint64_t*)s->table)[page - (int)s->first_page]
           + head * (int64_t)(keys_bytes + values_bytes) + (side ? values_at : 0);
}
