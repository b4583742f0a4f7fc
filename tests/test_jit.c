// test_jit.c -- from a configuration to a loaded program: generator's door, keys, disk, compiler.
//
// Groups K, L, M and N of the invariants.  The generator's modules are fakes given to the embedded
// text; compilers are a function that counts, or shell scripts, or the system's own.  threads:
// several.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

// The embedded text of these tests, in the place of the build's.
#define KVL_TEXT_H
typedef struct kvl__text { const char* path; const char* const* lines; } kvl__text;
typedef struct module { const char* path; const char* text; } module;
static module modules[4];
static const char* module_lines[4][2];

__attribute__((unused)) static const char* const* kvl__text_find(const char* path)
{
    for (int i = 0; i < 4; ++i) {
        const char *a = modules[i].path, *b = path;
        while (a && *a && *a == *b) ++a, ++b;
        if (!a || *a != *b) continue;
        module_lines[i][0] = modules[i].text;
        return module_lines[i];
    }
    return 0;
}

__attribute__((unused)) static const kvl__text* kvl__text_at(unsigned long i)
{
    static kvl__text text;
    if (i >= 4 || !modules[i].path) return 0;
    module_lines[i][0] = modules[i].text;
    text.path = modules[i].path;
    text.lines = module_lines[i];
    return &text;
}

#include "kvl_context.h"

#include <criterion/criterion.h>
#include <locale.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/time.h>

#ifndef KVLOOM_TEST_SCRATCH
#define KVLOOM_TEST_SCRATCH "/tmp"
#endif

enum { NOBODY = 65534 };

// FAKES

// Shared with child processes.
typedef struct counts {
    int compiles, identities, said;
} counts;

static counts* count;
static char scratch[512];                     // this test's own folder
static char folder[1024];                     // of its kernel cache
static unsigned char* object;                 // a shared object whose mark is still in it
static size_t object_bytes;
static const char* fake_identity = "fake cc 1.0; x86_64";
static int fake_sleep_ms, fake_fails;
static char last_said[KVL__MESSAGE_BYTES];

#define MARK 0x1122334455667788

static char tiny_program[160];                // of this build's interface

static void write_tiny_program(void)
{
    snprintf(tiny_program, sizeof tiny_program,
             "struct { int abi, lanes; long a, b, mark; void* f[8]; } kvl__program =\n"
             "    { %d, 0, 0, 0, 0x1122334455667788, { 0 } };\n", KVL__ABI);
}

static void say(kvl_log_level level, const char* message, void* user)
{
    (void)user;
    if (level == KVL_LOG_INFO) return;
    __atomic_fetch_add(&count->said, 1, __ATOMIC_SEQ_CST);
    snprintf(last_said, sizeof last_said, "%s", message);
}

static kvl_context_desc test_desc(void)
{
    kvl_context_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.num_threads = 1;
    desc.cache_dir = folder;
    desc.log.call = say;
    return desc;
}

static void write_text(const char* path, const char* text, mode_t mode)
{
    FILE* f = fopen(path, "w");
    cr_assert(f, "%s: %s", path, strerror(errno));
    fputs(text, f);
    fclose(f);
    chmod(path, mode);
}

static void remove_tree(const char* path)
{
    char command[1200];
    snprintf(command, sizeof command, "/bin/rm -rf '%s'", path);
    if (system(command)) return;
}

static void set_up(void)
{
    count = (counts*)mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                          -1, 0);
    write_tiny_program();
    snprintf(scratch, sizeof scratch, "%s/jit-XXXXXX", KVLOOM_TEST_SCRATCH);
    cr_assert(mkdtemp(scratch), "%s: %s", scratch, strerror(errno));
    snprintf(folder, sizeof folder, "%s/cache", scratch);
    unsetenv("KVLOOM_CC");
    unsetenv("KVLOOM_ISA");
    unsetenv("KVLOOM_CACHE_DIR");
    unsetenv("KVLOOM_CACHE_MAX_MB");
}

static void tear_down(void) { remove_tree(scratch); }

// What a text's program is to say: independent of kvloom's hashes.
static int64_t mark_of(const char* text, size_t bytes)
{
    uint64_t h = 14695981039346656037u;       // FNV-1a
    for (size_t i = 0; i < bytes; ++i) h = (h ^ (unsigned char)text[i]) * 1099511628211u;
    return (int64_t)(h >> 1);
}

// The configuration itself is the text.
static kvl_status fake_generate(kvl_context* ctx, const kvl__field* fields, int num_fields,
                                char** text, size_t* text_bytes)
{
    *text = NULL;
    *text_bytes = num_fields ? strlen(fields[0].text) : 0;
    char* copy = (char*)kvl__alloc(ctx, *text_bytes + 1);
    if (!copy) return kvl__fail(ctx, KVL_NO_MEMORY, "fake generator");
    memcpy(copy, fields[0].text, *text_bytes + 1);
    *text = copy;
    return KVL_OK;
}

static kvl_status fake_identify(kvl_context* ctx, char* text, size_t size)
{
    (void)ctx;
    __atomic_fetch_add(&count->identities, 1, __ATOMIC_SEQ_CST);
    snprintf(text, size, "%s", fake_identity);
    return KVL_OK;
}

static kvl_status fake_compile(kvl_context* ctx, const kvl__compile_job* job,
                               unsigned char** binary, size_t* binary_bytes)
{
    const int64_t mark = MARK, mine = mark_of(job->text, job->text_bytes);
    __atomic_fetch_add(&count->compiles, 1, __ATOMIC_SEQ_CST);
    *binary = NULL;
    *binary_bytes = 0;
    if (fake_sleep_ms) kvl__sleep_ms(fake_sleep_ms);
    if (fake_fails) return kvl__fail(ctx, KVL_COMPILE, "the fake compiler was told to fail");
    unsigned char* copy = (unsigned char*)kvl__alloc(ctx, object_bytes);
    if (!copy) return kvl__fail(ctx, KVL_NO_MEMORY, "fake compiler");
    memcpy(copy, object, object_bytes);
    unsigned char* at = (unsigned char*)memmem(copy, object_bytes, &mark, sizeof mark);
    cr_assert(at);
    memcpy(at, &mine, sizeof mine);
    *binary = copy;
    *binary_bytes = object_bytes;
    return KVL_OK;
}

static void use_fakes(kvl_context* ctx)
{
    ctx->programs->generate = fake_generate;
    ctx->programs->identify = fake_identify;
    ctx->programs->compile = fake_compile;
}

// Makes the shared object that the fake compiler hands out.
static void make_object(void)
{
    kvl_context_desc desc = test_desc();
    kvl_context* ctx;
    kvl__compile_job job;
    const char* options[KVL__OPTIONS_MAX];
    unsigned char* bytes;
    desc.cache_dir = "";
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK, "%s", kvl_context_message(ctx));
    job.name = "tiny";
    job.text = tiny_program;
    job.text_bytes = strlen(tiny_program);
    job.options = options;
    job.num_options = kvl__options_for(kvl__isa_find("portable"), options);
    cr_assert_eq(kvl__compile(ctx, &job, &bytes, &object_bytes), KVL_OK, "%s",
                 kvl_context_message(ctx));
    object = (unsigned char*)malloc(object_bytes);
    memcpy(object, bytes, object_bytes);
    kvl__free(ctx, bytes, object_bytes);
    kvl_context_destroy(ctx);
}

static void set_up_fakes(void)
{
    set_up();
    make_object();
}

static kvl_context* fake_context(void)
{
    kvl_context_desc desc = test_desc();
    kvl_context* ctx;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK, "%s", kvl_context_message(ctx));
    use_fakes(ctx);
    return ctx;
}

static kvl_status get(kvl_context* ctx, const char* text, const kvl__program** out,
                      const char** where)
{
    kvl__field field = { "text", text, 0 };
    return kvl__program_get(ctx, "test-kernel", &field, 1, out, where);
}

// One program from one fresh context; checks that it is the right one.
static const char* get_once(const char* text)
{
    const kvl__program* program;
    const char* where;
    kvl_context* ctx = fake_context();
    cr_assert_eq(get(ctx, text, &program, &where), KVL_OK, "%s", kvl_context_message(ctx));
    cr_assert_eq(program->scratch_bytes, mark_of(text, strlen(text)));
    kvl_context_destroy(ctx);
    return where;
}

