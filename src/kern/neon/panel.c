/* panel.c - tiles of packed panels for NEON. */
#include "kern/neon/neon.h"
#include "kern/neon/vec.h"

#define nb_tile_f32 nb_tile_f32_neon
#define nb_tile_f64 nb_tile_f64_neon

#include "kern/panel_body.inc"
