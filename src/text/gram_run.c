/* gram_run.c - sets of configurations as states, made when they are first reached.
 *
 * A configuration is an instruction that wants a byte and a stack of frames; equal stacks are one number. Limits keep any
 * grammar within bounds: stacks deeper than DEPTH_MAX and sets larger than SET_MAX are dead ends, and a call does no more
 * than `work` steps. */
#include <stdlib.h>
#include <string.h>

#include "text/gram.h"

#define DEPTH_MAX 1024
#define SET_MAX   16384
#define ROOT      0u /* the empty stack */
#define BUCKETS   8192

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

static bool grow(void *list, size_t *cap, size_t n, size_t size)
{
    void **p = list, *q;
    size_t bytes;
    const size_t more = *cap ? *cap * 2 : 64;

    if (n < *cap)
        return true;
    if (!nb_mul_size(more, size, &bytes) || !(q = nb_realloc(*p, bytes)))
        return false;
    *p = q;
    *cap = more;
    return true;
}

nb_status nb_grun_init(nb_grun *r, const nb_gcode *code, size_t bytes_max, nb_err *err)
{
    memset(r, 0, sizeof *r);
    r->code = code;
    r->bytes_max = bytes_max;
    r->n_bucket = BUCKETS;
    r->bucket_f = nb_calloc(BUCKETS, sizeof *r->bucket_f);
    r->bucket_s = nb_calloc(BUCKETS, sizeof *r->bucket_s);
    if (!r->bucket_f || !r->bucket_s || !grow(&r->frame, &r->cap_frame, 0, sizeof *r->frame) ||
        !grow(&r->state, &r->cap_state, 1, sizeof *r->state) || !grow(&r->out, &r->cap_out, 0, sizeof *r->out)) {
        nb_grun_clear(r);
        return nb_enomem(err, "a grammar");
    }
    memset(r->frame, 0, sizeof *r->frame);
    memset(r->state, 0, 2 * sizeof *r->state);
    r->n_frame = 1;
    r->n_state = 2; /* unknown and dead */
    return NB_OK;
}

static void state_clear(nb_gstep *s)
{
    nb_free(s->conf);
    nb_free(s->next);
    nb_free(s->mask);
    memset(s, 0, sizeof *s);
}

void nb_grun_clear(nb_grun *r)
{
    for (size_t i = 0; i < r->n_state; i++)
        state_clear(&r->state[i]);
    nb_free(r->state);
    nb_free(r->frame);
    nb_free(r->bucket_f);
    nb_free(r->bucket_s);
    nb_gvec_clear(&r->free_states);
    nb_gvec_clear(&r->used);
    nb_free(r->todo);
    nb_free(r->seen);
    nb_free(r->out);
    memset(r, 0, sizeof *r);
}

/* ---- stacks ---- */

static uint32_t frame_bucket(const nb_grun *r, const nb_gframe *f)
{
    uint64_t h = mix(mix(f->parent, f->pc), (uint64_t)f->least << 32 | f->most);

    h = mix(h, (unsigned)f->is_rep << 1 | f->fresh);
    return (uint32_t)(h >> 32) & (uint32_t)(r->n_bucket - 1);
}

/* The number of this frame; ROOT when it cannot be made (too deep, or no memory: failed). */
static uint32_t frame_of(nb_grun *r, nb_gframe f)
{
    const uint32_t k = frame_bucket(r, &f);

    for (uint32_t i = r->bucket_f[k]; i; i = r->frame[i - 1].link) {
        const nb_gframe *g = &r->frame[i - 1];
        if (g->parent == f.parent && g->pc == f.pc && g->least == f.least && g->most == f.most && g->is_rep == f.is_rep &&
            g->fresh == f.fresh)
            return i - 1;
    }
    if (r->frame[f.parent].depth >= DEPTH_MAX)
        return ROOT;
    if (r->n_frame >= UINT32_MAX - 1 || !grow(&r->frame, &r->cap_frame, r->n_frame, sizeof *r->frame)) {
        r->failed = true;
        return ROOT;
    }
    f.depth = (uint16_t)(r->frame[f.parent].depth + 1);
    f.link = r->bucket_f[k];
    f.plain = (uint32_t)r->n_frame;
    f.marked = f.fresh || r->frame[f.parent].marked;
    r->frame[r->n_frame] = f;
    r->bucket_f[k] = (uint32_t)++r->n_frame;
    r->bytes += sizeof f;
    return (uint32_t)r->n_frame - 1;
}

