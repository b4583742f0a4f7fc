// calibrate_report.c -- writes the page of spectra and predicted errors.
//
// Moments and prices are brought to the trace d before their spectra are taken, so that 1 is an
// average direction and the damping of a basis is a level in the plot. A predicted error is that of
// one step a row, nearest rounding, over the error of a rotation that makes all channels alike:
// 1 is a Hadamard.

#include "calibrate_report.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "calibrate_transforms.h"
#include "eval_html.h"
#include "transform_basis.h"
#include "transform_matrix.h"

enum {
    MOST_WORDS = 8, MOST_SAID = 12,
    PLOT_WIDTH = 340, PLOT_HEIGHT = 150, PLOT_LEFT = 34, PLOT_BOTTOM = 18,
    DECADES = 8          // of a spectrum's plot: 10^-6 to 10^2
};

static const char* const sides[2] = { "keys", "values" };
static const char* const words[] = { "balance", "balance_output", "eigen", "eigen_layer", "whiten",
                                     "flat", NULL };

// One basis of one head.
typedef struct head_basis {
    const char* word;
    double condition, token, channel, feedback;   // NaN: not predicted
    double moment_damping, price_damping;
    char note[256];
} head_basis;

// Over all heads of a side.
typedef struct word_summary {
    double logs, worst, condition;
    int heads, notes, worst_layer, worst_head;
} word_summary;

typedef struct report {
    const calibrate_report_desc* d;
    FILE* out;
    word_summary summary[2][MOST_WORDS];
    double* of_layer[2][MOST_WORDS];   // [num_layers] sums of predicted errors over heads
    int said;
    char* message;
    size_t message_bytes;
} report;

static int fail(report* r, const char* what, const char* why)
{
    snprintf(r->message, r->message_bytes, "--report %s: %s", what, why);
    return 1;
}

static void put_escaped(FILE* out, const char* text)
{
    for (; *text != 0; text++) {
        switch (*text) {
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '&': fputs("&amp;", out); break;
        case '"': fputs("&quot;", out); break;
        default: fputc(*text, out);
        }
    }
}

// SPECTRA

// Eigenvalues of a statistic, descending, of the mean 1. Returns false where there is none.
static bool find_spectrum(const report* r, int layer, int head, const char* name, int dim,
                          double* values)
{
    int64_t num = 0;
    const double* m = kvl_statistics_get(r->d->stats, layer, head, name, &num);
    double* vectors = square_new(dim);
    double* scaled = square_new(dim);
    bool ok = m != NULL && num == (int64_t)dim * dim && vectors != NULL && scaled != NULL;
    const double trace = ok ? square_trace(dim, m) : 0.0;
    ok = ok && trace > 0.0;
    for (int i = 0; ok && i < dim * dim; i++) { scaled[i] = m[i] * (dim / trace); }
    ok = ok && square_eigen(dim, scaled, values, vectors) == 0;
    free(vectors);
    free(scaled);
    return ok;
}

static double plot_x(int i, int dim)
{
    return PLOT_LEFT + (PLOT_WIDTH - PLOT_LEFT - 6.0) * i / (dim - 1);
}

static double plot_y(double value)
{
    const double least = 1e-6, top = value > least ? log10(value) + 6.0 : 0.0;
    const double share = top > DECADES ? 1.0 : top / DECADES;
    return 6.0 + (PLOT_HEIGHT - PLOT_BOTTOM - 6.0) * (1.0 - share);
}

static void put_curve(FILE* out, const double* values, int dim, int color, const char* title)
{
    fprintf(out, "<g class=\"line c%d\"><title>", color);
    put_escaped(out, title);
    fputs("</title><path class=\"curve\" d=\"M", out);
    for (int i = 0; i < dim; i++) {
        fprintf(out, "%s%.1f %.1f", i > 0 ? "L" : "", plot_x(i, dim), plot_y(values[i]));
    }
    fputs("\"/></g>\n", out);
}

