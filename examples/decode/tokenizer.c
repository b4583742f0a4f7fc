// tokenizer.c -- text to token ids and back, from the vocabulary in a GGUF file.
//
// tokenizer_encode has three stages:
//   1. special tokens are cut out of the text, longest token first (split_special);
//   2. what is left is cut into words (BPE only: regular expressions, split_words);
//   3. neighbouring symbols are merged, best first, until no pair is a token (merge_symbols).
// Both kinds share the third stage: a symbol list, and a heap of candidate pairs ordered by cost,
// which is the merge's rank (BPE) or the negated score of the merged token (SentencePiece). That is
// O(n log n) in the length of a word or, for SentencePiece, of the text.

#define PCRE2_CODE_UNIT_WIDTH 8

#include "tokenizer.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_TEXT_BYTES = 1 << 28, // escaping triples it at most, and symbols are counted in int32_t
    MAX_PATTERNS = 4
};

// The file's token types, and one bit of ours.
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };
enum { TYPE_MASK = 7, TYPE_EOG = 8 };

static const char escaped_space[] = "\xE2\x96\x81"; // U+2581
static const char replacement[] = "\xEF\xBF\xBD";   // U+FFFD

// Words of each pre-tokenizer. Every pattern cuts the pieces that the one before it left.
#define PATTERN_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
#define PATTERN_CONTRACTIONS "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
#define PATTERN_LLAMA3(digits)                                                                     \
    PATTERN_CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                                  \
                         "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

typedef struct pre_family {
    const char* names; // separated by blanks
    const char* patterns[MAX_PATTERNS];
    bool ignore_merges; // a word that is a token is taken whole
    bool add_bos;       // unless the file says otherwise
} pre_family;

static const pre_family pre_families[] = {
    { "default",
      { "[\\p{P}\\$\\+<=>\\^~\\|]+", PATTERN_GPT2, "\\p{N}+", "[0-9][0-9][0-9]" },
      false,
      false },
    { "gpt-2 phi-2 olmo mpt", { PATTERN_GPT2 }, false, false },
    { "smollm starcoder refact command-r codeshell", { "\\p{N}", PATTERN_GPT2 }, false, false },
    { "llama-bpe llama3 llama-v3 falcon3", { PATTERN_LLAMA3("\\p{N}{1,3}") }, true, true },
    { "dbrx smaug-bpe", { PATTERN_LLAMA3("\\p{N}{1,3}") }, false, false },
    { "qwen2 deepseek-r1-qwen stablelm2 hunyuan megrez",
      { PATTERN_LLAMA3("\\p{N}") },
      false,
      false }
};

// Tokens that end a generation wherever they occur in a vocabulary. The order decides which of them
// is the end of turn when the file names none.
static const char* const end_names[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<EOT>", "_<EOT>", "[EOT]", "<end_of_utterance>",
    // U+FF5C and U+2581, in octal because a hexadecimal escape would take the letters after it.
    "<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>"
};
static const char* const more_end_names[] = {
    "<|eom_id|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "[EOS]", "<eos>", "</s>",
    // Padding, repository and file separators of code models.
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>",
    "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>"
};
static const char* const end_keys[] = {
    "tokenizer.ggml.eos_token_id",     "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",     "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id"
};

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

// A merge of BPE: an open-addressed table of pairs of ids. left < 0 marks a free slot.
typedef struct merge {
    int32_t left;
    int32_t right;
    int32_t rank;
    int32_t merged;
} merge;

// A node of the tree of special tokens. Edges lie in a table of their own.
typedef struct trie_node {
    int32_t token;   // that ends here, or -1
    int32_t shorter; // the nearest node above where a token ends, or -1
    uint32_t depth;  // in bytes
} trie_node;

typedef struct trie_edge {
    int32_t child; // 0 marks a free slot: the root is nobody's child
    int32_t parent;
    uint8_t byte;
} trie_edge;

struct tokenizer {
    const gguf* file;
    bool is_bpe;
    const pre_family* pre; // BPE only
    int32_t vocab_size;
    gguf_string* texts; // [vocab_size]
    uint8_t* types;     // [vocab_size] TYPE_*
    float* scores;      // [vocab_size] SentencePiece only
    int32_t* slots;     // [slot_mask + 1] id + 1 by hash of text; 0 is free
    uint64_t slot_mask;
    merge* merges; // [merge_mask + 1]
    uint64_t merge_mask;
    trie_node* nodes;
    uint64_t num_nodes;
    trie_edge* edges; // [edge_mask + 1]
    uint64_t edge_mask;
    uint32_t* special_lengths; // [num_special_lengths] distinct, longest first
    size_t num_special_lengths;
    int32_t byte_ids[256]; // the token of one byte, or -1
    int32_t bos, eos, eot, unknown;
    bool add_bos, add_eos, add_space_prefix;
    pcre2_code* patterns[MAX_PATTERNS];
    int num_patterns;
};

typedef struct symbol {
    size_t at;    // of the text that is being merged
    size_t bytes; // 0: merged into the one before
    int32_t previous;
    int32_t next;
    int32_t id; // -1: no token of its own
} symbol;

typedef struct bigram {
    double cost; // smallest first; equal ones from left to right
    int32_t left;
    int32_t right;
    int32_t merged;
    size_t bytes; // of both when it was pushed: another size now means that it is outdated
} bigram;

// One call of tokenizer_encode: its buffers are kept from word to word.
typedef struct encoder {
    const tokenizer* tok;
    int32_t* ids;
    uint64_t num_ids, ids_capacity;
    symbol* symbols;
    uint64_t num_symbols, symbols_capacity;
    bigram* heap;
    uint64_t heap_count, heap_capacity;
    char* scratch;
    uint64_t scratch_capacity;
    pcre2_match_data* match;
    int status;
} encoder;

// ---- helpers ----

// Makes room for `count` items by doubling. Returns NULL, with items untouched, if memory is out.
static void* grow(void* items, uint64_t count, uint64_t* capacity, size_t item_bytes)
{
    uint64_t wanted = *capacity ? *capacity : 16;
    if (items && count <= *capacity) { return items; }
    while (wanted < count) { wanted *= 2; }
    if (wanted > SIZE_MAX / item_bytes) { return NULL; }
    void* const larger = realloc(items, (size_t)wanted * item_bytes);
    if (larger) { *capacity = wanted; }
    return larger;
}

