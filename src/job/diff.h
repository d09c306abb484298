/* diff.h - `nibble diff`: two checkpoints, tensor by tensor, whatever their layouts. A quantized linear stands for its
 * "<prefix>.weight", so AWQ compares with GPTQ and both with the 16-bit original. */
#ifndef NB_JOB_DIFF_H
#define NB_JOB_DIFF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/pool.h"

typedef enum nb_diff_kind { NB_DIFF_SAME, NB_DIFF_VALUES, NB_DIFF_SHAPE, NB_DIFF_TYPE, NB_DIFF_ONLY_A, NB_DIFF_ONLY_B } nb_diff_kind;

typedef struct nb_diff_row {
    const char *name; /* "model.layers.0.mlp.up_proj.weight"; lives in the result             */
    nb_diff_kind kind;
    bool codes;                          /* quantized on both sides with the same bits and groups: the counts below are set */
    char a[40], b[40];                   /* "awq-gemm 4 bits", "BF16 [4, 8]"; "" when absent                      */
    uint64_t n_codes, n_zeros, n_scales; /* that differ                                        */
    uint64_t n, n_values;                /* values, and those that differ                       */
    double max_abs, max_size;            /* largest difference; largest |value| of A            */
} nb_diff_row;

typedef struct nb_diff {
    const nb_diff_row *rows; /* in the order of A, then what only B has */
    size_t n_rows;
    size_t n_different;               /* rows beyond the tolerance, of another shape, or on one side alone   */
    size_t n_quantized, n_same_codes; /* linears quantized on both sides; of them equal in codes, zeros, scales, order */
    size_t worst;                     /* row of the largest max_abs; meaningless when that is 0              */
    void *impl;
} nb_diff;

typedef struct nb_diff_opts {
    double tolerance; /* of max_abs / max_size; 0: values must be equal */
    nb_pool *pool;
    const nb_host *host;
} nb_diff_opts;

/* Compare all tensors of two models. A bias of zeros on one side alone counts as equal. NaN equals NaN. Figures do not depend on
 * the number of threads. Returns NB_OK when nothing differs, NB_NO when something does (out is filled in both cases), else what
 * opening or reading says. Caller clears. */
nb_status nb_diff_run(const char *a, const char *b, const nb_diff_opts *o, nb_diff *out, nb_err *err);
void nb_diff_clear(nb_diff *d);
/* Sums and the rows that differ. NULL: no memory. */
nb_json *nb_diff_json(const nb_diff *d, const char *a, const char *b);
const char *nb_diff_kind_name(nb_diff_kind k); /* "same", "values", "shape", "type", "only_a", "only_b" */

#endif
