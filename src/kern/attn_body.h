/* attn_body.h - attention on vectors. Included once by attn.c of each vector tier, which renames the functions.
 *
 * Up to NB_ATT_ROWS query rows go over the pages together. Few rows (decode) read K and V straight from the page, once
 * for all of them, prefetching the page after next; many rows (prefill) widen a page to f32 once. Arithmetic: kern/attn.h
 * and scalar/attn.c. */
#include <string.h>

#include "kern/attn.h"
#include "kern/tile.h"

/* A block of query rows and its state within one tile of positions. */
typedef struct rows {
    const nb_attn *t;
    size_t n;
    size_t limit; /* one past the last position that the block sees, in any tile */
    const float *q[NB_ATT_ROWS];
    size_t first[NB_ATT_ROWS], end[NB_ATT_ROWS]; /* visible positions, cut to the tile; both ascend */
    float *o, *max, *sum;                        /* [n][ldo], [n], [n]                              */
    float *s;                                    /* [n][NB_ATT_SUB] scores, then probabilities      */
    float *wide;                                 /* one page in f32                                 */
} rows;

/* Rows x nv registers; mr <= ATT_MR. */
NB_FORCE void att_tile(const nb_dtype bt, const int nv, size_t mr, const float *const *a, const unsigned char *b, size_t ldb, size_t k,
                       float *c, size_t ldc, tile_mode mode, uintptr_t ahead)
{
    switch (mr) {
    case 1:
        tile(1, nv, bt, a, b, ldb, k, c, ldc, mode, ahead);
        break;
    case 2:
        tile(2, nv, bt, a, b, ldb, k, c, ldc, mode, ahead);
        break;
    case 3:
        tile(3, nv, bt, a, b, ldb, k, c, ldc, mode, ahead);
        break;
    case 4:
        tile(4, nv, bt, a, b, ldb, k, c, ldc, mode, ahead);
        break;
    case 5:
        tile(5, nv, bt, a, b, ldb, k, c, ldc, mode, ahead);
        break;
    case 6:
        tile(6, nv, bt, a, b, ldb, k, c, ldc, mode, ahead);
        break;
    case 7:
        if (ATT_MR > 6)
            tile(7, nv, bt, a, b, ldb, k, c, ldc, mode, ahead);
        break;
    case 8:
        if (ATT_MR > 6)
            tile(8, nv, bt, a, b, ldb, k, c, ldc, mode, ahead);
        break;
    default:
        break;
    }
}

/* The last columns, fewer than a register holds. */
NB_FORCE void att_tail(const nb_dtype bt, size_t mr, const float *const *a, const unsigned char *b, size_t ldb, size_t k, float *c,
                       size_t ldc, size_t n)
{
    for (size_t i = 0; i < mr; i++)
        for (size_t j = 0; j < n; j++) {
            float sum = c[i * ldc + j];
            for (size_t x = 0; x < k; x++) {
                const unsigned char *at = b + x * ldb;
                const float w = bt == NB_DT_F32 ? nb_f32_from_bits(nb_le32(at + 4 * j)) : nb_f16_to_f32(nb_le16(at + 2 * j));
                sum = fmaf(a[i][x], w, sum);
            }
            c[i * ldc + j] = sum;
        }
}

/* mr rows times a matrix of k rows and n columns. */
NB_FORCE void att_mul_of(const nb_dtype bt, size_t mr, const float *const *a, const unsigned char *b, size_t k, size_t n, float *c,
                         size_t ldc, tile_mode mode, uintptr_t ahead, size_t ldb)
{
    const size_t size = bt == NB_DT_F32 ? 4 : 2;
    size_t j = 0;

    for (; j + ATT_NV * VL <= n; j += ATT_NV * VL)
        att_tile(bt, ATT_NV, mr, a, b + j * size, ldb, k, c + j, ldc, mode, ahead);
    for (; j + VL <= n; j += VL)
        att_tile(bt, 1, mr, a, b + j * size, ldb, k, c + j, ldc, mode, ahead);
    if (j < n)
        att_tail(bt, mr, a, b + j * size, ldb, k, c + j, ldc, n - j);
}

static void att_mul(nb_dtype bt, size_t mr, const float *const *a, const unsigned char *b, size_t k, size_t n, float *c, size_t ldc,
                    tile_mode mode, uintptr_t ahead)
{
    if (bt == NB_DT_F32)
        att_mul_of(NB_DT_F32, mr, a, b, k, n, c, ldc, mode, ahead, 4 * n);
    else
        att_mul_of(NB_DT_F16, mr, a, b, k, n, c, ldc, mode, ahead, 2 * n);
}

/* A page as the tiles read it: itself, or widened when enough rows use it. Distance to the page after next in *ahead. */
static const unsigned char *open_page(const rows *r, const unsigned char *base, size_t position, nb_dtype *type, uintptr_t *ahead)
{
    const nb_attn *t = r->t;
    const unsigned char *page = nb_att_page(t, base, position);
    const size_t next = position + NB_ATT_SUB, n = NB_PAGE * t->d;

    *type = t->kv_dtype;
    *ahead = 0;
    if (t->kv_dtype == NB_DT_F32 || r->n <= ATT_MR) {
        if (next < r->limit)
            *ahead = (uintptr_t)nb_att_page(t, base, next) - (uintptr_t)page;
        return page;
    }
    for (size_t i = 0; i < n; i += VL) /* n is a multiple of 32 */
        v_store(r->wide + i, v_widen(page + 2 * i, NB_DT_F16));
    *type = NB_DT_F32;
    return (const unsigned char *)r->wide;
}

