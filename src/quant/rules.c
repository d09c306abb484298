/* rules.c - the rule table: one row per written rule of formats 7 that this version checks, and how a violation travels. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "quant/quant.h"

#define REJECT(i, c, s, t)                                                                                                                 \
    {                                                                                                                                      \
        .id = i, .cls = c, .sev = NB_SEV_REJECT, .code = s, .text = t                                                                      \
    }
#define INFO(i, c, t)                                                                                                                      \
    {                                                                                                                                      \
        .id = i, .cls = c, .sev = NB_SEV_INFO, .code = NB_OK, .text = t                                                                    \
    }
#define WARN(i, c, t)                                                                                                                      \
    {                                                                                                                                      \
        .id = i, .cls = c, .sev = NB_SEV_WARN, .code = NB_OK, .text = t                                                                    \
    }

static const nb_rule rules[] = {
    /* files */
    REJECT("FIL-001", "cfg.missing_file", NB_EOPEN,
           "A Hugging Face checkpoint is a directory with a config.json beside its weights. Without it neither the architecture nor "
           "the sizes of the layers are known. Give the directory itself, not its parent, and fetch the file again if it was lost."),
    INFO("FIL-002", "fmt.torch", "The weights are a PyTorch archive, whose format can carry code. nibble treats such files as data only."),
    REJECT("FIL-003", "idx.missing_shard", NB_EOPEN,
           "model.safetensors.index.json maps every tensor to a shard. A shard it names is not on disk, usually because a download "
           "stopped. Fetch the missing file; its name is in the message."),
    REJECT("FIL-004", "idx.missing_tensor", NB_EFORMAT,
           "The index says that a tensor lies in a certain shard, but the header of that shard has no such tensor. Index and shards "
           "come from different exports. Fetch all of them again from one revision."),
    WARN("FIL-005", "idx.stray_shard",
         "A weight file of the directory is not named by the index. The index alone decides where tensors come from, so the file is "
         "ignored. It may be left over from another export."),
    REJECT("FIL-006", "st.damaged", NB_EFORMAT,
           "The header of a safetensors file does not describe the bytes behind it: a length, an offset or a size is wrong. Most "
           "often the download is incomplete. Compare the size or the hash with the source and fetch the file again."),
    WARN("FIL-007", "idx.duplicate_tensor",
         "Two shards hold a tensor of the same name. nibble takes the one that the index names; other engines may take the other, "
         "which matters when the bytes differ."),
    WARN("FIL-008", "idx.total_size",
         "metadata.total_size of the index is not the sum of the tensor bytes. Nothing reads it for loading, but progress bars and "
         "size estimates of other programs do."),
    REJECT("FIL-009", "fmt.mismatch", NB_EFORMAT,
           "The file is a small text that points to the real one in Git LFS storage. The repository was cloned without its large "
           "files. Run `git lfs pull` in it."),
    WARN("FIL-010", "dir.missing_file",
         "A file that is needed for chatting, not for the weights, is absent: the tokenizer or the generation defaults. Copy it from "
         "the original model; quantization does not change these files."),
    /* configuration */
    REJECT("CFG-001", "cfg.quant_missing", NB_EFORMAT,
           "Packed tensors do not say how many bits a code has or how long a group is. Loaders find this in config.json "
           "(quantization_config) or in quantize_config.json or quant_config.json. Where shapes and values leave one reading, nibble takes "
           "it and says so; this is a warning then, and --format, --bits and --group-size of check and inspect confirm it. Otherwise copy "
           "the file from the place the checkpoint came from."),
    WARN("CFG-002", "cfg.quant_nested",
         "The quantization config stands inside the text part of a multimodal config. nibble finds it there; some servers look only "
         "at the top level of config.json."),
    REJECT("CFG-003", "cfg.quant_method", NB_EUNSUPPORTED,
           "quant_method names the program family that chose and stored the integers. nibble understands awq, gptq, "
           "compressed-tensors and auto-round. Other methods store something else (8-bit floats, code books, run-time "
           "quantization). Take the 16-bit original and quantize it, or look for an AWQ export of the model."),
    REJECT("CFG-004", "cfg.quant_bits", NB_EUNSUPPORTED,
           "The width of a code must be an integer from 2 to 8, and one that the layout supports. If the number is wrong, the file "
           "was edited by hand; the value of the program that wrote the tensors is the only one that reads them back."),
    REJECT("CFG-005", "cfg.group_size", NB_EFORMAT,
           "group_size is the number of inputs that share one scale: a positive integer, or -1 for one group over all inputs."),
    REJECT("CFG-006", "qt.shape", NB_EFORMAT,
           "The number of words in a packed row follows from the number of values and the bit width. The stored count fits another "
           "width than the config declares."),
    REJECT("CFG-007", "qt.shape", NB_EFORMAT,
           "scales has one row per group. The stored number of rows belongs to another group size than the config declares. Correct "
           "the config; the tensors cannot be wrong about this."),
    REJECT("CFG-008", "qt.shape", NB_EFORMAT,
           "Each layout arranges the same integers differently, and the shapes show which one was written. Changing the version field "
           "of the config does not move a single bit; use `nibble convert` to change the layout."),
    WARN("CFG-009", "cfg.quant_conflict",
         "Two files describe the quantization and disagree. nibble uses the first one it finds (config.json before "
         "quantize_config.json before quant_config.json); another program may use the other."),
    WARN("CFG-010", "cfg.zero_point_missing",
         "AWQ loaders of vLLM and SGLang require the key zero_point and stop without it. The tensors themselves are fine."),
    WARN("CFG-011", "cfg.gptq_key_missing",
         "GPTQ loaders of vLLM require the keys desc_act and sym and stop without them. The tensors themselves are fine: zero points and "
         "group tables are stored."),
    WARN("CFG-012", "cfg.zero_point",
         "The config says that the quantization is symmetric (every zero point is the middle code), but stored zero points differ. "
         "The stored ones are used; a loader that trusts the config would compute wrong weights."),
    WARN("CFG-013", "cfg.zero_point",
         "The config says that the quantization is asymmetric, but every stored zero point is the middle code. Nothing is wrong with "
         "the numbers; declaring the model symmetric lets faster kernels take it."),
    WARN(
        "CFG-014", "cfg.zero_point",
        "checkpoint_format and the stored zero points contradict each other. The finding is ORD-005, which says which of the two is used."),
    REJECT("CFG-015", "cfg.quant_skip", NB_EFORMAT,
           "Which modules are quantized is said twice: by the tensors that exist and by the exclusion list of the config. Here they "
           "contradict each other, so a loader that builds its layers from the config looks for tensors that are not there."),
    REJECT("CFG-016", "cfg.quant_rule", NB_EFORMAT,
           "The rules under `dynamic` pair a pattern with overrides, or exclude modules with a leading `-:`. A rule that is not an "
           "object of known keys cannot be followed."),
    WARN("CFG-017", "cfg.quant_skip",
         "Readers compare entries of modules_to_not_convert as substrings of the full module path. A short entry such as \"gate\" also "
         "matches \"gate_proj\". Write full module paths."),
    REJECT("CFG-018", "cfg.lm_head", NB_EFORMAT,
           "The config says whether the output head is quantized, and the tensors show whether it is. Correct the key lm_head."),
    WARN("CFG-019", "cfg.tied_head",
         "With tie_word_embeddings the output head is the embedding matrix. A separately stored head is ignored by loaders that tie "
         "the two, so if it differs the results differ."),
    WARN("CFG-020", "cfg.string_number",
         "A number or a truth value is written as a JSON string. nibble reads it; other loaders stop with a type error."),
    WARN("CFG-021", "cfg.dtype",
         "Scales are float16 while the config declares bfloat16. AWQ kernels before their bfloat16 versions accept only float16."),
    REJECT("CFG-022", "cfg.quant_method", NB_EUNSUPPORTED,
           "compressed-tensors is one name for many things. nibble reads weights packed as integers of 2 to 8 bits (pack-quantized). "
           "Models whose activations are quantized too, whose weights are floats of 4 or 8 bits, or sparse, compute something else."),
    REJECT("CFG-023", "cfg.gpu_layout", NB_EUNSUPPORTED,
           "The words were put in the order in which one GPU kernel loads them, when the model was saved. Serialized Marlin can be read "
           "back exactly; BitBLAS cannot, since its order depends on the GPU."),
    REJECT("CFG-030", "cfg.quant_conflict", NB_EFORMAT,
           "zero_point (AWQ) and sym (GPTQ, AutoRound) are opposites of each other. When both are given they must differ."),
    /* names */
    REJECT("NAM-001", "qt.missing", NB_EFORMAT,
           "A quantized linear is several tensors under one prefix: packed codes, packed zero points and scales. One of them is not "
           "there, so the weights cannot be computed."),
    REJECT("NAM-002", "qt.ambiguous", NB_EFORMAT,
           "A module has both a plain weight and a packed one. Nothing says which is meant, and the two may differ."),
    REJECT("NAM-003", "cfg.missing_tensor", NB_EFORMAT,
           "The architecture needs this module and neither a plain nor a packed weight of it is stored. The checkpoint is incomplete, "
           "or config.json belongs to another model."),
    WARN("NAM-004", "cfg.unknown_tensor",
         "The checkpoint has tensors that the architecture does not use. They are ignored. If the model has parts that this version "
         "does not know, results would differ from the original."),
    REJECT("NAM-005", "cfg.fused_name", NB_EFORMAT,
           "Some exports store the query, key and value projections (or gate and up) as one matrix, others as separate ones. The "
           "architecture of config.json expects the other form."),
    WARN("NAM-006", "cfg.fused_mixed",
         "vLLM multiplies q, k and v, and gate and up, as one matrix. Members with different bits, group sizes or precision cannot be "
         "fused, and it refuses the model. nibble does not mind."),
    WARN("NAM-007", "cfg.prefix",
         "Rules of the config name modules with another leading part than the tensors have, so no rule can match."),
    REJECT("NAM-008", "qt.act_scale", NB_EUNSUPPORTED,
           "A tensor called scales without packed weights beside it is a divisor that AWQ puts behind an activation. Leaving it out "
           "changes every result, and this architecture has no place for it."),
    REJECT("NAM-009", "qt.ambiguous", NB_EFORMAT,
           "One module has the packed tensors of two families of layouts (qweight and weight_packed)."),
    REJECT("NAM-010", "cfg.missing_tensor", NB_EFORMAT,
           "Layers and experts are numbered from 0 without a gap. A number is missing, so a part of the model is: most often a shard was "
           "not fetched or not converted."),
    WARN("NAM-011", "cfg.stacked_experts",
         "All experts of a layer lie in one tensor of three dimensions. nibble reads it as it is; programs that look for a matrix per "
         "expert (experts.0.up_proj and so on) do not find them."),
    /* shapes and dtypes */
    REJECT("SHP-001", "qt.dtype", NB_EFORMAT,
           "Packed words are stored as 32-bit integers in this layout. Another element type means another layout, or a damaged export. "
           "Unsigned 32-bit words are accepted with a warning."),
    REJECT("SHP-002", "qt.dtype", NB_EFORMAT, "Scales are float16, bfloat16 or float32. Nothing else can be multiplied with a code."),
    REJECT("SHP-003", "qt.shape", NB_EFORMAT,
           "AWQ packs outputs of one input into 32-bit words, eight at 4 bits. A number of outputs that does not fill whole words "
           "cannot be stored in this layout."),
    REJECT("SHP-004", "cfg.group_size", NB_EFORMAT,
           "Groups split the inputs of a linear into equal parts, so the group size must divide the number of inputs. The message lists "
           "the usual sizes that do."),
    REJECT("SHP-005", "qt.shape", NB_EFORMAT,
           "scales has groups first and outputs second. The stored tensor has the two axes exchanged, as other layouts do."),
    REJECT("SHP-006", "qt.shape", NB_EFORMAT, "qzeros must hold one packed row of zero points per group, as wide as a row of qweight."),
    REJECT("SHP-007", "qt.shape", NB_EFORMAT,
           "GEMV layouts pad scales and zero points so that a GPU kernel can load whole lines. The padded width follows from the inputs "
           "and the group size; another width belongs to another layer or group size."),
    REJECT("SHP-008", "qt.shape", NB_EFORMAT,
           "gemv_fast and llm-awq interleave the codes of 64 inputs and 4 outputs. Other sizes cannot be stored in these layouts."),
    REJECT("SHP-009", "qt.shape", NB_EFORMAT,
           "GPTQ packs codes along the inputs and zero points along the outputs into 32-bit words; 3 bits and bit planes need blocks of "
           "32. Sizes that do not fill whole words cannot be stored."),
    REJECT("SHP-010", "qt.shape", NB_EFORMAT, "g_idx is a table with the group of every input: as many integers as the linear has inputs."),
    REJECT("SHP-012", "qt.shape", NB_EFORMAT,
           "weight_shape states outputs and inputs of a compressed-tensors linear. The packed words hold another number of codes."),
    REJECT("SHP-011", "qt.shape", NB_EFORMAT, "The bias of a linear has one value per output."),
    REJECT("SHP-013", "cfg.shape_mismatch", NB_EFORMAT,
           "The sizes of a module follow from config.json (hidden size, heads, intermediate size, vocabulary). The stored tensor has "
           "others: config and weights belong to different models, or a tensor was cut."),
    WARN("SHP-014", "qt.unfriendly", "The shape is legal and nibble reads it at full speed, but another consumer needs larger multiples."),
    REJECT("SHP-015", "qt.shape", NB_EFORMAT, "A tensor has another number of dimensions than its role in the layout allows."),
    REJECT("SHP-016", "qt.shape", NB_EFORMAT,
           "scales must have one row per group and one column per output; the stored shape fits neither the config nor its transpose."),
    REJECT("SHP-017", "qt.shape", NB_EFORMAT,
           "The padding of the GEMV layouts is defined for groups of 16, 32, 64, 128 and more inputs. No program writes another group "
           "size, so the width of the tensors would be a guess."),
    /* values */
    REJECT("VAL-001", "num.scale_nonfinite", NB_ENUMERIC,
           "A scale is NaN or infinite, so a whole group of weights is. The quantization overflowed (float16 ends at 65504) or the "
           "file is damaged."),
    REJECT("VAL-002", "num.scale_zero", NB_EFORMAT,
           "A scale of zero makes every weight of its group zero. A single group can be truly empty; a whole output or tensor was never "
           "filled."),
    WARN("VAL-003", "num.scale_negative", "Negative scales are valid arithmetic. Only AutoRound is known to write them."),
    WARN("VAL-004", "num.scale_subnormal",
         "Float16 numbers below 6.1e-5 are subnormal; some GPUs replace them by zero, which erases the group there."),
    WARN("VAL-005", "num.padding",
         "GEMV layouts have room for more groups than a layer has. Nothing reads the values there, and programs write zeros; other "
         "values hint at another group size or at a damaged file."),
    REJECT("VAL-006", "qt.g_idx", NB_EFORMAT,
           "An entry of g_idx names a group that does not exist. Kernels that trust it read outside of the scales."),
    REJECT("VAL-007", "qt.g_idx", NB_EFORMAT,
           "Every group has as many inputs as the group size says, only the last may be shorter. The table gives a group another number, "
           "so it belongs to another group size or is damaged."),
    REJECT("VAL-008", "num.constant", NB_EFORMAT,
           "Every word of the packed weights is the same. No real layer looks like this: the tensor was allocated and never written."),
    WARN("VAL-009", "num.f16_overflow",
         "Some dequantized weights are larger than float16 can hold; engines that compute weights in float16 get infinities."),
    REJECT("VAL-010", "num.nonfinite", NB_ENUMERIC, "A tensor that is used as it is contains NaN or infinity."),
    REJECT("VAL-011", "num.fast_offset", NB_EFORMAT,
           "gemv_fast and llm-awq store -(scale * zero point) as a float. Divided by the scale it must be near an integer from 0 to 15; "
           "otherwise the tensor was made by something else."),
    WARN("VAL-012", "num.zero_wrapped",
         "GPTQ v1 stores zero points minus one. AutoGPTQ computed 0 - 1 as a 32-bit number, so that a zero point of 0 became all ones and "
         "overwrote its neighbours in the word. What they were is lost: quantize again, and store asymmetric models as gptq_v2."),
    WARN("VAL-013", "num.padding", "Bits behind the last code of a packed row are unused and should be zero; nothing reads them."),
    REJECT("VAL-014", "qt.shape", NB_EFORMAT,
           "compressed-tensors packs 3, 5, 6 and 7 bits as a dense stream since release 0.18, and as whole codes per word before. The "
           "number of words fits neither."),
    WARN("VAL-016", "num.zero_legacy3",
         "Older GPTQModel releases converted 3-bit zero points with constants for the wrong words. The shift is known and is undone on "
         "reading, but other engines decode such files wrongly."),
    WARN("VAL-015", "num.code_range",
         "Half of the code range never occurs in a whole tensor. The codes may have fewer bits than declared, or be signed."),
    /* conventions */
    REJECT("ORD-001", "qt.order", NB_EFORMAT,
           "The codes of a word can be arranged in two ways that look alike. Scales and codes of neighbouring outputs belong together; "
           "read in the other order they fit clearly better, so the declared layout is not the one that was written."),
    REJECT("ORD-002", "qt.zero_offset", NB_EFORMAT,
           "Weights of a group average to about nothing. Here they are off by one step almost everywhere, in the same direction: whoever "
           "packed the zero points added or subtracted 1, as another layout does."),
    REJECT("ORD-003", "qt.order", NB_EFORMAT,
           "For a square number of groups and outputs the shape cannot tell whether scales are transposed; the values can."),
    REJECT("ORD-004", "qt.order", NB_EFORMAT,
           "Zero points fit their groups only when their words are read in another order than the codes: the two were packed by "
           "different programs."),
    WARN("ORD-005", "qt.zero_convention",
         "GPTQ v1 stores zero points minus one, v2 as they are, and only checkpoint_format tells. The stored values contradict it: "
         "constant words of symmetric models are unmistakable, and in others the decoded weights average one step off. nibble uses what "
         "the tensors say; servers that trust the label produce noise."),
    WARN("ORD-006", "qt.act_order",
         "The config says that inputs were quantized in their natural order, but the group table is reordered. The table is used; a "
         "loader that ignores it computes wrong weights."),
    INFO("ORD-007", "qt.act_order",
         "The columns were quantized in the order of their activations, but groups were laid out before (static groups), so the table is "
         "in natural order and costs nothing."),
    WARN("ORD-008", "qt.order",
         "8-bit AWQ codes fit better when the bytes of a word are interleaved, as some GPU repacking code assumes. No public program "
         "writes such files."),
    REJECT("ORD-009", "qt.code_offset", NB_EFORMAT,
           "Codes are stored with an offset of half the range. Here most are at both ends of it, as signed codes without the offset are."),
    /* conversion */
    REJECT("CNV-010", "conv.act_order", NB_EUNSUPPORTED,
           "GPTQ with activation order assigns inputs to groups by a table (g_idx). AWQ layouts have no such table and cannot hold the "
           "weights without quantizing again."),
    REJECT("CNV-050", "conv.shape", NB_EUNSUPPORTED,
           "The target layout has a condition on sizes that this linear does not meet; the message names it."),
    REJECT("CNV-060", "conv.bits", NB_EUNSUPPORTED,
           "A conversion moves codes between layouts. Other bits or other groups mean other codes: quantize the original weights "
           "again."),
    REJECT("CNV-020", "conv.zero", NB_EFORMAT,
           "GPTQ v1 stores zero points minus one, so 0 has no portable form: programs disagree about what is written and read. gptq_v2 "
           "holds it."),
    REJECT("CNV-040", "conv.zero", NB_EFORMAT, "The target has no zero points: every group must have the middle code as its zero."),
    INFO("CNV-070", "conv.offsets",
         "The target stores zero points as float16 offsets, -scale times zero. A product is rounded, but the integer behind it can be "
         "told again from offset and scale, and nibble refuses where it could not."),
    REJECT("CNV-090", "conv.gpu_layout", NB_EUNSUPPORTED,
           "BitBLAS stores weights in an order that depends on the GPU and on the version that prepared them. Bytes alone do not tell "
           "which, so any reading would be a guess."),
    REJECT("CNV-030", "num.scale_inexact", NB_ENUMERIC,
           "A scale needs more digits than the target type has. Rounding it would change every weight of its group, so it is refused."),
};

