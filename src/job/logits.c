/* logits.c - one sequence through an executor of its own, in pieces. */
#include "job/logits.h"

#include <string.h>

#include "base/mem.h"
#include "model/exec.h"

enum { PIECE = 256 }; /* tokens of one step */

nb_status nb_logits_run(nb_model *m, nb_pool *pool, nb_dtype kv_dtype, const nb_host *host, const int32_t *ids, size_t n, float *out,
                        nb_err *err)
{
    const size_t vocab = nb_model_config(m)->vocab, n_pages = n / NB_PAGE + (n % NB_PAGE != 0);
    const nb_exec_opts xo = { .pool = pool, .max_m = n < PIECE ? n : PIECE, .n_pages = n_pages, .kv_dtype = kv_dtype };
    uint32_t *pages = nb_alloc_array(n_pages, sizeof *pages);
    uint32_t pos[PIECE], seq[PIECE] = { 0 };
    uint8_t want[PIECE];
    nb_exec *x = NULL;
    nb_status rc = pages ? NB_OK : nb_enomem(err, "a page table");

    if (n == 0)
        rc = nb_fail(err, NB_EARG, "request.empty", "", "there are no tokens");
    for (size_t i = 0; i < n && rc == NB_OK; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= vocab)
            rc = nb_fail(err, NB_EARG, "request.token", "", "token %d at place %zu is outside the vocabulary of %zu", ids[i], i, vocab);
    if (rc == NB_OK)
        rc = nb_exec_cpu_open(m, &xo, &x, err);
    for (size_t i = 0; i < n_pages && rc == NB_OK; i++)
        pages[i] = (uint32_t)i;
    memset(want, 1, sizeof want);
    for (size_t p = 0; p < n && rc == NB_OK; p += PIECE) {
        const nb_seq_view view = { .pages = pages, .n_pages = n_pages, .total = n };
        const nb_batch b = {
            .m = n - p < PIECE ? n - p : PIECE, .token = ids + p, .pos = pos, .seq = seq, .want = want, .seqs = &view, .n_seqs = 1
        };
        for (size_t i = 0; i < b.m; i++)
            pos[i] = (uint32_t)(p + i);
        rc = nb_cancelled(host) ? nb_fail(err, NB_ECANCELED, "canceled", "", "stopped at token %zu of %zu", p, n)
                                : nb_exec_run(x, &b, out + p * vocab, err);
    }
    nb_exec_close(x);
    nb_free(pages);
    return rc;
}
