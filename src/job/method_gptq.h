/* method_gptq.h - what a method that ends in GPTQ shares with it. */
#ifndef NB_JOB_METHOD_GPTQ_H
#define NB_JOB_METHOD_GPTQ_H

#include "job/gptq_block.h"
#include "job/quantize_priv.h"

nb_gptq_opts nb_gptq_options(const nb_quantize_opts *o);
nb_gptq_extra nb_gptq_extras(const nb_quantize_opts *o);
/* What the written configuration says of the solver. */
nb_status nb_gptq_tell_config(nb_qjob *j, nb_err *err);
/* One linear: its input is looked at when it is the first to read it. */
nb_status nb_gptq_solve_mod(nb_gptq_block *b, nb_qjob *j, const nb_qmod *m, nb_qlin *q, nb_quantize_row *row, nb_err *err);

#endif
