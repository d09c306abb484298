/* engine.c - a queue of requests and one step: admit, build a batch (one token of each decoding sequence, then prompt
 * chunks), run, sample, report. Pages for prompt and answer are reserved at admission, so a running request never waits. */
#include "engine/engine.h"

#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "engine/kv.h"

enum { DEFAULT_CHUNK = 512 };

typedef struct seq {
    struct seq *next;
    uint64_t id;
    int32_t *ids; /* prompt, then answer */
    size_t n_ids, n_prompt, max_ids;
    size_t n_computed; /* tokens whose K/V is in pages */
    uint32_t *pages;   /* NULL while queued */
    size_t n_pages;
    nb_sampling sampling;
    int32_t *stop_ids;
    size_t n_stop_ids;
    bool cancelled;
} seq;

struct nb_engine {
    nb_exec *exec;
    nb_sampler *sampler;
    nb_kv kv;
    size_t context, max_batch, chunk, vocab, max_m;
    uint64_t next_id;
    seq *first; /* all requests, oldest first */
    /* one step, sized once */
    int32_t *token;
    uint32_t *pos, *owner;
    uint8_t *want;
    nb_seq_view *views;
    seq **members; /* [max_batch] */
    float *logits; /* [max_batch][vocab] */
};

/* Bytes of K and V of one token over all layers. */
static uint64_t kv_token_bytes(const nb_config *c, nb_dtype t)
{
    return 2ull * c->n_layers * c->n_kv_heads * c->head_dim * (t == NB_DT_F32 ? 4 : 2);
}

/* The wanted context, or the model's, cut to what a quarter of the machine's memory holds when the caller did not say. */
static size_t choose_context(const nb_config *c, const nb_engine_opts *o, nb_dtype kv, size_t max_batch)
{
    const uint64_t per_token = kv_token_bytes(c, kv);
    size_t n = o->context;

    if (n == 0) {
        const uint64_t room = nb_mem_total() / 4 / (per_token ? per_token : 1) / max_batch;
        n = c->context ? c->context : 2048;
        if (room && n > room)
            n = (size_t)room;
    }
    return n < 2 ? 2 : n;
}

static nb_status alloc_step(nb_engine *e, nb_err *err)
{
    e->token = nb_alloc_array(e->max_m, sizeof *e->token);
    e->pos = nb_alloc_array(e->max_m, sizeof *e->pos);
    e->owner = nb_alloc_array(e->max_m, sizeof *e->owner);
    e->want = nb_alloc_array(e->max_m, 1);
    e->views = nb_alloc_array(e->max_batch, sizeof *e->views);
    e->members = nb_alloc_array(e->max_batch, sizeof *e->members);
    e->logits = nb_alloc_array(e->max_batch * e->vocab, sizeof *e->logits);
    if (!e->token || !e->pos || !e->owner || !e->want || !e->views || !e->members || !e->logits)
        return nb_enomem(err, "the step buffers");
    return NB_OK;
}

nb_status nb_engine_open_exec(nb_exec *x, size_t vocab, size_t context, size_t n_pages, const nb_engine_opts *o, nb_engine **out,
                              nb_err *err)
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
    e->context = context;
    e->max_batch = o->max_batch ? o->max_batch : 1;
    e->chunk = o->chunk ? o->chunk : DEFAULT_CHUNK;
    e->max_m = e->max_batch + e->chunk;
    rc = nb_kv_init(&e->kv, n_pages, err);
    if (rc == NB_OK)
        rc = nb_sampler_open(vocab, &e->sampler, err);
    if (rc == NB_OK)
        rc = alloc_step(e, err);
    if (rc != NB_OK) {
        nb_engine_close(e);
        return rc;
    }
    *out = e;
    return NB_OK;
}

nb_status nb_engine_open(nb_model *m, const nb_engine_opts *o, nb_engine **out, nb_err *err)
{
    const nb_config *c = nb_model_config(m);
    const size_t max_batch = o->max_batch ? o->max_batch : 1;
    nb_exec_opts xo = { .pool = o->pool, .exact_fp32 = o->exact_fp32, .kv_dtype = o->kv_dtype ? o->kv_dtype : NB_DT_F16 };
    const size_t context = choose_context(c, o, xo.kv_dtype, max_batch);
    nb_exec *x;
    nb_status rc;

    *out = NULL;
    if (c->context && context > c->context)
        return nb_fail(err, NB_EARG, "arg.context", "", "a context of %zu tokens is asked for, the model was made for %zu", context,
                       c->context);
    xo.max_m = max_batch + (o->chunk ? o->chunk : DEFAULT_CHUNK);
    xo.n_pages = max_batch * ((context + NB_PAGE - 1) / NB_PAGE);
    rc = nb_exec_cpu_open(m, &xo, &x, err);
    return rc == NB_OK ? nb_engine_open_exec(x, c->vocab, context, xo.n_pages, o, out, err) : rc;
}