static uint32_t call_frame(nb_grun *r, uint32_t parent, uint32_t pc)
{
    return frame_of(r, (nb_gframe){ .parent = parent, .pc = pc });
}

/* One round of repeat i begins, least and most of it included. */
static uint32_t round_frame(nb_grun *r, uint32_t parent, uint32_t i, uint32_t least, uint32_t most)
{
    return frame_of(r, (nb_gframe){ .parent = parent,
                                    .pc = i,
                                    .least = least ? least - 1 : 0,
                                    .most = most == NB_G_INF ? most : most - 1,
                                    .is_rep = true,
                                    .fresh = r->code->rep[i].nullable });
}

/* The stack without fresh rounds: a byte is taken. They are on its top, as they are younger than the last byte. */
static uint32_t plain_frame(nb_grun *r, uint32_t f)
{
    uint32_t path[DEPTH_MAX + 1];
    size_t n = 0;

    if (!r->frame[f].marked || r->frame[f].plain != f)
        return r->frame[f].plain;
    uint32_t at = f;
    for (; r->frame[at].marked; at = r->frame[at].parent)
        path[n++] = at;
    while (n > 0) {
        nb_gframe g = r->frame[path[--n]];
        g.parent = at;
        g.fresh = false;
        at = frame_of(r, g);
        if (at == ROOT)
            return ROOT;
    }
    r->frame[f].plain = at;
    return at;
}

/* ---- closure ---- */

#define PAIR(pc, frame) ((uint64_t)(pc) << 32 | (frame))

/* Not seen in this closure: note it and put it on the list. seen is a hash table, 0: free (pair + 1 is stored). */
static void visit(nb_grun *r, uint32_t pc, uint32_t frame)
{
    const uint64_t key = PAIR(pc, frame) + 1;
    size_t k;

    if (r->failed)
        return;
    if (2 * (r->n_seen + 1) > r->cap_seen) {
        const size_t cap = r->cap_seen ? r->cap_seen * 2 : 1024;
        uint64_t *t = nb_calloc(cap, sizeof *t);
        if (!t) {
            r->failed = true;
            return;
        }
        for (size_t i = 0; i < r->used.n; i++) {
            const uint64_t old = r->seen[r->used.v[i]];
            for (k = (size_t)(mix(0, old) >> 20) & (cap - 1); t[k]; k = (k + 1) & (cap - 1))
                ;
            t[k] = old;
            r->used.v[i] = (uint32_t)k;
        }
        nb_free(r->seen);
        r->seen = t;
        r->cap_seen = cap;
    }
    for (k = (size_t)(mix(0, key) >> 20) & (r->cap_seen - 1); r->seen[k]; k = (k + 1) & (r->cap_seen - 1)) {
        if (r->seen[k] == key)
            return;
    }
    if (!grow(&r->todo, &r->cap_todo, r->n_todo, sizeof *r->todo)) {
        r->failed = true;
        return;
    }
    if (!nb_gvec_push(&r->used, (uint32_t)k)) {
        r->failed = true;
        return;
    }
    r->seen[k] = key;
    r->n_seen++;
    r->todo[r->n_todo++] = PAIR(pc, frame);
}

static void forget_seen(nb_grun *r)
{
    for (size_t i = 0; i < r->used.n; i++)
        r->seen[r->used.v[i]] = 0;
    r->used.n = 0;
    r->n_seen = 0;
}

