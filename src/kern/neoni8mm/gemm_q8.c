/* gemm_q8.c - 8-bit weights times A16 or A8 activations with usmmla, which takes unsigned bytes of weights as they lie.
 *
 * Computes the formula of scalar/gemm_q4.c, whose integer part is exact in any order. Source: spec kernels 2, 5 - 7. */
#include "kern/neon/dot_neon.h"
#include "kern/neoni8mm/neoni8mm.h"

NB_INLINE void weights(int8x16_t c[2], const unsigned char *b)
{
    const uint32x4_t first = vreinterpretq_u32_u8(vld1q_u8(b)), second = vreinterpretq_u32_u8(vld1q_u8(b + 256));

    c[0] = vreinterpretq_s8_u32(vzip1q_u32(first, second)); /* rows 0 and 1, eight inputs of each */
    c[1] = vreinterpretq_s8_u32(vzip2q_u32(first, second)); /* rows 2 and 3 */
}

NB_INLINE int32x4_t product(int32x4_t acc, int8x16_t c, int8x16_t x)
{
    return vusmmlaq_s32(acc, vreinterpretq_u8_s8(c), x);
}

enum { STEP_BYTES = 512 };

#define GEMM_A16 nb_gemm_q8_neoni8mm
#define GEMM_A8  nb_gemm_q8_a8_neoni8mm
#include "kern/neoni8mm/gemm_mmla.inc"
