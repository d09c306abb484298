/* gemm_q8.c - 8-bit weights times A16 or A8 activations with sdot. Codes are taken less 128, as signed bytes, and zeros likewise.
 *
 * Computes the formula of scalar/gemm_q4.c, whose integer part is exact in any order. Source: spec kernels 2, 5 - 7. */
#include "kern/neon/dot_neon.h"
#include "kern/neondot/neondot.h"

/* acc[token][plane][row register] += quad `lane` of x times the codes at `from`. The lane is part of the instruction. */
#define DOTS(from, lane)                                                                                                                   \
    NB_UNROLL                                                                                                                              \
    for (int j = 0; j < nr; j++) {                                                                                                         \
        const int8x16_t c = nb_less_128(vld1q_u8((from) + 16 * j));                                                                        \
        NB_UNROLL                                                                                                                          \
        for (int i = 0; i < mr; i++) {                                                                                                     \
            NB_UNROLL                                                                                                                      \
            for (int p = 0; p < np; p++)                                                                                                   \
                acc[i][p][j] = vdotq_laneq_s32(acc[i][p][j], c, x[i][p], (lane));                                                          \
        }                                                                                                                                  \
    }

#define STEP(from, lane)                                                                                                                   \
    DOTS(from, lane)                                                                                                                       \
    DOTS((from) + 256, (lane) + 1)

enum { STEP_BYTES = 512, LESS = 128 };

#define GEMM_A16 nb_gemm_q8_neondot
#define GEMM_A8  nb_gemm_q8_a8_neondot
#include "kern/neondot/gemm_dot.inc"
