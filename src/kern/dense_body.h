/* dense_body.h - dense products on vectors. Included once by dense.c of each vector tier, which renames the function.
 *
 * m = 1 streams the weights once, prefetching. More tokens: register tiles over blocks of 256 inputs, which stay in the
 * first two cache levels while all tokens pass. Order of summation: scalar/dense.c. */
#include "kern/dense.h"
#include "kern/tile.h"

enum {
    WIDTH = DENSE_NV * VL, /* outputs of a tile */
    CHUNK = 192,           /* tokens that pass a block before the next: their inputs stay in L2 or L3      */
    WIDEN_AT = 24,         /* from this many tokens on a block of 16-bit weights is widened once, to f32   */
    AHEAD = 4096,          /* prefetch distance in bytes into L1, for tiles                                */
    AHEAD1 = 768           /* for one token, into L2: 512 to 1024 reach read speed, more than 3 KB 0.7 of it   */
};

/* mr tokens x DENSE_NV registers. */
NB_FORCE void dense_tile(const nb_dtype bt, size_t mr, const float *const *a, const unsigned char *b, size_t ldb, size_t k, float *c,
                         size_t ldc, tile_mode mode)
{
    const tile_part part = { .b = b, .k = k, .ahead = b + AHEAD, .step = ldb };

    switch (mr) {
    case 1:
        tile(1, DENSE_NV, bt, true, a, &part, 1, ldb, c, ldc, mode);
        break;
    case 2:
        tile(2, DENSE_NV, bt, true, a, &part, 1, ldb, c, ldc, mode);
        break;
    case 3:
        tile(3, DENSE_NV, bt, true, a, &part, 1, ldb, c, ldc, mode);
        break;
    case 4:
        tile(4, DENSE_NV, bt, true, a, &part, 1, ldb, c, ldc, mode);
        break;
    case 5:
        tile(5, DENSE_NV, bt, true, a, &part, 1, ldb, c, ldc, mode);
        break;
    default:
        tile(6, DENSE_NV, bt, true, a, &part, 1, ldb, c, ldc, mode);
        break;
    }
}

/* A block of k inputs x 64 outputs: column groups of WIDTH outputs lie `group` bytes apart, inputs ldb bytes. */
typedef struct block {
    const unsigned char *b;
    size_t ldb, group, k;
} block;

/* m tokens times a block. */
NB_FORCE void block_of(const nb_dtype bt, const block *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, tile_mode mode)
{
    if (m == 1) {
        const tile_part part = { .b = w->b, .k = w->k, .ahead = w->b + AHEAD1, .step = w->ldb };
        tile(1, DENSE_NV1, bt, false, &x, &part, 1, w->ldb, y, ldy, mode);
        return;
    }
    for (size_t i = 0; i < m; i += DENSE_MR) {
        const size_t mr = m - i < DENSE_MR ? m - i : DENSE_MR;
        const float *a[DENSE_MR];
        for (size_t r = 0; r < mr; r++)
            a[r] = x + (i + r) * ldx;
        for (size_t j = 0; j < NB_STRIP / WIDTH; j++)
            dense_tile(bt, mr, a, w->b + j * w->group, w->ldb, w->k, y + i * ldy + j * WIDTH, ldy, mode);
    }
}

static NB_APART void block_f32(const block *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, tile_mode mode)
{
    block_of(NB_DT_F32, w, x, ldx, m, y, ldy, mode);
}

static NB_APART void block_f16(const block *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, tile_mode mode)
{
    block_of(NB_DT_F16, w, x, ldx, m, y, ldy, mode);
}

static NB_APART void block_bf16(const block *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, tile_mode mode)
{
    block_of(NB_DT_BF16, w, x, ldx, m, y, ldy, mode);
}

/* out = a block of 16-bit weights in f32, column groups one after another. */
NB_FORCE void widen_of(const nb_dtype bt, float *out, const block *w)
{
    for (size_t j = 0; j < NB_STRIP / WIDTH; j++)
        for (size_t i = 0; i < w->k; i++)
            for (size_t v = 0; v < WIDTH; v += VL)
                v_store(out + (j * w->k + i) * WIDTH + v, v_widen(w->b + i * w->ldb + j * w->group + 2 * v, bt));
}

static void widen(float *out, const block *w, nb_dtype t)
{
    if (t == NB_DT_F16)
        widen_of(NB_DT_F16, out, w);
    else
        widen_of(NB_DT_BF16, out, w);
}

/* One strip for m <= CHUNK tokens. */
static void dense_strip(const nb_dense *w, size_t s, const float *x, size_t ldx, size_t m, float *y, size_t ldy)
{
    _Alignas(64) float wide[NB_DENSE_BLOCK * NB_STRIP];
    const size_t size = nb_dense_size(w);

    for (size_t k0 = 0; k0 < w->k; k0 += NB_DENSE_BLOCK) {
        const size_t k = w->k - k0 < NB_DENSE_BLOCK ? w->k - k0 : NB_DENSE_BLOCK;
        const tile_mode mode = k0 == 0 ? TILE_SET : TILE_ADD;
        block b = { .b = w->base + (s * w->k + k0) * NB_STRIP * size, .ldb = NB_STRIP * size, .group = WIDTH * size, .k = k };
        if (m >= WIDEN_AT && w->dtype != NB_DT_F32) {
            widen(wide, &b, w->dtype);
            b = (block){ .b = (const unsigned char *)wide, .ldb = WIDTH * 4, .group = k * WIDTH * 4, .k = k };
            block_f32(&b, x + k0, ldx, m, y, ldy, mode);
        } else if (w->dtype == NB_DT_F32) {
            block_f32(&b, x + k0, ldx, m, y, ldy, mode);
        } else if (w->dtype == NB_DT_F16) {
            block_f16(&b, x + k0, ldx, m, y, ldy, mode);
        } else {
            block_bf16(&b, x + k0, ldx, m, y, ldy, mode);
        }
    }
}

void nb_gemm_dense(const nb_dense *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1)
{
    for (size_t i = 0; i < m; i += CHUNK)
        for (size_t s = s0; s < s1; s++)
            dense_strip(w, s, x + i * ldx, ldx, m - i < CHUNK ? m - i : CHUNK, y + i * ldy + s * NB_STRIP, ldy);
}
