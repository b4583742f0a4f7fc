// kvl_disk.h -- compiled kernels on disk: read, write-then-rename, bound; damage is a miss.
//
//     folder/xx/name.<32 hex digits>.so       payload and trailer; xx: the first two digits
//     folder/xx/name.<32 hex digits>.cubin    the same of a device's kernel, or .ptx
//     folder/xx/name.<32 hex digits>.c        the program's text, for people; never read back; .cu
//     folder/xx/name.<32 hex digits>.id       payload and trailer: what a compiler says it is
//     folder/xx/*.lock                        flock'ed by who compiles; means nothing by itself
//     folder/xx/*.tmp                         flock'ed by who writes; rubbish if nobody holds it
//
// An ELF file may have bytes after its end, so the dynamic loader opens an entry as it is.  All
// locks are the kernel's: a process that dies leaves none.  Nothing here fails an operation: where
// the folder cannot be used, kernels are compiled again, and the log says so once.

#ifndef KVL_DISK_H
#define KVL_DISK_H

#include "kvl_base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

#if !defined(O_CLOEXEC) || !defined(O_NOFOLLOW)
#error "kvloom: the file that defines KVLOOM_IMPLEMENTATION needs -std=gnu99 or -D_GNU_SOURCE"
#endif

enum {
    KVL__DISK_FORMAT = 1,
    KVL__PATH_BYTES = 4096,
    KVL__ENTRY_BYTES_MAX = 64 << 20,     // a kernel is about 50 KB
    KVL__LOCK_WAIT_MS = 30000            // then a kernel is compiled twice rather than not at all
};

// HASHES

typedef struct kvl__hash { uint64_t low, high; } kvl__hash;

KVL__FN kvl__hash kvl__hash_bytes(const void* bytes, size_t num_bytes)
{
    const XXH128_hash_t h = XXH3_128bits(bytes, num_bytes);
    kvl__hash hash;
    hash.low = h.low64;
    hash.high = h.high64;
    return hash;
}

// Adds a part to a hash.  Each part is hashed alone, so parts cannot run into each other.
KVL__FN kvl__hash kvl__hash_join(kvl__hash hash, const void* bytes, size_t num_bytes)
{
    const kvl__hash part = kvl__hash_bytes(bytes, num_bytes);
    uint64_t words[5];
    words[0] = hash.low;
    words[1] = hash.high;
    words[2] = part.low;
    words[3] = part.high;
    words[4] = num_bytes;
    return kvl__hash_bytes(words, sizeof words);
}

KVL__FN kvl__hash kvl__hash_join_text(kvl__hash hash, const char* text)
{
    return kvl__hash_join(hash, text, strlen(text));
}

KVL__FN int kvl__hash_equal(kvl__hash a, kvl__hash b)
{
    return a.low == b.low && a.high == b.high;
}

// TRAILER

typedef struct kvl__trailer {
    char     magic[8];
    uint32_t format, trailer_bytes;
    uint64_t key_low, key_high;
    uint64_t payload_bytes;
    uint64_t check_low, check_high;      // hash of the payload and the five fields before
} kvl__trailer;

KVL__FN kvl__trailer kvl__trailer_of(kvl__hash key, const void* payload, size_t payload_bytes)
{
    kvl__trailer t;
    memset(&t, 0, sizeof t);
    memcpy(t.magic, "kvloom\r\n", 8);
    t.format = KVL__DISK_FORMAT;
    t.trailer_bytes = (uint32_t)sizeof t;
    t.key_low = key.low;
    t.key_high = key.high;
    t.payload_bytes = payload_bytes;
    const kvl__hash check = kvl__hash_join(kvl__hash_bytes(payload, payload_bytes), &t,
                                           offsetof(kvl__trailer, check_low));
    t.check_low = check.low;
    t.check_high = check.high;
    return t;
}

// The payload's size of an entry that is whole and says `key`; -1 if it is not.
KVL__FN int64_t kvl__entry_payload(const unsigned char* bytes, size_t num_bytes, kvl__hash key)
{
    kvl__trailer found;
    if (num_bytes <= sizeof found) return -1;
    const size_t payload_bytes = num_bytes - sizeof found;
    const kvl__trailer right = kvl__trailer_of(key, bytes, payload_bytes);
    memcpy(&found, bytes + payload_bytes, sizeof found);
    return memcmp(&found, &right, sizeof found) == 0 ? (int64_t)payload_bytes : -1;
}

