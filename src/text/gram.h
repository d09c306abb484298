/* gram.h - inside of structured output (grammar.h).
 *
 *   gram_schema.c, gram_object.c, gram_value.c, gram_number.c   JSON schema -> parts
 *   gram_regex.c, gram_ebnf.c, gram_lark.c                      texts -> parts
 *   gram_build.c  parts: sequences, alternatives, repeats, calls of rules; UTF-8 classes
 *   gram_code.c   parts -> instructions; left recursion and empty languages are found here
 *   gram_run.c    configurations (instruction, stack) -> states, transitions
 *   gram_mask.c   grammar.h's calls on sequences: walks over the vocabulary
 *   gram_vocab.c  tokens as bytes, the trie
 *   gram_cache.c  compiled grammars kept
 *   gram_tools.c  tool calls in the forms that reply_calls.c reads
 */
#ifndef NB_TEXT_GRAM_H
#define NB_TEXT_GRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/grammar.h"

#define NB_G_INF     UINT32_MAX
#define NB_G_CONTROL 0xFFu /* stands before the text of a special token: no text has this byte */

/* ---- parts (gram_build.c) ---- */

typedef uint32_t nb_gpart; /* 0: failed, the error is in the builder */

typedef enum nb_gkind_part {
    NB_GP_NONE,
    NB_GP_EMPTY,
    NB_GP_FAIL,
    NB_GP_RANGE,
    NB_GP_LIT,
    NB_GP_SEQ,
    NB_GP_ALT,
    NB_GP_REP,
    NB_GP_RULE
} nb_gkind_part;

typedef struct nb_gnode {
    uint8_t kind, lo, hi; /* RANGE */
    uint32_t a, b, c;     /* LIT, SEQ, ALT: place and length in text or list; REP: part, least, most; RULE: number */
} nb_gnode;

typedef struct nb_gvec {
    uint32_t *v;
    size_t n, cap;
} nb_gvec;
bool nb_gvec_push(nb_gvec *v, uint32_t x); /* false: no memory */
void nb_gvec_clear(nb_gvec *v);

typedef struct nb_gbuild {
    nb_gnode *node;
    size_t n, cap;
    nb_gvec list, rules; /* rules: part of each, 0 while undefined */
    nb_buf text;
    nb_glimits lim;  /* filled in */
    double deadline; /* nb_now */
    unsigned ticks;
    nb_err *err;
    nb_status rc; /* first failure */
} nb_gbuild;

/* kind_source: default of lim->source; depth: of lim->depth. */
void nb_gbuild_init(nb_gbuild *b, const nb_glimits *lim, size_t source, int depth, nb_err *err);
void nb_gbuild_clear(nb_gbuild *b);
nb_gpart nb_g_oom(nb_gbuild *b);
/* Record a failure; returns 0. */
nb_gpart nb_g_fail(nb_gbuild *b, nb_status code, const char *cls, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 4, 5)))
#endif
    ;
nb_gpart nb_g_invalid(nb_gbuild *b, size_t at, const char *what); /* "grammar.invalid" at a byte of the text */

nb_gpart nb_g_empty(nb_gbuild *b);
nb_gpart nb_g_never(nb_gbuild *b);
nb_gpart nb_g_range(nb_gbuild *b, unsigned lo, unsigned hi);
nb_gpart nb_g_lit(nb_gbuild *b, const char *s, size_t n);
nb_gpart nb_g_text(nb_gbuild *b, const char *s);
nb_gpart nb_g_seq(nb_gbuild *b, const nb_gpart *v, size_t n); /* a failed one makes all fail */
nb_gpart nb_g_alt(nb_gbuild *b, const nb_gpart *v, size_t n);
nb_gpart nb_g_seq2(nb_gbuild *b, nb_gpart x, nb_gpart y);
nb_gpart nb_g_alt2(nb_gbuild *b, nb_gpart x, nb_gpart y);
nb_gpart nb_g_rep(nb_gbuild *b, nb_gpart x, uint32_t least, uint32_t most);
nb_gpart nb_g_opt(nb_gbuild *b, nb_gpart x);
uint32_t nb_g_rule_new(nb_gbuild *b); /* number + 1; 0: failed */
nb_gpart nb_g_call(nb_gbuild *b, uint32_t rule);
nb_gpart nb_g_shared(nb_gbuild *b, nb_gpart x); /* a rule of its own: a part's instructions are made once for each mention */
/* Texts as a trie: linear, and one way to walk. quote: each as a JSON string. */
nb_gpart nb_g_choice(nb_gbuild *b, const nb_json *list, bool quote);

