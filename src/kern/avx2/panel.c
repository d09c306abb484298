/* panel.c - tiles of packed panels for AVX2 and FMA. */
#include "kern/avx2/avx2.h"
#include "kern/avx2/vec.h"

#define nb_tile_f32 nb_tile_f32_avx2
#define nb_tile_f64 nb_tile_f64_avx2

#include "kern/panel_body.inc"
