// kvl_kernels.h -- configuration -> loaded program: memory, disk, compiler, in this order.
//
// A program is made once a key and context; threads that ask meanwhile wait for it.  The key is a
// hash of the program's text, the options in order, the architecture and what the compiler says it
// is, and of nothing else.  A failure is not remembered: the next call tries again.
//
// Host programs and kernels of a device go the same way; what differs is in the functions of
// kvl__programs.  A host program holds every kernel of a configuration, a program of a device one
// or several, which are found by name.
//
// Writing a program's text takes longer than loading its binary.  So the disk also notes, under a
// hash of the generator's own text and the configuration, the hash of the text that they gave:
// equal inputs give equal text, and a warm start generates nothing.
// The note also has the key itself: where there is no compiler, what an earlier one made is found.

#ifndef KVL_KERNELS_H
#define KVL_KERNELS_H

#include "kvl_compile.h"
#include "kvl_lua.h"
#include "kvl_nvrtc.h"
#include "kvl_pack.h"
#include "kvl_threads.h"

// A program that is loaded or being made.
typedef struct kvl__slot {
    struct kvl__slot* next;
    kvl__hash         key;
    int               ready, failed;
    int               users;             // threads that look at it while it is made
    kvl_status        status;
    kvl__loaded       loaded;
} kvl__slot;

// A configuration whose program is known.
typedef struct kvl__alias {
    struct kvl__alias* next;
    kvl__hash          config;
    kvl__slot*         slot;
} kvl__alias;

struct kvl__programs {
    pthread_mutex_t lock;                // guards everything below
    pthread_cond_t  changed;             // a slot became ready or failed
    kvl__slot*      slots;
    kvl__alias*     aliases;
    char            identity[KVL__IDENTITY_BYTES];   // "" until the compiler was asked
    int             num_compiles, num_disk_hits, num_generations;

    // What makes programs; tests put others in their place.
    kvl_status (*generate)(kvl_context*, const kvl__field*, int, char**, size_t*);
    kvl_status (*identify)(kvl_context*, char* text, size_t size);
    kvl_status (*aim)(kvl_context*, const char* identity, kvl__aim*);
    kvl_status (*compile)(kvl_context*, const kvl__compile_job*, unsigned char**, size_t*);
    // KVL_COMPILE: the binary cannot be loaded, and the text [256] says why.
    kvl_status (*load)(kvl_context*, const char* path, const unsigned char*, size_t, kvl__loaded*,
                       char*);
    void       (*unload)(kvl_context*, kvl__loaded*);
};

// THE HOST

KVL__FN kvl_status kvl__host_aim(kvl_context* ctx, const char* identity, kvl__aim* aim)
{
    const kvl__isa* isa = kvl__isa_find(ctx->isa);
    (void)identity;
    KVL__REQUIRE(ctx, isa, KVL_BAD_ARGUMENT, "isa = %s: unknown", ctx->isa);
    aim->num_options = kvl__options_for(isa, aim->options);
    aim->suffix = "so";
    snprintf(aim->arch, sizeof aim->arch, "%s", ctx->isa);
    return KVL_OK;
}

KVL__FN kvl_status kvl__host_load(kvl_context* ctx, const char* path, const unsigned char* bytes,
                                  size_t num_bytes, kvl__loaded* loaded, char* fault)
{
    (void)ctx;
    return kvl__load(path, bytes, num_bytes, loaded, fault) ? KVL_OK : KVL_COMPILE;
}

KVL__FN void kvl__host_unload(kvl_context* ctx, kvl__loaded* loaded)
{
    (void)ctx;
    kvl__unload(loaded);
}

// A DEVICE

KVL__FN kvl_status kvl__device_aim(kvl_context* ctx, const char* identity, kvl__aim* aim)
{
    int n = 0;
    KVL__TRY(kvl__cuda_arch(ctx, identity, aim->arch, sizeof aim->arch));
    for (; kvl__nvrtc_options[n]; ++n) aim->options[n] = kvl__nvrtc_options[n];
    snprintf(aim->arch_option, sizeof aim->arch_option, "-arch=%s", aim->arch);
    aim->options[n++] = aim->arch_option;
    if (kvl__arch_is_ptx(aim->arch)) aim->options[n++] = "--generate-line-info";
    aim->num_options = n;
    aim->suffix = kvl__arch_is_ptx(aim->arch) ? "ptx" : "cubin";
    return KVL_OK;
}

