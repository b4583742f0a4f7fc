// eval_text.c -- reads and hashes text, and cuts it into windows.

#include "eval_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text_stream.h"

enum { STRETCHES = 64, STRETCH_BYTES = 1 << 16 };

// SHA-256 (FIPS 180-4)

typedef struct sha256 {
    uint32_t h[8];
    uint8_t waiting[64];
    size_t num_waiting;
    uint64_t bytes;
} sha256;

static const uint32_t sha256_first[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };

static const uint32_t sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t turn(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void sha256_take(sha256* s, const uint8_t* p)
{
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++) {
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    }
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] +
               (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    memcpy(v, s->h, sizeof v);
    for (int i = 0; i < 64; i++) {
        const uint32_t e = v[4], a = v[0];
        const uint32_t one = v[7] + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) +
                             ((e & v[5]) ^ (~e & v[6])) + sha256_k[i] + w[i];
        const uint32_t two = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) +
                             ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; i++) { s->h[i] += v[i]; }
}

static void sha256_add(sha256* s, const void* data, size_t bytes)
{
    const uint8_t* p = data;
    s->bytes += bytes;
    while (bytes > 0) {
        if (s->num_waiting == 0 && bytes >= sizeof s->waiting) {
            sha256_take(s, p);
            p += sizeof s->waiting;
            bytes -= sizeof s->waiting;
            continue;
        }
        s->waiting[s->num_waiting++] = *p++;
        bytes--;
        if (s->num_waiting == sizeof s->waiting) {
            sha256_take(s, s->waiting);
            s->num_waiting = 0;
        }
    }
}

static void sha256_end(sha256* s, char* hex)
{
    const uint64_t bits = 8 * s->bytes;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) { length[i] = (uint8_t)(bits >> (56 - 8 * i)); }
    sha256_add(s, "\x80", 1);
    while (s->num_waiting != 56) { sha256_add(s, "", 1); }
    sha256_add(s, length, sizeof length);
    for (int i = 0; i < 8; i++) { snprintf(hex + 8 * i, 9, "%08x", s->h[i]); }
}

static sha256 sha256_begin(void)
{
    sha256 s = { .num_waiting = 0 };
    memcpy(s.h, sha256_first, sizeof s.h);
    return s;
}

void eval_sha256(const void* data, size_t bytes, char* hex)
{
    sha256 s = sha256_begin();
    sha256_add(&s, data, bytes);
    sha256_end(&s, hex);
}

// FILES

static int failed(char* message, size_t message_bytes, const char* path, const char* what)
{
    snprintf(message, message_bytes, "%s: %s", path, what);
    return 1;
}

int eval_fingerprint(const char* path, char* hex, char* message, size_t message_bytes)
{
    sha256 s = sha256_begin();
    uint8_t* stretch = malloc(STRETCH_BYTES);
    FILE* file = fopen(path, "rb");
    bool ok = file != NULL && stretch != NULL && fseeko(file, 0, SEEK_END) == 0;
    const off_t size = ok ? ftello(file) : -1;
    ok = ok && size >= 0;
    if (ok) { sha256_add(&s, &size, sizeof size); }
    const off_t room = size > STRETCH_BYTES ? size - STRETCH_BYTES : 0;
    for (int i = 0; ok && i < STRETCHES; i++) {
        ok = fseeko(file, room / (STRETCHES - 1) * i, SEEK_SET) == 0;
        const size_t got = ok ? fread(stretch, 1, STRETCH_BYTES, file) : 0;
        ok = ok && !ferror(file);
        sha256_add(&s, stretch, got);
    }
    const int error = errno;
    if (file != NULL) { fclose(file); }
    free(stretch);
    if (!ok) { return failed(message, message_bytes, path, strerror(error)); }
    sha256_end(&s, hex);
    return 0;
}

// All bytes of a file; NULL after a failure, with errno.
static char* read_file(const char* path, size_t* bytes)
{
    FILE* file = fopen(path, "rb");
    char* data = NULL;
    size_t capacity = 0;
    *bytes = 0;
    if (file == NULL) { return NULL; }
    for (;;) {
        if (*bytes == capacity) {
            capacity = 2 * capacity + (1 << 16);
            char* larger = realloc(data, capacity);
            if (larger == NULL) { break; }
            data = larger;
        }
        const size_t got = fread(data + *bytes, 1, capacity - *bytes, file);
        *bytes += got;
        if (got == 0 && !ferror(file)) {
            fclose(file);
            return data;
        }
        if (got == 0) { break; }
    }
    const int error = errno;
    free(data);
    fclose(file);
    errno = error;
    return NULL;
}

// The token that the model wants in front, from what it adds to no text at all.
static int32_t find_bos(const tokenizer* tok)
{
    int32_t* ids = NULL;
    size_t count = 0;
    int32_t bos = -1;
    if (tokenizer_encode(tok, "", 0, TOKENIZER_ADD_SPECIAL, &ids, &count) == TOKENIZER_OK) {
        if (count > 0 && ids[0] == tokenizer_bos(tok)) { bos = ids[0]; }
        free(ids);
    }
    return bos;
}

int eval_text_read(const char* path, const tokenizer* tok, eval_text* out, char* message,
                   size_t message_bytes)
{
    size_t bytes = 0, count = 0;
    *out = (eval_text){ .bos = -1 };
    char* data = read_file(path, &bytes);
    if (data == NULL) { return failed(message, message_bytes, path, strerror(errno)); }
    eval_sha256(data, bytes, out->sha256);
    const int status = tokenizer_encode(tok, data, bytes, 0, &out->ids, &count);
    free(data);
    if (status != TOKENIZER_OK) {
        return failed(message, message_bytes, path, tokenizer_status_text(status));
    }
    out->count = (int64_t)count;
    out->bos = find_bos(tok);
    return 0;
}

void eval_text_free(eval_text* text)
{
    free(text->ids);
    *text = (eval_text){ .bos = -1 };
}

// WINDOWS

int64_t eval_text_num_windows(const eval_text* text, int64_t context)
{
    const int64_t taken = context - (text->bos >= 0 ? 1 : 0);
    return taken > 0 ? text->count / taken : 0;
}

void eval_text_window(const eval_text* text, int64_t context, int64_t window, int32_t* ids)
{
    const int64_t added = text->bos >= 0 ? 1 : 0;
    const int64_t taken = context - added;
    if (added > 0) { ids[0] = text->bos; }
    memcpy(ids + added, text->ids + window * taken, (size_t)taken * sizeof *ids);
}

void eval_text_show(const tokenizer* tok, const int32_t* ids, int64_t count, char* out,
                    size_t out_bytes)
{
    text_stream stream = { .out = NULL };
    out[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        char piece[256];
        const int64_t bytes = tokenizer_piece(tok, ids[i], true, piece, sizeof piece);
        const size_t kept = bytes < 0 ? 0 : bytes < 256 ? (size_t)bytes : sizeof piece;
        if (!text_stream_add(&stream, piece, kept)) { break; }
    }
    text_stream_end(&stream);
    if (stream.text.data != NULL) {
        size_t first = 0;
        if (stream.text.count >= out_bytes) { first = stream.text.count - out_bytes + 1; }
        while ((stream.text.data[first] & 0xc0) == 0x80) { first++; }  // inside a character
        memcpy(out, stream.text.data + first, stream.text.count - first + 1);
        for (char* c = out; *c != 0; c++) {
            if ((unsigned char)*c < 32 && *c != '\n') { *c = ' '; }
        }
    }
    text_bytes_free(&stream.text);
}
