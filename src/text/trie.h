/* trie.h - which pieces of a vocabulary begin at a place of a text. Immutable after open, shared by threads. */
#ifndef NB_TEXT_TRIE_H
#define NB_TEXT_TRIE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "text/vocab.h"

typedef struct nb_trie_node {
    uint32_t first; /* its children are node[first .. first + n), by rising byte */
    int32_t entry;  /* index of the piece that ends here; -1: none */
    uint16_t n;
    unsigned char byte;
} nb_trie_node;

typedef struct nb_trie {
    nb_trie_node *node; /* node[0] is the root */
    size_t n, cap;
} nb_trie;

/* Zero *t first. Takes every piece of v but the empty one; 12 bytes a node. Errors: NB_ENOMEM. */
nb_status nb_trie_init(nb_trie *t, const nb_vocab *v, nb_err *err);
void nb_trie_clear(nb_trie *t);
/* The child of node `at` for byte c; 0: none. */
uint32_t nb_trie_step(const nb_trie *t, uint32_t at, unsigned char c);

/* Steps that searches in a text of n bytes may take: real pieces have a tenth of that, and a file of long ones (64 KiB
 * each) must not make encoding hang. */
#define NB_TRIE_BUDGET(n) (1024 * (uint64_t)(n) + (1u << 24))
/* NB_ELIMIT "limit.text": the budget is used up. */
nb_status nb_trie_exhausted(nb_err *err);

#endif
