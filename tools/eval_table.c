// eval_table.c -- prints the table, and below it worst tokens, speeds, needles and generations.

#include "eval_table.h"

#include <math.h>
#include <string.h>

enum { COLUMNS = 14, CELL_BYTES = 256 };

static const char* const titles[COLUMNS] = {
    "cache", "key", "value", "body", "total", "smaller", "KL x1000", "median", "p99", "worst",
    "top-1 %", "perplexity", "difference", "tokens/s",
};

typedef struct table_row {
    char cells[COLUMNS][CELL_BYTES];
} table_row;

static void put(char* cell, const char* format, double x)
{
    if (isnan(x)) {
        snprintf(cell, CELL_BYTES, "-");
    } else {
        snprintf(cell, CELL_BYTES, format, x);
    }
}

// Three digits or more, without an exponent where it reads well.
static void put_kl(char* cell, double x)
{
    const double size = fabs(x);
    put(cell, size >= 100.0 ? "%.0f" : size >= 10.0 ? "%.1f" : size >= 0.1 ? "%.2f" : "%.2g", x);
}

static void put_pair(char* cell, double x, double error)
{
    char part[CELL_BYTES];
    put_kl(cell, x);
    if (isnan(error) || isnan(x)) { return; }
    put_kl(part, error);
    const size_t used = strlen(cell);
    snprintf(cell + used, CELL_BYTES - used, " +- %.100s", part);
}

static void fill_cache(const eval_cache* c, table_row* row)
{
    memset(row, 0, sizeof *row);
    snprintf(row->cells[0], CELL_BYTES, "%s", c->cache);
    put(row->cells[1], "%.2f", c->bits_key);
    put(row->cells[2], "%.2f", c->bits_value);
    put(row->cells[3], "%.2f", c->bits_body);
    put(row->cells[4], "%.2f", c->bits_total);
    put(row->cells[5], "%.2f", c->compression);
    put(row->cells[13], "%.1f", c->tokens_per_second);
}

static void fill_row(const eval_cache* c, table_row* row)
{
    const double nan = (double)NAN;
    fill_cache(c, row);
    put_pair(row->cells[6], 1000.0 * c->kl, 1000.0 * c->kl_se);
    put_kl(row->cells[7], 1000.0 * c->kl_median);
    put_kl(row->cells[8], 1000.0 * c->kl_p99);
    put_kl(row->cells[9], c->num_worst > 0 ? 1000.0 * c->worst[0].kl : nan);
    put(row->cells[10], "%.2f", 100.0 * c->top1);
    put(row->cells[11], "%.3f", c->perplexity);
    put_pair(row->cells[12], c->perplexity_diff, c->perplexity_diff_se);
    if (c->error[0] != 0) { snprintf(row->cells[6], CELL_BYTES, "failed"); }
}

static void fill_base(const eval_results* r, table_row* row)
{
    fill_cache(&r->base, row);
    snprintf(row->cells[0], CELL_BYTES, "(base) f16");
    put(row->cells[11], "%.3f", r->base_perplexity);
    for (int i = 6; i < COLUMNS; i++) {
        if (row->cells[i][0] == 0) { snprintf(row->cells[i], CELL_BYTES, "-"); }
    }
}

static void make_row(const eval_results* r, int index, table_row* row)
{
    if (index == 0) {
        memset(row, 0, sizeof *row);
        for (int i = 0; i < COLUMNS; i++) { snprintf(row->cells[i], CELL_BYTES, "%s", titles[i]); }
    } else if (index == 1) {
        fill_base(r, row);
    } else {
        fill_row(&r->caches[index - 2], row);
    }
}

static void print_row(FILE* out, const table_row* row, const int* widths, bool markdown)
{
    for (int i = 0; i < COLUMNS; i++) {
        char cell[CELL_BYTES + 2];
        const int quoted = markdown && i == 0 ? 2 : 0;
        snprintf(cell, sizeof cell, quoted ? "`%s`" : "%s", row->cells[i]);
        fputs(markdown ? "| " : i > 0 ? "  " : "", out);
        fprintf(out, "%*s", i == 0 ? -widths[i] - quoted : widths[i], cell);
        if (markdown) { fputc(' ', out); }
    }
    fputs(markdown ? "|\n" : "\n", out);
}

