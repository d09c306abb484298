/* fuzz_topk.c - any bytes as a file of nibble eval --save-logits: a verdict, and every record of an accepted one can be used. */
#include "fuzz_file.h"

#include "base/mem.h"
#include "job/eval.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static float logits[64];
    const char *path = fuzz_file(data, size, ".topk");
    nb_err err = { 0 };
    nb_topk t;

    if (nb_topk_open(&t, path, &err) != NB_OK) {
        if (err.code == NB_OK || err.what[0] == '\0')
            abort();
        unlink(path);
        return 0;
    }
    for (size_t i = 0; i < t.head.positions && t.head.vocab <= NB_LEN(logits); i++) {
        const nb_topk_row r = nb_topk_at(&t, i);
        const nb_position p = nb_position_topk(&r, logits, t.head.vocab, 0);
        if (p.rank >= t.head.vocab)
            abort();
    }
    nb_topk_close(&t);
    unlink(path);
    return 0;
}