static void put_axes(FILE* out, double damping)
{
    for (int decade = -6; decade <= 2; decade += 2) {
        const double y = plot_y(pow(10.0, decade));
        fprintf(out, "<path class=\"%s\" d=\"M%d %.1fH%d\"/><text class=\"tick\" x=\"%d\" "
                "y=\"%.1f\" text-anchor=\"end\">1e%d</text>", decade == 0 ? "grid" : "minor",
                PLOT_LEFT, y, PLOT_WIDTH - 6, PLOT_LEFT - 4, y + 4.0, decade);
    }
    fprintf(out, "<path class=\"pareto\" d=\"M%d %.1fH%d\"><title>damping</title></path>",
            PLOT_LEFT, plot_y(damping), PLOT_WIDTH - 6);
    fprintf(out, "<text class=\"tick\" x=\"%d\" y=\"%d\">direction, largest first</text>\n",
            PLOT_LEFT, PLOT_HEIGHT - 3);
}

// The moment and the price of each head of a side.
static void put_spectra(const report* r, int layer, int is_value)
{
    const kvl_layer_desc* l = &r->d->layers[layer];
    const int dim = is_value && l->head_dim_v > 0 ? l->head_dim_v : l->head_dim;
    static const char* const names[2][3] = { { "key_outer", "query_outer", "query_output_outer" },
                                             { "value_outer", "output_outer", "attended_outer" } };
    double values[MATRIX_DIM_MAX];
    fprintf(r->out, "<figure class=\"map\"><h3>%s</h3><svg class=\"lines\" viewBox=\"0 0 %d %d\">",
            sides[is_value], PLOT_WIDTH, PLOT_HEIGHT);
    put_axes(r->out, 0.01);
    for (int head = 0; head < l->num_kv_heads; head++) {
        for (int i = 0; i < 3; i++) {
            char title[64];
            if (!find_spectrum(r, layer, head, names[is_value][i], dim, values)) { continue; }
            snprintf(title, sizeof title, "%s, head %d", names[is_value][i], head);
            put_curve(r->out, values, dim, i + 1, title);
        }
    }
    fputs("</svg></figure>\n", r->out);
}

// BASES

static bool has_table(const report* r, int layer, int is_value, const char* word)
{
    char name[64];
    int64_t num = 0;
    snprintf(name, sizeof name, "%s_forward", word);
    return kvl_calibration_table(r->d->calibration, layer, is_value, name, &num) != NULL;
}

static bool describe_basis(const report* r, int layer, int is_value, int head, const char* word,
                           head_basis* out)
{
    const kvl_layer_desc* l = &r->d->layers[layer];
    transform_basis basis;
    kvl_derive_args a;
    char message[256] = "";
    memset(&a, 0, sizeof a);
    a.stats = r->d->stats;
    a.layer = layer;
    a.is_value = is_value;
    a.depends = "";                             // moments as they are, without a shift
    a.num_kv_heads = l->num_kv_heads;
    a.head_dim = is_value && l->head_dim_v > 0 ? l->head_dim_v : l->head_dim;
    a.message = message;
    a.message_bytes = sizeof message;
    if (calibrate_make_basis(&a, word, head, &basis) != KVL_OK) { return false; }
    const double nan = (double)NAN;
    *out = (head_basis){ .word = word, .condition = basis.condition,
                         .token = basis.price != NULL ? basis.error_token : nan,
                         .channel = basis.price != NULL ? basis.error_channel : nan,
                         .feedback = basis.price != NULL ? basis.error_feedback : nan,
                         .moment_damping = basis.moment_damping,
                         .price_damping = basis.price_damping };
    snprintf(out->note, sizeof out->note, "%s", basis.note);
    transform_basis_free(&basis);
    return true;
}

static void put_number(FILE* out, const char* format, double x)
{
    fputs("<td>", out);
    if (isnan(x)) { fputs("-", out); } else { fprintf(out, format, x); }
    fputs("</td>", out);
}

static void add_to_summary(report* r, int layer, int is_value, int head, int index,
                           const head_basis* b)
{
    word_summary* s = &r->summary[is_value][index];
    if (!isnan(b->token)) {
        s->logs += log(b->token);
        r->of_layer[is_value][index][layer] += b->token;
        if (s->heads == 0 || b->token > s->worst) {
            s->worst = b->token;
            s->worst_layer = layer;
            s->worst_head = head;
        }
    }
    s->condition = b->condition > s->condition ? b->condition : s->condition;
    s->heads++;
    if (b->note[0] == 0) { return; }
    s->notes++;
    if (r->d->summary != NULL && r->said++ < MOST_SAID) {
        fprintf(r->d->summary, "layer %d, head %d, %s, %s: %s\n", layer, head, sides[is_value],
                b->word, b->note);
    }
}

