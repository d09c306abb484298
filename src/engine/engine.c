/* engine.c - opening, the queue, ending sequences, and the step around sched.c and step.c. */
#include <math.h>
#include <string.h>

#include "base/cpu.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "engine/engine_priv.h"

enum { DEFAULT_BATCHED = 512 };

double nb_engine_now(const nb_engine *e)
{
    return e->o.now ? e->o.now(e->o.now_user) : nb_now();
}

/* ---- open, close ---- */

/* Bytes of what is cached of one token over all layers. */
static uint64_t kv_token_bytes(const nb_plan *p, nb_dtype t)
{
    const nb_config *c = p->cfg;
    uint64_t all = 0;

    for (size_t l = 0; l < c->n_layers; l++) {
        const nb_dims d = nb_config_dims(c, l);
        if (nb_plan_has_kv(p, l) && d.kv_from == l)
            all += (c->mla.on ? 1 : 2) * d.kv_heads * nb_kv_head_bytes(d.kv_dim, t) / NB_PAGE;
    }
    return all;
}

/* The wanted context, or the model's, cut to what a quarter of the machine's memory holds when the caller did not say. */
static size_t choose_context(const nb_plan *p, const nb_engine_opts *o)
{
    const nb_config *c = p->cfg;
    const uint64_t per_token = kv_token_bytes(p, o->kv_dtype);
    size_t n = o->context;

    if (n == 0) {
        const uint64_t room = nb_mem_total() / 4 / (per_token ? per_token : 1) / o->max_seqs;
        n = c->context ? c->context : 2048;
        if (room && n > room)
            n = (size_t)room;
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
    e->o.max_seqs = o->max_seqs ? o->max_seqs : 1;
    e->o.max_batched = o->max_batched ? o->max_batched : DEFAULT_BATCHED;
    e->o.max_queue_age_s = o->max_queue_age_s > 0 ? o->max_queue_age_s : 5;
    rc = check_opts(&e->o, err);
    if (rc == NB_OK)
        rc = nb_kv_init(&e->kv, o->n_pages, err);
    if (rc == NB_OK)
        rc = alloc_step(e, err);
    if (rc == NB_OK)
        rc = nb_states_open(e, err);
    if (rc == NB_OK)
        rc = nb_near_open(e, err);
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
    nb_exec_opts xo = { .pool = o.pool, .exact_fp32 = o.exact_fp32 };
    nb_exec *x;
    nb_status rc;

    *out = NULL;
    o.max_seqs = o.max_seqs ? o.max_seqs : 1;
    o.max_batched = o.max_batched ? o.max_batched : DEFAULT_BATCHED;
    o.kv_dtype = o.kv_dtype ? o.kv_dtype : NB_DT_F16;
    o.context = choose_context(nb_model_plan(m), &o);
    if (c->context && o.context > c->context)
        return nb_fail(err, NB_EARG, "arg.context", "", "a context of %zu tokens is asked for, the model was made for %zu", o.context,
                       c->context);
    o.n_pages = o.n_pages ? o.n_pages : o.max_seqs * nb_blocks(o.context) + 1;
    xo.kv_dtype = o.kv_dtype;
    xo.max_m = o.max_batched;
    xo.n_pages = o.n_pages;
    xo.n_states = o.max_seqs;
    o.window = nb_exec_window(c);
    o.n_near = o.window ? nb_near_pages(o.window, o.max_seqs, o.max_batched) : 0;
    o.n_near = o.n_near < o.n_pages ? o.n_near : 0; /* else nothing is gained */
    xo.n_near = o.n_near;
    o.config = c;
    rc = nb_exec_cpu_open(m, &xo, &x, err);
    return rc == NB_OK ? nb_engine_open_exec(x, c->vocab, &o, out, err) : rc;
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
    nb_kv_clear(&e->kv);
    nb_exec_close(e->exec);
    nb_wipe(e->o.secret, sizeof e->o.secret);
    nb_free(e);
}

/* ---- who uses it ---- */

tenant *nb_engine_tenant(nb_engine *e, uint64_t key)
{
    size_t i = 0;

    while (i + 1 < e->n_tenants && e->tenants[i].key != key)
        i++;
    return &e->tenants[i];
}

static nb_status join(nb_engine *e, const nb_req *r, nb_err *err)
{
    double least = 0;

    for (size_t i = 0; i < e->n_tenants; i++) {
        tenant *t = &e->tenants[i];
        if (t->key == r->key) {
            t->n_reqs++;
            t->waiting += r->n;
            return NB_OK;
        }
        least = i == 0 || t->served < least ? t->served : least;
    }
    if (e->n_tenants == e->cap_tenants) {
        const size_t cap = e->cap_tenants ? 2 * e->cap_tenants : 4;
        tenant *more = nb_realloc(e->tenants, cap * sizeof *more);
        if (!more)
            return nb_enomem(err, "a request");
        e->tenants = more;
        e->cap_tenants = cap;
    }
    e->tenants[e->n_tenants++] = (tenant){ .key = r->key, .n_reqs = 1, .waiting = r->n, .served = least };
    return NB_OK;
}

static void leave(nb_engine *e, const nb_req *r)
{
    tenant *t = nb_engine_tenant(e, r->key);

    if (--t->n_reqs == 0)
        *t = e->tenants[--e->n_tenants];
}

/* ---- requests ---- */

/* Room for what one step can report: a prompt, a token and an end for each choice. */
static nb_status reserve_events(nb_engine *e, size_t n_choices, nb_err *err)
{
    const size_t need = 3 * (e->n_choices + n_choices);
    size_t cap = e->cap_ev ? e->cap_ev : 16;
    nb_event *more;

    if (need <= e->cap_ev)
        return NB_OK;
    while (cap < need)
        cap *= 2;
    more = nb_realloc(e->ev, cap * sizeof *more);
    if (!more)
        return nb_enomem(err, "the events");
    e->ev = more;
    e->cap_ev = cap;
    return NB_OK;
}

static nb_status check_queue(nb_engine *e, const nb_request *q, nb_err *err)
{
    size_t choices = 0, tokens = 0;

    for (const nb_req *r = e->first; r; r = r->next)
        if (!r->admitted) {
            choices += r->n;
            tokens += r->n_prompt;
        }
    if (choices == 0) /* an empty queue always takes one request */
        return NB_OK;
    if ((e->o.max_queued && choices + (q->n ? q->n : 1) > e->o.max_queued) ||
        (e->o.max_queued_tokens && tokens + q->n_ids > e->o.max_queued_tokens)) {
        e->st.rejected++;
        return nb_fail(err, NB_EBUSY, "queue.full", "SCH-7", "%zu choices with %zu prompt tokens are waiting; try again later", choices,
                       tokens);
    }
    return NB_OK;
}

nb_status nb_engine_add(nb_engine *e, const nb_request *q, uint64_t *id, nb_err *err)
{
    nb_req *r = NULL, **tail;
    nb_status rc = check_queue(e, q, err);

    if (rc == NB_OK)
        rc = nb_req_make(e, q, &r, err);
    if (rc == NB_OK)
        rc = reserve_events(e, r->n, err);
    if (rc == NB_OK)
        rc = join(e, r, err);
    if (rc != NB_OK) {
        nb_req_free(r);
        return rc;
    }
    *id = r->id = ++e->next_id;
    e->n_choices += r->n;
    e->st.requests++;
    e->st.prompt_tokens += r->n_prompt;
    for (tail = &e->first; *tail; tail = &(*tail)->next)
        ;
    *tail = r;
    return NB_OK;
}

static nb_req *find(const nb_engine *e, uint64_t id)
{
    nb_req *r = e->first;

    while (r && r->id != id)
        r = r->next;
    return r;
}

void nb_engine_release(nb_engine *e, uint64_t id, const nb_constraint *limit)
{
    nb_req *r = find(e, id);

    if (!r || !r->held)
        return;
    if (limit)
        r->limit = *limit;
    r->held = false;
}

void nb_engine_cancel(nb_engine *e, uint64_t id)
{
    nb_req *r = find(e, id);

    if (r)
        r->cancelled = true;
}

void nb_engine_stop(nb_engine *e, uint64_t id, size_t choice)
{
    nb_req *r = find(e, id);

    if (r && choice < r->n)
        r->seq[choice].stop = true;
}

bool nb_engine_idle(const nb_engine *e)
{
    for (const nb_req *r = e->first; r; r = r->next)
        if (!r->held || r->cancelled)
            return false;
    return true;
}

/* ---- ends ---- */

nb_event *nb_engine_event(nb_engine *e, nb_event_kind kind, const nb_seq *s)
{
    nb_event *ev = &e->ev[e->n_ev++];

    *ev = (nb_event){ .kind = kind, .request = s->req->id, .choice = s->choice, .id = -1, .times = s->times };
    return ev;
}

static void take_out(nb_engine *e, nb_req *r)
{
    nb_req **at = &e->first;

    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    r->next = e->dead;
    e->dead = r;
    e->n_choices -= r->n;
    leave(e, r);
}

static void leave_live(nb_engine *e, const nb_seq *s)
{
    size_t i = 0;

    while (i < e->n_live && e->live[i] != s)
        i++;
    if (i < e->n_live)
        memmove(e->live + i, e->live + i + 1, (--e->n_live - i) * sizeof *e->live);
}

static void average(double *x, double now)
{
    *x = *x == 0 ? now : 0.9 * *x + 0.1 * now;
}

static void end(nb_engine *e, nb_seq *s, nb_finish why, int32_t id, const nb_err *err)
{
    nb_req *r = s->req;
    tenant *t = nb_engine_tenant(e, r->key);
    nb_event *ev;

    if (why == NB_FINISH_ERROR || (why == NB_FINISH_CANCEL && s->times.first_token == 0))
        nb_prefix_forget(e, s, err && err->code == NB_ENUMERIC);
    t->running -= s->state == SEQ_RUNNING;
    t->waiting -= r->admitted ? 0 : 1;
    nb_sched_release(e, s);
    leave_live(e, s);
    s->state = SEQ_DONE;
    s->times.done = nb_engine_now(e);
    if (s->times.scheduled > 0) {
        average(&e->service, s->times.done - s->times.scheduled);
        average(&e->usual_rows, (double)(s->n_ids - r->n_cached) / 2); /* half of it is still to come, usually */
    }
    e->st.finished[why]++;
    ev = nb_engine_event(e, NB_EV_DONE, s);
    ev->id = id;
    ev->finish = why;
    ev->n_prompt = r->n_prompt;
    ev->n_cached = r->n_cached;
    ev->n_output = s->n_ids - r->n_prompt;
    ev->last = ++r->n_done == r->n;
    if (err) {
        r->err = *err;
        ev->err = &r->err;
    }
    if (ev->last)
        take_out(e, r);
}

void nb_engine_end(nb_engine *e, nb_seq *s, nb_finish why, int32_t id)
{
    end(e, s, why, id, NULL);
}

void nb_engine_fail(nb_engine *e, nb_seq *s, const nb_err *err)
{
    end(e, s, NB_FINISH_ERROR, -1, err);
}

static void end_all(nb_engine *e, nb_req *r, nb_finish why, const nb_err *err)
{
    for (size_t c = 0; c < r->n; c++)
        if (r->seq[c].state != SEQ_DONE)
            end(e, &r->seq[c], why, -1, err);
}

/* Cancelled, stopped and late requests. */
static void sweep(nb_engine *e)
{
    const double now = nb_engine_now(e);

    for (nb_req *r = e->first, *next; r; r = next) {
        nb_err err = { 0 };
        next = r->next;
        if (r->cancelled) {
            end_all(e, r, NB_FINISH_CANCEL, NULL);
        } else if (r->timeout > 0 && now - r->arrival > r->timeout) {
            nb_fail(&err, NB_ECANCELED, "request.timeout", "SCH-9", "not complete after %g s", r->timeout);
            end_all(e, r, NB_FINISH_ERROR, &err);
        } else if (!r->admitted && r->queue_timeout > 0 && now - r->arrival > r->queue_timeout) {
            nb_fail(&err, NB_EBUSY, "queue.timeout", "SCH-9", "still queued after %g s", r->queue_timeout);
            end_all(e, r, NB_FINISH_ERROR, &err);
        } else {
            const size_t n = r->n;
            for (size_t c = 0, left = n - r->n_done; c < n && left > 0; c++)
                if (r->seq[c].stop && r->seq[c].state != SEQ_DONE && (r->forked || n == 1)) {
                    left--;
                    end(e, &r->seq[c], NB_FINISH_STOP, -1, NULL);
                }
        }
    }
}

/* ---- the step ---- */

static nb_status verify(nb_engine *e, nb_err *err)
{
    size_t reserved = 0;
    nb_status rc;

    memset(e->refs, 0, e->kv.n_pages * sizeof *e->refs);
    for (const nb_req *r = e->first; r; r = r->next) {
        reserved += r->fork_reserve;
        for (size_t c = 0; c < r->n; c++) {
            const nb_seq *s = &r->seq[c];
            reserved += s->reserved;
            for (size_t i = 0; i < s->n_pages; i++)
                e->refs[s->pages[i]]++;
            if (s->n_computed > s->n_pages * NB_PAGE || s->n_computed > s->n_ids || s->n_published > s->n_pages)
                return nb_fail(err, NB_EINTERNAL, "kv.invariant", "KV-4", "request %llu has computed more than it holds",
                               (unsigned long long)r->id);
        }
    }
    rc = nb_kv_check(&e->kv, e->refs, err);
    if (rc == NB_OK)
        rc = nb_near_check(e, e->refs, err);
    if (rc == NB_OK && reserved != e->kv.n_reserved)
        rc = nb_fail(err, NB_EINTERNAL, "kv.invariant", "KV-18", "%zu blocks are promised, %zu are counted", reserved, e->kv.n_reserved);
    return rc;
}

/* Nothing runs, nothing can be admitted, nobody else will give blocks back: a bug that must not hang [KV-23]. */
static void unstick(nb_engine *e)
{
    nb_err err = { 0 };
    nb_req *r = e->first;

    while (r && r->held)
        r = r->next;
    if (!r || e->n_members > 0 || e->preempted_now)
        return;
    nb_fail(&err, NB_EINTERNAL, "kv.exhausted", "KV-23", "no blocks for request %llu though nothing else runs", (unsigned long long)r->id);
    end_all(e, r, NB_FINISH_ERROR, &err);
}

nb_status nb_engine_step(nb_engine *e, const nb_event **ev, size_t *n, nb_err *err)
{
    const double t0 = nb_engine_now(e), model = e->st.exec_s;
    nb_status rc = NB_OK;

    for (nb_req *next; e->dead; e->dead = next) {
        next = e->dead->next;
        nb_req_free(e->dead);
    }
    e->n_ev = e->n_members = 0;
    sweep(e);
    if (!nb_engine_idle(e)) {
        nb_sched(e);
        nb_step_run(e);
        unstick(e);
    }
    if (e->o.check)
        rc = verify(e, err);
    e->st.last_step_at = nb_engine_now(e);
    e->st.engine_s += e->st.last_step_at - t0 - (e->st.exec_s - model);
    *ev = e->ev;
    *n = e->n_ev;
    return rc;
}

nb_status nb_engine_warm(nb_engine *e, nb_err *err)
{
    const size_t rows = NB_PAGE < e->o.context ? NB_PAGE : 1;
    const uint32_t page = e->kv.block[0].next;
    const uint32_t near_page = e->o.n_near ? (uint32_t)(e->o.n_near - 1) : 0;
    const nb_seq_view view = { .pages = &page, .n_pages = 1, .near = e->near ? &near_page : NULL };
    const size_t sizes[2] = { rows, 1 };

    if (e->first || page == 0)
        return NB_OK;
    nb_kv_reset(&e->kv);             /* the rows go anywhere */
    for (size_t k = 0; k < 4; k++) { /* each size once to touch the memory, once to be measured */
        const size_t m = sizes[k % 2];
        const nb_batch b = { .m = m, .token = e->token, .pos = e->pos, .seq = e->owner, .want = e->want, .seqs = &view, .n_seqs = 1 };
        const double t0 = nb_engine_now(e);
        nb_status rc;
        for (size_t i = 0; i < m; i++) {
            e->token[i] = 0;
            e->pos[i] = (uint32_t)i;
            e->owner[i] = 0;
            e->want[i] = i + 1 == m;
        }
        rc = nb_exec_run(e->exec, &b, e->logits, err);
        if (rc != NB_OK)
            return rc;
        if (k >= 2)
            nb_sched_measured(e, m, nb_engine_now(e) - t0);
    }
    e->st.last_step_at = nb_engine_now(e);
    return NB_OK;
}

/* ---- figures ---- */

size_t nb_engine_reset_cache(nb_engine *e)
{
    return nb_kv_reset(&e->kv);
}

void nb_engine_namespace(const nb_engine *e, nb_cache_scope scope, const void *key, size_t n_key, const void *salt, size_t n_salt,
                         uint8_t out[32])
{
    nb_sha256 s;

    nb_hmac_init(&s, e->o.secret, sizeof e->o.secret);
    nb_sha256_add_le32(&s, (uint32_t)scope);
    nb_sha256_add_le32(&s, (uint32_t)n_key);
    nb_sha256_add(&s, key, n_key);
    nb_sha256_add_le32(&s, (uint32_t)n_salt);
    nb_sha256_add(&s, salt, n_salt);
    nb_hmac_end(&s, e->o.secret, sizeof e->o.secret, out);
}

size_t nb_engine_context(const nb_engine *e)
{
    return e->o.context;
}

size_t nb_engine_free_pages(const nb_engine *e)
{
    return e->kv.n_free;
}

uint64_t nb_engine_kv_bytes(const nb_engine *e)
{
    return nb_exec_bytes(e->exec);
}

double nb_engine_drain_s(const nb_engine *e)
{
    size_t tokens = 0, choices = 0;

    for (const nb_req *r = e->first; r; r = r->next)
        if (!r->admitted) {
            tokens += r->n_prompt;
            choices += r->n;
        }
    return choices == 0 ? 0
                        : nb_sched_seconds(e, e->o.max_batched) * (double)tokens / (double)e->o.max_batched +
                              e->service * (double)choices / (double)e->o.max_seqs;
}

void nb_engine_stats_get(const nb_engine *e, nb_engine_stats *out)
{
    const double full = nb_sched_seconds(e, e->o.max_batched);

    *out = e->st;
    for (size_t i = 0; i < e->n_live; i++) {
        out->running += e->live[i]->state == SEQ_RUNNING;
        out->preempted += e->live[i]->state == SEQ_PREEMPTED;
    }
    for (const nb_req *r = e->first; r; r = r->next)
        if (!r->admitted) {
            out->waiting += r->n;
            out->held += r->held ? r->n : 0;
            out->waiting_tokens += r->n_prompt;
        }
    out->waiting += out->preempted;
    out->pages = e->kv.n_pages - 1;
    out->pages_used = out->pages - e->kv.n_free;
    out->pages_cached = e->kv.n_cached;
    out->evictions = e->kv.evictions;
    out->prefill_tok_s = full > 0 ? (double)e->o.max_batched / full : 0;
    out->decode_s = nb_sched_seconds(e, out->running ? out->running : 1);
}
