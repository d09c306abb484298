/* bind_codes.c - float linears held as 8-bit codes, for calibration: a quarter of the memory, twice the speed of f32, and whatever was
 * quantized in groups that fit stays exact.
 *
 * A group of weights is rounded to 255 steps, symmetric: w = (q - 128) * max|w| / 127. Products are those of kern.h's 8-bit matrices,
 * the same bits on every machine. */
#include <math.h>
#include <string.h>

#include "base/wide.h"
#include "model/weights.h"

/* The largest packed group, up to 64, that divides g and k; 0: none. */
static size_t code_group(size_t g, size_t k)
{
    for (size_t c = 64; c >= 8; c -= 8)
        if (g % c == 0 && k % c == 0)
            return c;
    return 0;
}

bool nb_fused_codes(nb_fused *f, const nb_source *src, size_t n_parts, size_t g)
{
    const size_t own = code_group(g, f->k);
    nb_mat m = { .kind = NB_MAT_Q8, .n_strips = f->n_strips, .n_parts = n_parts };

    for (size_t i = 0; i < n_parts; i++)
        if (src[i].q)
            return false;
    if (own == 0 || !nb_q8_layout(&m.q4, f->n_strips * NB_STRIP, f->k, own, true))
        return false;
    f->n_mats = 1;
    f->mats[0] = m;
    f->bytes = nb_mat_bytes(&m);
    return true;
}

/* Codes of n weights, n a group. NaN becomes 0; whoever reads the weights for good refuses it. */
NB_WIDE static void round_group(const float *restrict w, size_t n, float s, uint8_t *restrict code)
{
    const float magic = 12582912.0f;

    for (size_t i = 0; i < n; i++) {
        float v = w[i] / s;
        v = v < -127.0f ? -127.0f : v;
        v = v > 127.0f ? 127.0f : v;
        v = (v + magic) - magic;
        code[i] = (uint8_t)(int32_t)((v == v ? v : 0.0f) + 128.0f);
    }
}

/* The largest |w| of n weights: the largest whole number among bits without sign. */
NB_WIDE static float largest(const float *w, size_t n)
{
    int32_t most = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &w[i], sizeof u);
        const int32_t v = (int32_t)(u & 0x7fffffffu);
        most = v > most ? v : most;
    }
    float out;
    memcpy(&out, &most, sizeof out);
    return out;
}

void nb_codes_round(nb_qlin *q, const float *w)
{
    for (size_t r = 0; r < q->n; r++)
        for (size_t g = 0; g < q->n_groups; g++) {
            const float *from = w + r * q->k + g * q->g;
            const float top = largest(from, q->g), s = top > 0.0f && isfinite(top) ? top / 127.0f : 1.0f;

            q->scales[r * q->n_groups + g] = s > 0.0f ? s : 1.0f;
            q->zeros[r * q->n_groups + g] = 128;
            round_group(from, q->g, s > 0.0f ? s : 1.0f, q->codes + r * q->k + g * q->g);
        }
}

/* ---- replacing ---- */

typedef struct set_job {
    const nb_model *m;
    nb_q8 dst;
    const nb_qlin *q; /* the same codes, or */
    const float *w;   /* rounded */
    size_t row0, n, k;
    nb_err *errs; /* [threads] */
} set_job;

static void set_strips(void *ctx, size_t begin, size_t end, int thread)
{
    const set_job *j = ctx;
    nb_q8 dst = j->dst;
    nb_qlin own = { 0 };

    if (!j->q && nb_qlin_init(&own, NB_STRIP, j->k, dst.g, 8, &j->errs[thread]) != NB_OK)
        return;
    for (size_t s = begin; s < end; s++) {
        const size_t n0 = s * NB_STRIP, rows = j->n - n0 < NB_STRIP ? j->n - n0 : NB_STRIP;
        nb_qlin v = j->q ? *j->q : own;

        v.n = rows;
        if (j->q) {
            v.codes += n0 * v.k;
            v.zeros += n0 * v.n_groups;
            v.scales += n0 * v.n_groups;
        } else {
            nb_codes_round(&v, j->w + n0 * j->k);
        }
        j->m->kern->pack_q8(&dst, j->row0, n0, &v, NULL);
    }
    nb_qlin_clear(&own);
}

nb_status nb_codes_set(const nb_model *m, const nb_mat *mat, size_t row0, size_t n, const nb_qlin *q, const float *w, nb_err *err)
{
    const size_t threads = (size_t)nb_pool_threads(m->pool);
    set_job j = {
        .m = m, .dst = mat->q4, .q = q, .w = w, .row0 = row0, .n = n, .k = mat->q4.k, .errs = nb_calloc(threads, sizeof(nb_err))
    };
    nb_status rc;

    if (!j.errs)
        return nb_enomem(err, "a linear");
    nb_parallel_static(m->pool, (n + NB_STRIP - 1) / NB_STRIP, set_strips, &j);
    rc = nb_first_error(j.errs, threads, err);
    nb_free(j.errs);
    return rc;
}

bool nb_codes_fit(const nb_mat *mat, const nb_qlin *q)
{
    return mat->kind == NB_MAT_Q8 && !q->g_idx && !q->offsets && (q->g % mat->q4.g == 0 || q->g >= q->k);
}
