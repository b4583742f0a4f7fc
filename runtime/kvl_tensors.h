// kvl_tensors.h -- named arrays and texts in one safetensors file: a strict reader, a writer.
//
//     u64 header_bytes | header: JSON, padded with blanks | data
//     header = { "__metadata__": { name: text, ... },
//                name: { "dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end] }, ... }
//
// Little-endian; offsets count from the first byte of data, arrays follow each other without holes
// (huggingface/safetensors, README, "Format").  The reader checks all of it, and that the file ends
// where its last array does: what it accepts, it has understood.  Arrays of types that kvloom does
// not compute with are kept by name and shape alone.
//
// Files are written under a private name and renamed: a reader sees the old file or the whole new
// one.

#ifndef KVL_TENSORS_H
#define KVL_TENSORS_H

#include "kvl_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

enum {
    KVL__TENSOR_RANK = 8,
    KVL__TENSOR_NAME = 600,            // "layer.123.k.name@" and the text of a side
    KVL__TENSORS_HEADER = 100000000    // bytes, the format's own bound
};

typedef enum kvl__tensor_type {
    KVL__TENSOR_F32, KVL__TENSOR_F64,
    KVL__TENSOR_OTHER                  // not read
} kvl__tensor_type;

// A copy of the first items of each head, of an array that has more of them (kvl_calibration.h).
typedef struct kvl__tensor_part {
    struct kvl__tensor_part* next;
    int64_t num;
    size_t  bytes;                     // of the whole
} kvl__tensor_part;

typedef struct kvl__tensor {
    char*            name;
    kvl__tensor_type type;
    int              rank;
    int64_t          shape[KVL__TENSOR_RANK];
    uint64_t         bytes;
    void*            data;             // NULL: left in the file
    uint64_t         begin;            // in the file's data
    kvl__tensor_part* parts;           // of data, and no older than it
} kvl__tensor;

typedef struct kvl__meta {
    char* name;
    char* text;
} kvl__meta;

typedef struct kvl__tensors {
    kvl_context* ctx;
    kvl__tensor* list;
    int          num, capacity;
    kvl__meta*   meta;
    int          num_meta, meta_capacity;
} kvl__tensors;

// Frees the numbers and what was made of them.
KVL__FN void kvl__tensor_free_data(kvl_context* ctx, kvl__tensor* one)
{
    while (one->parts) {
        kvl__tensor_part* part = one->parts;
        one->parts = part->next;
        kvl__free(ctx, part, part->bytes);
    }
    kvl__free(ctx, one->data, (size_t)one->bytes);
    one->data = NULL;
}

KVL__FN void kvl__tensors_free(kvl__tensors* t)
{
    for (int i = 0; i < t->num; ++i) {
        kvl__free_text(t->ctx, t->list[i].name);
        kvl__tensor_free_data(t->ctx, &t->list[i]);
    }
    for (int i = 0; i < t->num_meta; ++i) {
        kvl__free_text(t->ctx, t->meta[i].name);
        kvl__free_text(t->ctx, t->meta[i].text);
    }
    kvl__free(t->ctx, t->list, (size_t)t->capacity * sizeof *t->list);
    kvl__free(t->ctx, t->meta, (size_t)t->meta_capacity * sizeof *t->meta);
    t->list = NULL;
    t->meta = NULL;
    t->num = t->capacity = t->num_meta = t->meta_capacity = 0;
}

// Room for one more of size bytes each; returns the array, or NULL.
KVL__FN void* kvl__tensors_grow(kvl_context* ctx, void* array, int num, int* capacity, size_t size)
{
    if (num < *capacity) return array;
    const int more = *capacity * 2 + 16;
    void* larger = kvl__alloc_zeroed(ctx, (size_t)more * size);
    if (!larger) return NULL;
    if (array) memcpy(larger, array, (size_t)num * size);
    kvl__free(ctx, array, (size_t)*capacity * size);
    *capacity = more;
    return larger;
}

KVL__FN kvl__tensor* kvl__tensors_find(const kvl__tensors* t, const char* name)
{
    for (int i = 0; i < t->num; ++i)
        if (strcmp(t->list[i].name, name) == 0) return &t->list[i];
    return NULL;
}

// "" where the file has no such text.
KVL__FN const char* kvl__tensors_text(const kvl__tensors* t, const char* name)
{
    for (int i = 0; i < t->num_meta; ++i)
        if (strcmp(t->meta[i].name, name) == 0) return t->meta[i].text;
    return "";
}

