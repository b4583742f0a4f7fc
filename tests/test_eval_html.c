// test_eval_html.c -- the HTML report: what it says, that it is well formed, that it loads nothing.
//
// Results are built by hand. The checker below knows as much of HTML as the report uses: every
// element is closed, but for meta and wbr, and every attribute's value stands in double quotes.

#include "eval_html.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <criterion/criterion.h>

#ifndef KVLOOM_TEST_SCRATCH
#define KVLOOM_TEST_SCRATCH "/tmp"
#endif

// RESULTS

enum { LAYERS = 2, HEADS = 3, POSITIONS = 90, WINDOWS = 2, CACHES = 4, TOKENS = 40 };

typedef struct sample {
    eval_results results;
    eval_cache caches[CACHES];
    eval_window windows[CACHES][WINDOWS];
    float kl[CACHES][POSITIONS];
    eval_layer layers[LAYERS];
    double score_error[HEADS], output_error[HEADS];
    eval_generation generation;
    int32_t ids[TOKENS];
    float generation_kl[TOKENS];
} sample;

static void fill_cache(sample* s, int i, char* spec, double bits, double kl)
{
    eval_cache* c = &s->caches[i];
    *c = (eval_cache){ .cache = spec, .canonical = spec, .description = spec, .num_done = WINDOWS,
                       .windows = s->windows[i], .kl = kl, .kl_se = kl / 10,
                       .kl_median = kl / 2, .kl_p99 = kl * 9, .top1 = 0.875, .perplexity = 12.5,
                       .perplexity_diff = 0.25, .perplexity_diff_se = 0.125, .bits_key = bits,
                       .bits_value = bits, .bits_body = bits, .bits_total = bits,
                       .compression = 16 / bits, .cache_bytes = 3 * 1048576,
                       .bytes_per_token = 1536, .tokens_per_second = 41.25 };
    for (int p = 0; p < POSITIONS; p++) s->kl[i][p] = (float)(kl * (1 + p % 7));
    for (int w = 0; w < WINDOWS; w++) {
        s->windows[i][w] = (eval_window){ .done = true, .kl = s->kl[i] };
    }
}

// Two caches that differ from the base, one that does not, and one that could not be run.
static sample* make_sample(void)
{
    sample* s = calloc(1, sizeof *s);
    cr_assert(s != NULL);
    s->results = (eval_results){
        .version = "1.2.3", .command = "kvloom-eval -m 'a&b.gguf' --cache <x>",
        .model = "models/a&b.gguf", .model_name = "Tiny <b>\"one\"</b>", .architecture = "llama",
        .model_fingerprint = "f00d", .text = "texts/it's.txt", .text_sha256 = "5ca1ab1e",
        .text_tokens = 4096, .vocab_size = 259, .num_layers = LAYERS, .threads = 2, .seed = 7,
        .target = "host", .date = "2031-02-03T04:05:06Z", .context = 128, .skip = 37,
        .num_positions = POSITIONS, .num_windows = WINDOWS, .num_windows_asked = WINDOWS,
        .base_perplexity = 12.25, .num_caches = CACHES, .caches = s->caches };
    s->results.base = (eval_cache){ .cache = "f16", .canonical = "f16", .description = "f16",
                                    .num_done = WINDOWS, .kl = NAN, .kl_se = NAN,
                                    .kl_median = NAN, .kl_p99 = NAN, .top1 = NAN, .bits_key = 16,
                                    .bits_value = 16, .bits_body = 16, .bits_total = 16 };
    fill_cache(s, 0, "four:k4,v4", 4.5, 0.0125);
    fill_cache(s, 1, "<two>&\"'\xff:k2,v2", 2.5, 0.25);
    fill_cache(s, 2, "same", 16, 0);
    s->caches[3] = (eval_cache){ .cache = "bad", .error = "k = 9: must be <= 8" };
    for (int l = 0; l < LAYERS; l++) {
        s->layers[l] = (eval_layer){ HEADS, s->score_error, s->output_error };
    }
    for (int h = 0; h < HEADS; h++) {
        s->score_error[h] = 0.125 * (h + 1);
        s->output_error[h] = 0.25 * (h + 1);
    }
    s->caches[1].num_layers = LAYERS;
    s->caches[1].layers = s->layers;
    return s;
}

