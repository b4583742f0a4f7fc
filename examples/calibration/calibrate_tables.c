// calibrate_tables.c -- the list of derivations beside those of the library.
//
// An entry names the table, and the stage and word that ask for it where they matter; its function
// fills out [num_kv_heads, shape] from kvl_statistics_get and kvl_statistics_sample, or says in
// args->message what is missing.

#include "calibrate_tables.h"

#include "calibrate_transforms.h"

#include <string.h>

// OpenBLAS's; other libraries have none.
void openblas_set_num_threads(int num_threads) __attribute__((weak));

#define BASIS(word) \
    { "transform", word, word "_forward", calibrate_basis, NULL }, \
    { "transform", word, word "_query", calibrate_basis, NULL }

static const kvl_derivation derivations[] = {
    BASIS("balance"),
    BASIS("balance_output"),
    BASIS("eigen"),
    BASIS("eigen_layer"),
    BASIS("whiten"),
    BASIS("flat"),
    { "transform", "file", "file_forward", calibrate_learned, NULL },
    { "transform", "file", "file_query", calibrate_learned, NULL },
    { "round", NULL, "feedback_order", calibrate_feedback, NULL },
    { "round", NULL, "feedback_factor", calibrate_feedback, NULL },
    { "round", NULL, "feedback_price", calibrate_feedback, NULL },
    { "round", NULL, "feedback_cost", calibrate_feedback, NULL },
    { "meta", NULL, "log4_base", calibrate_base, NULL },
};

// Matrices of a head are small: OpenBLAS's threads would wait for each other.
static void use_one_thread(void)
{
    if (openblas_set_num_threads) openblas_set_num_threads(1);
}

const kvl_derivation* calibrate_derivations(int* num)
{
    use_one_thread();
    *num = (int)(sizeof derivations / sizeof derivations[0]);
    return derivations;
}

int calibrate_learning_derivations(calibrate_learn* learn,
                                   kvl_derivation out[CALIBRATE_MOST_DERIVATIONS])
{
    const int num = (int)(sizeof derivations / sizeof derivations[0]);
    use_one_thread();
    memcpy(out, derivations, sizeof derivations);
    for (int i = 0; i < num; ++i)
        if (out[i].derive == calibrate_learned || out[i].derive == calibrate_basis)
            out[i].user = learn;
    return num;
}
