/* act.c - A16 and A8 activations, 8 inputs at a time. Defined by scalar/act.c: one division, one multiply, round to even. */
#include "kern/avx2/avx2.h"
#include "kern/avx2/dot_avx2.h"

/* Inputs k .. k+7 of which n (>= 1) exist, others 0. */
NB_INLINE __m256 load8(const float *x, const uint32_t *perm, size_t k, size_t n)
{
    float last[8] = { 0 };

    if (n >= 8)
        return perm ? _mm256_i32gather_ps(x, nb_load32(perm + k), 4) : _mm256_loadu_ps(x + k);
    for (size_t i = 0; i < n; i++)
        last[i] = x[perm ? perm[k + i] : k + i];
    return _mm256_loadu_ps(last);
}

/* Byte 0 of every 32-bit lane, in order. */
NB_INLINE void store_bytes(int8_t *out, __m256i v)
{
    const __m256i pick = _mm256_set1_epi32(0x0c080400); /* into byte 0..3 of each half */
    const __m256i b = _mm256_shuffle_epi8(v, pick);
    const int32_t half[2] = { _mm256_extract_epi32(b, 0), _mm256_extract_epi32(b, 4) };

    memcpy(out, half, 8);
}

/* The eight lanes reduced in a fixed order that does not matter: integer sum and maximum. */
NB_INLINE int32_t reduce_add(__m256i v)
{
    int32_t e[8], sum = 0;

    _mm256_storeu_si256((void *)e, v);
    for (int i = 0; i < 8; i++)
        sum += e[i];
    return sum;
}

NB_INLINE uint32_t reduce_max(__m256i v)
{
    uint32_t e[8], max = 0;

    _mm256_storeu_si256((void *)e, v);
    for (int i = 0; i < 8; i++)
        max = e[i] > max ? e[i] : max;
    return max;
}

NB_INLINE void quantize(nb_act *a, size_t i, size_t grp, const float *x, const uint32_t *perm, const bool a8)
{
    const float most = a8 ? 127.0f : 32512.0f;
    const size_t g = a->g, k0 = grp * g, n = nb_q4_valid(a->k, g, grp), at = grp * a->m + i;
    int8_t *hi = a->hi + at * g, *lo = a8 ? NULL : a->lo + at * g;
    __m256i top = _mm256_setzero_si256(), sum = _mm256_setzero_si256();

    for (size_t j = 0; j < n; j += 8) {
        const __m256i u = _mm256_castps_si256(load8(x, perm, k0 + j, n - j));
        top = _mm256_max_epi32(top, _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff)));
    }
    const uint32_t bits = reduce_max(top);
    const float max = nb_f32_from_bits(bits), inv = most / max;
    const bool finite = bits < 0x7f800000u, zero = !finite || inv > 3.4028235e38f;

    for (size_t j = 0; j < g; j += 8) {
        __m256i v = _mm256_setzero_si256();

        if (j < n && !zero)
            v = _mm256_cvtps_epi32(_mm256_mul_ps(load8(x, perm, k0 + j, n - j), _mm256_set1_ps(inv)));
        store_bytes(hi + j, a8 ? v : _mm256_srai_epi32(_mm256_add_epi32(v, _mm256_set1_epi32(128)), 8));
        if (!a8)
            store_bytes(lo + j, v); /* v - 256*hi is the low byte, signed */
        sum = _mm256_add_epi32(sum, v);
    }
    a->step[at] = !finite ? nb_f32_from_bits(0x7fc00000u) : zero ? 0.0f : max / most;
    a->sum[at] = reduce_add(sum);
}

void nb_act_a16_avx2(nb_act *a, const float *x, size_t ldx, size_t m0, size_t m1, const uint32_t *perm)
{
    for (size_t grp = 0; grp < a->n_groups; grp++)
        for (size_t i = m0; i < m1; i++)
            quantize(a, i, grp, x + i * ldx, perm, false);
}

void nb_act_a8_avx2(nb_act *a, const float *x, size_t ldx, size_t m0, size_t m1, const uint32_t *perm)
{
    for (size_t grp = 0; grp < a->n_groups; grp++)
        for (size_t i = m0; i < m1; i++)
            quantize(a, i, grp, x + i * ldx, perm, true);
}
