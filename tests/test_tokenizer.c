// test_tokenizer.c -- tokenizers and chat templates, on vocabularies made here and on real ones.
//
// The small vocabularies have hand-computed results. Ids of real vocabularies were recorded from
// llama.cpp (oracles/record_tokens.py); those tests need the model files, whose paths come from
// KVLOOM_TEST_MODEL_SMOLLM2 and KVLOOM_TEST_MODEL_GEMMA3, and are skipped without them.

#include <criterion/criterion.h>
#include <stdlib.h>
#include <unistd.h>

#include "../examples/decode/chat.h"
#include "../examples/decode/tokenizer.h"
#include "gguf_writer.h"

enum { MAX_IDS = 256 };

static char path[64];

static void set_up(void)
{
    snprintf(path, sizeof path, "/tmp/kvloom_tokenizer_XXXXXX");
    const int descriptor = mkstemp(path);
    cr_assert(descriptor >= 0);
    close(descriptor);
}

static void tear_down(void) { remove(path); }

TestSuite(tokenizer, .init = set_up, .fini = tear_down);
TestSuite(chat, .init = set_up, .fini = tear_down);

// ---- small vocabularies ----

typedef struct token {
    const char* text;
    int32_t type; // 1 normal, 2 unknown, 3 control, 4 user-defined
    float score;
} token;

// Written before the 256 byte tokens, whose ids are therefore BYTE + byte.
enum { BYTE = 16 };

static void put_tokens(gguf_writer* w, const token* tokens, size_t count, bool is_bpe)
{
    put_array(w, "tokenizer.ggml.tokens", GGUF_STRING, BYTE + 256);
    for (size_t i = 0; i < BYTE; i++) { put_string(w, i < count ? tokens[i].text : ""); }
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; b++) {
        char text[8];
        // GPT-2's alphabet: printable Latin-1 stands for itself, the rest follows from U+0100 on.
        const bool printable = (b > 32 && b < 127) || (b > 160 && b != 173);
        const uint32_t c = printable ? b : next;
        if (!is_bpe) {
            snprintf(text, sizeof text, "<0x%02X>", b);
        } else if (c < 128) {
            snprintf(text, sizeof text, "%c", (int)c);
        } else {
            snprintf(text, sizeof text, "%c%c", (int)(0xC0 | c >> 6), (int)(0x80 | (c & 63)));
        }
        next += !printable;
        put_string(w, text);
    }
    put_array(w, "tokenizer.ggml.token_type", GGUF_I32, BYTE + 256);
    for (size_t i = 0; i < BYTE + 256; i++) {
        const int32_t byte_type = is_bpe ? 1 : 6;
        put_u32(w, (uint32_t)(i >= BYTE ? byte_type : i < count ? tokens[i].type : 5));
    }
}

// "hello": h e l l o -> he l l o -> he ll o -> hell o -> hello.
static const token bpe_tokens[] = { { "<|endoftext|>", 3, 0 },
                                    { "<|im_end|>", 1, 0 },
                                    { "<s>", 3, 0 },
                                    { "<user>", 4, 0 },
                                    { "he", 1, 0 },
                                    { "ll", 1, 0 },
                                    { "hell", 1, 0 },
                                    { "hello", 1, 0 },
                                    { "\xC4\xA0h", 1, 0 },
                                    { "11", 1, 0 },
                                    { "111", 1, 0 },
                                    { "<user><user>", 4, 0 },
                                    { "xyz", 1, 0 } };
static const char* const bpe_merges[] = { "h e",        "l l", "he ll", "hell o",
                                          "\xC4\xA0 h", "1 1", "11 1" };

static void put_bpe(gguf_writer* w, const char* pre, const char* last_merge)
{
    const size_t num_merges = sizeof bpe_merges / sizeof bpe_merges[0];
    put_header(w, 0, 7);
    put_key(w, "tokenizer.ggml.model", GGUF_STRING);
    put_string(w, "gpt2");
    put_key(w, "tokenizer.ggml.pre", GGUF_STRING);
    put_string(w, pre);
    put_tokens(w, bpe_tokens, sizeof bpe_tokens / sizeof bpe_tokens[0], true);
    put_array(w, "tokenizer.ggml.merges", GGUF_STRING, num_merges + (last_merge ? 1 : 0));
    for (size_t i = 0; i < num_merges; i++) { put_string(w, bpe_merges[i]); }
    if (last_merge) { put_string(w, last_merge); }
    put_key(w, "tokenizer.ggml.bos_token_id", GGUF_U32);
    put_u32(w, 2);
    put_key(w, "tokenizer.ggml.eos_token_id", GGUF_U32);
    put_u32(w, 0);
}