// Counts the files whose names end so, and keeps the last one's path.
static char found_path[KVL__PATH_BYTES];

static int count_files(const char* end)
{
    char command[1200];
    int n = 0;
    snprintf(command, sizeof command, "find '%s' -type f -name '*%s' 2>/dev/null", folder, end);
    FILE* pipe = popen(command, "r");
    while (fgets(found_path, sizeof found_path, pipe)) ++n;
    pclose(pipe);
    found_path[strcspn(found_path, "\n")] = '\0';
    return n;
}

static unsigned char* read_whole(const char* path, size_t* bytes)
{
    struct stat st;
    cr_assert_eq(stat(path, &st), 0);
    *bytes = (size_t)st.st_size;
    unsigned char* data = (unsigned char*)malloc(*bytes + 1);
    const int fd = open(path, O_RDONLY);
    cr_assert(kvl__read_all(fd, data, *bytes));
    close(fd);
    return data;
}

static void write_whole(const char* path, const void* data, size_t bytes)
{
    const int fd = open(path, O_WRONLY | O_TRUNC | O_CREAT, 0600);
    cr_assert(kvl__write_all(fd, data, bytes));
    close(fd);
}

// K: THE CACHE ON DISK

TestSuite(disk, .init = set_up_fakes, .fini = tear_down, .timeout = 120);

// A key that holds anything of the run, or an entry that cannot be read back, breaks this.
Test(disk, second_run_compiles_nothing)
{
    const kvl__program* program;
    const char* where;
    cr_assert_str_eq(get_once("a"), "compiled");
    cr_assert_str_eq(get_once("a"), "disk");
    cr_assert_eq(count->compiles, 1);
    kvl_context* ctx = fake_context();
    cr_assert_eq(get(ctx, "a", &program, &where), KVL_OK);
    cr_assert_str_eq(where, "disk");
    cr_assert_eq(get(ctx, "a", &program, &where), KVL_OK);
    cr_assert_str_eq(where, "memory");
    cr_assert_eq(ctx->programs->num_generations, 1);
    cr_assert_eq(ctx->programs->num_disk_hits, 1);
    kvl_context_destroy(ctx);
    cr_assert_eq(count->compiles, 1);
    cr_assert_eq(count->said, 0);
    cr_assert_eq(count_files(".c"), 1);
    size_t bytes;
    unsigned char* text = read_whole(found_path, &bytes);
    cr_assert(bytes == 1 && text[0] == 'a');
    free(text);
    cr_assert_eq(count_files(".so"), 1);
    cr_assert(strstr(found_path, "/test-kernel."));
    cr_assert_eq(count_files(".lock") + count_files(".tmp"), 0);
}

// An entry that is believed without a look at all of its bytes breaks this.
Test(disk, damaged_entries_are_replaced)
{
    char path[KVL__PATH_BYTES];
    size_t bytes, other_bytes;
    get_once("b");
    cr_assert_eq(count_files(".so"), 1);
    unsigned char* other = read_whole(found_path, &other_bytes);
    unlink(found_path);
    get_once("a");
    cr_assert_eq(count_files(".so"), 1);
    strcpy(path, found_path);
    unsigned char* good = read_whole(path, &bytes);
    unsigned char* bad = (unsigned char*)malloc(2 * bytes);
    int compiles = count->compiles;
    for (int i = 0; i < 60; ++i) {
        size_t bad_bytes = bytes;
        memcpy(bad, good, bytes);
        if (i == 0) bad_bytes = 0;
        else if (i == 1) bad_bytes = 1;
        else if (i == 2) bad_bytes = bytes - 1;
        else if (i == 3) bad_bytes = bytes - sizeof(kvl__trailer);
        else if (i == 4) bad_bytes = sizeof(kvl__trailer);
        else if (i == 5) bad_bytes = bytes / 2;
        else if (i == 6) memset(bad, 'x', bytes);
        else if (i == 7) memcpy(bad + bytes, good, bad_bytes = bytes), bad_bytes = 2 * bytes;
        else if (i == 8) memcpy(bad, other, other_bytes), bad_bytes = other_bytes;
        else if (i == 9) bad[0] ^= 1;
        else if (i < 59) bad[bytes - 1 - (size_t)(i - 10)] ^= 0x40;    // the whole trailer
        else bad[bytes / 3] ^= 0x80;
        write_whole(path, bad, bad_bytes);
        cr_assert_str_eq(get_once("a"), "compiled", "damage %d", i);
        cr_assert_eq(count->compiles, ++compiles);
        cr_assert_str_eq(get_once("a"), "disk", "damage %d", i);
    }
    free(good);
    free(bad);
    free(other);
}

// Following a link or a queue that someone put in an entry's place breaks this.
Test(disk, only_plain_files_are_read)
{
    char aside[1100];
    get_once("a");
    cr_assert_eq(count_files(".so"), 1);
    snprintf(aside, sizeof aside, "%s/aside", scratch);
    cr_assert_eq(rename(found_path, aside), 0);
    cr_assert_eq(symlink(aside, found_path), 0);
    cr_assert_str_eq(get_once("a"), "compiled");
    unlink(found_path);
    cr_assert_eq(mkfifo(found_path, 0600), 0);
    cr_assert_str_eq(get_once("a"), "compiled");
    cr_assert_eq(chmod(found_path, 0666), 0);
    cr_assert_str_eq(get_once("a"), "compiled");
    cr_assert_str_eq(get_once("a"), "disk");
}

// Many processes, one folder, cold: publishing a shared name or compiling without a lock breaks it.
Test(disk, processes_compile_once)
{
    enum { N = 8 };
    pid_t pids[N];
    fake_sleep_ms = 300;
    for (int i = 0; i < N; ++i) {
        pids[i] = fork();
        if (pids[i] == 0) {
            const kvl__program* program = NULL;
            kvl_context* ctx = fake_context();
            const kvl_status status = get(ctx, "cold", &program, NULL);
            const int right = status == KVL_OK && program->scratch_bytes == mark_of("cold", 4);
            kvl_context_destroy(ctx);
            _exit(right ? 0 : 1);
        }
    }
    for (int i = 0; i < N; ++i) {
        int state;
        waitpid(pids[i], &state, 0);
        cr_assert(WIFEXITED(state) && WEXITSTATUS(state) == 0);
    }
    cr_assert_eq(count->compiles, 1, "%d compiles", count->compiles);
    cr_assert_eq(count_files(".so"), 1);
    cr_assert_eq(count_files(".lock") + count_files(".tmp"), 0);
    cr_assert_eq(count->said, 0);
}

// A lock that outlives its process, or a half-written file that is taken for an entry, breaks this.
Test(disk, killed_writers_do_no_harm)
{
    for (int i = 0; i < 40; ++i) {
        const pid_t pid = fork();
        if (pid == 0) {
            for (int k = 0;; ++k) {
                char text[32];
                const kvl__program* program;
                kvl_context* ctx = fake_context();
                snprintf(text, sizeof text, "kill%d", k % 3);
                if (get(ctx, text, &program, NULL) != KVL_OK) _exit(1);
                kvl_context_destroy(ctx);
                kvl_context_desc desc = test_desc();
                if (kvl_context_create(&desc, &ctx) != KVL_OK) _exit(1);
                kvl_disk(ctx, KVL_DISK_CLEAR, 0, NULL, NULL);
                kvl_context_destroy(ctx);
            }
        }
        usleep((useconds_t)(1000 + 997 * i % 9000));
        kill(pid, SIGKILL);
        int state;
        waitpid(pid, &state, 0);
        cr_assert(WIFSIGNALED(state));
        const int64_t start = kvl__now_ms();
        get_once("kill0");
        get_once("kill1");
        cr_assert_lt(kvl__now_ms() - start, 5000);
    }
    kvl_context* ctx = fake_context();
    cr_assert_eq(kvl_disk(ctx, KVL_DISK_PRUNE, 0, NULL, NULL), KVL_OK);
    kvl_context_destroy(ctx);
    cr_assert_eq(count_files(".tmp") + count_files(".lock"), 0);
    cr_assert_str_eq(get_once("kill0"), "disk");
}

