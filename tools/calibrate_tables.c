// calibrate_tables.c -- the list of derivations beside those of the library.
//
// An entry names the table, and the stage and word that ask for it where they matter; its function
// fills out [num_kv_heads, shape] from kvl_statistics_get and kvl_statistics_sample, or says in
// args->message what is missing.

#include "calibrate_tables.h"

#include "calibrate_transforms.h"

#define BASIS(word) \
    { "transform", word, word "_forward", calibrate_basis, NULL }, \
    { "transform", word, word "_query", calibrate_basis, NULL }

static const kvl_derivation derivations[] = {
    BASIS("balance"),
    BASIS("balance_output"),
    BASIS("eigen"),
    BASIS("whiten"),
    BASIS("flat"),
    { "round", NULL, "feedback_order", calibrate_feedback, NULL },
    { "round", NULL, "feedback_factor", calibrate_feedback, NULL },
    { "round", NULL, "feedback_price", calibrate_feedback, NULL },
    { "meta", NULL, "log4_base", calibrate_base, NULL },
};

const kvl_derivation* calibrate_derivations(int* num)
{
    *num = (int)(sizeof derivations / sizeof derivations[0]);
    return derivations;
}
