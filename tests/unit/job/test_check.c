/* Check: a good one-layer checkpoint, and one small broken directory per rule. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bits.h"
#include "base/json.h"
#include "base/mem.h"
#include "job/check.h"

enum { GONE = 99, MAX_TENSORS = 64, MAX_CHANGE = 24 };

/* Fills: c codes, z zero points, 8 zero points of 8, s scales, f plain values; broken ones: see fill(). */
typedef struct spec {
    const char *name, *type; /* safetensors spelling */
    unsigned rank;
    unsigned shape[3];
    char how;
} spec;

#define P "model.layers.0."
#define LINEAR(name, n, k)                                                                                                                 \
    { P name ".qweight", "I32", 2, { k, n / 8 }, 'c' }, { P name ".qzeros", "I32", 2, { k / 32, n / 8 }, 'z' },                            \
    {                                                                                                                                      \
        P name ".scales", "F16", 2, { k / 32, n }, 's'                                                                                     \
    }
#define WITHOUT(name)                                                                                                                      \
    { P name ".qweight", "I32", GONE, { 0 }, 0 }, { P name ".qzeros", "I32", GONE, { 0 }, 0 },                                             \
    {                                                                                                                                      \
        P name ".scales", "F16", GONE, { 0 }, 0                                                                                            \
    }

/* Llama, one layer: hidden 128, 4 heads of 32, 2 key heads, intermediate 256, vocabulary 16. */
static const spec good[] = {
    { "model.embed_tokens.weight", "F16", 2, { 16, 128 }, 'f' },
    LINEAR("self_attn.q_proj", 128, 128),
    LINEAR("self_attn.k_proj", 64, 128),
    LINEAR("self_attn.v_proj", 64, 128),
    LINEAR("self_attn.o_proj", 128, 128),
    LINEAR("mlp.gate_proj", 256, 128),
    LINEAR("mlp.up_proj", 256, 128),
    LINEAR("mlp.down_proj", 128, 256),
    { P "input_layernorm.weight", "F16", 1, { 128 }, 'f' },
    { P "post_attention_layernorm.weight", "F16", 1, { 128 }, 'f' },
    { "model.norm.weight", "F16", 1, { 128 }, 'f' },
    { "lm_head.weight", "F16", 2, { 16, 128 }, 'f' },
};

#define QCFG "\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32,\"zero_point\":true,\"version\":\"gemm\""
#define HEAD                                                                                                                               \
    "\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":128,\"num_attention_heads\":4,"                     \
    "\"num_key_value_heads\":2,\"num_hidden_layers\":1,\"intermediate_size\":256,\"vocab_size\":16,\"max_position_embeddings\":64,"        \
    "\"rms_norm_eps\":1e-5,\"hidden_act\":\"silu\","
#define TAIL      "\"tie_word_embeddings\":false,\"torch_dtype\":\"float16\""
#define CONFIG(q) "{" HEAD TAIL ",\"quantization_config\":{" q "}}"
/* An architecture that nobody knows. */
#define MYSTERY(q) "{\"architectures\":[\"MysteryForCausalLM\"],\"model_type\":\"mystery\"," TAIL ",\"quantization_config\":{" q "}}"

typedef struct row {
    const char *label;  /* begins with the rule                       */
    const char *config; /* NULL: the good one                         */
    const char *side;   /* text of quantize_config.json, NULL: none   */
    spec change[MAX_CHANGE];
    nb_status want;
    const char *rule, *what, *next;
} row;

