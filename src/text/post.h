/* post.h - which ids go before and after a text: post-processor of tokenizer.json, policy of tokenizer_config.json.
 *
 * Source: spec tokenizers 9 and 12. */
#ifndef NB_TEXT_POST_H
#define NB_TEXT_POST_H

#include <stdbool.h>

#include "base/err.h"
#include "base/json.h"
#include "text/tokenizer.h"

typedef struct nb_post {
    nb_ids before, after;
    bool not_twice; /* no BOS where the text begins with it (policy of the configuration) */
} nb_post;

/* spec: "post_processor" or null; config: tokenizer_config.json or NULL. t answers for pieces and ids. Zero *out first.
 * Errors: "tok.special_id" for an unknown token, "tok.unsupported" naming the type. */
nb_status nb_post_init(nb_post *out, const nb_json *spec, const nb_json *config, const nb_tokenizer *t, nb_err *err);
void nb_post_clear(nb_post *p);

#endif
