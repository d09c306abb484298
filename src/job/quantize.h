/* quantize.h - a 16-bit Hugging Face directory in, a quantized one out, block by block.
 *
 * RTN rounds every linear of the decoder layers as it is. AWQ follows spec quantizers 3: per block it searches all scaling
 * groups on the unscaled weights, folds, clips and rounds. GPTQ follows spec quantizers 9: input by input it solves the
 * linears, the block running as quantized so far. Both run the block again with what was written, so that the next one sees
 * it. AWQ and then GPTQ folds the scales and solves the folded weights. Embedding, head and other tensors keep their bytes. Weights that are NaN or infinite are an error; anything
 * else that goes wrong numerically falls back to plain rounding, with a note. */
#ifndef NB_JOB_QUANTIZE_H
#define NB_JOB_QUANTIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "base/pool.h"
#include "kern/kern.h"
#include "solve/solve_awq.h"
#include "solve/solve_gptq.h"
#include "tensor/dtype.h"

enum {
    NB_QUANTIZE_CLIPS = 20,
    NB_QUANTIZE_REFINE = 4,
    NB_QUANTIZE_MAX_REFINE = 100
};                               /* clip candidates, sweeps over codes unless the user says otherwise */
#define NB_QUANTIZE_DAMP   0.05  /* first share of the mean diagonal that GPTQ adds */
#define NB_QUANTIZE_LEAST  0.005 /* share of the calibration tokens that an expert must see */
#define NB_QUANTIZE_MEMORY 0.6   /* share of the free memory that a job takes */
#define NB_QUANTIZE_MSE    2.0   /* exponent of its grid search, on unless the user says 0: it lowers KL */
#define NB_QUANTIZE_GPTAQ  0.5   /* share of the step towards what the original model computes, unless the user says otherwise */

typedef enum nb_quant_method { NB_QUANT_RTN, NB_QUANT_AWQ, NB_QUANT_GPTQ, NB_QUANT_AWQ_GPTQ, NB_QUANT_METHODS } nb_quant_method;

/* Does a method search scales as AWQ does; pass errors on as GPTQ does? */
static inline bool nb_quant_scales(nb_quant_method m)
{
    return m == NB_QUANT_AWQ || m == NB_QUANT_AWQ_GPTQ;
}

static inline bool nb_quant_solves(nb_quant_method m)
{
    return m == NB_QUANT_GPTQ || m == NB_QUANT_AWQ_GPTQ;
}

/* What is known of a method: "gptq", "GPTQ"; whether it takes calibration data; whether its grid is symmetric by default. */
typedef struct nb_quant_method_info {
    const char *name, *title;
    bool calibrates, sym;
} nb_quant_method_info;
nb_quant_method_info nb_quantize_method(nb_quant_method m);
/* By name. NB_EARG "quantize.method" lists what there is. */
nb_status nb_quantize_method_find(const char *name, nb_quant_method *out, nb_err *err);

/* Told before the work starts. */
typedef struct nb_quantize_plan {
    nb_quant_method method;
    size_t layers, modules;
    uint64_t params;      /* weights that are quantized */
    size_t rows, len;     /* calibration, 0 for RTN    */
    size_t docs, empty;   /* documents of the calibration file, those without a token; 0 for ids */
    double seconds;       /* estimate                                                       */
    uint64_t peak_bytes;  /* estimate, never too low                                        */
    uint64_t least_bytes; /* the same with activations in files: the smallest cap that works */
    uint64_t cap_bytes;   /* it stays below this                                            */
    bool spill;           /* activations are in files, so that it does                      */
    uint64_t disk_bytes;  /* that the job takes while it runs, the result included          */
    uint64_t in_bytes, out_bytes;
    const char *kernel, *layout;
    int threads;
} nb_quantize_plan;

/* Told after each linear. */
typedef struct nb_quantize_row {
    size_t done, total;
    const char *name; /* "model.layers.0.mlp.up_proj"                                  */
    size_t n, k;
    double before, after;      /* relative output error of plain rounding, of what was written; of the weights for RTN */
    double ratio;              /* of the scales of its group, -1 when it has none               */
    double damp;               /* that was needed, -1 when there is none                        */
    size_t tokens;             /* calibration tokens that reached it, 0 also when none are used  */
    bool expert;               /* a linear of an expert that the router chooses                  */
    const nb_awq_best *search; /* of that group, or NULL; valid during the call              */
    const char *note;          /* why a group fell back, or ""                                  */
    double seconds;
    size_t zeros; /* groups that decode to nothing but zeros */
    bool resumed; /* an earlier process did it: told again, so that the list is whole */
} nb_quantize_row;

