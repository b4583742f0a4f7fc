// transform_predict.h -- tables of shift=predicted: least squares on rows as they are restored.
//
// The layers are fitted from the lowest on, keys before values.  Once a side of a layer has its
// table, its rows go through the side's codec and come back, and what comes back is what the next
// tables are fitted on: at once errors of the codec and of all tables below.

#ifndef KVLOOM_TRANSFORM_PREDICT_H
#define KVLOOM_TRANSFORM_PREDICT_H

#include "kvloom.h"

// Rows of all layers; the first four are the caller's.
typedef struct transform_predict {
    kvl_context*        ctx;
    int64_t             num_rows;
    const int64_t*      positions;     // [num_rows] in their sequences
    const float* const* rows[2];       // [num_layers] keys, values: [num_rows, num_kv_heads, dim]
    int                 next;          // 2 layer + side that is fitted next
    int                 width[2];      // channels of all heads of a layer
    float*              restored[2];   // [num_rows, width] of the last layer, keys before RoPE
    float*              table;         // of the last fit, [num_kv_heads, inputs, dim]
} transform_predict;

// kvl_derivation.derive of table `predicted` of word `predicted`; args->user is a
// transform_predict.  Layers that have their tables already are fitted again.  The other stages of
// a side must read no tables: nothing has seen what a prediction leaves.
kvl_status transform_predicted(const kvl_derive_args* args, float* out);

// Frees what fits have left.
void transform_predict_end(transform_predict* p);

#endif