static void put_basis(report* r, int layer, int is_value, int head, int index)
{
    head_basis b;
    if (!has_table(r, layer, is_value, words[index]) ||
        !describe_basis(r, layer, is_value, head, words[index], &b)) {
        return;
    }
    add_to_summary(r, layer, is_value, head, index, &b);
    fprintf(r->out, "<tr><th class=\"name\">%s, head %d, %s</th>", sides[is_value], head, b.word);
    put_number(r->out, "%.3f", b.token);
    put_number(r->out, "%.3f", b.channel);
    put_number(r->out, "%.3f", b.feedback);
    put_number(r->out, "%.3g", b.condition);
    put_number(r->out, "%.3g", b.moment_damping);
    put_number(r->out, "%.3g", b.price_damping);
    fputs("<td class=\"why\">", r->out);
    put_escaped(r->out, b.note);
    fputs("</td></tr>\n", r->out);
}

static void put_layer(report* r, int layer)
{
    const kvl_layer_desc* l = &r->d->layers[layer];
    if (l->num_kv_heads == 0) { return; }
    fprintf(r->out, "<h2>Layer %d</h2>\n<div class=\"maps\">\n", layer);
    for (int side = 0; side < 2; side++) { put_spectra(r, layer, side); }
    fputs("</div><div class=\"scroll\"><table class=\"data\"><thead><tr><th class=\"name\">basis"
          "</th><th>one step a row</th><th>a step a channel</th><th>with feedback</th>"
          "<th>condition</th><th>damping, moment</th><th>price</th><th></th></tr></thead><tbody>\n",
          r->out);
    for (int side = 0; side < 2; side++) {
        for (int i = 0; words[i] != NULL; i++) {
            for (int head = 0; head < l->num_kv_heads; head++) {
                put_basis(r, layer, side, head, i);
            }
        }
    }
    fputs("</tbody></table></div>\n", r->out);
}

// THE OVERVIEW

enum { WIDE = 520, HIGH = 190 };

// The mean error of a layer's heads for each word, from 0 to 1.5.
static void put_overview(const report* r, int is_value)
{
    const int last = r->d->num_layers > 1 ? r->d->num_layers - 1 : 1;
    const double step = (WIDE - PLOT_LEFT - 10.0) / last;
    const double unit = (HIGH - PLOT_BOTTOM - 6.0) / 1.5;
    fprintf(r->out, "<figure><h3>%s</h3><svg class=\"lines\" viewBox=\"0 0 %d %d\">",
            sides[is_value], WIDE, HIGH);
    for (int i = 0; i <= 3; i++) {
        const double y = HIGH - PLOT_BOTTOM - 0.5 * i * unit;
        fprintf(r->out, "<path class=\"%s\" d=\"M%d %.1fH%d\"/><text class=\"tick\" x=\"%d\" "
                "y=\"%.1f\" text-anchor=\"end\">%.1f</text>", i == 2 ? "grid" : "minor", PLOT_LEFT,
                y, WIDE - 10, PLOT_LEFT - 4, y + 4.0, 0.5 * i);
    }
    fprintf(r->out, "<text class=\"tick\" x=\"%d\" y=\"%d\">layer 0 to %d</text>\n", PLOT_LEFT,
            HIGH - 3, r->d->num_layers - 1);
    for (int i = 0; words[i] != NULL; i++) {
        if (r->summary[is_value][i].heads == 0) { continue; }
        fprintf(r->out, "<g class=\"line c%d\"><title>%s</title><path class=\"curve\" d=\"M", i + 1,
                words[i]);
        for (int layer = 0; layer < r->d->num_layers; layer++) {
            const int heads = r->d->layers[layer].num_kv_heads;
            const double mean = heads > 0 ? r->of_layer[is_value][i][layer] / heads : 0.0;
            fprintf(r->out, "%s%.1f %.1f", layer > 0 ? "L" : "", PLOT_LEFT + step * layer,
                    HIGH - PLOT_BOTTOM - unit * (mean < 1.5 ? mean : 1.5));
        }
        fputs("\"/></g>\n", r->out);
    }
    fputs("</svg></figure>\n", r->out);
}

