/* dump.h - logits, hidden states and greedy ids of given token ids as a safetensors file: what other programs compare with.
 *
 * The KV cache is f32, so that nothing but the arithmetic of the linears differs from a float32 reference. */
#ifndef NB_JOB_DUMP_H
#define NB_JOB_DUMP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/log.h"
#include "base/pool.h"
#include "model/model.h"

typedef struct nb_dump_opts {
    const char *ids;     /* FILE.safetensors or FILE.safetensors:NAME; I32 or I64, [T] or [R, T] (R independent sequences).
                       * Without NAME: "input_ids", else the only tensor. */
    const char *out;     /* written at the end, then renamed */
    bool force;          /* replace an existing file         */
    bool hidden;         /* also hidden.embed, hidden.layer0 .., hidden.final */
    size_t greedy;       /* also the N most likely ids that follow            */
    bool exact_fp32, a8; /* activations of quantized linears: nb_exec_opts   */
    nb_pool *pool;
    const nb_host *host;
} nb_dump_opts;

typedef struct nb_dump_info {
    size_t rows, tokens; /* R (1 for [T]) and T */
    size_t vocab;
} nb_dump_info;

/* Writes logits [T, V] or [R, T, V] F32; with `hidden` states [T, D] or [R, T, D] F32: the input of layer 0, the residual
 * after each layer, the input of the head; with `greedy` ids [N] or [R, N] I64. Where rope depends on the length of the
 * sequence, the length is T for the logits, and the ids so far for every greedy id (the prompt is read again when the
 * tables change). Errors: NB_EOPEN, NB_EFORMAT "ids.tensor" "ids.shape" "ids.token", NB_EEXISTS, NB_ECANCELED. */
nb_status nb_dump_run(nb_model *m, const nb_dump_opts *o, nb_dump_info *info, nb_err *err);

#endif
