// calibrate_rows.c -- windows of a text through a model, whose rows are kept.

#include "calibrate_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(calibrate_rows* r, const char* what)
{
    snprintf(r->message, sizeof r->message, "%s", what);
    return 1;
}

static void see_rows(void* user, const model_rows* rows)
{
    calibrate_rows* r = user;
    const model_layer_geometry* shape = &model_get_geometry(r->m)->layers[rows->layer];
    const int64_t first = r->at + rows->first_position;
    const int64_t k = (int64_t)shape->num_kv_heads * shape->head_dim;
    const int64_t v = (int64_t)shape->num_kv_heads * shape->head_dim_v;
    if (first + rows->num_rows > r->num_rows) { return; }
    memcpy(r->rows[0][rows->layer] + first * k, rows->k,
           (size_t)(rows->num_rows * k) * sizeof(float));
    memcpy(r->rows[1][rows->layer] + first * v, rows->v,
           (size_t)(rows->num_rows * v) * sizeof(float));
    for (int64_t i = 0; i < rows->num_rows; i++) {
        r->positions[first + i] = rows->first_position + i;
    }
    if (r->tick != NULL && r->tick(r->user, rows->layer)) { fail(r, "interrupted"); }
}

static bool is_stopped(void* user, int64_t done, int64_t count)
{
    const calibrate_rows* r = user;
    return done < count && r->message[0] != 0;
}

static int allocate(calibrate_rows* r)
{
    const model_geometry* g = model_get_geometry(r->m);
    int64_t windows = (CALIBRATE_ROWS + r->context - 1) / r->context;
    if (windows > r->windows) { windows = r->windows; }
    r->num_rows = windows * r->context;
    r->positions = calloc((size_t)r->num_rows, sizeof *r->positions);
    for (int side = 0; side < 2; side++) {
        r->rows[side] = calloc((size_t)g->num_layers, sizeof *r->rows[side]);
        for (int i = 0; r->rows[side] != NULL && i < g->num_layers; i++) {
            const model_layer_geometry* shape = &g->layers[i];
            const int dim = side == 0 ? shape->head_dim : shape->head_dim_v;
            const size_t width = (size_t)shape->num_kv_heads * (size_t)dim;
            r->rows[side][i] = malloc((size_t)r->num_rows * (width + 1) * sizeof(float));
            if (r->rows[side][i] == NULL) { return fail(r, "out of memory: rows of all layers"); }
        }
        if (r->rows[side] == NULL) { return fail(r, "out of memory: rows of all layers"); }
    }
    return r->positions != NULL ? 0 : fail(r, "out of memory: rows of all layers");
}

static int run_window(calibrate_rows* r, int64_t window, int32_t* ids)
{
    model_session* s = NULL;
    const model_session_desc desc = { .ctx = r->ctx, .context_len = r->context,
                                      .on_rows = see_rows, .user = r };
    const model_run tokens = { .ids = ids, .count = r->context, .progress = is_stopped,
                               .products = MODEL_PRODUCTS_FLOAT, .user = r };
    r->at = window * r->context;
    eval_text_window(r->text, r->context, window, ids);
    int status = model_session_create(r->m, &desc, &s, r->message, sizeof r->message);
    if (status == 0 && model_run_tokens(s, &tokens) != MODEL_OK) {
        status = 1;
        if (r->message[0] == 0) { fail(r, model_session_message(s)); }
    }
    model_session_free(s);
    return status;
}

static int collect(calibrate_rows* r)
{
    if (r->m == NULL || r->text->count == 0) {
        return fail(r, "is fitted on rows of the text, which --merge does not run; --resume does");
    }
    int32_t* ids = malloc((size_t)r->context * sizeof *ids);
    int status = ids != NULL ? allocate(r) : fail(r, "out of memory");
    for (int64_t i = 0; i * r->context < r->num_rows && status == 0; i++) {
        status = run_window(r, i, ids);
    }
    free(ids);
    return status;
}

kvl_status calibrate_rows_derive(const kvl_derive_args* args, float* out)
{
    calibrate_rows* r = args->user;
    kvl_derive_args a = *args;
    if (r->predict.num_rows == 0) {
        if (collect(r) != 0) {
            snprintf(args->message, args->message_bytes, "%s", r->message);
            return KVL_UNSUPPORTED;
        }
        r->predict = (transform_predict){
            .ctx = r->ctx, .num_rows = r->num_rows, .positions = r->positions,
            .rows = { (const float* const*)r->rows[0], (const float* const*)r->rows[1] } };
    }
    a.user = &r->predict;
    return transform_predicted(&a, out);
}

void calibrate_rows_free(calibrate_rows* r)
{
    transform_predict_end(&r->predict);
    for (int side = 0; side < 2; side++) {
        for (int i = 0; r->rows[side] != NULL && i < model_get_geometry(r->m)->num_layers; i++) {
            free(r->rows[side][i]);
        }
        free(r->rows[side]);
        r->rows[side] = NULL;
    }
    free(r->positions);
    r->positions = NULL;
    r->predict.num_rows = 0;
}
