/* bitpack.c - see bitpack.h. */
#include <stdbool.h>
#include <string.h>

#include "base/bits.h"
#include "quant/bitpack.h"

/* Planes of a block of 32 codes: widths, lowest bits first (formats 2.4). */
static const uint8_t planes[9][4] = {
    { 0 }, { 0 }, { 2 }, { 2, 1 }, { 4 }, { 4, 1 }, { 4, 2 }, { 4, 2, 1 }, { 8 },
};

uint64_t nb_packed_words(nb_packing p, unsigned bits, uint64_t m)
{
    const unsigned per = 32 / bits;

    return p == NB_PACK_ALIGNED ? m / per + (m % per != 0) : m / 32 * bits + (m % 32 * bits + 31) / 32;
}

/* b bytes as a number. */
static inline uint64_t load(const unsigned char *p, unsigned b)
{
    uint64_t v = 0;

    for (unsigned i = 0; i < b; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

/* Eight codes of four bits, one per byte. */
static inline uint64_t spread4(uint32_t w)
{
    uint64_t v = w;

    v = (v | v << 16) & 0x0000ffff0000ffffu;
    v = (v | v << 8) & 0x00ff00ff00ff00ffu;
    return (v | v << 4) & 0x0f0f0f0f0f0f0f0fu;
}

static inline uint32_t gather4(uint64_t v)
{
    v &= 0x0f0f0f0f0f0f0f0fu;
    v = (v | v >> 4) & 0x00ff00ff00ff00ffu;
    v = (v | v >> 8) & 0x0000ffff0000ffffu;
    return (uint32_t)(v | v >> 16);
}

/* Eight codes from b bytes; b is a constant where this is inlined. */
static inline void unpack8(const unsigned char *src, unsigned b, uint8_t *out)
{
    const uint64_t v = load(src, b);

    for (unsigned i = 0; i < 8; i++)
        out[i] = (uint8_t)(v >> b * i & ((1u << b) - 1));
}

static inline void pack8(const uint8_t *in, unsigned b, unsigned char *dst)
{
    uint64_t v = 0;

    for (unsigned i = 0; i < 8; i++)
        v |= (uint64_t)(in[i] & ((1u << b) - 1)) << b * i;
    for (unsigned i = 0; i < b; i++)
        dst[i] = (unsigned char)(v >> 8 * i);
}

/* n blocks of eight codes. */
static void unpack_blocks(const unsigned char *src, unsigned bits, size_t n, uint8_t *out)
{
    switch (bits) {
    case 1:
        for (size_t i = 0; i < n; i++)
            unpack8(src + i, 1, out + 8 * i);
        break;
    case 2:
        for (size_t i = 0; i < n; i++)
            unpack8(src + 2 * i, 2, out + 8 * i);
        break;
    case 3:
        for (size_t i = 0; i < n; i++)
            unpack8(src + 3 * i, 3, out + 8 * i);
        break;
    case 4:
        for (size_t i = 0; i < n; i++)
            nb_put_le64(out + 8 * i, spread4(nb_le32(src + 4 * i)));
        break;
    case 8:
        memcpy(out, src, 8 * n);
        break;
    default:
        for (size_t i = 0; i < n; i++)
            unpack8(src + bits * i, bits, out + 8 * i);
    }
}

static void pack_blocks(const uint8_t *in, unsigned bits, size_t n, unsigned char *dst)
{
    switch (bits) {
    case 4:
        for (size_t i = 0; i < n; i++)
            nb_put_le32(dst + 4 * i, gather4(nb_le64(in + 8 * i)));
        break;
    case 1:
        for (size_t i = 0; i < n; i++)
            pack8(in + 8 * i, 1, dst + i);
        break;
    case 8:
        memcpy(dst, in, 8 * n);
        break;
    default:
        for (size_t i = 0; i < n; i++)
            pack8(in + 8 * i, bits, dst + bits * i);
    }
}

/* A plane is a stream of its own width; its codes are added above those of the planes before it. */
static void unpack_planar(const unsigned char *src, unsigned bits, uint8_t out[32])
{
    uint8_t plane[32];
    unsigned shift = 0;

    memset(out, 0, 32);
    for (const uint8_t *w = planes[bits]; *w; w++) {
        unpack_blocks(src, *w, 4, plane);
        for (unsigned i = 0; i < 32; i += 8) /* no code reaches the next byte */
            nb_put_le64(out + i, nb_le64(out + i) | nb_le64(plane + i) << shift);
        src += 4 * *w;
        shift += *w;
    }
}

static void pack_planar(const uint8_t in[32], unsigned bits, unsigned char *dst)
{
    uint8_t plane[32];
    unsigned shift = 0;

    for (const uint8_t *w = planes[bits]; *w; w++) {
        const uint64_t mask = 0x0101010101010101u * ((1u << *w) - 1);
        for (unsigned i = 0; i < 32; i += 8)
            nb_put_le64(plane + i, nb_le64(in + i) >> shift & mask);
        pack_blocks(plane, *w, 4, dst);
        dst += 4 * *w;
        shift += *w;
    }
}

static bool is_stream(nb_packing p, unsigned bits)
{
    return p == NB_PACK_STREAM || bits == 2 || bits == 4 || bits == 8;
}

void nb_unpack32(nb_packing p, unsigned bits, const unsigned char *src, uint8_t out[32])
{
    if (is_stream(p, bits))
        unpack_blocks(src, bits, 4, out);
    else
        unpack_planar(src, bits, out);
}

void nb_pack32(nb_packing p, unsigned bits, const uint8_t in[32], unsigned char *dst)
{
    if (is_stream(p, bits))
        pack_blocks(in, bits, 4, dst);
    else
        pack_planar(in, bits, dst);
}

/* One code of a stream; reads the second byte only when the code reaches it. */
static uint8_t code_at(const unsigned char *src, unsigned bits, size_t i)
{
    const size_t at = i / 8 * bits + i % 8 * bits / 8;
    const unsigned shift = (unsigned)(i % 8 * bits % 8);
    unsigned v = src[at];

    if (shift + bits > 8)
        v |= (unsigned)src[at + 1] << 8;
    return (uint8_t)(v >> shift & ((1u << bits) - 1));
}

static void unpack_stream(unsigned bits, const unsigned char *src, size_t first, size_t n, uint8_t *out)
{
    size_t i = 0;

    for (; i < n && (first + i) % 8; i++)
        out[i] = code_at(src, bits, first + i);
    unpack_blocks(src + (first + i) / 8 * bits, bits, (n - i) / 8, out + i);
    for (i += (n - i) / 8 * 8; i < n; i++)
        out[i] = code_at(src, bits, first + i);
}

void nb_unpack_codes(nb_packing p, unsigned bits, const unsigned char *src, size_t first, size_t n, uint8_t *out)
{
    const unsigned per = 32 / bits;
    uint8_t block[32];

    if (is_stream(p, bits)) {
        unpack_stream(bits, src, first, n, out);
    } else if (p == NB_PACK_ALIGNED) {
        for (size_t i = 0; i < n; i++)
            out[i] = (uint8_t)(nb_le32(src + (first + i) / per * 4) >> bits * ((first + i) % per) & ((1u << bits) - 1));
    } else {
        for (size_t i = 0; i < n;) {
            const size_t in = (first + i) % 32, m = n - i < 32 - in ? n - i : 32 - in;
            unpack_planar(src + (first + i) / 32 * bits * 4, bits, block);
            memcpy(out + i, block + in, m);
            i += m;
        }
    }
}

void nb_pack_codes(nb_packing p, unsigned bits, const uint8_t *in, size_t n, unsigned char *dst)
{
    const unsigned per = 32 / bits;
    uint8_t tail[32] = { 0 };
    unsigned char words[32];

    if (p == NB_PACK_ALIGNED && !is_stream(p, bits)) {
        for (size_t i = 0; i < n; i += per) {
            uint32_t v = 0;
            for (size_t j = 0; j < per && i + j < n; j++)
                v |= (in[i + j] & ((1u << bits) - 1)) << bits * j;
            nb_put_le32(dst + i / per * 4, v);
        }
        return;
    }
    for (size_t i = 0; i + 32 <= n; i += 32)
        nb_pack32(p, bits, in + i, dst + i / 32 * bits * 4);
    if (n % 32) {
        memcpy(tail, in + n / 32 * 32, n % 32);
        nb_pack32(p, bits, tail, words);
        memcpy(dst + n / 32 * bits * 4, words, (n % 32 * bits + 31) / 32 * 4);
    }
}
