// kvl_file.h -- sequences in a file: save, load, and load into another spec.
//
// Little-endian throughout; version 1:
//
//     header       8 bytes "kvlseqs\n", u32 version, u32 num_layers, u32 num_seqs, u32 0
//     sections     u32 tag, u32 index, u64 bytes; payload; u64 XXH3 of all of it
//
//     LAYR layer   u32 active (0: no KV heads, 3: values are in the keys, else 1), num_kv_heads,
//                  head_dim, head_dim_v; the canonical spec's text; where the layer has
//                  calibrated tables, '#' and 16 hex digits: the hash of their numbers
//     SEQU seq     i64 num_tokens, u64 data_bytes; tokens (i32); the engine's data
//     ROWS layer   one for each sequence in turn: 6 i64 of kvl__extent, u64 num_pages; where the
//                  spec says kept=N but 0, u64 num_kept and their positions (i64); per head: sink
//                  keys, sink values, keys and values of history and tail, kept keys, kept values
//                  (16 bits each); pages: u64 number of the same page of a sequence before it in
//                  this layer, from 1, where it lies at the same place, or 0 and its contents in
//                  linear order
//     DONE 0       nothing
//
// Pages that sequences share are written once.  A spec without kept= keeps nothing, whatever its
// preset says elsewhere.  What is read is checked before anything of it is used: a file is
// untrusted.

#ifndef KVL_FILE_H
#define KVL_FILE_H

#include "kvl_sequence.h"
#include "kvl_staging.h"

enum {
    KVL__FILE_VERSION = 1,
    KVL__FILE_HEADER = 24, KVL__SECTION_HEADER = 16,
    KVL__TAG_LAYR = 0x5259414c, KVL__TAG_SEQU = 0x55514553, KVL__TAG_ROWS = 0x53574f52,
    KVL__TAG_DONE = 0x454e4f44,
    KVL__FILE_SEQS = 1 << 20,
    KVL__STRETCHES = 3,
    KVL__TRUSTED = 4096            // pages or sequences that memory is taken for because a file
                                   // says so, before they are there
};

// One direction of a file: bytes of the section at hand are counted and hashed.
typedef struct kvl__stream {
    kvl_context*   ctx;
    int          (*write)(const void* bytes, size_t num_bytes, void* user);
    int          (*read)(void* bytes, size_t num_bytes, void* user);
    void*          user;
    XXH3_state_t   hash;
    uint64_t       left;           // bytes of the section that are still to come
    uint64_t       at;             // bytes so far, for messages
    uint64_t       total;          // checksum of the sections so far
    uint32_t       tag, index;
} kvl__stream;

KVL__FN void kvl__put_u32(unsigned char* to, uint32_t x)
{
    for (int i = 0; i < 4; ++i) to[i] = (unsigned char)(x >> 8 * i);
}

KVL__FN void kvl__put_u64(unsigned char* to, uint64_t x)
{
    for (int i = 0; i < 8; ++i) to[i] = (unsigned char)(x >> 8 * i);
}

KVL__FN uint32_t kvl__get_u32(const unsigned char* from)
{
    uint32_t x = 0;
    for (int i = 0; i < 4; ++i) x |= (uint32_t)from[i] << 8 * i;
    return x;
}

KVL__FN uint64_t kvl__get_u64(const unsigned char* from)
{
    return kvl__get_u32(from) | (uint64_t)kvl__get_u32(from + 4) << 32;
}

// A file whose lengths do not hold could not be read again: what is written is counted too.
KVL__FN kvl_status kvl__stream_write(kvl__stream* s, const void* bytes, uint64_t num_bytes)
{
    KVL__REQUIRE(s->ctx, num_bytes <= s->left, KVL_FILE,
                 "section %.4s %u: has %llu bytes more than its length says", (const char*)&s->tag,
                 s->index, (unsigned long long)(num_bytes - s->left));
    if (num_bytes == 0) return KVL_OK;
    XXH3_64bits_update(&s->hash, bytes, (size_t)num_bytes);
    KVL__REQUIRE(s->ctx, s->write(bytes, (size_t)num_bytes, s->user) == 0, KVL_FILE,
                 "the file could not be written after %llu bytes: %s", (unsigned long long)s->at,
                 strerror(errno));
    s->at += num_bytes;
    s->left -= num_bytes;
    return KVL_OK;
}

// Bytes that no section's checksum covers.
KVL__FN kvl_status kvl__stream_read_raw(kvl__stream* s, void* bytes, uint64_t num_bytes)
{
    if (num_bytes == 0) return KVL_OK;
    KVL__REQUIRE(s->ctx, s->read(bytes, (size_t)num_bytes, s->user) == 0, KVL_FILE,
                 "the file ends, or could not be read, after %llu bytes",
                 (unsigned long long)s->at);
    s->at += num_bytes;
    return KVL_OK;
}

KVL__FN kvl_status kvl__stream_read(kvl__stream* s, void* bytes, uint64_t num_bytes)
{
    KVL__REQUIRE(s->ctx, num_bytes <= s->left, KVL_FILE,
                 "the file is damaged: section %.4s %u is too short", (const char*)&s->tag,
                 s->index);
    KVL__TRY(kvl__stream_read_raw(s, bytes, num_bytes));
    XXH3_64bits_update(&s->hash, bytes, (size_t)num_bytes);
    s->left -= num_bytes;
    return KVL_OK;
}

KVL__FN kvl_status kvl__section_write(kvl__stream* s, uint32_t tag, uint32_t index, uint64_t bytes)
{
    unsigned char head[KVL__SECTION_HEADER];
    kvl__put_u32(head, tag);
    kvl__put_u32(head + 4, index);
    kvl__put_u64(head + 8, bytes);
    XXH3_64bits_reset(&s->hash);
    s->tag = tag;
    s->index = index;
    s->left = bytes + sizeof head;
    return kvl__stream_write(s, head, sizeof head);
}

KVL__FN kvl_status kvl__section_write_end(kvl__stream* s)
{
    unsigned char sum[8];
    KVL__REQUIRE(s->ctx, s->left == 0, KVL_FILE,
                 "section %.4s %u: has %llu bytes less than its length says", (const char*)&s->tag,
                 s->index, (unsigned long long)s->left);
    const uint64_t digest = XXH3_64bits_digest(&s->hash);
    kvl__put_u64(sum, digest);
    s->total = s->total * 0x9e3779b97f4a7c15u + digest;
    s->left = sizeof sum;
    return kvl__stream_write(s, sum, sizeof sum);
}

KVL__FN kvl_status kvl__section_read(kvl__stream* s, uint32_t tag, uint32_t index)
{
    unsigned char head[KVL__SECTION_HEADER];
    XXH3_64bits_reset(&s->hash);
    s->tag = tag;
    s->index = index;
    KVL__TRY(kvl__stream_read_raw(s, head, sizeof head));
    XXH3_64bits_update(&s->hash, head, sizeof head);
    KVL__REQUIRE(s->ctx, kvl__get_u32(head) == tag && kvl__get_u32(head + 4) == index, KVL_FILE,
                 "the file is damaged: section %.4s %u is not where it should be, at byte %llu",
                 (const char*)&tag, index, (unsigned long long)s->at - sizeof head);
    s->left = kvl__get_u64(head + 8);
    return KVL_OK;
}

KVL__FN kvl_status kvl__section_read_end(kvl__stream* s)
{
    unsigned char sum[8];
    KVL__REQUIRE(s->ctx, s->left == 0, KVL_FILE,
                 "the file is damaged: section %.4s %u has %llu bytes too many",
                 (const char*)&s->tag, s->index, (unsigned long long)s->left);
    KVL__TRY(kvl__stream_read_raw(s, sum, sizeof sum));
    KVL__REQUIRE(s->ctx, kvl__get_u64(sum) == XXH3_64bits_digest(&s->hash), KVL_FILE,
                 "the file is damaged: the checksum of section %.4s %u does not hold",
                 (const char*)&s->tag, s->index);
    s->total = s->total * 0x9e3779b97f4a7c15u + kvl__get_u64(sum);
    return KVL_OK;
}

// WHAT A SECTION HOLDS

KVL__FN kvl_status kvl__write_i64(kvl__stream* s, int64_t x)
{
    unsigned char bytes[8];
    kvl__put_u64(bytes, (uint64_t)x);
    return kvl__stream_write(s, bytes, sizeof bytes);
}

KVL__FN kvl_status kvl__read_i64(kvl__stream* s, int64_t* x)
{
    unsigned char bytes[8];
    KVL__TRY(kvl__stream_read(s, bytes, sizeof bytes));
    *x = (int64_t)kvl__get_u64(bytes);
    return KVL_OK;
}

// The shape of a layer as a file has it.
typedef struct kvl__file_layer {
    uint32_t active, num_kv_heads, head_dim, head_dim_v;
    char     spec[KVL__SPEC_BYTES];
    uint64_t calibration;          // hash of the layer's tables and angles; 0: it has none
} kvl__file_layer;

// Rows in codes are of no use with other tables, or another RoPE, than they were encoded with.
KVL__FN uint64_t kvl__records_hash(const kvl__layer* l)
{
    uint64_t hash = l->fold_hash;
    for (int side = 0; side < 2; ++side) {
        const size_t bytes = (size_t)(l->record_floats[side] * l->config.num_kv_heads) *
                             sizeof(float);
        if (bytes) hash = XXH3_64bits_withSeed(l->tables[side], bytes, hash);
    }
    if (l->turns) hash = XXH3_64bits_withSeed(l->turns, l->turns_bytes, hash);
    if (l->predictors[0])
        hash = XXH3_64bits_withSeed(l->predictors[0], l->predictor_bytes, hash);
    return hash;
}

