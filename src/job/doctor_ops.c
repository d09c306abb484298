/* doctor_ops.c - one small run of every kernel, with the same made-up data for every table. */
#include <stddef.h>
#include <string.h>

#include "base/bits.h"
#include "base/mem.h"
#include "base/rng.h"
#include "job/doctor.h"

enum { N = 192, K = 320, G = 64, M = 5, D = 64, TOKENS = 70, HEADS = 2, ROW = 1003 };

/* Everything the runs read. */
typedef struct data {
    nb_qlin q;
    nb_q4 w; /* packed by scalar, or by the table in question */
    nb_dense dense;
    float *x, *y; /* [M][K], results */
    void *act;
    nb_act a;
    unsigned char *raw;
} data;

static float noise(uint64_t stream, uint64_t i)
{
    return (float)nb_rng_normal(2026, stream, i);
}

static void close_data(data *d)
{
    nb_qlin_clear(&d->q);
    nb_free_aligned(d->w.base);
    nb_free_aligned(d->dense.base);
    nb_free_aligned(d->act);
    nb_free(d->x);
    nb_free(d->y);
    nb_free(d->raw);
}

static bool open_data(data *d, unsigned bits)
{
    const size_t groups = K / G;

    memset(d, 0, sizeof *d);
    d->x = nb_alloc_array(M * (size_t)K, sizeof *d->x);
    d->y = nb_calloc(M * (size_t)K + ROW, sizeof *d->y);
    d->act = nb_alloc_aligned(64, nb_act_bytes(M, K, G));
    if (!d->x || !d->y || !d->act || nb_qlin_init(&d->q, N, K, G, bits, NULL) != NB_OK)
        return false;
    memset(d->act, 0, nb_act_bytes(M, K, G));
    d->q.scale_dtype = NB_DT_F16;
    for (size_t i = 0; i < M * (size_t)K; i++)
        d->x[i] = noise(1, i) * (i % 97 ? 1.0f : 30.0f);
    for (size_t i = 0; i < (size_t)N * K; i++)
        d->q.codes[i] = (uint8_t)(nb_rng_uniform(2026, 2, i) * (double)(1u << bits));
    for (size_t i = 0; i < N * groups; i++) {
        d->q.zeros[i] = (uint8_t)(nb_rng_uniform(2026, 3, i) * (double)(1u << bits));
        d->q.scales[i] = nb_f16_to_f32(nb_f32_to_f16(0.002f + 0.01f * (float)nb_rng_uniform(2026, 4, i)));
    }
    if (!(bits > 4 ? nb_q8_layout : nb_q4_layout)(&d->w, N, K, G, false))
        return false;
    d->w.base = nb_alloc_aligned(64, d->w.bytes);
    if (d->w.base)
        memset(d->w.base, 0, d->w.bytes);
    return d->w.base != NULL;
}

static size_t give(unsigned char *out, size_t cap, const void *p, size_t n)
{
    n = n < cap ? n : cap;
    memcpy(out, p, n);
    return n;
}

static void pack(data *d, const nb_kern *t, unsigned bits)
{
    (bits > 4 ? t->pack_q8 : t->pack_q4)(&d->w, 0, 0, &d->q, NULL);
}

/* how: bits of the weights, and A8 for 8-bit activations. */
enum { A8 = 256 };

static void activate(data *d, const nb_kern *t, unsigned how)
{
    (how & A8 ? nb_act_place_a8 : nb_act_place)(&d->a, d->act, M, K, G);
    (how & A8 ? t->act_a8 : t->act_a16)(&d->a, d->x, K, 0, M, NULL);
}

static size_t run_pack(const nb_kern *t, unsigned bits, unsigned char *out, size_t cap)
{
    data d;
    size_t n = SIZE_MAX;

    if (open_data(&d, bits)) {
        pack(&d, t, bits);
        n = give(out, cap, d.w.base, d.w.n_strips * d.w.n_groups * d.w.block_bytes);
    }
    close_data(&d);
    return n;
}

static size_t run_act(const nb_kern *t, unsigned how, unsigned char *out, size_t cap)
{
    data d;
    size_t n = SIZE_MAX;

    if (open_data(&d, how & 15)) {
        activate(&d, t, how);
        n = give(out, cap, d.act, nb_act_bytes(M, K, G));
    }
    close_data(&d);
    return n;
}

static size_t run_gemm(const nb_kern *t, unsigned how, unsigned char *out, size_t cap)
{
    data d;
    size_t n = SIZE_MAX;
    const unsigned bits = how & 15;

    if (open_data(&d, bits)) {
        pack(&d, nb_kern_find("scalar"), bits);
        activate(&d, nb_kern_find("scalar"), how);
        (how & A8 ? (bits > 4 ? t->gemm_q8_a8 : t->gemm_q4_a8) : bits > 4 ? t->gemm_q8 : t->gemm_q4)(&d.w, &d.a, d.y, N, 0, d.w.n_strips);
        n = give(out, cap, d.y, sizeof(float) * M * N);
    }
    close_data(&d);
    return n;
}

