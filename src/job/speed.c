/* speed.c - rounds of read, prefill, decode; medians. */
#include "job/speed.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "model/exec.h"

enum { PROBE_BYTES = 512 << 20, MAX_ROUNDS = 100 };

typedef struct speed {
    nb_model *model;
    const nb_speed_opts *o;
    nb_exec *exec;
    unsigned char *probe;
    uint32_t *pages; /* [batch][n_pages] */
    size_t n_pages;  /* of one sequence  */
    int32_t *token;
    uint32_t *pos, *seq;
    uint8_t *want;
    nb_seq_view *views;
    unsigned char *states; /* [batch] after `depth` tokens */
    float *logits;
    uint64_t sum; /* keeps the probe's reads alive */
} speed;

static void touch_range(void *ctx, size_t begin, size_t end, int thread)
{
    (void)thread;
    memset((unsigned char *)ctx + begin, 1, end - begin);
}

typedef struct probe_job {
    const unsigned char *p;
    const nb_kern *kern;
    uint64_t sums[256];
} probe_job;

static void probe_range(void *ctx, size_t begin, size_t end, int thread)
{
    probe_job *j = ctx;

    begin &= ~(size_t)63;
    end &= ~(size_t)63;
    j->sums[thread & 255] = j->kern->read_probe(j->p + begin, end - begin);
}

