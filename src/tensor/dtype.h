/* dtype.h - element types and how containers spell them. One table row per type. */
#ifndef NB_TENSOR_DTYPE_H
#define NB_TENSOR_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum nb_dtype {
    NB_DT_NONE = 0,
    NB_DT_BOOL,
    NB_DT_U8,
    NB_DT_I8,
    NB_DT_U16,
    NB_DT_I16,
    NB_DT_U32,
    NB_DT_I32,
    NB_DT_U64,
    NB_DT_I64,
    NB_DT_F16,
    NB_DT_BF16,
    NB_DT_F32,
    NB_DT_F64,
    NB_DT_F8_E4M3,
    NB_DT_F8_E5M2,
    NB_DT_F8_E8M0,
    NB_DT_F8_E4M3FNUZ,
    NB_DT_F8_E5M2FNUZ,
    NB_DT_F6_E2M3,
    NB_DT_F6_E3M2,
    NB_DT_F4, /* sub-byte: sizes count bits */
    NB_DT_C64,
    NB_DT_COUNT
} nb_dtype;

typedef struct nb_dtype_row {
    const char *name;  /* "f16", for people and options            */
    const char *st;    /* safetensors spelling "F16", NULL if none */
    const char *torch; /* config.json spelling "float16", or NULL  */
    unsigned bits;
    bool is_float;
} nb_dtype_row;

const nb_dtype_row *nb_dtype_info(nb_dtype t); /* any value; unknown gives the NONE row */
nb_dtype nb_dtype_from_st(const char *s, size_t n);
nb_dtype nb_dtype_from_name(const char *s);  /* "f16", "bf16", ... */
nb_dtype nb_dtype_from_torch(const char *s); /* "float16", "torch.float16" */

/* Widen n elements of F16, BF16, F32 or F64 (rounded) to f32. Any other type: false, out untouched. src may be unaligned. */
bool nb_to_f32(float *out, const void *src, nb_dtype t, size_t n);
/* Narrow f32 to F16, BF16 or F32, round to nearest even. Any other type: false. */
bool nb_from_f32(void *out, const float *src, nb_dtype t, size_t n);

#endif
