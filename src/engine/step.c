/* step.c - one run of the model: rows from the grants, draws from the logits, and what follows for each sequence. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/engine_priv.h"

/* ---- rows in ---- */

static bool tells(const nb_seq *s, size_t pos)
{
    const nb_req *r = s->req;

    return r->prompt_logprobs && pos + 1 < r->n_prompt && pos >= r->n_told;
}

static void put_rows(nb_engine *e, nb_batch *b, nb_seq *s)
{
    e->views[b->n_seqs] = (nb_seq_view){
        .near = e->near ? s->near : NULL, .pages = s->pages, .n_pages = s->n_pages, .total = s->req->max_ids, .state = s->slot
    };
    e->members[b->n_seqs] = s;
    for (size_t i = 0; i < s->grant; i++, b->m++) {
        const size_t pos = s->n_computed + i;
        e->token[b->m] = s->ids[pos];
        e->pos[b->m] = (uint32_t)pos;
        e->owner[b->m] = (uint32_t)b->n_seqs;
        e->want[b->m] = pos + 1 == s->n_ids || tells(s, pos);
    }
    b->n_seqs++;
}

static void build(nb_engine *e, nb_batch *b)
{
    *b = (nb_batch){ .token = e->token, .pos = e->pos, .seq = e->owner, .want = e->want, .seqs = e->views };
    for (size_t i = 0; i < e->n_live; i++)
        if (e->live[i]->grant > 0)
            put_rows(e, b, e->live[i]);
    e->n_members = b->n_seqs;
}

/* ---- draws ---- */

static draw_task *new_task(nb_engine *e, size_t *n, nb_seq *s, const float *row)
{
    draw_task *t = &e->tasks[(*n)++];

    *t = (draw_task){ .s = s, .row = row, .at = SIZE_MAX };
    return t;
}

/* What may follow, by the constraint of the request. */
static void ask_limit(nb_engine *e, draw_task *t, uint32_t *bits)
{
    const nb_constraint *c = &t->s->req->limit;
    int answer;

    if (!c->mask)
        return;
    memset(bits, 0, e->words * sizeof *bits);
    answer = c->mask(c->user, t->s->choice, bits);
    if (answer > 0)
        t->mask = bits;
    else if (answer < 0)
        t->rc = nb_fail(&t->err, NB_EINTERNAL, "sample.constraint", "", "the constraint of this request cannot go on");
}

/* One task for every row of logits, n of them for a prompt with n choices. */
static size_t make_tasks(nb_engine *e, const nb_batch *b)
{
    const float *row = e->logits;
    size_t n = 0, draws = 0;

    for (size_t i = 0; i < b->m; i++) {
        nb_seq *s = e->members[b->seq[i]];
        nb_req *r = s->req;
        const size_t copies = b->pos[i] + 1 < s->n_ids ? 0 : r->forked || r->n == 1 ? 1 : r->n;
        if (!b->want[i])
            continue;
        if (tells(s, b->pos[i])) {
            draw_task *t = new_task(e, &n, s, row);
            t->at = b->pos[i] + 1;
            t->id = s->ids[t->at];
            t->lp = r->prompt + t->at * (1 + r->top);
            t->shared = true; /* the row stays as it is */
        }
        for (size_t c = 0; c < copies; c++) {
            draw_task *t = new_task(e, &n, copies > 1 ? &r->seq[c] : s, row);
            t->shared = copies > 1;
            t->lp = e->lps + draws * (1 + NB_MAX_TOP);
            ask_limit(e, t, e->masks + draws * e->words);
            draws++;
        }
        row += e->vocab;
    }
    return n;
}

static void do_task(nb_engine *e, draw_task *t, int thread)
{
    const nb_seq *s = t->s;
    const nb_req *r = s->req;
    nb_sampler *sampler = e->samplers[thread];
    float *row = (float *)t->row;
    const nb_draw d = { .p = &r->sampling,
                        .ids = s->ids,
                        .n_prompt = r->n_prompt,
                        .n_ids = s->n_ids,
                        .choice = r->first_choice + s->choice,
                        .mask = t->mask,
                        .allowed = r->allowed,
                        .bias = r->bias,
                        .n_bias = r->n_bias,
                        .bad_words = r->words,
                        .n_bad_words = r->n_words,
                        .stop_ids = r->stop_ids,
                        .n_stop_ids = r->n_stop_ids,
                        .min_tokens = r->min_tokens,
                        .logprobs = r->logprobs,
                        .top = r->top,
                        .named = r->named,
                        .n_named = r->n_named };

    if (t->rc != NB_OK)
        return;
    if (t->at != SIZE_MAX) {
        t->rc = nb_sampler_logprobs(sampler, row, t->id, NULL, r->top, t->lp, &t->err);
        return;
    }
    if (t->shared) {
        memcpy(e->copies[thread], row, e->vocab * sizeof *row);
        row = e->copies[thread];
    }
    t->rc = nb_sampler_pick(sampler, row, &d, &t->id, t->lp, &t->err);
}

static void do_tasks(void *ctx, size_t begin, size_t end, int thread)
{
    nb_engine *e = ctx;

    for (size_t i = begin; i < end; i++)
        do_task(e, &e->tasks[i], thread);
}

/* ---- what follows ---- */