// FILES

KVL__FN int64_t kvl__now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// Where a file of the caller's is written: behind links.  What is there is replaced only if it is a
// file, and empty or of the same kind: `mark` [num_marks] from byte `at` on.
KVL__FN kvl_status kvl__place_of(kvl_context* ctx, const char* path, size_t at, const char* mark,
                                 char place[KVL__PATH_BYTES])
{
    const size_t num = strlen(mark);
    char found[16];
    struct stat there;
    KVL__REQUIRE(ctx, strlen(path) < KVL__PATH_BYTES, KVL_BAD_ARGUMENT,
                 "%.80s...: %zu letters, at most %d are possible", path, strlen(path),
                 KVL__PATH_BYTES - 1);
    KVL_ASSERT(num <= sizeof found);
    if (!realpath(path, place)) memcpy(place, path, strlen(path) + 1);
    if (stat(place, &there) != 0) return KVL_OK;
    KVL__REQUIRE(ctx, S_ISREG(there.st_mode), KVL_FILE,
                 "%s: is no plain file, and is not replaced", path);
    if (there.st_size == 0) return KVL_OK;
    FILE* file = fopen(place, "rb");
    KVL__REQUIRE(ctx, file, KVL_FILE, "%s: cannot be read: %s", path, strerror(errno));
    const int same = fseek(file, (long)at, SEEK_SET) == 0 && fread(found, 1, num, file) == num &&
                     memcmp(found, mark, num) == 0;
    fclose(file);
    KVL__REQUIRE(ctx, same, KVL_FILE, "%s: holds something else, and is not replaced", path);
    return KVL_OK;
}

KVL__FN void kvl__sleep_ms(int ms)
{
    struct timespec span;
    span.tv_sec = ms / 1000;
    span.tv_nsec = (long)(ms % 1000) * 1000000;
    nanosleep(&span, NULL);              // cut short by a signal: callers look at the clock
}

KVL__FN int kvl__write_all(int fd, const void* bytes, size_t num_bytes)
{
    const char* at = (const char*)bytes;
    while (num_bytes > 0) {
        const ssize_t done = write(fd, at, num_bytes);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) {
            if (done == 0) errno = ENOSPC;
            return 0;
        }
        at += done;
        num_bytes -= (size_t)done;
    }
    return 1;
}

KVL__FN int kvl__read_all(int fd, void* bytes, size_t num_bytes)
{
    char* at = (char*)bytes;
    while (num_bytes > 0) {
        const ssize_t done = read(fd, at, num_bytes);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return 0;
        at += done;
        num_bytes -= (size_t)done;
    }
    return 1;
}

// open, past signals and one stale handle of a network file system.
KVL__FN int kvl__open(const char* path, int flags, mode_t mode)
{
    int fd, tries = 0;
    do fd = open(path, flags | O_CLOEXEC, mode);
    while (fd < 0 && (errno == EINTR || (errno == ESTALE && ++tries < 2)));
    return fd;
}

// Reads a whole file of this user into the context's memory; NULL if it cannot be had or trusted.
// Sets the file's time of last use where `touch` says so.
KVL__FN unsigned char* kvl__read_file(kvl_context* ctx, const char* path, int touch,
                                      size_t* num_bytes)
{
    struct stat st;
    unsigned char* bytes = NULL;
    const int fd = kvl__open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    *num_bytes = 0;
    if (fd < 0) return NULL;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid()
        && !(st.st_mode & (S_IWGRP | S_IWOTH)) && st.st_size > 0
        && st.st_size <= KVL__ENTRY_BYTES_MAX)
        bytes = (unsigned char*)kvl__alloc(ctx, (size_t)st.st_size);
    if (bytes && !kvl__read_all(fd, bytes, (size_t)st.st_size)) {
        kvl__free(ctx, bytes, (size_t)st.st_size);
        bytes = NULL;
    }
    if (bytes) {
        *num_bytes = (size_t)st.st_size;
        if (touch && futimens(fd, NULL) != 0) errno = 0;      // a read-only folder serves as well
    }
    close(fd);
    return bytes;
}

// THE FOLDER

