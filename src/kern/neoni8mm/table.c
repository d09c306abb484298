/* table.c - the table for NEON with sdot and the matrix instructions: other integer products than neon. */
#include "base/cpu.h"
#include "kern/neon/neon.h"
#include "kern/neoni8mm/neoni8mm.h"
#include "kern/scalar/scalar.h"

#define TABLE      nb_kern_neoni8mm
#define SHOWN      "neon-i8mm"
#define NEED       (NB_CPU_NEON | NB_CPU_DOTPROD | NB_CPU_I8MM)
#define GEMM_Q4    nb_gemm_q4_neoni8mm
#define GEMM_Q4_A8 nb_gemm_q4_a8_neoni8mm
#define GEMM_Q8    nb_gemm_q8_neoni8mm
#define GEMM_Q8_A8 nb_gemm_q8_a8_neoni8mm
#include "kern/neon/table.inc"