KVL__FN kvl_status kvl__device_load(kvl_context* ctx, const char* path, const unsigned char* bytes,
                                    size_t num_bytes, kvl__loaded* loaded, char* fault)
{
    (void)path;
    memset(loaded, 0, sizeof *loaded);
    loaded->fd = -1;
    return kvl__cuda_load(ctx, bytes, num_bytes, &loaded->module, fault);
}

KVL__FN void kvl__device_unload(kvl_context* ctx, kvl__loaded* loaded)
{
    kvl__cuda_unload(ctx, loaded->module);
    loaded->module = NULL;
}

// THE TABLE OF PROGRAMS

KVL__FN kvl_status kvl__programs_create(kvl_context* ctx)
{
    kvl__programs* p = (kvl__programs*)kvl__alloc_zeroed(ctx, sizeof *p);
    KVL__REQUIRE(ctx, p, KVL_NO_MEMORY, "no memory for the table of programs");
    if (pthread_mutex_init(&p->lock, NULL) != 0) {
        kvl__free(ctx, p, sizeof *p);
        return kvl__fail(ctx, KVL_NO_MEMORY, "no mutex for the table of programs");
    }
    if (pthread_cond_init(&p->changed, NULL) != 0) {
        pthread_mutex_destroy(&p->lock);
        kvl__free(ctx, p, sizeof *p);
        return kvl__fail(ctx, KVL_NO_MEMORY, "no condition for the table of programs");
    }
    const int device = ctx->target == KVL_TARGET_CUDA;
    p->generate = kvl__generate;
    p->identify = device ? kvl__nvrtc_identity : kvl__compiler_identity;
    p->aim = device ? kvl__device_aim : kvl__host_aim;
    p->compile = device ? kvl__nvrtc_compile : kvl__compile;
    p->load = device ? kvl__device_load : kvl__host_load;
    p->unload = device ? kvl__device_unload : kvl__host_unload;
    ctx->programs = p;
    return KVL_OK;
}

// Unloads every program.  No thread may be in kvl__program_get.
KVL__FN void kvl__programs_destroy(kvl_context* ctx)
{
    kvl__programs* p = ctx->programs;
    if (!p) return;
    while (p->aliases) {
        kvl__alias* alias = p->aliases;
        p->aliases = alias->next;
        kvl__free(ctx, alias, sizeof *alias);
    }
    while (p->slots) {
        kvl__slot* slot = p->slots;
        p->slots = slot->next;
        p->unload(ctx, &slot->loaded);
        kvl__free(ctx, slot, sizeof *slot);
    }
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    kvl__free(ctx, p, sizeof *p);
    ctx->programs = NULL;
}

KVL__FN kvl__hash kvl__key_of_text(kvl__hash key, const kvl__compile_job* job, const char* isa,
                                   const char* identity)
{
    for (int i = 0; i < job->num_options; ++i) key = kvl__hash_join_text(key, job->options[i]);
    return kvl__hash_join_text(kvl__hash_join_text(key, isa), identity);
}

KVL__FN kvl__hash kvl__program_key(const kvl__compile_job* job, const char* isa,
                                   const char* identity)
{
    return kvl__key_of_text(kvl__hash_bytes(job->text, job->text_bytes), job, isa, identity);
}

// Asks the compiler once a context.
KVL__FN kvl_status kvl__programs_identity(kvl_context* ctx, char* identity)
{
    kvl__programs* p = ctx->programs;
    pthread_mutex_lock(&p->lock);
    memcpy(identity, p->identity, KVL__IDENTITY_BYTES);
    pthread_mutex_unlock(&p->lock);
    if (identity[0]) return KVL_OK;
    KVL__TRY(p->identify(ctx, identity, KVL__IDENTITY_BYTES));
    pthread_mutex_lock(&p->lock);
    memcpy(p->identity, identity, KVL__IDENTITY_BYTES);
    pthread_mutex_unlock(&p->lock);
    return KVL_OK;
}

