/* engine_open.c - sizes, opening and closing. */
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "engine/engine_priv.h"

enum { DEFAULT_BATCHED = 512 };

/* Bytes of one block in the layers with, or without, pages of a window. */
static uint64_t block_bytes(const nb_plan *p, nb_dtype t, bool near)
{
    uint64_t all = 0;

    for (size_t l = 0; l < p->cfg->n_layers; l++) {
        all += nb_exec_is_near(p->cfg, l) == near ? nb_plan_kv_page(p, l, t) : 0;
        all += near ? 0 : nb_plan_side_page(p, l, t); /* keys that choose, entries */
    }
    return all;
}

static void set_defaults(nb_engine_opts *o)
{
    o->max_seqs = o->max_seqs ? o->max_seqs : 1;
    o->max_batched = o->max_batched ? o->max_batched : DEFAULT_BATCHED;
    o->max_queue_age_s = o->max_queue_age_s > 0 ? o->max_queue_age_s : 5;
    o->kv_dtype = o->kv_dtype ? o->kv_dtype : NB_DT_F16;
}

/* Pages of a window for these options; 0: with so few blocks nothing is gained by them. */
static size_t near_pages(const nb_config *c, const nb_engine_opts *o)
{
    const size_t window = nb_exec_window(c), n = window ? nb_near_pages(window, o->max_seqs, o->max_batched) : 0;

    return n < o->n_pages ? n : 0;
}

size_t nb_engine_pages_in(const nb_model *m, const nb_engine_opts *opts, uint64_t bytes)
{
    const nb_plan *p = nb_model_plan(m);
    nb_engine_opts o = *opts;
    uint64_t far, near, near_all, n;

    set_defaults(&o);
    far = block_bytes(p, o.kv_dtype, false);
    near = block_bytes(p, o.kv_dtype, true);
    o.n_pages = SIZE_MAX;
    near_all = near_pages(p->cfg, &o) * near;
    n = far + near == 0 ? UINT32_MAX / 4 : bytes / (far + near);
    if (near_all > 0 && near_all < bytes) {
        const uint64_t apart = far == 0 ? UINT32_MAX / 4 : (bytes - near_all) / far;
        n = apart > n ? apart : n;
    }
    return n < UINT32_MAX / 4 ? (size_t)n : UINT32_MAX / 4;
}

uint64_t nb_engine_cache_bytes(const nb_model *m, const nb_engine_opts *opts)
{
    const nb_plan *p = nb_model_plan(m);
    nb_engine_opts o = *opts;
    size_t n;

    set_defaults(&o);
    n = near_pages(p->cfg, &o);
    return o.n_pages * block_bytes(p, o.kv_dtype, false) + (n ? n : o.n_pages) * block_bytes(p, o.kv_dtype, true);
}

/* The wanted context, or the model's, cut to what a quarter of the machine's memory holds when the caller did not say. */
static size_t choose_context(const nb_model *m, const nb_engine_opts *o)
{
    const nb_config *c = nb_model_config(m);
    size_t n = o->context;

    if (n == 0) {
        const size_t room = nb_engine_pages_in(m, o, nb_mem_total() / 4) / o->max_seqs * NB_PAGE;
        n = c->context ? c->context : 2048;
        if (room && n > room)
            n = room;
        if (o->n_pages > 1 && n > (o->n_pages - 1) * NB_PAGE)
            n = (o->n_pages - 1) * NB_PAGE;
    }
    return n < 2 ? 2 : n;
}

static nb_status alloc_step(nb_engine *e, nb_err *err)
{
    const size_t m = e->o.max_batched, n = e->o.max_seqs, rows = n + PROMPT_ROWS;
    nb_status rc = NB_OK;

    e->words = (e->vocab + 31) / 32;
    e->live = nb_calloc(n, sizeof *e->live);
    e->order = nb_calloc(n, sizeof *e->order);
    e->members = nb_calloc(n, sizeof *e->members);
    e->token = nb_alloc_array(m, sizeof *e->token);
    e->pos = nb_alloc_array(m, sizeof *e->pos);
    e->owner = nb_alloc_array(m, sizeof *e->owner);
    e->want = nb_alloc_array(m, 1);
    e->views = nb_alloc_array(n, sizeof *e->views);
    e->tasks = nb_calloc(rows, sizeof *e->tasks);
    e->masks = nb_alloc_array(n * e->words, sizeof *e->masks);
    e->lps = nb_alloc_array(n * (1 + NB_MAX_TOP), sizeof *e->lps);
    e->n_threads = (size_t)nb_pool_threads(e->o.pool);
    e->samplers = nb_calloc(e->n_threads, sizeof *e->samplers);
    e->copies = nb_calloc(e->n_threads, sizeof *e->copies);
    e->refs = e->o.check ? nb_calloc(e->o.n_pages, sizeof *e->refs) : NULL;
    if (nb_mul_size(rows * sizeof *e->logits, e->vocab, &e->logits_bytes))
        e->logits = nb_huge_alloc(e->logits_bytes); /* touched as far as used */
    if (!e->live || !e->order || !e->members || !e->token || !e->pos || !e->owner || !e->want || !e->views || !e->tasks || !e->masks ||
        !e->lps || !e->samplers || !e->copies || (e->o.check && !e->refs) || !e->logits)
        return nb_enomem(err, "the step buffers");
    for (size_t i = 0; i < e->n_threads && rc == NB_OK; i++) {
        e->copies[i] = nb_alloc_array(e->vocab, sizeof **e->copies);
        rc = e->copies[i] ? nb_sampler_open(e->vocab, &e->samplers[i], err) : nb_enomem(err, "a row of logits");
    }
    return rc;
}

