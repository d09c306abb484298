/* qout.c - the directory that quantize writes. */
#include "job/qout.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/strmap.h"
#include "tensor/sink.h"

struct nb_qout {
    nb_outdir *dir;
    nb_sink *sink;
    nb_loaded *src;
    const nb_plan *plan;
    const nb_format *fmt;
    nb_qspec spec;
    const nb_host *host;
    nb_strmap *replaced; /* name of a stored tensor that is not copied -> 0 */
    nb_json *notes;      /* further values of the config */
    nb_dtype norm_dtype;
    uint64_t bytes;
};

/* Original weights and norms as the store names them. */
static void weight_name(const nb_plan *p, size_t layer, nb_role role, char out[256])
{
    nb_plan_linear(p, layer, role, out, 248);
    strcat(out, ".weight");
}

nb_status nb_qout_norm_dtype(const nb_store *s, const nb_plan *plan, nb_dtype scales, nb_dtype *out, nb_err *err)
{
    nb_dtype stored_as = scales;
    bool fits = true;

    for (size_t l = 0; l < plan->cfg->n_layers; l++)
        for (int v = NB_VEC_N1; v <= NB_VEC_N2; v++) {
            char name[256];
            const nb_tensor *t = nb_store_find(s, nb_plan_vec(plan, l, (nb_vec)v, name, sizeof name));
            const size_t n = nb_plan_vec_size(plan, (nb_vec)v);
            float *w;
            nb_status rc;

            if (!t || n == 0)
                continue;
            stored_as = t->dtype;
            w = nb_alloc_array(n, sizeof *w);
            if (!w)
                return nb_enomem(err, "a norm vector");
            rc = nb_store_read_f32((nb_store *)s, t, 0, n, w, err);
            for (size_t i = 0; rc == NB_OK && i < n; i++)
                fits = fits && (scales != NB_DT_F16 || fabsf(w[i]) < 32768.0f);
            nb_free(w);
            if (rc != NB_OK)
                return rc;
        }
    *out = fits ? scales : stored_as;
    return NB_OK;
}

/* ---- layout ---- */

static nb_status replace(nb_qout *o, const char *name, uint64_t value, nb_err *err)
{
    return nb_strmap_put(o->replaced, name, strlen(name), value, NULL) == NB_OK ? NB_OK : nb_enomem(err, "the list of tensors");
}

static nb_status mark_replaced(nb_qout *o, const bool fold_norms[NB_VEC_COUNT], nb_err *err)
{
    nb_status rc = NB_OK;
    char name[256];

    for (size_t l = 0; l < o->plan->cfg->n_layers; l++) {
        for (int r = 0; rc == NB_OK && r < NB_ROLE_COUNT; r++)
            if (o->plan->has_role[r]) {
                weight_name(o->plan, l, (nb_role)r, name);
                rc = replace(o, name, (uint64_t)r, err);
            }
        for (int v = 0; rc == NB_OK && v < NB_VEC_COUNT; v++)
            if (fold_norms[v])
                rc = replace(o, nb_plan_vec(o->plan, l, (nb_vec)v, name, sizeof name), NB_ROLE_COUNT, err);
    }
    return rc;
}

static nb_status declare_linear(nb_qout *o, const nb_tensor *t, nb_role role, nb_err *err)
{
    const int stem = (int)(t->name_len - strlen("weight"));
    size_t n, k;

    nb_plan_linear_size(o->plan, role, &n, &k);
    for (size_t p = 0; p < NB_MAX_PARTS && o->fmt->parts[p].suffix; p++) {
        const size_t g = o->spec.group_size < 0 ? k : (size_t)o->spec.group_size;
        const nb_dtype dt = o->fmt->parts[p].dtype != NB_DT_NONE ? o->fmt->parts[p].dtype : o->spec.scale_dtype;
        char name[300];
        uint64_t shape[4], count, bytes;
        const unsigned rank = nb_format_part_shape(o->fmt, p, n, k, g, o->spec.bits, shape);
        nb_status rc;

        if (!nb_format_stores(o->fmt, p, &o->spec))
            continue;
        snprintf(name, sizeof name, "%.*s%s", stem, t->name, o->fmt->parts[p].suffix);
        rc = nb_sink_declare(o->sink, name, dt, rank, shape, err);
        if (rc != NB_OK)
            return rc;
        if (nb_shape_count(shape, rank, &count) && nb_dtype_bytes(dt, count, &bytes))
            o->bytes += bytes;
    }
    return NB_OK;
}

