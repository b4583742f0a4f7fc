// gguf.c -- reads a GGUF model file (versions 2 and 3) without trusting it.
//
// | "GGUF" | version u32 | tensors u64 | entries u64 | entries | tensor infos | pad | data |
//   string: bytes u64, then the bytes
//   entry:  key string, type u32, value;   an array value: element type u32, count u64, elements
//   info:   name string, dims u32, dim u64 each, type u32, offset u64 from the start of data
//
// All reads go through a cursor that compares with the end of the file first. Sizes are uint64_t
// and every product and sum of sizes that come from the file is checked.

#include "gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__GNUC__)
#define LIKE_PRINTF(n) __attribute__((format(printf, n, (n) + 1)))
#else
#define LIKE_PRINTF(n)
#endif

enum {
    DEFAULT_ALIGNMENT = 32,
    MIN_ALIGNMENT = 8, // the format's rule; data is then aligned for every value type
    MAX_DIMS = 4,
    MAX_KEY_BYTES = 65535, // the format's rule
    MAX_NAME_BYTES = 64,   // the format's rule
    SHOWN_BYTES = 80       // of a key or name in a message
};

// Smallest possible encodings: a promised count is compared with the bytes that are left.
static const uint64_t min_entry_bytes = 8 + 4 + 1;
static const uint64_t min_info_bytes = 8 + 1 + 4 + 8 + 4 + 8;

typedef struct entry {
    gguf_string key;
    int type; // of the value, or of the elements when is_array
    bool is_array;
    uint64_t count;      // elements; 1 for a scalar
    const uint8_t* data; // the scalar, or the first element
} entry;

typedef struct tensor_slot {
    gguf_tensor view;
    uint64_t offset; // from the start of data
    char name[MAX_NAME_BYTES + 1];
} tensor_slot;

struct gguf {
    char* path;
    const uint8_t* map;
    uint64_t map_bytes;
    uint32_t version;
    uint64_t num_entries;
    entry* entries; // [num_entries] sorted by key
    uint64_t num_tensors;
    tensor_slot* tensors;  // [num_tensors] in file order
    tensor_slot** by_name; // [num_tensors] sorted by name
    char* message;         // the caller's, while gguf_open runs
    size_t message_bytes;
};

typedef struct cursor {
    const uint8_t* at;
    const uint8_t* end;
} cursor;

// ---- types ----

typedef struct type_info {
    int type;
    const char* name;
    uint32_t block_values;
    uint32_t block_bytes;
    bool supported;
} type_info;

// clang-format off
static const type_info type_table[] = {
    { GGUF_TENSOR_F32,  "F32",    1,   4, true },
    { GGUF_TENSOR_F16,  "F16",    1,   2, true },
    { GGUF_TENSOR_Q4_0, "Q4_0",  32,  18, true },
    { GGUF_TENSOR_Q4_1, "Q4_1",  32,  20, true },
    { GGUF_TENSOR_Q5_0, "Q5_0",  32,  22, true },
    { GGUF_TENSOR_Q5_1, "Q5_1",  32,  24, true },
    { GGUF_TENSOR_Q8_0, "Q8_0",  32,  34, true },
    { 9,                "Q8_1",  32,  36, false },
    { 10,               "Q2_K", 256,  84, false },
    { 11,               "Q3_K", 256, 110, false },
    { GGUF_TENSOR_Q4_K, "Q4_K", 256, 144, true },
    { GGUF_TENSOR_Q5_K, "Q5_K", 256, 176, true },
    { GGUF_TENSOR_Q6_K, "Q6_K", 256, 210, true },
    { 15,               "Q8_K", 256, 292, false },
    { 16,            "IQ2_XXS", 256,  66, false },
    { 17,             "IQ2_XS", 256,  74, false },
    { 18,            "IQ3_XXS", 256,  98, false },
    { 19,              "IQ1_S", 256,  50, false },
    { 20,             "IQ4_NL",  32,  18, false },
    { 21,              "IQ3_S", 256, 110, false },
    { 22,              "IQ2_S", 256,  82, false },
    { 23,             "IQ4_XS", 256, 136, false },
    { 24,                 "I8",   1,   1, false },
    { 25,                "I16",   1,   2, false },
    { 26,                "I32",   1,   4, false },
    { 27,                "I64",   1,   8, false },
    { 28,                "F64",   1,   8, false },
    { 29,              "IQ1_M", 256,  56, false },
    { GGUF_TENSOR_BF16, "BF16",   1,   2, true },
    { 34,              "TQ1_0", 256,  54, false },
    { 35,              "TQ2_0", 256,  66, false },
    { 39,              "MXFP4",  32,  17, false }
};
// clang-format on

