/* moments.c - activations turned, quantized by columns, and multiplied as 8-bit matrices. */
#include "job/moments.h"

#include <string.h>

#include "base/bits.h"
#include "base/mem.h"
#include "base/wide.h"

enum { G = NB_MAX_G, S = NB_STRIP, BLOCK_V = S * G };

static size_t strips(size_t k)
{
    return (k + S - 1) / S;
}

uint64_t nb_turned_bytes(size_t k, size_t m, bool both)
{
    const uint64_t blocks = (uint64_t)strips(k) * ((m + G - 1) / G);

    return blocks * (BLOCK_V + S * 8) + (both ? blocks * (BLOCK_V + S * 5) + 32768 : 0);
}

nb_status nb_turned_open(nb_turned *t, nb_pool *pool, size_t k, size_t m, bool both, nb_err *err)
{
    const size_t groups = (m + G - 1) / G;
    size_t blocks;

    memset(t, 0, sizeof *t);
    t->k = k;
    if (!nb_mul_size(strips(k), groups, &blocks) || !nb_q8_layout(&t->w, strips(k) * S, groups * G, G, true))
        return nb_enomem(err, "moments of inputs");
    t->w_bytes = t->w.bytes;
    t->w.base = both ? nb_huge_alloc(t->w_bytes) : NULL;
    t->v_bytes = blocks * BLOCK_V;
    t->v = nb_huge_alloc(t->v_bytes);
    t->step = nb_alloc_array(blocks, S * sizeof *t->step);
    t->sum = nb_alloc_array(blocks, S * sizeof *t->sum);
    t->line = both ? NULL : nb_alloc_array((size_t)nb_pool_threads(pool), BLOCK_V);
    if ((both ? !t->w.base : !t->line) || !t->v || !t->step || !t->sum) {
        nb_turned_close(t);
        return nb_enomem(err, "moments of inputs");
    }
    return NB_OK;
}

void nb_turned_as(nb_turned *t, size_t k)
{
    t->k = k;
    t->w.n = strips(k) * S;
    t->w.n_strips = strips(k);
}

void nb_turned_close(nb_turned *t)
{
    if (t->w.base)
        nb_huge_free(t->w.base, t->w_bytes);
    if (t->v)
        nb_huge_free(t->v, t->v_bytes);
    nb_free(t->step);
    nb_free(t->sum);
    nb_free(t->line);
    memset(t, 0, sizeof *t);
}

/* ---- turning ---- */

/* Rows [0, rows) of 64 columns, x - less; columns past `cols` and rows past `rows` are 0. */
static void load(float *restrict out, const float *x, const float *less, size_t ld, size_t rows, size_t cols)
{
    for (size_t r = 0; r < rows; r++) {
        float *to = out + r * S;
        if (less)
            for (size_t c = 0; c < cols; c++)
                to[c] = x[r * ld + c] - less[r * ld + c];
        else if (cols == S)
            memcpy(to, x + r * ld, S * sizeof *to);
        else
            memcpy(to, x + r * ld, cols * sizeof *to);
        if (cols < S)
            memset(to + cols, 0, (S - cols) * sizeof *to);
    }
    memset(out + rows * S, 0, (G - rows) * S * sizeof *out);
}

/* Steps of 64 columns over G tokens and what to multiply by; a column that is not finite gets NaN, one of nothing (or too little to
 * divide by) 0. */
NB_WIDE static void steps(const float *restrict x, float *restrict step, float *restrict inv)
{
    uint32_t top[S] = { 0 };

    for (size_t r = 0; r < G; r++)
        for (size_t c = 0; c < S; c++) {
            uint32_t u;
            memcpy(&u, x + r * S + c, sizeof u);
            u &= 0x7fffffffu;
            top[c] = u > top[c] ? u : top[c]; /* magnitudes order like integers */
        }
    for (size_t c = 0; c < S; c++) {
        const bool finite = top[c] < 0x7f800000u, some = finite && top[c] > 0x01000000u;
        float max;
        memcpy(&max, &top[c], sizeof max);
        inv[c] = some ? 127.0f / max : 0.0f;
        step[c] = some ? max / 127.0f : finite ? 0.0f : nb_f32_from_bits(0x7fc00000u);
    }
}

/* Codes of G tokens: 128 more than the value, four tokens of a column beside one another as the kernels read them. */
NB_WIDE static void codes(const float *restrict x, const float *restrict inv, uint32_t *restrict out, int32_t *restrict sum)
{
    const float magic = 12582912.0f + 128.0f; /* the sum has no fraction bits: its last byte is the code */

    for (size_t c = 0; c < S; c++)
        sum[c] = -128 * G;
    for (size_t r = 0; r < G; r += 4, out += S, x += 4 * S)
        for (size_t c = 0; c < S; c++) {
            uint32_t word = 0, all = 0;
            for (size_t i = 0; i < 4; i++) {
                const float v = x[i * S + c] * inv[c] + magic;
                uint32_t u;
                memcpy(&u, &v, sizeof u);
                u &= 0xffu;
                word |= u << 8 * i;
                all += u;
            }
            out[c] = word;
            sum[c] += (int32_t)all;
        }
}

