/* fuzz_head.c - heads of HTTP requests: a verdict is final, and more bytes never turn a complete head into another. */
#include <stdint.h>
#include <stdlib.h>

#include "serve/head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const nb_head_limits lim = NB_HEAD_LIMITS;
    nb_head_fault f, g;
    size_t end = 0, again = 0;
    const nb_head_verdict whole = nb_head_check((const char *)data, size, &lim, &end, &f);

    if (whole == NB_HEAD_DONE && (end > size || nb_head_check((const char *)data, end, &lim, &again, &g) != NB_HEAD_DONE || again != end))
        abort();
    if (whole == NB_HEAD_DONE && end && nb_head_check((const char *)data, end - 1, &lim, &again, &g) != NB_HEAD_MORE)
        abort();
    if (whole == NB_HEAD_BAD && (f.status < 400 || !f.code || !f.what))
        abort();
    return 0;
}