// Reads and loads a program from the disk.  KVL_NO_KERNEL: there is none that can be loaded.
KVL__FN kvl_status kvl__program_from_disk(kvl_context* ctx, const kvl__entry* entry,
                                          kvl__loaded* loaded)
{
    char fault[256] = "";
    size_t payload, held;
    unsigned char* bytes = kvl__disk_read(ctx, entry, &payload, &held);
    if (!bytes) return KVL_NO_KERNEL;
    const kvl_status status =
        ctx->programs->load(ctx, entry->path, bytes, payload, loaded, fault);
    if (status == KVL_COMPILE)
        kvl__say(ctx, KVL_LOG_WARNING, "kernel cache: %s: %s", entry->path, fault);
    kvl__free(ctx, bytes, held);
    if (status != KVL_OK) return status == KVL_COMPILE ? KVL_NO_KERNEL : status;
    pthread_mutex_lock(&ctx->programs->lock);
    ++ctx->programs->num_disk_hits;
    pthread_mutex_unlock(&ctx->programs->lock);
    return KVL_OK;
}

// Notes that the driver takes no cubins that are made here: from then on it is given PTX.
KVL__FN void kvl__note_refusal(kvl_context* ctx, const kvl__compile_job* job, const char* fault)
{
    if (!ctx->gpu || kvl__arch_is_ptx(job->arch)) return;
    if (__atomic_exchange_n(&ctx->gpu->takes_ptx, 1, __ATOMIC_ACQ_REL) == 0)
        kvl__say(ctx, KVL_LOG_WARNING, "%s: %s; kernels are given to the driver as PTX, which it "
                 "compiles itself", job->name, fault);
}

// Compiles, publishes and loads a program.  entry is NULL where there is no folder.
KVL__FN kvl_status kvl__program_compile(kvl_context* ctx, const kvl__compile_job* job,
                                        const kvl__entry* entry, kvl__loaded* loaded)
{
    char fault[256] = "";
    unsigned char* binary;
    size_t binary_bytes;
    const int64_t start = kvl__now_ms();
    pthread_mutex_lock(&ctx->programs->lock);
    ++ctx->programs->num_compiles;
    pthread_mutex_unlock(&ctx->programs->lock);
    KVL__TRY(ctx->programs->compile(ctx, job, &binary, &binary_bytes));
    kvl__say(ctx, KVL_LOG_INFO, "%s: compiled in %d ms", job->name,
             (int)(kvl__now_ms() - start));
    const int kept = entry && kvl__disk_write(ctx, entry, binary, binary_bytes, job->text,
                                              job->text_bytes);
    const kvl_status status = ctx->programs->load(ctx, kept ? entry->path : NULL, binary,
                                                  binary_bytes, loaded, fault);
    kvl__free(ctx, binary, binary_bytes);
    if (status != KVL_COMPILE) return status;
    kvl__note_refusal(ctx, job, fault);
    return kvl__fail(ctx, KVL_COMPILE, "%s: the compiled program cannot be loaded: %s", job->name,
                     fault);
}

// Makes a program that is not in memory.  Many processes may be here with one key: the one that has
// the lock compiles, the others find its entry.
KVL__FN kvl_status kvl__program_make(kvl_context* ctx, const kvl__compile_job* job, kvl__hash key,
                                     kvl__loaded* loaded, const char** where)
{
    kvl__entry entry;
    const int has_entry = kvl__entry_at(ctx, job->name, key, job->suffix, &entry);
    *where = "disk";
    kvl_status status = has_entry ? kvl__program_from_disk(ctx, &entry, loaded) : KVL_NO_KERNEL;
    if (status != KVL_NO_KERNEL) return status;
    const int lock = has_entry ? kvl__disk_lock(ctx, &entry, KVL__LOCK_WAIT_MS) : -1;
    if (has_entry) status = kvl__program_from_disk(ctx, &entry, loaded);
    if (status == KVL_NO_KERNEL) {
        *where = "compiled";
        status = kvl__program_compile(ctx, job, has_entry ? &entry : NULL, loaded);
    }
    if (has_entry) kvl__disk_unlock(&entry, lock);
    return status;
}

// The slot of a key, with this thread among its users; *mine is set if this thread must make it.
// NULL: no memory.  Call with the lock held.
KVL__FN kvl__slot* kvl__slot_enter(kvl_context* ctx, kvl__hash key, int* mine)
{
    kvl__programs* p = ctx->programs;
    *mine = 0;
    for (kvl__slot* slot = p->slots; slot; slot = slot->next) {
        if (!kvl__hash_equal(slot->key, key)) continue;
        ++slot->users;
        return slot;
    }
    kvl__slot* slot = (kvl__slot*)kvl__alloc_zeroed(ctx, sizeof *slot);
    if (!slot) return NULL;
    slot->key = key;
    slot->users = 1;
    slot->loaded.fd = -1;
    slot->next = p->slots;
    p->slots = slot;
    *mine = 1;
    return slot;
}