// Takes an array out.  Others keep their order.
KVL__FN void kvl__tensors_remove(kvl__tensors* t, const char* name)
{
    kvl__tensor* one = kvl__tensors_find(t, name);
    if (!one) return;
    kvl__free_text(t->ctx, one->name);
    kvl__tensor_free_data(t->ctx, one);
    const int at = (int)(one - t->list);
    memmove(one, one + 1, (size_t)(--t->num - at) * sizeof *one);
}

KVL__FN kvl_status kvl__tensors_no_memory(kvl_context* ctx)
{
    return kvl__fail(ctx, KVL_NO_MEMORY, "no memory for the arrays of a calibration");
}

KVL__FN kvl_status kvl__tensors_set_text(kvl__tensors* t, const char* name, const char* text)
{
    kvl_context* ctx = t->ctx;
    char* copy = kvl__copy_text(ctx, text);
    if (!copy) return kvl__tensors_no_memory(ctx);
    for (int i = 0; i < t->num_meta; ++i) {
        if (strcmp(t->meta[i].name, name) != 0) continue;
        kvl__free_text(ctx, t->meta[i].text);
        t->meta[i].text = copy;
        return KVL_OK;
    }
    kvl__meta* list = (kvl__meta*)kvl__tensors_grow(ctx, t->meta, t->num_meta, &t->meta_capacity,
                                                    sizeof *list);
    if (list) t->meta = list;
    char* copied_name = list ? kvl__copy_text(ctx, name) : NULL;
    if (!copied_name) {
        kvl__free_text(ctx, copy);
        return kvl__tensors_no_memory(ctx);
    }
    list[t->num_meta].name = copied_name;
    list[t->num_meta++].text = copy;
    return KVL_OK;
}

KVL__FN size_t kvl__tensor_size(kvl__tensor_type type)
{
    return type == KVL__TENSOR_F64 ? sizeof(double) : sizeof(float);
}

// Adds an array of zeros, or takes the place of one of that name.  *out: the array.
KVL__FN kvl_status kvl__tensors_add(kvl__tensors* t, const char* name, kvl__tensor_type type,
                                    const int64_t* shape, int rank, kvl__tensor** out)
{
    kvl_context* ctx = t->ctx;
    uint64_t bytes = kvl__tensor_size(type);
    for (int i = 0; i < rank; ++i) bytes *= (uint64_t)shape[i];
    void* data = kvl__alloc_zeroed(ctx, (size_t)bytes);
    if (!data) return kvl__tensors_no_memory(ctx);
    kvl__tensor* one = kvl__tensors_find(t, name);
    if (one) {
        kvl__tensor_free_data(ctx, one);
    } else {
        kvl__tensor* list = (kvl__tensor*)kvl__tensors_grow(ctx, t->list, t->num, &t->capacity,
                                                            sizeof *list);
        if (list) t->list = list;
        char* copy = list ? kvl__copy_text(ctx, name) : NULL;
        if (!copy) {
            kvl__free(ctx, data, (size_t)bytes);
            return kvl__tensors_no_memory(ctx);
        }
        one = &t->list[t->num++];
        memset(one, 0, sizeof *one);
        one->name = copy;
    }
    one->type = type;
    one->rank = rank;
    for (int i = 0; i < rank; ++i) one->shape[i] = shape[i];
    one->bytes = bytes;
    one->data = data;
    *out = one;
    return KVL_OK;
}

// READING

typedef struct kvl__json {
    kvl_context* ctx;
    const char*  path;
    const char*  text;                 // terminated
    size_t       at, bytes;
    kvl_status   status;               // of the first fault
} kvl__json;

__attribute__((format(printf, 2, 3)))
KVL__FN int kvl__json_fail(kvl__json* j, const char* format, ...)
{
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (j->status == KVL_OK)
        j->status = kvl__fail(j->ctx, KVL_FILE, "%s: not a safetensors file, or damaged: "
                              "header, byte %zu: %s", j->path, j->at, what);
    return 0;
}

KVL__FN void kvl__json_blanks(kvl__json* j)
{
    while (j->at < j->bytes && strchr(" \t\r\n", j->text[j->at]) && j->text[j->at]) ++j->at;
}

KVL__FN int kvl__json_is(kvl__json* j, char c)
{
    kvl__json_blanks(j);
    if (j->at >= j->bytes || j->text[j->at] != c) return 0;
    ++j->at;
    return 1;
}

