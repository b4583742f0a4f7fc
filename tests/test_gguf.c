// test_gguf.c -- the GGUF reader on a good file, on that file with one field wrong, and cut short.
//
// Files are written by gguf_writer.h from the format's description; expected values are what was
// written. A case breaks when a check of the reader is missing, or when it allocates what a file
// promises: allocations above 32 MiB fail here, and the message would then say "no memory".

#include <criterion/criterion.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../examples/decode/gguf.h"
#include "gguf_writer.h"

#if defined(__SANITIZE_ADDRESS__)
#define UNDER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UNDER_ASAN 1
#endif
#endif

#ifdef UNDER_ASAN
const char* __asan_default_options(void);
const char* __asan_default_options(void)
{
    return "allocator_may_return_null=1:max_allocation_size_mb=32";
}
#endif

// Where the fields of the good file lie.
typedef struct places {
    size_t key_bytes, value_type, alignment_type, alignment, string_bytes;
    size_t layers_type, layers_count, strings_type, first_string_bytes, flag;
    size_t name_bytes, num_dims, dim0, dim1, type, offset; // of tensor b.weight, Q4_0 [32, 2]
    size_t first_name, first_offset;                       // of tensor a.weight
    size_t infos_end;
} places;

static char path[64];

static void set_up(void)
{
    snprintf(path, sizeof path, "/tmp/kvloom_gguf_XXXXXX");
    const int descriptor = mkstemp(path);
    cr_assert(descriptor >= 0);
    close(descriptor);
#ifndef UNDER_ASAN
    const struct rlimit limit = { (rlim_t)1 << 28, (rlim_t)1 << 28 };
    setrlimit(RLIMIT_DATA, &limit);
#endif
}

static void tear_down(void) { remove(path); }

TestSuite(gguf, .init = set_up, .fini = tear_down);

static void put_entries(gguf_writer* w, places* at, size_t pad_bytes)
{
    put_key(w, "pad", GGUF_STRING);
    put_u64(w, pad_bytes);
    for (size_t i = 0; i < pad_bytes; i++) { put_uint(w, 'x', 1); }
    at->alignment_type = put_key(w, "general.alignment", GGUF_U32);
    at->alignment = put_u32(w, 32);
    at->key_bytes = w->bytes;
    at->value_type = put_key(w, "general.architecture", GGUF_STRING);
    at->string_bytes = put_string(w, "llama");
    at->layers_type = put_array(w, "layers", GGUF_U32, 3);
    at->layers_count = at->layers_type + 4;
    for (uint32_t i = 0; i < 3; i++) { put_u32(w, 3 - i); }
    at->strings_type = put_array(w, "strings", GGUF_STRING, 2);
    at->first_string_bytes = put_string(w, "a");
    put_string(w, "bcd");
    put_key(w, "flag", GGUF_BOOL);
    at->flag = put_uint(w, 1, 1);
    put_key(w, "small", GGUF_I8);
    put_uint(w, 0xFB, 1); // -5
    put_key(w, "large", GGUF_U64);
    put_u64(w, ((uint64_t)1 << 63) + 1);
    put_key(w, "real", GGUF_F32);
    put_f32(w, 0.25f);
}

static void put_infos(gguf_writer* w, places* at)
{
    put_string(w, "a.weight");
    at->first_name = w->bytes - 8;
    put_u32(w, 2);
    put_u64(w, 4);
    put_u64(w, 2);
    put_u32(w, GGUF_TENSOR_F32);
    at->first_offset = put_u64(w, 0); // 32 bytes
    at->name_bytes = put_string(w, "b.weight");
    at->num_dims = put_u32(w, 2);
    at->dim0 = put_u64(w, 32);
    at->dim1 = put_u64(w, 2);
    at->type = put_u32(w, GGUF_TENSOR_Q4_0);
    at->offset = put_u64(w, 32); // 36 bytes
    put_string(w, "c.weight");
    put_u32(w, 1);
    put_u64(w, 256);
    put_u32(w, 10); // Q2_K, which this reader does not read
    put_u64(w, 96); // 84 bytes
    at->infos_end = w->bytes;
}

static places put_good(gguf_writer* w, size_t pad_bytes)
{
    places at;
    memset(&at, 0, sizeof at);
    put_header(w, 3, 9);
    put_entries(w, &at, pad_bytes);
    put_infos(w, &at);
    put_padding(w, 32);
    for (uint32_t i = 0; i < 96 + 84; i++) { put_uint(w, i & 0xFF, 1); }
    return at;
}

