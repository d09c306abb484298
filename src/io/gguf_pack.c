/* gguf_pack.c - rows of a quantized linear as blocks of 32 values: Q4_0, Q4_1, Q8_0. See gguf_write.h. */
#include <math.h>

#include "base/bits.h"
#include "base/mem.h"
#include "io/gguf_write.h"

enum { BLOCK = 32 };

uint64_t nb_gguf_row_bytes(unsigned type, uint64_t k)
{
    static const struct {
        unsigned type, block, bytes;
    } rows[] = { { NB_GGUF_F32, 1, 4 },       { NB_GGUF_F16, 1, 2 },       { NB_GGUF_BF16, 1, 2 },
                 { NB_GGUF_Q4_0, BLOCK, 18 }, { NB_GGUF_Q4_1, BLOCK, 20 }, { NB_GGUF_Q8_0, BLOCK, 34 } };

    for (size_t i = 0; i < NB_LEN(rows); i++) {
        if (rows[i].type == type && k % rows[i].block == 0 && k / rows[i].block <= UINT64_MAX / 64)
            return k / rows[i].block * rows[i].bytes;
    }
    return 0;
}

void nb_gguf_loss_add(nb_gguf_loss *to, const nb_gguf_loss *part)
{
    to->n_values += part->n_values;
    to->n_inexact += part->n_inexact;
    to->max_abs = part->max_abs > to->max_abs ? part->max_abs : to->max_abs;
    to->max_step = part->max_step > to->max_step ? part->max_step : to->max_step;
}

static size_t group_of(const nb_qlin *q, size_t k)
{
    return q->g_idx ? q->g_idx[k] : k / q->g;
}

/* Every block of 32 inputs has one scale. */
static nb_status check_blocks(const nb_qlin *q, nb_err *err)
{
    if (q->k % BLOCK != 0)
        return nb_fail(err, NB_EUNSUPPORTED, "gguf.block", "", "%zu inputs do not fill blocks of %d", q->k, BLOCK);
    for (size_t k = 0; k < q->k; k++) {
        if (group_of(q, k) == group_of(q, k - k % BLOCK))
            continue;
        if (q->g_idx)
            return nb_fail(err, NB_EUNSUPPORTED, "gguf.block", "",
                           "activation order: inputs of one block of %d belong to different groups, a block has one scale", BLOCK);
        return nb_fail(err, NB_EUNSUPPORTED, "gguf.block", "", "groups of %zu inputs cut blocks of %d", q->g, BLOCK);
    }
    return NB_OK;
}

/* Smallest and largest code minus zero. */
static void code_range(const nb_qlin *q, int *low, int *high)
{
    *low = 0;
    *high = 0;
    for (size_t n = 0; n < q->n; n++) {
        for (size_t k = 0; k < q->k; k++) {
            const int c = (int)q->codes[n * q->k + k] - (int)q->zeros[n * q->n_groups + group_of(q, k)];
            *low = c < *low ? c : *low;
            *high = c > *high ? c : *high;
        }
    }
}

bool nb_gguf_type_for(const nb_qlin *q, unsigned *type, nb_err *err)
{
    bool f16 = true;
    int low, high;

    *type = NB_GGUF_Q8_0;
    if (check_blocks(q, err) != NB_OK)
        return false;
    code_range(q, &low, &high);
    for (size_t i = 0; i < q->n * q->n_groups && f16; i++)
        f16 = nb_f16_to_f32(nb_f32_to_f16(q->scales[i])) == q->scales[i];
    if (low >= -8 && high <= 7 && f16 && !q->offsets)
        *type = NB_GGUF_Q4_0;
    else if (q->bits <= 4)
        *type = NB_GGUF_Q4_1;
    else if (low < -128 || high > 127 || q->offsets) {
        nb_fail(err, NB_EUNSUPPORTED, "gguf.block", "", "codes minus zeros reach from %d to %d; a block of bytes holds -128 to 127", low,
                high);
        return false;
    }
    return true;
}

/* v as f16 in *h; false beyond its range. */
static bool to_f16(float v, uint16_t *h)
{
    *h = nb_f32_to_f16(v);
    return isfinite(nb_f16_to_f32(*h));
}

static nb_status too_large(nb_err *err, const char *what, float v)
{
    return nb_fail(err, NB_ENUMERIC, "num.overflow", "", "the %s %g does not fit a 16-bit float", what, (double)v);
}

/* Value of a code as the checkpoint means it: an exact product, or with offsets an exact sum, in double. */
static double meant(const nb_qlin *q, size_t row, size_t group, unsigned code)
{
    const size_t i = row * q->n_groups + group;
    if (q->offsets)
        return (double)code * (double)q->scales[i] + (double)q->offsets[i];
    return ((double)code - (double)q->zeros[i]) * (double)q->scales[i];
}

static void note(nb_gguf_loss *loss, double want, double got, float scale)
{
    const double d = fabs(got - want);

    loss->n_values++;
    if (d == 0.0)
        return;
    loss->n_inexact++;
    loss->max_abs = d > loss->max_abs ? d : loss->max_abs;
    if (scale != 0.0f && d / fabs((double)scale) > loss->max_step)
        loss->max_step = d / fabs((double)scale);
}

/* One block. codes: 32 codes of one group. */
typedef nb_status pack_block(const nb_qlin *q, size_t row, size_t group, const uint8_t *codes, unsigned char *out, nb_gguf_loss *loss,
                             nb_err *err);

static nb_status pack_rows(const nb_qlin *q, size_t bytes, unsigned char *out, pack_block *pack, nb_gguf_loss *loss, nb_err *err)
{
    nb_status rc = check_blocks(q, err);

    for (size_t n = 0; n < q->n && rc == NB_OK; n++) {
        for (size_t k = 0; k < q->k && rc == NB_OK; k += BLOCK, out += bytes)
            rc = pack(q, n, group_of(q, k), q->codes + n * q->k + k, out, loss, err);
    }
    return rc;
}

