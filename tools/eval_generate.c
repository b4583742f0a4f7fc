// eval_generate.c -- generates from a prompt, and compares with the base's text.

#include "eval_generate.h"

#include <stdlib.h>
#include <string.h>

#include "eval_statistics.h"

static int failed(eval_engine* engine, const char* message)
{
    snprintf(engine->message, sizeof engine->message, "%s", message);
    return MODEL_FAILED;
}

// Steps in the engine's arithmetic: activations in 8 bits would turn the last bit of a sum into
// another token long before a quantized row is read.
static int generate(eval_engine* engine, const char* cache, const eval_prompt* prompt,
                    eval_generation* out)
{
    model_session* s = NULL;
    float* logits = malloc((size_t)engine->geometry->vocab_size * sizeof *logits);
    if (logits == NULL) { return failed(engine, "out of memory"); }
    int status = eval_engine_open(engine, cache, 0, &s);
    if (status == MODEL_OK) {
        const model_run run = { .ids = prompt->ids, .count = prompt->count, .logits = logits,
                                .rows_through_cache = true,
                                .prompt_len = prompt->count,
                                .products = engine->desc.products };
        engine->stopped = false;
        status = model_run_tokens(s, &run);
        for (int64_t i = 0; status == MODEL_OK && i < prompt->num_tokens; i++) {
            out->ids[i] = (int32_t)eval_best(logits, engine->geometry->vocab_size);
            if (engine->stopped) {
                status = MODEL_STOPPED;
            } else if (i + 1 < prompt->num_tokens) {
                const model_run step = { .ids = &out->ids[i], .count = 1, .logits = logits,
                                         .products = engine->desc.products };
                status = model_run_tokens(s, &step);
            }
        }
        if (status != MODEL_OK && status != MODEL_STOPPED) {
            status = failed(engine, model_session_message(s));
        }
    }
    model_session_free(s);
    free(logits);
    return status;
}

// Runs prompt and text as one side's pass. out NULL: no comparison.
static int follow(eval_engine* engine, const char* cache, const eval_prompt* prompt,
                  const eval_generation* text, eval_generation* out)
{
    const int64_t count = prompt->count + text->num_tokens;
    eval_window window = { .done = false };
    model_session* s = NULL;
    int32_t* ids = malloc((size_t)count * sizeof *ids);
    if (ids == NULL) { return failed(engine, "out of memory"); }
    memcpy(ids, prompt->ids, (size_t)prompt->count * sizeof *ids);
    memcpy(ids + prompt->count, text->ids, (size_t)text->num_tokens * sizeof *ids);
    engine->prompt_len = prompt->count;
    int status = eval_engine_open(engine, cache, 0, &s);
    if (status == MODEL_OK) { status = eval_engine_pass(engine, s, ids, count, out != NULL); }
    if (status == MODEL_OK && out != NULL) {
        // The position before a token gives its distribution.
        const eval_comparison c = { .ids = ids, .count = count, .first = prompt->count - 1,
                                    .session = s };
        status = eval_engine_compare(engine, &c, &window, NULL);
        out->kl = window.kl;
        window.kl = NULL;
    }
    eval_window_free(&window);
    model_session_free(s);
    free(ids);
    return status;
}

static int begin(eval_engine* engine, const eval_prompt* prompt, eval_generation* out)
{
    *out = (eval_generation){ .num_tokens = (int)prompt->num_tokens, .first_divergence = -1 };
    out->ids = calloc((size_t)prompt->num_tokens, sizeof *out->ids);
    return out->ids != NULL ? MODEL_OK : failed(engine, "out of memory");
}

static int end(int status, eval_generation* out)
{
    if (status != MODEL_OK) {
        free(out->ids);
        free(out->kl);
        *out = (eval_generation){ .first_divergence = -1 };
    }
    return status;
}

int eval_generate_base(eval_engine* engine, const eval_prompt* prompt, eval_generation* out)
{
    static const char* const f16 = "f16";
    int status = begin(engine, prompt, out);
    if (status == MODEL_OK) { status = generate(engine, f16, prompt, out); }
    if (status == MODEL_OK) { status = follow(engine, f16, prompt, out, NULL); }
    return end(status, out);
}

int eval_generate(eval_engine* engine, const char* cache, const eval_prompt* prompt,
                  const eval_generation* base, eval_generation* out)
{
    int status = begin(engine, prompt, out);
    if (status == MODEL_OK) { status = generate(engine, cache, prompt, out); }
    for (int i = out->num_tokens - 1; status == MODEL_OK && i >= 0; i--) {
        if (out->ids[i] != base->ids[i]) { out->first_divergence = i; }
    }
    if (status == MODEL_OK) { status = follow(engine, cache, prompt, base, out); }
    return end(status, out);
}
