/* table.c - the table for NEON, which every AArch64 processor has. */
#include "base/cpu.h"
#include "kern/neon/neon.h"
#include "kern/scalar/scalar.h"

#define TABLE      nb_kern_neon
#define SHOWN      "neon"
#define NEED       NB_CPU_NEON
#define GEMM_Q4    nb_gemm_q4_neon
#define GEMM_Q4_A8 nb_gemm_q4_a8_neon
#define GEMM_Q8    nb_gemm_q8_neon
#define GEMM_Q8_A8 nb_gemm_q8_a8_neon
#include "kern/neon/table.inc"
