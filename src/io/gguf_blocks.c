/* gguf_blocks.c - see gguf_blocks.h. f16() below is a little-endian half, widened exactly. */
#include "io/gguf_blocks.h"

#include "base/bits.h"
#include "base/mem.h"

static float f16(const unsigned char *p)
{
    return nb_f16_to_f32(nb_le16(p));
}

/* d f16 | 16 bytes: low nibbles are values 0..15, high ones 16..31. */
static void q4_0(float *out, const unsigned char *in)
{
    const float d = f16(in);

    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)((in[2 + i] & 15) - 8);
        out[i + 16] = d * (float)((in[2 + i] >> 4) - 8);
    }
}

/* d f16 | m f16 | nibbles as in q4_0. */
static void q4_1(float *out, const unsigned char *in)
{
    const float d = f16(in), m = f16(in + 2);

    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)(in[4 + i] & 15) + m;
        out[i + 16] = d * (float)(in[4 + i] >> 4) + m;
    }
}

/* d f16 | 32 fifth bits | nibbles. */
static void q5_0(float *out, const unsigned char *in)
{
    const float d = f16(in);
    const uint32_t high = nb_le32(in + 2);

    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)((in[6 + i] & 15) + (int)(high >> i & 1) * 16 - 16);
        out[i + 16] = d * (float)((in[6 + i] >> 4) + (int)(high >> (i + 16) & 1) * 16 - 16);
    }
}

/* d f16 | m f16 | 32 fifth bits | nibbles. */
static void q5_1(float *out, const unsigned char *in)
{
    const float d = f16(in), m = f16(in + 2);
    const uint32_t high = nb_le32(in + 4);

    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)((in[8 + i] & 15) + (int)(high >> i & 1) * 16) + m;
        out[i + 16] = d * (float)((in[8 + i] >> 4) + (int)(high >> (i + 16) & 1) * 16) + m;
    }
}

static void q8_0(float *out, const unsigned char *in)
{
    const float d = f16(in);

    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(int8_t)in[2 + i];
}

/* Values of a 256-block in order; index of the two-bit code of value i: 128-value halves of 32 bytes, each byte holding
 * the codes of values b, b+32, b+64, b+96 of its half. */
static unsigned two_bits(const unsigned char *qs, int i)
{
    return qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3u;
}

/* 16 bytes: scale (low nibble) and minimum (high) of 16 values each | 64 bytes of codes | d f16 | dmin f16. */
static void q2_k(float *out, const unsigned char *in)
{
    const float d = f16(in + 80), dmin = f16(in + 82);

    for (int i = 0; i < 256; i++) {
        const unsigned char sc = in[i / 16];
        const float dl = d * (float)(sc & 15), ml = dmin * (float)(sc >> 4);
        const float x = dl * (float)two_bits(in + 16, i);
        out[i] = x - ml;
    }
}

/* 32 bytes of high bits (bit i/32 of byte i%32; 1 means "no -4") | 64 bytes of codes | 12 bytes of 16 six-bit scales | d. */
static void q3_k(float *out, const unsigned char *in)
{
    const unsigned char *sc = in + 96;
    const float d = f16(in + 108);

    for (int i = 0; i < 256; i++) {
        const int j = i / 16;
        const int low = j < 8 ? sc[j] & 15 : sc[j - 8] >> 4;
        const int scale = (low | (sc[8 + j % 4] >> (j / 4 * 2) & 3) << 4) - 32;
        const float dl = d * (float)scale;
        const int q = (int)two_bits(in + 32, i) - (in[i % 32] >> (i / 32) & 1 ? 0 : 4);
        out[i] = dl * (float)q;
    }
}

/* Scale and minimum j of the 12 packed bytes that Q4_K and Q5_K share. */
static void scale_min(const unsigned char *s, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6 & 3) << 4;
        *min = s[j + 4] >> 4 | (s[j] >> 6 & 3) << 4;
    }
}

/* d f16 | dmin f16 | 12 bytes of scales | 128 bytes: groups of 64 values in 32 bytes, low nibbles first. */
static void q4_k(float *out, const unsigned char *in)
{
    const float d = f16(in), dmin = f16(in + 2);

    for (int i = 0; i < 256; i++) {
        const unsigned char byte = in[16 + i / 64 * 32 + i % 32];
        int scale, min;
        float dl, ml, x;
        scale_min(in + 4, i / 32, &scale, &min);
        dl = d * (float)scale;
        ml = dmin * (float)min;
        x = dl * (float)(i % 64 < 32 ? byte & 15 : byte >> 4);
        out[i] = x - ml;
    }
}

