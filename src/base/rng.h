/* rng.h - counter-based random numbers (Philox4x32-10): value i of stream (seed, stream) never depends on who asked
 * before. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. No state, thread safe. */
#ifndef NB_BASE_RNG_H
#define NB_BASE_RNG_H

#include <stdint.h>

/* Block `counter` of a stream: four uniform 32-bit words. */
void nb_philox(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t out[4]);
/* Uniform double in [0, 1) with 53 bits. */
double nb_rng_uniform(uint64_t seed, uint64_t stream, uint64_t counter);
/* Standard normal (Box-Muller on one block). */
double nb_rng_normal(uint64_t seed, uint64_t stream, uint64_t counter);

#endif