KVL__FN int kvl__json_need(kvl__json* j, char c)
{
    return kvl__json_is(j, c) || kvl__json_fail(j, "'%c' is missing", c);
}

KVL__FN int kvl__json_hex(kvl__json* j, uint32_t* out)
{
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i, ++j->at) {
        const char c = j->at < j->bytes ? j->text[j->at] : '\0';
        if (c >= '0' && c <= '9') value = value * 16 + (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f') value = value * 16 + (uint32_t)(c - 'a') + 10;
        else if (c >= 'A' && c <= 'F') value = value * 16 + (uint32_t)(c - 'A') + 10;
        else return kvl__json_fail(j, "\\u must have 4 hex digits");
    }
    *out = value;
    return 1;
}

// Writes a code point as UTF-8; returns its bytes.
KVL__FN size_t kvl__put_utf8(uint32_t c, char* out)
{
    if (c < 0x80) { out[0] = (char)c; return 1; }
    const size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; --i, c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
    return n;
}

// After a backslash.
KVL__FN int kvl__json_escape(kvl__json* j, char* out, size_t* used)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char c = j->at < j->bytes ? j->text[j->at++] : '\0';
    const char* known = c ? strchr(from, c) : NULL;
    uint32_t high = 0, low = 0;
    if (known) {
        out[(*used)++] = to[known - from];
        return 1;
    }
    if (c != 'u' || !kvl__json_hex(j, &high)) return kvl__json_fail(j, "a wrong escape");
    if (high >= 0xd800 && high < 0xdc00) {
        if (j->at + 2 > j->bytes || memcmp(j->text + j->at, "\\u", 2) != 0)
            return kvl__json_fail(j, "half of a surrogate pair");
        j->at += 2;
        if (!kvl__json_hex(j, &low)) return 0;
        if (low < 0xdc00 || low > 0xdfff) return kvl__json_fail(j, "half of a surrogate pair");
        high = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    } else if (high == 0 || (high >= 0xdc00 && high < 0xe000)) {
        return kvl__json_fail(j, "a code point that no text has");
    }
    *used += kvl__put_utf8(high, out + *used);
    return 1;
}

// A string of at most size - 5 bytes, so that a code point always fits.
KVL__FN int kvl__json_string(kvl__json* j, char* out, size_t size)
{
    size_t used = 0;
    if (!kvl__json_need(j, '"')) return 0;
    for (;;) {
        const char c = j->at < j->bytes ? j->text[j->at++] : '\0';
        if (c == '"') break;
        if ((unsigned char)c < 0x20) return kvl__json_fail(j, "a string has no end");
        if (used + 5 > size) return kvl__json_fail(j, "a string has more than %zu bytes", size - 5);
        if (c != '\\') out[used++] = c;
        else if (!kvl__json_escape(j, out, &used)) return 0;
    }
    out[used] = '\0';
    return 1;
}

// A whole number up to 2^53.
KVL__FN int kvl__json_count(kvl__json* j, uint64_t* out)
{
    uint64_t value = 0;
    kvl__json_blanks(j);
    const size_t start = j->at;
    for (; j->at < j->bytes && j->text[j->at] >= '0' && j->text[j->at] <= '9'; ++j->at) {
        value = value * 10 + (uint64_t)(j->text[j->at] - '0');
        if (value > (uint64_t)1 << 53) return kvl__json_fail(j, "a number beyond 2^53");
    }
    if (j->at == start) return kvl__json_fail(j, "a whole number is missing");
    *out = value;
    return 1;
}

// Numbers in brackets; at most `most`.  Returns their number, or -1.
KVL__FN int kvl__json_counts(kvl__json* j, uint64_t* out, int most)
{
    int n = 0;
    if (!kvl__json_need(j, '[')) return -1;
    if (kvl__json_is(j, ']')) return 0;
    do {
        if (n == most) return kvl__json_fail(j, "more than %d numbers", most) - 1;
        if (!kvl__json_count(j, &out[n++])) return -1;
    } while (kvl__json_is(j, ','));
    return kvl__json_need(j, ']') ? n : -1;
}