// U+2581 marks a blank.
#define MARK "\xE2\x96\x81"
static const token spm_tokens[] = { { "<unk>", 2, 0 },    { "<s>", 3, 0 },     { "</s>", 3, 0 },
                                    { "a", 1, -5 },       { "b", 1, -5 },      { "c", 1, -5 },
                                    { "ab", 1, -2 },      { "bc", 1, -1 },     { MARK, 1, -6 },
                                    { MARK "a", 1, -3 },  { "abc", 1, -0.5f }, { "  ", 4, -9 },
                                    { "\xC3\xA9", 1, -7 } };

static void put_spm(gguf_writer* w, bool space_prefix)
{
    const size_t count = sizeof spm_tokens / sizeof spm_tokens[0];
    put_header(w, 0, 8);
    put_key(w, "tokenizer.ggml.model", GGUF_STRING);
    put_string(w, "llama");
    put_tokens(w, spm_tokens, count, false);
    put_array(w, "tokenizer.ggml.scores", GGUF_F32, BYTE + 256);
    for (size_t i = 0; i < BYTE + 256; i++) { put_f32(w, i < count ? spm_tokens[i].score : 0); }
    put_key(w, "tokenizer.ggml.bos_token_id", GGUF_U32);
    put_u32(w, 1);
    put_key(w, "tokenizer.ggml.eos_token_id", GGUF_U32);
    put_u32(w, 2);
    put_key(w, "tokenizer.ggml.unknown_token_id", GGUF_U32);
    put_u32(w, 0);
    put_key(w, "tokenizer.ggml.add_space_prefix", GGUF_BOOL);
    put_uint(w, space_prefix, 1);
}

static gguf* open_written(const gguf_writer* w)
{
    gguf* file = NULL;
    char message[256] = "";
    cr_assert(save_bytes(w, w->bytes, path));
    cr_assert_eq(gguf_open(path, &file, message, sizeof message), 0, "%s", message);
    return file;
}

static tokenizer* create(const gguf* file)
{
    tokenizer* tok = NULL;
    char message[512] = "";
    cr_assert_eq(tokenizer_create(file, &tok, message, sizeof message), 0, "%s", message);
    return tok;
}

// The text is copied into a block of its size, so that a read behind it is seen.
static void expect_ids(const tokenizer* tok, const char* text, size_t bytes, int flags,
                       const int32_t* expected, size_t expected_count, const char* what)
{
    int32_t* ids = NULL;
    size_t count = 0;
    char* const copy = malloc(bytes > 0 ? bytes : 1);
    if (bytes > 0) { memcpy(copy, text, bytes); }
    cr_assert_eq(tokenizer_encode(tok, copy, bytes, flags, &ids, &count), TOKENIZER_OK);
    free(copy);
    bool same = count == expected_count;
    for (size_t i = 0; same && i < count; i++) { same = ids[i] == expected[i]; }
    if (!same) {
        char line[1024] = "";
        size_t n = 0;
        for (size_t i = 0; i < count && n + 16 < sizeof line; i++) {
            n += (size_t)snprintf(line + n, sizeof line - n, " %ld", (long)ids[i]);
        }
        cr_assert_fail("%s: got%s", what, line);
    }
    free(ids);
}

#define EXPECT(tok, text, flags, ...)                                                              \
    do {                                                                                           \
        const int32_t expected_[] = { __VA_ARGS__ };                                               \
        expect_ids(tok, text, sizeof(text) - 1, flags, expected_,                                  \
                   sizeof expected_ / sizeof expected_[0], text);                                  \
    } while (0)