static const row rows[] = {
    { .label = "FIL-010 no generation_config.json",
      .want = NB_OK,
      .rule = "FIL-010",
      .what = "generation_config.json is missing; the model can be inspected and converted but not chatted with." },
    { .label = "CFG-001 no quantization config",
      .config = "{" HEAD TAIL "}",
      .want = NB_OK,
      .rule = "CFG-001",
      .what = "Found 7 packed linears but no quantization_config, quantize_config.json or quant_config.json. Their shapes say awq-gemm, 4 "
              "bits, group size 32;",
      .next = "Write a configuration: nibble convert MODEL --to awq-gemm -o DIR; or confirm with --format, --bits and --group-size." },
    { .label = "CFG-001 no quantization config, and shapes of no layout",
      .config = "{" HEAD TAIL "}",
      .change = { { P "mlp.up_proj.scales", "F16", 2, { 3, 256 }, 0 } },
      .want = NB_NO,
      .rule = "CFG-001",
      .what = "Found 7 packed tensors",
      .next = "Pass --bits/--group-size/--format to inspect." },
    { .label = "CFG-002 nested config",
      .config = "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llava\",\"text_config\":{" HEAD TAIL
                ",\"quantization_config\":{" QCFG "}}}",
      .want = NB_OK,
      .rule = "CFG-002",
      .what = "quantization_config is nested under text_config;" },
    { .label = "CFG-003 CF-19 unknown method",
      .config = CONFIG("\"quant_method\":\"bitsandbytes\""),
      .want = NB_NO,
      .rule = "CFG-003",
      .what = "Quantization method bitsandbytes is not a 4-bit integer checkpoint this tool understands." },
    { .label = "CFG-004 bits",
      .config = CONFIG("\"quant_method\":\"awq\",\"bits\":40"),
      .want = NB_NO,
      .rule = "CFG-004",
      .what = "bits = 40" },
    { .label = "CFG-005 group size",
      .config = CONFIG("\"quant_method\":\"awq\",\"group_size\":0"),
      .want = NB_NO,
      .rule = "CFG-005",
      .what = "group_size = 0" },
    { .label = "CFG-009 side file disagrees",
      .side = "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":64,\"zero_point\":true,\"version\":\"gemm\"}",
      .want = NB_OK,
      .rule = "CFG-009",
      .what = "config.json and quantize_config.json disagree on group_size (32 vs 64); using config.json." },
    { .label = "CFG-010 zero_point missing",
      .config = CONFIG("\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32,\"version\":\"gemm\""),
      .want = NB_OK,
      .rule = "CFG-010",
      .what = "zero_point is missing.",
      .next = "Add \"zero_point\": true." },
    { .label = "CFG-012 symmetric, but zeros differ",
      .config = CONFIG("\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32,\"zero_point\":false,\"version\":\"gemm\""),
      .want = NB_OK,
      .rule = "CFG-012",
      .what = "Config says symmetric, but 100% of zero points differ from 8. The stored zero points are used." },
    { .label = "CFG-015 excluded but packed",
      .config = CONFIG(QCFG ",\"modules_to_not_convert\":[\"" P "mlp.up_proj\"]"),
      .want = NB_NO,
      .rule = "CFG-015",
      .what = P "mlp.up_proj is quantized in the files, but modules_to_not_convert entry \"" P "mlp.up_proj\" says the opposite." },
    { .label = "CFG-015 not excluded and not packed",
      .change = { WITHOUT("mlp.up_proj"), { P "mlp.up_proj.weight", "F16", 2, { 256, 128 }, 'f' } },
      .want = NB_NO,
      .rule = "CFG-015",
      .what = P "mlp.up_proj is not quantized in the files" },
    { .label = "CFG-016 unknown override",
      .config = CONFIG(QCFG ",\"dynamic\":{\"+:.*up_proj\":{\"bitz\":8}}"),
      .want = NB_NO,
      .rule = "CFG-016",
      .what = "dynamic rule \"+:.*up_proj\": unknown override bitz." },
    { .label = "CFG-017 short entry",
      .config = CONFIG(QCFG ",\"modules_to_not_convert\":[\"gate\"]"),
      .want = NB_OK,
      .rule = "CFG-017",
      .what = "\"gate\" also matches " P "mlp.gate_proj; vLLM would skip it.",
      .next = "Use full module paths." },
    { .label = "CFG-018 lm_head declared quantized",
      .config = CONFIG(QCFG ",\"lm_head\":true"),
      .want = NB_NO,
      .rule = "CFG-018",
      .what = "lm_head is declared quantized but stored unquantized." },
    { .label = "CFG-019 tied, with another head",
      .config = "{" HEAD "\"tie_word_embeddings\":true,\"quantization_config\":{" QCFG "}}",
      .change = { { "lm_head.weight", "F16", 2, { 16, 128 }, 'g' } },
      .want = NB_OK,
      .rule = "CFG-019",
      .what = "tie_word_embeddings is true, but lm_head is stored separately; loaders that tie the weights will ignore it." },
    { .label = "CFG-020 bits as a string",
      .config = CONFIG("\"quant_method\":\"awq\",\"bits\":\"4\",\"group_size\":32,\"zero_point\":true"),
      .want = NB_OK,
      .rule = "CFG-020",
      .what = "bits is the string \"4\", expected a number." },
    { .label = "CFG-021 bfloat16 config",
      .config = "{" HEAD "\"tie_word_embeddings\":false,\"dtype\":\"bfloat16\",\"quantization_config\":{" QCFG "}}",
      .want = NB_OK,
      .rule = "CFG-021",
      .what = "dtype is bfloat16 but scales are float16;" },
    { .label = "NAM-001 no scales",
      .change = { { P "mlp.up_proj.scales", "F16", GONE, { 0 }, 0 } },
      .want = NB_NO,
      .rule = "NAM-001",
      .what = P "mlp.up_proj has qweight but no scales." },
    { .label = "NAM-002 weight and qweight",
      .change = { { P "mlp.up_proj.weight", "F16", 2, { 256, 128 }, 'f' } },
      .want = NB_NO,
      .rule = "NAM-002",
      .what = P "mlp.up_proj has both weight and qweight; only one may exist." },
    { .label = "NAM-003 CF-08 module absent",
      .change = { WITHOUT("self_attn.o_proj") },
      .want = NB_NO,
      .rule = "NAM-003",
      .what = P "self_attn.o_proj is required by LlamaForCausalLM but has no tensors." },
    { .label = "NAM-003 norm absent",
      .change = { { "model.norm.weight", "F16", GONE, { 0 }, 0 } },
      .want = NB_NO,
      .rule = "NAM-003",
      .what = "model.norm is required by LlamaForCausalLM but has no tensors." },
    { .label = "NAM-004 unknown tensors",
      .change = { { P "mlp.extra.weight", "F16", 1, { 8 }, 'f' } },
      .want = NB_OK,
      .rule = "NAM-004",
      .what = "1 unknown tensors (first: " P "mlp.extra.weight)." },
    { .label = "NAM-005 fused",
      .change = { WITHOUT("mlp.gate_proj"), WITHOUT("mlp.up_proj"), { P "mlp.gate_up_proj.weight", "F16", 2, { 512, 128 }, 'f' } },
      .want = NB_NO,
      .rule = "NAM-005",
      .what = "LlamaForCausalLM expects " P "mlp.gate_proj, files contain " P
              "mlp.gate_up_proj. Fused and split projections are different tensors." },
    { .label = "NAM-006 one of q, k, v unquantized",
      .config = CONFIG(QCFG ",\"modules_to_not_convert\":[\"" P "self_attn.k_proj\"]"),
      .change = { WITHOUT("self_attn.k_proj"), { P "self_attn.k_proj.weight", "F16", 2, { 64, 128 }, 'f' } },
      .want = NB_OK,
      .rule = "NAM-006",
      .what =
          "q, k and v (or gate and up) of layer 0 are not quantized alike (q_proj 4 bit group 32, k_proj 16 bit, v_proj 4 bit group 32)" },
    { .label = "NAM-007 rules of a renamed model",
      .config = CONFIG(QCFG ",\"modules_to_not_convert\":[\"language_model.layers.0.mlp.up_proj\"]"),
      .want = NB_OK,
      .rule = "NAM-007",
      .what = "Tensor names start with model., config rules with language_model.; rules will not match." },
    { .label = "NAM-008 activation scale",
      .change = { { P "mlp.act.scales", "F16", 1, { 256 }, 'f' } },
      .want = NB_NO,
      .rule = "NAM-008",
      .what = P "mlp.act.scales is an AWQ activation scale" },
    { .label = "SHP-003 outputs",
      .change = { { P "mlp.up_proj.scales", "F16", 2, { 4, 252 }, 's' } },
      .want = NB_NO,
      .rule = "SHP-003",
      .what = P "mlp.up_proj: 252 outputs cannot fill whole 32-bit words at 4 bits (needs a multiple of 8)." },
    { .label = "SHP-004 group",
      .config = CONFIG("\"quant_method\":\"awq\",\"group_size\":48,\"zero_point\":true"),
      .want = NB_NO,
      .rule = "SHP-004",
      .what = "128 inputs are not a multiple of group size 48.",
      .next = "Pad the layer or use a group size that divides it (16, 32, 64, 128, -1)." },
    { .label = "SHP-013 CF-09 another width",
      .change = { LINEAR("mlp.up_proj", 128, 128) },
      .want = NB_NO,
      .rule = "SHP-013",
      .what = P "mlp.up_proj is 128x128, but config.json implies 256x128." },
    { .label = "NAM-010 an expert is missing",
      .change = { { P "mlp.experts.0.up_proj.weight", "F16", 2, { 4, 4 }, 'f' },
                  { P "mlp.experts.2.up_proj.weight", "F16", 2, { 4, 4 }, 'f' } },
      .want = NB_NO,
      .rule = "NAM-010",
      .what = "Layer 0: expert 1 is missing (2 of 3 present)." },
    { .label = "NAM-010 a layer is missing, architecture unknown",
      .config = MYSTERY(QCFG),
      .change = { { "model.layers.2.input_layernorm.weight", "F16", 1, { 128 }, 'f' } },
      .want = NB_NO,
      .rule = "NAM-010",
      .what = "Layer 1 is missing (2 of 3 present)." },
    { .label = "NAM-011 experts in one tensor",
      .change = { { P "mlp.experts.up_proj", "F16", 3, { 2, 4, 4 }, 'f' } },
      .want = NB_OK,
      .rule = "NAM-011",
      .what = "Experts are stored as one 3-D tensor;" },
    { .label = "SHP-013 embedding rows",
      .change = { { "model.embed_tokens.weight", "F16", 2, { 15, 128 }, 'f' } },
      .want = NB_NO,
      .rule = "SHP-013",
      .what = "model.embed_tokens is [15, 128], but config.json implies [16, 128]." },
    { .label = "SHP-014 heads of 40",
      .config = "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":128,\"num_attention_heads\":4,"
                "\"head_dim\":40,\"num_key_value_heads\":1,\"num_hidden_layers\":1,\"intermediate_size\":256,\"vocab_size\":16,"
                "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"hidden_act\":\"silu\"," TAIL ",\"quantization_config\":{" QCFG "}}",
      .change = { LINEAR("self_attn.q_proj", 160, 128), LINEAR("self_attn.k_proj", 40, 128), LINEAR("self_attn.v_proj", 40, 128),
                  LINEAR("self_attn.o_proj", 128, 160) },
      .want = NB_OK,
      .rule = "SHP-014",
      .what = P "self_attn.q_proj: works here; the Marlin kernel of vLLM needs outputs % 64 = 0 and inputs % 128 = 0." },
    { .label = "VAL-001 QT-08 NaN scale",
      .change = { { P "mlp.up_proj.scales", "F16", 2, { 4, 256 }, 'n' } },
      .want = NB_NO,
      .rule = "VAL-001",
      .what = "1 scales are not finite (first at group 2, output 5)." },
    { .label = "VAL-002 scales never filled",
      .change = { { P "mlp.up_proj.scales", "F16", 2, { 4, 256 }, '0' } },
      .want = NB_NO,
      .rule = "VAL-002",
      .what = "1024 scales are zero, which erases 100% of the layer. The tensor was never filled." },
    { .label = "VAL-002 QT-08 one zero scale is a warning",
      .change = { { P "mlp.up_proj.scales", "F16", 2, { 4, 256 }, '1' } },
      .want = NB_OK,
      .rule = "VAL-002",
      .what = "1 scales are zero, which erases 0.0977% of the layer." },
    { .label = "VAL-003 QT-08 negative scale",
      .change = { { P "mlp.up_proj.scales", "F16", 2, { 4, 256 }, '-' } },
      .want = NB_OK,
      .rule = "VAL-003",
      .what = "1 scales are negative. Valid arithmetic, but only AutoRound writes such files." },
    { .label = "VAL-004 subnormal scale",
      .change = { { P "mlp.up_proj.scales", "F16", 2, { 4, 256 }, 'u' } },
      .want = NB_OK,
      .rule = "VAL-004",
      .what = "1 scales are subnormal in float16; some GPUs flush them to zero." },
    { .label = "VAL-008 constant words",
      .change = { { P "mlp.up_proj.qweight", "I32", 2, { 128, 32 }, 'k' } },
      .want = NB_NO,
      .rule = "VAL-008",
      .what = "qweight is constant (77777777); the layer carries no weights." },
    { .label = "VAL-009 weights above float16",
      .change = { { P "mlp.up_proj.scales", "F16", 2, { 4, 256 }, 'B' } },
      .want = NB_OK,
      .rule = "VAL-009",
      .what = "weights exceed the float16 range." },
    { .label = "VAL-010 infinity in a norm",
      .change = { { "model.norm.weight", "F16", 1, { 128 }, 'n' } },
      .want = NB_NO,
      .rule = "VAL-010",
      .what = "model.norm.weight contains 1 non-finite values." },
    { .label = "VAL-010 NaN in f32",
      .change = { { "model.norm.weight", "F32", 1, { 128 }, 'n' } },
      .want = NB_NO,
      .rule = "VAL-010",
      .what = "model.norm.weight contains 1 non-finite values." },
    { .label = "VAL-013 bits behind the last of 36 codes",
      .config = MYSTERY("\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"quantization_status\":\"compressed\","
                        "\"version\":\"0.20.0\",\"ignore\":[],\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{"
                        "\"num_bits\":4,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"channel\"}}}"),
      .change = { WITHOUT("self_attn.q_proj"),
                  WITHOUT("self_attn.k_proj"),
                  WITHOUT("self_attn.v_proj"),
                  WITHOUT("self_attn.o_proj"),
                  WITHOUT("mlp.gate_proj"),
                  WITHOUT("mlp.up_proj"),
                  WITHOUT("mlp.down_proj"),
                  { P "self_attn.q_proj.weight_packed", "I32", 2, { 16, 5 }, 'c' },
                  { P "self_attn.q_proj.weight_scale", "F16", 2, { 16, 1 }, 's' },
                  { P "self_attn.q_proj.weight_shape", "I64", 1, { 2 }, 0 } },
      .rule = "VAL-013",
      .want = NB_OK,
      .what = "weight_packed has non-zero padding bits." },
    { .label = "VAL-015 three bits of four",
      .change = { { P "mlp.up_proj.qweight", "I32", 2, { 128, 32 }, 'h' } },
      .want = NB_OK,
      .rule = "VAL-015",
      .what = "Only codes 0..7 occur in qweight; it may hold 3-bit data or signed codes." },
};

