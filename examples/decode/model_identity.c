// model_identity.c -- which model a file of saved rows belongs to.

#include "model_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    SAMPLE_BYTES = 4096  // of each tensor: any training changes them, and 200 tensors are one page
                         // of a disk's queue rather than the whole model
};

static void add_text(XXH3_state_t* hash, const char* text)
{
    XXH3_64bits_update(hash, text, strlen(text) + 1);
}

static void add_tensor(XXH3_state_t* hash, const gguf_tensor* t)
{
    add_text(hash, t->name);
    add_text(hash, gguf_type_name(t->type));
    for (int i = 0; i < 4; i++) {
        char dim[24];
        snprintf(dim, sizeof dim, "%lld", (long long)t->dims[i]);
        add_text(hash, dim);
    }
    const size_t bytes = t->bytes < SAMPLE_BYTES ? (size_t)t->bytes : SAMPLE_BYTES;
    if (bytes > 0) { XXH3_64bits_update(hash, t->data, bytes); }
}

// Rows depend on how positions turn, too, which metadata alone says.
static void add_rope(XXH3_state_t* hash, const model_geometry* g)
{
    for (int i = 0; i < g->num_layers; i++) {
        char text[96];
        snprintf(text, sizeof text, "%.9g %.9g %d %.9g", g->layers[i].rope_base,
                 g->layers[i].rope_scale, g->layers[i].window_len,
                 (double)g->layers[i].softmax_scale);
        add_text(hash, text);
    }
}

void model_identity(const model* m, char out[MODEL_IDENTITY_BYTES])
{
    const model_geometry* g = &m->geometry;
    XXH3_state_t hash;
    char name[64];
    XXH3_64bits_reset(&hash);
    add_text(&hash, g->architecture);
    add_rope(&hash, g);
    for (uint64_t i = 0; i < gguf_num_tensors(m->file); i++) {
        add_tensor(&hash, gguf_tensor_at(m->file, i));
    }
    model_printable(g->name, strlen(g->name), name);
    for (char* at = name; *at != 0; at++) {
        if (!isalnum((unsigned char)*at)) { *at = '-'; }
    }
    snprintf(out, MODEL_IDENTITY_BYTES, "%s/%s/%016llx", g->architecture,
             name[0] != 0 ? name : "unnamed", (unsigned long long)XXH3_64bits_digest(&hash));
}