// Reads everything that a file offers, so that a sanitizer sees each byte that is reachable.
static uint64_t touch(const gguf* file)
{
    static const char* const keys[] = { "pad",
                                        "general.alignment",
                                        "general.architecture",
                                        "layers",
                                        "strings",
                                        "flag",
                                        "small",
                                        "large",
                                        "real" };
    uint64_t sum = 0;
    for (uint64_t i = 0; i < gguf_num_tensors(file); i++) {
        const gguf_tensor* const t = gguf_tensor_at(file, i);
        cr_assert(t && t->num_dims >= 1 && t->num_dims <= 4);
        cr_assert_eq(t->data != NULL, gguf_type_supported(t->type));
        for (uint64_t b = 0; b < t->bytes; b++) { sum += ((const uint8_t*)t->data)[b]; }
        cr_assert_eq(gguf_find(file, t->name), t);
    }
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        uint64_t u = 0;
        int64_t s = 0;
        double f = 0;
        bool b = false;
        gguf_string string = { "", 0 };
        gguf_array array = { 0, 0, NULL };
        for (uint64_t i = 0; i < 4; i++) {
            sum += (uint64_t)gguf_get_u64_at(file, keys[k], i, &u) + u;
            sum += (uint64_t)gguf_get_i64_at(file, keys[k], i, &s);
            sum += (uint64_t)gguf_get_f64_at(file, keys[k], i, &f);
            sum += (uint64_t)gguf_get_bool_at(file, keys[k], i, &b);
        }
        if (gguf_get_string(file, keys[k], &string) == GGUF_OK) {
            for (size_t i = 0; i < string.bytes; i++) { sum += (uint8_t)string.data[i]; }
        }
        if (gguf_get_array(file, keys[k], &array) == GGUF_OK) {
            if (array.count > 0) {
                sum += (uint64_t)gguf_array_i64(&array, array.count - 1, &s);
                sum += (uint64_t)gguf_array_f64(&array, array.count - 1, &f);
            }
            while (gguf_next_string(&array, &string)) {
                for (size_t i = 0; i < string.bytes; i++) { sum += (uint8_t)string.data[i]; }
            }
        }
    }
    return sum;
}

// Opens the first `bytes` bytes; reads all if that succeeds. Returns gguf_open's value.
static int open_bytes(const gguf_writer* w, size_t bytes, char* message, size_t message_bytes)
{
    gguf* file = NULL;
    cr_assert(save_bytes(w, bytes, path));
    const int status = gguf_open(path, &file, message, message_bytes);
    cr_assert_eq(status == 0, file != NULL);
    cr_assert_null(strstr(message, "no memory"), "%s", message);
    if (file) { touch(file); }
    gguf_close(file);
    return status;
}

static gguf* open_good(void)
{
    static gguf_writer w;
    gguf* file = NULL;
    char message[256];
    put_good(&w, 0);
    cr_assert(save_bytes(&w, w.bytes, path));
    cr_assert_eq(gguf_open(path, &file, message, sizeof message), 0, "%s", message);
    return file;
}

// Breaks when a getter returns another value than the one in the file.
Test(gguf, good_file_metadata)
{
    gguf* const file = open_good();
    uint64_t u = 0;
    int64_t s = 0;
    double f = 0;
    bool b = false;
    gguf_string string;
    cr_assert_eq(gguf_version(file), 3);
    cr_assert_eq(gguf_get_string(file, "general.architecture", &string), GGUF_OK);
    cr_assert(string.bytes == 5 && memcmp(string.data, "llama", 5) == 0);
    cr_assert(gguf_get_u64(file, "general.alignment", &u) == GGUF_OK && u == 32);
    cr_assert(gguf_get_i64(file, "small", &s) == GGUF_OK && s == -5);
    cr_assert_eq(gguf_get_u64(file, "small", &u), GGUF_OUT_OF_RANGE);
    cr_assert(gguf_get_u64(file, "large", &u) == GGUF_OK && u == ((uint64_t)1 << 63) + 1);
    cr_assert_eq(gguf_get_i64(file, "large", &s), GGUF_OUT_OF_RANGE);
    cr_assert(gguf_get_f64(file, "real", &f) == GGUF_OK && f == 0.25);
    cr_assert(gguf_get_bool(file, "flag", &b) == GGUF_OK && b);
    cr_assert_eq(gguf_get_u64(file, "nothing", &u), GGUF_ABSENT);
    cr_assert_eq(gguf_get_u64(file, "real", &u), GGUF_WRONG_TYPE);
    cr_assert_eq(gguf_get_u64(file, "flag", &u), GGUF_WRONG_TYPE);
    cr_assert_eq(gguf_get_f64(file, "small", &f), GGUF_WRONG_TYPE);
    cr_assert_eq(gguf_get_bool(file, "small", &b), GGUF_WRONG_TYPE);
    cr_assert_eq(gguf_get_string(file, "strings", &string), GGUF_WRONG_TYPE);
    gguf_close(file);
}

