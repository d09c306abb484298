/* fuzz_qconfig.c - any bytes as a quantization config, with the tensors that lines behind a zero byte describe:
 * "name dtype size size ...". Parsed, scanned with and without a report, and every linear that is accepted is unpacked. */
#include "fuzz_file.h"

#include <string.h>

#include "base/mem.h"
#include "quant/qconfig.h"

enum { MOST_BYTES = 1 << 18, MOST_TENSORS = 64 };

static unsigned char bytes[MOST_BYTES], zeros[MOST_BYTES]; /* tensors end where these end, so that a sanitizer sees reads beyond */

/* One line; lines that describe nothing usable are left out. */
static void add_tensor(nb_store *s, char *line)
{
    char *name = strtok(line, " "), *type = strtok(NULL, " "), *size;
    const nb_dtype t = type ? nb_dtype_from_name(type) : NB_DT_NONE;
    uint64_t shape[4], n;
    unsigned rank = 0;

    while (rank < 4 && (size = strtok(NULL, " ")) != NULL)
        shape[rank++] = strtoull(size, NULL, 10) % (1 << 20);
    if (t == NB_DT_NONE || !nb_shape_count(shape, rank, &n) || n > MOST_BYTES / 8)
        return;
    n = (n * nb_dtype_info(t)->bits + 7) / 8;
    nb_memstore_add(s, name, t, rank, shape, (strstr(name, "g_idx") ? zeros : bytes) + MOST_BYTES - n, NULL);
}

/* Rows from n0 on, one stripe of them. */
static void unpack(const nb_linear *lin, size_t n0)
{
    const size_t rows = lin->n - n0 < lin->format->stripe ? lin->n - n0 : lin->format->stripe;
    nb_qlin q = { 0 };
    nb_err err = { 0 };

    if (nb_qlin_init(&q, rows, lin->k, lin->g, lin->spec.bits, &err) != NB_OK || lin->format->unpack(lin, n0, &q, &err) != NB_OK) {
        if (err.what[0] == '\0')
            abort();
    } else {
        for (size_t i = 0; i < q.n * q.k; i++)
            if (q.codes[i] >> q.bits)
                abort();
        for (size_t i = 0; q.g_idx && i < q.k; i++)
            if (q.g_idx[i] >= q.n_groups)
                abort();
    }
    nb_qlin_clear(&q);
}

static void unpack_ends(const nb_linear *lin)
{
    const size_t stripe = lin->format->stripe;

    if (lin->n == 0 || lin->k == 0 || lin->g == 0 || lin->spec.bits < 2 || lin->spec.bits > 8)
        abort(); /* the scan must have refused it */
    unpack(lin, 0);
    unpack(lin, (lin->n - 1) / stripe * stripe);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *cut = memchr(data, 0, size);
    const size_t n = cut ? (size_t)(cut - data) : size;
    char *lines = nb_strndup(cut ? (const char *)cut + 1 : "", cut ? size - n - 1 : 0), *next = NULL;
    size_t n_lines = 0;
    nb_err err = { 0 };
    nb_json *root = NULL;
    nb_store *s = NULL;
    nb_qconfig c;

    if (bytes[1] == 0)
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (unsigned char)(i * 167 >> 3 | 1);
    if (!lines || nb_memstore_open(&s, &err) != NB_OK)
        abort();
    for (char *line = strtok_r(lines, "\n", &next); line && n_lines++ < MOST_TENSORS; line = strtok_r(NULL, "\n", &next))
        add_tensor(s, line);
    if (nb_json_parse((const char *)data, n, "cfg", 0, &root, &err) == NB_OK && nb_json_typeof(root) == NB_JOBJ) {
        if (nb_qconfig_parse(root, "config.json", NULL, &c, &err) != NB_OK && err.what[0] == '\0')
            abort();
        for (int with = 0; with < 2; with++) {
            nb_report *r = with ? nb_report_new() : NULL;
            nb_scan sc = { 0 };
            nb_err_clear(&err);
            if (nb_scan_open(s, root, "config.json", r, &sc, &err) == NB_OK)
                for (size_t i = 0; !with && i < sc.n_linears; i++)
                    unpack_ends(&sc.linears[i]);
            else if (err.what[0] == '\0' && (!r || nb_report_count(r) == 0))
                abort();
            nb_scan_clear(&sc);
            nb_report_free(r);
        }
    }
    nb_json_free(root);
    nb_store_close(s);
    nb_free(lines);
    return 0;
}
