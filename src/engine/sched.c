/* sched.c - who gets how many rows of a step: decoding sequences one each, then prompts in slices, then new requests; blocks for them,
 * and whose blocks are taken when there are none. Source: spec serving 2.6 and 4.2. */
#include <math.h>
#include <string.h>

#include "engine/engine_priv.h"

enum {
    MOST_PREFILLS = 4,  /* long prompts that are read side by side */
    QUICK_ROWS = 64,    /* rows of prompts that are always worth a step */
    QUICK_SHARE = 4,    /* of step_ms: what else may be read before first tokens are drawn */
    SHARED_TOKENS = 64, /* of a prefix worth waiting for [RAD-5] */
    LPM_MOST = 128
};

/* ---- measured times [SCH-3] ---- */

static size_t bucket(size_t rows)
{
    size_t b = 0;

    while (rows >>= 1)
        b++;
    return b < N_RATES ? b : N_RATES - 1;
}

void nb_sched_measured(nb_engine *e, size_t rows, double seconds)
{
    double *r = &e->rate[bucket(rows)];
    const double now = seconds / (double)rows;

    *r = *r == 0 ? now : 0.8 * *r + 0.2 * now;
}

/* What a step of so many rows takes; 0: nothing was measured yet. */
double nb_sched_seconds(const nb_engine *e, size_t rows)
{
    const size_t b = bucket(rows);

    for (size_t d = 0; d < N_RATES; d++) {
        if (d <= b && e->rate[b - d] > 0)
            return e->rate[b - d] * (double)rows;
        if (b + d < N_RATES && e->rate[b + d] > 0)
            return e->rate[b + d] * (double)rows;
    }
    return 0;
}

/* Rows for prompts beside `used` decoding ones, so that the step stays within step_ms. */
static size_t rows_in_time(const nb_engine *e, size_t used, size_t left)
{
    const double limit = e->o.step_ms / 1000;
    size_t n = left;

    if (used == 0 || limit <= 0)
        return left;
    while (n > NB_PAGE && nb_sched_seconds(e, used + n) > limit)
        n -= n % NB_PAGE ? n % NB_PAGE : NB_PAGE;
    return n;
}

/* Rows of prompts after which the first tokens of those that are complete come before further prompts: what a part of step_ms reads.
 * Who asked first then answers first, and clients that ask at the same moment do not stay in step. */
static size_t quick_rows(const nb_engine *e)
{
    const double limit = e->o.step_ms / 1000 / QUICK_SHARE;
    size_t n = e->o.max_batched;

    while (limit > 0 && n > QUICK_ROWS && nb_sched_seconds(e, n) > limit)
        n -= n % NB_PAGE ? n % NB_PAGE : NB_PAGE;
    return n;
}

/* ---- blocks ---- */

static size_t pending(const nb_seq *s)
{
    return s->n_ids - s->n_computed - s->grant;
}

void nb_sched_release(nb_engine *e, nb_seq *s)
{
    nb_state_end(e, s);
    nb_near_end(e, s);
    nb_kv_release(&e->kv, s->pages, s->n_pages);
    nb_engine_tenant(e, s->req->key)->blocks -= s->n_pages;
    nb_engine_tenant(e, s->req->key)->reserved -= s->reserved;
    e->kv.n_reserved -= s->reserved;
    if (!s->req->forked) {
        e->kv.n_reserved -= s->req->fork_reserve;
        s->req->fork_reserve = 0;
    }
    s->n_pages = s->n_computed = s->n_published = s->n_proven = s->offered = s->grant = s->reserved = 0;
    s->canon = 0;
}

static void preempt(nb_engine *e, nb_seq *s)
{
    nb_prefix_withdraw(e, s);
    nb_sched_release(e, s);
    s->state = SEQ_PREEMPTED;
    s->preempted++;
    nb_engine_tenant(e, s->req->key)->running--;
    e->preempted_now = true;
    e->st.preemptions++;
}

/* More than half of the pool belongs to this key while another has something to do (PC-09). */
static bool too_much(const nb_engine *e, const tenant *t, size_t more)
{
    return e->n_tenants > 1 && t->blocks + t->reserved + more > (e->kv.n_pages - 1) / 2;
}

static bool more_urgent(const nb_engine *e, const nb_req *a, const nb_req *b)
{
    if (e->o.policy == NB_SCHED_PRIORITY && a->priority != b->priority)
        return a->priority < b->priority;
    return a->id < b->id;
}

