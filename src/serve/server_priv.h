/* server_priv.h - what server.c (doors and states) and route_*.c (endpoints) share. */
#ifndef NB_SERVE_SERVER_PRIV_H
#define NB_SERVE_SERVER_PRIV_H

#include <stdatomic.h>

#include "serve/ask.h"
#include "serve/gen.h"
#include "serve/metrics.h"
#include "serve/server.h"
#include "serve/worker.h"

typedef enum nb_server_state { NB_SERVER_LOADING, NB_SERVER_READY, NB_SERVER_DRAINING } nb_server_state;

struct nb_server {
    nb_server_opts o;
    nb_http *http;
    nb_metrics *metrics;
    _Atomic nb_server_state state;
    uint8_t (*digests)[32]; /* of keys, then of admin keys */
    int64_t created;
    bool loopback; /* bound to this machine only */

    nb_server_model m; /* from here on: set before the state is READY */
    nb_worker *worker;
    nb_texts texts;
    nb_constraints constraints;
    char fingerprint[24];
    nb_ask_rules rules;
};

typedef enum nb_route_class {
    NB_ROUTE_OPEN, /* nobody needs a key       */
    NB_ROUTE_KEY,  /* needs one, when there are any */
    NB_ROUTE_ADMIN /* needs an admin key       */
} nb_route_class;

typedef struct nb_route {
    const char *method, *path;
    nb_route_class cls;
    bool needs_model; /* 503 before the model is there and while draining */
    void (*run)(nb_server *s, nb_http_req *r);
} nb_route;

/* The data of an HTTP request. */
typedef struct nb_call {
    const nb_route *route; /* NULL: refused before one was found */
    uint64_t key;          /* number of its API key, from 1; 0: none */
    char id[136];          /* x-request-id, the caller's or ours */
} nb_call;

/* Routes with `path`; *n of them, one per method. */
const nb_route *nb_route_find(const char *path, const char *method, bool *path_known, nb_buf *allow);

/* Routes by number, in the order of the table; NULL: no more. */
const nb_route *nb_route_at(size_t i);

/* Answer with v, which is freed; ok: every step of building it succeeded. */
void nb_answer_json(nb_http_req *r, nb_json *v, bool ok);
void nb_answer_refusal(nb_http_req *r, const nb_refusal *f);
/* API-7: is this one of our names? Refuses otherwise. */
bool nb_model_known(const nb_server *s, const char *name, nb_refusal *f);

/* Endpoints. */
void nb_route_chat(nb_server *s, nb_http_req *r);
void nb_route_completions(nb_server *s, nb_http_req *r);
void nb_route_responses(nb_server *s, nb_http_req *r);
void nb_route_generate(nb_server *s, nb_http_req *r);
void nb_route_health_generate(nb_server *s, nb_http_req *r);
void nb_route_models(nb_server *s, nb_http_req *r);
void nb_route_model(nb_server *s, nb_http_req *r);
void nb_route_tokenize(nb_server *s, nb_http_req *r);
void nb_route_detokenize(nb_server *s, nb_http_req *r);
void nb_route_template(nb_server *s, nb_http_req *r);
void nb_route_health(nb_server *s, nb_http_req *r);
void nb_route_live(nb_server *s, nb_http_req *r);
void nb_route_version(nb_server *s, nb_http_req *r);
void nb_route_metrics(nb_server *s, nb_http_req *r);
void nb_route_load(nb_server *s, nb_http_req *r);
void nb_route_props(nb_server *s, nb_http_req *r);
void nb_route_reset(nb_server *s, nb_http_req *r);
void nb_route_abort(nb_server *s, nb_http_req *r);
void nb_route_page(nb_server *s, nb_http_req *r);
void nb_route_openapi(nb_server *s, nb_http_req *r);
void nb_route_embeddings(nb_server *s, nb_http_req *r);

/* openapi.json: every endpoint, field, limit and error. */
extern const unsigned char nb_openapi[];
extern const size_t nb_openapi_size;

#endif