static const type_info* find_type(int type)
{
    for (size_t i = 0; i < sizeof type_table / sizeof type_table[0]; i++) {
        if (type_table[i].type == type) { return &type_table[i]; }
    }
    return NULL;
}

const char* gguf_type_name(int type)
{
    const type_info* info = find_type(type);
    return info ? info->name : "unknown";
}

bool gguf_type_supported(int type)
{
    const type_info* info = find_type(type);
    return info && info->supported;
}

static bool multiply(uint64_t a, uint64_t b, uint64_t* product)
{
    if (a != 0 && b > UINT64_MAX / a) { return false; }
    *product = a * b;
    return true;
}

static uint64_t row_bytes_of(const type_info* info, int64_t n)
{
    uint64_t bytes = 0;
    if (!info || n <= 0 || n % (int64_t)info->block_values != 0) { return 0; }
    const uint64_t blocks = (uint64_t)n / info->block_values;
    return multiply(blocks, info->block_bytes, &bytes) ? bytes : 0;
}

uint64_t gguf_type_row_bytes(int type, int64_t n)
{
    const type_info* info = find_type(type);
    return info && info->supported ? row_bytes_of(info, n) : 0;
}

static const char* value_type_name(int type)
{
    static const char* const names[] = { "u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64" };
    return type >= 0 && type <= GGUF_F64 ? names[type] : "unknown";
}

// Bytes of one value; 0 for strings, arrays and unknown types.
static uint64_t value_bytes(int type)
{
    static const uint8_t bytes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    return type >= 0 && type <= GGUF_F64 ? bytes[type] : 0;
}

// ---- messages ----

// Writes "FILE: SUBJECT: message" for the caller of gguf_open. What a hostile name holds must not
// reach a terminal: everything but printable ASCII becomes '?'.
static void write_failure(const gguf* file, const char* kind, gguf_string subject,
                          const char* format, va_list args)
{
    char* const text = file->message;
    const size_t size = file->message_bytes;
    const int shown = (int)(subject.bytes < SHOWN_BYTES ? subject.bytes : SHOWN_BYTES);
    if (size == 0) { return; }
    const int n = snprintf(text, size, "%s: %s%.*s%s", file->path, kind, shown, subject.data,
                           subject.bytes > SHOWN_BYTES ? "...: "
                           : subject.bytes > 0         ? ": "
                                                       : "");
    if (n >= 0 && (size_t)n < size) { vsnprintf(text + n, size - (size_t)n, format, args); }
    for (size_t i = strlen(file->path); i < size && text[i]; i++) {
        if (text[i] < 32 || text[i] > 126) { text[i] = '?'; }
    }
}

// The three return false, so that a failed check is one statement.
static bool fail(const gguf* file, const char* format, ...) LIKE_PRINTF(2);
static bool fail_entry(const gguf* file, const entry* e, const char* format, ...) LIKE_PRINTF(3);
static bool fail_tensor(const gguf* file, const tensor_slot* slot, const char* format, ...)
    LIKE_PRINTF(3);

static bool fail(const gguf* file, const char* format, ...)
{
    const gguf_string nothing = { "", 0 };
    va_list args;
    va_start(args, format);
    write_failure(file, "", nothing, format, args);
    va_end(args);
    return false;
}

static bool fail_entry(const gguf* file, const entry* e, const char* format, ...)
{
    va_list args;
    va_start(args, format);
    write_failure(file, "", e->key, format, args);
    va_end(args);
    return false;
}

static bool fail_tensor(const gguf* file, const tensor_slot* slot, const char* format, ...)
{
    const gguf_string name = { slot->name, strlen(slot->name) };
    va_list args;
    va_start(args, format);
    write_failure(file, "tensor ", name, format, args);
    va_end(args);
    return false;
}

// ---- cursor ----

static uint64_t left(const cursor* c) { return (uint64_t)(c->end - c->at); }

static uint64_t load(const uint8_t* at, uint64_t bytes)
{
    uint64_t value = 0;
    for (uint64_t i = 0; i < bytes; i++) { value |= (uint64_t)at[i] << (8 * i); }
    return value;
}

static bool take_u32(cursor* c, uint32_t* value)
{
    if (left(c) < 4) { return false; }
    *value = (uint32_t)load(c->at, 4);
    c->at += 4;
    return true;
}

