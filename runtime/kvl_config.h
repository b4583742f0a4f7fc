// kvl_config.h -- spec text and shape -> checked, canonical config; config -> text and fields.
//
// The one parser of specs.  What words exist, and what they demand of each other, stands in
// kvl_table.h, which is made from gen/: no codec is named here.

#ifndef KVL_CONFIG_H
#define KVL_CONFIG_H

#include "kvl_base.h"
#include "kvl_table.h"

// How one side, keys or values, is stored.  Zeroed, then assigned field by field.
typedef struct kvl__codec {
    int32_t preset;                    // that it started from: for the canonical text only
    int32_t bits, head_dim;
    int32_t group_size;                // 0: no groups, no metadata
    int32_t rows;                      // type of window rows: 0 f16, 1 bf16
    int32_t words[KVL__NUM_STAGES];    // index into kvl__stages[stage].words
    int32_t numbers[KVL__NUM_STAGES];
} kvl__codec;

typedef struct kvl__config {
    kvl__codec side[2];                // keys, values
    int32_t    num_kv_heads, num_heads;   // num_heads: query heads of one KV head
    int32_t    sink_len, recent_len, chunk_len, page_size;
    int32_t    kept_len;               // rows of a sequence that may be named to stay in 16 bits
    int32_t    num_stored;             // 1: values are in the keys; side[1] is then what keys are
    int32_t    value_dim;              // channels of an output, the first ones of side[1]
    int32_t    auto_bits;              // bits=auto: 1000 times the budget of a value, while bits of
                                       // both sides are still a calibration's to say; 0: known
} kvl__config;

enum { KVL__MAX_KEPT = 256 };
enum { KVL__MAX_STORED_DIM = 256, KVL__MAX_HEAD_DIM = 576 };    // of two sides, of one
enum { KVL__SPEC_BYTES = sizeof(((kvl_layer_info*)0)->spec), KVL__WORD_BYTES = 64 };
enum { KVL__MAX_PAGE = 4096 };         // tokens of a page, and of a chunk
enum { KVL__UNIT_VALUES = 16384 };     // the most that a unit of a choice has

typedef struct kvl__parse {
    kvl_context* ctx;
    char         where[32];            // "layer 3: " or ""
    const char*  spec;
    kvl__config* config;
    char         seen[512];            // names of the items so far, each between commas
} kvl__parse;

#define KVL__SPEC_FAIL(p, ...) kvl__spec_fail((p), __VA_ARGS__)

__attribute__((format(printf, 2, 3)))
KVL__FN kvl_status kvl__spec_fail(const kvl__parse* p, const char* format, ...)
{
    char text[768];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return kvl__fail(p->ctx, KVL_BAD_ARGUMENT, "%sspec '%.160s': %s", p->where, p->spec, text);
}

