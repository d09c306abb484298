/* act.c - A16 and A8 activations, 16 inputs at a time. Defined by scalar/act.c: one division, one multiply, round to even. */
#include "kern/avx512vnni/avx512vnni.h"
#include "kern/avx512vnni/dot_avx512vnni.h"

/* Inputs k .. k+15 under the mask, others 0. */
NB_INLINE __m512 load16(const float *x, const uint32_t *perm, size_t k, __mmask16 mask)
{
    if (!perm)
        return _mm512_maskz_loadu_ps(mask, x + k);
    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), mask, _mm512_maskz_loadu_epi32(mask, perm + k), x, 4);
}

NB_INLINE __mmask16 first(size_t n)
{
    return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1);
}

/* Whole groups of 16s of A8 in the order they lie: no masks, whose narrowing stores are slow. Returns the sum of codes. */
NB_INLINE int32_t whole_a8(int8_t *to, const float *x, size_t g, float inv)
{
    __m512i sum = _mm512_setzero_si512();

    for (size_t j = 0; j < g; j += 16) {
        const __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + j), _mm512_set1_ps(inv)));

        _mm_storeu_si128((void *)(to + j), _mm512_cvtepi32_epi8(v));
        sum = _mm512_add_epi32(sum, v);
    }
    return _mm512_reduce_add_epi32(sum);
}

NB_INLINE void quantize(nb_act *a, size_t i, size_t grp, const float *x, const uint32_t *perm, const bool a8)
{
    const float most = a8 ? 127.0f : 32512.0f;
    const size_t g = a->g, k0 = grp * g, n = nb_q4_valid(a->k, g, grp), at = grp * a->m + i;
    int8_t *hi = a->hi + at * g, *lo = a8 ? NULL : a->lo + at * g;
    __m512i top = _mm512_setzero_si512(), sum = _mm512_setzero_si512();

    for (size_t j = 0; j < n; j += 16) {
        const __m512i u = _mm512_castps_si512(load16(x, perm, k0 + j, first(n - j)));
        top = _mm512_max_epi32(top, _mm512_and_si512(u, _mm512_set1_epi32(0x7fffffff)));
    }
    const uint32_t bits = (uint32_t)_mm512_reduce_max_epi32(top);
    const float max = nb_f32_from_bits(bits), inv = most / max;
    const bool finite = bits < 0x7f800000u, zero = !finite || inv > 3.4028235e38f;

    if (a8 && !perm && n == g && g % 16 == 0 && !zero) {
        a->step[at] = max / most;
        a->sum[at] = whole_a8(hi, x + k0, g, inv);
        return;
    }
    for (size_t j = 0; j < g; j += 16) {
        const __mmask16 mask = first(j < n && !zero ? n - j : 0), out = first(g - j);
        const __m512i v = _mm512_maskz_cvtps_epi32(mask, _mm512_mul_ps(load16(x, perm, k0 + j, mask), _mm512_set1_ps(inv)));
        const __m512i h = a8 ? v : _mm512_srai_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(128)), 8);

        _mm512_mask_cvtepi32_storeu_epi8(hi + j, out, h);
        if (!a8)
            _mm512_mask_cvtepi32_storeu_epi8(lo + j, out, v); /* v - 256*hi is the low byte, signed */
        sum = _mm512_add_epi32(sum, v);
    }
    a->step[at] = !finite ? nb_f32_from_bits(0x7fc00000u) : zero ? 0.0f : max / most;
    a->sum[at] = _mm512_reduce_add_epi32(sum);
}

void nb_act_a16_avx512vnni(nb_act *a, const float *x, size_t ldx, size_t m0, size_t m1, const uint32_t *perm)
{
    for (size_t grp = 0; grp < a->n_groups; grp++)
        for (size_t i = m0; i < m1; i++)
            quantize(a, i, grp, x + i * ldx, perm, false);
}

void nb_act_a8_avx512vnni(nb_act *a, const float *x, size_t ldx, size_t m0, size_t m1, const uint32_t *perm)
{
    for (size_t grp = 0; grp < a->n_groups; grp++)
        for (size_t i = m0; i < m1; i++)
            quantize(a, i, grp, x + i * ldx, perm, true);
}
