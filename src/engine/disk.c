/* disk.c - the disk tier of the prefix cache: blocks that were computed before a restart are read instead of computed again.
 *
 * A file holds up to RUN_BLOCKS blocks that follow each other and is named by the hash of the first one, which stands for all
 * tokens before it, the model, and the tenant. Runs are written when the engine is told to (nb_engine_save_cache), and read when a
 * request is admitted and memory does not have its next block. What is not exactly as expected is a miss, and the file goes.
 *
 *   0    "nibblekv"           96   blocks in this file, then 0
 *   8    version, tokens of a block, type of keys and values, numerics (u32 each)
 *   24   bytes of a block (u64)
 *   32   fingerprint of the model
 *   64   hash of the block before the first one, or the root of the chain
 *   104  SHA-256 of the directory's secret and of all bytes but these
 *   136  token ids of all blocks, then the keys and values of each
 *
 * All integers are little-endian. Source: spec serving 2.8, KV-27. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/cpu.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "engine/engine_priv.h"

enum {
    VERSION = 1,
    RUN_BLOCKS = 16,
    CHECKED = 104, /* bytes of the header before its checksum */
    HEAD = CHECKED + 32,
    IDS_BYTES = 4 * NB_PAGE,
    NAME = 67,     /* 64 digits, ".kv" */
    STALE_S = 3600 /* a temporary name so old was left by a process that was killed */
};

typedef struct kept {
    char name[NAME + 1];
    uint64_t bytes;
    struct timespec used;
} kept;

struct nb_disk {
    char *path; /* of the directory, with room for a name after path[dir] */
    size_t dir;
    size_t page_bytes;
    kept *files; /* while runs are written: what was there before, longest unused first */
    size_t n_files, cap_files, first;
    uint64_t total;
};

/* ---- names ---- */

static const char *path_of(nb_disk *d, const char *name)
{
    snprintf(d->path + d->dir, NAME + 2, "/%s", name);
    return d->path;
}

static void name_of(const nb_hash *h, char out[NAME + 1])
{
    for (size_t i = 0; i < sizeof h->b; i++)
        snprintf(out + 2 * i, 3, "%02x", h->b[i]);
    memcpy(out + 2 * sizeof h->b, ".kv", 4);
}

static bool is_run(const char *name)
{
    return strlen(name) == NAME && strspn(name, "0123456789abcdef") == NAME - 3 && strcmp(name + NAME - 3, ".kv") == 0;
}

/* The file was used now. Of one chain the beginning stays longest: the rest cannot be found without it. */
static void touch(const char *path, size_t block)
{
    struct timespec t[2] = { { 0 } };

    clock_gettime(CLOCK_REALTIME, &t[0]);
    t[0].tv_sec -= (time_t)(block / RUN_BLOCKS);
    t[1] = t[0];
    utimensat(AT_FDCWD, path, t, AT_SYMLINK_NOFOLLOW);
}

/* ---- opening ---- */

/* The secret that roots all chains of this directory; made when it is new. */
static nb_status read_secret(nb_engine *e, nb_err *err)
{
    const char *path = path_of(e->disk, "secret");
    nb_out *o = NULL;
    char *p = NULL;
    size_t n;
    nb_status rc;

    if (access(path, F_OK) != 0) {
        rc = nb_out_open(&o, path, false, err);
        if (rc == NB_OK && (rc = nb_out_private(o, err)) == NB_OK)
            rc = nb_out_write(o, e->o.secret, sizeof e->o.secret, err);
        if (rc == NB_OK)
            return nb_out_commit(o, err);
        nb_out_abort(o);
        return rc;
    }
    rc = nb_read_file(path, 4096, &p, &n, err);
    if (rc == NB_OK && n != sizeof e->o.secret) {
        rc = nb_fail(err, NB_EFORMAT, "disk.secret", "KV-27", "%zu bytes, a secret has %zu; remove the directory, it is only a cache", n,
                     sizeof e->o.secret);
        nb_err_at(err, path, NULL);
    }
    if (rc == NB_OK)
        memcpy(e->o.secret, p, sizeof e->o.secret);
    if (p)
        nb_wipe(p, n);
    nb_free(p);
    return rc;
}

