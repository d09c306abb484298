/* convert.c - see convert.h. One tensor after another; inside a tensor, stripes of rows over the pool. A stripe's values
 * depend on nothing but the input, so the output is the same on any number of threads. */
#include "job/convert_priv.h"
#include "job/inferred.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "base/strmap.h"
#include "quant/convention.h"
#include "tensor/sink.h"

enum { CHUNK = 1 << 18 }; /* values per work item */

/* One tensor of the output. */
typedef struct item {
    const nb_tensor *src; /* plain tensor, else NULL         */
    const nb_linear *lin; /* quantized linear, else NULL     */
    const char *name;
    nb_dtype dtype;
    unsigned rank;
    uint64_t shape2[2];
    const uint64_t *shape;
    uint64_t count;
    bool copy; /* bytes as they are */
} item;

typedef struct job {
    nb_conv_in in;
    nb_arena arena;
    const nb_convert_opts *o;
    nb_sink *sink;
    item *items;
    size_t n_items;
    const item *now;
    pthread_mutex_t lock; /* guards err, err_at and sum */
    nb_err *err;
    size_t err_at; /* chunk of the recorded error: the first one wins */
    nb_convert_sum *sum;
} job;

static void job_fail(job *j, const nb_err *e, size_t at)
{
    pthread_mutex_lock(&j->lock);
    if (at < j->err_at) {
        *j->err = *e;
        j->err_at = at;
    }
    pthread_mutex_unlock(&j->lock);
}

/* Round n values and look at what that did. */
static nb_status narrow(job *j, const float *v, size_t n, void *out, nb_err *err)
{
    const nb_dtype t = j->now->dtype;
    const float normal = t == NB_DT_F16 ? 6.103515625e-05f : 1.17549435e-38f;
    uint64_t inexact = 0;
    double worst = 0.0;
    float back[256];

    nb_from_f32(out, v, t, n);
    for (size_t i = 0; i < n; i += NB_LEN(back)) {
        const size_t k = n - i < NB_LEN(back) ? n - i : NB_LEN(back);
        nb_to_f32(back, (const char *)out + i * (nb_dtype_info(t)->bits / 8), t, k);
        for (size_t q = 0; q < k; q++) {
            const float x = v[i + q];
            if (back[q] == x)
                continue;
            if (isinf(back[q]) && isfinite(x)) {
                nb_fail(err, NB_ENUMERIC, "num.overflow", "", "the value %g is too large for %s; use --to bf16 or --to f32", (double)x,
                        nb_dtype_info(t)->name);
                nb_err_at(err, NULL, j->now->name);
                return NB_ENUMERIC;
            }
            inexact += !isnan(x);
            if (fabsf(x) >= normal)
                worst = fmax(worst, fabs((double)back[q] - (double)x) / fabs((double)x));
        }
    }
    pthread_mutex_lock(&j->lock);
    j->sum->n_values += n;
    j->sum->n_inexact += inexact;
    j->sum->max_rel = fmax(j->sum->max_rel, worst);
    pthread_mutex_unlock(&j->lock);
    return NB_OK;
}

static nb_status put(job *j, const float *v, uint64_t begin, size_t n, void *scratch, nb_err *err)
{
    const uint64_t size = nb_dtype_info(j->now->dtype)->bits / 8;
    nb_status rc = narrow(j, v, n, scratch, err);

    if (rc == NB_OK)
        rc = nb_sink_write(j->sink, j->now->name, begin * size, scratch, n * size, err);
    return rc;
}

/* GG-24: a value of a block type that is not finite comes from its scale. */
static nb_status check_finite(const job *j, const float *v, size_t n, nb_err *err)
{
    if (j->now->src->data || strcmp(j->in.store->kind, "gguf") != 0)
        return NB_OK;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(v[i])) {
            nb_fail(err, NB_ENUMERIC, "num.scale_nonfinite", "", "a block scale is NaN or infinite");
            nb_err_at(err, j->now->src->file, j->now->name);
            return NB_ENUMERIC;
        }
    }
    return NB_OK;
}