// Breaks when a field that may be per layer is read at the wrong place or past its end.
Test(gguf, good_file_arrays)
{
    gguf* const file = open_good();
    uint64_t u = 0;
    int64_t s = 0;
    gguf_array array;
    gguf_string string;
    for (uint64_t i = 0; i < 3; i++) {
        cr_assert(gguf_get_u64_at(file, "layers", i, &u) == GGUF_OK && u == 3 - i);
    }
    cr_assert_eq(gguf_get_u64_at(file, "layers", 3, &u), GGUF_OUT_OF_RANGE);
    cr_assert_eq(gguf_get_u64_at(file, "layers", UINT64_MAX, &u), GGUF_OUT_OF_RANGE);
    cr_assert_eq(gguf_get_u64(file, "layers", &u), GGUF_WRONG_TYPE);
    cr_assert(gguf_get_u64_at(file, "general.alignment", 99, &u) == GGUF_OK && u == 32);
    cr_assert_eq(gguf_get_array(file, "flag", &array), GGUF_WRONG_TYPE);
    cr_assert_eq(gguf_get_array(file, "layers", &array), GGUF_OK);
    cr_assert(gguf_array_i64(&array, 2, &s) == GGUF_OK && s == 1);
    cr_assert_eq(gguf_array_i64(&array, 3, &s), GGUF_OUT_OF_RANGE);
    cr_assert_not(gguf_next_string(&array, &string));
    cr_assert_eq(gguf_get_array(file, "strings", &array), GGUF_OK);
    cr_assert_eq(gguf_array_i64(&array, 0, &s), GGUF_WRONG_TYPE);
    cr_assert(gguf_next_string(&array, &string) && string.bytes == 1 && string.data[0] == 'a');
    cr_assert(gguf_next_string(&array, &string) && memcmp(string.data, "bcd", 3) == 0);
    cr_assert_not(gguf_next_string(&array, &string));
    gguf_close(file);
}

// Breaks when tensor data is placed wrongly, or when data of a type that is not read gets out.
Test(gguf, good_file_tensors)
{
    gguf* const file = open_good();
    char message[256];
    const gguf_tensor* const a = gguf_find(file, "a.weight");
    const gguf_tensor* const b = gguf_find(file, "b.weight");
    const gguf_tensor* const c = gguf_find(file, "c.weight");
    cr_assert(gguf_num_tensors(file) == 3 && a && b && c);
    cr_assert(a->bytes == 32 && a->num_dims == 2 && a->dims[0] == 4 && a->dims[1] == 2);
    cr_assert(a->dims[2] == 1 && a->dims[3] == 1 && a->type == GGUF_TENSOR_F32);
    cr_assert_eq(((const uint8_t*)a->data)[31], 31);
    cr_assert(b->bytes == 36 && ((const uint8_t*)b->data)[0] == 32);
    cr_assert(c->data == NULL && c->bytes == 0 && c->type == 10);
    cr_assert_eq(gguf_require(file, "b.weight", message, sizeof message), b);
    cr_assert_null(gguf_require(file, "c.weight", message, sizeof message));
    cr_assert(strstr(message, "c.weight") && strstr(message, "Q2_K") && strstr(message, "Q6_K"));
    cr_assert_null(gguf_require(file, "d.weight", message, sizeof message));
    cr_assert(strstr(message, "d.weight") && strstr(message, "absent"));
    cr_assert_null(gguf_tensor_at(file, 3));
    gguf_close(file);
}