nb_status nb_disk_open(nb_engine *e, nb_err *err)
{
    const char *dir = e->o.disk_dir;
    const size_t bytes = dir ? nb_exec_page_bytes(e->exec) : 0;
    char why[128];
    nb_disk *d;

    if (!dir)
        return NB_OK;
    if (bytes == 0 || e->states || e->near)
        return nb_fail(err, NB_EUNSUPPORTED, "disk.model", "KV-27",
                       "the disk tier keeps whole blocks of keys and values; this model %s, leave out --prefix-cache-dir",
                       e->states ? "keeps states of recurrent layers too"
                       : e->near ? "keeps only a window of some layers"
                                 : "does not give them out");
    d = e->disk = nb_calloc(1, sizeof *d);
    d = d && (d->path = nb_alloc(strlen(dir) + NAME + 2)) ? d : NULL;
    if (!d)
        return nb_enomem(err, "the disk tier");
    d->dir = strlen(dir);
    memcpy(d->path, dir, d->dir + 1);
    d->page_bytes = bytes;
    if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
        const bool known = strerror_r(errno, why, sizeof why) == 0;
        const nb_status rc = nb_fail(err, NB_EWRITE, "out.write", "KV-27", "making the directory failed: %s", known ? why : "unknown");

        nb_err_at(err, dir, NULL);
        return rc;
    }
    return read_secret(e, err);
}

void nb_disk_close(nb_engine *e)
{
    nb_disk *d = e->disk;

    if (!d)
        return;
    nb_free(d->files);
    nb_free(d->path);
    nb_free(d);
    e->disk = NULL;
}

/* ---- a run ---- */

static size_t run_bytes(const nb_disk *d, size_t n)
{
    return HEAD + n * (IDS_BYTES + d->page_bytes);
}

/* The checked part of the header that n blocks after `before` must have. */
static void put_head(const nb_engine *e, const nb_hash *before, size_t n, unsigned char *h)
{
    memset(h, 0, CHECKED);
    memcpy(h, "nibblekv", 8);
    nb_put_le32(h + 8, VERSION);
    nb_put_le32(h + 12, NB_PAGE);
    nb_put_le32(h + 16, (uint32_t)e->o.kv_dtype);
    nb_put_le32(h + 20, (uint32_t)e->o.a8 | (uint32_t)e->o.exact_fp32 << 1);
    nb_put_le64(h + 24, e->disk->page_bytes);
    memcpy(h + 32, e->o.fingerprint, sizeof e->o.fingerprint);
    memcpy(h + 64, before->b, sizeof before->b);
    nb_put_le32(h + 96, (uint32_t)n);
}

static void checksum(const nb_engine *e, const unsigned char *run, size_t n, uint8_t out[32])
{
    nb_sha256 s;

    nb_sha256_init_by(&s, nb_kern_sha256(nb_cpu_features()));
    nb_sha256_add(&s, e->o.secret, sizeof e->o.secret);
    nb_sha256_add(&s, run, CHECKED);
    nb_sha256_add(&s, run + HEAD, n - HEAD);
    nb_sha256_end(&s, out);
}

/* How many blocks of a file are those that begin with ids (of `most` blocks); 0: it is not what it should be. */
static size_t check_run(const nb_engine *e, const unsigned char *run, size_t bytes, const nb_hash *before, const int32_t *ids, size_t most)
{
    unsigned char want[CHECKED];
    uint8_t sum[32];
    size_t n, same = 0;

    if (bytes < HEAD)
        return 0;
    n = nb_le32(run + 96);
    if (n == 0 || n > RUN_BLOCKS || bytes != run_bytes(e->disk, n))
        return 0;
    put_head(e, before, n, want);
    checksum(e, run, bytes, sum);
    if (memcmp(run, want, CHECKED) != 0 || !nb_same_bytes(sum, run + CHECKED, sizeof sum))
        return 0;
    for (size_t i = 0; same < n && same < most; i++) {
        if (nb_le32(run + HEAD + 4 * i) != (uint32_t)ids[i])
            return same;
        same += (i + 1) % NB_PAGE == 0;
    }
    return same;
}

