/* panel.c - tiles of packed panels: this file defines their bits. */
#include <math.h>
#include <string.h>

#include "kern/scalar/scalar.h"

void nb_tile_f32_scalar(size_t k, const float *a, const float *b, float *t)
{
    memset(t, 0, sizeof *t * NB_TILE_M * NB_TILE_F32);
    for (size_t l = 0; l < k; l++)
        for (size_t i = 0; i < NB_TILE_M; i++)
            for (size_t j = 0; j < NB_TILE_F32; j++)
                t[i * NB_TILE_F32 + j] = fmaf(b[l * NB_TILE_F32 + j], a[l * NB_TILE_M + i], t[i * NB_TILE_F32 + j]);
}

void nb_tile_f64_scalar(size_t k, const double *a, const double *b, double *t)
{
    memset(t, 0, sizeof *t * NB_TILE_M * NB_TILE_F64);
    for (size_t l = 0; l < k; l++)
        for (size_t i = 0; i < NB_TILE_M; i++)
            for (size_t j = 0; j < NB_TILE_F64; j++)
                t[i * NB_TILE_F64 + j] = fma(b[l * NB_TILE_F64 + j], a[l * NB_TILE_M + i], t[i * NB_TILE_F64 + j]);
}