// Breaks when merges are not taken in the order of their ranks, or words are cut elsewhere.
Test(tokenizer, bpe_by_hand)
{
    static gguf_writer w;
    put_bpe(&w, "gpt-2", NULL);
    gguf* const file = open_written(&w);
    tokenizer* const tok = create(file);
    EXPECT(tok, "hello", 0, 7);
    EXPECT(tok, "hell", 0, 6);
    EXPECT(tok, "hel", 0, 4, BYTE + 'l');
    EXPECT(tok, "lll", 0, 5, BYTE + 'l');
    // The blank joins "h" only where "he" (rank 0) has not taken it.
    EXPECT(tok, " he hi", 0, BYTE + ' ', 4, 8, BYTE + 'i');
    EXPECT(tok, "xyz", 0, BYTE + 'x', BYTE + 'y', BYTE + 'z'); // no merge leads there
    EXPECT(tok, "\n", 0, BYTE + '\n');
    EXPECT(tok, "\xC3\xA9", 0, BYTE + 0xC3, BYTE + 0xA9);
    EXPECT(tok,
           "h\xFF"
           "e\xC3",
           0, BYTE + 'h', BYTE + 0xFF, BYTE + 'e', BYTE + 0xC3);
    EXPECT(tok, "\xED\xA0\x80", 0, BYTE + 0xED, BYTE + 0xA0, BYTE + 0x80); // a surrogate
    expect_ids(tok, "", 0, TOKENIZER_ADD_SPECIAL, NULL, 0, "empty");
    tokenizer_destroy(tok);
    gguf_close(file);
}

// Breaks when a merge that is there twice takes its second rank: "he" would then lose its "h".
Test(tokenizer, bpe_first_rank_counts)
{
    static gguf_writer w;
    put_bpe(&w, "gpt-2", "h e");
    gguf* const file = open_written(&w);
    tokenizer* const tok = create(file);
    EXPECT(tok, " he", 0, BYTE + ' ', 4);
    tokenizer_destroy(tok);
    gguf_close(file);
}

// Breaks when a shorter special token wins over a longer one, or a control token is spelled out.
Test(tokenizer, special_tokens)
{
    static gguf_writer w;
    put_bpe(&w, "gpt-2", NULL);
    gguf* const file = open_written(&w);
    tokenizer* const tok = create(file);
    EXPECT(tok, "hello<s>hello", TOKENIZER_PARSE_SPECIAL, 7, 2, 7);
    EXPECT(tok, "hello<s>", 0, 7, BYTE + '<', BYTE + 's', BYTE + '>');
    EXPECT(tok, "<user>he", 0, 3, 4); // user-defined: always
    EXPECT(tok, "<user><user><user>", 0, 11, 3);
    EXPECT(tok, "<us<user>er>", 0, BYTE + '<', BYTE + 'u', BYTE + 's', 3, BYTE + 'e', BYTE + 'r',
           BYTE + '>');
    EXPECT(tok, "<|im_end|><|endoftext|>", TOKENIZER_PARSE_SPECIAL, 1, 0);
    // Named like an end of turn: one, although the file calls it normal.
    cr_assert(tokenizer_is_eog(tok, 0) && tokenizer_is_eog(tok, 1) && !tokenizer_is_eog(tok, 2));
    cr_assert(!tokenizer_is_eog(tok, -1) && !tokenizer_is_eog(tok, 100000));
    cr_assert_eq(tokenizer_bos(tok), 2);
    cr_assert_eq(tokenizer_eos(tok), 0);
    cr_assert_eq(tokenizer_eot(tok), 1);
    cr_assert_eq(tokenizer_unknown(tok), -1);
    cr_assert_eq(tokenizer_vocab_size(tok), BYTE + 256);
    cr_assert_eq(tokenizer_find(tok, "hell"), 6);
    cr_assert_eq(tokenizer_find(tok, "nothing"), -1);
    tokenizer_destroy(tok);
    gguf_close(file);
}

// Breaks when the pre-tokenizers stop differing where their regular expressions differ.
Test(tokenizer, pre_tokenizers)
{
    static gguf_writer w;
    static const struct {
        const char* pre;
        int32_t ids[6];
        size_t count;
    } digits[] = {
        // "1111" in one word (11 + 11), or cut after three digits, or after each one.
        { "gpt-2", { 9, 9 }, 2 },
        { "default", { 10, BYTE + '1' }, 2 },
        { "llama-bpe", { 10, BYTE + '1' }, 2 },
        { "llama3", { 10, BYTE + '1' }, 2 },
        { "smollm", { BYTE + '1', BYTE + '1', BYTE + '1', BYTE + '1' }, 4 },
        { "qwen2", { BYTE + '1', BYTE + '1', BYTE + '1', BYTE + '1' }, 4 },
    };
    for (size_t i = 0; i < sizeof digits / sizeof digits[0]; i++) {
        put_bpe(&w, digits[i].pre, NULL);
        gguf* const file = open_written(&w);
        tokenizer* const tok = create(file);
        expect_ids(tok, "1111", 4, 0, digits[i].ids, digits[i].count, digits[i].pre);
        if (strncmp(digits[i].pre, "llama", 5) == 0) {
            EXPECT(tok, "xyz", 0, 12); // a word that is a token needs no merges
            EXPECT(tok, "he", TOKENIZER_ADD_SPECIAL, 2, 4);
        } else {
            EXPECT(tok, "he", TOKENIZER_ADD_SPECIAL, 4);
        }
        tokenizer_destroy(tok);
        gguf_close(file);
    }
}

