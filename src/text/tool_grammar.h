/* tool_grammar.h - constraints of a request as grammars: its response format, and tool calls in the model's own form.
 *
 * Sources: spec serving 7 (GRM-1) and 8.2 (TOOL-2). */
#ifndef NB_TEXT_TOOL_GRAMMAR_H
#define NB_TEXT_TOOL_GRAMMAR_H

#include "text/grammar.h"
#include "text/reply.h"

/* The constraint of a request, with the caller's reference; *out NULL: it has none. Read are response_format {type: text |
 * json_object | json_schema with json_schema.schema} and structured_outputs {json | json_object | regex | choice | grammar}; null
 * counts as absent. Errors: those of nb_gcache_get, NB_EARG "grammar.invalid" for fields of the wrong type, NB_EUNSUPPORTED
 * "grammar.unsupported" for two constraints at once or an unknown kind; err's subject is the field. */
nb_status nb_gcache_request(nb_gcache *c, const nb_json *request, nb_grammar **out, nb_err *err);

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