/* The running sequence that others can do without: of a key that has too much, least urgent, latest. Only of `key` when given. */
static nb_seq *victim(nb_engine *e, const tenant *only)
{
    nb_seq *worst = NULL;
    bool worst_greedy = false;

    for (size_t i = 0; i < e->n_live; i++) {
        nb_seq *s = e->live[i];
        const tenant *t = nb_engine_tenant(e, s->req->key);
        const bool greedy = too_much(e, t, 0);
        if (s->state != SEQ_RUNNING || (only && t != only))
            continue;
        if (!worst || greedy > worst_greedy || (greedy == worst_greedy && !more_urgent(e, s->req, worst->req))) {
            worst = s;
            worst_greedy = greedy;
        }
    }
    return worst;
}

/* A block for s, at somebody's cost if need be. 0: s itself had to give way. */
static uint32_t take(nb_engine *e, nb_seq *s)
{
    tenant *t = nb_engine_tenant(e, s->req->key);
    uint32_t page;

    while (s->reserved == 0 && ((too_much(e, t, 1) && t->running > 1) || e->kv.n_free <= e->kv.n_reserved)) {
        nb_seq *v = victim(e, too_much(e, t, 1) && t->running > 1 ? t : NULL);
        preempt(e, v);
        if (v == s)
            return 0;
    }
    if (s->reserved) {
        s->reserved--;
        t->reserved--;
        e->kv.n_reserved--;
    }
    page = nb_kv_alloc(&e->kv);
    if (e->o.check)
        nb_exec_fill_page(e->exec, page, 0xff); /* not a number in every type: nobody may see what was there (PC-08) */
    return page;
}

/* The block that the next row is written to belongs to s alone [KV-17]. */
static bool own_block(nb_engine *e, nb_seq *s)
{
    const size_t b = s->n_computed / NB_PAGE;
    uint32_t old, page;

    if (b >= s->n_pages || e->kv.block[s->pages[b]].ref == 1)
        return true;
    page = take(e, s);
    if (!page)
        return false;
    old = s->pages[b];
    s->pages[b] = page;
    if (!nb_near_copy(e, s, b, old)) { /* cannot be: there are enough of them */
        s->pages[b] = old;
        nb_kv_release(&e->kv, &page, 1);
        preempt(e, s);
        return false;
    }
    nb_near_left(e, old);
    nb_exec_copy_page(e->exec, page, old);
    nb_kv_release(&e->kv, &old, 1);
    e->st.copies++;
    return true;
}

/* Give s n more rows. false: it was preempted instead. */
static bool grant(nb_engine *e, nb_seq *s, size_t n)
{
    const size_t need = nb_blocks(s->n_computed + s->grant + n);
    tenant *t = nb_engine_tenant(e, s->req->key);

    if (s->grant == 0 && !own_block(e, s))
        return false;
    while (s->n_pages < need) {
        const uint32_t page = take(e, s);
        if (!page)
            return false;
        s->pages[s->n_pages] = page;
        if (!nb_near_add(e, s, s->n_pages)) {
            nb_kv_release(&e->kv, &page, 1);
            preempt(e, s);
            return false;
        }
        s->n_pages++;
        t->blocks++;
    }
    if (s->grant == 0) {
        s->offered = s->n_published;
        if (s->times.scheduled == 0)
            s->times.scheduled = nb_engine_now(e);
    }
    s->grant += n;
    nb_prefix_publish(e, s);
    return true;
}

/* ---- prompts [SCH-2 step 3] ---- */

static size_t slice_limit(const nb_engine *e, const nb_seq *s, size_t rows_told)
{
    size_t n = pending(s);

    if (e->o.chunk)
        n = n < e->o.chunk - s->grant ? n : e->o.chunk - s->grant;
    if (s->req->prompt_logprobs && s->req->n_told < s->req->n_prompt)
        n = n < rows_told ? n : rows_told;
    return nb_state_rows(e, s, n);
}

/* Rows of s in the next slice: up to a block border if that is near. */
static size_t slice(const nb_seq *s, size_t limit, size_t most)
{
    const size_t to_border = NB_PAGE - (s->n_computed + s->grant) % NB_PAGE;
    size_t n = limit < most ? limit : most;

    return n > to_border && most >= NB_PAGE ? to_border : n;
}

/* Rows of a running prompt that have none yet. */
static size_t unread(const nb_seq *s)
{
    return s->state == SEQ_RUNNING ? pending(s) : 0;
}

