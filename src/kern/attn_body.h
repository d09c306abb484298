/* attn_body.h - attention on vectors. Included once by attn.c of each vector tier, which renames the functions.
 *
 * Up to NB_ATT_ROWS query rows go over the pages together. Few rows (decode) read K and V straight from the page, once
 * for all of them, prefetching two pages ahead; many rows (prefill) widen a page to f32 once. Arithmetic: kern/attn.h
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
    float *wide;                                 /* two pages in f32                                 */
} rows;

/* Rows x nv registers; mr <= ATT_MR. */
NB_FORCE void att_tile(const nb_dtype bt, const int nv, size_t mr, const float *const *a, const tile_part *part, int n_parts, size_t ldb,
                       float *c, size_t ldc, tile_mode mode)
{
    switch (mr) {
    case 1:
        tile(1, nv, bt, false, a, part, n_parts, ldb, c, ldc, mode);
        break;
    case 2:
        tile(2, nv, bt, false, a, part, n_parts, ldb, c, ldc, mode);
        break;
    case 3:
        tile(3, nv, bt, false, a, part, n_parts, ldb, c, ldc, mode);
        break;
    case 4:
        tile(4, nv, bt, false, a, part, n_parts, ldb, c, ldc, mode);
        break;
    case 5:
        tile(5, nv, bt, false, a, part, n_parts, ldb, c, ldc, mode);
        break;
    case 6:
        tile(6, nv, bt, false, a, part, n_parts, ldb, c, ldc, mode);
        break;
    case 7:
        if (ATT_MR > 6)
            tile(7, nv, bt, false, a, part, n_parts, ldb, c, ldc, mode);
        break;
    case 8:
        if (ATT_MR > 6)
            tile(8, nv, bt, false, a, part, n_parts, ldb, c, ldc, mode);
        break;
    default:
        break;
    }
}

/* The same for at most ATT_FEW rows and twice the registers: more chains at once. */
NB_FORCE void att_tile_few(const nb_dtype bt, size_t mr, const float *const *a, const tile_part *part, int n_parts, size_t ldb, float *c,
                           size_t ldc, tile_mode mode)
{
    switch (mr) {
    case 1:
        tile(1, 2 * ATT_NV, bt, false, a, part, n_parts, ldb, c, ldc, mode);
        break;
    case 2:
        tile(2, 2 * ATT_NV, bt, false, a, part, n_parts, ldb, c, ldc, mode);
        break;
    case 3:
        if (ATT_FEW > 2)
            tile(3, 2 * ATT_NV, bt, false, a, part, n_parts, ldb, c, ldc, mode);
        break;
    default:
        if (ATT_FEW > 2)
            tile(4, 2 * ATT_NV, bt, false, a, part, n_parts, ldb, c, ldc, mode);
        break;
    }
}

/* The last columns, fewer than a register holds. */
NB_FORCE void att_tail(const nb_dtype bt, size_t mr, const float *const *a, const tile_part *part, int n_parts, size_t ldb, float *c,
                       size_t ldc, tile_mode mode, size_t n)
{
    for (size_t i = 0; i < mr; i++)
        for (size_t j = 0; j < n; j++) {
            const float *row = a[i];
            float sum = mode == TILE_GO_ON ? c[i * ldc + j] : 0;
            for (const tile_part *p = part; p < part + n_parts; row += p->k, p++)
                for (size_t x = 0; x < p->k; x++) {
                    const unsigned char *at = p->b + x * ldb;
                    sum = fmaf(row[x], bt == NB_DT_F32 ? nb_f32_from_bits(nb_le32(at + 4 * j)) : nb_f16_to_f32(nb_le16(at + 2 * j)), sum);
                }
            c[i * ldc + j] = sum;
        }
}

/* The parts from `bytes` into each row on; what is prefetched goes on where the columns before stopped. `step`: bytes read
 * of each row. */
static void shift_parts(tile_part *to, const tile_part *from, int n_parts, size_t bytes, size_t step)
{
    for (int i = 0; i < n_parts; i++)
        to[i] = (tile_part){ .b = from[i].b + bytes, .k = from[i].k, .ahead = from[i].ahead + bytes * from[i].k, .step = step };
}