size_t nb_rule_count(void)
{
    return NB_LEN(rules);
}

const nb_rule *nb_rule_at(size_t i)
{
    return i < NB_LEN(rules) ? &rules[i] : NULL;
}

const nb_rule *nb_rule_find(const char *id)
{
    for (size_t i = 0; i < NB_LEN(rules); i++)
        if (strcmp(rules[i].id, id) == 0)
            return &rules[i];
    return NULL;
}

/* Cut the sentence before its arrow; returns what stands behind it, or "". */
static char *split_next(char *text)
{
    static const char arrow[] = " \xe2\x86\x92 ";
    char *at = strstr(text, arrow);

    if (!at)
        return text + strlen(text);
    *at = 0;
    return at + sizeof arrow - 1;
}

/* Findings of one checkpoint name its files without their directory. */
static nb_status add(nb_report *report, nb_severity sev, const char *cls, const char *id, const char *file, const char *subject,
                     const char *sentence)
{
    char text[sizeof(((nb_err *)0)->what)], name[NB_ESC_CAP], place[NB_ESC_CAP];
    const char *next, *base = file ? strrchr(file, '/') : NULL;

    base = base ? base + 1 : file ? file : "";
    snprintf(text, sizeof text, "%s", sentence);
    next = split_next(text);
    return nb_report_add(report, sev, cls, id, nb_esc(name, sizeof name, base, strlen(base)),
                         subject ? nb_esc(place, sizeof place, subject, strlen(subject)) : "", next, "%s", text);
}

nb_status nb_rule_hit(nb_report *report, nb_err *err, const char *id, const char *file, const char *subject, const char *fmt, ...)
{
    const nb_rule *rule = nb_rule_find(id);
    char text[sizeof(err->what)];
    va_list ap;

    if (!rule)
        return nb_fail(err, NB_EINTERNAL, "internal", "", "rule %s is not in the table", id);
    if (!report && rule->sev != NB_SEV_REJECT)
        return NB_OK;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (report)
        return add(report, rule->sev, rule->cls, id, file, subject, text);
    nb_fail(err, rule->code, rule->cls, id, "%s", text);
    nb_err_at(err, file, subject);
    return rule->code;
}

nb_status nb_rule_warn(nb_report *report, const char *id, const char *file, const char *subject, const char *fmt, ...)
{
    const nb_rule *rule = nb_rule_find(id);
    char text[sizeof(((nb_err *)0)->what)];
    va_list ap;

    if (!report || !rule)
        return NB_OK;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return add(report, NB_SEV_WARN, rule->cls, id, file, subject, text);
}

nb_status nb_rule_report_err(nb_report *report, const nb_err *err)
{
    return add(report, NB_SEV_REJECT, err->cls, err->rule, err->file, err->subject, err->what);
}
