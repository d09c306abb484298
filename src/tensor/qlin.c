/* qlin.c - buffers of the hub and its definition, equation (R), in plain C. */
#include "tensor/qlin.h"

#include <string.h>

#include "base/mem.h"
#include "base/wide.h"

static nb_status init(nb_qlin *q, size_t n, size_t k, size_t g, unsigned bits, bool with_codes, nb_err *err)
{
    size_t codes, groups, scales;

    memset(q, 0, sizeof *q);
    if (n == 0 || k == 0 || g == 0 || bits < 2 || bits > 8)
        return nb_fail(err, NB_EINTERNAL, "internal", "", "quantized linear of %zu x %zu, group %zu, %u bits", n, k, g, bits);
    q->n = q->cap_n = n;
    q->k = k;
    q->g = g;
    q->n_groups = k / g + (k % g != 0);
    q->bits = bits;
    q->scale_dtype = NB_DT_F32;
    if (!nb_mul_size(n, k, &codes) || !nb_mul_size(n, q->n_groups, &groups) || !nb_mul_size(groups, sizeof(float), &scales))
        return nb_enomem(err, "a quantized linear");
    q->codes = with_codes ? nb_alloc(codes) : NULL;
    q->zeros = nb_alloc(groups);
    q->scales = nb_alloc(scales);
    if ((with_codes && !q->codes) || !q->zeros || !q->scales) {
        nb_qlin_clear(q);
        return nb_enomem(err, "a quantized linear");
    }
    return NB_OK;
}

nb_status nb_qlin_init(nb_qlin *q, size_t n, size_t k, size_t g, unsigned bits, nb_err *err)
{
    return init(q, n, k, g, bits, true, err);
}

nb_status nb_qlin_init_grid(nb_qlin *q, size_t n, size_t k, size_t g, unsigned bits, nb_err *err)
{
    return init(q, n, k, g, bits, false, err);
}

nb_status nb_qlin_init_gidx(nb_qlin *q, nb_err *err)
{
    nb_free(q->g_idx);
    q->g_idx = nb_calloc(q->k, sizeof *q->g_idx);
    return q->g_idx ? NB_OK : nb_enomem(err, "the groups of a quantized linear");
}

nb_status nb_qlin_init_offsets(nb_qlin *q, nb_err *err)
{
    if (!q->offsets)
        q->offsets = nb_alloc_array(q->cap_n * q->n_groups, sizeof *q->offsets);
    return q->offsets ? NB_OK : nb_enomem(err, "the offsets of a quantized linear");
}

void nb_qlin_clear(nb_qlin *q)
{
    nb_free(q->codes);
    nb_free(q->zeros);
    nb_free(q->scales);
    nb_free(q->offsets);
    nb_free(q->g_idx);
    memset(q, 0, sizeof *q);
}

/* n values of one group */
NB_WIDE static void group_values(float *restrict out, const uint8_t *restrict codes, int zero, float scale, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (float)((int)codes[i] - zero) * scale;
}

void nb_qlin_dequant(const nb_qlin *q, float *out)
{
    const bool plain = !q->g_idx && !q->offsets;

    for (size_t i = 0; i < q->n; i++) {
        const uint8_t *codes = q->codes + i * q->k, *zeros = q->zeros + i * q->n_groups;
        const float *scales = q->scales + i * q->n_groups, *offsets = q->offsets ? q->offsets + i * q->n_groups : NULL;
        float *row = out + i * q->k;

        for (size_t j = 0, group = 0; plain && j < q->k; j += q->g, group++)
            group_values(row + j, codes + j, zeros[group], scales[group], q->k - j < q->g ? q->k - j : q->g);
        for (size_t j = 0; !plain && j < q->k; j++) {
            const size_t group = q->g_idx ? q->g_idx[j] : j / q->g;
            row[j] =
                offsets ? (float)codes[j] * scales[group] + offsets[group] : (float)((int)codes[j] - (int)zeros[group]) * scales[group];
        }
    }
}