static void fill(unsigned char *p, const spec *t, size_t count, unsigned salt)
{
    const bool wide = strcmp(t->type, "I32") == 0 || strcmp(t->type, "F32") == 0;

    if (strcmp(t->type, "I64") == 0) { /* weight_shape */
        nb_put_le64(p, 16);
        nb_put_le64(p + 8, 36);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        uint32_t h = (uint32_t)(i * 2654435761u + salt * 40503u);
        h ^= h >> 15;
        h *= 0x2c1b3c6du;
        h ^= h >> 12;
        if (strcmp(t->type, "I32") == 0) {
            const uint32_t w = t->how == 'k' ? 0x77777777u : t->how == '8' ? 0x88888888u : t->how == 'h' ? h & 0x77777777u : h;
            nb_put_le32(p + 4 * i, t->how == 'z' ? (h & 0x77777777u) : w); /* 'z' is never 8 */
        } else if (wide) {
            nb_put_le32(p + 4 * i, nb_bits_from_f32(1.0f));
        } else {
            nb_put_le16(p + 2 * i, nb_f32_to_f16(0.01f + (float)(h % 64) / 4096 + (t->how == 'g' ? 1.0f : 0.0f)));
        }
    }
    switch (t->how) {
    case 'n':
        if (wide)
            nb_put_le32(p + 4 * 7, 0x7fc00000u);
        else
            nb_put_le16(p + 2 * (count > 517 ? 517 : 7), count > 517 ? 0x7e00 : 0x7c00); /* group 2, output 5 of 256 */
        break;
    case '0':
        memset(p, 0, 2 * count);
        break;
    case '1':
        nb_put_le16(p + 2 * 9, 0);
        break;
    case '-':
        nb_put_le16(p + 2 * 9, nb_f32_to_f16(-0.01f));
        break;
    case 'u':
        nb_put_le16(p + 2 * 9, 1);
        break;
    case 'B':
        nb_put_le16(p + 2 * 9, nb_f32_to_f16(30000.0f));
        break;
    }
}