/* Chunks [begin, end) of a plain tensor. */
static void plain_chunks(void *ctx, size_t begin, size_t end, int thread)
{
    job *j = ctx;
    const item *it = j->now;
    float *v = nb_alloc_array(CHUNK, sizeof *v);
    void *scratch = nb_alloc_array(CHUNK, sizeof *v);

    (void)thread;
    for (size_t c = begin; c < end; c++) {
        const uint64_t at = (uint64_t)c * CHUNK;
        const size_t n = it->count - at < CHUNK ? (size_t)(it->count - at) : CHUNK;
        nb_err e = { 0 };
        nb_status rc;
        if (it->copy) {
            const uint64_t size = nb_dtype_info(it->dtype)->bits / 8;
            rc = nb_sink_write(j->sink, it->name, at * size, it->src->data + at * size, n * size, &e);
        } else if (!v || !scratch) {
            rc = nb_enomem(&e, "conversion buffers");
        } else {
            rc = nb_store_read_f32(j->in.store, it->src, at, n, v, &e);
            if (rc == NB_OK)
                rc = check_finite(j, v, n, &e);
            if (rc == NB_OK)
                rc = put(j, v, at, n, scratch, &e);
        }
        if (rc != NB_OK)
            job_fail(j, &e, c);
    }
    nb_free(v);
    nb_free(scratch);
}

/* Rows of one chunk of a quantized linear: about CHUNK values, whole stripes. */
static size_t stripe_rows(const nb_linear *lin)
{
    const size_t unit = lin->format->stripe ? lin->format->stripe : 1;
    const size_t rows = CHUNK / lin->k / unit * unit;

    return rows ? rows : unit;
}

static void quant_chunks(void *ctx, size_t begin, size_t end, int thread)
{
    job *j = ctx;
    const nb_linear *lin = j->now->lin;
    const size_t rows = stripe_rows(lin);
    float *v = nb_alloc_array(rows * lin->k, sizeof *v);
    void *scratch = nb_alloc_array(rows * lin->k, sizeof *v);

    (void)thread;
    for (size_t c = begin; c < end; c++) {
        const size_t n0 = c * rows, n = lin->n - n0 < rows ? lin->n - n0 : rows;
        nb_qlin q = { 0 };
        nb_err e = { 0 };
        nb_status rc = v && scratch ? nb_qlin_init(&q, n, lin->k, lin->g, lin->spec.bits, &e) : nb_enomem(&e, "conversion buffers");
        if (rc == NB_OK)
            rc = lin->format->unpack(lin, n0, &q, &e);
        if (rc == NB_OK) {
            nb_qlin_dequant(&q, v);
            rc = put(j, v, (uint64_t)n0 * lin->k, n * lin->k, scratch, &e);
        }
        nb_qlin_clear(&q);
        if (rc != NB_OK)
            job_fail(j, &e, c);
    }
    nb_free(v);
    nb_free(scratch);
}

static nb_status convert_item(job *j, const item *it)
{
    j->now = it;
    j->err_at = SIZE_MAX;
    if (it->lin)
        nb_parallel_for(j->o->pool, (it->lin->n + stripe_rows(it->lin) - 1) / stripe_rows(it->lin), 1, quant_chunks, j);
    else
        nb_parallel_for(j->o->pool, (size_t)((it->count + CHUNK - 1) / CHUNK), 1, plain_chunks, j);
    if (j->err_at != SIZE_MAX)
        return j->err->code;
    if (it->lin) {
        for (size_t p = 0; p < NB_MAX_PARTS; p++) {
            if (it->lin->parts[p])
                nb_store_drop(j->in.store, it->lin->parts[p]);
        }
        j->sum->n_linears++;
    } else {
        nb_store_drop(j->in.store, it->src);
        j->sum->n_copied += it->copy;
    }
    j->sum->n_tensors++;
    j->sum->n_bytes += it->count * nb_dtype_info(it->dtype)->bits / 8;
    return NB_OK;
}