// Adds what only some runs have: needles, generations, speeds, worst tokens.
static void add_extras(sample* s)
{
    eval_cache* c = &s->caches[1];
    c->needle = (eval_needle){ .num_lengths = 1, .lengths = { 512 }, .trials = 4 };
    for (int d = 0; d < EVAL_DEPTHS; d++) c->needle.hits[0][d] = d % 5;
    s->generation = (eval_generation){ .num_tokens = TOKENS, .ids = s->ids,
                                       .first_divergence = 17, .kl = s->generation_kl };
    for (int t = 0; t < TOKENS; t++) s->generation_kl[t] = (float)t / 100;
    c->num_generations = 1;
    c->generations = &s->generation;
    c->num_speeds = 1;
    c->speeds[0] = (eval_speed){ 4096, 33.5 };
    c->num_worst = 1;
    c->worst[0] = (eval_worst){ .window = 1, .position = 99, .kl = 3.25, .target = 5,
                                .target_text = "\xe2\x82", .before = "\x82 a </script>\n<i>\x01" };
    for (int i = 0; i < EVAL_TOP; i++) {
        c->worst[0].base[i] = (eval_candidate){ i, 0.5 / (i + 1), " x<" };
        c->worst[0].cache[i] = (eval_candidate){ 9 - i, 0.25 / (i + 1), "]]>-->" };
    }
}

static const char* scratch(const char* name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/eval_html-%ld-%s", KVLOOM_TEST_SCRATCH, (long)getpid(), name);
    return path;
}

static char* read_text(const char* path)
{
    FILE* file = fopen(path, "rb");
    cr_assert(file != NULL, "%s", path);
    cr_assert_eq(fseek(file, 0, SEEK_END), 0);
    const long size = ftell(file);
    rewind(file);
    char* text = calloc((size_t)size + 1, 1);
    cr_assert(text != NULL);
    cr_assert_eq(fread(text, 1, (size_t)size, file), (size_t)size);
    cr_assert_eq(strlen(text), (size_t)size, "a NUL in the page");
    fclose(file);
    return text;
}

// Writes a page and reads it back.
static char* page_of(const eval_results* results)
{
    char message[256] = "old";
    const char* path = scratch("page.html");
    cr_assert_eq(eval_html_write(results, path, message, sizeof message), 0, "%s", message);
    cr_expect_str_eq(message, "");
    char* text = read_text(path);
    unlink(path);
    return text;
}

// THE CHECKER

enum { MAX_DEPTH = 64, MAX_TAG = 32 };

typedef struct checker {
    char open[MAX_DEPTH][MAX_TAG];
    int depth;
    char error[160];
} checker;

static bool lost(checker* c, const char* what, const char* at)
{
    snprintf(c->error, sizeof c->error, "%s: %.60s", what, at);
    return false;
}

// A word that begins at p and is not the part of another one.
static bool is_word(const char* value, const char* p, size_t length)
{
    const char* const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    return (p == value || strchr(letters, p[-1]) == NULL) &&
           (p[length] == '\0' || strchr(letters, p[length]) == NULL);
}

static bool check_value(checker* c, const char* name, const char* value)
{
    static const char* const odd[] = { "nan", "inf" };
    for (size_t i = 0; i < 2; i++) {
        for (const char* p = strstr(value, odd[i]); p != NULL; p = strstr(p + 1, odd[i])) {
            if (is_word(value, p, strlen(odd[i]))) return lost(c, "not a number", value);
        }
    }
    if (strcmp(name, "src") == 0 || strcmp(name, "href") == 0) return lost(c, "a link", value);
    if (strstr(value, "url(") != NULL) return lost(c, "a link", value);
    return strchr(value, '<') == NULL || lost(c, "a bare <", value);
}

