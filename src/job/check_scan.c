/* check_scan.c - see check_scan.h. Loops over short buffers that a compiler turns into vectors: a checkpoint is read at the speed of
 * memory. */
#include "job/check_scan.h"

#include <math.h>
#include <string.h>

#include "base/bits.h"
#include "base/mem.h"

enum { BLOCK = 1024 }; /* values looked at together */

/* What 16-bit floats of a type are, by the bits without the sign. */
typedef struct limits {
    int16_t inf, normal, big; /* from `inf` on not finite; below `normal` subnormal (F16); from `big` on 15 of them leave float16 */
} limits;

static float value_of(nb_dtype t, int16_t bits)
{
    return t == NB_DT_F16 ? nb_f16_to_f32((uint16_t)bits) : nb_bf16_to_f32((uint16_t)bits);
}

static limits limits_of(nb_dtype t)
{
    limits l = { .inf = t == NB_DT_F16 ? 0x7c00 : 0x7f80, .normal = t == NB_DT_F16 ? 0x0400 : 0 };
    int16_t small = 0;

    for (l.big = l.inf; l.big - small > 1;) {
        const int16_t mid = (int16_t)((small + l.big) / 2);
        if (value_of(t, mid) * 15 > 65504)
            l.big = mid;
        else
            small = mid;
    }
    return l;
}

/* How many of n <= BLOCK values are not finite. */
static unsigned count_bad16(const unsigned char *at, size_t n, int16_t inf)
{
    uint16_t v[BLOCK], bad = 0;

    nb_get_le16(v, at, n);
    for (size_t i = 0; i < n; i++)
        bad = (uint16_t)(bad + ((int16_t)(v[i] & 0x7fff) >= inf));
    return bad;
}

static unsigned count_bad32(const unsigned char *at, size_t n)
{
    uint32_t v[BLOCK], bad = 0;

    nb_get_le32(v, at, n);
    for (size_t i = 0; i < n; i++)
        bad += (int32_t)(v[i] & 0x7fffffffu) >= 0x7f800000;
    return bad;
}

static bool is_bad(const unsigned char *at, nb_dtype t, uint64_t i)
{
    if (t == NB_DT_F32)
        return (nb_le32(at + 4 * i) & 0x7f800000u) == 0x7f800000u;
    if (t == NB_DT_F64)
        return (nb_le64(at + 8 * i) & 0x7ff0000000000000u) == 0x7ff0000000000000u;
    return t == NB_DT_F16 ? (nb_le16(at + 2 * i) & 0x7c00u) == 0x7c00u : (nb_le16(at + 2 * i) & 0x7f80u) == 0x7f80u;
}

static void scan_plain(nb_piece *p)
{
    const unsigned char *at = p->t->data;
    const nb_dtype t = p->t->dtype;
    const int16_t inf = limits_of(t).inf;

    for (uint64_t i = p->begin; i < p->end; i += BLOCK) {
        const size_t n = p->end - i < BLOCK ? (size_t)(p->end - i) : BLOCK;
        if (t == NB_DT_F32 ? count_bad32(at + 4 * i, n) == 0 : t != NB_DT_F64 && count_bad16(at + 2 * i, n, inf) == 0)
            continue;
        for (size_t x = 0; x < n; x++)
            if (is_bad(at, t, i + x) && p->n_bad++ == 0)
                p->first_bad = i + x;
    }
}

/* One scale of any type. */
static void scan_scale(nb_piece *p, float s, uint64_t at, bool f16, float top, bool *alive)
{
    if (!isfinite(s)) {
        if (p->n_bad++ == 0)
            p->first_bad = at;
        return;
    }
    *alive = *alive || s != 0;
    p->n_zero += s == 0;
    p->n_neg += s < 0;
    p->n_sub += f16 && s != 0 && fabsf(s) < 6.103515625e-5f;
    p->n_big += fabsf(s) * top > 65504;
}

/* n <= BLOCK 16-bit scales of one group; alive[i] becomes non-zero with a scale. False when one is not finite: nothing is counted. */
static bool scan_scales16(nb_piece *p, const unsigned char *at, size_t n, limits l, int16_t *alive)
{
    uint16_t v[BLOCK], zero = 0, neg = 0, sub = 0, big = 0;

    if (count_bad16(at, n, l.inf))
        return false;
    nb_get_le16(v, at, n);
    for (size_t i = 0; i < n; i++) {
        const int16_t m = (int16_t)(v[i] & 0x7fff);
        alive[i] = (int16_t)(alive[i] | m);
        zero = (uint16_t)(zero + (m == 0));
        neg = (uint16_t)(neg + ((int16_t)v[i] < 0 && m != 0));
        sub = (uint16_t)(sub + (m < l.normal && m != 0));
        big = (uint16_t)(big + (m >= l.big));
    }
    p->n_zero += zero;
    p->n_neg += neg;
    p->n_sub += sub;
    p->n_big += big;
    return true;
}

