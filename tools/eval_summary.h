// eval_summary.h -- what the windows of a cache come to.

#ifndef KVLOOM_EVAL_SUMMARY_H
#define KVLOOM_EVAL_SUMMARY_H

#include "eval_results.h"

// Fills kl ... perplexity_diff_se and the list of the worst of each cache, and base_perplexity,
// from the windows that are done. Returns false when memory is out.
bool eval_summarise(eval_results* results);

#endif