// A pruner that judges a temporary file by its name or age breaks this.
Test(disk, prune_leaves_what_is_held)
{
    char held[KVL__PATH_BYTES], path[KVL__PATH_BYTES + 8];
    kvl__entry entry;
    kvl_context* ctx = fake_context();
    get_once("a");
    cr_assert(kvl__entry_at(ctx, "other", kvl__hash_bytes("x", 1), "so", &entry));
    cr_assert(kvl__make_folder(entry.folder));
    const int fd = kvl__open_temp(entry.path, held);
    cr_assert_geq(fd, 0);
    snprintf(path, sizeof path, "%s/x.tmp", entry.folder);
    write_text(path, "rubbish", 0600);
    cr_assert_eq(kvl_disk(ctx, KVL_DISK_PRUNE, 0, NULL, NULL), KVL_OK);
    cr_assert_eq(access(held, F_OK), 0);
    cr_assert_neq(access(path, F_OK), 0);
    get_once("b");
    cr_assert_eq(access(held, F_OK), 0);
    close(fd);
    get_once("c");                             // a write cleans up as well
    cr_assert_neq(access(held, F_OK), 0);
    kvl_context_destroy(ctx);
    cr_assert_str_eq(get_once("a"), "disk");
}

// Waiting without an end for a lock that someone keeps breaks this.
Test(disk, a_kept_lock_is_waited_for_with_a_bound)
{
    kvl__entry entry;
    kvl_context* ctx = fake_context();
    cr_assert(kvl__entry_at(ctx, "k", kvl__hash_bytes("x", 1), "so", &entry));
    const int first = kvl__disk_lock(ctx, &entry, 0);
    cr_assert_geq(first, 0);
    const int64_t start = kvl__now_ms();
    cr_assert_eq(kvl__disk_lock(ctx, &entry, 200), -1);
    const int64_t waited = kvl__now_ms() - start;
    cr_assert(waited >= 200 && waited < 2000, "%d ms", (int)waited);
    kvl__disk_unlock(&entry, first);
    const int second = kvl__disk_lock(ctx, &entry, 0);
    cr_assert_geq(second, 0);
    kvl__disk_unlock(&entry, second);
    kvl_context_destroy(ctx);
}

static void expect_memory_only(const char* why)
{
    const kvl__program* program;
    const char* where;
    count->said = 0;
    kvl_context* ctx = fake_context();
    cr_assert_eq(get(ctx, "a", &program, &where), KVL_OK, "%s", kvl_context_message(ctx));
    cr_assert_str_eq(where, "compiled");
    cr_assert_eq(get(ctx, "b", &program, &where), KVL_OK);
    cr_assert_str_eq(where, "compiled");
    cr_assert_eq(program->scratch_bytes, mark_of("b", 1));
    cr_assert_eq(get(ctx, "a", &program, &where), KVL_OK);
    cr_assert_str_eq(where, "memory");
    cr_assert_eq(program->scratch_bytes, mark_of("a", 1));
    kvl_context_destroy(ctx);
    cr_assert_eq(count->said, 1, "said %d times: %s", count->said, last_said);
    cr_assert(strstr(last_said, why), "%s", last_said);
}

// A folder that cannot be used must cost time only, and be said once.
Test(disk, folder_is_a_file)
{
    write_text(folder, "x", 0600);
    expect_memory_only("it is not a folder");
}

Test(disk, folder_that_others_may_write)
{
    cr_assert_eq(mkdir(folder, 0700), 0);
    chmod(folder, 0770);
    expect_memory_only("others may write to it");
    chmod(folder, 0707);
    expect_memory_only("others may write to it");
}

Test(disk, folder_of_another_user)
{
    if (geteuid() != 0) cr_skip_test("needs root");
    cr_assert_eq(mkdir(folder, 0755), 0);
    cr_assert_eq(chown(folder, NOBODY, NOBODY), 0);
    expect_memory_only("it belongs to another user");
}

// An entry that another user planted in a folder of ours must not be loaded.
Test(disk, entry_of_another_user)
{
    if (geteuid() != 0) cr_skip_test("needs root");
    get_once("a");
    cr_assert_eq(count_files(".so"), 1);
    cr_assert_eq(chown(found_path, NOBODY, NOBODY), 0);
    cr_assert_str_eq(get_once("a"), "compiled");
}

Test(disk, folder_is_read_only)
{
    cr_assert_eq(mkdir(folder, 0700), 0);
    if (geteuid() == 0) {                      // root may write anywhere
        cr_assert_eq(chmod(scratch, 0755), 0);
        cr_assert_eq(chown(folder, NOBODY, NOBODY), 0);
        cr_assert_eq(chmod(folder, 0500), 0);
        if (setresuid(NOBODY, NOBODY, 0) != 0 || access(folder, R_OK) != 0) {
            cr_assert_eq(setresuid(0, 0, 0), 0);
            cr_skip_test("the scratch folder is out of reach for others");
        }
        expect_memory_only("Permission denied");
        cr_assert_eq(setresuid(0, 0, 0), 0);
    } else {
        cr_assert_eq(chmod(folder, 0500), 0);
        expect_memory_only("Permission denied");
        chmod(folder, 0700);
    }
}

// A short entry, a temporary file or an error on a full disk breaks this.
Test(disk, disk_is_full)
{
    cr_assert_eq(mkdir(folder, 0700), 0);
    struct rlimit limit;
    int mounted = 0;
    if (unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0)
        mounted = mount("tmpfs", folder, "tmpfs", 0, "size=8k,mode=0700") == 0;
    if (!mounted) {
        signal(SIGXFSZ, SIG_IGN);
        getrlimit(RLIMIT_FSIZE, &limit);
        limit.rlim_cur = 4096;
        setrlimit(RLIMIT_FSIZE, &limit);
    }
    count->said = 0;
    kvl_context* ctx = fake_context();
    const kvl__program* program;
    const char* where;
    const kvl_status status = get(ctx, "a", &program, &where);
    if (!mounted) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_FSIZE, &limit);
        cr_assert_neq(status, KVL_GENERATE);   // the memory file is bounded as well
    } else {
        cr_assert_eq(status, KVL_OK, "%s", kvl_context_message(ctx));
        cr_assert_eq(program->scratch_bytes, mark_of("a", 1));
        cr_assert(strstr(last_said, "No space left"), "%s", last_said);
    }
    kvl_context_destroy(ctx);
    cr_assert_eq(count->said, 1);
    cr_assert_eq(count_files(".so") + count_files(".tmp"), 0);
    if (mounted) umount2(folder, MNT_DETACH);
}

// A loader that needs the folder to be executable breaks this.
Test(disk, folder_is_mounted_noexec)
{
    cr_assert_eq(mkdir(folder, 0700), 0);
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0
        || mount("tmpfs", folder, "tmpfs", MS_NOEXEC, "size=8m,mode=0700") != 0)
        cr_skip_test("cannot mount");
    cr_assert_str_eq(get_once("a"), "compiled");
    cr_assert_str_eq(get_once("a"), "disk");
    kvl_context* ctx = fake_context();
    const kvl__program* p[3];
    for (int i = 0; i < 3; ++i) {
        const char text[2] = { (char)('a' + i), 0 };
        cr_assert_eq(get(ctx, text, &p[i], NULL), KVL_OK);
    }
    for (int i = 0; i < 3; ++i) {
        const char text[2] = { (char)('a' + i), 0 };
        cr_assert_eq(p[i]->scratch_bytes, mark_of(text, 1), "two programs share one name");
    }
    kvl_context_destroy(ctx);
    umount2(folder, MNT_DETACH);
}

// A folder that grows for ever, or loses what is in use, breaks this.
Test(disk, bound_removes_the_longest_unused)
{
    const char* where;
    kvl_context_desc desc = test_desc();
    kvl_context* ctx;
    const kvl__program* program;
    desc.cache_max_bytes = 3 * (object_bytes + 300);
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
    use_fakes(ctx);
    const char* order[] = { "a", "b", "c" };
    for (int i = 0; i < 3; ++i) {
        cr_assert_eq(get(ctx, order[i], &program, NULL), KVL_OK);
        usleep(20000);
    }
    cr_assert_eq(count_files(".so"), 3);
    cr_assert_str_eq(get_once("a"), "disk");          // used: b is the longest unused
    usleep(20000);
    cr_assert_eq(get(ctx, "d", &program, NULL), KVL_OK);
    cr_assert_eq(count_files(".so"), 3);
    cr_assert_eq(count_files(".c"), 3);
    kvl_context_destroy(ctx);
    cr_assert_str_eq(get_once("a"), "disk");
    cr_assert_str_eq(get_once("c"), "disk");
    where = get_once("b");
    cr_assert_str_eq(where, "compiled");
}