static void write_file(const char *dir, const char *name, const void *p, size_t n)
{
    char path[512];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* The tensors of a row as model.safetensors. */
static void write_weights(const char *dir, const spec *change)
{
    const spec *list[MAX_TENSORS];
    size_t n = 0, off = 0;
    nb_buf head = { 0 }, data = { 0 };
    unsigned char len[8];

    for (size_t i = 0; i < NB_LEN(good); i++)
        list[n++] = &good[i];
    for (const spec *c = change; c < change + MAX_CHANGE && c->name; c++) {
        size_t at = 0;
        while (at < n && strcmp(list[at]->name, c->name) != 0)
            at++;
        list[at] = c;
        n += at == n;
    }
    nb_buf_puts(&head, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < n; i++) {
        const spec *t = list[i];
        const size_t item = strcmp(t->type, "I64") == 0 ? 8 : t->type[1] == '1' ? 2 : 4;
        size_t count = 1;
        unsigned char *p;
        if (t->rank == GONE)
            continue;
        nb_buf_printf(&head, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, t->type);
        for (unsigned d = 0; d < t->rank; d++) {
            nb_buf_printf(&head, "%s%u", d ? "," : "", t->shape[d]);
            count *= t->shape[d];
        }
        nb_buf_printf(&head, "],\"data_offsets\":[%zu,%zu]}", off, off + count * item);
        off += count * item;
        p = nb_alloc(count * item);
        fill(p, t, count, t->how == 'f' ? 0 : (unsigned)i);
        nb_buf_put(&data, p, count * item);
        nb_free(p);
    }
    nb_buf_puts(&head, "}");
    while (head.n % 8)
        nb_buf_putc(&head, ' ');
    nb_put_le64(len, head.n);
    nb_buf_put(&head, data.p, data.n);
    {
        nb_buf all = { 0 };
        nb_buf_put(&all, len, 8);
        nb_buf_put(&all, head.p, head.n);
        write_file(dir, "model.safetensors", all.p, all.n);
        nb_buf_clear(&all);
    }
    nb_buf_clear(&head);
    nb_buf_clear(&data);
}

static void make_dir(const char *dir, const row *r)
{
    const char *config = r->config ? r->config : CONFIG(QCFG);

    assert_int_equal(mkdir(dir, 0700), 0);
    write_file(dir, "config.json", config, strlen(config));
    write_file(dir, "tokenizer.json", "{}", 2);
    if (strncmp(r->label, "FIL-010", 7) != 0)
        write_file(dir, "generation_config.json", "{}", 2);
    if (r->side)
        write_file(dir, "quantize_config.json", r->side, strlen(r->side));
    write_weights(dir, r->change);
}

static void remove_dir(const char *dir)
{
    static const char *const names[] = { "config.json", "tokenizer.json", "generation_config.json", "quantize_config.json",
                                         "model.safetensors" };
    char path[512];

    for (size_t i = 0; i < NB_LEN(names); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(dir), 0);
}

static char scratch[] = "/tmp/nibble-check-XXXXXX";

static nb_status check(const char *dir, nb_pool *pool, nb_report *r, nb_check_sum *sum, nb_err *err)
{
    const nb_check_opts o = { .pool = pool };

    return nb_check(dir, &o, r, sum, err);
}

static void test_good(void **state)
{
    const row r = { .label = "good" };
    nb_report *rep = nb_report_new();
    nb_check_sum sum;
    nb_err err = { 0 };
    char dir[128];

    (void)state;
    snprintf(dir, sizeof dir, "%s/good", scratch);
    make_dir(dir, &r);
    if (check(dir, NULL, rep, &sum, &err) != NB_OK)
        fail_msg("%s %s", err.what, nb_report_count(rep) ? nb_report_at(rep, 0)->what : "");
    for (size_t i = 0; i < nb_report_count(rep); i++)
        fail_msg("%s %s", nb_report_at(rep, i)->rule, nb_report_at(rep, i)->what);
    assert_string_equal(sum.format, "awq-gemm");
    assert_int_equal(sum.n_linears, 7);
    assert_int_equal(sum.group_size, 32);
    remove_dir(dir);
    nb_report_free(rep);
}

static void test_rows(void **state)
{
    nb_pool *pool = NULL;

    (void)state;
    assert_int_equal(nb_pool_open(&pool, 2, NULL), NB_OK);
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_report *rep = nb_report_new();
        const nb_finding *hit = NULL;
        nb_check_sum sum;
        nb_err err = { 0 };
        char dir[128];
        nb_status rc;

        snprintf(dir, sizeof dir, "%s/%zu", scratch, i);
        make_dir(dir, &rows[i]);
        rc = check(dir, i % 2 ? pool : NULL, rep, &sum, &err);
        for (size_t f = 0; f < nb_report_count(rep) && !hit; f++)
            if (strcmp(nb_report_at(rep, f)->rule, rows[i].rule) == 0)
                hit = nb_report_at(rep, f);
        if (rc != rows[i].want || !hit || !strstr(hit->what, rows[i].what) || (rows[i].next && strcmp(hit->next, rows[i].next) != 0)) {
            for (size_t f = 0; f < nb_report_count(rep); f++)
                print_message("  %s: %s [%s]\n", nb_report_at(rep, f)->subject, nb_report_at(rep, f)->what, nb_report_at(rep, f)->rule);
            fail_msg("%s: status %d (%s)", rows[i].label, (int)rc, err.what);
        }
        if (strncmp(rows[i].label, rows[i].rule, 7) != 0)
            fail_msg("%s: the label does not begin with the rule", rows[i].label);
        if (rows[i].want == NB_OK && nb_report_count_sev(rep, NB_SEV_REJECT))
            fail_msg("%s: an error as well", rows[i].label);
        if (nb_report_count(rep) > 1 && !rows[i].config && strncmp(rows[i].rule, "VAL", 3) == 0)
            fail_msg("%s: more than one finding: %s", rows[i].label, nb_report_at(rep, 1)->what);
        remove_dir(dir);
        nb_report_free(rep);
    }
    nb_pool_close(pool);
}

