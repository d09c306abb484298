/* relayout.h - what the parts of a conversion between layouts share: plan (relayout_plan.c), faults (repair.c), bytes (relayout.c,
 * relayout_words.c). */
#ifndef NB_JOB_RELAYOUT_H
#define NB_JOB_RELAYOUT_H

#include <pthread.h>

#include "base/mem.h"
#include "job/convert_priv.h"
#include "quant/convention.h"
#include "tensor/sink.h"

/* One linear, or one tensor that is copied. */
typedef struct nb_relay_item {
    const nb_linear *lin;
    const nb_tensor *plain;
    nb_qspec spec;  /* of a linear in the target                                                        */
    bool words;     /* its codes are moved as words                                                     */
    uint64_t print; /* of what was meant to be written                                                  */
    uint64_t bytes[NB_MAX_PARTS];
    const char *names[NB_MAX_PARTS]; /* NULL: the target does not store this part                             */
} nb_relay_item;

typedef struct nb_relay {
    const nb_convert_opts *o;
    nb_conv_in in;
    const nb_format *to;
    nb_arena arena;
    nb_relay_item *items;
    size_t n_items, n_linears;
    nb_order_verdict fault; /* what is repaired */
    nb_qspec spec;          /* global values of the target                                                      */
    nb_sink *sink;
    nb_convert_sum *sum;
    /* of the item at work */
    nb_relay_item *now;
    const nb_linear *past;    /* its pages are not yet given back                                                */
    void *part[NB_MAX_PARTS]; /* whole packed tensors                                                         */
    uint64_t part_cap[NB_MAX_PARTS];
    unsigned char *tiles; /* two per thread, tile_cap bytes each */
    size_t tile_cap;
    pthread_mutex_t lock; /* guards what follows, print of the item, sum                                      */
    nb_err *err;
    size_t err_at;      /* piece of the recorded error: the first one wins                                  */
    uint64_t n_rounded; /* scales of the linear that the type does not hold                                 */
    double max_rel;
} nb_relay;

/* Outputs in a stripe, and a hub for the stripe that begins at n0. */
size_t nb_relay_rows(const nb_linear *lin);
nb_status nb_relay_stripe(nb_qlin *q, const nb_linear *lin, size_t n0, bool with_codes, nb_err *err);

/* relayout_plan.c: the target, the items, the spec of each and of all; everything that can be refused before a byte is written. */
nb_status nb_relay_target(nb_relay *j, nb_err *err);
nb_status nb_relay_plan(nb_relay *j, nb_err *err);
/* All configuration and small files. */
nb_status nb_relay_configs(nb_relay *j, nb_outdir *out, nb_err *err);

/* relayout_words.c: may the codes of lin go to j->to as words; into how many tiles is it cut, of how many bytes at most; and tile i,
 * which is summed, and written to the tensor `name` unless that is NULL. */
bool nb_relay_words(const nb_relay *j, const nb_linear *lin);
size_t nb_relay_tiles(const nb_relay *j, const nb_linear *lin);
size_t nb_relay_tile_bytes(const nb_relay *j, const nb_linear *lin);
uint64_t nb_relay_tile(nb_relay *j, const nb_linear *lin, size_t i, int thread, const char *name, nb_err *err);

/* repair.c: the fault that o->repair names, when the values prove it, else "conv.repair"; and a stripe rid of it. */
nb_status nb_relay_find_fault(nb_relay *j, nb_err *err);
void nb_relay_repair(const nb_relay *j, nb_qlin *q);

#endif