static bool take_u64(cursor* c, uint64_t* value)
{
    if (left(c) < 8) { return false; }
    *value = load(c->at, 8);
    c->at += 8;
    return true;
}

static bool take_string(cursor* c, gguf_string* string)
{
    const cursor start = *c;
    uint64_t bytes = 0;
    if (!take_u64(c, &bytes) || bytes > left(c)) {
        *c = start;
        return false;
    }
    string->data = (const char*)c->at;
    string->bytes = (size_t)bytes;
    c->at += bytes;
    return true;
}

// Makes room for one more item by doubling. Returns NULL, with items untouched, when memory is out.
static void* grow(void* items, uint64_t count, uint64_t* capacity, size_t item_bytes)
{
    if (count < *capacity) { return items; }
    const uint64_t wanted = *capacity ? *capacity * 2 : 16;
    if (wanted > SIZE_MAX / item_bytes) { return NULL; }
    void* const larger = realloc(items, (size_t)wanted * item_bytes);
    if (larger) { *capacity = wanted; }
    return larger;
}

// ---- metadata ----

static bool check_bools(const gguf* file, const entry* e)
{
    for (uint64_t i = 0; e->type == GGUF_BOOL && i < e->count; i++) {
        if (e->data[i] > 1) { return fail_entry(file, e, "%u: a bool must be 0 or 1", e->data[i]); }
    }
    return true;
}

static bool take_array_header(const gguf* file, cursor* c, entry* e)
{
    uint32_t type = 0;
    if (!take_u32(c, &type) || !take_u64(c, &e->count)) {
        return fail_entry(file, e, "the file ends inside the array's header");
    }
    if (type > GGUF_F64 || type == GGUF_ARRAY) {
        return fail_entry(file, e, "array element type = %lu: must be 0 .. 12 and not 9 (array)",
                          (unsigned long)type);
    }
    e->type = (int)type;
    e->is_array = true;
    return true;
}

// Steps over the value whose first byte is at the cursor, after checking that the file holds all of
// it.
static bool take_value(const gguf* file, cursor* c, entry* e)
{
    e->count = 1;
    if (e->type == GGUF_ARRAY && !take_array_header(file, c, e)) { return false; }
    e->data = c->at;
    if (e->type == GGUF_STRING) {
        // 8 bytes a string at least: refuses an absurd count before walking it.
        if (e->count > left(c) / 8) {
            return fail_entry(file, e,
                              "%llu strings: more than the %llu bytes that are left can hold",
                              (unsigned long long)e->count, (unsigned long long)left(c));
        }
        for (uint64_t i = 0; i < e->count; i++) {
            gguf_string string;
            if (!take_string(c, &string)) {
                return fail_entry(file, e,
                                  "string %llu: its length must fit in the %llu bytes left",
                                  (unsigned long long)i, (unsigned long long)left(c));
            }
        }
        return true;
    }
    uint64_t bytes = 0;
    if (!multiply(e->count, value_bytes(e->type), &bytes) || bytes > left(c)) {
        return fail_entry(file, e, "%llu values of type %s: must fit in the %llu bytes left",
                          (unsigned long long)e->count, value_type_name(e->type),
                          (unsigned long long)left(c));
    }
    c->at += bytes;
    return check_bools(file, e);
}

static bool take_entry(const gguf* file, cursor* c, uint64_t index, entry* e)
{
    uint32_t type = 0;
    memset(e, 0, sizeof *e);
    if (!take_string(c, &e->key)) {
        return fail(file, "metadata entry %llu: the key's length must fit in the %llu bytes left",
                    (unsigned long long)index, (unsigned long long)left(c));
    }
    if (e->key.bytes == 0 || e->key.bytes > MAX_KEY_BYTES) {
        return fail(file, "metadata entry %llu: key length = %llu: must be 1 .. %d",
                    (unsigned long long)index, (unsigned long long)e->key.bytes, MAX_KEY_BYTES);
    }
    if (!take_u32(c, &type)) { return fail_entry(file, e, "the file ends before its type"); }
    if (type > GGUF_F64) {
        return fail_entry(file, e, "value type = %lu: must be 0 .. %d", (unsigned long)type,
                          GGUF_F64);
    }
    e->type = (int)type;
    return take_value(file, c, e);
}

