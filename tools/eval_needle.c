// eval_needle.c -- makes and runs prompts with a hidden fact.

#include "eval_needle.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST_LENGTH = 96, MAX_ANSWER = 64 };

static const char* const names[] = { "Anders", "Beatrix", "Clement", "Dorothea", "Edmund",
                                     "Felicity", "Gregory", "Henrietta", "Isidore", "Josephine",
                                     "Konrad", "Leonora", "Matthias", "Nathalie", "Oswald",
                                     "Philippa", "Quentin", "Rosalind", "Sebastian", "Theodora" };

eval_needle_plan eval_needle_plan_for(int64_t context, uint64_t seed)
{
    eval_needle_plan plan = { .trials = 1, .seed = seed };
    for (int64_t divisor = 4; divisor >= 1; divisor /= 2) {
        if (context / divisor >= LEAST_LENGTH) {
            plan.lengths[plan.num_lengths++] = context / divisor;
        }
    }
    return plan;
}

// splitmix64: every seed gives an unrelated number.
static uint64_t draw(uint64_t* state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

// The parts of a prompt besides the text, as tokens.
typedef struct needle_parts {
    int32_t *fact, *question, *answer;
    size_t num_fact, num_question, num_answer;
} needle_parts;

static void free_parts(needle_parts* parts)
{
    free(parts->fact);
    free(parts->question);
    free(parts->answer);
}

static int encode_parts(const tokenizer* tok, uint64_t* state, needle_parts* parts)
{
    char fact[160], question[160], answer[16];
    const char* name = names[draw(state) % (sizeof names / sizeof names[0])];
    const int number = 10000 + (int)(draw(state) % 90000);
    snprintf(answer, sizeof answer, " %d", number);
    snprintf(fact, sizeof fact, "\nRemember this: the secret number of %s is%s.\n", name, answer);
    snprintf(question, sizeof question,
             "\nQuestion: What is the secret number of %s?\nAnswer: The secret number of %s is",
             name, name);
    *parts = (needle_parts){ .fact = NULL };
    int status = tokenizer_encode(tok, fact, strlen(fact), 0, &parts->fact, &parts->num_fact);
    if (status == TOKENIZER_OK) {
        status = tokenizer_encode(tok, question, strlen(question), 0, &parts->question,
                                  &parts->num_question);
    }
    if (status == TOKENIZER_OK) {
        status = tokenizer_encode(tok, answer, strlen(answer), 0, &parts->answer,
                                  &parts->num_answer);
    }
    return status;
}

// Adds tokens to a prompt that has room for them.
static void add(eval_needle_prompt* out, const int32_t* ids, size_t count)
{
    if (count > 0) { memcpy(out->ids + out->count, ids, count * sizeof *ids); }
    out->count += (int64_t)count;
}

int eval_needle_make(const eval_needle_plan* plan, const eval_text* text, const tokenizer* tok,
                     int length, int depth, int trial, eval_needle_prompt* out, char* message,
                     size_t message_bytes)
{
    const int64_t whole = plan->lengths[length];
    const uint64_t cell = (uint64_t)((length * EVAL_DEPTHS + depth) * plan->trials + trial);
    uint64_t state = plan->seed * 0x2545f4914f6cdd1du + cell;
    needle_parts parts;
    *out = (eval_needle_prompt){ .ids = NULL };
    const int status = encode_parts(tok, &state, &parts);
    const int64_t added = (int64_t)(parts.num_fact + parts.num_question + parts.num_answer) + 1;
    const int64_t filler = whole - added;
    out->ids = status == TOKENIZER_OK ? malloc((size_t)whole * sizeof *out->ids) : NULL;
    const bool ok = out->ids != NULL && filler > 0 && filler <= text->count &&
                    parts.num_answer > 0 && parts.num_answer <= MAX_ANSWER;
    if (ok) {
        const int64_t from = (int64_t)(draw(&state) % (uint64_t)(text->count - filler + 1));
        const int64_t before = filler * depth / (EVAL_DEPTHS - 1);
        const int32_t* ids = text->ids + from;
        if (text->bos >= 0) { add(out, &text->bos, 1); }
        add(out, ids, (size_t)before);
        add(out, parts.fact, parts.num_fact);
        add(out, ids + before, (size_t)(filler - before));
        add(out, parts.question, parts.num_question);
        add(out, parts.answer, parts.num_answer);
        out->answer = (int64_t)parts.num_answer;
    } else {
        snprintf(message, message_bytes, "a needle in %lld tokens: %s", (long long)whole,
                 status != TOKENIZER_OK ? tokenizer_status_text(status)
                                        : "the text or the length is too short for it");
        free(out->ids);
        out->ids = NULL;
    }
    free_parts(&parts);
    return ok ? MODEL_OK : MODEL_FAILED;
}

int eval_needle_run(eval_engine* engine, const char* cache, const eval_needle_prompt* prompt,
                    bool* hit)
{
    int32_t best[MAX_ANSWER];
    model_session* s = NULL;
    const int64_t first = prompt->count - prompt->answer;
    *hit = false;
    engine->prompt_len = first;
    int status = eval_engine_open(engine, cache, 0, &s);
    if (status == MODEL_OK) { status = eval_engine_pass(engine, s, prompt->ids, prompt->count, 1); }
    if (status == MODEL_OK) {
        status = eval_engine_best(engine, s, 1, first - 1, prompt->answer, best);
    }
    model_session_free(s);
    if (status == MODEL_OK) {
        *hit = memcmp(best, prompt->ids + first, (size_t)prompt->answer * sizeof *best) == 0;
    }
    return status;
}