/* Code minus zero, which must be in low .. high. */
static nb_status centred(const nb_qlin *q, size_t row, size_t group, const uint8_t *codes, int low, int high, int8_t out[BLOCK],
                         nb_err *err)
{
    const int zero = q->zeros[row * q->n_groups + group];

    for (int i = 0; i < BLOCK; i++) {
        const int c = codes[i] - zero;
        if (c < low || c > high || q->offsets)
            return nb_fail(err, NB_EUNSUPPORTED, "gguf.block", "", "code %d with zero %d is outside %d to %d of this block type", codes[i],
                           zero, low, high);
        out[i] = (int8_t)c;
    }
    return NB_OK;
}

static nb_status block_q4_0(const nb_qlin *q, size_t row, size_t group, const uint8_t *codes, unsigned char *out, nb_gguf_loss *loss,
                            nb_err *err)
{
    const float scale = q->scales[row * q->n_groups + group];
    int8_t c[BLOCK];
    uint16_t d;
    nb_status rc = centred(q, row, group, codes, -8, 7, c, err);

    if (rc != NB_OK)
        return rc;
    if (!to_f16(scale, &d))
        return too_large(err, "scale", scale);
    nb_put_le16(out, d);
    for (int i = 0; i < BLOCK / 2; i++)
        out[2 + i] = (unsigned char)((c[i] + 8) | (c[i + BLOCK / 2] + 8) << 4);
    for (int i = 0; i < BLOCK; i++)
        note(loss, meant(q, row, group, codes[i]), (double)nb_f16_to_f32(d) * c[i], scale);
    return NB_OK;
}

static nb_status block_q8_0(const nb_qlin *q, size_t row, size_t group, const uint8_t *codes, unsigned char *out, nb_gguf_loss *loss,
                            nb_err *err)
{
    const float scale = q->scales[row * q->n_groups + group];
    int8_t c[BLOCK];
    uint16_t d;
    nb_status rc = centred(q, row, group, codes, -128, 127, c, err);

    if (rc != NB_OK)
        return rc;
    if (!to_f16(scale, &d))
        return too_large(err, "scale", scale);
    nb_put_le16(out, d);
    for (int i = 0; i < BLOCK; i++) {
        out[2 + i] = (unsigned char)c[i];
        note(loss, meant(q, row, group, codes[i]), (double)nb_f16_to_f32(d) * c[i], scale);
    }
    return NB_OK;
}

static nb_status block_q4_1(const nb_qlin *q, size_t row, size_t group, const uint8_t *codes, unsigned char *out, nb_gguf_loss *loss,
                            nb_err *err)
{
    const size_t at = row * q->n_groups + group;
    const float scale = q->scales[at];
    const float min = q->offsets ? q->offsets[at] : -scale * (float)q->zeros[at]; /* exact for scales of 16 bits */
    uint16_t d, m;

    if (!to_f16(scale, &d))
        return too_large(err, "scale", scale);
    if (!to_f16(min, &m))
        return too_large(err, "minimum", min);
    nb_put_le16(out, d);
    nb_put_le16(out + 2, m);
    for (int i = 0; i < BLOCK / 2; i++) {
        if ((codes[i] | codes[i + BLOCK / 2]) > 15)
            return nb_fail(err, NB_EUNSUPPORTED, "gguf.block", "", "codes of %u bits do not fit 4", q->bits);
        out[4 + i] = (unsigned char)(codes[i] | codes[i + BLOCK / 2] << 4);
    }
    for (int i = 0; i < BLOCK; i++)
        note(loss, meant(q, row, group, codes[i]), (double)nb_f16_to_f32(d) * codes[i] + (double)nb_f16_to_f32(m), scale);
    return NB_OK;
}

nb_status nb_gguf_pack_q4_0(const nb_qlin *q, unsigned char *out, nb_gguf_loss *loss, nb_err *err)
{
    return pack_rows(q, 18, out, block_q4_0, loss, err);
}

nb_status nb_gguf_pack_q4_1(const nb_qlin *q, unsigned char *out, nb_gguf_loss *loss, nb_err *err)
{
    return pack_rows(q, 20, out, block_q4_1, loss, err);
}

nb_status nb_gguf_pack_q8_0(const nb_qlin *q, unsigned char *out, nb_gguf_loss *loss, nb_err *err)
{
    return pack_rows(q, 34, out, block_q8_0, loss, err);
}

nb_status nb_gguf_round_q8_0(const float *v, size_t n, unsigned char *out, nb_gguf_loss *loss, nb_err *err)
{
    for (size_t b = 0; b + BLOCK <= n; b += BLOCK, out += 34) {
        float most = 0.0f, d, inverse;
        uint16_t h;
        for (int i = 0; i < BLOCK; i++) {
            if (!isfinite(v[b + i]))
                return nb_fail(err, NB_ENUMERIC, "num.nonfinite", "", "value %zu is not finite", b + i);
            most = fabsf(v[b + i]) > most ? fabsf(v[b + i]) : most;
        }
        d = most / 127.0f;
        inverse = d != 0.0f ? 1.0f / d : 0.0f;
        if (!to_f16(d, &h))
            return too_large(err, "scale", d);
        nb_put_le16(out, h);
        for (int i = 0; i < BLOCK; i++) {
            const float c = isfinite(inverse) ? roundf(v[b + i] * inverse) : 0.0f;
            out[2 + i] = (unsigned char)(int8_t)c;
            note(loss, (double)v[b + i], (double)nb_f16_to_f32(h) * (double)c, d);
        }
    }
    return NB_OK;
}
