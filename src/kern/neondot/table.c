/* table.c - the table for NEON with sdot: other integer products than neon. */
#include "base/cpu.h"
#include "kern/neon/neon.h"
#include "kern/neondot/neondot.h"
#include "kern/scalar/scalar.h"

#define TABLE      nb_kern_neondot
#define SHOWN      "neon-dot"
#define NEED       (NB_CPU_NEON | NB_CPU_DOTPROD)
#define GEMM_Q4    nb_gemm_q4_neondot
#define GEMM_Q4_A8 nb_gemm_q4_a8_neondot
#define GEMM_Q8    nb_gemm_q8_neondot
#define GEMM_Q8_A8 nb_gemm_q8_a8_neondot
#include "kern/neon/table.inc"