static void free_seq(nb_engine *e, seq *s)
{
    if (s->pages)
        nb_kv_release(&e->kv, s->pages, s->n_pages);
    nb_free(s->pages);
    nb_free(s->ids);
    nb_free(s->stop_ids);
    nb_free(s);
}

void nb_engine_close(nb_engine *e)
{
    if (!e)
        return;
    while (e->first) {
        seq *next = e->first->next;
        free_seq(e, e->first);
        e->first = next;
    }
    nb_free(e->token);
    nb_free(e->pos);
    nb_free(e->owner);
    nb_free(e->want);
    nb_free(e->views);
    nb_free(e->members);
    nb_free(e->logits);
    nb_sampler_close(e->sampler);
    nb_kv_clear(&e->kv);
    nb_exec_close(e->exec);
    nb_free(e);
}

size_t nb_engine_context(const nb_engine *e)
{
    return e->context;
}

nb_status nb_engine_add(nb_engine *e, const nb_request *r, uint64_t *id, nb_err *err)
{
    size_t room;
    seq *s, **tail;
    nb_status rc = nb_sampling_check(&r->sampling, err);

    if (rc != NB_OK)
        return rc;
    if (r->n_ids == 0)
        return nb_fail(err, NB_EARG, "request.empty", "", "the prompt has no tokens");
    if (r->n_ids >= e->context)
        return nb_fail(err, NB_ELIMIT, "limit.context", "",
                       "the prompt has %zu tokens, the context holds %zu with the answer; shorten the prompt or raise --context", r->n_ids,
                       e->context);
    for (size_t i = 0; i < r->n_ids; i++)
        if (r->ids[i] < 0 || (size_t)r->ids[i] >= e->vocab)
            return nb_fail(err, NB_EARG, "request.token", "", "token %d at place %zu is outside the vocabulary of %zu", r->ids[i], i,
                           e->vocab);
    room = e->context - r->n_ids;
    s = nb_calloc(1, sizeof *s);
    if (!s)
        return nb_enomem(err, "a request");
    s->n_prompt = s->n_ids = r->n_ids;
    s->max_ids = r->n_ids + (r->max_tokens && r->max_tokens < room ? r->max_tokens : room);
    s->n_pages = (s->max_ids + NB_PAGE - 1) / NB_PAGE;
    s->sampling = r->sampling;
    s->n_stop_ids = r->n_stop_ids;
    s->ids = nb_alloc_array(s->max_ids, sizeof *s->ids);
    s->stop_ids = nb_alloc_array(r->n_stop_ids, sizeof *s->stop_ids);
    if (!s->ids || !s->stop_ids) {
        free_seq(e, s);
        return nb_enomem(err, "a request");
    }
    memcpy(s->ids, r->ids, r->n_ids * sizeof *s->ids);
    if (r->n_stop_ids)
        memcpy(s->stop_ids, r->stop_ids, r->n_stop_ids * sizeof *s->stop_ids);
    *id = s->id = ++e->next_id;
    for (tail = &e->first; *tail; tail = &(*tail)->next)
        ;
    *tail = s;
    return NB_OK;
}

void nb_engine_cancel(nb_engine *e, uint64_t id)
{
    for (seq *s = e->first; s; s = s->next)
        if (s->id == id)
            s->cancelled = true;
}

bool nb_engine_idle(const nb_engine *e)
{
    return e->first == NULL;
}

size_t nb_engine_free_pages(const nb_engine *e)
{
    return e->kv.n_free;
}

uint64_t nb_engine_kv_bytes(const nb_engine *e)
{
    return nb_exec_bytes(e->exec);
}

