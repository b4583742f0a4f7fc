// kvl_pack.h -- kernel packs: programs' texts and binaries that were made ahead of time.
//
// A pack is a table that kvloom-pack writes as a header.  Its entries are found by the hash of a
// configuration, since where a pack is all there is, nothing can write the program's text.  A pack
// of another version, or of other generators than this build's, is said once and passed over; an
// entry whose bytes do not have their checksum is a miss.

#ifndef KVL_PACK_H
#define KVL_PACK_H

#include "kvl_args.h"
#include "kvl_device_args.h"
#include "kvl_disk.h"
#include "kvl_isa.h"
#include "kvl_lua.h"

enum { KVL__PACKS_MAX = 64 };

// The configuration of a program.
KVL__FN kvl__hash kvl__config_hash(const kvl__field* fields, int num_fields)
{
    kvl__hash hash = kvl__hash_bytes(NULL, 0);
    for (int i = 0; i < num_fields; ++i) {
        hash = kvl__hash_join_text(hash, fields[i].name);
        if (fields[i].text) hash = kvl__hash_join_text(hash, fields[i].text);
        else hash = kvl__hash_join(hash, &fields[i].value, sizeof fields[i].value);
        const unsigned char is_text = fields[i].text != NULL;
        hash = kvl__hash_join(hash, &is_text, 1);
    }
    return hash;
}

// Generators and templates, all of them; nothing where there are none.
KVL__FN kvl__hash kvl__generator_hash(void)
{
    kvl__hash hash = kvl__hash_bytes(NULL, 0);
#ifndef KVLOOM_NO_LUA
    for (size_t i = 0; kvl__text_at(i); ++i) {
        hash = kvl__hash_join_text(hash, kvl__text_at(i)->path);
        for (const char* const* line = kvl__text_at(i)->lines; *line; ++line)
            hash = kvl__hash_join(hash, *line, strlen(*line));
    }
#endif
    return hash;
}

KVL__FN kvl__hash kvl__lines_hash(const char* const* lines)
{
    kvl__hash hash = kvl__hash_bytes(NULL, 0);
    for (; *lines; ++lines) hash = kvl__hash_join(hash, *lines, strlen(*lines));
    return hash;
}

KVL__FN kvl__hash kvl__hash_of_words(const uint64_t words[2])
{
    kvl__hash hash;
    hash.low = words[0];
    hash.high = words[1];
    return hash;
}

// Why a pack cannot be used; NULL: it can.  generator: of this build; NULL: it has none.
KVL__FN const char* kvl__pack_fault(const kvl_pack* pack, const kvl__hash* generator)
{
    if (!pack) return "it is NULL";
    if (pack->format != KVL_PACK_FORMAT) return "it has another format";
    if (!pack->version || strcmp(pack->version, KVLOOM_VERSION) != 0)
        return "it was made by another version of kvloom";
    if (pack->host_abi != KVL__ABI || pack->device_abi != KVL__DEVICE_ABI)
        return "its kernels have another interface";
    if (pack->num_entries < 0 || (pack->num_entries > 0 && !pack->entries))
        return "it has no entries";
    if (generator && !kvl__hash_equal(kvl__hash_of_words(pack->generator), *generator))
        return "it was made from other generators and templates than this build has";
    return NULL;
}

// Keeps the packs that can be used.
KVL__FN kvl_status kvl__packs_create(kvl_context* ctx, const kvl_pack* const* packs, int num)
{
    KVL__REQUIRE(ctx, num >= 0 && num <= KVL__PACKS_MAX && (num == 0 || packs), KVL_BAD_ARGUMENT,
                 "num_packs = %d: must be 0 to %d, with packs", num, KVL__PACKS_MAX);
    if (num == 0) return KVL_OK;
    ctx->packs = (const kvl_pack**)kvl__alloc_zeroed(ctx, (size_t)num * sizeof *ctx->packs);
    KVL__REQUIRE(ctx, ctx->packs, KVL_NO_MEMORY, "no memory for the list of packs");
    ctx->packs_room = num;
    const kvl__hash generator = kvl__generator_hash();
#ifdef KVLOOM_NO_LUA
    const kvl__hash* own = NULL;
    (void)generator;
#else
    const kvl__hash* own = &generator;
#endif
    for (int i = 0; i < num; ++i) {
        const char* fault = kvl__pack_fault(packs[i], own);
        if (fault) kvl__say(ctx, KVL_LOG_WARNING, "kernel pack %d: %s; it is not used", i, fault);
        else ctx->packs[ctx->num_packs++] = packs[i];
    }
    return KVL_OK;
}