// Why a folder must not be trusted; NULL: it may.  A missing one is not at fault.
KVL__FN const char* kvl__folder_fault(const char* path)
{
    struct stat st;
    if (stat(path, &st) != 0) return errno == ENOENT ? NULL : strerror(errno);
    if (!S_ISDIR(st.st_mode)) return "it is not a folder";
    // Whoever can write as root can do worse than plant a kernel: an image's folder may be read.
    if (st.st_uid != geteuid() && st.st_uid != 0) return "it belongs to another user";
    if (st.st_mode & (S_IWGRP | S_IWOTH)) return "others may write to it";
    return NULL;
}

KVL__FN void kvl__say_folder(kvl_context* ctx, const char* why)
{
    if (kvl__first_time(ctx, &ctx->said_folder))
        kvl__say(ctx, KVL_LOG_WARNING, "kernel cache folder %s: %s; kernels that it lacks are "
                 "compiled and kept in memory", ctx->folder ? ctx->folder : "(none)", why);
}

// Makes a folder and its parents, private to the user.  errno says why not.
KVL__FN int kvl__make_folder(const char* path)
{
    char part[KVL__PATH_BYTES];
    struct stat st;
    const size_t length = strlen(path);
    if (stat(path, &st) == 0) return 1;
    if (length == 0 || length >= sizeof part) {
        errno = ENAMETOOLONG;
        return 0;
    }
    memcpy(part, path, length + 1);
    for (size_t i = 1; i <= length; ++i) {
        if (part[i] != '/' && part[i] != '\0') continue;
        part[i] = '\0';
        if (mkdir(part, 0700) != 0 && errno != EEXIST) {
            const int fault = errno;      // EROFS and EACCES also of a parent that is there
            if (stat(part, &st) != 0) {
                errno = fault;
                return 0;
            }
        }
        part[i] = path[i];
    }
    return 1;
}

// ENTRIES

typedef struct kvl__entry {
    kvl__hash key;
    char      name[160];                  // readable part . hash . suffix
    char      folder[KVL__PATH_BYTES];    // of the second level
    char      path[KVL__PATH_BYTES];
} kvl__entry;

KVL__FN void kvl__hash_text(kvl__hash hash, char* text)       // 33 bytes
{
    snprintf(text, 33, "%08x%08x%08x%08x", (unsigned)(hash.high >> 32),
             (unsigned)(hash.high & 0xffffffffu), (unsigned)(hash.low >> 32),
             (unsigned)(hash.low & 0xffffffffu));
}

KVL__FN int kvl__join_path(char* path, const char* folder, const char* name)
{
    const int length = snprintf(path, KVL__PATH_BYTES, "%s/%s", folder, name);
    return length > 0 && length < KVL__PATH_BYTES;
}

// Where the entry of a key is.  Returns 0 if there is no folder that can be used.
KVL__FN int kvl__entry_at(kvl_context* ctx, const char* readable, kvl__hash key,
                          const char* suffix, kvl__entry* entry)
{
    char hash[33], level[3], word[101];
    size_t n = 0;
    if (!ctx->folder) return 0;
    for (; readable[n] && n < sizeof word - 1; ++n) {
        const char c = readable[n];
        const int plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
                       || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '+';
        word[n] = plain ? c : '_';
    }
    word[n] = '\0';
    kvl__hash_text(key, hash);
    memcpy(level, hash, 2);
    level[2] = '\0';
    entry->key = key;
    snprintf(entry->name, sizeof entry->name, "%s.%s.%s", word, hash, suffix);
    if (!kvl__join_path(entry->folder, ctx->folder, level)
        || !kvl__join_path(entry->path, entry->folder, entry->name)) {
        kvl__say_folder(ctx, "the path is too long");
        return 0;
    }
    return 1;
}

// A path with the name's suffix replaced; "" if it is too long.
KVL__FN void kvl__beside(const char* path, const char* suffix, char* beside)
{
    const char* dot = strrchr(path, '.');
    const int n = snprintf(beside, KVL__PATH_BYTES, "%.*s.%s",
                           (int)(dot ? dot - path : (ptrdiff_t)strlen(path)), path, suffix);
    if (n < 0 || n >= KVL__PATH_BYTES) beside[0] = '\0';
}