// A power of two, at least twice the number of items, so that probes stay short.
static uint64_t table_slots(uint64_t items)
{
    uint64_t slots = 16;
    while (slots < 2 * items) { slots *= 2; }
    return slots;
}

// FNV-1a, then mixed so that the low bits depend on all.
static uint64_t hash_bytes(const char* data, size_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++) { hash = (hash ^ (uint8_t)data[i]) * 0x100000001b3u; }
    return hash ^ (hash >> 32);
}

static uint64_t hash_pair(uint64_t a, uint64_t b)
{
    uint64_t hash = (a * 0x9e3779b97f4a7c15u) ^ (b + 0x7f4a7c15u);
    hash = (hash ^ (hash >> 29)) * 0xbf58476d1ce4e5b9u;
    return hash ^ (hash >> 32);
}

// Bytes of the UTF-8 character at `at`; 0 if it is cut off or not valid (RFC 3629).
static size_t char_bytes(const char* at, size_t bytes)
{
    const uint8_t* const s = (const uint8_t*)at;
    if (bytes == 0) { return 0; }
    if (s[0] < 0x80) { return 1; }
    const size_t n = s[0] >= 0xC2 && s[0] < 0xE0   ? 2
                     : s[0] >= 0xE0 && s[0] < 0xF0 ? 3
                     : s[0] >= 0xF0 && s[0] < 0xF5 ? 4
                                                   : 0;
    if (n == 0 || bytes < n) { return 0; }
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) { return 0; }
    }
    // Overlong forms, surrogates, and what lies above U+10FFFF.
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) ||
        (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F)) {
        return 0;
    }
    return n;
}

static int32_t find_text(const tokenizer* tok, const char* data, size_t bytes)
{
    uint64_t slot = hash_bytes(data, bytes) & tok->slot_mask;
    for (; tok->slots[slot] != 0; slot = (slot + 1) & tok->slot_mask) {
        const int32_t id = tok->slots[slot] - 1;
        if (tok->texts[id].bytes == bytes && memcmp(tok->texts[id].data, data, bytes) == 0) {
            return id;
        }
    }
    return -1;
}

// ---- byte-level alphabet ----
//
// Byte-level BPE writes each byte as one printable character. Bytes that are printable in Latin-1
// stand for themselves; the other 68 are U+0100, U+0101, ... in order.

static bool is_printable_byte(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

static uint32_t char_of_byte(uint32_t byte)
{
    uint32_t next = 256;
    if (is_printable_byte(byte)) { return byte; }
    for (uint32_t b = 0; b < byte; b++) { next += !is_printable_byte(b); }
    return next;
}

static size_t write_byte_char(uint32_t byte, char out[2])
{
    const uint32_t c = char_of_byte(byte);
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xC0 | (c >> 6));
    out[1] = (char)(0x80 | (c & 0x3F));
    return 2;
}

// The byte that the character of n bytes stands for, or -1. All of them lie below U+0144.
static int byte_of_char(const char* at, size_t n)
{
    const uint8_t* const s = (const uint8_t*)at;
    const uint32_t c = n == 1 ? s[0] : n == 2 ? ((s[0] & 0x1Fu) << 6) | (s[1] & 0x3Fu) : 0x10000;
    if (c < 256) { return is_printable_byte(c) ? (int)c : -1; }
    for (uint32_t b = 0; b < 256 && c < 256 + 68; b++) {
        if (!is_printable_byte(b) && char_of_byte(b) == c) { return (int)b; }
    }
    return -1;
}

// ---- load: vocabulary ----

typedef struct report {
    char* message;
    size_t bytes;
} report;

static bool explain(const tokenizer* tok, const char* key, int status, const char* wanted,
                    report to)
{
    gguf_explain(tok->file, key, status, wanted, to.message, to.bytes);
    return false;
}

static bool no_memory(const tokenizer* tok, report to)
{
    if (to.bytes > 0) {
        snprintf(to.message, to.bytes, "%s: no memory for the tokenizer", gguf_path(tok->file));
    }
    return false;
}

// An array of one value a token. *array stays empty if the file has none.
static bool get_per_token(const tokenizer* tok, const char* key, gguf_array* array,
                          const char* wanted, report to)
{
    const int status = gguf_get_array(tok->file, key, array);
    if (status == GGUF_ABSENT) { return true; }
    if (status != GGUF_OK || array->count != (uint64_t)tok->vocab_size) {
        return explain(tok, key, status, wanted, to);
    }
    return true;
}

static bool load_texts(tokenizer* tok, report to)
{
    static const char key[] = "tokenizer.ggml.tokens";
    static const char wanted[] = "an array of 1 .. 2^30 strings";
    gguf_array array;
    const int status = gguf_get_array(tok->file, key, &array);
    if (status != GGUF_OK) { return explain(tok, key, status, wanted, to); }
    if (array.type != GGUF_STRING || array.count < 1 || array.count > 1 << 30) {
        return explain(tok, key, GGUF_OUT_OF_RANGE, wanted, to);
    }
    const uint64_t slots = table_slots(array.count);
    tok->vocab_size = (int32_t)array.count;
    tok->texts = calloc((size_t)array.count, sizeof *tok->texts);
    tok->slots = calloc((size_t)slots, sizeof *tok->slots);
    tok->slot_mask = slots - 1;
    if (!tok->texts || !tok->slots) { return no_memory(tok, to); }
    for (int32_t id = 0; id < tok->vocab_size; id++) {
        gguf_next_string(&array, &tok->texts[id]);
        const gguf_string text = tok->texts[id];
        uint64_t slot = hash_bytes(text.data, text.bytes) & tok->slot_mask;
        while (tok->slots[slot] != 0) {
            const gguf_string other = tok->texts[tok->slots[slot] - 1];
            if (other.bytes == text.bytes && memcmp(other.data, text.data, text.bytes) == 0) {
                break; // the last of equal texts is the one that is found
            }
            slot = (slot + 1) & tok->slot_mask;
        }
        tok->slots[slot] = id + 1;
    }
    return true;
}

