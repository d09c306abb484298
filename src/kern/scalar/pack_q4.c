/* pack_q4.c - hub rows (one byte a code) into blocks of 64 outputs x one group. Layout: kern.h. */
#include <string.h>

#include "kern/q4.h"
#include "kern/scalar/scalar.h"

/* Inputs 8t .. 8t+7 of one row as the four bytes of its place in the block: codes 0..3 low, 4..7 high. Codes are at most
 * 15, so that a shift by 28 brings byte 4 + c onto the high half of byte c. */
static void put_step(unsigned char *out, const uint8_t *codes)
{
    const uint64_t v = nb_le64(codes);

    nb_put_le32(out, (uint32_t)(v | v >> 28));
}

/* One row of one group with a byte a code: a quad every 256 bytes. */
static void put_row8(unsigned char *out, const uint8_t *codes, size_t n, size_t g)
{
    for (size_t t = 0; t < g / 4; t++) {
        const size_t have = n > 4 * t ? n - 4 * t : 0;

        memset(out + t * 256, 0, 4);
        if (have > 0)
            memcpy(out + t * 256, codes + 4 * t, have < 4 ? have : 4);
    }
}

/* One row of one group: n inputs from codes (already in packed order), the rest of g is zero. */
static void put_row4(unsigned char *out, const uint8_t *codes, size_t n, size_t g)
{
    size_t t = 0;

    for (; t < n / 8; t++)
        put_step(out + t * 256, codes + 8 * t);
    if (n % 8 != 0) {
        uint8_t last[8] = { 0 };
        memcpy(last, codes + 8 * t, n % 8);
        put_step(out + t++ * 256, last);
    }
    for (; t < g / 8; t++)
        memset(out + t * 256, 0, 4);
}

/* Scale and zero of all 64 rows; rows from `rows` on are padding. hub: group of the hub that holds this block. */
static void put_affine(const nb_q4 *p, unsigned char *block, const nb_qlin *q, size_t first, size_t rows, size_t hub)
{
    unsigned char *scales = block + nb_q4_scales_at(p), *zeros = block + nb_q4_zeros_at(p);

    for (size_t r = 0; r < NB_STRIP; r++) {
        const size_t at = (first + r) * q->n_groups + hub;
        const float s = r < rows ? q->scales[at] : 0.0f;

        if (p->wide)
            nb_put_le32(scales + 4 * r, nb_bits_from_f32(s));
        else
            nb_put_le16(scales + 2 * r, nb_f32_to_f16(s));
        zeros[r] = r < rows ? q->zeros[at] : 0;
    }
}

typedef void put_row_fn(unsigned char *out, const uint8_t *codes, size_t n, size_t g);

static void pack(nb_q4 *p, size_t row0, size_t n0, const nb_qlin *q, const uint32_t *perm, put_row_fn *put_row)
{
    const size_t g = p->g;

    assert((row0 + n0) % NB_STRIP == 0 && q->k == p->k && row0 + n0 + q->n <= p->n);
    for (size_t first = 0; first < q->n; first += NB_STRIP) {
        const size_t s = (row0 + n0 + first) / NB_STRIP;
        const size_t rows = q->n - first < NB_STRIP ? q->n - first : NB_STRIP;

        for (size_t grp = 0; grp < p->n_groups; grp++) {
            unsigned char *block = nb_q4_block(p, s, grp);
            const size_t k0 = grp * g, n = nb_q4_valid(p->k, g, grp);
            const size_t head = perm ? perm[k0] : k0;

            for (size_t r = 0; r < rows; r++) {
                const uint8_t *row = q->codes + (first + r) * q->k;
                uint8_t sorted[NB_MAX_G];

                if (perm)
                    for (size_t i = 0; i < n; i++)
                        sorted[i] = row[perm[k0 + i]];
                put_row(block + 4 * r, perm ? sorted : row + k0, n, g);
            }
            for (size_t r = rows; r < NB_STRIP; r++)
                put_row(block + 4 * r, NULL, 0, g);
            put_affine(p, block, q, first, rows, q->g_idx ? q->g_idx[head] : head / q->g);
        }
    }
}

void nb_pack_q4_scalar(nb_q4 *p, size_t row0, size_t n0, const nb_qlin *q, const uint32_t *perm)
{
    pack(p, row0, n0, q, perm, put_row4);
}

void nb_pack_q8_scalar(nb_q8 *p, size_t row0, size_t n0, const nb_qlin *q, const uint32_t *perm)
{
    pack(p, row0, n0, q, perm, put_row8);
}

/* Eight inputs of eight rows from AWQ words, one of each input, to the rows' places. Nibbles 0, 2, 4, 6 of a word are rows 0, 4, 1, 5. */
static void put_awq(unsigned char *out, const unsigned char *at, size_t pitch)
{
    static const size_t even[4] = { 0, 4, 1, 5 }, odd[4] = { 2, 6, 3, 7 };
    const uint32_t low = 0x0f0f0f0fu;

    for (size_t c = 0; c < 4; c++) {
        const uint32_t a = nb_le32(at + c * pitch), b = nb_le32(at + (c + 4) * pitch);
        const uint32_t e = (a & low) | (b & low) << 4, o = (a >> 4 & low) | (b & ~low);

        for (size_t i = 0; i < 4; i++) {
            out[4 * even[i] + c] = (unsigned char)(e >> 8 * i);
            out[4 * odd[i] + c] = (unsigned char)(o >> 8 * i);
        }
    }
}

/* Eight inputs of one row. */
static void put_by_input(unsigned char *out, uint32_t word)
{
    const uint32_t low = word & 0xffffu, high = word >> 16;

    for (size_t c = 0; c < 4; c++)
        out[c] = (unsigned char)((low >> 4 * c & 0xf) | (high >> 4 * c & 0xf) << 4);
}

/* Codes of one block of `rows` rows; w begins at its first word. */
static void put_words(unsigned char *out, const nb_words *w, size_t rows, size_t g)
{
    for (size_t t = 0; t < g / 8; t++, out += 256) {
        const unsigned char *at = w->at + (w->by_input ? t : 8 * t) * w->pitch;

        if (rows < NB_STRIP)
            memset(out, 0, 256);
        for (size_t r = 0; r < rows && w->by_input; r++)
            put_by_input(out + 4 * r, nb_le32(at + 4 * r));
        for (size_t r = 0; r < rows && !w->by_input; r += 8)
            put_awq(out + 4 * r, at + r / 2, w->pitch);
    }
}

void nb_pack_words_scalar(nb_q4 *p, size_t row0, size_t n0, const nb_qlin *q, const nb_words *w)
{
    assert((row0 + n0) % NB_STRIP == 0 && q->k == p->k && row0 + n0 + q->n <= p->n && p->k % p->g == 0 && q->n % 8 == 0);
    for (size_t grp = 0; grp < p->n_groups; grp++)
        for (size_t first = 0; first < q->n; first += NB_STRIP) {
            const size_t rows = q->n - first < NB_STRIP ? q->n - first : NB_STRIP, k0 = grp * p->g;
            const nb_words part = nb_words_at(w, k0, first);
            unsigned char *block = nb_q4_block(p, (row0 + n0 + first) / NB_STRIP, grp);

            put_words(block, &part, rows, p->g);
            put_affine(p, block, q, first, rows, q->g_idx ? q->g_idx[k0] : k0 / q->g);
        }
}
