/* topk.c - see topk.h. */
#include "job/topk.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"

static const char magic[8] = { 'N', 'B', 'T', 'O', 'P', 'K', '1', '\n' };

enum { HEAD_LIMIT = 64 << 10 };

struct nb_topk_writer {
    nb_topk_head head;
    char *path, *partial;
    size_t data;
    int fd;
};

size_t nb_topk_bytes(size_t k)
{
    return 8 + 8 * k;
}

/* ---- records ---- */

/* A heap of indices, the least likely on top: order by value, of equal ones the higher id is less likely. */
static bool less(const float *x, uint32_t a, uint32_t b)
{
    return x[a] < x[b] || (x[a] == x[b] && a > b);
}

static void sift(const float *x, uint32_t *h, size_t n, size_t at)
{
    for (;;) {
        size_t low = at;
        for (size_t c = 2 * at + 1; c <= 2 * at + 2 && c < n; c++)
            low = less(x, h[c], h[low]) ? c : low;
        if (low == at)
            return;
        const uint32_t t = h[at];
        h[at] = h[low];
        h[low] = t;
        at = low;
    }
}

void nb_topk_pack(unsigned char *out, const float *x, size_t v, size_t k, size_t next, uint32_t *scratch)
{
    uint32_t *h = scratch;
    double sum = 0, rest = 0;

    for (size_t i = 0; i < k; i++)
        h[i] = (uint32_t)i;
    for (size_t i = k / 2; i-- > 0;)
        sift(x, h, k, i);
    for (size_t i = k; i < v; i++)
        if (less(x, h[0], (uint32_t)i)) {
            h[0] = (uint32_t)i;
            sift(x, h, k, 0);
        }
    for (size_t n = k; n > 1; n--) { /* the least likely to the end, one after the other */
        const uint32_t t = h[0];
        h[0] = h[n - 1];
        h[n - 1] = t;
        sift(x, h, n - 1, 0);
    }
    const double top = (double)x[h[0]];
    const float edge = x[h[k - 1]];
    for (size_t i = 0; i < v; i++) {
        const double e = exp((double)x[i] - top);
        sum += e;
        rest += x[i] < edge || (x[i] == edge && i > h[k - 1]) ? e : 0;
    }
    const double lse = top + log(sum);
    nb_put_le32(out, nb_bits_from_f32(next < v ? (float)(lse - (double)x[next]) : NAN));
    nb_put_le32(out + 4, nb_bits_from_f32(rest > 0 ? (float)log(rest / sum) : -INFINITY));
    for (size_t i = 0; i < k; i++) {
        nb_put_le32(out + 8 + 4 * i, h[i]);
        nb_put_le32(out + 8 + 4 * (k + i), nb_bits_from_f32((float)((double)x[h[i]] - lse)));
    }
}

/* ---- header ---- */

static char *head_text(const nb_topk_head *h, size_t *n)
{
    char ids[24], fixed[16];
    nb_json *o = nb_json_new_obj();
    nb_buf b = { 0 };
    char *text = NULL;

    snprintf(ids, sizeof ids, "%016" PRIx64, h->ids);
    if (nb_json_set(o, "version", nb_json_new_int(1)) && nb_json_set(o, "vocab", nb_json_new_int((int64_t)h->vocab)) &&
        nb_json_set(o, "k", nb_json_new_int((int64_t)h->k)) && nb_json_set(o, "positions", nb_json_new_int((int64_t)h->positions)) &&
        nb_json_set(o, "protocol", nb_json_new_str(h->protocol)) && nb_json_set(o, "ids", nb_json_new_str(ids)) &&
        nb_json_set(o, "model", nb_json_new_str(h->model)))
        text = nb_json_dump(o, 0, false);
    nb_json_free(o);
    if (!text)
        return NULL;
    memcpy(fixed, magic, 8);
    nb_put_le64(fixed + 8, strlen(text));
    nb_buf_put(&b, fixed, 16);
    nb_buf_puts(&b, text);
    nb_free(text);
    while (b.n % 64 && !b.failed)
        nb_buf_putc(&b, 0);
    *n = b.n;
    if (!b.failed)
        return b.p;
    nb_buf_clear(&b);
    return NULL;
}

