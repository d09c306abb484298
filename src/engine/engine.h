/* engine.h - requests in, token events out. One model, one block pool, one queue; token ids only, no strings, no threads inside.
 *
 * A request has one or more sequences (choices). A step gives every decoding sequence one token, prompts slices of what the step
 * has room for, and admits waiting requests; then it runs the model once, draws, and reports. The logits of a token depend on the
 * tokens before it and on the model only: batch mates, slices, cache hits and preemption never change an answer.
 *
 * All calls of one engine come from one thread. Layers: kv.h (blocks, hash chain, free list), prefix.c (hits, publishing), sched.c
 * (who gets rows), sampler.h (logits to id), step.c (run, draw, report). Rules in brackets: spec serving 1 to 6. */
#ifndef NB_ENGINE_ENGINE_H
#define NB_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/pool.h"
#include "engine/sampler.h"
#include "model/exec.h"

enum {
    NB_MAX_CHOICES = 16,
    NB_HASH_BYTES = 32 /* of a block hash, a namespace, a secret */
};

/* ---- requests ---- */

/* A constraint on what may follow, supplied from outside (structured output). Called from nb_engine_step(), for one choice at a
 * time, in order. mask: 0: anything may follow; 1: `bits` was filled, bit i of word i/32 set when id i may follow,
 * (vocab + 31) / 32 words, zeroed before; negative: the choice ends with an error. accept: `id` was drawn (also an end-of-sequence
 * id). A preempted sequence does not call again for tokens it already has. */
typedef struct nb_constraint {
    int (*mask)(void *user, size_t choice, uint32_t *bits);
    void (*accept)(void *user, size_t choice, int32_t id);
    void *user;
} nb_constraint;

typedef struct nb_request {
    const int32_t *ids; /* prompt, copied */
    size_t n_ids;
    size_t max_tokens; /* of each choice; 0: what the context holds */
    nb_sampling sampling;
    const int32_t *stop_ids; /* end-of-sequence and stop ids, copied; none for ignore_eos */
    size_t n_stop_ids;
    /* all that follows may stay 0 */
    size_t min_tokens;    /* stop ids cannot be drawn before */
    size_t n;             /* choices, 0: 1, up to NB_MAX_CHOICES and max_seqs [KV-17] */
    size_t first_choice;  /* number of the first choice: it picks the random stream [SMP-6] */
    bool logprobs;        /* of drawn tokens */
    bool prompt_logprobs; /* of the prompt; such a request reads no cache [KV-9] */
    unsigned top;         /* likeliest tokens told beside each log-probability, up to NB_MAX_TOP */
    const int32_t *named; /* of drawn tokens: these are told instead of the likeliest; copied */
    size_t n_named;       /* up to NB_MAX_TOP */
    const nb_bias *bias;  /* copied */
    size_t n_bias;
    const int32_t *allowed; /* only these ids may be drawn; copied; NULL: all */
    size_t n_allowed;
    const nb_word *bad_words; /* copied [5.2 step 4] */
    size_t n_bad_words;
    const nb_constraint *limit;    /* copied; user must live until the DONE events of all choices; NULL: none */
    bool hold;                     /* do not admit before nb_engine_release (WAIT_GRAMMAR) */
    int priority;                  /* lower runs first; used with NB_SCHED_PRIORITY */
    uint64_t key;                  /* whose request it is, for fairness between tenants [SCH-6, PC-09] */
    const uint8_t *ns;             /* [32] namespace of its cached blocks, nb_engine_namespace(); NULL: the common one; copied */
    bool no_cache;                 /* neither reads nor fills the prefix cache */
    double arrival;                /* nb_now() when the request was parsed; 0: now */
    double queue_timeout, timeout; /* seconds from arrival; 0: none [SCH-9] */
} nb_request;

/* ---- events ---- */

typedef enum nb_event_kind {
    NB_EV_PROMPT, /* log-probabilities of the prompt, before the first token */
    NB_EV_TOKEN,
    NB_EV_DONE /* of one choice; `last` when it was the request's last one */
} nb_event_kind;
typedef enum nb_finish {
    NB_FINISH_NONE,
    NB_FINISH_STOP,
    NB_FINISH_LENGTH,
    NB_FINISH_CANCEL,
    NB_FINISH_ERROR, /* err says why: "sample.numeric", "sample.constraint", "engine.step", "queue.timeout", "request.timeout", "kv.exhausted" */
    NB_FINISH_COUNT
} nb_finish;

/* Seconds on the clock of nb_now(); 0: did not happen. */
typedef struct nb_times {
    double arrival, queued, scheduled, first_token, last_token, done;
} nb_times;

