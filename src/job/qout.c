/* qout.c - the directory that quantize writes. */
#include "job/qout.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "job/convert_priv.h"
#include "job/qout_priv.h"

/* In place of a tensor: nothing (it went elsewhere), or what value - FIRST tells: linears from that index on; from mods->n on, one
 * of the writes. Of linears one by one in a tensor that holds several, also those that stay as they are. */
enum { NOTHING, FIRST };

nb_status nb_qout_norm_dtype(const nb_store *s, const nb_plan *plan, nb_dtype scales, nb_dtype *out, nb_err *err)
{
    static const nb_vec folded[] = { NB_VEC_N1, NB_VEC_N2, NB_VEC_QA, NB_VEC_KVA, NB_VEC_N1_BIAS, NB_VEC_N2_BIAS };
    nb_dtype stored_as = scales;
    bool fits = true;

    for (size_t l = 0; l < plan->cfg->n_layers; l++)
        for (size_t v = 0; v < NB_LEN(folded); v++) {
            char name[256];
            const nb_tensor *t = nb_store_find(s, nb_plan_vec(plan, l, folded[v], name, sizeof name));
            const size_t n = nb_plan_vec_size(plan, folded[v]);
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

/* Linears of one tensor form a chain in the order of the walk. */
static nb_status mark_linear(nb_qout *o, size_t i, nb_err *err)
{
    const nb_qmod *m = &o->mods->mods[i];
    uint64_t value;
    nb_status rc = NB_OK;

    o->next[i] = SIZE_MAX;
    if (m->at.serves || (!m->quantized && !m->at.part))
        return NB_OK;
    if (nb_strmap_get(o->replaced, m->at.w->name, m->at.w->name_len, &value)) {
        size_t last = (size_t)(value - FIRST);
        while (o->next[last] != SIZE_MAX)
            last = o->next[last];
        o->next[last] = i;
        return NB_OK;
    }
    rc = replace(o, m->at.w->name, FIRST + i, err);
    if (rc == NB_OK && m->at.more)
        rc = replace(o, m->at.more->name, NOTHING, err);
    if (rc == NB_OK && m->at.bias_part)
        rc = replace(o, m->at.bias->name, NOTHING, err);
    return rc;
}

static nb_status mark_replaced(nb_qout *o, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; i < o->mods->n && rc == NB_OK; i++)
        rc = mark_linear(o, i, err);
    for (size_t i = 0; i < o->writes->n && rc == NB_OK; i++) {
        nb_qwritten at;
        rc = nb_qwrite_find(o->plan, o->src->store, &o->writes->w[i], &at, err);
        if (rc == NB_OK && !at.part) /* else its linear stands in the chain */
            rc = replace(o, at.from->name, FIRST + o->mods->n + i, err);
    }
    return rc;
}

static nb_dtype part_type(const nb_qout *o, size_t part)
{
    return o->fmt->parts[part].dtype != NB_DT_NONE ? o->fmt->parts[part].dtype : o->spec.scale_dtype;
}

static nb_status declare(nb_qout *o, const char *stem, const char *leaf, nb_dtype t, unsigned rank, const uint64_t *shape, nb_err *err)
{
    char name[300];
    uint64_t count, bytes;

    snprintf(name, sizeof name, "%s.%s", stem, leaf);
    if (nb_shape_count(shape, rank, &count) && nb_dtype_bytes(t, count, &bytes))
        o->bytes += bytes;
    return o->sink ? nb_sink_declare(o->sink, name, t, rank, shape, err) : NB_OK;
}

/* The type of a linear that stays as it is although its tensor is taken apart. */
static nb_dtype dense_type(const nb_qout *o, const nb_qmod *m)
{
    return m->at.more ? o->norm_dtype : nb_qwrite_type(&(nb_qwrite){ .kind = NB_QWRITE_DENSE }, m->at.w, o->norm_dtype);
}

/* The parts of a linear; its bias too when that lies beside others. */
static nb_status declare_linear(nb_qout *o, const nb_qmod *m, nb_err *err)
{
    const size_t g = m->spec.group_size < 0 ? m->at.k : (size_t)m->spec.group_size;
    uint64_t shape[4] = { m->at.n, m->at.k };
    nb_status rc = NB_OK;

    if (m->at.bias_part)
        rc = declare(o, m->at.name, "bias", m->at.bias->dtype, 1, shape, err);
    if (!m->quantized)
        return rc == NB_OK ? declare(o, m->at.name, "weight", dense_type(o, m), 2, shape, err) : rc;
    for (size_t p = 0; rc == NB_OK && p < NB_MAX_PARTS && o->fmt->parts[p].suffix; p++) {
        const unsigned rank = nb_format_part_shape(o->fmt, p, m->at.n, m->at.k, g, m->spec.bits, shape);
        if (nb_format_stores(o->fmt, p, &m->spec))
            rc = declare(o, m->at.name, o->fmt->parts[p].suffix, part_type(o, p), rank, shape, err);
    }
    return rc;
}

static nb_status declare_tensor(nb_qout *o, const nb_tensor *t, nb_dtype as, nb_err *err)
{
    uint64_t count, bytes;

    if (nb_shape_count(t->shape, t->rank, &count) && nb_dtype_bytes(as, count, &bytes))
        o->bytes += bytes;
    return o->sink ? nb_sink_declare(o->sink, t->name, as, t->rank, t->shape, err) : NB_OK;
}

/* Without a sink: only count the bytes. A head that was the embedding comes last. */
static nb_status declare_all(nb_qout *o, nb_err *err)
{
    nb_status rc = NB_OK;

    o->bytes = 0;
    for (size_t i = 0; rc == NB_OK && i < o->src->store->n_tensors; i++) {
        const nb_tensor *t = &o->src->store->tensors[i];
        uint64_t what;

        if (!nb_strmap_get(o->replaced, t->name, t->name_len, &what)) {
            rc = declare_tensor(o, t, t->dtype, err);
        } else if (what >= FIRST + o->mods->n) {
            rc = declare_tensor(o, t, nb_qwrite_type(&o->writes->w[what - FIRST - o->mods->n], t, o->norm_dtype), err);
        } else if (what >= FIRST) {
            for (size_t m = (size_t)(what - FIRST); rc == NB_OK && m != SIZE_MAX; m = o->next[m])
                rc = declare_linear(o, &o->mods->mods[m], err);
        }
    }
    if (rc == NB_OK && nb_qmods_head(o->mods) && nb_qmods_head(o->mods)->at.serves)
        rc = declare_linear(o, nb_qmods_head(o->mods), err);
    return rc == NB_OK && o->sink ? nb_sink_begin(o->sink, err) : rc;
}

nb_status nb_qout_open(nb_qout **out, nb_loaded *src, const nb_plan *plan, const nb_qmods *mods, const nb_format *fmt, const nb_qspec *spec,
                       const nb_qwrites *writes, nb_pool *pool, const nb_host *host, nb_err *err)
{
    nb_qout *o = nb_calloc(1, sizeof *o);
    nb_status rc;

    *out = NULL;
    if (!o)
        return nb_enomem(err, "the output");
    o->src = src;
    o->plan = plan;
    o->mods = mods;
    o->writes = writes;
    o->fmt = fmt;
    o->spec = *spec;
    o->pool = pool;
    o->host = host;
    o->replaced = nb_strmap_new(1024);
    o->prints = nb_strmap_new(1024);
    o->files = nb_json_new_obj();
    o->next = nb_alloc_array(mods->n ? mods->n : 1, sizeof *o->next);
    rc = o->replaced && o->prints && o->files && o->next ? mark_replaced(o, err) : nb_enomem(err, "the list of tensors");
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

nb_status nb_qout_begin(nb_qout *o, const char *path, const char *staging, bool force, const char *recipe, nb_err *err)
{
    const char *inputs[1] = { nb_hfdir_path(o->src->dir) };
    nb_status rc;

    nb_sink_close(o->sink);
    nb_outdir_abort(o->dir);
    o->sink = NULL;
    o->dir = NULL;
    rc = nb_outdir_reopen(&o->dir, path, staging, force, inputs, 1, err);

    if (rc == NB_OK)
        rc = nb_st_sink_open(&o->sink, o->dir, 0, err);
    if (rc == NB_OK) {
        nb_st_sink_resume(o->sink);
        rc = nb_st_sink_meta(o->sink, "nibble", recipe, err);
    }
    return rc == NB_OK ? declare_all(o, err) : rc;
}

void nb_qout_abort(nb_qout *o)
{
    if (!o)
        return;
    nb_sink_close(o->sink);
    nb_outdir_abort(o->dir);
    for (size_t p = 0; p < NB_MAX_PARTS; p++)
        nb_free(o->part[p]);
    nb_strmap_free(o->replaced);
    nb_strmap_free(o->prints);
    nb_json_free(o->files);
    nb_free(o->next);
    nb_json_free(o->notes);
    nb_json_free(o->taken);
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

/* Bytes go out in pieces by one thread while another takes their print. */
struct put_ctx {
    nb_qout *o;
    const char *name;
    const unsigned char *p;
    uint64_t bytes, print;
    nb_status rc;
    nb_err err;
};

static void put_half(void *user, size_t begin, size_t end, int thread)
{
    struct put_ctx *c = user;

    (void)thread;
    for (size_t i = begin; i < end; i++)
        if (i == 0)
            c->rc = nb_sink_write(c->o->sink, c->name, 0, c->p, c->bytes, &c->err);
        else
            c->print = nb_print_bytes(c->p, (size_t)c->bytes, 0);
}

static nb_status put(nb_qout *o, const char *name, const void *p, uint64_t bytes, nb_err *err)
{
    struct put_ctx c = { .o = o, .name = name, .p = p, .bytes = bytes };

    if (!o->taken)
        o->taken = nb_json_new_arr();
    o->failed = !nb_json_push(o->taken, nb_json_new_str(name)) || o->failed;
    nb_parallel_for(o->pool, 2, 1, put_half, &c);
    if (nb_strmap_put(o->prints, name, strlen(name), c.print, NULL) != NB_OK)
        return nb_enomem(err, "the list of tensors");
    if (c.rc != NB_OK && err)
        *err = c.err;
    return c.rc;
}

/* The bias of a linear whose tensor holds those of others too. */
static nb_status write_bias(nb_qout *o, const nb_qmod *m, nb_err *err)
{
    const nb_dtype t = m->at.bias->dtype;
    const size_t bytes = m->at.n * nb_dtype_info(t)->bits / 8;
    float *b = nb_alloc_array(m->at.n, sizeof *b);
    void *p = nb_alloc(bytes);
    nb_status rc = b && p ? nb_stored_bias(o->plan, o->src->store, m->layer, m->mod, b, err) : nb_enomem(err, "a bias");
    char name[300];

    snprintf(name, sizeof name, "%s.bias", m->at.name);
    if (rc == NB_OK)
        rc = nb_from_f32(p, b, t, m->at.n)
                 ? put(o, name, p, bytes, err)
                 : nb_fail(err, NB_EINTERNAL, "internal", "", "a bias cannot be stored as %s", nb_dtype_info(t)->name);
    nb_free(p);
    nb_free(b);
    return rc;
}

nb_status nb_qout_linear_begin(nb_qout *o, const nb_qmod *m, const nb_qlin *whole, nb_err *err)
{
    nb_status rc = m->at.bias_part ? write_bias(o, m, err) : NB_OK;

    memset(o->part_bytes, 0, sizeof o->part_bytes);
    for (size_t p = 0; rc == NB_OK && p < NB_MAX_PARTS && o->fmt->parts[p].suffix; p++) {
        uint64_t shape[4], count, *bytes = &o->part_bytes[p];
        const unsigned rank = nb_format_part_shape(o->fmt, p, whole->n, whole->k, whole->g, whole->bits, shape);

        if (!nb_format_stores(o->fmt, p, &m->spec))
            continue;
        if (!nb_shape_count(shape, rank, &count) || !nb_dtype_bytes(part_type(o, p), count, bytes))
            return nb_enomem(err, "a packed linear");
        if (*bytes > o->part_cap[p]) {
            nb_free(o->part[p]);
            o->part[p] = nb_alloc((size_t)*bytes);
            o->part_cap[p] = o->part[p] ? *bytes : 0;
        }
        if (!o->part[p])
            return nb_enomem(err, "a packed linear");
        memset(o->part[p], 0, (size_t)*bytes);
    }
    return rc;
}

nb_status nb_qout_pack(nb_qout *o, const nb_qlin *q, size_t n0, size_t n, nb_err *err)
{
    void *part[NB_MAX_PARTS];

    for (size_t p = 0; p < NB_MAX_PARTS; p++) /* a buffer that only other linears need */
        part[p] = o->part_bytes[p] ? o->part[p] : NULL;
    return o->fmt->pack(q, n0, n, part, err);
}

nb_status nb_qout_linear_end(nb_qout *o, const nb_qmod *m, nb_err *err)
{
    nb_status rc = NB_OK;
    char name[300];

    for (size_t p = 0; rc == NB_OK && p < NB_MAX_PARTS; p++) {
        if (!o->part_bytes[p])
            continue;
        snprintf(name, sizeof name, "%s.%s", m->at.name, o->fmt->parts[p].suffix);
        rc = put(o, name, o->part[p], o->part_bytes[p], err);
    }
    return rc;
}

struct pack_ctx {
    nb_qout *o;
    const nb_qlin *q;
    nb_err *errs; /* [stripes] */
};

static void pack_stripes(void *user, size_t begin, size_t end, int thread)
{
    const struct pack_ctx *c = user;

    (void)thread;
    for (size_t t = begin; t < end; t++) {
        const size_t n0 = t * NB_QOUT_STRIPE;
        nb_qlin q = *c->q;

        q.n = q.n - n0 < NB_QOUT_STRIPE ? q.n - n0 : NB_QOUT_STRIPE;
        q.codes += n0 * q.k;
        q.zeros += n0 * q.n_groups;
        q.scales += n0 * q.n_groups;
        (void)nb_qout_pack(c->o, &q, n0, c->q->n, &c->errs[t]);
    }
}

nb_status nb_qout_linear(nb_qout *o, const nb_qmod *m, const nb_qlin *q, nb_err *err)
{
    const size_t stripes = (q->n + NB_QOUT_STRIPE - 1) / NB_QOUT_STRIPE;
    struct pack_ctx c = { .o = o, .q = q, .errs = nb_calloc(stripes, sizeof *c.errs) };
    nb_status rc = c.errs ? nb_qout_linear_begin(o, m, q, err) : nb_enomem(err, "a packed linear");

    if (rc == NB_OK)
        nb_parallel_for(o->pool, stripes, 1, pack_stripes, &c);
    for (size_t t = 0; rc == NB_OK && t < stripes; t++)
        if ((rc = c.errs[t].code) != NB_OK && err)
            *err = c.errs[t];
    nb_free(c.errs);
    return rc == NB_OK ? nb_qout_linear_end(o, m, err) : rc;
}

/* v[n][k] (k 0: v[n]) as `type`; turned: stored [k][n]. */
static nb_status put_floats(nb_qout *o, const char *name, const float *v, size_t n, size_t k, bool turned, nb_dtype type, nb_err *err)
{
    const size_t count = n * (k ? k : 1), bytes = count * nb_dtype_info(type)->bits / 8;
    float *t = turned ? nb_alloc_array(count, sizeof *t) : NULL;
    void *p = nb_alloc(bytes);
    nb_status rc = p && (t || !turned) ? NB_OK : nb_enomem(err, "a folded tensor");

    for (size_t r = 0; rc == NB_OK && turned && r < n; r++)
        for (size_t i = 0; i < k; i++)
            t[i * n + r] = v[r * k + i];
    if (rc == NB_OK && !nb_from_f32(p, turned ? t : v, type, count))
        rc = nb_fail(err, NB_EINTERNAL, "internal", "", "\"%s\" cannot be stored as %s", name, nb_dtype_info(type)->name);
    if (rc == NB_OK)
        rc = put(o, name, p, bytes, err);
    nb_free(p);
    nb_free(t);
    return rc;
}

nb_status nb_qout_keep(nb_qout *o, const nb_qmod *m, nb_err *err)
{
    nb_status rc;
    float *w;

    if (!m->at.part)
        return NB_OK;
    rc = m->at.bias_part ? write_bias(o, m, err) : NB_OK;
    for (size_t i = 0; i < o->writes->n; i++)
        if (o->writes->w[i].kind == NB_QWRITE_DENSE && o->writes->w[i].layer == m->layer && o->writes->w[i].mod == m->mod)
            return rc;
    w = nb_alloc_array(m->at.n, m->at.k * sizeof *w);
    if (rc == NB_OK)
        rc = w ? nb_stored_read(o->plan, o->src->store, m->layer, m->mod, w, err) : nb_enomem(err, "a linear");
    if (rc == NB_OK) {
        char name[300];
        snprintf(name, sizeof name, "%s.weight", m->at.name);
        rc = put_floats(o, name, w, m->at.n, m->at.k, false, dense_type(o, m), err);
    }
    nb_free(w);
    return rc;
}

nb_status nb_qout_write(nb_qout *o, const nb_qwrite *w, const float *v, nb_err *err)
{
    nb_qwritten at;
    nb_status rc = nb_qwrite_find(o->plan, o->src->store, w, &at, err);

    if (rc != NB_OK)
        return rc;
    if (at.part && w->kind == NB_QWRITE_DENSE) {
        const nb_qmod *m = nb_qmods_find(o->mods, w->layer, w->mod);
        return put_floats(o, at.name, v, at.n, at.k, false, dense_type(o, m), err);
    }
    /* the written tensor keeps its name and shape, Conv1D too */
    return put_floats(o, at.from->name, v, at.n, at.k, at.k && o->plan->cfg->transposed && w->mod < NB_ROLE_COUNT,
                      nb_qwrite_type(w, at.from, o->norm_dtype), err);
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
                return nb_fail(err, NB_ECANCELED, "canceled", "", "stopped on request");
            rc = nb_sink_write(o->sink, t->name, at, t->data + at, n, err);
            if (rc != NB_OK)
                return rc;
        }
        nb_store_drop(o->src->store, t);
    }
    return nb_store_still(o->src->store, err);
}

/* ---- small files ---- */

static nb_status put_file(nb_qout *o, const char *name, const void *p, size_t n, nb_err *err)
{
    if (!nb_json_set(o->files, name, nb_json_new_int((int64_t)nb_print_bytes(p, n, 0))))
        return nb_enomem(err, "the list of files");
    return nb_outdir_put(o->dir, name, p, n, err);
}

static nb_status put_json(nb_qout *o, const char *name, const nb_json *v, nb_err *err)
{
    char *text = nb_json_dump(v, 2, false);
    nb_buf b = { 0 };
    nb_status rc;

    if (text) {
        nb_buf_puts(&b, text);
        nb_buf_putc(&b, '\n');
    }
    rc = text && !b.failed ? put_file(o, name, b.p, b.n, err) : nb_enomem(err, name);
    nb_buf_clear(&b);
    nb_free(text);
    return rc;
}

/* ---- what is not quantized ---- */

typedef struct kept {
    char (*names)[256];
    const char **list;
    size_t n, cap;
} kept;

static bool keep_name(kept *k, const char *name, size_t len)
{
    for (size_t i = k->n; i-- > 0;)
        if (strlen(k->names[i]) == len && memcmp(k->names[i], name, len) == 0)
            return true;
    if (k->n == k->cap) {
        const size_t cap = k->cap ? 2 * k->cap : 64;
        char(*p)[256] = nb_realloc(k->names, cap * sizeof *p);
        if (!p)
            return false;
        k->names = p;
        k->cap = cap;
    }
    snprintf(k->names[k->n++], sizeof *k->names, "%.*s", (int)len, name);
    return true;
}

/* Linears outside the decoder layers are named by their tower: "vision_tower", "model.vision_tower"; "" for the embedding. */
static size_t tower_of(const nb_qout *o, const char *name)
{
    static const char outer[] = "model.";
    const size_t n = strlen(o->plan->prefix), skip = strncmp(name, outer, strlen(outer)) == 0 ? strlen(outer) : 0;
    const char *dot;

    if (n > 0 && strncmp(name, o->plan->prefix, n) == 0)
        return 0;
    dot = strchr(name + skip, '.');
    return dot && n > 0 ? (size_t)(dot - name) : 0;
}

/* Every matrix that stays: linears of layers by their full names, routers too, those of other towers, the head. */
static bool list_kept(const nb_qout *o, kept *k)
{
    const size_t suffix = strlen(".weight");
    const char *head = o->plan->head[0] ? o->plan->head : "lm_head";
    char layers[160];
    bool ok = nb_qmods_head(o->mods) || keep_name(k, head, strlen(head));
    size_t len;

    nb_plan_layer(o->plan, 0, layers, sizeof layers);
    len = strlen(layers) - strlen("0.");
    for (size_t i = 0; i < o->mods->n && ok; i++)
        if (!o->mods->mods[i].quantized)
            ok = keep_name(k, o->mods->mods[i].at.name, strlen(o->mods->mods[i].at.name));
    for (size_t i = 0; i < o->src->store->n_tensors && ok; i++) {
        const nb_tensor *t = &o->src->store->tensors[i];
        const bool matrix = t->rank == 2 && t->name_len > suffix && strcmp(t->name + t->name_len - suffix, ".weight") == 0;
        uint64_t what;

        if (!matrix || (nb_strmap_get(o->replaced, t->name, t->name_len, &what) && what < FIRST + o->mods->n))
            continue;
        if (strncmp(t->name, layers, len) == 0)
            ok = keep_name(k, t->name, t->name_len - suffix);
        else if (tower_of(o, t->name))
            ok = keep_name(k, t->name, tower_of(o, t->name));
    }
    k->list = ok ? nb_alloc_array(k->n, sizeof *k->list) : NULL;
    for (size_t i = 0; k->list && i < k->n; i++)
        k->list[i] = k->names[i];
    return k->list != NULL;
}

/* The object for the configs: global values, what is not quantized, what is quantized otherwise. NULL: no memory. */
static nb_json *quant_config(const nb_qout *o)
{
    kept k = { 0 };
    nb_json *q = list_kept(o, &k) ? o->fmt->config(&o->spec, k.list, k.n) : NULL;
    bool ok = q != NULL;

    for (size_t i = 0; i < o->mods->n && ok; i++) {
        const nb_qmod *m = &o->mods->mods[i];
        if (m->quantized && !nb_qspec_same(&m->spec, &o->spec))
            ok = o->fmt->override(q, m->at.name, &m->spec);
    }
    if (ok && nb_qmods_head(o->mods))
        ok = nb_json_set(q, "lm_head", nb_json_new_bool(true));
    nb_free(k.names);
    nb_free(k.list);
    if (ok)
        return q;
    nb_json_free(q);
    return NULL;
}

static bool untie_in(nb_json *cfg)
{
    static const char lfm2[] = "tie_embedding";

    return nb_json_set(cfg, "tie_word_embeddings", nb_json_new_bool(false)) &&
           (!nb_json_get(cfg, lfm2) || nb_json_set(cfg, lfm2, nb_json_new_bool(false)));
}

/* The embedding is not the head any more: said where multimodal models keep it, too. */
static bool untie(nb_json *cfg)
{
    static const char inner[] = "text_config";
    nb_json *text = nb_json_typeof(nb_json_get(cfg, inner)) == NB_JOBJ ? nb_json_copy(nb_json_get(cfg, inner)) : NULL;
    const bool ok = untie_in(cfg) && (!text || untie_in(text));

    if (text && ok)
        return nb_json_set(cfg, inner, text);
    nb_json_free(text);
    return ok;
}

/* config.json with the quantization and the dtype in which plain tensors are to be used, and quantize_config.json. */
static nb_status put_config(nb_qout *o, nb_err *err)
{
    const char *dtype = nb_dtype_info(o->spec.scale_dtype)->torch;
    nb_json *cfg = nb_json_copy(o->src->config), *q = quant_config(o);
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
    ok = ok && (!nb_qmods_head(o->mods) || !o->plan->cfg->tie_embeddings || untie(cfg));
    ok = ok && nb_json_set(cfg, "quantization_config", nb_json_copy(q));
    if (ok)
        rc = put_json(o, "quantize_config.json", q, err);
    if (ok && rc == NB_OK)
        rc = put_json(o, "config.json", cfg, err); /* last of all files: what lacks it is no model (DU-02) */
    nb_json_free(q);
    nb_json_free(cfg);
    return ok ? rc : nb_enomem(err, "config.json");
}

static nb_status copy_small(nb_qout *o, nb_err *err)
{
    static const char *const own[] = { "config.json", "quantize_config.json", "quant_config.json", "quantization_config.json" };
    nb_status rc = NB_OK;

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
            rc = put_file(o, name, p, n, err);
    }
    return rc == NB_OK ? put_config(o, err) : rc;
}

nb_status nb_qout_put(nb_qout *o, const char *name, const char *text, nb_err *err)
{
    return put_file(o, name, text, strlen(text), err);
}

nb_status nb_qout_tensors(nb_qout *o, nb_err *err)
{
    const nb_status rc = copy_rest(o, err);

    return rc == NB_OK ? nb_sink_finish(o->sink, err) : rc;
}

nb_status nb_qout_complete(nb_qout *o, nb_err *err)
{
    const nb_status rc = copy_small(o, err);

    return rc == NB_OK ? nb_qout_read_back(o, err) : rc;
}

nb_status nb_qout_commit(nb_qout *o, nb_err *err)
{
    nb_status rc;

    nb_sink_close(o->sink);
    o->sink = NULL;
    rc = nb_outdir_commit(o->dir, err);
    o->dir = NULL;
    nb_qout_abort(o);
    return rc;
}