static int compare_strings(gguf_string a, gguf_string b)
{
    const int order = memcmp(a.data, b.data, a.bytes < b.bytes ? a.bytes : b.bytes);
    return order != 0 ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

static int compare_entries(const void* a, const void* b)
{
    return compare_strings(((const entry*)a)->key, ((const entry*)b)->key);
}

static bool read_entries(gguf* file, cursor* c, uint64_t count)
{
    uint64_t capacity = 0;
    for (uint64_t i = 0; i < count; i++) {
        entry e;
        if (!take_entry(file, c, i, &e)) { return false; }
        entry* const entries = grow(file->entries, i, &capacity, sizeof *entries);
        if (!entries) {
            return fail(file, "metadata: no memory for %llu entries", (unsigned long long)(i + 1));
        }
        file->entries = entries;
        entries[i] = e;
        file->num_entries = i + 1;
    }
    if (count > 1) { qsort(file->entries, (size_t)count, sizeof *file->entries, compare_entries); }
    for (uint64_t i = 1; i < count; i++) {
        if (compare_entries(&file->entries[i - 1], &file->entries[i]) == 0) {
            return fail_entry(file, &file->entries[i],
                              "the key is there twice: keys must be unique");
        }
    }
    return true;
}

static const entry* find_entry(const gguf* file, const char* key)
{
    entry wanted;
    memset(&wanted, 0, sizeof wanted);
    wanted.key.data = key;
    wanted.key.bytes = strlen(key);
    if (file->num_entries == 0) { return NULL; }
    return bsearch(&wanted, file->entries, (size_t)file->num_entries, sizeof wanted,
                   compare_entries);
}

// ---- tensors ----

// Element count and byte size of the shape, with every product checked. bytes stays 0 for a number
// that the format does not define, since its block is not known.
static bool measure(const gguf* file, tensor_slot* slot)
{
    const type_info* info = find_type(slot->view.type);
    uint64_t values = 1;
    uint64_t bytes = 0;
    for (int i = 0; i < slot->view.num_dims; i++) {
        if (!multiply(values, (uint64_t)slot->view.dims[i], &values) || values > INT64_MAX) {
            return fail_tensor(file, slot, "the product of its dimensions must be below 2^63");
        }
    }
    if (!info) { return true; }
    const int64_t n = slot->view.dims[0];
    if (n % (int64_t)info->block_values != 0) {
        return fail_tensor(file, slot,
                           "row length = %lld: must be a multiple of %lu, the block of %s",
                           (long long)n, (unsigned long)info->block_values, info->name);
    }
    if (!multiply(row_bytes_of(info, n), values / (uint64_t)n, &bytes)) {
        return fail_tensor(file, slot, "its size in bytes must be below 2^64");
    }
    slot->view.bytes = bytes;
    return true;
}

static bool take_dims(const gguf* file, cursor* c, tensor_slot* slot)
{
    uint32_t num_dims = 0;
    if (!take_u32(c, &num_dims)) {
        return fail_tensor(file, slot, "the file ends before its dimensions");
    }
    if (num_dims < 1 || num_dims > MAX_DIMS) {
        return fail_tensor(file, slot, "number of dimensions = %lu: must be 1 .. %d",
                           (unsigned long)num_dims, MAX_DIMS);
    }
    slot->view.num_dims = (int)num_dims;
    for (uint32_t i = 0; i < MAX_DIMS; i++) {
        uint64_t dim = 1;
        if (i < num_dims && !take_u64(c, &dim)) {
            return fail_tensor(file, slot, "the file ends inside its dimensions");
        }
        if (dim < 1 || dim > INT64_MAX) {
            return fail_tensor(file, slot, "dimension %lu = %llu: must be 1 .. 2^63 - 1",
                               (unsigned long)i, (unsigned long long)dim);
        }
        slot->view.dims[i] = (int64_t)dim;
    }
    return true;
}

static bool take_info(const gguf* file, cursor* c, uint64_t index, tensor_slot* slot)
{
    gguf_string name;
    uint32_t type = 0;
    memset(slot, 0, sizeof *slot);
    if (!take_string(c, &name)) {
        return fail(file, "tensor %llu: the name's length must fit in the %llu bytes left",
                    (unsigned long long)index, (unsigned long long)left(c));
    }
    if (name.bytes < 1 || name.bytes > MAX_NAME_BYTES || memchr(name.data, 0, name.bytes)) {
        return fail(file, "tensor %llu: name of %llu bytes: must be 1 .. %d bytes, none of them 0",
                    (unsigned long long)index, (unsigned long long)name.bytes, MAX_NAME_BYTES);
    }
    memcpy(slot->name, name.data, name.bytes);
    if (!take_dims(file, c, slot)) { return false; }
    if (!take_u32(c, &type) || !take_u64(c, &slot->offset)) {
        return fail_tensor(file, slot, "the file ends inside its type and offset");
    }
    if (type > INT32_MAX) {
        return fail_tensor(file, slot, "type = %lu: must be below 2^31", (unsigned long)type);
    }
    slot->view.type = (int)type;
    return measure(file, slot);
}

static int compare_names(const void* a, const void* b)
{
    return strcmp((*(tensor_slot* const*)a)->name, (*(tensor_slot* const*)b)->name);
}

static int compare_offsets(const void* a, const void* b)
{
    const tensor_slot* const left_slot = *(tensor_slot* const*)a;
    const tensor_slot* const right_slot = *(tensor_slot* const*)b;
    return (left_slot->offset > right_slot->offset) - (left_slot->offset < right_slot->offset);
}

static bool read_infos(gguf* file, cursor* c, uint64_t count)
{
    uint64_t capacity = 0;
    for (uint64_t i = 0; i < count; i++) {
        tensor_slot slot;
        if (!take_info(file, c, i, &slot)) { return false; }
        tensor_slot* const tensors = grow(file->tensors, i, &capacity, sizeof *tensors);
        if (!tensors) {
            return fail(file, "tensors: no memory for %llu of them", (unsigned long long)(i + 1));
        }
        file->tensors = tensors;
        tensors[i] = slot;
        file->num_tensors = i + 1;
    }
    if (count == 0) { return true; }
    file->by_name = calloc((size_t)count, sizeof *file->by_name);
    if (!file->by_name) {
        return fail(file, "tensors: no memory for %llu of them", (unsigned long long)count);
    }
    for (uint64_t i = 0; i < count; i++) {
        file->tensors[i].view.name = file->tensors[i].name;
        file->by_name[i] = &file->tensors[i];
    }
    return true;
}

static bool read_alignment(const gguf* file, uint64_t* alignment)
{
    const int status = gguf_get_u64(file, "general.alignment", alignment);
    if (status == GGUF_ABSENT) {
        *alignment = DEFAULT_ALIGNMENT;
        return true;
    }
    if (status != GGUF_OK) {
        return fail(file, "general.alignment: stored as %s: must be an unsigned integer",
                    value_type_name(find_entry(file, "general.alignment")->type));
    }
    const bool power_of_two = *alignment != 0 && (*alignment & (*alignment - 1)) == 0;
    if (!power_of_two || *alignment < MIN_ALIGNMENT || *alignment > UINT32_MAX) {
        return fail(file, "general.alignment = %llu: must be a power of two, %d .. 2^31",
                    (unsigned long long)*alignment, MIN_ALIGNMENT);
    }
    return true;
}

// Compares each tensor with the data section, and with the tensor after it.
static bool check_ranges(const gguf* file, uint64_t data_bytes, uint64_t alignment)
{
    for (uint64_t i = 0; i < file->num_tensors; i++) {
        const tensor_slot* const slot = file->by_name[i];
        const uint64_t bytes = slot->view.bytes;
        if (slot->offset % alignment != 0) {
            return fail_tensor(file, slot,
                               "offset = %llu: must be a multiple of the alignment %llu",
                               (unsigned long long)slot->offset, (unsigned long long)alignment);
        }
        if (slot->offset > data_bytes || bytes > data_bytes - slot->offset) {
            return fail_tensor(file, slot,
                               "offset %llu + %llu bytes: must end within the %llu bytes of data",
                               (unsigned long long)slot->offset, (unsigned long long)bytes,
                               (unsigned long long)data_bytes);
        }
        if (i + 1 < file->num_tensors && file->by_name[i + 1]->offset - slot->offset < bytes) {
            return fail_tensor(file, slot, "offset %llu + %llu bytes: must not overlap tensor %s",
                               (unsigned long long)slot->offset, (unsigned long long)bytes,
                               file->by_name[i + 1]->name);
        }
    }
    return true;
}

static bool place_tensors(gguf* file, const cursor* c)
{
    uint64_t alignment = 0;
    if (!read_alignment(file, &alignment)) { return false; }
    const uint64_t infos_end = (uint64_t)(c->at - file->map);
    const uint64_t pad = (alignment - infos_end % alignment) % alignment;
    if (file->num_tensors == 0) { return true; }
    if (pad > left(c)) {
        return fail(file, "data: starts at byte %llu: must be within the file's %llu bytes",
                    (unsigned long long)(infos_end + pad), (unsigned long long)file->map_bytes);
    }
    const size_t count = (size_t)file->num_tensors;
    qsort(file->by_name, count, sizeof *file->by_name, compare_offsets);
    if (!check_ranges(file, left(c) - pad, alignment)) { return false; }
    for (size_t i = 0; i < count; i++) {
        gguf_tensor* const view = &file->tensors[i].view;
        if (gguf_type_supported(view->type)) {
            view->data = c->at + pad + file->tensors[i].offset;
        } else {
            view->bytes = 0;
        }
    }
    qsort(file->by_name, count, sizeof *file->by_name, compare_names);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(file->by_name[i - 1]->name, file->by_name[i]->name) == 0) {
            return fail_tensor(file, file->by_name[i],
                               "the name is there twice: names must be unique");
        }
    }
    return true;
}