KVL__FN void kvl__file_layer_of(const kvl__layer* l, kvl__file_layer* f)
{
    memset(f, 0, sizeof *f);
    if (!l->active) return;
    f->active = l->config.num_stored == 1 ? 3 : 1;
    f->num_kv_heads = (uint32_t)l->config.num_kv_heads;
    f->head_dim = (uint32_t)l->config.side[0].head_dim;
    f->head_dim_v = (uint32_t)l->config.value_dim;
    kvl__canonical_spec(&l->config, f->spec, sizeof f->spec);
    f->calibration = kvl__records_hash(l);
}

KVL__FN kvl_status kvl__file_write_layer(kvl__stream* s, const kvl__layer* l, uint32_t index)
{
    kvl__file_layer f;
    unsigned char shape[16];
    char calibration[24] = "";
    kvl__file_layer_of(l, &f);
    if (f.calibration)
        snprintf(calibration, sizeof calibration, "#%016llx", (unsigned long long)f.calibration);
    kvl__put_u32(shape, f.active);
    kvl__put_u32(shape + 4, f.num_kv_heads);
    kvl__put_u32(shape + 8, f.head_dim);
    kvl__put_u32(shape + 12, f.head_dim_v);
    KVL__TRY(kvl__section_write(s, KVL__TAG_LAYR, index, sizeof shape + strlen(f.spec) +
                                strlen(calibration)));
    KVL__TRY(kvl__stream_write(s, shape, sizeof shape));
    KVL__TRY(kvl__stream_write(s, f.spec, strlen(f.spec)));
    KVL__TRY(kvl__stream_write(s, calibration, strlen(calibration)));
    return kvl__section_write_end(s);
}

KVL__FN kvl_status kvl__file_read_layer(kvl__stream* s, uint32_t index, kvl__file_layer* f)
{
    unsigned char shape[16];
    memset(f, 0, sizeof *f);
    KVL__TRY(kvl__section_read(s, KVL__TAG_LAYR, index));
    KVL__TRY(kvl__stream_read(s, shape, sizeof shape));
    f->active = kvl__get_u32(shape);
    f->num_kv_heads = kvl__get_u32(shape + 4);
    f->head_dim = kvl__get_u32(shape + 8);
    f->head_dim_v = kvl__get_u32(shape + 12);
    KVL__REQUIRE(s->ctx, f->active <= 3 && f->active != 2, KVL_FILE,
                 "the file is damaged: layer %u is of kind %u", index, f->active);
    char text[KVL__SPEC_BYTES + 24] = "";
    KVL__REQUIRE(s->ctx, s->left < sizeof text, KVL_FILE,
                 "the file is damaged: the spec of layer %u has %llu letters", index,
                 (unsigned long long)s->left);
    KVL__TRY(kvl__stream_read(s, text, s->left));
    const size_t letters = strcspn(text, "#");
    if (text[letters] == '#') f->calibration = strtoull(text + letters + 1, NULL, 16);
    KVL__REQUIRE(s->ctx, letters < sizeof f->spec, KVL_FILE,
                 "the file is damaged: the spec of layer %u has %zu letters", index, letters);
    memcpy(f->spec, text, letters);
    return kvl__section_read_end(s);
}

// ROWS OF ONE SEQUENCE IN ONE LAYER

// A stretch of 16-bit rows of all heads and both sides that a file holds.
typedef struct kvl__stretch {
    uint16_t* at[2];               // keys, values
    int64_t   num_rows;
} kvl__stretch;

// Sink, history with tail, and kept rows, of one head.
KVL__FN void kvl__stretches(const kvl__layer* l, const kvl__seq_layer* s, int head,
                            kvl__stretch* out)
{
    const kvl__windows w = kvl__windows_of(l, s, head);
    const int64_t sink = kvl__min_i64(s->now.rows, l->config.sink_len);
    for (int side = 0; side < l->config.num_stored; ++side) {
        out[0].at[side] = w.sink[side];
        out[1].at[side] = w.tail[side] - s->now.history * l->config.side[side].head_dim;
        out[2].at[side] = w.kept[side];
    }
    out[0].num_rows = sink;
    out[2].num_rows = s->now.kept;
    out[1].num_rows = s->now.rows - sink - s->now.quantized + s->now.history;
}

KVL__FN uint64_t kvl__stretch_bytes(const kvl__layer* l, const kvl__seq_layer* s)
{
    const int64_t dims = kvl__stored_dims(&l->config);
    return (uint64_t)(2 * dims * l->config.num_kv_heads *
                      (s->now.rows - s->now.quantized + s->now.history + s->now.kept));
}

// Bytes that say which rows are kept.
KVL__FN uint64_t kvl__kept_bytes(const kvl__layer* l, const kvl__seq_layer* s)
{
    return l->config.kept_len ? 8u + 8u * (uint64_t)s->now.kept : 0;
}

KVL__FN kvl_status kvl__write_kept(kvl__stream* stream, const kvl__layer* l,
                                   const kvl__seq_layer* s)
{
    if (l->config.kept_len == 0) return KVL_OK;
    KVL__TRY(kvl__write_i64(stream, s->now.kept));
    for (int64_t i = 0; i < s->now.kept; ++i)
        KVL__TRY(kvl__write_i64(stream, kvl__kept_positions(l, s)[i]));
    return KVL_OK;
}

// Of a sequence whose other counts are read.
KVL__FN kvl_status kvl__read_kept(kvl__stream* stream, const kvl__layer* l, kvl__seq_layer* s)
{
    int64_t num, least = l->config.sink_len;
    s->now.kept = 0;
    if (l->config.kept_len == 0) return KVL_OK;
    KVL__TRY(kvl__read_i64(stream, &num));
    KVL__REQUIRE(stream->ctx, num >= 0 && num <= l->config.kept_len, KVL_FILE,
                 "the file is damaged: layer %d keeps %lld rows of a sequence, of kept = %d",
                 l->number, (long long)num, l->config.kept_len);
    for (int64_t i = 0; i < num; ++i) {
        int64_t* position = &kvl__kept_positions(l, s)[i];
        KVL__TRY(kvl__read_i64(stream, position));
        KVL__REQUIRE(stream->ctx, *position >= least && *position < s->now.rows, KVL_FILE,
                     "the file is damaged: layer %d keeps row %lld: must be %lld to %lld",
                     l->number, (long long)*position, (long long)least,
                     (long long)s->now.rows - 1);
        least = *position + 1;
    }
    s->now.kept = num;
    return KVL_OK;
}

KVL__FN kvl_status kvl__write_extent(kvl__stream* s, const kvl__extent* e)
{
    KVL__TRY(kvl__write_i64(s, e->rows));
    KVL__TRY(kvl__write_i64(s, e->quantized));
    KVL__TRY(kvl__write_i64(s, e->dropped));
    KVL__TRY(kvl__write_i64(s, e->released));
    KVL__TRY(kvl__write_i64(s, e->history));
    return kvl__write_i64(s, e->altered);
}

KVL__FN kvl_status kvl__read_extent(kvl__stream* s, kvl__extent* e)
{
    KVL__TRY(kvl__read_i64(s, &e->rows));
    KVL__TRY(kvl__read_i64(s, &e->quantized));
    KVL__TRY(kvl__read_i64(s, &e->dropped));
    KVL__TRY(kvl__read_i64(s, &e->released));
    KVL__TRY(kvl__read_i64(s, &e->history));
    return kvl__read_i64(s, &e->altered);
}

// Rows of a page that a sequence has quantized, in whole groups.
KVL__FN int32_t kvl__rows_in_page(const kvl__layer* l, const kvl__extent* e, int64_t page)
{
    const int64_t unit = kvl__group_rows(&l->config);
    const int64_t quantized = (e->quantized + unit - 1) / unit * unit;
    return (int32_t)kvl__min_i64(l->config.page_size, quantized - page * l->config.page_size);
}

// SAVE

typedef struct kvl__save {
    kvl_cache*           cache;
    const kvl_save_desc* d;
    kvl__seq**           seqs;     // [num_seqs]
    kvl__stream          s;
    kvl__staging         st;
} kvl__save;

// Every page of a layer says how many of its rows some sequence has, and has no number yet.
KVL__FN void kvl__mark_pages(const kvl__save* job, int layer)
{
    for (int pass = 0; pass < 2; ++pass) {
        for (int i = 0; i < job->d->num_seqs; ++i) {
            const kvl__seq_layer* s = &job->seqs[i]->layers[layer];
            for (int64_t p = 0; s->table && p < s->table->num; ++p) {
                kvl__page* page = kvl__page_of(kvl__table_pages(s->table)[p]);
                const int32_t rows = kvl__rows_in_page(&job->cache->layers[layer], &s->now,
                                                       s->table->first + p);
                if (pass == 0) page->file_number = page->file_rows = 0;
                else if (rows > page->file_rows) page->file_rows = rows;
            }
        }
    }
}

KVL__FN kvl_status kvl__write_stretches(kvl__save* job, const kvl__layer* l,
                                        const kvl__seq_layer* from)
{
    kvl__seq_layer view;
    KVL__TRY(kvl__staging_fetch(&job->st, l, from, &view));
    for (int head = 0; head < l->config.num_kv_heads; ++head) {
        kvl__stretch rows[KVL__STRETCHES];
        kvl__stretches(l, &view, head, rows);
        for (int i = 0; i < KVL__STRETCHES; ++i)
            for (int side = 0; side < l->config.num_stored; ++side)
                KVL__TRY(kvl__stream_write(&job->s, rows[i].at[side], 2u * (uint64_t)(
                                           rows[i].num_rows * l->config.side[side].head_dim)));
    }
    return KVL_OK;
}

KVL__FN kvl_status kvl__write_batch(kvl__save* job, kvl__page_batch* b)
{
    KVL__TRY(kvl__batch_run(b));
    for (int i = 0; i < b->num; ++i) {
        KVL__TRY(kvl__write_i64(&job->s, 0));
        KVL__TRY(kvl__stream_write(&job->s, kvl__batch_linear(b, i), b->l->page_bytes));
    }
    b->num = 0;
    return KVL_OK;
}

