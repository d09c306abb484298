/* words.c - see words.h. */
#include "quant/words.h"

#include <string.h>

#include "base/bits.h"

enum { LANES = 16, FOURS = LANES / 4 }; /* words side by side: one cache line */

typedef uint32_t four __attribute__((vector_size(16))); /* both compilers turn it into what the machine has */

static inline four load4(const unsigned char *p)
{
    four v;

    memcpy(&v, p, sizeof v);
    return v;
}

static inline void store4(unsigned char *p, four v)
{
    memcpy(p, &v, sizeof v);
}

/* out[i][j] = in[j][i] */
static inline void transpose4(four v[4])
{
    const four a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5), b = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7);
    const four c = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5), d = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);

    v[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    v[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    v[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    v[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

/* Which nibble of an AWQ word holds output o of eight: 0, 4, 1, 5, 2, 6, 3, 7 (formats 2.2). */
static inline size_t nibble_of(size_t o)
{
    return o / 2 + o % 2 * 4;
}

bool nb_words_fit(const nb_linear *lin)
{
    const uint32_t one = 1;
    unsigned char first;

    memcpy(&first, &one, 1);
    return first == 1 && lin->format->words != NB_WORDS_NONE && lin->spec.bits == 4 && lin->n % 8 == 0 && lin->k % 8 == 0;
}

/* Transpose 8x8 nibbles in every lane: v[i] nibble p <-> v[p] nibble i. Three rounds of swapped blocks. */
static inline void transpose_nibbles(four v[8])
{
    for (int i = 0; i < 8; i += 2) {
        const four t = (v[i] >> 4 ^ v[i + 1]) & 0x0f0f0f0fu;
        v[i + 1] ^= t;
        v[i] ^= t << 4;
    }
    for (int i = 0; i < 8; i += i % 4 == 1 ? 3 : 1) {
        const four t = (v[i] >> 8 ^ v[i + 2]) & 0x00ff00ffu;
        v[i + 2] ^= t;
        v[i] ^= t << 8;
    }
    for (int i = 0; i < 4; i++) {
        const four t = (v[i] >> 16 ^ v[i + 4]) & 0x0000ffffu;
        v[i + 4] ^= t;
        v[i] ^= t << 16;
    }
}

/* Eight inputs of 8 * LANES outputs from AWQ words; the word of input i is at src + i * pitch. */
static void awq_in(const unsigned char *src, size_t pitch, unsigned char *out)
{
    for (size_t x = 0; x < FOURS; x++) {
        four v[8], o[4];
        for (size_t i = 0; i < 8; i++)
            v[i] = load4(src + i * pitch + 16 * x);
        transpose_nibbles(v);
        for (size_t h = 0; h < 2; h++) { /* outputs 4h .. 4h+3 of every eight */
            for (size_t i = 0; i < 4; i++)
                o[i] = v[nibble_of(4 * h + i)];
            transpose4(o);
            for (size_t i = 0; i < 4; i++)
                store4(out + 128 * x + 32 * i + 16 * h, o[i]);
        }
    }
}

static void awq_out(const unsigned char *in, unsigned char *dst, size_t pitch)
{
    for (size_t x = 0; x < FOURS; x++) {
        four v[8], o[4];
        for (size_t h = 0; h < 2; h++) {
            for (size_t i = 0; i < 4; i++)
                o[i] = load4(in + 128 * x + 32 * i + 16 * h);
            transpose4(o);
            for (size_t i = 0; i < 4; i++)
                v[nibble_of(4 * h + i)] = o[i];
        }
        transpose_nibbles(v);
        for (size_t i = 0; i < 8; i++)
            store4(dst + i * pitch + 16 * x, v[i]);
    }
}

/* The last w < LANES words of a row, through room for LANES. */
static void awq_in_few(const unsigned char *src, size_t pitch, size_t w, unsigned char *out)
{
    unsigned char in[8][4 * LANES] = { { 0 } }, all[32 * LANES];

    for (size_t i = 0; i < 8; i++)
        memcpy(in[i], src + i * pitch, 4 * w);
    awq_in(in[0], sizeof in[0], all);
    memcpy(out, all, 32 * w);
}

static void awq_out_few(const unsigned char *in, size_t w, unsigned char *dst, size_t pitch)
{
    unsigned char all[32 * LANES] = { 0 }, out[8][4 * LANES];

    memcpy(all, in, 32 * w);
    awq_out(all, out[0], sizeof out[0]);
    for (size_t i = 0; i < 8; i++)
        memcpy(dst + i * pitch, out[i], 4 * w);
}

/* LANES x LANES words: whole cache lines in and out, however far the rows are apart. */
static void transpose_block(const unsigned char *in, size_t in_pitch, unsigned char *out, size_t out_pitch)
{
    four v[LANES][FOURS], o[4];

    for (size_t r = 0; r < FOURS; r++)
        for (size_t c = 0; c < FOURS; c++) {
            for (size_t i = 0; i < 4; i++)
                o[i] = load4(in + (4 * r + i) * in_pitch + 16 * c);
            transpose4(o);
            for (size_t i = 0; i < 4; i++)
                v[4 * c + i][r] = o[i];
        }
    for (size_t c = 0; c < LANES; c++)
        for (size_t r = 0; r < FOURS; r++)
            store4(out + c * out_pitch + 16 * r, v[c][r]);
}

/* out[c][r] = in[r][c], words; pitches in bytes. */
static void transpose_words(const unsigned char *in, size_t in_pitch, size_t rows, size_t cols, unsigned char *out, size_t out_pitch)
{
    for (size_t c = 0; c < cols; c += LANES)
        for (size_t r = 0; r < rows; r += LANES) {
            const unsigned char *from = in + r * in_pitch + 4 * c;
            unsigned char *to = out + c * out_pitch + 4 * r;
            const size_t nr = rows - r < LANES ? rows - r : LANES, nc = cols - c < LANES ? cols - c : LANES;
            if (nr == LANES && nc == LANES) {
                transpose_block(from, in_pitch, to, out_pitch);
                continue;
            }
            for (size_t i = 0; i < nr; i++)
                for (size_t x = 0; x < nc; x++)
                    memcpy(to + x * out_pitch + 4 * i, from + i * in_pitch + 4 * x, 4);
        }
}

const unsigned char *nb_words_get(const nb_linear *lin, size_t r0, size_t rows, size_t n0, size_t cols, unsigned char *tile)
{
    const nb_tensor *t = lin->parts[0];
    const size_t pitch = (size_t)t->shape[1] * 4;

    switch (lin->format->words) {
    case NB_WORDS_AWQ:
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < cols; c += 8 * LANES) {
                const unsigned char *src = t->data + 8 * (r0 + r) * pitch + (n0 + c) / 2;
                unsigned char *to = tile + (r * cols + c) * 4;
                if (cols - c >= 8 * LANES)
                    awq_in(src, pitch, to);
                else
                    awq_in_few(src, pitch, (cols - c) / 8, to);
            }
        break;
    case NB_WORDS_BY_INPUT:
        if (cols == lin->n)
            return t->data + r0 * pitch;
        for (size_t r = 0; r < rows; r++)
            memcpy(tile + r * cols * 4, t->data + (r0 + r) * pitch + n0 * 4, cols * 4);
        break;
    default:
        transpose_words(t->data + n0 * pitch + r0 * 4, pitch, cols, rows, tile, cols * 4);
    }
    return tile;
}

const unsigned char *nb_words_put(nb_words_kind kind, const unsigned char *tile, size_t rows, size_t cols, unsigned char *scratch)
{
    switch (kind) {
    case NB_WORDS_AWQ:
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < cols; c += 8 * LANES) {
                unsigned char *to = scratch + 8 * r * (cols / 2) + c / 2;
                if (cols - c >= 8 * LANES)
                    awq_out(tile + (r * cols + c) * 4, to, cols / 2);
                else
                    awq_out_few(tile + (r * cols + c) * 4, (cols - c) / 8, to, cols / 2);
            }
        return scratch;
    case NB_WORDS_BY_OUTPUT:
        transpose_words(tile, cols * 4, rows, cols, scratch, rows * 4);
        return scratch;
    default:
        return tile;
    }
}