// Breaks when a block size in the type table is not the format's.
Test(gguf, row_bytes)
{
    cr_assert_eq(gguf_type_row_bytes(GGUF_TENSOR_F32, 3), 12);
    cr_assert_eq(gguf_type_row_bytes(GGUF_TENSOR_F16, 3), 6);
    cr_assert_eq(gguf_type_row_bytes(GGUF_TENSOR_BF16, 3), 6);
    cr_assert_eq(gguf_type_row_bytes(GGUF_TENSOR_Q4_0, 64), 2 * (2 + 16));
    cr_assert_eq(gguf_type_row_bytes(GGUF_TENSOR_Q4_1, 64), 2 * (4 + 16));
    cr_assert_eq(gguf_type_row_bytes(GGUF_TENSOR_Q5_0, 64), 2 * (2 + 4 + 16));
    cr_assert_eq(gguf_type_row_bytes(GGUF_TENSOR_Q5_1, 64), 2 * (4 + 4 + 16));
    cr_assert_eq(gguf_type_row_bytes(GGUF_TENSOR_Q8_0, 64), 2 * (2 + 32));
    cr_assert_eq(gguf_type_row_bytes(GGUF_TENSOR_Q4_K, 256), 2 + 2 + 12 + 128);
    cr_assert_eq(gguf_type_row_bytes(GGUF_TENSOR_Q5_K, 256), 2 + 2 + 12 + 32 + 128);
    cr_assert_eq(gguf_type_row_bytes(GGUF_TENSOR_Q6_K, 256), 128 + 64 + 16 + 2);
    cr_assert_eq(gguf_type_row_bytes(GGUF_TENSOR_Q4_0, 33), 0);
    cr_assert_eq(gguf_type_row_bytes(GGUF_TENSOR_Q4_0, 0), 0);
    cr_assert_eq(gguf_type_row_bytes(GGUF_TENSOR_F32, -1), 0);
    cr_assert_eq(gguf_type_row_bytes(GGUF_TENSOR_F32, INT64_MAX), 0);
    cr_assert_eq(gguf_type_row_bytes(10, 256), 0);
    cr_assert_eq(gguf_type_row_bytes(-1, 32), 0);
    cr_assert_str_eq(gguf_type_name(GGUF_TENSOR_Q5_K), "Q5_K");
    cr_assert_str_eq(gguf_type_name(12345), "unknown");
}

typedef struct wrong_field {
    size_t at;
    size_t bytes;
    uint64_t value;
    const char* expected; // a part of the message; NULL: the file must open
} wrong_field;

static void try_wrong(const wrong_field* cases, size_t count)
{
    static gguf_writer w;
    for (size_t i = 0; i < count; i++) {
        char message[256] = "";
        put_good(&w, 0);
        patch_uint(&w, cases[i].at, cases[i].value, cases[i].bytes);
        const int status = open_bytes(&w, w.bytes, message, sizeof message);
        if (!cases[i].expected) {
            cr_assert_eq(status, 0, "case %d: %s", (int)i, message);
            continue;
        }
        cr_assert_neq(status, 0, "case %d (%s) opened", (int)i, cases[i].expected);
        cr_assert(strstr(message, cases[i].expected), "case %d: %s", (int)i, message);
        cr_assert(strstr(message, path), "case %d: %s", (int)i, message);
    }
}

static places good_places(void)
{
    static gguf_writer w;
    return put_good(&w, 0);
}