static size_t run_gemm_f32(const nb_kern *t, unsigned bits, unsigned char *out, size_t cap)
{
    data d;
    size_t n = SIZE_MAX;

    if (open_data(&d, bits)) {
        pack(&d, nb_kern_find("scalar"), bits);
        (bits > 4 ? t->gemm_q8_f32 : t->gemm_q4_f32)(&d.w, d.x, K, M, d.y, N, 0, d.w.n_strips);
        n = give(out, cap, d.y, sizeof(float) * M * N);
    }
    close_data(&d);
    return n;
}

/* how: 0 f16, 1 bf16, 2 f32. */
static size_t run_dense(const nb_kern *t, unsigned how, unsigned char *out, size_t cap)
{
    static const nb_dtype types[] = { NB_DT_F16, NB_DT_BF16, NB_DT_F32 };
    const size_t es = nb_dtype_info(types[how])->bits / 8;
    data d;
    size_t n = SIZE_MAX;

    if (open_data(&d, 4) && nb_dense_layout(&d.dense, N, K, types[how])) {
        d.raw = nb_alloc_array((size_t)N * K, es);
        d.dense.base = nb_alloc_aligned(64, d.dense.bytes);
        for (size_t i = 0; d.raw && i < (size_t)N * K; i++) {
            const float v = noise(5, i);
            if (how == 0)
                nb_put_le16(d.raw + 2 * i, nb_f32_to_f16(v));
            else if (how == 1)
                nb_put_le16(d.raw + 2 * i, nb_f32_to_bf16(v));
            else
                nb_put_le32(d.raw + 4 * i, nb_bits_from_f32(v));
        }
        if (d.raw && d.dense.base) {
            memset(d.dense.base, 0, d.dense.bytes);
            t->pack_dense(&d.dense, 0, d.raw, N);
            t->gemm_dense(&d.dense, d.x, K, M, d.y, N, 0, d.dense.n_strips);
            n = give(out, cap, d.y, sizeof(float) * M * N);
        }
    }
    close_data(&d);
    return n;
}

static size_t run_tile(const nb_kern *t, unsigned how, unsigned char *out, size_t cap)
{
    enum { DEPTH = 40 };
    float a[DEPTH * NB_TILE_M], b[DEPTH * NB_TILE_F32], y[NB_TILE_M * NB_TILE_F32];
    double da[DEPTH * NB_TILE_M], db[DEPTH * NB_TILE_F64], dy[NB_TILE_M * NB_TILE_F64];

    for (size_t i = 0; i < NB_LEN(a); i++)
        da[i] = (double)(a[i] = noise(11, i));
    for (size_t i = 0; i < NB_LEN(b); i++)
        b[i] = noise(12, i);
    for (size_t i = 0; i < NB_LEN(db); i++)
        db[i] = (double)noise(13, i);
    if (how == 0)
        t->tile_f32(DEPTH, a, b, y);
    else
        t->tile_f64(DEPTH, da, db, dy);
    return how == 0 ? give(out, cap, y, sizeof y) : give(out, cap, dy, sizeof dy);
}

static size_t run_attn(const nb_kern *t, unsigned how, unsigned char *out, size_t cap)
{
    enum { PAGES = (TOKENS + NB_PAGE - 1) / NB_PAGE, HALF = D * NB_PAGE * 2 };
    static const uint32_t pages[PAGES] = { 2, 0, 1 };
    const size_t floats = nb_attn_scratch(M, HEADS, D);
    unsigned char *kv = nb_alloc_aligned(64, (size_t)PAGES * 2 * HALF);
    float *q = nb_alloc_array(2 * (size_t)M * HEADS * D, sizeof *q), *o = q ? q + M * HEADS * D : NULL;
    float *scratch = nb_alloc_aligned(64, floats * sizeof *scratch), row[2][D];
    size_t n = SIZE_MAX;

    (void)how;
    if (kv && q && scratch) {
        memset(kv, 0, (size_t)PAGES * 2 * HALF);
        memset(scratch, 0, floats * sizeof *scratch);
        for (size_t i = 0; i < 2 * (size_t)M * HEADS * D; i++)
            q[i] = noise(6, i);
        for (size_t i = 0; i < TOKENS; i++) {
            unsigned char *page = kv + (size_t)pages[i / NB_PAGE] * 2 * HALF;
            for (size_t c = 0; c < D; c++) {
                row[0][c] = noise(7, i * D + c);
                row[1][c] = noise(8, i * D + c);
            }
            t->kv_put(page, page + HALF, NB_DT_F16, i % NB_PAGE, D, row[0], row[1]);
        }
        const nb_attn a = { .q = q,
                            .o = o,
                            .ldq = HEADS * D,
                            .ldo = HEADS * D,
                            .m = M,
                            .r = HEADS,
                            .d = D,
                            .pos = TOKENS - M,
                            .scale = 0.125f,
                            .pages = pages,
                            .k = kv,
                            .v = kv + HALF,
                            .page_stride = 2 * HALF,
                            .kv_dtype = NB_DT_F16 };
        t->attn(&a, scratch);
        n = give(out, cap, o, sizeof(float) * M * HEADS * D);
    }
    nb_free_aligned(kv);
    nb_free_aligned(scratch);
    nb_free(q);
    return n;
}