/* ---- reading ---- */

/* Would the file have more than `skip` of these blocks, by what it says itself? Its end is not looked at. */
static bool promises(const char *path, const int32_t *ids, size_t skip)
{
    unsigned char h[HEAD + RUN_BLOCKS * IDS_BYTES];
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const size_t want = HEAD + (skip + 1) * IDS_BYTES;
    const ssize_t n = fd < 0 ? -1 : pread(fd, h, want, 0);
    bool same = n == (ssize_t)want && nb_le32(h + 96) > skip;

    if (fd >= 0)
        close(fd);
    for (size_t i = 0; same && i < (skip + 1) * NB_PAGE; i++)
        same = nb_le32(h + HEAD + 4 * i) == (uint32_t)ids[i];
    return same;
}

/* Blocks of s from `at` on that the file of the run from `start` on has, into free pages, published. Returns how many. */
static size_t read_run(nb_engine *e, nb_seq *s, size_t start, size_t at, size_t most)
{
    nb_disk *d = e->disk;
    const int32_t *ids = s->ids + start * NB_PAGE;
    char name[NAME + 1], *run;
    size_t bytes, n, b = at;
    nb_err err = { 0 };
    nb_status rc;

    name_of(nb_prefix_hash(s, start), name);
    if (start < at && !promises(path_of(d, name), ids, at - start))
        return 0;
    rc = nb_read_file(path_of(d, name), run_bytes(d, RUN_BLOCKS), &run, &bytes, &err);
    if (rc == NB_ENOMEM || (rc != NB_OK && access(d->path, F_OK) != 0))
        return 0;
    n = rc == NB_OK ? check_run(e, (unsigned char *)run, bytes, nb_prefix_before(s, start), ids, most - start) : 0;
    if (n == 0) {
        unlink(d->path);
        e->st.disk_faults++;
    } else {
        touch(d->path, start);
    }
    for (; b < start + n && e->kv.n_free > e->kv.n_reserved; b++) {
        const size_t all = nb_le32(run + 96);
        const uint32_t page = nb_kv_alloc(&e->kv);

        nb_exec_load_page(e->exec, page, (unsigned char *)run + HEAD + all * IDS_BYTES + (b - start) * d->page_bytes);
        nb_kv_publish(&e->kv, page, b ? s->pages[b - 1] : 0, nb_prefix_before(s, b), nb_prefix_hash(s, b), s->ids + b * NB_PAGE);
        e->kv.block[page].proven = e->kv.block[page].on_disk = true;
        e->kv.block[page].stamp = 0;
        s->pages[b] = page;
    }
    nb_free(run);
    return b - at;
}

/* Blocks of s from `at` on: their run begins there, or with one before of which memory has the beginning. */
static size_t read_on(nb_engine *e, nb_seq *s, size_t at, size_t most)
{
    for (size_t back = 0; back <= at && back < RUN_BLOCKS; back++) {
        const size_t got = read_run(e, s, at - back, at, most);

        if (got)
            return got;
    }
    return 0;
}

void nb_disk_fetch(nb_engine *e, nb_seq *s)
{
    const size_t most = (s->n_ids - 1) / NB_PAGE;
    size_t n, got;

    if (!e->disk || s->req->fetched || s->n_pages > 0)
        return;
    s->req->fetched = true;
    n = nb_prefix_find(e, s);
    for (size_t i = 0; i < n; i++)
        nb_kv_ref(&e->kv, s->pages[i]); /* or they might be taken for the others */
    while (n < most && nb_prefix_reads(e, s) && (got = read_on(e, s, n, most)) > 0) {
        n += got;
        e->st.disk_tokens += got * NB_PAGE;
    }
    nb_kv_release(&e->kv, s->pages, n);
}

