// empty_rows.c -- $(codec.title) without codes: what is stored beside them is the runtime's.

enum { $(s "page_bytes") = $(codec.layout.page_bytes) };

typedef struct $(s(codec.work)) {
    char none;
} $(s(codec.work));

static void $(s "encode_rows")(const kvl__encode_args* a) { (void)a; }

static void $(s "decode_rows")(const kvl__decode_args* a)
{
    const int64_t count = a->num_rows * (int64_t)$(codec.head_dim);
    for (int64_t i = 0; a->rows && i < count; ++i) a->rows[i] = 0.0f;
    for (int64_t i = 0; a->codes && i < count; ++i) a->codes[i] = 0;
}

#include "extra_rows.h"

static void $(s "linear_rows")(const kvl__linear_args* a) { $(s "copy_extra")(a); }

static void $(s "transform_rows")(const kvl__basis_args* a) { (void)a; }
