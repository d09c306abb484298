/* engine_priv.h - inside of the engine: requests, their sequences, and what the files of this folder call of each other. */
#ifndef NB_ENGINE_ENGINE_PRIV_H
#define NB_ENGINE_ENGINE_PRIV_H

#include "engine/engine.h"
#include "engine/kv.h"

enum {
    PROMPT_ROWS = 64, /* rows of a step that give log-probabilities of prompts */
    N_RATES = 24      /* step sizes, by power of two */
};

typedef enum seq_state {
    SEQ_WAITING, /* of a request that was not admitted, or a choice before the fork */
    SEQ_RUNNING,
    SEQ_PREEMPTED,
    SEQ_DONE
} seq_state;

typedef struct nb_req nb_req;
typedef struct nb_states nb_states;
typedef struct nb_near nb_near;
typedef struct nb_disk nb_disk;

/* One choice. Its blocks hold the K/V of ids [0, n_computed). */
typedef struct nb_seq {
    nb_req *req;
    size_t choice;
    seq_state state;
    int32_t *ids; /* [max_ids] prompt, then answer */
    size_t n_ids, n_computed;
    uint32_t *pages; /* [blocks of max_ids] */
    size_t n_pages;
    uint32_t *near; /* [blocks of max_ids] pages of layers with a window, from block near_first on; NULL: the same as pages */
    size_t near_first;
    nb_hash *hash; /* [blocks of max_ids] of full blocks; NULL: the request does not cache */
    size_t n_hash;
    size_t n_published, n_proven; /* blocks [0, n) of the table that were offered to the cache; whose logits were finite */
    size_t offered;               /* n_published before this step */
    uint32_t canon;               /* the block that stands for the last published one */
    size_t grant;                 /* rows in this step */
    size_t reserved;              /* free blocks promised to it */
    unsigned preempted;
    uint32_t slot, last_save, last_page; /* state.c: of the executor; the copy that follows the answer, and its block */
    bool has_slot, stop, starved;        /* stop: nb_engine_stop(); starved: runnable, but no row in the last step */
    nb_times times;
} nb_seq;

struct nb_req {
    nb_req *next;
    uint64_t id;
    nb_seq *seq;         /* [n] */
    size_t fork_reserve; /* of the coming copies of the last block [KV-18] */
    size_t n, n_done, first_choice, n_prompt, max_ids, n_cached, min_tokens;
    bool admitted, forked, held, cancelled, no_cache, logprobs, prompt_logprobs, skip,
        fetched; /* skip: not admissible in this pass; fetched: disk.c has looked */
    unsigned top;
    int32_t named[NB_MAX_TOP];
    size_t n_named;
    int priority;
    uint64_t key;
    nb_sampling sampling;
    int32_t *stop_ids;
    size_t n_stop_ids, n_bias, n_words;
    nb_bias *bias;
    uint32_t *allowed; /* bits */
    nb_word *words;
    nb_constraint limit; /* mask NULL: none */
    nb_hash root;
    nb_logprob *prompt; /* [n_prompt][1 + top] */
    size_t n_told;      /* positions of the prompt whose log-probabilities are known */
    size_t cached_eighths;
    double arrival, queued, queue_timeout, timeout;
    nb_err err;
};

/* Who uses the engine: one per key with requests. */
typedef struct tenant {
    uint64_t key;
    size_t n_reqs, running, waiting, blocks, reserved; /* sequences; blocks of their tables; promised to them */
    double served;                                     /* rows, from a common start */
} tenant;

/* A row of logits to be used. */
typedef struct draw_task {
    nb_seq *s;
    const float *row;
    bool shared; /* other tasks use the row too */
    size_t at;   /* SIZE_MAX: draw; else the position of the prompt it predicts */
    const uint32_t *mask;
    nb_logprob *lp;
    int32_t id;
    nb_status rc;
    nb_err err;
} draw_task;

struct nb_engine {
    nb_engine_opts o;
    nb_exec *exec;
    nb_kv kv;
    size_t vocab, words;  /* words of a mask */
    nb_req *first, *dead; /* oldest first; ended in the last step */
    uint64_t next_id, step;
    size_t n_choices; /* of all requests */
    nb_seq **live;    /* [max_seqs] running and preempted, and choices before their fork, in order of arrival */
    size_t n_live;
    tenant *tenants;
    size_t n_tenants, cap_tenants;
    bool preempted_now, fresh; /* in this step */

    nb_event *ev;
    size_t n_ev, cap_ev;

    /* one step, sized once */
    int32_t *token;
    uint32_t *pos, *owner;
    uint8_t *want;
    nb_seq_view *views;
    nb_seq **members, **order; /* [max_seqs] */
    size_t n_members;
    float *logits; /* [max_seqs + PROMPT_ROWS][vocab] */
    size_t logits_bytes;
    uint64_t cache_bytes; /* of keys, values and states; 0: not known */
    draw_task *tasks;     /* [max_seqs + PROMPT_ROWS] */
    uint32_t *masks;      /* [max_seqs][words] */
    nb_logprob *lps;      /* [max_seqs][1 + NB_MAX_TOP] */
    nb_sampler **samplers;
    float **copies; /* a row for each thread */
    size_t n_threads;
    uint32_t *refs;    /* [n_pages], o.check */
    nb_states *states; /* NULL: the model keeps none */
    nb_disk *disk;     /* NULL: blocks are kept in memory only */
    nb_near *near;     /* NULL: layers with a window use the same pages as others */

    double rate[N_RATES]; /* seconds a row, by log2 of rows; 0: not measured */
    double service;       /* seconds from admission to the end, average */
    double usual_rows;    /* of a sequence, average */
    nb_engine_stats st;
};

