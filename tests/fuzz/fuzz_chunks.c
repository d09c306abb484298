/* fuzz_chunks.c - chunked bodies: the verdict does not depend on how the bytes are cut, and nothing behind the body is looked at. */
#include <stdint.h>
#include <stdlib.h>

#include "serve/chunks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const nb_head_limits lim = { 64, 64, 256, 8, 4096 };
    const char *p = (const char *)data;
    nb_chunks whole = { 0 }, cut = { 0 };
    nb_head_fault f = { 0 }, g = { 0 };
    size_t used = 0, part = 0, at = 0;
    const nb_head_verdict want = nb_chunks_check(&whole, p, size, &lim, &used, &f);
    nb_head_verdict got = NB_HEAD_MORE;

    for (size_t step = 1; at < size && got == NB_HEAD_MORE; at += step, step = step % 7 + 1) {
        step = step < size - at ? step : size - at;
        got = nb_chunks_check(&cut, p + at, step, &lim, &part, &g);
        if (got == NB_HEAD_DONE && at + part != used)
            abort();
    }
    if (got != want || (want == NB_HEAD_BAD && (f.status != g.status || !f.what)) || (want == NB_HEAD_DONE && used > size) ||
        whole.total > lim.max_body)
        abort();
    return 0;
}
