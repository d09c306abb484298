/* cpu.h - what this processor can do. Built without ISA flags or LTO. No state but a cached cpuid result. */
#ifndef NB_BASE_CPU_H
#define NB_BASE_CPU_H

#include <stddef.h>

#include "base/err.h"

enum {
    NB_CPU_AVX2 = 1u << 0, /* with OS support of ymm state */
    NB_CPU_FMA = 1u << 1,
    NB_CPU_F16C = 1u << 2,
    NB_CPU_AVX512 = 1u << 3, /* F, BW, VL, DQ, and OS support of zmm state */
    NB_CPU_AVX512_VNNI = 1u << 4,
    NB_CPU_AVX512_VBMI = 1u << 5,
    NB_CPU_AVX_VNNI = 1u << 6,
    NB_CPU_AVX512_BF16 = 1u << 7,
    NB_CPU_AMX_INT8 = 1u << 8, /* and this process may use tiles, for which the system is asked */
    NB_CPU_SHA = 1u << 9,      /* of SHA-256 */
    NB_CPU_NEON = 1u << 16,
    NB_CPU_DOTPROD = 1u << 17,
    NB_CPU_I8MM = 1u << 18
};

unsigned nb_cpu_features(void);
/* Model name ("AMD EPYC ..."), family, and cores this process may use. Static storage. */
const char *nb_cpu_name(void);
int nb_cpu_family(void);
int nb_cpu_cores(void);
/* Bytes that this process may still take: the least of what the machine has left (without swapping), what its control group and
 * what RLIMIT_AS leave. 0 when nothing is known. */
size_t nb_mem_free(void);
/* Physical memory of the machine and resident size of this process now / at peak; 0 when unknown. */
size_t nb_mem_total(void);
size_t nb_rss_now(void);
size_t nb_rss_peak(void);

#endif