// Suffixes of kernels, and of their texts beside them.
static __attribute__((unused)) const char* const kvl__kernel_suffixes[][2] = {
    { "so", "c" }, { "cubin", "cu" }, { "ptx", "cu" } };

enum { KVL__NUM_SUFFIXES = (int)(sizeof kvl__kernel_suffixes / sizeof kvl__kernel_suffixes[0]) };

// The row of a path's suffix; -1: not a kernel's.
KVL__FN int kvl__kernel_suffix(const char* path)
{
    const char* dot = strrchr(path, '.');
    for (int i = 0; dot && i < KVL__NUM_SUFFIXES; ++i)
        if (strcmp(dot + 1, kvl__kernel_suffixes[i][0]) == 0) return i;
    return -1;
}

// Where the text of a kernel is; "" if the path is not a kernel's, or too long.
KVL__FN void kvl__text_beside(const char* path, char* beside)
{
    const int i = kvl__kernel_suffix(path);
    beside[0] = '\0';
    if (i >= 0) kvl__beside(path, kvl__kernel_suffixes[i][1], beside);
}

// Whether a text's kernel is there.
KVL__FN int kvl__has_kernel_beside(const char* path)
{
    char beside[KVL__PATH_BYTES];
    const char* dot = strrchr(path, '.');
    struct stat st;
    for (int i = 0; dot && i < KVL__NUM_SUFFIXES; ++i) {
        if (strcmp(dot + 1, kvl__kernel_suffixes[i][1]) != 0) continue;
        kvl__beside(path, kvl__kernel_suffixes[i][0], beside);
        if (beside[0] && lstat(beside, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) return 1;
    }
    return 0;
}

// Reads an entry; *bytes_held is the size to free it with.  NULL: a miss, for whatever reason.
KVL__FN unsigned char* kvl__disk_read(kvl_context* ctx, const kvl__entry* entry, size_t* payload,
                                      size_t* bytes_held)
{
    const char* fault = kvl__folder_fault(ctx->folder);
    *payload = *bytes_held = 0;
    if (!fault) fault = kvl__folder_fault(entry->folder);
    if (fault) {
        kvl__say_folder(ctx, fault);
        return NULL;
    }
    unsigned char* bytes = kvl__read_file(ctx, entry->path, 1, bytes_held);
    if (!bytes) return NULL;
    const int64_t found = kvl__entry_payload(bytes, *bytes_held, entry->key);
    if (found < 0) {
        kvl__say(ctx, KVL_LOG_INFO, "kernel cache: %s is damaged or foreign", entry->path);
        kvl__free(ctx, bytes, *bytes_held);
        *bytes_held = 0;
        return NULL;
    }
    *payload = (size_t)found;
    return bytes;
}

// Reads an entry that is a text, cut to `size`.  Returns whether it is there.
KVL__FN int kvl__disk_read_text(kvl_context* ctx, const kvl__entry* entry, char* text, size_t size)
{
    size_t payload, held;
    unsigned char* bytes = kvl__disk_read(ctx, entry, &payload, &held);
    if (!bytes) return 0;
    const size_t length = payload < size ? payload : size - 1;
    memcpy(text, bytes, length);
    text[length] = '\0';
    kvl__free(ctx, bytes, held);
    return 1;
}

// PUBLISHING

typedef struct kvl__piece { const void* bytes; size_t num_bytes; } kvl__piece;

// Opens a name that no other writer has, and locks it.  -1: errno says why.
KVL__FN int kvl__open_temp(const char* path, char* temp)
{
    for (int i = 0; i < 1000; ++i) {
        const int n = snprintf(temp, KVL__PATH_BYTES, "%s.%ld-%lx-%d.tmp", path, (long)getpid(),
                               (unsigned long)pthread_self(), i);
        if (n < 0 || n >= KVL__PATH_BYTES) {
            errno = ENAMETOOLONG;
            return -1;
        }
        const int fd = kvl__open(temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
        if (fd < 0 && errno == EEXIST) continue;
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
            close(fd);                    // a pruner was faster and removes it
            continue;
        }
        return fd;
    }
    return -1;
}

// Writes pieces under a private name and renames it.  Returns 0 or what errno said.
KVL__FN int kvl__publish(const char* path, const kvl__piece* pieces, int num_pieces, int sync)
{
    char temp[KVL__PATH_BYTES];
    const int fd = kvl__open_temp(path, temp);
    if (fd < 0) return errno ? errno : EEXIST;
    int ok = 1;
    for (int i = 0; ok && i < num_pieces; ++i)
        ok = kvl__write_all(fd, pieces[i].bytes, pieces[i].num_bytes);
    if (ok && sync) {
        int synced;
        do synced = fsync(fd); while (synced != 0 && errno == EINTR);
        ok = synced == 0;
    }
    if (ok) ok = rename(temp, path) == 0;
    const int fault = ok ? 0 : errno ? errno : EIO;
    close(fd);                            // after the rename: the lock says that it is in use
    if (!ok) unlink(temp);
    return fault;
}

KVL__FN void kvl__disk_bound(kvl_context* ctx);

// Writes an entry, and the text beside it if there is one.  Returns 1 if it is in place.
KVL__FN int kvl__disk_write(kvl_context* ctx, const kvl__entry* entry, const void* payload,
                            size_t payload_bytes, const char* text, size_t text_bytes)
{
    const kvl__trailer trailer = kvl__trailer_of(entry->key, payload, payload_bytes);
    kvl__piece pieces[2];
    int fault = EIO;
    if (payload_bytes + sizeof trailer > KVL__ENTRY_BYTES_MAX) return 0;
    pieces[0].bytes = payload;
    pieces[0].num_bytes = payload_bytes;
    pieces[1].bytes = &trailer;
    pieces[1].num_bytes = sizeof trailer;
    for (int tries = 0; tries < 2 && fault; ++tries) {    // a pruner may take the folder away
        if (!kvl__make_folder(entry->folder)) {
            fault = errno;
            continue;
        }
        const char* distrust = kvl__folder_fault(ctx->folder);
        if (!distrust) distrust = kvl__folder_fault(entry->folder);
        if (distrust) {
            kvl__say_folder(ctx, distrust);
            return 0;
        }
        fault = kvl__publish(entry->path, pieces, 2, 1);
    }
    if (fault) {
        kvl__say_folder(ctx, strerror(fault));
        return 0;
    }
    if (text) {
        char beside[KVL__PATH_BYTES];
        kvl__piece piece;
        piece.bytes = text;
        piece.num_bytes = text_bytes;
        kvl__text_beside(entry->path, beside);
        if (beside[0] && kvl__publish(beside, &piece, 1, 0) != 0) errno = 0;   // for people only
    }
    kvl__disk_bound(ctx);
    return 1;
}

// One compile a key among processes.  Returns a descriptor for kvl__disk_unlock, or -1: go on
// without.  Waits at most wait_ms.
KVL__FN int kvl__disk_lock(kvl_context* ctx, const kvl__entry* entry, int wait_ms)
{
    char path[KVL__PATH_BYTES];
    const int64_t end = kvl__now_ms() + wait_ms;
    kvl__beside(entry->path, "lock", path);
    if (!path[0] || kvl__folder_fault(ctx->folder) || !kvl__make_folder(entry->folder)) return -1;
    const int fd = kvl__open(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
    if (fd < 0) return -1;
    for (int pause = 1; flock(fd, LOCK_EX | LOCK_NB) != 0; pause = pause < 20 ? pause * 2 : 20) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || kvl__now_ms() >= end) {
            close(fd);
            return -1;
        }
        kvl__sleep_ms(pause);
    }
    return fd;
}

