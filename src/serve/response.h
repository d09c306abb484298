/* response.h - what a request for text has, written into its HTTP answer: one JSON body, or server-sent events.
 *
 * Source: spec serving 5.4, 9.4, 9.6 (API-12 .. 16). Engine thread only. */
#ifndef NB_SERVE_RESPONSE_H
#define NB_SERVE_RESPONSE_H

#include "serve/gen.h"

/* The request is in the queue: a stream may begin. */
void nb_response_begin(nb_gen *g);
/* Write what is new since the last call; once all choices are done (or g->refusal is set), end the answer. */
void nb_response_progress(nb_gen *g);
/* A comment line when nothing was written for 15 s. */
void nb_response_keep_alive(nb_gen *g, double now);

/* For writers of the other forms (items.c, native.c). */
/* Send b as one event, its blank line added; b is emptied. */
void nb_response_event(nb_gen *g, nb_buf *b);
/* The whole answer that is not a stream: b as JSON, or the refusal of g, or that b could not be built. b is cleared. */
void nb_response_whole(nb_gen *g, nb_buf *b);

#endif