// From behind a tag's name to its '>'; returns NULL after an error. closed: it ends in "/>".
static const char* check_attributes(checker* c, const char* p, bool* closed)
{
    static char value[4096];
    *closed = false;
    for (;;) {
        p += strspn(p, " \n");
        if (*p == '>') return p + 1;
        if (strncmp(p, "/>", 2) == 0) {
            *closed = true;
            return p + 2;
        }
        char name[MAX_TAG];
        const size_t length = strcspn(p, "=> \"\n");
        if (length == 0 || length >= sizeof name || strncmp(p + length, "=\"", 2) != 0) {
            lost(c, "an attribute without a value", p);
            return NULL;
        }
        memcpy(name, p, length);
        name[length] = '\0';
        p += length + 2;
        const size_t size = strcspn(p, "\"");
        if (size >= sizeof value) {
            lost(c, "a long value", p);
            return NULL;
        }
        memcpy(value, p, size);
        value[size] = '\0';
        if (!check_value(c, name, value)) return NULL;
        p += size + 1;
    }
}

// An '&' begins an entity of the report: the page has no bare one.
static bool check_entity(checker* c, const char* p)
{
    static const char* const known[] = { "&amp;", "&lt;", "&gt;", "&quot;" };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strncmp(p, known[i], strlen(known[i])) == 0) return true;
    }
    const size_t digits = strspn(p + 1, "#0123456789");
    return (p[1] == '#' && digits > 1 && p[1 + digits] == ';') || lost(c, "a bare &", p);
}

// Handles the tag at p; returns what is behind it, or NULL.
static const char* check_tag(checker* c, const char* p)
{
    char name[MAX_TAG];
    const bool closing = p[1] == '/';
    const char* from = p + 1 + closing;
    const size_t length = strspn(from, "abcdefghijklmnopqrstuvwxyz0123456789");
    bool closed;
    if (length == 0 || length >= sizeof name) {
        lost(c, "not a tag", p);
        return NULL;
    }
    memcpy(name, from, length);
    name[length] = '\0';
    const char* next = check_attributes(c, from + length, &closed);
    if (next == NULL) return NULL;
    if (closing) {
        if (c->depth == 0 || strcmp(c->open[c->depth - 1], name) != 0) {
            lost(c, c->depth == 0 ? "nothing is open" : c->open[c->depth - 1], p);
            return NULL;
        }
        c->depth--;
        return next;
    }
    if (closed || strcmp(name, "meta") == 0 || strcmp(name, "wbr") == 0) return next;
    if (c->depth == MAX_DEPTH) {
        lost(c, "too deep", p);
        return NULL;
    }
    memcpy(c->open[c->depth++], name, sizeof name);
    // Text of these two is not markup.
    if (strcmp(name, "style") == 0) next = strstr(next, "</style>");
    if (strcmp(name, "script") == 0) next = strstr(next, "</script>");
    return next;
}

static bool well_formed(checker* c, const char* text)
{
    static const char opening[] = "<!DOCTYPE html>\n";
    *c = (checker){ .depth = 0 };
    if (strncmp(text, opening, strlen(opening)) != 0) return lost(c, "no DOCTYPE", text);
    const char* p = text + strlen(opening);
    while (p != NULL && *p != '\0') {
        if (*p == '<') p = check_tag(c, p);
        else if (*p == '&' && !check_entity(c, p)) return false;
        else p++;
    }
    return p != NULL && (c->depth == 0 || lost(c, "not closed", c->open[c->depth - 1]));
}

static void expect_well_formed(const char* text)
{
    checker c;
    cr_expect(well_formed(&c, text), "%s", c.error);
    cr_expect(strstr(text, "http") == NULL && strstr(text, "src=") == NULL &&
              strstr(text, "@import") == NULL && strstr(text, "url(") == NULL);
}