static void test_symmetric(void **state)
{
    row r = { .label = "CFG-013 declared asymmetric, all zeros 8" };
    spec zeros[7] = { 0 };
    size_t n = 0;
    nb_report *rep = nb_report_new();
    nb_check_sum sum;
    char dir[128];

    (void)state;
    for (size_t i = 0; i < NB_LEN(good); i++)
        if (good[i].how == 'z') {
            zeros[n] = good[i];
            zeros[n++].how = '8';
        }
    memcpy(r.change, zeros, sizeof zeros);
    snprintf(dir, sizeof dir, "%s/sym", scratch);
    make_dir(dir, &r);
    assert_int_equal(check(dir, NULL, rep, &sum, NULL), NB_OK);
    assert_int_equal(nb_report_count(rep), 1);
    assert_string_equal(nb_report_at(rep, 0)->rule, "CFG-013");
    assert_string_equal(nb_report_at(rep, 0)->what, "Config says asymmetric, but every zero point is 8; this checkpoint is symmetric.");
    remove_dir(dir);
    nb_report_free(rep);
}

static char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *p = nb_alloc(1 << 20);

    assert_true(f && p);
    *n = fread(p, 1, 1 << 20, f);
    fclose(f);
    return p;
}

/* A recorded checkpoint with 16 bits of one tensor replaced: what the rules of padded layouts say. */
static void test_padded(void **state)
{
    static const struct {
        const char *label, *layout, *tensor;
        size_t at; /* element */
        uint16_t value;
        nb_status want;
        const char *rule, *what;
    } padded[] = {
        { "VAL-005 gemv padding", "awq-gemv-gptqmodel", "model.layers.0.self_attn.q_proj.scales", 15, 0x3c00, NB_OK, "VAL-005",
          "padding groups are not zero; 1 values ignored." },
        { "VAL-005 gemv_fast padding", "awq-gemv-fast-gptqmodel", "model.layers.0.self_attn.q_proj.qzeros", 128 * 7, 0x8000, NB_OK,
          "VAL-005", "padding groups are not zero; 1 values ignored." },
        { "VAL-001 a scale that is not finite", "awq-gemv-gptqmodel", "model.layers.1.mlp.up_proj.scales", 0, 0x7c00, NB_NO, "VAL-001",
          "1 scales are not finite (first at group 0, output 0)." },
        { "VAL-011 an offset of no integer", "awq-gemv-fast-gptqmodel", "model.layers.0.mlp.up_proj.qzeros", 5, 0x3c00, NB_NO, "VAL-011",
          "qzeros is not -scale \xc3\x97 integer for 1 groups; this is not a awq-gemv-fast tensor." },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(padded); i++) {
        nb_report *rep = nb_report_new();
        const nb_finding *hit = NULL;
        nb_check_sum sum;
        nb_err err = { 0 };
        nb_json *head = NULL;
        char dir[128], path[256];
        size_t n, len;
        char *p;
        nb_status rc;

        snprintf(dir, sizeof dir, "%s/padded", scratch);
        assert_int_equal(mkdir(dir, 0700), 0);
        snprintf(path, sizeof path, "tests/data/layouts/%s/config.json", padded[i].layout);
        p = read_file(path, &n);
        write_file(dir, "config.json", p, n);
        nb_free(p);
        write_file(dir, "tokenizer.json", "{}", 2);
        write_file(dir, "generation_config.json", "{}", 2);
        snprintf(path, sizeof path, "tests/data/layouts/%s/model.safetensors", padded[i].layout);
        p = read_file(path, &n);
        len = (size_t)nb_le64(p);
        assert_int_equal(nb_json_parse(p + 8, len, "header", 0, &head, NULL), NB_OK);
        const int64_t off = nb_json_int(nb_json_at(nb_json_get(nb_json_get(head, padded[i].tensor), "data_offsets"), 0), -1);
        assert_true(off >= 0);
        nb_put_le16(p + 8 + len + (size_t)off + 2 * padded[i].at, padded[i].value);
        write_file(dir, "model.safetensors", p, n);
        nb_free(p);
        nb_json_free(head);
        rc = check(dir, NULL, rep, &sum, &err);
        for (size_t f = 0; f < nb_report_count(rep) && !hit; f++)
            if (strcmp(nb_report_at(rep, f)->rule, padded[i].rule) == 0)
                hit = nb_report_at(rep, f);
        if (rc != padded[i].want || !hit || !strstr(hit->what, padded[i].what))
            fail_msg("%s: status %d (%s): %s", padded[i].label, (int)rc, err.what, hit ? hit->what : "no finding");
        remove_dir(dir);
        nb_report_free(rep);
    }
}