// Numbers stand to the right.
static void print_rule(FILE* out, const int* widths)
{
    for (int i = 0; i < COLUMNS; i++) {
        fputs("| ", out);
        for (int j = 0; j < widths[i] - (i > 0); j++) { fputc('-', out); }
        fputs(i == 0 ? "-- " : ": ", out);  // the first cell has two quotes
    }
    fputs("|\n", out);
}

static void print_rows(FILE* out, const eval_results* r, bool markdown)
{
    int widths[COLUMNS] = { 0 };
    table_row row;
    for (int index = 0; index < r->num_caches + 2; index++) {
        make_row(r, index, &row);
        for (int i = 0; i < COLUMNS; i++) {
            const int width = (int)strlen(row.cells[i]);
            if (width > widths[i]) { widths[i] = width; }
        }
    }
    for (int index = 0; index < r->num_caches + 2; index++) {
        make_row(r, index, &row);
        print_row(out, &row, widths, markdown);
        if (index == 0 && markdown) { print_rule(out, widths); }
    }
}

// A text on one line, in quotes.
static void print_quoted(FILE* out, const char* text)
{
    fputc('"', out);
    for (; *text != 0; text++) {
        if (*text == '\n') {
            fputs("\\n", out);
        } else {
            fputc(*text, out);
        }
    }
    fputc('"', out);
}

static void print_notes(FILE* out, const eval_results* r)
{
    for (int i = 0; i < r->num_caches; i++) {
        const eval_cache* c = &r->caches[i];
        if (c->num_done > 0 && c->num_done < r->num_windows) {
            fprintf(out, "%s: %d of %d windows\n", c->cache, c->num_done, r->num_windows);
        }
        if (c->error[0] != 0) { fprintf(out, "%s: %s\n", c->cache, c->error); }
        if (c->num_done > 0 && c->rows_quantized == 0) {
            fprintf(out, "%s: no row was in pages: its windows cover the context\n", c->cache);
        }
    }
}

static void print_worst(FILE* out, const eval_results* r)
{
    for (int i = 0; i < r->num_caches; i++) {
        const eval_cache* c = &r->caches[i];
        if (c->num_worst == 0 || !(c->worst[0].kl > 0.0)) { continue; }
        const eval_worst* w = &c->worst[0];
        fprintf(out, "%s: worst in window %d at position %lld (KL x1000 %.0f): ", c->cache,
                w->window, (long long)w->position, 1000.0 * w->kl);
        print_quoted(out, w->base[0].text);
        fprintf(out, " %.2f -> %.2f, ", w->base[0].probability,
                w->cache[0].id == w->base[0].id ? w->cache[0].probability
                                                : exp(log(w->base[0].probability) - w->kl));
        fputs("best now ", out);
        print_quoted(out, w->cache[0].text);
        fprintf(out, " %.2f\n", w->cache[0].probability);
    }
}

static void print_speeds(FILE* out, const eval_results* r)
{
    if (r->base.num_speeds == 0) { return; }
    fputs("\ntokens/s at so many tokens\n", out);
    for (int i = -1; i < r->num_caches; i++) {
        const eval_cache* c = i < 0 ? &r->base : &r->caches[i];
        for (int j = 0; j < c->num_speeds; j++) {
            fprintf(out, "%8lld: %8.1f", (long long)c->speeds[j].rows,
                    c->speeds[j].tokens_per_second);
        }
        if (c->num_speeds > 0) { fprintf(out, "   %s\n", c->cache); }
    }
}

