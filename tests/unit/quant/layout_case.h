/* layout_case.h - a recorded checkpoint: CRC-32 of every dequantized linear, and pack(unpack) equal to the stored bytes. */
#ifndef NB_TEST_QUANT_LAYOUT_CASE_H
#define NB_TEST_QUANT_LAYOUT_CASE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/io.h"
#include "quant/quant.h"
#include "unit/quant/crc32.h"

/* What a directory allows packing to be. */
enum {
    CASE_SAME = 0,      /* every stored part comes back byte for byte                    */
    CASE_READ_ONLY = 1, /* the layout is not written                                     */
    CASE_OLD_ZEROS = 2, /* zero points are of an older form, the other parts come back   */
    CASE_ZERO_V1 = 4,   /* true zero points 0 in v1: linears with them refuse (CNV-020)  */
    CASE_OLD_WORDS = 8  /* codes too are of an older form                                */
};

static inline bool case_compare(unsigned allow, const nb_part *p)
{
    return !((allow & CASE_OLD_ZEROS) && p->role == NB_PART_ZEROS) && !((allow & CASE_OLD_WORDS) && p->role == NB_PART_CODES);
}

/* Returns whether the linear was packed. */
static inline bool case_linear(const char *dir, const nb_linear *lin, const nb_json *want, unsigned allow)
{
    const nb_json *w = nb_json_get(want, lin->prefix);
    const nb_format *f = lin->format;
    void *out[NB_MAX_PARTS] = { 0 };
    bool packs = f->pack != NULL && !(allow & CASE_READ_ONLY);
    size_t bytes[NB_MAX_PARTS] = { 0 };
    nb_err err = { 0 };
    uint32_t crc = 0;
    char text[16];

    if (!w)
        fail_msg("%s: %s is not in the record", dir, lin->prefix);
    assert_int_equal(nb_json_int(nb_json_at(nb_json_get(w, "shape"), 0), 0), lin->n);
    assert_int_equal(nb_json_int(nb_json_at(nb_json_get(w, "shape"), 1), 0), lin->k);
    for (size_t p = 0; p < NB_MAX_PARTS && f->parts[p].suffix; p++) {
        uint64_t shape[4];
        uint64_t n = 1;
        const nb_part *part = &f->parts[p];
        const unsigned rank = nb_format_part_shape(f, p, lin->n, lin->k, lin->g, lin->spec.bits, shape);
        for (unsigned i = 0; i < rank; i++)
            n *= shape[i];
        bytes[p] = (size_t)n * nb_dtype_info(part->dtype == NB_DT_NONE ? lin->spec.scale_dtype : part->dtype)->bits / 8;
        if (lin->parts[p])
            out[p] = nb_calloc(bytes[p], 1);
        if (lin->parts[p] && packs && case_compare(allow, part) && lin->parts[p]->n_bytes != bytes[p])
            fail_msg("%s: %s.%s: the row says %zu bytes", dir, lin->prefix, part->suffix, bytes[p]);
    }
    for (size_t n0 = 0; n0 < lin->n; n0 += 96) { /* stripes that fit no tile */
        nb_qlin q = { 0 };
        const size_t n = lin->n - n0 < 96 ? lin->n - n0 : 96;
        float *dense = nb_alloc_array(n * lin->k, sizeof *dense);
        nb_status rc;
        assert_int_equal(nb_qlin_init(&q, n, lin->k, lin->g, lin->spec.bits, &err), NB_OK);
        if (f->unpack(lin, n0, &q, &err) != NB_OK)
            fail_msg("%s: %s: %s", dir, lin->prefix, err.what);
        rc = packs ? f->pack(&q, n0, lin->n, out, &err) : NB_OK;
        if (rc != NB_OK && (allow & CASE_ZERO_V1) && strcmp(err.rule, "CNV-020") == 0)
            packs = false;
        else if (rc != NB_OK)
            fail_msg("%s: %s: %s", dir, lin->prefix, err.what);
        nb_qlin_dequant(&q, dense);
        crc = test_crc32_more(crc, dense, n * lin->k * sizeof *dense);
        nb_free(dense);
        nb_qlin_clear(&q);
    }
    snprintf(text, sizeof text, "%08x", crc);
    if (strcmp(text, nb_json_str(nb_json_get(w, "crc32"), "")) != 0)
        fail_msg("%s: %s: dequantized CRC %s, recorded %s", dir, lin->prefix, text, nb_json_str(nb_json_get(w, "crc32"), "-"));
    for (size_t p = 0; p < NB_MAX_PARTS; p++) {
        if (packs && lin->parts[p] && case_compare(allow, &f->parts[p]) &&
            memcmp(out[p], lin->parts[p]->data, (size_t)lin->parts[p]->n_bytes) != 0)
            fail_msg("%s: %s.%s: packed bytes differ", dir, lin->prefix, f->parts[p].suffix);
        nb_free(out[p]);
    }
    return packs;
}

