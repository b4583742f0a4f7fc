// kvl_compile.h -- the system's C compiler: find it, know it, run it, load what it wrote.
//
// The compiler is started with an argument list, never through a shell; it reads the program from
// its standard input and writes into a private folder.  It has a time limit, after which its whole
// process group is killed.  Everything it says is captured.

#ifndef KVL_COMPILE_H
#define KVL_COMPILE_H

#include "kvl_args.h"
#include "kvl_disk.h"
#include "kvl_driver.h"
#include "kvl_isa.h"

#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#ifdef __cplusplus
extern "C" {
#endif
extern char** environ;
#ifdef __cplusplus
}
#endif

enum {
    KVL__COMPILE_SECONDS = 60,
    KVL__COMPILE_LOG_BYTES = 1 << 16,    // what is kept of a compiler's output
    KVL__IDENTITY_BYTES = 512,
    KVL__OPTIONS_MAX = 32
};

// FINDING

KVL__FN int kvl__is_program(const char* path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

// Looks a name up as execvp does, but in absolute folders only: what is found must not depend on
// the working directory.  Links are kept, since some compilers go by the name they are called by.
KVL__FN int kvl__find_program(const char* name, const char* search, char* found)
{
    if (strchr(name, '/')) {
        char here[KVL__PATH_BYTES];
        if (name[0] == '/') {
            if (strlen(name) >= KVL__PATH_BYTES) return 0;
            strcpy(found, name);
        } else if (!getcwd(here, sizeof here) || !kvl__join_path(found, here, name)) {
            return 0;
        }
        return kvl__is_program(found);
    }
    while (*search) {
        const size_t n = strcspn(search, ":");
        const int length = snprintf(found, KVL__PATH_BYTES, "%.*s/%s", (int)n, search, name);
        if (search[0] == '/' && length < KVL__PATH_BYTES && kvl__is_program(found)) return 1;
        search += n + (search[n] == ':');
    }
    return 0;
}

// RUNNING

typedef struct kvl__run {
    const char* const* argv;             // NULL-terminated; argv[0] is the path
    const char*        work;             // for the program's temporary files; NULL: its own choice
    const char*        input;
    size_t             input_bytes;
    int                seconds;
    char*              output;           // both streams, terminated, cut at output_size - 1
    size_t             output_size, output_bytes;
    int                exit_code;        // 128 + signal; -1: someone else reaped it
    int                timed_out;
} kvl__run;

// The caller's environment, in plain English and with a private folder for temporary files.
KVL__FN char** kvl__run_environment(kvl_context* ctx, const char* tmpdir, size_t* bytes)
{
    size_t n = 0, m = 0;
    while (environ && environ[n]) ++n;
    *bytes = (n + 3) * sizeof(char*);
    char** env = (char**)kvl__alloc(ctx, *bytes);
    if (!env) return NULL;
    for (size_t i = 0; i < n; ++i) {
        const char* one = environ[i];
        const int replaced = strncmp(one, "LC_ALL=", 7) == 0 || strncmp(one, "LANGUAGE=", 9) == 0
                          || (tmpdir && strncmp(one, "TMPDIR=", 7) == 0);
        if (!replaced) env[m++] = environ[i];
    }
    env[m++] = (char*)"LC_ALL=C";
    if (tmpdir) env[m++] = (char*)tmpdir;
    env[m] = NULL;
    return env;
}

// A connected pair of sockets above the standard descriptors, which the host may have closed.
// Sockets rather than pipes: a write to a dead reader can be told not to raise SIGPIPE.
KVL__FN int kvl__socket_pair(int* pair)
{
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return errno;
    for (int i = 0; i < 2; ++i) {
        if (pair[i] > 2) continue;
        const int moved = fcntl(pair[i], F_DUPFD_CLOEXEC, 3);
        const int fault = errno;
        close(pair[i]);
        pair[i] = moved;
        if (moved < 0) {
            close(pair[1 - i]);
            return fault;
        }
    }
    return 0;
}

// Starts the program with `end` as all three standard streams, in a process group of its own, with
// no signal blocked or ignored.  Returns 0 or what errno would say.
KVL__FN int kvl__spawn(const kvl__run* run, char** env, int end, pid_t* pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int fault = posix_spawn_file_actions_init(&actions);
    if (fault) return fault;
    fault = posix_spawnattr_init(&attr);
    if (fault) {
        posix_spawn_file_actions_destroy(&actions);
        return fault;
    }
    for (int i = 0; i < 3 && !fault; ++i)
        fault = posix_spawn_file_actions_adddup2(&actions, end, i);
    if (!fault) fault = posix_spawnattr_setpgroup(&attr, 0);
    if (!fault) fault = posix_spawnattr_setsigmask(&attr, &none);
    if (!fault) fault = posix_spawnattr_setsigdefault(&attr, &all);
    if (!fault)
        fault = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK
                                                | POSIX_SPAWN_SETSIGDEF);
    if (!fault)
        fault = posix_spawn(pid, run->argv[0], &actions, &attr, (char* const*)run->argv, env);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    return fault;
}

