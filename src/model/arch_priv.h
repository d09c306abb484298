/* arch_priv.h - inside of the architecture table: its parts, and the readers that rows name. Not for other files. */
#ifndef NB_MODEL_ARCH_PRIV_H
#define NB_MODEL_ARCH_PRIV_H

#include "model/arch.h"

/* arch_2026.c, arch_hybrid.c: more rows of the table. */
extern const nb_arch *const nb_archs_2026, *const nb_archs_hybrid;
extern const size_t nb_n_archs_2026, nb_n_archs_hybrid;

/* config_2026.c, config_hybrid.c: keys of single families. `sizes` of a row runs before the heads are read, `more` last. */
nb_arch_read nb_cfg_ministral3, nb_cfg_rotary_dim, nb_cfg_ernie_moe, nb_cfg_afmoe, nb_cfg_llama4_sizes, nb_cfg_llama4, nb_cfg_bigcode_sizes,
    nb_cfg_bigcode, nb_cfg_gptj, nb_cfg_alibi, nb_cfg_bloom, nb_cfg_mpt, nb_cfg_minicpm3_sizes, nb_cfg_minicpm3, nb_cfg_jais2,
    nb_cfg_nanochat, nb_cfg_mimo_window, nb_cfg_mimo, nb_cfg_index_sizes, nb_cfg_deepseek_v32, nb_cfg_glm_moe_dsa, nb_cfg_longcat_sizes,
    nb_cfg_longcat;
nb_arch_read nb_cfg_no_mlp, nb_cfg_qwen3_next, nb_cfg_qwen3_5, nb_cfg_olmo_hybrid, nb_cfg_kimi, nb_cfg_granite_sizes, nb_cfg_granite_hybrid,
    nb_cfg_bamba, nb_cfg_falcon_h1, nb_cfg_mamba2, nb_cfg_nemotron_sizes, nb_cfg_nemotron, nb_cfg_jamba, nb_cfg_lfm2_sizes, nb_cfg_lfm2,
    nb_cfg_minimax, nb_cfg_zamba2;

/* config_gemma.c */
nb_arch_read nb_cfg_gemma3n_sizes, nb_cfg_gemma3n, nb_cfg_gemma3n_layers, nb_cfg_gemma4, nb_cfg_gemma4_layers;
/* config_v4.c */
nb_arch_read nb_cfg_v4, nb_cfg_v4_layers;

#endif
