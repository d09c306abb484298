/* gemm_q4.c - products of 4-bit weights with AMX. */
#include "kern/amx/amx.h"
#include "kern/avx512vnni/avx512vnni.h"
#include "kern/avx512vnni/tile_bytes.h"

static const unsigned char *spread(const nb_q4 *w, const unsigned char *b, unsigned char *buf, size_t dist)
{
    nb_spread(b, w->g, buf, dist);
    return buf;
}

#define GEMM_A16               nb_gemm_q4_amx
#define GEMM_A8                nb_gemm_q4_a8_amx
#define FEW_A16                nb_gemm_q4_avx512vnni
#define FEW_A8                 nb_gemm_q4_a8_avx512vnni
#define CODES(w, b, buf, dist) spread(w, b, buf, dist)
#include "kern/amx/gemm_amx.inc"
