/* diff.c - see diff.h. */
#include "job/diff.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/strmap.h"
#include "job/convert_priv.h"

enum { UNIT = 128, CHUNK = 1 << 18 }; /* rows are multiples of every stripe; values in a work item */

/* What one side has under a name. */
typedef struct thing {
    const char *name;
    const nb_linear *lin;
    const nb_tensor *t;
} thing;

typedef struct side {
    nb_conv_in in;
    thing *things;
    size_t n;
    nb_strmap *map; /* name -> index */
} side;

typedef struct impl {
    nb_arena arena;
    nb_diff_row *rows;
} impl;

typedef struct job {
    const nb_diff_opts *o;
    side a, b;
    impl *m;
    nb_diff *out;
    /* of the pair at work */
    const thing *ta, *tb;
    nb_diff_row *row;
    size_t per; /* values in a work item */
    pthread_mutex_t lock;
    nb_err *err;
    size_t err_at;
} job;

static uint64_t count_of(const thing *x)
{
    uint64_t n = 0;

    if (x->lin)
        return (uint64_t)x->lin->n * x->lin->k;
    nb_shape_count(x->t->shape, x->t->rank, &n);
    return n;
}

/* ---- lists ----------------------------------------------------------------------------------------------------- */

static nb_status list(job *j, side *s, nb_err *err)
{
    const nb_store *store = s->in.store;
    nb_strmap *parts = nb_strmap_new(s->in.scan.n_linears * 4 + 1);
    nb_status rc = NB_OK;

    s->map = nb_strmap_new(store->n_tensors + 1);
    s->things = nb_arena_calloc(&j->m->arena, store->n_tensors + 1, sizeof *s->things);
    if (!parts || !s->map || !s->things)
        rc = nb_enomem(err, "the list of tensors");
    for (size_t i = 0; i < s->in.scan.n_linears && rc == NB_OK; i++)
        for (size_t p = 0; p < NB_MAX_PARTS && rc == NB_OK; p++) {
            const nb_tensor *t = s->in.scan.linears[i].parts[p];
            if (t && nb_strmap_put(parts, t->name, t->name_len, i, NULL) != NB_OK)
                rc = nb_enomem(err, "the list of tensors");
        }
    for (size_t i = 0; i < store->n_tensors && rc == NB_OK; i++) {
        const nb_tensor *t = &store->tensors[i];
        thing *x = &s->things[s->n];
        bool had = false;
        uint64_t at;
        *x = (thing){ .name = t->name, .t = t };
        if (nb_strmap_get(parts, t->name, t->name_len, &at)) {
            *x = (thing){ .lin = &s->in.scan.linears[at] };
            x->name = nb_arena_printf(&j->m->arena, "%s.weight", x->lin->prefix);
        }
        if (!x->name || nb_strmap_put(s->map, x->name, strlen(x->name), s->n, &had) != NB_OK)
            rc = nb_enomem(err, "the list of tensors");
        s->n += !had; /* other parts of a linear that stands in the list */
    }
    nb_strmap_free(parts);
    return rc;
}

static const thing *find(const side *s, const char *name)
{
    uint64_t at;

    return nb_strmap_get(s->map, name, strlen(name), &at) ? &s->things[at] : NULL;
}

static void describe(const thing *x, char out[40])
{
    char shape[64];

    if (x->lin)
        snprintf(out, 40, "%s %u bits, group %zu", x->lin->format->name, x->lin->spec.bits, x->lin->g);
    else
        snprintf(out, 40, "%s %s", nb_dtype_info(x->t->dtype)->name, nb_shape_str(shape, sizeof shape, x->t->shape, x->t->rank));
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

/* Values [begin, begin + n) of one side; of a linear whole rows, left in q too. */
static nb_status values(job *j, const side *s, const thing *x, uint64_t begin, size_t n, nb_qlin *q, float *out, nb_err *err)
{
    nb_status rc;

    (void)j;
    if (!x->lin)
        return nb_store_read_f32(s->in.store, x->t, begin, n, out, err);
    rc = nb_qlin_init(q, n / x->lin->k, x->lin->k, x->lin->g, x->lin->spec.bits, err);
    if (rc == NB_OK)
        rc = x->lin->format->unpack(x->lin, (size_t)(begin / x->lin->k), q, err);
    if (rc == NB_OK)
        nb_qlin_dequant(q, out);
    return rc;
}

static uint64_t count_bytes(const uint8_t *a, const uint8_t *b, size_t n)
{
    uint64_t d = 0;

    for (size_t i = 0; i < n; i++)
        d += a[i] != b[i];
    return d;
}

static void add_codes(nb_diff_row *r, const nb_qlin *a, const nb_qlin *b)
{
    r->n_codes += count_bytes(a->codes, b->codes, a->n * a->k);
    r->n_zeros += count_bytes(a->zeros, b->zeros, a->n * a->n_groups);
    for (size_t i = 0; i < a->n * a->n_groups; i++)
        r->n_scales += memcmp(&a->scales[i], &b->scales[i], sizeof *a->scales) != 0;
    for (size_t i = 0; i < a->k && (a->g_idx || b->g_idx); i++) /* an input of another group: its codes mean something else */
        r->n_codes += (a->g_idx ? a->g_idx[i] : i / a->g) != (b->g_idx ? b->g_idx[i] : i / b->g) ? a->n : 0;
}

static void add_values(nb_diff_row *r, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        if (isfinite(a[i]))
            r->max_size = fmax(r->max_size, fabs((double)a[i]));
        if (a[i] == b[i] || (isnan(a[i]) && isnan(b[i])))
            continue;
        r->n_values++;
        r->max_abs = isnan(d) ? (double)INFINITY : fmax(r->max_abs, d);
    }
}

