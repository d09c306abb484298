/* bits.h - unaligned little-endian reads and writes, 16-bit floats. All inline, no state.
 *
 * f32 -> f16 and f32 -> bf16 round to nearest even; NaN stays NaN, f16 overflow gives Inf. Exact in the other direction. */
#ifndef NB_BASE_BITS_H
#define NB_BASE_BITS_H

#include <stdint.h>
#include <string.h>

static inline uint16_t nb_le16(const void *p)
{
    const unsigned char *b = p;
    return (uint16_t)(b[0] | (unsigned)b[1] << 8);
}

static inline uint32_t nb_le32(const void *p)
{
    const unsigned char *b = p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static inline uint64_t nb_le64(const void *p)
{
    const unsigned char *b = p;
    return (uint64_t)nb_le32(b) | (uint64_t)nb_le32(b + 4) << 32;
}

static inline void nb_put_le16(void *p, uint16_t v)
{
    unsigned char *b = p;
    b[0] = (unsigned char)v;
    b[1] = (unsigned char)(v >> 8);
}

static inline void nb_put_le32(void *p, uint32_t v)
{
    nb_put_le16(p, (uint16_t)v);
    nb_put_le16((unsigned char *)p + 2, (uint16_t)(v >> 16));
}

static inline void nb_put_le64(void *p, uint64_t v)
{
    nb_put_le32(p, (uint32_t)v);
    nb_put_le32((unsigned char *)p + 4, (uint32_t)(v >> 32));
}

/* n numbers from unaligned bytes; a plain copy on machines that order bytes as files do. */
static inline void nb_get_le16(uint16_t *out, const void *p, size_t n)
{
    memcpy(out, p, 2 * n);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    for (size_t i = 0; i < n; i++)
        out[i] = nb_le16(&out[i]);
#endif
}

static inline void nb_get_le32(uint32_t *out, const void *p, size_t n)
{
    memcpy(out, p, 4 * n);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    for (size_t i = 0; i < n; i++)
        out[i] = nb_le32(&out[i]);
#endif
}

static inline float nb_f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint32_t nb_bits_from_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float nb_bf16_to_f32(uint16_t h)
{
    return nb_f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t nb_f32_to_bf16(float f)
{
    uint32_t u = nb_bits_from_f32(f);

    if ((u & 0x7fffffffu) > 0x7f800000u) /* NaN: keep it one after the cut */
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static inline float nb_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t exp = h >> 10 & 0x1fu;
    const uint32_t man = h & 0x3ffu;

    if (exp == 31)
        return nb_f32_from_bits(sign | 0x7f800000u | man << 13);
    if (exp == 0) { /* zero or subnormal: man * 2^-24, exact */
        const float v = (float)man * nb_f32_from_bits(0x33800000u);
        return nb_f32_from_bits(sign | nb_bits_from_f32(v));
    }
    return nb_f32_from_bits(sign | (exp + 112u) << 23 | man << 13);
}

static inline uint16_t nb_f32_to_f16(float f)
{
    const uint32_t u = nb_bits_from_f32(f);
    const uint32_t sign = u >> 16 & 0x8000u;
    const uint32_t a = u & 0x7fffffffu;

    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
    if (a >= 0x477ff000u) /* 65520 and above round to Inf */
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) {                          /* below 2^-14: subnormal, rounded by the float adder */
        const float v = nb_f32_from_bits(a) + 0.5f; /* ulp of 0.5 is 2^-24 */
        return (uint16_t)(sign | (nb_bits_from_f32(v) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13));
}

#endif
