/* tile.h - the one inner loop of dense products and attention: c[mr][nv*VL] from fma chains over a[mr][k] * b[k][nv*VL].
 *
 * Included by the vector tiers after their vec.h. An element of c is one chain, k ascending, whatever the tile: mr, nv
 * and VL cannot change its bits. */
#ifndef NB_KERN_TILE_H
#define NB_KERN_TILE_H

#include "kern/kern.h"

/* Before a loop of constant length: unroll it whole. */
#if defined(__clang__)
#define NB_UNROLL _Pragma("clang loop unroll(full)")
#else
#define NB_UNROLL _Pragma("GCC unroll 8")
#endif

/* Where the chain starts and what becomes of it. */
typedef enum tile_mode {
    TILE_SET,  /* c = chain from 0         */
    TILE_ADD,  /* c = c + (chain from 0)   */
    TILE_GO_ON /* c = chain from c        */
} tile_mode;

/* Rows of b that follow one another in memory, and lines to prefetch meanwhile, as many as are read. */
typedef struct tile_part {
    const unsigned char *b;
    size_t k;
    const unsigned char *ahead;
    size_t step; /* from one row's lines in `ahead` to the next's */
} tile_part;

/* b: n_parts parts, rows of `ldb` bytes, elements of type bt. near: prefetch into L1, else L2. mr, nv, bt and near must be
 * constants, so that acc lives in registers. */
NB_FORCE void tile(const int mr, const int nv, const nb_dtype bt, const bool near, const float *const *a, const tile_part *part,
                   int n_parts, size_t ldb, float *c, size_t ldc, tile_mode mode)
{
    const int bytes = VL * (bt == NB_DT_F32 ? 4 : 2);
    const float *row[8];
    vf acc[8][8];

    NB_UNROLL
    for (int i = 0; i < mr; i++) {
        row[i] = a[i];
        NB_UNROLL
        for (int v = 0; v < nv; v++)
            acc[i][v] = mode == TILE_GO_ON ? v_load(c + (size_t)i * ldc + (size_t)v * VL) : v_zero();
    }
    for (const tile_part *p = part; p < part + n_parts; p++) {
        const unsigned char *b = p->b, *ahead = p->ahead;
        const size_t k = p->k, step = p->step;
        for (size_t x = 0; x < k; x++) {
            vf w[8];
            NB_UNROLL
            for (int v = 0; v < nv; v++)
                w[v] = v_widen(b + v * bytes, bt);
            NB_UNROLL
            for (int o = 0; o < nv * bytes; o += 64)
                if (near)
                    _mm_prefetch((const char *)ahead + o, _MM_HINT_T0);
                else
                    _mm_prefetch((const char *)ahead + o, _MM_HINT_T1);
            NB_UNROLL
            for (int i = 0; i < mr; i++) {
                const vf s = v_set1(row[i] + x);
                NB_UNROLL
                for (int v = 0; v < nv; v++)
                    acc[i][v] = v_fma(w[v], s, acc[i][v]);
            }
            b += ldb;
            ahead += step;
        }
        NB_UNROLL
        for (int i = 0; i < mr; i++)
            row[i] += k;
    }
    NB_UNROLL
    for (int i = 0; i < mr; i++) {
        NB_UNROLL
        for (int v = 0; v < nv; v++) {
            float *at = c + (size_t)i * ldc + (size_t)v * VL;
            v_store(at, mode == TILE_ADD ? v_add(v_load(at), acc[i][v]) : acc[i][v]);
        }
    }
}

#endif