static nb_status chunk(job *j, uint64_t begin, size_t n, float *va, float *vb, nb_err *err)
{
    nb_qlin qa = { 0 }, qb = { 0 };
    nb_diff_row r = { 0 };
    nb_status rc = values(j, &j->a, j->ta, begin, n, &qa, va, err);

    if (rc == NB_OK)
        rc = values(j, &j->b, j->tb, begin, n, &qb, vb, err);
    if (rc == NB_OK) {
        add_values(&r, va, vb, n);
        if (j->row->codes)
            add_codes(&r, &qa, &qb);
        pthread_mutex_lock(&j->lock);
        j->row->n_codes += r.n_codes;
        j->row->n_zeros += r.n_zeros;
        j->row->n_scales += r.n_scales;
        j->row->n_values += r.n_values;
        j->row->max_abs = fmax(j->row->max_abs, r.max_abs);
        j->row->max_size = fmax(j->row->max_size, r.max_size);
        pthread_mutex_unlock(&j->lock);
    }
    nb_qlin_clear(&qa);
    nb_qlin_clear(&qb);
    return rc;
}

static void chunks(void *ctx, size_t begin, size_t end, int thread)
{
    job *j = ctx;
    float *va = nb_alloc_array(j->per, sizeof *va), *vb = nb_alloc_array(j->per, sizeof *vb);

    (void)thread;
    for (size_t c = begin; c < end; c++) {
        const uint64_t at = (uint64_t)c * j->per;
        const size_t n = j->row->n - at < j->per ? (size_t)(j->row->n - at) : j->per;
        nb_err e = { 0 };
        const nb_status rc = va && vb ? chunk(j, at, n, va, vb, &e) : nb_enomem(&e, "values to compare");
        if (rc == NB_OK)
            continue;
        pthread_mutex_lock(&j->lock);
        if (c < j->err_at) {
            j->err_at = c;
            *j->err = e;
        }
        pthread_mutex_unlock(&j->lock);
    }
    nb_free(va);
    nb_free(vb);
}

static void drop(const side *s, const thing *x)
{
    for (size_t p = 0; x->lin && p < NB_MAX_PARTS; p++)
        if (x->lin->parts[p])
            nb_store_drop(s->in.store, x->lin->parts[p]);
    if (x->t)
        nb_store_drop(s->in.store, x->t);
}

/* ---- pairs ----------------------------------------------------------------------------------------------------- */

static bool same_shape(const thing *a, const thing *b)
{
    const uint64_t la[2] = { a->lin ? a->lin->n : 0, a->lin ? a->lin->k : 0 }, lb[2] = { b->lin ? b->lin->n : 0, b->lin ? b->lin->k : 0 };
    const unsigned ra = a->lin ? 2 : a->t->rank, rb = b->lin ? 2 : b->t->rank;
    const uint64_t *sa = a->lin ? la : a->t->shape, *sb = b->lin ? lb : b->t->shape;

    return ra == rb && memcmp(sa, sb, ra * sizeof *sa) == 0;
}

static bool readable(const thing *x)
{
    const nb_dtype t = x->lin ? NB_DT_F32 : x->t->dtype;

    return t == NB_DT_F16 || t == NB_DT_BF16 || t == NB_DT_F32 || t == NB_DT_F64 || (x->t && !x->t->data);
}

