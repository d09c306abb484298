/* gemm_q4.c - 4-bit weights times A16 or A8 activations with sdot: codes are valid signed bytes, and one register of 16 activations
 * serves four quads by its lanes.
 *
 * Computes the formula of scalar/gemm_q4.c, whose integer part is exact in any order. Source: spec kernels 5 - 7. */
#include "kern/neon/dot_neon.h"
#include "kern/neondot/neondot.h"

/* acc[token][plane][row register] += quad `lane` of x times codes c. The lane is part of the instruction. */
#define DOTS(c, lane)                                                                                                                      \
    NB_UNROLL                                                                                                                              \
    for (int i = 0; i < mr; i++) {                                                                                                         \
        NB_UNROLL                                                                                                                          \
        for (int p = 0; p < np; p++) {                                                                                                     \
            NB_UNROLL                                                                                                                      \
            for (int j = 0; j < nr; j++)                                                                                                   \
                acc[i][p][j] = vdotq_laneq_s32(acc[i][p][j], (c)[j], x[i][p], (lane));                                                     \
        }                                                                                                                                  \
    }

/* Eight inputs: low nibbles, then high ones. */
#define STEP(from, lane)                                                                                                                   \
    {                                                                                                                                      \
        int8x16_t low[8], high[8];                                                                                                         \
        NB_UNROLL                                                                                                                          \
        for (int j = 0; j < nr; j++) {                                                                                                     \
            const uint8x16_t q = vld1q_u8((from) + 16 * j);                                                                                \
            low[j] = nb_low(q);                                                                                                            \
            high[j] = nb_high(q);                                                                                                          \
        }                                                                                                                                  \
        DOTS(low, lane)                                                                                                                    \
        DOTS(high, (lane) + 1)                                                                                                             \
    }

enum { STEP_BYTES = 256, LESS = 0 };

#define GEMM_A16 nb_gemm_q4_neondot
#define GEMM_A8  nb_gemm_q4_a8_neondot
#include "kern/neondot/gemm_dot.inc"
