// eval_results.c -- frees results, and sums up the windows that are done.

#include "eval_results.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval_engine.h"
#include "eval_statistics.h"
#include "eval_summary.h"

static void free_cache(eval_cache* cache, int num_windows)
{
    for (int i = 0; cache->windows != NULL && i < num_windows; i++) {
        eval_window_free(&cache->windows[i]);
    }
    for (int i = 0; i < cache->num_layers; i++) {
        free(cache->layers[i].score_error);
        free(cache->layers[i].output_error);
    }
    for (int i = 0; i < cache->num_generations; i++) {
        free(cache->generations[i].ids);
        free(cache->generations[i].kl);
    }
    for (int i = 0; i < EVAL_MODULE_MODES; i++) { free(cache->module.error[i]); }
    free(cache->module.square);
    free(cache->windows);
    free(cache->layers);
    free(cache->generations);
    free(cache->cache);
    free(cache->canonical);
    free(cache->description);
}

void eval_results_free(eval_results* results)
{
    for (int i = 0; results->caches != NULL && i < results->num_caches; i++) {
        free_cache(&results->caches[i], results->num_windows);
    }
    for (int i = 0; results->base_nll != NULL && i < results->num_windows; i++) {
        free(results->base_nll[i]);
    }
    free_cache(&results->base, results->num_windows);
    free(results->base_nll);
    free(results->caches);
    free(results->command);
    free(results->model);
    free(results->calibration);
    free(results->text);
    memset(results, 0, sizeof *results);
}

// SUMMARY

static double mean_of_floats(const float* x, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) { sum += (double)x[i]; }
    return sum / (double)n;
}

// Means of each window that is done. Windows have the same number of positions.
typedef struct window_means {
    double *kl, *nll, *nll_base;  // [num_windows], the first `count` are filled
    float* all;                   // [num_windows * num_positions] every KL
    int count;
    int64_t num_same, num_all;    // positions with the same most probable token
} window_means;

static void add_window(const eval_results* results, const eval_window* window, const float* base,
                       window_means* means)
{
    const int64_t n = results->num_positions;
    means->kl[means->count] = mean_of_floats(window->kl, n);
    means->nll[means->count] = mean_of_floats(window->nll, n);
    means->nll_base[means->count] = mean_of_floats(base, n);
    memcpy(means->all + means->num_all, window->kl, (size_t)n * sizeof(float));
    for (int64_t i = 0; i < n; i++) { means->num_same += window->top1[i]; }
    means->num_all += n;
    means->count++;
}

static void summarise_cache(const eval_results* results, eval_cache* cache, window_means* means)
{
    means->count = 0;
    means->num_same = means->num_all = 0;
    cache->num_worst = 0;
    for (int w = 0; w < results->num_windows; w++) {
        const eval_window* window = &cache->windows[w];
        if (!window->done) { continue; }
        add_window(results, window, results->base_nll[w], means);
        for (int i = 0; i < window->num_worst; i++) {
            eval_worst_add(cache->worst, &cache->num_worst, &window->worst[i]);
        }
    }
    const eval_mean kl = eval_mean_of(means->kl, means->count);
    const eval_perplexity perplexity =
        eval_perplexity_of(means->nll, means->nll_base, means->count);
    const double nan = (double)NAN;
    const int done = means->count > 0;
    cache->num_done = means->count;
    cache->kl = kl.mean;
    cache->kl_se = kl.standard_error;
    cache->kl_median = eval_quantile(means->all, means->num_all, 0.5);
    cache->kl_p99 = eval_quantile(means->all, means->num_all, 0.99);
    cache->top1 = done ? (double)means->num_same / (double)means->num_all : nan;
    cache->perplexity = done ? perplexity.cache : nan;
    cache->perplexity_diff = done ? perplexity.diff : nan;
    cache->perplexity_diff_se = perplexity.diff_se;
}

bool eval_summarise(eval_results* results)
{
    const size_t n = (size_t)results->num_windows;
    double* numbers = malloc(3 * n * sizeof *numbers);
    float* all = malloc(n * (size_t)results->num_positions * sizeof *all);
    const bool ok = numbers != NULL && all != NULL;
    if (ok) {
        window_means means = { numbers, numbers + n, numbers + 2 * n, all, 0, 0, 0 };
        for (int i = 0; i < results->num_caches; i++) {
            summarise_cache(results, &results->caches[i], &means);
            results->interrupted |= results->caches[i].num_done < results->num_windows;
        }
        int count = 0;
        for (int w = 0; w < results->num_windows; w++) {
            if (results->base_nll[w] == NULL) { continue; }
            numbers[count++] = mean_of_floats(results->base_nll[w], results->num_positions);
        }
        results->base_perplexity = exp(eval_mean_of(numbers, count).mean);
    }
    free(all);
    free(numbers);
    return ok;
}
