/* thin.h - fewer cases where each costs a hundred times as much: NB_THIN=n in the environment keeps every n-th of a grid. */
#ifndef NB_TESTS_UNIT_KERN_THIN_H
#define NB_TESTS_UNIT_KERN_THIN_H

#include <stdbool.h>
#include <stdlib.h>

static inline unsigned long thin(void)
{
    const char *n = getenv("NB_THIN");
    const unsigned long v = n ? strtoul(n, NULL, 10) : 1;

    return v ? v : 1;
}

/* Is this case, the next of the test program, to be left out? */
static inline bool left_out(void)
{
    static unsigned long at;

    return at++ % thin() != 0;
}

#endif
