/* dense_body.h - dense products on vectors. Included once by dense.c of each vector tier, which renames the function.
 *
 * m = 1 streams the weights once, prefetching. More tokens: register tiles over blocks of 256 inputs, which stay in the
 * first two cache levels while all tokens pass. Order of summation: scalar/dense.c. */
#include "kern/dense.h"
#include "kern/tile.h"

enum {
    CHUNK = 192,   /* tokens that pass a block before the next: their inputs stay in L2 or L3      */
    WIDEN_AT = 24, /* from this many tokens on a block of 16-bit weights is widened once, to f32   */
    AHEAD = 4096,  /* prefetch distance in bytes into L1, for tiles                                */
    AHEAD1 = 1536  /* for one token, into L2: 1 KB to 2 KB reach read speed, more than 3 KB 0.7 of it */
};

/* mr tokens x DENSE_NV registers. */
NB_FORCE void dense_tile(const nb_dtype bt, size_t mr, const float *const *a, const unsigned char *b, size_t k, float *c, size_t ldc,
                         tile_mode mode)
{
    const tile_part part = { .b = b, .k = k, .ahead = b + AHEAD };
    const size_t ldb = NB_STRIP * (bt == NB_DT_F32 ? 4 : 2);

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

/* m tokens x 64 outputs over one block of k inputs. */
NB_FORCE void block_of(const nb_dtype bt, const unsigned char *b, size_t k, const float *x, size_t ldx, size_t m, float *y, size_t ldy,
                       tile_mode mode)
{
    const size_t size = bt == NB_DT_F32 ? 4 : 2;

    if (m == 1) {
        const tile_part part = { .b = b, .k = k, .ahead = b + AHEAD1 };
        tile(1, DENSE_NV1, bt, false, &x, &part, 1, NB_STRIP * size, y, ldy, mode);
        return;
    }
    for (size_t i = 0; i < m; i += DENSE_MR) {
        const size_t mr = m - i < DENSE_MR ? m - i : DENSE_MR;
        const float *a[DENSE_MR];
        for (size_t r = 0; r < mr; r++)
            a[r] = x + (i + r) * ldx;
        for (size_t j = 0; j < NB_STRIP; j += DENSE_NV * VL)
            dense_tile(bt, mr, a, b + j * size, k, y + i * ldy + j, ldy, mode);
    }
}

static void block_f32(const unsigned char *b, size_t k, const float *x, size_t ldx, size_t m, float *y, size_t ldy, tile_mode mode)
{
    block_of(NB_DT_F32, b, k, x, ldx, m, y, ldy, mode);
}

static void block_f16(const unsigned char *b, size_t k, const float *x, size_t ldx, size_t m, float *y, size_t ldy, tile_mode mode)
{
    block_of(NB_DT_F16, b, k, x, ldx, m, y, ldy, mode);
}

static void block_bf16(const unsigned char *b, size_t k, const float *x, size_t ldx, size_t m, float *y, size_t ldy, tile_mode mode)
{
    block_of(NB_DT_BF16, b, k, x, ldx, m, y, ldy, mode);
}

/* n elements of 16 bits to f32; n is a multiple of 64. */
static void widen_block(float *out, const unsigned char *b, nb_dtype t, size_t n)
{
    if (t == NB_DT_F16)
        for (size_t i = 0; i < n; i += VL)
            v_store(out + i, v_widen(b + 2 * i, NB_DT_F16));
    else
        for (size_t i = 0; i < n; i += VL)
            v_store(out + i, v_widen(b + 2 * i, NB_DT_BF16));
}

/* One strip for m <= CHUNK tokens. */
static void dense_strip(const nb_dense *w, size_t s, const float *x, size_t ldx, size_t m, float *y, size_t ldy)
{
    _Alignas(64) float wide[NB_DENSE_BLOCK * NB_STRIP];
    const size_t row_bytes = NB_STRIP * nb_dense_size(w);

    for (size_t k0 = 0; k0 < w->k; k0 += NB_DENSE_BLOCK) {
        const size_t k = w->k - k0 < NB_DENSE_BLOCK ? w->k - k0 : NB_DENSE_BLOCK;
        const unsigned char *b = w->base + (s * w->k + k0) * row_bytes;
        const tile_mode mode = k0 == 0 ? TILE_SET : TILE_ADD;
        if (w->dtype == NB_DT_F32) {
            block_f32(b, k, x + k0, ldx, m, y, ldy, mode);
        } else if (m >= WIDEN_AT) {
            widen_block(wide, b, w->dtype, k * NB_STRIP);
            block_f32((const unsigned char *)wide, k, x + k0, ldx, m, y, ldy, mode);
        } else if (w->dtype == NB_DT_F16) {
            block_f16(b, k, x + k0, ldx, m, y, ldy, mode);
        } else {
            block_bf16(b, k, x + k0, ldx, m, y, ldy, mode);
        }
    }
}

void nb_gemm_dense(const nb_dense *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1)
{
    for (size_t i = 0; i < m; i += CHUNK)
        for (size_t s = s0; s < s1; s++)
            dense_strip(w, s, x + i * ldx, ldx, m - i < CHUNK ? m - i : CHUNK, y + i * ldy + s * NB_STRIP, ldy);
}
