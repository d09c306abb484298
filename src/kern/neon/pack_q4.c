/* pack_q4.c - hub rows into packed blocks, 4 rows x 16 inputs at a time. Same bytes as scalar/pack_q4.c. */
#include "kern/neon/dot_neon.h"
#include "kern/neon/neon.h"

enum { ROWS = 4, STEP = 16 };

/* to[x] = word x of every row. */
NB_INLINE void turn4(uint32x4_t to[4], const uint32x4_t row[4])
{
    const uint64x2_t even01 = vreinterpretq_u64_u32(vtrn1q_u32(row[0], row[1])), odd01 = vreinterpretq_u64_u32(vtrn2q_u32(row[0], row[1]));
    const uint64x2_t even23 = vreinterpretq_u64_u32(vtrn1q_u32(row[2], row[3])), odd23 = vreinterpretq_u64_u32(vtrn2q_u32(row[2], row[3]));

    to[0] = vreinterpretq_u32_u64(vtrn1q_u64(even01, even23));
    to[1] = vreinterpretq_u32_u64(vtrn1q_u64(odd01, odd23));
    to[2] = vreinterpretq_u32_u64(vtrn2q_u64(even01, even23));
    to[3] = vreinterpretq_u32_u64(vtrn2q_u64(odd01, odd23));
}

/* 16 inputs of four rows, of which `left` are inside the group: quads as they are, or two quads in the halves of a byte. */
NB_INLINE void put_inputs(unsigned char *out, const uint8_t *const row[ROWS], size_t at, size_t left, const bool byte)
{
    uint32x4_t x[4], quad[4];

    for (int r = 0; r < ROWS; r++)
        x[r] = vreinterpretq_u32_u8(vld1q_u8(row[r] + at));
    turn4(quad, x);
    if (byte) {
        for (size_t i = 0; i < 4 && 4 * i < left; i++)
            vst1q_u8(out + 256 * i, vreinterpretq_u8_u32(quad[i]));
        return;
    }
    for (size_t i = 0; i < 2 && 8 * i < left; i++)
        vst1q_u8(out + 256 * i, vorrq_u8(vreinterpretq_u8_u32(quad[2 * i]), vshlq_n_u8(vreinterpretq_u8_u32(quad[2 * i + 1]), 4)));
}

NB_INLINE void put_halves(unsigned char *out, const float *s)
{
    for (size_t r = 0; r < NB_STRIP; r += 4)
        vst1_u8(out + 2 * r, vreinterpret_u8_f16(vcvt_f16_f32(vld1q_f32(s + r))));
}

#include "kern/pack_body.inc"

void nb_pack_q4_neon(nb_q4 *p, size_t row0, size_t n0, const nb_qlin *q, const uint32_t *perm)
{
    pack(p, row0, n0, q, perm, false);
}

void nb_pack_q8_neon(nb_q8 *p, size_t row0, size_t n0, const nb_qlin *q, const uint32_t *perm)
{
    pack(p, row0, n0, q, perm, true);
}
