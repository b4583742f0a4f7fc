// eval_speed.c -- times steps.

#include "eval_speed.h"

#include "eval_engine.h"

enum { MAX_STEPS = 24, MIN_STEPS = 3 };

static const double enough_seconds = 0.7;

// Steps until enough time has passed. The first one, which finds caches cold, is not counted.
static int time_steps(model_session* s, float* logits, double* tokens_per_second)
{
    int status = model_step(s, 0, logits);
    const double start = eval_seconds();
    double passed = 0.0;
    int steps = 0;
    while (status == MODEL_OK && steps < MAX_STEPS &&
           (steps < MIN_STEPS || passed < enough_seconds)) {
        status = model_step(s, 0, logits);
        passed = eval_seconds() - start;
        steps++;
    }
    *tokens_per_second = passed > 0.0 ? steps / passed : 0.0;
    return status;
}

int eval_speed_measure(model_session* s, float* logits, bool lengths, eval_cache* cache)
{
    static const int64_t all_rows[] = { 4096, 16384, EVAL_SPEED_MOST_ROWS };
    int status = time_steps(s, logits, &cache->tokens_per_second);
    cache->num_speeds = 0;
    for (size_t i = 0; lengths && i < sizeof all_rows / sizeof all_rows[0]; i++) {
        if (status != MODEL_OK || all_rows[i] < model_session_length(s)) { continue; }
        status = model_session_repeat(s, all_rows[i]);
        if (status != MODEL_OK) { break; }
        eval_speed* speed = &cache->speeds[cache->num_speeds++];
        speed->rows = all_rows[i];
        status = time_steps(s, logits, &speed->tokens_per_second);
    }
    return status;
}