static nb_status compare(job *j, nb_diff_row *r, const thing *a, const thing *b, nb_err *err)
{
    const nb_linear *la = a->lin, *lb = b->lin, *any = la ? la : lb;

    r->n = count_of(a);
    if (!same_shape(a, b)) {
        r->kind = NB_DIFF_SHAPE;
        return NB_OK;
    }
    if (a->t && b->t && a->t->data && b->t->data && a->t->dtype == b->t->dtype && a->t->n_bytes == b->t->n_bytes &&
        memcmp(a->t->data, b->t->data, (size_t)a->t->n_bytes) == 0)
        return NB_OK;
    if (!readable(a) || !readable(b)) { /* integers and the like: bytes that differ */
        r->kind = a->t && b->t && a->t->dtype == b->t->dtype ? NB_DIFF_VALUES : NB_DIFF_TYPE;
        r->n_values = r->kind == NB_DIFF_VALUES;
        return NB_OK;
    }
    r->codes = la && lb && la->spec.bits == lb->spec.bits && la->g == lb->g;
    j->ta = a;
    j->tb = b;
    j->row = r;
    j->per = CHUNK;
    if (any) {
        const size_t rows = CHUNK / any->k / UNIT * UNIT;
        j->per = (rows ? rows : UNIT) * any->k;
    }
    j->err_at = SIZE_MAX;
    j->err = err;
    nb_parallel_for(j->o->pool, (size_t)((r->n + j->per - 1) / j->per), 1, chunks, j);
    if (j->err_at != SIZE_MAX) {
        nb_err_at(err, NULL, r->name);
        return err->code;
    }
    if (r->n_values)
        r->kind = NB_DIFF_VALUES;
    return NB_OK;
}

/* A bias that is nothing but zeros: some writers add one where the architecture has none. */
static bool is_zero_bias(const thing *x)
{
    const size_t n = strlen(x->name);

    if (!x->t || !x->t->data || n < 5 || strcmp(x->name + n - 5, ".bias") != 0)
        return false;
    for (uint64_t i = 0; i < x->t->n_bytes; i++)
        if (x->t->data[i])
            return false;
    return true;
}

static void tally(job *j, const nb_diff_row *r)
{
    nb_diff *d = j->out;
    const double bound = j->o->tolerance * r->max_size;

    if (r->codes) {
        d->n_quantized++;
        d->n_same_codes += r->n_codes + r->n_zeros + r->n_scales == 0;
    }
    if (r->kind == NB_DIFF_VALUES ? !(r->max_abs > 0 && r->max_abs <= bound) : r->kind != NB_DIFF_SAME)
        d->n_different++;
    if (r->max_abs > j->m->rows[d->worst].max_abs)
        d->worst = (size_t)(r - j->m->rows);
}

static nb_status walk(job *j, nb_err *err)
{
    nb_progress p = { .what = "diff", .unit = "tensors", .total = j->a.n };
    nb_diff *d = j->out;
    nb_status rc = NB_OK;

    for (size_t i = 0; i < j->a.n && rc == NB_OK; i++) {
        const thing *a = &j->a.things[i], *b = find(&j->b, a->name);
        nb_diff_row *r = &j->m->rows[d->n_rows++];
        if (nb_cancelled(j->o->host))
            return nb_fail(err, NB_ECANCELED, "canceled", "", "stopped");
        p.item = r->name = a->name;
        p.done = i;
        nb_report_progress(j->o->host, &p);
        describe(a, r->a);
        if (b) {
            describe(b, r->b);
            rc = compare(j, r, a, b, err);
            drop(&j->b, b);
        } else {
            r->kind = is_zero_bias(a) ? NB_DIFF_SAME : NB_DIFF_ONLY_A;
        }
        drop(&j->a, a);
        tally(j, r);
    }
    for (size_t i = 0; i < j->b.n && rc == NB_OK; i++) {
        const thing *b = &j->b.things[i];
        nb_diff_row *r = &j->m->rows[d->n_rows];
        if (find(&j->a, b->name))
            continue;
        d->n_rows++;
        r->name = b->name;
        describe(b, r->b);
        r->kind = is_zero_bias(b) ? NB_DIFF_SAME : NB_DIFF_ONLY_B;
        tally(j, r);
    }
    return rc;
}

/* Names outlive the stores. */
static nb_status keep_names(job *j, nb_err *err)
{
    for (size_t i = 0; i < j->out->n_rows; i++)
        if (!(j->m->rows[i].name = nb_arena_strndup(&j->m->arena, j->m->rows[i].name, strlen(j->m->rows[i].name))))
            return nb_enomem(err, "the list of tensors");
    return NB_OK;
}

