/* gemm_q4_f32.c - 4-bit and 8-bit weights times f32 activations, inputs in ascending order: lanes are outputs. */
#include "kern/avx2/avx2.h"
#include "kern/avx2/dot_avx2.h"

/* Eight outputs of mr tokens, rows 8j .. 8j+7 of strip s. */
NB_INLINE void rows8(const nb_q4 *w, const float *x, size_t ldx, float *y, size_t ldy, size_t s, int j, const int mr, const int bits)
{
    const __m256i mask = _mm256_set1_epi32((1 << bits) - 1);
    __m256 sum[4];

    NB_UNROLL
    for (int i = 0; i < mr; i++)
        sum[i] = _mm256_setzero_ps();
    for (size_t k = 0; k < w->k; k += w->g) {
        const unsigned char *b = nb_q4_block(w, s, k / w->g);
        const __m256 scale = nb_scales8(b + nb_q4_scales_at(w), w->wide, j);
        const __m256i zero = nb_zeros8(b + nb_q4_zeros_at(w), j);
        const size_t n = nb_q4_valid(w->k, w->g, k / w->g);

        for (size_t c = 0; c < n; c++) {
            const __m256i word = nb_load32(b + c * (size_t)bits / 32 * 256 + 32 * j);
            const int shift = (int)(bits == 8 ? c % 4 * 8 : c % 4 * 8 + c % 8 / 4 * 4);
            const __m256i q = _mm256_and_si256(_mm256_srl_epi32(word, _mm_cvtsi32_si128(shift)), mask);
            const __m256 v = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(q, zero)), scale);
            const size_t in = w->perm ? w->perm[k + c] : k + c;

            NB_UNROLL
            for (int i = 0; i < mr; i++)
                sum[i] = _mm256_fmadd_ps(v, _mm256_set1_ps(x[i * ldx + in]), sum[i]);
        }
    }
    NB_UNROLL
    for (int i = 0; i < mr; i++)
        _mm256_storeu_ps(y + i * ldy + s * NB_STRIP + 8 * j, sum[i]);
}

NB_INLINE void gemm_f32(const nb_q4 *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1, const int bits)
{
    for (size_t s = s0; s < s1; s++)
        for (int j = 0; j < 8; j++) {
            size_t i = 0;

            for (; i + 4 <= m; i += 4)
                rows8(w, x + i * ldx, ldx, y + i * ldy, ldy, s, j, 4, bits);
            for (; i < m; i++)
                rows8(w, x + i * ldx, ldx, y + i * ldy, ldy, s, j, 1, bits);
        }
}

void nb_gemm_q4_f32_avx2(const nb_q4 *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1)
{
    gemm_f32(w, x, ldx, m, y, ldy, s0, s1, 4);
}

void nb_gemm_q8_f32_avx2(const nb_q8 *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1)
{
    gemm_f32(w, x, ldx, m, y, ldy, s0, s1, 8);
}