static int count_of(const char* text, const char* what)
{
    int count = 0;
    for (const char* p = strstr(text, what); p != NULL; p = strstr(p + 1, what)) count++;
    return count;
}

#define EXPECT_HAS(text, what) cr_expect(strstr(text, what) != NULL, "missing: %s", what)
#define EXPECT_NOT(text, what) cr_expect(strstr(text, what) == NULL, "present: %s", what)

// TESTS

// Breaks when the checker takes anything for a page: then the other tests say nothing.
Test(eval_html, checker)
{
    static const char* const bad[] = {
        "<p><b></p></b>", "<p>", "</p>", "<p a=b></p>", "<p a></p>", "<p>a & b</p>", "<p>a < b</p>",
        "<p a=\"1,nan\"></p>", "<p a=\"-inf\"></p>", "<a href=\"x\"></a>", "<p a=\"<\"></p>"
    };
    checker c;
    char text[128];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(text, sizeof text, "<!DOCTYPE html>\n%s", bad[i]);
        cr_expect_not(well_formed(&c, text), "%s", bad[i]);
    }
    cr_expect(well_formed(&c, "<!DOCTYPE html>\n<p a=\"information\">&#8211;<wbr><b/></p>"), "%s",
              c.error);
}

// Breaks when a part of a full report is lost, or is not HTML.
Test(eval_html, full)
{
    sample* s = make_sample();
    add_extras(s);
    char* text = page_of(&s->results);
    expect_well_formed(text);
    static const char* const parts[] = {
        "<h2>Results</h2>", "<h2>KL against bits</h2>", "<h2>Decoding speed</h2>",
        "<h2>KL by position</h2>", "<h2>Error by layer and head</h2>", "<h2>Needles</h2>",
        "<h2>Long generations</h2>", "<h2>Worst tokens</h2>", "<h2>Configuration</h2>",
        "5ca1ab1e", "1.2.3", "12.250", "layer 1, head 2: 0.750", "depth 30 %: 3 of 4",
        "k = 9: must be &lt;= 8", "KL is 0 everywhere: 3 same.", "prefers-color-scheme:dark",
        ">17</td>", ">33.5</td>", "KL 3.25"
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) EXPECT_HAS(text, parts[i]);
    EXPECT_NOT(text, "2031");
    // Two of each line plot, scale, two maps, needles.
    cr_expect_eq(count_of(text, "<svg"), 2 + 2 + 1 + 2 + 1 + 2);
    free(text);
    free(s);
}

// Breaks when text of the model, of a spec or of a token becomes markup, or invalid UTF-8.
Test(eval_html, escaping)
{
    sample* s = make_sample();
    add_extras(s);
    char* text = page_of(&s->results);
    EXPECT_HAS(text, "Tiny &lt;b&gt;&quot;one&quot;&lt;/b&gt;");
    EXPECT_HAS(text, "&lt;two&gt;&amp;&quot;&#39;&#65533;");
    EXPECT_HAS(text, "kvloom-eval -m &#39;a&amp;b.gguf&#39; --cache &lt;x&gt;");
    EXPECT_HAS(text, "it&#39;s.txt");
    // Of the text before: a cut character is dropped, and what shows nothing has a name.
    EXPECT_HAS(text, "<bdi> a &lt;/script&gt;<span class=\"byte\">&#8629;</span>&lt;i&gt;"
                     "<span class=\"byte\">\\u0001</span></bdi>");
    EXPECT_HAS(text, "<span class=\"byte\">\\xe2</span><span class=\"byte\">\\x82</span>");
    EXPECT_HAS(text, "<span class=\"byte\">&#9251;</span>x&lt;</code>");
    EXPECT_HAS(text, "]]&gt;--&gt;");
    EXPECT_NOT(text, "<two>");
    for (const char* p = text; *p != '\0'; p++) {
        cr_assert((*p >= 0x20 && *p < 0x7f) || *p == '\n', "byte %d", *p);
    }
    cr_expect_eq(count_of(text, "</script>"), 1);
    free(text);
    free(s);
}