// Bytes of an element; 0: no such type.
KVL__FN uint64_t kvl__tensor_dtype(const char* name, kvl__tensor_type* type)
{
    static const struct { const char* name; uint64_t size; } known[] = {
        { "F64", 8 }, { "I64", 8 }, { "U64", 8 }, { "F32", 4 }, { "I32", 4 }, { "U32", 4 },
        { "F16", 2 }, { "BF16", 2 }, { "I16", 2 }, { "U16", 2 }, { "I8", 1 }, { "U8", 1 },
        { "BOOL", 1 }, { "F8_E4M3", 1 }, { "F8_E5M2", 1 },
    };
    *type = strcmp(name, "F32") == 0 ? KVL__TENSOR_F32
          : strcmp(name, "F64") == 0 ? KVL__TENSOR_F64 : KVL__TENSOR_OTHER;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i)
        if (strcmp(name, known[i].name) == 0) return known[i].size;
    return 0;
}

// { "dtype": ..., "shape": ..., "data_offsets": ... } in any order, each once.
KVL__FN int kvl__json_tensor(kvl__json* j, kvl__tensor* out)
{
    char key[32], dtype[16] = "";
    uint64_t shape[KVL__TENSOR_RANK], offsets[2] = { 0, 0 };
    int seen = 0, rank = 0;
    if (!kvl__json_need(j, '{')) return 0;
    do {
        if (!kvl__json_string(j, key, sizeof key) || !kvl__json_need(j, ':')) return 0;
        const int bit = strcmp(key, "dtype") == 0 ? 1 : strcmp(key, "shape") == 0 ? 2
                      : strcmp(key, "data_offsets") == 0 ? 4 : 0;
        if (!bit || (seen & bit)) return kvl__json_fail(j, "'%s' is not known, or twice", key);
        seen |= bit;
        if (bit == 1 && !kvl__json_string(j, dtype, sizeof dtype)) return 0;
        if (bit == 2 && (rank = kvl__json_counts(j, shape, KVL__TENSOR_RANK)) < 0) return 0;
        if (bit == 4) {
            const int count = kvl__json_counts(j, offsets, 2);
            if (count != 2) return count < 0 ? 0 : kvl__json_fail(j, "data_offsets has 2 numbers");
        }
    } while (kvl__json_is(j, ','));
    if (!kvl__json_need(j, '}')) return 0;
    if (seen != 7) return kvl__json_fail(j, "dtype, shape or data_offsets is missing");
    uint64_t bytes = kvl__tensor_dtype(dtype, &out->type);
    if (!bytes) return kvl__json_fail(j, "dtype '%s' is not known", dtype);
    for (int i = 0; i < rank; ++i) {
        if (shape[i] && bytes > ((uint64_t)1 << 53) / shape[i])
            return kvl__json_fail(j, "shape: more than 2^53 bytes");
        bytes *= shape[i];
        out->shape[i] = (int64_t)shape[i];
    }
    if (offsets[1] < offsets[0] || offsets[1] - offsets[0] != bytes)
        return kvl__json_fail(j, "data_offsets [%llu, %llu]: the shape has %llu bytes",
                              (unsigned long long)offsets[0], (unsigned long long)offsets[1],
                              (unsigned long long)bytes);
    out->rank = rank;
    out->begin = offsets[0];
    out->bytes = bytes;
    return 1;
}

KVL__FN int kvl__json_metadata(kvl__json* j, kvl__tensors* t)
{
    char name[128], text[4096];
    if (!kvl__json_need(j, '{')) return 0;
    if (kvl__json_is(j, '}')) return 1;
    do {
        if (!kvl__json_string(j, name, sizeof name) || !kvl__json_need(j, ':') ||
            !kvl__json_string(j, text, sizeof text)) return 0;
        if (j->status == KVL_OK) j->status = kvl__tensors_set_text(t, name, text);
        if (j->status != KVL_OK) return 0;
    } while (kvl__json_is(j, ','));
    return kvl__json_need(j, '}');
}

// Appends an entry whose name is taken over.
KVL__FN int kvl__json_entry(kvl__json* j, kvl__tensors* t, const char* name)
{
    kvl__tensor one;
    memset(&one, 0, sizeof one);
    if (!kvl__json_tensor(j, &one)) return 0;
    kvl__tensor* list = (kvl__tensor*)kvl__tensors_grow(t->ctx, t->list, t->num, &t->capacity,
                                                        sizeof *list);
    if (list) t->list = list;
    one.name = list ? kvl__copy_text(t->ctx, name) : NULL;
    if (!one.name) {
        j->status = kvl__tensors_no_memory(t->ctx);
        return 0;
    }
    list[t->num++] = one;
    return 1;
}

