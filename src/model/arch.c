#include "model/arch.h"

#include <string.h>

#include "base/mem.h"

static const nb_arch archs[] = {
    { .type = "llama",
      .cls = "LlamaForCausalLM",
      .eps_key = "rms_norm_eps",
      .eps = 1e-6,
      .theta = 1e4,
      .qkv_bias = NB_BIAS_CONFIG,
      .o_bias = NB_BIAS_CONFIG,
      .mlp_bias = NB_BIAS_CONFIG },
    { .type = "mistral",
      .cls = "MistralForCausalLM",
      .eps_key = "rms_norm_eps",
      .eps = 1e-6,
      .theta = 1e4,
      .kv_heads = 8,
      .window = NB_WINDOW_ALL,
      .window_size = 4096,
      .layer_types = true },
    { .type = "qwen2",
      .cls = "Qwen2ForCausalLM",
      .eps_key = "rms_norm_eps",
      .eps = 1e-6,
      .theta = 1e4,
      .kv_heads = 32,
      .qkv_bias = NB_BIAS_YES,
      .window = NB_WINDOW_UPPER,
      .window_size = 4096,
      .layer_types = true },
    { .type = "qwen3",
      .cls = "Qwen3ForCausalLM",
      .eps_key = "rms_norm_eps",
      .eps = 1e-6,
      .theta = 1e4,
      .head_dim = 128,
      .kv_heads = 32,
      .qkv_bias = NB_BIAS_CONFIG,
      .o_bias = NB_BIAS_CONFIG,
      .qk_norm = true,
      .window = NB_WINDOW_UPPER,
      .window_size = 4096,
      .layer_types = true },
};

const nb_arch *nb_arch_find(const char *type, const char *cls)
{
    for (size_t i = 0; type && i < NB_LEN(archs); i++)
        if (strcmp(archs[i].type, type) == 0)
            return &archs[i];
    for (size_t i = 0; cls && i < NB_LEN(archs); i++)
        if (strcmp(archs[i].cls, cls) == 0)
            return &archs[i];
    return NULL;
}

size_t nb_arch_count(void)
{
    return NB_LEN(archs);
}

const nb_arch *nb_arch_at(size_t i)
{
    return &archs[i];
}