KVL__FN void kvl__packs_destroy(kvl_context* ctx)
{
    kvl__free(ctx, (void*)ctx->packs, (size_t)ctx->packs_room * sizeof *ctx->packs);
    ctx->packs = NULL;
    ctx->num_packs = ctx->packs_room = 0;
}

// How well a binary's architecture serves: 0 not at all, else the more the better.  A cubin runs on
// later devices of the same major version, PTX on every later device; a host's lower instruction
// sets serve where the processor has them.
KVL__FN int kvl__pack_rank(const kvl_context* ctx, const char* arch)
{
    int sm = 0;
    if (ctx->target != KVL_TARGET_CUDA) return kvl__isa_rank(arch, ctx->isa);
    if (sscanf(arch, "sm_%d", &sm) == 1)
        return sm / 10 == ctx->sm / 10 && sm <= ctx->sm ? 1000 + sm : 0;
    return sscanf(arch, "compute_%d", &sm) == 1 && sm <= ctx->sm ? sm : 0;
}

KVL__FN int kvl__pack_entry_is_whole(kvl_context* ctx, const kvl_pack_entry* e)
{
    const int text = e->arch && e->arch[0] == '\0';
    const int there = text ? e->lines != NULL : e->bytes && e->num_bytes > 0;
    if (there && kvl__hash_equal(kvl__hash_of_words(e->check),
                                 text ? kvl__lines_hash(e->lines)
                                      : kvl__hash_bytes(e->bytes, e->num_bytes))) return 1;
    kvl__say(ctx, KVL_LOG_WARNING, "kernel pack: %s %s is damaged; it is not used",
             text ? "the text of" : e->arch ? e->arch : "", e->name ? e->name : "an entry");
    return 0;
}

// The binary of a configuration that serves best, below a rank (0: whatever rank); NULL: none.
KVL__FN const kvl_pack_entry* kvl__pack_binary(kvl_context* ctx, kvl__hash config, int below,
                                               int* rank)
{
    const kvl_pack_entry* best = NULL;
    *rank = 0;
    for (int p = 0; p < ctx->num_packs; ++p) {
        for (int i = 0; i < ctx->packs[p]->num_entries; ++i) {
            const kvl_pack_entry* e = &ctx->packs[p]->entries[i];
            if (!e->arch || !e->arch[0]
                || !kvl__hash_equal(kvl__hash_of_words(e->config), config)) continue;
            const int own = kvl__pack_rank(ctx, e->arch);
            if (own <= *rank || (below && own >= below)) continue;
            if (!kvl__pack_entry_is_whole(ctx, e)) continue;
            *rank = own;
            best = e;
        }
    }
    return best;
}

// The text of a configuration, from the context's allocator; NULL: no pack has it, or no memory.
KVL__FN char* kvl__pack_text(kvl_context* ctx, kvl__hash config, size_t* text_bytes)
{
    const kvl_pack_entry* found = NULL;
    for (int p = 0; p < ctx->num_packs && !found; ++p) {
        for (int i = 0; i < ctx->packs[p]->num_entries && !found; ++i) {
            const kvl_pack_entry* e = &ctx->packs[p]->entries[i];
            if (e->arch && !e->arch[0] && kvl__hash_equal(kvl__hash_of_words(e->config), config)
                && kvl__pack_entry_is_whole(ctx, e)) found = e;
        }
    }
    if (!found) return NULL;
    size_t bytes = 0;
    for (const char* const* line = found->lines; *line; ++line) bytes += strlen(*line);
    char* text = (char*)kvl__alloc(ctx, bytes + 1);
    if (!text) return NULL;
    *text_bytes = bytes;
    bytes = 0;
    for (const char* const* line = found->lines; *line; ++line) {
        const size_t n = strlen(*line);
        memcpy(text + bytes, *line, n);
        bytes += n;
    }
    text[bytes] = '\0';
    return text;
}

#endif