/* As Q4_K with 32 bytes of fifth bits (bit i/32 of byte i%32) before the nibbles. */
static void q5_k(float *out, const unsigned char *in)
{
    const float d = f16(in), dmin = f16(in + 2);

    for (int i = 0; i < 256; i++) {
        const unsigned char byte = in[48 + i / 64 * 32 + i % 32];
        const int high = in[16 + i % 32] >> (i / 32) & 1;
        int scale, min;
        float dl, ml, x;
        scale_min(in + 4, i / 32, &scale, &min);
        dl = d * (float)scale;
        ml = dmin * (float)min;
        x = dl * (float)((i % 64 < 32 ? byte & 15 : byte >> 4) | high << 4);
        out[i] = x - ml;
    }
}

/* 128 bytes of low nibbles (halves of 128 values: bytes b and b+32 hold values b, b+32 low, b+64, b+96 high) | 64 bytes of
 * high bit pairs | 16 int8 scales | d f16. */
static void q6_k(float *out, const unsigned char *in)
{
    const float d = f16(in + 208);

    for (int i = 0; i < 256; i++) {
        const int half = i / 128, r = i % 128;
        const unsigned char byte = in[half * 64 + r % 64];
        const int low = r < 64 ? byte & 15 : byte >> 4;
        const float dl = d * (float)(int8_t)in[192 + i / 16];
        const int q = (low | (int)two_bits(in + 128, i) << 4) - 32;
        out[i] = dl * (float)q;
    }
}

static const nb_gguf_type types[] = {
    [0] = { "F32", 1, 4, NB_DT_F32, NULL },          [1] = { "F16", 1, 2, NB_DT_F16, NULL },
    [2] = { "Q4_0", 32, 18, NB_DT_NONE, q4_0 },      [3] = { "Q4_1", 32, 20, NB_DT_NONE, q4_1 },
    [6] = { "Q5_0", 32, 22, NB_DT_NONE, q5_0 },      [7] = { "Q5_1", 32, 24, NB_DT_NONE, q5_1 },
    [8] = { "Q8_0", 32, 34, NB_DT_NONE, q8_0 },      [9] = { "Q8_1", 32, 40, NB_DT_NONE, NULL },
    [10] = { "Q2_K", 256, 84, NB_DT_NONE, q2_k },    [11] = { "Q3_K", 256, 110, NB_DT_NONE, q3_k },
    [12] = { "Q4_K", 256, 144, NB_DT_NONE, q4_k },   [13] = { "Q5_K", 256, 176, NB_DT_NONE, q5_k },
    [14] = { "Q6_K", 256, 210, NB_DT_NONE, q6_k },   [15] = { "Q8_K", 256, 292, NB_DT_NONE, NULL },
    [16] = { "IQ2_XXS", 256, 66, NB_DT_NONE, NULL }, [17] = { "IQ2_XS", 256, 74, NB_DT_NONE, NULL },
    [18] = { "IQ3_XXS", 256, 98, NB_DT_NONE, NULL }, [19] = { "IQ1_S", 256, 50, NB_DT_NONE, NULL },
    [20] = { "IQ4_NL", 32, 18, NB_DT_NONE, NULL },   [21] = { "IQ3_S", 256, 110, NB_DT_NONE, NULL },
    [22] = { "IQ2_S", 256, 82, NB_DT_NONE, NULL },   [23] = { "IQ4_XS", 256, 136, NB_DT_NONE, NULL },
    [24] = { "I8", 1, 1, NB_DT_I8, NULL },           [25] = { "I16", 1, 2, NB_DT_I16, NULL },
    [26] = { "I32", 1, 4, NB_DT_I32, NULL },         [27] = { "I64", 1, 8, NB_DT_I64, NULL },
    [28] = { "F64", 1, 8, NB_DT_F64, NULL },         [29] = { "IQ1_M", 256, 56, NB_DT_NONE, NULL },
    [30] = { "BF16", 1, 2, NB_DT_BF16, NULL },       [34] = { "TQ1_0", 256, 54, NB_DT_NONE, NULL },
    [35] = { "TQ2_0", 256, 66, NB_DT_NONE, NULL },   [39] = { "MXFP4", 32, 17, NB_DT_NONE, NULL },
    [40] = { "NVFP4", 64, 36, NB_DT_NONE, NULL },    [41] = { "Q1_0", 128, 18, NB_DT_NONE, NULL },
};

const nb_gguf_type *nb_gguf_type_at(unsigned number)
{
    static const nb_gguf_type none = { NULL, 1, 0, NB_DT_NONE, NULL };
    return number < NB_LEN(types) ? &types[number] : &none;
}
