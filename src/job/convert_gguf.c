/* convert_gguf.c - convert --to gguf: one file for llama.cpp and its kin. Codes stay codes: Q4_0 and Q8_0 for symmetric linears,
 * Q4_1 with zero points, whose minimum is a float16 (formats: docs/formats/gguf.md). Other tensors keep their type, norms and biases
 * become float32. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/strmap.h"
#include "io/gguf_write.h"
#include "job/diff.h"
#include "job/relayout.h"

enum { PIECE = 1 << 18 }; /* values of a plain tensor in a work item */

typedef struct job {
    const nb_convert_opts *o;
    nb_conv_in in;
    nb_gguf_sink *sink;
    nb_convert_sum *sum;
    nb_gguf_loss loss;
    unsigned *types; /* [n_linears] */
    /* at work */
    const nb_linear *lin;
    const nb_tensor *plain;
    unsigned type;
    pthread_mutex_t lock; /* guards what follows, loss and type */
    uint64_t n_rounded;   /* scales that float16 does not hold */
    nb_err *err;
    size_t err_at;
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

static nb_status run(job *j, size_t n, nb_range_fn *fn)
{
    j->err_at = SIZE_MAX;
    nb_parallel_for(j->o->pool, n, 1, fn, j);
    return j->err_at == SIZE_MAX ? NB_OK : j->err->code;
}

/* ---- which type a linear takes --------------------------------------------------------------------------------- */

static uint64_t not_f16(const nb_qlin *q)
{
    uint64_t n = 0;

    for (size_t i = 0; i < q->n * q->n_groups; i++) {
        unsigned char raw[2];
        float back;
        nb_from_f32(raw, &q->scales[i], NB_DT_F16, 1);
        nb_to_f32(&back, raw, NB_DT_F16, 1);
        n += !(back == q->scales[i]);
    }
    return n;
}

static nb_status unpack(const job *j, size_t c, nb_qlin *q, nb_err *err)
{
    const size_t n0 = c * nb_relay_rows(j->lin);
    const nb_status rc = nb_relay_stripe(q, j->lin, n0, true, err);

    return rc == NB_OK ? j->lin->format->unpack(j->lin, n0, q, err) : rc;
}

static void find_types(void *ctx, size_t begin, size_t end, int thread)
{
    job *j = ctx;

    (void)thread;
    for (size_t c = begin; c < end; c++) {
        nb_qlin q = { 0 };
        nb_err e = { 0 };
        unsigned type = 0;
        uint64_t n_rounded = 0;
        nb_status rc = unpack(j, c, &q, &e);
        if (rc == NB_OK && !nb_gguf_type_for(&q, &type, &e))
            rc = e.code;
        if (rc == NB_OK)
            n_rounded = not_f16(&q);
        nb_qlin_clear(&q);
        if (rc != NB_OK)
            job_fail(j, &e, c);
        pthread_mutex_lock(&j->lock);
        j->type = type > j->type ? type : j->type;
        j->n_rounded += n_rounded;
        pthread_mutex_unlock(&j->lock);
    }
}

static size_t n_stripes(const nb_linear *lin)
{
    return (lin->n + nb_relay_rows(lin) - 1) / nb_relay_rows(lin);
}

static nb_status choose_type(job *j, size_t i)
{
    nb_status rc;

    j->lin = &j->in.scan.linears[i];
    j->type = 0;
    j->n_rounded = 0;
    rc = run(j, n_stripes(j->lin), find_types);
    if (rc == NB_OK && j->n_rounded && !j->o->lossy)
        rc = nb_fail(j->err, NB_ENUMERIC, "num.scale_inexact", "CNV-030",
                     "%" PRIu64 " scales change when stored as float16, the only type of GGUF blocks. \xe2\x86\x92 Pass --lossy.",
                     j->n_rounded);
    nb_err_at(j->err, NULL, j->lin->prefix);
    j->types[i] = j->type;
    j->sum->n_rounded += j->n_rounded;
    return rc;
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

static void pack_stripes(void *ctx, size_t begin, size_t end, int thread)
{
    job *j = ctx;
    const size_t row = (size_t)nb_gguf_row_bytes(j->type, j->lin->k);
    char name[512];

    (void)thread;
    snprintf(name, sizeof name, "%s.weight", j->lin->prefix);
    for (size_t c = begin; c < end; c++) {
        nb_qlin q = { 0 };
        nb_gguf_loss loss = { 0 };
        nb_err e = { 0 };
        nb_status rc = unpack(j, c, &q, &e);
        unsigned char *out = rc == NB_OK ? nb_alloc_array(q.n, row) : NULL;
        if (rc == NB_OK && !out)
            rc = nb_enomem(&e, "packed blocks");
        if (rc == NB_OK)
            rc = j->type == NB_GGUF_Q4_0   ? nb_gguf_pack_q4_0(&q, out, &loss, &e)
                 : j->type == NB_GGUF_Q4_1 ? nb_gguf_pack_q4_1(&q, out, &loss, &e)
                                           : nb_gguf_pack_q8_0(&q, out, &loss, &e);
        if (rc == NB_OK)
            rc = nb_gguf_sink_write(j->sink, name, (uint64_t)c * nb_relay_rows(j->lin) * row, out, q.n * row, &e);
        nb_free(out);
        nb_qlin_clear(&q);
        if (rc != NB_OK)
            job_fail(j, &e, c);
        pthread_mutex_lock(&j->lock);
        nb_gguf_loss_add(&j->loss, &loss);
        pthread_mutex_unlock(&j->lock);
    }
}

/* Type of a plain tensor: its own, float32 for vectors. 0xffff: none. */
static unsigned plain_type(const nb_tensor *t)
{
    if (t->dtype != NB_DT_F16 && t->dtype != NB_DT_BF16 && t->dtype != NB_DT_F32)
        return 0xffff;
    return t->rank < 2 || t->dtype == NB_DT_F32 ? NB_GGUF_F32 : t->dtype == NB_DT_F16 ? NB_GGUF_F16 : NB_GGUF_BF16;
}

static void write_pieces(void *ctx, size_t begin, size_t end, int thread)
{
    job *j = ctx;
    const nb_tensor *t = j->plain;
    const size_t item = nb_dtype_info(t->dtype)->bits / 8, all = (size_t)(t->n_bytes / item);
    const bool widen = t->rank < 2 && t->dtype != NB_DT_F32;
    float *v = widen ? nb_alloc_array(PIECE, sizeof *v) : NULL;

    (void)thread;
    for (size_t c = begin; c < end; c++) {
        const size_t at = c * PIECE, n = all - at < PIECE ? all - at : PIECE;
        nb_err e = { 0 };
        nb_status rc = widen && !v ? nb_enomem(&e, "a vector") : NB_OK;
        if (rc == NB_OK && widen)
            nb_to_f32(v, t->data + at * item, t->dtype, n);
        if (rc == NB_OK && widen)
            rc = nb_gguf_sink_write(j->sink, t->name, at * sizeof *v, v, n * sizeof *v, &e);
        else if (rc == NB_OK)
            rc = nb_gguf_sink_write(j->sink, t->name, at * item, t->data + at * item, n * item, &e);
        if (rc != NB_OK)
            job_fail(j, &e, c);
    }
    nb_free(v);
}

/* Names of all parts of linears. */
static nb_strmap *part_names(const nb_scan *scan)
{
    nb_strmap *m = nb_strmap_new(scan->n_linears * 4 + 1);

    for (size_t i = 0; m && i < scan->n_linears; i++)
        for (size_t p = 0; p < NB_MAX_PARTS; p++) {
            const nb_tensor *t = scan->linears[i].parts[p];
            if (t && nb_strmap_put(m, t->name, t->name_len, i, NULL) != NB_OK) {
                nb_strmap_free(m);
                return NULL;
            }
        }
    return m;
}

static nb_status declare_all(job *j, const nb_strmap *parts, nb_err *err)
{
    nb_status rc = NB_OK;
    char name[512];

    for (size_t i = 0; i < j->in.scan.n_linears && rc == NB_OK; i++) {
        const nb_linear *lin = &j->in.scan.linears[i];
        const uint64_t shape[2] = { lin->n, lin->k };
        if ((rc = choose_type(j, i)) != NB_OK)
            return rc;
        snprintf(name, sizeof name, "%s.weight", lin->prefix);
        rc = nb_gguf_sink_declare(j->sink, name, j->types[i], 2, shape, err);
    }
    for (size_t i = 0; i < j->in.store->n_tensors && rc == NB_OK; i++) {
        const nb_tensor *t = &j->in.store->tensors[i];
        if (nb_strmap_get(parts, t->name, t->name_len, NULL) || !nb_gguf_sink_takes(j->sink, t->name))
            continue;
        if (plain_type(t) == 0xffff || !t->data) {
            rc = nb_fail(err, NB_EUNSUPPORTED, "st.dtype", "", "%s has no form in GGUF", nb_dtype_info(t->dtype)->name);
            nb_err_at(err, t->file, t->name);
        } else {
            rc = nb_gguf_sink_declare(j->sink, t->name, plain_type(t), t->rank, t->shape, err);
        }
    }
    return rc == NB_OK ? nb_gguf_sink_begin(j->sink, err) : rc;
}

static nb_status write_all(job *j, const nb_strmap *parts)
{
    nb_progress p = { .what = "convert", .unit = "tensors", .total = j->in.store->n_tensors };
    nb_status rc = NB_OK;

    for (size_t i = 0; i < j->in.store->n_tensors && rc == NB_OK; i++) {
        const nb_tensor *t = &j->in.store->tensors[i];
        uint64_t at;
        p.item = t->name;
        p.done = i;
        nb_report_progress(j->o->host, &p);
        if (nb_cancelled(j->o->host))
            return nb_fail(j->err, NB_ECANCELED, "canceled", "", "stopped; nothing was written");
        if (nb_strmap_get(parts, t->name, t->name_len, &at)) {
            j->lin = &j->in.scan.linears[at];
            if (t != j->lin->parts[0])
                continue;
            j->type = j->types[at];
            j->sum->n_linears++;
            j->sum->n_bytes += nb_gguf_row_bytes(j->type, j->lin->k) * j->lin->n;
            rc = run(j, n_stripes(j->lin), pack_stripes);
            for (size_t k = 0; k < NB_MAX_PARTS; k++)
                if (j->lin->parts[k])
                    nb_store_drop(j->in.store, j->lin->parts[k]);
        } else if (nb_gguf_sink_takes(j->sink, t->name)) {
            const size_t item = nb_dtype_info(t->dtype)->bits / 8;
            j->plain = t;
            j->sum->n_copied++;
            j->sum->n_bytes += t->rank < 2 ? t->n_bytes / item * 4 : t->n_bytes;
            rc = run(j, (size_t)((t->n_bytes / item + PIECE - 1) / PIECE), write_pieces);
            nb_store_drop(j->in.store, t);
        } else {
            nb_log(j->o->host, NB_LOG_INFO, "%s has no place in GGUF and is left out", t->name);
            continue;
        }
        j->sum->n_tensors++;
    }
    p.done = p.total;
    nb_report_progress(j->o->host, &p);
    return rc;
}

/* ---- reading back ---------------------------------------------------------------------------------------------- */

/* The file holds every tensor, with values as far from the source as packing counted and no farther. */
static nb_status verify(job *j, const char *in, const char *out)
{
    const nb_diff_opts o = { .pool = j->o->pool };
    const double bound = j->loss.max_abs * (1.0 + 1e-6);
    nb_diff d;
    nb_status rc = nb_diff_run(in, out, &o, &d, j->err);

    if (rc != NB_OK && rc != NB_NO)
        return rc;
    rc = NB_OK;
    for (size_t i = 0; i < d.n_rows && rc == NB_OK; i++) {
        const nb_diff_row *r = &d.rows[i];
        const bool left_out = r->kind == NB_DIFF_ONLY_A && !nb_gguf_sink_takes(j->sink, r->name);
        if (r->kind == NB_DIFF_SAME || left_out || (r->kind == NB_DIFF_VALUES && r->max_abs <= bound))
            continue;
        rc = nb_fail(j->err, NB_EVERIFY, "conv.verify", "", "read back, the tensor differs (%s, by %.3g); the output was removed",
                     nb_diff_kind_name(r->kind), r->max_abs);
        nb_err_at(j->err, NULL, r->name);
    }
    nb_diff_clear(&d);
    if (rc != NB_OK)
        unlink(out);
    return rc;
}

nb_status nb_conv_gguf(const char *in, const char *out, const nb_convert_opts *o, nb_convert_sum *sum, nb_err *err)
{
    nb_err own = { 0 };
    job j = { .o = o, .sum = sum, .err = err ? err : &own };
    nb_strmap *parts = NULL;
    const double t0 = nb_now();
    nb_status rc;

    if (pthread_mutex_init(&j.lock, NULL) != 0)
        return nb_enomem(err, "a lock");
    rc = nb_conv_open(in, o->host, &j.in, j.err);
    if (rc == NB_OK && (!(parts = part_names(&j.in.scan)) || !(j.types = nb_calloc(j.in.scan.n_linears + 1, sizeof *j.types))))
        rc = nb_enomem(j.err, "the tensor list");
    if (rc == NB_OK)
        rc = nb_gguf_sink_open(&j.sink, out, o->force, j.in.dir, j.err);
    if (rc == NB_OK)
        rc = declare_all(&j, parts, j.err);
    if (rc == NB_OK)
        rc = write_all(&j, parts);
    if (rc == NB_OK)
        rc = nb_store_still(j.in.store, j.err);
    if (rc == NB_OK)
        rc = nb_gguf_sink_finish(j.sink, j.err);
    if (rc == NB_OK && !o->no_verify)
        sum->verified = (rc = verify(&j, in, out)) == NB_OK;
    for (size_t i = 0; rc == NB_OK && i < j.in.scan.n_linears; i++)
        sum->n_blocks[j.types[i] == NB_GGUF_Q4_0 ? 0 : j.types[i] == NB_GGUF_Q4_1 ? 1 : 2]++;
    sum->from = j.in.scan.format;
    sum->max_abs = j.loss.max_abs;
    sum->max_step = j.loss.max_step;
    sum->n_values = j.loss.n_values;
    sum->n_inexact = j.loss.n_inexact;
    nb_gguf_sink_close(j.sink);
    nb_strmap_free(parts);
    nb_free(j.types);
    nb_conv_close(&j.in);
    pthread_mutex_destroy(&j.lock);
    nb_err_at(j.err, in, NULL);
    sum->seconds = nb_now() - t0;
    return rc;
}
