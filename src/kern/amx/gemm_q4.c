/* gemm_q4.c - products of 4-bit weights with AMX. */
#include "kern/amx/amx.h"
#include "kern/avx512vnni/avx512vnni.h"
#include "kern/avx512vnni/tile_bytes.h"

/* The codes one byte each less their zeros, -15 .. 15: the sums need no other correction then. */
static const unsigned char *spread(const nb_q4 *w, const unsigned char *b, unsigned char *to, size_t dist)
{
    const __m512i mask = _mm512_set1_epi8(0x0f), four = _mm512_set1_epi32(0x01010101);
    unsigned char *const buf = to;
    __m512i z[4];

    NB_UNROLL
    for (int j = 0; j < 4; j++)
        z[j] = _mm512_mullo_epi32(nb_zeros16(b + nb_q4_zeros_at(w), j), four);
    for (size_t k = 0; k < w->g; k += 8, b += 256, to += 512) {
        NB_UNROLL
        for (int j = 0; j < 4; j++) {
            const __m512i q = _mm512_load_si512(b + 64 * j);

            _mm_prefetch(b + dist + 64 * j, _MM_HINT_T0);
            _mm512_store_si512(to + 64 * j, _mm512_sub_epi8(_mm512_and_si512(q, mask), z[j]));
            _mm512_store_si512(to + 256 + 64 * j, _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16(q, 4), mask), z[j]));
        }
    }
    return buf;
}

#define MULTIPLY               _tile_dpbssd
#define ZEROS_LEFT             0
#define GEMM_A16               nb_gemm_q4_amx
#define GEMM_A8                nb_gemm_q4_a8_amx
#define FEW_A16                nb_gemm_q4_avx512vnni
#define FEW_A8                 nb_gemm_q4_a8_avx512vnni
#define CODES(w, b, buf, dist) spread(w, b, buf, dist)
#include "kern/amx/gemm_amx.inc"