static bool load_types(tokenizer* tok, report to)
{
    static const char key[] = "tokenizer.ggml.token_type";
    static const char wanted[] = "an array of integers 0 .. 6, one for each token";
    gguf_array array = { 0, 0, NULL };
    if (!get_per_token(tok, key, &array, wanted, to)) { return false; }
    tok->types = malloc((size_t)tok->vocab_size);
    if (!tok->types) { return no_memory(tok, to); }
    memset(tok->types, TYPE_NORMAL, (size_t)tok->vocab_size);
    for (uint64_t i = 0; i < array.count; i++) {
        int64_t type = 0;
        const int status = gguf_array_i64(&array, i, &type);
        if (status != GGUF_OK || type < 0 || type > TYPE_BYTE) {
            return explain(tok, key, status != GGUF_OK ? status : GGUF_OUT_OF_RANGE, wanted, to);
        }
        tok->types[i] = (uint8_t)type;
    }
    return true;
}

static bool load_scores(tokenizer* tok, report to)
{
    static const char key[] = "tokenizer.ggml.scores";
    static const char wanted[] = "an array of numbers, one for each token";
    gguf_array array = { 0, 0, NULL };
    if (tok->is_bpe) { return true; }
    if (!get_per_token(tok, key, &array, wanted, to)) { return false; }
    tok->scores = calloc((size_t)tok->vocab_size, sizeof *tok->scores);
    if (!tok->scores) { return no_memory(tok, to); }
    for (uint64_t i = 0; i < array.count; i++) {
        double score = 0;
        const int status = gguf_array_f64(&array, i, &score);
        if (status != GGUF_OK || score != score) { // not a number has no place in an order
            return explain(tok, key, status != GGUF_OK ? status : GGUF_OUT_OF_RANGE, wanted, to);
        }
        tok->scores[i] = (float)score;
    }
    return true;
}

// Finds the merge of a pair, or the free slot where it belongs.
static merge* find_merge(const tokenizer* tok, int32_t left, int32_t right)
{
    uint64_t slot = hash_pair((uint64_t)left, (uint64_t)right) & tok->merge_mask;
    while (tok->merges[slot].left >= 0 &&
           (tok->merges[slot].left != left || tok->merges[slot].right != right)) {
        slot = (slot + 1) & tok->merge_mask;
    }
    return &tok->merges[slot];
}

// "left right" -> the three ids. A merge whose parts or result are not in the vocabulary can never
// produce a token and is left out. Of two equal ones the first counts.
static bool add_merge(tokenizer* tok, gguf_string line, int32_t rank, char* joined)
{
    const char* const blank = line.bytes > 2 ? memchr(line.data + 1, ' ', line.bytes - 2) : NULL;
    if (!blank) { return false; }
    const size_t left_bytes = (size_t)(blank - line.data);
    const size_t right_bytes = line.bytes - left_bytes - 1;
    memcpy(joined, line.data, left_bytes);
    memcpy(joined + left_bytes, blank + 1, right_bytes);
    const int32_t left = find_text(tok, line.data, left_bytes);
    const int32_t right = find_text(tok, blank + 1, right_bytes);
    const int32_t merged = find_text(tok, joined, left_bytes + right_bytes);
    if (left < 0 || right < 0 || merged < 0) { return true; }
    merge* const m = find_merge(tok, left, right);
    if (m->left < 0) {
        m->left = left;
        m->right = right;
        m->rank = rank;
        m->merged = merged;
    }
    return true;
}

static bool load_merges(tokenizer* tok, report to)
{
    static const char key[] = "tokenizer.ggml.merges";
    static const char wanted[] = "an array of strings \"left right\"";
    gguf_array array;
    gguf_string line;
    char* joined = NULL;
    uint64_t capacity = 0;
    const int status = gguf_get_array(tok->file, key, &array);
    if (status != GGUF_OK) { return explain(tok, key, status, wanted, to); }
    if (array.type != GGUF_STRING || array.count > 1 << 30) {
        return explain(tok, key, GGUF_OUT_OF_RANGE, wanted, to);
    }
    const uint64_t slots = table_slots(array.count);
    tok->merges = malloc((size_t)slots * sizeof *tok->merges);
    tok->merge_mask = slots - 1;
    if (!tok->merges) { return no_memory(tok, to); }
    for (uint64_t i = 0; i < slots; i++) { tok->merges[i].left = -1; }
    for (int32_t rank = 0; gguf_next_string(&array, &line); rank++) {
        char* const larger = grow(joined, line.bytes, &capacity, 1);
        joined = larger ? larger : joined;
        if (!larger || !add_merge(tok, line, rank, joined)) {
            free(joined);
            return larger ? explain(tok, key, GGUF_OUT_OF_RANGE, wanted, to) : no_memory(tok, to);
        }
    }
    free(joined);
    return true;
}

static void load_byte_ids(tokenizer* tok)
{
    for (uint32_t b = 0; b < 256; b++) {
        char text[8];
        const char byte = (char)b;
        const size_t bytes = tok->is_bpe ? write_byte_char(b, text)
                                         : (size_t)snprintf(text, sizeof text, "<0x%02X>", b);
        tok->byte_ids[b] = find_text(tok, text, bytes);
        if (tok->byte_ids[b] < 0 && !tok->is_bpe) { tok->byte_ids[b] = find_text(tok, &byte, 1); }
    }
}

// ---- load: special tokens ----

// An id of the metadata; -1 if it is absent or, as some converters write "none", 2^32 - 1 or -1.
static bool get_id(const tokenizer* tok, const char* key, int32_t* id, report to)
{
    int64_t value = -1;
    const int status = gguf_get_i64(tok->file, key, &value);
    *id = -1;
    if (status == GGUF_ABSENT || value == UINT32_MAX) { return true; }
    if (status != GGUF_OK || value < -1 || value >= tok->vocab_size) {
        return explain(tok, key, status != GGUF_OK ? status : GGUF_OUT_OF_RANGE,
                       "an integer below the number of tokens", to);
    }
    *id = (int32_t)value;
    return true;
}