// Moves what can be moved without waiting.  Returns 0 at the end of the program's output.
KVL__FN int kvl__run_move(kvl__run* run, int fd, size_t* sent)
{
    char rest[4096];
    if (*sent < run->input_bytes) {
        const ssize_t n = send(fd, run->input + *sent, run->input_bytes - *sent,
                               MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) *sent += (size_t)n;
        else if (n < 0 && errno != EAGAIN && errno != EINTR) *sent = run->input_bytes;
        if (*sent >= run->input_bytes) shutdown(fd, SHUT_WR);
    }
    for (;;) {
        const size_t room = run->output_size - 1 - run->output_bytes;
        char* to = room ? run->output + run->output_bytes : rest;
        const ssize_t n = recv(fd, to, room ? room : sizeof rest, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN;
        if (n == 0) return 0;
        if (room) run->output_bytes += (size_t)n;
    }
}

// True once the program is gone; fills exit_code.
KVL__FN int kvl__run_reap(kvl__run* run, pid_t pid, int flags)
{
    int state;
    pid_t got;
    do got = waitpid(pid, &state, flags); while (got < 0 && errno == EINTR);
    if (got == 0) return 0;
    if (got < 0) run->exit_code = -1;      // the host ignores SIGCHLD or reaps every child
    else run->exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    return 1;
}

KVL__FN void kvl__run_attend(kvl__run* run, pid_t pid, int fd)
{
    const int64_t end = kvl__now_ms() + (int64_t)run->seconds * 1000;
    size_t sent = 0;
    int open = 1, gone = 0;
    if (run->input_bytes == 0) shutdown(fd, SHUT_WR);
    while (!gone) {
        if (open) {
            struct pollfd p;
            p.fd = fd;
            p.events = (short)(POLLIN | (sent < run->input_bytes ? POLLOUT : 0));
            p.revents = 0;
            poll(&p, 1, 20);               // a descendant may keep the stream open: look at pid too
            open = kvl__run_move(run, fd, &sent);
        } else {
            kvl__sleep_ms(1);              // the stream is closed, so the exit is near
        }
        gone = kvl__run_reap(run, pid, WNOHANG);
        if (!gone && kvl__now_ms() >= end) {
            run->timed_out = 1;
            kill(-pid, SIGKILL);
            gone = kvl__run_reap(run, pid, 0);
        }
    }
    if (open) kvl__run_move(run, fd, &sent);
    run->output[run->output_bytes] = '\0';
}

// Runs a program to its end or its time limit.  Returns 0, or what errno would say if it could not
// be started.
KVL__FN int kvl__run_program(kvl_context* ctx, kvl__run* run)
{
    char tmpdir[KVL__PATH_BYTES + 8];
    size_t env_bytes;
    int pair[2];
    pid_t pid;
    run->output_bytes = 0;
    run->output[0] = '\0';
    run->exit_code = -1;
    run->timed_out = 0;
    if (run->work) snprintf(tmpdir, sizeof tmpdir, "TMPDIR=%s", run->work);
    char** env = kvl__run_environment(ctx, run->work ? tmpdir : NULL, &env_bytes);
    if (!env) return ENOMEM;
    int fault = kvl__socket_pair(pair);
    if (!fault) {
        fault = kvl__spawn(run, env, pair[1], &pid);
        close(pair[1]);
        if (!fault) kvl__run_attend(run, pid, pair[0]);
        close(pair[0]);
    }
    kvl__free(ctx, env, env_bytes);
    return fault;
}

// IDENTITY: what a compiler says it is, which is part of every key

// Runs `compiler flag` and appends the first line that it says.
KVL__FN int kvl__ask_compiler(kvl_context* ctx, const char* flag, char* text, size_t size)
{
    const char* argv[3];
    char output[KVL__IDENTITY_BYTES];
    kvl__run run;
    argv[0] = ctx->compiler;
    argv[1] = flag;
    argv[2] = NULL;
    memset(&run, 0, sizeof run);
    run.argv = argv;
    run.seconds = ctx->compile_seconds;
    run.output = output;
    run.output_size = sizeof output;
    if (kvl__run_program(ctx, &run) != 0 || run.timed_out || run.exit_code > 0) return 0;
    const size_t n = strcspn(output, "\r\n"), at = strlen(text);
    if (n == 0) return 0;
    snprintf(text + at, size - at, "%s%.*s", at ? "; " : "", (int)n, output);
    return 1;
}

// What tells this file from one that an upgrade puts in its place.
KVL__FN int kvl__compiler_stamp(const char* path, kvl__hash* stamp)
{
    struct stat st;
    int64_t words[6];
    if (stat(path, &st) != 0) return 0;
    words[0] = (int64_t)st.st_dev;
    words[1] = (int64_t)st.st_ino;
    words[2] = (int64_t)st.st_size;
    words[3] = (int64_t)st.st_mtim.tv_sec;
    words[4] = (int64_t)st.st_mtim.tv_nsec;
    words[5] = (int64_t)st.st_ctim.tv_sec;
    *stamp = kvl__hash_join_text(kvl__hash_bytes(words, sizeof words), path);
    return 1;
}

KVL__FN const char* kvl__base_name(const char* path)
{
    const char* slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// Writes "first line of --version; machine".  Remembered on disk by the compiler's stamp, so that a
// warm start starts no process.
KVL__FN kvl_status kvl__compiler_identity(kvl_context* ctx, char* text, size_t size)
{
    kvl__entry entry;
    kvl__hash stamp;
    KVL__REQUIRE(ctx, ctx->compiler || !ctx->compiler_asked, KVL_COMPILE,
                 "compiler = %s: no such program; kernels are made with a C compiler: set "
                 "context_desc.compiler or KVLOOM_CC", ctx->compiler_asked);
    KVL__REQUIRE(ctx, ctx->compiler, KVL_COMPILE,
                 "no C compiler: looked for cc, gcc and clang on PATH; set context_desc.compiler "
                 "or KVLOOM_CC");
    KVL__REQUIRE(ctx, kvl__compiler_stamp(ctx->compiler, &stamp), KVL_COMPILE,
                 "compiler %s: it is gone", ctx->compiler);
    const int kept = kvl__entry_at(ctx, kvl__base_name(ctx->compiler), stamp, "id", &entry);
    if (kept && kvl__disk_read_text(ctx, &entry, text, size)) return KVL_OK;
    text[0] = '\0';
    KVL__REQUIRE(ctx, kvl__ask_compiler(ctx, "--version", text, size), KVL_COMPILE,
                 "compiler %s: it does not answer --version", ctx->compiler);
    kvl__ask_compiler(ctx, "-dumpmachine", text, size);      // some compilers have one machine
    if (kept) kvl__disk_write(ctx, &entry, text, strlen(text), NULL, 0);
    return KVL_OK;
}

// COMPILING

typedef struct kvl__compile_job {
    const char*        name;             // for messages
    const char*        text;
    size_t             text_bytes;
    const char* const* options;          // of the key
    int                num_options;
    const char*        arch;             // avx512, sm_90, compute_90
    const char*        suffix;           // of the entry on disk
} kvl__compile_job;

// What programs are compiled for.
typedef struct kvl__aim {
    const char* options[KVL__OPTIONS_MAX];
    int         num_options;
    const char* suffix;
    char        arch[16], arch_option[32];
} kvl__aim;

// Options that shape the code, in order; the instruction set's flags follow.  No contraction and no
// fast math: a kernel's results do not depend on the compiler.
static __attribute__((unused)) const char* const kvl__compile_options[] = {
    "-std=gnu99", "-O3", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno", NULL };

// Fills options [KVL__OPTIONS_MAX]; returns how many.
KVL__FN int kvl__options_for(const kvl__isa* isa, const char** options)
{
    int n = 0;
    for (int i = 0; kvl__compile_options[i]; ++i) options[n++] = kvl__compile_options[i];
    for (int i = 0; isa->flags[i]; ++i) options[n++] = isa->flags[i];
    return n;
}

KVL__FN void kvl__set_compile_log(kvl_context* ctx, const char* text)
{
    const size_t bytes = text[0] ? strlen(text) + 1 : 0;
    char* copy = bytes ? (char*)kvl__alloc(ctx, bytes) : NULL;
    if (copy) memcpy(copy, text, bytes);
    pthread_mutex_lock(&ctx->lock);
    char* old = ctx->compile_log;
    const size_t old_bytes = ctx->compile_log_bytes;
    ctx->compile_log = copy;
    ctx->compile_log_bytes = copy ? bytes : 0;
    pthread_mutex_unlock(&ctx->lock);
    kvl__free(ctx, old, old_bytes);
}

// The first line that reports an error, else the first line.
KVL__FN const char* kvl__first_error(const char* log, int* length)
{
    const char* best = log;
    for (const char* line = log; *line;) {
        const size_t n = strcspn(line, "\n");
        const char* at = strstr(line, "error:");
        if (at && at < line + n) {
            best = line;
            break;
        }
        line += n + (line[n] == '\n');
    }
    *length = (int)kvl__min_i64((int64_t)strcspn(best, "\n"), 700);
    return best;
}

KVL__FN kvl_status kvl__compile_failed(kvl_context* ctx, const kvl__compile_job* job,
                                       const kvl__run* run)
{
    int length;
    const char* line = kvl__first_error(run->output, &length);
    kvl__set_compile_log(ctx, run->output);
    if (run->timed_out)
        return kvl__fail(ctx, KVL_COMPILE, "%s: compiler %s ran longer than %d s and was stopped",
                         job->name, ctx->compiler, run->seconds);
    if (length == 0)
        return kvl__fail(ctx, KVL_COMPILE, "%s: compiler %s failed without a word (exit status %d)",
                         job->name, ctx->compiler, run->exit_code);
    return kvl__fail(ctx, KVL_COMPILE, "%s: %.*s (compiler %s, exit status %d)", job->name, length,
                     line, ctx->compiler, run->exit_code);
}

KVL__FN kvl_status kvl__compile_in(kvl_context* ctx, const kvl__compile_job* job,
                                   const kvl__work* work, char* log, unsigned char** binary,
                                   size_t* binary_bytes)
{
    const char* argv[KVL__OPTIONS_MAX + 10];
    char target[KVL__PATH_BYTES];
    kvl__run run;
    int n = 0;
    KVL__REQUIRE(ctx, kvl__join_path(target, work->path, "kernel.so"), KVL_COMPILE,
                 "%s: the path is too long", work->path);
    argv[n++] = ctx->compiler;
    for (int i = 0; i < job->num_options && i < KVL__OPTIONS_MAX; ++i) argv[n++] = job->options[i];
    argv[n++] = "-x";
    argv[n++] = "c";
    argv[n++] = "-";
    argv[n++] = "-o";
    argv[n++] = target;
    argv[n++] = "-lm";
    argv[n] = NULL;
    memset(&run, 0, sizeof run);
    run.argv = argv;
    run.work = work->path;
    run.input = job->text;
    run.input_bytes = job->text_bytes;
    run.seconds = ctx->compile_seconds;
    run.output = log;
    run.output_size = KVL__COMPILE_LOG_BYTES;
    const int fault = kvl__run_program(ctx, &run);
    KVL__REQUIRE(ctx, !fault, fault == ENOMEM ? KVL_NO_MEMORY : KVL_COMPILE,
                 "%s: compiler %s could not be started: %s", job->name, ctx->compiler,
                 strerror(fault));
    if (run.timed_out || run.exit_code > 0) return kvl__compile_failed(ctx, job, &run);
    *binary = kvl__read_file(ctx, target, 0, binary_bytes);
    if (!*binary || *binary_bytes < 64 || memcmp(*binary, "\177ELF", 4) != 0) {
        kvl__free(ctx, *binary, *binary_bytes);
        *binary = NULL;
        return kvl__compile_failed(ctx, job, &run);
    }
    return KVL_OK;
}

// Compiles a program.  *binary is the shared object's bytes, from the context's allocator; NULL
// after a failure.
KVL__FN kvl_status kvl__compile(kvl_context* ctx, const kvl__compile_job* job,
                                unsigned char** binary, size_t* binary_bytes)
{
    kvl__work work;
    *binary = NULL;
    *binary_bytes = 0;
    KVL__REQUIRE(ctx, kvl__work_make(ctx, &work), KVL_COMPILE,
                 "%s: no folder to compile in: tried /tmp, /var/tmp, /dev/shm and the kernel cache",
                 job->name);
    char* log = (char*)kvl__alloc(ctx, KVL__COMPILE_LOG_BYTES);
    const kvl_status status = log
        ? kvl__compile_in(ctx, job, &work, log, binary, binary_bytes)
        : kvl__fail(ctx, KVL_NO_MEMORY, "%s: no memory for the compiler's log", job->name);
    kvl__free(ctx, log, KVL__COMPILE_LOG_BYTES);
    kvl__work_remove(&work);
    return status;
}

// LOADING

typedef struct kvl__loaded {
    void*               handle;
    int                 fd;             // of a program without a file, kept while it is loaded; -1
    const kvl__program* program;
    kvl__cu_module      module;         // of a device, in the place of the others
} kvl__loaded;

KVL__FN void kvl__unload(kvl__loaded* loaded)
{
    if (loaded->handle) dlclose(loaded->handle);
    if (loaded->fd >= 0) close(loaded->fd);
    loaded->handle = NULL;
    loaded->program = NULL;
    loaded->fd = -1;
}

// Opens a path and finds the program in it.  `fault` [256] says why not.
KVL__FN int kvl__load_path(const char* path, kvl__loaded* loaded, char* fault)
{
    loaded->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!loaded->handle) {
        const char* why = dlerror();
        snprintf(fault, 256, "%s", why ? why : "dlopen failed");
        return 0;
    }
    loaded->program = (const kvl__program*)dlsym(loaded->handle, "kvl__program");
    if (!loaded->program)
        snprintf(fault, 256, "it exports no kvl__program");
    else if (loaded->program->abi != KVL__ABI)
        snprintf(fault, 256, "its abi = %d: must be %d", (int)loaded->program->abi, KVL__ABI);
    else
        return 1;
    kvl__unload(loaded);
    return 0;
}

// The descriptor stays open while the program is loaded: the loader knows libraries by their path,
// and a descriptor that is used again would name this one.  The odd spelling keeps it apart from
// what other users of /proc/self/fd in this process have loaded.
KVL__FN int kvl__load_bytes(const unsigned char* bytes, size_t num_bytes, kvl__loaded* loaded,
                            char* fault)
{
    char path[64];
#ifdef SYS_memfd_create
    loaded->fd = (int)syscall(SYS_memfd_create, "kvloom", 1u);      // 1: MFD_CLOEXEC
#else
    errno = ENOSYS;
#endif
    if (loaded->fd < 0 || !kvl__write_all(loaded->fd, bytes, num_bytes)) {
        snprintf(fault, 256, "no memory file: %s", strerror(errno));
        kvl__unload(loaded);
        return 0;
    }
    snprintf(path, sizeof path, "/proc/self/fd/../fd/%d", loaded->fd);
    return kvl__load_path(path, loaded, fault);
}

// Loads a program from its file (NULL: none), else, where that cannot be had, from its bytes.
KVL__FN int kvl__load(const char* path, const unsigned char* bytes, size_t num_bytes,
                      kvl__loaded* loaded, char* fault)
{
    memset(loaded, 0, sizeof *loaded);
    loaded->fd = -1;
    if (path && kvl__load_path(path, loaded, fault)) return 1;
    return kvl__load_bytes(bytes, num_bytes, loaded, fault);
}

#endif