static nb_status declare_all(nb_qout *o, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < o->src->store->n_tensors; i++) {
        const nb_tensor *t = &o->src->store->tensors[i];
        uint64_t role;

        if (!nb_strmap_get(o->replaced, t->name, t->name_len, &role)) {
            rc = nb_sink_declare(o->sink, t->name, t->dtype, t->rank, t->shape, err);
            o->bytes += t->n_bytes;
        } else if (role == NB_ROLE_COUNT) {
            rc = nb_sink_declare(o->sink, t->name, o->norm_dtype, t->rank, t->shape, err);
            o->bytes += t->shape[0] * nb_dtype_info(o->norm_dtype)->bits / 8;
        } else {
            rc = declare_linear(o, t, (nb_role)role, err);
        }
    }
    return rc == NB_OK ? nb_sink_begin(o->sink, err) : rc;
}

nb_status nb_qout_open(nb_qout **out, const char *path, bool force, nb_loaded *src, const nb_plan *plan, const nb_format *fmt,
                       const nb_qspec *spec, const bool fold_norms[NB_VEC_COUNT], const nb_host *host, nb_err *err)
{
    nb_qout *o = nb_calloc(1, sizeof *o);
    const char *inputs[1];
    nb_status rc;

    *out = NULL;
    if (!o)
        return nb_enomem(err, "the output");
    o->src = src;
    o->plan = plan;
    o->fmt = fmt;
    o->spec = *spec;
    o->host = host;
    inputs[0] = nb_hfdir_path(src->dir);
    rc = nb_outdir_open(&o->dir, path, force, inputs, 1, err);
    if (rc == NB_OK)
        rc = nb_st_sink_open(&o->sink, o->dir, 0, err);
    if (rc == NB_OK) {
        o->replaced = nb_strmap_new(1024);
        rc = o->replaced ? mark_replaced(o, fold_norms, err) : nb_enomem(err, "the list of tensors");
    }
    if (rc == NB_OK)
        rc = nb_qout_norm_dtype(src->store, plan, spec->scale_dtype, &o->norm_dtype, err);
    if (rc == NB_OK)
        rc = declare_all(o, err);
    if (rc == NB_OK)
        *out = o;
    else
        nb_qout_abort(o);
    return rc;
}

void nb_qout_abort(nb_qout *o)
{
    if (!o)
        return;
    nb_sink_close(o->sink);
    nb_outdir_abort(o->dir);
    nb_strmap_free(o->replaced);
    nb_json_free(o->notes);
    nb_free(o);
}

nb_status nb_qout_note(nb_qout *o, const char *key, nb_json *v, nb_err *err)
{
    if (!o->notes)
        o->notes = nb_json_new_obj();
    return nb_json_set(o->notes, key, v) ? NB_OK : nb_enomem(err, "the quantization config");
}

uint64_t nb_qout_bytes(const nb_qout *o)
{
    return o->bytes;
}

/* ---- tensors ---- */

nb_status nb_qout_linear(nb_qout *o, size_t layer, nb_role role, const nb_qlin *q, nb_err *err)
{
    void *part[NB_MAX_PARTS] = { NULL };
    uint64_t bytes[NB_MAX_PARTS] = { 0 };
    char stem[224], name[256];
    nb_status rc = NB_OK;
    size_t p;

    nb_plan_linear(o->plan, layer, role, stem, sizeof stem);
    for (p = 0; p < NB_MAX_PARTS && o->fmt->parts[p].suffix; p++) {
        const nb_dtype dt = o->fmt->parts[p].dtype != NB_DT_NONE ? o->fmt->parts[p].dtype : o->spec.scale_dtype;
        uint64_t shape[4], count;
        const unsigned rank = nb_format_part_shape(o->fmt, p, q->n, q->k, q->g, q->bits, shape);

        if (!nb_format_stores(o->fmt, p, &o->spec))
            continue;
        if (!nb_shape_count(shape, rank, &count) || !nb_dtype_bytes(dt, count, &bytes[p]) || !(part[p] = nb_calloc(1, (size_t)bytes[p]))) {
            rc = nb_enomem(err, "a packed linear");
            goto done;
        }
    }
    rc = o->fmt->pack(q, 0, q->n, part, err);
    for (p = 0; rc == NB_OK && p < NB_MAX_PARTS; p++) {
        if (!part[p])
            continue;
        snprintf(name, sizeof name, "%s.%s", stem, o->fmt->parts[p].suffix);
        rc = nb_sink_write(o->sink, name, 0, part[p], bytes[p], err);
    }
done:
    for (p = 0; p < NB_MAX_PARTS; p++)
        nb_free(part[p]);
    return rc;
}

