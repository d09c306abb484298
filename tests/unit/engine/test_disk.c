/* test_disk.c - AT-16, KV-27: blocks on disk over restarts. The fake executor's logits are a hash of the tokens in its pages, so that a
 * block that is not what it should be gives another answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/map.h"
#include "base/sha256.h"
#include "fake_exec.h"

enum { N_PROMPT = 20 * NB_PAGE + 5, N_OUT = 6, FULL = N_PROMPT / NB_PAGE, PAGES = 64, CHECKED = 104, HEAD = 136 };
enum { BLOCK_BYTES = 2 * 4 * NB_PAGE }; /* ids, and the fake's tokens */

static char root[] = "/tmp/nibble-disk-XXXXXX";
static char dir[64];

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static nb_engine *open_engine(nb_engine_opts o, fake **f)
{
    o.context = 2 * N_PROMPT;
    o.max_seqs = 2;
    o.n_pages = PAGES;
    o.disk_dir = dir;
    o.disk_bytes = o.disk_bytes ? o.disk_bytes : 1 << 20;
    return fake_engine(o, f);
}

/* Each test has a directory of its own. */
static void fresh_dir(void)
{
    static int n;

    snprintf(dir, sizeof dir, "%s/%d", root, n++);
}

static void prompt(int32_t *ids, int32_t last)
{
    for (size_t i = 0; i < N_PROMPT; i++)
        ids[i] = (int32_t)(i * i * 3 + i * 7) % VOCAB;
    ids[18 * NB_PAGE] = last; /* in the second file */
}

/* The answer to prompt(last); returns how many of its tokens were cached. */
static size_t ask(nb_engine *e, int32_t last, const uint8_t *ns, int32_t out[N_OUT])
{
    int32_t ids[N_PROMPT];
    const nb_request r = {
        .ids = ids, .n_ids = N_PROMPT, .max_tokens = N_OUT, .ns = ns, .sampling = { .top_p = 1, .repetition_penalty = 1 }
    };
    size_t cached = SIZE_MAX, n;
    const nb_event *ev;
    uint64_t id;

    prompt(ids, last);
    assert_int_equal(nb_engine_add(e, &r, &id, NULL), NB_OK);
    while (!nb_engine_idle(e)) {
        assert_int_equal(nb_engine_step(e, &ev, &n, NULL), NB_OK);
        for (size_t i = 0; i < n; i++) {
            if (ev[i].kind == NB_EV_TOKEN)
                out[ev[i].index] = ev[i].id;
            if (ev[i].kind == NB_EV_DONE) {
                assert_int_equal(ev[i].finish, NB_FINISH_LENGTH);
                cached = ev[i].n_cached;
            }
        }
    }
    return cached;
}

static void save_and_close(nb_engine *e)
{
    assert_int_equal(nb_engine_save_cache(e, NULL), NB_OK);
    nb_engine_close(e);
}

/* The file, of this many blocks, of the directory. */
static void find_run(size_t blocks, char path[512])
{
    DIR *d = opendir(dir);

    assert_non_null(d);
    path[0] = 0;
    for (const struct dirent *f; (f = readdir(d));) {
        struct stat st;
        char at[512];
        snprintf(at, sizeof at, "%s/%s", dir, f->d_name);
        if (stat(at, &st) == 0 && S_ISREG(st.st_mode) && (size_t)st.st_size == HEAD + blocks * BLOCK_BYTES)
            memcpy(path, at, sizeof at);
    }
    closedir(d);
    assert_true(path[0]);
}