/* mr rows times a matrix of n columns in one or two parts; its rows lie n elements apart. */
NB_FORCE void att_mul_of(const nb_dtype bt, size_t mr, const float *const *a, const tile_part *part, int n_parts, size_t n, float *c,
                         size_t ldc, tile_mode mode)
{
    const size_t size = bt == NB_DT_F32 ? 4 : 2, ldb = n * size;
    tile_part here[2];
    size_t j = 0;

    for (; mr <= ATT_FEW && j + 2 * ATT_NV * VL <= n; j += 2 * ATT_NV * VL) {
        shift_parts(here, part, n_parts, j * size, 2 * ATT_NV * VL * size);
        att_tile_few(bt, mr, a, here, n_parts, ldb, c + j, ldc, mode);
    }
    for (; j + ATT_NV * VL <= n; j += ATT_NV * VL) {
        shift_parts(here, part, n_parts, j * size, ATT_NV * VL * size);
        att_tile(bt, ATT_NV, mr, a, here, n_parts, ldb, c + j, ldc, mode);
    }
    for (; j + VL <= n; j += VL) {
        shift_parts(here, part, n_parts, j * size, VL * size);
        att_tile(bt, 1, mr, a, here, n_parts, ldb, c + j, ldc, mode);
    }
    if (j < n) {
        shift_parts(here, part, n_parts, j * size, 0);
        att_tail(bt, mr, a, here, n_parts, ldb, c + j, ldc, mode, n - j);
    }
}

static void att_mul(nb_dtype bt, size_t mr, const float *const *a, const tile_part *part, int n_parts, size_t n, float *c, size_t ldc,
                    tile_mode mode)
{
    if (bt == NB_DT_F32)
        att_mul_of(NB_DT_F32, mr, a, part, n_parts, n, c, ldc, mode);
    else
        att_mul_of(NB_DT_F16, mr, a, part, n_parts, n, c, ldc, mode);
}

/* A page is read where it lies when few rows use it, else widened to f32 first. */
static bool in_place(const rows *r)
{
    return r->t->kv_dtype == NB_DT_F32 || r->n <= 2 * ATT_MR;
}

/* K or V of the page at position p as the tiles read it, and what to prefetch meanwhile: the page read two pages later (V
 * of p after K, K of the next sub-tile after V), in the order of block_tile(). */
static tile_part open_page(const rows *r, bool values, size_t p)
{
    const nb_attn *t = r->t;
    const unsigned char *page = nb_att_page(t, values ? t->v : t->k, p);
    const size_t next = values ? p + NB_ATT_SUB : p, n = NB_PAGE * t->d;
    const unsigned char *ahead = next < r->limit ? nb_att_page(t, values ? t->k : t->v, next) : page;
    float *wide = r->wide + p % NB_ATT_SUB / NB_PAGE * n;

    if (in_place(r))
        return (tile_part){ .b = page, .ahead = ahead };
    for (size_t i = 0; i < n; i += VL) {
        _mm_prefetch((const char *)ahead + 2 * i, _MM_HINT_T1);
        v_store(wide + i, v_widen(page + 2 * i, NB_DT_F16));
    }
    return (tile_part){ .b = (const unsigned char *)wide, .ahead = (const unsigned char *)wide };
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
    const nb_dtype type = in_place(r) ? r->t->kv_dtype : NB_DT_F32;
    size_t a, b;

    seen_by(r, p, NB_PAGE, &a, &b);
    if (a == b)
        return;
    tile_part k = open_page(r, false, p);
    k.k = r->t->d;
    for (size_t i = a; i < b; i += ATT_MR)
        att_mul(type, nb_att_min(b - i, ATT_MR), r->q + i, &k, 1, NB_PAGE, r->s + i * NB_ATT_SUB + p % NB_ATT_SUB, NB_ATT_SUB, TILE_SET);
}

/* O += P * V for rows [i, i + n), positions [a, b) of the sub-tile whose pages are `page`. */
static void add_values(const rows *r, size_t i, size_t n, size_t a, size_t b, const tile_part *page)
{
    const nb_dtype type = in_place(r) ? r->t->kv_dtype : NB_DT_F32;
    const size_t d = r->t->d, ldo = nb_att_ldo(d), row_bytes = d * (type == NB_DT_F32 ? 4 : 2);
    const float *prob[ATT_MR];
    tile_part part[2];
    int n_parts = 0;

    for (size_t x = 0; x < n; x++)
        prob[x] = r->s + (i + x) * NB_ATT_SUB + a;
    for (size_t at = 0; at < NB_ATT_SUB; at += NB_PAGE) {
        const size_t from = nb_att_max(a, at), to = nb_att_min(b, at + NB_PAGE);
        if (from >= to)
            continue;
        part[n_parts] = page[at / NB_PAGE];
        part[n_parts].b += (from - at) * row_bytes;
        part[n_parts++].k = to - from;
    }
    att_mul(type, n, prob, part, n_parts, d, r->o + i * ldo, ldo, TILE_GO_ON);
}