static bool get_flag(const tokenizer* tok, const char* key, bool* value, report to)
{
    const int status = gguf_get_bool(tok->file, key, value);
    if (status == GGUF_OK || status == GGUF_ABSENT) { return true; }
    return explain(tok, key, status, "a bool", to);
}

// A token that is an end by its name is one even where the file calls it a normal token.
static int32_t mark_end(tokenizer* tok, const char* name)
{
    const int32_t id = find_text(tok, name, strlen(name));
    if (id >= 0) { tok->types[id] = TYPE_CONTROL | TYPE_EOG; }
    return id;
}

static bool load_special_ids(tokenizer* tok, report to)
{
    int32_t by_name = -1;
    if (!get_id(tok, "tokenizer.ggml.bos_token_id", &tok->bos, to) ||
        !get_id(tok, "tokenizer.ggml.eos_token_id", &tok->eos, to) ||
        !get_id(tok, "tokenizer.ggml.eot_token_id", &tok->eot, to) ||
        !get_id(tok, "tokenizer.ggml.unknown_token_id", &tok->unknown, to)) {
        return false;
    }
    for (size_t i = 0; i < COUNT_OF(end_names); i++) {
        const int32_t id = mark_end(tok, end_names[i]);
        by_name = by_name < 0 ? id : by_name;
    }
    for (size_t i = 0; i < COUNT_OF(more_end_names); i++) { mark_end(tok, more_end_names[i]); }
    if (tok->eot < 0) { tok->eot = by_name; }
    for (size_t i = 0; i < COUNT_OF(end_keys); i++) {
        int32_t id = -1;
        if (!get_id(tok, end_keys[i], &id, to)) { return false; }
        if (id >= 0) { tok->types[id] |= TYPE_EOG; }
    }
    tok->add_bos = tok->is_bpe ? tok->pre->add_bos : true;
    tok->add_space_prefix = !tok->is_bpe;
    if (!get_flag(tok, "tokenizer.ggml.add_bos_token", &tok->add_bos, to) ||
        !get_flag(tok, "tokenizer.ggml.add_eos_token", &tok->add_eos, to) ||
        !get_flag(tok, "tokenizer.ggml.add_space_prefix", &tok->add_space_prefix, to)) {
        return false;
    }
    if (tok->add_bos && tok->bos < 0) {
        return explain(tok, "tokenizer.ggml.bos_token_id", GGUF_OUT_OF_RANGE,
                       "there, since the tokenizer adds that token", to);
    }
    if (tok->add_eos && tok->eos < 0) {
        return explain(tok, "tokenizer.ggml.eos_token_id", GGUF_OUT_OF_RANGE,
                       "there, since the tokenizer adds that token", to);
    }
    return true;
}

static bool is_special(const tokenizer* tok, int32_t id)
{
    const int type = tok->types[id] & TYPE_MASK;
    return type == TYPE_CONTROL || type == TYPE_USER || type == TYPE_UNKNOWN;
}

// The edge of a byte, or the free slot where it belongs.
static trie_edge* find_edge(const tokenizer* tok, int32_t parent, uint8_t byte)
{
    uint64_t slot = hash_pair((uint64_t)parent, byte) & tok->edge_mask;
    while (tok->edges[slot].child != 0 &&
           (tok->edges[slot].parent != parent || tok->edges[slot].byte != byte)) {
        slot = (slot + 1) & tok->edge_mask;
    }
    return &tok->edges[slot];
}

static void add_to_trie(tokenizer* tok, int32_t id)
{
    int32_t node = 0;
    for (size_t i = 0; i < tok->texts[id].bytes; i++) {
        const uint8_t byte = (uint8_t)tok->texts[id].data[i];
        trie_edge* const edge = find_edge(tok, node, byte);
        if (edge->child == 0) {
            edge->parent = node;
            edge->byte = byte;
            edge->child = (int32_t)tok->num_nodes;
            tok->nodes[tok->num_nodes].token = -1;
            tok->nodes[tok->num_nodes].depth = (uint32_t)(i + 1);
            tok->num_nodes++;
        }
        node = edge->child;
    }
    tok->nodes[node].token = id;
}

// Sets trie_node.shorter along the path of each token, which needs all tokens to be in the tree.
static void link_trie(tokenizer* tok, int32_t id)
{
    int32_t node = 0;
    int32_t shorter = -1;
    for (size_t i = 0; i < tok->texts[id].bytes; i++) {
        node = find_edge(tok, node, (uint8_t)tok->texts[id].data[i])->child;
        tok->nodes[node].shorter = shorter;
        shorter = tok->nodes[node].token >= 0 ? node : shorter;
    }
}

static int compare_lengths(const void* a, const void* b)
{
    const uint32_t x = *(const uint32_t*)a;
    const uint32_t y = *(const uint32_t*)b;
    return (x < y) - (x > y);
}

static bool load_trie(tokenizer* tok, report to)
{
    uint64_t bytes = 0;
    size_t count = 0;
    for (int32_t id = 0; id < tok->vocab_size; id++) {
        if (is_special(tok, id)) {
            bytes += tok->texts[id].bytes;
            count++;
        }
    }
    if (bytes >= 1 << 30) {
        return explain(tok, "tokenizer.ggml.tokens", GGUF_OUT_OF_RANGE,
                       "less than 2^30 bytes of special tokens", to);
    }
    const uint64_t slots = table_slots(bytes);
    tok->nodes = calloc((size_t)bytes + 1, sizeof *tok->nodes);
    tok->edges = calloc((size_t)slots, sizeof *tok->edges);
    tok->special_lengths = calloc(count + 1, sizeof *tok->special_lengths);
    if (!tok->nodes || !tok->edges || !tok->special_lengths) { return no_memory(tok, to); }
    tok->edge_mask = slots - 1;
    tok->num_nodes = 1;
    tok->nodes[0].token = -1;
    tok->nodes[0].shorter = -1;
    for (int32_t id = 0; id < tok->vocab_size; id++) {
        if (is_special(tok, id) && tok->texts[id].bytes > 0) {
            add_to_trie(tok, id);
            tok->special_lengths[tok->num_special_lengths++] = (uint32_t)tok->texts[id].bytes;
        }
    }
    for (int32_t id = 0; id < tok->vocab_size; id++) {
        if (is_special(tok, id)) { link_trie(tok, id); }
    }
    qsort(tok->special_lengths, tok->num_special_lengths, sizeof *tok->special_lengths,
          compare_lengths);
    size_t distinct = 0;
    for (size_t i = 0; i < tok->num_special_lengths; i++) {
        if (i == 0 || tok->special_lengths[i] != tok->special_lengths[i - 1]) {
            tok->special_lengths[distinct++] = tok->special_lengths[i];
        }
    }
    tok->num_special_lengths = distinct;
    return true;
}

