// saved_session.c -- a session in a file: what was run, and what has to be known to go on.
//
// The data beside the token ids, little-endian: 8 bytes "decode1\n", then records
//
//     | kind u32 | bytes u64 | payload |
//
//     IDENTITY   model_identity, once, first
//     LOGITS     [vocab_size] f32 after the last row, at most once
//     RUN        the text that a chat has run; there exactly if the session is a chat
//     USER, ASSISTANT, SYSTEM   a message's text, in order
//
// All of it comes from a file and is compared with its bounds before it is used.

#include "saved_session.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[9] = "decode1\n";

enum { MAGIC_BYTES = 8, RECORD_HEADER = 12 };

enum {
    RECORD_IDENTITY = 1,
    RECORD_LOGITS,
    RECORD_RUN,
    RECORD_USER,  // in the order of roles
    RECORD_ASSISTANT,
    RECORD_SYSTEM
};

static const char* const roles[] = { "user", "assistant", "system" };

typedef struct report {
    char* message;
    size_t bytes;
    const char* path;
} report;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static int fail(const report* r, const char* format, ...)
{
    va_list args;
    char what[512];
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(r->message, r->bytes, "%s: %s", r->path, what);
    return 1;
}

// WRITING

static void put_number(unsigned char* to, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++) { to[i] = (unsigned char)(x >> 8 * i); }
}

static uint64_t get_number(const unsigned char* from, int bytes)
{
    uint64_t x = 0;
    for (int i = 0; i < bytes; i++) { x |= (uint64_t)from[i] << 8 * i; }
    return x;
}

static bool add_record(text_bytes* data, unsigned kind, const char* payload, size_t bytes)
{
    unsigned char head[RECORD_HEADER];
    put_number(head, kind, 4);
    put_number(head + 4, bytes, 8);
    return text_bytes_add(data, (const char*)head, sizeof head) &&
           (bytes == 0 || text_bytes_add(data, payload, bytes));
}

static bool add_logits(text_bytes* data, const float* logits, int vocab_size)
{
    const size_t bytes = 4 * (size_t)vocab_size;
    unsigned char* payload = malloc(bytes);
    for (int i = 0; payload != NULL && i < vocab_size; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        put_number(payload + 4 * i, bits, 4);
    }
    const bool ok = payload != NULL && add_record(data, RECORD_LOGITS, (const char*)payload, bytes);
    free(payload);
    return ok;
}

static bool add_talk(text_bytes* data, const conversation* talk)
{
    bool ok = add_record(data, RECORD_RUN, talk->run.data, talk->run.count);
    for (size_t i = 0; ok && i < talk->num_messages; i++) {
        unsigned kind = RECORD_USER;
        while (strcmp(roles[kind - RECORD_USER], talk->messages[i].role) != 0) { kind++; }
        ok = add_record(data, kind, talk->messages[i].text, strlen(talk->messages[i].text));
    }
    return ok;
}

int saved_session_write(const char* path, model_session* s, const saved_session* saved,
                        char* message, size_t message_bytes)
{
    const model* m = model_session_model(s);
    const report r = { message, message_bytes, path };
    char identity[MODEL_IDENTITY_BYTES];
    text_bytes data = { NULL, 0, 0 };
    model_identity(m, identity);
    const bool ok =
        text_bytes_add(&data, magic, MAGIC_BYTES) &&
        add_record(&data, RECORD_IDENTITY, identity, strlen(identity)) &&
        (saved->logits == NULL ||
         add_logits(&data, saved->logits, model_get_geometry(m)->vocab_size)) &&
        (saved->talk == NULL || add_talk(&data, saved->talk));
    const kvl_save_seq seq = { .seq = model_session_seq(s), .tokens = saved->ids,
                               .num_tokens = saved->num_ids, .data = data.data,
                               .data_bytes = data.count };
    const kvl_save_desc desc = { .num_seqs = 1, .seqs = &seq, .path = path };
    int status = ok ? 0 : fail(&r, "out of memory");
    if (ok && kvl_save(model_session_cache(s), &desc) != KVL_OK) {
        snprintf(message, message_bytes, "%s", kvl_context_message(model_session_kvl(s)));
        status = 1;
    }
    text_bytes_free(&data);
    return status;
}

