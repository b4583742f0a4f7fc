// gguf.h -- reads a GGUF model file (versions 2 and 3) without trusting it.
//
// The file is mapped, checked completely by gguf_open, and then only read. Whatever this interface
// returns points into the mapping and lives until gguf_close. Every count, size, offset and type of
// the file is checked before its first use, so that a damaged or hostile file gives a message and
// never an access outside the file. Memory is allocated in proportion to what has already been
// read, never to what the file promises.
//
// A file that another process shortens while it is mapped raises SIGBUS on access; that cannot be
// checked. A gguf is immutable after gguf_open: threads may share it.

#ifndef KVLOOM_DECODE_GGUF_H
#define KVLOOM_DECODE_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gguf gguf;

// What a getter of metadata answers. GGUF_OK is 0.
enum {
    GGUF_OK = 0,
    GGUF_ABSENT,      // no such key
    GGUF_WRONG_TYPE,  // stored as a type that the getter does not serve
    GGUF_OUT_OF_RANGE // the value does not fit, or the array is too short for the index
};

// Types of metadata values, as the file stores them.
enum {
    GGUF_U8 = 0,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
};

// Types of tensors that an engine can read here, with their numbers in the file.
enum {
    GGUF_TENSOR_F32 = 0,
    GGUF_TENSOR_F16 = 1,
    GGUF_TENSOR_Q4_0 = 2,
    GGUF_TENSOR_Q4_1 = 3,
    GGUF_TENSOR_Q5_0 = 6,
    GGUF_TENSOR_Q5_1 = 7,
    GGUF_TENSOR_Q8_0 = 8,
    GGUF_TENSOR_Q4_K = 12,
    GGUF_TENSOR_Q5_K = 13,
    GGUF_TENSOR_Q6_K = 14,
    GGUF_TENSOR_BF16 = 30
};

typedef struct gguf_string {
    const char* data; // not terminated; may hold any byte
    size_t bytes;
} gguf_string;

// An array of metadata. For strings it is also a cursor: gguf_next_string moves it forward.
typedef struct gguf_array {
    int type;            // of the elements, GGUF_U8 ... GGUF_F64; never GGUF_ARRAY
    uint64_t count;      // elements from `data` on
    const uint8_t* data; // little endian, not aligned
} gguf_array;

typedef struct gguf_tensor {
    const char* name; // terminated
    int num_dims;     // 1 .. 4
    int64_t dims[4];  // dims[0] is the row length; unused ones are 1
    int type;         // the file's number, also when not supported
    const void* data; // [product of dims] in blocks of the type; NULL if not supported
    uint64_t bytes;   // of data; 0 if not supported
} gguf_tensor;

// Opens and checks a file. Returns 0, or another value with one line in message: file, field,
// value, rule. *out is NULL after a failure. message may be NULL if message_bytes is 0.
int gguf_open(const char* path, gguf** out, char* message, size_t message_bytes);
void gguf_close(gguf* file); // file can be NULL

const char* gguf_path(const gguf* file);
uint32_t gguf_version(const gguf* file);

// METADATA
//
// The integer getters take every stored integer type and refuse values that do not fit;
// gguf_get_f64 takes f32 and f64. *value is written only on GGUF_OK.
int gguf_get_u64(const gguf* file, const char* key, uint64_t* value);
int gguf_get_i64(const gguf* file, const char* key, int64_t* value);
int gguf_get_f64(const gguf* file, const char* key, double* value);
int gguf_get_bool(const gguf* file, const char* key, bool* value);
int gguf_get_string(const gguf* file, const char* key, gguf_string* value);
int gguf_get_array(const gguf* file, const char* key, gguf_array* value);

// For fields that are one value for all layers or an array with one value a layer (head_count_kv,
// feed_forward_length, sliding_window_pattern): a scalar answers every index.
int gguf_get_u64_at(const gguf* file, const char* key, uint64_t index, uint64_t* value);
int gguf_get_i64_at(const gguf* file, const char* key, uint64_t index, int64_t* value);
int gguf_get_f64_at(const gguf* file, const char* key, uint64_t index, double* value);
int gguf_get_bool_at(const gguf* file, const char* key, uint64_t index, bool* value);

// One element of an array, read as gguf_get_i64 and gguf_get_f64 read scalars.
int gguf_array_i64(const gguf_array* array, uint64_t index, int64_t* value);
int gguf_array_f64(const gguf_array* array, uint64_t index, double* value);

// Takes the first string off an array of strings; false when none is left or the elements are not
// strings.
bool gguf_next_string(gguf_array* array, gguf_string* value);

// Writes one line about a getter's answer: "FILE: KEY: absent; must be WANTED". WANTED is the
// caller's words.
void gguf_explain(const gguf* file, const char* key, int status, const char* wanted, char* message,
                  size_t message_bytes);

// TENSORS
uint64_t gguf_num_tensors(const gguf* file);
const gguf_tensor* gguf_tensor_at(const gguf* file,
                                  uint64_t index);                // file order; NULL past the end
const gguf_tensor* gguf_find(const gguf* file, const char* name); // NULL if absent

// Like gguf_find for a tensor whose data will be read: NULL, with a message, if it is absent or if
// its type is not supported. message_bytes can be 0.
const gguf_tensor* gguf_require(const gguf* file, const char* name, char* message,
                                size_t message_bytes);

// Names every type that the format defines ("Q4_K"); "unknown" for other numbers.
const char* gguf_type_name(int type);
bool gguf_type_supported(int type);

// Bytes of a row of n values; 0 if the type is not supported, or n is not a positive multiple of
// its block.
uint64_t gguf_type_row_bytes(int type, int64_t n);

#endif
