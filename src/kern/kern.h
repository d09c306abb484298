/* kern.h - the inner loops: packed weights, activation forms, and one table of functions per instruction set.
 *
 * Scalar code defines every bit (spec kernels 4); each table must agree with it by memcmp. A kernel takes raw pointers
 * and a range of outputs, reads no byte outside its arguments, allocates nothing, starts no thread; the caller splits
 * work with nb_parallel_for. Nothing here depends on a model. Source: spec kernels 1-11. */
#ifndef NB_KERN_KERN_H
#define NB_KERN_KERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/sha256.h"
#include "tensor/dtype.h"
#include "tensor/qlin.h"

enum {
    NB_STRIP = 64,    /* outputs per strip                              */
    NB_MAX_G = 128,   /* longest packed group; wider ones are repeated   */
    NB_PAGE = 32,     /* tokens of one KV page                          */
    NB_ATT_TILE = 512 /* tokens of one fixed attention tile             */
};

/* ---- 4-bit matrices -------------------------------------------------------------------------------------------
 * Strips of 64 outputs; a strip holds its groups in ascending k. Block (strip S, group G), 64-byte aligned, g % 8 == 0:
 *
 *   codes  64*g/2 bytes   byte[t*256 + r*4 + c] = q[64S+r][gG+8t+c] | q[64S+r][gG+8t+4+c] << 4
 *   scales 64*2 bytes     fp16 when every scale converts exactly, else 64*4 bytes fp32 (wide)
 *   zeros  64 bytes       u8, the value subtracted
 *
 * Rows past n have scale 0. A fused matrix (q,k,v; gate,up) is the strips of its parts one after another, each part
 * padded to 64 rows. Slack follows the last strip, so that prefetch stays inside the block of memory. */
typedef struct nb_q4 {
    size_t n, k;     /* rows including the padding of parts (n_strips * 64), inputs     */
    size_t g;        /* packed group, 8..128, multiple of 8                             */
    size_t n_groups; /* ceil(k / g)                                                     */
    size_t n_strips;
    size_t block_bytes; /* 32*g + 128 + 64, or 32*g + 256 + 64 when wide                   */
    bool wide;          /* fp32 scales */
    unsigned char *base;
    size_t bytes;   /* n_strips * n_groups * block_bytes + slack                       */
    uint32_t *perm; /* [k] input order of act-order matrices, or NULL                  */
} nb_q4;

/* Fill the sizes of `p` and clear base and perm.
 *   n_rows  packed rows, a multiple of 64 (sum of the parts, each rounded up)
 *   g       any group of the hub; g >= k is one group (per channel). Packed groups are the largest multiple of 8 up to
 *           128 that divides g; a single group is cut into blocks of 128. Scales are repeated per block.
 *   wide    nb_q4_wide() of any part
 * The caller then sets base to `bytes` bytes, 64-byte aligned (nb_huge_alloc). false: the shape cannot be packed (g has
 * no such divisor), or sizes overflow. */
bool nb_q4_layout(nb_q4 *p, size_t n_rows, size_t k, size_t g, bool wide);
/* Does some scale of q change when stored as fp16? */
bool nb_q4_wide(const nb_qlin *q);
/* Input order of an act-order matrix: inputs sorted stably by g_idx[k] into perm[k], the value for pack_q4, act_a16 and
 * nb_q4.perm. g: the hub's group size. NB_EFORMAT: an entry is >= n_groups; NB_EUNSUPPORTED: groups of other sizes than
 * g, which packed blocks cannot hold; NB_ENOMEM. */
nb_status nb_q4_perm(const uint32_t *g_idx, size_t k, size_t g, size_t n_groups, uint32_t *perm, nb_err *err);

/* ---- 8-bit matrices --------------------------------------------------------------------------------------------
 * For codes of 5 to 8 bits: the same strips, groups, scales and zeros, and the same order with one byte a code:
 *
 *   codes  64*g bytes     byte[t*512 + h*256 + r*4 + c] = q[64S+r][gG+8t+4h+c]      h = 0, 1: the two quads of a step
 *
 * block_bytes is 64*g + 128 + 64, or 64*g + 256 + 64 when wide. With codes and zeros up to 255 and groups up to 128 every
 * sum of the A16 product still fits int32 (spec kernels 3). perm and wide as for 4 bits. */
typedef nb_q4 nb_q8;
bool nb_q8_layout(nb_q8 *p, size_t n_rows, size_t k, size_t g, bool wide); /* as nb_q4_layout */

