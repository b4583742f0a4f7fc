// model_kept.c -- the rows of a prompt that a cache is asked to keep in 16 bits: kept=N in a spec.
//
// Of all numbers that enter a layer with the rows of a prompt, the N of the largest magnitude; the
// rows that have one of them (RotateKV, arXiv:2501.16383, with N = 20).  A row may have several, so
// that fewer than N rows are named.  A row is kept when it is appended, or not at all: where a
// prompt comes in batches, a batch names its rows among the N largest numbers so far, those with
// the largest first, while the cache has room.  Rows in the sink are in 16 bits anyway.

#include "model_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool model_kept_create(model_session* s)
{
    const int num_layers = s->m->geometry.num_layers;
    model_kept* kept = &s->kept;
    for (int layer = 0; layer < num_layers; layer++) {
        if (s->windows[layer].kept_len > kept->most) { kept->most = s->windows[layer].kept_len; }
    }
    if (kept->most == 0) { return true; }
    kept->largest = calloc((size_t)(num_layers * kept->most), sizeof *kept->largest);
    kept->rows = calloc((size_t)kept->most, sizeof *kept->rows);
    return kept->largest != NULL && kept->rows != NULL;
}

void model_kept_free(model_session* s)
{
    free(s->kept.largest);
    free(s->kept.rows);
}

void model_kept_begin(model_session* s)
{
    const int num = s->kept.most * s->m->geometry.num_layers;
    s->kept.num = 0;
    for (int i = 0; i < num; i++) { s->kept.largest[i] = (model_largest){ -1.0f, -1 }; }
}

// Puts a number in its place among the n largest; it is larger than the last one.
static void enter(model_largest* largest, int n, float x, int32_t row)
{
    int at = n - 1;
    for (; at > 0 && x > largest[at - 1].x; at--) { largest[at] = largest[at - 1]; }
    largest[at] = (model_largest){ x, row };
}

// Puts a row in its place among those that are named, once.
static void name_row(model_kept* kept, int32_t row)
{
    int at = kept->num;
    while (at > 0 && kept->rows[at - 1] > row) { at--; }
    if (at > 0 && kept->rows[at - 1] == row) { return; }
    memmove(kept->rows + at + 1, kept->rows + at, (size_t)(kept->num - at) * sizeof *kept->rows);
    kept->rows[at] = row;
    kept->num++;
}

kvl_status model_kept_find(model_session* s, int layer, int64_t num_rows)
{
    const int64_t hidden = s->m->geometry.hidden_len;
    const model_windows* w = &s->windows[layer];
    const int n = w->kept_len;
    model_largest* largest = s->kept.largest + layer * s->kept.most;
    kvl_seq_rows there;
    s->kept.num = 0;
    if (n == 0 || num_rows == 0) { return KVL_OK; }
    for (int i = 0; i < n; i++) { largest[i].row = -1; }
    for (int64_t row = 0; row < num_rows; row++) {
        const float* x = s->buffers.x + row * hidden;
        for (int64_t i = 0; i < hidden; i++) {
            if (fabsf(x[i]) > largest[n - 1].x) { enter(largest, n, fabsf(x[i]), (int32_t)row); }
        }
    }
    const kvl_status status = kvl_seq_get_rows(s->cache, layer, s->seq, &there);
    for (int i = 0; status == KVL_OK && i < n && s->kept.num < n - there.kept; i++) {
        if (largest[i].row >= 0 && s->length + largest[i].row >= w->sink_len) {
            name_row(&s->kept, largest[i].row);
        }
    }
    return status;
}
