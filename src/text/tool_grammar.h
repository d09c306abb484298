/* tool_grammar.h - tool calls in the model's own form as grammars. Source: spec serving 8.2 (TOOL-2). */
#ifndef NB_TEXT_TOOL_GRAMMAR_H
#define NB_TEXT_TOOL_GRAMMAR_H

#include "text/grammar.h"
#include "text/reply.h"

typedef struct nb_tool_grammar_opts {
    nb_tool_format format;
    const nb_json *tools; /* "tools" of the request */
    const char *name;     /* the only function that may be called; NULL: any */
    bool several;         /* parallel_tool_calls */
    bool begun;           /* nb_tool_format_begin was written already (tool_choice auto: nb_gstate_wait for it) */
} nb_tool_grammar_opts;
/* A grammar of one or more calls, nothing around them. Parameters that a schema grammar cannot hold are any object, unless the
 * function is strict. Errors: NB_EUNSUPPORTED "grammar.unsupported" for a format without one (pythonic, gpt_oss, none); NB_EARG
 * "grammar.invalid" for tools without names, an unknown name. */
nb_status nb_grammar_new_tools(const nb_gvocab *vocab, const nb_tool_grammar_opts *o, const nb_glimits *lim, nb_grammar **out, nb_err *err);

#endif