/* ---- writing ---- */

static int by_use(const void *a, const void *b)
{
    const struct timespec *x = &((const kept *)a)->used, *y = &((const kept *)b)->used;

    if (x->tv_sec != y->tv_sec)
        return x->tv_sec < y->tv_sec ? -1 : 1;
    return x->tv_nsec < y->tv_nsec ? -1 : x->tv_nsec > y->tv_nsec;
}

static bool add_kept(nb_disk *d, const char *name, const struct stat *st)
{
    if (d->n_files == d->cap_files) {
        const size_t cap = d->cap_files ? 2 * d->cap_files : 64;
        kept *p = nb_alloc_array(cap, sizeof *p);

        if (!p)
            return false;
        if (d->n_files)
            memcpy(p, d->files, d->n_files * sizeof *p);
        nb_free(d->files);
        d->files = p;
        d->cap_files = cap;
    }
    memcpy(d->files[d->n_files].name, name, NAME + 1); /* is_run() */
    d->files[d->n_files].bytes = (uint64_t)st->st_size;
    d->files[d->n_files++].used = st->st_mtim;
    d->total += (uint64_t)st->st_size;
    return true;
}

/* What is in the directory; temporaries that a killed process left are removed. */
static nb_status list(nb_disk *d, nb_err *err)
{
    const time_t now = time(NULL);
    nb_status rc = NB_OK;
    DIR *dir;

    d->n_files = d->first = 0;
    d->total = 0;
    d->path[d->dir] = 0;
    dir = opendir(d->path);
    if (!dir) {
        rc = nb_fail(err, NB_EOPEN, "io.permission", "KV-27", "the directory of the prefix cache cannot be read");
        nb_err_at(err, d->path, NULL);
        return rc;
    }
    for (const struct dirent *f; rc == NB_OK && (f = readdir(dir));) {
        struct stat st;

        if (fstatat(dirfd(dir), f->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
            continue;
        if (is_run(f->d_name))
            rc = add_kept(d, f->d_name, &st) ? NB_OK : nb_enomem(err, "the files of the prefix cache");
        else if (strstr(f->d_name, ".kv.nibble-") && now - st.st_mtim.tv_sec > STALE_S)
            unlinkat(dirfd(dir), f->d_name, 0);
    }
    closedir(dir);
    if (d->n_files)
        qsort(d->files, d->n_files, sizeof *d->files, by_use);
    return rc;
}

/* Remove the longest unused until so many bytes fit. false: they do not, beside what was written just now. */
static bool make_room(const nb_engine *e, uint64_t bytes)
{
    nb_disk *d = e->disk;

    if (bytes > e->o.disk_bytes)
        return false;
    while (d->first < d->n_files && d->total > e->o.disk_bytes - bytes) {
        const kept *k = &d->files[d->first++];

        unlink(path_of(d, k->name));
        d->total -= k->bytes;
    }
    return d->total <= e->o.disk_bytes - bytes;
}

/* A file of that name is written anew: it is not one of the old ones any more. */
static void replace(nb_disk *d, const char *name)
{
    for (size_t i = d->first; i < d->n_files; i++)
        if (strcmp(d->files[i].name, name) == 0) {
            unlink(path_of(d, name));
            d->total -= d->files[i].bytes;
            memmove(&d->files[i], &d->files[i + 1], (--d->n_files - i) * sizeof *d->files);
            return;
        }
}

static nb_status put_file(nb_disk *d, const char *name, const unsigned char *run, size_t bytes, nb_err *err)
{
    nb_out *o;
    nb_status rc = nb_out_open(&o, path_of(d, name), true, err);

    if (rc == NB_OK && (rc = nb_out_private(o, err)) == NB_OK)
        rc = nb_out_write(o, run, bytes, err);
    if (rc == NB_OK)
        return nb_out_commit(o, err);
    nb_out_abort(o);
    return rc;
}

/* n blocks of a chain, of which the first is number `at`. *full: there was no room for them. */
static nb_status write_run(nb_engine *e, const uint32_t *pages, size_t n, size_t at, bool *full, nb_err *err)
{
    nb_disk *d = e->disk;
    const size_t bytes = run_bytes(d, n);
    const nb_kv_block *b = &e->kv.block[pages[0]];
    char name[NAME + 1];
    unsigned char *run;
    nb_status rc;

    name_of(&b->hash, name);
    replace(d, name);
    *full = !make_room(e, bytes);
    if (*full)
        return NB_OK;
    run = nb_alloc(bytes);
    if (!run)
        return nb_enomem(err, "a file of the prefix cache");
    put_head(e, &b->parent_hash, n, run);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < NB_PAGE; k++)
            nb_put_le32(run + HEAD + i * IDS_BYTES + 4 * k, (uint32_t)e->kv.block[pages[i]].ids[k]);
        nb_exec_save_page(e->exec, pages[i], run + HEAD + n * IDS_BYTES + i * d->page_bytes);
    }
    checksum(e, run, bytes, run + CHECKED);
    rc = put_file(d, name, run, bytes, err);
    nb_free(run);
    if (rc != NB_OK)
        return rc;
    touch(path_of(d, name), at);
    d->total += bytes;
    for (size_t i = 0; i < n; i++)
        e->kv.block[pages[i]].on_disk = true;
    return NB_OK;
}