// ---- open and close ----

static bool read_header(gguf* file, cursor* c, uint64_t* num_tensors, uint64_t* num_entries)
{
    if (left(c) < 24 || memcmp(c->at, "GGUF", 4) != 0) {
        return fail(file, "not a GGUF file: must begin with the 24 bytes of a GGUF header");
    }
    c->at += 4;
    if (!take_u32(c, &file->version) || !take_u64(c, num_tensors) || !take_u64(c, num_entries)) {
        return fail(file, "the file ends inside its header");
    }
    if (file->version != 2 && file->version != 3) {
        const bool swapped = (file->version & 0xffff) == 0;
        return fail(file, "version = %lu: must be 2 or 3%s", (unsigned long)file->version,
                    swapped ? "; the file looks big-endian" : "");
    }
    if (*num_entries > left(c) / min_entry_bytes) {
        return fail(file, "metadata count = %llu: more than the file's %llu bytes can hold",
                    (unsigned long long)*num_entries, (unsigned long long)file->map_bytes);
    }
    if (*num_tensors > left(c) / min_info_bytes) {
        return fail(file, "tensor count = %llu: more than the file's %llu bytes can hold",
                    (unsigned long long)*num_tensors, (unsigned long long)file->map_bytes);
    }
    return true;
}

static bool read_all(gguf* file)
{
    cursor c = { file->map, file->map + file->map_bytes };
    uint64_t num_tensors = 0;
    uint64_t num_entries = 0;
    return read_header(file, &c, &num_tensors, &num_entries) &&
           read_entries(file, &c, num_entries) && read_infos(file, &c, num_tensors) &&
           place_tensors(file, &c);
}

