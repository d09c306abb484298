/* gram_schema.h - between gram_schema.c (structure) and gram_object.c (types). */
#ifndef NB_TEXT_GRAM_SCHEMA_H
#define NB_TEXT_GRAM_SCHEMA_H

#include "text/gram.h"

typedef struct nb_gschema {
    nb_gjson j;
    const nb_json *root;
    nb_buf path; /* JSON pointer of where we are */
    struct nb_gref {
        const nb_json *to;
        uint32_t rule;
        char *path;
    } * refs;
    size_t n_refs, cap_refs;
    size_t n_properties, n_values; /* so far */
} nb_gschema;

/* Step into a member for messages; what is returned goes to nb_gs_leave. */
size_t nb_gs_enter(nb_gschema *s, const char *key);
size_t nb_gs_enter_at(nb_gschema *s, size_t i);
void nb_gs_leave(nb_gschema *s, size_t at);
/* Failures at this place (and key, unless ""); return 0. */
nb_gpart nb_gs_fail(nb_gschema *s, nb_status code, const char *cls, const char *key, const char *what);
nb_gpart nb_gs_invalid(nb_gschema *s, const char *key, const char *what);
nb_gpart nb_gs_lacking(nb_gschema *s, const char *key, const char *what);
nb_gpart nb_gs_too_complex(nb_gschema *s, const char *what);

nb_gpart nb_gs_value(nb_gschema *s, const nb_json *v, int depth);
nb_gpart nb_gs_whole(nb_gschema *s, const nb_json *root, const nb_json *schema); /* with all references, into root */
/* enum and const; meaning: keywords of v that mean something. */
nb_gpart nb_gs_enum(nb_gschema *s, const nb_json *v, size_t meaning);
/* By type. */
nb_gpart nb_gs_typed(nb_gschema *s, const nb_json *v, int depth);

#endif