// Breaks when merging is not by score, or blanks, bytes and unknown characters go elsewhere.
Test(tokenizer, sentencepiece_by_hand)
{
    static gguf_writer w;
    put_spm(&w, false);
    gguf* file = open_written(&w);
    tokenizer* tok = create(file);
    EXPECT(tok, "abc", 0, 10); // bc (-1) before ab (-2), then a + bc is a token
    EXPECT(tok, "ab", 0, 6);
    EXPECT(tok, "aab", 0, 3, 6);
    EXPECT(tok, " ab", 0, 8, 6); // ab (-2) before MARK a (-3)
    EXPECT(tok, " a", 0, 9);
    EXPECT(tok, "  a", 0, 11, 3); // two blanks are a user-defined token
    EXPECT(tok, "d", 0, BYTE + 'd');
    EXPECT(tok, "\xC3\xA9", 0, 12);
    EXPECT(tok, "\xC3\xAA", 0, BYTE + 0xC3, BYTE + 0xAA);
    EXPECT(tok,
           "\xC3"
           "a\xFF",
           0, BYTE + 0xC3, 3, BYTE + 0xFF);
    EXPECT(tok, "a", TOKENIZER_ADD_SPECIAL, 1, 3);
    EXPECT(tok, "", TOKENIZER_ADD_SPECIAL, 1);
    EXPECT(tok, "a</s>a", TOKENIZER_PARSE_SPECIAL, 3, 2, 3);
    tokenizer_destroy(tok);
    gguf_close(file);
    put_spm(&w, true);
    file = open_written(&w);
    tok = create(file);
    EXPECT(tok, "a</s>a", TOKENIZER_PARSE_SPECIAL, 9, 2, 9);
    expect_ids(tok, "", 0, 0, NULL, 0, "empty");
    tokenizer_destroy(tok);
    gguf_close(file);
}

static void expect_piece(const tokenizer* tok, int32_t id, bool show, const char* expected)
{
    char buffer[64] = "";
    const int64_t bytes = tokenizer_piece(tok, id, show, buffer, sizeof buffer - 1);
    cr_assert(bytes >= 0 && bytes < 64);
    buffer[bytes] = 0;
    cr_assert_str_eq(buffer, expected);
}

// Breaks when a piece is not the bytes that the token stands for.
Test(tokenizer, pieces)
{
    static gguf_writer w;
    char small[2] = "";
    put_bpe(&w, "gpt-2", NULL);
    gguf* file = open_written(&w);
    tokenizer* tok = create(file);
    expect_piece(tok, 8, false, " h");
    expect_piece(tok, 7, false, "hello");
    expect_piece(tok, BYTE + 0xE9, false, "\xE9");
    expect_piece(tok, BYTE + 1, false, "\x01");
    expect_piece(tok, 2, false, "");
    expect_piece(tok, 2, true, "<s>");
    expect_piece(tok, 3, false, "<user>");
    cr_assert_eq(tokenizer_piece(tok, 7, false, small, sizeof small), 5);
    cr_assert(small[0] == 'h' && small[1] == 'e');
    cr_assert_eq(tokenizer_piece(tok, 7, false, NULL, 0), 5);
    cr_assert_eq(tokenizer_piece(tok, -1, false, small, sizeof small), -1);
    cr_assert_eq(tokenizer_piece(tok, BYTE + 256, false, small, sizeof small), -1);
    tokenizer_destroy(tok);
    gguf_close(file);
    put_spm(&w, false);
    file = open_written(&w);
    tok = create(file);
    expect_piece(tok, 9, false, " a");
    expect_piece(tok, BYTE + 0xE9, false, "\xE9");
    expect_piece(tok, 0, false, "");
    expect_piece(tok, 0, true, "<unk>");
    expect_piece(tok, 11, false, "  ");
    tokenizer_destroy(tok);
    gguf_close(file);
}

