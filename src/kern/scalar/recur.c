/* recur.c - recurrences for the baseline of the machine: the definition. */
#include "kern/scalar/scalar.h"

#define nb_delta  nb_delta_scalar
#define nb_linrec nb_linrec_scalar
#define nb_ssm1   nb_ssm1_scalar
#define nb_conv   nb_conv_scalar
#define nb_gate   nb_gate_scalar

#include "kern/recur_body.inc"