// Waiters hold the file open and look at the disk first, so the name can go.
KVL__FN void kvl__disk_unlock(const kvl__entry* entry, int fd)
{
    char path[KVL__PATH_BYTES];
    if (fd < 0) return;
    kvl__beside(entry->path, "lock", path);
    unlink(path);
    flock(fd, LOCK_UN);                   // a forked child may hold the descriptor as well
    close(fd);
}

// THE SWEEP: one walk for list, prune, clear and the size bound

typedef struct kvl__swept {
    char*    path;
    size_t   path_bytes;
    uint64_t bytes;
    int64_t  used_ns;
} kvl__swept;

typedef struct kvl__sweep {
    kvl_context* ctx;
    int          remove_bad, remove_all, check, keep_list;
    void       (*visit)(const kvl_disk_entry* entry, void* user);
    void*        user;
    kvl__swept*  list;                    // entries, for the bound
    size_t       num, capacity;
    uint64_t     total_bytes;
    int          no_memory;
} kvl__sweep;

KVL__FN int kvl__ends_with(const char* text, const char* end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

KVL__FN uint64_t kvl__file_bytes(const char* path)
{
    struct stat st;
    return path[0] && lstat(path, &st) == 0 && S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
}

KVL__FN void kvl__remove_entry(const char* path)
{
    char beside[KVL__PATH_BYTES];
    unlink(path);
    kvl__text_beside(path, beside);
    if (beside[0]) unlink(beside);
}

// A file that its owner locks while it matters: removed if nobody holds it.
KVL__FN void kvl__remove_unheld(const char* path)
{
    const int fd = kvl__open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlink(path);
    close(fd);
}

// True if an entry is whole and its key is the one that its name says.
KVL__FN int kvl__entry_holds(kvl_context* ctx, const char* path, const char* name)
{
    kvl__trailer t;
    char hash[33];
    size_t num_bytes;
    int holds = 0;
    unsigned char* bytes = kvl__read_file(ctx, path, 0, &num_bytes);
    if (!bytes) return 0;
    if (num_bytes > sizeof t) {
        kvl__hash key;
        memcpy(&t, bytes + num_bytes - sizeof t, sizeof t);
        key.low = t.key_low;
        key.high = t.key_high;
        kvl__hash_text(key, hash);
        const char* dot = strrchr(name, '.');
        holds = dot && dot - name >= 33 && dot[-33] == '.' && memcmp(dot - 32, hash, 32) == 0
             && kvl__entry_payload(bytes, num_bytes, key) >= 0;
    }
    kvl__free(ctx, bytes, num_bytes);
    return holds;
}

KVL__FN void kvl__sweep_keep(kvl__sweep* sweep, const char* path, const struct stat* st,
                             uint64_t bytes)
{
    if (sweep->num == sweep->capacity) {
        const size_t capacity = sweep->capacity ? 2 * sweep->capacity : 64;
        kvl__swept* list = (kvl__swept*)kvl__alloc(sweep->ctx, capacity * sizeof *list);
        if (!list) {
            sweep->no_memory = 1;
            return;
        }
        if (sweep->num) memcpy(list, sweep->list, sweep->num * sizeof *list);
        kvl__free(sweep->ctx, sweep->list, sweep->capacity * sizeof *list);
        sweep->list = list;
        sweep->capacity = capacity;
    }
    kvl__swept* one = &sweep->list[sweep->num];
    one->path = kvl__copy_text(sweep->ctx, path);
    if (!one->path) {
        sweep->no_memory = 1;
        return;
    }
    one->bytes = bytes;
    one->used_ns = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
    sweep->total_bytes += bytes;
    ++sweep->num;
}

KVL__FN void kvl__sweep_visit(const kvl__sweep* sweep, const char* name, uint64_t bytes,
                              int64_t used_seconds, int ok)
{
    kvl_disk_entry entry;
    if (!sweep->visit || kvl__ends_with(name, ".id")) return;
    memset(&entry, 0, sizeof entry);
    snprintf(entry.name, sizeof entry.name, "%s", name);
    entry.bytes = bytes;
    entry.age_seconds = kvl__max_i64(0, (int64_t)time(NULL) - used_seconds);
    entry.ok = ok;
    sweep->visit(&entry, sweep->user);
}

KVL__FN void kvl__sweep_entry(kvl__sweep* sweep, const char* path, const char* name,
                              const struct stat* st)
{
    char beside[KVL__PATH_BYTES];
    const int is_kernel = kvl__kernel_suffix(name) >= 0;
    uint64_t bytes = (uint64_t)st->st_size;
    kvl__text_beside(path, beside);
    if (is_kernel) bytes += kvl__file_bytes(beside);
    const int ok = !sweep->check || kvl__entry_holds(sweep->ctx, path, name);
    const int gone = sweep->remove_all || (sweep->remove_bad && !ok);
    if (gone) kvl__remove_entry(path);
    if (is_kernel && (gone || !sweep->remove_bad))
        kvl__sweep_visit(sweep, name, bytes, (int64_t)st->st_mtim.tv_sec, ok);
    if (!gone && sweep->keep_list) kvl__sweep_keep(sweep, path, st, bytes);
}

KVL__FN void kvl__sweep_file(kvl__sweep* sweep, const char* path, const char* name)
{
    struct stat st;
    if (lstat(path, &st) != 0 || S_ISDIR(st.st_mode)) return;
    const int cleaning = sweep->remove_all || sweep->remove_bad;
    if (kvl__kernel_suffix(name) >= 0 || kvl__ends_with(name, ".id")) {
        kvl__sweep_entry(sweep, path, name, &st);
    } else if (kvl__ends_with(name, ".tmp")) {
        if (cleaning || sweep->keep_list) kvl__remove_unheld(path);
    } else if (kvl__ends_with(name, ".lock")) {
        if (cleaning) kvl__remove_unheld(path);
    } else if (kvl__ends_with(name, ".c") || kvl__ends_with(name, ".cu")) {
        if (cleaning && !kvl__has_kernel_beside(path)) unlink(path);
    } else if (sweep->remove_bad) {
        unlink(path);                     // foreign: this folder is ours alone
        kvl__sweep_visit(sweep, name, (uint64_t)st.st_size, (int64_t)st.st_mtim.tv_sec, 0);
    }
}

KVL__FN int kvl__is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

KVL__FN void kvl__sweep_level(kvl__sweep* sweep, const char* folder)
{
    char path[KVL__PATH_BYTES];
    if (kvl__folder_fault(folder)) return;
    DIR* dir = opendir(folder);
    if (!dir) return;
    for (struct dirent* item = readdir(dir); item; item = readdir(dir))
        if (kvl__join_path(path, folder, item->d_name))
            kvl__sweep_file(sweep, path, item->d_name);
    closedir(dir);
    if (sweep->remove_all) rmdir(folder);      // fails while something is in it
}

// Walks the folders of the second level.  Nothing else in the folder is looked at or touched.
KVL__FN void kvl__sweep_folder(kvl__sweep* sweep)
{
    char path[KVL__PATH_BYTES];
    DIR* dir = opendir(sweep->ctx->folder);
    if (!dir) return;
    for (struct dirent* item = readdir(dir); item; item = readdir(dir)) {
        const char* name = item->d_name;
        if (kvl__is_hex(name[0]) && kvl__is_hex(name[1]) && name[2] == '\0'
            && kvl__join_path(path, sweep->ctx->folder, name))
            kvl__sweep_level(sweep, path);
    }
    closedir(dir);
}

KVL__FN int kvl__by_use(const void* a, const void* b)
{
    const kvl__swept* x = (const kvl__swept*)a;
    const kvl__swept* y = (const kvl__swept*)b;
    if (x->used_ns != y->used_ns) return x->used_ns < y->used_ns ? -1 : 1;
    return strcmp(x->path, y->path);
}

// Removes the longest unused of the kept list beyond max_bytes, and frees the list.
KVL__FN void kvl__sweep_finish(kvl__sweep* sweep, uint64_t max_bytes)
{
    if (sweep->num) qsort(sweep->list, sweep->num, sizeof *sweep->list, kvl__by_use);
    for (size_t i = 0; i < sweep->num; ++i) {
        kvl__swept* one = &sweep->list[i];
        if (sweep->total_bytes > max_bytes) {
            kvl__remove_entry(one->path);
            kvl__sweep_visit(sweep, strrchr(one->path, '/') + 1, one->bytes,
                             one->used_ns / 1000000000, 1);
            sweep->total_bytes -= one->bytes;
        }
        kvl__free_text(sweep->ctx, one->path);
    }
    kvl__free(sweep->ctx, sweep->list, sweep->capacity * sizeof *sweep->list);
    sweep->list = NULL;
    sweep->num = sweep->capacity = 0;
}

// After a write: holds the folder below its bound.  Looks at sizes only.
KVL__FN void kvl__disk_bound(kvl_context* ctx)
{
    kvl__sweep sweep;
    memset(&sweep, 0, sizeof sweep);
    sweep.ctx = ctx;
    sweep.keep_list = 1;
    kvl__sweep_folder(&sweep);
    kvl__sweep_finish(&sweep, ctx->folder_max_bytes);
}

// WORK FOLDERS: where a compiler writes, private and short-lived

typedef struct kvl__work { char path[KVL__PATH_BYTES]; int fd; } kvl__work;

static __attribute__((unused)) const char* const kvl__work_parents[] = {
    "/tmp", "/var/tmp", "/dev/shm", NULL };

#define KVL__WORK_PREFIX "kvloom-work-"

KVL__FN int kvl__work_make(kvl_context* ctx, kvl__work* work)
{
    work->fd = -1;
    for (int i = 0; i < 4; ++i) {
        const char* parent = i < 3 ? kvl__work_parents[i] : ctx->folder;
        if (!parent || (i == 3 && (kvl__folder_fault(parent) || !kvl__make_folder(parent))))
            continue;
        if (!kvl__join_path(work->path, parent, KVL__WORK_PREFIX "XXXXXX")) continue;
        if (!mkdtemp(work->path)) continue;
        work->fd = kvl__open(work->path, O_RDONLY | O_DIRECTORY, 0);
        if (work->fd < 0) continue;
        const int held = flock(work->fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
        if (held && access(work->path, W_OK) == 0) return 1;
        close(work->fd);                  // a pruner was faster and removes it
        work->fd = -1;
    }
    return 0;
}

KVL__FN void kvl__work_empty(const char* folder)
{
    char path[KVL__PATH_BYTES];
    DIR* dir = opendir(folder);
    if (dir) {
        for (struct dirent* item = readdir(dir); item; item = readdir(dir))
            if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0
                && kvl__join_path(path, folder, item->d_name))
                unlink(path);
        closedir(dir);
    }
    rmdir(folder);
}

KVL__FN void kvl__work_remove(kvl__work* work)
{
    kvl__work_empty(work->path);
    if (work->fd >= 0) close(work->fd);
    work->fd = -1;
}

// Removes this user's work folders whose process has died, in one parent.
KVL__FN void kvl__work_sweep(const char* parent)
{
    char path[KVL__PATH_BYTES];
    struct stat st;
    DIR* dir = opendir(parent);
    if (!dir) return;
    for (struct dirent* item = readdir(dir); item; item = readdir(dir)) {
        if (strncmp(item->d_name, KVL__WORK_PREFIX, sizeof KVL__WORK_PREFIX - 1) != 0
            || !kvl__join_path(path, parent, item->d_name))
            continue;
        const int fd = kvl__open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
        if (fd < 0) continue;
        if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0)
            kvl__work_empty(path);
        close(fd);
    }
    closedir(dir);
}

