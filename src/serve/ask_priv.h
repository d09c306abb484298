/* ask_priv.h - what ask.c and ask_chat.c share. */
#ifndef NB_SERVE_ASK_PRIV_H
#define NB_SERVE_ASK_PRIV_H

#include "serve/ask.h"

enum { NB_ASK_DEPTH = 64 }; /* of a request's JSON */

/* Refuse: "NAME must be WANT." */
bool nb_ask_type(nb_refusal *f, const char *name, const char *want);
/* Read a member into *out, which keeps its value when the member is absent. */
bool nb_ask_bool(const nb_json *o, const char *name, bool *out, nb_refusal *f);
bool nb_ask_str(const nb_json *o, const char *name, size_t max, const char **out, nb_refusal *f);
/* A list of at most max token ids below vocab. */
bool nb_ask_ids(nb_ask *a, const char *name, size_t max, size_t vocab, const int32_t **out, size_t *n, nb_refusal *f);

/* Groups of fields of a chat request (constraints: of any request). */
bool nb_ask_messages(nb_ask *a, const nb_ask_rules *rules, nb_refusal *f);
bool nb_ask_tools(nb_ask *a, nb_refusal *f);
bool nb_ask_constraints(nb_ask *a, nb_refusal *f);

#endif
