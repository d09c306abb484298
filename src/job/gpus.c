/* gpus.c - the table of data/gpus.json. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "job/capacity.h"
#include "job/embedded.h"

/* The rows; the caller frees *root. */
static nb_status open_table(nb_json **root, const nb_json **rows, nb_err *err)
{
    const nb_status rc = nb_json_parse((const char *)nb_data_gpus, nb_data_gpus_size, "plan", 0, root, err);

    *rows = rc == NB_OK ? nb_json_get(*root, "gpus") : NULL;
    return rc;
}

static nb_gpu read_row(const nb_json *r)
{
    nb_gpu g = { .memory = (uint64_t)nb_json_int(nb_json_get(r, "gib"), 0) << 30,
                 .bandwidth = 1e9 * nb_json_num(nb_json_get(r, "gb_s"), 0),
                 .flops = 1e12 * nb_json_num(nb_json_get(r, "tflops"), 0) };

    snprintf(g.name, sizeof g.name, "%s", nb_json_str(nb_json_get(r, "name"), ""));
    snprintf(g.vendor, sizeof g.vendor, "%s", nb_json_str(nb_json_get(r, "vendor"), ""));
    snprintf(g.arch, sizeof g.arch, "%s", nb_json_str(nb_json_get(r, "arch"), ""));
    return g;
}

size_t nb_gpu_count(void)
{
    nb_json *root = NULL;
    const nb_json *rows;
    const size_t n = open_table(&root, &rows, NULL) == NB_OK ? nb_json_len(rows) : 0;

    nb_json_free(root);
    return n;
}

nb_status nb_gpu_at(size_t i, nb_gpu *out, nb_err *err)
{
    nb_json *root = NULL;
    const nb_json *rows;
    nb_status rc = open_table(&root, &rows, err);

    if (rc == NB_OK && i >= nb_json_len(rows))
        rc = nb_fail(err, NB_EARG, "plan.gpu", "", "row %zu of %zu", i, nb_json_len(rows));
    if (rc == NB_OK)
        *out = read_row(nb_json_at(rows, i));
    nb_json_free(root);
    return rc;
}

static void plain(char out[64], const char *name)
{
    size_t n = 0;

    for (; *name && n < 63; name++)
        if (isalnum((unsigned char)*name))
            out[n++] = (char)tolower((unsigned char)*name);
    out[n] = 0;
}

nb_status nb_gpu_find(const char *name, nb_gpu *out, nb_err *err)
{
    char want[64], have[64], list[512] = "", esc[NB_ESC_CAP];
    const size_t n = nb_gpu_count();
    size_t found = 0, at = 0;
    nb_gpu g;

    plain(want, name);
    for (size_t i = 0; i < n && want[0]; i++) {
        const nb_status rc = nb_gpu_at(i, &g, err);
        if (rc != NB_OK)
            return rc;
        plain(have, g.name);
        if (strcmp(have, want) == 0) {
            *out = g;
            return NB_OK;
        }
        if (strstr(have, want)) {
            *out = g;
            found++;
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", found > 1 ? ", " : "", g.name);
            at = at < sizeof list ? at : sizeof list - 1;
        }
    }
    if (found == 1)
        return NB_OK;
    nb_esc(esc, sizeof esc, name, strlen(name));
    if (found)
        return nb_fail(err, NB_EARG, "plan.gpu", "", "\"%s\" may be %s", esc, list);
    return nb_fail(err, NB_EARG, "plan.gpu", "",
                   "no GPU \"%s\" in the table (nibble plan --gpu list shows it); give --memory, and --bandwidth and --tflops if known",
                   esc);
}