static void put_overviews(const report* r)
{
    fputs("<h2>Predicted error by layer, mean of its heads</h2><ul class=\"legend\">", r->out);
    for (int i = 0; words[i] != NULL; i++) {
        if (r->summary[0][i].heads + r->summary[1][i].heads == 0) { continue; }
        fprintf(r->out, "<li class=\"c%d\" style=\"color:var(--c)\">%s</li>", i + 1, words[i]);
    }
    fputs("</ul><div class=\"maps\">\n", r->out);
    for (int side = 0; side < 2; side++) { put_overview(r, side); }
    fputs("</div>\n", r->out);
}

// THE PAGE

static void put_head(const report* r)
{
    fputs("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
          "content=\"width=device-width,initial-scale=1\"><title>Calibration</title><style>",
          r->out);
    for (const char* const* line = eval_html_style(); *line != NULL; line++) {
        fputs(*line, r->out);
    }
    fputs("</style></head><body><h1>Calibration: ", r->out);
    put_escaped(r->out, r->d->model);
    fputs("</h1><p class=\"dim\">on ", r->out);
    put_escaped(r->out, r->d->text);
    fputs("</p><p>A layer is hard where a spectrum falls slowly: there is nothing to gain from "
          "sizes. Where the moment (<span class=\"key c1\" style=\"color:var(--c1)\">M</span>) and "
          "the price of an error (<span class=\"key c2\" style=\"color:var(--c2)\">A</span>; "
          "<span class=\"key c3\" style=\"color:var(--c3)\">by the output</span> of keys, what is "
          "attended of values) both fall, a basis that serves one is paid for by the other. "
          "Spectra have the mean 1; the dashed line is the damping of 0.01: directions below it "
          "count as that. Errors are predicted for one scale a row, and are relative to those of "
          "a Hadamard.</p>\n", r->out);
}

static void print_summary(const report* r)
{
    FILE* out = r->d->summary;
    if (out == NULL) { return; }
    if (r->said > MOST_SAID) { fprintf(out, "and %d more notes\n", r->said - MOST_SAID); }
    for (int side = 0; side < 2; side++) {
        for (int i = 0; words[i] != NULL; i++) {
            const word_summary* s = &r->summary[side][i];
            if (s->heads == 0) { continue; }
            fprintf(out, "%-6s %-14s predicted error %.3f of a Hadamard's (geometric mean of %d "
                    "heads; worst %.3f, layer %d, head %d), condition up to %.3g, %d notes\n",
                    sides[side], words[i], exp(s->logs / s->heads), s->heads, s->worst,
                    s->worst_layer, s->worst_head, s->condition, s->notes);
        }
    }
}

// Layers come first, in a file of their own: the overview is made of what they show.
static int write_page(report* r, FILE* page, FILE* layers)
{
    char bytes[4096];
    r->out = layers;
    for (int layer = 0; layer < r->d->num_layers; layer++) { put_layer(r, layer); }
    rewind(layers);
    r->out = page;
    put_head(r);
    put_overviews(r);
    for (size_t num; (num = fread(bytes, 1, sizeof bytes, layers)) > 0;) {
        fwrite(bytes, 1, num, page);
    }
    fputs("</body></html>\n", page);
    return ferror(page) != 0 || ferror(layers) != 0;
}

int calibrate_report_write(const calibrate_report_desc* desc, char* message, size_t message_bytes)
{
    report r = { .d = desc, .message = message, .message_bytes = message_bytes };
    FILE* page = fopen(desc->path, "w");
    if (page == NULL) { return fail(&r, desc->path, strerror(errno)); }
    FILE* layers = tmpfile();
    const size_t count = (size_t)desc->num_layers;
    double* sums = calloc(2 * MOST_WORDS * count, sizeof *sums);
    int status = layers == NULL || sums == NULL ? fail(&r, desc->path, "no room for it") : 0;
    for (size_t i = 0; i < 2 * MOST_WORDS && sums != NULL; i++) {
        r.of_layer[i / MOST_WORDS][i % MOST_WORDS] = sums + i * count;
    }
    if (status == 0 && write_page(&r, page, layers) != 0) {
        status = fail(&r, desc->path, "cannot be written");
    }
    if (layers != NULL) { fclose(layers); }
    free(sums);
    if (fclose(page) != 0 && status == 0) { status = fail(&r, desc->path, "cannot be written"); }
    if (status == 0) { print_summary(&r); }
    return status;
}