// A variable that is passed over, or a number that is cut short, breaks this.
Test(disk, bound_of_the_environment)
{
    static const char* const wrong[] = { "0", "-1", "12x", " 5", "1e3", "00", "1073741825",
                                         "99999999999999999999" };
    kvl_context_desc desc = test_desc();
    kvl_context* ctx;
    setenv("KVLOOM_CACHE_MAX_MB", "3", 1);
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
    cr_assert_eq(ctx->folder_max_bytes, 3u << 20);
    kvl_context_destroy(ctx);
    desc.cache_max_bytes = 1000;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
    cr_assert_eq(ctx->folder_max_bytes, 1000, "the desc beats the variable");
    kvl_context_destroy(ctx);
    desc.cache_max_bytes = 0;
    setenv("KVLOOM_CACHE_MAX_MB", "", 1);
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
    cr_assert_eq(ctx->folder_max_bytes, 256u << 20);
    kvl_context_destroy(ctx);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
        setenv("KVLOOM_CACHE_MAX_MB", wrong[i], 1);
        cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_BAD_ARGUMENT, "'%s'", wrong[i]);
        cr_assert(strstr(kvl_context_message(ctx), wrong[i]), "%s", kvl_context_message(ctx));
        kvl_context_destroy(ctx);
    }
    unsetenv("KVLOOM_CACHE_MAX_MB");
}

typedef struct seen { int num, bad; uint64_t bytes; } seen;

static void see(const kvl_disk_entry* entry, void* user)
{
    seen* s = (seen*)user;
    ++s->num;
    s->bad += !entry->ok;
    s->bytes += entry->bytes;
    cr_assert(entry->age_seconds >= 0 && entry->age_seconds < 1000);
}

// Touching what is not an entry of ours, or missing what is, breaks this.
Test(disk, list_prune_clear)
{
    char stranger[1100], foreign[KVL__PATH_BYTES];
    seen s = { 0, 0, 0 };
    get_once("a");
    get_once("b");
    get_once("c");
    snprintf(stranger, sizeof stranger, "%s/my-notes.txt", folder);
    write_text(stranger, "x", 0600);
    cr_assert_eq(count_files(".so"), 3);
    truncate(found_path, 100);
    strcpy(foreign, found_path);
    strcpy(strrchr(foreign, '/'), "/foreign");
    write_text(foreign, "x", 0600);
    kvl_context* ctx = fake_context();
    cr_assert_eq(kvl_disk(ctx, KVL_DISK_LIST, 0, see, &s), KVL_OK);
    cr_assert(s.num == 3 && s.bad == 1);
    cr_assert_eq(s.bytes, 2 * (object_bytes + sizeof(kvl__trailer) + 1) + 101);
    s.num = s.bad = 0;
    cr_assert_eq(kvl_disk(ctx, KVL_DISK_PRUNE, 0, see, &s), KVL_OK);
    cr_assert(s.num == 2 && s.bad == 2);
    cr_assert_eq(count_files(".so"), 2);
    s.num = s.bad = 0;
    cr_assert_eq(kvl_disk(ctx, KVL_DISK_PRUNE, object_bytes + 500, see, &s), KVL_OK);
    cr_assert(s.num == 1 && s.bad == 0);
    cr_assert_eq(kvl_disk(ctx, KVL_DISK_CLEAR, 0, NULL, NULL), KVL_OK);
    cr_assert_eq(count_files(""), 1);
    cr_assert_eq(access(stranger, F_OK), 0);
    cr_assert_eq(kvl_disk(ctx, (kvl_disk_action)7, 0, NULL, NULL), KVL_BAD_ARGUMENT);
    kvl_context_destroy(ctx);
    kvl_context_desc desc = test_desc();
    desc.cache_dir = "";
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
    cr_assert_eq(kvl_disk(ctx, KVL_DISK_LIST, 0, NULL, NULL), KVL_UNSUPPORTED);
    cr_assert_str_eq(kvl_disk_folder(ctx), "");
    kvl_context_destroy(ctx);
}

// A folder that goes away while contexts live must be made again.
Test(disk, folder_may_be_deleted)
{
    const kvl__program* program;
    kvl_context* ctx = fake_context();
    cr_assert_eq(get(ctx, "a", &program, NULL), KVL_OK);
    remove_tree(folder);
    cr_assert_eq(get(ctx, "b", &program, NULL), KVL_OK);
    cr_assert_eq(program->scratch_bytes, mark_of("b", 1));
    cr_assert_eq(count_files(".so"), 1);
    kvl_context_destroy(ctx);
    cr_assert_eq(count->said, 0);
    struct stat st;
    cr_assert(stat(folder, &st) == 0 && (st.st_mode & 07777) == 0700);
}