/* The same as values, column by column. */
static void turn(const uint32_t *restrict codes4, uint32_t *restrict v)
{
    for (size_t c0 = 0; c0 < S; c0 += 16) /* a line of each row at a time */
        for (size_t q = 0; q < G / 4; q++)
            for (size_t c = c0; c < c0 + 16; c++)
                v[c * (G / 4) + q] = codes4[q * S + c] ^ 0x80808080u;
}

struct set_ctx {
    nb_turned *t;
    const float *x, *less;
};

/* Blocks [begin, end) of 64 inputs. */
static void set_blocks(void *user, size_t begin, size_t end, int thread)
{
    const struct set_ctx *c = user;
    nb_turned *t = c->t;
    _Alignas(64) float x[G * S], inv[S];

    for (size_t b = begin; b < end; b++) {
        const size_t c0 = b * S, cols = t->k - c0 < S ? t->k - c0 : S;
        for (size_t g = 0; g < t->n_groups; g++) {
            const size_t at = (b * t->n_groups + g), r0 = g * G, rows = t->m - r0 < G ? t->m - r0 : G;
            unsigned char *block = t->w.base ? t->w.base + at * t->w.block_bytes : t->line + (size_t)thread * BLOCK_V;
            float *step = t->step + at * S;

            load(x, c->x + r0 * t->k + c0, c->less ? c->less + r0 * t->k + c0 : NULL, t->k, rows, cols);
            steps(x, step, inv);
            codes(x, inv, (uint32_t *)(void *)block, t->sum + at * S);
            turn((const uint32_t *)(const void *)block, (uint32_t *)(void *)(t->v + at * BLOCK_V));
            if (t->w.base) {
                memcpy(block + BLOCK_V, step, S * sizeof *step);
                memset(block + BLOCK_V + S * sizeof *step, 128, S);
            }
        }
    }
}

void nb_turned_set(nb_turned *t, nb_pool *pool, const float *x, const float *less, size_t m)
{
    struct set_ctx c = { .t = t, .x = x, .less = less };

    t->m = m;
    t->n_groups = (m + G - 1) / G;
    t->w.k = t->n_groups * G;
    t->w.n_groups = t->n_groups;
    nb_parallel_for(pool, strips(t->k), 1, set_blocks, &c);
}

/* ---- products ---- */

struct product_ctx {
    const nb_kern *kern;
    const nb_turned *a, *x;
    const nb_gram *gram; /* or */
    float *cross;
};

/* y[64][64]: block b of a times strip s of x. */
static void product(const struct product_ctx *c, size_t b, size_t s, float *y)
{
    const nb_turned *a = c->a, *x = c->x;
    const size_t at = b * a->n_groups;
    const nb_act act = {
        .m = S, .k = x->w.k, .g = G, .n_groups = a->n_groups, .hi = a->v + at * BLOCK_V, .step = a->step + at * S, .sum = a->sum + at * S
    };
    nb_q8 w = x->w;

    w.base += s * w.n_groups * w.block_bytes;
    w.n = S;
    w.n_strips = 1;
    c->kern->gemm_q8_a8(&w, &act, y, S, 0, 1);
}

/* sum[rows][ld] += y[rows][64], of which `cols` count. */
NB_WIDE static void add_to_gram(double *restrict sum, size_t ld, const float *restrict y, size_t rows, size_t cols)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            sum[i * ld + j] += (double)y[i * S + j];
}

NB_WIDE static void add_to_cross(float *restrict sum, size_t ld, const float *restrict y, size_t rows, size_t cols)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            sum[i * ld + j] += y[i * S + j];
}

/* Strips of columns [begin, end), counted from the last; of x xᵀ only what is not below the diagonal. */
static void product_strips(void *user, size_t begin, size_t end, int thread)
{
    const struct product_ctx *c = user;
    const size_t k = c->x->k, n = c->a->k;
    _Alignas(64) float y[S * S];

    (void)thread;
    for (size_t t = begin; t < end; t++) {
        const size_t s = strips(k) - 1 - t, j0 = s * S, cols = k - j0 < S ? k - j0 : S, blocks = c->gram ? s + 1 : strips(n);

        for (size_t b = 0; b < blocks; b++) {
            const size_t i0 = b * S, rows = n - i0 < S ? n - i0 : S;

            product(c, b, s, y);
            if (c->gram) {
                size_t ld; /* a tile lies in one stripe */
                double *sum = nb_gram_at(c->gram, i0, j0, &ld);
                add_to_gram(sum, ld, y, rows, cols);
            } else {
                add_to_cross(c->cross + i0 * k + j0, k, y, rows, cols);
            }
        }
    }
}

void nb_moments_gram(nb_gram *g, const nb_kern *kern, nb_pool *pool, const nb_turned *x)
{
    struct product_ctx c = { .kern = kern, .a = x, .x = x, .gram = g };

    nb_parallel_for(pool, strips(x->k), 1, product_strips, &c);
    g->tokens += x->m;
}

void nb_moments_cross(nb_cross *cross, const nb_kern *kern, nb_pool *pool, const nb_turned *a, const nb_turned *x)
{
    struct product_ctx c = { .kern = kern, .a = a, .x = x, .cross = cross->sum };

    nb_parallel_for(pool, strips(x->k), 1, product_strips, &c);
    cross->tokens += x->m;
}
