/* gemm_q4.c - 4-bit weights times A16 or A8 activations with smmla, which multiplies two rows of eight bytes by two others: two rows of
 * weights by the high and the low plane of a token, so that one token alone fills it too.
 *
 * Computes the formula of scalar/gemm_q4.c, whose integer part is exact in any order. Source: spec kernels 5 - 7. */
#include "kern/neon/dot_neon.h"
#include "kern/neoni8mm/neoni8mm.h"

NB_INLINE void weights(int8x16_t c[2], const unsigned char *b)
{
    const uint8x16_t q = vld1q_u8(b);
    const int32x4_t low = vreinterpretq_s32_s8(nb_low(q)), high = vreinterpretq_s32_s8(nb_high(q));

    c[0] = vreinterpretq_s8_s32(vzip1q_s32(low, high)); /* rows 0 and 1, eight inputs of each */
    c[1] = vreinterpretq_s8_s32(vzip2q_s32(low, high)); /* rows 2 and 3 */
}

NB_INLINE int32x4_t product(int32x4_t acc, int8x16_t c, int8x16_t x)
{
    return vmmlaq_s32(acc, c, x);
}

enum { STEP_BYTES = 256 };

#define GEMM_A16 nb_gemm_q4_neoni8mm
#define GEMM_A8  nb_gemm_q4_a8_neoni8mm
#include "kern/neoni8mm/gemm_mmla.inc"
