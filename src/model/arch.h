/* arch.h - the architecture table: what a model_type means where config.json is silent. A new architecture is a row.
 *
 * Source: spec models 2 and 3. The table is constant; all functions may be called from several threads. */
#ifndef NB_MODEL_ARCH_H
#define NB_MODEL_ARCH_H

#include <stdbool.h>
#include <stddef.h>

/* Where a bias flag comes from. */
typedef enum nb_bias_rule { NB_BIAS_NO, NB_BIAS_YES, NB_BIAS_CONFIG } nb_bias_rule;

/* Which layers are limited to the sliding window when there is one. */
typedef enum nb_window_rule {
    NB_WINDOW_NONE, /* never                                                      */
    NB_WINDOW_ALL,  /* every layer                                                */
    NB_WINDOW_UPPER /* layers from max_window_layers on, if use_sliding_window    */
} nb_window_rule;

typedef struct nb_arch {
    const char *type; /* model_type                     */
    const char *cls;  /* architectures[0]               */
    const char *eps_key;
    double eps, theta;
    size_t head_dim;               /* when the key is absent; 0: hidden / heads */
    size_t kv_heads;               /* when the key is absent; 0: heads          */
    nb_bias_rule qkv_bias, o_bias; /* CONFIG: key attention_bias  */
    nb_bias_rule mlp_bias;         /* CONFIG: key mlp_bias        */
    bool qk_norm;                  /* RMS norm over each head of q and k before rope */
    bool tie;                      /* tie_word_embeddings when absent                */
    nb_window_rule window;
    size_t window_size; /* sliding_window when the key is absent         */
    bool layer_types;   /* a layer_types list overrides the window rule  */
} nb_arch;

/* By model_type, else by class name; either may be NULL. NULL when neither is known. */
const nb_arch *nb_arch_find(const char *type, const char *cls);
size_t nb_arch_count(void);
const nb_arch *nb_arch_at(size_t i);

#endif