static void visit_round(nb_grun *r, uint32_t i, uint32_t parent, uint32_t least, uint32_t most)
{
    const nb_grep *p = &r->code->rep[i];
    uint32_t f;

    if (least == 0)
        visit(r, p->exit, parent);
    if (most == 0)
        return;
    f = round_frame(r, parent, i, least, most);
    if (f != ROOT)
        visit(r, p->body, f);
}

/* Follow what takes no byte; collect in out what takes one. */
static void follow(nb_grun *r)
{
    while (r->n_todo > 0 && !r->failed && !r->tired) {
        const uint64_t pair = r->todo[--r->n_todo];
        const uint32_t pc = (uint32_t)(pair >> 32), frame = (uint32_t)pair;
        const nb_gins *x = &r->code->ins[pc];
        uint32_t f;

        if (r->work-- == 0) {
            r->work = 0;
            r->tired = true;
            return;
        }
        switch ((nb_gop)x->op) {
        case NB_GI_RANGE:
            f = plain_frame(r, frame);
            if ((f == ROOT && frame != ROOT) || r->n_out > SET_MAX)
                break;
            if (!grow(&r->out, &r->cap_out, r->n_out, sizeof *r->out))
                r->failed = true;
            else
                r->out[r->n_out++] = PAIR(pc, f);
            break;
        case NB_GI_SPLIT:
            visit(r, x->y, frame);
            visit(r, x->x, frame);
            break;
        case NB_GI_CALL:
            f = call_frame(r, frame, x->y);
            if (f != ROOT)
                visit(r, r->code->entry[x->x], f);
            break;
        case NB_GI_JUMP:
            visit(r, r->code->entry[x->x], frame);
            break;
        case NB_GI_RET:
            if (frame == ROOT)
                r->accept = true;
            else
                visit(r, r->frame[frame].pc, r->frame[frame].parent);
            break;
        case NB_GI_REP:
            visit_round(r, x->x, frame, r->code->rep[x->x].least, r->code->rep[x->x].most);
            break;
        case NB_GI_NEXT: /* an empty round leads nowhere new */
            if (!r->frame[frame].fresh) {
                const nb_gframe g = r->frame[frame];
                visit_round(r, x->x, g.parent, g.least, g.most);
            }
            break;
        case NB_GI_FAIL:
        default:
            break;
        }
    }
    r->n_todo = 0;
}

/* ---- states ---- */

static int by_value(const void *x, const void *y)
{
    const uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;

    return (a > b) - (a < b);
}

static uint32_t state_bucket(const nb_grun *r, const uint64_t *conf, size_t n, bool accept)
{
    uint64_t h = accept;

    for (size_t i = 0; i < n; i++)
        h = mix(h, conf[i]);
    return (uint32_t)(h >> 32) & (uint32_t)(r->n_bucket - 1);
}

static uint32_t new_state(nb_grun *r, const uint64_t *conf, size_t n, bool accept)
{
    uint32_t s;
    nb_gstep *x;

    if (r->free_states.n) {
        s = r->free_states.v[r->free_states.n - 1];
    } else {
        if (!grow(&r->state, &r->cap_state, r->n_state, sizeof *r->state))
            return NB_GS_UNKNOWN;
        s = (uint32_t)r->n_state;
        memset(&r->state[s], 0, sizeof *r->state);
    }
    x = &r->state[s];
    x->conf = nb_alloc_array(n ? n : 1, sizeof *x->conf);
    if (!x->conf)
        return NB_GS_UNKNOWN;
    if (r->free_states.n)
        r->free_states.n--;
    else
        r->n_state++;
    memcpy(x->conf, conf, n * sizeof *conf);
    x->n = (uint32_t)n;
    x->accept = accept;
    r->bytes += sizeof *x + n * sizeof *conf;
    return s;
}

