// test_pack.c -- kernel packs: found by configuration and architecture; damage and strangers.
//
// Breaks when a pack's program is not taken, when one is taken that must not be, or when a miss
// does not go on to the other ways.  Packs are made here, of binaries that a fake loader knows.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "kvl_context.h"

#include <criterion/criterion.h>

static char said[KVL__MESSAGE_BYTES];
static int num_said, num_compiles;
static kvl__program loaded_as[4];            // what the fake loader returns, by a binary's mark

static void say(kvl_log_level level, const char* message, void* user)
{
    (void)user;
    if (level == KVL_LOG_INFO) return;
    ++num_said;
    snprintf(said, sizeof said, "%s", message);
}

// FAKES: a binary of 64 bytes whose first one says which program it is; 'x' is refused.

static kvl_status fake_generate(kvl_context* ctx, const kvl__field* fields, int num_fields,
                                char** text, size_t* text_bytes)
{
    (void)fields, (void)num_fields;
    *text = kvl__copy_text(ctx, "generated\n");
    *text_bytes = strlen(*text);
    return KVL_OK;
}

static kvl_status fake_identify(kvl_context* ctx, char* text, size_t size)
{
    (void)ctx;
    snprintf(text, size, "fake");
    return KVL_OK;
}

static char compiled_text[256];

static kvl_status fake_compile(kvl_context* ctx, const kvl__compile_job* job,
                               unsigned char** binary, size_t* num_bytes)
{
    ++num_compiles;
    snprintf(compiled_text, sizeof compiled_text, "%.*s", (int)job->text_bytes, job->text);
    *num_bytes = 64;
    *binary = (unsigned char*)kvl__alloc_zeroed(ctx, 64);
    **binary = '3';
    return KVL_OK;
}

static kvl_status fake_load(kvl_context* ctx, const char* path, const unsigned char* bytes,
                            size_t num_bytes, kvl__loaded* loaded, char* fault)
{
    (void)ctx, (void)path;
    memset(loaded, 0, sizeof *loaded);
    loaded->fd = -1;
    cr_assert_eq(num_bytes, 64);
    if (bytes[0] == 'x') {
        snprintf(fault, 256, "it is refused");
        return KVL_COMPILE;
    }
    loaded->program = &loaded_as[bytes[0] - '0'];
    return KVL_OK;
}

static const kvl__field fields[2] = { { "k.bits", NULL, 2 }, { "isa", "any", 0 } };
static unsigned char binaries[4][64];
static kvl_pack_entry entries[4];

static void words(uint64_t to[2], kvl__hash from)
{
    to[0] = from.low;
    to[1] = from.high;
}

// A pack of binaries for architectures, each with the mark of its place.
static kvl_pack pack_of(const char* const* archs, int num)
{
    kvl_pack pack;
    memset(&pack, 0, sizeof pack);
    pack.format = KVL_PACK_FORMAT;
    pack.host_abi = KVL__ABI;
    pack.device_abi = KVL__DEVICE_ABI;
    pack.version = KVLOOM_VERSION;
    words(pack.generator, kvl__generator_hash());
    pack.num_entries = num;
    pack.entries = entries;
    for (int i = 0; i < num; ++i) {
        memset(binaries[i], 0, 64);
        binaries[i][0] = (unsigned char)('0' + i);
        memset(&entries[i], 0, sizeof entries[i]);
        words(entries[i].config, kvl__config_hash(fields, 2));
        words(entries[i].check, kvl__hash_bytes(binaries[i], 64));
        entries[i].name = "test";
        entries[i].arch = archs[i];
        entries[i].bytes = binaries[i];
        entries[i].num_bytes = 64;
    }
    return pack;
}

static kvl_context* context_with(const kvl_pack* pack)
{
    kvl_context_desc desc;
    kvl_context* ctx;
    memset(&desc, 0, sizeof desc);
    desc.target = KVL_TARGET_HOST;
    desc.num_threads = 1;
    desc.cache_dir = "";
    desc.isa = "portable";
    desc.log.call = say;
    desc.packs = &pack;
    desc.num_packs = 1;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK, "%s", kvl_context_message(ctx));
    ctx->programs->generate = fake_generate;
    ctx->programs->identify = fake_identify;
    ctx->programs->compile = fake_compile;
    ctx->programs->load = fake_load;
    return ctx;
}