// Takes a slot that failed out of the list; its last user frees it.
KVL__FN void kvl__slot_remove(kvl__programs* p, const kvl__slot* slot)
{
    kvl__slot** at = &p->slots;
    while (*at != slot) at = &(*at)->next;
    *at = slot->next;
}

// Makes the program of a key, or waits for the thread that does.
KVL__FN kvl_status kvl__slot_get(kvl_context* ctx, const kvl__compile_job* job, kvl__hash key,
                                 kvl__slot** out, const char** where)
{
    kvl__programs* p = ctx->programs;
    int mine;
    *where = "memory";
    pthread_mutex_lock(&p->lock);
    kvl__slot* slot = kvl__slot_enter(ctx, key, &mine);
    if (slot && mine) {
        kvl__loaded loaded;
        pthread_mutex_unlock(&p->lock);
        const kvl_status made = kvl__program_make(ctx, job, key, &loaded, where);
        pthread_mutex_lock(&p->lock);
        slot->status = made;
        if (made == KVL_OK) {
            slot->loaded = loaded;
            slot->ready = 1;
        } else {
            slot->failed = 1;
            kvl__slot_remove(p, slot);
        }
        pthread_cond_broadcast(&p->changed);
    }
    while (slot && !slot->ready && !slot->failed) pthread_cond_wait(&p->changed, &p->lock);
    const kvl_status status = slot ? slot->status : KVL_NO_MEMORY;
    const int last = slot && --slot->users == 0 && slot->failed;
    pthread_mutex_unlock(&p->lock);
    KVL__REQUIRE(ctx, slot, KVL_NO_MEMORY, "%s: no memory for the program", job->name);
    if (last) kvl__free(ctx, slot, sizeof *slot);
    *out = status == KVL_OK ? slot : NULL;
    return status;
}

KVL__FN kvl__slot* kvl__program_find(kvl__programs* p, kvl__hash config)
{
    kvl__slot* found = NULL;
    pthread_mutex_lock(&p->lock);
    for (kvl__alias* alias = p->aliases; alias && !found; alias = alias->next)
        if (kvl__hash_equal(alias->config, config)) found = alias->slot;
    pthread_mutex_unlock(&p->lock);
    return found;
}

// Remembers a configuration's program.  Without memory the next call generates again.
KVL__FN void kvl__program_note(kvl_context* ctx, kvl__hash config, kvl__slot* slot)
{
    kvl__alias* alias = (kvl__alias*)kvl__alloc(ctx, sizeof *alias);
    if (!alias) return;
    alias->config = config;
    alias->slot = slot;
    pthread_mutex_lock(&ctx->programs->lock);
    alias->next = ctx->programs->aliases;
    ctx->programs->aliases = alias;
    pthread_mutex_unlock(&ctx->programs->lock);
}

// What the disk notes of a configuration: the hash of its text, and the key of the program that was
// last made or found for it.
typedef struct kvl__note {
    kvl__hash text, key;
} kvl__note;

// Where a configuration's note is; 0: nowhere.  A test's generator is no function of the embedded
// text, so nothing is noted for it.
KVL__FN int kvl__note_at(kvl_context* ctx, const kvl__compile_job* job, kvl__hash config,
                         kvl__entry* entry)
{
#ifdef KVLOOM_NO_LUA
    (void)ctx, (void)job, (void)config, (void)entry;
    return 0;
#else
    if (ctx->programs->generate != kvl__generate) return 0;
    for (int i = 0; i < job->num_options; ++i)
        config = kvl__hash_join_text(config, job->options[i]);
    const kvl__hash generator = kvl__generator_hash();
    config = kvl__hash_join(config, &generator, sizeof generator);
    return kvl__entry_at(ctx, job->name, config, "id", entry);
#endif
}

// A program whose text is known by its hash, in memory or on disk: no text, no compiler.
KVL__FN kvl__slot* kvl__program_known(kvl_context* ctx, const kvl__compile_job* job, kvl__hash key,
                                      const char** where)
{
    kvl__programs* p = ctx->programs;
    kvl__entry entry;
    kvl__loaded loaded;
    int mine;
    if (!kvl__entry_at(ctx, job->name, key, job->suffix, &entry) ||
        kvl__program_from_disk(ctx, &entry, &loaded) != KVL_OK) return NULL;
    pthread_mutex_lock(&p->lock);
    kvl__slot* slot = kvl__slot_enter(ctx, key, &mine);
    if (slot && mine) {
        slot->loaded = loaded;
        slot->ready = 1;
    }
    if (slot) --slot->users;
    const int usable = slot && slot->ready;
    pthread_mutex_unlock(&p->lock);
    if (!slot || !mine) p->unload(ctx, &loaded);
    *where = mine ? "disk" : "memory";
    return usable ? slot : NULL;
}