static bool map_file(gguf* file)
{
    // Without O_NONBLOCK a named pipe would wait here for a writer; regular files ignore it.
    const int descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) { return fail(file, "cannot open: %s", strerror(errno)); }
    struct stat status;
    bool ok = false;
    if (fstat(descriptor, &status) != 0) {
        fail(file, "cannot read its size: %s", strerror(errno));
    } else if (!S_ISREG(status.st_mode)) {
        fail(file, "must be a regular file");
    } else if (status.st_size <= 0 || (uint64_t)status.st_size > PTRDIFF_MAX) {
        fail(file, "size = %lld: not a GGUF file", (long long)status.st_size);
    } else {
        void* const map = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
        ok = map != MAP_FAILED;
        if (ok) {
            file->map = map;
            file->map_bytes = (uint64_t)status.st_size;
        } else {
            fail(file, "cannot map %lld bytes: %s", (long long)status.st_size, strerror(errno));
        }
    }
    close(descriptor);
    return ok;
}

int gguf_open(const char* path, gguf** out, char* message, size_t message_bytes)
{
    *out = NULL;
    if (message_bytes > 0) { message[0] = 0; }
    gguf* const file = calloc(1, sizeof *file);
    const size_t path_bytes = strlen(path) + 1;
    if (file) { file->path = malloc(path_bytes); }
    if (!file || !file->path) {
        if (message_bytes > 0) { snprintf(message, message_bytes, "%s: no memory", path); }
        free(file);
        return 1;
    }
    memcpy(file->path, path, path_bytes);
    file->message = message;
    file->message_bytes = message_bytes;
    const bool ok = map_file(file) && read_all(file);
    file->message = NULL;
    file->message_bytes = 0;
    if (!ok) {
        gguf_close(file);
        return 1;
    }
    *out = file;
    return 0;
}

void gguf_close(gguf* file)
{
    if (!file) { return; }
    if (file->map) {
        // munmap takes void*; the mapping is ours, const only for readers.
        munmap((void*)(uintptr_t)file->map, (size_t)file->map_bytes);
    }
    free(file->by_name);
    free(file->tensors);
    free(file->entries);
    free(file->path);
    free(file);
}

