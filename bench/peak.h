/* peak.h - arithmetic yardstick of the kernel bench. */
#ifndef NB_BENCH_PEAK_H
#define NB_BENCH_PEAK_H

#include <stdint.h>

/* Run n x 16 independent vpdpbusd on 64-byte registers: n * 1024 multiply-adds of bytes. Needs AVX-512 VNNI. */
void nb_peak_vnni(uint64_t n);

#endif
