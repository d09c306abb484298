/* attn.h - what the attention kernels of all tiers share: the sizes that fix the bits, and who sees which keys.
 *
 * The arithmetic of one query row (token i, head j) at position p = pos + i, by scalar/attn.c:
 *
 *   for every tile of NB_ATT_TILE positions that holds a visible key, ascending:
 *       O = 0, l = 0, max = -Inf
 *       for every sub-tile of NB_ATT_SUB positions that holds a visible key, ascending:
 *           S[t] = (fma chain over d ascending of q * K[t]) * scale, then softcap
 *           new = largest visible S;  c = exp(max - new);  P[t] = exp(S[t] - new), 0 where t is not visible
 *           l = l*c + sum of P by nb_att_sum();  O = O*c, then fma chain over visible t ascending of P[t] * V[t]
 *       merge (O, max, l) into the row's total
 *   add the sink, y = O / l
 *
 * All limits are absolute positions, so neither the split over threads, nor how many rows run together, nor the page a
 * key lies in can change a bit. A key that is not visible is never multiplied: its slot may hold anything. */
#ifndef NB_KERN_ATTN_H
#define NB_KERN_ATTN_H

#include <math.h>

#include "kern/expf.h"
#include "kern/kern.h"

enum {
    NB_ATT_SUB = 64, /* positions per softmax step: two pages                     */
    NB_ATT_ROWS = 64 /* query rows that a vector tier works on together           */
};

/* First visible position of token i, and one past the last. */
static inline size_t nb_att_first(const nb_attn *t, size_t i)
{
    const size_t end = t->pos + i + 1;

    if (t->chunk)
        return (end - 1) / t->chunk * t->chunk;
    return t->window && end > t->window ? end - t->window : 0;
}

static inline size_t nb_att_end(const nb_attn *t, size_t i)
{
    return t->pos + i + 1;
}

static inline size_t nb_att_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t nb_att_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Floats of a row of O in scratch and partials: d rounded up, so that rows stay 64-byte aligned with their buffer. */
static inline size_t nb_att_ldo(size_t d)
{
    return (d + 15) / 16 * 16;
}

/* Sum of a sub-tile: 16 lanes of stride 16, then halves. */
static inline float nb_att_sum(const float *p)
{
    float lane[16];

    for (int a = 0; a < 16; a++)
        lane[a] = ((p[a] + p[a + 16]) + p[a + 32]) + p[a + 48];
    for (int half = 8; half > 0; half /= 2)
        for (int a = 0; a < half; a++)
            lane[a] += lane[a + half];
    return lane[0];
}

/* Merge one tile's (o, max, sum) into a total that starts as (0, -Inf, 0). A tile without visible keys has sum 0. */
static inline void nb_att_merge(float *total_o, float *total_max, float *total_sum, const float *o, float max, float sum, size_t d)
{
    if (sum == 0.0f)
        return;
    const float top = max > *total_max ? max : *total_max;
    const float a = nb_expf(*total_max - top), b = nb_expf(max - top);
    *total_max = top;
    *total_sum = fmaf(sum, b, *total_sum * a);
    for (size_t i = 0; i < d; i++)
        total_o[i] = fmaf(o[i], b, total_o[i] * a);
}

/* The output of a row from its total; sink: one more logit with no value, or NULL. */
static inline void nb_att_finish(float *y, const float *total_o, float max, float sum, const float *sink, size_t d)
{
    float scale = 1.0f;

    if (sink) {
        const float top = *sink > max ? *sink : max;
        scale = nb_expf(max - top);
        sum = fmaf(sum, scale, nb_expf(*sink - top));
    }
    for (size_t i = 0; i < d; i++)
        y[i] = total_o[i] * scale / sum;
}

/* Address of a page's K or V. */
static inline const unsigned char *nb_att_page(const nb_attn *t, const unsigned char *base, size_t position)
{
    return base + (size_t)t->pages[position / NB_PAGE] * t->page_stride;
}

/* The scale of a token in an I8 page of one head's K or V. */
static inline float nb_att_scale(const unsigned char *page, size_t d, size_t slot)
{
    return nb_f32_from_bits(nb_le32(page + NB_PAGE * d + 4 * slot));
}

/* Put a token's x[d] into an I8 page, component i at first + i * step. */
static inline void nb_att_put8(unsigned char *page, size_t d, size_t slot, size_t first, size_t step, const float *x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, to nearest even */
    float max = 0, scale, inv;
    int finite = 1;

    for (size_t i = 0; i < d; i++) {
        finite &= fabsf(x[i]) <= 3.4e38f;
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    }
    scale = max < 1e-30f ? 0 : max / 127.0f;
    inv = scale > 0 ? 1.0f / scale : 0;
    for (size_t i = 0; i < d; i++) {
        const float q = finite ? (x[i] * inv + magic) - magic : 0;
        page[first + i * step] = (unsigned char)(signed char)(q > 127 ? 127 : q < -127 ? -127 : q);
    }
    nb_put_le32(page + NB_PAGE * d + 4 * slot, nb_bits_from_f32(finite ? scale : NAN));
}

/* A partial result of all m*r rows: O[rows][ldo], max[rows], sum[rows]. */
typedef struct nb_att_part {
    float *o, *max, *sum;
} nb_att_part;

static inline nb_att_part nb_att_part_at(const nb_attn *t, float *part, size_t tile)
{
    const size_t rows = t->m * t->r;
    float *at = part + tile * nb_attn_partial(rows, t->d);

    return (nb_att_part){ .o = at, .max = at + rows * nb_att_ldo(t->d), .sum = at + rows * nb_att_ldo(t->d) + rows };
}

#endif
