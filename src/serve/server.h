/* server.h - `nibble serve`: an OpenAI-compatible server over one engine.
 *
 * nb_server_open binds and answers at once (503 "loading"); nb_server_ready hands it the model. Stopping: nb_server_drain, then
 * nb_server_close. Source: spec serving 9; hardening 6.1, 9. */
#ifndef NB_SERVE_SERVER_H
#define NB_SERVE_SERVER_H

#include <stdbool.h>

#include "base/json.h"
#include "base/log.h"
#include "engine/engine.h"
#include "serve/http.h"
#include "text/chat.h"
#include "text/reply.h"
#include "text/tokenizer.h"

typedef struct nb_server nb_server;

typedef struct nb_server_opts {
    nb_http_opts http; /* its callbacks are the server's */
    const char *const *keys;
    size_t n_keys; /* 0: everybody may use it */
    const char *const *admin_keys;
    size_t n_admin_keys; /* 0: keys are good for the admin paths too */
    bool no_admin, metrics_open, any_model, strict_openai, lenient, request_template, allow_any_host, json_compact;
    const char *const *origins; /* allowed ones; "*": all */
    size_t n_origins;
    size_t max_n;
    size_t stream_interval;     /* tokens of an event of a stream; 0: each its own */
    const char *metrics_prefix; /* a second set of the metrics that have vLLM's names; NULL: none */
    double stall_s;             /* an engine without life for so long is unhealthy */
    const char *version, *commit;
    const char *page; /* the web page, UTF-8 */
    size_t n_page;
    const nb_host *host;
} nb_server_opts;

/* What the server serves. The engine becomes the server's; the rest stays the caller's and lives until nb_server_close. */
typedef struct nb_server_model {
    nb_engine *engine;
    const nb_tokenizer *tok;
    const nb_chat *chat;      /* NULL: none */
    const char *const *names; /* served names, the first is shown */
    size_t n_names;
    const char *root;     /* of the model card */
    nb_tool_format tools; /* how the model writes calls, and reasoning */
    nb_reason_format reason;
    nb_sampling defaults;
    const int32_t *eos;
    size_t n_eos;
    size_t vocab;
    const nb_json *info; /* members of the card's "nibble" object; NULL: none */
    const char *isa, *kernel, *kv_dtype;
    const char *identity; /* text that names everything the bits of an answer depend on (API-11) */
    uint64_t weights_bytes;
    bool prefix_cache, priorities;
    int scope; /* nb_cache_scope, -1: by the number of keys */
    size_t max_queued;
    double queue_timeout, request_timeout;
    unsigned prepare_threads;
} nb_server_model;

/* Bind and start to answer. Errors: nb_http_open's; NB_EARG "net.unsafe_bind" is the caller's to raise. */
nb_status nb_server_open(const nb_server_opts *o, nb_server **out, nb_err *err);
uint16_t nb_server_port(const nb_server *s);
nb_status nb_server_ready(nb_server *s, const nb_server_model *m, nb_err *err);
/* Take nothing new, let what runs go on for at most `seconds`, then end it. *hurry (may be NULL) is asked between: true ends at
 * once. Returns how many requests were cut. */
size_t nb_server_drain(nb_server *s, double seconds, bool (*hurry)(void *user), void *user);
/* The engine thread has shown no life for so many seconds; 0 when it has nothing to do. */
double nb_server_stalled(nb_server *s);
/* Figures of the engine in one line, for the day it hangs. */
void nb_server_dump(nb_server *s, nb_buf *out);
void nb_server_close(nb_server *s); /* NULL is fine */

#endif