// Appends to a fixed buffer; what does not fit is cut.
__attribute__((format(printf, 3, 4)))
KVL__FN void kvl__append_text(char* text, size_t size, const char* format, ...)
{
    const size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

KVL__FN const kvl__word* kvl__word_of(const kvl__codec* c, int stage)
{
    return &kvl__stages[stage].words[c->words[stage]];
}

// The model's weights have the side's transform; the cache gets rows in its basis.
KVL__FN int kvl__is_folded(const kvl__codec* c)
{
    return c->words[KVL__STAGE_PLACE] == KVL__PLACE_FOLDED;
}

// Whether stored heads have channels of any head of the layer (kvl_across.h).
KVL__FN int kvl__is_across(const kvl__codec* c)
{
    return c->words[KVL__STAGE_TRANSFORM] == KVL__TRANSFORM_GROUPED;
}

// The transform that kernels compute.
KVL__FN int32_t kvl__transform_of(const kvl__codec* c)
{
    return kvl__is_folded(c) || kvl__is_across(c) ? KVL__TRANSFORM_NONE
                                                  : c->words[KVL__STAGE_TRANSFORM];
}

// Whether what is stored beside codes is all there is.
KVL__FN int kvl__has_no_codes(const kvl__codec* c)
{
    return c->words[KVL__STAGE_LEVELS] == KVL__LEVELS_NOTHING;
}

// Whether levels have no groups.
KVL__FN int kvl__is_raw(const kvl__codec* c)
{
    return c->words[KVL__STAGE_LEVELS] == KVL__LEVELS_F16 ||
           c->words[KVL__STAGE_LEVELS] == KVL__LEVELS_BF16 || kvl__has_no_codes(c);
}

// What codes of so many bits mean where levels are not equally spaced; else NULL.
KVL__FN const kvl__book* kvl__book_at(const kvl__codec* c, int bits)
{
    const kvl__word* levels = kvl__word_of(c, KVL__STAGE_LEVELS);
    for (int i = 0; i < levels->num_books; ++i)
        if (levels->books[i].bits == bits) return &levels->books[i];
    return NULL;
}

KVL__FN const kvl__book* kvl__book_of(const kvl__codec* c) { return kvl__book_at(c, c->bits); }

// Whether two neighbouring channels have a level together.
KVL__FN int kvl__has_plane(const kvl__codec* c)
{
    const kvl__word* levels = kvl__word_of(c, KVL__STAGE_LEVELS);
    return levels->num_books > 0 && levels->books[0].is_plane;
}

// The table that channels are stored in units of; NULL: as they are.
KVL__FN const char* kvl__base_table(const kvl__codec* c)
{
    const char* base = kvl__word_of(c, KVL__STAGE_META)->base;
    return base ? base : kvl__word_of(c, KVL__STAGE_LEVELS)->base;
}

// Whether rows are stored without a mean that turns with their positions.
KVL__FN int kvl__shifts_by_position(const kvl__codec* c)
{
    return c->words[KVL__STAGE_SHIFT] == KVL__SHIFT_ROTATING_MEAN;
}

// Whether keys are stored as they were before RoPE.
KVL__FN int kvl__is_unrotated(const kvl__codec* c)
{
    return c->words[KVL__STAGE_PLACE] == KVL__PLACE_PRE_ROPE;
}

// Whether rows are stored without what the layer below and the key say of them.
KVL__FN int kvl__is_predicted(const kvl__codec* c)
{
    return c->words[KVL__STAGE_SHIFT] == KVL__SHIFT_PREDICTED;
}

// Whether what is stored of a row depends on its position.
KVL__FN int kvl__is_by_position(const kvl__codec* c)
{
    return kvl__shifts_by_position(c) || kvl__is_unrotated(c);
}

// The stage and the word that make it so, for messages.
KVL__FN const char* kvl__position_stage(const kvl__codec* c)
{
    return kvl__is_unrotated(c) ? "place" : "shift";
}

KVL__FN const char* kvl__position_word(const kvl__codec* c)
{
    return kvl__word_of(c, kvl__is_unrotated(c) ? KVL__STAGE_PLACE : KVL__STAGE_SHIFT)->name;
}

// Values of a row that are stored as they are.
KVL__FN int32_t kvl__row_slots(const kvl__codec* c)
{
    return c->words[KVL__STAGE_EXTRA] == KVL__EXTRA_SPARSE ? c->numbers[KVL__STAGE_EXTRA] : 0;
}

// Rotations whose signs keys have beside their codes; 0: none.
KVL__FN int32_t kvl__sketches(const kvl__codec* c)
{
    const int32_t word = c->words[KVL__STAGE_EXTRA];
    return word == KVL__EXTRA_SKETCH || word == KVL__EXTRA_SKETCH_APART
        ? c->numbers[KVL__STAGE_EXTRA] : 0;
}

enum { KVL__APART_CHANNELS = 8, KVL__APART_ROWS = 32 };    // gen/parts/sketch_apart.lua

KVL__FN int kvl__keeps_apart(const kvl__codec* c)
{
    return c->words[KVL__STAGE_EXTRA] == KVL__EXTRA_SKETCH_APART;
}

// Whether tokens are divided by a norm of their own.
KVL__FN int kvl__has_norms(const kvl__codec* c)
{
    return c->words[KVL__STAGE_EXTRA] == KVL__EXTRA_TOKEN_NORM;
}

// Channels of a group that have 2 bits more.
KVL__FN int32_t kvl__promoted(const kvl__codec* c)
{
    return c->words[KVL__STAGE_EXTRA] == KVL__EXTRA_PROMOTE ? c->numbers[KVL__STAGE_EXTRA] : 0;
}

enum { KVL__SLOT_BYTES = 3 };              // the value, its channel

// Rows that share what is stored beside codes, and its bytes.
KVL__FN int32_t kvl__extra_rows(const kvl__codec* c)
{
    if (kvl__promoted(c)) return c->group_size;
    return kvl__keeps_apart(c) ? KVL__APART_ROWS : 1;
}

KVL__FN int32_t kvl__extra_bytes(const kvl__codec* c)
{
    if (kvl__has_norms(c)) return 1;
    if (kvl__promoted(c)) return kvl__promoted(c) * (1 + (c->group_size + 3) / 4);
    const int32_t number = kvl__sketches(c), signs = c->head_dim / 8;
    if (kvl__keeps_apart(c))
        return KVL__APART_CHANNELS + KVL__APART_ROWS * (4 + (number + 1) * signs);
    return number ? 2 + number * signs : kvl__row_slots(c) * KVL__SLOT_BYTES;
}

// Whether levels are those of a calibrated book.
KVL__FN int kvl__has_book(const kvl__codec* c)
{
    return c->words[KVL__STAGE_LEVELS] == KVL__LEVELS_KMEANS;
}

// Whether channels have bits of their own.
KVL__FN int kvl__has_widths(const kvl__codec* c)
{
    return c->words[KVL__STAGE_LEVELS] == KVL__LEVELS_PAIRS;
}

// Whether keys are scored as restored rows: queries do not meet their codes.
KVL__FN int kvl__is_restored(const kvl__codec* c)
{
    return kvl__is_unrotated(c) || kvl__row_slots(c) > 0 || kvl__promoted(c) || kvl__has_book(c) ||
           kvl__has_widths(c);
}

// Whether a head's channels are in sets, each stored by a codec of its own.
KVL__FN int kvl__is_split(const kvl__codec* c)
{
    return c->words[KVL__STAGE_EXTRA] == KVL__EXTRA_OUTLIERS;
}

KVL__FN int kvl__num_sets(const kvl__codec* c) { return kvl__is_split(c) ? 2 : 1; }

// The codec of a set, as if it were a head: gen/parts/outliers.lua.
KVL__FN kvl__codec kvl__set_of(const kvl__codec* c, int set)
{
    static const int left_out[] = { KVL__STAGE_PLACE, KVL__STAGE_SHIFT, KVL__STAGE_EXTRA };
    const int32_t strong = c->numbers[KVL__STAGE_EXTRA];
    kvl__codec s = *c;
    if (!kvl__is_split(c)) return s;
    s.head_dim = s.group_size = set == 0 ? strong : c->head_dim - strong;
    s.bits = set == 0 ? c->bits + 1 : c->bits;
    for (int i = 0; i < 3; ++i) s.words[left_out[i]] = s.numbers[left_out[i]] = 0;
    if (kvl__word_of(c, KVL__STAGE_TRANSFORM)->takes_number && !c->numbers[KVL__STAGE_TRANSFORM])
        s.numbers[KVL__STAGE_TRANSFORM] = s.head_dim & -s.head_dim;
    return s;
}

// Whether groups are paths through a trellis, whose levels are those of one bit more.
KVL__FN int kvl__has_path(const kvl__codec* c)
{
    return c->words[KVL__STAGE_ROUND] == KVL__ROUND_TRELLIS ||
           c->words[KVL__STAGE_ROUND] == KVL__ROUND_FEEDBACK_TRELLIS;
}

// Whether errors move on to other channels.
KVL__FN int kvl__has_feedback(const kvl__codec* c)
{
    return c->words[KVL__STAGE_ROUND] == KVL__ROUND_FEEDBACK ||
           c->words[KVL__STAGE_ROUND] == KVL__ROUND_FEEDBACK_TRELLIS;
}

// Bits of what scales are multiplied with.
KVL__FN int kvl__level_bits(const kvl__codec* c) { return c->bits + kvl__has_path(c); }

// Digits alone, at most 9 of them: else -1.
KVL__FN int32_t kvl__parse_count(const char* text)
{
    int32_t value = 0;
    int n = 0;
    for (; *text; ++text, ++n) {
        if (*text < '0' || *text > '9' || n == 9) return -1;
        value = value * 10 + (*text - '0');
    }
    return n > 0 ? value : -1;
}

KVL__FN kvl_status kvl__parse_preset(kvl__parse* p, const char* name, int side)
{
    char allowed[512] = "";
    for (int i = 0; i < KVL__NUM_PRESETS; ++i) {
        const kvl__preset* preset = &kvl__presets[i];
        if (strcmp(name, preset->name) == 0) {
            kvl__codec* c = &p->config->side[side];
            c->preset = i;
            c->bits = preset->side[side].bits;
            c->group_size = preset->side[side].group_size;
            memcpy(c->words, preset->side[side].words, sizeof c->words);
            memcpy(c->numbers, preset->side[side].numbers, sizeof c->numbers);
            return KVL_OK;
        }
        kvl__append_text(allowed, sizeof allowed, "%s%s", i ? ", " : "", preset->name);
    }
    return KVL__SPEC_FAIL(p, "'%s': no such preset: must be one of %s", name, allowed);
}

// "word" or "word12" of a stage that may take a number.
KVL__FN kvl_status kvl__parse_stage_word(kvl__parse* p, int stage, const char* word, int sides)
{
    const kvl__stage_info* info = &kvl__stages[stage];
    char allowed[512] = "";
    for (int i = 0; i < info->num_words; ++i) {
        const kvl__word* w = &info->words[i];
        const size_t n = strlen(w->name);
        int32_t number = 0;
        int found = strcmp(word, w->name) == 0;
        if (!found && w->takes_number && strncmp(word, w->name, n) == 0) {
            number = kvl__parse_count(word + n);
            found = number > 0;
            if (!found && word[n] >= '0' && word[n] <= '9')
                return KVL__SPEC_FAIL(p, "%s = '%s': the number behind %s must be a whole number "
                                      "from 1", info->name, word, w->name);
        }
        if (found) {
            for (int side = 0; side < 2; ++side) {
                if (!(sides & 1 << side)) continue;
                p->config->side[side].words[stage] = i;
                p->config->side[side].numbers[stage] = number;
            }
            return KVL_OK;
        }
        kvl__append_text(allowed, sizeof allowed, "%s%s%s", i ? ", " : "", w->name,
                         w->takes_number ? "[N]" : "");
    }
    return KVL__SPEC_FAIL(p, "%s = '%s': must be one of %s", info->name, word, allowed);
}

// "2.25" as thousands: at most 2 digits before the point and 3 behind it; -1: no such number.
KVL__FN int32_t kvl__parse_thousands(const char* text)
{
    const size_t before = strspn(text, "0123456789");
    const char* point = text + before;
    const size_t behind = *point == '.' ? strspn(point + 1, "0123456789") : 0;
    int32_t value = 0;
    if (before < 1 || before > 2 || behind > 3 || (*point == '.' && !behind) ||
        point[behind + (*point == '.')]) return -1;
    for (size_t i = 0; i < before; ++i) value = value * 10 + (text[i] - '0');
    for (size_t i = 0; i < 3; ++i) value = value * 10 + (i < behind ? point[1 + i] - '0' : 0);
    return value;
}

KVL__FN void kvl__append_thousands(char* text, size_t size, int32_t value)
{
    char digits[16];
    snprintf(digits, sizeof digits, "%d.%03d", value / 1000, value % 1000);
    size_t n = strlen(digits);
    while (digits[n - 1] == '0') --n;
    if (digits[n - 1] == '.') --n;
    kvl__append_text(text, size, "%.*s", (int)n, digits);
}

KVL__FN kvl_status kvl__parse_bits(kvl__parse* p, const char* word)
{
    const int32_t bits = strncmp(word, "auto:", 5) == 0 ? kvl__parse_thousands(word + 5) : -1;
    if (bits <= 0)
        return KVL__SPEC_FAIL(p, "bits = '%s': must be auto:BITS, the mean of a value in pages, "
                              "with at most 3 digits behind the point", word);
    p->config->auto_bits = bits;
    return KVL_OK;
}

KVL__FN kvl_status kvl__parse_rows(kvl__parse* p, const char* word)
{
    const int bf16 = strcmp(word, "bf16") == 0;
    if (!bf16 && strcmp(word, "f16") != 0)
        return KVL__SPEC_FAIL(p, "rows = '%s': must be one of f16, bf16", word);
    p->config->side[0].rows = p->config->side[1].rows = bf16;
    return KVL_OK;
}

KVL__FN kvl_status kvl__parse_named(kvl__parse* p, const char* name, const char* value)
{
    kvl__config* c = p->config;
    static const char* const windows[] = { "sink", "recent", "kept", "chunk", "page" };
    static const int32_t most[] = { 1 << 20, 1 << 20, KVL__MAX_KEPT, KVL__MAX_PAGE, KVL__MAX_PAGE };
    int32_t* const fields[] = { &c->sink_len, &c->recent_len, &c->kept_len, &c->chunk_len,
                                &c->page_size };
    for (int i = 0; i < 5; ++i) {
        if (strcmp(name, windows[i]) != 0) continue;
        const int32_t least = i < 3 ? 0 : 1, count = kvl__parse_count(value);
        if (count < least || count > most[i])
            return KVL__SPEC_FAIL(p, "%s = '%s': must be a number of tokens from %d to %d", name,
                                  value, least, most[i]);
        *fields[i] = count;
        return KVL_OK;
    }
    if (strcmp(name, "rows") == 0) return kvl__parse_rows(p, value);
    if (strcmp(name, "bits") == 0) return kvl__parse_bits(p, value);
    int sides = 3;
    const char* stage = name;
    if ((name[0] == 'k' || name[0] == 'v') && name[1] == '.') {
        sides = name[0] == 'k' ? 1 : 2;
        stage = name + 2;
    }
    char allowed[512] = "sink, recent, kept, chunk, page, rows, bits";
    for (int i = 0; i < KVL__NUM_STAGES; ++i) {
        if (strcmp(stage, kvl__stages[i].name) == 0)
            return kvl__parse_stage_word(p, i, value, sides);
        kvl__append_text(allowed, sizeof allowed, ", %s", kvl__stages[i].name);
    }
    return KVL__SPEC_FAIL(p, "'%s': no such name: must be one of %s (k. or v. before a stage: one "
                          "side)", name, allowed);
}

// k2, v4, b3, g32, kg64, vg128.
KVL__FN kvl_status kvl__parse_short(kvl__parse* p, const char* item)
{
    int sides = 3;
    const char* at = item;
    if (*at == 'k' || *at == 'v') sides = *at++ == 'k' ? 1 : 2;
    const int group = *at == 'g';
    if (group || (sides == 3 && *at == 'b')) ++at;
    const int32_t count = at == item ? -1 : kvl__parse_count(at);
    if (count < 0)
        return KVL__SPEC_FAIL(p, "'%s': must be kBITS, vBITS, bBITS, gSIZE, kgSIZE, vgSIZE or "
                              "name=word", item);
    for (int side = 0; side < 2; ++side) {
        if (!(sides & 1 << side)) continue;
        if (group) p->config->side[side].group_size = count;
        else p->config->side[side].bits = count;
    }
    return KVL_OK;
}

// Copies up to one of `stops` into word; returns where it stopped, or NULL if it is too long.
KVL__FN const char* kvl__parse_until(const char* text, const char* stops, char* word)
{
    const size_t n = strcspn(text, stops);
    if (n >= KVL__WORD_BYTES) return NULL;
    memcpy(word, text, n);
    word[n] = 0;
    return text + n;
}

// A size of the preset, as "2.25": the items that it stands for.  Items behind it may change them.
KVL__FN kvl_status kvl__parse_size(kvl__parse* p, const char* size)
{
    const kvl__preset* preset = &kvl__presets[p->config->side[0].preset];
    char allowed[128] = "", word[KVL__WORD_BYTES];
    if (p->config->side[1].preset != p->config->side[0].preset)
        return KVL__SPEC_FAIL(p, "'%s': a size is of one preset, not of two", size);
    for (int i = 0; i < preset->num_sizes; ++i) {
        if (strcmp(size, preset->sizes[i].name) == 0) {
            const char* at = preset->sizes[i].items;
            while (*at) {
                at = kvl__parse_until(at, ",", word);
                at += *at == ',';
                char* equals = strchr(word, '=');
                if (equals) *equals = 0;
                KVL__TRY(equals ? kvl__parse_named(p, word, equals + 1)
                                : kvl__parse_short(p, word));
            }
            return KVL_OK;
        }
        kvl__append_text(allowed, sizeof allowed, "%s%s", i ? ", " : "", preset->sizes[i].name);
    }
    if (preset->num_sizes == 0)
        return KVL__SPEC_FAIL(p, "'%s': preset %s has no sizes", size, preset->name);
    return KVL__SPEC_FAIL(p, "'%s': the sizes of %s are %s", size, preset->name, allowed);
}

// Each item once: of two, one would be ignored.
KVL__FN kvl_status kvl__parse_once(kvl__parse* p, const char* name, size_t length)
{
    char item[KVL__WORD_BYTES + 3];
    snprintf(item, sizeof item, ",%.*s,", (int)length, name);
    if (strstr(p->seen, item))
        return KVL__SPEC_FAIL(p, "'%.*s': is given twice", (int)length, name);
    kvl__append_text(p->seen, sizeof p->seen, "%s", item);
    return KVL_OK;
}

KVL__FN kvl_status kvl__parse_item(kvl__parse* p, char* item)
{
    char* equals = strchr(item, '=');
    if (!equals && *item >= '0' && *item <= '9') {
        KVL__TRY(kvl__parse_size(p, item));
        return kvl__parse_once(p, "size", 4);
    }
    if (!equals) {
        KVL__TRY(kvl__parse_short(p, item));
        return kvl__parse_once(p, item, strcspn(item, "0123456789"));
    }
    *equals = 0;
    KVL__TRY(kvl__parse_named(p, item, equals + 1));
    return kvl__parse_once(p, item, strlen(item));
}

// Of two presets the longer windows, and bf16 if one wants its range: neither side gets less than
// its own preset gives it.
KVL__FN void kvl__preset_windows(kvl__config* c)
{
    for (int side = 0; side < 2; ++side) {
        const kvl__preset* preset = &kvl__presets[c->side[side].preset];
        if (preset->sink_len > c->sink_len) c->sink_len = preset->sink_len;
        if (preset->recent_len > c->recent_len) c->recent_len = preset->recent_len;
        if (preset->kept_len > c->kept_len) c->kept_len = preset->kept_len;
        if (preset->chunk_len > c->chunk_len) c->chunk_len = preset->chunk_len;
        if (preset->page_size > c->page_size) c->page_size = preset->page_size;
        if (preset->rows) c->side[0].rows = c->side[1].rows = preset->rows;
    }
}

KVL__FN kvl_status kvl__parse_text(kvl__parse* p)
{
    char word[KVL__WORD_BYTES];
    const char* at = kvl__parse_until(p->spec, "/:", word);
    if (!at) return KVL__SPEC_FAIL(p, "a word of %d letters or more", KVL__WORD_BYTES);
    KVL__TRY(kvl__parse_preset(p, word, 0));
    if (*at == '/') {
        at = kvl__parse_until(at + 1, ":", word);
        if (!at) return KVL__SPEC_FAIL(p, "a word of %d letters or more", KVL__WORD_BYTES);
    }
    KVL__TRY(kvl__parse_preset(p, word, 1));
    kvl__preset_windows(p->config);
    while (*at) {
        at = kvl__parse_until(at + 1, ",", word);
        if (!at) return KVL__SPEC_FAIL(p, "a word of %d letters or more", KVL__WORD_BYTES);
        KVL__TRY(kvl__parse_item(p, word));
    }
    return KVL_OK;
}

// Codes and metadata of one value in a page, in bits.
KVL__FN double kvl__codec_bits(const kvl__codec* c)
{
    if (kvl__is_split(c)) {
        const kvl__codec strong = kvl__set_of(c, 0), others = kvl__set_of(c, 1);
        return (strong.head_dim * kvl__codec_bits(&strong) +
                others.head_dim * kvl__codec_bits(&others)) / c->head_dim;
    }
    const kvl__word* meta = kvl__word_of(c, KVL__STAGE_META);
    const double extra = 8.0 * kvl__extra_bytes(c) / kvl__extra_rows(c) / c->head_dim;
    if (c->group_size == 0) return c->bits + extra;
    const int zero = c->words[KVL__STAGE_LEVELS] == KVL__LEVELS_AFFINE ? meta->zero_bytes : 0;
    return c->bits + 8.0 * (meta->scale_bytes + zero) / c->group_size + extra;
}

// Whether levels and fit have codes of so many bits, and those of a set with one more.
KVL__FN int kvl__has_bits(const kvl__codec* c, int bits)
{
    const uint32_t widths = kvl__word_of(c, KVL__STAGE_LEVELS)->bits_mask;
    const int most = kvl__is_split(c) && !kvl__is_raw(c) ? bits + 1 : bits;
    return bits >= 0 && bits <= 16 && (widths >> bits & 1u) && (widths >> most & 1u) &&
           bits >= kvl__word_of(c, KVL__STAGE_FIT)->min_bits;
}

// What bits=auto asks of the rest: widths to choose from, a budget that they can meet, and nobody
// else who says bits.
KVL__FN kvl_status kvl__check_auto_bits(const kvl__parse* p, const kvl__config* c)
{
    double least = 0, most = 0, values = 0;
    const char* item = strstr(p->seen, ",k,");
    if (!item) item = strstr(p->seen, ",v,");
    if (!item) item = strstr(p->seen, ",b,");
    if (item)
        return KVL__SPEC_FAIL(p, "'%c': bits = auto chooses the bits of both sides", item[1]);
    for (int side = 0; side < c->num_stored; ++side) {
        const kvl__codec* s = &c->side[side];
        if (kvl__is_raw(s))
            return KVL__SPEC_FAIL(p, "bits = auto: %c.levels = %s have one width alone",
                                  side ? 'v' : 'k', kvl__word_of(s, KVL__STAGE_LEVELS)->name);
        int from = 1, to = 16;
        while (!kvl__has_bits(s, from)) ++from;
        while (!kvl__has_bits(s, to)) --to;
        least += s->head_dim * (kvl__codec_bits(s) - s->bits + from);
        most += s->head_dim * (kvl__codec_bits(s) - s->bits + to);
        values += s->head_dim;
    }
    if (c->auto_bits < 1000 * least / values - 1 || c->auto_bits > 1000 * most / values + 1)
        return KVL__SPEC_FAIL(p, "bits = auto:%g: must be from %g to %g", c->auto_bits / 1000.0,
                              least / values, most / values);
    return KVL_OK;
}

KVL__FN kvl_status kvl__check_bits(const kvl__parse* p, const kvl__codec* c, char side)
{
    const kvl__word* levels = kvl__word_of(c, KVL__STAGE_LEVELS);
    const kvl__word* fit = kvl__word_of(c, KVL__STAGE_FIT);
    char allowed[64] = "";
    for (int b = 0; b <= 16; ++b)
        if (kvl__has_bits(c, b))
            kvl__append_text(allowed, sizeof allowed, "%s%d", *allowed ? ", " : "", b);
    if (!*allowed)
        return KVL__SPEC_FAIL(p, "%c.extra = %s: levels = %s have no codes of one bit more", side,
                              kvl__word_of(c, KVL__STAGE_EXTRA)->name, levels->name);
    if (!kvl__has_bits(c, c->bits))
        return KVL__SPEC_FAIL(p, "%c%d: bits with levels = %s, fit = %s must be one of %s", side,
                              c->bits, levels->name, fit->name, allowed);
    return KVL_OK;
}

// Whether a word serves levels.  Of fits for books one alone is for channels that have bits of
// their own, or a level together: it needs no codes.
KVL__FN int kvl__serves_levels(const kvl__word* word, int levels)
{
    const kvl__word* of = &kvl__stages[KVL__STAGE_LEVELS].words[levels];
    if (word->levels != KVL__LEVELS_BOOK)
        return word->levels == KVL__LEVELS_ANY || word->levels == levels;
    if (of->num_books == 0) return 0;
    return (levels != KVL__LEVELS_PAIRS && !of->books[0].is_plane) ||
           word == &kvl__stages[KVL__STAGE_FIT].words[KVL__FIT_NORM];
}

// Appends the levels that a word serves.
KVL__FN void kvl__append_served(const kvl__word* word, char* text, size_t size)
{
    const kvl__stage_info* info = &kvl__stages[KVL__STAGE_LEVELS];
    for (int i = 0; i < info->num_words; ++i) {
        if (kvl__serves_levels(word, i))
            kvl__append_text(text, size, "%s%s", *text ? ", " : "", info->words[i].name);
    }
}

// The words that are for some levels alone.
KVL__FN kvl_status kvl__check_levels(const kvl__parse* p, const kvl__codec* c, char side)
{
    static const int stages[] = { KVL__STAGE_FIT, KVL__STAGE_META, KVL__STAGE_ROUND };
    const kvl__word* levels = kvl__word_of(c, KVL__STAGE_LEVELS);
    const kvl__word* fit = kvl__word_of(c, KVL__STAGE_FIT);
    const kvl__word* meta = kvl__word_of(c, KVL__STAGE_META);
    char served[128] = "";
    for (int i = 0; i < 3; ++i) {
        const kvl__word* word = kvl__word_of(c, stages[i]);
        if (kvl__serves_levels(word, c->words[KVL__STAGE_LEVELS])) continue;
        kvl__append_served(word, served, sizeof served);
        return KVL__SPEC_FAIL(p, "%c.%s = %s: is for levels = %s, not %s", side,
                              kvl__stages[stages[i]].name, word->name, served, levels->name);
    }
    if (levels->num_books > 0 && c->words[KVL__STAGE_ROUND] != KVL__ROUND_NEAREST)
        return KVL__SPEC_FAIL(p, "%c.round = %s: levels = %s take the nearest", side,
                              kvl__word_of(c, KVL__STAGE_ROUND)->name, levels->name);
    if (meta->stores && !(meta->stores & fit->stores))
        return KVL__SPEC_FAIL(p, "%c.meta = %s: cannot store what fit = %s finds", side, meta->name,
                              fit->name);
    return KVL_OK;
}

KVL__FN kvl_status kvl__check_words(const kvl__parse* p, const kvl__codec* c, char side)
{
    const kvl__word* levels = kvl__word_of(c, KVL__STAGE_LEVELS);
    const kvl__word* fit = kvl__word_of(c, KVL__STAGE_FIT);
    const kvl__word* meta = kvl__word_of(c, KVL__STAGE_META);
    if (c->words[KVL__STAGE_FIT] == KVL__FIT_NONE)
        return KVL__SPEC_FAIL(p, "%c.fit = none: levels = %s need a fit", side, levels->name);
    KVL__TRY(kvl__check_levels(p, c, side));
    const int is_static = c->words[KVL__STAGE_FIT] == KVL__FIT_STATIC;
    if (is_static != (c->words[KVL__STAGE_META] == KVL__META_STATIC))
        return KVL__SPEC_FAIL(p, "%c.fit = %s, %c.meta = %s: static goes with static", side,
                              fit->name, side, meta->name);
    if (is_static && !kvl__has_book(c) && c->words[KVL__STAGE_LEVELS] != KVL__LEVELS_AFFINE)
        return KVL__SPEC_FAIL(p, "%c.levels = %s: with %c.fit = static must be affine or kmeans",
                              side, levels->name, side);
    const kvl__word* round = kvl__word_of(c, KVL__STAGE_ROUND);
    if (round->levels >= 0 && c->words[KVL__STAGE_CHOOSE] != KVL__CHOOSE_NONE)
        return KVL__SPEC_FAIL(p, "%c.round = %s: needs %c.choose = none, not %s", side, round->name,
                              side, kvl__word_of(c, KVL__STAGE_CHOOSE)->name);
    if (kvl__has_feedback(c) && c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_CHANNEL &&
        (c->group_size < 2 || c->group_size > 64))
        return KVL__SPEC_FAIL(p, "%cg%d: with %c.round = %s groups along tokens must have 2 to 64",
                              side, c->group_size, side, round->name);
    if (c->words[KVL__STAGE_META] == KVL__META_NONE)
        return KVL__SPEC_FAIL(p, "%c.meta = none: levels = %s have a scale to store", side,
                              levels->name);
    if (fit->has_sign && !meta->has_sign)
        return KVL__SPEC_FAIL(p, "%c.meta = %s: cannot store the sign that the scale of fit = %s "
                              "has", side, meta->name, fit->name);
    return KVL_OK;
}

KVL__FN kvl_status kvl__check_group(const kvl__parse* p, kvl__codec* c, char side)
{
    const int per_token = c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_TOKEN;
    if (c->group_size == -1) c->group_size = c->head_dim;
    if (c->group_size < 2 || c->group_size > 4096)
        return KVL__SPEC_FAIL(p, "%cg%d: group size must be from 2 to 4096", side, c->group_size);
    if (per_token && c->head_dim % c->group_size != 0)
        return KVL__SPEC_FAIL(p, "%cg%d: with %c.axis = per_token the group size must divide "
                              "head_dim = %d", side, c->group_size, side, c->head_dim);
    return KVL_OK;
}

// What a number means for the head, beyond its range.
KVL__FN kvl_status kvl__check_number(const kvl__parse* p, kvl__codec* c, int stage, char side)
{
    const kvl__word* word = kvl__word_of(c, stage);
    const char* name = kvl__stages[stage].name;
    int32_t* number = &c->numbers[stage];
    if (word->takes_number == KVL__NUMBER_COUNT) {
        if (*number % 16 != 0)
            return KVL__SPEC_FAIL(p, "%c.%s = %s%d: the number must be %d to %d in steps of 16",
                                  side, name, word->name, *number, word->number_least,
                                  word->number_most);
    } else if (word->takes_number == KVL__NUMBER_STATES) {
        if (*number & (*number - 1))
            return KVL__SPEC_FAIL(p, "%c.%s = %s%d: the states must be a power of two from %d to "
                                  "%d", side, name, word->name, *number, word->number_least,
                                  word->number_most);
    } else if (word->takes_number == KVL__NUMBER_PIECE_UP_TO) {
        int32_t piece = 16;
        while (2 * piece <= *number && c->head_dim % (2 * piece) == 0) piece *= 2;
        *number = piece;
    } else if (word->takes_number == KVL__NUMBER_SHARE) {
        if (*number == 0)
            for (*number = 16; 2 * *number <= c->head_dim / 4;) *number *= 2;
        if (*number % 16 != 0 || *number >= c->head_dim)
            return KVL__SPEC_FAIL(p, "%c.%s = %s%d: the number must be a multiple of 16 below "
                                  "head_dim = %d", side, name, word->name, *number, c->head_dim);
    } else if (word->takes_number == KVL__NUMBER_PIECE) {
        if (*number == 0 && kvl__is_split(c)) return KVL_OK;       // each set has its own
        if (*number == 0) *number = c->head_dim & -c->head_dim;
        if (*number < 2 || (*number & (*number - 1)) || c->head_dim % *number != 0)
            return KVL__SPEC_FAIL(p, "%c.%s = %s%d: the piece must be a power of two that divides "
                                  "head_dim = %d", side, name, word->name, *number, c->head_dim);
    }
    return KVL_OK;
}

// What a choice asks of the other stages; the first two would leave it undefined, the others its
// flags without a place.
KVL__FN kvl_status kvl__check_choice(const kvl__parse* p, kvl__codec* c, char side)
{
    const char* word = kvl__word_of(c, KVL__STAGE_CHOOSE)->name;
    const int unit = c->words[KVL__STAGE_CHOOSE] == KVL__CHOOSE_UNIT;
    const int per_token = c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_TOKEN;
    const int32_t piece = c->numbers[KVL__STAGE_CHOOSE];
    if (c->words[KVL__STAGE_TRANSFORM] != KVL__TRANSFORM_NONE)
        return KVL__SPEC_FAIL(p, "%c.choose = %s: needs %c.transform = none, not %s", side, word,
                              side, kvl__word_of(c, KVL__STAGE_TRANSFORM)->name);
    if (c->words[KVL__STAGE_SCORE] == KVL__SCORE_NONE)
        return KVL__SPEC_FAIL(p, "%c.choose = %s: needs a %c.score", side, word, side);
    if (kvl__is_raw(c) || c->words[KVL__STAGE_LEVELS] != KVL__LEVELS_AFFINE)
        return KVL__SPEC_FAIL(p, "%c.choose = %s: needs %c.levels = affine, not %s", side, word,
                              side, kvl__word_of(c, KVL__STAGE_LEVELS)->name);
    if (per_token && piece % c->group_size != 0)
        return KVL__SPEC_FAIL(p, "%cg%d: with %c.choose = %s and %c.axis = per_token the group "
                              "size must divide the piece, %d channels", side, c->group_size, side,
                              word, side, piece);
    if (!unit) return KVL_OK;
    if (c->words[KVL__STAGE_FIT] != KVL__FIT_MINMAX)
        return KVL__SPEC_FAIL(p, "%c.fit = %s: %c.choose = unit needs %c.fit = minmax", side,
                              kvl__word_of(c, KVL__STAGE_FIT)->name, side, side);
    if (!kvl__word_of(c, KVL__STAGE_META)->free_sign)
        return KVL__SPEC_FAIL(p, "%c.meta = %s: its scales have no sign for the flags of "
                              "%c.choose = unit; e4m3 and f16 have", side,
                              kvl__word_of(c, KVL__STAGE_META)->name, side);
    if (c->group_size % 16 != 0)
        return KVL__SPEC_FAIL(p, "%cg%d: with %c.choose = unit the group size must be a multiple "
                              "of 16", side, c->group_size, side);
    if (!per_token && c->group_size * c->head_dim > KVL__UNIT_VALUES)
        return KVL__SPEC_FAIL(p, "%cg%d: with %c.choose = unit a group's rows must have at most "
                              "%d values", side, c->group_size, side, KVL__UNIT_VALUES);
    return KVL_OK;
}

// Rows that come in their basis need one; what is subtracted would have to be in it too.
KVL__FN kvl_status kvl__check_folded(const kvl__parse* p, const kvl__codec* c, char side)
{
    if (!kvl__is_folded(c)) return KVL_OK;
    if (c->words[KVL__STAGE_TRANSFORM] == KVL__TRANSFORM_NONE)
        return KVL__SPEC_FAIL(p, "%c.place = folded: needs a %c.transform, which the weights have",
                              side, side);
    if (c->words[KVL__STAGE_SHIFT] != KVL__SHIFT_NONE)
        return KVL__SPEC_FAIL(p, "%c.place = folded: needs %c.shift = none, not %s", side, side,
                              kvl__word_of(c, KVL__STAGE_SHIFT)->name);
    return KVL_OK;
}

KVL__FN int32_t kvl__lcm(int32_t a, int32_t b)
{
    int32_t x = a, y = b;
    while (y) { const int32_t r = x % y; x = y; y = r; }
    return a / x * b;
}

// Rows of a side that are encoded together.
KVL__FN int32_t kvl__unit_along(const kvl__codec* c)
{
    const int per_channel = c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_CHANNEL;
    return kvl__lcm(per_channel ? c->group_size : 1, kvl__extra_rows(c));
}

enum { KVL__UNIT_ROWS = 256 };         // of keys by position: a thread's scratch holds a unit

// What rows that are shifted by their positions ask of the other stages.
KVL__FN kvl_status kvl__check_position(const kvl__parse* p, const kvl__codec* c, char side)
{
    if (!kvl__is_by_position(c)) return KVL_OK;
    const char *stage = kvl__position_stage(c), *word = kvl__position_word(c);
    if (kvl__is_unrotated(c) && kvl__shifts_by_position(c))
        return KVL__SPEC_FAIL(p, "%c.place = %s: the mean of keys before RoPE does not turn: "
                              "%c.shift = mean, not %s", side, word, side,
                              kvl__word_of(c, KVL__STAGE_SHIFT)->name);
    if (kvl__shifts_by_position(c) && c->words[KVL__STAGE_CHOOSE] != KVL__CHOOSE_NONE)
        return KVL__SPEC_FAIL(p, "%c.shift = %s: needs %c.choose = none, not %s", side, word, side,
                              kvl__word_of(c, KVL__STAGE_CHOOSE)->name);
    if (c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_CHANNEL && c->group_size > KVL__UNIT_ROWS)
        return KVL__SPEC_FAIL(p, "%cg%d: with %c.%s = %s groups along tokens must have at most "
                              "%d", side, c->group_size, side, stage, word, KVL__UNIT_ROWS);
    if (kvl__unit_along(c) > KVL__UNIT_ROWS)
        return KVL__SPEC_FAIL(p, "%cg%d, %c.extra = %s: with %c.%s = %s %d rows would be encoded "
                              "together, at most %d can be", side, c->group_size, side,
                              kvl__word_of(c, KVL__STAGE_EXTRA)->name, side, stage, word,
                              kvl__unit_along(c), KVL__UNIT_ROWS);
    return KVL_OK;
}

enum { KVL__PATH_MOST = 256 };         // values of a group that is a path
enum { KVL__WAYS_MOST = 2048 };        // of which each state keeps the errors, times the states

KVL__FN kvl_status kvl__check_path(const kvl__parse* p, const kvl__codec* c, char side)
{
    const char* word = kvl__word_of(c, KVL__STAGE_ROUND)->name;
    const int32_t states = c->numbers[KVL__STAGE_ROUND];
    if (!kvl__has_path(c)) return KVL_OK;
    if (c->bits > 4)
        return KVL__SPEC_FAIL(p, "%c%d: bits with %c.round = %s must be one of 1, 2, 3, 4", side,
                              c->bits, side, word);
    if (c->group_size % 16 != 0 || c->group_size > KVL__PATH_MOST)
        return KVL__SPEC_FAIL(p, "%cg%d: with %c.round = %s the group size must be a multiple of "
                              "16, at most %d", side, c->group_size, side, word, KVL__PATH_MOST);
    if (kvl__has_feedback(c) && c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_TOKEN &&
        states * c->group_size > KVL__WAYS_MOST)
        return KVL__SPEC_FAIL(p, "%c.round = %s%d: with groups of %d channels of a token there can "
                              "be at most %d states", side, word, states, c->group_size,
                              KVL__WAYS_MOST / c->group_size);
    return KVL_OK;
}

// What values that are stored as they are, and a book of levels, ask of the other stages.
KVL__FN kvl_status kvl__check_slots(const kvl__parse* p, const kvl__codec* c, char side)
{
    static const int lone[] = { KVL__STAGE_TRANSFORM, KVL__STAGE_CHOOSE };
    const int stage = kvl__row_slots(c) ? KVL__STAGE_EXTRA : KVL__STAGE_LEVELS;
    const char *name = kvl__stages[stage].name, *word = kvl__word_of(c, stage)->name;
    const kvl__word* round = kvl__word_of(c, KVL__STAGE_ROUND);
    if (!kvl__row_slots(c) && !kvl__has_book(c)) return KVL_OK;
    if (kvl__is_raw(c))
        return KVL__SPEC_FAIL(p, "%c.%s = %s: %c.levels = %s store all values as they are", side,
                              name, word, side, kvl__word_of(c, KVL__STAGE_LEVELS)->name);
    for (int i = 0; i < 2; ++i)
        if (c->words[lone[i]] != 0)
            return KVL__SPEC_FAIL(p, "%c.%s = %s: needs %c.%s = none, not %s", side, name, word,
                                  side, kvl__stages[lone[i]].name,
                                  kvl__word_of(c, lone[i])->name);
    if (c->words[KVL__STAGE_AXIS] != KVL__AXIS_PER_TOKEN)
        return KVL__SPEC_FAIL(p, "%c.%s = %s: needs %c.axis = per_token", side, name, word, side);
    if (kvl__row_slots(c) && c->head_dim > KVL__MAX_STORED_DIM)
        return KVL__SPEC_FAIL(p, "%c.%s = %s: head_dim = %d: must be at most %d, a place has one "
                              "byte", side, name, word, c->head_dim, KVL__MAX_STORED_DIM);
    if (c->group_size <= kvl__row_slots(c))
        return KVL__SPEC_FAIL(p, "%c.%s = %s%d: the group size, %d, must be more", side, name, word,
                              kvl__row_slots(c), c->group_size);
    if (c->words[KVL__STAGE_FIT] == KVL__FIT_CLIP || kvl__has_feedback(c) || kvl__has_path(c))
        return KVL__SPEC_FAIL(p, "%c.%s = %s: needs a fit that does not clip and values rounded "
                              "one by one, not %s and %s", side, name, word,
                              kvl__word_of(c, KVL__STAGE_FIT)->name, round->name);
    if (side == 'v' && (c->words[KVL__STAGE_SHIFT] != 0 ||
                        kvl__word_of(c, KVL__STAGE_META)->base))
        return KVL__SPEC_FAIL(p, "v.%s = %s: needs v.shift = none and metadata without a base",
                              name, word);
    return KVL_OK;
}

// What channels with bits of their own ask of the other stages.
KVL__FN kvl_status kvl__check_widths(const kvl__parse* p, const kvl__codec* c, char side)
{
    static const int lone[] = { KVL__STAGE_TRANSFORM, KVL__STAGE_CHOOSE };
    const char* word = kvl__word_of(c, KVL__STAGE_LEVELS)->name;
    if (!kvl__has_widths(c)) return KVL_OK;
    if (c->words[KVL__STAGE_AXIS] != KVL__AXIS_PER_TOKEN)
        return KVL__SPEC_FAIL(p, "%c.levels = %s: needs %c.axis = per_token", side, word, side);
    for (int i = 0; i < 2; ++i)
        if (c->words[lone[i]] != 0)
            return KVL__SPEC_FAIL(p, "%c.levels = %s: needs %c.%s = none, not %s: pairs are of "
                                  "channels as they are", side, word, side,
                                  kvl__stages[lone[i]].name, kvl__word_of(c, lone[i])->name);
    if (c->words[KVL__STAGE_SHIFT] == KVL__SHIFT_MIDDLE)
        return KVL__SPEC_FAIL(p, "%c.levels = %s: needs %c.shift = none, mean or rotating-mean, "
                              "not middle", side, word, side);
    if (kvl__word_of(c, KVL__STAGE_META)->base)
        return KVL__SPEC_FAIL(p, "%c.levels = %s: has sizes: needs %c.meta without a base, not %s",
                              side, word, side, kvl__word_of(c, KVL__STAGE_META)->name);
    if (c->head_dim > KVL__MAX_STORED_DIM)
        return KVL__SPEC_FAIL(p, "%c.levels = %s: head_dim = %d: must be at most %d", side, word,
                              c->head_dim, KVL__MAX_STORED_DIM);
    return KVL_OK;
}

// What channels in sets ask of the other stages.
KVL__FN kvl_status kvl__check_split(const kvl__parse* p, const kvl__codec* c, char side)
{
    const char* word = kvl__word_of(c, KVL__STAGE_EXTRA)->name;
    const kvl__word* transform = kvl__word_of(c, KVL__STAGE_TRANSFORM);
    const int32_t number = c->numbers[KVL__STAGE_EXTRA], piece = c->numbers[KVL__STAGE_TRANSFORM];
    if (!kvl__is_split(c)) return KVL_OK;
    if (kvl__is_raw(c) || kvl__has_book(c) || kvl__has_widths(c) || kvl__has_plane(c))
        return KVL__SPEC_FAIL(p, "%c.extra = %s: needs %c.levels of one width, which are not "
                              "calibrated, not %s", side, word, side,
                              kvl__word_of(c, KVL__STAGE_LEVELS)->name);
    if (c->words[KVL__STAGE_AXIS] != KVL__AXIS_PER_TOKEN || c->group_size != c->head_dim)
        return KVL__SPEC_FAIL(p, "%c.extra = %s: a set is a group of a token: needs %c.axis = "
                              "per_token and %cg%d, the head", side, word, side, side, c->head_dim);
    if (transform->num_tables || kvl__is_folded(c) ||
        (c->words[KVL__STAGE_TRANSFORM] && piece && (number % piece || c->head_dim % piece)))
        return KVL__SPEC_FAIL(p, "%c.extra = %s%d, %c.transform = %s%.0d: needs a Hadamard of each "
                              "set, in pieces that divide it, or none", side, word, number, side,
                              transform->name, piece);
    if (c->words[KVL__STAGE_CHOOSE] != KVL__CHOOSE_NONE)
        return KVL__SPEC_FAIL(p, "%c.extra = %s: needs %c.choose = none, not %s", side, word, side,
                              kvl__word_of(c, KVL__STAGE_CHOOSE)->name);
    if (c->words[KVL__STAGE_SHIFT] != 0 && c->words[KVL__STAGE_SHIFT] != KVL__SHIFT_MEAN)
        return KVL__SPEC_FAIL(p, "%c.extra = %s: needs %c.shift = none or mean, not %s", side, word,
                              side, kvl__word_of(c, KVL__STAGE_SHIFT)->name);
    if (kvl__word_of(c, KVL__STAGE_META)->num_tables)
        return KVL__SPEC_FAIL(p, "%c.extra = %s: needs %c.meta without a base, not %s", side, word,
                              side, kvl__word_of(c, KVL__STAGE_META)->name);
    if (c->words[KVL__STAGE_FIT] == KVL__FIT_CLIP || kvl__has_feedback(c) || kvl__has_path(c))
        return KVL__SPEC_FAIL(p, "%c.extra = %s: needs a fit that does not clip and values rounded "
                              "one by one, not %s and %s", side, word,
                              kvl__word_of(c, KVL__STAGE_FIT)->name,
                              kvl__word_of(c, KVL__STAGE_ROUND)->name);
    return KVL_OK;
}

// What channels that have a level together ask of the other stages.
KVL__FN kvl_status kvl__check_plane(const kvl__parse* p, const kvl__codec* c, char side)
{
    const char* word = kvl__word_of(c, KVL__STAGE_LEVELS)->name;
    if (!kvl__has_plane(c)) return KVL_OK;
    if (c->words[KVL__STAGE_AXIS] != KVL__AXIS_PER_TOKEN)
        return KVL__SPEC_FAIL(p, "%c.levels = %s: needs %c.axis = per_token", side, word, side);
    if (c->group_size % 2 != 0)
        return KVL__SPEC_FAIL(p, "%cg%d: with %c.levels = %s the group size must be even", side,
                              c->group_size, side, word);
    return KVL_OK;
}

// What signs beside codes, and keys without codes, ask of the other stages.
KVL__FN kvl_status kvl__check_sketch(const kvl__parse* p, const kvl__codec* c, char side)
{
    static const int lone[] = { KVL__STAGE_SHIFT, KVL__STAGE_TRANSFORM, KVL__STAGE_CHOOSE };
    const char* word = kvl__word_of(c, KVL__STAGE_EXTRA)->name;
    if (kvl__has_no_codes(c) && !kvl__sketches(c))
        return KVL__SPEC_FAIL(p, "%c.levels = nothing: needs %c.extra = sketch or sketch_apart, "
                              "not %s", side, side, word);
    for (int i = 0; kvl__has_no_codes(c) && i < 3; ++i)
        if (c->words[lone[i]] != 0)
            return KVL__SPEC_FAIL(p, "%c.levels = nothing: needs %c.%s = none, not %s", side, side,
                                  kvl__stages[lone[i]].name, kvl__word_of(c, lone[i])->name);
    if (!kvl__sketches(c)) return KVL_OK;
    if (kvl__shifts_by_position(c))
        return KVL__SPEC_FAIL(p, "%c.extra = %s: needs %c.shift = none or mean, not %s", side, word,
                              side, kvl__word_of(c, KVL__STAGE_SHIFT)->name);
    if (c->head_dim > KVL__MAX_STORED_DIM)
        return KVL__SPEC_FAIL(p, "%c.extra = %s: head_dim = %d: must be at most %d", side, word,
                              c->head_dim, KVL__MAX_STORED_DIM);
    return KVL_OK;
}

// What norms of tokens, and channels with more bits, ask of the other stages.
KVL__FN kvl_status kvl__check_beside(const kvl__parse* p, const kvl__codec* c, char side)
{
    const char* word = kvl__word_of(c, KVL__STAGE_EXTRA)->name;
    if (!kvl__has_norms(c) && !kvl__promoted(c)) return KVL_OK;
    if (kvl__is_raw(c) || c->words[KVL__STAGE_AXIS] != KVL__AXIS_PER_CHANNEL)
        return KVL__SPEC_FAIL(p, "%c.extra = %s: needs %c.axis = per_channel", side, word, side);
    if (c->words[KVL__STAGE_CHOOSE] == KVL__CHOOSE_UNIT)
        return KVL__SPEC_FAIL(p, "%c.extra = %s: needs %c.choose = none or fixed, not unit", side,
                              word, side);
    if (kvl__has_norms(c) && kvl__word_of(c, KVL__STAGE_META)->num_tables)
        return KVL__SPEC_FAIL(p, "%c.extra = %s: needs %c.meta without a base, not %s", side, word,
                              side, kvl__word_of(c, KVL__STAGE_META)->name);
    if (!kvl__promoted(c)) return KVL_OK;
    if (c->words[KVL__STAGE_LEVELS] != KVL__LEVELS_AFFINE ||
        c->words[KVL__STAGE_FIT] != KVL__FIT_MINMAX ||
        c->words[KVL__STAGE_ROUND] != KVL__ROUND_NEAREST)
        return KVL__SPEC_FAIL(p, "%c.extra = %s: needs %c.levels = affine, %c.fit = minmax and "
                              "%c.round = nearest", side, word, side, side, side);
    if (kvl__promoted(c) >= c->head_dim || c->head_dim > KVL__MAX_STORED_DIM)
        return KVL__SPEC_FAIL(p, "%c.extra = %s%d: must be fewer than head_dim = %d, which must be "
                              "at most %d", side, word, kvl__promoted(c), c->head_dim,
                              KVL__MAX_STORED_DIM);
    return KVL_OK;
}

enum { KVL__MAX_LAYER_CHANNELS = 16384 };      // of keys that are stored across heads

// What a transform across heads asks of the other stages.
KVL__FN kvl_status kvl__check_across(const kvl__parse* p, const kvl__codec* c, char side)
{
    static const int lone[] = { KVL__STAGE_SHIFT, KVL__STAGE_CHOOSE, KVL__STAGE_EXTRA };
    const char* word = kvl__word_of(c, KVL__STAGE_TRANSFORM)->name;
    if (!kvl__is_across(c)) return KVL_OK;
    if (!kvl__is_unrotated(c))
        return KVL__SPEC_FAIL(p, "%c.transform = %s: needs %c.place = pre_rope: heads are mixed "
                              "before RoPE", side, word, side);
    for (int i = 0; i < 3; ++i)
        if (c->words[lone[i]] != 0)
            return KVL__SPEC_FAIL(p, "%c.transform = %s: needs %c.%s = none, not %s", side, word,
                                  side, kvl__stages[lone[i]].name,
                                  kvl__word_of(c, lone[i])->name);
    if (c->words[KVL__STAGE_AXIS] != KVL__AXIS_PER_TOKEN)
        return KVL__SPEC_FAIL(p, "%c.transform = %s: needs %c.axis = per_token", side, word, side);
    if (kvl__word_of(c, KVL__STAGE_META)->num_tables || kvl__has_book(c) || kvl__has_feedback(c))
        return KVL__SPEC_FAIL(p, "%c.transform = %s: needs %c.levels, %c.round and %c.meta that "
                              "read no tables of a head's channels", side, word, side, side, side);
    if (p->config->num_kv_heads * c->head_dim > KVL__MAX_LAYER_CHANNELS)
        return KVL__SPEC_FAIL(p, "%c.transform = %s: %d KV heads of %d channels: a layer must have "
                              "at most %d", side, word, p->config->num_kv_heads, c->head_dim,
                              KVL__MAX_LAYER_CHANNELS);
    return KVL_OK;
}

// What rows that are predicted ask of the other stages.
KVL__FN kvl_status kvl__check_predicted(const kvl__parse* p, const kvl__codec* c, char side)
{
    static const int lone[] = { KVL__STAGE_CHOOSE, KVL__STAGE_EXTRA };
    if (!kvl__is_predicted(c)) return KVL_OK;
    if (side == 'k' && !kvl__is_unrotated(c))
        return KVL__SPEC_FAIL(p, "k.shift = predicted: needs k.place = pre_rope, not %s",
                              kvl__word_of(c, KVL__STAGE_PLACE)->name);
    for (int i = 0; i < 2; ++i)
        if (c->words[lone[i]] != 0)
            return KVL__SPEC_FAIL(p, "%c.shift = predicted: needs %c.%s = none, not %s", side, side,
                                  kvl__stages[lone[i]].name, kvl__word_of(c, lone[i])->name);
    if (c->words[KVL__STAGE_AXIS] != KVL__AXIS_PER_TOKEN)
        return KVL__SPEC_FAIL(p, "%c.shift = predicted: needs %c.axis = per_token", side, side);
    if (p->config->num_kv_heads * c->head_dim > KVL__MAX_LAYER_CHANNELS)
        return KVL__SPEC_FAIL(p, "%c.shift = predicted: %d KV heads of %d channels: a layer must "
                              "have at most %d", side, p->config->num_kv_heads, c->head_dim,
                              KVL__MAX_LAYER_CHANNELS);
    return KVL_OK;
}

// Words that one side alone can have.
KVL__FN kvl_status kvl__check_sides(const kvl__parse* p, const kvl__codec* c, char side)
{
    for (int stage = 0; stage < KVL__NUM_STAGES; ++stage) {
        const kvl__word* word = kvl__word_of(c, stage);
        if (!(word->sides & (side == 'k' ? 1 : 2)))
            return KVL__SPEC_FAIL(p, "%c.%s = %s: is for %s alone", side, kvl__stages[stage].name,
                                  word->name, word->sides == 1 ? "keys" : "values");
    }
    return KVL_OK;
}

// Numbers that a word says the bounds of.
KVL__FN kvl_status kvl__check_numbers(const kvl__parse* p, kvl__codec* c, char side)
{
    for (int stage = 0; stage < KVL__NUM_STAGES; ++stage) {
        const kvl__word* word = kvl__word_of(c, stage);
        int32_t* number = &c->numbers[stage];
        if (word->number_most == 0) continue;
        if (*number == 0) *number = word->number_usual;
        if (*number < word->number_least || *number > word->number_most)
            return KVL__SPEC_FAIL(p, "%c.%s = %s%d: the number must be %d to %d", side,
                                  kvl__stages[stage].name, word->name, *number, word->number_least,
                                  word->number_most);
    }
    return KVL_OK;
}

KVL__FN kvl_status kvl__check_side(const kvl__parse* p, kvl__codec* c, char side)
{
    KVL__TRY(kvl__check_sides(p, c, side));
    KVL__TRY(kvl__check_folded(p, c, side));
    KVL__TRY(kvl__check_bits(p, c, side));
    if (kvl__is_raw(c)) {
        c->group_size = 0;
        c->words[KVL__STAGE_FIT] = KVL__FIT_NONE;
        c->numbers[KVL__STAGE_FIT] = 0;
        c->words[KVL__STAGE_META] = KVL__META_NONE;
        c->words[KVL__STAGE_AXIS] = KVL__AXIS_PER_TOKEN;
        c->words[KVL__STAGE_ROUND] = KVL__ROUND_NEAREST;
        c->numbers[KVL__STAGE_ROUND] = 0;
    } else {
        KVL__TRY(kvl__check_words(p, c, side));
        KVL__TRY(kvl__check_group(p, c, side));
    }
    if (c->words[KVL__STAGE_CHOOSE] == KVL__CHOOSE_NONE)       // nothing is scored
        c->words[KVL__STAGE_SCORE] = c->numbers[KVL__STAGE_SCORE] = 0;
    KVL__TRY(kvl__check_numbers(p, c, side));
    for (int stage = 0; stage < KVL__NUM_STAGES; ++stage)
        KVL__TRY(kvl__check_number(p, c, stage, side));
    KVL__TRY(kvl__check_position(p, c, side));
    KVL__TRY(kvl__check_path(p, c, side));
    KVL__TRY(kvl__check_slots(p, c, side));
    KVL__TRY(kvl__check_widths(p, c, side));
    KVL__TRY(kvl__check_split(p, c, side));
    KVL__TRY(kvl__check_plane(p, c, side));
    KVL__TRY(kvl__check_sketch(p, c, side));
    KVL__TRY(kvl__check_across(p, c, side));
    KVL__TRY(kvl__check_predicted(p, c, side));
    KVL__TRY(kvl__check_beside(p, c, side));
    return c->words[KVL__STAGE_CHOOSE] == KVL__CHOOSE_NONE ? KVL_OK
                                                           : kvl__check_choice(p, c, side);
}

// Chunk and page follow from the groups that run along tokens, unless they are given.
KVL__FN kvl_status kvl__check_windows(const kvl__parse* p, kvl__config* c)
{
    int32_t along = 1;
    for (int side = 0; side < 2; ++side) along = kvl__lcm(along, kvl__unit_along(&c->side[side]));
    if (along > KVL__MAX_PAGE)
        return KVL__SPEC_FAIL(p, "kg%d, vg%d: groups along tokens need chunks of %d rows, at most "
                              "%d", c->side[0].group_size, c->side[1].group_size, along,
                              KVL__MAX_PAGE);
    if (c->chunk_len == 0) c->chunk_len = along;
    if (c->chunk_len % along != 0)
        return KVL__SPEC_FAIL(p, "chunk = %d: must be a multiple of %d, the groups along tokens",
                              c->chunk_len, along);
    const int32_t unit = kvl__lcm(16, c->chunk_len);       // 16: tokens of a tile
    if (unit > KVL__MAX_PAGE)
        return KVL__SPEC_FAIL(p, "chunk = %d: pages would have %d tokens, the least multiple of 16 "
                              "and the chunk, at most %d can be", c->chunk_len, unit,
                              KVL__MAX_PAGE);
    if (c->page_size == 0) c->page_size = (63 + unit) / unit * unit;
    if (c->page_size % unit != 0)
        return KVL__SPEC_FAIL(p, "page = %d: must be a multiple of %d (16 and the chunk)",
                              c->page_size, unit);
    return KVL_OK;
}

KVL__FN kvl_status kvl__check_head_dim(const kvl__parse* p, const char* name, int dim, int most)
{
    KVL__REQUIRE(p->ctx, dim >= 32 && dim <= most && dim % 16 == 0, KVL_BAD_ARGUMENT,
                 "%s%s = %d: must be 32 to %d in steps of 16", p->where, name, dim, most);
    return KVL_OK;
}

// Numbers of the query heads: finite, or also -inf where that means something.
KVL__FN kvl_status kvl__check_heads(const kvl__parse* p, const char* name, const float* numbers,
                                    int num, int may_be_absent)
{
    for (int i = 0; numbers && i < num; ++i)
        KVL__REQUIRE(p->ctx, kvl__is_finite(numbers[i]) ||
                     (may_be_absent && numbers[i] == -INFINITY), KVL_BAD_ARGUMENT,
                     "%s%s[%d] = %g: must be finite%s", p->where, name, i, (double)numbers[i],
                     may_be_absent ? ", or -inf for none" : "");
    return KVL_OK;
}

KVL__FN kvl_status kvl__check_layer(const kvl__parse* p, const kvl_layer_desc* l)
{
    KVL__REQUIRE(p->ctx, l->num_kv_heads > 0 && l->num_kv_heads <= 1024, KVL_BAD_ARGUMENT,
                 "%snum_kv_heads = %d: must be 1 to 1024", p->where, l->num_kv_heads);
    KVL__REQUIRE(p->ctx, l->num_q_heads > 0 && l->num_q_heads % l->num_kv_heads == 0 &&
                 l->num_q_heads / l->num_kv_heads <= 16, KVL_BAD_ARGUMENT,
                 "%snum_q_heads = %d: must be 1 to 16 times num_kv_heads = %d", p->where,
                 l->num_q_heads, l->num_kv_heads);
    KVL__REQUIRE(p->ctx, l->values_in_keys == 0 || l->values_in_keys == 1, KVL_BAD_ARGUMENT,
                 "%svalues_in_keys = %d: must be 0 or 1", p->where, l->values_in_keys);
    const int most = l->values_in_keys ? KVL__MAX_HEAD_DIM : KVL__MAX_STORED_DIM;
    KVL__TRY(kvl__check_head_dim(p, "head_dim", l->head_dim, most));
    if (l->head_dim_v)
        KVL__TRY(kvl__check_head_dim(p, "head_dim_v", l->head_dim_v,
                                     l->values_in_keys ? l->head_dim : most));
    KVL__REQUIRE(p->ctx, kvl__is_finite(l->softmax_scale) && l->softmax_scale >= 0,
                 KVL_BAD_ARGUMENT, "%ssoftmax_scale = %g: must be finite and not negative",
                 p->where, (double)l->softmax_scale);
    KVL__REQUIRE(p->ctx, kvl__is_finite(l->soft_cap) && l->soft_cap >= 0, KVL_BAD_ARGUMENT,
                 "%ssoft_cap = %g: must be finite and not negative", p->where,
                 (double)l->soft_cap);
    KVL__REQUIRE(p->ctx, l->window_len >= 0, KVL_BAD_ARGUMENT,
                 "%swindow_len = %d: must not be negative", p->where, l->window_len);
    KVL__TRY(kvl__check_heads(p, "sink_logits", l->sink_logits, l->num_q_heads, 1));
    return kvl__check_heads(p, "alibi_slopes", l->alibi_slopes, l->num_q_heads, 0);
}

// Values are read out of the keys: by the keys' codec, whatever the preset has for values.
KVL__FN kvl_status kvl__values_in_keys(const kvl__parse* p, kvl__config* config)
{
    const char* item = strstr(p->seen, ",v");
    if (item)
        return KVL__SPEC_FAIL(p, "'%.*s': is for values, which are in the keys (values_in_keys)",
                              (int)strcspn(item + 1, ","), item + 1);
    if (kvl__is_by_position(&config->side[0]))
        return KVL__SPEC_FAIL(p, "k.%s = %s: values that are in the keys (values_in_keys) would "
                              "be %s with them", kvl__position_stage(&config->side[0]),
                              kvl__position_word(&config->side[0]),
                              kvl__is_unrotated(&config->side[0]) ? "turned" : "shifted");
    if (kvl__is_restored(&config->side[0]) || kvl__sketches(&config->side[0]) ||
        kvl__has_norms(&config->side[0]) || kvl__is_split(&config->side[0]))
        return KVL__SPEC_FAIL(p, "k.extra = %s, k.levels = %s: values that are in the keys "
                              "(values_in_keys) need codes that queries meet",
                              kvl__word_of(&config->side[0], KVL__STAGE_EXTRA)->name,
                              kvl__word_of(&config->side[0], KVL__STAGE_LEVELS)->name);
    if (config->side[0].words[KVL__STAGE_CHOOSE] != KVL__CHOOSE_NONE)
        return KVL__SPEC_FAIL(p, "k.choose = %s: values that are in the keys (values_in_keys) need "
                              "one basis of all keys",
                              kvl__word_of(&config->side[0], KVL__STAGE_CHOOSE)->name);
    config->side[1] = config->side[0];
    return KVL_OK;
}

// Sets *config from a layer with heads.  `layer` is its index for messages; -1: none.  Bits may be
// left to a calibration: kvl_record.h makes a whole one.
KVL__FN kvl_status kvl__config_parse(kvl_context* ctx, int layer, const kvl_layer_desc* desc,
                                      const char* spec, kvl__config* config)
{
    kvl__parse p;
    memset(config, 0, sizeof *config);
    memset(&p, 0, sizeof p);
    p.ctx = ctx;
    p.config = config;
    p.spec = desc->spec ? desc->spec : spec ? spec : kvl__default_spec;
    if (layer >= 0) snprintf(p.where, sizeof p.where, "layer %d: ", layer);
    KVL__TRY(kvl__check_layer(&p, desc));
    config->num_kv_heads = desc->num_kv_heads;
    config->num_heads = desc->num_q_heads / desc->num_kv_heads;
    KVL__TRY(kvl__parse_text(&p));
    config->side[0].head_dim = desc->head_dim;
    config->value_dim = desc->head_dim_v ? desc->head_dim_v : desc->head_dim;
    config->side[1].head_dim = config->value_dim;
    config->num_stored = desc->values_in_keys ? 1 : 2;
    KVL__TRY(kvl__check_side(&p, &config->side[0], 'k'));
    if (desc->values_in_keys) KVL__TRY(kvl__values_in_keys(&p, config));
    else KVL__TRY(kvl__check_side(&p, &config->side[1], 'v'));
    if (kvl__is_predicted(&config->side[0]) != kvl__is_predicted(&config->side[1]))
        return KVL__SPEC_FAIL(&p, "k.shift = %s, v.shift = %s: predicted goes with predicted",
                              kvl__word_of(&config->side[0], KVL__STAGE_SHIFT)->name,
                              kvl__word_of(&config->side[1], KVL__STAGE_SHIFT)->name);
    if (config->auto_bits) KVL__TRY(kvl__check_auto_bits(&p, config));
    return kvl__check_windows(&p, config);
}

KVL__FN void kvl__canonical_side(const kvl__config* config, int side, char* text, size_t size)
{
    const kvl__codec* c = &config->side[side];
    const kvl__preset_side* from = &kvl__presets[c->preset].side[side];
    const char name = side ? 'v' : 'k';
    if (!config->auto_bits && (!kvl__is_raw(c) || c->bits != from->bits))
        kvl__append_text(text, size, ",%c%d", name, c->bits);
    if (c->group_size) kvl__append_text(text, size, ",%cg%d", name, c->group_size);
    for (int stage = 0; stage < KVL__NUM_STAGES; ++stage) {
        if (c->words[stage] == from->words[stage] && c->numbers[stage] == from->numbers[stage])
            continue;
        kvl__append_text(text, size, ",%c.%s=%s", name, kvl__stages[stage].name,
                         kvl__word_of(c, stage)->name);
        if (c->numbers[stage]) kvl__append_text(text, size, "%d", c->numbers[stage]);
    }
}

// The spec that parses to this config, with what was derived written out.
KVL__FN void kvl__canonical_spec(const kvl__config* c, char* text, size_t size)
{
    const char* k = kvl__presets[c->side[0].preset].name;
    const char* v = kvl__presets[c->side[1].preset].name;
    char items[KVL__SPEC_BYTES] = "";
    if (c->auto_bits) {
        kvl__append_text(items, sizeof items, ",bits=auto:");
        kvl__append_thousands(items, sizeof items, c->auto_bits);
    }
    kvl__canonical_side(c, 0, items, sizeof items);
    if (c->num_stored == 2) kvl__canonical_side(c, 1, items, sizeof items);
    kvl__append_text(items, sizeof items, ",sink=%d,recent=%d,chunk=%d,page=%d,rows=%s",
                     c->sink_len, c->recent_len, c->chunk_len, c->page_size,
                     c->side[0].rows ? "bf16" : "f16");
    if (c->kept_len || kvl__presets[c->side[0].preset].kept_len ||
        kvl__presets[c->side[1].preset].kept_len)
        kvl__append_text(items, sizeof items, ",kept=%d", c->kept_len);
    *text = 0;
    kvl__append_text(text, size, "%s%s%s:%s", k, c->side[0].preset == c->side[1].preset ? "" : "/",
                     c->side[0].preset == c->side[1].preset ? "" : v, items + 1);
}

KVL__PUBLIC const char* kvl_spec_help(void) { return kvl__spec_help_text; }

#endif