static nb_status check_opts(nb_engine_opts *o, nb_err *err)
{
    static const uint8_t none[32];

    if (o->max_batched < o->max_seqs + NB_PAGE)
        return nb_fail(err, NB_EARG, "engine.size", "SCH-1", "a step of %zu rows for %zu sequences; at least %zu are needed",
                       o->max_batched, o->max_seqs, o->max_seqs + NB_PAGE);
    if (memcmp(o->secret, none, 32) == 0 && !nb_random_bytes(o->secret, 32))
        return nb_fail(err, NB_EREAD, "engine.random", "", "the system gives no random bytes");
    return NB_OK;
}

nb_status nb_engine_open_exec(nb_exec *x, size_t vocab, const nb_engine_opts *o, nb_engine **out, nb_err *err)
{
    nb_engine *e = nb_calloc(1, sizeof *e);
    nb_status rc;

    *out = NULL;
    if (!e) {
        nb_exec_close(x);
        return nb_enomem(err, "the engine");
    }
    e->exec = x;
    e->vocab = vocab;
    e->o = *o;
    set_defaults(&e->o);
    rc = check_opts(&e->o, err);
    if (rc == NB_OK)
        rc = nb_kv_init(&e->kv, o->n_pages, err);
    if (rc == NB_OK && o->lfu)
        rc = nb_kv_use_lfu(&e->kv, err);
    if (rc == NB_OK)
        rc = alloc_step(e, err);
    if (rc == NB_OK)
        rc = nb_states_open(e, err);
    if (rc == NB_OK)
        rc = nb_near_open(e, err);
    if (rc == NB_OK)
        rc = nb_disk_open(e, err);
    if (rc != NB_OK) {
        nb_engine_close(e);
        return rc;
    }
    *out = e;
    return NB_OK;
}

nb_status nb_engine_open(nb_model *m, const nb_engine_opts *opts, nb_engine **out, nb_err *err)
{
    const nb_config *c = nb_model_config(m);
    nb_engine_opts o = *opts;
    nb_exec_opts xo = { .pool = o.pool, .exact_fp32 = o.exact_fp32, .a8 = o.a8 };
    nb_exec *x;
    nb_status rc;

    *out = NULL;
    set_defaults(&o);
    o.context = choose_context(m, &o);
    if (c->context && o.context > c->context)
        return nb_fail(err, NB_EARG, "arg.context", "", "a context of %zu tokens is asked for, the model was made for %zu", o.context,
                       c->context);
    o.n_pages = o.n_pages ? o.n_pages : o.max_seqs * nb_blocks(o.context) + 1;
    xo.kv_dtype = o.kv_dtype;
    xo.max_m = o.max_batched;
    xo.n_pages = o.n_pages;
    xo.n_states = o.max_seqs;
    xo.n_near = o.n_near = near_pages(c, &o);
    o.window = o.n_near ? nb_exec_window(c) : 0;
    o.config = c;
    rc = nb_exec_cpu_open(m, &xo, &x, err);
    if (rc == NB_OK && o.tune && (rc = nb_exec_tune(x, m, o.pool, err)) != NB_OK)
        nb_exec_close(x);
    if (rc == NB_OK)
        rc = nb_engine_open_exec(x, c->vocab, &o, out, err);
    if (rc == NB_OK)
        (*out)->cache_bytes = nb_engine_cache_bytes(m, &o) + o.max_seqs * nb_exec_state_bytes((*out)->exec);
    return rc;
}

void nb_engine_close(nb_engine *e)
{
    if (!e)
        return;
    for (int list = 0; list < 2; list++)
        for (nb_req *r = list ? e->dead : e->first, *next; r; r = next) {
            next = r->next;
            nb_req_free(r);
        }
    for (size_t i = 0; i < e->n_threads; i++) {
        if (e->samplers)
            nb_sampler_close(e->samplers[i]);
        if (e->copies)
            nb_free(e->copies[i]);
    }
    if (e->logits)
        nb_huge_free(e->logits, e->logits_bytes);
    nb_free(e->live);
    nb_free(e->order);
    nb_free(e->members);
    nb_free(e->token);
    nb_free(e->pos);
    nb_free(e->owner);
    nb_free(e->want);
    nb_free(e->views);
    nb_free(e->tasks);
    nb_free(e->masks);
    nb_free(e->lps);
    nb_free(e->samplers);
    nb_free(e->copies);
    nb_free(e->refs);
    nb_free(e->ev);
    nb_free(e->tenants);
    nb_states_close(e);
    nb_near_close(e);
    nb_disk_close(e);
    nb_kv_clear(&e->kv);
    nb_exec_close(e->exec);
    nb_wipe(e->o.secret, sizeof e->o.secret);
    nb_free(e);
}
