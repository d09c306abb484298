/* qconfig.h - one quantization config in normal form: aliases folded, values checked, exclusions asked.
 *
 * Views into the caller's JSON; owns nothing. Source: formats 6.2, 6.3, 6.5; rules CFG of formats 7.2. */
#ifndef NB_QUANT_QCONFIG_H
#define NB_QUANT_QCONFIG_H

#include "base/json.h"
#include "quant/quant.h"

typedef struct nb_qconfig {
    const nb_json *root;
    const char *source; /* file name for messages */
    char method[40];    /* "awq", "gptq", "compressed-tensors", "auto-round"; lower case */
    char version[40];   /* "gemm", "gptq_v2", "pack-quantized" ...; "" when not said    */
    const char *layout; /* layout that method and version declare (formats 3), NULL: not in the table */
    nb_qspec spec;
    bool has_zero_point; /* the key that vLLM wants, not an alias */
    bool has_lm_head, lm_head;
    const nb_json *skip;        /* modules_to_not_convert, an array, or NULL */
    const nb_json *dynamic;     /* rules of GPTQModel, an object, or NULL    */
    bool has_sym, has_desc_act; /* keys that vLLM wants of GPTQ */
    bool word_zeros;            /* written by gptqmodel 0.9 or newer: GPTQ v1 zero points lost 1 as whole words (formats 3.10) */
    bool old_words;             /* compressed-tensors before 0.18: 3, 5, 6 and 7 bits do not straddle words (formats 3.13)     */
} nb_qconfig;

/* root is an object; source its file name. Violations go to the report, or the first must-rule is the error
 * (NB_EUNSUPPORTED CFG-003 for unknown methods and CFG-004, NB_EFORMAT CFG-005 ...). In report mode unusable values
 * also end the call with their code, since nothing below can be judged; the finding is in the report then. */
nb_status nb_qconfig_parse(const nb_json *root, const char *source, nb_report *report, nb_qconfig *out, nb_err *err);

/* `weights` of a compressed-tensors config group, checked by nb_qconfig_parse, into spec. */
void nb_qconfig_args(const nb_json *weights, nb_qspec *spec);

/* The modules_to_not_convert entry that excludes a module for readers that match substrings (AutoAWQ, vLLM, SGLang);
 * NULL: none. *whole: the entry covers whole path components, so that every reader understands it alike. */
const char *nb_qconfig_skip(const nb_qconfig *c, const char *module, bool *whole);

#endif
