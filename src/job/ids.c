/* ids.c - token ids from a safetensors file or from text. */
#include "job/ids.h"

#include <inttypes.h>
#include <string.h>

#include "base/bits.h"
#include "base/map.h"
#include "base/mem.h"
#include "io/io.h"

enum { TEXT_LIMIT = 1 << 30 };

void nb_idrows_clear(nb_idrows *r)
{
    nb_free(r->ids);
    memset(r, 0, sizeof *r);
}

static nb_status take(nb_idrows *r, size_t rows, size_t len, nb_err *err)
{
    size_t n;

    r->rows = rows;
    r->len = len;
    r->ids = nb_mul_size(rows, len, &n) ? nb_alloc_array(n, sizeof *r->ids) : NULL;
    return r->ids ? NB_OK : nb_enomem(err, "the token ids");
}

static nb_status copy_tensor(nb_idrows *r, const nb_tensor *t, size_t vocab, nb_err *err)
{
    const size_t es = t->dtype == NB_DT_I64 ? 8 : 4;
    const size_t limit = vocab ? vocab : (size_t)INT32_MAX;
    char buf[128];
    nb_status rc;

    if ((t->dtype != NB_DT_I64 && t->dtype != NB_DT_I32) || t->rank < 1 || t->rank > 2 || t->n_bytes == 0)
        return nb_fail(err, NB_EFORMAT, "ids.shape", "", "ids are %s %s, expected i32 or i64 of shape [T] or [R, T]",
                       nb_dtype_info(t->dtype)->name, nb_shape_str(buf, sizeof buf, t->shape, t->rank));
    r->flat = t->rank == 1;
    rc = take(r, r->flat ? 1 : (size_t)t->shape[0], (size_t)t->shape[t->rank - 1], err);
    for (size_t i = 0; rc == NB_OK && i < r->rows * r->len; i++) {
        const unsigned char *p = t->data + i * es;
        const int64_t id = es == 8 ? (int64_t)nb_le64(p) : (int32_t)nb_le32(p);
        if (id < 0 || (uint64_t)id >= limit)
            return nb_fail(err, NB_EFORMAT, "ids.token", "", "id %" PRId64 " at index %zu, the model has %zu tokens", id, i, limit);
        r->ids[i] = (int32_t)id;
    }
    return rc;
}

/* "F.safetensors:NAME" -> the path (a copy, freed by the caller) and the name inside spec, or NULL. */
static char *split_spec(const char *spec, const char **name)
{
    static const char ext[] = ".safetensors:";
    char *path = nb_strdup(spec);
    char *last = NULL;

    *name = NULL;
    for (char *p = path ? strstr(path, ext) : NULL; p; p = strstr(p + 1, ext))
        last = p;
    if (last) {
        *name = spec + (last - path) + sizeof ext - 1;
        last[sizeof ext - 2] = 0;
    }
    return path;
}

nb_status nb_idrows_read(nb_idrows *r, const char *spec, size_t vocab, nb_err *err)
{
    const char *name;
    char *path = split_spec(spec, &name);
    char esc[NB_ESC_CAP];
    nb_store *s = NULL;
    nb_status rc = path ? nb_st_open(path, &s, err) : nb_enomem(err, "a path");

    memset(r, 0, sizeof *r);
    if (rc == NB_OK) {
        const char *want = name ? name : "input_ids";
        const nb_tensor *t = nb_store_find(s, want);
        if (!t && !name && s->n_tensors == 1)
            t = &s->tensors[0];
        rc = t ? copy_tensor(r, t, vocab, err)
               : nb_fail(err, NB_EFORMAT, "ids.tensor", "", "there is no tensor \"%s\" in it", nb_esc(esc, sizeof esc, want, strlen(want)));
    }
    nb_err_at(err, path, NULL);
    nb_store_close(s);
    nb_free(path);
    if (rc != NB_OK)
        nb_idrows_clear(r);
    return rc;
}

static nb_status cut(nb_idrows *r, const nb_ids *text, int32_t bos, size_t len, nb_err *err)
{
    const size_t lead = bos >= 0 ? 1 : 0;
    size_t body = len - lead;
    nb_status rc;

    if (text->n + lead < 2)
        return nb_fail(err, NB_EFORMAT, "ids.empty", "", "the text gives %zu tokens, a few thousand are useful", text->n);
    if (body > text->n)
        body = text->n;
    rc = take(r, text->n / body, body + lead, err);
    for (size_t i = 0; rc == NB_OK && i < r->rows; i++) {
        int32_t *row = r->ids + i * r->len;
        if (lead)
            row[0] = bos;
        memcpy(row + lead, text->p + i * body, body * sizeof *row);
    }
    return rc;
}

nb_status nb_idrows_text(nb_idrows *r, const nb_tokenizer *t, const char *path, size_t len, bool *bos, nb_err *err)
{
    nb_ids ids = { 0 }, frame = { 0 };
    char *text = NULL;
    size_t n;
    nb_status rc;

    memset(r, 0, sizeof *r);
    if (len < 2)
        return nb_fail(err, NB_EARG, "ids.window", "", "windows of %zu tokens, at least 2 are needed", len);
    rc = nb_read_file(path, TEXT_LIMIT, &text, &n, err);
    if (rc == NB_OK)
        rc = nb_tokenizer_encode(t, "", 0, true, false, &frame, err); /* what surrounds plain text: BOS, or nothing */
    if (rc == NB_OK)
        rc = nb_tokenizer_encode(t, text, n, false, false, &ids, err);
    if (rc == NB_OK)
        rc = cut(r, &ids, frame.n ? frame.p[0] : -1, len, err);
    *bos = frame.n > 0;
    nb_err_at(err, path, NULL);
    nb_ids_clear(&ids);
    nb_ids_clear(&frame);
    nb_free(text);
    if (rc != NB_OK)
        nb_idrows_clear(r);
    return rc;
}