/* Codes of 4 bits as checkpoints store them, little-endian 32-bit words of eight, the first at `at`, rows of words `pitch` bytes
 * apart. By input: word (t, r) holds in nibble i input 8t + i of row r. Else as AWQ has them: word (k, j) holds input k of eight
 * rows, nibble 0 .. 7 being row 8j + 0, 2, 4, 6, 1, 3, 5, 7. */
typedef struct nb_words {
    const unsigned char *at;
    size_t pitch;
    bool by_input;
} nb_words;
/* The words from input k (a multiple of 8) and row r on. */
static inline nb_words nb_words_at(const nb_words *w, size_t k, size_t r)
{
    return (nb_words){ w->at + (w->by_input ? k / 8 * w->pitch + 4 * r : k * w->pitch + r / 2), w->pitch, w->by_input };
}

/* ---- activations ----------------------------------------------------------------------------------------------
 * A16: symmetric 16-bit integers v = 256 hi + lo in two int8 planes, per token and packed group, stored group-major
 * [group][token][g]. A8: one plane, v = hi, and lo is NULL; 1.8 times as fast at m > 1, 0.7 % of error instead of 0.003 %.
 * A short last group is padded with zeros. Buffers are the caller's, 64-byte aligned. */
typedef struct nb_act {
    size_t m, k, g, n_groups;
    int8_t *hi, *lo; /* [n_groups][m][g]                                   */
    float *step;     /* [n_groups][m]   a / 32512 or a / 127, a = max|x|; NaN when a is not finite */
    int32_t *sum;    /* [n_groups][m]   sum of v                            */
} nb_act;
/* Bytes of one buffer that nb_act_place() can cut into the four arrays (each 64-byte aligned). g: nb_q4.g. */
size_t nb_act_bytes(size_t m, size_t k, size_t g);
void nb_act_place(nb_act *a, void *buf, size_t m, size_t k, size_t g);
/* The same for A8; needs no more bytes. */
void nb_act_place_a8(nb_act *a, void *buf, size_t m, size_t k, size_t g);

/* ---- 16- and 32-bit float matrices ----------------------------------------------------------------------------
 * [strip][k][64] of F16, BF16 or F32; y = sum over k ascending, in the fixed order that dense.c of scalar/ defines. */
typedef struct nb_dense {
    size_t n, k, n_strips; /* n: rows including padding */
    nb_dtype dtype;
    unsigned char *base;
    size_t bytes; /* with slack */
} nb_dense;
bool nb_dense_layout(nb_dense *p, size_t n_rows, size_t k, nb_dtype t);

/* ---- packed panels of the solvers ------------------------------------------------------------------------------
 * A tile t[NB_TILE_M][n] of a product, n NB_TILE_F32 or NB_TILE_F64: the sum over l, ascending, of a[l][NB_TILE_M] times b[l][n], each
 * element one fma chain from 0. */
enum { NB_TILE_M = 8, NB_TILE_F32 = 32, NB_TILE_F64 = 16 };

/* ---- attention ------------------------------------------------------------------------------------------------
 * One task: one kv head of one sequence, m query tokens at consecutive positions, the r query heads that share it.
 * KV pages of 32 tokens, F16 or F32: K is stored transposed, [page][kv head][d][32], V plain, [page][kv head][32][d],
 * so that neither product needs a sum across lanes. Where keys and values are the same vectors (latent attention), only the
 * plain rows are kept: k is NULL, and a page's K is transposed from its V when it is used: the same bits. Online softmax in tiles of fixed absolute position; partial
 * results of NB_ATT_TILE tokens are merged in ascending order whatever the split, so bits depend on nothing else.
 *
 * I8 pages hold one signed byte a component, in the same places, and behind them 32 scales in F32, one a token: s = max|x| / 127,
 * q = x / s to nearest. A component is q * s in F32, at most max|x| / 254 from what was put; what is not finite makes it all NaN. */
