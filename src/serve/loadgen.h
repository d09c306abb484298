/* loadgen.h - a load client for OpenAI-compatible servers: who asks what when, and how long the answers took.
 *
 * Measures what `vllm bench serve` measures, by its definitions: streamed completions, first chunk with choices, gaps between such
 * chunks. One thread per request in flight. Source: spec serving 11 (BEN-1, 2, 4). */
#ifndef NB_SERVE_LOADGEN_H
#define NB_SERVE_LOADGEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"

typedef struct nb_load_request {
    char *body;     /* JSON of the POST; owned by the list */
    double at;      /* seconds after the start when it is due */
    size_t n_input; /* prompt tokens as far as the client knows */
} nb_load_request;

typedef struct nb_load_answer {
    bool ok;
    int status;                  /* of HTTP; 0: no answer */
    double start, ttft, latency; /* seconds; start after the beginning of the run */
    double *itl;                 /* [n_itl] gaps */
    size_t n_itl, cap_itl;
    size_t n_input, n_output, n_cached;
    char *text; /* with keep_text: the answer, to be freed */
    char error[160];
} nb_load_answer;

typedef struct nb_load_opts {
    const char *host; /* name or address */
    uint16_t port;
    const char *path;     /* "/v1/completions" */
    const char *bearer;   /* NULL: none */
    unsigned concurrency; /* threads */
    double timeout_s;     /* without a byte from the server */
    double give_up_s;     /* hang up so long after asking, whatever comes; 0: never (tests of clients that leave) */
    bool keep_text;       /* answers keep what was said */
    const nb_host *log;   /* progress; may be NULL */
} nb_load_opts;

/* Send q[n]; a[n] was zeroed and receives what happened. *seconds is the time from the start to the last answer. Only a failure to
 * start at all is an error; failed requests are in a. */
nb_status nb_load_run(const nb_load_opts *o, const nb_load_request *q, size_t n, nb_load_answer *a, double *seconds, nb_err *err);
/* One GET or POST (body not NULL) whose JSON answer is parsed. */
nb_status nb_load_json(const nb_load_opts *o, const char *path, const char *body, nb_json **out, nb_err *err);

/* How fast requests come: at `rate` a second, or rising from `rate` to `to`, by the same step or the same factor each. */
typedef enum nb_load_ramp { NB_RAMP_NONE, NB_RAMP_LINEAR, NB_RAMP_EXPONENTIAL } nb_load_ramp;
typedef struct nb_load_pace {
    double rate, burstiness; /* gaps are gamma distributed: 1 is Poisson, infinity constant */
    nb_load_ramp ramp;
    double to;
} nb_load_pace;
/* Due times: gaps of mean 1/rate; without a ramp scaled so that the last is n/rate. An infinite rate: all 0. */
void nb_load_schedule(nb_load_request *q, size_t n, const nb_load_pace *p, uint64_t seed);
/* p-th percentile (0 to 100) of v[n], sorted in place, linear between neighbours; 0 of nothing. */
double nb_load_percentile(double *v, size_t n, double p);

#endif
