/* metrics.h - counters and histograms of the server, in Prometheus' text format with vLLM's names.
 *
 * Thread safe: every call takes the lock of the set for an instant. Source: spec serving 10 (MET-1 .. 3, 5). */
#ifndef NB_SERVE_METRICS_H
#define NB_SERVE_METRICS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "engine/engine.h"

typedef struct nb_metrics nb_metrics;

typedef enum nb_histogram {
    NB_H_TTFT,
    NB_H_ITL,
    NB_H_TPOT,
    NB_H_E2E,
    NB_H_QUEUE,
    NB_H_INFERENCE,
    NB_H_PREFILL,
    NB_H_DECODE,
    NB_H_PROMPT_TOKENS,
    NB_H_OUTPUT_TOKENS,
    NB_H_MAX_OUTPUT_TOKENS,
    NB_H_PARAM_MAX_TOKENS,
    NB_H_PREFILL_TOKENS,
    NB_H_PARAM_N,
    NB_H_STEP_TOKENS,
    NB_H_STEP,
    NB_H_HTTP,
    NB_H_GRAMMAR,
    NB_H_COUNT
} nb_histogram;

/* What does not change while the server runs. Strings stay the caller's. */
typedef struct nb_metrics_info {
    const char *model, *isa, *kernel, *kv_dtype;
    const char *prefix; /* of a second set of what has vLLM's names; NULL: none */
    size_t context, page;
    uint64_t weights_bytes, kv_bytes, work_bytes;
    int prefix_cache;
} nb_metrics_info;

nb_status nb_metrics_open(nb_metrics **out, nb_err *err);
void nb_metrics_close(nb_metrics *m);                                 /* NULL is fine */
void nb_metrics_describe(nb_metrics *m, const nb_metrics_info *info); /* once the model is there */
void nb_metrics_observe(nb_metrics *m, nb_histogram h, double value);
/* A choice ended: "stop", "length", "abort", "error". */
void nb_metrics_finished(nb_metrics *m, const char *reason);
void nb_metrics_rejected(nb_metrics *m, const char *code);
void nb_metrics_ignored_fields(nb_metrics *m, size_t n);
/* An HTTP answer; `handler` is a path of the route table. */
void nb_metrics_http(nb_metrics *m, const char *handler, const char *method, int status, double seconds);
/* The whole page. `s` may be NULL (no engine yet); silence: seconds without a sign of life of an engine that has work. */
void nb_metrics_write(nb_metrics *m, const nb_engine_stats *s, double silence, nb_buf *out);

#endif