// The program by what the disk notes of its configuration; NULL: unknown, or gone.  identity NULL:
// there is no compiler to tell apart, and whichever made the text's last program will do.
KVL__FN kvl__slot* kvl__program_noted(kvl_context* ctx, const kvl__entry* note,
                                      const kvl__compile_job* job, const char* identity,
                                      const char** where)
{
    kvl__note noted;
    size_t payload, held;
    unsigned char* bytes = kvl__disk_read(ctx, note, &payload, &held);
    const int whole = bytes && payload == sizeof noted;
    if (whole) memcpy(&noted, bytes, sizeof noted);
    kvl__free(ctx, bytes, bytes ? held : 0);
    if (!whole) return NULL;
    if (identity) noted.key = kvl__key_of_text(noted.text, job, job->arch, identity);
    return kvl__program_known(ctx, job, noted.key, where);
}

// The program's text: a pack's, else the generator's.
KVL__FN kvl_status kvl__program_generate(kvl_context* ctx, const kvl__field* fields, int num_fields,
                                         kvl__compile_job* job, char** text)
{
    *text = ctx->num_packs == 0 ? NULL
        : kvl__pack_text(ctx, kvl__config_hash(fields, num_fields), &job->text_bytes);
    if (*text) {
        job->text = *text;
        return KVL_OK;
    }
    KVL__TRY(ctx->programs->generate(ctx, fields, num_fields, text, &job->text_bytes));
    pthread_mutex_lock(&ctx->programs->lock);
    ++ctx->programs->num_generations;
    pthread_mutex_unlock(&ctx->programs->lock);
    job->text = *text;
    return KVL_OK;
}

// Generates, then takes the program from wherever its key is; notes the text's hash.
KVL__FN kvl_status kvl__program_new(kvl_context* ctx, const kvl__field* fields, int num_fields,
                                    const kvl__entry* note, kvl__compile_job* job,
                                    const char* identity, kvl__slot** slot, const char** where)
{
    char* text = NULL;
    KVL__TRY(kvl__program_generate(ctx, fields, num_fields, job, &text));
    kvl__note noted;
    noted.text = kvl__hash_bytes(text, job->text_bytes);
    noted.key = kvl__key_of_text(noted.text, job, job->arch, identity);
    const kvl_status status = kvl__slot_get(ctx, job, noted.key, slot, where);
    kvl__free(ctx, text, job->text_bytes + 1);
    if (status == KVL_OK && note) kvl__disk_write(ctx, note, &noted, sizeof noted, NULL, 0);
    return status;
}

KVL__FN kvl_status kvl__program_find_or_new(kvl_context* ctx, const char* name, kvl__hash config,
                                            const kvl__field* fields, int num_fields,
                                            kvl__slot** slot, const char** where)
{
    char identity[KVL__IDENTITY_BYTES];
    kvl__compile_job job;
    kvl__aim aim;
    kvl__entry note;
    *slot = NULL;
    const kvl_status status = kvl__programs_identity(ctx, identity);
    if (status == KVL_COMPILE) kvl__set_compile_log(ctx, "");      // not an earlier failure's
    memset(&aim, 0, sizeof aim);
    KVL__TRY(ctx->programs->aim(ctx, status == KVL_OK ? identity : NULL, &aim));
    memset(&job, 0, sizeof job);
    job.name = name;
    job.options = aim.options;
    job.num_options = aim.num_options;
    job.arch = aim.arch;
    job.suffix = aim.suffix;
    const int has_note = kvl__note_at(ctx, &job, config, &note);
    if (has_note)
        *slot = kvl__program_noted(ctx, &note, &job, status == KVL_OK ? identity : NULL, where);
    if (*slot) return KVL_OK;
    if (status != KVL_OK) return status;
    return kvl__program_new(ctx, fields, num_fields, has_note ? &note : NULL, &job, identity, slot,
                            where);
}