/* Sets of code points: ranges, kept sorted and apart by nb_gset_norm. */
typedef struct nb_gset {
    nb_gvec v; /* lo, hi, lo, hi, ... */
} nb_gset;
bool nb_gset_add(nb_gset *s, uint32_t lo, uint32_t hi);
bool nb_gset_norm(nb_gset *s);
bool nb_gset_invert(nb_gset *s);                 /* within U+0000..U+10FFFF without surrogates */
bool nb_gset_has(const nb_gset *s, uint32_t cp); /* of a normal one */
/* One character of the set, as UTF-8; json: inside a JSON string (what must be escaped there is). s is made normal. */
nb_gpart nb_g_chars(nb_gbuild *b, nb_gset *s, bool json);

/* ---- sources ---- */

/* Each returns the part of the whole. json NULL: the whole text matches; else the text stands inside a JSON string, and matches
 * unless ^ and $ say otherwise anywhere in it (nb_g_pattern) or as a whole (nb_g_regex). */
typedef struct nb_gjson nb_gjson;
nb_gpart nb_g_regex(nb_gbuild *b, const char *re, size_t n, nb_gjson *json);
nb_gpart nb_g_pattern(nb_gbuild *b, const char *re, size_t n, nb_gjson *json);
nb_gpart nb_g_gbnf(nb_gbuild *b, const char *s, size_t n);
nb_gpart nb_g_lark(nb_gbuild *b, const char *s, size_t n);
nb_gpart nb_g_schema(nb_gbuild *b, const nb_json *schema);

/* JSON pieces (gram_value.c). Numbers are written with so many digits before and behind the point at most and two of an exponent: readers
 * take them, and a model cannot go on with digits for ever. */
#define NB_GJ_DIGITS 60
struct nb_gjson {
    nb_gbuild *b;
    uint32_t value, object, array, string, character, characters, number, ws; /* rules + 1; 0: not made yet */
};
nb_gpart nb_gj_ws(nb_gjson *j);
nb_gpart nb_gj_value(nb_gjson *j);
nb_gpart nb_gj_object(nb_gjson *j);
nb_gpart nb_gj_array(nb_gjson *j);
nb_gpart nb_gj_string(nb_gjson *j);                                   /* any */
nb_gpart nb_gj_characters(nb_gjson *j);                               /* what stands between its quotes */
nb_gpart nb_gj_string_of(nb_gjson *j, uint32_t least, uint32_t most); /* by length */
nb_gpart nb_gj_string_but(nb_gjson *j, const nb_json *names);         /* keys other than the members of this object */
nb_gpart nb_gj_number(nb_gjson *j);
nb_gpart nb_gj_integer(nb_gjson *j);
nb_gpart nb_gj_literal(nb_gjson *j, const nb_json *v); /* exactly this value */
/* Bounds as decimal texts, NULL: none. */
typedef struct nb_gbounds {
    const char *lo, *hi;
    bool lo_open, hi_open;
} nb_gbounds;
nb_gpart nb_gj_bounded(nb_gjson *j, const nb_gbounds *r, bool integer);
nb_gpart nb_gj_format(nb_gjson *j, const char *name); /* string of a known format; 0 without an error: unknown */

/* ---- instructions (gram_code.c) ---- */

typedef enum nb_gop { NB_GI_RANGE, NB_GI_SPLIT, NB_GI_CALL, NB_GI_JUMP, NB_GI_RET, NB_GI_REP, NB_GI_NEXT, NB_GI_FAIL } nb_gop;
typedef struct nb_gins {
    uint8_t op, lo, hi;
    uint32_t x, y; /* RANGE: x next; SPLIT: both; CALL: x rule, y where it returns to; JUMP: x rule; REP, NEXT: x number */
} nb_gins;
typedef struct nb_grep {
    uint32_t least, most, body, exit;
    bool nullable; /* the body may be empty: an empty round does not count */
} nb_grep;
typedef struct nb_gcode {
    nb_gins *ins;
    nb_grep *rep;
    uint32_t *entry; /* of each rule; rule 0 is the whole */
    size_t n, cap, n_rep, cap_rep, n_rules;
} nb_gcode;
/* Compile; the last rule added to b is the whole. Errors: "grammar.invalid" for left recursion, "grammar.empty",
 * "grammar.too_complex". */