/* Rows [*a, *b) that see some of the positions [p, p + n). */
static void seen_by(const rows *r, size_t p, size_t n, size_t *a, size_t *b)
{
    *a = 0;
    while (*a < r->n && r->end[*a] <= p)
        ++*a;
    *b = r->n;
    while (*b > *a && r->first[*b - 1] >= p + n)
        --*b;
}

/* S = q . K of one page. */
static void page_scores(const rows *r, size_t p)
{
    size_t a, b;
    nb_dtype type;
    uintptr_t ahead;

    seen_by(r, p, NB_PAGE, &a, &b);
    if (a == b)
        return;
    const unsigned char *k = open_page(r, r->t->k, p, &type, &ahead);
    for (size_t i = a; i < b; i += ATT_MR)
        att_mul(type, nb_att_min(b - i, ATT_MR), r->q + i, k, r->t->d, NB_PAGE, r->s + i * NB_ATT_SUB + p % NB_ATT_SUB, NB_ATT_SUB,
                TILE_SET, ahead);
}

/* O += P * V of one page, in runs of rows with the same limits. */
static void page_values(const rows *r, size_t p)
{
    const size_t d = r->t->d, ldo = nb_att_ldo(d);
    size_t i, n, run;
    nb_dtype type;
    uintptr_t ahead;

    seen_by(r, p, NB_PAGE, &i, &n);
    if (i == n)
        return;
    const unsigned char *v = open_page(r, r->t->v, p, &type, &ahead);
    const size_t row_bytes = d * (type == NB_DT_F32 ? 4 : 2);
    for (; i < n; i += run) {
        const size_t a = nb_att_max(r->first[i], p), b = nb_att_min(r->end[i], p + NB_PAGE);
        const float *prob[ATT_MR];
        for (run = 0; run < ATT_MR && i + run < n; run++) {
            if (nb_att_max(r->first[i + run], p) != a || nb_att_min(r->end[i + run], p + NB_PAGE) != b)
                break;
            prob[run] = r->s + (i + run) * NB_ATT_SUB + a % NB_ATT_SUB;
        }
        att_mul(type, run, prob, v + (a - p) * row_bytes, b - a, d, r->o + i * ldo, ldo, TILE_GO_ON, ahead);
    }
}

/* Scores to probabilities in one row of a sub-tile, positions [a, b) visible; rescales the row's state. */
static void softmax_row(const rows *r, size_t i, int a, int b)
{
    const nb_attn *t = r->t;
    float *s = r->s + i * NB_ATT_SUB, *o = r->o + i * nb_att_ldo(t->d), lane[16];

    for (int x = 0; x < NB_ATT_SUB; x++)
        s[x] *= t->scale;
    if (t->softcap > 0)
        for (int x = 0; x < NB_ATT_SUB; x++)
            s[x] = t->softcap * nb_tanhf(s[x] / t->softcap);
    for (int x = 0; x < NB_ATT_SUB; x++)
        s[x] = x >= a && x < b ? s[x] : -INFINITY;
    for (int x = 0; x < 16; x++) {
        const float even = s[x] > s[x + 32] ? s[x] : s[x + 32], odd = s[x + 16] > s[x + 48] ? s[x + 16] : s[x + 48];
        lane[x] = even > odd ? even : odd;
    }
    float top = r->max[i];
    for (int x = 0; x < 16; x++)
        top = lane[x] > top ? lane[x] : top;
    const float c = nb_expf(r->max[i] - top);
    for (int x = 0; x < NB_ATT_SUB; x++)
        s[x] = nb_expf(s[x] - top);
    r->max[i] = top;
    r->sum[i] = fmaf(r->sum[i], c, nb_att_sum(s));
    for (size_t y = 0; y < t->d; y++)
        o[y] *= c;
}