// Breaks when decoding what was encoded does not give the text back.
Test(tokenizer, every_byte_round_trip)
{
    static gguf_writer w;
    char text[512];
    char decoded[512];
    for (size_t i = 0; i < sizeof text; i++) { text[i] = (char)(i * 37 + i / 256); }
    put_bpe(&w, "default", NULL);
    gguf* const file = open_written(&w);
    tokenizer* const tok = create(file);
    int32_t* ids = NULL;
    size_t count = 0;
    size_t bytes = 0;
    cr_assert_eq(tokenizer_encode(tok, text, sizeof text, 0, &ids, &count), TOKENIZER_OK);
    for (size_t i = 0; i < count; i++) {
        bytes += (size_t)tokenizer_piece(tok, ids[i], true, decoded + bytes, sizeof text - bytes);
        cr_assert(bytes <= sizeof text);
    }
    cr_assert(bytes == sizeof text && memcmp(text, decoded, bytes) == 0);
    free(ids);
    tokenizer_destroy(tok);
    gguf_close(file);
}

// ---- wrong metadata ----

static void expect_refusal(const gguf_writer* w, const char* expected)
{
    gguf* const file = open_written(w);
    tokenizer* tok = NULL;
    char message[1024] = "";
    cr_assert_neq(tokenizer_create(file, &tok, message, sizeof message), 0, "%s", expected);
    cr_assert_null(tok);
    cr_assert(strstr(message, expected), "%s", message);
    cr_assert_neq(tokenizer_create(file, &tok, NULL, 0), 0);
    gguf_close(file);
}

// One key under another name: the field is absent, and the other one is there.
static void rename_key(gguf_writer* w, const char* key, const char* other)
{
    const size_t bytes = strlen(key);
    cr_assert_eq(bytes, strlen(other));
    for (size_t i = 0; i + bytes <= w->bytes; i++) {
        if (memcmp(w->data + i, key, bytes) == 0) { memcpy(w->data + i, other, bytes); }
    }
}

// Breaks when a field of the tokenizer is used before its type, length and range are checked.
Test(tokenizer, wrong_metadata)
{
    static gguf_writer w;
    put_bpe(&w, "mystery", NULL);
    expect_refusal(&w, "tokenizer.ggml.pre = mystery: must be one of default gpt-2");
    put_bpe(&w, "gpt-2", "nospace");
    expect_refusal(&w, "tokenizer.ggml.merges");
    put_bpe(&w, "gpt-2", "");
    expect_refusal(&w, "tokenizer.ggml.merges");
    put_bpe(&w, "gpt-2", "a ");
    expect_refusal(&w, "tokenizer.ggml.merges");
    put_bpe(&w, "gpt-2", NULL);
    rename_key(&w, "tokenizer.ggml.merges", "tokenizer.ggml.absent");
    expect_refusal(&w, "tokenizer.ggml.merges: absent");
    put_bpe(&w, "gpt-2", NULL);
    rename_key(&w, "tokenizer.ggml.tokens", "tokenizer.ggml.absent");
    expect_refusal(&w, "tokenizer.ggml.tokens: absent");
    put_bpe(&w, "gpt-2", NULL);
    rename_key(&w, "gpt2", "gpt9");
    expect_refusal(&w, "tokenizer.ggml.model = gpt9: must be \"gpt2\"");
    put_bpe(&w, "llama3", NULL);
    rename_key(&w, "tokenizer.ggml.bos_token_id", "tokenizer.ggml.abs_token_id");
    expect_refusal(&w, "tokenizer.ggml.bos_token_id: absent");
}

