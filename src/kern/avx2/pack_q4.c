/* pack_q4.c - hub rows into packed blocks, 8 rows x 32 inputs at a time. Same bytes as scalar/pack_q4.c. */
#include "kern/avx2/avx2.h"
#include "kern/avx2/dot_avx2.h"

enum { ROWS = 8 };

/* Rows a and b: every 64 bits hold one step of each as it lies in a block, a in the low half. Codes are at most 15, so
 * shifts by 4 and 28 carry nothing across bytes. */
NB_INLINE __m256i pair(const uint8_t *a, const uint8_t *b)
{
    const __m256i x = nb_load32(a), y = nb_load32(b);
    const __m256i low = _mm256_or_si256(x, _mm256_srli_epi64(x, 28));
    const __m256i high = _mm256_or_si256(_mm256_slli_epi64(y, 32), _mm256_slli_epi64(y, 4));

    return _mm256_blend_epi32(low, high, 0xaa);
}

/* Four steps (32 inputs) of eight rows; only the first n steps are stored. */
NB_INLINE void put_steps(unsigned char *out, const uint8_t *const row[ROWS], size_t at, size_t n)
{
    const __m256i p0 = pair(row[0] + at, row[1] + at), p1 = pair(row[2] + at, row[3] + at);
    const __m256i p2 = pair(row[4] + at, row[5] + at), p3 = pair(row[6] + at, row[7] + at);
    const __m256i a02 = _mm256_unpacklo_epi64(p0, p1), a13 = _mm256_unpackhi_epi64(p0, p1); /* rows 0..3 of steps 0, 2 and 1, 3 */
    const __m256i b02 = _mm256_unpacklo_epi64(p2, p3), b13 = _mm256_unpackhi_epi64(p2, p3); /* rows 4..7 */
    const __m256i step[4] = { _mm256_permute2x128_si256(a02, b02, 0x20), _mm256_permute2x128_si256(a13, b13, 0x20),
                              _mm256_permute2x128_si256(a02, b02, 0x31), _mm256_permute2x128_si256(a13, b13, 0x31) };

    for (size_t t = 0; t < 4 && t < n; t++)
        _mm256_storeu_si256((void *)(out + 256 * t), step[t]);
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
        for (size_t r = 0; r < NB_STRIP; r += 8)
            _mm_storeu_si128((void *)(scales + 2 * r), _mm256_cvtps_ph(_mm256_loadu_ps(s + r), _MM_FROUND_TO_NEAREST_INT));
}

/* Eight rows of one block. Rows that are short, missing or out of order are first copied to a padded buffer. */
static void put_rows(unsigned char *out, const nb_q4 *p, const nb_qlin *q, size_t first, size_t rows, size_t k0, const uint32_t *perm)
{
    const size_t g = p->g, n = nb_q4_valid(p->k, g, k0 / g);
    const bool direct = rows >= ROWS && n % 32 == 0 && n == g && !perm;
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
    for (size_t t = 0; t < g / 8; t += 4)
        put_steps(out + 256 * t, row, 8 * t, g / 8 - t);
}

void nb_pack_q4_avx2(nb_q4 *p, size_t row0, size_t n0, const nb_qlin *q, const uint32_t *perm)
{
    assert((row0 + n0) % NB_STRIP == 0 && q->k == p->k && row0 + n0 + q->n <= p->n);
    for (size_t first = 0; first < q->n; first += NB_STRIP) {
        const size_t s = (row0 + n0 + first) / NB_STRIP;
        const size_t rows = q->n - first < NB_STRIP ? q->n - first : NB_STRIP;

        for (size_t grp = 0; grp < p->n_groups; grp++) {
            unsigned char *block = nb_q4_block(p, s, grp);
            const size_t k0 = grp * p->g, head = perm ? perm[k0] : k0;

            for (size_t r = 0; r < NB_STRIP; r += ROWS)
                put_rows(block + 4 * r, p, q, first + r, rows > r ? rows - r : 0, k0, perm);
            put_affine(p, block, q, first, rows, q->g_idx ? q->g_idx[head] : head / q->g);
        }
    }
}