// READING

typedef struct record {
    unsigned kind;
    const unsigned char* payload;
    size_t bytes;
} record;

// Takes the first record off the rest of the data; false when it is cut short.
static bool next_record(const unsigned char** at, size_t* left, record* out)
{
    if (*left < RECORD_HEADER) { return false; }
    const uint64_t bytes = get_number(*at + 4, 8);
    if (bytes > *left - RECORD_HEADER) { return false; }
    *out = (record){ (unsigned)get_number(*at, 4), *at + RECORD_HEADER, (size_t)bytes };
    *at += RECORD_HEADER + bytes;
    *left -= RECORD_HEADER + (size_t)bytes;
    return true;
}

static int read_logits(const report* r, const record* one, int vocab_size, float* logits)
{
    if (one->bytes != 4 * (size_t)vocab_size) {
        return fail(r, "damaged: %zu bytes of logits, the vocabulary has %d", one->bytes,
                    vocab_size);
    }
    for (int i = 0; i < vocab_size; i++) {
        const uint32_t bits = (uint32_t)get_number(one->payload + 4 * i, 4);
        memcpy(&logits[i], &bits, sizeof bits);
    }
    return 0;
}

static int read_record(const report* r, const record* one, model_session* s,
                       saved_session_reading* out)
{
    const char* text = (const char*)one->payload;
    switch (one->kind) {
    case RECORD_LOGITS:
        out->has_logits = true;
        return read_logits(r, one, model_get_geometry(model_session_model(s))->vocab_size,
                           out->logits);
    case RECORD_RUN:
        out->is_chat = true;
        return text_bytes_add(&out->talk->run, text, one->bytes) ? 0 : fail(r, "out of memory");
    case RECORD_USER:
    case RECORD_ASSISTANT:
    case RECORD_SYSTEM:
        return conversation_add(out->talk, roles[one->kind - RECORD_USER], text, one->bytes)
            ? 0 : fail(r, "out of memory");
    default: return fail(r, "damaged: a record of kind %u", one->kind);
    }
}

static int read_data(const report* r, const kvl_loaded_seq* seq, model_session* s,
                     saved_session_reading* out)
{
    const unsigned char* at = seq->data;
    size_t left = (size_t)seq->data_bytes;
    char identity[MODEL_IDENTITY_BYTES];
    record one;
    if (left < MAGIC_BYTES || memcmp(at, magic, MAGIC_BYTES) != 0) {
        return fail(r, "saved by another program: it has no model's name");
    }
    at += MAGIC_BYTES;
    left -= MAGIC_BYTES;
    if (!next_record(&at, &left, &one) || one.kind != RECORD_IDENTITY ||
        one.bytes >= MODEL_IDENTITY_BYTES) {
        return fail(r, "damaged: it has no model's name");
    }
    model_identity(model_session_model(s), identity);
    if (one.bytes != strlen(identity) || memcmp(one.payload, identity, one.bytes) != 0) {
        return fail(r, "saved with the model %.*s, this one is %s", (int)one.bytes,
                    (const char*)one.payload, identity);
    }
    int status = 0;
    while (status == 0 && left > 0) {
        if (!next_record(&at, &left, &one)) { return fail(r, "damaged: a record is cut short"); }
        status = read_record(r, &one, s, out);
    }
    return status;
}

static int check_ids(const report* r, const kvl_loaded_seq* seq, int vocab_size)
{
    for (int64_t i = 0; i < seq->num_tokens; i++) {
        if (seq->tokens[i] < 0 || seq->tokens[i] >= vocab_size) {
            return fail(r, "damaged: token %lld is %d, the vocabulary has %d", (long long)i,
                        seq->tokens[i], vocab_size);
        }
    }
    return 0;
}

