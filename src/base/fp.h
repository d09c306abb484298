/* fp.h - the floating-point environment in which everything here computes: the default one, whatever a caller's thread has set. */
#ifndef NB_BASE_FP_H
#define NB_BASE_FP_H

#include <fenv.h>

typedef struct nb_fp {
    fenv_t was;
} nb_fp;

/* Round to nearest, subnormals kept, no traps, for this thread and those it starts, until nb_fp_leave(), which puts back what was
 * there, flags included. Every public function that computes lies between the two (hardening NU-15). */
static inline void nb_fp_enter(nb_fp *f)
{
    fegetenv(&f->was);
    fesetenv(FE_DFL_ENV);
}

static inline void nb_fp_leave(const nb_fp *f)
{
    fesetenv(&f->was);
}

#endif