nb_status nb_gcode_make(nb_gbuild *b, nb_gpart root, nb_gcode *out, nb_err *err);
void nb_gcode_clear(nb_gcode *c);

/* ---- states (gram_run.c) ---- */

#define NB_GS_UNKNOWN 0u
#define NB_GS_DEAD    1u

typedef struct nb_gframe {
    uint32_t parent, pc;  /* call: where it returns to; repeat: its number */
    uint32_t least, most; /* rounds still wanted and allowed; call: 0 */
    uint32_t plain;       /* marked: this stack without fresh rounds, itself while not known */
    uint32_t link;        /* next of the hash chain + 1 */
    uint16_t depth;
    bool is_rep, fresh, marked; /* fresh: the round took no byte yet; marked: that, or on top of one that is */
} nb_gframe;

typedef struct nb_gstep {
    uint64_t *conf; /* pc << 32 | frame, rising */
    uint32_t n, link;
    uint32_t pins, clamped; /* clamped: the state whose mask this one has; 0: not known */
    uint32_t *next;         /* 256; NULL until first asked */
    uint32_t *mask;         /* NULL: not made */
    bool accept, dead_mask;
} nb_gstep;

typedef struct nb_grun {
    const nb_gcode *code;
    nb_gframe *frame;
    size_t n_frame, cap_frame;
    nb_gstep *state;
    size_t n_state, cap_state;
    uint32_t *bucket_f, *bucket_s; /* hash chains */
    size_t n_bucket;
    nb_gvec free_states;
    uint64_t bytes, bytes_max;
    uint64_t work; /* closure steps left in this call */
    /* scratch of a closure */
    nb_gvec used; /* slots of seen */
    uint64_t *todo, *seen, *out;
    size_t n_todo, cap_todo, n_seen, cap_seen, n_out, cap_out;
    bool accept, failed, tired;
} nb_grun;
nb_status nb_grun_init(nb_grun *r, const nb_gcode *code, size_t bytes_max, nb_err *err);
void nb_grun_clear(nb_grun *r);
uint32_t nb_grun_start(nb_grun *r); /* NB_GS_UNKNOWN: no memory or tired */
/* Next state: NB_GS_DEAD, or NB_GS_UNKNOWN when memory (failed) or the budget of work (tired) ran out. */
uint32_t nb_grun_step(nb_grun *r, uint32_t s, unsigned char byte);
/* The state with rounds above `reach` taken as endless: no token of that many bytes can tell them apart. */
uint32_t nb_grun_clamp(nb_grun *r, uint32_t s, uint32_t reach);
/* Drop all states but pinned ones and keep[n]; transitions are forgotten. */
void nb_grun_collect(nb_grun *r, const uint32_t *keep, size_t n);

/* A grammar of a part; b is cleared (gram_mask.c). */
nb_status nb_grammar_make(nb_gbuild *b, nb_gpart root, const nb_gvocab *vocab, nb_grammar **out, nb_err *err);

/* ---- vocabulary (gram_vocab.c) ---- */

bool nb_gvocab_has(const nb_gvocab *v, const char *p, size_t n); /* is there a token of these bytes? */

struct nb_gvocab {
    size_t n_tokens, n_words, n_nodes;
    unsigned char *byte; /* nodes in preorder; node 0 is the root */
    uint16_t *depth;
    uint32_t *skip; /* first node behind the subtree */
    int32_t *token; /* that ends here; -1: none */
    int32_t *same;  /* by token: another token of the same bytes; -1: none */
    uint32_t *off;  /* by token, n_tokens + 1: its bytes */
    char *text;
    int32_t *end;
    size_t n_end;
    uint32_t longest;
};

#endif
