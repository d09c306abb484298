/* cpu.c - processor features by cpuid or the auxiliary vector, sizes by sysconf and the proc file system. */
#define _GNU_SOURCE /* sched_getaffinity, syscall */
#include "base/cpu.h"
#include "base/num.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static unsigned features;
static int family;
static char name[64] = "unknown";

#if defined(__x86_64__)
static uint64_t xcr0(void)
{
    uint32_t lo, hi;

    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static unsigned bit(unsigned reg, unsigned i, unsigned flag)
{
    return reg >> i & 1u ? flag : 0;
}

/* Tiles are 8 KB of state that Linux keeps only for a process that has asked (Documentation/arch/x86/xstate.rst). */
static bool tiles_allowed(void)
{
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };

    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

/* Bit positions: Intel SDM volume 2, CPUID leaves 1 and 7. */
static void detect_features(void)
{
    unsigned a, b, c, d, b7 = 0, c7 = 0, d7 = 0, a71 = 0, f = 0;
    uint64_t os;

    if (!__get_cpuid(1, &a, &b, &c, &d))
        return;
    family = (int)(a >> 8 & 15);
    if (family == 15)
        family += (int)(a >> 20 & 255);
    if (!(c >> 27 & 1)) /* OSXSAVE: no vector state to rely on */
        return;
    os = xcr0();
    if ((os & 6) != 6)
        return;
    f |= bit(c, 12, NB_CPU_FMA) | bit(c, 29, NB_CPU_F16C);
    if (__get_cpuid_count(7, 0, &a, &b7, &c7, &d7) && a >= 1)
        __get_cpuid_count(7, 1, &a71, &b, &c, &d);
    f |= bit(b7, 5, NB_CPU_AVX2) | bit(a71, 4, NB_CPU_AVX_VNNI) | bit(b7, 29, NB_CPU_SHA);
    if ((os & 0xe6) == 0xe6 && (b7 >> 16 & 1) && (b7 >> 17 & 1) && (b7 >> 30 & 1) && (b7 >> 31 & 1))
        f |= NB_CPU_AVX512 | bit(c7, 11, NB_CPU_AVX512_VNNI) | bit(c7, 1, NB_CPU_AVX512_VBMI) | bit(a71, 5, NB_CPU_AVX512_BF16);
    if ((os >> 17 & 3) == 3 && (d7 >> 24 & 1) && tiles_allowed())
        f |= bit(d7, 25, NB_CPU_AMX_INT8);
    features = f;
}

static void detect_name(void)
{
    unsigned r[12];

    for (unsigned i = 0; i < 3; i++)
        if (!__get_cpuid(0x80000002u + i, &r[4 * i], &r[4 * i + 1], &r[4 * i + 2], &r[4 * i + 3]))
            return;
    memcpy(name, r, 48);
    name[48] = 0;
}
#elif defined(__aarch64__)
/* Bit numbers of the kernel's ABI (arch/arm64/include/uapi/asm/hwcap.h). */
static void detect_features(void)
{
    const unsigned long cap = getauxval(AT_HWCAP), cap2 = getauxval(AT_HWCAP2);

    family = 8;
    features = (cap >> 1 & 1 ? NB_CPU_NEON : 0) | (cap >> 20 & 1 ? NB_CPU_DOTPROD : 0) | (cap2 >> 13 & 1 ? NB_CPU_I8MM : 0);
}

static void detect_name(void)
{
    snprintf(name, sizeof name, "aarch64");
}
#else
static void detect_features(void)
{
}

static void detect_name(void)
{
}
#endif

/* Blanks at both ends and in runs look odd in a report. */
static void tidy_name(void)
{
    size_t o = 0;

    for (size_t i = 0; name[i]; i++)
        if (name[i] != ' ' || (o > 0 && name[o - 1] != ' '))
            name[o++] = name[i];
    while (o > 0 && name[o - 1] == ' ')
        o--;
    name[o] = 0;
}

static void detect(void)
{
    detect_features();
    detect_name();
    tidy_name();
}

unsigned nb_cpu_features(void)
{
    pthread_once(&once, detect);
    return features;
}

const char *nb_cpu_name(void)
{
    pthread_once(&once, detect);
    return name;
}

int nb_cpu_family(void)
{
    pthread_once(&once, detect);
    return family;
}

int nb_cpu_cores(void)
{
    cpu_set_t set;
    long n;

    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

size_t nb_mem_total(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);

    return pages > 0 && page > 0 ? (size_t)pages * (size_t)page : 0;
}

/* The number behind `key` and space at the begin of a line; 0 when there is none. */
static uint64_t line_number(const char *path, const char *key)
{
    FILE *f = fopen(path, "re");
    const size_t n = strlen(key);
    uint64_t v = 0;
    char line[256];

    while (f && v == 0 && fgets(line, sizeof line, f))
        if (strncmp(line, key, n) == 0)
            nb_num_u64(line + n + strspn(line + n, " \t"), UINT64_MAX / 1024, &v);
    if (f)
        fclose(f);
    return v;
}

/* A "Key:   123 kB" line of this process's status, in bytes. */
static size_t status_kb(const char *key)
{
    return (size_t)line_number("/proc/self/status", key) * 1024;
}

size_t nb_rss_now(void)
{
    return status_kb("VmRSS:");
}

size_t nb_rss_peak(void)
{
    return status_kb("VmHWM:");
}

/* ---- memory that is left ---- */

/* The number that a file begins with; "max" and an unreadable file: none. */
static bool file_number(const char *path, uint64_t *v)
{
    FILE *f = fopen(path, "re");
    char line[64];
    bool ok = false;

    if (f) {
        ok = fgets(line, sizeof line, f) && nb_num_u64(line, UINT64_MAX, v);
        fclose(f);
    }
    return ok;
}

static uint64_t left(uint64_t limit, uint64_t used)
{
    return limit > used ? limit - used : 1;
}

size_t nb_mem_free(void)
{
    static const char *const groups[][4] = {
        { "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "inactive_file " },
        { "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.stat",
          "total_inactive_file " },
    };
    uint64_t least = line_number("/proc/meminfo", "MemAvailable:") * 1024, limit, used;
    struct rlimit r;

    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++)
        if (file_number(groups[i][0], &limit) && file_number(groups[i][1], &used) && limit < UINT64_MAX / 4) {
            const uint64_t cache = line_number(groups[i][2], groups[i][3]); /* of files: the system takes it back */
            const uint64_t more = left(limit, used > cache ? used - cache : 0);
            least = least == 0 || more < least ? more : least;
        }
    if (getrlimit(RLIMIT_AS, &r) == 0 && r.rlim_cur != RLIM_INFINITY) {
        const uint64_t more = left(r.rlim_cur, status_kb("VmSize:"));
        least = least == 0 || more < least ? more : least;
    }
    return (size_t)least;
}