static void overwrite(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void fill(int32_t want[N_OUT])
{
    fake *f;
    nb_engine *e;

    fresh_dir();
    e = open_engine((nb_engine_opts){ 0 }, &f);
    assert_int_equal(ask(e, 1, NULL, want), 0);
    save_and_close(e);
}

/* AT-16, first half: a restart hits all full blocks, files and secret are private, and other models and tenants miss. */
static void test_restart(void **state)
{
    static const uint8_t other[32] = { 7 };
    static const struct {
        const char *label;
        nb_engine_opts o;
        const uint8_t *ns;
        int32_t last;
        size_t cached;
    } rows[] = {
        { "the same", { 0 }, NULL, 1, FULL * NB_PAGE },
        { "shared up to the second file", { 0 }, NULL, 2, 18 * NB_PAGE },
        { "another model", { .fingerprint = { 1 } }, NULL, 1, 0 },
        { "another type of keys", { .kv_dtype = NB_DT_F32 }, NULL, 1, 0 },
        { "other numerics", { .a8 = true }, NULL, 1, 0 },
        { "another tenant", { 0 }, other, 1, 0 },
    };
    struct stat st;
    char path[512];

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        int32_t want[N_OUT], got[N_OUT], first[N_OUT];
        nb_engine_stats s;
        fake *f;
        nb_engine *e;
        fill(want);
        e = open_engine(rows[i].o, &f);
        const size_t cached = ask(e, rows[i].last, rows[i].ns, got);
        if (cached / NB_PAGE != rows[i].cached / NB_PAGE)
            fail_msg("%s: %zu tokens were cached, not %zu", rows[i].label, cached, rows[i].cached);
        nb_engine_stats_get(e, &s);
        assert_int_equal(s.disk_tokens, rows[i].cached);
        assert_int_equal(s.disk_faults, 0);
        assert_int_equal(f->rows, N_PROMPT - cached + N_OUT - 1);
        nb_engine_reset_cache(e); /* and without any cache the answer is the same */
        assert_int_equal(ask(e, rows[i].last, rows[i].ns, first), 0);
        assert_memory_equal(first, got, sizeof got);
        nb_engine_close(e);
    }
    snprintf(path, sizeof path, "%s/secret", dir);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    fill((int32_t[N_OUT]){ 0 });
    find_run(FULL - 16, path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

/* The second engine writes only what is new, and a third finds both. */
static void test_added(void **state)
{
    int32_t want[N_OUT], got[N_OUT];
    char path[512];
    fake *f;
    nb_engine *e;

    (void)state;
    fill(want);
    e = open_engine((nb_engine_opts){ 0 }, &f);
    assert_int_equal(ask(e, 2, NULL, want) / NB_PAGE, 18);
    save_and_close(e);
    find_run(FULL - 18, path);
    e = open_engine((nb_engine_opts){ 0 }, &f);
    assert_int_equal(ask(e, 2, NULL, got), FULL * NB_PAGE);
    assert_memory_equal(got, want, sizeof got);
    assert_int_equal(ask(e, 1, NULL, got), FULL * NB_PAGE);
    nb_engine_close(e);
}

static void repair(unsigned char *run, size_t n)
{
    char path[512], *secret;
    size_t n_secret;
    nb_sha256 s;

    snprintf(path, sizeof path, "%s/secret", dir);
    assert_int_equal(nb_read_file(path, 32, &secret, &n_secret, NULL), NB_OK);
    nb_sha256_init(&s);
    nb_sha256_add(&s, secret, n_secret);
    nb_sha256_add(&s, run, CHECKED);
    nb_sha256_add(&s, run + HEAD, n - HEAD);
    nb_sha256_end(&s, run + CHECKED);
    nb_free(secret);
}

/* AT-16, second half: every field wrong, alone, with the old checksum and with one that fits. */
static void test_damage(void **state)
{
    static const struct {
        const char *label;
        size_t at;
        bool repaired;
    } rows[] = {
        { "magic", 0, true },
        { "version", 8, true },
        { "tokens of a block", 12, true },
        { "type of keys and values", 16, true },
        { "numerics", 20, true },
        { "bytes of a block", 24, true },
        { "fingerprint", 32, true },
        { "fingerprint, last byte", 63, true },
        { "hash before", 64, true },
        { "hash before, last byte", 95, true },
        { "blocks", 96, true },
        { "zeros", 100, true },
        { "checksum", 104, false },
        { "checksum, last byte", 135, false },
        { "token ids", HEAD, true },
        { "token ids of a later block", HEAD + 4 * NB_PAGE, false },
        { "keys and values", HEAD + 16 * 4 * NB_PAGE, false },
        { "last byte", HEAD + 16 * BLOCK_BYTES - 1, false },
    };

    (void)state;
    for (size_t i = 0; i < 2 * NB_LEN(rows); i++) {
        const size_t r = i / 2;
        int32_t want[N_OUT], got[N_OUT];
        nb_engine_stats s;
        char path[512], *run;
        size_t n, cached;
        fake *f;
        nb_engine *e;
        if (i % 2 && !rows[r].repaired)
            continue;
        fill(want);
        find_run(16, path);
        assert_int_equal(nb_read_file(path, 1 << 20, &run, &n, NULL), NB_OK);
        run[rows[r].at] ^= 1;
        if (i % 2)
            repair((unsigned char *)run, n);
        overwrite(path, run, n);
        nb_free(run);
        e = open_engine((nb_engine_opts){ 0 }, &f);
        cached = ask(e, 1, NULL, got);
        nb_engine_stats_get(e, &s);
        if (cached != 0 || s.disk_faults != 1 || memcmp(got, want, sizeof got) != 0)
            fail_msg("%s%s: %zu cached, %d faults", rows[r].label, i % 2 ? ", checksum repaired" : "", cached, (int)s.disk_faults);
        assert_int_equal(access(path, F_OK), -1);
        nb_engine_close(e);
    }
}

/* Files of every wrong length, things that are no files, and a directory that went away. */
static void test_not_there(void **state)
{
    static const size_t cuts[] = { 0, 1, 8, HEAD - 1, HEAD, HEAD + 100, HEAD + 16 * BLOCK_BYTES - 1, HEAD + 16 * BLOCK_BYTES + 1 };
    int32_t want[N_OUT], got[N_OUT];
    char path[512], aside[512];
    fake *f;
    nb_engine *e;
    nb_err err = { 0 };

    (void)state;
    for (size_t i = 0; i < NB_LEN(cuts); i++) {
        fill(want);
        find_run(16, path);
        assert_int_equal(truncate(path, (off_t)cuts[i]), 0);
        e = open_engine((nb_engine_opts){ 0 }, &f);
        assert_int_equal(ask(e, 1, NULL, got), 0);
        assert_memory_equal(got, want, sizeof got);
        nb_engine_close(e);
    }
    fill(want);
    find_run(16, path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    e = open_engine((nb_engine_opts){ 0 }, &f);
    assert_int_equal(ask(e, 1, NULL, got), 0);
    assert_memory_equal(got, want, sizeof got);
    snprintf(aside, sizeof aside, "%s.aside", dir);
    assert_int_equal(rename(dir, aside), 0);
    assert_int_equal(nb_engine_save_cache(e, &err), NB_EOPEN);
    assert_int_equal(ask(e, 2, NULL, got) / NB_PAGE, 18);
    nb_engine_close(e);
}

static uint64_t bytes_on_disk(void)
{
    DIR *d = opendir(dir);
    uint64_t all = 0;

    assert_non_null(d);
    for (const struct dirent *f; (f = readdir(d));) {
        struct stat st;
        char at[512];
        snprintf(at, sizeof at, "%s/%s", dir, f->d_name);
        if (strstr(f->d_name, ".kv") && stat(at, &st) == 0)
            all += (uint64_t)st.st_size;
    }
    closedir(d);
    return all;
}

/* The files never take more than was allowed; the longest unused go first; a beginning outlives what follows it. */
static void test_limit(void **state)
{
    const uint64_t one = 2 * HEAD + FULL * BLOCK_BYTES;
    static const uint8_t other[32] = { 7 };
    int32_t want[N_OUT], got[N_OUT];
    fake *f;
    nb_engine *e;

    (void)state;
    fill(want);
    assert_int_equal(bytes_on_disk(), one);
    e = open_engine((nb_engine_opts){ .disk_bytes = one + 5 * BLOCK_BYTES }, &f);
    assert_int_equal(ask(e, 1, other, got), 0);
    save_and_close(e);
    assert_in_range(bytes_on_disk(), one, one + 5 * BLOCK_BYTES);
    e = open_engine((nb_engine_opts){ .disk_bytes = one / 4 }, &f);
    assert_int_equal(ask(e, 1, other, got), FULL * NB_PAGE);
    assert_int_equal(ask(e, 1, NULL, got), 0);
    assert_memory_equal(got, want, sizeof got);
    save_and_close(e);
    assert_in_range(bytes_on_disk(), 0, one / 4);
}

/* What the files cannot hold is refused, and so is a secret that is none. */
static void test_refused(void **state)
{
    nb_engine_opts o = { .context = 64, .max_seqs = 1, .n_pages = PAGES, .n_states = 4, .disk_dir = dir, .disk_bytes = 1 << 20 };
    char path[128];
    nb_engine *e = NULL;
    nb_err err = { 0 };
    fake *f = fake_open(PAGES);

    (void)state;
    fresh_dir();
    f->stateful = true;
    assert_int_equal(nb_engine_open_exec(&f->base, VOCAB, &o, &e, &err), NB_EUNSUPPORTED);
    assert_string_equal(err.rule, "KV-27");
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/secret", dir);
    overwrite(path, "short", 5);
    err = (nb_err){ 0 };
    f = fake_open(PAGES);
    assert_int_equal(nb_engine_open_exec(&f->base, VOCAB, &o, &e, &err), NB_EFORMAT);
    snprintf(dir, sizeof dir, "%s/no/such", root);
    err = (nb_err){ 0 };
    f = fake_open(PAGES);
    assert_int_equal(nb_engine_open_exec(&f->base, VOCAB, &o, &e, &err), NB_EWRITE);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    for (int i = 1; i < 60; i++) {
        int32_t want[N_OUT], got[N_OUT];
        nb_err err = { 0 };
        nb_status rc;
        fake *f;
        nb_engine *e;
        fill(want);
        e = open_engine((nb_engine_opts){ 0 }, &f);
        ask(e, 2, NULL, got);
        nb_mem_fail_at(i);
        rc = nb_engine_save_cache(e, &err);
        nb_mem_fail_at(0);
        assert_true(rc == NB_OK || rc == NB_ENOMEM);
        assert_int_equal(ask(e, 1, NULL, got) / NB_PAGE >= 18, 1);
        assert_memory_equal(got, want, sizeof got);
        nb_engine_close(e);
        if (rc == NB_OK)
            return;
    }
    fail_msg("it never succeeds");
}

static int remove_root(void **state)
{
    char cmd[64];

    (void)state;
    snprintf(cmd, sizeof cmd, "rm -r %s", root);
    return system(cmd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_restart),       cmocka_unit_test(test_added), cmocka_unit_test(test_damage),
        cmocka_unit_test(test_not_there),     cmocka_unit_test(test_limit), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
