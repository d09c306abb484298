/* speed.c - rounds of read, prefill, decode; medians. */
#include "job/speed.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "model/exec.h"

enum { PROBE_BYTES = 512 << 20, MAX_ROUNDS = 100, REAL_TOKENS = 512 };

typedef struct speed {
    nb_model *model;
    const nb_speed_opts *o;
    nb_exec *exec;
    unsigned char *probe;
    uint32_t *pages;            /* [n_pages]: page i is number i */
    size_t n_pages, rows, most; /* rows of a call at most; largest batch */
    int32_t *token;
    uint32_t *pos, *seq;
    uint8_t *want;
    nb_seq_view *views;    /* [most] */
    unsigned char *states; /* [n_depths] after so many tokens */
    float *logits;
    double *times; /* [n_decode][MAX_ROUNDS] tokens a second */
    uint64_t sum;  /* keeps the probe's reads alive */
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

/* The limit that decode is held against: the best of three passes, since one that other programs interrupt says nothing about it. */
static double read_round(speed *s)
{
    probe_job j = { .p = s->probe, .kern = nb_model_kern(s->model) };
    double best = 0;

    for (int pass = 0; pass < 3; pass++) {
        const double t = nb_now();
        nb_parallel_static(s->o->pool, PROBE_BYTES, probe_range, &j);
        const double rate = (double)PROBE_BYTES / (nb_now() - t);
        best = rate > best ? rate : best;
    }
    for (size_t i = 0; i < NB_LEN(j.sums); i++)
        s->sum += j.sums[i];
    return best;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t pages_for(size_t tokens)
{
    return (tokens + NB_PAGE - 1) / NB_PAGE;
}

static size_t largest(const size_t *v, size_t n)
{
    size_t best = 0;

    for (size_t i = 0; i < n; i++)
        best = larger(best, v[i]);
    return best;
}

static nb_status check_sizes(const nb_speed_opts *o, uint64_t context, nb_err *err)
{
    const size_t deepest = larger(o->prompt, largest(o->depths, o->n_depths) + o->decode + 1);
    bool ok = o->prompt && o->decode && o->rounds >= 1 && o->rounds <= MAX_ROUNDS && o->n_depths && o->n_batches &&
              o->n_depths <= NB_SPEED_MAX && o->n_batches <= NB_SPEED_MAX;

    for (size_t i = 0; ok && i < o->n_batches; i++)
        ok = o->batches[i] > 0;
    if (!ok)
        return nb_fail(err, NB_EARG, "bench.sizes", "",
                       "prompt, decode, batches and rounds must be at least 1, rounds at most %d, depths and batches at most %d of each",
                       MAX_ROUNDS, NB_SPEED_MAX);
    if (context && deepest > context)
        return nb_fail(err, NB_EARG, "bench.sizes", "", "%zu tokens are beyond the model's context of %llu", deepest,
                       (unsigned long long)context);
    return NB_OK;
}

/* The decode rows that were asked for. */
static void list_rows(const nb_speed_opts *o, nb_speed *out)
{
    for (size_t i = 0; i < o->n_depths; i++)
        out->decode[out->n_decode++] = (nb_speed_row){ .batch = o->batches[0], .depth = o->depths[i] };
    for (size_t i = 1; i < o->n_batches; i++)
        out->decode[out->n_decode++] = (nb_speed_row){ .batch = o->batches[i], .depth = o->depths[0] };
}

static nb_status prepare(speed *s, nb_speed *out, nb_err *err)
{
    const nb_config *c = nb_model_config(s->model);
    const nb_speed_opts *o = s->o;
    nb_exec_opts xo = { .pool = o->pool, .exact_fp32 = o->exact_fp32, .a8 = o->a8, .kv_dtype = o->kv_dtype ? o->kv_dtype : NB_DT_F16 };
    nb_status rc = check_sizes(o, c->context, err);

    if (rc != NB_OK)
        return rc;
    list_rows(o, out);
    s->most = largest(o->batches, o->n_batches);
    s->rows = larger(larger(o->prompt, REAL_TOKENS), s->most);
    s->n_pages = pages_for(o->prompt);
    for (size_t i = 0; i < out->n_decode; i++)
        s->n_pages = larger(s->n_pages, out->decode[i].batch * pages_for(out->decode[i].depth + o->decode + 1));
    xo.n_pages = s->n_pages;
    xo.n_states = s->most;
    xo.max_m = larger(s->most, s->rows < 512 ? s->rows : 512);
    s->probe = nb_huge_alloc(PROBE_BYTES);
    s->pages = nb_alloc_array(s->n_pages, sizeof *s->pages);
    s->token = nb_alloc_array(s->rows, sizeof *s->token);
    s->pos = nb_alloc_array(s->rows, sizeof *s->pos);
    s->seq = nb_alloc_array(s->rows, sizeof *s->seq);
    s->want = nb_calloc(s->rows, 1);
    s->views = nb_alloc_array(s->most, sizeof *s->views);
    s->logits = nb_alloc_array(s->most * c->vocab, sizeof *s->logits);
    s->times = nb_alloc_array(out->n_decode * MAX_ROUNDS, sizeof *s->times);
    if (!s->probe || !s->pages || !s->token || !s->pos || !s->seq || !s->want || !s->views || !s->logits || !s->times)
        return nb_enomem(err, "the benchmark's buffers");
    nb_parallel_static(o->pool, PROBE_BYTES, touch_range, s->probe);
    for (size_t i = 0; i < s->n_pages; i++)
        s->pages[i] = (uint32_t)i;
    rc = nb_exec_cpu_open(s->model, &xo, &s->exec, err);
    if (rc == NB_OK && o->tune)
        rc = nb_exec_tune(s->exec, s->model, o->pool, err);
    if (rc == NB_OK)
        out->few_threads = nb_exec_few(s->exec);
    if (rc == NB_OK && !(s->states = nb_alloc_array(o->n_depths, nb_exec_state_bytes(s->exec) + 1)))
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
    nb_free(s->times);
}

static int32_t some_token(const speed *s, uint64_t i)
{
    return (int32_t)(nb_rng_uniform(1, 0, i) * (double)nb_model_config(s->model)->vocab);
}

/* Sequence i of a batch has pages of its own, enough for `tokens`. */
static void lay_views(speed *s, size_t batch, size_t tokens)
{
    const size_t n = pages_for(tokens);

    for (size_t i = 0; i < batch; i++)
        s->views[i] = (nb_seq_view){ .pages = s->pages + i * n, .n_pages = n, .state = (uint32_t)i };
}

/* Tokens [from, to) of sequence 0; logits of the last one. */
static nb_status feed(speed *s, size_t from, size_t to, nb_err *err)
{
    nb_batch b = { .token = s->token, .pos = s->pos, .seq = s->seq, .want = s->want, .seqs = s->views, .n_seqs = 1 };
    nb_status rc = NB_OK;

    lay_views(s, 1, to);
    for (size_t at = from; rc == NB_OK && at < to; at += b.m) {
        b.m = to - at < s->rows ? to - at : s->rows;
        for (size_t i = 0; i < b.m; i++) {
            s->token[i] = some_token(s, at + i);
            s->pos[i] = (uint32_t)(at + i);
            s->seq[i] = 0;
            s->want[i] = at + i + 1 == to;
        }
        rc = nb_exec_run(s->exec, &b, s->logits, err);
    }
    return rc;
}

/* Keys, values and states for every depth: the first tokens are real, pages behind them copies, states what the real ones left. */
static nb_status fill(speed *s, nb_err *err)
{
    const size_t deepest = largest(s->o->depths, s->o->n_depths), bytes = nb_exec_state_bytes(s->exec);
    const size_t real = deepest < REAL_TOKENS ? deepest : REAL_TOKENS;
    nb_status rc = feed(s, 0, real, err);

    for (size_t i = pages_for(real); rc == NB_OK && real && i < s->n_pages; i++)
        nb_exec_copy_page(s->exec, (uint32_t)i, (uint32_t)(i % pages_for(real)));
    for (size_t i = 0; rc == NB_OK && bytes && i < s->o->n_depths; i++) {
        nb_exec_state_claim(s->exec, 0, (uint32_t)s->o->depths[i]);
        nb_exec_state_save(s->exec, 0, s->states + i * bytes);
    }
    return rc;
}

static const unsigned char *state_of(const speed *s, size_t depth)
{
    size_t i = 0;

    while (s->o->depths[i] != depth)
        i++;
    return s->states + i * nb_exec_state_bytes(s->exec);
}

static nb_status decode_round(speed *s, const nb_speed_row *row, double *tok_s, nb_err *err)
{
    const size_t batch = row->batch;
    nb_batch b = { .m = batch, .token = s->token, .pos = s->pos, .seq = s->seq, .want = s->want, .seqs = s->views, .n_seqs = batch };
    double t = nb_now();
    nb_status rc = NB_OK;

    lay_views(s, batch, row->depth + s->o->decode + 1);
    for (size_t step = 0; rc == NB_OK && step <= s->o->decode; step++) {
        for (size_t i = 0; step < 2 && i < batch; i++) /* back to where the prompt ended */
            nb_exec_state_load(s->exec, i, state_of(s, row->depth));
        if (step == 1) /* the first step warms caches and tables */
            t = nb_now();
        for (size_t i = 0; i < batch; i++) {
            s->token[i] = some_token(s, row->depth + step + 97 * i);
            s->pos[i] = (uint32_t)(row->depth + (step ? step - 1 : 0));
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

static nb_spread spread(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return (nb_spread){ .median = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2, .min = v[0], .max = v[n - 1] };
}

static nb_status rounds(speed *s, nb_speed *out, nb_err *err)
{
    const int n = s->o->rounds;
    double read[MAX_ROUNDS], pre[MAX_ROUNDS];
    nb_progress p = { .what = "bench", .unit = "rounds", .total = (uint64_t)n };
    nb_status rc = feed(s, 0, s->o->prompt < 32 ? s->o->prompt : 32, err); /* warm-up */

    if (rc == NB_OK)
        rc = fill(s, err);
    for (int i = 0; rc == NB_OK && i < n; i++) {
        double t;
        p.done = (uint64_t)i;
        nb_report_progress(s->o->host, &p);
        read[i] = read_round(s);
        t = nb_now();
        rc = feed(s, 0, s->o->prompt, err);
        pre[i] = (double)s->o->prompt / (nb_now() - t);
        for (size_t k = 0; rc == NB_OK && k < out->n_decode; k++)
            rc = nb_cancelled(s->o->host) ? NB_ECANCELED : decode_round(s, &out->decode[k], &s->times[k * MAX_ROUNDS + (size_t)i], err);
    }
    if (rc != NB_OK)
        return rc;
    out->rounds = n;
    out->read_bytes_s = spread(read, n);
    out->prefill_tok_s = spread(pre, n);
    out->step_bytes = nb_model_step_bytes(s->model);
    for (size_t k = 0; k < out->n_decode; k++) {
        nb_speed_row *row = &out->decode[k];
        row->tok_s = spread(s->times + k * MAX_ROUNDS, n);
        row->share_of_read = (double)out->step_bytes * row->tok_s.median / (double)row->batch / out->read_bytes_s.median;
    }
    return NB_OK;
}

nb_status nb_speed_run(nb_model *m, const nb_speed_opts *o, nb_speed *out, nb_err *err)
{
    speed s = { .model = m, .o = o };
    nb_status rc;

    memset(out, 0, sizeof *out);
    rc = prepare(&s, out, err);
    if (rc == NB_OK)
        rc = rounds(&s, out, err);
    finish(&s);
    return rc;
}
