/* grammar.h - structured output: what a reply may be, as a mask over the vocabulary at every step.
 *
 * A grammar (JSON schema, regex, list of texts, EBNF) is compiled to a byte-level pushdown automaton. While text is made,
 * sets of its configurations become states of an automaton built as far as it is walked, kept inside the grammar and
 * shared by all sequences; a mask is one walk over the vocabulary's trie and is kept with its state. Repeat bounds are
 * counters on the stack, not copies.
 *
 * nb_gvocab and nb_grammar are immutable to their users and shared by threads (a lock inside). An nb_gstate belongs to one
 * thread at a time. Sources: spec serving 7, hardening 6.3. Map of the files: gram.h. */
#ifndef NB_TEXT_GRAMMAR_H
#define NB_TEXT_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "text/tokenizer.h"

/* ---- vocabulary ---- */

/* The bytes of all tokens as a trie; 12 bytes a node. The tokenizer may be closed afterwards. Errors: NB_ENOMEM.
 *   end[n_end]  ids that end a reply; allowed exactly where the grammar may end
 *   n_vocab     rows of the logits (may be more than the tokenizer has tokens); 0: nb_tokenizer_size */
typedef struct nb_gvocab nb_gvocab;
nb_status nb_gvocab_open(const nb_tokenizer *t, const int32_t *end, size_t n_end, size_t n_vocab, nb_gvocab **out, nb_err *err);
void nb_gvocab_close(nb_gvocab *v);           /* NULL is fine; after all grammars made with it */
size_t nb_gvocab_size(const nb_gvocab *v);    /* tokens a mask speaks of */
size_t nb_gvocab_words(const nb_gvocab *v);   /* 32-bit words of a mask */
uint64_t nb_gvocab_bytes(const nb_gvocab *v); /* memory */

/* ---- grammars ---- */

/* Limits of one grammar; 0: the default. */
typedef struct nb_glimits {
    size_t source;  /* bytes of a regex: 8 KiB; of a schema as JSON, or of grammar text: 128 KiB */
    int depth;      /* levels of schema, regex or grammar text: 32 for schemas, else 256 */
    size_t nodes;   /* instructions of the compiled grammar: 400,000 */
    double seconds; /* of compiling: 2 */
    size_t cache;   /* bytes of states and masks kept: 16 MiB */
    bool compact;   /* JSON without whitespace */
} nb_glimits;

typedef struct nb_grammar nb_grammar;

/* Compile. vocab: must outlive the grammar; NULL: bytes only, no masks. lim: NULL for defaults. *out has one reference.
 * Errors (class, with the JSON pointer or the place in the text):
 *   NB_EARG         "grammar.invalid"      a keyword of the wrong type, a regex or grammar text that is none
 *   NB_EUNSUPPORTED "grammar.unsupported"  a keyword, format or construct that is not implemented: named, never ignored
 *   NB_ELIMIT       "grammar.too_complex"  depth, size or time
 *   NB_EARG         "grammar.empty"        nothing can match */
nb_status nb_grammar_new_json(const nb_gvocab *vocab, const nb_glimits *lim, nb_grammar **out, nb_err *err); /* any JSON object */
nb_status nb_grammar_new_schema(const nb_gvocab *vocab, const nb_json *schema, const nb_glimits *lim, nb_grammar **out, nb_err *err);
/* The whole reply matches, as with anchors. Groups, classes, alternatives and repeats; no back-reference, no look-around. */
nb_status nb_grammar_new_regex(const nb_gvocab *vocab, const char *re, size_t n, const nb_glimits *lim, nb_grammar **out, nb_err *err);
/* list: an array of texts, not empty. */
nb_status nb_grammar_new_choice(const nb_gvocab *vocab, const nb_json *list, const nb_glimits *lim, nb_grammar **out, nb_err *err);
/* Text with "::=" is llama.cpp's GBNF (rule "root"), else Lark (rule "start"). */
nb_status nb_grammar_new_ebnf(const nb_gvocab *vocab, const char *src, size_t n, const nb_glimits *lim, nb_grammar **out, nb_err *err);

nb_grammar *nb_grammar_ref(nb_grammar *g);
void nb_grammar_unref(nb_grammar *g);           /* NULL is fine */
uint64_t nb_grammar_bytes(const nb_grammar *g); /* memory now, with states and masks */

/* ---- a sequence ---- */

typedef struct nb_gstate nb_gstate;
nb_status nb_gstate_open(nb_grammar *g, nb_gstate **out, nb_err *err);       /* takes its own reference */
void nb_gstate_close(nb_gstate *s);                                          /* NULL is fine */
nb_status nb_gstate_clone(const nb_gstate *s, nb_gstate **out, nb_err *err); /* constant time: for forks and drafts */

/* Let everything pass until the reply has this text (end of reasoning, a tool call's marker); the grammar begins behind it. Before the
 * first token only. */
nb_status nb_gstate_wait(nb_gstate *s, const char *marker, size_t n, nb_err *err);
bool nb_gstate_waiting(const nb_gstate *s);

/* Write nb_gvocab_words words: bit i of word i / 32 tells that token i may come next. While waiting all bits are one.
 * NB_NO: no token may come (dead end, hardening SO-09), the words are zero. Errors: NB_ENOMEM. */
nb_status nb_gstate_mask(nb_gstate *s, uint32_t *bits, nb_err *err);
/* Take a token. NB_NO: it is not allowed, the state is unchanged. An id of `end` finishes. Errors: NB_ENOMEM. */
nb_status nb_gstate_advance(nb_gstate *s, int32_t id, nb_err *err);
/* The same for bytes of text (tests, forced text). All or nothing. */
nb_status nb_gstate_bytes(nb_gstate *s, const char *p, size_t n, nb_err *err);
bool nb_gstate_may_end(const nb_gstate *s);  /* what was taken is a whole reply */
bool nb_gstate_must_end(const nb_gstate *s); /* ... and nothing may follow */

/* ---- compiled grammars kept (hardening SO-10) ---- */

/* Least recently used by kind and text; bytes bound what all of them hold (0: 64 MiB). Thread safe. Compiles outside its
 * lock, in the calling thread. */
typedef enum nb_gkind { NB_G_JSON, NB_G_SCHEMA, NB_G_REGEX, NB_G_CHOICE, NB_G_EBNF } nb_gkind;
typedef struct nb_gcache nb_gcache;
nb_status nb_gcache_open(const nb_gvocab *vocab, const nb_glimits *lim, size_t bytes, nb_gcache **out, nb_err *err);
void nb_gcache_close(nb_gcache *c);
/* value: schema or list as JSON, text as a JSON string, NULL for NB_G_JSON. *out has a reference of the caller's. */
nb_status nb_gcache_get(nb_gcache *c, nb_gkind kind, const nb_json *value, nb_grammar **out, nb_err *err);
uint64_t nb_gcache_bytes(nb_gcache *c);

#endif