static void print_needles(FILE* out, const eval_results* r)
{
    if (r->base.needle.num_lengths == 0) { return; }
    fputs("\nfacts found, by depth from the beginning to the end\n", out);
    for (int i = -1; i < r->num_caches; i++) {
        const eval_needle* n = i < 0 ? &r->base.needle : &r->caches[i].needle;
        for (int j = 0; j < n->num_lengths; j++) {
            int sum = 0;
            fprintf(out, "%8lld tokens: ", (long long)n->lengths[j]);
            for (int depth = 0; depth < EVAL_DEPTHS; depth++) {
                fprintf(out, " %d", n->hits[j][depth]);
                sum += n->hits[j][depth];
            }
            fprintf(out, "  = %3.0f %%   %s\n", 100.0 * sum / (EVAL_DEPTHS * n->trials),
                    i < 0 ? "f16" : r->caches[i].cache);
        }
    }
}

static void print_generations(FILE* out, const eval_results* r)
{
    if (r->base.num_generations == 0) { return; }
    fputs("\ngreedy generations: first token that differs, KL x1000 along the base's text\n", out);
    for (int i = 0; i < r->num_caches; i++) {
        const eval_cache* c = &r->caches[i];
        for (int j = 0; j < c->num_generations; j++) {
            const eval_generation* g = &c->generations[j];
            double sum = 0.0;
            for (int k = 0; k < g->num_tokens; k++) { sum += (double)g->kl[k]; }
            if (g->first_divergence < 0) {
                fprintf(out, "    none of %d", g->num_tokens);
            } else {
                fprintf(out, "    %d of %d", g->first_divergence, g->num_tokens);
            }
            fprintf(out, ", %.4g", 1000.0 * sum / g->num_tokens);
        }
        if (c->num_generations > 0) { fprintf(out, "    %s\n", c->cache); }
    }
}

// One row: what was chosen, and the peaks of those pieces.
static void print_chosen(FILE* out, const eval_cache* cache, bool markdown)
{
    static const char* const names[] = { "as they are", "rotated", "whole head" };
    const eval_choices* c = &cache->choices;
    fprintf(out, markdown ? "| `%s` |" : "%s:", cache->cache);
    for (int k = 0; k < 3; k++) {
        if (!markdown) { fprintf(out, "%s %s", k > 0 ? "," : "", names[k]); }
        fprintf(out, " %.1f %% (%.2f -> %.2f)%s",
                100.0 * (double)c->count[k] / (double)c->num_pieces, c->peak[k],
                c->peak_rotated[k], markdown ? " |" : "");
    }
    fputc('\n', out);
}

static void print_choices(FILE* out, const eval_results* r, bool markdown)
{
    bool any = false;
    for (int i = 0; i < r->num_caches; i++) { any = any || r->caches[i].choices.num_pieces > 0; }
    if (!any) { return; }
    if (markdown) {
        fputs("\nPieces of keys in window 0 by what was chosen, and their mean max |x| / rms as "
              "they came -> after a\nHadamard:\n\n"
              "| `cache` | as they are | rotated | whole head |\n"
              "| --- | ---: | ---: | ---: |\n", out);
    } else {
        fputs("\npieces of keys in window 0, and their mean max |x| / rms as they came -> after a "
              "Hadamard\n", out);
    }
    for (int i = 0; i < r->num_caches; i++) {
        if (r->caches[i].choices.num_pieces > 0) { print_chosen(out, &r->caches[i], markdown); }
    }
}

void eval_table_print(FILE* out, const eval_results* r, bool markdown)
{
    print_rows(out, r, markdown);
    print_choices(out, r, markdown);
    if (markdown) { return; }
    fputc('\n', out);
    print_notes(out, r);
    print_worst(out, r);
    print_speeds(out, r);
    print_needles(out, r);
    print_generations(out, r);
    fprintf(out, "\n%s on %s: %d windows of %lld tokens, positions from %lld on; kvloom %s, %s, "
            "%d threads%s\n", r->model, r->text, r->num_windows, (long long)r->context,
            (long long)r->skip, r->version, r->target, r->threads,
            r->interrupted ? "; interrupted" : "");
    fputs("bits a value: of keys, values and both in pages; total: all that is allocated; smaller: "
          "times than f16\n", out);
}