/* The state of out[n_out] and accept. */
static uint32_t intern(nb_grun *r)
{
    size_t n = 0;
    uint32_t k, s;

    forget_seen(r);
    if (r->failed || r->tired)
        return NB_GS_UNKNOWN;
    if ((r->n_out == 0 && !r->accept) || r->n_out > SET_MAX)
        return NB_GS_DEAD;
    qsort(r->out, r->n_out, sizeof *r->out, by_value);
    for (size_t i = 0; i < r->n_out; i++) {
        if (n == 0 || r->out[i] != r->out[n - 1])
            r->out[n++] = r->out[i];
    }
    k = state_bucket(r, r->out, n, r->accept);
    for (uint32_t i = r->bucket_s[k]; i; i = r->state[i].link) {
        const nb_gstep *x = &r->state[i];
        if (x->n == n && x->accept == r->accept && memcmp(x->conf, r->out, n * sizeof *x->conf) == 0)
            return i;
    }
    s = new_state(r, r->out, n, r->accept);
    if (s == NB_GS_UNKNOWN) {
        r->failed = true;
        return s;
    }
    r->state[s].link = r->bucket_s[k];
    r->bucket_s[k] = s;
    return s;
}

static void begin(nb_grun *r)
{
    r->n_todo = r->n_out = 0;
    r->accept = false;
}

uint32_t nb_grun_start(nb_grun *r)
{
    begin(r);
    visit(r, r->code->entry[r->code->n_rules - 1], ROOT);
    follow(r);
    return intern(r);
}

uint32_t nb_grun_step(nb_grun *r, uint32_t s, unsigned char byte)
{
    uint32_t t;

    if (s <= NB_GS_DEAD)
        return s;
    if (!r->state[s].next) {
        uint32_t *next = nb_calloc(256, sizeof *next);
        if (!next) {
            r->failed = true;
            return NB_GS_UNKNOWN;
        }
        r->state[s].next = next;
        r->bytes += 256 * sizeof *next;
    }
    if (r->state[s].next[byte] != NB_GS_UNKNOWN)
        return r->state[s].next[byte];
    begin(r);
    for (uint32_t i = 0; i < r->state[s].n; i++) {
        const uint64_t c = r->state[s].conf[i];
        const nb_gins *x = &r->code->ins[c >> 32];
        if (byte >= x->lo && byte <= x->hi)
            visit(r, x->x, (uint32_t)c);
    }
    if (r->work < r->state[s].n) {
        r->tired = true;
        r->work = 0;
    } else {
        r->work -= r->state[s].n;
    }
    follow(r);
    t = intern(r);
    if (t != NB_GS_UNKNOWN)
        r->state[s].next[byte] = t;
    return t;
}

/* A stack whose counters above `reach` are endless, or still want reach + 1 rounds. */
static uint32_t clamp_frame(nb_grun *r, uint32_t f, uint32_t reach)
{
    uint32_t path[DEPTH_MAX + 1], at = ROOT;
    size_t n = 0;
    bool change = false;

    for (uint32_t i = f; i != ROOT; i = r->frame[i].parent) {
        const nb_gframe *g = &r->frame[i];
        change = change || (g->is_rep && ((g->most > reach && g->most != NB_G_INF) || g->least > reach + 1));
        path[n++] = i;
    }
    if (!change)
        return f;
    while (n > 0) {
        nb_gframe g = r->frame[path[--n]];
        g.parent = at;
        if (g.is_rep && g.most > reach)
            g.most = NB_G_INF;
        if (g.is_rep && g.least > reach + 1)
            g.least = reach + 1;
        at = frame_of(r, g);
        if (at == ROOT)
            return f;
    }
    return at;
}