/* Pointers live until the next call of nb_engine_step() or nb_engine_close(). */
typedef struct nb_event {
    nb_event_kind kind;
    uint64_t request;
    size_t choice; /* from 0 within the request */
    int32_t id;    /* TOKEN: drawn; DONE by STOP: the stop id that was drawn, -1 when nb_engine_stop() ended it */
    size_t index;  /* TOKEN: its number in the answer */
    nb_finish finish;
    bool last;
    const nb_logprob *logprob; /* TOKEN (and a stop id's DONE) with logprobs: the drawn one, then the `n_top` likeliest (or named) ones */
    size_t n_top;
    const nb_logprob *prompt;  /* PROMPT: for position p >= 1 the given token at prompt[p * (1 + top)], then its `top` likeliest */
    size_t n_prompt, n_cached; /* prompt tokens, and how many of them came from the cache */
    size_t n_output;           /* DONE: drawn tokens, a stop id included */
    size_t n_preempted;        /* DONE: how often the choice was put back to be computed again */
    nb_times times;            /* TOKEN: of this token in last_token; DONE: all */
    const nb_err *err;         /* ERROR */
} nb_event;

/* ---- engine ---- */

typedef enum nb_sched_policy { NB_SCHED_FCFS, NB_SCHED_PRIORITY, NB_SCHED_LPM } nb_sched_policy;

typedef struct nb_engine nb_engine;
typedef struct nb_engine_opts {
    nb_pool *pool;
    size_t context;     /* longest prompt + answer; 0: the model's, cut to what memory allows; never above the model's */
    size_t max_seqs;    /* sequences running together, 0: 1 */
    size_t max_batched; /* rows of one step, 0: 512; at least max_seqs + NB_PAGE [SCH-1] */
    size_t chunk;       /* longest slice of one prompt in a step, 0: what the step has room for */
    double step_ms;     /* aim for a step while sequences decode, 0: no limit */
    size_t n_pages;     /* blocks of the pool, block 0 included, which holds nothing; 0: max_seqs contexts */
    size_t n_near,
        window;          /* nb_engine_open_exec: pages of layers with a sliding window, as the executor has them, and its tokens; 0: none of
                            * their own. nb_engine_open chooses */
    nb_dtype kv_dtype;   /* F16, F32, I8 (8 bits with a scale per token and head); NONE: F16 */
    bool exact_fp32, a8; /* activations of quantized linears: nb_exec_opts */
    bool tune;           /* nb_engine_open: measure how many threads serve a small model best (nb_exec_tune) */
    size_t n_states;     /* saved states of recurrent layers for the prefix cache, 0: two a sequence, within an eighth of memory */
    bool no_prefix_cache;
    bool lfu;             /* of cached blocks the least used go first, ends of chains before their beginnings; else the oldest [RAD-3] */
    const char *disk_dir; /* blocks are kept there over restarts, made when missing; lives as long as the engine; NULL: nowhere. It
                           * has a secret of its own, which replaces the one below */
    uint64_t disk_bytes;  /* of its files */
    nb_sched_policy policy;
    double priority_age_s;     /* a waiting request gains one priority every so many seconds; 0: never [SCH-5] */
    double max_queue_age_s;    /* LPM: older requests go first; 0: 5 */
    size_t max_queued;         /* choices waiting, 0: no bound [SCH-7] */
    size_t max_queued_tokens;  /* prompt tokens waiting, 0: no bound */
    size_t max_per_key;        /* sequences of one key running, 0: no bound */
    const nb_config *config;   /* nb_engine_open_exec: tells which planned lengths share a rope table; NULL: all do */
    uint8_t secret[32];        /* root of hashes; all 0: random */
    uint8_t fingerprint[32];   /* of the model */
    bool check;                /* verify every invariant after each step and poison freed blocks (tests, debug) */
    double (*now)(void *user); /* clock; NULL: nb_now() */
    void *now_user;
} nb_engine_opts;

/* Before opening: blocks of the pool, block 0 included, that `bytes` of keys and values hold with these options, and the bytes of
 * o->n_pages. Layers with a sliding window count as pages of their windows where that is less. */
size_t nb_engine_pages_in(const nb_model *m, const nb_engine_opts *o, uint64_t bytes);
uint64_t nb_engine_cache_bytes(const nb_model *m, const nb_engine_opts *o);
nb_status nb_engine_open(nb_model *m, const nb_engine_opts *o, nb_engine **out, nb_err *err);
/* The same over any executor with n_pages pages and room for max_batched rows; the engine owns x from here on, also on
 * failure. o->context and o->n_pages must be set. */
nb_status nb_engine_open_exec(nb_exec *x, size_t vocab, const nb_engine_opts *o, nb_engine **out, nb_err *err);
void nb_engine_close(nb_engine *e);

