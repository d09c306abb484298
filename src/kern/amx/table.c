/* table.c - the table for AMX: products of packed integers by tiles, the rest as AVX-512 with VNNI has it. */
#include "base/cpu.h"
#include "kern/amx/amx.h"
#include "kern/avx2/avx2.h" /* the packer */
#include "kern/avx512vnni/avx512vnni.h"
#include "kern/scalar/scalar.h"

#define TABLE      nb_kern_amx
#define SHOWN      "amx"
#define NEED       (NB_CPU_AVX2 | NB_CPU_FMA | NB_CPU_F16C | NB_CPU_AVX512 | NB_CPU_AVX512_VNNI | NB_CPU_AMX_INT8)
#define GEMM_Q4    nb_gemm_q4_amx
#define GEMM_Q4_A8 nb_gemm_q4_a8_amx
#define GEMM_Q8    nb_gemm_q8_amx
#define GEMM_Q8_A8 nb_gemm_q8_a8_amx
#include "kern/avx512vnni/table.inc"