// ---- load: pre-tokenizer ----

// A printable copy for a message: what a hostile file holds must not reach a terminal.
typedef struct shown_name {
    char text[64];
} shown_name;

static shown_name show_name(gguf_string name)
{
    shown_name shown;
    size_t n = 0;
    for (; n < name.bytes && n + 1 < sizeof shown.text; n++) {
        shown.text[n] = name.data[n] >= 32 && name.data[n] < 127 ? name.data[n] : '?';
    }
    shown.text[n] = 0;
    return shown;
}

static bool names_contain(const char* names, gguf_string name)
{
    for (const char* at = names; *at;) {
        const size_t bytes = strcspn(at, " ");
        if (bytes == name.bytes && memcmp(at, name.data, bytes) == 0) { return true; }
        at += bytes + strspn(at + bytes, " ");
    }
    return false;
}

static void write_pre_refusal(const tokenizer* tok, gguf_string name, report to)
{
    const shown_name shown = show_name(name);
    int n = snprintf(to.message, to.bytes, "%s: tokenizer.ggml.pre = %s: must be one of",
                     gguf_path(tok->file), shown.text);
    for (size_t i = 0; i < COUNT_OF(pre_families); i++) {
        if (n < 0 || (size_t)n >= to.bytes) { return; }
        n += snprintf(to.message + n, to.bytes - (size_t)n, " %s", pre_families[i].names);
    }
}

static bool find_pre(tokenizer* tok, report to)
{
    static const char key[] = "tokenizer.ggml.pre";
    gguf_string name = { "default", 7 };
    const int status = gguf_get_string(tok->file, key, &name);
    if (status != GGUF_OK && status != GGUF_ABSENT) {
        return explain(tok, key, status, "a string", to);
    }
    for (size_t i = 0; i < COUNT_OF(pre_families); i++) {
        if (names_contain(pre_families[i].names, name)) {
            tok->pre = &pre_families[i];
            return true;
        }
    }
    if (to.bytes > 0) { write_pre_refusal(tok, name, to); }
    return false;
}

static bool compile_patterns(tokenizer* tok, report to)
{
    for (int i = 0; i < MAX_PATTERNS && tok->pre->patterns[i]; i++) {
        int error = 0;
        size_t at = 0;
        tok->patterns[i] = pcre2_compile((PCRE2_SPTR)tok->pre->patterns[i], PCRE2_ZERO_TERMINATED,
                                         PCRE2_UTF | PCRE2_UCP, &error, &at, NULL);
        if (!tok->patterns[i]) {
            if (to.bytes > 0) {
                snprintf(to.message, to.bytes, "%s: pre-tokenizer %s: PCRE2 error %d at %lu of %s",
                         gguf_path(tok->file), tok->pre->names, error, (unsigned long)at,
                         tok->pre->patterns[i]);
            }
            return false;
        }
        // Without a JIT the pattern is interpreted: slower, same matches.
        pcre2_jit_compile(tok->patterns[i], PCRE2_JIT_COMPLETE);
        tok->num_patterns = i + 1;
    }
    return true;
}

// ---- create and destroy ----

static bool load_kind(tokenizer* tok, report to)
{
    static const char key[] = "tokenizer.ggml.model";
    static const char wanted[] = "\"gpt2\" (byte-level BPE) or \"llama\" (SentencePiece)";
    gguf_string model;
    const int status = gguf_get_string(tok->file, key, &model);
    if (status != GGUF_OK) { return explain(tok, key, status, wanted, to); }
    tok->is_bpe = names_contain("gpt2", model);
    if (!tok->is_bpe && !names_contain("llama", model)) {
        if (to.bytes > 0) {
            const shown_name shown = show_name(model);
            snprintf(to.message, to.bytes, "%s: %s = %s: must be %s", gguf_path(tok->file), key,
                     shown.text, wanted);
        }
        return false;
    }
    return !tok->is_bpe || (find_pre(tok, to) && compile_patterns(tok, to));
}

int tokenizer_create(const gguf* file, tokenizer** out, char* message, size_t message_bytes)
{
    const report to = { message, message_bytes };
    tokenizer* const tok = calloc(1, sizeof *tok);
    *out = NULL;
    if (!tok) {
        if (message_bytes > 0) {
            snprintf(message, message_bytes, "%s: no memory for the tokenizer", gguf_path(file));
        }
        return 1;
    }
    tok->file = file;
    if (!load_kind(tok, to) || !load_texts(tok, to) || !load_types(tok, to) ||
        !load_scores(tok, to) || (tok->is_bpe && !load_merges(tok, to)) ||
        !load_special_ids(tok, to) || !load_trie(tok, to)) {
        tokenizer_destroy(tok);
        return 1;
    }
    load_byte_ids(tok);
    *out = tok;
    return 0;
}

void tokenizer_destroy(tokenizer* tok)
{
    if (!tok) { return; }
    for (int i = 0; i < MAX_PATTERNS; i++) { pcre2_code_free(tok->patterns[i]); }
    free(tok->special_lengths);
    free(tok->edges);
    free(tok->nodes);
    free(tok->merges);
    free(tok->slots);
    free(tok->scores);
    free(tok->types);
    free(tok->texts);
    free(tok);
}

// ---- encode: merging ----

static bool fail(encoder* e, int status)
{
    e->status = status;
    return false;
}