// Which program a context gets, and from where.
static long get(kvl_context* ctx, const char** where)
{
    const kvl__program* program = NULL;
    cr_assert_eq(kvl__program_get(ctx, "test", fields, 2, &program, where), KVL_OK, "%s",
                 kvl_context_message(ctx));
    return program - loaded_as;
}

static void expect(kvl_context* ctx, long program, const char* from)
{
    const char* where;
    cr_assert_eq(get(ctx, &where), program);
    cr_assert_str_eq(where, from);
    cr_assert_eq(get(ctx, &where), program);
    cr_assert_str_eq(where, "memory");
    kvl_context_destroy(ctx);
}

static const char* const two[] = { "avx2", "portable" };

Test(pack, found_by_architecture)
{
    const kvl_pack pack = pack_of(two, 2);
    expect(context_with(&pack), 1, "pack");
    cr_assert_eq(num_compiles, 0);
    cr_assert_eq(num_said, 0);
}

Test(pack, missed_without_its_architecture)
{
    const kvl_pack pack = pack_of(two, 1);
    expect(context_with(&pack), 3, "compiled");
    cr_assert_str_eq(compiled_text, "generated\n");
    cr_assert_eq(num_said, 0);
}

Test(pack, missed_with_another_configuration)
{
    const kvl_pack pack = pack_of(two, 2);
    ++entries[1].config[0];
    expect(context_with(&pack), 3, "compiled");
}

Test(pack, damage_is_said_and_missed)
{
    const kvl_pack pack = pack_of(two, 2);
    binaries[1][40] ^= 1;
    expect(context_with(&pack), 3, "compiled");
    cr_assert_geq(num_said, 1);
    cr_assert(strstr(said, "portable test is damaged"), "%s", said);
}

Test(pack, a_binary_that_cannot_be_loaded)
{
    const kvl_pack pack = pack_of(two, 2);
    binaries[1][0] = 'x';
    words(entries[1].check, kvl__hash_bytes(binaries[1], 64));
    expect(context_with(&pack), 3, "compiled");
    cr_assert_str_eq(said, "kernel pack: test for portable: it is refused");
}

// A pack that was not made for this build is passed over as a whole.
Test(pack, strangers)
{
    static const char* const faults[] = {
        "another format", "another version", "another interface", "another interface",
        "other generators", "no entries" };
    for (int i = 0; i < 6; ++i) {
        kvl_pack pack = pack_of(two, 2);
        if (i == 0) pack.format = KVL_PACK_FORMAT + 1;
        if (i == 1) pack.version = "0.0.1";
        if (i == 2) pack.host_abi = KVL__ABI + 1;
        if (i == 3) pack.device_abi = KVL__DEVICE_ABI + 1;
        if (i == 4) ++pack.generator[1];
        if (i == 5) pack.entries = NULL;
        num_said = 0;
        expect(context_with(&pack), 3, "compiled");
        cr_assert_eq(num_said, 1, "%d", i);
        cr_assert(strstr(said, faults[i]) && strstr(said, "kernel pack 0: "), "%s", said);
    }
    kvl_pack none = pack_of(two, 0);
    none.entries = NULL;
    num_said = 0;
    expect(context_with(&none), 3, "compiled");
    cr_assert_eq(num_said, 0);
    expect(context_with(NULL), 3, "compiled");
    cr_assert(strstr(said, "it is NULL"), "%s", said);
}

// The text serves where there is no binary, in the generator's place.
Test(pack, texts)
{
    static const char* const lines[] = { "from\n", "the \"pack\"\n", NULL };
    kvl_pack pack = pack_of(two, 2);
    entries[1].arch = "";
    entries[1].bytes = NULL;
    entries[1].num_bytes = 0;
    entries[1].lines = lines;
    words(entries[1].check, kvl__lines_hash(lines));
    expect(context_with(&pack), 3, "compiled");
    cr_assert_str_eq(compiled_text, "from\nthe \"pack\"\n");
    ++entries[1].check[0];
    expect(context_with(&pack), 3, "compiled");
    cr_assert_str_eq(compiled_text, "generated\n");
    cr_assert_str_eq(said, "kernel pack: the text of test is damaged; it is not used");
}

// Where nothing can make a kernel, the message says that packs were looked at.
static kvl_status no_generator(kvl_context* ctx, const kvl__field* f, int num, char** text,
                               size_t* num_bytes)
{
    (void)f, (void)num;
    *text = NULL;
    *num_bytes = 0;
    return kvl__fail(ctx, KVL_NO_KERNEL, "no generator");
}

