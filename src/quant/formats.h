/* formats.h - the rows of the format table, each defined in its own fmt_*.c. */
#ifndef NB_QUANT_FORMATS_H
#define NB_QUANT_FORMATS_H

#include "quant/quant.h"

extern const nb_format nb_fmt_awq_gemm;      /* fmt_awq_gemm.c, docs/formats/awq-gemm.md     */
extern const nb_format nb_fmt_awq_gemv;      /* fmt_awq_gemv.c, docs/formats/awq-gemv.md     */
extern const nb_format nb_fmt_awq_gemv_fast; /* fmt_awq_fast.c, docs/formats/awq-fast.md     */
extern const nb_format nb_fmt_llm_awq;       /* fmt_awq_fast.c                               */
extern const nb_format nb_fmt_awq_marlin;    /* fmt_awq_marlin.c                             */
extern const nb_format nb_fmt_gptq;          /* fmt_gptq.c, docs/formats/gptq.md             */
extern const nb_format nb_fmt_gptq_v2;       /* fmt_gptq.c                                   */
extern const nb_format nb_fmt_gptq_p;        /* fmt_gptq.c                                   */
extern const nb_format nb_fmt_gptq_marlin;   /* fmt_gptq_marlin.c                            */
extern const nb_format nb_fmt_ct;            /* fmt_ct.c, docs/formats/compressed-tensors.md */

/* nb_linear.variant of the gptq rows: what was stored for a zero point z (formats 3.10). gptq_v2 and gptq_p: always TRUE. */
enum {
    NB_ZEROS_TRUE,   /* z                                                                         */
    NB_ZEROS_FIELD,  /* z - 1 modulo 2^bits in each field                                         */
    NB_ZEROS_WORD,   /* whole words minus 1 in every field: a zero point of 0 borrows from the next (gptqmodel 0.9 and newer) */
    NB_ZEROS_LEGACY3 /* 3 bits: whole words minus misplaced constants (older gptqmodel)           */
};
/* nb_linear.variant of compressed-tensors (formats 3.13). */
enum { NB_CT_DENSE, NB_CT_ALIGNED };

#endif