KVL__FN int kvl__json_header(kvl__json* j, kvl__tensors* t)
{
    char name[KVL__TENSOR_NAME];
    if (!kvl__json_need(j, '{')) return 0;
    if (!kvl__json_is(j, '}')) {
        do {
            if (!kvl__json_string(j, name, sizeof name) || !kvl__json_need(j, ':')) return 0;
            const int is_meta = strcmp(name, "__metadata__") == 0;
            if (!(is_meta ? kvl__json_metadata(j, t) : kvl__json_entry(j, t, name))) return 0;
        } while (kvl__json_is(j, ','));
        if (!kvl__json_need(j, '}')) return 0;
    }
    kvl__json_blanks(j);
    return j->at == j->bytes || kvl__json_fail(j, "more after the end");
}

KVL__FN int kvl__compare_begin(const void* a, const void* b)
{
    const kvl__tensor* x = *(const kvl__tensor* const*)a;
    const kvl__tensor* y = *(const kvl__tensor* const*)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

KVL__FN int kvl__compare_names(const void* a, const void* b)
{
    return strcmp((*(const kvl__tensor* const*)a)->name, (*(const kvl__tensor* const*)b)->name);
}

// Each name once; arrays without holes or overlap, to the end of the file.
KVL__FN kvl_status kvl__tensors_check(kvl__tensors* t, const char* path, uint64_t data_bytes)
{
    kvl_context* ctx = t->ctx;
    const size_t bytes = (size_t)t->num * sizeof(kvl__tensor*);
    kvl__tensor** order = (kvl__tensor**)kvl__alloc(ctx, bytes);
    if (!order) return kvl__tensors_no_memory(ctx);
    for (int i = 0; i < t->num; ++i) order[i] = &t->list[i];
    kvl_status status = KVL_OK;
    qsort(order, (size_t)t->num, sizeof *order, kvl__compare_names);
    for (int i = 1; i < t->num && status == KVL_OK; ++i)
        if (strcmp(order[i]->name, order[i - 1]->name) == 0)
            status = kvl__fail(ctx, KVL_FILE, "%s: damaged: '%s' is there twice", path,
                               order[i]->name);
    qsort(order, (size_t)t->num, sizeof *order, kvl__compare_begin);
    uint64_t end = 0;
    for (int i = 0; i < t->num && status == KVL_OK; ++i) {
        if (order[i]->begin != end)
            status = kvl__fail(ctx, KVL_FILE, "%s: damaged: '%s' begins at byte %llu of the"
                               " data: must be %llu", path, order[i]->name,
                               (unsigned long long)order[i]->begin, (unsigned long long)end);
        end = order[i]->begin + order[i]->bytes;
    }
    if (status == KVL_OK && end != data_bytes)
        status = kvl__fail(ctx, KVL_FILE, "%s: %s: its arrays take %llu bytes, the file has"
                           " %llu for them", path, end > data_bytes ? "cut off" : "damaged",
                           (unsigned long long)end, (unsigned long long)data_bytes);
    kvl__free(ctx, order, bytes);
    return status;
}

KVL__FN kvl_status kvl__tensors_read_header(kvl__tensors* t, const char* path, FILE* file,
                                            uint64_t file_bytes, uint64_t* data_at)
{
    kvl_context* ctx = t->ctx;
    unsigned char word[8];
    uint64_t bytes = 0;
    KVL__REQUIRE(ctx, file_bytes >= 10 && fread(word, 1, 8, file) == 8, KVL_FILE,
                 "%s: %llu bytes: not a safetensors file", path, (unsigned long long)file_bytes);
    for (int i = 7; i >= 0; --i) bytes = bytes << 8 | word[i];
    KVL__REQUIRE(ctx, bytes <= KVL__TENSORS_HEADER && bytes <= file_bytes - 8, KVL_FILE,
                 "%s: not a safetensors file, or cut off: its header would take %llu bytes", path,
                 (unsigned long long)bytes);
    char* text = (char*)kvl__alloc(ctx, (size_t)bytes + 1);
    if (!text) return kvl__tensors_no_memory(ctx);
    kvl__json j;
    memset(&j, 0, sizeof j);
    j.ctx = ctx;
    j.path = path;
    j.text = text;
    j.bytes = fread(text, 1, (size_t)bytes, file);
    text[j.bytes] = '\0';
    if (j.bytes != bytes) kvl__json_fail(&j, "the file cannot be read to here");
    else kvl__json_header(&j, t);
    kvl__free(ctx, text, (size_t)bytes + 1);
    *data_at = 8 + bytes;
    return j.status != KVL_OK ? j.status : kvl__tensors_check(t, path, file_bytes - 8 - bytes);
}

KVL__FN kvl_status kvl__tensors_read_data(kvl__tensors* t, const char* path, FILE* file,
                                          uint64_t data_at, int (*wanted)(const char* name))
{
    for (int i = 0; i < t->num; ++i) {
        kvl__tensor* one = &t->list[i];
        if (one->type == KVL__TENSOR_OTHER || (wanted && !wanted(one->name))) continue;
        one->data = kvl__alloc(t->ctx, (size_t)one->bytes);
        if (!one->data) return kvl__tensors_no_memory(t->ctx);
        if (fseeko(file, (off_t)(data_at + one->begin), SEEK_SET) != 0 ||
            fread(one->data, 1, (size_t)one->bytes, file) != one->bytes)
            return kvl__fail(t->ctx, KVL_FILE, "%s: '%s' cannot be read: %s", path,
                             one->name, errno ? strerror(errno) : "the file has become shorter");
    }
    return KVL_OK;
}

// Reads a file.  Data of arrays for whose name wanted (NULL: all) is 0 stays there.  t is empty
// after a failure.
KVL__FN kvl_status kvl__tensors_read(kvl_context* ctx, const char* path,
                                     int (*wanted)(const char* name), kvl__tensors* t)
{
    struct stat info;
    memset(t, 0, sizeof *t);
    t->ctx = ctx;
    errno = 0;
    FILE* file = fopen(path, "rb");
    if (!file) return kvl__fail(ctx, KVL_FILE, "%s: %s", path, strerror(errno));
    kvl_status status = KVL_OK;
    uint64_t data_at = 0;
    if (fstat(fileno(file), &info) != 0 || !S_ISREG(info.st_mode))
        status = kvl__fail(ctx, KVL_FILE, "%s: not a regular file", path);
    if (status == KVL_OK)
        status = kvl__tensors_read_header(t, path, file, (uint64_t)info.st_size, &data_at);
    errno = 0;
    if (status == KVL_OK) status = kvl__tensors_read_data(t, path, file, data_at, wanted);
    fclose(file);
    if (status != KVL_OK) kvl__tensors_free(t);
    return status;
}

// WRITING

typedef struct kvl__text_out {
    kvl_context* ctx;
    char*        text;
    size_t       used, capacity;
    int          full;                 // no memory
} kvl__text_out;

KVL__FN void kvl__put_bytes(kvl__text_out* out, const char* bytes, size_t num)
{
    if (out->full) return;
    if (out->used + num > out->capacity) {
        const size_t more = 2 * (out->used + num) + 4096;
        char* larger = (char*)kvl__alloc(out->ctx, more);
        if (!larger) { out->full = 1; return; }
        if (out->text) memcpy(larger, out->text, out->used);
        kvl__free(out->ctx, out->text, out->capacity);
        out->text = larger;
        out->capacity = more;
    }
    memcpy(out->text + out->used, bytes, num);
    out->used += num;
}

KVL__FN void kvl__put_quoted(kvl__text_out* out, const char* text)
{
    char escape[8];
    kvl__put_bytes(out, "\"", 1);
    for (; *text; ++text) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') kvl__put_bytes(out, "\\", 1);
        if (c >= 0x20) kvl__put_bytes(out, text, 1);
        else kvl__put_bytes(out, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", c));
    }
    kvl__put_bytes(out, "\"", 1);
}

KVL__FN void kvl__put_tensor(kvl__text_out* out, const kvl__tensor* one, uint64_t* at)
{
    char text[64];
    kvl__put_quoted(out, one->name);
    const char* head = one->type == KVL__TENSOR_F64 ? ":{\"dtype\":\"F64\",\"shape\":["
                                                    : ":{\"dtype\":\"F32\",\"shape\":[";
    kvl__put_bytes(out, head, strlen(head));
    for (int i = 0; i < one->rank; ++i)
        kvl__put_bytes(out, text, (size_t)snprintf(text, sizeof text, "%s%lld", i ? "," : "",
                                                   (long long)one->shape[i]));
    kvl__put_bytes(out, text, (size_t)snprintf(text, sizeof text, "],\"data_offsets\":[%llu,%llu]}",
                                               (unsigned long long)*at,
                                               (unsigned long long)(*at + one->bytes)));
    *at += one->bytes;
}

// F64 before F32, so that every array lies at a multiple of its element's size.
KVL__FN void kvl__put_header(kvl__text_out* out, const kvl__tensors* t)
{
    uint64_t at = 0;
    kvl__put_bytes(out, "{\"__metadata__\":{", 17);
    for (int i = 0; i < t->num_meta; ++i) {
        if (i) kvl__put_bytes(out, ",", 1);
        kvl__put_quoted(out, t->meta[i].name);
        kvl__put_bytes(out, ":", 1);
        kvl__put_quoted(out, t->meta[i].text);
    }
    kvl__put_bytes(out, "}", 1);
    for (int pass = 0; pass < 2; ++pass) {
        for (int i = 0; i < t->num; ++i) {
            if ((t->list[i].type == KVL__TENSOR_F64) == pass) continue;
            kvl__put_bytes(out, ",", 1);
            kvl__put_tensor(out, &t->list[i], &at);
        }
    }
    kvl__put_bytes(out, "}", 1);
    while (!out->full && out->used % 8) kvl__put_bytes(out, " ", 1);
}

KVL__FN int kvl__tensors_put(const kvl__tensors* t, const kvl__text_out* header, FILE* file)
{
    unsigned char word[8];
    for (int i = 0; i < 8; ++i) word[i] = (unsigned char)((uint64_t)header->used >> 8 * i & 0xff);
    int ok = fwrite(word, 1, 8, file) == 8 &&
             fwrite(header->text, 1, header->used, file) == header->used;
    for (int pass = 0; pass < 2 && ok; ++pass) {
        for (int i = 0; i < t->num && ok; ++i) {
            const kvl__tensor* one = &t->list[i];
            if ((one->type == KVL__TENSOR_F64) == pass) continue;
            ok = fwrite(one->data, 1, (size_t)one->bytes, file) == one->bytes;
        }
    }
    return ok && fflush(file) == 0;
}

// Opens a name beside `place` that no other writer has, in this process or another.  NULL: errno
// says why, and there is no such file.
KVL__FN FILE* kvl__tensors_open(const char* place, char temp[KVL__PATH_BYTES])
{
    int fd = -1;
    errno = EEXIST;
    for (int i = 0; i < 100 && fd < 0 && errno == EEXIST; ++i) {
        const int n = snprintf(temp, KVL__PATH_BYTES, "%s.%ld-%d.part", place, (long)getpid(), i);
        if (n < 0 || n >= KVL__PATH_BYTES) {
            errno = ENAMETOOLONG;
            return NULL;
        }
        fd = open(temp, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    }
    FILE* file = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (fd < 0 || file) return file;
    const int why = errno;
    close(fd);
    unlink(temp);
    errno = why;
    return NULL;
}

// Every array must have its data.  What was at `path` stays after a failure.
KVL__FN kvl_status kvl__tensors_write(const kvl__tensors* t, const char* path)
{
    kvl_context* ctx = t->ctx;
    char temp[KVL__PATH_BYTES], place[KVL__PATH_BYTES];
    KVL__TRY(kvl__place_of(ctx, path, 8, "{", place));
    for (int i = 0; i < t->num; ++i)
        KVL__REQUIRE(ctx, t->list[i].data || !t->list[i].bytes, KVL_FILE,
                     "%s: '%s' has no data to write", path, t->list[i].name);
    kvl__text_out header;
    memset(&header, 0, sizeof header);
    header.ctx = ctx;
    kvl__put_header(&header, t);
    kvl_status status = header.full ? kvl__tensors_no_memory(ctx) : KVL_OK;
    errno = 0;
    FILE* file = status == KVL_OK ? kvl__tensors_open(place, temp) : NULL;
    int ok = file != NULL;
    if (ok) {
        ok = kvl__tensors_put(t, &header, file);
        ok = fsync(fileno(file)) == 0 && ok;
        ok = fclose(file) == 0 && ok;
        ok = ok && rename(temp, place) == 0;
    }
    if (status == KVL_OK && !ok) {
        status = kvl__fail(ctx, KVL_FILE, "%s: cannot be written: %s", path,
                           strerror(errno));
        if (file) unlink(temp);
    }
    kvl__free(ctx, header.text, header.capacity);
    return status;
}

#endif