// Pages in order: those that have no number get the next one, and are written.
KVL__FN kvl_status kvl__write_pages(kvl__save* job, const kvl__layer* l,
                                    const kvl__seq_layer* from, int32_t known)
{
    kvl__page_batch b;
    memset(&b, 0, sizeof b);
    b.l = l;
    b.st = &job->st;
    for (int64_t p = 0; from->table && p < from->table->num; ++p) {
        unsigned char* contents = kvl__table_pages(from->table)[p];
        const kvl__page* page = kvl__page_of(contents);
        if (page->file_number > known) {
            b.contents[b.num] = contents;
            b.num_rows[b.num++] = page->file_rows;
            if (b.num == KVL__STAGED_PAGES) KVL__TRY(kvl__write_batch(job, &b));
        } else {
            KVL__TRY(kvl__write_batch(job, &b));
            KVL__TRY(kvl__write_i64(&job->s, page->file_number));
        }
    }
    return kvl__write_batch(job, &b);
}

// *numbered: pages of this layer that are in the file already.
KVL__FN kvl_status kvl__write_rows(kvl__save* job, int layer, int seq, int32_t* numbered)
{
    const kvl__layer* l = &job->cache->layers[layer];
    const kvl__seq_layer* from = &job->seqs[seq]->layers[layer];
    const int64_t num_pages = from->table ? from->table->num : 0;
    const int32_t known = *numbered;
    for (int64_t p = 0; p < num_pages; ++p) {
        kvl__page* page = kvl__page_of(kvl__table_pages(from->table)[p]);
        if (page->file_number == 0) page->file_number = ++*numbered;
    }
    const uint64_t bytes = 56u + kvl__kept_bytes(l, from) + kvl__stretch_bytes(l, from) +
                           8u * (uint64_t)num_pages +
                           (uint64_t)(*numbered - known) * l->page_bytes;
    KVL__TRY(kvl__section_write(&job->s, KVL__TAG_ROWS, (uint32_t)layer, bytes));
    KVL__TRY(kvl__write_extent(&job->s, &from->now));
    KVL__TRY(kvl__write_i64(&job->s, num_pages));
    KVL__TRY(kvl__write_kept(&job->s, l, from));
    KVL__TRY(kvl__write_stretches(job, l, from));
    KVL__TRY(kvl__write_pages(job, l, from, known));
    return kvl__section_write_end(&job->s);
}

KVL__FN kvl_status kvl__file_write_seq(kvl__stream* s, const kvl_save_seq* seq, uint32_t index)
{
    const uint64_t bytes = 16u + 4u * (uint64_t)seq->num_tokens + seq->data_bytes;
    KVL__TRY(kvl__section_write(s, KVL__TAG_SEQU, index, bytes));
    KVL__TRY(kvl__write_i64(s, seq->num_tokens));
    KVL__TRY(kvl__write_i64(s, (int64_t)seq->data_bytes));
    KVL__TRY(kvl__stream_write(s, seq->tokens, 4u * (uint64_t)seq->num_tokens));
    KVL__TRY(kvl__stream_write(s, seq->data, seq->data_bytes));
    return kvl__section_write_end(s);
}

KVL__FN kvl_status kvl__save_all(kvl__save* job)
{
    kvl_cache* cache = job->cache;
    unsigned char head[KVL__FILE_HEADER] = "kvlseqs\n";
    kvl__put_u32(head + 8, KVL__FILE_VERSION);
    kvl__put_u32(head + 12, (uint32_t)cache->num_layers);
    kvl__put_u32(head + 16, (uint32_t)job->d->num_seqs);
    kvl__put_u32(head + 20, 0);
    job->s.left = sizeof head;
    XXH3_64bits_reset(&job->s.hash);
    KVL__TRY(kvl__stream_write(&job->s, head, sizeof head));
    for (int i = 0; i < cache->num_layers; ++i)
        KVL__TRY(kvl__file_write_layer(&job->s, &cache->layers[i], (uint32_t)i));
    for (int i = 0; i < job->d->num_seqs; ++i)
        KVL__TRY(kvl__file_write_seq(&job->s, &job->d->seqs[i], (uint32_t)i));
    for (int layer = 0; layer < cache->num_layers; ++layer) {
        int32_t numbered = 0;
        if (!cache->layers[layer].active) continue;
        kvl__mark_pages(job, layer);
        for (int i = 0; i < job->d->num_seqs; ++i)
            KVL__TRY(kvl__write_rows(job, layer, i, &numbered));
    }
    KVL__TRY(kvl__section_write(&job->s, KVL__TAG_DONE, 0, 0));
    return kvl__section_write_end(&job->s);
}

KVL__FN int kvl__file_write(const void* bytes, size_t num_bytes, void* user)
{
    return fwrite(bytes, 1, num_bytes, (FILE*)user) != num_bytes;
}

KVL__FN int kvl__file_read(void* bytes, size_t num_bytes, void* user)
{
    return fread(bytes, 1, num_bytes, (FILE*)user) != num_bytes;
}

