// cache_specs.c -- the spec of each layer from a list of arguments.

#include "cache_specs.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Text that must fit: `full` is set when it does not, and stays set.
typedef struct spec_text {
    char data[CACHE_SPEC_BYTES];
    size_t bytes;
    int full;
} spec_text;

static void add(spec_text* text, const char* data, size_t bytes)
{
    if (bytes >= sizeof text->data - text->bytes) {
        text->full = 1;
        return;
    }
    memcpy(text->data + text->bytes, data, bytes);
    text->bytes += bytes;
    text->data[text->bytes] = 0;
}

// One argument, taken apart.
typedef struct cache_arg {
    const char* whole;
    int first, last;   // layers
    char side;         // 'k', 'v', or 0: both
    const char* spec;
} cache_arg;

typedef struct spec_report {
    char* text;
    size_t bytes;
} spec_report;

static int fail(const spec_report* report, const char* format, ...)
{
    va_list args;
    va_start(args, format);
    if (report->bytes > 0) { vsnprintf(report->text, report->bytes, format, args); }
    va_end(args);
    return 1;
}

static int is_digit(char c) { return c >= '0' && c <= '9'; }

// Reads a layer number off *at.
static int read_layer(const char** at)
{
    int value = 0;
    for (; is_digit(**at); ++*at) {
        if (value < 100000) { value = 10 * value + (**at - '0'); }
    }
    return value;
}

// A preset begins with a letter, so an argument that begins with a digit begins with layers.
static int take_apart(const char* whole, int num_layers, cache_arg* arg, const spec_report* report)
{
    const char* at = whole;
    *arg = (cache_arg){ .whole = whole, .last = num_layers - 1 };
    if (is_digit(*at)) {
        arg->first = arg->last = read_layer(&at);
        if (*at == '-' && is_digit(at[1])) {
            at++;
            arg->last = read_layer(&at);
        }
        if (*at != ':') {
            return fail(report, "cache '%s': layers must be N:SPEC or N-M:SPEC", whole);
        }
        if (arg->first > arg->last) {
            return fail(report, "cache '%s': layers %d-%d: the first must not be after the last",
                        whole, arg->first, arg->last);
        }
        if (arg->last >= num_layers) {
            return fail(report, "cache '%s': layer %d: the model has layers 0 to %d", whole,
                        arg->last, num_layers - 1);
        }
        at++;
    }
    if ((at[0] == 'k' || at[0] == 'v') && at[1] == '=') {
        arg->side = at[0];
        at += 2;
    }
    arg->spec = at;
    if (*at == 0) { return fail(report, "cache '%s': must name a preset", whole); }
    return 0;
}

// Whether an item is a window, or another word that concerns the layer and no side of it.
static int is_of_layer(const char* item, size_t bytes)
{
    static const char* const words[] = { "sink=", "recent=", "kept=", "chunk=", "page=", "rows=" };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        const size_t n = strlen(words[i]);
        if (bytes >= n && memcmp(item, words[i], n) == 0) { return 1; }
    }
    return 0;
}

// The side that an item names: "k2", "kg64" and "k.stage=word" are of the keys, 0: both.
static char side_of(const char* item, size_t bytes)
{
    if (bytes < 2 || (item[0] != 'k' && item[0] != 'v')) { return 0; }
    const int named = is_digit(item[1]) || item[1] == '.' ||
                      (item[1] == 'g' && bytes > 2 && is_digit(item[2]));
    return named ? item[0] : 0;
}

// Adds the items of one side of a spec, in words that leave the other side alone.
static void add_side_items(spec_text* out, const char* spec, char side)
{
    const char* item = strchr(spec, ':');
    while (item != NULL) {
        item++;
        const char* comma = strchr(item, ',');
        const size_t bytes = comma != NULL ? (size_t)(comma - item) : strlen(item);
        const char of = side_of(item, bytes);
        if (!is_of_layer(item, bytes) && (of == 0 || of == side)) {
            const int is_bits = item[0] == 'b' && bytes > 1 && is_digit(item[1]);
            const int is_group = item[0] == 'g' && bytes > 1 && is_digit(item[1]);
            add(out, ",", 1);
            if (of == 0) { add(out, &side, 1); }
            if (of == 0 && !is_bits && !is_group) { add(out, ".", 1); }
            add(out, item + is_bits, bytes - (size_t)is_bits);
        }
        item = comma;
    }
}

