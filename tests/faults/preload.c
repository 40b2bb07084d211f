/* Fails the nth call of one kind on a file below some directories, once, with a chosen errno.
 *
 * Preloaded into a process that forks a child for each fault; the child names the directories and arms it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char below[4][1024];
static char armed_kind[16];
static int armed_errno;
static atomic_int left = -1; /* calls until the one that fails; below 0 where none shall */
static atomic_int has_fired;

void faults_below(int index, const char* directory) {
  snprintf(below[index], sizeof below[index], "%s", directory);
}
void faults_arm(const char* kind, int n, int error) {
  snprintf(armed_kind, sizeof armed_kind, "%s", kind);
  armed_errno = error;
  has_fired = 0;
  left = n;
}
int faults_fired(void) {
  return has_fired;
}

static int is_below(const char* path) {
  for (int i = 0; i < 4; ++i)
    if (below[i][0] && strncmp(path, below[i], strlen(below[i])) == 0) return 1;
  return 0;
}

static int path_of(int fd, char* path, size_t size) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const long length = syscall(SYS_readlink, link, path, size - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return 1;
}

/* Whether this call is the one that fails. The path is relative to a directory unless it is absolute or NULL. */
static int fails(const char* kind, int directory, const char* path) {
  if (left < 0 || strcmp(kind, armed_kind) != 0) return 0;
  const int saved = errno;
  char whole[2048];
  int counts = 0;
  if (path != NULL && (path[0] == '/' || directory == AT_FDCWD)) counts = is_below(path);
  else if (path_of(directory, whole, sizeof whole)) counts = is_below(whole);
  errno = saved;
  if (!counts || atomic_fetch_sub(&left, 1) != 0) return 0;
  has_fired = 1;
  errno = armed_errno;
  return 1;
}

#define REAL(name) static __typeof__(name)* real; if (!real) real = (__typeof__(name)*)dlsym(RTLD_NEXT, #name)
#define WRAP(result, name, parameters, arguments, kind, directory, path, failure) \
  result name parameters {                                                         \
    REAL(name);                                                                    \
    return fails(kind, directory, path) ? failure : real arguments;               \
  }
#define MODE(flags) mode_t mode = 0; if ((flags) & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); \
  mode = va_arg(rest, mode_t); va_end(rest); }
#define OPEN(name)                                                                  \
  int name(const char* path, int flags, ...) {                                      \
    MODE(flags) REAL(name);                                                         \
    return fails("open", AT_FDCWD, path) ? -1 : real(path, flags, mode);            \
  }
#define OPENAT(name)                                                                \
  int name(int at, const char* path, int flags, ...) {                              \
    MODE(flags) REAL(name);                                                         \
    return fails("open", at, path) ? -1 : real(at, path, flags, mode);              \
  }

OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)
WRAP(FILE*, fopen, (const char* p, const char* m), (p, m), "open", AT_FDCWD, p, NULL)
WRAP(FILE*, fopen64, (const char* p, const char* m), (p, m), "open", AT_FDCWD, p, NULL)
WRAP(int, mkdir, (const char* p, mode_t m), (p, m), "mkdir", AT_FDCWD, p, -1)
WRAP(int, mkdirat, (int at, const char* p, mode_t m), (at, p, m), "mkdir", at, p, -1)
WRAP(int, rename, (const char* a, const char* b), (a, b), "rename", AT_FDCWD, b, -1)
WRAP(int, renameat, (int x, const char* a, int y, const char* b), (x, a, y, b), "rename", y, b, -1)
WRAP(int, symlink, (const char* a, const char* b), (a, b), "symlink", AT_FDCWD, b, -1)
WRAP(int, fsync, (int fd), (fd), "fsync", fd, NULL, -1)
WRAP(int, lockf, (int fd, int how, off_t n), (fd, how, n), "lock", fd, NULL, -1)
WRAP(int, lockf64, (int fd, int how, off64_t n), (fd, how, n), "lock", fd, NULL, -1)
WRAP(ssize_t, read, (int fd, void* to, size_t n), (fd, to, n), "read", fd, NULL, -1)
WRAP(ssize_t, write, (int fd, const void* of, size_t n), (fd, of, n), "write", fd, NULL, -1)
WRAP(ssize_t, pwrite64, (int fd, const void* of, size_t n, off64_t o), (fd, of, n, o), "write", fd, NULL, -1)
WRAP(int, ftruncate64, (int fd, off64_t n), (fd, n), "truncate", fd, NULL, -1)
WRAP(int, stat, (const char* p, struct stat* s), (p, s), "stat", AT_FDCWD, p, -1)
WRAP(int, lstat, (const char* p, struct stat* s), (p, s), "stat", AT_FDCWD, p, -1)
WRAP(int, fstat, (int fd, struct stat* s), (fd, s), "stat", fd, NULL, -1)
WRAP(int, fstatat, (int at, const char* p, struct stat* s, int f), (at, p, s, f), "stat", at, p, -1)
WRAP(int, stat64, (const char* p, struct stat64* s), (p, s), "stat", AT_FDCWD, p, -1)
WRAP(int, lstat64, (const char* p, struct stat64* s), (p, s), "stat", AT_FDCWD, p, -1)
WRAP(int, fstat64, (int fd, struct stat64* s), (fd, s), "stat", fd, NULL, -1)
WRAP(int, fstatat64, (int at, const char* p, struct stat64* s, int f), (at, p, s, f), "stat", at, p, -1)
WRAP(DIR*, opendir, (const char* p), (p), "opendir", AT_FDCWD, p, NULL)
WRAP(DIR*, fdopendir, (int fd), (fd), "opendir", fd, NULL, NULL)
WRAP(struct dirent64*, readdir64, (DIR* d), (d), "readdir", dirfd(d), NULL, NULL)
WRAP(struct dirent*, readdir, (DIR* d), (d), "readdir", dirfd(d), NULL, NULL)
WRAP(int, unlink, (const char* p), (p), "unlink", AT_FDCWD, p, -1)
WRAP(int, unlinkat, (int at, const char* p, int f), (at, p, f), "unlink", at, p, -1)
WRAP(int, rmdir, (const char* p), (p), "unlink", AT_FDCWD, p, -1)
WRAP(int, utimensat, (int at, const char* p, const struct timespec t[2], int f), (at, p, t, f), "utime", at, p, -1)

int memfd_create(const char* name, unsigned flags) {
  REAL(memfd_create);
  return fails("memfd", AT_FDCWD, "/memfd:sgljit") ? -1 : real(name, flags);
}