nb_status nb_diff_run(const char *a, const char *b, const nb_diff_opts *o, nb_diff *out, nb_err *err)
{
    job j = { .o = o, .out = out };
    nb_err own = { 0 };
    nb_status rc;

    memset(out, 0, sizeof *out);
    err = err ? err : &own;
    if (!(out->impl = j.m = nb_calloc(1, sizeof *j.m)))
        return nb_enomem(err, "the comparison");
    if (pthread_mutex_init(&j.lock, NULL) != 0) {
        nb_diff_clear(out);
        return nb_enomem(err, "a lock");
    }
    rc = nb_conv_open(a, o->host, &j.a.in, err);
    if (rc == NB_OK)
        rc = nb_conv_open(b, o->host, &j.b.in, err);
    if (rc == NB_OK && (rc = list(&j, &j.a, err)) == NB_OK)
        rc = list(&j, &j.b, err);
    if (rc == NB_OK && !(j.m->rows = nb_arena_calloc(&j.m->arena, j.a.n + j.b.n + 1, sizeof *j.m->rows)))
        rc = nb_enomem(err, "the comparison");
    if (rc == NB_OK)
        rc = walk(&j, err);
    if (rc == NB_OK && (rc = nb_store_still(j.a.in.store, err)) == NB_OK)
        rc = nb_store_still(j.b.in.store, err);
    if (rc == NB_OK)
        rc = keep_names(&j, err);
    out->rows = j.m->rows;
    nb_strmap_free(j.a.map);
    nb_strmap_free(j.b.map);
    nb_conv_close(&j.a.in);
    nb_conv_close(&j.b.in);
    pthread_mutex_destroy(&j.lock);
    if (rc != NB_OK)
        nb_diff_clear(out);
    return rc != NB_OK ? rc : out->n_different ? NB_NO : NB_OK;
}

void nb_diff_clear(nb_diff *d)
{
    impl *m = d->impl;

    if (m)
        nb_arena_clear(&m->arena);
    nb_free(m);
    memset(d, 0, sizeof *d);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------ */

const char *nb_diff_kind_name(nb_diff_kind k)
{
    static const char *const names[] = { "same", "values", "shape", "type", "only_a", "only_b" };

    return (size_t)k < NB_LEN(names) ? names[k] : "?";
}

static nb_json *row_json(const nb_diff_row *r)
{
    nb_json *o = nb_json_new_obj();
    bool ok = o && nb_json_set(o, "tensor", nb_json_new_str(r->name)) &&
              nb_json_set(o, "kind", nb_json_new_str(nb_diff_kind_name(r->kind))) &&
              nb_json_set(o, "a", r->a[0] ? nb_json_new_str(r->a) : nb_json_new_null()) &&
              nb_json_set(o, "b", r->b[0] ? nb_json_new_str(r->b) : nb_json_new_null());

    if (ok && r->kind == NB_DIFF_VALUES)
        ok = nb_json_set(o, "values", nb_json_new_int((int64_t)r->n)) &&
             nb_json_set(o, "different_values", nb_json_new_int((int64_t)r->n_values)) &&
             nb_json_set(o, "max_difference", nb_json_new_real(r->max_abs)) && nb_json_set(o, "max_value", nb_json_new_real(r->max_size));
    if (ok && r->codes)
        ok = nb_json_set(o, "different_codes", nb_json_new_int((int64_t)r->n_codes)) &&
             nb_json_set(o, "different_zeros", nb_json_new_int((int64_t)r->n_zeros)) &&
             nb_json_set(o, "different_scales", nb_json_new_int((int64_t)r->n_scales));
    if (!ok) {
        nb_json_free(o);
        return NULL;
    }
    return o;
}

nb_json *nb_diff_json(const nb_diff *d, const char *a, const char *b)
{
    nb_json *o = nb_json_new_obj(), *rows = nb_json_new_arr();
    bool ok = o && rows;

    for (size_t i = 0; i < d->n_rows && ok; i++)
        if (d->rows[i].kind != NB_DIFF_SAME || d->rows[i].n_codes || d->rows[i].n_zeros || d->rows[i].n_scales)
            ok = nb_json_push(rows, row_json(&d->rows[i]));
    ok = ok && nb_json_set(o, "a", nb_json_new_str(a)) && nb_json_set(o, "b", nb_json_new_str(b)) &&
         nb_json_set(o, "same", nb_json_new_bool(d->n_different == 0)) && nb_json_set(o, "tensors", nb_json_new_int((int64_t)d->n_rows)) &&
         nb_json_set(o, "different_tensors", nb_json_new_int((int64_t)d->n_different)) &&
         nb_json_set(o, "quantized_pairs", nb_json_new_int((int64_t)d->n_quantized)) &&
         nb_json_set(o, "same_codes", nb_json_new_int((int64_t)d->n_same_codes)) &&
         nb_json_set(o, "max_difference", nb_json_new_real(d->n_rows ? d->rows[d->worst].max_abs : 0.0));
    if (ok) {
        ok = nb_json_set(o, "rows", rows);
        rows = NULL;
    }
    nb_json_free(rows);
    if (!ok) {
        nb_json_free(o);
        return NULL;
    }
    return o;
}
