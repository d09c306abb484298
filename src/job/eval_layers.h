/* eval_layers.h - where a quantized model departs from its reference: relative output error of every decoder layer.
 *
 * alone: ||Q(x) - R(x)|| / ||R(x) - x|| with both layers fed the reference's input x: what this layer does wrong, in units of what
 * it adds to the residual. drift: ||xq - xr|| / ||xr|| of the residual behind the layer, each model on its own: what has
 * come together so far. Norms over all tokens and channels, float64 sums. */
#ifndef NB_JOB_EVAL_LAYERS_H
#define NB_JOB_EVAL_LAYERS_H

#include <stddef.h>

#include "base/err.h"
#include "job/eval.h"

typedef struct nb_layer_errors {
    size_t n, tokens;
    double *alone, *drift; /* [n] */
} nb_layer_errors;

/* On the first windows of the set, about `tokens` of them (0: 2048; a window is run whole). Both models must have the same
 * layers and width: NB_EARG "eval.layers". The caller clears. */
nb_status nb_eval_layers(nb_model *m, nb_model *ref, const nb_eval_opts *o, size_t tokens, nb_layer_errors *out, nb_err *err);
void nb_layer_errors_clear(nb_layer_errors *e);

#endif