/* A whole scales tensor [groups][n]: one piece, since outputs must be seen over all groups. */
static void scan_scales(nb_piece *p)
{
    const size_t n = p->lin->n, gn = p->lin->k / p->lin->g, item = nb_dtype_info(p->t->dtype)->bits / 8;
    const limits l = limits_of(p->t->dtype);
    int16_t *alive = nb_calloc(n, sizeof *alive);
    float row[BLOCK];

    if (!alive) {
        p->no_memory = true;
        return;
    }
    for (size_t g = 0; g < gn; g++)
        for (size_t o = 0; o < n; o += BLOCK) {
            const size_t w = n - o < BLOCK ? n - o : BLOCK;
            const unsigned char *at = p->t->data + (g * n + o) * item;
            if (item == 2 && scan_scales16(p, at, w, l, alive + o))
                continue;
            nb_to_f32(row, at, p->t->dtype, w);
            for (size_t i = 0; i < w; i++) {
                bool any = alive[o + i] != 0;
                scan_scale(p, row[i], g * n + o + i, p->t->dtype == NB_DT_F16, 15, &any);
                alive[o + i] = any;
            }
        }
    for (size_t o = 0; o < n; o++)
        p->row_zero = p->row_zero || !alive[o];
    nb_free(alive);
}

static void scan_codes(nb_piece *p)
{
    const unsigned char *at = p->t->data;
    uint32_t v[BLOCK], diff = 0;

    p->word = nb_le32(at + 4 * p->begin);
    for (uint64_t i = p->begin; i < p->end; i += BLOCK) {
        const size_t n = p->end - i < BLOCK ? (size_t)(p->end - i) : BLOCK;
        nb_get_le32(v, at + 4 * i, n);
        for (size_t x = 0; x < n; x++)
            diff |= v[x] ^ p->word;
        for (size_t x = 0; x < n && p->seen != 0xffff; x++)
            for (unsigned b = 0; b < 32; b += 4)
                p->seen |= 1u << (v[x] >> b & 15);
    }
    p->same = diff == 0;
}

/* Nibbles other than 8. */
static void scan_zeros(nb_piece *p)
{
    const unsigned char *at = p->t->data;
    uint32_t v[BLOCK];

    for (uint64_t i = p->begin; i < p->end; i += BLOCK) {
        const size_t n = p->end - i < BLOCK ? (size_t)(p->end - i) : BLOCK;
        uint32_t off = 0;
        nb_get_le32(v, at + 4 * i, n);
        for (size_t x = 0; x < n; x++) {
            uint32_t d = v[x] ^ 0x88888888u;
            d |= d >> 1;
            d = (d | d >> 2) & 0x11111111u;
            off += d * 0x11111111u >> 28; /* the sum of its nibbles */
        }
        p->n_off += off;
    }
}

static void scan_hub(nb_piece *p)
{
    const nb_linear *lin = p->lin;
    const unsigned bits = lin->spec.bits, half = 1u << (bits - 1);
    const size_t n = (size_t)(p->end - p->begin);
    nb_qlin q = { 0 };
    nb_status rc = p->kind == NB_PIECE_GRID ? nb_qlin_init_grid(&q, n, lin->k, lin->g, bits, &p->err)
                                            : nb_qlin_init(&q, n, lin->k, lin->g, bits, &p->err);

    if (rc == NB_OK)
        rc = lin->format->unpack(lin, (size_t)p->begin, &q, &p->err);
    p->lo = 255;
    for (size_t i = 0; rc == NB_OK && q.codes && i < n * q.k; i++) {
        p->lo = q.codes[i] < p->lo ? q.codes[i] : p->lo;
        p->hi = q.codes[i] > p->hi ? q.codes[i] : p->hi;
    }
    for (size_t o = 0; rc == NB_OK && o < n; o++) {
        bool alive = false;
        for (size_t g = 0; g < q.n_groups; g++) {
            const size_t i = o * q.n_groups + g;
            const bool bad = q.offsets && !isfinite(q.offsets[i]);
            p->n_off += q.zeros[i] != half;
            scan_scale(p, bad ? q.offsets[i] : q.scales[i], g * lin->n + p->begin + o, q.scale_dtype == NB_DT_F16, (float)(2 * half - 1),
                       &alive);
        }
        p->row_zero = p->row_zero || !alive;
    }
    nb_qlin_clear(&q);
}

/* A value that is not finite comes from the scale of its block (hardening GG-24). */
static void scan_blocks(nb_piece *p)
{
    float v[4 * BLOCK];

    for (uint64_t i = p->begin; i < p->end; i += NB_LEN(v)) {
        const size_t n = p->end - i < NB_LEN(v) ? (size_t)(p->end - i) : NB_LEN(v);
        if (nb_store_read_f32(p->s, p->t, i, n, v, &p->err) != NB_OK)
            return;
        for (size_t k = 0; k < n; k++)
            if (!isfinite(v[k]) && p->n_bad++ == 0)
                p->first_bad = i + k;
    }
}

void nb_piece_scan(nb_piece *p)
{
    switch (p->kind) {
    case NB_PIECE_PLAIN:
        scan_plain(p);
        break;
    case NB_PIECE_SCALES:
        scan_scales(p);
        break;
    case NB_PIECE_CODES:
        scan_codes(p);
        break;
    case NB_PIECE_ZEROS:
        scan_zeros(p);
        break;
    case NB_PIECE_HUB:
    case NB_PIECE_GRID:
        scan_hub(p);
        break;
    case NB_PIECE_BLOCKS:
        scan_blocks(p);
        break;
    }
}