// As above for arrays of the wrong length or element type, and ids outside the vocabulary.
Test(tokenizer, wrong_arrays)
{
    static gguf_writer w;
    put_bpe(&w, "gpt-2", NULL);
    patch_uint(&w, w.bytes - 4, BYTE + 256, 4); // eos_token_id
    expect_refusal(&w, "tokenizer.ggml.eos_token_id");
    put_header(&w, 0, 3);
    put_key(&w, "tokenizer.ggml.model", GGUF_STRING);
    put_string(&w, "llama");
    put_array(&w, "tokenizer.ggml.tokens", GGUF_U32, 1);
    put_u32(&w, 1);
    put_array(&w, "tokenizer.ggml.scores", GGUF_F32, 0);
    expect_refusal(&w, "tokenizer.ggml.tokens: array of 1 u32");
    put_header(&w, 0, 3);
    put_key(&w, "tokenizer.ggml.model", GGUF_STRING);
    put_string(&w, "llama");
    put_array(&w, "tokenizer.ggml.tokens", GGUF_STRING, 1);
    put_string(&w, "a");
    put_array(&w, "tokenizer.ggml.scores", GGUF_F32, 2);
    put_f32(&w, 0);
    put_f32(&w, 0);
    expect_refusal(&w, "tokenizer.ggml.scores: array of 2 f32");
    put_header(&w, 0, 3);
    put_key(&w, "tokenizer.ggml.model", GGUF_STRING);
    put_string(&w, "llama");
    put_array(&w, "tokenizer.ggml.tokens", GGUF_STRING, 1);
    put_string(&w, "a");
    put_array(&w, "tokenizer.ggml.token_type", GGUF_STRING, 1);
    put_string(&w, "a");
    expect_refusal(&w, "tokenizer.ggml.token_type: stored as array of string");
    put_header(&w, 0, 3);
    put_key(&w, "tokenizer.ggml.model", GGUF_STRING);
    put_string(&w, "llama");
    put_array(&w, "tokenizer.ggml.tokens", GGUF_STRING, 1);
    put_string(&w, "a");
    put_array(&w, "tokenizer.ggml.token_type", GGUF_I32, 1);
    put_u32(&w, 7);
    expect_refusal(&w, "tokenizer.ggml.token_type");
}

// Breaks when a wrong byte of the metadata leads out of a table: whatever still opens must encode.
Test(tokenizer, wrong_bytes)
{
    static gguf_writer w;
    static const char text[] = "hello <user> abc 111\n\xFF";
    uint32_t random = 1;
    for (int i = 0; i < 3000; i++) {
        gguf* file = NULL;
        tokenizer* tok = NULL;
        int32_t* ids = NULL;
        size_t count = 0;
        char message[256] = "";
        char piece[64];
        if (i % 2 == 0) {
            put_bpe(&w, "llama3", NULL);
        } else {
            put_spm(&w, true);
        }
        for (int flip = 0; flip < 1 + i % 3; flip++) {
            random = random * 1664525 + 1013904223; // Numerical Recipes' generator
            w.data[(random >> 8) % w.bytes] ^= (uint8_t)(1u << (random >> 29));
        }
        cr_assert(save_bytes(&w, w.bytes, path));
        if (gguf_open(path, &file, message, sizeof message) != 0) { continue; }
        if (tokenizer_create(file, &tok, message, sizeof message) == 0) {
            const int flags = TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL;
            cr_assert_eq(tokenizer_encode(tok, text, sizeof text, flags, &ids, &count), 0);
            for (size_t k = 0; k < count; k++) {
                cr_assert_geq(tokenizer_piece(tok, ids[k], true, piece, sizeof piece), 0);
            }
        }
        free(ids);
        tokenizer_destroy(tok);
        gguf_close(file);
    }
}

// ---- recorded ids ----

// Reads a hex field; "-" is empty. Returns the number of bytes.
static size_t read_hex(const char* hex, char* out, size_t size)
{
    size_t count = 0;
    for (; hex[0] && hex[1] && hex[0] != '-'; hex += 2) {
        unsigned byte = 0;
        cr_assert(sscanf(hex, "%2x", &byte) == 1 && count < size);
        out[count++] = (char)byte;
    }
    return count;
}

static size_t read_ids(int32_t ids[MAX_IDS])
{
    size_t count = 0;
    for (const char* field = strtok(NULL, " \n"); field; field = strtok(NULL, " \n")) {
        cr_assert(count < MAX_IDS);
        ids[count++] = (int32_t)strtol(field, NULL, 10);
    }
    return count;
}

static int read_number(void)
{
    const char* const field = strtok(NULL, " \n");
    cr_assert_not_null(field);
    return (int)strtol(field, NULL, 10);
}

static void check_eog(const tokenizer* tok)
{
    int32_t ids[MAX_IDS];
    const size_t count = read_ids(ids);
    size_t found = 0;
    for (int32_t id = 0; id < tokenizer_vocab_size(tok); id++) {
        if (!tokenizer_is_eog(tok, id)) { continue; }
        cr_assert(found < count && ids[found] == id, "token %d ends a generation", (int)id);
        found++;
    }
    cr_assert_eq(found, count);
}

static void check_piece(const tokenizer* tok)
{
    char expected[1024];
    char piece[1024];
    const int32_t id = read_number();
    const bool show = read_number() != 0;
    const size_t bytes = read_hex(strtok(NULL, " \n"), expected, sizeof expected);
    cr_assert_eq(tokenizer_piece(tok, id, show, piece, sizeof piece), (int64_t)bytes);
    cr_assert_eq(memcmp(piece, expected, bytes), 0, "token %d", (int)id);
}

