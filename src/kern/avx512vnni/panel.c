/* panel.c - tiles of packed panels for AVX-512. */
#include "kern/avx512vnni/avx512vnni.h"
#include "kern/avx512vnni/vec.h"

#define nb_tile_f32 nb_tile_f32_avx512vnni
#define nb_tile_f64 nb_tile_f64_avx512vnni

#include "kern/panel_body.inc"