static nb_status add_plain(job *j, const nb_tensor *t, nb_err *err)
{
    const nb_dtype_row *row = nb_dtype_info(t->dtype);
    item *it = &j->items[j->n_items++];
    const bool number = t->dtype == NB_DT_F16 || t->dtype == NB_DT_BF16 || t->dtype == NB_DT_F32 || t->dtype == NB_DT_F64;

    *it = (item){ .src = t, .name = t->name, .rank = t->rank, .shape = t->shape };
    it->copy = !number || (t->dtype == j->o->dtype && t->data);
    it->dtype = number ? j->o->dtype : t->dtype;
    nb_shape_count(t->shape, t->rank, &it->count);
    if (!number && (row->is_float || row->bits % 8 != 0 || !t->data)) { /* ST-13 */
        nb_fail(err, NB_EUNSUPPORTED, "st.dtype", "", "values of type %s cannot be converted to %s", row->name,
                nb_dtype_info(j->o->dtype)->name);
        nb_err_at(err, t->file, t->name);
        return NB_EUNSUPPORTED;
    }
    return NB_OK;
}

/* The list of output tensors, in the order of the store; a linear stands where its first part stood. */
static nb_status list_items(job *j, nb_err *err)
{
    const nb_store *s = j->in.store;
    nb_strmap *parts = nb_strmap_new(j->in.scan.n_linears * 4 + 1);
    nb_status rc = parts ? NB_OK : nb_enomem(err, "the tensor list");

    j->items = nb_arena_calloc(&j->arena, s->n_tensors + 1, sizeof *j->items);
    if (rc == NB_OK && !j->items)
        rc = nb_enomem(err, "the tensor list");
    for (size_t i = 0; i < j->in.scan.n_linears && rc == NB_OK; i++) {
        for (size_t p = 0; p < NB_MAX_PARTS && rc == NB_OK; p++) {
            const nb_tensor *t = j->in.scan.linears[i].parts[p];
            if (t && nb_strmap_put(parts, t->name, t->name_len, i, NULL) != NB_OK)
                rc = nb_enomem(err, "the tensor list");
        }
    }
    for (size_t i = 0; i < s->n_tensors && rc == NB_OK; i++) {
        const nb_tensor *t = &s->tensors[i];
        const nb_linear *lin;
        item *it;
        uint64_t at;
        if (!nb_strmap_get(parts, t->name, t->name_len, &at)) {
            rc = add_plain(j, t, err);
            continue;
        }
        lin = &j->in.scan.linears[at];
        if (t != lin->parts[0])
            continue;
        it = &j->items[j->n_items++];
        *it = (item){ .lin = lin, .dtype = j->o->dtype, .rank = 2, .shape2 = { lin->n, lin->k }, .count = (uint64_t)lin->n * lin->k };
        it->shape = it->shape2;
        it->name = nb_arena_printf(&j->arena, "%s.weight", lin->prefix);
        if (!it->name)
            rc = nb_enomem(err, "the tensor list");
    }
    nb_strmap_free(parts);
    return rc;
}

static nb_status convert_tensors(job *j, nb_outdir *out, nb_err *err)
{
    nb_status rc = nb_st_sink_open(&j->sink, out, j->o->shard_bytes, err);
    nb_progress p = { .what = "convert", .unit = "tensors", .total = j->n_items };

    for (size_t i = 0; i < j->n_items && rc == NB_OK; i++)
        rc = nb_sink_declare(j->sink, j->items[i].name, j->items[i].dtype, j->items[i].rank, j->items[i].shape, err);
    if (rc == NB_OK)
        rc = nb_sink_begin(j->sink, err);
    for (size_t i = 0; i < j->n_items && rc == NB_OK; i++) {
        if (nb_cancelled(j->o->host)) {
            rc = nb_fail(err, NB_ECANCELED, "canceled", "", "stopped; nothing was written");
            break;
        }
        p.item = j->items[i].name;
        p.done = i;
        nb_report_progress(j->o->host, &p);
        rc = convert_item(j, &j->items[i]);
    }
    if (rc == NB_OK) {
        p.done = p.total;
        nb_report_progress(j->o->host, &p);
        rc = nb_sink_finish(j->sink, err);
    }
    if (rc == NB_OK)
        rc = nb_store_still(j->in.store, err);
    return rc;
}