/* The prompt is there: every choice gets the blocks, and its own copy of the last one when it first writes [KV-17]. */
static void fork_choices(nb_engine *e, nb_seq *s)
{
    nb_req *r = s->req;
    tenant *t = nb_engine_tenant(e, r->key);

    for (size_t c = 1; c < r->n; c++) {
        nb_seq *o = &r->seq[c];
        memcpy(o->pages, s->pages, s->n_pages * sizeof *s->pages);
        for (size_t i = 0; i < s->n_pages; i++)
            nb_kv_ref(&e->kv, s->pages[i]);
        if (s->hash)
            memcpy(o->hash, s->hash, s->n_hash * sizeof *s->hash);
        o->n_pages = s->n_pages;
        o->n_hash = s->n_hash;
        o->n_computed = s->n_computed;
        o->n_published = o->offered = s->n_published;
        o->n_proven = s->n_proven;
        o->canon = s->canon;
        o->times = s->times;
        o->reserved = c <= r->fork_reserve;
        o->state = SEQ_RUNNING;
        o->starved = false;
        nb_state_fork(e, s, o);
        nb_near_fork(e, s, o);
        t->blocks += o->n_pages;
        t->reserved += o->reserved;
        t->running++;
    }
    r->fork_reserve = 0; /* now theirs */
    r->forked = true;
}

static bool is_stop(const nb_req *r, int32_t id)
{
    for (size_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id)
            return true;
    return false;
}

static void put_logprobs(nb_event *ev, const draw_task *t)
{
    const nb_req *r = t->s->req;

    ev->logprob = r->logprobs ? t->lp : NULL;
    ev->n_top = !r->logprobs ? 0 : r->n_named ? r->n_named : r->top;
}

/* One drawn token. */
static void take_token(nb_engine *e, const draw_task *t, double now)
{
    nb_seq *s = t->s;
    nb_req *r = s->req;
    const size_t index = s->n_ids - r->n_prompt;
    nb_event *ev;

    if (s->times.first_token == 0)
        s->times.first_token = now;
    s->times.last_token = now;
    e->st.output_tokens++;
    if (r->limit.accept)
        r->limit.accept(r->limit.user, s->choice, t->id);
    if (is_stop(r, t->id)) {
        const size_t at = e->n_ev;
        nb_engine_end(e, s, NB_FINISH_STOP, t->id);
        e->ev[at].n_output++;
        put_logprobs(&e->ev[at], t);
        return;
    }
    s->ids[s->n_ids++] = t->id;
    ev = nb_engine_event(e, NB_EV_TOKEN, s);
    ev->id = t->id;
    ev->index = index;
    put_logprobs(ev, t);
    if (s->n_ids == r->max_ids)
        nb_engine_end(e, s, NB_FINISH_LENGTH, -1);
}

static void tell_prompt(nb_engine *e, nb_seq *s)
{
    nb_req *r = s->req;
    nb_event *ev = nb_engine_event(e, NB_EV_PROMPT, s);

    ev->prompt = r->prompt;
    ev->n_top = r->top;
    r->n_told = r->n_prompt;
}

static void fail_request(nb_engine *e, nb_req *r, const nb_err *err)
{
    for (size_t c = 0; c < r->n; c++)
        if (r->seq[c].state != SEQ_DONE)
            nb_engine_fail(e, &r->seq[c], err);
}

/* In the order of rows. */
static void take_results(nb_engine *e, size_t n, double now)
{
    for (size_t i = 0; i < n; i++) {
        draw_task *t = &e->tasks[i];
        nb_seq *s = t->s;
        nb_req *r = s->req;
        if (s->state == SEQ_DONE)
            continue;
        if (t->rc != NB_OK) { /* a prompt that fails ends all choices */
            e->st.numeric_errors += t->rc == NB_ENUMERIC;
            if (!r->forked && r->n > 1)
                fail_request(e, r, &t->err);
            else
                nb_engine_fail(e, s, &t->err);
            continue;
        }
        if (t->at != SIZE_MAX) {
            r->n_told = t->at;
            continue;
        }
        if (r->n > 1 && !r->forked)
            fork_choices(e, &r->seq[0]);
        if (r->prompt_logprobs && r->n_told < r->n_prompt)
            tell_prompt(e, s);
        nb_prefix_prove(e, s);
        take_token(e, t, now);
    }
}

static void run_failed(nb_engine *e, const nb_err *why)
{
    for (size_t i = 0; i < e->n_members; i++)
        nb_prefix_withdraw(e, e->members[i]);
    for (size_t i = 0; i < e->n_members; i++)
        fail_request(e, e->members[i]->req, why);
}

static void account(nb_engine *e, const nb_batch *b, double seconds)
{
    e->st.steps++;
    e->st.rows += b->m;
    e->st.last_rows = b->m;
    e->st.last_step_s = seconds;
    e->st.exec_s += seconds;
    nb_sched_measured(e, b->m, seconds);
    for (size_t i = 0; i < e->n_members; i++) {
        nb_seq *s = e->members[i];
        const bool decoding = s->n_computed >= s->req->n_prompt;
        nb_engine_tenant(e, s->req->key)->served += (double)s->grant;
        if (!decoding)
            e->st.computed_tokens += s->grant;
        s->n_computed += s->grant;
        s->grant = 0;
        nb_prefix_merge(e, s);
        nb_state_save(e, s);
        nb_near_advance(e, s);
    }
}

void nb_step_run(nb_engine *e)
{
    nb_err err = { 0 };
    nb_batch b;
    double t0, t1;
    size_t n;

    build(e, &b);
    if (b.m == 0)
        return;
    t0 = nb_engine_now(e);
    if (nb_exec_run(e->exec, &b, e->logits, &err) != NB_OK) {
        run_failed(e, &err);
        return;
    }
    t1 = nb_engine_now(e);
    account(e, &b, t1 - t0);
    n = make_tasks(e, &b);
    nb_parallel_for(n > 1 ? e->o.pool : NULL, n, 1, do_tasks, e);
    take_results(e, n, nb_engine_now(e));
}