// Writes beside `path` under a name of its own and renames: the file is whole or as it was.
KVL__FN kvl_status kvl__save_path(kvl__save* job, const char* path)
{
    kvl_context* ctx = job->cache->ctx;
    char temp[KVL__PATH_BYTES], place[KVL__PATH_BYTES];
    int fd = -1, length = 0;
    KVL__TRY(kvl__place_of(ctx, path, 0, "kvlseqs\n", place));
    for (int i = 0; i < 100 && fd < 0 && (i == 0 || errno == EEXIST); ++i) {
        length = snprintf(temp, sizeof temp, "%s.%ld-%d", place, (long)getpid(), i);
        KVL__REQUIRE(ctx, length < (int)sizeof temp, KVL_BAD_ARGUMENT,
                     "path: %d letters, at most %d are possible", (int)strlen(path),
                     (int)sizeof temp - 32);
        fd = open(temp, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    }
    KVL__REQUIRE(ctx, fd >= 0, KVL_FILE, "%s: cannot be written: %s", path, strerror(errno));
    FILE* file = fdopen(fd, "wb");
    if (!file) {
        close(fd);
        unlink(temp);
        return kvl__fail(ctx, KVL_NO_MEMORY, "%s: %s", path, strerror(errno));
    }
    job->s.write = kvl__file_write;
    job->s.user = file;
    kvl_status status = kvl__save_all(job);
    if (status == KVL_OK && (fflush(file) != 0 || fsync(fd) != 0))
        status = kvl__fail(ctx, KVL_FILE, "%s: cannot be written: %s", path, strerror(errno));
    fclose(file);
    if (status == KVL_OK && rename(temp, place) != 0)
        status = kvl__fail(ctx, KVL_FILE, "%s: cannot be written: %s", path, strerror(errno));
    if (status != KVL_OK) unlink(temp);
    return status;
}

KVL__FN kvl_status kvl__check_save(const kvl_cache* cache, const kvl_save_desc* d)
{
    kvl_context* ctx = cache->ctx;
    KVL__REQUIRE(ctx, d, KVL_BAD_ARGUMENT, "kvl_save_desc = NULL: must be given");
    KVL__REQUIRE(ctx, d->end == 0, KVL_BAD_ARGUMENT,
                 "kvl_save_desc.end = %u: must be 0: zero the whole desc first", d->end);
    KVL__REQUIRE(ctx, d->num_seqs >= 1 && d->num_seqs <= KVL__FILE_SEQS && d->seqs,
                 KVL_BAD_ARGUMENT, "num_seqs = %d: must be 1 to %d, with seqs", d->num_seqs,
                 KVL__FILE_SEQS);
    KVL__REQUIRE(ctx, (d->path != NULL) != (d->write != NULL), KVL_BAD_ARGUMENT,
                 "path, write: exactly one of them must be given");
    for (int i = 0; i < d->num_seqs; ++i) {
        const kvl_save_seq* one = &d->seqs[i];
        KVL__REQUIRE(ctx, one->num_tokens >= 0 && one->num_tokens <= INT_MAX &&
                     (one->num_tokens == 0 || one->tokens), KVL_BAD_ARGUMENT,
                     "seqs[%d].num_tokens = %lld: must be 0 to %d, with tokens", i,
                     (long long)one->num_tokens, INT_MAX);
        KVL__REQUIRE(ctx, one->data_bytes <= INT64_MAX / 2 && (one->data_bytes == 0 || one->data),
                     KVL_BAD_ARGUMENT, "seqs[%d].data_bytes = %llu: data must be given with it", i,
                     (unsigned long long)one->data_bytes);
    }
    return KVL_OK;
}

// total: the checksum of the whole.
KVL__FN kvl_status kvl__save_run(kvl_cache* cache, const kvl_save_desc* d, uint64_t* total)
{
    kvl__save job;
    kvl_context* ctx = cache->ctx;
    memset(&job, 0, sizeof job);
    job.cache = cache;
    job.d = d;
    job.s.ctx = ctx;
    job.s.write = d->write;
    job.s.user = d->user;
    const size_t seq_bytes = (size_t)d->num_seqs * sizeof *job.seqs;
    job.seqs = (kvl__seq**)kvl__alloc(ctx, seq_bytes);
    kvl_status status = kvl__staging_begin(cache, &job.st);
    if (!job.seqs)
        status = kvl__fail(ctx, KVL_NO_MEMORY, "the allocator has no %zu bytes", seq_bytes);
    for (int i = 0; i < d->num_seqs && status == KVL_OK; ++i)
        status = kvl__need_seq(cache, d->seqs[i].seq, &job.seqs[i]);
    if (status == KVL_OK) status = d->path ? kvl__save_path(&job, d->path) : kvl__save_all(&job);
    kvl__free(ctx, job.seqs, seq_bytes);
    kvl__staging_end(ctx, &job.st);
    *total = job.s.total;
    return status;
}

KVL__PUBLIC kvl_status kvl_save(kvl_cache* cache, const kvl_save_desc* d)
{
    uint64_t total;
    KVL__USE_CACHE(cache);
    KVL__TRY(kvl__check_save(cache, d));
    return kvl__save_run(cache, d, &total);
}

// What tells the sequence at a place of a stream from any other; not 0.
KVL__FN uint64_t kvl__away_mark(uint64_t total, int index)
{
    const uint64_t mark = (total ^ (uint64_t)index) * 0x9e3779b97f4a7c15u;
    return mark ? mark : 1;
}

KVL__PUBLIC kvl_status kvl_offload(kvl_cache* cache, const kvl_save_desc* d)
{
    uint64_t total;
    KVL__USE_CACHE(cache);
    KVL__TRY(kvl__check_save(cache, d));
    for (int i = 0; i < d->num_seqs; ++i)
        for (int j = 0; j < i; ++j)
            KVL__REQUIRE(cache->ctx, d->seqs[i].seq != d->seqs[j].seq, KVL_BAD_ARGUMENT,
                         "seqs[%d] = %#llx: seqs[%d] is the same", i,
                         (unsigned long long)d->seqs[i].seq, j);
    KVL__TRY(kvl__save_run(cache, d, &total));
    for (int i = 0; i < d->num_seqs; ++i) {
        kvl__seq* seq = kvl__seq_find(cache, d->seqs[i].seq);
        for (int k = 0; k < cache->num_layers; ++k) {
            const kvl__layer* l = &cache->layers[k];
            kvl__table_leave(cache, l, seq->layers[k].table);
            kvl__window_free(cache, l, &seq->layers[k]);
            memset(&seq->layers[k], 0, sizeof seq->layers[k]);
            seq->layers[k].owner = seq;
        }
        kvl__restored_free(cache, seq);
        seq->away = kvl__away_mark(total, i);
    }
    return kvl__device_end(cache);
}

// LOAD

// A page that a file has the contents of, and which page of its sequence it is.
typedef struct kvl__file_page {
    unsigned char* contents;
    int64_t        place;
} kvl__file_page;

typedef struct kvl__file_load {
    kvl_cache*      cache;
    kvl__stream     s;
    int             num_seqs;
    kvl__seq**      seqs;          // [num_seqs], of no handle yet
    kvl_loaded_seq* out;           // [num_seqs]
    const kvl_seq*  into;          // [num_into] handles that wait for their rows; NULL: make some
    int             num_into;
    kvl__staging    st;
    kvl__file_page* pages;         // of the layer at hand, by number from 1
    int64_t         num_pages, room;
    const int32_t*  free_pages;    // [num_free] that the engine gave
    int64_t         num_free, next_free;
} kvl__file_load;

KVL__FN kvl_status kvl__read_header(kvl__stream* s, kvl_file_info* info)
{
    unsigned char head[KVL__FILE_HEADER];
    memset(info, 0, sizeof *info);
    KVL__TRY(kvl__stream_read_raw(s, head, sizeof head));
    KVL__REQUIRE(s->ctx, memcmp(head, "kvlseqs\n", 8) == 0, KVL_FILE,
                 "not a file of saved sequences: its first bytes are others");
    info->version = (int)kvl__get_u32(head + 8);
    KVL__REQUIRE(s->ctx, info->version == KVL__FILE_VERSION, KVL_UNSUPPORTED,
                 "the file has version %d: this library reads %d", info->version,
                 KVL__FILE_VERSION);
    info->num_layers = (int)kvl__get_u32(head + 12);
    info->num_seqs = (int)kvl__get_u32(head + 16);
    KVL__REQUIRE(s->ctx, info->num_layers >= 1 && info->num_layers <= 65536 &&
                 info->num_seqs >= 1 && info->num_seqs <= KVL__FILE_SEQS &&
                 kvl__get_u32(head + 20) == 0, KVL_FILE,
                 "the file is damaged: its header has %d layers and %d sequences",
                 info->num_layers, info->num_seqs);
    return KVL_OK;
}

// The same shape and spec, or an error that names what differs.
KVL__FN kvl_status kvl__match_layer(kvl_context* ctx, int index, const kvl__file_layer* f,
                                    const kvl__layer* l)
{
    kvl__file_layer own;
    kvl__file_layer_of(l, &own);
    static const char* const kinds[] = { "no KV heads", "keys and values", "?",
                                         "values in the keys" };
    KVL__REQUIRE(ctx, f->active == own.active, KVL_BAD_ARGUMENT,
                 "layer %d has %s in the file, %s in the cache", index, kinds[f->active],
                 kinds[own.active]);
    KVL__REQUIRE(ctx, f->num_kv_heads == own.num_kv_heads, KVL_BAD_ARGUMENT,
                 "layer %d: num_kv_heads = %u in the file, %u in the cache", index,
                 f->num_kv_heads, own.num_kv_heads);
    KVL__REQUIRE(ctx, f->head_dim == own.head_dim && f->head_dim_v == own.head_dim_v,
                 KVL_BAD_ARGUMENT, "layer %d: head_dim = %u and %u in the file, %u and %u in the "
                 "cache", index, f->head_dim, f->head_dim_v, own.head_dim, own.head_dim_v);
    const size_t letters = strlen(f->spec);
    const int same = strncmp(f->spec, own.spec, letters) == 0 &&
                     (!own.spec[letters] || strcmp(own.spec + letters, ",kept=0") == 0);
    KVL__REQUIRE(ctx, same, KVL_BAD_ARGUMENT,
                 "layer %d: spec '%s' in the file, '%s' in the cache; with recode it is loaded "
                 "by way of full rows", index, f->spec, own.spec);
    KVL__REQUIRE(ctx, f->calibration == own.calibration, KVL_BAD_ARGUMENT,
                 "layer %d: saved with another calibration or RoPE than the cache has: the rows of "
                 "'%s' can be read with their own alone", index, f->spec);
    return KVL_OK;
}

// What a section claims is allocated piece by piece, so that a false length costs no memory.
KVL__FN kvl_status kvl__read_grown(kvl__stream* s, void** out, uint64_t num_bytes)
{
    uint64_t room = 0, at = 0;
    *out = NULL;
    while (at < num_bytes) {
        const uint64_t want = num_bytes - at < room + 65536 ? num_bytes : at + room + 65536;
        void* more = kvl__alloc(s->ctx, (size_t)want);
        if (more && at) memcpy(more, *out, (size_t)at);
        kvl__free(s->ctx, *out, (size_t)room);
        *out = more;
        KVL__REQUIRE(s->ctx, more, KVL_NO_MEMORY, "the allocator has no %llu bytes",
                     (unsigned long long)want);
        room = want;
        const kvl_status status = kvl__stream_read(s, (unsigned char*)more + at, want - at);
        if (status != KVL_OK) {
            kvl__free(s->ctx, *out, (size_t)room);
            *out = NULL;
            return status;
        }
        at = want;
    }
    return KVL_OK;
}

KVL__FN kvl_status kvl__file_read_seq(kvl__stream* s, uint32_t index, kvl_loaded_seq* out)
{
    int64_t num_tokens, data_bytes;
    KVL__TRY(kvl__section_read(s, KVL__TAG_SEQU, index));
    KVL__TRY(kvl__read_i64(s, &num_tokens));
    KVL__TRY(kvl__read_i64(s, &data_bytes));
    KVL__REQUIRE(s->ctx, num_tokens >= 0 && num_tokens <= INT_MAX && data_bytes >= 0 &&
                 (uint64_t)data_bytes + 4u * (uint64_t)num_tokens == s->left, KVL_FILE,
                 "the file is damaged: sequence %u has %lld tokens and %lld bytes of data", index,
                 (long long)num_tokens, (long long)data_bytes);
    KVL__TRY(kvl__read_grown(s, (void**)&out->tokens, 4u * (uint64_t)num_tokens));
    out->num_tokens = num_tokens;
    KVL__TRY(kvl__read_grown(s, &out->data, (uint64_t)data_bytes));
    out->data_bytes = (uint64_t)data_bytes;
    return kvl__section_read_end(s);
}

KVL__FN void kvl__loaded_release(kvl_context* ctx, kvl_loaded_seq* seqs, int num_seqs)
{
    for (int i = 0; i < num_seqs; ++i) {
        kvl__free(ctx, seqs[i].tokens, 4u * (size_t)seqs[i].num_tokens);
        kvl__free(ctx, seqs[i].data, (size_t)seqs[i].data_bytes);
    }
    kvl__free(ctx, seqs, (size_t)num_seqs * sizeof *seqs);
}

// Tokens and data of num sequences, [num] at *out; NULL after an error.
KVL__FN kvl_status kvl__file_read_seqs(kvl__stream* s, int num, kvl_loaded_seq** out)
{
    kvl_loaded_seq* list = NULL;
    int room = 0;
    *out = NULL;
    for (int i = 0; i < num; ++i) {
        if (i == room) {
            const int more = (int)kvl__min_i64(num, kvl__max_i64(2 * room, KVL__TRUSTED));
            const size_t bytes = (size_t)more * sizeof *list;
            kvl_loaded_seq* grown = (kvl_loaded_seq*)kvl__alloc_zeroed(s->ctx, bytes);
            if (!grown) {
                kvl__loaded_release(s->ctx, list, room);
                return kvl__fail(s->ctx, KVL_NO_MEMORY, "the allocator has no %zu bytes", bytes);
            }
            if (list) memcpy(grown, list, (size_t)room * sizeof *list);
            kvl__free(s->ctx, list, (size_t)room * sizeof *list);
            list = grown;
            room = more;
        }
        const kvl_status status = kvl__file_read_seq(s, (uint32_t)i, &list[i]);
        if (status == KVL_OK) continue;
        kvl__loaded_release(s->ctx, list, room);
        return status;
    }
    *out = list;
    return KVL_OK;
}

// Whether an extent can be one of this layer, whose spec is the file's.
KVL__FN int kvl__extent_fits(const kvl__layer* l, const kvl__extent* e)
{
    const kvl__config* c = &l->config;
    if (e->rows < 0 || e->rows > (int64_t)1 << 40 || e->quantized < 0) return 0;
    const int64_t behind = kvl__max_i64(0, e->rows - c->sink_len);
    return e->quantized >= kvl__quantized_rows(c, e->rows) && e->quantized <= behind &&
           (e->quantized % kvl__group_rows(c) == 0 || (e->quantized == behind && e->altered)) &&
           behind - e->quantized <= l->tail_rows &&
           e->dropped >= 0 && e->released >= 0 && kvl__gone_rows(e) <= behind &&
           e->history >= 0 && e->history <= e->quantized && e->history <= 65536 + c->chunk_len &&
           e->altered >= 0 && e->altered <= e->rows;
}

KVL__FN kvl_status kvl__skip(kvl__stream* s, int64_t num_bytes)
{
    unsigned char bytes[4096];
    while (num_bytes > 0) {
        const int64_t num = kvl__min_i64(num_bytes, (int64_t)sizeof bytes);
        KVL__TRY(kvl__stream_read(s, bytes, (uint64_t)num));
        num_bytes -= num;
    }
    return KVL_OK;
}

// history: rows of it that the file has; the sequence's own count is as many as the cache keeps.
KVL__FN kvl_status kvl__read_stretches(kvl__file_load* job, const kvl__layer* l,
                                       const kvl__seq_layer* to, int64_t history)
{
    kvl__stream* s = &job->s;
    const int64_t beyond = history - to->now.history;
    const kvl__seq_layer view = kvl__staging_blank(&job->st, l, to);
    for (int head = 0; head < l->config.num_kv_heads; ++head) {
        kvl__stretch rows[KVL__STRETCHES];
        kvl__stretches(l, &view, head, rows);
        for (int i = 0; i < KVL__STRETCHES; ++i) {
            for (int side = 0; side < l->config.num_stored; ++side) {
                const int64_t dim = l->config.side[side].head_dim;
                if (i == 1) KVL__TRY(kvl__skip(s, 2 * beyond * dim));
                KVL__TRY(kvl__stream_read(s, rows[i].at[side],
                                          2u * (uint64_t)(rows[i].num_rows * dim)));
            }
        }
    }
    return kvl__staging_store(&job->st, l, to, &view);
}

// A number for a page: later sequences of this layer may refer to it.
KVL__FN kvl_status kvl__number_page(kvl__file_load* job, unsigned char* contents, int64_t place)
{
    kvl_context* ctx = job->cache->ctx;
    if (job->num_pages == job->room) {
        const int64_t room = job->room ? 2 * job->room : 256;
        kvl__file_page* more = (kvl__file_page*)kvl__alloc(ctx, (size_t)room * sizeof *more);
        KVL__REQUIRE(ctx, more, KVL_NO_MEMORY, "the allocator has no %zu bytes",
                     (size_t)room * sizeof *more);
        if (job->pages) memcpy(more, job->pages, (size_t)job->num_pages * sizeof *more);
        kvl__free(ctx, job->pages, (size_t)job->room * sizeof *more);
        job->pages = more;
        job->room = room;
    }
    job->pages[job->num_pages].contents = contents;
    job->pages[job->num_pages++].place = place;
    return KVL_OK;
}

// Names pages [first, end) of a sequence of `cache` that has none there, from those that were
// given.  most: pages that the sequence will have; its list grows towards them.
KVL__FN kvl_status kvl__give_pages(kvl__file_load* job, kvl_cache* cache, kvl__seq* seq,
                                   int64_t first, int64_t end, int64_t most)
{
    if (end > seq->num_pages) {
        const int64_t more = kvl__max_i64(2 * seq->num_pages, KVL__TRUSTED);
        const int64_t num = kvl__max_i64(end, kvl__min_i64(more, most));
        const size_t bytes = (size_t)num * sizeof *seq->pages;
        KVL__REQUIRE(cache->ctx, num <= INT32_MAX, KVL_UNSUPPORTED, "the file has a sequence of "
                     "%lld pages, gone ones counted: a list of them has at most 2^31 - 1",
                     (long long)num);
        int32_t* list = (int32_t*)kvl__alloc(cache->ctx, bytes);
        KVL__REQUIRE(cache->ctx, list, KVL_NO_MEMORY, "the allocator has no %zu bytes", bytes);
        for (int64_t p = 0; p < num; ++p) list[p] = p < seq->num_pages ? seq->pages[p] : -1;
        const int listed = kvl__seq_list_pages(cache, seq, list, num);
        kvl__free(cache->ctx, list, bytes);
        if (!listed) return KVL_NO_MEMORY;
    }
    for (int64_t p = first; p < end; ++p) {
        if (seq->pages[p] >= 0) continue;
        KVL__REQUIRE(cache->ctx, job->next_free < job->num_free, KVL_NO_MEMORY,
                     "num_pages = %lld: more pages are needed for what the file holds",
                     (long long)job->num_free);
        const int32_t page = job->free_pages[job->next_free];
        KVL__REQUIRE(cache->ctx, page >= 0 && page < cache->num_pages, KVL_BAD_ARGUMENT,
                     "pages[%lld] = %d: must be a page from 0 to %lld", (long long)job->next_free,
                     (int)page, (long long)cache->num_pages - 1);
        seq->pages[p] = page;
        ++job->next_free;
    }
    return KVL_OK;
}

// A page that the file has had, of which its sequence and this one have the same rows at one place.
KVL__FN kvl_status kvl__known_page(const kvl__file_load* job, int layer, int64_t number,
                                   int64_t place, unsigned char** out)
{
    KVL__REQUIRE(job->s.ctx, number > 0 && number <= job->num_pages, KVL_FILE,
                 "the file is damaged: page %lld of %lld", (long long)number,
                 (long long)job->num_pages);
    const kvl__file_page* page = &job->pages[number - 1];
    KVL__REQUIRE(job->s.ctx, page->place == place, KVL_FILE,
                 "the file is damaged: page %lld of %lld at place %lld: layer %d has it at %lld",
                 (long long)number, (long long)job->num_pages, (long long)place, layer,
                 (long long)page->place);
    *out = page->contents;
    return KVL_OK;
}

// The next page of a table, which has an entry for it.  most: see kvl__give_pages.
KVL__FN kvl_status kvl__read_page(kvl__file_load* job, const kvl__layer* l, kvl__seq_layer* to,
                                  int64_t most, kvl__page_batch* b)
{
    kvl_cache* cache = job->cache;
    kvl__table* table = to->table;
    const int64_t place = table->first + table->num;
    unsigned char *known = NULL, *page;
    int64_t number;
    KVL__TRY(kvl__read_i64(&job->s, &number));
    if (number != 0)
        KVL__TRY(kvl__known_page(job, (int)(l - cache->layers), number, place, &known));
    else
        KVL__TRY(kvl__stream_read(&job->s, kvl__batch_linear(b, b->num), l->page_bytes));
    if (cache->num_pages)
        KVL__TRY(kvl__give_pages(job, cache, kvl__seq_of(cache, l, to), place, place + 1, most));
    if (known && !cache->num_pages) {
        page = known;
        ++kvl__page_of(page)->uses->refs;
    } else {
        page = kvl__page_for(cache, l, to, place, known);
        if (!page) return kvl__cache_failure(cache);
    }
    kvl__table_put(table, table->num++, page);
    if (known) return KVL_OK;
    b->contents[b->num] = page;
    b->num_rows[b->num++] = l->config.page_size;
    return kvl__number_page(job, page, place);
}

// Room for one more page of `num` that a file claims: entries for as many only once they came.
KVL__FN int kvl__table_grow(kvl_cache* cache, kvl__seq_layer* to, int64_t num)
{
    kvl__table* old = to->table;
    if (old && old->num < old->entries) return 1;
    const int64_t more = old && old->num ? 2 * old->entries : kvl__min_i64(num, KVL__TRUSTED);
    kvl__table* table = kvl__table_create(cache, kvl__table_entries(more));
    if (!table) return 0;
    if (old) {
        table->first = old->first;
        table->num = old->num;
        kvl__table_move(table, 0, old, 0, old->num);
        kvl__table_free(cache, old);
    }
    to->table = table;
    return 1;
}

KVL__FN kvl_status kvl__read_pages(kvl__file_load* job, const kvl__layer* l, kvl__seq_layer* to,
                                   int64_t first, int64_t num)
{
    kvl__page_batch b;
    memset(&b, 0, sizeof b);
    b.l = l;
    b.st = &job->st;
    b.into_page = 1;
    if (num == 0) return KVL_OK;
    KVL__REQUIRE(job->s.ctx, (uint64_t)num <= job->s.left / 8, KVL_FILE,
                 "the file is damaged: %lld pages in %llu bytes", (long long)num,
                 (unsigned long long)job->s.left);
    for (int64_t p = 0; p < num; ++p) {
        if (!kvl__table_grow(job->cache, to, num)) return kvl__cache_failure(job->cache);
        if (p == 0) to->table->first = first;
        KVL__TRY(kvl__read_page(job, l, to, first + num, &b));
        if (b.num < KVL__STAGED_PAGES && p + 1 < num) continue;
        KVL__TRY(kvl__batch_run(&b));
        b.num = 0;
    }
    if (kvl__on_device(job->cache)) kvl__table_update(job->cache, to->table, 0);
    return KVL_OK;
}

KVL__FN kvl_status kvl__read_rows(kvl__file_load* job, int layer, int seq)
{
    const kvl__layer* l = &job->cache->layers[layer];
    kvl__seq_layer* to = &job->seqs[seq]->layers[layer];
    kvl__extent e;
    int64_t num_pages;
    KVL__TRY(kvl__section_read(&job->s, KVL__TAG_ROWS, (uint32_t)layer));
    KVL__TRY(kvl__read_extent(&job->s, &e));
    KVL__TRY(kvl__read_i64(&job->s, &num_pages));
    const int64_t end = kvl__num_pages(&l->config, e.quantized);
    KVL__REQUIRE(job->s.ctx, kvl__extent_fits(l, &e) && num_pages ==
                 end - kvl__min_i64(end, kvl__gone_rows(&e) / l->config.page_size), KVL_FILE,
                 "the file is damaged: layer %d of sequence %d has %lld rows, %lld of them "
                 "quantized, in %lld pages", layer, seq, (long long)e.rows, (long long)e.quantized,
                 (long long)num_pages);
    KVL__REQUIRE(job->s.ctx, !kvl__on_device(job->cache) || e.rows <= KVL__DEVICE_ROWS_MAX,
                 KVL_UNSUPPORTED, "sequence %d: %lld rows: a device takes at most 2^31 - 1 of a "
                 "sequence", seq, (long long)e.rows);
    to->now = e;
    to->now.history = kvl__min_i64(e.history, l->keep_rows);
    KVL__TRY(kvl__read_kept(&job->s, l, to));
    KVL__TRY(kvl__read_stretches(job, l, to, e.history));
    KVL__TRY(kvl__read_pages(job, l, to, end - num_pages, num_pages));
    kvl__record_update(job->cache, to, 1);
    KVL_ASSERT(kvl__seq_layer_holds(l, to));
    return kvl__section_read_end(&job->s);
}

KVL__FN kvl_status kvl__load_seqs(kvl__file_load* job)
{
    kvl_cache* cache = job->cache;
    const size_t bytes = (size_t)job->num_seqs * sizeof *job->seqs;
    KVL__TRY(kvl__file_read_seqs(&job->s, job->num_seqs, &job->out));
    job->seqs = (kvl__seq**)kvl__alloc_zeroed(cache->ctx, bytes);
    KVL__REQUIRE(cache->ctx, job->seqs, KVL_NO_MEMORY, "the allocator has no %zu bytes", bytes);
    for (int i = 0; i < job->num_seqs; ++i) {
        job->seqs[i] = kvl__seq_make(cache, NULL);
        if (!job->seqs[i]) return kvl__cache_failure(cache);
        const kvl__seq* waiting =
            job->into && i < job->num_into ? kvl__seq_find(cache, job->into[i]) : NULL;
        if (waiting && !kvl__seq_list_pages(cache, job->seqs[i], waiting->pages,
                                            waiting->num_pages)) return KVL_NO_MEMORY;
    }
    for (int layer = 0; layer < cache->num_layers; ++layer) {
        job->num_pages = 0;
        if (!cache->layers[layer].active) continue;
        for (int i = 0; i < job->num_seqs; ++i) KVL__TRY(kvl__read_rows(job, layer, i));
    }
    KVL__TRY(kvl__section_read(&job->s, KVL__TAG_DONE, 0));
    KVL__TRY(kvl__section_read_end(&job->s));
    return kvl__device_end(cache);
}

// Handles for all sequences, or for none.
KVL__FN kvl_status kvl__load_enter(kvl__file_load* job)
{
    kvl_cache* cache = job->cache;
    const int num = cache->num_seqs + job->num_seqs;
    KVL__REQUIRE(cache->ctx, !cache->max_seqs || num <= cache->max_seqs, KVL_NO_MEMORY,
                 "max_seqs = %d: %d exist and %d more are in the file", cache->max_seqs,
                 cache->num_seqs, job->num_seqs);
    if (!kvl__slots_grow(cache, num)) return KVL_NO_MEMORY;
    for (int i = 0; i < job->num_seqs; ++i) {
        job->out[i].seq = kvl__seq_enter(cache, job->seqs[i]);
        job->seqs[i] = NULL;
    }
    return KVL_OK;
}

// Sequences take the places of those that wait for them, or none does.
KVL__FN kvl_status kvl__load_return(kvl__file_load* job)
{
    kvl_cache* cache = job->cache;
    KVL__REQUIRE(cache->ctx, job->num_seqs == job->num_into, KVL_BAD_ARGUMENT,
                 "num_seqs = %d: %d are in the file", job->num_into, job->num_seqs);
    for (int i = 0; i < job->num_seqs; ++i)
        KVL__REQUIRE(cache->ctx, kvl__seq_find(cache, job->into[i])->away ==
                     kvl__away_mark(job->s.total, i), KVL_BAD_ARGUMENT,
                     "seqs[%d] = %#llx: was offloaded to another file, or at another place of it",
                     i, (unsigned long long)job->into[i]);
    for (int i = 0; i < job->num_seqs; ++i) {
        kvl__seq** slot = &cache->slots[(job->into[i] & 0xffffffffu) - 1];
        job->seqs[i]->generation = (*slot)->generation;
        kvl__seq_release(cache, *slot);
        *slot = job->seqs[i];
        job->seqs[i] = NULL;
    }
    return KVL_OK;
}

KVL__FN void kvl__load_end(kvl__file_load* job)
{
    kvl_context* ctx = job->cache->ctx;
    for (int i = 0; job->seqs && i < job->num_seqs; ++i)
        if (job->seqs[i]) kvl__seq_release(job->cache, job->seqs[i]);
    kvl__free(ctx, job->seqs, (size_t)job->num_seqs * sizeof *job->seqs);
    kvl__staging_end(ctx, &job->st);
    kvl__free(ctx, job->pages, (size_t)job->room * sizeof *job->pages);
    if (job->out) kvl__loaded_release(ctx, job->out, job->num_seqs);
}

// COPIES BY WAY OF FULL ROWS

enum { KVL__COPY_ROWS = 256 };

typedef struct kvl__copy {
    kvl_cache*   from;
    kvl_cache*   to;
    kvl_seq      from_seq, to_seq;
    int64_t      first, num;
    kvl__passage way;
} kvl__copy;

// Which of rows [first, first + num) are kept there and are to be kept here: all that are not in
// the sink here, where the spec has kept=.
KVL__FN int32_t kvl__copy_names(const kvl__copy* c, int layer, int64_t first, int32_t num,
                                int32_t* names)
{
    const kvl__layer *l = &c->from->layers[layer], *to = &c->to->layers[layer];
    const kvl__seq_layer* s = &kvl__seq_find(c->from, c->from_seq)->layers[layer];
    const int64_t rows = kvl__seq_find(c->to, c->to_seq)->layers[layer].now.rows;
    const int64_t least = first + kvl__max_i64(0, to->config.sink_len - rows);
    int32_t count = 0;
    if (s->now.kept == 0 || to->config.kept_len == 0) return 0;
    for (int64_t i = kvl__kept_before(l, s, least); i < s->now.kept; ++i) {
        const int64_t row = kvl__kept_positions(l, s)[i] - first;
        if (row < num) names[count++] = (int32_t)row;
    }
    return count;
}

// Rows [first, first + num) of a layer, at most KVL__COPY_ROWS.
KVL__FN kvl_status kvl__copy_part(const kvl__copy* c, int layer, int64_t first, int32_t num)
{
    const kvl__config* one = &c->to->layers[layer].config;
    const uint64_t row = 4u * (uint64_t)one->num_kv_heads * (uint64_t)num;
    const uint64_t k_bytes = row * (uint64_t)one->side[0].head_dim;
    int32_t names[KVL__COPY_ROWS];
    const int32_t num_names = kvl__copy_names(c, layer, first, num, names);
    kvl_rows rows[2];
    kvl_append_desc a;
    memset(rows, 0, sizeof rows);
    memset(&a, 0, sizeof a);
    rows[0].data = c->way.rows[0];
    rows[1].data = (char*)c->way.rows[0] + k_bytes;
    const kvl_status status =
        kvl_restore(c->from, layer, c->from_seq, first, num, &rows[0], &rows[1]);
    KVL__TRY(kvl__passage_failed(&c->way, c->from, status));
    KVL__TRY(kvl__passage_cross(&c->way, 0, k_bytes + row * (uint64_t)one->value_dim));
    a.layer = layer;
    a.num_seqs = 1;
    a.seqs = &c->to_seq;
    a.num_rows = &num;
    if (num_names > 0) {
        a.num_kept = &num_names;
        a.kept = names;
    }
    a.k.data = c->way.rows[1];
    if (one->num_stored == 2) a.v.data = (char*)c->way.rows[1] + k_bytes;
    if (kvl__on_device(c->to))
        a.stream = c->from->ctx == c->to->ctx ? c->from->device.stream : c->to->device.stream;
    return kvl_append(c->to, &a);
}

KVL__FN kvl_status kvl__copy_rows(const kvl__copy* c)
{
    for (int layer = 0; layer < c->to->num_layers; ++layer) {
        for (int64_t done = 0; c->to->layers[layer].active && done < c->num;) {
            const int32_t num = (int32_t)kvl__min_i64(c->num - done, KVL__COPY_ROWS);
            KVL__TRY(kvl__copy_part(c, layer, c->first + done, num));
            done += num;
        }
    }
    return KVL_OK;
}

// The two caches have the same shapes.  The one that is written goes on in its own stream.
KVL__FN kvl_status kvl__copy_layers(kvl__copy* c)
{
    int64_t floats = 0;
    for (int i = 0; i < c->to->num_layers; ++i) {
        const kvl__config* one = &c->to->layers[i].config;
        if (c->to->layers[i].active)
            floats = kvl__max_i64(floats, (int64_t)KVL__COPY_ROWS * one->num_kv_heads *
                                              (one->side[0].head_dim + one->value_dim));
    }
    memset(&c->way, 0, sizeof c->way);
    c->way.end[0] = c->from;
    c->way.end[1] = c->to;
    c->way.bytes = 4u * (uint64_t)floats;
    void* stream = c->to->device.stream;
    kvl_status status = kvl__passage_begin(&c->way);
    if (status == KVL_OK) status = kvl__copy_rows(c);
    if (kvl__on_device(c->to) && c->to->device.stream != stream) {
        int captured;
        const kvl_status back = kvl__device_begin(c->to, stream, &captured);
        if (status == KVL_OK) status = back;
    }
    kvl__passage_end(&c->way);
    return status;
}

// Rows that keep another position than their number are not for a shift by position.
KVL__FN kvl_status kvl__check_positions(const kvl__copy* c, const kvl__seq* seq)
{
    for (int i = 0; i < c->to->num_layers; ++i) {
        const kvl__layer* l = &c->to->layers[i];
        if (!l->active || !kvl__is_by_position(&l->config.side[0])) continue;
        KVL__REQUIRE(c->to->ctx, seq->layers[i].now.rows == c->first, KVL_UNSUPPORTED,
                     "layer %d: k.%s = %s: row %lld would be row %lld here, and it must keep "
                     "its number", i, kvl__position_stage(&l->config.side[0]),
                     kvl__position_word(&l->config.side[0]),
                     (long long)c->first, (long long)seq->layers[i].now.rows);
    }
    return KVL_OK;
}

KVL__FN kvl_status kvl__check_copy(const kvl__copy* c)
{
    kvl_context* ctx = c->to->ctx;
    KVL__REQUIRE(ctx, c->from->num_layers == c->to->num_layers, KVL_BAD_ARGUMENT,
                 "num_layers = %d: the other cache has %d", c->to->num_layers,
                 c->from->num_layers);
    for (int i = 0; i < c->to->num_layers; ++i) {
        const kvl__config* a = &c->from->layers[i].config;
        const kvl__config* b = &c->to->layers[i].config;
        KVL__REQUIRE(ctx, a->num_kv_heads == b->num_kv_heads &&
                     a->side[0].head_dim == b->side[0].head_dim && a->value_dim == b->value_dim &&
                     a->num_stored == b->num_stored, KVL_BAD_ARGUMENT,
                     "layer %d: %d heads of %d and %d channels there, %d of %d and %d here", i,
                     a->num_kv_heads, a->side[0].head_dim, a->value_dim, b->num_kv_heads,
                     b->side[0].head_dim, b->value_dim);
        KVL__REQUIRE(ctx, kvl__is_folded(&a->side[1]) == kvl__is_folded(&b->side[1]) &&
                     (!kvl__is_folded(&a->side[1]) ||
                      (c->from->layers[i].fold_hash == c->to->layers[i].fold_hash &&
                       a->side[1].words[KVL__STAGE_TRANSFORM] ==
                           b->side[1].words[KVL__STAGE_TRANSFORM] &&
                       a->side[1].numbers[KVL__STAGE_TRANSFORM] ==
                           b->side[1].numbers[KVL__STAGE_TRANSFORM])), KVL_UNSUPPORTED,
                     "layer %d: values of v.place = folded are of use to the same basis alone, "
                     "which the other cache has not", i);
    }
    return KVL_OK;
}

// Whether the rows are there; the message is in the context of the cache that is written.
KVL__FN kvl_status kvl__check_copied(const kvl__copy* c)
{
    kvl_context* ctx = c->to->ctx;
    const kvl__seq* seq = kvl__seq_find(c->from, c->from_seq);
    KVL__REQUIRE(ctx, seq, KVL_BAD_ARGUMENT, "from_seq = %#llx: no sequence of the cache that is "
                 "read, or one that was freed", (unsigned long long)c->from_seq);
    KVL__REQUIRE(ctx, !seq->away, KVL_BAD_ARGUMENT, "from_seq = %#llx: its rows are offloaded: "
                 "kvl_reload brings them back", (unsigned long long)c->from_seq);
    KVL__REQUIRE(ctx, c->first >= 0 && c->num >= 0, KVL_BAD_ARGUMENT,
                 "first = %lld, num = %lld: must not be negative", (long long)c->first,
                 (long long)c->num);
    for (int i = 0; i < c->from->num_layers; ++i) {
        const kvl__extent* e = &seq->layers[i].now;
        const int64_t sink = c->from->layers[i].config.sink_len, gone = kvl__gone_rows(e);
        if (!c->from->layers[i].active) continue;
        KVL__REQUIRE(ctx, c->first <= e->rows && c->num <= e->rows - c->first, KVL_BAD_ARGUMENT,
                     "rows %lld and %lld more: layer %d has %lld rows", (long long)c->first,
                     (long long)c->num, i, (long long)e->rows);
        KVL__REQUIRE(ctx, gone == 0 || c->num == 0 || c->first >= sink + gone ||
                     c->first + c->num <= sink, KVL_BAD_ARGUMENT,
                     "rows %lld and %lld more: those from %lld to %lld of layer %d are dropped",
                     (long long)c->first, (long long)c->num, (long long)sink,
                     (long long)(sink + gone - 1), i);
    }
    return KVL_OK;
}

// On a fork of the destination, so that it is as it was after a failure; it is no sequence of the
// caller's, and max_seqs does not count it.
KVL__PUBLIC kvl_status kvl_copy_rows(kvl_cache* to, kvl_seq to_seq, kvl_cache* from,
                                     kvl_seq from_seq, int64_t first, int64_t num)
{
    kvl__copy c;
    kvl__seq *seq, *fork;
    KVL__USE_CACHE(to);
    KVL__REQUIRE(to->ctx, from, KVL_BAD_ARGUMENT, "from = NULL: must be given");
    c.from = from;
    c.to = to;
    c.from_seq = from_seq;
    c.first = first;
    c.num = num;
    KVL__TRY(kvl__check_copy(&c));
    KVL__REQUIRE(to->ctx, to->num_pages == 0, KVL_UNSUPPORTED, "kvl_copy_rows: page tables are the "
                 "engine's (num_pages): append what kvl_restore gives");
    KVL__TRY(kvl__need_seq(to, to_seq, &seq));
    KVL__TRY(kvl__check_copied(&c));
    KVL__TRY(kvl__check_positions(&c, seq));
    KVL__TRY(kvl__seq_add_made(to, kvl__seq_make(to, seq), &c.to_seq));
    fork = kvl__seq_find(to, c.to_seq);
    kvl_status status = kvl__copy_layers(&c);
    if (status == KVL_OK) {
        kvl__seq_layer* layers = seq->layers;       // the two trade contents, handles stay
        const kvl__restored restored = seq->restored;
        seq->restored = fork->restored;
        seq->restored.captured |= restored.captured;
        fork->restored = restored;
        for (int i = 0; i < to->num_layers; ++i) {
            const kvl__seq_layer own = layers[i];
            layers[i] = fork->layers[i];
            fork->layers[i] = own;
            layers[i].owner = seq;
            fork->layers[i].owner = fork;
            fork->layers[i].record = layers[i].record;      // graphs know the sequence by it
            layers[i].record = own.record;
            kvl__record_update(to, &layers[i], 1);
        }
        status = kvl__device_done(to);
    }
    const kvl_status freed = kvl_seq_free(to, c.to_seq);
    KVL_ASSERT(freed == KVL_OK);
    (void)freed;
    return status;
}

// A cache of the file's own specs, to read it with.
KVL__FN kvl_status kvl__load_twin(const kvl_cache* cache, kvl__file_layer* layers,
                                  const kvl_load_desc* d, kvl_cache** twin)
{
    kvl_context* ctx = cache->ctx;
    const size_t bytes = (size_t)cache->num_layers * sizeof(kvl_layer_desc);
    kvl_layer_desc* descs = (kvl_layer_desc*)kvl__alloc_zeroed(ctx, bytes);
    kvl_cache_desc desc;
    KVL__REQUIRE(ctx, descs, KVL_NO_MEMORY, "the allocator has no %zu bytes", bytes);
    (void)d;
    for (int i = 0; i < cache->num_layers; ++i) {
        if (!layers[i].active) continue;
        if (layers[i].calibration) {
            kvl__free(ctx, descs, bytes);
            return kvl__fail(ctx, KVL_UNSUPPORTED, "layer %d: rows of '%s' depend on their "
                             "calibration, which the file does not have: they cannot be recoded",
                             i, layers[i].spec);
        }
        descs[i].num_kv_heads = (int)kvl__min_i64(layers[i].num_kv_heads, INT_MAX / 16);
        descs[i].num_q_heads = descs[i].num_kv_heads;
        descs[i].head_dim = (int)kvl__min_i64(layers[i].head_dim, INT_MAX);
        descs[i].head_dim_v = (int)kvl__min_i64(layers[i].head_dim_v, INT_MAX);
        descs[i].values_in_keys = layers[i].active == 3;
        if (!strstr(layers[i].spec, "kept="))
            kvl__append_text(layers[i].spec, sizeof layers[i].spec, ",kept=0");
        descs[i].spec = layers[i].spec;
    }
    memset(&desc, 0, sizeof desc);
    desc.num_layers = cache->num_layers;
    desc.layers = descs;
    const kvl_status status = kvl_cache_create(ctx, &desc, twin);
    kvl__free(ctx, descs, bytes);
    return status;
}

KVL__FN kvl_status kvl__load_recode(kvl__file_load* job, kvl_cache* cache, int* entered)
{
    kvl__copy c;
    c.from = job->cache;
    c.to = cache;
    c.first = 0;
    KVL__TRY(kvl__check_copy(&c));
    KVL__TRY(kvl__load_seqs(job));
    KVL__TRY(kvl__load_enter(job));
    for (int i = 0; i < job->num_seqs; ++i) {
        c.from_seq = job->out[i].seq;
        const kvl__seq* seq = kvl__seq_find(job->cache, c.from_seq);
        int64_t rows = -1, gone = 0;
        for (int k = 0; k < cache->num_layers; ++k) {
            if (!cache->layers[k].active) continue;
            const kvl__extent* e = &seq->layers[k].now;
            gone = kvl__max_i64(gone, kvl__gone_rows(e));
            KVL__REQUIRE(cache->ctx, rows < 0 || rows == e->rows, KVL_UNSUPPORTED,
                         "sequence %d has %lld rows in layer %d and %lld before it: cannot be "
                         "recoded", i, (long long)e->rows, k, (long long)rows);
            rows = e->rows;
        }
        KVL__REQUIRE(cache->ctx, gone == 0, KVL_UNSUPPORTED,
                     "sequence %d has dropped rows: cannot be recoded", i);
        KVL__TRY(kvl__seq_add(cache, NULL, &job->out[i].seq));
        c.to_seq = job->out[i].seq;
        ++*entered;
        c.num = kvl__max_i64(0, rows);
        if (cache->num_pages) {
            int64_t needed;
            KVL__TRY(kvl_pages_needed(cache, c.num, &needed));
            KVL__TRY(kvl__give_pages(job, cache, kvl__seq_find(cache, c.to_seq), 0, needed,
                                     needed));
        }
        KVL__TRY(kvl__copy_layers(&c));
    }
    return KVL_OK;
}

KVL__FN kvl_status kvl__load_into(kvl__file_load* job, kvl_cache* cache, const kvl_load_desc* d,
                                  kvl__file_layer* layers, int num_seqs)
{
    kvl_cache* twin = NULL;
    kvl_status status = KVL_OK;
    int entered = 0, same = 1;
    for (int i = 0; i < cache->num_layers; ++i) {
        status = kvl__match_layer(cache->ctx, i, &layers[i], &cache->layers[i]);
        if (status != KVL_OK && !d->recode) return status;
        if (status != KVL_OK) same = 0;
    }
    job->cache = cache;
    job->num_seqs = num_seqs;
    if (same) {
        KVL__TRY(kvl__staging_begin(cache, &job->st));
        KVL__TRY(kvl__load_seqs(job));
        return job->into ? kvl__load_return(job) : kvl__load_enter(job);
    }
    KVL__TRY(kvl__load_twin(cache, layers, d, &twin));
    job->cache = twin;
    status = kvl__staging_begin(twin, &job->st);
    if (status == KVL_OK) status = kvl__load_recode(job, cache, &entered);
    for (int i = 0; status != KVL_OK && i < entered; ++i) kvl_seq_free(cache, job->out[i].seq);
    // Its sequences go with the twin; what is left of the job is the context's.
    for (int i = 0; job->seqs && i < num_seqs; ++i) {
        if (job->seqs[i]) kvl__seq_release(twin, job->seqs[i]);
        job->seqs[i] = NULL;
    }
    job->cache = cache;
    kvl_cache_free(twin);
    return status;
}

KVL__FN kvl_status kvl__load_stream(kvl__file_load* job, kvl_cache* cache, const kvl_load_desc* d)
{
    kvl_context* ctx = cache->ctx;
    kvl_file_info info;
    KVL__TRY(kvl__read_header(&job->s, &info));
    KVL__REQUIRE(ctx, info.num_layers == cache->num_layers, KVL_BAD_ARGUMENT,
                 "num_layers = %d in the file, %d in the cache", info.num_layers,
                 cache->num_layers);
    const size_t bytes = (size_t)info.num_layers * sizeof(kvl__file_layer);
    kvl__file_layer* layers = (kvl__file_layer*)kvl__alloc_zeroed(ctx, bytes);
    KVL__REQUIRE(ctx, layers, KVL_NO_MEMORY, "the allocator has no %zu bytes", bytes);
    kvl_status status = KVL_OK;
    for (int i = 0; i < info.num_layers && status == KVL_OK; ++i)
        status = kvl__file_read_layer(&job->s, (uint32_t)i, &layers[i]);
    if (status == KVL_OK) status = kvl__load_into(job, cache, d, layers, info.num_seqs);
    kvl__free(ctx, layers, bytes);
    return status;
}

KVL__FN kvl_status kvl__open_file(kvl_context* ctx, const char* path, FILE** file)
{
    struct stat st;
    *file = NULL;
    KVL__REQUIRE(ctx, stat(path, &st) != 0 || !S_ISDIR(st.st_mode), KVL_FILE,
                 "%s: cannot be read: it is a folder", path);
    *file = fopen(path, "rb");
    KVL__REQUIRE(ctx, *file, KVL_FILE, "%s: cannot be read: %s", path, strerror(errno));
    return KVL_OK;
}

// into: see kvl__file_load; out then stays NULL.
KVL__FN kvl_status kvl__load_run(kvl_cache* cache, const kvl_load_desc* d, kvl__file_load* like,
                                 kvl_loaded_seq** out, int* num_seqs)
{
    kvl__file_load job;
    FILE* file = NULL;
    kvl_context* ctx = cache->ctx;
    *out = NULL;
    *num_seqs = 0;
    KVL__REQUIRE(ctx, d->end == 0, KVL_BAD_ARGUMENT,
                 "kvl_load_desc.end = %u: must be 0: zero the whole desc first", d->end);
    KVL__REQUIRE(ctx, (d->path != NULL) != (d->read != NULL), KVL_BAD_ARGUMENT,
                 "path, read: exactly one of them must be given");
    memset(&job, 0, sizeof job);
    job.cache = cache;
    job.s.ctx = ctx;
    job.s.read = d->read;
    job.s.user = d->user;
    job.free_pages = d->pages;
    job.num_free = d->pages ? d->num_pages : 0;
    job.into = like->into;
    job.num_into = like->num_into;
    if (d->path) {
        KVL__TRY(kvl__open_file(ctx, d->path, &file));
        job.s.read = kvl__file_read;
        job.s.user = file;
    }
    const kvl_status status = kvl__load_stream(&job, cache, d);
    if (file) fclose(file);
    if (status == KVL_OK && !job.into) {
        *out = job.out;
        *num_seqs = job.num_seqs;
        job.out = NULL;
    }
    kvl__load_end(&job);
    return status;
}

KVL__PUBLIC kvl_status kvl_load(kvl_cache* cache, const kvl_load_desc* d, kvl_loaded_seq** out,
                                int* num_seqs)
{
    kvl__file_load plain;
    KVL__USE_CACHE(cache);
    KVL__REQUIRE(cache->ctx, d && out && num_seqs, KVL_BAD_ARGUMENT,
                 "kvl_load_desc, out, num_seqs: must be given");
    plain.into = NULL;
    plain.num_into = 0;
    return kvl__load_run(cache, d, &plain, out, num_seqs);
}

KVL__PUBLIC kvl_status kvl_reload(kvl_cache* cache, const kvl_load_desc* d, const kvl_seq* seqs,
                                  int num_seqs)
{
    kvl__file_load waiting;
    kvl_loaded_seq* none;
    int num;
    KVL__USE_CACHE(cache);
    KVL__REQUIRE(cache->ctx, d && seqs && num_seqs >= 1, KVL_BAD_ARGUMENT,
                 "kvl_load_desc, seqs, num_seqs: must be given");
    KVL__REQUIRE(cache->ctx, d->recode == 0, KVL_BAD_ARGUMENT,
                 "recode = %d: must be 0: rows return as they were", d->recode);
    for (int i = 0; i < num_seqs; ++i) {
        const kvl__seq* seq = kvl__seq_find(cache, seqs[i]);
        KVL__REQUIRE(cache->ctx, seq && seq->away, KVL_BAD_ARGUMENT,
                     "seqs[%d] = %#llx: no sequence of this cache that is offloaded", i,
                     (unsigned long long)seqs[i]);
    }
    waiting.into = seqs;
    waiting.num_into = num_seqs;
    return kvl__load_run(cache, d, &waiting, &none, &num);
}

KVL__PUBLIC void kvl_loaded_free(kvl_context* ctx, kvl_loaded_seq* seqs, int num_seqs)
{
    if (ctx && seqs) kvl__loaded_release(ctx, seqs, num_seqs);
}

// What a file has before its rows: layers, then tokens and data of its sequences.
KVL__FN kvl_status kvl__read_front(kvl__stream* s, kvl_file_info* info, kvl_loaded_seq** out)
{
    kvl__file_layer layer;
    KVL__TRY(kvl__read_header(s, info));
    for (int i = 0; i < info->num_layers; ++i) {
        KVL__TRY(kvl__file_read_layer(s, (uint32_t)i, &layer));
        if (layer.active && !info->spec[0])
            snprintf(info->spec, sizeof info->spec, "%s", layer.spec);
    }
    KVL__TRY(kvl__file_read_seqs(s, info->num_seqs, out));
    for (int i = 0; i < info->num_seqs; ++i) {
        info->num_tokens += (*out)[i].num_tokens;
        info->data_bytes += (*out)[i].data_bytes;
    }
    return KVL_OK;
}

KVL__FN kvl_status kvl__open_front(kvl_context* ctx, const char* path, kvl_file_info* info,
                                   kvl_loaded_seq** out)
{
    kvl__stream s;
    FILE* file;
    *out = NULL;
    KVL__TRY(kvl__open_file(ctx, path, &file));
    memset(&s, 0, sizeof s);
    s.ctx = ctx;
    s.read = kvl__file_read;
    s.user = file;
    const kvl_status status = kvl__read_front(&s, info, out);
    fclose(file);
    if (status == KVL_OK) return KVL_OK;
    memset(info, 0, sizeof *info);
    return status;
}

KVL__PUBLIC kvl_status kvl_file_read_info(kvl_context* ctx, const char* path, kvl_file_info* out)
{
    kvl_loaded_seq* seqs;
    KVL__TRY(kvl__check_context(ctx));
    KVL__REQUIRE(ctx, path && out, KVL_BAD_ARGUMENT, "path, out: must be given");
    KVL__TRY(kvl__open_front(ctx, path, out, &seqs));
    kvl__loaded_release(ctx, seqs, out->num_seqs);
    return KVL_OK;
}

KVL__PUBLIC kvl_status kvl_file_read_seqs(kvl_context* ctx, const char* path, kvl_loaded_seq** out,
                                          int* num_seqs)
{
    kvl_file_info info;
    KVL__TRY(kvl__check_context(ctx));
    KVL__REQUIRE(ctx, path && out && num_seqs, KVL_BAD_ARGUMENT,
                 "path, out, num_seqs: must be given");
    *num_seqs = 0;
    KVL__TRY(kvl__open_front(ctx, path, &info, out));
    *num_seqs = info.num_seqs;
    return KVL_OK;
}

#endif
