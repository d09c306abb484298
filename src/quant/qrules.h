/* qrules.h - what a quantization config says about one module: overrides, exclusions, targets.
 *
 * GPTQModel `dynamic`, AutoRound `extra_config`, compressed-tensors `config_groups`, `targets` and `ignore`, Transformers
 * `modules_in_block_to_quantize`. Patterns are compiled once. Views into the config, which must outlive it; one thread at a time.
 * Source: formats 3.15, 6.3 to 6.5. */
#ifndef NB_QUANT_QRULES_H
#define NB_QUANT_QRULES_H

#include "quant/qconfig.h"

typedef struct nb_qrules nb_qrules;

/* Compile the rules. A pattern or value that cannot be followed: CFG-016 as a finding (then the rule is left out), or the error
 * NB_EFORMAT, NB_EUNSUPPORTED (patterns we refuse) or NB_ELIMIT. */
nb_status nb_qrules_open(const nb_qconfig *c, nb_report *report, nb_qrules **out, nb_err *err);
void nb_qrules_close(nb_qrules *r); /* NULL is fine */

/* Declared values of a module. spec gets the global values with the first matching rule applied. *excluded is the entry that
 * says that the module is not quantized ("-:.*gate", "lm_head"), "" when no target covers it, NULL when it is quantized.
 * NB_ELIMIT limit.quant_rules: the rules took too much work over all calls (hardening CF-23). */
nb_status nb_qrules_spec(nb_qrules *r, const char *module, nb_qspec *spec, const char **excluded, nb_err *err);
/* The key that holds exclusions: "dynamic", "ignore", "extra_config", "modules_in_block_to_quantize". NULL: this config has none. */
const char *nb_qrules_field(const nb_qrules *r);

#endif