static size_t collect_prefills(nb_engine *e)
{
    size_t n = 0;

    for (int starved = 1; starved >= 0; starved--) /* who got nothing last time goes first [SCH-4] */
        for (size_t i = 0; i < e->n_live; i++)
            if (e->live[i]->starved == starved && unread(e->live[i]) > 0)
                e->order[n++] = e->live[i];
    return n;
}

/* What a step still has for prompts. */
typedef struct allowance {
    size_t left, told; /* rows; those that may give log-probabilities of prompts */
    size_t quick;      /* quick_rows() */
    size_t used;       /* rows of prompts so far */
} allowance;

/* At most `most` rows of s. Returns what it got. */
static size_t give(nb_engine *e, nb_seq *s, size_t most, allowance *r)
{
    const size_t want = most < r->left ? most : r->left;
    const size_t k = s->state == SEQ_RUNNING ? slice(s, slice_limit(e, s, r->told), want) : 0;

    if (k == 0 || !grant(e, s, k))
        return 0;
    r->left -= k;
    r->used += k;
    if (s->req->prompt_logprobs)
        r->told -= k < r->told ? k : r->told;
    return k;
}

/* Split the rows between the running prompts: a slice for those that got nothing last time, the rest of those that are near their end,
 * the oldest first, then slices in turns. */
static void split(nb_engine *e, allowance *r)
{
    const size_t n = collect_prefills(e);
    const size_t share = n && r->left / n < NB_PAGE ? (r->left / n ? r->left / n : 1) : NB_PAGE;
    bool more = true;

    for (size_t i = 0; i < n && r->left > 0 && e->order[i]->starved && e->order[i]->grant == 0; i++)
        give(e, e->order[i], share, r);
    for (size_t i = 0; i < n && r->left > 0; i++)
        while (pending(e->order[i]) <= r->quick && give(e, e->order[i], NB_PAGE, r) > 0)
            ;
    while (r->left > 0 && more) {
        more = false;
        for (size_t i = 0; i < n && r->left > 0; i++)
            more = give(e, e->order[i], share, r) > 0 || more;
    }
}

/* ---- admission [SCH-2 step 4] ---- */

static size_t n_running(const nb_engine *e)
{
    size_t n = 0;

    for (size_t i = 0; i < e->n_live; i++)
        n += e->live[i]->state == SEQ_RUNNING;
    return n;
}

/* Blocks for all known tokens of s, from the cache or the free list [KV-21]. */
static bool bring_in(nb_engine *e, nb_seq *s)
{
    nb_req *r = s->req;
    tenant *t = nb_engine_tenant(e, r->key);
    const size_t running = n_running(e), hits = nb_prefix_find(e, s);
    const size_t one_percent = (e->kv.n_pages + 99) / 100, watermark = running == 0 ? 0 : running > one_percent ? running : one_percent;
    const size_t all = s->preempted >= 2 ? nb_blocks(s->req->max_ids) : nb_blocks(s->n_ids); /* KV-24 */
    size_t room = e->kv.n_free - e->kv.n_reserved, taken = all - hits, forks = r->n > 1 && !r->forked ? r->n - 1 : 0;

    for (size_t i = 0; i < hits; i++)
        taken += e->kv.block[s->pages[i]].ref == 0;
    if (running == 0 && taken <= room && forks > room - taken) /* alone: its choices will take turns */
        forks = room - taken;
    if (room < taken + forks + watermark)
        return false;
    for (size_t i = 0; i < hits; i++)
        nb_kv_ref(&e->kv, s->pages[i]);
    s->n_pages = s->n_published = s->offered = hits;
    s->canon = hits ? s->pages[hits - 1] : 0;
    while (s->n_proven < hits && e->kv.block[s->pages[s->n_proven]].proven)
        s->n_proven++;
    s->n_computed = hits * NB_PAGE;
    nb_near_begin(e, s);
    s->n_computed += nb_prefix_tail(e, s);
    s->reserved = s->preempted >= 2 ? all - s->n_pages : 0;
    r->fork_reserve = forks;
    e->kv.n_reserved += s->reserved + forks;
    s->state = SEQ_RUNNING;
    s->starved = true;
    nb_state_begin(e, s);
    t->blocks += s->n_pages;
    t->reserved += s->reserved;
    t->running++;
    e->st.hit_tokens += s->n_computed;
    e->st.queried_tokens += s->n_ids;
    if (s->preempted == 0)
        r->n_cached = s->n_computed < r->n_prompt ? s->n_computed : r->n_prompt;
    return true;
}

