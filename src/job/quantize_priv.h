/* quantize_priv.h - one quantization job, and a method as a row: quantize.c walks, method_*.c solve. */
#ifndef NB_JOB_QUANTIZE_PRIV_H
#define NB_JOB_QUANTIZE_PRIV_H

#include "job/block.h"
#include "job/calib.h"
#include "job/journal.h"
#include "job/load.h"
#include "job/qmods.h"
#include "job/qout.h"
#include "job/qselect.h"
#include "job/quantize.h"
#include "model/plan.h"
#include "quant/quant.h"
#include "solve/solve_rtn.h"

typedef struct nb_qmethod nb_qmethod;

typedef struct nb_qjob {
    const nb_quantize_opts *o;
    const nb_qmethod *method;
    const nb_format *fmt;
    nb_loaded src;
    nb_config cfg;
    nb_plan plan;
    nb_calib calib;
    nb_qspec spec;
    nb_dtype norm_dtype; /* in which folded norms are stored */
    nb_qout *out;
    void *state; /* the method's */
    nb_quantize_result res;
    nb_qmods mods;
    nb_qwrites writes;
    nb_qselect *select;
    size_t least_tokens; /* an expert that fewer calibration tokens reach is rounded plainly */
    bool few;            /* so is the one whose input was looked at last */
    const nb_kern *kern;
    nb_json *recipe;         /* recipe.c */
    nb_journal *journal;     /* NULL until the work begins */
    nb_json *rows, *pending; /* of the layer at work; layers that are not recorded yet */
    size_t first;            /* layer to begin with */
    double recorded_at;
    double shared; /* seconds spent for several linears, per linear; added to the row of each */
    double input;  /* the same for the input that GPTQ looked at last; its solver adds it */
} nb_qjob;

struct nb_qmethod {
    const char *name, *title;                         /* "gptq", "GPTQ" */
    bool calibrates;                                  /* the model and the calibration rows are open before `open` */
    bool sym;                                         /* unless the user says otherwise */
    const char *(*layout)(const nb_quantize_opts *o); /* name of the layout it writes unless the user says otherwise */
    /* What the method writes anew beside the linears, before `open`; NULL: nothing. */
    nb_status (*writes)(const nb_qjob *j, nb_qwrites *out, nb_err *err);
    nb_status (*open)(nb_qjob *j, nb_err *err);                /* NULL: nothing to open, and none of the next three */
    nb_block_cost (*cost)(const nb_qjob *j);                   /* from plan, options and calib alone: before `open` */
    nb_block *(*block)(nb_qjob *j);                            /* what it runs layers with, for the journal */
    nb_status (*begin)(nb_qjob *j, size_t layer, nb_err *err); /* before the linears of a layer */
    nb_status (*end)(nb_qjob *j, nb_err *err);                 /* after them */
    void (*close)(nb_qjob *j);                                 /* state may be NULL */
    /* One linear into q (initialised, scale_dtype set), and the numbers of its row. Linears come in the order of j->mods. */
    nb_status (*solve)(nb_qjob *j, const nb_qmod *m, nb_qlin *q, nb_quantize_row *row, nb_err *err);
};

/* recipe.c: a flat object, the caller's. */
nb_status nb_qjob_recipe(const nb_qjob *j, nb_json **out, nb_err *err);

/* qplan.c: fill the plan; refuse a job that does not fit into memory or onto the disk. Before method->open; j->out is laid out. */
void nb_qplan_make(nb_qjob *j, nb_quantize_plan *p);
nb_status nb_qplan_fits(const nb_qjob *j, const nb_quantize_plan *p, const char *out, nb_err *err);

/* qresume.c. Begin the output, or find what an earlier process left of it; tell its rows and set j->first; its activations into the
 * opened method. Then a row at a time, and a layer when all of it is written: durable on return for methods with a block. */
nb_status nb_qresume_open(nb_qjob *j, const char *out, nb_err *err);
void nb_qresume_tell(nb_qjob *j);
nb_status nb_qresume_inputs(nb_qjob *j, nb_err *err);
nb_status nb_qresume_row(nb_qjob *j, const nb_quantize_row *r, nb_err *err);
nb_status nb_qresume_layer(nb_qjob *j, const nb_quantize_layer *l, nb_err *err);
/* qcard.c: QUANTIZATION.md into the output. */
nb_status nb_qcard_write(nb_qjob *j, nb_err *err);
/* quantize.c: is the head solved from what the quantized layers feed it? Otherwise it is rounded plainly. */
bool nb_qjob_solves_head(const nb_qjob *j);
/* quantize.c: count a finished row and tell the host. */
void nb_qjob_tell(nb_qjob *j, nb_quantize_row *r);

extern const nb_qmethod nb_method_rtn, nb_method_awq, nb_method_gptq, nb_method_awq_gptq;

/* method_rtn.c: one linear from stored weights to the output, stripe by stripe. *done false and NB_OK: solve says what is wrong with it. */
nb_status nb_rtn_stream(nb_qjob *j, const nb_qmod *m, nb_quantize_row *row, bool *done, nb_err *err);
/* Groups whose codes are all the zero point: pruned weights, or ones too small for any scale. */
size_t nb_zero_groups(const nb_qlin *q);

/* The grid of a linear. */
nb_grid nb_qmod_grid(const nb_qmod *m);
/* Quantized linears of a layer. */
size_t nb_qjob_layer_mods(const nb_qjob *j, size_t layer);
/* Groups of the 8-bit codes that the model is held in while it is calibrated; 0: it is held as f32, where whole modules are
 * compared (AWQ) or layers branch. */
size_t nb_qjob_codes(const nb_qjob *j);
/* Why an expert is rounded plainly. */
extern const char nb_few_tokens[];

#endif
