// fuzz_load.c -- any bytes as a file of saved sequences.
//
// The first byte says which cache loads (bit 0, or bit 5 without bit 4) and whether it recodes, and
// whether checksums are put right first, so that what is behind them is reached.  A load gives an
// error and changes nothing, or sequences that can be attended to, forked, cut and saved.

#include "fuzz_support.h"

// Puts the checksums of a file's sections right, as far as its lengths go.
static void repair(uint8_t* data, size_t size)
{
    size_t at = KVL__FILE_HEADER;
    while (size >= KVL__SECTION_HEADER + 8 && at <= size - KVL__SECTION_HEADER - 8) {
        const uint64_t bytes = kvl__get_u64(data + at + 8);
        if (bytes > size - at - KVL__SECTION_HEADER - 8) return;
        const size_t num = KVL__SECTION_HEADER + (size_t)bytes;
        kvl__put_u64(data + at + num, XXH3_64bits(data + at, num));
        at += num + 8;
    }
}

// A calibration without a model: the same numbers for every table, rising.
static kvl_status find_table(kvl_context* ctx, const kvl__table_source* source,
                             const kvl__wanted_table* w, const float** out)
{
    static float numbers[256];
    (void)ctx;
    (void)source;
    (void)w;
    for (int i = 0; i < 256; ++i) numbers[i] = 0.25f + (float)i / 16.0f;
    *out = numbers;
    return KVL_OK;
}

static int count_bytes(const void* bytes, size_t num, void* user)
{
    (void)bytes;
    *(uint64_t*)user += num;
    return 0;
}

// What an engine does with a sequence that was loaded.
static void use(kvl_cache* cache, kvl_seq seq)
{
    kvl_seq_rows rows;
    kvl_seq fork;
    uint64_t bytes = 0;
    kvl_save_seq one;
    kvl_save_desc d;
    memset(&one, 0, sizeof one);
    memset(&d, 0, sizeof d);
    FUZZ_HOLDS(kvl_seq_get_rows(cache, 0, seq, &rows) == KVL_OK);
    FUZZ_HOLDS(rows.rows == rows.sink + rows.quantized + rows.tail);
    if (rows.rows > 0 && rows.rows < 1 << 20) fuzz_attend(cache, seq);
    if (kvl_seq_fork(cache, seq, &fork) == KVL_OK) {
        kvl_truncate(cache, fork, rows.rows - rows.rows / 3);
        if (rows.rows < 1 << 20) fuzz_attend(cache, fork);
        FUZZ_HOLDS(kvl_seq_free(cache, fork) == KVL_OK);
    }
    one.seq = seq;
    d.num_seqs = 1;
    d.seqs = &one;
    d.write = count_bytes;
    d.user = &bytes;
    kvl_save(cache, &d);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
{
    static const char* const specs[] = { "kivi:k2,v2,g16,sink=2,recent=16,chunk=16,page=16",
                                         "q8_0:sink=0,recent=0,page=16",
                                         "kvquant:sink=2,recent=0,page=16" };
    static const kvl_rope rope = { 0, 1, 10000, 0, NULL };
    static const kvl__table_source tables = { find_table, NULL, 0 };
    fuzz_memory memory;
    kvl_cache* cache;
    kvl_cache_desc desc;
    memset(&memory, 0, sizeof memory);
    memset(&desc, 0, sizeof desc);
    if (size < 1) return 0;
    const int what = data[0];
    fuzz_bytes file = { data + 1, NULL, size - 1, 0, 0 };
    uint8_t* copy = (uint8_t*)malloc(size);
    FUZZ_HOLDS(copy);
    memcpy(copy, data + 1, size - 1);
    if (what & 4) repair(copy, size - 1);
    file.from = copy;
    kvl_context* ctx = fuzz_context(&memory);
    kvl_layer_desc layer = fuzz_layer(specs[(what & 48) == 32 ? 2 : what & 1]);
    layer.rope = &rope;
    desc.num_layers = 1;
    desc.layers = &layer;
    desc.calibration = (const kvl_calibration*)(const void*)&tables;
    desc.keep_len = what & 8 ? 20 : 0;
    FUZZ_HOLDS(kvl_cache_create(ctx, &desc, &cache) == KVL_OK);
    const uint64_t live = memory.live;
    kvl_load_desc from;
    kvl_loaded_seq* out = NULL;
    int num = 0;
    memset(&from, 0, sizeof from);
    from.read = fuzz_read;
    from.user = &file;
    from.recode = what >> 1 & 1;
    if (what & 16) memory.fail_at = memory.calls + 1 + (what >> 5);
    const kvl_status status = kvl_load(cache, &from, &out, &num);
    memory.fail_at = 0;
    if (status != KVL_OK) FUZZ_HOLDS(memory.live == live && kvl_context_message(ctx)[0]);
    for (int i = 0; i < num; ++i) use(cache, out[i].seq);
    for (int i = 0; i < num; ++i) FUZZ_HOLDS(kvl_seq_free(cache, out[i].seq) == KVL_OK);
    kvl_loaded_free(ctx, out, num);
    kvl_cache_free(cache);
    kvl_context_destroy(ctx);
    FUZZ_HOLDS(memory.live == 0);
    free(copy);
    return 0;
}
