/* attn.c - attention over paged KV, one query row at a time. This file defines the bits; the outline is in kern/attn.h. */
#include "kern/attn.h"
#include "kern/scalar/scalar.h"

/* Component i of the head's page; slot: of its token. */
static float kv_element(const unsigned char *page, nb_dtype t, size_t d, size_t i, size_t slot)
{
    if (t == NB_DT_I8)
        return (float)(signed char)page[i] * nb_att_scale(page, d, slot);
    return t == NB_DT_F32 ? nb_f32_from_bits(nb_le32(page + 4 * i)) : nb_f16_to_f32(nb_le16(page + 2 * i));
}

static void kv_set(unsigned char *page, nb_dtype t, size_t i, float v)
{
    if (t == NB_DT_F32)
        nb_put_le32(page + 4 * i, nb_bits_from_f32(v));
    else
        nb_put_le16(page + 2 * i, nb_f32_to_f16(v));
}

void nb_kv_put_scalar(unsigned char *k, unsigned char *v, nb_dtype t, size_t slot, size_t d, const float *ks, const float *vs)
{
    if (t == NB_DT_I8) {
        if (k)
            nb_att_put8(k, d, slot, slot, NB_PAGE, ks);
        nb_att_put8(v, d, slot, slot * d, 1, vs);
        return;
    }
    for (size_t i = 0; i < d; i++) {
        if (k)
            kv_set(k, t, i * NB_PAGE + slot, ks[i]);
        kv_set(v, t, slot * d + i, vs[i]);
    }
}

/* Scores of positions [a, b) of the sub-tile that begins at `base`; the largest is returned. */
static float scores(float *s, const nb_attn *t, const float *q, size_t base, size_t a, size_t b)
{
    float max = -INFINITY;

    for (size_t x = a; x < b; x++) {
        const unsigned char *page = nb_att_page(t, t->k ? t->k : t->v, base + x);
        float sum = 0;
        for (size_t i = 0; i < t->d; i++)
            sum = fmaf(q[i], kv_element(page, t->kv_dtype, t->d, t->k ? i * NB_PAGE + x % NB_PAGE : x % NB_PAGE * t->d + i, x % NB_PAGE),
                       sum);
        s[x] = sum * t->scale;
        if (t->softcap > 0)
            s[x] = t->softcap * nb_tanhf(s[x] / t->softcap);
        max = s[x] > max ? s[x] : max;
    }
    return max;
}

/* One row over one tile of NB_ATT_TILE positions. */
static void row_tile(const nb_attn *t, size_t i, size_t j, size_t tile, float *o, float *max, float *sum)
{
    const float *q = t->q + i * t->ldq + j * t->d;
    const size_t first = nb_att_max(nb_att_first(t, i), tile * NB_ATT_TILE);
    const size_t end = nb_att_min(nb_att_end(t, i), (tile + 1) * NB_ATT_TILE);

    *max = -INFINITY;
    *sum = 0;
    for (size_t x = 0; x < t->d; x++)
        o[x] = 0;
    for (size_t base = first / NB_ATT_SUB * NB_ATT_SUB; base < end; base += NB_ATT_SUB) {
        const size_t a = nb_att_max(first, base) - base, b = nb_att_min(end - base, NB_ATT_SUB);
        float s[NB_ATT_SUB] = { 0 }, p[NB_ATT_SUB] = { 0 };
        const float top = scores(s, t, q, base, a, b), new_max = top > *max ? top : *max;
        const float c = nb_expf(*max - new_max);
        for (size_t x = a; x < b; x++)
            p[x] = nb_expf(s[x] - new_max);
        *max = new_max;
        *sum = fmaf(*sum, c, nb_att_sum(p));
        for (size_t y = 0; y < t->d; y++)
            o[y] *= c;
        for (size_t x = a; x < b; x++) {
            const unsigned char *page = nb_att_page(t, t->v, base + x);
            for (size_t y = 0; y < t->d; y++)
                o[y] = fmaf(p[x], kv_element(page, t->kv_dtype, t->d, (base + x) % NB_PAGE * t->d + y, x % NB_PAGE), o[y]);
        }
    }
}

void nb_attn_part_scalar(const nb_attn *t, size_t t0, size_t t1, float *part, float *scratch)
{
    (void)scratch;
    for (size_t tile = t0; tile < t1; tile++) {
        const nb_att_part p = nb_att_part_at(t, part, tile - t0);
        for (size_t row = 0; row < t->m * t->r; row++)
            row_tile(t, row / t->r, row % t->r, tile, p.o + row * nb_att_ldo(t->d), p.max + row, p.sum + row);
    }
}

void nb_attn_merge_scalar(const nb_attn *t, size_t n_tiles, const float *part)
{
    for (size_t row = 0; row < t->m * t->r; row++) {
        const size_t i = row / t->r, j = row % t->r;
        float *o = t->o + i * t->ldo + j * t->d, max = -INFINITY, sum = 0;
        for (size_t x = 0; x < t->d; x++)
            o[x] = 0;
        for (size_t tile = 0; tile < n_tiles; tile++) {
            const nb_att_part p = nb_att_part_at(t, (float *)part, tile);
            nb_att_merge(o, &max, &sum, p.o + row * nb_att_ldo(t->d), p.max[row], p.sum[row], t->d);
        }
        nb_att_finish(o, o, max, sum, t->sinks ? t->sinks + j : NULL, t->d);
    }
}

void nb_attn_scalar(const nb_attn *t, float *scratch)
{
    for (size_t row = 0; row < t->m * t->r; row++) {
        const size_t i = row / t->r, j = row % t->r;
        const size_t first = nb_att_first(t, i), end = nb_att_end(t, i);
        float *o = t->o + i * t->ldo + j * t->d, max = -INFINITY, sum = 0;
        for (size_t x = 0; x < t->d; x++)
            o[x] = 0;
        for (size_t tile = first / NB_ATT_TILE; tile * NB_ATT_TILE < end; tile++) {
            float tile_max, tile_sum;
            row_tile(t, i, j, tile, scratch, &tile_max, &tile_sum);
            nb_att_merge(o, &max, &sum, scratch, tile_max, tile_sum, t->d);
        }
        nb_att_finish(o, o, max, sum, t->sinks ? t->sinks + j : NULL, t->d);
    }
}
