// test_cuda_model.c -- a whole model with its cache and attention on a device.
//
// The models are those of tiny_model.h, the device is the stand-in of tests/ptxsim or, with
// KVLOOM_TEST_GPU=1, the machine's own.  Logits are compared with those of the same model on the
// reference, which test_model compares with an independent forward pass.

#include "model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <unistd.h>

#include "tiny_model.h"

#include "sim_library.h"

enum { STEPS = 16 };

static int best_of(const float* logits)
{
    int best = 0;
    for (int i = 1; i < VOCAB; ++i)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static model_session* open_on(const model* m, kvl_target target, const char* spec,
                              kvl_context** ctx)
{
    kvl_context_desc desc = { .target = target, .num_threads = 2 };
    cr_assert_eq(kvl_context_create(&desc, ctx), KVL_OK, "%s", kvl_context_message(*ctx));
    return open_session(m, (model_session_desc){ .ctx = *ctx, .spec = spec, .batch_len = 7 });
}

// Both sessions are given the device's tokens.  Weights and activations are the same floats on
// both; attention in float32 differs by rounding, 1e-5 of outputs of size 1.
static void check_model(const tiny* which, const char* spec)
{
    kvl_context *cuda, *reference;
    model* m = open_model(which, NULL);
    model_session* a = open_on(m, KVL_TARGET_CUDA, spec, &cuda);
    model_session* b = open_on(m, KVL_TARGET_REFERENCE, spec, &reference);
    int32_t ids[NUM_TOKENS];
    float x[VOCAB], y[VOCAB];
    fill_tokens(ids);
    cr_assert_eq(model_prefill(a, ids, NUM_TOKENS, x), MODEL_OK, "%s", model_session_message(a));
    cr_assert_eq(model_prefill(b, ids, NUM_TOKENS, y), MODEL_OK, "%s", model_session_message(b));
    for (int step = 0; step < STEPS; ++step) {
        double worst = 0;
        for (int i = 0; i < VOCAB; ++i) worst = fmax(worst, fabs((double)x[i] - (double)y[i]));
        cr_assert(worst <= 1e-3, "%s, %s, step %d: logits differ by %g", which->arch, spec, step,
                  worst);
        const int32_t id = best_of(x);
        cr_assert_eq(id, best_of(y), "%s, %s, step %d: another token", which->arch, spec, step);
        cr_assert_eq(model_step(a, id, x), MODEL_OK, "%s", model_session_message(a));
        cr_assert_eq(model_step(b, id, y), MODEL_OK, "%s", model_session_message(b));
    }
    model_session_free(a);
    model_session_free(b);
    model_close(m);
    kvl_context_destroy(cuda);
    kvl_context_destroy(reference);
}

// Skips the test where nothing can make kernels.
static void need_nvrtc(void)
{
    char message[512] = "";
    kvl_context_desc desc = { .target = KVL_TARGET_CUDA, .num_threads = 1 };
    kvl_layer_desc layer = { .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 32 };
    kvl_cache_desc caches = { .num_layers = 1, .layers = &layer };
    kvl_context* ctx = NULL;
    kvl_cache* cache = NULL;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK, "%s", kvl_context_message(ctx));
    if (kvl_cache_create(ctx, &caches, &cache) != KVL_OK)
        snprintf(message, sizeof message, "%s", kvl_context_message(ctx));
    kvl_cache_free(cache);
    kvl_context_destroy(ctx);
    if (strncmp(message, "no NVRTC", 8) == 0) cr_skip_test("no NVRTC");
    cr_assert(message[0] == '\0', "%s", message);
}

// Broken by a row that is copied to the wrong place, or a call that is out of order.
Test(cuda_model, sixteen_tokens_of_two_layers)
{
    if (sim_is_wanted()) sim_load("sm_99");
    need_nvrtc();
    check_model(&models[0], "kivi:k4,v4,g16,sink=2,recent=4");
    check_model(&models[2], "f16");
}