static bool push_id(encoder* e, int32_t id)
{
    int32_t* const ids = grow(e->ids, e->num_ids + 1, &e->ids_capacity, sizeof *ids);
    if (!ids) { return fail(e, TOKENIZER_NO_MEMORY); }
    e->ids = ids;
    e->ids[e->num_ids++] = id;
    return true;
}

static bool is_before(const bigram* a, const bigram* b)
{
    return a->cost < b->cost || (a->cost == b->cost && a->left < b->left);
}

static bool push_bigram(encoder* e, bigram added)
{
    bigram* const heap = grow(e->heap, e->heap_count + 1, &e->heap_capacity, sizeof *heap);
    if (!heap) { return fail(e, TOKENIZER_NO_MEMORY); }
    e->heap = heap;
    uint64_t at = e->heap_count++;
    for (; at > 0 && is_before(&added, &heap[(at - 1) / 2]); at = (at - 1) / 2) {
        heap[at] = heap[(at - 1) / 2];
    }
    heap[at] = added;
    return true;
}

static bigram pop_bigram(encoder* e)
{
    bigram* const heap = e->heap;
    const bigram best = heap[0];
    const bigram last = heap[--e->heap_count];
    uint64_t at = 0;
    for (uint64_t child = 1; child < e->heap_count; child = 2 * at + 1) {
        if (child + 1 < e->heap_count && is_before(&heap[child + 1], &heap[child])) { child++; }
        if (!is_before(&heap[child], &last)) { break; }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return best;
}

// Pushes the pair of two neighbours if the vocabulary can merge it. Either may be -1: no neighbour.
static bool try_pair(encoder* e, const char* text, int32_t left, int32_t right)
{
    const tokenizer* const tok = e->tok;
    bigram pair;
    if (left < 0 || right < 0) { return true; }
    const symbol* const a = &e->symbols[left];
    const symbol* const b = &e->symbols[right];
    pair.left = left;
    pair.right = right;
    pair.bytes = a->bytes + b->bytes;
    if (tok->is_bpe) {
        if (a->id < 0 || b->id < 0) { return true; }
        const merge* const m = find_merge(tok, a->id, b->id);
        if (m->left < 0) { return true; }
        pair.cost = m->rank;
        pair.merged = m->merged;
    } else {
        pair.merged = find_text(tok, text + a->at, pair.bytes);
        if (pair.merged < 0) { return true; }
        pair.cost = -(double)tok->scores[pair.merged];
    }
    return push_bigram(e, pair);
}

static bool push_symbol(encoder* e, size_t at, size_t bytes, int32_t id)
{
    symbol* const symbols =
        grow(e->symbols, e->num_symbols + 1, &e->symbols_capacity, sizeof *symbols);
    if (!symbols) { return fail(e, TOKENIZER_NO_MEMORY); }
    e->symbols = symbols;
    symbol* const s = &symbols[e->num_symbols];
    s->at = at;
    s->bytes = bytes;
    s->id = id;
    s->previous = (int32_t)e->num_symbols - 1;
    s->next = -1;
    if (e->num_symbols > 0) { symbols[e->num_symbols - 1].next = (int32_t)e->num_symbols; }
    e->num_symbols++;
    return true;
}

// Merges e->symbols, which cover `text`, best pair first, until no two neighbours make a token.
static bool merge_symbols(encoder* e, const char* text)
{
    e->heap_count = 0;
    for (uint64_t i = 1; i < e->num_symbols; i++) {
        if (!try_pair(e, text, (int32_t)i - 1, (int32_t)i)) { return false; }
    }
    while (e->heap_count > 0) {
        const bigram pair = pop_bigram(e);
        symbol* const a = &e->symbols[pair.left];
        symbol* const b = &e->symbols[pair.right];
        if (a->bytes == 0 || b->bytes == 0 || a->bytes + b->bytes != pair.bytes) { continue; }
        a->bytes = pair.bytes;
        a->id = pair.merged;
        a->next = b->next;
        b->bytes = 0;
        if (a->next >= 0) { e->symbols[a->next].previous = pair.left; }
        if (!try_pair(e, text, a->previous, pair.left) || !try_pair(e, text, pair.left, a->next)) {
            return false;
        }
    }
    return true;
}

// ---- encode: byte-level BPE ----

// Some vocabularies lack tokens for bytes that valid text never holds; such a byte yields nothing.
static bool encode_word(encoder* e, const char* text, size_t bytes)
{
    const tokenizer* const tok = e->tok;
    if (tok->pre->ignore_merges) {
        char* const scratch = grow(e->scratch, 2 * bytes, &e->scratch_capacity, 1);
        size_t written = 0;
        if (!scratch) { return fail(e, TOKENIZER_NO_MEMORY); }
        e->scratch = scratch;
        for (size_t i = 0; i < bytes; i++) {
            written += write_byte_char((uint8_t)text[i], scratch + written);
        }
        const int32_t whole = find_text(tok, scratch, written);
        if (whole >= 0) { return push_id(e, whole); }
    }
    e->num_symbols = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (!push_symbol(e, i, 1, tok->byte_ids[(uint8_t)text[i]])) { return false; }
    }
    if (!merge_symbols(e, text)) { return false; }
    for (int32_t i = bytes > 0 ? 0 : -1; i >= 0; i = e->symbols[i].next) {
        if (e->symbols[i].id >= 0 && !push_id(e, e->symbols[i].id)) { return false; }
    }
    return true;
}

// Cuts valid UTF-8 by the patterns from `level` on, and encodes the words. What a pattern does not
// match is a piece too.
static bool split_words(encoder* e, int level, const char* text, size_t bytes)
{
    size_t done = 0;
    if (level >= e->tok->num_patterns || level >= MAX_PATTERNS) {
        return encode_word(e, text, bytes);
    }
    for (size_t from = 0; from < bytes;) {
        const int found = pcre2_match(e->tok->patterns[level], (PCRE2_SPTR)text, bytes, from,
                                      PCRE2_NO_UTF_CHECK, e->match, NULL);
        if (found == PCRE2_ERROR_NOMATCH) { break; }
        if (found < 0) { return fail(e, TOKENIZER_REGEX); }
        const size_t* const range = pcre2_get_ovector_pointer(e->match);
        const size_t start = range[0];
        const size_t end = range[1];
        if (end <= start) { // no pattern matches the empty text; an endless loop would be worse
            from = start + 1;
            while (from < bytes && ((uint8_t)text[from] & 0xC0) == 0x80) { from++; }
            continue;
        }
        if (start > done && !split_words(e, level + 1, text + done, start - done)) { return false; }
        if (!split_words(e, level + 1, text + start, end - start)) { return false; }
        done = end;
        from = end;
    }
    return done >= bytes || split_words(e, level + 1, text + done, bytes - done);
}