/* O += P * V of the sub-tile at p: rows that begin at the same position together up to where the first of them ends, then
 * what is left of each. */
static void sub_values(const rows *r, size_t p)
{
    size_t i, end, n, run;
    tile_part page[2] = { { 0 } };

    for (size_t at = 0; at < NB_ATT_SUB; at += NB_PAGE) {
        seen_by(r, p + at, NB_PAGE, &i, &end);
        if (i < end)
            page[at / NB_PAGE] = open_page(r, true, p + at);
    }
    seen_by(r, p, NB_ATT_SUB, &i, &end);
    for (; i < end; i += n) {
        const size_t a = nb_att_max(r->first[i], p), b = nb_att_min(r->end[i], p + NB_ATT_SUB);
        for (n = 1; n < ATT_MR && i + n < end && nb_att_max(r->first[i + n], p) == a;)
            n++;
        add_values(r, i, n, a - p, b - p, page);
        for (size_t j = i; j < i + n; j += run) {
            const size_t e = nb_att_min(r->end[j], p + NB_ATT_SUB);
            for (run = 1; j + run < i + n && nb_att_min(r->end[j + run], p + NB_ATT_SUB) == e;)
                run++;
            if (e > b)
                add_values(r, j, run, b - p, e - p, page);
        }
    }
}

/* Scores of one row to what the softmax takes: scaled, capped, -Inf where positions [a, b) do not reach. Returns the
 * largest of them and `top`. */
static float finish_scores(float *s, float scale, float softcap, int a, int b, float top)
{
    float lane[16];

    for (int x = 0; x < NB_ATT_SUB; x++)
        s[x] *= scale;
    if (softcap > 0)
        for (int x = 0; x < NB_ATT_SUB; x++)
            s[x] = softcap * nb_tanhf(s[x] / softcap);
    for (int x = 0; x < NB_ATT_SUB; x++)
        s[x] = x >= a && x < b ? s[x] : -INFINITY;
    for (int x = 0; x < 16; x++) {
        const float even = s[x] > s[x + 32] ? s[x] : s[x + 32], odd = s[x + 16] > s[x + 48] ? s[x + 16] : s[x + 48];
        lane[x] = even > odd ? even : odd;
    }
    for (int half = 8; half > 0; half /= 2)
        for (int x = 0; x < half; x++)
            lane[x] = lane[x] > lane[x + half] ? lane[x] : lane[x + half];
    return lane[0] > top ? lane[0] : top;
}

/* Scores to probabilities in the sub-tile at p; rescales the state of the rows that see it. */
static void sub_softmax(const rows *r, size_t p)
{
    const nb_attn *t = r->t;
    float c[NB_ATT_ROWS];
    size_t begin, end;

    seen_by(r, p, NB_ATT_SUB, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const size_t a = nb_att_max(r->first[i], p), b = nb_att_min(r->end[i], p + NB_ATT_SUB);
        const float top = finish_scores(r->s + i * NB_ATT_SUB, t->scale, t->softcap, (int)(a - p), (int)(b - p), r->max[i]);
        c[i] = r->max[i] - top;
        r->max[i] = top;
    }
    for (size_t i = begin; i < end; i++)
        c[i] = nb_expf(c[i]);
    for (size_t i = begin; i < end; i++) {
        float *s = r->s + i * NB_ATT_SUB, *o = r->o + i * nb_att_ldo(t->d);
        const float top = r->max[i];
        for (int x = 0; x < NB_ATT_SUB; x++)
            s[x] = nb_expf(s[x] - top);
        r->sum[i] = fmaf(r->sum[i], c[i], nb_att_sum(s));
        for (size_t x = 0; x < t->d; x++)
            o[x] *= c[i];
    }
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
        page_scores(r, p);
        page_scores(r, p + NB_PAGE);
        sub_softmax(r, p);
        sub_values(r, p);
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
    return r->wide + NB_ATT_SUB * nb_att_ldo(t->d);
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
