/* gram_names.h - names of rules in grammar texts (gram_ebnf.c, gram_lark.c), and what both read alike. */
#ifndef NB_TEXT_GRAM_NAMES_H
#define NB_TEXT_GRAM_NAMES_H

#include "base/strmap.h"
#include "text/gram.h"

typedef struct nb_gtext {
    nb_gbuild *b;
    const char *s;
    size_t n, at;
    int depth;
    nb_strmap *names; /* name -> index in rules below */
    struct nb_gname {
        uint32_t rule; /* + 1 */
        size_t at, n;  /* the name in the text, where it was first seen */
        bool defined;
    } * name;
    size_t n_names, cap_names;
} nb_gtext;

bool nb_gt_init(nb_gtext *t, nb_gbuild *b, const char *s, size_t n); /* false: the text is no UTF-8, or has a NUL */
void nb_gt_clear(nb_gtext *t);
nb_gpart nb_gt_bad(nb_gtext *t, const char *what);
int nb_gt_peek(const nb_gtext *t); /* -1: the end */
bool nb_gt_eat(nb_gtext *t, const char *text);
/* Rule of a name; NULL: failed. */
struct nb_gname *nb_gt_name(nb_gtext *t, size_t at, size_t n);
/* Set its part; refused when it has one. */
bool nb_gt_define(nb_gtext *t, size_t at, size_t n, nb_gpart p);
/* Call of the rule `start`, all names having parts. */
nb_gpart nb_gt_finish(nb_gtext *t, const char *start);
/* Digits at the place; false: none. */
bool nb_gt_count(nb_gtext *t, uint32_t *out);
/* The character behind a backslash (n r t f v " \ ' / [ ] x u U); false: failed. */
bool nb_gt_escape(nb_gtext *t, uint32_t *cp);

#endif