Test(pack, nothing_else)
{
    const kvl_pack pack = pack_of(two, 1);
    const kvl__program* program;
    kvl_context* ctx = context_with(&pack);
    ctx->programs->generate = no_generator;
    cr_assert_eq(kvl__program_get(ctx, "test", fields, 2, &program, NULL), KVL_NO_KERNEL);
    cr_assert_str_eq(kvl_context_message(ctx),
                     "no generator; no kernel pack has it for portable");
    kvl_context_destroy(ctx);
}

// Where nothing can make a kernel, the next lower instruction set's serves, and the log says so.
Test(pack, the_next_lower_instruction_set)
{
    const kvl__field lower[2] = { fields[0], { "isa", "portable", 0 } };
    const kvl_pack pack = pack_of(two, 2);
    kvl_context* ctx = context_with(&pack);
    const char* where;
    if (strcmp(kvl__isa_best()->name, "portable") == 0) cr_skip_test("there is no lower one");
    words(entries[0].config, kvl__config_hash(lower, 2));
    words(entries[1].config, kvl__config_hash(lower, 2));
    snprintf(ctx->isa, sizeof ctx->isa, "%s", kvl__isa_best()->name);
    cr_assert_eq(get(ctx, &where), 3);
    cr_assert_str_eq(where, "compiled");
    kvl_context_destroy(ctx);
    ctx = context_with(&pack);
    snprintf(ctx->isa, sizeof ctx->isa, "%s", kvl__isa_best()->name);
    ctx->programs->generate = no_generator;
    cr_assert_eq(get(ctx, &where), strcmp(ctx->isa, "neon") ? 0 : 1);
    cr_assert_str_eq(where, "pack");
    cr_assert(strstr(said, "test: there is nothing to make it for "), "%s", said);
    cr_assert_eq(get(ctx, &where), strcmp(ctx->isa, "neon") ? 0 : 1);
    cr_assert_str_eq(where, "memory");
    kvl_context_destroy(ctx);
}

// Cubins serve later devices of their major version, PTX every later one: the nearest first.
Test(pack, architectures_of_devices)
{
    static const struct { const char* arch; int sm, rank; } cases[] = {
        { "sm_80", 80, 1080 }, { "sm_80", 86, 1080 }, { "sm_86", 80, 0 }, { "sm_80", 90, 0 },
        { "sm_100", 103, 1100 }, { "sm_120", 121, 1120 }, { "sm_110", 120, 0 }, { "sm_75", 80, 0 },
        { "compute_75", 90, 75 }, { "compute_90", 90, 90 }, { "compute_90", 86, 0 },
        { "avx2", 90, 0 }, { "portable", 90, 0 } };
    kvl_context ctx;
    memset(&ctx, 0, sizeof ctx);
    ctx.target = KVL_TARGET_CUDA;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        ctx.sm = cases[i].sm;
        cr_assert_eq(kvl__pack_rank(&ctx, cases[i].arch), cases[i].rank, "case %zu", i);
    }
}

// A binary that the driver refuses is followed by the next best.
Test(pack, the_next_best)
{
    static const char* const archs[] = { "compute_75", "sm_80", "sm_86", "sm_90" };
    const kvl_pack pack = pack_of(archs, 4);
    kvl_context* ctx = context_with(&pack);
    const char* where;
    ctx->target = KVL_TARGET_CUDA;
    ctx->sm = 89;
    binaries[2][0] = 'x';
    words(entries[2].check, kvl__hash_bytes(binaries[2], 64));
    cr_assert_eq(get(ctx, &where), 1);
    cr_assert_str_eq(where, "pack");
    cr_assert(strstr(said, "for sm_86: it is refused"), "%s", said);
    kvl_context_destroy(ctx);
    ctx = context_with(&pack);
    ctx->target = KVL_TARGET_CUDA;
    ctx->sm = 100;
    cr_assert_eq(get(ctx, &where), 0);
    kvl_context_destroy(ctx);
}

Test(pack, bad_lists)
{
    kvl_context_desc desc;
    kvl_context* ctx;
    memset(&desc, 0, sizeof desc);
    desc.num_packs = 1;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_BAD_ARGUMENT);
    cr_assert(strstr(kvl_context_message(ctx), "num_packs = 1: must be 0 to 64, with packs"));
    kvl_context_destroy(ctx);
    desc.num_packs = -1;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_BAD_ARGUMENT);
    kvl_context_destroy(ctx);
}
