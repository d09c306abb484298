/* items.h - /v1/responses: OpenAI's newer request and answer, over the same generation.
 *
 * Stateless: nothing is stored, `previous_response_id` is refused. A request becomes a chat request (items_ask.c); the answer is a
 * list of items, or events that build it (items.c). Source: spec serving 9.2, API-17. */
#ifndef NB_SERVE_ITEMS_H
#define NB_SERVE_ITEMS_H

#include "serve/gen.h"

/* The chat request that says the same as a body of /v1/responses. NULL with *f filled: refused. The caller frees it. */
nb_json *nb_items_to_chat(const nb_json *body, nb_refusal *f);

/* As nb_response_begin and nb_response_progress of a chat. */
void nb_items_begin(nb_gen *g);
void nb_items_progress(nb_gen *g, bool done);

#endif