KVL__FN int kvl__takes_ptx(const kvl_context* ctx)
{
    return ctx->gpu && __atomic_load_n(&ctx->gpu->takes_ptx, __ATOMIC_ACQUIRE);
}

// The program that a pack has for this architecture; NULL: none that can be loaded.
KVL__FN kvl__slot* kvl__program_packed(kvl_context* ctx, kvl__hash config, const char** where)
{
    kvl__programs* p = ctx->programs;
    const kvl_pack_entry* e;
    kvl__loaded loaded;
    char fault[256] = "";
    int rank = 0, mine;
    while ((e = kvl__pack_binary(ctx, config, rank, &rank)) != NULL) {
        const kvl_status status = p->load(ctx, NULL, e->bytes, e->num_bytes, &loaded, fault);
        if (status == KVL_OK) break;
        if (status != KVL_COMPILE) return NULL;
        kvl__say(ctx, KVL_LOG_WARNING, "kernel pack: %s for %s: %s", e->name, e->arch, fault);
    }
    if (!e) return NULL;
    pthread_mutex_lock(&p->lock);
    kvl__slot* slot = kvl__slot_enter(ctx, kvl__hash_join_text(config, "pack"), &mine);
    if (slot && mine) {
        slot->loaded = loaded;
        slot->ready = 1;
    }
    if (slot) --slot->users;
    pthread_mutex_unlock(&p->lock);
    if (!slot || !mine) p->unload(ctx, &loaded);
    *where = "pack";
    return slot;
}

// The program that a pack has for the next lower instruction set of this processor; NULL: none.
KVL__FN kvl__slot* kvl__program_packed_lower(kvl_context* ctx, const char* name,
                                             const kvl__field* fields, int num_fields,
                                             const char** where)
{
    kvl__slot* slot = NULL;
    kvl__field* lower = (kvl__field*)kvl__alloc(ctx, (size_t)num_fields * sizeof *lower);
    for (int i = 0; lower && !slot && i < KVL__NUM_ISAS; ++i) {
        const char* isa = kvl__isas[i].name;
        if (strcmp(isa, ctx->isa) == 0 || kvl__isa_rank(isa, ctx->isa) == 0) continue;
        memcpy(lower, fields, (size_t)num_fields * sizeof *lower);
        for (int f = 0; f < num_fields; ++f)
            if (strcmp(lower[f].name, "isa") == 0) lower[f].text = isa;
        slot = kvl__program_packed(ctx, kvl__config_hash(lower, num_fields), where);
        if (slot)
            kvl__say(ctx, KVL_LOG_WARNING, "%s: there is nothing to make it for %s with; a pack's "
                     "kernels for %s take its place", name, ctx->isa, isa);
    }
    kvl__free(ctx, lower, (size_t)num_fields * sizeof *lower);
    return slot;
}

// Adds to a message that no pack has a program either.
KVL__FN kvl_status kvl__not_packed(kvl_context* ctx, kvl_status status)
{
    char message[KVL__MESSAGE_BYTES];
    if (ctx->packs_room == 0) return status;
    pthread_mutex_lock(&ctx->lock);
    memcpy(message, ctx->message, sizeof message);
    pthread_mutex_unlock(&ctx->lock);
    if (ctx->target == KVL_TARGET_CUDA)
        return kvl__fail(ctx, status, "%.900s; no kernel pack has it for sm_%d", message, ctx->sm);
    return kvl__fail(ctx, status, "%.900s; no kernel pack has it for %s", message, ctx->isa);
}

// The loaded program of a configuration, from memory or from wherever it can be had.
KVL__FN kvl_status kvl__slot_of_config(kvl_context* ctx, const char* name, const kvl__field* fields,
                                       int num_fields, kvl__slot** slot, const char** where)
{
    *where = "memory";
    KVL__TRY(kvl__check_process(ctx));
    KVL__REQUIRE(ctx, ctx->programs, KVL_BAD_ARGUMENT, "the context was not created");
    const kvl__hash config = kvl__config_hash(fields, num_fields);
    *slot = kvl__program_find(ctx->programs, config);
    if (*slot) return KVL_OK;
    if (ctx->num_packs > 0) *slot = kvl__program_packed(ctx, config, where);
    if (*slot) {
        kvl__program_note(ctx, config, *slot);
        return KVL_OK;
    }
    const int before = kvl__takes_ptx(ctx);
    kvl_status status =
        kvl__program_find_or_new(ctx, name, config, fields, num_fields, slot, where);
    if (status == KVL_COMPILE && !before && kvl__takes_ptx(ctx))
        status = kvl__program_find_or_new(ctx, name, config, fields, num_fields, slot, where);
    if ((status == KVL_NO_KERNEL || status == KVL_COMPILE) && ctx->num_packs > 0
        && ctx->target == KVL_TARGET_HOST)
        *slot = kvl__program_packed_lower(ctx, name, fields, num_fields, where);
    if (status != KVL_OK && !*slot) return kvl__not_packed(ctx, status);
    kvl__program_note(ctx, config, *slot);
    return KVL_OK;
}

