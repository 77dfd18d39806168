/* Preloaded into a process: counts the file operations below a folder, and fails or ends the process at the n-th.

   Every operation that changes files is counted, of Python and of native libraries (Arrow, faiss, safetensors, torch,
   tokenizers): open for writing, write, fsync, rename, remove, mkdir, link. A write at the n-th writes half of its bytes
   (none if it is interrupted: it is then repeated). A full disk stays full; other errors happen once. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX];
static long at, count;
static int code; /* the error, or 0 to kill */
static __thread int half; /* whether the operation is a write, which writes half of its bytes before a kill */

void faults_arm(const char *folder, long n, int error) {
    at = n, code = error, count = 0;
    snprintf(root, sizeof root, "%s/", folder);
}

long faults_count(void) { return count; }

static int below(int folder, const char *path) {
    char full[2 * PATH_MAX], base[PATH_MAX] = "";
    if (!root[0] || !path) return 0;
    if (path[0] == '/') return !strncmp(path, root, strlen(root)) || !strncmp(path, root, strlen(root) - 1);
    if (folder == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return 0;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t n = readlink(link, base, sizeof base - 1);
        if (n < 0) return 0;
        base[n] = 0;
    }
    snprintf(full, sizeof full, "%s/%s", base, path);
    return !strncmp(full, root, strlen(root));
}

static int open_below(int file) {
    char link[64], path[PATH_MAX];
    if (!root[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return !strncmp(path, root, strlen(root)) || !strncmp(path, root, strlen(root) - 1);
}

/* Count an operation; return whether it must fail. takes_space: it fails on a disk that is full already. */
static int is_due(int is_below, int takes_space) {
    if (!is_below) return 0;
    long n = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    if (n == at && !code && !half) kill(getpid(), SIGKILL);
    if (n != at && !(at > 0 && n > at && code == ENOSPC && takes_space)) return 0;
    errno = code;
    return 1;
}

static int write_is_due(int file) {
    half = 1;
    int due = is_due(open_below(file), 1);
    half = 0;
    return due;
}

static void end_write(void) {
    if (!code) kill(getpid(), SIGKILL);
    errno = code;
}

#define REAL(type, name, ...)                                   \
    static type (*real)(__VA_ARGS__);                           \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define WRITING (O_WRONLY | O_RDWR | O_CREAT)

#define OPEN(name)                                                                    \
    int name(const char *path, int flags, ...) {                                      \
        va_list rest;                                                                 \
        va_start(rest, flags);                                                        \
        mode_t mode = va_arg(rest, mode_t);                                           \
        va_end(rest);                                                                 \
        REAL(int, name, const char *, int, ...);                                      \
        return (flags & WRITING) && is_due(below(AT_FDCWD, path), 1) ? -1 : real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                  \
    int name(int folder, const char *path, int flags, ...) {                          \
        va_list rest;                                                                 \
        va_start(rest, flags);                                                        \
        mode_t mode = va_arg(rest, mode_t);                                           \
        va_end(rest);                                                                 \
        REAL(int, name, int, const char *, int, ...);                                 \
        return (flags & WRITING) && is_due(below(folder, path), 1) ? -1 : real(folder, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name)                                                                   \
    FILE *name(const char *path, const char *mode) {                                  \
        REAL(FILE *, name, const char *, const char *);                               \
        return strpbrk(mode, "wa+") && is_due(below(AT_FDCWD, path), 1) ? NULL : real(path, mode); \
    }
FOPEN(fopen)
FOPEN(fopen64)

ssize_t write(int file, const void *bytes, size_t n) {
    REAL(ssize_t, write, int, const void *, size_t);
    if (!write_is_due(file)) return real(file, bytes, n);
    if (n / 2 && code != EINTR) real(file, bytes, n / 2);
    end_write();
    return -1;
}

#define PWRITE(name)                                                                  \
    ssize_t name(int file, const void *bytes, size_t n, off_t start) {                \
        REAL(ssize_t, name, int, const void *, size_t, off_t);                        \
        if (!write_is_due(file)) return real(file, bytes, n, start);                  \
        end_write();                                                                  \
        return -1;                                                                    \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t writev(int file, const struct iovec *parts, int n) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    if (!write_is_due(file)) return real(file, parts, n);
    if (n / 2 && code != EINTR) real(file, parts, n / 2);
    end_write();
    return -1;
}

size_t fwrite(const void *bytes, size_t size, size_t n, FILE *file) {
    REAL(size_t, fwrite, const void *, size_t, size_t, FILE *);
    if (!write_is_due(fileno(file))) return real(bytes, size, n, file);
    size_t written = real(bytes, size, code == EINTR ? 0 : n / 2, file);
    end_write();
    return written;
}

ssize_t sendfile(int to, int from, off_t *start, size_t n) {
    REAL(ssize_t, sendfile, int, int, off_t *, size_t);
    if (!write_is_due(to)) return real(to, from, start, n);
    end_write();
    return -1;
}

ssize_t copy_file_range(int from, off64_t *a, int to, off64_t *b, size_t n, unsigned flags) {
    REAL(ssize_t, copy_file_range, int, off64_t *, int, off64_t *, size_t, unsigned);
    if (!write_is_due(to)) return real(from, a, to, b, n, flags);
    end_write();
    return -1;
}

#define ON_FILE(name)                                                                 \
    int name(int file) {                                                              \
        REAL(int, name, int);                                                         \
        return is_due(open_below(file), 1) ? -1 : real(file);                         \
    }
ON_FILE(fsync)
ON_FILE(fdatasync)

#define TRUNCATE(name)                                                                \
    int name(int file, off_t n) {                                                     \
        REAL(int, name, int, off_t);                                                  \
        return is_due(open_below(file), 0) ? -1 : real(file, n);                      \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

int mkdir(const char *path, mode_t mode) {
    REAL(int, mkdir, const char *, mode_t);
    return is_due(below(AT_FDCWD, path), 1) ? -1 : real(path, mode);
}

int mkdirat(int folder, const char *path, mode_t mode) {
    REAL(int, mkdirat, int, const char *, mode_t);
    return is_due(below(folder, path), 1) ? -1 : real(folder, path, mode);
}

#define REMOVE(name)                                                                  \
    int name(const char *path) {                                                      \
        REAL(int, name, const char *);                                                \
        return is_due(below(AT_FDCWD, path), 0) ? -1 : real(path);                    \
    }
REMOVE(unlink)
REMOVE(rmdir)
REMOVE(remove)

int unlinkat(int folder, const char *path, int flags) {
    REAL(int, unlinkat, int, const char *, int);
    return is_due(below(folder, path), 0) ? -1 : real(folder, path, flags);
}

int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *);
    return is_due(below(AT_FDCWD, to), 0) ? -1 : real(from, to);
}

int renameat(int a, const char *from, int b, const char *to) {
    REAL(int, renameat, int, const char *, int, const char *);
    return is_due(below(b, to), 0) ? -1 : real(a, from, b, to);
}

int link(const char *from, const char *to) {
    REAL(int, link, const char *, const char *);
    return is_due(below(AT_FDCWD, to), 0) ? -1 : real(from, to);
}

int linkat(int a, const char *from, int b, const char *to, int flags) {
    REAL(int, linkat, int, const char *, int, const char *, int);
    return is_due(below(b, to), 0) ? -1 : real(a, from, b, to, flags);
}
