/* dense.c - products with packed 16- and 32-bit matrices. This file defines their bits:
 *
 *   inputs in blocks of NB_DENSE_BLOCK; within a block one fma chain, k ascending, from 0; y = the first block's chain,
 *   then + every further one, ascending.
 *
 * Blocks keep the rounding error near sqrt(256) instead of sqrt(k) steps and let a block of weights stay in cache. */
#include <math.h>
#include <string.h>

#include "base/bits.h"
#include "kern/dense.h"
#include "kern/scalar/scalar.h"

static float element(const nb_dense *w, size_t at)
{
    const unsigned char *p = w->base + at * nb_dense_size(w);

    if (w->dtype == NB_DT_F32)
        return nb_f32_from_bits(nb_le32(p));
    return w->dtype == NB_DT_F16 ? nb_f16_to_f32(nb_le16(p)) : nb_bf16_to_f32(nb_le16(p));
}

/* Packing moves elements: 8 rows by a cache line of inputs at a time, so that both sides stay in L1. */
enum { TILE_R = 8, TILE_K = 32, AHEAD = 256 };

static void pack_strip_32(unsigned char *dst, const unsigned char *src, size_t rows, size_t k)
{
    for (size_t k0 = 0; k0 < k; k0 += TILE_K) {
        const size_t k1 = k - k0 < TILE_K ? k : k0 + TILE_K;
        for (size_t r0 = 0; r0 < rows; r0 += TILE_R) {
            const size_t r1 = rows - r0 < TILE_R ? rows : r0 + TILE_R;
            for (size_t i = k0; i < k1; i++)
                for (size_t r = r0; r < r1; r++)
                    memcpy(dst + (i * NB_STRIP + r) * 4, src + (r * k + i) * 4, 4);
        }
        if (rows < NB_STRIP)
            for (size_t i = k0; i < k1; i++)
                memset(dst + (i * NB_STRIP + rows) * 4, 0, (NB_STRIP - rows) * 4);
    }
}

/* Written out, so that compilers see eight streams to interleave in vectors. */
static void turn_tile(uint16_t *restrict to, uint16_t (*restrict row)[TILE_K])
{
    for (size_t i = 0; i < TILE_K; i++) {
        to[TILE_R * i] = row[0][i];
        to[TILE_R * i + 1] = row[1][i];
        to[TILE_R * i + 2] = row[2][i];
        to[TILE_R * i + 3] = row[3][i];
        to[TILE_R * i + 4] = row[4][i];
        to[TILE_R * i + 5] = row[5][i];
        to[TILE_R * i + 6] = row[6][i];
        to[TILE_R * i + 7] = row[7][i];
    }
}

/* A row lies some 4 KB behind the one before, which no hardware prefetcher follows: what comes next is asked for. */
static void pack_strip_16(unsigned char *dst, const unsigned char *src, size_t rows, size_t k)
{
    uint16_t row[TILE_R][TILE_K] = { { 0 } }, to[TILE_K * TILE_R];

    for (size_t k0 = 0; k0 < k; k0 += TILE_K) {
        const size_t w = k - k0 < TILE_K ? k - k0 : TILE_K;
        for (size_t r0 = 0; r0 < NB_STRIP; r0 += TILE_R) {
            for (size_t r = 0; r < TILE_R; r++) {
                const unsigned char *from = src + (r0 + r < rows ? ((r0 + r) * k + k0) * 2 : 0);
                __builtin_prefetch((const void *)((uintptr_t)from + AHEAD));
                if (r0 + r < rows)
                    memcpy(row[r], from, w * 2);
                else
                    memset(row[r], 0, sizeof row[r]);
            }
            turn_tile(to, row);
            for (size_t i = 0; i < w; i++)
                memcpy(dst + ((k0 + i) * NB_STRIP + r0) * 2, to + TILE_R * i, 2 * TILE_R);
        }
    }
}

void nb_pack_dense_scalar(nb_dense *p, size_t row0, const void *src, size_t rows)
{
    const size_t size = nb_dense_size(p);

    for (size_t r = 0; r < rows; r += NB_STRIP) {
        const size_t n = rows - r < NB_STRIP ? rows - r : NB_STRIP;
        const unsigned char *from = (const unsigned char *)src + r * p->k * size;
        unsigned char *to = p->base + (row0 + r) * p->k * size;
        if (size == 4)
            pack_strip_32(to, from, n, p->k);
        else
            pack_strip_16(to, from, n, p->k);
    }
}

/* Inputs [k0, k1) of strip s as f32. */
static void widen(float *out, const nb_dense *w, size_t s, size_t k0, size_t k1)
{
    for (size_t i = 0; i < (k1 - k0) * NB_STRIP; i++)
        out[i] = element(w, (s * w->k + k0) * NB_STRIP + i);
}

void nb_gemm_dense_scalar(const nb_dense *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1)
{
    float wide[NB_DENSE_BLOCK * NB_STRIP];

    for (size_t s = s0; s < s1; s++)
        for (size_t k0 = 0; k0 < w->k; k0 += NB_DENSE_BLOCK) {
            const size_t k1 = w->k - k0 < NB_DENSE_BLOCK ? w->k : k0 + NB_DENSE_BLOCK;
            widen(wide, w, s, k0, k1);
            for (size_t i = 0; i < m; i++) {
                float acc[NB_STRIP] = { 0 }, *out = y + i * ldy + s * NB_STRIP;
                for (size_t c = k0; c < k1; c++)
                    for (size_t r = 0; r < NB_STRIP; r++)
                        acc[r] = fmaf(wide[(c - k0) * NB_STRIP + r], x[i * ldx + c], acc[r]);
                for (size_t r = 0; r < NB_STRIP; r++)
                    out[r] = k0 == 0 ? acc[r] : out[r] + acc[r];
            }
        }
}

void nb_row_dense_scalar(const nb_dense *w, size_t n, float *out)
{
    for (size_t i = 0; i < w->k; i++)
        out[i] = element(w, (n / NB_STRIP * w->k + i) * NB_STRIP + n % NB_STRIP);
}
