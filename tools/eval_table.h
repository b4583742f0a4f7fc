// eval_table.h -- results as text for a terminal, or as Markdown.

#ifndef KVLOOM_EVAL_TABLE_H
#define KVLOOM_EVAL_TABLE_H

#include <stdio.h>

#include "eval_results.h"

// One row a cache, in the order given; then what does not fit a row.
void eval_table_print(FILE* out, const eval_results* results, bool markdown);

#endif
