/* gemm_q8.c - products of 8-bit weights with AMX, which takes the bytes as they lie. */
#include "kern/amx/amx.h"
#include "kern/avx512vnni/avx512vnni.h"
#include "kern/avx512vnni/tile_bytes.h"

static const unsigned char *as_they_lie(const nb_q8 *w, const unsigned char *b, unsigned char *buf, size_t dist)
{
    (void)buf;
    for (size_t off = 0; off < w->block_bytes; off += 64)
        _mm_prefetch(b + dist + off, _MM_HINT_T0);
    return b;
}

#define MULTIPLY               _tile_dpbsud
#define ZEROS_LEFT             1
#define GEMM_A16               nb_gemm_q8_amx
#define GEMM_A8                nb_gemm_q8_a8_amx
#define FEW_A16                nb_gemm_q8_avx512vnni
#define FEW_A8                 nb_gemm_q8_a8_avx512vnni
#define CODES(w, b, buf, dist) as_they_lie(w, b, buf, dist)
#include "kern/amx/gemm_amx.inc"