static void check_encode(const tokenizer* tok)
{
    char text[1024];
    int32_t ids[MAX_IDS];
    const int add = read_number() ? TOKENIZER_ADD_SPECIAL : 0;
    const int parse = read_number() ? TOKENIZER_PARSE_SPECIAL : 0;
    const char* const hex = strtok(NULL, " \n");
    const size_t bytes = read_hex(hex, text, sizeof text);
    const size_t count = read_ids(ids);
    expect_ids(tok, text, bytes, add | parse, ids, count, hex);
}

static void check_chat(const gguf* file)
{
    chat_template chat;
    chat_message messages[8];
    static char texts[8][512];
    char expected[1024];
    char message[256] = "";
    char* rendered = NULL;
    size_t count = 0;
    const bool prompt = read_number() != 0;
    const size_t bytes = read_hex(strtok(NULL, " \n"), expected, sizeof expected - 1);
    expected[bytes] = 0;
    for (const char* role = strtok(NULL, " \n"); role; role = strtok(NULL, " \n")) {
        const size_t n = read_hex(strtok(NULL, " \n"), texts[count], sizeof texts[count] - 1);
        texts[count][n] = 0;
        messages[count].role = role;
        messages[count].text = texts[count];
        count++;
    }
    cr_assert_eq(chat_detect(file, &chat, message, sizeof message), 0, "%s", message);
    cr_assert_eq(chat_render(&chat, messages, count, prompt, &rendered, message, sizeof message),
                 0);
    cr_assert_str_eq(rendered, expected);
    free(rendered);
}

static void check_line(const gguf* file, const tokenizer* tok, char* line)
{
    const char* const kind = strtok(line, " \n");
    if (!kind || kind[0] == '#') { return; }
    if (strcmp(kind, "vocab") == 0) {
        cr_assert_eq(tokenizer_vocab_size(tok), read_number());
    } else if (strcmp(kind, "special") == 0) {
        cr_assert_eq(tokenizer_bos(tok), read_number());
        cr_assert_eq(tokenizer_eos(tok), read_number());
    } else if (strcmp(kind, "eog") == 0) {
        check_eog(tok);
    } else if (strcmp(kind, "piece") == 0) {
        check_piece(tok);
    } else if (strcmp(kind, "encode") == 0) {
        check_encode(tok);
    } else if (strcmp(kind, "chat") == 0) {
        check_chat(file);
    } else {
        cr_assert_fail("fixture line of unknown kind %s", kind);
    }
}

static void check_fixture(const char* variable, const char* name)
{
    static char line[16384];
    char fixture[1024];
    char message[256] = "";
    gguf* file = NULL;
    int lines = 0;
    const char* const model = getenv(variable);
    const char* const slash = strrchr(__FILE__, '/');
    if (!model) { cr_skip("%s is not set", variable); }
    snprintf(fixture, sizeof fixture, "%.*sfixtures/%s", slash ? (int)(slash + 1 - __FILE__) : 0,
             __FILE__, name);
    FILE* const in = fopen(fixture, "r");
    cr_assert_not_null(in, "%s", fixture);
    cr_assert_eq(gguf_open(model, &file, message, sizeof message), 0, "%s", message);
    tokenizer* const tok = create(file);
    for (; fgets(line, sizeof line, in); lines++) { check_line(file, tok, line); }
    cr_assert_gt(lines, 100);
    fclose(in);
    tokenizer_destroy(tok);
    gguf_close(file);
}

// Break when ids, pieces, end tokens or rendered chats differ from what llama.cpp and Jinja gave.
Test(tokenizer, recorded_smollm2)
{
    check_fixture("KVLOOM_TEST_MODEL_SMOLLM2", "tokenizer_smollm2.txt");
}

Test(tokenizer, recorded_gemma3)
{
    check_fixture("KVLOOM_TEST_MODEL_GEMMA3", "tokenizer_gemma3.txt");
}

// ---- chat templates ----

static const chat_message conversation[] = {
    { "system", "Be brief." },
    { "user", " Hello \n" },
    { "assistant", "Hi!" },
    { "user", "Bye" },
};

static gguf* put_template(const char* text)
{
    static gguf_writer w;
    put_header(&w, 0, text ? 1 : 0);
    if (text) {
        put_key(&w, "tokenizer.chat_template", GGUF_STRING);
        put_string(&w, text);
    }
    return open_written(&w);
}