uint32_t nb_grun_clamp(nb_grun *r, uint32_t s, uint32_t reach)
{
    uint32_t t;

    if (s <= NB_GS_DEAD)
        return s;
    if (r->state[s].clamped)
        return r->state[s].clamped;
    begin(r);
    r->accept = r->state[s].accept;
    for (uint32_t i = 0; i < r->state[s].n && !r->failed; i++) {
        const uint64_t c = r->state[s].conf[i];
        const uint32_t f = clamp_frame(r, (uint32_t)c, reach);
        if (!grow(&r->out, &r->cap_out, r->n_out, sizeof *r->out))
            r->failed = true;
        else
            r->out[r->n_out++] = PAIR(c >> 32, f);
    }
    t = intern(r);
    if (t > NB_GS_DEAD) {
        r->state[s].clamped = t;
        r->state[t].clamped = t;
    }
    return t;
}

/* ---- collecting ---- */

/* Frames reached from kept states, moved to the front in order (a parent is older than its child). */
static void collect_frames(nb_grun *r, const bool *kept)
{
    uint32_t *to = nb_calloc(r->n_frame, sizeof *to);
    size_t n = 1;

    if (!to)
        return; /* they stay */
    for (size_t s = 2; s < r->n_state; s++) {
        for (uint32_t i = 0; kept[s] && i < r->state[s].n; i++) {
            for (uint32_t f = (uint32_t)r->state[s].conf[i]; f != ROOT && !to[f]; f = r->frame[f].parent)
                to[f] = 1;
        }
    }
    memset(r->bucket_f, 0, r->n_bucket * sizeof *r->bucket_f);
    for (size_t i = 1; i < r->n_frame; i++) {
        uint32_t k;
        if (!to[i])
            continue;
        nb_gframe f = r->frame[i];
        f.parent = f.parent == ROOT ? ROOT : to[f.parent];
        f.plain = (uint32_t)n;
        k = frame_bucket(r, &f);
        f.link = r->bucket_f[k];
        r->frame[n] = f;
        to[i] = (uint32_t)n++;
        r->bucket_f[k] = (uint32_t)n;
    }
    r->n_frame = n;
    if (r->cap_frame / 4 > n + 64) {
        nb_gframe *less = nb_realloc(r->frame, (n + 64) * sizeof *less);
        r->frame = less ? less : r->frame;
        r->cap_frame = less ? n + 64 : r->cap_frame;
    }
    for (size_t s = 2; s < r->n_state; s++) {
        nb_gstep *x = &r->state[s];
        for (uint32_t i = 0; kept[s] && i < x->n; i++)
            x->conf[i] = PAIR(x->conf[i] >> 32, (uint32_t)x->conf[i] == ROOT ? ROOT : to[(uint32_t)x->conf[i]]);
    }
    nb_free(to);
}

void nb_grun_collect(nb_grun *r, const uint32_t *keep, size_t n)
{
    bool *kept = nb_calloc(r->n_state, sizeof *kept);

    if (!kept)
        return;
    for (size_t i = 0; i < n; i++)
        kept[keep[i]] = true;
    memset(r->bucket_s, 0, r->n_bucket * sizeof *r->bucket_s);
    r->bytes = 0;
    for (size_t s = 2; s < r->n_state; s++)
        kept[s] = kept[s] || r->state[s].pins > 0;
    collect_frames(r, kept);
    r->bytes = r->n_frame * sizeof *r->frame;
    for (uint32_t s = 2; s < r->n_state; s++) {
        nb_gstep *x = &r->state[s];
        if (!kept[s]) {
            if (x->conf && !nb_gvec_push(&r->free_states, s))
                r->failed = true;
            state_clear(x);
            continue;
        }
        nb_free(x->next);
        nb_free(x->mask);
        x->next = x->mask = NULL;
        x->clamped = 0;
        qsort(x->conf, x->n, sizeof *x->conf, by_value); /* frames keep their order; pairs too */
        const uint32_t k = state_bucket(r, x->conf, x->n, x->accept);
        x->link = r->bucket_s[k];
        r->bucket_s[k] = s;
        r->bytes += sizeof *x + x->n * sizeof *x->conf;
    }
    nb_free(kept);
}
