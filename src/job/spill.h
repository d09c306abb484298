/* spill.h - large arrays of activations that live in memory, or in a file when the memory cap says so.
 *
 * The values are the same either way, so the result does not depend on how much memory there is. A file is made in the directory
 * given, has no name once it is open (nothing is left behind by a killed process), and its space is reserved at once, so that a
 * full disk is an error here and not a signal later. Pages that were touched stay in memory until settle. */
#ifndef NB_JOB_SPILL_H
#define NB_JOB_SPILL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

typedef struct nb_spill {
    float *p; /* n floats, 64-byte aligned, uninitialised */
    size_t bytes;
    bool in_file;
} nb_spill;

/* n * each floats in a file in directory `dir`, in memory when it is NULL. NB_ENOMEM naming `what`; NB_EWRITE "out.no_space". */
nb_status nb_spill_open(nb_spill *s, const char *dir, size_t n, size_t each, const char *what, nb_err *err);
/* Give touched pages of a file back to the system; the values stay. Not while another thread reads or writes them. */
void nb_spill_settle(const nb_spill *s);
void nb_spill_close(nb_spill *s); /* a zeroed one is fine */

#endif