/* Scan of root/name with its record. layout: the name that the scan must give. */
static inline void case_dir(const char *root, const char *name, const char *layout, unsigned allow)
{
    char path[1024];
    nb_hfdir *dir = NULL;
    nb_store *s = NULL;
    nb_json *rec = NULL;
    const nb_json *qcfg, *want;
    const char *source;
    size_t packed = 0;
    nb_scan sc;
    nb_err err = { 0 };

    snprintf(path, sizeof path, "%s/golden/%s.json", root, name);
    if (nb_json_parse_file(path, 1 << 20, "json", &rec, &err) != NB_OK)
        fail_msg("%s: %s", path, err.what);
    want = nb_json_get(rec, "linears");
    snprintf(path, sizeof path, "%s/%s", root, name);
    if (nb_hfdir_open(path, &dir, &err) != NB_OK || nb_open(path, &s, &err) != NB_OK ||
        nb_hfdir_quant_config(dir, &qcfg, &source, &err) != NB_OK || nb_scan_open(s, qcfg, source, NULL, &sc, &err) != NB_OK)
        fail_msg("%s: %s", path, err.what);
    if (sc.n_linears != nb_json_len(want))
        fail_msg("%s: %zu linears, recorded %zu", name, sc.n_linears, nb_json_len(want));
    assert_string_equal(sc.format->name, layout);
    if (sc.note[0])
        fail_msg("%s: %s", name, sc.note);
    for (size_t i = 0; i < sc.n_linears; i++)
        packed += case_linear(name, &sc.linears[i], want, allow);
    if (!(allow & CASE_READ_ONLY) && packed == 0 && !(allow & CASE_ZERO_V1))
        fail_msg("%s: nothing was packed", name);
    nb_scan_clear(&sc);
    nb_store_close(s);
    nb_hfdir_close(dir);
    nb_json_free(rec);
}

/* The scan fails with this code and rule. */
static inline void case_refused(const char *root, const char *name, nb_status code, const char *rule, const char *what)
{
    char path[1024];
    nb_hfdir *dir = NULL;
    nb_store *s = NULL;
    const nb_json *qcfg;
    const char *source;
    nb_scan sc;
    nb_err err = { 0 };

    snprintf(path, sizeof path, "%s/%s", root, name);
    if (nb_hfdir_open(path, &dir, &err) != NB_OK || nb_open(path, &s, &err) != NB_OK ||
        nb_hfdir_quant_config(dir, &qcfg, &source, &err) != NB_OK)
        fail_msg("%s: %s", path, err.what);
    assert_int_equal(nb_scan_open(s, qcfg, source, NULL, &sc, &err), code);
    if (strcmp(err.rule, rule) != 0 || !strstr(err.what, what))
        fail_msg("%s: %s %s", name, err.rule, err.what);
    nb_store_close(s);
    nb_hfdir_close(dir);
}

/* $NB_GOLDEN/layouts, or NULL after saying that it is absent. */
static inline const char *case_root(char *out, size_t cap)
{
    const char *golden = getenv("NB_GOLDEN");

    snprintf(out, cap, "%s/layouts", golden ? golden : "../shared/golden");
    if (access(out, R_OK) != 0) {
        print_message("skipped: %s is absent\n", out);
        return NULL;
    }
    return out;
}

#endif
