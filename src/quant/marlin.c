/* marlin.c - see marlin.h. Source: formats 2.5 (AutoAWQ awq/modules/linear/marlin.py at 88e4c76). */
#include "quant/marlin.h"

#include "base/bits.h"

void nb_marlin_unpack(const unsigned char *src, size_t n_total, size_t k, size_t n0, size_t n, uint8_t *out)
{
    static const uint8_t rev[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };

    for (size_t o = 0; o < n; o++) {
        const size_t c = n0 + o, base = c / 64 * 128 + c % 8 * 16 + c % 64 / 16, half = 4 * (c % 16 / 8);
        for (size_t i = 0; i < k; i++) {
            const size_t word = i / 16 * 2 * n_total + base + i % 8 / 2 * 4;
            out[o * k + i] = nb_le32(src + 4 * word) >> 4 * rev[half + i % 2 + 2 * (i % 16 / 8)] & 15;
        }
    }
}

/* Where the scale of output c stands in its row: the inverse of P[8i+j] = i + 8j, or of P[8i+j] = 2i + few[j]. */
static size_t stored_at(size_t c, bool grouped)
{
    static const uint8_t few[8] = { 0, 1, 8, 9, 16, 17, 24, 25 };

    if (grouped)
        return c / 64 * 64 + c % 8 * 8 + c % 64 / 8;
    for (size_t p = 0; p < 32; p++)
        if (2 * (p / 8) + few[p % 8] == c % 32)
            return c / 32 * 32 + p;
    return c;
}

void nb_marlin_scales(const nb_tensor *t, size_t n0, nb_qlin *q)
{
    const size_t item = nb_dtype_info(t->dtype)->bits / 8, n_total = (size_t)t->shape[1];

    for (size_t o = 0; o < q->n; o++) {
        const size_t at = stored_at(n0 + o, q->n_groups > 1);
        for (size_t g = 0; g < q->n_groups; g++)
            nb_to_f32(&q->scales[o * q->n_groups + g], t->data + (g * n_total + at) * item, t->dtype, 1);
    }
    q->scale_dtype = t->dtype;
}
