/* gemm_q4.c - the product of packed 4-bit or 8-bit weights and A16 or A8 activations, and its f32 reference.
 *
 *   acc = sum of q*v over the group, d = acc - z*sum       exact in int32 (|d| <= 255*32512*128)
 *   y   = fma((float)d, s*step, y)                         groups in ascending order
 *
 * Only the last line rounds, so every tiling of every instruction set gives these bits. Source: spec kernels 4. */
#include <math.h>

#include "kern/q4.h"
#include "kern/scalar/scalar.h"

typedef void dot_fn(int32_t acc[NB_STRIP], const unsigned char *codes, const int32_t *v, size_t g);

static void dot_block8(int32_t acc[NB_STRIP], const unsigned char *codes, const int32_t *v, size_t g)
{
    for (size_t r = 0; r < NB_STRIP; r++)
        acc[r] = 0;
    for (size_t j = 0; j < g; j++)
        for (size_t r = 0; r < NB_STRIP; r++)
            acc[r] += codes[j / 4 * 256 + r * 4 + j % 4] * v[j];
}

/* acc[r] = sum over the g inputs of one block of code * value. */
static void dot_block4(int32_t acc[NB_STRIP], const unsigned char *codes, const int32_t *v, size_t g)
{
    for (size_t r = 0; r < NB_STRIP; r++)
        acc[r] = 0;
    for (size_t t = 0; t < g / 8; t++)
        for (size_t r = 0; r < NB_STRIP; r++)
            for (size_t c = 0; c < 4; c++) {
                const unsigned b = codes[t * 256 + r * 4 + c];
                acc[r] += (int32_t)(b & 15) * v[8 * t + c] + (int32_t)(b >> 4) * v[8 * t + 4 + c];
            }
}

static void token_strip(const nb_q4 *w, const nb_act *a, float *y, size_t i, size_t s, dot_fn *dot_block)
{
    for (size_t r = 0; r < NB_STRIP; r++)
        y[r] = 0.0f;
    for (size_t grp = 0; grp < w->n_groups; grp++) {
        const unsigned char *block = nb_q4_block(w, s, grp), *zeros = block + nb_q4_zeros_at(w);
        const size_t at = grp * a->m + i;
        int32_t v[NB_MAX_G], acc[NB_STRIP];

        for (size_t j = 0; j < w->g; j++)
            v[j] = a->lo ? 256 * a->hi[at * w->g + j] + a->lo[at * w->g + j] : a->hi[at * w->g + j];
        dot_block(acc, block, v, w->g);
        for (size_t r = 0; r < NB_STRIP; r++) {
            const float scale = nb_q4_scale(w, block, r) * a->step[at];
            y[r] = fmaf((float)(acc[r] - zeros[r] * a->sum[at]), scale, y[r]);
        }
    }
}

static void gemm(const nb_q4 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1, dot_fn *dot_block)
{
    assert(w->k == a->k && w->g == a->g);
    for (size_t s = s0; s < s1; s++)
        for (size_t i = 0; i < a->m; i++)
            token_strip(w, a, y + i * ldy + s * NB_STRIP, i, s, dot_block);
}

void nb_gemm_q4_scalar(const nb_q4 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1)
{
    gemm(w, a, y, ldy, s0, s1, dot_block4);
}

void nb_gemm_q8_scalar(const nb_q8 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1)
{
    gemm(w, a, y, ldy, s0, s1, dot_block8);
}

/* Code of row r, input `in` of a block. */
static int code4(const unsigned char *block, size_t r, size_t in)
{
    const unsigned b = block[in / 8 * 256 + r * 4 + in % 4];

    return (int)(in % 8 < 4 ? b & 15 : b >> 4);
}

static int code8(const unsigned char *block, size_t r, size_t in)
{
    return block[in / 4 * 256 + r * 4 + in % 4];
}

static void gemm_f32(const nb_q4 *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1,
                     int (*code)(const unsigned char *block, size_t r, size_t in))
{
    for (size_t s = s0; s < s1; s++)
        for (size_t i = 0; i < m; i++)
            for (size_t r = 0; r < NB_STRIP; r++) {
                float sum = 0.0f;

                for (size_t j = 0; j < w->k; j++) {
                    const unsigned char *block = nb_q4_block(w, s, j / w->g);
                    const int q = code(block, r, j % w->g) - block[nb_q4_zeros_at(w) + r];

                    sum = fmaf((float)q * nb_q4_scale(w, block, r), x[i * ldx + (w->perm ? w->perm[j] : j)], sum);
                }
                y[i * ldy + s * NB_STRIP + r] = sum;
            }
}

void nb_gemm_q4_f32_scalar(const nb_q4 *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1)
{
    gemm_f32(w, x, ldx, m, y, ldy, s0, s1, code4);
}

void nb_gemm_q8_f32_scalar(const nb_q8 *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1)
{
    gemm_f32(w, x, ldx, m, y, ldy, s0, s1, code8);
}
