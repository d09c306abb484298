/* capacity.h - will a model fit, how many users at which length, and how fast at best: serving 12, as arithmetic.
 *
 * Facts of a model come from headers and configuration (capacity_model.c); no weight is read. Bytes are per device where a model
 * is split over several. */
#ifndef NB_JOB_CAPACITY_H
#define NB_JOB_CAPACITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"

/* What is known of a model. */
typedef struct nb_cap_model {
    char model_type[64], layout[32];
    bool estimated; /* from config.json alone: there were no weights */
    unsigned bits;
    size_t layers, d_model, d_ff, heads, kv_heads, head_dim, vocab, context; /* context 0: unknown */
    uint64_t params, active_params;                                          /* of a step of one token            */
    uint64_t file_bytes;                                                     /* tensors as stored: what stays on a GPU */
    uint64_t packed_bytes;                                                   /* as nibble packs them                   */
    uint64_t step_bytes;                                                     /* nibble's activations a token of a step; 0: not known */
    double split_bytes;                                                      /* nibble's, of attention, a token of the pool */
    uint64_t split_most;                                                     /* at most */
    uint64_t table_bytes;  /* embedding that is not the head too: one row a token is read; as stored */
    uint64_t expert_bytes; /* part of file_bytes in routed experts */
    size_t n_experts, n_active;
    /* Elements that a token leaves in layers that keep all of them, and in layers with a window; a value each and, for 8-bit
     * caches, a scale per head. */
    uint64_t kv_full, kv_window, kv_full_heads, kv_window_heads;
    size_t window;
    /* The same in nibble's cache: of layers that keep all tokens, of layers that keep a window. 0: not known, as above. */
    uint64_t kv_own, kv_own_window;
    bool latent;          /* not split over devices */
    uint64_t state_bytes; /* of a sequence, whatever its length */
} nb_cap_model;

typedef enum nb_cap_kv { NB_CAP_KV_16, NB_CAP_KV_8, NB_CAP_KV_32, NB_CAP_KV_FP8 } nb_cap_kv;

typedef struct nb_cap_opts {
    bool gpu;         /* weights as stored; else packed */
    uint64_t memory;  /* of a device */
    double share;     /* of it that may be used, 0.9 */
    uint64_t reserve; /* what the process needs beside, per device */
    size_t tp;        /* devices, 1 */
    nb_cap_kv kv;
    size_t block, chunk;           /* tokens of a cache block (32), of a step (512) */
    size_t prompt, output;         /* mean tokens */
    size_t prompt_max, output_max; /* 0: twice the means, at most the context */
    size_t max_seqs;               /* 0: 64 */
    double bandwidth, flops;       /* bytes/s, FLOP/s of a device; 0: unknown */
} nb_cap_opts;

typedef struct nb_cap_plan {
    uint64_t budget, weights, workspace, reserve, kv_pool; /* of a device; kv_pool: what is left, 0 when nothing is */
    double kv_token;                                       /* bytes a token adds beyond every window */
    uint64_t seq_mean, seq_max;                            /* bytes of a sequence of mean and of largest length */
    size_t tokens_mean, tokens_max;
    bool fits;                     /* one sequence of largest length */
    uint64_t seqs_mean, seqs_max;  /* at once */
    uint64_t longest;              /* context of a single sequence    */
    bool longest_is_model;         /* the model's context ends before the memory */
    bool weights_dominate;         /* they take more than half of the budget */
    size_t batch;                  /* sequences of the two figures below: seqs_mean, at most max_seqs */
    double decode_1, decode_batch; /* tokens/s at best, from bandwidth; 0: unknown */
    double prefill_s;              /* seconds at least for a prompt of mean length; 0: unknown */
} nb_cap_plan;

/* Bytes of a quantized linear [n][k] as AWQ and GPTQ store it (serving 12.2): codes, 16-bit scales, zero points unless sym. */
double nb_cap_linear_bytes(double n, double k, unsigned bits, double group, bool sym);
/* Cache bytes of a device for one sequence of `tokens`. */
uint64_t nb_cap_seq_bytes(const nb_cap_model *m, const nb_cap_opts *o, size_t tokens);
/* Bytes of activations of a step of t tokens and logits of `rows` (12.4); own: in nibble. */
uint64_t nb_cap_workspace(const nb_cap_model *m, bool own, size_t t, size_t rows);
/* NB_EARG "plan.tp" when heads do not divide, "plan.lengths" when prompt and output are longer than the context. */
nb_status nb_cap_plan_run(const nb_cap_model *m, const nb_cap_opts *o, nb_cap_plan *out, nb_err *err);

/* Facts of the model at `path`. Without weights they are estimated from config.json; bits 0: of its quantization config, else 16. */
nb_status nb_cap_read(nb_cap_model *m, const char *path, unsigned bits, int64_t group, nb_err *err);

/* A row of data/gpus.json. */
typedef struct nb_gpu {
    char name[32], vendor[16], arch[16];
    uint64_t memory;
    double bandwidth, flops;
} nb_gpu;
size_t nb_gpu_count(void);
nb_status nb_gpu_at(size_t i, nb_gpu *out, nb_err *err);
/* By name, letters and digits only, in any case: "a100 80gb"; a part that only one name has will do. NB_EARG "plan.gpu" lists what is near. */
nb_status nb_gpu_find(const char *name, nb_gpu *out, nb_err *err);

#endif
