/* engine.c - the queue, ending sequences, and the step around sched.c and step.c. */
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "engine/engine_priv.h"

double nb_engine_now(const nb_engine *e)
{
    return e->o.now ? e->o.now(e->o.now_user) : nb_now();
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

    *ev = (nb_event){ .kind = kind,
                      .request = s->req->id,
                      .choice = s->choice,
                      .id = -1,
                      .n_prompt = s->req->n_prompt,
                      .n_cached = s->req->n_cached,
                      .times = s->times };
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
    ev->n_output = s->n_ids - r->n_prompt;
    ev->n_preempted = s->preempted;
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
    nb_disk_reset(e);
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
    return e->cache_bytes ? e->cache_bytes : nb_exec_bytes(e->exec);
}

uint64_t nb_engine_work_bytes(const nb_engine *e)
{
    return nb_exec_bytes(e->exec) - nb_engine_kv_bytes(e) + (uint64_t)e->o.max_seqs * e->vocab * sizeof *e->logits;
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
    out->few_threads = nb_exec_few(e->exec);
    out->pages = e->kv.n_pages - 1;
    out->pages_used = out->pages - e->kv.n_free;
    out->pages_cached = e->kv.n_cached;
    out->evictions = e->kv.evictions;
    out->prefill_tok_s = full > 0 ? (double)e->o.max_batched / full : 0;
    out->decode_s = nb_sched_seconds(e, out->running ? out->running : 1);
}
