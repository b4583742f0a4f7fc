// calibrate_rows.h -- tables of shift=predicted: rows of all layers, kept while they are fitted.
//
// The first windows of the text run once more, up to CALIBRATE_ROWS tokens of them, and keys and
// values of all layers stay: 4 bytes a number.  transform_predict.h makes the tables of them.

#ifndef KVLOOM_CALIBRATE_ROWS_H
#define KVLOOM_CALIBRATE_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "eval_text.h"
#include "kvloom.h"
#include "model.h"
#include "transform_predict.h"

enum { CALIBRATE_ROWS = 8192 };

// The first five are the caller's.
typedef struct calibrate_rows {
    model* m;
    kvl_context* ctx;
    const eval_text* text;
    int64_t context, windows;    // tokens of a window; how many windows there are
    bool (*tick)(void* user, int layer);   // true: stop.  Can be NULL
    void* user;
    int64_t num_rows, at;        // rows that are kept; where those of the window begin
    int64_t* positions;          // [num_rows]
    float** rows[2];             // [num_layers] keys, values; NULL: none yet
    transform_predict predict;
    char message[512];
} calibrate_rows;

// kvl_derivation.derive of table `predicted`; args->user is a calibrate_rows.
kvl_status calibrate_rows_derive(const kvl_derive_args* args, float* out);

void calibrate_rows_free(calibrate_rows* r);

#endif