/* Give pages to queued requests, oldest first, never past one that does not fit (no starvation). */
static nb_status admit(nb_engine *e, nb_err *err)
{
    size_t running = 0;

    for (seq *s = e->first; s; s = s->next) {
        if (!s->pages) {
            uint32_t *pages;
            if (running == e->max_batch || e->kv.n_free < s->n_pages)
                break;
            pages = nb_alloc_array(s->n_pages, sizeof *pages);
            if (!pages)
                return nb_enomem(err, "a page table");
            nb_kv_alloc(&e->kv, s->n_pages, pages);
            s->pages = pages;
        }
        running++;
    }
    return NB_OK;
}

/* Rows of this step: decoding sequences one each, prompts share `chunk`. */
static void build(nb_engine *e, nb_batch *b)
{
    size_t left = e->chunk;

    memset(b, 0, sizeof *b);
    b->token = e->token;
    b->pos = e->pos;
    b->seq = e->owner;
    b->want = e->want;
    b->seqs = e->views;
    for (seq *s = e->first; s && s->pages; s = s->next) {
        size_t n = s->n_ids - s->n_computed;
        if (n > 1) {
            n = n < left ? n : left;
            left -= n;
        }
        if (n == 0)
            continue;
        e->views[b->n_seqs] = (nb_seq_view){ .pages = s->pages, .n_pages = s->n_pages, .total = s->max_ids };
        e->members[b->n_seqs] = s;
        for (size_t i = 0; i < n; i++, b->m++) {
            e->token[b->m] = s->ids[s->n_computed + i];
            e->pos[b->m] = (uint32_t)(s->n_computed + i);
            e->owner[b->m] = (uint32_t)b->n_seqs;
            e->want[b->m] = s->n_computed + i + 1 == s->n_ids;
        }
        s->n_computed += n;
        b->n_seqs++;
    }
}

static bool is_stop(const seq *s, int32_t id)
{
    for (size_t i = 0; i < s->n_stop_ids; i++)
        if (s->stop_ids[i] == id)
            return true;
    return false;
}

static void put_event(nb_event *ev, size_t *n, nb_event_kind kind, const seq *s, int32_t id, nb_finish finish)
{
    ev[(*n)++] = (nb_event){ .kind = kind, .request = s->id, .id = id, .finish = finish };
}

static void remove_seq(nb_engine *e, seq *s)
{
    seq **at = &e->first;

    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    free_seq(e, s);
}

/* Sample for every sequence whose last known token was computed. */
static nb_status sample_all(nb_engine *e, const nb_batch *b, nb_event *ev, size_t *n, nb_err *err)
{
    float *row = e->logits;

    for (size_t i = 0; i < b->n_seqs; i++) {
        seq *s = e->members[i];
        int32_t id;
        nb_status rc;
        if (s->n_computed < s->n_ids)
            continue;
        rc = nb_sampler_pick(e->sampler, row, &s->sampling, s->ids, s->n_ids, s->n_ids - s->n_prompt, &id, err);
        if (rc != NB_OK)
            return rc;
        row += e->vocab;
        if (is_stop(s, id)) {
            put_event(ev, n, NB_EV_DONE, s, id, NB_FINISH_STOP);
            remove_seq(e, s);
            continue;
        }
        s->ids[s->n_ids++] = id;
        put_event(ev, n, NB_EV_TOKEN, s, id, NB_FINISH_NONE);
        if (s->n_ids == s->max_ids) {
            put_event(ev, n, NB_EV_DONE, s, -1, NB_FINISH_LENGTH);
            remove_seq(e, s);
        }
    }
    return NB_OK;
}

nb_status nb_engine_step(nb_engine *e, nb_event *ev, size_t cap, size_t *n, nb_err *err)
{
    nb_batch b;
    nb_status rc;

    *n = 0;
    if (cap < 2 * e->max_batch)
        return nb_fail(err, NB_EARG, "engine.events", "", "room for %zu events, a step may report %zu", cap, 2 * e->max_batch);
    for (seq *s = e->first; s; s = s->next)
        if (s->cancelled) { /* one a step, so that the bound on events holds */
            put_event(ev, n, NB_EV_DONE, s, -1, NB_FINISH_CANCEL);
            remove_seq(e, s);
            return NB_OK;
        }
    rc = admit(e, err);
    if (rc != NB_OK)
        return rc;
    build(e, &b);
    if (b.m == 0)
        return NB_OK;
    rc = nb_exec_run(e->exec, &b, e->logits, err);
    if (rc != NB_OK)
        return rc;
    return sample_all(e, &b, ev, n, err);
}