const char* gguf_path(const gguf* file) { return file->path; }

uint32_t gguf_version(const gguf* file) { return file->version; }

// ---- getters ----

// An integer of any stored type, as its magnitude and sign.
typedef struct integer {
    uint64_t bits; // two's complement in 64 bits
    bool negative;
} integer;

static int read_integer(int type, const uint8_t* at, integer* out)
{
    const uint64_t bits = load(at, value_bytes(type));
    switch (type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64:
        out->bits = bits;
        out->negative = false;
        return GGUF_OK;
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64: {
        const uint64_t sign = (uint64_t)1 << (8 * value_bytes(type) - 1);
        out->negative = (bits & sign) != 0;
        out->bits = (bits ^ sign) - sign;
        return GGUF_OK;
    }
    default: return GGUF_WRONG_TYPE;
    }
}

static int read_i64(int type, const uint8_t* at, int64_t* value)
{
    integer number;
    const int status = read_integer(type, at, &number);
    if (status != GGUF_OK) { return status; }
    if (!number.negative && number.bits > INT64_MAX) { return GGUF_OUT_OF_RANGE; }
    memcpy(value, &number.bits, sizeof *value);
    return GGUF_OK;
}

static int read_f64(int type, const uint8_t* at, double* value)
{
    if (type == GGUF_F32) {
        const uint32_t bits = (uint32_t)load(at, 4);
        float single;
        memcpy(&single, &bits, sizeof single);
        *value = (double)single;
        return GGUF_OK;
    }
    if (type == GGUF_F64) {
        const uint64_t bits = load(at, 8);
        memcpy(value, &bits, sizeof *value);
        return GGUF_OK;
    }
    return GGUF_WRONG_TYPE;
}

// Where the value of an index lies. A scalar answers every index; an array of strings has no fixed
// stride.
static int locate(const gguf* file, const char* key, uint64_t index, const entry** e,
                  const uint8_t** at)
{
    *e = find_entry(file, key);
    if (!*e) { return GGUF_ABSENT; }
    if ((*e)->type == GGUF_STRING) { return GGUF_WRONG_TYPE; }
    if ((*e)->is_array && index >= (*e)->count) { return GGUF_OUT_OF_RANGE; }
    *at = (*e)->data + ((*e)->is_array ? index * value_bytes((*e)->type) : 0);
    return GGUF_OK;
}

int gguf_get_u64_at(const gguf* file, const char* key, uint64_t index, uint64_t* value)
{
    const entry* e = NULL;
    const uint8_t* at = NULL;
    integer number;
    int status = locate(file, key, index, &e, &at);
    if (status == GGUF_OK) { status = read_integer(e->type, at, &number); }
    if (status != GGUF_OK) { return status; }
    if (number.negative) { return GGUF_OUT_OF_RANGE; }
    *value = number.bits;
    return GGUF_OK;
}

int gguf_get_i64_at(const gguf* file, const char* key, uint64_t index, int64_t* value)
{
    const entry* e = NULL;
    const uint8_t* at = NULL;
    const int status = locate(file, key, index, &e, &at);
    return status != GGUF_OK ? status : read_i64(e->type, at, value);
}

int gguf_get_f64_at(const gguf* file, const char* key, uint64_t index, double* value)
{
    const entry* e = NULL;
    const uint8_t* at = NULL;
    const int status = locate(file, key, index, &e, &at);
    return status != GGUF_OK ? status : read_f64(e->type, at, value);
}

int gguf_get_bool_at(const gguf* file, const char* key, uint64_t index, bool* value)
{
    const entry* e = NULL;
    const uint8_t* at = NULL;
    const int status = locate(file, key, index, &e, &at);
    if (status != GGUF_OK) { return status; }
    if (e->type != GGUF_BOOL) { return GGUF_WRONG_TYPE; }
    *value = *at != 0;
    return GGUF_OK;
}

static bool is_array(const gguf* file, const char* key)
{
    const entry* e = find_entry(file, key);
    return e && e->is_array;
}

int gguf_get_u64(const gguf* file, const char* key, uint64_t* value)
{
    return is_array(file, key) ? GGUF_WRONG_TYPE : gguf_get_u64_at(file, key, 0, value);
}

int gguf_get_i64(const gguf* file, const char* key, int64_t* value)
{
    return is_array(file, key) ? GGUF_WRONG_TYPE : gguf_get_i64_at(file, key, 0, value);
}

