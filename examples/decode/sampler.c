// sampler.c -- picks the next token from logits.

#include "sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

struct sampler {
    sampler_options options;
    int vocab_size;
    uint64_t state;
    int32_t recent[SAMPLER_RECENT];  // a ring
    int64_t num_accepted;
    candidate* candidates;           // [vocab_size]
};

// splitmix64 (Steele, Lea, Flood 2014), its top 53 bits as a number in [0, 1).
static double next_uniform(sampler* s)
{
    s->state += 0x9e3779b97f4a7c15u;
    uint64_t z = s->state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (double)(z >> 11) / 9007199254740992.0;
}

sampler* sampler_create(const sampler_options* options, int vocab_size)
{
    sampler* s = calloc(1, sizeof *s);
    if (s == NULL) { return NULL; }
    s->options = *options;
    s->vocab_size = vocab_size;
    s->state = options->seed;
    s->candidates = calloc((size_t)vocab_size, sizeof *s->candidates);
    if (s->candidates == NULL) {
        free(s);
        return NULL;
    }
    return s;
}

void sampler_destroy(sampler* s)
{
    if (s == NULL) { return; }
    free(s->candidates);
    free(s);
}

void sampler_accept(sampler* s, int32_t id)
{
    s->recent[s->num_accepted++ % SAMPLER_RECENT] = id;
}

static void penalize(sampler* s, float* logits)
{
    const float penalty = s->options.repeat_penalty;
    const int count = s->num_accepted < SAMPLER_RECENT ? (int)s->num_accepted : SAMPLER_RECENT;
    if (penalty == 1.0f) { return; }
    for (int i = 0; i < count; i++) {
        const int32_t id = s->recent[i];
        int earlier = 0;
        while (s->recent[earlier] != id) { earlier++; }
        if (earlier < i || id < 0 || id >= s->vocab_size) { continue; }  // each token once
        logits[id] = logits[id] > 0.0f ? logits[id] / penalty : logits[id] * penalty;
    }
}

static int32_t best_of(const float* logits, int n)
{
    int32_t best = 0;
    for (int i = 1; i < n; i++) {
        if (logits[i] > logits[best]) { best = i; }
    }
    return best;
}

static int is_better(const candidate* a, const candidate* b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static int compare(const void* a, const void* b)
{
    return is_better(a, b) ? -1 : 1;
}

// heap [count]: the worst on top. Lets heap[at] sink to its place.
static void sink(candidate* heap, int count, int at)
{
    for (;;) {
        int worst = at;
        for (int child = 2 * at + 1; child <= 2 * at + 2 && child < count; child++) {
            if (is_better(&heap[worst], &heap[child])) { worst = child; }
        }
        if (worst == at) { return; }
        const candidate moved = heap[at];
        heap[at] = heap[worst];
        heap[worst] = moved;
        at = worst;
    }
}

// Fills candidates with the best top_k tokens, best first; returns how many.
static int choose_top_k(sampler* s, const float* logits)
{
    candidate* heap = s->candidates;
    const int top_k = s->options.top_k;
    const int count = top_k > 0 && top_k < s->vocab_size ? top_k : s->vocab_size;
    for (int i = 0; i < count; i++) { heap[i] = (candidate){ logits[i], i }; }
    if (count == s->vocab_size && s->options.top_p >= 1.0f) { return count; }  // no order is needed
    if (count < s->vocab_size) {
        for (int i = count / 2; i-- > 0;) { sink(heap, count, i); }
    }
    for (int i = count; i < s->vocab_size; i++) {
        const candidate next = { logits[i], i };
        if (is_better(&next, &heap[0])) {
            heap[0] = next;
            sink(heap, count, 0);
        }
    }
    qsort(heap, (size_t)count, sizeof *heap, compare);
    return count;
}

static int choose_top_p(const sampler* s, int count)
{
    const candidate* best = s->candidates;
    double sum = 0.0, held = 0.0;
    if (s->options.top_p >= 1.0f) { return count; }
    for (int i = 0; i < count; i++) { sum += exp((double)best[i].logit - best[0].logit); }
    for (int i = 0; i < count; i++) {
        held += exp((double)best[i].logit - best[0].logit);
        if (held >= (double)s->options.top_p * sum) { return i + 1; }
    }
    return count;
}

int32_t sampler_pick(sampler* s, float* logits)
{
    int wrong = 0;
    for (int i = 0; i < s->vocab_size; i++) { wrong |= !(fabsf(logits[i]) <= FLT_MAX); }
    if (wrong) { return -1; }
    penalize(s, logits);
    if (s->options.temperature <= 0.0f) { return best_of(logits, s->vocab_size); }
    const int count = choose_top_p(s, choose_top_k(s, logits));
    const candidate* chosen = s->candidates;
    const double temperature = (double)s->options.temperature;
    double max = chosen[0].logit, sum = 0.0;
    for (int i = 1; i < count; i++) { max = chosen[i].logit > max ? chosen[i].logit : max; }
    for (int i = 0; i < count; i++) { sum += exp((chosen[i].logit - max) / temperature); }
    double left = next_uniform(s) * sum;
    for (int i = 0; i < count; i++) {
        left -= exp((chosen[i].logit - max) / temperature);
        if (left < 0.0) { return chosen[i].id; }
    }
    return best_of(logits, s->vocab_size);  // rounding has left a rest
}