int saved_session_read(const char* path, model_session* s, saved_session_reading* out,
                       char* message, size_t message_bytes)
{
    kvl_context* ctx = model_session_kvl(s);
    const report r = { message, message_bytes, path };
    const int vocab_size = model_get_geometry(model_session_model(s))->vocab_size;
    kvl_loaded_seq* seqs = NULL;
    int num_seqs = 0;
    if (kvl_file_read_seqs(ctx, path, &seqs, &num_seqs) != KVL_OK) {
        const char* why = kvl_context_message(ctx);
        const size_t length = strlen(path);
        if (strncmp(why, path, length) != 0) { return fail(&r, "%s", why); }
        snprintf(message, message_bytes, "%s", why);
        return 1;
    }
    int status = num_seqs == 1 ? 0 : fail(&r, "has %d sequences: must be 1", num_seqs);
    if (status == 0) { status = read_data(&r, &seqs[0], s, out); }
    if (status == 0) { status = check_ids(&r, &seqs[0], vocab_size); }
    if (status == 0) {
        const size_t bytes = (size_t)seqs[0].num_tokens * sizeof *out->ids;
        out->ids = malloc(bytes + 1);
        if (out->ids == NULL) { status = fail(&r, "out of memory"); }
        else {
            if (bytes > 0) { memcpy(out->ids, seqs[0].tokens, bytes); }
            out->num_ids = seqs[0].num_tokens;
        }
    }
    kvl_loaded_free(ctx, seqs, num_seqs);
    return status;
}

int saved_session_take_rows(const char* path, model_session* s, bool recode, char* message,
                            size_t message_bytes)
{
    kvl_context* ctx = model_session_kvl(s);
    const report r = { message, message_bytes, path };
    const kvl_load_desc desc = { .path = path, .recode = recode };
    kvl_loaded_seq* seqs = NULL;
    int num_seqs = 0;
    if (kvl_load(model_session_cache(s), &desc, &seqs, &num_seqs) != KVL_OK) {
        return fail(&r, "%s", kvl_context_message(ctx));
    }
    int status = num_seqs == 1 ? 0 : fail(&r, "has %d sequences: must be 1", num_seqs);
    if (status == 0 && model_session_take(s, seqs[0].seq, seqs[0].num_tokens) != MODEL_OK) {
        status = fail(&r, "%s", model_session_message(s));
    }
    for (int i = 0; status != 0 && i < num_seqs; i++) {
        kvl_seq_free(model_session_cache(s), seqs[i].seq);
    }
    kvl_loaded_free(ctx, seqs, num_seqs);
    return status;
}

int saved_session_check_path(const char* path, char* message, size_t message_bytes)
{
    const report r = { message, message_bytes, path };
    char start[8] = "", folder[4096];
    struct stat st;
    if (stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode)) { return fail(&r, "cannot be written: it is a folder"); }
        FILE* file = S_ISREG(st.st_mode) ? fopen(path, "rb") : NULL;
        const size_t bytes = file != NULL ? fread(start, 1, sizeof start, file) : 0;
        if (file != NULL) { fclose(file); }
        if (bytes > 0 && memcmp(start, "kvlseqs\n", sizeof start) != 0) {
            return fail(&r, "is there and no file of saved sequences: it is not replaced");
        }
    }
    const char* slash = strrchr(path, '/');
    const size_t length = slash != NULL ? (size_t)(slash - path) : 0;
    if (path[0] == 0) { return fail(&r, "cannot be written: the path is empty"); }
    if (length >= sizeof folder) { return fail(&r, "cannot be written: the path is too long"); }
    memcpy(folder, path, length);
    folder[length] = 0;
    const char* where = slash == NULL ? "." : length == 0 ? "/" : folder;
    return access(where, W_OK | X_OK) == 0
        ? 0 : fail(&r, "cannot be written: %s: %s", where, strerror(errno));
}