int gguf_get_f64(const gguf* file, const char* key, double* value)
{
    return is_array(file, key) ? GGUF_WRONG_TYPE : gguf_get_f64_at(file, key, 0, value);
}

int gguf_get_bool(const gguf* file, const char* key, bool* value)
{
    return is_array(file, key) ? GGUF_WRONG_TYPE : gguf_get_bool_at(file, key, 0, value);
}

int gguf_get_string(const gguf* file, const char* key, gguf_string* value)
{
    const entry* e = find_entry(file, key);
    if (!e) { return GGUF_ABSENT; }
    if (e->type != GGUF_STRING || e->is_array) { return GGUF_WRONG_TYPE; }
    value->bytes = (size_t)load(e->data, 8);
    value->data = (const char*)e->data + 8;
    return GGUF_OK;
}

int gguf_get_array(const gguf* file, const char* key, gguf_array* value)
{
    const entry* e = find_entry(file, key);
    if (!e) { return GGUF_ABSENT; }
    if (!e->is_array) { return GGUF_WRONG_TYPE; }
    value->type = e->type;
    value->count = e->count;
    value->data = e->data;
    return GGUF_OK;
}

int gguf_array_i64(const gguf_array* array, uint64_t index, int64_t* value)
{
    if (index >= array->count) { return GGUF_OUT_OF_RANGE; }
    return read_i64(array->type, array->data + index * value_bytes(array->type), value);
}

int gguf_array_f64(const gguf_array* array, uint64_t index, double* value)
{
    if (index >= array->count) { return GGUF_OUT_OF_RANGE; }
    return read_f64(array->type, array->data + index * value_bytes(array->type), value);
}

// gguf_open has walked every string of the array, so the lengths are not compared again.
bool gguf_next_string(gguf_array* array, gguf_string* value)
{
    if (array->type != GGUF_STRING || array->count == 0) { return false; }
    value->bytes = (size_t)load(array->data, 8);
    value->data = (const char*)array->data + 8;
    array->data += 8 + value->bytes;
    array->count--;
    return true;
}

void gguf_explain(const gguf* file, const char* key, int status, const char* wanted, char* message,
                  size_t message_bytes)
{
    const entry* e = find_entry(file, key);
    if (message_bytes == 0) { return; }
    if (!e) {
        snprintf(message, message_bytes, "%s: %s: absent; must be %s", file->path, key, wanted);
    } else if (status == GGUF_WRONG_TYPE) {
        snprintf(message, message_bytes, "%s: %s: stored as %s%s; must be %s", file->path, key,
                 e->is_array ? "array of " : "", value_type_name(e->type), wanted);
    } else if (e->is_array) {
        snprintf(message, message_bytes, "%s: %s: array of %llu %s; must be %s", file->path, key,
                 (unsigned long long)e->count, value_type_name(e->type), wanted);
    } else {
        snprintf(message, message_bytes, "%s: %s: out of range; must be %s", file->path, key,
                 wanted);
    }
}

uint64_t gguf_num_tensors(const gguf* file) { return file->num_tensors; }

const gguf_tensor* gguf_tensor_at(const gguf* file, uint64_t index)
{
    return index < file->num_tensors ? &file->tensors[index].view : NULL;
}

const gguf_tensor* gguf_find(const gguf* file, const char* name)
{
    size_t low = 0;
    size_t high = (size_t)file->num_tensors;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(name, file->by_name[middle]->name);
        if (order == 0) { return &file->by_name[middle]->view; }
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return NULL;
}

const gguf_tensor* gguf_require(const gguf* file, const char* name, char* message,
                                size_t message_bytes)
{
    const gguf_tensor* tensor = gguf_find(file, name);
    if (tensor && tensor->data) { return tensor; }
    if (message_bytes == 0) { return NULL; }
    if (!tensor) {
        snprintf(message, message_bytes, "%s: tensor %s: absent", file->path, name);
        return NULL;
    }
    int n = snprintf(message, message_bytes, "%s: tensor %s: type %s (%d): must be one of",
                     file->path, name, gguf_type_name(tensor->type), tensor->type);
    for (size_t i = 0; i < sizeof type_table / sizeof type_table[0]; i++) {
        if (n < 0 || (size_t)n >= message_bytes) { break; }
        if (type_table[i].supported) {
            n += snprintf(message + n, message_bytes - (size_t)n, " %s", type_table[i].name);
        }
    }
    return NULL;
}