static double read_round(speed *s)
{
    probe_job j = { .p = s->probe, .kern = nb_model_kern(s->model) };
    const double t = nb_now();

    nb_parallel_static(s->o->pool, PROBE_BYTES, probe_range, &j);
    for (size_t i = 0; i < NB_LEN(j.sums); i++)
        s->sum += j.sums[i];
    return (double)PROBE_BYTES / (nb_now() - t);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static nb_status prepare(speed *s, nb_err *err)
{
    const nb_config *c = nb_model_config(s->model);
    const nb_speed_opts *o = s->o;
    const size_t deepest = larger(o->prompt, o->depth + o->decode + 1);
    const size_t rows = larger(larger(o->prompt, o->depth), o->batch);
    nb_exec_opts xo = { .pool = o->pool, .exact_fp32 = o->exact_fp32, .kv_dtype = o->kv_dtype ? o->kv_dtype : NB_DT_F16 };

    if (o->prompt == 0 || o->decode == 0 || o->batch == 0 || o->rounds < 1 || o->rounds > MAX_ROUNDS)
        return nb_fail(err, NB_EARG, "bench.sizes", "", "prompt, decode, batch and rounds must be at least 1, rounds at most %d",
                       MAX_ROUNDS);
    if (c->context && deepest > c->context)
        return nb_fail(err, NB_EARG, "bench.sizes", "", "%zu tokens are beyond the model's context of %zu", deepest, c->context);
    s->n_pages = (deepest + NB_PAGE - 1) / NB_PAGE;
    xo.n_pages = s->n_pages * o->batch;
    xo.max_m = larger(o->batch, rows < 512 ? rows : 512);
    s->probe = nb_huge_alloc(PROBE_BYTES);
    s->pages = nb_alloc_array(xo.n_pages, sizeof *s->pages);
    s->token = nb_alloc_array(rows, sizeof *s->token);
    s->pos = nb_alloc_array(rows, sizeof *s->pos);
    s->seq = nb_alloc_array(rows, sizeof *s->seq);
    s->want = nb_calloc(rows, 1);
    s->views = nb_alloc_array(o->batch, sizeof *s->views);
    s->logits = nb_alloc_array(o->batch * c->vocab, sizeof *s->logits);
    if (!s->probe || !s->pages || !s->token || !s->pos || !s->seq || !s->want || !s->views || !s->logits)
        return nb_enomem(err, "the benchmark's buffers");
    nb_parallel_static(o->pool, PROBE_BYTES, touch_range, s->probe);
    for (size_t i = 0; i < xo.n_pages; i++)
        s->pages[i] = (uint32_t)i;
    for (size_t i = 0; i < o->batch; i++)
        s->views[i] = (nb_seq_view){ .pages = s->pages + i * s->n_pages, .n_pages = s->n_pages, .state = (uint32_t)i };
    xo.n_states = o->batch;
    nb_status rc = nb_exec_cpu_open(s->model, &xo, &s->exec, err);
    if (rc == NB_OK && !(s->states = nb_alloc_array(o->batch, nb_exec_state_bytes(s->exec) + 1)))
        rc = nb_enomem(err, "the benchmark's buffers");
    return rc;
}

static void finish(speed *s)
{
    nb_exec_close(s->exec);
    nb_huge_free(s->probe, PROBE_BYTES);
    nb_free(s->pages);
    nb_free(s->token);
    nb_free(s->pos);
    nb_free(s->seq);
    nb_free(s->want);
    nb_free(s->views);
    nb_free(s->states);
    nb_free(s->logits);
}

static int32_t some_token(const speed *s, uint64_t i)
{
    return (int32_t)(nb_rng_uniform(1, 0, i) * (double)nb_model_config(s->model)->vocab);
}

/* n prompt tokens of sequence q from position 0. */
static nb_status feed(speed *s, size_t q, size_t n, nb_err *err)
{
    nb_batch b = { .m = n, .token = s->token, .pos = s->pos, .seq = s->seq, .want = s->want, .seqs = s->views, .n_seqs = s->o->batch };

    if (n == 0)
        return NB_OK;
    for (size_t i = 0; i < n; i++) {
        s->token[i] = some_token(s, i);
        s->pos[i] = (uint32_t)i;
        s->seq[i] = (uint32_t)q;
        s->want[i] = i + 1 == n;
    }
    return nb_exec_run(s->exec, &b, s->logits, err);
}

static nb_status decode_round(speed *s, double *tok_s, nb_err *err)
{
    const size_t batch = s->o->batch;
    nb_batch b = { .m = batch, .token = s->token, .pos = s->pos, .seq = s->seq, .want = s->want, .seqs = s->views, .n_seqs = batch };
    double t = nb_now();
    nb_status rc = NB_OK;

    for (size_t step = 0; rc == NB_OK && step <= s->o->decode; step++) {
        for (size_t i = 0; step < 2 && i < batch; i++) /* back to where the prompt ended */
            nb_exec_state_load(s->exec, i, s->states + i * nb_exec_state_bytes(s->exec));
        if (step == 1) /* the first step warms caches and tables */
            t = nb_now();
        for (size_t i = 0; i < batch; i++) {
            s->token[i] = some_token(s, s->o->depth + step + 97 * i);
            s->pos[i] = (uint32_t)(s->o->depth + (step ? step - 1 : 0));
            s->seq[i] = (uint32_t)i;
            s->want[i] = 1;
        }
        rc = nb_exec_run(s->exec, &b, s->logits, err);
    }
    *tok_s = (double)(s->o->decode * batch) / (nb_now() - t);
    return rc;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static nb_status rounds(speed *s, nb_speed *out, nb_err *err)
{
    double read[MAX_ROUNDS], pre[MAX_ROUNDS], dec[MAX_ROUNDS];
    nb_progress p = { .what = "bench", .unit = "rounds", .total = (uint64_t)s->o->rounds };
    nb_status rc = feed(s, 0, s->o->prompt < 32 ? s->o->prompt : 32, err); /* warm-up */

    for (size_t q = 0; rc == NB_OK && q < s->o->batch; q++)
        if ((rc = feed(s, q, s->o->depth, err)) == NB_OK)
            nb_exec_state_save(s->exec, q, s->states + q * nb_exec_state_bytes(s->exec));
    for (int i = 0; rc == NB_OK && i < s->o->rounds; i++) {
        double t;
        p.done = (uint64_t)i;
        nb_report_progress(s->o->host, &p);
        if (nb_cancelled(s->o->host))
            return NB_ECANCELED;
        read[i] = read_round(s);
        t = nb_now();
        rc = feed(s, 0, s->o->prompt, err);
        pre[i] = (double)s->o->prompt / (nb_now() - t);
        if (rc == NB_OK)
            rc = decode_round(s, &dec[i], err);
    }
    if (rc != NB_OK)
        return rc;
    out->rounds = s->o->rounds;
    out->read_bytes_s = median(read, out->rounds);
    out->prefill_tok_s = median(pre, out->rounds);
    out->decode_tok_s = median(dec, out->rounds);
    out->prefill_min = pre[0];
    out->prefill_max = pre[out->rounds - 1];
    out->decode_min = dec[0];
    out->decode_max = dec[out->rounds - 1];
    out->step_bytes = nb_model_step_bytes(s->model);
    out->decode_share = (double)out->step_bytes * out->decode_tok_s / (double)s->o->batch / out->read_bytes_s;
    return NB_OK;
}

nb_status nb_speed_run(nb_model *m, const nb_speed_opts *o, nb_speed *out, nb_err *err)
{
    speed s = { .model = m, .o = o };
    nb_status rc = prepare(&s, err);

    memset(out, 0, sizeof *out);
    if (rc == NB_OK)
        rc = rounds(&s, out, err);
    finish(&s);
    return rc;
}