// The program of a configuration.  *out belongs to the context and lives as long; *where (may be
// NULL) is "memory", "pack", "disk" or "compiled".  `name` is for people: entry names and messages.
KVL__FN kvl_status kvl__program_get(kvl_context* ctx, const char* name, const kvl__field* fields,
                                    int num_fields, const kvl__program** out, const char** where)
{
    const char* from = "memory";
    kvl__slot* slot = NULL;
    *out = NULL;
    if (where) *where = from;
    KVL__TRY(kvl__slot_of_config(ctx, name, fields, num_fields, &slot, &from));
    *out = slot->loaded.program;
    if (where) *where = from;
    return KVL_OK;
}

// KERNELS OF A DEVICE

// One kernel that is asked for.  Requests of equal fields share a program.
typedef struct kvl__kernel_request {
    const char*       name;           // for people: entry names and messages
    const char*       entry;          // of the function in the program
    const kvl__field* fields;         // of the generator
    int               num_fields;
    kvl__cu_function  function;       // the answer; NULL where the context has no device
    const char*       where;          // "memory", "pack", "disk" or "compiled"
} kvl__kernel_request;

typedef struct kvl__kernel_job {
    kvl_context*         ctx;
    kvl__kernel_request* requests;
    pthread_mutex_t      lock;
    kvl_status           status;      // of the first failure
    char                 message[KVL__MESSAGE_BYTES];
} kvl__kernel_job;

KVL__FN kvl_status kvl__kernel_get(kvl_context* ctx, kvl__kernel_request* r)
{
    kvl__slot* slot = NULL;
    r->function = NULL;
    KVL__TRY(kvl__slot_of_config(ctx, r->name, r->fields, r->num_fields, &slot, &r->where));
    if (!ctx->gpu) return KVL_OK;
    KVL__TRY(kvl__gpu_enter(ctx));
    const int result =
        ctx->gpu->driver.module_get_function(&r->function, slot->loaded.module, r->entry);
    kvl__gpu_leave(ctx);
    KVL__REQUIRE(ctx, result != KVL__CU_NOT_FOUND, KVL_GENERATE,
                 "%s: the program has no kernel of the name %s", r->name, r->entry);
    return kvl__cu_check(ctx, result, "%s: asking for %s", r->name, r->entry);
}

KVL__FN void kvl__kernel_body(void* arg, int64_t i, int thread)
{
    kvl__kernel_job* job = (kvl__kernel_job*)arg;
    (void)thread;
    const kvl_status status = kvl__kernel_get(job->ctx, &job->requests[i]);
    if (status == KVL_OK) return;
    pthread_mutex_lock(&job->lock);
    if (job->status == KVL_OK) {
        job->status = status;
        pthread_mutex_lock(&job->ctx->lock);
        memcpy(job->message, job->ctx->message, sizeof job->message);
        pthread_mutex_unlock(&job->ctx->lock);
    }
    pthread_mutex_unlock(&job->lock);
}

// Kernels of a device, those that have to be compiled on all of the context's threads.  After a
// failure some functions may be set; what was made stays for the next call.
KVL__FN kvl_status kvl__kernels_get(kvl_context* ctx, kvl__kernel_request* requests, int num)
{
    kvl__kernel_job job;
    KVL__TRY(kvl__check_process(ctx));
    memset(&job, 0, sizeof job);
    job.ctx = ctx;
    job.requests = requests;
    KVL__REQUIRE(ctx, pthread_mutex_init(&job.lock, NULL) == 0, KVL_NO_MEMORY,
                 "no mutex for kernels");
    kvl__parallel(ctx, num, kvl__kernel_body, &job);
    pthread_mutex_destroy(&job.lock);
    return job.status == KVL_OK ? KVL_OK : kvl__fail(ctx, job.status, "%s", job.message);
}

#endif
