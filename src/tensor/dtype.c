/* dtype.c - the table of element types and conversion to and from f32. */
#include "tensor/dtype.h"

#include <string.h>

#include "base/bits.h"
#include "base/wide.h"

static const nb_dtype_row rows[NB_DT_COUNT] = {
    [NB_DT_NONE] = { "none", NULL, NULL, 0, false },
    [NB_DT_BOOL] = { "bool", "BOOL", "bool", 8, false },
    [NB_DT_U8] = { "u8", "U8", "uint8", 8, false },
    [NB_DT_I8] = { "i8", "I8", "int8", 8, false },
    [NB_DT_U16] = { "u16", "U16", "uint16", 16, false },
    [NB_DT_I16] = { "i16", "I16", "int16", 16, false },
    [NB_DT_U32] = { "u32", "U32", "uint32", 32, false },
    [NB_DT_I32] = { "i32", "I32", "int32", 32, false },
    [NB_DT_U64] = { "u64", "U64", "uint64", 64, false },
    [NB_DT_I64] = { "i64", "I64", "int64", 64, false },
    [NB_DT_F16] = { "f16", "F16", "float16", 16, true },
    [NB_DT_BF16] = { "bf16", "BF16", "bfloat16", 16, true },
    [NB_DT_F32] = { "f32", "F32", "float32", 32, true },
    [NB_DT_F64] = { "f64", "F64", "float64", 64, true },
    [NB_DT_F8_E4M3] = { "f8_e4m3", "F8_E4M3", "float8_e4m3fn", 8, true },
    [NB_DT_F8_E5M2] = { "f8_e5m2", "F8_E5M2", "float8_e5m2", 8, true },
    [NB_DT_F8_E8M0] = { "f8_e8m0", "F8_E8M0", "float8_e8m0fnu", 8, true },
    [NB_DT_F8_E4M3FNUZ] = { "f8_e4m3fnuz", "F8_E4M3FNUZ", "float8_e4m3fnuz", 8, true },
    [NB_DT_F8_E5M2FNUZ] = { "f8_e5m2fnuz", "F8_E5M2FNUZ", "float8_e5m2fnuz", 8, true },
    [NB_DT_F6_E2M3] = { "f6_e2m3", "F6_E2M3", NULL, 6, true },
    [NB_DT_F6_E3M2] = { "f6_e3m2", "F6_E3M2", NULL, 6, true },
    [NB_DT_F4] = { "f4", "F4", NULL, 4, true },
    [NB_DT_C64] = { "c64", "C64", "complex64", 64, false },
};

const nb_dtype_row *nb_dtype_info(nb_dtype t)
{
    return (unsigned)t < NB_DT_COUNT ? &rows[t] : &rows[NB_DT_NONE];
}

nb_dtype nb_dtype_from_st(const char *s, size_t n)
{
    for (unsigned i = 1; i < NB_DT_COUNT; i++)
        if (rows[i].st && strlen(rows[i].st) == n && memcmp(rows[i].st, s, n) == 0)
            return (nb_dtype)i;
    return NB_DT_NONE;
}

nb_dtype nb_dtype_from_name(const char *s)
{
    for (unsigned i = 1; i < NB_DT_COUNT; i++)
        if (strcmp(rows[i].name, s) == 0)
            return (nb_dtype)i;
    return NB_DT_NONE;
}

nb_dtype nb_dtype_from_torch(const char *s)
{
    if (strncmp(s, "torch.", 6) == 0)
        s += 6;
    for (unsigned i = 1; i < NB_DT_COUNT; i++)
        if (rows[i].torch && strcmp(rows[i].torch, s) == 0)
            return (nb_dtype)i;
    return NB_DT_NONE;
}

enum { BLOCK = 256 }; /* values converted together, in loops that a compiler turns into vectors */

/* nb_f16_to_f32 without a branch: the exponent is moved by a product, which is exact, also from the subnormal range. */
NB_WIDE static void f16_block(float *out, const unsigned char *p, size_t n)
{
    uint16_t h[BLOCK];

    nb_get_le16(h, p, n);
    for (size_t i = 0; i < n; i++) {
        const uint32_t m = (uint32_t)(h[i] & 0x7fffu) << 13;
        const uint32_t u = nb_bits_from_f32(nb_f32_from_bits(m) * 0x1p112f) | (m >= 0x0f800000u ? 0x7f800000u : 0u);
        out[i] = nb_f32_from_bits(u | (uint32_t)(h[i] & 0x8000u) << 16);
    }
}

NB_WIDE static void bf16_block(float *out, const unsigned char *p, size_t n)
{
    uint16_t h[BLOCK];

    nb_get_le16(h, p, n);
    for (size_t i = 0; i < n; i++)
        out[i] = nb_bf16_to_f32(h[i]);
}

bool nb_to_f32(float *out, const void *src, nb_dtype t, size_t n)
{
    const unsigned char *p = src;

    switch (t) {
    case NB_DT_F16:
    case NB_DT_BF16:
        for (size_t i = 0; i < n; i += BLOCK)
            (t == NB_DT_F16 ? f16_block : bf16_block)(out + i, p + 2 * i, n - i < BLOCK ? n - i : BLOCK);
        return true;
    case NB_DT_F32:
        memcpy(out, p, 4 * n);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        for (size_t i = 0; i < n; i++)
            out[i] = nb_f32_from_bits(nb_le32(p + 4 * i));
#endif
        return true;
    case NB_DT_F64:
        for (size_t i = 0; i < n; i++) {
            const uint64_t u = nb_le64(p + 8 * i);
            double d;
            memcpy(&d, &u, 8);
            out[i] = (float)d;
        }
        return true;
    default:
        return false;
    }
}

bool nb_from_f32(void *out, const float *src, nb_dtype t, size_t n)
{
    unsigned char *p = out;

    switch (t) {
    case NB_DT_F16:
        for (size_t i = 0; i < n; i++)
            nb_put_le16(p + 2 * i, nb_f32_to_f16(src[i]));
        return true;
    case NB_DT_BF16:
        for (size_t i = 0; i < n; i++)
            nb_put_le16(p + 2 * i, nb_f32_to_bf16(src[i]));
        return true;
    case NB_DT_F32:
        for (size_t i = 0; i < n; i++)
            nb_put_le32(p + 4 * i, nb_bits_from_f32(src[i]));
        return true;
    default:
        return false;
    }
}