// M2: each form of each variable; what is not an absolute path must not make a folder.
Test(disk, folder_is_found_by_convention)
{
    static const struct { const char *dir, *xdg, *home, *want; } rows[] = {
        { "/a/b", "/x", "/h", "/a/b" },       { NULL, "/x", "/h", "/x/kvloom" },
        { NULL, NULL, "/h", "/h/.cache/kvloom" }, { NULL, NULL, NULL, "" },
        { "", "/x", "/h", "/x/kvloom" },      { "", "", "/h", "/h/.cache/kvloom" },
        { "", "", "", "" },                   { "rel", "/x", "/h", "/x/kvloom" },
        { NULL, "rel", "/h", "/h/.cache/kvloom" }, { NULL, "rel", "rel", "" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        const char* names[3] = { "KVLOOM_CACHE_DIR", "XDG_CACHE_HOME", "HOME" };
        const char* values[3];
        values[0] = rows[i].dir;
        values[1] = rows[i].xdg;
        values[2] = rows[i].home;
        for (int k = 0; k < 3; ++k)
            if (values[k]) setenv(names[k], values[k], 1); else unsetenv(names[k]);
        kvl_context_desc desc = test_desc();
        kvl_context* ctx;
        desc.cache_dir = NULL;
        cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
        cr_assert_str_eq(kvl_disk_folder(ctx), rows[i].want, "row %d", (int)i);
        kvl_context_destroy(ctx);
    }
    cr_assert_eq(chdir(scratch), 0);
    kvl_context_desc desc = test_desc();
    kvl_context* ctx;
    char want[1100];
    desc.cache_dir = "sub/dir";
    snprintf(want, sizeof want, "%s/sub/dir", scratch);
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
    cr_assert_str_eq(kvl_disk_folder(ctx), want);
    kvl_context_destroy(ctx);
}

// L: KEYS

// Each part of a key alone must change it; nothing else may.
Test(disk, keys_change_exactly_when_they_must)
{
    const char* options[3] = { "-O3", "-fPIC", "-mfma" };
    const char* swapped[3] = { "-fPIC", "-O3", "-mfma" };
    const char* other[3] = { "-O3", "-fPIC", "-mavx2" };
    const char* glued[2] = { "-O3-fPIC", "-mfma" };
    kvl__compile_job job = { "name", "text", 4, options, 3, "avx2", "so" };
    kvl__hash keys[9];
    keys[0] = kvl__program_key(&job, "avx2", "cc 1");
    keys[1] = kvl__program_key(&job, "avx512", "cc 1");
    keys[2] = kvl__program_key(&job, "avx2", "cc 2");
    job.options = swapped;
    keys[3] = kvl__program_key(&job, "avx2", "cc 1");
    job.options = other;
    keys[4] = kvl__program_key(&job, "avx2", "cc 1");
    job.options = options;
    job.num_options = 2;
    keys[5] = kvl__program_key(&job, "avx2", "cc 1");
    job.options = glued;
    keys[6] = kvl__program_key(&job, "avx2", "cc 1");
    job.options = options;
    job.num_options = 3;
    job.text = "texu";
    keys[7] = kvl__program_key(&job, "avx2", "cc 1");
    job.text_bytes = 3;
    keys[8] = kvl__program_key(&job, "avx2", "cc 1");
    for (int i = 0; i < 9; ++i)
        for (int k = 0; k < i; ++k)
            cr_assert(!kvl__hash_equal(keys[i], keys[k]), "keys %d and %d", i, k);
    job.text = "text";
    job.text_bytes = 4;
    job.name = "another";
    cr_assert(kvl__hash_equal(keys[0], kvl__program_key(&job, "avx2", "cc 1")));
}

Test(disk, keys_do_not_hold_the_surroundings)
{
    get_once("a");
    fake_identity = "fake cc 1.1; x86_64";
    cr_assert_str_eq(get_once("a"), "compiled");
    fake_identity = "fake cc 1.0; x86_64";
    cr_assert_str_eq(get_once("a"), "disk");
    setenv("KVLOOM_ISA", "portable", 1);
    const int is_best = strcmp(kvl__isa_best()->name, "portable") == 0;
    cr_assert_str_eq(get_once("a"), is_best ? "disk" : "compiled");
    unsetenv("KVLOOM_ISA");
    const int compiles = count->compiles;
    cr_assert_eq(chdir("/"), 0);
    setenv("PATH", "/usr/bin:/bin:/nowhere", 1);
    setenv("HOME", "/tmp/../tmp", 1);
    setenv("SOURCE_DATE_EPOCH", "1", 1);
    setenv("LC_ALL", "de_DE.UTF-8", 1);
    setlocale(LC_ALL, "");
    usleep(1100000);
    cr_assert_str_eq(get_once("a"), "disk");
    cr_assert_eq(count->compiles, compiles);
}

// N: THREADS AND FORK

typedef struct racer { kvl_context* ctx; const char* text; int64_t mark; kvl_status status; } racer;

static void* race(void* user)
{
    racer* r = (racer*)user;
    const kvl__program* program;
    r->status = get(r->ctx, r->text, &program, NULL);
    r->mark = program ? program->scratch_bytes : 0;
    return NULL;
}

static void run_racers(kvl_context* ctx, racer* racers, int n)
{
    pthread_t threads[16];
    static const char* const texts[2] = { "left", "right" };
    for (int i = 0; i < n; ++i) {
        racers[i].ctx = ctx;
        racers[i].text = texts[i % 2];
        cr_assert_eq(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    }
    for (int i = 0; i < n; ++i) pthread_join(threads[i], NULL);
}

// Two compiles of one key, or a lock around all keys, breaks this.
Test(disk, threads_compile_once)
{
    racer racers[16];
    kvl_context* ctx = fake_context();
    fake_sleep_ms = 300;
    const int64_t start = kvl__now_ms();
    run_racers(ctx, racers, 16);
    const int64_t took = kvl__now_ms() - start;
    for (int i = 0; i < 16; ++i) {
        cr_assert_eq(racers[i].status, KVL_OK);
        cr_assert_eq(racers[i].mark, mark_of(racers[i].text, strlen(racers[i].text)));
    }
    cr_assert_eq(count->compiles, 2);
    cr_assert_lt(took, 590, "two keys one after the other: %d ms", (int)took);
    kvl_context_destroy(ctx);
}

// A failure that is remembered, or a thread that waits for ever for one that failed, breaks this.
Test(disk, a_failed_compile_is_tried_again)
{
    racer racers[8];
    kvl_context* ctx = fake_context();
    fake_sleep_ms = 200;
    fake_fails = 1;
    run_racers(ctx, racers, 8);
    for (int i = 0; i < 8; ++i) cr_assert_eq(racers[i].status, KVL_COMPILE);
    cr_assert_eq(count->compiles, 2);
    fake_fails = 0;
    run_racers(ctx, racers, 8);
    for (int i = 0; i < 8; ++i) cr_assert_eq(racers[i].status, KVL_OK);
    cr_assert_eq(count->compiles, 4);
    kvl_context_destroy(ctx);
}

Test(disk, a_forked_child_is_refused)
{
    const kvl__program* program;
    kvl_context* ctx = fake_context();
    cr_assert_eq(get(ctx, "a", &program, NULL), KVL_OK);
    const pid_t pid = fork();
    if (pid == 0) {
        const kvl_status status = get(ctx, "a", &program, NULL);
        const int clear = strstr(kvl_context_message(ctx), "fork") != NULL;
        kvl_context_destroy(ctx);
        _exit(status == KVL_BAD_ARGUMENT && clear ? 0 : 1);
    }
    int state;
    waitpid(pid, &state, 0);
    cr_assert(WIFEXITED(state) && WEXITSTATUS(state) == 0);
    kvl_context_destroy(ctx);
}

// ALLOCATION TORTURE

typedef struct tally { long calls, fail_at, live, live_bytes; } tally;

static void* tally_alloc(size_t bytes, void* user)
{
    tally* t = (tally*)user;
    if (++t->calls == t->fail_at) return NULL;
    void* ptr = malloc(bytes);
    memset(ptr, 0xa5, bytes);
    ++t->live;
    t->live_bytes += (long)bytes;
    return ptr;
}

static void tally_free(void* ptr, size_t bytes, void* user)
{
    tally* t = (tally*)user;
    memset(ptr, 0x5a, bytes);
    --t->live;
    t->live_bytes -= (long)bytes;
    free(ptr);
}

static kvl_context_desc tally_desc(tally* t)
{
    kvl_context_desc desc = test_desc();
    desc.allocator.alloc = tally_alloc;
    desc.allocator.free = tally_free;
    desc.allocator.user = t;
    return desc;
}

static void torture(const char* cache_dir, int cold)
{
    int succeeded = 0;
    for (long n = 1; !succeeded; ++n) {
        tally t = { 0, n, 0, 0 };
        const kvl__program* program = NULL;
        kvl_context* ctx = NULL;
        kvl_context_desc desc = tally_desc(&t);
        desc.cache_dir = cache_dir;
        if (cold) remove_tree(folder);
        kvl_status status = kvl_context_create(&desc, &ctx);
        if (status == KVL_OK) {
            use_fakes(ctx);
            status = get(ctx, "a", &program, NULL);
            if (status != KVL_OK) {
                cr_assert(kvl_context_message(ctx)[0]);
                cr_assert_eq(get(ctx, "a", &program, NULL), KVL_OK, "allocation %ld", n);
            }
            cr_assert_eq(program->scratch_bytes, mark_of("a", 1));
            kvl_disk(ctx, KVL_DISK_LIST, 0, NULL, NULL);
        } else {
            cr_assert_null(ctx);
        }
        cr_assert(status == KVL_OK || status == KVL_NO_MEMORY, "allocation %ld: %d", n, status);
        kvl_context_destroy(ctx);
        cr_assert(t.live == 0 && t.live_bytes == 0, "allocation %ld: %ld bytes", n, t.live_bytes);
        succeeded = t.calls < n;
        cr_assert_lt(n, 1000);
    }
}

Test(disk, allocation_torture)
{
    torture("", 1);
    torture(folder, 1);
    torture(folder, 0);
}

// THE DOOR TO LUA

#ifndef KVLOOM_NO_LUA

TestSuite(door, .init = set_up, .fini = tear_down, .timeout = 120);

static char door_message[KVL__MESSAGE_BYTES];

// Runs the generator on given modules; checks that every byte is back.
static kvl_status generate(const char* main_text, const char* codec_text, char* out, size_t size)
{
    tally t = { 0, 0, 0, 0 };
    kvl_context_desc desc = tally_desc(&t);
    kvl_context* ctx;
    kvl__field fields[4] = { { "name", "x", 0 }, { "k.bits", NULL, 2 }, { "k.fit", "minmax", 0 },
                             { "big", NULL, INT64_MIN } };
    char* text;
    size_t bytes;
    modules[0].path = "gen/main.lua";
    modules[0].text = main_text;
    modules[1].path = "gen/codecs/evil.lua";
    modules[1].text = codec_text;
    modules[2].path = "gen/refuse.lua";
    modules[2].text = "return function(...) error({ string.format(...) }) end\n";
    modules[3].path = "gen/quiet.lua";
    modules[3].text = "local x = 1\n";
    desc.cache_dir = "";
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
    const long before = t.live_bytes;
    const kvl_status status = kvl__generate(ctx, fields, 4, &text, &bytes);
    snprintf(door_message, sizeof door_message, "%s", kvl_context_message(ctx));
    cr_assert_eq(!text, status != KVL_OK);
    if (text) {
        cr_assert(strlen(text) == bytes || memchr(text, 0, bytes));
        if (out) snprintf(out, size, "%s", text);
        kvl__free(ctx, text, bytes + 1);
    }
    cr_assert_eq(t.live_bytes, before, "leaked");
    kvl_context_destroy(ctx);
    cr_assert_eq(t.live, 0);
    return status;
}

// Each bad module must end in its own status and a message; a leak or a crash breaks this.
Test(door, bad_modules)
{
    static const struct { const char* text; kvl_status status; const char* says; } rows[] = {
        { "return functin(c) end\n", KVL_GENERATE, "gen/main.lua:1:" },
        { "\n\nerror('boom')\n", KVL_GENERATE, "gen/main.lua:3: boom" },
        { "while true do end\n", KVL_GENERATE, "instructions" },
        { "while true do pcall(function() while true do end end) end\n", KVL_GENERATE,
          "instructions" },
        { "return function() return ('x'):rep(1 << 30) end\n", KVL_GENERATE, "memory" },
        { "return function() return ('x'):rep(1 << 62) end\n", KVL_GENERATE, "too large" },
        { "local t = {} for i = 1, 1 << 30 do t[i] = 'x' .. i end\n", KVL_GENERATE, "memory" },
        { "\033Lua", KVL_GENERATE, "binary chunk" },
        { "return function() return assert(load('\\27Lua', 'x', 'b')) end\n", KVL_GENERATE,
          "binary chunk" },
        { "error({ 'head_dim = 7: too odd' })\n", KVL_UNSUPPORTED, "head_dim = 7: too odd" },
        { "require('refuse')('bits = %d', 9)\n", KVL_UNSUPPORTED, "bits = 9" },
        { "error({})\n", KVL_GENERATE, "table" },
        { "error(42)\n", KVL_GENERATE, "number" },
        { "error(nil)\n", KVL_GENERATE, "nil" },
        { "error()\n", KVL_GENERATE, "nil" },
        { "error(print)\n", KVL_GENERATE, "nil" },
        { "return 7\n", KVL_GENERATE, "number" },
        { "local x = 1\n", KVL_GENERATE, "gen/main.lua: the module returned nothing" },
        { "return function() end\n", KVL_GENERATE, "must be a string" },
        { "return function() return 7 end\n", KVL_GENERATE, "must be a string" },
        { "return require('quiet')\n", KVL_GENERATE, "gen/quiet.lua: the module returned nothing" },
        { "return require('nowhere')\n", KVL_GENERATE, "gen/nowhere.lua: no such module" },
        { "return require('main')\n", KVL_GENERATE, "stack overflow" },
        { "return function(c) return c.nothing.x end\n", KVL_GENERATE, "field 'nothing'" },
        { "setmetatable({}, { __gc = function() while true do end end })\n", KVL_GENERATE, "__gc" },
        { "local function f() return f() + 1 end return f()\n", KVL_GENERATE, "" },
        { "local function f() return 1 + f() end return pcall(f) and 1 or f()\n", KVL_GENERATE,
          "" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        const kvl_status status = generate(rows[i].text, "return {}\n", NULL, 0);
        cr_assert_eq(status, rows[i].status, "%s: %d: %s", rows[i].text, status, door_message);
        cr_assert(door_message[0] && strstr(door_message, rows[i].says), "%s: %s", rows[i].text,
                  door_message);
    }
    cr_assert_eq(generate("return function() end\n", NULL, NULL, 0), KVL_GENERATE);
}

// A codec is data: a name of any kind, or a way out by a method, breaks this.
Test(door, codecs_have_no_names)
{
    static const char main_text[] =
        "return function(c) return require('codecs.evil').name end\n";
    char out[64];
    cr_assert_eq(generate(main_text, "return { name = 'good' }\n", out, sizeof out), KVL_OK);
    cr_assert_str_eq(out, "good");
    static const char* const bad[] = {
        "return { name = tostring(1) }\n", "return { name = string.rep('x', 3) }\n",
        "return require('main')\n", "return load('x')\n", "x = 1 while true do x = x + 1 end\n",
        "return { name = ('x'):rep(1 << 40) }\n", "return os.time()\n", "return _G.x\n", NULL };
    for (int i = 0; bad[i]; ++i)
        cr_assert_eq(generate(main_text, bad[i], NULL, 0), KVL_GENERATE, "%s", bad[i]);
}

// Anything that makes two generations differ must be out of reach.
Test(door, the_state_is_pure)
{
    char out[256];
    static const char main_text[] =
        "local names = { 'io', 'os', 'debug', 'package', 'coroutine', 'pairs', 'next', 'print',\n"
        "    'collectgarbage', 'dofile', 'loadfile', 'warn' }\n"
        "return function(c, text_of)\n"
        "    local found = {}\n"
        "    for _, n in ipairs(names) do if _G[n] then found[#found + 1] = n end end\n"
        "    if math.random or math.randomseed then found[#found + 1] = 'random' end\n"
        "    if string.dump then found[#found + 1] = 'dump' end\n"
        "    return ('%s|%s|%d|%s|%d|%s'):format(table.concat(found, ','), c.name, c.k.bits,\n"
        "        c.k.fit, c.big, text_of('gen/nothing'))\n"
        "end\n";
    cr_assert_eq(generate(main_text, NULL, out, sizeof out), KVL_OK, "%s", door_message);
    cr_assert_str_eq(out, "|x|2|minmax|-9223372036854775808|nil");
}

// Each allocation of a generation fails in turn: a crash, a leak or a wrong status breaks this.
Test(door, allocation_torture)
{
    modules[0].path = "gen/main.lua";
    modules[0].text =
        "return function(c) local t = {} for i = 1, 50 do t[i] = c.name .. i end\n"
        "return table.concat(t, ',') end\n";
    int succeeded = 0;
    for (long n = 1; !succeeded; ++n) {
        tally t = { 0, 0, 0, 0 };
        kvl_context_desc desc = tally_desc(&t);
        kvl_context* ctx;
        kvl__field fields[2] = { { "name", "abc", 0 }, { "k.bits", NULL, 2 } };
        char* text;
        size_t bytes;
        desc.cache_dir = "";
        cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
        t.fail_at = t.calls + n;
        const long before = t.live_bytes;
        const kvl_status status = kvl__generate(ctx, fields, 2, &text, &bytes);
        cr_assert(status == KVL_OK || status == KVL_NO_MEMORY, "%ld: %s", n,
                  kvl_context_message(ctx));
        if (status == KVL_OK) kvl__free(ctx, text, bytes + 1);
        else cr_assert(strstr(kvl_context_message(ctx), "generator"));
        cr_assert_eq(t.live_bytes, before, "allocation %ld leaks", n);
        succeeded = t.calls < t.fail_at;
        kvl_context_destroy(ctx);
        cr_assert_lt(n, 10000);
    }
}

#endif

// M: THE COMPILER

TestSuite(compiler, .init = set_up, .fini = tear_down, .timeout = 120);

static char script_path[1024];

// Makes a shell script that stands for a compiler, and counts its calls in the file `calls`.
static const char* script(const char* body)
{
    char text[4096];
    snprintf(script_path, sizeof script_path, "%s/my cc", scratch);
    snprintf(text, sizeof text,
             "#!/bin/sh\necho \"$*\" >> '%s/calls'\n"
             "case \"$1\" in --version) echo 'my cc 1.0'; exit;; -dumpmachine) echo toy; exit\n"
             ";; esac\n"
             "%s\n", scratch, body);
    write_text(script_path, text, 0700);
    return script_path;
}

static int num_calls(void)
{
    char path[1024];
    int n = 0;
    snprintf(path, sizeof path, "%s/calls", scratch);
    FILE* f = fopen(path, "r");
    if (!f) return 0;
    for (int c = fgetc(f); c != EOF; c = fgetc(f)) n += c == '\n';
    fclose(f);
    return n;
}

static kvl_context* compiler_context(const char* compiler, int seconds)
{
    kvl_context_desc desc = test_desc();
    kvl_context* ctx;
    desc.compiler = compiler;
    desc.compile_seconds = seconds;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK, "%s", kvl_context_message(ctx));
    ctx->programs->generate = fake_generate;
    return ctx;
}

static int no_zombie(void)
{
    return waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD;
}

static int num_work_folders(void)
{
    int n = 0;
    DIR* dir = opendir("/tmp");
    for (struct dirent* item = readdir(dir); item; item = readdir(dir))
        n += strncmp(item->d_name, KVL__WORK_PREFIX, strlen(KVL__WORK_PREFIX)) == 0;
    closedir(dir);
    return n;
}

static kvl_status compile_once(const char* compiler, const char* text, const char** where)
{
    const kvl__program* program;
    kvl_context* ctx = compiler_context(compiler, 1);
    const kvl_status status = get(ctx, text, &program, where);
    if (status == KVL_OK) cr_assert_eq(program->scratch_bytes, MARK);
    snprintf(last_said, sizeof last_said, "%s", kvl_context_message(ctx));
    kvl_context_destroy(ctx);
    return status;
}

// The real compiler, and a warm start that starts no process.
Test(compiler, real_and_warm)
{
    const char* where;
    const char* cc = script("exec cc \"$@\"");
    cr_assert_eq(compile_once(cc, tiny_program, &where), KVL_OK, "%s", last_said);
    cr_assert_str_eq(where, "compiled");
    cr_assert_eq(num_calls(), 3);
    cr_assert_eq(compile_once(cc, tiny_program, &where), KVL_OK);
    cr_assert_str_eq(where, "disk");
    cr_assert_eq(num_calls(), 3, "a warm start asked the compiler");
    char text[1024];                           // an upgrade: the same path, another version
    snprintf(text, sizeof text, "#!/bin/sh\ncase \"$1\" in --version) echo my cc 2.0; exit;; esac\n"
             "exec cc \"$@\"\n");
    write_text(cc, text, 0700);
    cr_assert_eq(compile_once(cc, tiny_program, &where), KVL_OK);
    cr_assert_str_eq(where, "compiled");
    cr_assert(no_zombie());
}

// The same compiler under two paths is one compiler; a spelling in a key breaks this.
Test(compiler, path_is_not_in_the_key)
{
    char other[1024];
    const char* where;
    const char* cc = script("exec cc \"$@\"");
    snprintf(other, sizeof other, "%s/./my cc", scratch);
    cr_assert_eq(compile_once(cc, tiny_program, NULL), KVL_OK);
    cr_assert_eq(compile_once(other, tiny_program, &where), KVL_OK);
    cr_assert_str_eq(where, "disk");
}

Test(compiler, folder_with_spaces_and_utf8)
{
    const char* where;
    snprintf(folder, sizeof folder, "%s/caf\xc3\xa9 \xe6\x97\xa5 $x;'\"/k v", scratch);
    cr_assert_eq(compile_once(NULL, tiny_program, &where), KVL_OK, "%s", last_said);
    cr_assert_eq(compile_once(NULL, tiny_program, &where), KVL_OK);
    cr_assert_str_eq(where, "disk");
}

// A rejected program: first error line in the message, by the template's own file and line; the
// whole log on demand; and the entry is not there.
Test(compiler, rejects)
{
    const kvl__program* program;
    kvl_context* ctx = compiler_context(NULL, 0);
    const kvl_status status = get(ctx, "#line 7 \"templates/host/bad.c\"\nint x = y;\nint z = w;\n",
                                  &program, NULL);
    cr_assert_eq(status, KVL_COMPILE);
    cr_assert_null(program);
    cr_assert(strstr(kvl_context_message(ctx), "templates/host/bad.c:7:"), "%s",
              kvl_context_message(ctx));
    cr_assert(strstr(kvl_context_log(ctx), "templates/host/bad.c:8:"), "%s", kvl_context_log(ctx));
    cr_assert_eq(count_files(".so"), 0);
    cr_assert_eq(get(ctx, tiny_program, &program, NULL), KVL_OK);
    kvl_context_destroy(ctx);
    cr_assert_eq(count_files(".lock") + count_files(".tmp"), 0);
}

// A compiler that hangs is stopped, and so is what it started.
Test(compiler, hangs)
{
    char body[1200], path[1024];
    const int before = num_work_folders();
    snprintf(path, sizeof path, "%s/child", scratch);
    snprintf(body, sizeof body, "sleep 77 & echo $! > '%s/child'; echo half a word >&2; wait",
             scratch);
    const int64_t start = kvl__now_ms();
    cr_assert_eq(compile_once(script(body), tiny_program, NULL), KVL_COMPILE);
    const int64_t took = kvl__now_ms() - start;
    cr_assert(took >= 900 && took < 5000, "%d ms", (int)took);
    cr_assert(strstr(last_said, "longer than 1 s"), "%s", last_said);
    FILE* f = fopen(path, "r");
    long child = 0;
    cr_assert(f && fscanf(f, "%ld", &child) == 1);
    fclose(f);
    for (int i = 0; i < 100 && kill((pid_t)child, 0) == 0; ++i) {
        char state[64] = "", proc[64];
        snprintf(proc, sizeof proc, "/proc/%ld/stat", child);
        FILE* p = fopen(proc, "r");
        if (p && fscanf(p, "%*d %*s %63s", state) != 1) state[0] = '\0';
        if (p) fclose(p);
        if (state[0] == 'Z') break;            // killed; init has not looked yet
        cr_assert_lt(i, 99, "the compiler's child lives on");
        usleep(20000);
    }
    cr_assert(no_zombie());
    cr_assert_leq(num_work_folders(), before);
}

// A background process that keeps the streams open must not be waited for.
Test(compiler, leaves_a_server_behind)
{
    const int64_t start = kvl__now_ms();
    const char* cc = script("sleep 3 & exec cc \"$@\"");
    const kvl__program* program;
    kvl_context* ctx = compiler_context(cc, 60);
    cr_assert_eq(get(ctx, tiny_program, &program, NULL), KVL_OK, "%s", kvl_context_message(ctx));
    cr_assert_lt(kvl__now_ms() - start, 2500);
    kvl_context_destroy(ctx);
}

Test(compiler, every_way_to_fail)
{
    static const struct { const char* body; const char* says; } rows[] = {
        { "exit 3", "exit status 3" },
        { "exit 0", "without a word" },                              // no output file
        { "cat > /dev/null; exit 0", "without a word" },
        { "while [ \"$1\" != -o ]; do shift; done; : > \"$2\"", "without a word" },
        { "while [ \"$1\" != -o ]; do shift; done; yes | head -c 9999 > \"$2\"", "without a word" },
        { "kill -9 $$", "exit status 137" },
        { "yes 'a long line of words' | head -c 3000000 >&2; exit 1", "a long line of words" },
        { "echo 'warning: w' >&2; echo 'x.c:3: error: e' >&2; exit 1", "x.c:3: error: e" },
    };
    char* text = (char*)malloc(3 << 20);       // more than a socket holds
    memset(text, ' ', 3 << 20);
    text[(3 << 20) - 1] = '\0';
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        remove_tree(folder);
        cr_assert_eq(compile_once(script(rows[i].body), text, NULL), KVL_COMPILE, "%s",
                     rows[i].body);
        cr_assert(strstr(last_said, rows[i].says), "%s: %s", rows[i].body, last_said);
        cr_assert_eq(count_files(".so"), 0);
        cr_assert(no_zombie());
    }
    free(text);
}

// M3: what is missing, where it was looked for, how to set it.
Test(compiler, missing)
{
    const char* where;
    cr_assert_eq(compile_once("no-such-cc", tiny_program, NULL), KVL_COMPILE);
    cr_assert(strstr(last_said, "no-such-cc") && strstr(last_said, "KVLOOM_CC"), "%s", last_said);
    cr_assert_eq(compile_once("/no/such/cc", tiny_program, NULL), KVL_COMPILE);
    cr_assert(strstr(last_said, "/no/such/cc"), "%s", last_said);
    setenv("KVLOOM_CC", "other-cc", 1);
    cr_assert_eq(compile_once(NULL, tiny_program, NULL), KVL_COMPILE);
    cr_assert(strstr(last_said, "other-cc"), "%s", last_said);
    cr_assert_eq(compile_once("cc", tiny_program, &where), KVL_OK, "the desc beats the variable");
    unsetenv("KVLOOM_CC");
    setenv("PATH", "/nowhere", 1);
    cr_assert_eq(compile_once(NULL, tiny_program, NULL), KVL_COMPILE);
    cr_assert(strstr(last_said, "cc, gcc and clang on PATH"), "%s", last_said);
}

// A program in the working directory must not be found by an empty or relative part of PATH.
Test(compiler, path_search)
{
    char path[2048], old[1024];
    kvl_context* ctx;
    snprintf(old, sizeof old, "%s", getenv("PATH"));
    snprintf(path, sizeof path, "%s/gcc", scratch);
    write_text(path, "#!/bin/sh\nexit 9\n", 0700);
    snprintf(path, sizeof path, "%s/cc", scratch);
    write_text(path, "#!/bin/sh\nexit 9\n", 0600);
    cr_assert_eq(chdir(scratch), 0);
    snprintf(path, sizeof path, "::.:%s::", old);
    setenv("PATH", path, 1);
    ctx = compiler_context(NULL, 0);
    cr_assert_eq(ctx->compiler[0], '/');
    cr_assert(!strstr(ctx->compiler, scratch));
    kvl_context_destroy(ctx);
    ctx = compiler_context("./gcc", 0);
    snprintf(path, sizeof path, "%s/./gcc", scratch);
    cr_assert_str_eq(ctx->compiler, path);
    kvl_context_destroy(ctx);
    ctx = compiler_context("./cc", 0);
    cr_assert_null(ctx->compiler, "a file that may not be run");
    kvl_context_destroy(ctx);
}

// A host program that ignores SIGCHLD, ignores SIGPIPE, and has closed its standard streams.
Test(compiler, odd_hosts)
{
    const pid_t pid = fork();
    if (pid == 0) {
        const kvl__program* program;
        signal(SIGCHLD, SIG_IGN);
        signal(SIGPIPE, SIG_IGN);
        for (int i = 0; i < 3; ++i) close(i);
        kvl_context* ctx = compiler_context(NULL, 0);
        const kvl_status status = get(ctx, tiny_program, &program, NULL);
        if (status != KVL_OK) _exit(1);
        if (get(ctx, "int x = y;", &program, NULL) != KVL_COMPILE) _exit(2);
        kvl_context_destroy(ctx);
        _exit(0);
    }
    int state;
    waitpid(pid, &state, 0);
    cr_assert(WIFEXITED(state) && WEXITSTATUS(state) == 0, "%d", WEXITSTATUS(state));
}

static void on_alarm(int signal) { (void)signal; }

// System calls that a signal cuts short must go on.
Test(compiler, signals_arrive_all_the_time)
{
    struct sigaction action;
    struct itimerval each = { { 0, 500 }, { 0, 500 } };
    const char* where;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_alarm;              // without SA_RESTART
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &each, NULL);
    kvl_context* ctx = compiler_context(NULL, 60);
    const kvl__program* program;
    const kvl_status status = get(ctx, tiny_program, &program, &where);
    memset(&each, 0, sizeof each);
    setitimer(ITIMER_REAL, &each, NULL);
    cr_assert_eq(status, KVL_OK, "%s", kvl_context_message(ctx));
    kvl_context_destroy(ctx);
    cr_assert_eq(count->said, 0);
}