// Breaks when what was not measured leaves an empty plot or a heading without a body.
Test(eval_html, missing_parts)
{
    sample* s = make_sample();
    s->caches[1].num_layers = 0;
    s->results.num_caches = 1;
    char* text = page_of(&s->results);
    expect_well_formed(text);
    cr_expect_eq(count_of(text, "<svg"), 4);
    EXPECT_NOT(text, "Needles");
    EXPECT_NOT(text, "Long generations");
    EXPECT_NOT(text, "Worst tokens");
    EXPECT_NOT(text, "Error by layer");
    EXPECT_NOT(text, "Decoding speed");
    free(text);

    s->results.num_caches = 0;
    text = page_of(&s->results);
    expect_well_formed(text);
    EXPECT_NOT(text, "<svg");
    EXPECT_NOT(text, "KL by position");
    EXPECT_NOT(text, "KL against bits");
    free(text);
    free(s);
}

// Breaks when 0 goes to a logarithm: the only cache is exact.
Test(eval_html, exact_cache)
{
    sample* s = make_sample();
    s->results.num_caches = 1;
    s->results.caches = &s->caches[2];
    char* text = page_of(&s->results);
    expect_well_formed(text);
    EXPECT_NOT(text, "<svg");
    EXPECT_HAS(text, "KL is 0 everywhere: 1 same.");
    free(text);
    free(s);
}

// Breaks when a number that is none reaches an attribute, whatever was measured.
Test(eval_html, odd_numbers)
{
    const double odd[] = { NAN, INFINITY, -INFINITY, 0, -1e-12, 1e-300, 1e300, 4.9e-324 };
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        sample* s = make_sample();
        add_extras(s);
        eval_cache* c = &s->caches[1];
        c->kl = c->kl_se = c->kl_median = c->kl_p99 = c->top1 = odd[i];
        c->perplexity = c->perplexity_diff = c->perplexity_diff_se = odd[i];
        c->tokens_per_second = c->bits_key = c->compression = c->bytes_per_token = odd[i];
        c->speeds[0].tokens_per_second = odd[i];
        c->worst[0].base[0].probability = c->worst[0].cache[1].probability = odd[i];
        s->caches[0].bits_total = s->caches[0].kl_se = odd[i];
        s->score_error[0] = s->output_error[1] = odd[i];
        for (int p = 0; p < POSITIONS; p += 2) s->kl[1][p] = (float)odd[i];
        for (int t = 0; t < TOKENS; t++) s->generation_kl[t] = (float)odd[i];
        s->results.base_perplexity = odd[i];
        char* text = page_of(&s->results);
        expect_well_formed(text);
        free(text);
        free(s);
    }
}

// Breaks when an interrupted run, with windows that are not there, cannot be reported.
Test(eval_html, interrupted)
{
    sample* s = make_sample();
    s->results.interrupted = true;
    s->results.num_windows_asked = 9;
    s->windows[0][1] = (eval_window){ .done = false };
    s->caches[0].num_done = 1;
    s->caches[1] = (eval_cache){ .cache = "later", .kl = NAN, .kl_se = NAN, .perplexity = NAN,
                                 .bits_total = NAN };
    char* text = page_of(&s->results);
    expect_well_formed(text);
    EXPECT_HAS(text, "interrupted");
    EXPECT_HAS(text, "(1 of 2 windows)");
    EXPECT_HAS(text, "(0 of 2 windows)");
    EXPECT_HAS(text, "The text holds 2 of the 9 windows");
    free(text);
    free(s);
}