// THE PUBLIC PART

KVL__PUBLIC kvl_status kvl_disk(kvl_context* ctx, kvl_disk_action action, uint64_t max_bytes,
                                void (*visit)(const kvl_disk_entry* entry, void* user), void* user)
{
    kvl__sweep sweep;
    if (!ctx || ctx->broken) return KVL_BAD_ARGUMENT;
    KVL__REQUIRE(ctx, action >= KVL_DISK_LIST && action <= KVL_DISK_CLEAR, KVL_BAD_ARGUMENT,
                 "action = %d: must be a kvl_disk_action", (int)action);
    KVL__REQUIRE(ctx, ctx->folder, KVL_UNSUPPORTED,
                 "there is no kernel cache folder: kernels are kept in memory only");
    const char* fault = kvl__folder_fault(ctx->folder);
    KVL__REQUIRE(ctx, !fault, KVL_UNSUPPORTED, "kernel cache folder %s: %s", ctx->folder, fault);
    memset(&sweep, 0, sizeof sweep);
    sweep.ctx = ctx;
    sweep.visit = visit;
    sweep.user = user;
    sweep.check = 1;
    sweep.remove_bad = sweep.keep_list = action == KVL_DISK_PRUNE;
    sweep.remove_all = action == KVL_DISK_CLEAR;
    kvl__sweep_folder(&sweep);
    kvl__sweep_finish(&sweep, max_bytes ? max_bytes : ctx->folder_max_bytes);
    if (action != KVL_DISK_LIST) {
        for (int i = 0; kvl__work_parents[i]; ++i) kvl__work_sweep(kvl__work_parents[i]);
        kvl__work_sweep(ctx->folder);
    }
    KVL__REQUIRE(ctx, !sweep.no_memory, KVL_NO_MEMORY, "no memory for the list of entries");
    return KVL_OK;
}

KVL__PUBLIC const char* kvl_disk_folder(const kvl_context* ctx)
{
    return ctx && ctx->folder ? ctx->folder : "";
}

#endif