// Adds the items of the layer that `winner` (can be NULL) does not give as well.
static void add_layer_items(spec_text* out, const char* spec, const char* winner)
{
    const char* item = strchr(spec, ':');
    while (item != NULL) {
        item++;
        const char* comma = strchr(item, ',');
        const size_t bytes = comma != NULL ? (size_t)(comma - item) : strlen(item);
        if (is_of_layer(item, bytes)) {
            char word[16] = "";
            const size_t n = (size_t)(strchr(item, '=') - item) + 1;
            memcpy(word, item, n);
            if (winner == NULL || strstr(winner, word) == NULL) {
                add(out, ",", 1);
                add(out, item, bytes);
            }
        }
        item = comma;
    }
}

// The preset of a side: of "a/b:items", a for keys and b for values.
static void add_preset(spec_text* out, const char* spec, char side)
{
    const size_t end = strcspn(spec, ":");
    const char* slash = memchr(spec, '/', end);
    if (slash == NULL) {
        add(out, spec, end);
    } else if (side == 'k') {
        add(out, spec, (size_t)(slash - spec));
    } else {
        add(out, slash + 1, end - (size_t)(slash - spec) - 1);
    }
}

static void join_sides(spec_text* out, const char* keys, const char* values, char winner)
{
    spec_text items = { .bytes = 0 };
    add_preset(out, keys, 'k');
    add(out, "/", 1);
    add_preset(out, values, 'v');
    add_side_items(&items, keys, 'k');
    add_side_items(&items, values, 'v');
    add_layer_items(&items, keys, winner == 'v' ? values : NULL);
    add_layer_items(&items, values, winner == 'k' ? keys : NULL);
    if (items.bytes > 0) {
        add(out, ":", 1);
        add(out, items.data + 1, items.bytes - 1);  // without the first comma
    }
    out->full |= items.full;
}

static int apply(const cache_arg* arg, cache_specs* out, const spec_report* report)
{
    for (int layer = arg->first; layer <= arg->last; layer++) {
        spec_text text = { .bytes = 0 };
        const char* before = out->text[layer];
        if (arg->side == 0) {
            add(&text, arg->spec, strlen(arg->spec));
        } else if (arg->side == 'k') {
            join_sides(&text, arg->spec, before, 'k');
        } else {
            join_sides(&text, before, arg->spec, 'v');
        }
        if (text.full) {
            return fail(report, "cache '%.100s': the spec of layer %d would take more than %d "
                        "bytes", arg->whole, layer, CACHE_SPEC_BYTES - 1);
        }
        memcpy(out->text[layer], text.data, text.bytes + 1);
    }
    return 0;
}

int cache_specs_create(const char* const* args, int num_args, int num_layers, cache_specs* out,
                       char* message, size_t message_bytes)
{
    const spec_report report = { message, message_bytes };
    *out = (cache_specs){ .num_layers = num_layers };
    out->text = calloc((size_t)num_layers, sizeof *out->text);
    out->specs = calloc((size_t)num_layers, sizeof *out->specs);
    int failed = out->text == NULL || out->specs == NULL;
    if (failed) { fail(&report, "out of memory"); }
    for (int layer = 0; !failed && layer < num_layers; layer++) {
        memcpy(out->text[layer], "f16", 4);
        out->specs[layer] = out->text[layer];
    }
    for (int i = 0; !failed && i < num_args; i++) {
        cache_arg arg;
        failed = take_apart(args[i], num_layers, &arg, &report) || apply(&arg, out, &report);
    }
    if (failed) { cache_specs_free(out); }
    return failed;
}

void cache_specs_free(cache_specs* specs)
{
    free(specs->text);
    free(specs->specs);
    *specs = (cache_specs){ .num_layers = 0 };
}
