/* tokparts.h - the parts of an open tokenizer, for tokenizer.c and detok.c. */
#ifndef NB_TEXT_TOKPARTS_H
#define NB_TEXT_TOKPARTS_H

#include "text/added.h"
#include "text/decoder.h"
#include "text/norm.h"
#include "text/post.h"
#include "text/presplit.h"
#include "text/tokenizer.h"
#include "text/tokmodel.h"

struct nb_tokenizer {
    nb_norm *norm;
    nb_presplit *presplit;
    nb_tokmodel *model;
    nb_added *added;
    nb_decoder *decoder;
    nb_post post;
};

/* Text of a token as decoders see it; NULL: unknown, or special and to be skipped. */
const char *nb_token_shown(const nb_tokenizer *t, int32_t id, bool skip_special, size_t *n);

#endif
