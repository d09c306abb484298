/* native.h - /generate: SGLang's native request and answer, over the same generation. Source: spec serving 9.9. */
#ifndef NB_SERVE_NATIVE_H
#define NB_SERVE_NATIVE_H

#include "serve/gen.h"

/* The completion request that says the same as a body of /generate; *list tells that its input was a list (then the answer is one
 * too). NULL with *f filled: refused. The caller frees it. */
nb_json *nb_native_to_completion(const nb_json *body, bool *list, nb_refusal *f);

/* As nb_response_progress. Streams tell the whole text so far each time, as that server's do. */
void nb_native_progress(nb_gen *g, bool done);

#endif