/* The block before p as p was published, or 0. *whole: the chain can be found from its beginning so far. */
static uint32_t parent_of(const nb_kv *kv, uint32_t p, bool *whole)
{
    const nb_kv_block *b = &kv->block[p], *up = &kv->block[b->parent];

    *whole = b->published && b->proven && (b->parent == 0 || (up->published && up->gen == b->parent_gen));
    return *whole ? b->parent : 0;
}

/* What the disk does not have of the chain that ends with `leaf`. chain: [n_pages] scratch. */
static nb_status write_chain(nb_engine *e, uint32_t leaf, uint32_t *chain, bool *full, nb_err *err)
{
    size_t n = 0, at = 0;
    bool whole = true;
    nb_status rc = NB_OK;

    for (uint32_t p = leaf; p && whole; p = parent_of(&e->kv, p, &whole))
        chain[n++] = p;
    if (!whole)
        return NB_OK;
    for (size_t i = 0; i < n / 2; i++) {
        const uint32_t p = chain[i];
        chain[i] = chain[n - 1 - i];
        chain[n - 1 - i] = p;
    }
    while (at < n && rc == NB_OK && !*full) {
        size_t k = 0;

        while (at + k < n && k < RUN_BLOCKS && !e->kv.block[chain[at + k]].on_disk)
            k++;
        if (k)
            rc = write_run(e, chain + at, k, at, full, err);
        at += k ? k : 1;
    }
    return rc;
}

nb_status nb_engine_save_cache(nb_engine *e, nb_err *err)
{
    const nb_kv *kv = &e->kv;
    uint32_t *chain;
    bool full = false;
    nb_status rc;

    if (!e->disk)
        return NB_OK;
    chain = nb_alloc_array(kv->n_pages, sizeof *chain);
    rc = chain ? list(e->disk, err) : nb_enomem(err, "the list of cached blocks");
    for (uint32_t p = kv->block[0].prev; rc == NB_OK && p && !full; p = kv->block[p].prev) /* used last comes first */
        if (kv->block[p].published && kv->block[p].n_children == 0)
            rc = write_chain(e, p, chain, &full, err);
    if (rc == NB_OK)
        make_room(e, 0);
    nb_free(chain);
    return rc;
}

void nb_disk_reset(nb_engine *e)
{
    nb_disk *d = e->disk;

    if (!d)
        return;
    for (size_t p = 0; p < e->kv.n_pages; p++)
        e->kv.block[p].on_disk = false;
    list(d, NULL);
    while (d->first < d->n_files)
        unlink(path_of(d, d->files[d->first++].name));
}