static nb_status parse_head(const unsigned char *p, size_t size, nb_topk_head *h, size_t *data, nb_err *err)
{
    const uint64_t n = size >= 16 ? nb_le64(p + 8) : 0;
    nb_json *o = NULL;
    uint64_t ids = 0;
    nb_status rc;

    if (size < 16 || memcmp(p, magic, 8) != 0 || n == 0 || n > HEAD_LIMIT || n > size - 16)
        return nb_fail(err, NB_EFORMAT, "topk.header", "", "not a file of nibble eval --save-logits, or its header is cut off");
    rc = nb_json_parse((const char *)p + 16, (size_t)n, "topk", 0, &o, err);
    if (rc != NB_OK)
        return rc;
    const int64_t version = nb_json_int(nb_json_get(o, "version"), 0), vocab = nb_json_int(nb_json_get(o, "vocab"), 0),
                  k = nb_json_int(nb_json_get(o, "k"), 0), positions = nb_json_int(nb_json_get(o, "positions"), 0);
    const char *end = nb_num_hex(nb_json_str(nb_json_get(o, "ids"), ""), UINT64_MAX, &ids);
    if (version != 1 || vocab < 1 || vocab > INT32_MAX || k < 1 || k > NB_TOPK_MAX || k > vocab || positions < 1 ||
        positions > (int64_t)1 << 40) {
        rc =
            nb_fail(err, NB_EFORMAT, "topk.header", "", "version %" PRId64 ", %" PRId64 " of %" PRId64 " tokens, %" PRId64 " positions: %s",
                    version, k, vocab, positions, version == 1 ? "sizes out of range" : "only version 1 is known");
    } else if (!end || *end) {
        rc = nb_fail(err, NB_EFORMAT, "topk.header", "", "\"ids\" is no hexadecimal number");
    } else {
        h->vocab = (size_t)vocab;
        h->k = (size_t)k;
        h->positions = (size_t)positions;
        h->ids = ids;
        snprintf(h->protocol, sizeof h->protocol, "%s", nb_json_str(nb_json_get(o, "protocol"), ""));
        snprintf(h->model, sizeof h->model, "%s", nb_json_str(nb_json_get(o, "model"), ""));
        *data = (16 + (size_t)n + 63) / 64 * 64;
    }
    nb_json_free(o);
    return rc;
}

/* ---- reading ---- */

static nb_status check_rows(const nb_topk *t, nb_err *err)
{
    for (size_t i = 0; i < t->head.positions; i++) {
        const nb_topk_row r = nb_topk_at(t, i);
        for (size_t j = 0; j < r.k; j++)
            if (nb_le32(r.ids + 4 * j) >= t->head.vocab)
                return nb_fail(err, NB_EFORMAT, "topk.id", "", "position %zu has token %" PRIu32 " of %zu", i, nb_le32(r.ids + 4 * j),
                               t->head.vocab);
    }
    return NB_OK;
}

nb_status nb_topk_open(nb_topk *t, const char *path, nb_err *err)
{
    nb_status rc;

    memset(t, 0, sizeof *t);
    rc = nb_map_open(&t->map, path, err);
    if (rc == NB_OK)
        rc = parse_head(t->map.base, t->map.size, &t->head, &t->data, err);
    t->record = nb_topk_bytes(t->head.k);
    if (rc == NB_OK &&
        (t->map.size < t->data || (t->map.size - t->data) / t->record != t->head.positions || (t->map.size - t->data) % t->record != 0))
        rc = nb_fail(err, NB_EFORMAT, "topk.size", "", "%zu bytes, %zu records of %zu bytes are announced", t->map.size, t->head.positions,
                     t->record);
    if (rc == NB_OK)
        rc = check_rows(t, err);
    nb_err_at(err, path, NULL);
    if (rc != NB_OK)
        nb_topk_close(t);
    return rc;
}

void nb_topk_close(nb_topk *t)
{
    nb_map_close(&t->map);
    memset(t, 0, sizeof *t);
}

nb_topk_row nb_topk_at(const nb_topk *t, size_t position)
{
    const unsigned char *p = t->map.base + t->data + position * t->record;

    return (nb_topk_row){ .nll = nb_f32_from_bits(nb_le32(p)),
                          .rest = nb_f32_from_bits(nb_le32(p + 4)),
                          .ids = p + 8,
                          .logp = p + 8 + 4 * t->head.k,
                          .k = t->head.k };
}

/* ---- writing ---- */

static nb_status io_fail(const nb_topk_writer *w, nb_err *err)
{
    nb_fail(err, NB_EWRITE, "out.write", "", "%s", strerror(errno));
    nb_err_at(err, w->partial, NULL);
    return NB_EWRITE;
}