static bool encode_bpe(encoder* e, const char* text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        size_t end = at;
        for (size_t n = 1; n > 0 && end < bytes; end += n) {
            n = char_bytes(text + end, bytes - end);
        }
        if (end > at && !split_words(e, 0, text + at, end - at)) { return false; }
        at = end;
        if (at < bytes) {
            const bool has_token = e->tok->byte_ids[(uint8_t)text[at]] >= 0;
            if (!encode_word(e, has_token ? text + at : replacement, has_token ? 1 : 3)) {
                return false;
            }
            at++;
        }
    }
    return true;
}

// ---- encode: SentencePiece ----

static bool push_bytes(encoder* e, const char* text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        const int32_t byte_id = e->tok->byte_ids[(uint8_t)text[i]];
        const int32_t id = byte_id >= 0 ? byte_id : e->tok->unknown;
        if (id >= 0 && !push_id(e, id)) { return false; }
    }
    return true;
}

// The text with its blanks escaped, in e->scratch. Returns its size, or 0 if memory is out.
static size_t escape_spaces(encoder* e, const char* text, size_t bytes, bool prefix)
{
    size_t written = 0;
    char* const scratch = grow(e->scratch, 3 * bytes + 3, &e->scratch_capacity, 1);
    if (!scratch) {
        fail(e, TOKENIZER_NO_MEMORY);
        return 0;
    }
    e->scratch = scratch;
    for (size_t i = 0; i < bytes + prefix; i++) {
        const char c = prefix && i == 0 ? ' ' : text[i - prefix];
        const size_t n = c == ' ' ? 3 : 1;
        memcpy(scratch + written, c == ' ' ? escaped_space : &c, n);
        written += n;
    }
    return written;
}

// A fragment is the text's beginning or follows a special token: it always begins a sentence, and
// takes the space prefix if the model has one.
static bool encode_spm(encoder* e, const char* text, size_t bytes)
{
    const size_t size = escape_spaces(e, text, bytes, e->tok->add_space_prefix);
    e->num_symbols = 0;
    for (size_t at = 0; at < size;) {
        const size_t valid = char_bytes(e->scratch + at, size - at);
        const size_t n = valid > 0 ? valid : 1;
        if (!push_symbol(e, at, n, find_text(e->tok, e->scratch + at, n))) { return false; }
        at += n;
    }
    if (size == 0) { return e->status == TOKENIZER_OK; }
    if (!merge_symbols(e, e->scratch)) { return false; }
    for (int32_t i = 0; i >= 0; i = e->symbols[i].next) {
        const symbol* const s = &e->symbols[i];
        if (!(s->id >= 0 ? push_id(e, s->id) : push_bytes(e, e->scratch + s->at, s->bytes))) {
            return false;
        }
    }
    return true;
}

// ---- encode: special tokens ----

// A place where a special token may begin. `node` is the longest token that may still be there.
typedef struct candidate {
    size_t at;
    int32_t node; // -1: none
    bool claimed;
} candidate;

// The nearest node at or above this one whose token may be cut out of the text, or -1.
static int32_t allowed_node(const tokenizer* tok, int32_t node, bool parse_special)
{
    while (node >= 0) {
        const int32_t token = tok->nodes[node].token;
        if (token >= 0 && (parse_special || (tok->types[token] & TYPE_MASK) == TYPE_USER)) {
            return node;
        }
        node = tok->nodes[node].shorter;
    }
    return -1;
}

static bool find_candidates(encoder* e, gguf_string text, bool parse_special,
                            candidate** candidates, size_t* count)
{
    uint64_t capacity = 0;
    for (size_t at = 0; at < text.bytes; at++) {
        int32_t node = 0;
        for (size_t i = at; i < text.bytes; i++) {
            const int32_t child = find_edge(e->tok, node, (uint8_t)text.data[i])->child;
            if (child == 0) { break; }
            node = child;
        }
        if (node == 0) { continue; }
        node = allowed_node(e->tok, node, parse_special);
        if (node < 0) { continue; }
        candidate* const larger = grow(*candidates, *count + 1, &capacity, sizeof *larger);
        if (!larger) { return fail(e, TOKENIZER_NO_MEMORY); }
        *candidates = larger;
        larger[*count].at = at;
        larger[*count].node = node;
        larger[*count].claimed = false;
        ++*count;
    }
    return true;
}

// Longer tokens claim their bytes before shorter ones, equal ones from left to right. A shorter
// token that meets a claimed range covers an end of it, so that its own two ends are enough to see.
static void claim(const tokenizer* tok, candidate* candidates, size_t count, bool parse_special,
                  uint8_t* taken)
{
    for (size_t l = 0; l < tok->num_special_lengths; l++) {
        const uint32_t length = tok->special_lengths[l];
        for (size_t i = 0; i < count; i++) {
            candidate* const c = &candidates[i];
            if (c->claimed || c->node < 0 || tok->nodes[c->node].depth != length) { continue; }
            if (taken[c->at] || taken[c->at + length - 1]) {
                c->node = allowed_node(tok, tok->nodes[c->node].shorter, parse_special);
            } else {
                c->claimed = true;
                memset(taken + c->at, 1, length);
            }
        }
    }
}

static bool encode_fragment(encoder* e, const char* text, size_t bytes)
{
    if (bytes == 0) { return true; }
    return e->tok->is_bpe ? encode_bpe(e, text, bytes) : encode_spm(e, text, bytes);
}