/* engine.c */
double nb_engine_now(const nb_engine *e);
void nb_engine_end(nb_engine *e, nb_seq *s, nb_finish why, int32_t id);
void nb_engine_fail(nb_engine *e, nb_seq *s, const nb_err *err);
nb_event *nb_engine_event(nb_engine *e, nb_event_kind kind, const nb_seq *s);
tenant *nb_engine_tenant(nb_engine *e, uint64_t key);
static inline size_t nb_blocks(size_t tokens)
{
    return (tokens + NB_PAGE - 1) / NB_PAGE;
}

/* prefix.c */
/* May s use what others have computed? */
bool nb_prefix_reads(const nb_engine *e, const nb_seq *s);
/* Hash of full block b of s, and of the block before it, or the root. */
const nb_hash *nb_prefix_hash(nb_seq *s, size_t b);
const nb_hash *nb_prefix_before(nb_seq *s, size_t b);
/* Blocks of s that can be reused, into s->pages, not yet referenced. Returns how many. */
size_t nb_prefix_find(nb_engine *e, nb_seq *s);
/* The same, counted only. */
size_t nb_prefix_peek(nb_engine *e, nb_seq *s);
/* Reuse the beginning of a block: s has its table up to whole blocks and may take one more. Returns tokens gained [KV-7]. */
size_t nb_prefix_tail(nb_engine *e, nb_seq *s);
/* Offer the blocks that are full when s->grant has been computed [KV-5]. */
void nb_prefix_publish(nb_engine *e, nb_seq *s);
/* Take back what was offered in this step and is not computed. */
void nb_prefix_withdraw(nb_engine *e, nb_seq *s);
/* After a step: use the block that was there first [KV-8]. */
void nb_prefix_merge(nb_engine *e, nb_seq *s);
/* Logits were finite: everything offered so far stays. */
void nb_prefix_prove(nb_engine *e, nb_seq *s);
/* The sequence ends without a proof: nothing it computed alone stays; poisoned: nothing at all (PC-06). */
void nb_prefix_forget(nb_engine *e, nb_seq *s, bool poisoned);

/* disk.c. All do nothing without a directory. */
nb_status nb_disk_open(nb_engine *e, nb_err *err); /* after states and windows, before any request */
void nb_disk_close(nb_engine *e);
/* Before s is admitted: blocks that memory does not have are read, once for each request; they are then found like others. */
void nb_disk_fetch(nb_engine *e, nb_seq *s);
/* Remove all files of the directory. */
void nb_disk_reset(nb_engine *e);

/* near.c. All do nothing when layers with a window have no pages of their own. */
nb_status nb_near_open(nb_engine *e, nb_err *err);
void nb_near_close(nb_engine *e);
size_t nb_near_pages(size_t window, size_t max_seqs, size_t max_batched); /* how many are enough */
/* Of n blocks that can be reused, those before which a whole window is still there. */
size_t nb_near_usable(const nb_engine *e, const uint32_t *pages, size_t n);
/* s runs from n_computed on, with the blocks it has; a choice takes over; s does not run any more (before it gives blocks back). */
void nb_near_begin(nb_engine *e, nb_seq *s);
void nb_near_fork(nb_engine *e, const nb_seq *from, nb_seq *to);
void nb_near_end(nb_engine *e, nb_seq *s);
/* Block b of s was just taken from the pool: empty, or a copy of another block. false: no page, nothing was changed. */
bool nb_near_add(nb_engine *e, nb_seq *s, size_t b);
bool nb_near_copy(nb_engine *e, nb_seq *s, size_t b, uint32_t from);
/* s does not look at the block any more (it was replaced by a copy). */
void nb_near_left(nb_engine *e, uint32_t block);
/* n_computed grew: blocks out of the window are let go. */
void nb_near_advance(nb_engine *e, nb_seq *s);
/* Block b of s will be `other`, which has the same content, and not `own`. */
void nb_near_merge(nb_engine *e, nb_seq *s, size_t b, uint32_t own, uint32_t other);
nb_status nb_near_check(const nb_engine *e, uint32_t *count, nb_err *err); /* count: [n_pages] scratch */

/* state.c. All do nothing when the model keeps no state. */
nb_status nb_states_open(nb_engine *e, nb_err *err);
void nb_states_close(nb_engine *e);
/* Of n blocks that can be reused, those up to the newest state. */
size_t nb_state_usable(const nb_engine *e, const uint32_t *pages, size_t n);
/* s runs from n_computed on, which nb_state_usable said; a choice takes over; s does not run any more. */
void nb_state_begin(nb_engine *e, nb_seq *s);
void nb_state_fork(nb_engine *e, const nb_seq *from, nb_seq *to);
void nb_state_end(nb_engine *e, nb_seq *s);
/* Of n more rows of a prompt, those before the next border where a copy is wanted. */
size_t nb_state_rows(const nb_engine *e, const nb_seq *s, size_t n);
/* Will s leave a copy within (from, to]? */
bool nb_state_shared(const nb_engine *e, const nb_seq *s, size_t from, size_t to);
/* After a step: copy the state if this is a place for it. */
void nb_state_save(nb_engine *e, nb_seq *s);

/* sched.c */
/* Give rows to sequences: sets grant of every live one. */
void nb_sched(nb_engine *e);
/* Give the table back. */
void nb_sched_release(nb_engine *e, nb_seq *s);
void nb_sched_measured(nb_engine *e, size_t rows, double seconds);
double nb_sched_seconds(const nb_engine *e, size_t rows);

/* step.c */
/* Run what was granted and take the results. */
void nb_step_run(nb_engine *e);

/* request.c */
/* A request with all its memory; *r is NULL on failure. */
nb_status nb_req_make(const nb_engine *e, const nb_request *q, nb_req **out, nb_err *err);
void nb_req_free(nb_req *r);

#endif
