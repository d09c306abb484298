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

/* Scale and zero of all 64 rows; rows from `rows` on are padding. hub: group of the hub that holds this block. */
static void put_affine(const nb_q4 *p, unsigned char *block, const nb_qlin *q, size_t first, size_t rows, size_t hub)
{
    unsigned char *scales = block + nb_q4_scales_at(p), *zeros = block + nb_q4_zeros_at(p);
    float s[NB_STRIP] = { 0 };

    memset(zeros, 0, NB_STRIP);
    for (size_t r = 0; r < rows; r++) {
        s[r] = q->scales[(first + r) * q->n_groups + hub];
        zeros[r] = q->zeros[(first + r) * q->n_groups + hub];
    }
    if (p->wide)
        memcpy(scales, s, sizeof s);
    else
        for (size_t r = 0; r < NB_STRIP; r += 4)
            vst1_u8(scales + 2 * r, vreinterpret_u8_f16(vcvt_f16_f32(vld1q_f32(s + r))));
}

/* Four rows of one block. Rows that are short, missing or out of order are first copied to a padded buffer. */
NB_INLINE void put_rows(unsigned char *out, const nb_q4 *p, const nb_qlin *q, size_t first, size_t rows, size_t k0, const uint32_t *perm,
                        const bool byte)
{
    const size_t g = p->g, n = nb_q4_valid(p->k, g, k0 / g), step_bytes = byte ? 64 : 32;
    const bool direct = rows >= ROWS && n % STEP == 0 && n == g && !perm;
    uint8_t copy[ROWS][NB_MAX_G];
    const uint8_t *row[ROWS];

    for (size_t r = 0; r < ROWS; r++) {
        const uint8_t *codes = q->codes + (r < rows ? first + r : 0) * q->k;

        row[r] = direct ? codes + k0 : copy[r];
        if (direct)
            continue;
        memset(copy[r], 0, NB_MAX_G);
        if (r < rows && !perm)
            memcpy(copy[r], codes + k0, n);
        else if (r < rows)
            for (size_t i = 0; i < n; i++)
                copy[r][i] = codes[perm[k0 + i]];
    }
    for (size_t k = 0; k < g; k += STEP)
        put_inputs(out + step_bytes * k, row, k, g - k, byte);
}

NB_INLINE void pack(nb_q4 *p, size_t row0, size_t n0, const nb_qlin *q, const uint32_t *perm, const bool byte)
{
    assert((row0 + n0) % NB_STRIP == 0 && q->k == p->k && row0 + n0 + q->n <= p->n);
    for (size_t first = 0; first < q->n; first += NB_STRIP) {
        const size_t s = (row0 + n0 + first) / NB_STRIP;
        const size_t rows = q->n - first < NB_STRIP ? q->n - first : NB_STRIP;

        for (size_t grp = 0; grp < p->n_groups; grp++) {
            unsigned char *block = nb_q4_block(p, s, grp);
            const size_t k0 = grp * p->g, head = perm ? perm[k0] : k0;

            for (size_t r = 0; r < NB_STRIP; r += ROWS)
                put_rows(block + 4 * r, p, q, first + r, rows > r ? rows - r : 0, k0, perm, byte);
            put_affine(p, block, q, first, rows, q->g_idx ? q->g_idx[head] : head / q->g);
        }
    }
}

void nb_pack_q4_neon(nb_q4 *p, size_t row0, size_t n0, const nb_qlin *q, const uint32_t *perm)
{
    pack(p, row0, n0, q, perm, false);
}

void nb_pack_q8_neon(nb_q8 *p, size_t row0, size_t n0, const nb_qlin *q, const uint32_t *perm)
{
    pack(p, row0, n0, q, perm, true);
}