enum { RMSNORM, LAYERNORM, ROPE, SILU, GELU, SOFTCAP, ROW_MAX, EXP_SUM };

static size_t run_row(const nb_kern *t, unsigned how, unsigned char *out, size_t cap)
{
    float x[ROW], w[ROW], y[ROW], top;
    double sum = 0;
    size_t at;

    for (size_t i = 0; i < ROW; i++) {
        x[i] = y[i] = noise(9, i);
        w[i] = noise(10, i);
    }
    if (how == RMSNORM)
        t->rmsnorm(y, x, w, 1, 1e-6f, ROW);
    else if (how == LAYERNORM)
        t->layernorm(y, x, w, x, 1e-5f, ROW);
    else if (how == ROPE)
        t->rope_half(y, w, w + 64, 128);
    else if (how == SILU)
        t->silu_mul(y, x, w, ROW);
    else if (how == GELU)
        t->gelu_tanh_mul(y, x, w, ROW);
    else if (how == SOFTCAP)
        t->softcap(y, 2, ROW);
    else if (how == ROW_MAX) {
        at = t->row_max(x, ROW, &top);
        memcpy(y, &at, sizeof at);
        y[4] = top;
    } else {
        sum = t->exp_sum(y, x, 3, ROW);
    }
    memcpy(w, &sum, sizeof sum);
    at = give(out, cap, y, sizeof y);
    return at + give(out + at, cap - at, w, sizeof sum);
}

/* ---- the table ---- */

typedef struct op {
    const char *name;
    size_t at; /* of the function in nb_kern */
    size_t (*run)(const nb_kern *t, unsigned how, unsigned char *out, size_t cap);
    unsigned how;
} op;

static const op ops[] = {
    { "4-bit product", offsetof(nb_kern, gemm_q4), run_gemm, 4 },
    { "4-bit product, A8", offsetof(nb_kern, gemm_q4_a8), run_gemm, 4 | A8 },
    { "4-bit product, f32", offsetof(nb_kern, gemm_q4_f32), run_gemm_f32, 4 },
    { "8-bit product", offsetof(nb_kern, gemm_q8), run_gemm, 8 },
    { "8-bit product, A8", offsetof(nb_kern, gemm_q8_a8), run_gemm, 8 | A8 },
    { "8-bit product, f32", offsetof(nb_kern, gemm_q8_f32), run_gemm_f32, 8 },
    { "4-bit packing", offsetof(nb_kern, pack_q4), run_pack, 4 },
    { "8-bit packing", offsetof(nb_kern, pack_q8), run_pack, 8 },
    { "16-bit activations", offsetof(nb_kern, act_a16), run_act, 4 },
    { "8-bit activations", offsetof(nb_kern, act_a8), run_act, 4 | A8 },
    { "f16 product", offsetof(nb_kern, gemm_dense), run_dense, 0 },
    { "bf16 product", offsetof(nb_kern, gemm_dense), run_dense, 1 },
    { "f32 product", offsetof(nb_kern, gemm_dense), run_dense, 2 },
    { "f32 tile", offsetof(nb_kern, tile_f32), run_tile, 0 },
    { "f64 tile", offsetof(nb_kern, tile_f64), run_tile, 1 },
    { "attention", offsetof(nb_kern, attn), run_attn, 0 },
    { "rmsnorm", offsetof(nb_kern, rmsnorm), run_row, RMSNORM },
    { "layernorm", offsetof(nb_kern, layernorm), run_row, LAYERNORM },
    { "rope", offsetof(nb_kern, rope_half), run_row, ROPE },
    { "silu", offsetof(nb_kern, silu_mul), run_row, SILU },
    { "gelu", offsetof(nb_kern, gelu_tanh_mul), run_row, GELU },
    { "softcap", offsetof(nb_kern, softcap), run_row, SOFTCAP },
    { "largest of a row", offsetof(nb_kern, row_max), run_row, ROW_MAX },
    { "exp and sum", offsetof(nb_kern, exp_sum), run_row, EXP_SUM },
};

size_t nb_doctor_ops(void)
{
    return NB_LEN(ops);
}

const char *nb_doctor_op_name(size_t i)
{
    return ops[i].name;
}

size_t nb_doctor_op_run(size_t i, const nb_kern *t, unsigned char *out, size_t cap)
{
    return ops[i].run(t, ops[i].how, out, cap);
}

bool nb_doctor_op_same(size_t i, const nb_kern *a, const nb_kern *b)
{
    return memcmp((const char *)a + ops[i].at, (const char *)b + ops[i].at, sizeof(void (*)(void))) == 0;
}