/* A prompt that is being read and shares a prefix that is not there yet: better wait for it [RAD-5]. */
static bool should_wait(nb_engine *e, nb_seq *s, double now)
{
    const nb_req *r = s->req;
    size_t have;

    if (e->o.no_prefix_cache || r->no_cache || now - r->queued > e->o.max_queue_age_s)
        return false;
    have = nb_prefix_peek(e, s) * NB_PAGE;
    for (size_t i = 0; i < e->n_live; i++) {
        const nb_seq *o = e->live[i];
        size_t same = 0, most = (s->n_ids - 1 < o->n_ids ? s->n_ids - 1 : o->n_ids) / NB_PAGE * NB_PAGE;
        if (o->state != SEQ_RUNNING || pending(o) <= 1 || !o->hash || memcmp(&o->req->root, &r->root, sizeof r->root) != 0)
            continue;
        while (same < most && memcmp(o->ids + same, s->ids + same, NB_PAGE * sizeof *s->ids) == 0)
            same += NB_PAGE;
        if (same >= have + SHARED_TOKENS && nb_state_shared(e, o, have, same))
            return true;
    }
    return false;
}

static double effective_priority(const nb_engine *e, const nb_req *r, double now)
{
    return (double)r->priority - (e->o.priority_age_s > 0 ? floor((now - r->queued) / e->o.priority_age_s) : 0);
}

/* Rows that a key got, and will get for what runs. */
static double share_of(nb_engine *e, uint64_t key)
{
    const tenant *t = nb_engine_tenant(e, key);

    return t->served + (double)t->running * e->usual_rows;
}

/* Does request a go before b, which arrived earlier? */
static bool goes_before(nb_engine *e, const nb_req *a, const nb_req *b, double now)
{
    if (e->o.policy == NB_SCHED_PRIORITY) {
        const double pa = effective_priority(e, a, now), pb = effective_priority(e, b, now);
        if (pa != pb)
            return pa < pb;
    }
    if (a->key != b->key) {
        const double sa = share_of(e, a->key), sb = share_of(e, b->key);
        if (sa != sb)
            return sa < sb;
    }
    return e->o.policy == NB_SCHED_LPM && now - b->queued <= e->o.max_queue_age_s && a->cached_eighths > b->cached_eighths;
}

/* The request to be admitted next; NULL: none. */
static nb_req *next_waiting(nb_engine *e, double now)
{
    nb_req *best = NULL;

    for (nb_req *r = e->first; r; r = r->next)
        if (!r->admitted && !r->held && !r->skip && (!best || goes_before(e, r, best, now)))
            best = r;
    return best;
}

static void look_up_queue(nb_engine *e)
{
    size_t n = 0;

    for (nb_req *r = e->first; r && n < LPM_MOST; r = r->next)
        if (!r->admitted && !r->held) {
            r->cached_eighths = nb_prefix_peek(e, &r->seq[0]) * NB_PAGE * 8 / r->n_prompt;
            n++;
        }
}

static size_t worst_blocks(const nb_req *r)
{
    return nb_blocks(r->n_prompt) + (r->n > 1 ? r->n - 1 : 0);
}

/* Not now, but others may: other keys are working and this one has its share. */
static bool over_share(nb_engine *e, const nb_req *r, size_t blocks, size_t seqs)
{
    const tenant *t = nb_engine_tenant(e, r->key);

    return (e->o.max_per_key && t->running > 0 && t->running + seqs > e->o.max_per_key) || (t->running > 0 && too_much(e, t, blocks));
}

/* The preempted sequence to come back next: of the key that got least, oldest. */
static nb_seq *next_preempted(nb_engine *e)
{
    nb_seq *best = NULL;

    for (size_t i = 0; i < e->n_live; i++) {
        nb_seq *s = e->live[i];
        if (s->state == SEQ_PREEMPTED && !over_share(e, s->req, nb_blocks(s->n_ids), 1) &&
            (!best || (s->req->key != best->req->key && share_of(e, s->req->key) < share_of(e, best->req->key))))
            best = s;
    }
    return best;
}

/* Sequences that lost their blocks come back before anybody new. false: one still waits, nobody else may come in. */
static bool resume(nb_engine *e)
{
    nb_seq *s;

    while ((s = next_preempted(e)) != NULL)
        if (!bring_in(e, s))
            return false;
    return true;
}