/* The block over one tile; o, max and sum are where its result goes. */
static void block_tile(rows *r, size_t row0, size_t tile_at, float *o, float *max, float *sum)
{
    const nb_attn *t = r->t;
    const size_t begin = tile_at * NB_ATT_TILE;

    r->o = o;
    r->max = max;
    r->sum = sum;
    for (size_t i = 0; i < r->n; i++) {
        r->first[i] = nb_att_max(nb_att_first(t, (row0 + i) / t->r), begin);
        r->end[i] = nb_att_min(nb_att_end(t, (row0 + i) / t->r), begin + NB_ATT_TILE);
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    memset(o, 0, r->n * nb_att_ldo(t->d) * sizeof *o);
    for (size_t p = r->first[0] / NB_ATT_SUB * NB_ATT_SUB; p < r->end[r->n - 1]; p += NB_ATT_SUB) {
        size_t a, b;
        seen_by(r, p, NB_ATT_SUB, &a, &b);
        page_scores(r, p);
        page_scores(r, p + NB_PAGE);
        for (size_t i = a; i < b; i++)
            softmax_row(r, i, (int)(nb_att_max(r->first[i], p) - p), (int)(nb_att_min(r->end[i], p + NB_ATT_SUB) - p));
        page_values(r, p);
        page_values(r, p + NB_PAGE);
    }
}

/* The block of rows from row0 on; its scratch begins at `scratch`, and what is left of it is returned. */
static float *block_open(rows *r, const nb_attn *t, size_t row0, float *scratch)
{
    r->t = t;
    r->n = nb_att_min(t->m * t->r - row0, NB_ATT_ROWS);
    r->limit = nb_att_end(t, (row0 + r->n - 1) / t->r);
    for (size_t i = 0; i < r->n; i++)
        r->q[i] = t->q + (row0 + i) / t->r * t->ldq + (row0 + i) % t->r * t->d;
    r->s = scratch;
    r->wide = r->s + r->n * NB_ATT_SUB;
    memset(r->s, 0, r->n * NB_ATT_SUB * sizeof *r->s);
    return r->wide + NB_PAGE * nb_att_ldo(t->d);
}

void nb_attn_part(const nb_attn *t, size_t t0, size_t t1, float *part, float *scratch)
{
    rows r;

    for (size_t row0 = 0; row0 < t->m * t->r; row0 += NB_ATT_ROWS) {
        block_open(&r, t, row0, scratch);
        for (size_t i = t0; i < t1; i++) {
            const nb_att_part p = nb_att_part_at(t, part, i - t0);
            block_tile(&r, row0, i, p.o + row0 * nb_att_ldo(t->d), p.max + row0, p.sum + row0);
        }
    }
}

void nb_attn_merge(const nb_attn *t, size_t n_tiles, const float *part)
{
    for (size_t row = 0; row < t->m * t->r; row++) {
        const size_t i = row / t->r, j = row % t->r;
        float *o = t->o + i * t->ldo + j * t->d, max = -INFINITY, sum = 0;
        memset(o, 0, t->d * sizeof *o);
        for (size_t tile_at = 0; tile_at < n_tiles; tile_at++) {
            const nb_att_part p = nb_att_part_at(t, (float *)part, tile_at);
            nb_att_merge(o, &max, &sum, p.o + row * nb_att_ldo(t->d), p.max[row], p.sum[row], t->d);
        }
        nb_att_finish(o, o, max, sum, t->sinks ? t->sinks + j : NULL, t->d);
    }
}

void nb_attn_task(const nb_attn *t, float *scratch)
{
    const size_t ldo = nb_att_ldo(t->d);
    rows r;

    for (size_t row0 = 0; row0 < t->m * t->r; row0 += NB_ATT_ROWS) {
        float *o = block_open(&r, t, row0, scratch), *total = o + r.n * ldo, *max = total + r.n * ldo, *sum = max + r.n;
        float *total_max = sum + r.n, *total_sum = total_max + r.n;
        const size_t first = nb_att_first(t, row0 / t->r);

        memset(total, 0, r.n * ldo * sizeof *total);
        for (size_t i = 0; i < r.n; i++) {
            total_max[i] = -INFINITY;
            total_sum[i] = 0;
        }
        for (size_t at = first / NB_ATT_TILE; at * NB_ATT_TILE < r.limit; at++) {
            block_tile(&r, row0, at, o, max, sum);
            for (size_t i = 0; i < r.n; i++)
                nb_att_merge(total + i * ldo, total_max + i, total_sum + i, o + i * ldo, max[i], sum[i], t->d);
        }
        for (size_t i = 0; i < r.n; i++)
            nb_att_finish(t->o + (row0 + i) / t->r * t->ldo + (row0 + i) % t->r * t->d, total + i * ldo, total_max[i], total_sum[i],
                          t->sinks ? t->sinks + (row0 + i) % t->r : NULL, t->d);
    }
}

void nb_kv_put(unsigned char *k, unsigned char *v, nb_dtype t, size_t slot, size_t d, const float *ks, const float *vs)
{
    if (t == NB_DT_F32) {
        for (size_t i = 0; i < d; i++)
            nb_put_le32(k + 4 * (i * NB_PAGE + slot), nb_bits_from_f32(ks[i]));
        memcpy(v + 4 * slot * d, vs, 4 * d);
        return;
    }
    size_t i = 0;
    for (; i + VL <= d; i += VL) {
        uint16_t h[VL];
        v_store_f16(h, v_load(ks + i));
        for (size_t x = 0; x < VL; x++)
            nb_put_le16(k + 2 * ((i + x) * NB_PAGE + slot), h[x]);
        v_store_f16(h, v_load(vs + i));
        memcpy(v + 2 * (slot * d + i), h, sizeof h);
    }
    for (; i < d; i++) {
        nb_put_le16(k + 2 * (i * NB_PAGE + slot), nb_f32_to_f16(ks[i]));
        nb_put_le16(v + 2 * (slot * d + i), nb_f32_to_f16(vs[i]));
    }
}