nb_status nb_qout_norm(nb_qout *o, size_t layer, nb_vec vec, const float *w, size_t n, nb_dtype t, nb_err *err)
{
    const size_t bytes = n * nb_dtype_info(t)->bits / 8;
    char name[256];
    void *p = nb_alloc(bytes);
    nb_status rc;

    if (!p)
        return nb_enomem(err, "a norm vector");
    if (t == o->norm_dtype && nb_from_f32(p, w, t, n))
        rc = nb_sink_write(o->sink, nb_plan_vec(o->plan, layer, vec, name, sizeof name), 0, p, bytes, err);
    else
        rc = nb_fail(err, NB_EINTERNAL, "internal", "", "a norm cannot be stored as %s", nb_dtype_info(t)->name);
    nb_free(p);
    return rc;
}

static nb_status copy_rest(nb_qout *o, nb_err *err)
{
    const uint64_t step = 16u << 20;

    for (size_t i = 0; i < o->src->store->n_tensors; i++) {
        const nb_tensor *t = &o->src->store->tensors[i];

        if (nb_strmap_get(o->replaced, t->name, t->name_len, NULL))
            continue;
        for (uint64_t at = 0; at < t->n_bytes || at == 0; at += step) {
            const uint64_t n = t->n_bytes - at < step ? t->n_bytes - at : step;
            nb_status rc;

            if (nb_cancelled(o->host))
                return nb_fail(err, NB_ECANCELED, "canceled", "", "stopped on request; nothing was written");
            rc = nb_sink_write(o->sink, t->name, at, t->data + at, n, err);
            if (rc != NB_OK)
                return rc;
        }
        nb_store_drop(o->src->store, t);
    }
    return nb_store_still(o->src->store, err);
}

/* ---- small files ---- */

static nb_status put_json(nb_qout *o, const char *name, const nb_json *v, nb_err *err)
{
    char *text = nb_json_dump(v, 2, false);
    nb_buf b = { 0 };
    nb_status rc;

    if (text) {
        nb_buf_puts(&b, text);
        nb_buf_putc(&b, '\n');
    }
    rc = text && !b.failed ? nb_outdir_put(o->dir, name, b.p, b.n, err) : nb_enomem(err, name);
    nb_buf_clear(&b);
    nb_free(text);
    return rc;
}

/* config.json with the quantization and the dtype in which plain tensors are to be used, and quantize_config.json. */
static nb_status put_config(nb_qout *o, nb_err *err)
{
    static const char *const keep[] = { "lm_head" };
    const char *dtype = nb_dtype_info(o->spec.scale_dtype)->torch;
    nb_json *cfg = nb_json_copy(o->src->config), *q = o->fmt->config(&o->spec, keep, NB_LEN(keep));
    nb_status rc = NB_OK;
    bool ok = cfg && q;

    for (size_t i = 0; ok && i < nb_json_len(o->notes); i++) {
        const char *key;
        const nb_json *v = nb_json_member(o->notes, i, &key);
        ok = nb_json_set(q, key, nb_json_copy(v));
    }
    if (ok && nb_json_get(cfg, "dtype"))
        ok = nb_json_set(cfg, "dtype", nb_json_new_str(dtype));
    if (ok && (nb_json_get(cfg, "torch_dtype") || !nb_json_get(cfg, "dtype")))
        ok = nb_json_set(cfg, "torch_dtype", nb_json_new_str(dtype));
    ok = ok && nb_json_set(cfg, "quantization_config", nb_json_copy(q));
    if (ok)
        rc = put_json(o, "config.json", cfg, err);
    if (ok && rc == NB_OK)
        rc = put_json(o, "quantize_config.json", q, err);
    nb_json_free(q);
    nb_json_free(cfg);
    return ok ? rc : nb_enomem(err, "config.json");
}

static nb_status copy_small(nb_qout *o, nb_err *err)
{
    static const char *const own[] = { "config.json", "quantize_config.json", "quant_config.json", "quantization_config.json" };
    nb_status rc = put_config(o, err);

    for (size_t i = 0; rc == NB_OK && i < nb_hfdir_count(o->src->dir); i++) {
        const char *name = nb_hfdir_name(o->src->dir, i), *p;
        bool skip = false;
        size_t n;

        for (size_t j = 0; j < NB_LEN(own); j++)
            skip = skip || strcmp(name, own[j]) == 0;
        if (skip)
            continue;
        rc = nb_hfdir_file(o->src->dir, name, &p, &n, err);
        if (rc == NB_OK && p)
            rc = nb_outdir_put(o->dir, name, p, n, err);
    }
    return rc;
}

nb_status nb_qout_commit(nb_qout *o, nb_err *err)
{
    nb_status rc = copy_rest(o, err);

    if (rc == NB_OK)
        rc = copy_small(o, err);
    if (rc == NB_OK)
        rc = nb_sink_finish(o->sink, err);
    if (rc == NB_OK) {
        nb_sink_close(o->sink);
        o->sink = NULL;
        rc = nb_outdir_commit(o->dir, err);
        o->dir = NULL;
    }
    nb_qout_abort(o);
    return rc;
}
