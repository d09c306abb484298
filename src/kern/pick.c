/* pick.c - the tables that were built in, best first, and the choice among them. */
#include <string.h>

#include "base/mem.h"
#include "kern/kern.h"

#ifdef NB_HAVE_SHA
#include "base/cpu.h"
#include "kern/sha/sha.h"
#endif

#ifdef NB_HAVE_AMX
extern const nb_kern nb_kern_amx;
#endif
#ifdef NB_HAVE_AVX512VNNI
extern const nb_kern nb_kern_avx512vnni;
#endif
#ifdef NB_HAVE_AVX512BW
extern const nb_kern nb_kern_avx512bw;
#endif
#ifdef NB_HAVE_AVX2VNNI
extern const nb_kern nb_kern_avx2vnni;
#endif
#ifdef NB_HAVE_AVX2
extern const nb_kern nb_kern_avx2;
#endif
#ifdef NB_HAVE_NEONI8MM
extern const nb_kern nb_kern_neoni8mm;
#endif
#ifdef NB_HAVE_NEONDOT
extern const nb_kern nb_kern_neondot;
#endif
#ifdef NB_HAVE_NEON
extern const nb_kern nb_kern_neon;
#endif
extern const nb_kern nb_kern_scalar;

static const nb_kern *const tables[] = {
#ifdef NB_HAVE_AMX
    &nb_kern_amx,
#endif
#ifdef NB_HAVE_AVX512VNNI
    &nb_kern_avx512vnni,
#endif
#ifdef NB_HAVE_AVX512BW
    &nb_kern_avx512bw,
#endif
#ifdef NB_HAVE_AVX2VNNI
    &nb_kern_avx2vnni,
#endif
#ifdef NB_HAVE_AVX2
    &nb_kern_avx2,
#endif
#ifdef NB_HAVE_NEONI8MM
    &nb_kern_neoni8mm,
#endif
#ifdef NB_HAVE_NEONDOT
    &nb_kern_neondot,
#endif
#ifdef NB_HAVE_NEON
    &nb_kern_neon,
#endif
    &nb_kern_scalar, /* needs nothing, so the search always ends here */
};

const nb_kern *nb_kern_pick(unsigned have)
{
    size_t i = 0;

    while (tables[i]->need & ~have)
        i++;
    return tables[i];
}

const nb_kern *nb_kern_find(const char *name)
{
    for (size_t i = 0; i < NB_LEN(tables); i++)
        if (strcmp(tables[i]->name, name) == 0)
            return tables[i];
    return NULL;
}

size_t nb_kern_count(void)
{
    return NB_LEN(tables);
}

const nb_kern *nb_kern_at(size_t i)
{
    return tables[i];
}

/* Functions that no table has, because they come with other processors than tables do. */
static const struct {
    unsigned need;
    nb_sha256_fn *fn;
} hashes[] = {
#ifdef NB_HAVE_SHA
    { NB_CPU_SHA, nb_sha256_blocks_sha },
#endif
    { 0, nb_sha256_blocks },
};

nb_sha256_fn *nb_kern_sha256(unsigned have)
{
    size_t i = 0;

    while (hashes[i].need & ~have)
        i++;
    return hashes[i].fn;
}
