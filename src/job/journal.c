/* journal.c - see journal.h. */
#include "job/journal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/tmpname.h"
#include "kern/kern.h"

#define MANIFEST_LIMIT ((size_t)256 << 20)

struct nb_journal {
    char *dir, *staging, *manifest;
    int fd;         /* of dir, locked */
    nb_json *all;   /* the manifest */
    bool untouched; /* another job's: nothing may be removed */
};

static char *join(const char *a, const char *b)
{
    nb_buf s = { 0 };

    nb_buf_printf(&s, "%s%s", a, b);
    if (s.failed)
        nb_buf_clear(&s);
    return s.p;
}

char *nb_journal_path(const char *output)
{
    size_t n = strlen(output);
    nb_buf b = { 0 };

    while (n > 1 && output[n - 1] == '/')
        n--;
    nb_buf_put(&b, output, n);
    nb_buf_puts(&b, ".nibble-job");
    if (b.failed)
        nb_buf_clear(&b);
    return b.p;
}

/* ---- files ---- */

static void inputs_name(char out[32], size_t block)
{
    snprintf(out, 32, "inputs-%05zu", block);
}

/* Remove what lies in the directory and is ours: all, or all that the manifest does not name. Never through a link. */
static void sweep(const nb_journal *j, bool all)
{
    const int fd = open(j->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    char now[32];
    struct dirent *e;

    if (!d) {
        if (fd >= 0)
            close(fd);
        return;
    }
    inputs_name(now, nb_journal_blocks(j));
    while ((e = readdir(d))) {
        const char *name = e->d_name;
        const bool tmp = strstr(name, ".nibble-") != NULL, inputs = strncmp(name, "inputs-", 7) == 0;
        if (tmp || (inputs && (all || strcmp(name, now) != 0)) || (all && strcmp(name, "job.json") == 0))
            unlinkat(dirfd(d), name, 0);
    }
    closedir(d);
    if (all)
        nb_remove_tree(j->staging);
}

static nb_status save(const nb_journal *j, nb_err *err)
{
    char *text = nb_json_dump(j->all, 1, false);
    nb_out *o = NULL;
    nb_status rc = text ? nb_out_open(&o, j->manifest, true, err) : nb_enomem(err, "the record of the job");

    if (rc == NB_OK)
        rc = nb_out_write(o, text, strlen(text), err);
    if (rc == NB_OK)
        rc = nb_out_commit(o, err);
    else
        nb_out_abort(o);
    nb_free(text);
    return rc;
}

/* ---- open ---- */

/* The directory, locked. A process that removes it at its end may do so between our two steps: try again then. */
static nb_status lock_dir(nb_journal *j, nb_err *err)
{
    for (int tries = 0; tries < 100; tries++) {
        struct stat a, b;

        if (mkdir(j->dir, 0777) != 0 && errno != EEXIST)
            return nb_write_failed(err, errno, j->dir, "creating the directory");
        j->fd = open(j->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (j->fd < 0 && errno == ENOENT)
            continue;
        if (j->fd < 0)
            return nb_write_failed(err, errno, j->dir, "opening");
        if (flock(j->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
            nb_fail(err, NB_EBUSY, "job.busy", "", "another process is working on this output");
            nb_err_at(err, j->dir, NULL);
            return NB_EBUSY;
        }
        if (fstat(j->fd, &a) == 0 && lstat(j->dir, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev)
            return NB_OK;
        close(j->fd);
        j->fd = -1;
    }
    return nb_write_failed(err, EBUSY, j->dir, "locking");
}

/* The manifest, when there is one that makes sense. */
static nb_json *load(const nb_journal *j)
{
    nb_err ignored = { 0 };
    nb_json *v = NULL;

    if (nb_json_parse_file(j->manifest, MANIFEST_LIMIT, "job", &v, &ignored) != NB_OK)
        return NULL;
    if (nb_json_int(nb_json_get(v, "nibble_job"), 0) == 1 && nb_json_typeof(nb_json_get(v, "recipe")) == NB_JOBJ &&
        nb_json_typeof(nb_json_get(v, "blocks")) == NB_JARR)
        return v;
    nb_json_free(v);
    return NULL;
}

static void value_text(const nb_json *v, char out[100])
{
    char *text = v ? nb_json_dump(v, 0, true) : NULL;

    snprintf(out, 100, "%.96s", text ? text : "nothing");
    nb_free(text);
}

/* The first field in which the two recipes differ. */
static nb_status compare(const nb_journal *j, const nb_json *mine, nb_err *err)
{
    const nb_json *old = nb_json_get(j->all, "recipe"), *both[2] = { mine, old };

    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < nb_json_len(both[side]); i++) {
            const char *key;
            char a[100], b[100];

            nb_json_member(both[side], i, &key);
            if (nb_json_equal(nb_json_get(old, key), nb_json_get(mine, key)) && nb_json_get(old, key) && nb_json_get(mine, key))
                continue;
            value_text(nb_json_get(old, key), a);
            value_text(nb_json_get(mine, key), b);
            nb_fail(err, NB_EMISMATCH, "job.mismatch", "",
                    "an unfinished job for this output has another %s: %s, now %s; give the same inputs and options to finish it, or "
                    "--restart to drop it",
                    key, a, b);
            nb_err_at(err, j->dir, NULL);
            return NB_EMISMATCH;
        }
    return NB_OK;
}

static nb_status begin(nb_journal *j, nb_json *recipe, nb_err *err)
{
    nb_json *all = nb_json_new_obj();
    const bool ok = nb_json_set(all, "nibble_job", nb_json_new_int(1)) && nb_json_set(all, "recipe", recipe) &&
                    nb_json_set(all, "blocks", nb_json_new_arr());

    nb_json_free(j->all);
    j->all = all;
    sweep(j, true);
    return ok ? save(j, err) : nb_enomem(err, "the record of the job");
}

nb_status nb_journal_open(nb_journal **out, const char *output, nb_json *recipe, bool restart, nb_err *err)
{
    nb_journal *j = nb_calloc(1, sizeof *j);
    nb_status rc = NB_OK;

    *out = NULL;
    if (j) {
        j->fd = -1;
        j->untouched = true;
        j->dir = nb_journal_path(output);
        j->staging = j->dir ? join(j->dir, "/result") : NULL;
        j->manifest = j->dir ? join(j->dir, "/job.json") : NULL;
    }
    if (!j || !j->staging || !j->manifest || !recipe)
        rc = nb_enomem(err, "the record of the job");
    if (rc == NB_OK)
        rc = lock_dir(j, err);
    if (rc == NB_OK)
        j->all = load(j);
    if (rc == NB_OK && j->all && !restart && (nb_journal_blocks(j) > 0 || nb_journal_finished(j))) {
        rc = compare(j, recipe, err);
        nb_json_free(recipe);
        if (rc == NB_OK)
            sweep(j, false);
    } else if (rc == NB_OK) {
        rc = begin(j, recipe, err);
    } else {
        nb_json_free(recipe);
    }
    if (rc == NB_OK) {
        j->untouched = false;
        *out = j;
    } else {
        nb_journal_close(j, true);
    }
    return rc;
}

const char *nb_journal_dir(const nb_journal *j)
{
    return j->dir;
}

const char *nb_journal_staging(const nb_journal *j)
{
    return j->staging;
}

size_t nb_journal_blocks(const nb_journal *j)
{
    return nb_json_len(nb_json_get(j->all, "blocks"));
}

const nb_json *nb_journal_block(const nb_journal *j, size_t i)
{
    return nb_json_at(nb_json_get(j->all, "blocks"), i);
}

/* ---- activations ---- */

static void hex(nb_sha256 *s, char out[65])
{
    uint8_t sum[32];

    nb_sha256_end(s, sum);
    for (int i = 0; i < 32; i++)
        snprintf(out + 2 * i, 3, "%02x", sum[i]);
}

static char *inputs_path(const nb_journal *j, size_t block)
{
    char name[32];
    nb_buf b = { 0 };

    inputs_name(name, block);
    nb_buf_printf(&b, "%s/%s", j->dir, name);
    if (b.failed)
        nb_buf_clear(&b);
    return b.p;
}

static nb_status write_inputs(const nb_journal *j, size_t block, const nb_spill *h, size_t n, char sum[65], nb_err *err)
{
    const size_t step = (size_t)1 << 20;
    char *path = inputs_path(j, block);
    nb_sha256 s;
    nb_out *o = NULL;
    nb_status rc = path ? nb_out_open(&o, path, true, err) : nb_enomem(err, "a path");

    nb_sha256_init_by(&s, nb_kern_sha256(nb_cpu_features()));
    for (size_t at = 0; rc == NB_OK && at < n; at += step) {
        const size_t m = n - at < step ? n - at : step;
        nb_sha256_add(&s, h->p + at, m * sizeof *h->p);
        rc = nb_out_write(o, h->p + at, m * sizeof *h->p, err);
        nb_spill_settle(h);
    }
    hex(&s, sum);
    if (rc == NB_OK)
        rc = nb_out_commit(o, err);
    else
        nb_out_abort(o);
    nb_free(path);
    return rc;
}

/* Read the file of activations, into h unless it is NULL; false when it is not what was written. */
static bool read_inputs(const nb_journal *j, nb_spill *h, size_t bytes, const char *path)
{
    const size_t step = (size_t)4 << 20;
    const int fd = path ? open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC) : -1;
    char *buf = h ? NULL : nb_alloc(step), sum[65];
    bool good = fd >= 0 && (h || buf);
    nb_sha256 s;

    nb_sha256_init_by(&s, nb_kern_sha256(nb_cpu_features()));
    for (size_t at = 0; good && at < bytes;) {
        char *to = h ? (char *)h->p + at : buf;
        const ssize_t r = read(fd, to, bytes - at < step ? bytes - at : step);
        if (r < 0 && errno == EINTR)
            continue;
        if (r == 0 && !h)
            break;
        good = r > 0;
        if (good) {
            nb_sha256_add(&s, to, (size_t)r);
            at += (size_t)r;
        }
        if (h)
            nb_spill_settle(h);
    }
    hex(&s, sum);
    if (fd >= 0)
        close(fd);
    nb_free(buf);
    return good && strcmp(sum, nb_json_str(nb_json_get(j->all, "inputs"), "")) == 0;
}

bool nb_journal_good_inputs(const nb_journal *j)
{
    char *path = inputs_path(j, nb_journal_blocks(j));
    const bool good = !*nb_json_str(nb_json_get(j->all, "inputs"), "") || read_inputs(j, NULL, SIZE_MAX, path);

    nb_free(path);
    return good;
}

nb_status nb_journal_inputs(const nb_journal *j, nb_spill *h, size_t n, nb_err *err)
{
    char *path = inputs_path(j, nb_journal_blocks(j));
    nb_status rc = NB_OK;

    if (!read_inputs(j, h, n * sizeof *h->p, path)) {
        rc = nb_fail(err, NB_EREAD, "job.inputs", "", "the kept activations are not what was written");
        nb_err_at(err, path, NULL);
    }
    nb_free(path);
    return rc;
}

/* ---- record ---- */

nb_status nb_journal_add(nb_journal *j, nb_json *blocks, const nb_spill *h, size_t n, nb_err *err)
{
    nb_json *all = nb_json_copy(j->all), *list;
    const size_t more = nb_json_len(blocks);
    bool ok = all && blocks;
    char sum[65] = "";
    nb_status rc = NB_OK;

    if (ok && h)
        rc = write_inputs(j, nb_journal_blocks(j) + more, h, n, sum, err);
    list = ok ? nb_json_copy(nb_json_get(all, "blocks")) : NULL;
    for (size_t i = 0; ok && i < more; i++)
        ok = nb_json_push(list, nb_json_copy(nb_json_at(blocks, i)));
    if (!ok)
        nb_json_free(list);
    ok = ok && nb_json_set(all, "blocks", list) && nb_json_set(all, "inputs", nb_json_new_str(sum));
    nb_json_free(blocks);
    if (rc == NB_OK && !ok)
        rc = nb_enomem(err, "the record of the job");
    if (rc == NB_OK) {
        nb_json *was = j->all;
        j->all = all;
        all = was;
        rc = save(j, err);
        if (rc != NB_OK) { /* not on disk: the record before it counts */
            all = j->all;
            j->all = was;
        }
    }
    nb_json_free(all);
    sweep(j, false);
    return rc;
}

nb_status nb_journal_forget(nb_journal *j, nb_err *err)
{
    return begin(j, nb_json_copy(nb_json_get(j->all, "recipe")), err);
}

nb_status nb_journal_finish(nb_journal *j, nb_err *err)
{
    return nb_json_set(j->all, "finished", nb_json_new_bool(true)) ? save(j, err) : nb_enomem(err, "the record of the job");
}

bool nb_journal_finished(const nb_journal *j)
{
    struct stat st;

    return nb_json_bool(nb_json_get(j->all, "finished"), false) && lstat(j->staging, &st) != 0 && errno == ENOENT;
}

void nb_journal_close(nb_journal *j, bool keep)
{
    if (!j)
        return;
    if (!keep && !j->untouched) {
        sweep(j, true);
        rmdir(j->dir);
    }
    if (j->fd >= 0)
        close(j->fd);
    nb_json_free(j->all);
    nb_free(j->dir);
    nb_free(j->staging);
    nb_free(j->manifest);
    nb_free(j);
}