// Breaks when a field of the header or of the metadata is used before it is checked.
Test(gguf, wrong_metadata)
{
    const places p = good_places();
    const wrong_field cases[] = {
        { 0, 4, 0x46554746, "not a GGUF file" },
        { 4, 4, 1, "version = 1" },
        { 4, 4, 4, "version = 4" },
        { 4, 4, 0x03000000, "big-endian" },
        { 8, 8, UINT64_MAX, "tensor count" },
        { 8, 8, (uint64_t)1 << 32, "tensor count" },
        { 8, 8, 2, NULL },
        { 8, 8, 4, "tensor" },
        { 16, 8, UINT64_MAX, "metadata count" },
        { 16, 8, (uint64_t)1 << 61, "metadata count" },
        { 16, 8, 10, "tensor 0" }, // the first tensor read as an entry
        { p.key_bytes, 8, UINT64_MAX, "key's length" },
        { p.key_bytes, 8, UINT64_MAX - 7, "key's length" },
        { p.key_bytes, 8, 0, "key length = 0" },
        { p.value_type, 4, 13, "value type = 13" },
        { p.value_type, 4, UINT32_MAX, "value type" },
        { p.string_bytes, 8, UINT64_MAX, "length" },
        { p.string_bytes, 8, 1 << 20, "length" },
        { p.layers_type, 4, GGUF_ARRAY, "array element type = 9" },
        { p.layers_type, 4, 99, "array element type = 99" },
        { p.layers_count, 8, UINT64_MAX, "values of type u32" },
        { p.layers_count, 8, ((uint64_t)1 << 62) + 3, "values of type u32" }, // * 4 wraps to 12
        { p.strings_type + 4, 8, UINT64_MAX, "strings" },
        { p.strings_type + 4, 8, (uint64_t)1 << 61, "strings" },
        { p.first_string_bytes, 8, UINT64_MAX - 8, "string 0" },
        { p.flag, 1, 2, "bool" },
        { p.alignment, 4, 0, "general.alignment = 0" },
        { p.alignment, 4, 24, "power of two" },
        { p.alignment, 4, 4, "power of two" },
        { p.alignment, 4, 64, "must be a multiple of the alignment 64" },
        { p.alignment, 4, 0x80000000u, "data: starts" },
        { p.alignment_type, 4, GGUF_F32, "general.alignment: stored as f32" },
        { p.alignment_type, 4, GGUF_I32, NULL },
    };
    try_wrong(cases, sizeof cases / sizeof cases[0]);
}

// Breaks when a tensor's shape, type or offset reaches an address before it is checked.
Test(gguf, wrong_tensor)
{
    const places p = good_places();
    const wrong_field cases[] = {
        { p.name_bytes, 8, UINT64_MAX, "name's length" },
        { p.name_bytes, 8, 0, "name of 0 bytes" },
        { p.name_bytes, 8, 65, "name of 65 bytes" },
        { p.name_bytes + 8, 1, 0, "none of them 0" },
        { p.name_bytes + 8, 1, 'a', "the name is there twice" },
        { p.num_dims, 4, 0, "number of dimensions = 0" },
        { p.num_dims, 4, 5, "number of dimensions = 5" },
        { p.num_dims, 4, UINT32_MAX, "number of dimensions" },
        { p.dim0, 8, 0, "dimension 0 = 0" },
        { p.dim0, 8, 33, "multiple of 32" },
        { p.dim0, 8, (uint64_t)1 << 63, "dimension 0" },
        { p.dim0, 8, UINT64_MAX, "dimension 0" },
        { p.dim0, 8, (uint64_t)1 << 62, "product" },
        { p.dim0, 8, (uint64_t)1 << 40, "must end within" },
        { p.dim1, 8, 0, "dimension 1 = 0" },
        { p.dim1, 8, (uint64_t)1 << 59, "product" }, // 32 * 2^59 wraps to 0
        { p.dim1, 8, (uint64_t)1 << 57, "must end within" },
        { p.dim1, 8, 4, "must not overlap tensor c.weight" },
        { p.dim1, 8, 1, NULL },
        { p.type, 4, GGUF_TENSOR_F32, "must end within" },
        { p.type, 4, GGUF_TENSOR_F16, "must not overlap" },
        { p.type, 4, GGUF_TENSOR_Q4_K, "multiple of 256, the block of Q4_K" },
        { p.type, 4, 77, NULL }, // not defined: opens, and its data cannot be had
        { p.type, 4, UINT32_MAX, "type = 4294967295" },
        { p.offset, 8, 33, "offset = 33: must be a multiple of the alignment 32" },
        { p.offset, 8, 0, "must not overlap" },
        { p.offset, 8, 64, "must not overlap" },
        { p.offset, 8, 192, "tensor b.weight: offset 192 + 36 bytes: must end within" },
        { p.offset, 8, UINT64_MAX - 31, "must end within" },
        { p.offset, 8, (uint64_t)1 << 63, "must end within" },
        { p.first_offset, 8, 32, "must not overlap" },
    };
    try_wrong(cases, sizeof cases / sizeof cases[0]);
}