// Encodes the text between the claimed candidates, and their tokens.
static bool encode_between(encoder* e, gguf_string text, const candidate* candidates, size_t count)
{
    size_t done = 0;
    for (size_t i = 0; i < count; i++) {
        const candidate* const c = &candidates[i];
        if (!c->claimed) { continue; }
        if (!encode_fragment(e, text.data + done, c->at - done) ||
            !push_id(e, e->tok->nodes[c->node].token)) {
            return false;
        }
        done = c->at + e->tok->nodes[c->node].depth;
    }
    return encode_fragment(e, text.data + done, text.bytes - done);
}

static bool split_special(encoder* e, gguf_string text, bool parse_special)
{
    candidate* candidates = NULL;
    uint8_t* taken = NULL;
    size_t count = 0;
    bool ok = find_candidates(e, text, parse_special, &candidates, &count);
    if (ok && count > 0) {
        taken = calloc(text.bytes, 1);
        ok = taken ? true : fail(e, TOKENIZER_NO_MEMORY);
    }
    if (ok) {
        if (count > 0) { claim(e->tok, candidates, count, parse_special, taken); }
        ok = encode_between(e, text, candidates, count);
    }
    free(taken);
    free(candidates);
    return ok;
}

static bool encode_all(encoder* e, gguf_string text, int flags)
{
    const tokenizer* const tok = e->tok;
    const bool add_special = (flags & TOKENIZER_ADD_SPECIAL) != 0;
    e->ids = grow(NULL, 1, &e->ids_capacity, sizeof *e->ids);
    e->match = pcre2_match_data_create(1, NULL);
    if (!e->ids || !e->match) { return fail(e, TOKENIZER_NO_MEMORY); }
    if (add_special && tok->add_bos && !push_id(e, tok->bos)) { return false; }
    if (!split_special(e, text, (flags & TOKENIZER_PARSE_SPECIAL) != 0)) { return false; }
    return !(add_special && tok->add_eos) || push_id(e, tok->eos);
}

int tokenizer_encode(const tokenizer* tok, const char* text, size_t bytes, int flags, int32_t** ids,
                     size_t* count)
{
    const gguf_string string = { text, bytes };
    encoder e;
    memset(&e, 0, sizeof e);
    e.tok = tok;
    *ids = NULL;
    *count = 0;
    if (bytes > MAX_TEXT_BYTES) { return TOKENIZER_TOO_LONG; }
    const bool ok = encode_all(&e, string, flags);
    pcre2_match_data_free(e.match);
    free(e.scratch);
    free(e.heap);
    free(e.symbols);
    if (!ok) {
        free(e.ids);
        return e.status;
    }
    *ids = e.ids;
    *count = (size_t)e.num_ids;
    return TOKENIZER_OK;
}

const char* tokenizer_status_text(int status)
{
    switch (status) {
    case TOKENIZER_OK: return "no error";
    case TOKENIZER_NO_MEMORY: return "no memory for the token ids";
    case TOKENIZER_TOO_LONG: return "the text is longer than 2^28 bytes";
    case TOKENIZER_REGEX: return "PCRE2 reached a limit on this text";
    default: return "unknown status";
    }
}

// ---- decode ----

// Appends to a buffer that may be too small: *count always grows, bytes are written while they fit.
static void put(char* buffer, size_t buffer_bytes, size_t* count, const char* data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++, ++*count) {
        if (*count < buffer_bytes) { buffer[*count] = data[i]; }
    }
}

static size_t put_decoded(const tokenizer* tok, gguf_string text, char* buffer, size_t size)
{
    size_t count = 0;
    for (size_t at = 0; at < text.bytes;) {
        const char* const c = text.data + at;
        const size_t valid = char_bytes(c, text.bytes - at);
        const size_t n = valid > 0 ? valid : 1;
        const int byte = tok->is_bpe && valid > 0 ? byte_of_char(c, n) : -1;
        const char decoded = (char)byte;
        if (byte >= 0) {
            put(buffer, size, &count, &decoded, 1);
        } else if (!tok->is_bpe && n == 3 && memcmp(c, escaped_space, 3) == 0) {
            put(buffer, size, &count, " ", 1);
        } else {
            put(buffer, size, &count, c, n);
        }
        at += n;
    }
    return count;
}

// "<0x41>" -> 0x41, or -1.
static int parse_byte_token(gguf_string text)
{
    static const char digits[] = "0123456789ABCDEF";
    if (text.bytes != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>') { return -1; }
    const char* const high = memchr(digits, text.data[3], 16);
    const char* const low = memchr(digits, text.data[4], 16);
    return high && low ? (int)((high - digits) * 16 + (low - digits)) : -1;
}

int64_t tokenizer_piece(const tokenizer* tok, int32_t id, bool show_special, char* buffer,
                        size_t buffer_bytes)
{
    size_t count = 0;
    if (id < 0 || id >= tok->vocab_size) { return -1; }
    const gguf_string text = tok->texts[id];
    const int type = tok->types[id] & TYPE_MASK;
    const int byte = type == TYPE_BYTE ? parse_byte_token(text) : -1;
    const char decoded = (char)byte;
    if ((type == TYPE_CONTROL || type == TYPE_UNKNOWN) && !show_special) { return 0; }
    if (type == TYPE_CONTROL || type == TYPE_UNKNOWN || type == TYPE_USER) {
        put(buffer, buffer_bytes, &count, text.data, text.bytes);
    } else if (byte >= 0) {
        put(buffer, buffer_bytes, &count, &decoded, 1);
    } else {
        count = put_decoded(tok, text, buffer, buffer_bytes);
    }
    return (int64_t)count;
}

int32_t tokenizer_vocab_size(const tokenizer* tok) { return tok->vocab_size; }
int32_t tokenizer_bos(const tokenizer* tok) { return tok->bos; }
int32_t tokenizer_eos(const tokenizer* tok) { return tok->eos; }
int32_t tokenizer_eot(const tokenizer* tok) { return tok->eot; }
int32_t tokenizer_unknown(const tokenizer* tok) { return tok->unknown; }

int32_t tokenizer_find(const tokenizer* tok, const char* text)
{
    return find_text(tok, text, strlen(text));
}

bool tokenizer_is_eog(const tokenizer* tok, int32_t id)
{
    return id >= 0 && id < tok->vocab_size && (tok->types[id] & TYPE_EOG) != 0;
}
