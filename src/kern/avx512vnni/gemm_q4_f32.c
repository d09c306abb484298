/* gemm_q4_f32.c - 4-bit and 8-bit weights times f32 activations, inputs in ascending order: lanes are outputs. */
#include "kern/avx512vnni/avx512vnni.h"
#include "kern/avx512vnni/dot_avx512vnni.h"

/* Sixteen outputs of mr tokens, rows 16j .. 16j+15 of strip s. */
NB_INLINE void rows16(const nb_q4 *w, const float *x, size_t ldx, float *y, size_t ldy, size_t s, int j, const int mr, const int bits)
{
    const __m512i mask = _mm512_set1_epi32((1 << bits) - 1);
    __m512 sum[4];

    NB_UNROLL
    for (int i = 0; i < mr; i++)
        sum[i] = _mm512_setzero_ps();
    for (size_t k = 0; k < w->k; k += w->g) {
        const unsigned char *b = nb_q4_block(w, s, k / w->g);
        const __m512 scale = nb_scales16(b + nb_q4_scales_at(w), w->wide, j);
        const __m512i zero = nb_zeros16(b + nb_q4_zeros_at(w), j);
        const size_t n = nb_q4_valid(w->k, w->g, k / w->g);

        for (size_t c = 0; c < n; c++) {
            const __m512i word = _mm512_load_si512(b + c * (size_t)bits / 32 * 256 + 64 * j);
            const unsigned shift = (unsigned)(bits == 8 ? c % 4 * 8 : c % 4 * 8 + c % 8 / 4 * 4);
            const __m512i q = _mm512_and_si512(_mm512_srl_epi32(word, _mm_cvtsi32_si128((int)shift)), mask);
            const __m512 v = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(q, zero)), scale);
            const size_t in = w->perm ? w->perm[k + c] : k + c;

            NB_UNROLL
            for (int i = 0; i < mr; i++)
                sum[i] = _mm512_fmadd_ps(v, _mm512_set1_ps(x[i * ldx + in]), sum[i]);
        }
    }
    NB_UNROLL
    for (int i = 0; i < mr; i++)
        _mm512_storeu_ps(y + i * ldy + s * NB_STRIP + 16 * j, sum[i]);
}

NB_INLINE void gemm_f32(const nb_q4 *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1, const int bits)
{
    for (size_t s = s0; s < s1; s++)
        for (int j = 0; j < 4; j++) {
            size_t i = 0;

            for (; i + 4 <= m; i += 4)
                rows16(w, x + i * ldx, ldx, y + i * ldy, ldy, s, j, 4, bits);
            for (; i < m; i++)
                rows16(w, x + i * ldx, ldx, y + i * ldy, ldy, s, j, 1, bits);
        }
}

void nb_gemm_q4_f32_avx512vnni(const nb_q4 *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1)
{
    gemm_f32(w, x, ldx, m, y, ldy, s0, s1, 4);
}

void nb_gemm_q8_f32_avx512vnni(const nb_q8 *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1)
{
    gemm_f32(w, x, ldx, m, y, ldy, s0, s1, 8);
}
