/* pickle_priv.h - the machine of pickle.h, shared by its opcodes (pickle.c) and its constructors (pickle_torch.c).
 *
 * Objects are 12-byte nodes in pools, so that memory stays a small multiple of the stream and freeing needs no walk. */
#ifndef NB_IO_PICKLE_PRIV_H
#define NB_IO_PICKLE_PRIV_H

#include "base/mem.h"
#include "base/strmap.h"
#include "io/pickle.h"

/* Growing array whose elements never move. */
typedef struct nb_pool {
    void **chunk; /* allocated with the first element */
    size_t size;  /* of an element */
    uint32_t n;
} nb_pool;

enum { NB_POOL_BITS = 14, NB_POOL_CHUNK = 1 << NB_POOL_BITS, NB_POOL_CHUNKS = NB_PKL_OPS >> NB_POOL_BITS };

void *nb_pool_at(const nb_pool *q, uint32_t i);
void *nb_pool_reach(nb_pool *q, uint32_t i); /* room for element i, zeroed when new; NULL when out of memory */
void nb_pool_clear(nb_pool *q);

#define NB_PKL_KIND(tag)  ((nb_pkl_kind)((tag)&0xF))
#define NB_PKL_COUNT(tag) ((tag) >> 4)

/* kind in bits 0-3 of tag, a count in the bits above. */
typedef struct nb_pkl_node {
    uint32_t tag;
    uint32_t a; /* INT low half; STR offset; TUPLE first item; LIST, DICT first cell + 1; others index or row */
    uint32_t b; /* INT high half; TUPLE index of its numbers + 1; LIST, DICT last cell + 1                    */
} nb_pkl_node;

typedef struct nb_pkl_cell { /* of a list or mapping */
    nb_pkl_ref key, value;
    uint32_t next; /* + 1 */
} nb_pkl_cell;

/* Nodes that are there from the start; then one for each row of nb_pkl_globals. */
enum { NB_PKL_R_NONE, NB_PKL_R_TRUE, NB_PKL_R_FALSE, NB_PKL_R_EMPTY, NB_PKL_R_FLOAT, NB_PKL_R_DEVICE, NB_PKL_R_GLOBALS };

struct nb_pkl {
    const unsigned char *p;
    size_t n, i, op; /* next byte; where the current opcode is */
    const char *record;
    nb_pool nodes, cells, items, stack, marks, memo, tensors, storages, numbers; /* numbers: of pointers */
    size_t n_memo;
    nb_arena arena;   /* numbers of tuples that are shapes or strides */
    nb_strmap *keys;  /* (mapping, key): is there */
    nb_strmap *named; /* storage key -> index     */
    nb_pkl_ref root;
    bool stopped;
    nb_err *err;
};

/* Record a failure at the current opcode. */
nb_status nb_pkl_fail(nb_pkl *v, nb_status code, const char *cls, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 4, 5)))
#endif
    ;
nb_status nb_pkl_nomem(nb_pkl *v);
nb_pkl_node *nb_pkl_node_at(const nb_pkl *v, nb_pkl_ref r);
nb_status nb_pkl_new(nb_pkl *v, nb_pkl_kind kind, uint32_t count, uint32_t a, uint32_t b, nb_pkl_ref *out);
nb_status nb_pkl_push(nb_pkl *v, nb_pkl_ref r);
nb_status nb_pkl_push_new(nb_pkl *v, nb_pkl_kind kind, uint32_t count, uint32_t a, uint32_t b);
nb_status nb_pkl_need(nb_pkl *v, uint32_t k);        /* k objects above the last mark, else "pkl.stack" */
nb_pkl_ref nb_pkl_peek(const nb_pkl *v, uint32_t k); /* k-th from the top, 0 the topmost                */
nb_pkl_ref nb_pkl_item(const nb_pkl *v, const nb_pkl_node *tuple, uint32_t k);
nb_status nb_pkl_set_item(nb_pkl *v, nb_pkl_ref dict, nb_pkl_ref key, nb_pkl_ref value);

/* Opcodes of pickle_torch.c; the argument is not used. */
nb_status nb_pkl_op_global(nb_pkl *v, uint32_t x);
nb_status nb_pkl_op_persid(nb_pkl *v, uint32_t x);
nb_status nb_pkl_op_construct(nb_pkl *v, uint32_t newobj); /* REDUCE 0, NEWOBJ 1 */
nb_status nb_pkl_op_build(nb_pkl *v, uint32_t x);
extern const size_t nb_pkl_n_globals;

#endif