typedef struct nb_attn {
    const float *q; /* token i, head j at q + i*ldq + j*d   */
    float *o;       /* same addressing with ldo             */
    size_t ldq, ldo;
    size_t m, r, d;
    size_t pos;           /* token i sees keys 0 .. pos+i         */
    size_t window;        /* 0: all; W: keys > pos+i-W            */
    size_t chunk;         /* 0: none; C: keys from the last multiple of C on */
    float scale, softcap; /* softcap 0: none                  */
    const float *sinks;   /* [r] or NULL                      */
    const uint32_t *pages;
    const unsigned char *k, *v; /* of this layer and kv head, page 0; k NULL: the keys are v */
    size_t page_stride;         /* bytes from one page to the next   */
    nb_dtype kv_dtype;
} nb_attn;
/* Bytes of the K or the V of one head in one page, d components a token. */
size_t nb_kv_head_bytes(size_t d, nb_dtype t);
/* Floats of scratch for one attn call with these sizes (any m up to the given). */
size_t nb_attn_scratch(size_t m, size_t r, size_t d);
/* Floats of one partial result of `rows` = m*r query rows: O[d], max, sum each. */
size_t nb_attn_partial(size_t rows, size_t d);

/* ---- recurrences ----------------------------------------------------------------------------------------------
 * One head of one sequence: a matrix S [dk][dv] and m tokens after it. The bits do not depend on how tokens are cut into calls. */
typedef struct nb_recur {
    float *S;
    size_t dk, dv, m;
    const float *q, *k, *v; /* of token t at + t * ld */
    size_t ldq, ldk, ldv;
    const float *a; /* decays: one a token, or, each, one for every row of S */
    size_t lda;
    bool each;
    const float *beta; /* [m] rates of what is learned (delta) */
    float *o;
    size_t ldo;
    float *work;       /* m * (2 * dk + 1) floats (delta)                                             */
    const float *next; /* the matrix that comes after this one, asked for meanwhile; NULL: none known */
} nb_recur;