bool nb_conv_set_dtype(nb_json *o, const char *value, bool top)
{
    const bool newer = nb_json_get(o, "dtype") != NULL, older = nb_json_get(o, "torch_dtype") != NULL;

    if (newer && !nb_json_set(o, "dtype", nb_json_new_str(value)))
        return false;
    return (!older && (newer || !top)) || nb_json_set(o, "torch_dtype", nb_json_new_str(value));
}

static const char *const nests[] = { "text_config", "llm_config", "language_config" };

bool nb_conv_drop_quant(nb_json *config)
{
    nb_json_remove(config, "quantization_config");
    nb_json_remove(config, "compression_config");
    for (size_t i = 0; i < NB_LEN(nests); i++) {
        const nb_json *old = nb_json_get(config, nests[i]);
        nb_json *in;
        if (!nb_json_get(old, "quantization_config"))
            continue;
        if (!(in = nb_json_copy(old)))
            return false;
        nb_json_remove(in, "quantization_config");
        if (!nb_json_set(config, nests[i], in))
            return false;
    }
    return true;
}

nb_status nb_conv_put_json(nb_outdir *out, const char *name, const nb_json *v, nb_err *err)
{
    char *text = v ? nb_json_dump(v, 2, false) : NULL;
    nb_buf b = { 0 };
    nb_status rc;

    if (text) {
        nb_buf_puts(&b, text);
        nb_buf_putc(&b, '\n');
    }
    rc = text && !b.failed ? nb_outdir_put(out, name, b.p, b.n, err) : nb_enomem(err, name);
    nb_buf_clear(&b);
    nb_free(text);
    return rc;
}

static nb_status write_config(job *j, nb_outdir *out, nb_err *err)
{
    const char *dtype = nb_dtype_info(j->o->dtype)->torch;
    const nb_json *config;
    nb_json *o;
    bool ok;
    nb_status rc = nb_hfdir_config(j->in.dir, &config, err);

    if (rc != NB_OK)
        return rc;
    o = nb_json_copy(config);
    ok = o && nb_conv_set_dtype(o, dtype, true) && nb_conv_drop_quant(o);
    for (size_t i = 0; i < NB_LEN(nests) && ok; i++) {
        nb_json *in = nb_json_typeof(nb_json_get(o, nests[i])) == NB_JOBJ ? nb_json_copy(nb_json_get(o, nests[i])) : NULL;
        if (!in)
            continue;
        ok = nb_conv_set_dtype(in, dtype, false);
        if (ok)
            ok = nb_json_set(o, nests[i], in);
        else
            nb_json_free(in);
    }
    rc = ok ? nb_conv_put_json(out, "config.json", o, err) : nb_enomem(err, "config.json");
    nb_json_free(o);
    return rc;
}

nb_status nb_conv_small_files(const nb_conv_in *in, const nb_host *host, nb_outdir *out, nb_err *err)
{
    static const char *const dropped[] = { "quantize_config.json", "quant_config.json", "quantization_config.json", "config.json" };
    nb_status rc = NB_OK;

    for (size_t i = 0; i < nb_hfdir_count(in->dir) && rc == NB_OK; i++) {
        const char *name = nb_hfdir_name(in->dir, i), *bytes;
        size_t n;
        bool skip = false;
        for (size_t k = 0; k < NB_LEN(dropped); k++)
            skip = skip || strcmp(name, dropped[k]) == 0;
        if (skip)
            continue;
        rc = nb_hfdir_file(in->dir, name, &bytes, &n, err);
        if (rc == NB_OK && bytes)
            rc = nb_outdir_put(out, name, bytes, n, err);
    }
    if (rc == NB_OK && nb_hfdir_skipped(in->dir) > 0)
        nb_log(host, NB_LOG_WARN, "%zu small files are links that lead out of the directory; they were not copied",
               nb_hfdir_skipped(in->dir));
    return rc;
}

