/* qmods.h - every linear of a model's decoder layers, and what becomes of it: quantized with which values, or left as it is.
 *
 * In the order of the walk: layer by layer, op by op, expert by expert. Immutable after open; any thread. */
#ifndef NB_JOB_QMODS_H
#define NB_JOB_QMODS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "model/mod.h"
#include "quant/quant.h"

typedef struct nb_qmod {
    size_t layer;
    nb_mod mod;
    nb_stored at;   /* name, tensors, sizes */
    nb_qspec spec;  /* of this linear, where it is quantized */
    bool quantized; /* else it stays 16-bit */
    bool first;     /* the first quantized one that reads its input ... */
    size_t sharing; /* ... and how many do */
} nb_qmod;

typedef struct nb_qmods {
    nb_qmod *mods;
    size_t n, n_layers, n_quantized;
    size_t *first; /* [n_layers + 2] index of the first linear of a layer; behind the layers, of the head */
} nb_qmods;

/* What nb_qmods_open asks for each linear: change spec, or return false for one that stays as it is. */
typedef bool nb_qmod_rule(void *user, const nb_qmod *m, nb_qspec *spec);

/* Find and check all of them. rule NULL: all are quantized as spec says. s and the plan must outlive it. NB_EFORMAT
 * "cfg.missing_tensor", "cfg.shape_mismatch"; NB_EUNSUPPORTED "quantize.input" for tensors that are not f16, bf16, f32 or MXFP4. */
nb_status nb_qmods_open(nb_qmods *t, const nb_plan *p, const nb_store *s, const nb_qspec *spec, nb_qmod_rule *rule, void *user,
                        nb_err *err);
/* The head too, behind the layers: as layer n_layers. Where the embedding serves as head, as a linear of its own. */
nb_status nb_qmods_add_head(nb_qmods *t, const nb_plan *p, const nb_store *s, const nb_qspec *spec, nb_qmod_rule *rule, void *user,
                            nb_err *err);
/* The head where it is quantized, the last linear then; or NULL. */
const nb_qmod *nb_qmods_head(const nb_qmods *t);
void nb_qmods_clear(nb_qmods *t); /* a zeroed one is fine */
/* What is written anew beside quantized linears, because scales fold into it: a norm vector, a linear that stays as it is (routers
 * too), the bias of a linear. */
typedef enum nb_qwrite_kind { NB_QWRITE_VEC, NB_QWRITE_DENSE, NB_QWRITE_BIAS } nb_qwrite_kind;
typedef struct nb_qwrite {
    nb_qwrite_kind kind;
    size_t layer;
    nb_vec vec;
    nb_mod mod;
} nb_qwrite;
typedef struct nb_qwrites {
    nb_qwrite *w;
    size_t n, cap;
} nb_qwrites;
/* Add one unless it is there. NB_ENOMEM. */
nb_status nb_qwrites_add(nb_qwrites *ws, nb_qwrite w, nb_err *err);
void nb_qwrites_clear(nb_qwrites *ws);
/* Name of the tensor that is written ("...weight"), the stored tensor whose place it takes, its values, and whether that tensor
 * holds others too. */
typedef struct nb_qwritten {
    char name[300];
    const nb_tensor *from;
    size_t n, k; /* k 0: a vector of n */
    bool part;
} nb_qwritten;
nb_status nb_qwrite_find(const nb_plan *p, const nb_store *s, const nb_qwrite *w, nb_qwritten *out, nb_err *err);
/* In which type: matrices and biases that were f32 stay so; all else as folded norms. */
nb_dtype nb_qwrite_type(const nb_qwrite *w, const nb_tensor *from, nb_dtype norms);

/* One linear of a layer, or NULL. */
const nb_qmod *nb_qmods_find(const nb_qmods *t, size_t layer, nb_mod mod);
/* Do two linears come out in the same form? */
bool nb_qspec_same(const nb_qspec *a, const nb_qspec *b);
/* Do two linears of a layer read the same input? */
bool nb_mods_share(const nb_plan *p, size_t layer, nb_mod a, nb_mod b);

#endif