/* ---- the table ------------------------------------------------------------------------------------------------ */
typedef struct nb_kern {
    const char *name; /* "scalar", "avx2", "neon-dot" ... */
    unsigned need;    /* nb_cpu bits that must all be there */

    /* Rows [n0, n0+q->n) of one part whose first row lies at packed row `row0` (multiple of 64); q->codes <= 15, zeros <= 128. n0
     * counts from the part's first row and is a multiple of 64, or q covers the tail. perm (or NULL) reorders inputs. */
    void (*pack_q4)(nb_q4 *p, size_t row0, size_t n0, const nb_qlin *q, const uint32_t *perm);
    /* The same bytes from stored words, w->at being that of row n0 and input 0: q without its codes, p->k a multiple of p->g, q->n of
     * 8, inputs in natural order. Wide stripes (many rows) read whole cache lines and pages. */
    void (*pack_words)(nb_q4 *p, size_t row0, size_t n0, const nb_qlin *q, const nb_words *w);
    /* Quantize tokens [m0, m1) of x[m][ldx] (x: token 0) into `a`; perm as in nb_q4 (NULL: natural order). */
    void (*act_a16)(nb_act *a, const float *x, size_t ldx, size_t m0, size_t m1, const uint32_t *perm);
    /* y[i*ldy + 64*S + r] for all a->m tokens, strips [s0, s1). m = 1 and m > 1 give the same bits. */
    void (*gemm_q4)(const nb_q4 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
    /* The same two for A8 activations (a->lo is NULL). */
    void (*act_a8)(nb_act *a, const float *x, size_t ldx, size_t m0, size_t m1, const uint32_t *perm);
    void (*gemm_q4_a8)(const nb_q4 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
    /* The same product with f32 activations (reference of A16; --exact-fp32): w = (q - z)*s in f32, fma, k ascending in
     * packed order; x is in natural order, w->perm is applied here. */
    void (*gemm_q4_f32)(const nb_q4 *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1);

    /* The same for 8-bit matrices; codes and zeros of q may be any byte. */
    void (*pack_q8)(nb_q8 *p, size_t row0, size_t n0, const nb_qlin *q, const uint32_t *perm);
    void (*gemm_q8)(const nb_q8 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
    void (*gemm_q8_a8)(const nb_q8 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
    void (*gemm_q8_f32)(const nb_q8 *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1);

    /* Rows [0, rows) of src[rows][k] (dtype of p) to packed rows from row0 (multiple of 64); the last strip is padded with 0. */
    void (*pack_dense)(nb_dense *p, size_t row0, const void *src, size_t rows);
    void (*gemm_dense)(const nb_dense *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1);
    /* out[k] = row n of a packed dense matrix as f32 (embedding from a tied head). */
    void (*row_dense)(const nb_dense *w, size_t n, float *out);

    /* Tiles of packed panels; t is not read. */
    void (*tile_f32)(size_t k, const float *a, const float *b, float *t);
    void (*tile_f64)(size_t k, const double *a, const double *b, double *t);

    /* Append one token's k[d], v[d] of one kv head at page base pointers, slot 0..31; k NULL: the plain row only. */
    void (*kv_put)(unsigned char *k, unsigned char *v, nb_dtype t, size_t slot, size_t d, const float *ks, const float *vs);
    void (*attn)(const nb_attn *t, float *scratch); /* whole task */
    /* Tiles [t0, t1) of NB_ATT_TILE tokens into partials part[t - t0]; then merge all tiles of a task in order. */
    void (*attn_part)(const nb_attn *t, size_t t0, size_t t1, float *part, float *scratch);
    void (*attn_merge)(const nb_attn *t, size_t n_tiles, const float *part);

    /* y = x / sqrt(mean(x^2) + eps) * (w + offset); offset 0 or 1. w NULL: no weight. y may be x. */
    void (*rmsnorm)(float *y, const float *x, const float *w, float offset, float eps, size_t n);
    void (*layernorm)(float *y, const float *x, const float *w, const float *b, float eps, size_t n); /* w, b may be NULL */
    /* Rotate one head: H pairs (i, i+r/2) or I pairs (2i, 2i+1); cs[r/2] and sn[r/2] of this position. */
    void (*rope_half)(float *x, const float *cs, const float *sn, size_t r);
    void (*rope_pair)(float *x, const float *cs, const float *sn, size_t r);
    void (*silu_mul)(float *y, const float *gate, const float *up, size_t n); /* silu(gate) * up    */
    void (*gelu_tanh_mul)(float *y, const float *gate, const float *up, size_t n);
    void (*gelu_erf_mul)(float *y, const float *gate, const float *up, size_t n);
    void (*add)(float *y, const float *x, size_t n);           /* y += x          */
    void (*axpy)(float *y, const float *x, float a, size_t n); /* y = fma(a, x, y) */
    void (*softcap)(float *x, float cap, size_t n);            /* cap * tanh(x / cap) */
    /* Index of the largest value, the first of equals, and the value; n when some value is NaN. All -Inf: 0. n > 0. */
    size_t (*row_max)(const float *x, size_t n, float *top);
    /* y = exp(x - top); the sum in f64, 16 lanes. */
    double (*exp_sum)(float *y, const float *x, float top, size_t n);
    /* The gated delta rule: e_j = fma(-beta, sum of (a_i k_i) S_ij, beta v_j); o_j = fma(q.k, e_j, sum of (a_i q_i) S_ij);
     * S_ij = fma(k_i, e_j, a_i S_ij). Sums are fma chains, i ascending; q.k has 16 lanes. */
    void (*delta)(const nb_recur *r);
    /* S_ij = fma(k_i, v_j, a_i S_ij); o_j = sum of q_i S_ij, an fma chain, i ascending. */
    void (*linrec)(const nb_recur *r);
    /* One token of n <= 128 channels of Mamba-1, S and A [dk][ld]: d = softplus(dt); S = exp(A d) S + d u B; o = S C + skip u. */
    void (*ssm1)(float *S, size_t ld, size_t dk, size_t n, const float *A, const float *dt, const float *u, const float *skip,
                 const float *B, const float *C, float *o);
    /* y = bias (or NULL) + sum over taps of w[tap * ldw] * u[tap], channel by channel, each term rounded. */
    void (*conv)(float *y, const float *bias, const float *w, size_t ldw, const float *const *u, size_t taps, size_t n);
    void (*gate)(float *y, const float *gate, size_t n); /* y *= sigmoid(gate) */
    /* Sum of every 64-bit word of p[bytes], bytes a multiple of 8: the read-bandwidth probe of `bench`. */
    uint64_t (*read_probe)(const void *p, size_t bytes);
} nb_kern;

/* Best table for these cpu bits (nb_cpu_features(), possibly masked by the caller's cap). Never NULL. */
const nb_kern *nb_kern_pick(unsigned have);
/* By name; NULL when not built in. All tables, best first, for tests. */
const nb_kern *nb_kern_find(const char *name);
size_t nb_kern_count(void);
const nb_kern *nb_kern_at(size_t i);

/* SHA-256 over much data: by the processor's instructions where `have` says that there are some. Never NULL. */
nb_sha256_fn *nb_kern_sha256(unsigned have);

#endif