// A descriptor that stays open after a context is gone breaks this.
Test(compiler, no_descriptor_leaks)
{
    int before = 0, after = 0;
    struct stat st;
    for (int fd = 0; fd < 256; ++fd) before += fstat(fd, &st) == 0;
    compile_once(NULL, tiny_program, NULL);
    compile_once(NULL, "int x = y;", NULL);
    snprintf(folder, sizeof folder, "%s/file", scratch);
    write_text(folder, "x", 0600);
    compile_once(NULL, tiny_program, NULL);
    for (int fd = 0; fd < 256; ++fd) after += fstat(fd, &st) == 0;
    cr_assert_eq(before, after);
}

// A shared object of another interface must not be called.
Test(compiler, wrong_abi)
{
    static const char text[] =
        "struct { int abi, lanes; long a[20]; } kvl__program = { 77, 0, {0} };";
    cr_assert_eq(compile_once(NULL, text, NULL), KVL_COMPILE);
    cr_assert(strstr(last_said, "abi = 77"), "%s", last_said);
    cr_assert_eq(compile_once(NULL, "int other;", NULL), KVL_COMPILE);
    cr_assert(strstr(last_said, "kvl__program"), "%s", last_said);
}

// CONTEXTS

TestSuite(context, .init = set_up, .fini = tear_down, .timeout = 60);

