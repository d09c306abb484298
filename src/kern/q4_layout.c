/* q4_layout.c - sizes of packed 4-bit and 8-bit matrices and of activation buffers; input order of act-order matrices. */
#include <math.h>

#include "base/mem.h"
#include "kern/q4.h"

/* Prefetch runs up to this far ahead of the block it works on; the slack covers it and at least two blocks. */
enum { SLACK_BYTES = 20480 };

/* Longest packed group for hub groups of g: a multiple of 8 up to 128 that divides g. 0: none. */
static size_t packed_group(size_t k, size_t g)
{
    if (g >= k) /* one group: nothing has to divide it, the last block is padded */
        return k >= NB_MAX_G ? NB_MAX_G : (k + 7) / 8 * 8;
    for (size_t c = NB_MAX_G; c >= 8; c -= 8)
        if (g % c == 0)
            return c;
    return 0;
}

/* code_bytes: of one packed input of a strip. */
static bool layout(nb_q4 *p, size_t n_rows, size_t k, size_t g, bool wide, size_t code_bytes)
{
    size_t blocks, bytes;

    if (n_rows == 0 || n_rows % NB_STRIP != 0 || k == 0 || k > UINT32_MAX || g == 0)
        return false;
    const size_t pg = packed_group(k, g);
    if (pg == 0)
        return false;

    *p = (nb_q4){ .n = n_rows, .k = k, .g = pg, .wide = wide };
    p->n_groups = (k + pg - 1) / pg;
    p->n_strips = n_rows / NB_STRIP;
    p->block_bytes = code_bytes * pg + NB_STRIP * (wide ? 4 : 2) + NB_STRIP;
    if (!nb_mul_size(p->n_strips, p->n_groups, &blocks) || !nb_mul_size(blocks, p->block_bytes, &bytes))
        return false;
    return nb_add_size(bytes, SLACK_BYTES, &p->bytes);
}

bool nb_q4_layout(nb_q4 *p, size_t n_rows, size_t k, size_t g, bool wide)
{
    return layout(p, n_rows, k, g, wide, NB_STRIP / 2);
}

bool nb_q8_layout(nb_q8 *p, size_t n_rows, size_t k, size_t g, bool wide)
{
    return layout(p, n_rows, k, g, wide, NB_STRIP);
}

bool nb_q4_wide(const nb_qlin *q)
{
    if (q->scale_dtype == NB_DT_F16)
        return false;
    for (size_t i = 0; i < q->n * q->n_groups; i++) {
        const uint32_t u = nb_bits_from_f32(q->scales[i]);
        if (nb_bits_from_f32(nb_f16_to_f32(nb_f32_to_f16(q->scales[i]))) != u)
            return true;
    }
    return false;
}

nb_status nb_q4_perm(const uint32_t *g_idx, size_t k, size_t g, size_t n_groups, uint32_t *perm, nb_err *err)
{
    const size_t pg = packed_group(k, g);
    size_t *at = nb_calloc(n_groups + 1, sizeof *at);

    if (!at)
        return nb_enomem(err, "the input order of a matrix");
    for (size_t i = 0; i < k; i++) {
        if (g_idx[i] >= n_groups) {
            nb_free(at);
            return nb_fail(err, NB_EFORMAT, "gptq.g_idx", "", "g_idx[%zu] is %u, but there are %zu groups", i, (unsigned)g_idx[i],
                           n_groups);
        }
        at[g_idx[i] + 1]++;
    }
    for (size_t i = 0; i < n_groups; i++)
        at[i + 1] += at[i];
    for (size_t i = 0; i < k; i++)
        perm[at[g_idx[i]]++] = (uint32_t)i;
    nb_free(at);

    for (size_t i = 0; i < k; i++)
        if (pg == 0 || g_idx[perm[i]] != g_idx[perm[i / pg * pg]])
            return nb_fail(err, NB_EUNSUPPORTED, "gptq.g_idx", "",
                           "groups of g_idx do not hold %zu inputs each; the packed form needs that", g);
    return NB_OK;
}

static size_t up64(size_t n)
{
    return (n + 63) / 64 * 64;
}

size_t nb_act_bytes(size_t m, size_t k, size_t g)
{
    const size_t n_groups = (k + g - 1) / g;

    return 2 * up64(n_groups * m * g) + 2 * up64(n_groups * m * 4);
}

void nb_act_place(nb_act *a, void *buf, size_t m, size_t k, size_t g)
{
    const size_t n_groups = (k + g - 1) / g;
    const size_t plane = up64(n_groups * m * g), word = up64(n_groups * m * 4);
    unsigned char *p = buf;

    a->m = m;
    a->k = k;
    a->g = g;
    a->n_groups = n_groups;
    a->hi = (int8_t *)p;
    a->lo = (int8_t *)(p + plane);
    a->step = (float *)(void *)(p + 2 * plane);
    a->sum = (int32_t *)(void *)(p + 2 * plane + word);
}

void nb_act_place_a8(nb_act *a, void *buf, size_t m, size_t k, size_t g)
{
    nb_act_place(a, buf, m, k, g);
    a->lo = NULL;
}