static nb_status copy_files(job *j, nb_outdir *out, nb_err *err)
{
    const char *config;
    size_t n_config;
    nb_status rc = nb_hfdir_file(j->in.dir, "config.json", &config, &n_config, err);

    if (rc != NB_OK || !config) /* a bare tensor file: its neighbours are not a model */
        return rc;
    rc = nb_conv_small_files(&j->in, j->o->host, out, err);
    return rc == NB_OK ? write_config(j, out, err) : rc; /* last (DU-02) */
}

nb_status nb_conv_open(const char *path, const nb_host *host, nb_conv_in *in, nb_err *err)
{
    const char *source = NULL;
    nb_status rc = nb_open(path, &in->store, err);

    if (rc == NB_OK)
        rc = nb_hfdir_open(path, &in->dir, err);
    if (rc == NB_OK)
        rc = nb_hfdir_quant_config(in->dir, &in->qcfg, &source, err);
    if (rc == NB_OK && nb_json_is_null(in->qcfg)) {
        char note[160];
        rc = nb_infer_scan(in->store, NULL, &in->inferred, &in->scan, note, sizeof note, err);
        in->qcfg = in->inferred;
        if (in->inferred)
            nb_log(host, NB_LOG_WARN, "%s", note);
    } else if (rc == NB_OK) {
        rc = nb_scan_open(in->store, in->qcfg, source ? source : "", NULL, &in->scan, err);
    }
    if (rc == NB_OK)
        nb_report_log(in->store->notes, host);
    if (rc == NB_OK && in->scan.note[0])
        nb_log(host, NB_LOG_WARN, "%s", in->scan.note);
    return rc;
}

void nb_conv_close(nb_conv_in *in)
{
    nb_scan_clear(&in->scan);
    nb_json_free(in->inferred);
    nb_store_close(in->store);
    nb_hfdir_close(in->dir);
    memset(in, 0, sizeof *in);
}

nb_status nb_convert(const char *in, const char *out, const nb_convert_opts *o, nb_convert_sum *sum, nb_err *err)
{
    nb_err own = { 0 };
    job j = { .o = o, .sum = sum, .err = err ? err : &own };
    nb_outdir *dir = NULL;
    const double t0 = nb_now();
    nb_status rc;

    memset(sum, 0, sizeof *sum);
    if (o->gguf)
        return nb_conv_gguf(in, out, o, sum, err);
    if (o->format || o->repair != NB_REPAIR_NONE)
        return nb_conv_relayout(in, out, o, sum, err);
    if (pthread_mutex_init(&j.lock, NULL) != 0)
        return nb_enomem(err, "a lock");
    rc = nb_conv_open(in, o->host, &j.in, j.err);
    if (rc == NB_OK)
        rc = nb_outdir_open(&dir, out, o->force, &in, 1, j.err);
    if (rc == NB_OK)
        rc = list_items(&j, j.err);
    if (rc == NB_OK)
        rc = convert_tensors(&j, dir, j.err);
    if (rc == NB_OK)
        rc = copy_files(&j, dir, j.err);
    nb_sink_close(j.sink);
    if (rc == NB_OK)
        rc = nb_outdir_commit(dir, j.err);
    else
        nb_outdir_abort(dir);
    nb_conv_close(&j.in);
    nb_arena_clear(&j.arena);
    pthread_mutex_destroy(&j.lock);
    nb_err_at(j.err, in, NULL);
    sum->seconds = nb_now() - t0;
    return rc;
}