static void expect_create(const kvl_context_desc* desc, kvl_status status, const char* says)
{
    kvl_context* ctx = NULL;
    cr_assert_eq(kvl_context_create(desc, &ctx), status, "%s: %s", says, kvl_context_message(ctx));
    cr_assert(ctx);
    cr_assert(strstr(kvl_context_message(ctx), says), "%s", kvl_context_message(ctx));
    cr_assert_eq(kvl_disk(ctx, KVL_DISK_LIST, 0, NULL, NULL), KVL_BAD_ARGUMENT);
    kvl_context_destroy(ctx);
}

// An invalid input for each field: a status and a message that says the rule.
Test(context, bad_descs)
{
    kvl_context_desc desc;
    tally t = { 0, 0, 0, 0 };
    expect_create(NULL, KVL_BAD_ARGUMENT, "desc is NULL");
    desc = test_desc(), desc.end = 9;
    expect_create(&desc, KVL_BAD_ARGUMENT, "desc.end = 9");
    desc = test_desc(), desc.target = (kvl_target)4;
    expect_create(&desc, KVL_BAD_ARGUMENT, "target = 4");
    desc = test_desc(), desc.device = -1;
    expect_create(&desc, KVL_BAD_ARGUMENT, "device = -1");
    desc = test_desc(), desc.num_threads = -1;
    expect_create(&desc, KVL_BAD_ARGUMENT, "num_threads = -1");
    desc = test_desc(), desc.num_threads = 257;
    expect_create(&desc, KVL_BAD_ARGUMENT, "num_threads = 257");
    desc = test_desc(), desc.compile_seconds = -1;
    expect_create(&desc, KVL_BAD_ARGUMENT, "compile_seconds = -1");
    desc = test_desc(), desc.allocator.alloc = tally_alloc;
    expect_create(&desc, KVL_BAD_ARGUMENT, "both");
    desc = test_desc(), desc.allocator.free = tally_free;
    expect_create(&desc, KVL_BAD_ARGUMENT, "both");
    desc = test_desc(), desc.isa = "avx9000";
    expect_create(&desc, KVL_BAD_ARGUMENT, "isa = avx9000");
    setenv("KVLOOM_ISA", "mmx", 1);
    desc = test_desc();
    expect_create(&desc, KVL_BAD_ARGUMENT, "KVLOOM_ISA = mmx");
    unsetenv("KVLOOM_ISA");
    for (int i = 0; i < KVL__NUM_ISAS; ++i) {
        if (kvl__isas[i].detect()) continue;
        desc = tally_desc(&t), desc.isa = kvl__isas[i].name;
        expect_create(&desc, KVL_UNSUPPORTED, "must be one of");
        cr_assert_eq(t.live, 0);
    }
    desc = test_desc();
    cr_assert_eq(kvl_context_create(&desc, NULL), KVL_BAD_ARGUMENT);
    kvl_context_destroy(NULL);
    cr_assert_str_eq(kvl_context_message(NULL), "");
    cr_assert_str_eq(kvl_context_log(NULL), "");
}