static void expect_chat(const char* text, size_t first, const char* expected)
{
    chat_template chat;
    char message[256] = "";
    char* rendered = NULL;
    gguf* const file = put_template(text);
    cr_assert_eq(chat_detect(file, &chat, message, sizeof message), 0, "%s", message);
    cr_assert_eq(chat_render(&chat, conversation + first, 4 - first, true, &rendered, message,
                             sizeof message),
                 0, "%s", message);
    cr_assert_str_eq(rendered, expected);
    free(rendered);
    gguf_close(file);
}

// Breaks when a family's text differs from what llama.cpp's llama_chat_apply_template gives for it.
// The templates are cut down to what tells the family.
Test(chat, families)
{
    expect_chat("{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'}}",
                0,
                "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hello \n<|im_end|>\n"
                "<|im_start|>assistant\nHi!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
                "<|im_start|>assistant\n");
    expect_chat("'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' '<|eot_id|>'", 0,
                "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
                "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
                "<|start_header_id|>assistant<|end_header_id|>\n\nHi!<|eot_id|>"
                "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
                "<|start_header_id|>assistant<|end_header_id|>\n\n");
    expect_chat("{{ '<start_of_turn>' + role + '\n' }}{{ '<end_of_turn>\n' }}", 0,
                "<start_of_turn>user\nBe brief.\n\nHello<end_of_turn>\n"
                "<start_of_turn>model\nHi!<end_of_turn>\n"
                "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n");
    expect_chat(NULL, 0, "Be brief.\n Hello \n\nHi!\nBye");
}

// As above for the blanks around Mistral's brackets: versions 1, 3 and Tekken.
Test(chat, mistral)
{
    expect_chat("{{ ' [INST] ' + system_message + ' [/INST]' }}{{ ' ' + message['content'] }}", 0,
                " [INST] Be brief.\n\n Hello \n [/INST] Hi!</s> [INST] Bye [/INST]");
    expect_chat("{{ \"[INST] \" + c + \"[/INST]\" }}{{ \" \" + message[\"content\"]|trim }}", 0,
                "[INST] Be brief.\n\n Hello \n[/INST] Hi!</s>[INST] Bye[/INST]");
    expect_chat("{{ \"[INST]\" + c + \"[/INST]\" }}{{ message[\"content\"]|trim }}", 0,
                "[INST]Be brief.\n\n Hello \n[/INST]Hi!</s>[INST]Bye[/INST]");
}

// Breaks when the system message that a ChatML template assumes is lost, or taken from an
// expression that only begins like one.
Test(chat, default_system)
{
    static const char user_turns[] = "<|im_start|>user\n Hello \n<|im_end|>\n"
                                     "<|im_start|>assistant\nHi!<|im_end|>\n"
                                     "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n";
    char expected[512];
    snprintf(expected, sizeof expected, "<|im_start|>system\nIt's me.<|im_end|>\n%s", user_turns);
    expect_chat("{{ '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>' }}"
                "{{ '<|im_start|>system\\nIt\\'s me.<|im_end|>\\n' }}",
                1, expected);
    expect_chat("{{ '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>' }}", 1,
                user_turns);
}

// Breaks when a conversation is rendered by a guess.
Test(chat, refusals)
{
    static const char* const unknown[] = { "{{ 'Human: ' + message }}", "", "[INST] <<SYS>>",
                                           "[SYSTEM_PROMPT] [INST]", "<|start_header_id|>" };
    const chat_message wrong_role = { "tool", "x" };
    chat_template chat;
    char message[256];
    char* rendered = NULL;
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        gguf* const file = put_template(unknown[i]);
        cr_assert_neq(chat_detect(file, &chat, message, sizeof message), 0, "%s", unknown[i]);
        cr_assert(strstr(message, "unknown family") && strstr(message, "Llama 3"), "%s", message);
        cr_assert_neq(chat_detect(file, &chat, NULL, 0), 0);
        gguf_close(file);
    }
    gguf* const file = put_template(NULL);
    cr_assert_eq(chat_detect(file, &chat, message, sizeof message), 0);
    cr_assert_eq(chat.family, CHAT_PLAIN);
    cr_assert_neq(chat_render(&chat, &wrong_role, 1, true, &rendered, message, sizeof message), 0);
    cr_assert(strstr(message, "role = tool") && !rendered, "%s", message);
    cr_assert_str_eq(chat_family_name(CHAT_LLAMA3), "Llama 3");
    gguf_close(file);
}