static nb_status write_all(nb_topk_writer *w, size_t off, const void *bytes, size_t n, nb_err *err)
{
    const char *p = bytes;

    while (n) {
        const ssize_t got = pwrite(w->fd, p, n, (off_t)off);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return io_fail(w, err);
        p += got;
        off += (size_t)got;
        n -= (size_t)got;
    }
    return NB_OK;
}

/* What an earlier run left: same header, and then whole windows. */
static nb_status resume(nb_topk_writer *w, const char *head, size_t n_head, const size_t *window_end, size_t n_windows, size_t *done,
                        nb_err *err)
{
    const off_t size = lseek(w->fd, 0, SEEK_END);
    char *there = nb_alloc(n_head);
    size_t have, keep = 0;
    nb_status rc = there ? NB_OK : nb_enomem(err, "a header");

    *done = 0;
    if (size < 0)
        rc = io_fail(w, err);
    if (rc == NB_OK && (size_t)size >= n_head) {
        if (pread(w->fd, there, n_head, 0) != (ssize_t)n_head)
            rc = io_fail(w, err);
        else if (memcmp(there, head, n_head) != 0)
            rc = nb_fail(err, NB_EMISMATCH, "eval.topk", "",
                         "%s was begun with another model, text or --top; remove it, or finish that run", w->partial);
        have = ((size_t)size - n_head) / nb_topk_bytes(w->head.k);
        for (size_t i = 0; i < n_windows && window_end[i] <= have; i++)
            keep = window_end[i];
        *done = keep;
    }
    if (rc == NB_OK && ftruncate(w->fd, (off_t)(*done ? n_head + keep * nb_topk_bytes(w->head.k) : 0)) != 0)
        rc = io_fail(w, err);
    if (rc == NB_OK && *done == 0)
        rc = write_all(w, 0, head, n_head, err);
    nb_free(there);
    return rc;
}

nb_status nb_topk_writer_open(nb_topk_writer **out, const char *path, bool force, const nb_topk_head *h, const size_t *window_end,
                              size_t n_windows, size_t *done, nb_err *err)
{
    const size_t partial_size = strlen(path) + sizeof ".partial";
    nb_topk_writer *w = nb_calloc(1, sizeof *w);
    char *head = NULL;
    size_t n_head = 0;
    nb_status rc = NB_OK;

    *out = NULL;
    if (!w)
        return nb_enomem(err, "the file of logits");
    w->fd = -1;
    w->head = *h;
    w->path = nb_strdup(path);
    w->partial = nb_alloc(partial_size);
    head = head_text(h, &n_head);
    if (!w->path || !w->partial || !head)
        rc = nb_enomem(err, "the file of logits");
    if (rc == NB_OK) {
        snprintf(w->partial, partial_size, "%s.partial", path);
        w->data = n_head;
        if (!force && access(path, F_OK) == 0)
            rc = nb_fail(err, NB_EEXISTS, "out.exists", "", "%s is there already; --force replaces it", path);
    }
    if (rc == NB_OK) {
        w->fd = open(w->partial, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        rc = w->fd < 0 ? io_fail(w, err) : resume(w, head, n_head, window_end, n_windows, done, err);
    }
    nb_free(head);
    if (rc != NB_OK)
        nb_topk_writer_close(w);
    else
        *out = w;
    return rc;
}

nb_status nb_topk_writer_put(nb_topk_writer *w, size_t at, const unsigned char *records, size_t n, bool check, nb_err *err)
{
    const size_t size = nb_topk_bytes(w->head.k), off = w->data + at * size;
    unsigned char *there;
    nb_status rc = NB_OK;

    if (!check)
        return write_all(w, off, records, n * size, err);
    there = nb_alloc(n * size);
    if (!there)
        return nb_enomem(err, "records");
    if (pread(w->fd, there, n * size, (off_t)off) != (ssize_t)(n * size))
        rc = io_fail(w, err);
    else if (memcmp(there, records, n * size) != 0)
        rc = nb_fail(err, NB_EMISMATCH, "eval.topk", "", "%s was begun with another model of that name; remove it", w->partial);
    nb_free(there);
    return rc;
}

nb_status nb_topk_writer_finish(nb_topk_writer *w, nb_err *err)
{
    nb_status rc = NB_OK;

    if (fsync(w->fd) != 0 || rename(w->partial, w->path) != 0)
        rc = io_fail(w, err);
    nb_topk_writer_close(w);
    return rc;
}

void nb_topk_writer_close(nb_topk_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    nb_free(w->path);
    nb_free(w->partial);
    nb_free(w);
}
