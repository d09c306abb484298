/* sha256.c - SHA-256 with sha256rnds2, which does two rounds and holds the state as a b e f and c d g h, highest first. */
#include <immintrin.h>

#include "kern/sha/sha.h"

static __m128i load(const void *p)
{
    return _mm_loadu_si128(p);
}

/* One block on the two halves of the state. */
static void block(__m128i half[2], const uint8_t *p)
{
    const __m128i turn = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i s0 = half[0], s1 = half[1], w[4];

    for (int i = 0; i < 4; i++)
        w[i] = _mm_shuffle_epi8(load(p + 16 * i), turn);
    for (int t = 0; t < 64; t += 16)
        for (int i = 0; i < 4; i++) {
            const __m128i last = w[(i + 3) & 3];
            __m128i next = w[i];

            if (t > 0)
                next = w[i] = _mm_sha256msg2_epu32(
                    _mm_add_epi32(_mm_sha256msg1_epu32(w[i], w[(i + 1) & 3]), _mm_alignr_epi8(last, w[(i + 2) & 3], 4)), last);
            next = _mm_add_epi32(next, load(nb_sha256_k + t + 4 * i));
            s1 = _mm_sha256rnds2_epu32(s1, s0, next);
            s0 = _mm_sha256rnds2_epu32(s0, s1, _mm_shuffle_epi32(next, 0x0e));
        }
    half[0] = _mm_add_epi32(half[0], s0);
    half[1] = _mm_add_epi32(half[1], s1);
}

void nb_sha256_blocks_sha(uint32_t h[8], const uint8_t *p, size_t n)
{
    const __m128i dcba = _mm_shuffle_epi32(load(h), 0xb1), hgfe = _mm_shuffle_epi32(load(h + 4), 0x1b);
    __m128i half[2] = { _mm_alignr_epi8(dcba, hgfe, 8), _mm_blend_epi16(hgfe, dcba, 0xf0) };

    for (; n > 0; n--, p += 64)
        block(half, p);
    half[0] = _mm_shuffle_epi32(half[0], 0x1b);
    half[1] = _mm_shuffle_epi32(half[1], 0xb1);
    _mm_storeu_si128((__m128i *)(void *)h, _mm_blend_epi16(half[0], half[1], 0xf0));
    _mm_storeu_si128((__m128i *)(void *)(h + 4), _mm_alignr_epi8(half[1], half[0], 8));
}