// Breaks when a name is copied before its length is compared with its place.
Test(gguf, long_name)
{
    static gguf_writer w;
    char message[256];
    char name[66];
    for (size_t bytes = 64; bytes <= 65; bytes++) {
        memset(name, 'n', sizeof name);
        name[bytes] = 0;
        put_header(&w, 1, 0);
        put_string(&w, name);
        put_u32(&w, 1);
        put_u64(&w, 8);
        put_u32(&w, GGUF_TENSOR_F32);
        put_u64(&w, 0);
        put_padding(&w, 32);
        for (int i = 0; i < 32; i++) { put_uint(&w, 0, 1); }
        const int status = open_bytes(&w, w.bytes, message, sizeof message);
        cr_assert_eq(status != 0, bytes > 64, "%s", message);
    }
    cr_assert(strstr(message, "name of 65 bytes"), "%s", message);
}

// Breaks when a key that is there twice is read as one of the two.
Test(gguf, duplicate_key)
{
    static gguf_writer w;
    char message[256];
    put_header(&w, 0, 2);
    put_key(&w, "same", GGUF_U8);
    put_uint(&w, 1, 1);
    put_key(&w, "same", GGUF_U8);
    put_uint(&w, 2, 1);
    cr_assert_neq(open_bytes(&w, w.bytes, message, sizeof message), 0);
    cr_assert(strstr(message, "same") && strstr(message, "twice"), "%s", message);
}

// Breaks when a file of metadata alone, as vocabulary files are, does not open.
Test(gguf, no_tensors)
{
    static gguf_writer w;
    char message[256];
    put_header(&w, 0, 1);
    put_array(&w, "empty", GGUF_STRING, 0);
    cr_assert_eq(open_bytes(&w, w.bytes, message, sizeof message), 0, "%s", message);
    put_header(&w, 0, 0);
    cr_assert_eq(open_bytes(&w, w.bytes, message, sizeof message), 0, "%s", message);
}

// Breaks when a name from the file reaches a terminal with its control characters.
Test(gguf, message_is_printable)
{
    static gguf_writer w;
    char message[256];
    put_header(&w, 0, 1);
    put_key(&w, "\x1b[31mred\xff", 99);
    cr_assert_neq(open_bytes(&w, w.bytes, message, sizeof message), 0);
    for (size_t i = 0; message[i]; i++) { cr_assert(message[i] >= 32 && message[i] < 127); }
    cr_assert(strstr(message, "?[31mred?: value type = 99"), "%s", message);
}

// Breaks when the message runs over its buffer, or when there must be one.
Test(gguf, small_message_buffers)
{
    gguf* file = NULL;
    for (size_t bytes = 1; bytes < 100; bytes++) {
        char* const message = malloc(bytes);
        cr_assert_neq(gguf_open("/nonexistent/file", &file, message, bytes), 0);
        cr_assert(strlen(message) < bytes);
        free(message);
    }
    cr_assert_neq(gguf_open("/nonexistent/file", &file, NULL, 0), 0);
    cr_assert_neq(gguf_open("/tmp", &file, NULL, 0), 0);
    cr_assert_null(file);
    gguf_close(NULL);
}

// Breaks when a cut file opens: each lacks a byte of its last tensor at least.
Test(gguf, cut_at_every_length)
{
    static gguf_writer w;
    char message[256];
    put_good(&w, 0);
    for (size_t bytes = 0; bytes < w.bytes; bytes++) {
        cr_assert_neq(open_bytes(&w, bytes, message, sizeof message), 0, "%d bytes", (int)bytes);
    }
    cr_assert_eq(open_bytes(&w, w.bytes, message, sizeof message), 0, "%s", message);
}

// As above with each cut on a page boundary, so that a read behind the end is a fault and not a
// zero: the padding entry moves everything behind it.
Test(gguf, cut_at_page_end)
{
    static gguf_writer w;
    char message[256];
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const places p = good_places();
    for (size_t cut = p.alignment_type; cut < p.infos_end + 180; cut++) {
        put_good(&w, page - cut);
        cr_assert_gt(w.bytes, page);
        cr_assert_neq(open_bytes(&w, page, message, sizeof message), 0, "cut at %d", (int)cut);
    }
}

// Breaks when any single wrong byte leads out of the file or to a large allocation.
Test(gguf, every_byte_wrong)
{
    static gguf_writer w;
    static const uint8_t flips[] = { 0x01, 0x04, 0x80, 0xFF };
    char message[256];
    const places p = good_places();
    for (size_t at = 0; at < p.infos_end; at++) {
        for (size_t i = 0; i < sizeof flips; i++) {
            put_good(&w, 0);
            w.data[at] ^= flips[i];
            open_bytes(&w, w.bytes, message, sizeof message);
        }
    }
}