// Breaks when the page depends on the locale, or on anything but the results.
Test(eval_html, same_bytes)
{
    static const char* const names[] = { "de_DE.UTF-8", "fr_FR.UTF-8", "ps_AF.UTF-8" };
    sample* s = make_sample();
    add_extras(s);
    char* first = page_of(&s->results);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        // Where a machine lacks the locale this compares two runs.
        setlocale(LC_ALL, names[i]);
        char* again = page_of(&s->results);
        cr_expect_str_eq(first, again, "%s", names[i]);
        free(again);
    }
    setlocale(LC_ALL, "C");
    free(first);
    free(s);
}

// Breaks when labels of the cost plot lie on each other: twelve caches close together.
Test(eval_html, labels_apart)
{
    enum { MANY = 12 };
    sample* s = make_sample();
    eval_cache caches[MANY];
    char names[MANY][32];
    for (int i = 0; i < MANY; i++) {
        caches[i] = s->caches[0];
        snprintf(names[i], sizeof names[i], "cache-%02d", i);
        caches[i].cache = names[i];
        caches[i].bits_total = 4 + 0.02 * i;
        caches[i].kl = 0.1 + 0.001 * i;
    }
    s->results.caches = caches;
    s->results.num_caches = MANY;
    char* text = page_of(&s->results);
    double left[MANY + 1], right[MANY + 1], y[MANY + 1];
    int count = 0;
    const char* end = strstr(text, "</svg>");
    cr_assert(end != NULL);
    const char* p = text;
    while ((p = strstr(p, "<text class=\"halo\" text-anchor=\"")) != NULL && p < end) {
        char anchor[8], name[16];
        double x;
        cr_assert_lt(count, MANY + 1);
        cr_assert_eq(sscanf(p, "<text class=\"halo\" text-anchor=\"%7[a-z]\" x=\"%lf\" y=\"%lf\""
                            ">%15[^<]", anchor, &x, &y[count], name), 4);
        // Letters of 6.5 px.
        const double width = 6.5 * (double)strlen(name);
        left[count] = x - width * (anchor[0] == 's' ? 0 : anchor[0] == 'e' ? 1 : 0.5);
        right[count] = left[count] + width;
        count++;
        p++;
    }
    cr_expect_eq(count, MANY + 1);
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < i; j++) {
            const bool apart = left[i] >= right[j] || left[j] >= right[i];
            cr_expect(apart || fabs(y[i] - y[j]) > 11, "labels %d and %d", i, j);
        }
    }
    free(text);
    free(s);
}

// Breaks when a failed write goes unseen, or harms what was there.
Test(eval_html, write_errors)
{
    sample* s = make_sample();
    char message[256] = "";
    char nowhere[600];
    snprintf(nowhere, sizeof nowhere, "%s", scratch("none/page.html"));
    cr_expect_eq(eval_html_write(&s->results, nowhere, message, sizeof message), -1);
    cr_expect(strstr(message, nowhere) != NULL && strstr(message, "cannot be written") != NULL,
              "%s", message);

    const char* folder = scratch("folder");
    char inside[600];
    snprintf(inside, sizeof inside, "%s/kept", folder);
    cr_assert_eq(mkdir(folder, 0777), 0);
    cr_assert_eq(mkdir(inside, 0777), 0);
    cr_expect_eq(eval_html_write(&s->results, folder, message, sizeof message), -1);
    cr_expect(strstr(message, folder) != NULL, "%s", message);
    cr_expect_eq(rmdir(inside), 0);
    cr_expect_eq(rmdir(folder), 0);
    char left[600];
    snprintf(left, sizeof left, "%s.%ld.tmp", folder, (long)getpid());
    cr_expect_eq(access(left, F_OK), -1, "the temporary file is left");

    if (access("/dev/full", W_OK) == 0) {
        cr_expect_eq(eval_html_write(&s->results, "/dev/full", message, sizeof message), -1);
        cr_expect(strstr(message, "/dev/full: cannot be written") == message, "%s", message);
    }
    char small[8];
    cr_expect_eq(eval_html_write(&s->results, nowhere, small, sizeof small), -1);
    cr_expect_eq(strlen(small), sizeof small - 1);
    free(s);
}