/* Queue a request. NB_EARG: values outside spec serving 5.1; NB_ELIMIT "limit.context": it cannot ever fit [KV-20]; NB_EBUSY
 * "queue.full": over max_queued or max_queued_tokens, nb_engine_drain_s() says for how long; NB_ENOMEM. Nothing is queued then. All
 * memory of the request is taken here. */
nb_status nb_engine_add(nb_engine *e, const nb_request *r, uint64_t *id, nb_err *err);
/* Admit a held request; limit replaces the request's when not NULL. Unknown ids are ignored, here and below. */
void nb_engine_release(nb_engine *e, uint64_t id, const nb_constraint *limit);
/* The client is gone: all choices end with CANCEL at the beginning of the next step, before any computation. */
void nb_engine_cancel(nb_engine *e, uint64_t id);
/* One choice is complete (a stop string was found): it ends with STOP at the beginning of the next step. */
void nb_engine_stop(nb_engine *e, uint64_t id, size_t choice);

/* One step. *ev[0..*n) is what happened; *n may be 0 while a prompt is being read. A failure of one request is an event, and so is a
 * failed run of the model (every sequence in it ends with ERROR; the engine goes on). Never fails otherwise but for NB_EINTERNAL
 * when o->check found a broken invariant; then the engine can only be closed. */
nb_status nb_engine_step(nb_engine *e, const nb_event **ev, size_t *n, nb_err *err);
/* Nothing to do: no request but held ones. */
bool nb_engine_idle(const nb_engine *e);
/* Run a few rows through the model so that the first request finds warm pages and rates [SCH-3]. Idle engine only; drops
 * what is cached. */
nb_status nb_engine_warm(nb_engine *e, nb_err *err);

/* Write to o->disk_dir what it does not have of the cached blocks that nobody uses, last used first, as far as disk_bytes allow; files
 * that were not used longest go. Engines opened later with the same options find them. A failure (a full disk) leaves what was
 * written before. Without a directory nothing happens [KV-27]. */
nb_status nb_engine_save_cache(nb_engine *e, nb_err *err);
/* Drop every cached block that nobody uses, mark the others unpublished [KV-10], and remove those on disk. Returns how many were cached
 * in memory. */
size_t nb_engine_reset_cache(nb_engine *e);

/* namespace = HMAC-SHA256(secret, u32 scope || u32 n_key || key || u32 n_salt || salt) [KV-14]. */
typedef enum nb_cache_scope { NB_SCOPE_GLOBAL, NB_SCOPE_KEY, NB_SCOPE_REQUEST } nb_cache_scope;
void nb_engine_namespace(const nb_engine *e, nb_cache_scope scope, const void *key, size_t n_key, const void *salt, size_t n_salt,
                         uint8_t out[32]);

/* ---- what the engine tells about itself ---- */

size_t nb_engine_context(const nb_engine *e); /* longest prompt + answer of this engine */
/* Bytes of keys, values and states; of activations and logits of a step. The pools are reserved, and used as far as they are needed. */
uint64_t nb_engine_kv_bytes(const nb_engine *e);
uint64_t nb_engine_work_bytes(const nb_engine *e);
size_t nb_engine_free_pages(const nb_engine *e); /* pages nobody holds, cached ones included */
/* Seconds until what waits now will have been admitted, by the measured rates; 0 when nothing waits. */
double nb_engine_drain_s(const nb_engine *e);

typedef struct nb_engine_stats {
    size_t running, waiting, held, preempted; /* sequences now; waiting includes held and preempted ones */
    size_t waiting_tokens;                    /* prompt tokens of waiting requests */
    size_t pages, pages_used, pages_cached;   /* of the pool without block 0; used: held by sequences; cached: reusable, free */
    uint64_t steps, rows;                     /* runs of the model, rows in them */
    uint64_t requests, rejected, finished[NB_FINISH_COUNT]; /* finished: choices by reason */
    uint64_t prompt_tokens, output_tokens, queried_tokens, hit_tokens, computed_tokens;
    uint64_t preemptions, evictions, copies, deduplicated, states_saved, numeric_errors;
    uint64_t disk_tokens, disk_faults; /* tokens of blocks read from disk; files that were damaged and removed */
    double exec_s, engine_s;           /* time inside the model, and everything else of nb_engine_step() */
    double prefill_tok_s, decode_s;    /* measured: prompt tokens per second of a full step, seconds of a decode step */
    int few_threads;                   /* of a step of a few rows; 0: all */
    size_t last_rows;                  /* of the last step */
    double last_step_s;
    double last_step_at; /* nb_now() at its end: the heartbeat */
} nb_engine_stats;
void nb_engine_stats_get(const nb_engine *e, nb_engine_stats *out);

#endif