Test(context, isa_is_forced)
{
    kvl_context_desc desc = test_desc();
    kvl_context* ctx;
    setenv("KVLOOM_ISA", "mmx", 1);
    desc.isa = "portable";
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK, "the desc beats the variable");
    cr_assert_str_eq(ctx->isa, "portable");
    kvl_context_destroy(ctx);
    setenv("KVLOOM_ISA", "", 1);
    desc.isa = NULL;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
    cr_assert_str_eq(ctx->isa, kvl__isa_best()->name);
    kvl_context_destroy(ctx);
}

Test(context, texts_of_statuses)
{
    cr_assert_str_eq(kvl_status_text(KVL_OK), "no error");
    cr_assert_str_eq(kvl_status_text(KVL_DEVICE), "the device reported an error");
    cr_assert_str_eq(kvl_status_text(KVL__STATUS_END), "unknown status");
    cr_assert_str_eq(kvl_status_text((kvl_status)-1), "unknown status");
}

Test(context, threads_by_default)
{
    kvl_context_desc desc = test_desc();
    kvl_context* ctx;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)sched_getcpu(), &set);
    desc.num_threads = 0;
    cr_assert_eq(sched_setaffinity(0, sizeof set, &set), 0);
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
    cr_assert_eq(kvl_context_threads(ctx), 1, "one processor may be used");
    kvl_context_destroy(ctx);
}