/* Told after each decoder layer, behind its rows. */
typedef struct nb_quantize_layer {
    size_t layer;
    double seconds;          /* wall time of all of it: running, searching, writing; NaN: not known (a journal of an older version) */
    uint64_t resident, peak; /* bytes of the process at its end; the most so far; 0: not known */
    bool resumed;            /* an earlier process did it: told again */
} nb_quantize_layer;

/* What decides bytes of the result goes into recipe.c too: a job is resumed only with the same recipe. */
typedef struct nb_quantize_opts {
    nb_quant_method method;
    unsigned bits;      /* 4; GPTQ 2 to 8 */
    int64_t group_size; /* 128, 64, 32 ..., -1 per channel */
    bool sym;
    nb_dtype scale_dtype;         /* F16 or BF16 */
    const char *format;           /* layout to write; NULL: awq-gemm, GPTQ gptq (sym), gptq_v2 (asym) or gptq_p (5 to 7 bits) */
    const char *calib;            /* AWQ, GPTQ: file for nb_calib_open, or "self": nb_calib_self */
    size_t calib_rows, calib_len; /* 0: default */
    bool replay_original;
    bool all_experts;          /* every expert is calibrated with all tokens, not with those that the router sends it */
    double least_tokens;       /* an expert that a smaller share of the tokens reaches is rounded plainly; 0: NB_QUANTIZE_LEAST */
    const char *dynamic;       /* overrides by module, JSON or a file of it (qselect.h), or NULL */
    const char *const *ignore; /* [n_ignore] patterns of linears that stay as they are */
    size_t n_ignore;
    bool lm_head;  /* the head too, rounded plainly by RTN and AWQ. One that is the embedding is written as a linear of its own */
    bool shared_v; /* AWQ: v -> o also where heads share rows of v */
    bool plain;    /* AWQ: scales from activations alone */
    bool inspect;  /* AWQ: losses from the inspected modules, run for every candidate; else from second moments where they are dense */
    unsigned clip; /* candidates of the clip search; NB_AWQ_CLIPS as the references, 0: none */
    nb_gptq_order order; /* GPTQ; NB_GPTQ_GAR is the usual one */
    bool static_groups;
    double damp, mse; /* 0: NB_QUANTIZE_DAMP, no search of the grid; NB_QUANTIZE_MSE is the usual exponent */
    double gptaq;     /* GPTQ: share of the step towards the original model (spec quantizers 9.8), 0: none */
    unsigned refine;  /* AWQ, GPTQ: sweeps of coordinate descent over the codes, 0: none */
    bool force;
    bool plan_only;      /* tell the plan and return */
    bool restart;        /* drop an unfinished job for this output */
    uint64_t memory;     /* cap of the resident size, 0: NB_QUANTIZE_MEMORY of what is free */
    const nb_kern *kern; /* NULL: best */
    nb_pool *pool;
    const nb_host *host;
    void (*on_plan)(void *user, const nb_quantize_plan *p);   /* may be NULL */
    void (*on_row)(void *user, const nb_quantize_row *r);     /* may be NULL */
    void (*on_layer)(void *user, const nb_quantize_layer *l); /* may be NULL */
    void *user;
} nb_quantize_opts;

typedef struct nb_quantize_result {
    size_t modules, fallbacks;
    size_t resumed; /* layers that an earlier process did */
    double seconds, mean_before, mean_after;
    uint64_t peak_bytes; /* largest resident size of the process */
} nb_quantize_result;

/* Read `model` (a directory), write the directory `out`. Nothing has its final name unless the whole job succeeded. A job that ends
 * early, in whatever way, leaves what it finished in "<out>.nibble-job" (journal.h); the same call goes on from there and gives the
 * same bytes. Faults of the inputs leave nothing. peak memory stays below the cap or the job does not begin (NB_ENOMEM "mem.budget").
 * Errors: NB_EARG "quantize.dynamic", "quantize.group" (SHP-004, names the sizes that fit), "quantize.method", "quantize.format", "quantize.calib"; NB_EUNSUPPORTED
 * "quantize.already", "quantize.input", "quantize.outputs"; NB_EEXISTS; NB_ENUMERIC; NB_ECANCELED; and those of the files. */
nb_status nb_quantize(const char *model, const char *out, const nb_quantize_opts *o, nb_quantize_result *res, nb_err *err);

#endif
