/* grammars.h - constraints compiled and tried in tests. */
#ifndef NB_TESTS_TEXT_GRAMMARS_H
#define NB_TESTS_TEXT_GRAMMARS_H

#include "vectors.h"

#include <stdbool.h>

#include "text/grammar.h"

static inline nb_status compile(nb_gkind kind, const char *src, const nb_gvocab *v, const nb_glimits *lim, nb_grammar **g, nb_err *err)
{
    nb_json *j = NULL;
    nb_status rc = NB_OK;

    *g = NULL;
    if (kind == NB_G_JSON)
        return nb_grammar_new_json(v, lim, g, err);
    if (kind == NB_G_REGEX)
        return nb_grammar_new_regex(v, src, strlen(src), lim, g, err);
    if (kind == NB_G_EBNF)
        return nb_grammar_new_ebnf(v, src, strlen(src), lim, g, err);
    if (nb_json_parse(src, strlen(src), "json", 0, &j, err) != NB_OK)
        fail_msg("%s: %s", src, err->what);
    rc = kind == NB_G_SCHEMA ? nb_grammar_new_schema(v, j, lim, g, err) : nb_grammar_new_choice(v, j, lim, g, err);
    nb_json_free(j);
    return rc;
}

/* Is this text whole? */
static inline bool takes(nb_grammar *g, const char *text)
{
    nb_gstate *s = NULL;
    bool yes;

    assert_int_equal(nb_gstate_open(g, &s, NULL), NB_OK);
    yes = nb_gstate_bytes(s, text, strlen(text), NULL) == NB_OK && nb_gstate_may_end(s);
    nb_gstate_close(s);
    return yes;
}

#endif