/* CF-23: a million entries are bounded work. */
static void test_long_list(void **state)
{
    row r = { .label = "CF-23 a million entries" };
    nb_report *rep = nb_report_new();
    nb_check_sum sum;
    nb_buf b = { 0 };
    char dir[128];

    (void)state;
    nb_buf_puts(&b, "{" HEAD TAIL ",\"quantization_config\":{" QCFG ",\"modules_to_not_convert\":[\"x\"");
    for (size_t i = 0; i < 1000000; i++)
        nb_buf_puts(&b, ",\"zzz\"");
    nb_buf_puts(&b, "]}}");
    assert_false(b.failed);
    r.config = b.p;
    snprintf(dir, sizeof dir, "%s/long", scratch);
    make_dir(dir, &r);
    assert_int_equal(check(dir, NULL, rep, &sum, NULL), NB_OK);
    assert_int_equal(nb_report_count(rep), 1);
    assert_string_equal(nb_report_at(rep, 0)->cls, "limit.quant_rules");
    remove_dir(dir);
    nb_buf_clear(&b);
    nb_report_free(rep);
}

static void test_container(void **state)
{
    nb_report *rep = nb_report_new();
    nb_check_sum sum;
    nb_err err = { 0 };
    char dir[128];

    (void)state;
    snprintf(dir, sizeof dir, "%s/absent", scratch);
    assert_int_equal(check(dir, NULL, rep, &sum, &err), NB_EOPEN);
    nb_err_clear(&err);
    assert_int_equal(mkdir(dir, 0700), 0);
    assert_int_equal(check(dir, NULL, rep, &sum, &err), NB_EOPEN); /* FIL-001, CF-01: no config.json */
    assert_string_equal(err.rule, "FIL-001");
    write_file(dir, "config.json", CONFIG(QCFG), strlen(CONFIG(QCFG)));
    write_file(dir, "model.safetensors", "\x04\0\0\0\0\0\0\0{}", 10);
    nb_err_clear(&err);
    assert_int_equal(check(dir, NULL, rep, &sum, &err), NB_EFORMAT);
    assert_int_equal(nb_report_count(rep), 0);
    remove_dir(dir);
    nb_report_free(rep);
}

static int setup(void **state)
{
    (void)state;
    return mkdtemp(scratch) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return rmdir(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),   cmocka_unit_test(test_rows),      cmocka_unit_test(test_symmetric),
        cmocka_unit_test(test_padded), cmocka_unit_test(test_long_list), cmocka_unit_test(test_container),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