/* A key that holds more than half of the pool makes room for the request of another (PC-09). */
static void make_room(nb_engine *e, const nb_req *r)
{
    for (size_t i = 0; i < e->n_tenants; i++) {
        const tenant *t = &e->tenants[i];
        while (t->key != r->key && too_much(e, t, 0) && t->running > 1)
            preempt(e, victim(e, t));
    }
}

/* Rows of its prompt that the cache does not have. */
static size_t uncached(nb_engine *e, nb_req *r)
{
    return r->seq[0].n_ids - nb_prefix_peek(e, &r->seq[0]) * NB_PAGE;
}

/* Before rows are given away: would this prompt find any? Prompts near their end are finished first, together only as far as they are
 * quick: two that are read in one step end in one step, and whose clients ask again at once stay together for ever. Long ones are read
 * side by side with what comes. */
static bool may_join(nb_engine *e, const allowance *step, nb_req *r)
{
    size_t n = 0, all = 0, least = SIZE_MAX;

    for (size_t i = 0; i < e->n_live; i++) {
        const size_t k = unread(e->live[i]);
        n += k > 0;
        all += k;
        least = k > 0 && k < least ? k : least;
    }
    return n == 0 || (least > step->quick ? n < MOST_PREFILLS : all < step->left && all + uncached(e, r) <= step->quick);
}

/* After they were given away: there are more, and no first token that should not wait. */
static bool may_follow(nb_engine *e, const allowance *step, nb_req *r)
{
    for (size_t i = 0; i < e->n_live; i++)
        if (e->live[i]->state == SEQ_RUNNING && e->live[i]->n_ids == e->live[i]->req->n_prompt && pending(e->live[i]) == 0)
            return step->used + uncached(e, r) <= step->quick;
    return true;
}

/* Admit requests while `may` says so; with may_follow each gets its rows at once. */
static void admit(nb_engine *e, bool (*may)(nb_engine *, const allowance *, nb_req *), allowance *step)
{
    const double now = nb_engine_now(e);
    nb_req *r;

    while (step->left > 0 && !e->preempted_now && (r = next_waiting(e, now)) != NULL) {
        if (e->n_live + r->n > e->o.max_seqs)
            return;
        if (over_share(e, r, worst_blocks(r), r->n) || should_wait(e, &r->seq[0], now)) {
            r->skip = true;
            continue;
        }
        nb_disk_fetch(e, &r->seq[0]);
        if (!may(e, step, r))
            return;
        if (!bring_in(e, &r->seq[0])) {
            make_room(e, r);
            return;
        }
        r->admitted = true;
        nb_engine_tenant(e, r->key)->waiting -= r->n;
        for (size_t i = 0; i < r->n; i++)
            e->live[e->n_live++] = &r->seq[i];
        if (may == may_follow)
            split(e, step);
    }
}

/* ---- the whole ---- */

static void decode(nb_engine *e, size_t *used)
{
    e->n_members = 0;
    for (size_t i = 0; i < e->n_live; i++)
        if (e->live[i]->state == SEQ_RUNNING && pending(e->live[i]) == 1)
            e->order[e->n_members++] = e->live[i];
    for (size_t i = 0; i < e->n_members; i++) /* one may have lost its blocks to another meanwhile */
        if (e->order[i]->state == SEQ_RUNNING)
            *used += grant(e, e->order[i], 1);
}

static void look_at_all(nb_engine *e)
{
    for (nb_req *r = e->first; r; r = r->next)
        r->skip = false;
}

void nb_sched(nb_engine *e)
{
    allowance r = { .told = PROMPT_ROWS, .quick = quick_rows(e) };
    size_t used = 0;

    e->step++;
    e->preempted_now = false;
    for (size_t i = 0; i < e->n_live; i++)
        e->live[i]->grant = 0;
    look_at_all(e);
    if (e->o.policy == NB_SCHED_LPM)
        look_up_queue(e);
    decode(e, &used);
    r.left = rows_in_time(e, used, e->o.max_batched - used);
    if (!e->preempted_now && resume(e))
        admit(e, may_join, &r);
    split(e, &r);
    look_at_all(e);
    if (!e->preempted_now && resume(e))
        admit(e, may_follow, &r);
    for (size_t i = 0; i < e->n_live; i++)
        e->live[i]->starved = e->live[i]->state == SEQ_RUNNING && e->live[i]->grant == 0;
}
