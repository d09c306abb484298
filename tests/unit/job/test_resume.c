/* test_resume.c - a job that is killed, starved, disturbed or repeated: the same bytes in the end, and nothing half-made before.
 *
 * The calls by which a job changes the file system are replaced by counting ones, which can end the process at any of them,
 * fail, cut a write short or flip a bit. SLOW=1 tries twenty times as many points. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "io/io.h"
#include "job/load.h"
#include "job/convert.h"
#include "job/quantize.h"
#include "kern/kern.h"

/* ---- the calls ---- */

typedef enum fault { OFF, COUNT, KILL, FAIL, SHORT, FLIP } fault;
static struct {
    fault what;
    long at; /* which call */
    int err; /* FAIL */
    atomic_long seen;
    bool hit, writes; /* the fault happened; the call it hit was one that writes */
} hook;

static void arm(fault what, long at, int err)
{
    hook.what = what;
    hook.at = at;
    hook.err = err;
    hook.hit = hook.writes = false;
    atomic_store(&hook.seen, 0);
}

/* Counts; true: this call must fail with errno set. writes: not just a clean-up. */
static bool faulty(bool writes)
{
    if (hook.what == OFF || atomic_fetch_add(&hook.seen, 1) != hook.at)
        return false;
    if (hook.what == KILL)
        raise(SIGKILL);
    hook.hit = true;
    hook.writes = writes;
    errno = hook.err;
    return hook.what == FAIL;
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t off)
{
    const bool bad = faulty(true), flip = hook.hit && hook.what == FLIP;

    if (bad)
        return -1;
    if (hook.what == SHORT && atomic_load(&hook.seen) % 3 == 0) {
        errno = EINTR;
        return -1;
    }
    if (flip && n > 4096) {
        char *copy = malloc(n);
        ssize_t r;
        hook.what = OFF;
        memcpy(copy, p, n);
        copy[n / 2] ^= 4;
        r = syscall(SYS_pwrite64, fd, copy, n, off);
        free(copy);
        return r;
    }
    if (flip) { /* too small to be a tensor: the next one */
        hook.hit = false;
        hook.at++;
    }
    return syscall(SYS_pwrite64, fd, p, hook.what == SHORT && n > 1 ? n / 2 : n, off);
}

int fsync(int fd)
{
    return faulty(true) ? -1 : (int)syscall(SYS_fsync, fd);
}

static char renamed[600]; /* names that files of a job got, in their order; the record of the job is not part of the result */

static void keep_name(const char *to)
{
    const char *slash = strrchr(to, '/');
    const size_t n = strlen(renamed);

    if (hook.what == COUNT && !strstr(to, "job.json") && !strstr(to, "/inputs-"))
        snprintf(renamed + n, sizeof renamed - n, "%s ", slash ? slash + 1 : to);
}

int rename(const char *a, const char *b)
{
    keep_name(b);
    return faulty(true) ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 0);
}

int renameat2(int fa, const char *a, int fb, const char *b, unsigned flags)
{
    keep_name(b);
    return faulty(true) ? -1 : (int)syscall(SYS_renameat2, fa, a, fb, b, flags);
}

int unlink(const char *p)
{
    return faulty(false) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, p, 0);
}

int unlinkat(int fd, const char *p, int flags)
{
    return faulty(false) ? -1 : (int)syscall(SYS_unlinkat, fd, p, flags);
}

int rmdir(const char *p)
{
    return faulty(false) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, p, AT_REMOVEDIR);
}

int mkdir(const char *p, mode_t mode)
{
    return faulty(true) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, p, mode);
}

static bool disk_full; /* else nobody knows how full it is */

int statvfs(const char *p, struct statvfs *v)
{
    (void)p;
    memset(v, 0, sizeof *v);
    v->f_frsize = 4096;
    v->f_bavail = 2;
    return disk_full ? 0 : -1;
}

/* ---- fixture ---- */

static const char tiny[] = "tests/data/models/llama";
static char scratch[48]; /* in memory where that is possible: the disk is not what is tested */
static char ids[64], want[64];

static const char *at(const char *name)
{
    static char path[4][256];
    static int turn;

    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", scratch, name);
    return path[turn];
}

static void sh(const char *fmt, ...)
{
    char cmd[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(cmd, sizeof cmd, fmt, ap);
    va_end(ap);
    if (system(cmd) != 0)
        fail_msg("%s", cmd);
}

static nb_quantize_opts options(nb_quant_method m)
{
    return (nb_quantize_opts){ .method = m,
                               .bits = 4,
                               .group_size = 16,
                               .scale_dtype = NB_DT_F16,
                               .format = "awq-gemm",
                               .calib = ids,
                               .clip = 4,
                               .gptaq = 0.5,
                               .refine = 2,
                               .order = NB_GPTQ_GAR };
}

static nb_status run(const char *out, const nb_quantize_opts *o, nb_quantize_result *res, nb_err *err)
{
    memset(err, 0, sizeof *err);
    return nb_quantize(tiny, out, o, res, err);
}

static void same_dir(const char *label, const char *a, const char *b)
{
    char cmd[700];

    snprintf(cmd, sizeof cmd, "diff -r '%s' '%s'", a, b);
    if (system(cmd) != 0)
        fail_msg("%s: other bytes", label);
}

/* The job runs undisturbed to its end now; its bytes are those of the undisturbed one. */
static void goes_on(const char *label, const char *out, const nb_quantize_opts *o, const char *like, nb_quantize_result *res)
{
    char job[300];
    nb_err err;

    arm(OFF, 0, 0);
    if (run(out, o, res, &err) != NB_OK)
        fail_msg("%s: %s: %s: %s", label, err.cls, err.file, err.what);
    same_dir(label, out, like);
    snprintf(job, sizeof job, "%s.nibble-job", out);
    if (access(job, F_OK) == 0)
        fail_msg("%s: %s is still there", label, job);
    sh("rm -rf '%s'", out);
}

static int make(void **state)
{
    const uint64_t shape[2] = { 6, 24 };
    int32_t v[6 * 24];
    nb_quantize_opts o;
    nb_err err = { 0 };
    nb_sink *s;

    (void)state;
    snprintf(scratch, sizeof scratch, "%s/nibble-resume-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(scratch))
        return -1;
    snprintf(ids, sizeof ids, "%s/ids.safetensors", scratch);
    snprintf(want, sizeof want, "%s/want", scratch);
    for (size_t i = 0; i < NB_LEN(v); i++)
        v[i] = (int32_t)(nb_rng_uniform(3, 0, i) * 96);
    if (nb_st_sink_file(&s, ids, true, &err) != NB_OK || nb_sink_declare(s, "input_ids", NB_DT_I32, 2, shape, &err) != NB_OK ||
        nb_sink_begin(s, &err) != NB_OK || nb_sink_write(s, "input_ids", 0, v, sizeof v, &err) != NB_OK || nb_sink_finish(s, &err) != NB_OK)
        return -1;
    nb_sink_close(s);
    o = options(NB_QUANT_AWQ);
    return run(want, &o, NULL, &err) == NB_OK ? 0 : -1;
}

static int drop(void **state)
{
    (void)state;
    arm(OFF, 0, 0);
    sh("rm -rf '%s'", scratch);
    return 0;
}

static size_t points(void)
{
    const char *slow = getenv("SLOW");

    return slow && *slow && strcmp(slow, "0") != 0 ? 200 : 10;
}

/* How many calls an undisturbed job makes. */
static long calls(const nb_quantize_opts *o)
{
    nb_err err;
    long n;

    sh("rm -rf '%s'", at("count"));
    arm(COUNT, 0, 0);
    assert_int_equal(run(at("count"), o, NULL, &err), NB_OK);
    n = atomic_load(&hook.seen);
    arm(OFF, 0, 0);
    return n;
}

/* In a child that dies at call `n`; its own exit when it got to the end. */
static bool killed_at(const char *out, const nb_quantize_opts *o, long n)
{
    int st = 0;
    const pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        nb_err err;
        arm(KILL, n, 0);
        _exit(run(out, o, NULL, &err));
    }
    assert_int_equal(waitpid(pid, &st, 0), pid);
    if (!WIFSIGNALED(st) && WEXITSTATUS(st) != NB_OK)
        fail_msg("call %ld: exit %d", n, WEXITSTATUS(st));
    return WIFSIGNALED(st);
}

/* ---- death ---- */

static void killed(void **state)
{
    const nb_quant_method methods[] = { NB_QUANT_AWQ, NB_QUANT_GPTQ, NB_QUANT_AWQ_GPTQ, NB_QUANT_RTN };
    size_t resumed = 0;

    (void)state;
    for (size_t m = 0; m < NB_LEN(methods); m++) {
        nb_quantize_opts o = options(methods[m]);
        const size_t tries = m == 0 ? points() : points() / 5;
        long all;
        char like[64], out[64];

        o.lm_head = methods[m] == NB_QUANT_GPTQ; /* solved behind the last layer, from what that left */
        all = calls(&o);
        snprintf(like, sizeof like, "%s", at("count"));
        snprintf(out, sizeof out, "%s", at("killed"));
        for (size_t i = 0; i < tries; i++) {
            const long n = (long)(nb_rng_uniform(11, m, 2 * i) * (double)all), n2 = (long)(nb_rng_uniform(11, m, 2 * i + 1) * (double)all);
            nb_quantize_result res;
            char label[64];

            snprintf(label, sizeof label, "DU-13 method %zu killed at call %ld of %ld, then at %ld", m, n, all, n2);
            if (!killed_at(out, &o, n))
                fail_msg("%s: it was not", label);
            if (access(out, F_OK) == 0) /* DU-03: the name is absent, or the whole is there */
                same_dir(label, out, like);
            if (!killed_at(out, &o, n2)) { /* it was done already, or is now */
                same_dir(label, out, like);
                sh("rm -rf '%s'", out);
                continue;
            }
            goes_on(label, out, &o, like, &res);
            resumed += res.resumed;
        }
        if (m == 0) { /* a job killed at its last calls has nothing left to do */
            nb_quantize_result res;
            assert_true(killed_at(out, &o, all - 1));
            goes_on("DU-13 killed at the last call", out, &o, like, &res);
        }
    }
    assert_true(resumed > 0);
}

/* ---- failing calls ---- */

static void faults(void **state)
{
    static const struct {
        const char *label, *cls;
        int err;
    } rows[] = { { "DU-08 ENOSPC", "out.no_space", ENOSPC },
                 { "DU-08 EDQUOT", "out.no_space", EDQUOT },
                 { "DU-08 EFBIG", "out.no_space", EFBIG },
                 { "DU-09 EIO", "out.write", EIO } };
    const nb_quantize_opts o = options(NB_QUANT_AWQ);
    const long all = calls(&o);
    char out[64];

    (void)state;
    snprintf(out, sizeof out, "%s", at("faulty"));
    for (size_t r = 0; r < NB_LEN(rows); r++)
        for (size_t i = 0; i < points() / 2; i++) {
            const long n = (long)(nb_rng_uniform(12, r, i) * (double)all);
            nb_quantize_result res;
            char label[64];
            nb_err err;
            nb_status rc;

            snprintf(label, sizeof label, "%s at call %ld of %ld", rows[r].label, n, all);
            arm(FAIL, n, rows[r].err);
            rc = run(out, &o, NULL, &err);
            if (hook.hit && hook.writes && (rc != NB_EWRITE || strcmp(err.cls, rows[r].cls) != 0))
                fail_msg("%s: %d %s %s", label, rc, err.cls, err.what);
            if (rc != NB_OK && access(out, F_OK) == 0)
                same_dir(label, out, want);
            if (rc == NB_OK)
                sh("rm -rf '%s' '%s.nibble-job'", out, out);
            goes_on(label, out, &o, want, &res);
        }
}

static void cut_writes(void **state)
{
    const nb_quantize_opts o = options(NB_QUANT_AWQ);
    nb_err err;

    (void)state;
    arm(SHORT, -1, 0);
    if (run(at("short"), &o, NULL, &err) != NB_OK)
        fail_msg("DU-10: %s", err.what);
    arm(OFF, 0, 0);
    same_dir("DU-10 short writes and EINTR", at("short"), want);
}

static void flipped(void **state)
{
    const nb_quant_method methods[] = { NB_QUANT_AWQ, NB_QUANT_RTN };

    size_t detected = 0;

    (void)state;
    for (size_t m = 0; m < NB_LEN(methods); m++)
        for (long n = 2; n < 150; n += 16) {
            const nb_quantize_opts o = options(methods[m]);
            nb_err err;
            nb_status rc;

            arm(FLIP, n, 0);
            rc = run(at("flip"), &o, NULL, &err);
            if (rc == NB_OK) { /* no large write from there on, or one of activations that nobody read again */
                arm(OFF, 0, 0);
                if (methods[m] == NB_QUANT_AWQ)
                    same_dir("DU-16", at("flip"), want);
                sh("rm -rf '%s'", at("flip"));
                continue;
            }
            detected++;
            if (rc != NB_EVERIFY || strcmp(err.cls, "out.verify") != 0)
                fail_msg("DU-16 a bit flipped on the way, call %ld: %d %s", n, rc, err.what);
            assert_int_not_equal(access(at("flip"), F_OK), 0);
            assert_int_not_equal(access(at("flip.nibble-job"), F_OK), 0);
        }
    arm(OFF, 0, 0);
    assert_true(detected > 4);
}

/* ---- things that happen to a job ---- */

static bool stop_now(void *user)
{
    return *(bool *)user;
}

/* What a row does to the job at work, at its `at`-th linear. */
typedef struct meddler {
    size_t at;
    enum { NOTHING, STOP, AGAIN, TAKE_AWAY, CHANGE } what;
    bool stop;
    nb_status got;
    char cls[32], path[256];
} meddler;

static void meddle(void *user, const nb_quantize_row *r)
{
    meddler *m = user;
    nb_quantize_opts o = options(NB_QUANT_AWQ);
    nb_err err;

    if (r->done != m->at || r->resumed)
        return;
    if (m->what == STOP)
        m->stop = true;
    if (m->what == AGAIN) {
        m->got = run(m->path, &o, NULL, &err);
        snprintf(m->cls, sizeof m->cls, "%s", err.cls);
    }
    if (m->what == TAKE_AWAY)
        sh("mv '%s.nibble-job' '%s.gone'", m->path, m->path);
    if (m->what == CHANGE)
        sh("printf x >> '%s/model.safetensors'", m->path);
}

/* Stop after the first layer: its record is what later tests use. */
static void stopped(const char *out, const char *label)
{
    meddler m = { .at = 9, .what = STOP };
    const nb_host host = { .cancelled = stop_now, .user = &m.stop };
    nb_quantize_opts o = options(NB_QUANT_AWQ);
    char job[300];
    nb_err err;

    o.host = &host;
    o.on_row = meddle;
    o.user = &m;
    if (run(out, &o, NULL, &err) != NB_ECANCELED || !strstr(err.what, "1 of 2 layers are finished") || !strstr(err.what, ".nibble-job"))
        fail_msg("%s: DU-17 it does not say how to go on: %s", label, err.what);
    assert_int_not_equal(access(out, F_OK), 0);
    snprintf(job, sizeof job, "%s.nibble-job/job.json", out);
    assert_int_equal(access(job, R_OK), 0);
}

static void record(void **state)
{
    nb_quantize_opts o = options(NB_QUANT_AWQ);
    const nb_json *b;
    nb_json *v = NULL;
    nb_quantize_result res;
    nb_err err = { 0 };
    char out[64];

    (void)state;
    snprintf(out, sizeof out, "%s", at("record"));
    stopped(out, "DU-12");
    assert_int_equal(nb_json_parse_file(at("record.nibble-job/job.json"), 1 << 20, "job", &v, &err), NB_OK);
    assert_string_equal(nb_json_str(nb_json_get(nb_json_get(v, "recipe"), "method"), ""), "awq");
    assert_int_equal(strlen(nb_json_str(nb_json_get(nb_json_get(v, "recipe"), "calib_sha256"), "")), 64);
    assert_int_equal(strlen(nb_json_str(nb_json_get(nb_json_get(v, "recipe"), "source_sha256"), "")), 64);
    assert_int_equal(strlen(nb_json_str(nb_json_get(v, "inputs"), "")), 64);
    assert_int_equal(nb_json_len(nb_json_get(v, "blocks")), 1);
    b = nb_json_at(nb_json_get(v, "blocks"), 0);
    assert_int_equal(strlen(nb_json_str(nb_json_get(b, "sha256"), "")), 64);
    assert_int_equal(nb_json_len(nb_json_get(b, "rows")), 7);
    nb_json_free(v);
    goes_on("DU-17 stopped, then gone on", out, &o, want, &res);
    assert_int_equal(res.resumed, 1);
    assert_int_equal(res.modules, 14);
}

static void mismatch(void **state)
{
    nb_quantize_opts o = options(NB_QUANT_AWQ), other;
    nb_quantize_result res;
    nb_err err;
    char out[64];

    (void)state;
    snprintf(out, sizeof out, "%s", at("other"));
    stopped(out, "DU-14");
    sh("cp -r '%s.nibble-job' '%s.before'", out, out);
    other = o;
    other.clip = 5;
    if (run(out, &other, NULL, &err) != NB_EMISMATCH || strcmp(err.cls, "job.mismatch") != 0 || !strstr(err.what, "awq_clip: 4, now 5"))
        fail_msg("DU-14 another option: %s: %s", err.cls, err.what);
    other = o;
    other.calib_rows = 5;
    if (run(out, &other, NULL, &err) != NB_EMISMATCH || !strstr(err.what, "calib_rows: 6, now 5"))
        fail_msg("DU-14 other calibration: %s", err.what);
    other = o;
    other.method = NB_QUANT_GPTQ;
    if (run(out, &other, NULL, &err) != NB_EMISMATCH || !strstr(err.what, "method: \"awq\", now \"gptq\""))
        fail_msg("DU-14 another method: %s", err.what);
    sh("diff -r '%s.nibble-job' '%s.before'", out, out); /* nothing touched */
    other = o;
    other.restart = true;
    goes_on("DU-14 restarted", out, &other, want, &res);
    assert_int_equal(res.resumed, 0);
}

static size_t warnings;

static void count_warnings(void *user, nb_level level, const char *line)
{
    (void)user;
    warnings += level == NB_LOG_WARN && strncmp(line, "job.damaged", 11) == 0;
}

static void damaged(void **state)
{
    static const struct {
        const char *label, *cmd;
    } rows[] = {
        { "DU-15 a byte changed", "f='%s.nibble-job/result/model.safetensors.part'; printf X | dd of=\"$f\" bs=1 seek=$(($(od -An -tu8 -N8 "
                                  "\"$f\") + 100)) conv=notrunc 2>/dev/null" },
        { "DU-15 gone", "rm '%s.nibble-job/result/model.safetensors.part'" },
        { "DU-15 activations cut", "truncate -s 500 '%s.nibble-job/inputs-00001'" },
        { "DU-15 activations gone", "rm '%s.nibble-job/inputs-00001'" },
    };
    const nb_host host = { .log = count_warnings };
    nb_quantize_opts o = options(NB_QUANT_AWQ);
    char out[64];

    (void)state;
    o.host = &host;
    snprintf(out, sizeof out, "%s", at("damaged"));
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_quantize_result res;

        stopped(out, rows[i].label);
        warnings = 0;
        sh(rows[i].cmd, out);
        goes_on(rows[i].label, out, &o, want, &res);
        if (res.resumed != 0 || warnings != 1)
            fail_msg("%s: %zu layers taken over, %zu warnings", rows[i].label, res.resumed, warnings);
    }
}

static void disturbed(void **state)
{
    meddler m = { .at = 3, .what = AGAIN };
    nb_quantize_opts o = options(NB_QUANT_AWQ);
    nb_quantize_result res;
    nb_err err;
    char out[64];

    (void)state;
    o.on_row = meddle;
    o.user = &m;
    snprintf(out, sizeof out, "%s", at("busy"));
    snprintf(m.path, sizeof m.path, "%s", out);
    goes_on("DU-18 a second job on the same output", out, &o, want, &res);
    if (m.got != NB_EBUSY || strcmp(m.cls, "job.busy") != 0)
        fail_msg("DU-18: the second got %d %s", m.got, m.cls);

    m = (meddler){ .at = 9, .what = TAKE_AWAY };
    snprintf(out, sizeof out, "%s", at("away"));
    snprintf(m.path, sizeof m.path, "%s", out);
    if (run(out, &o, NULL, &err) != NB_EWRITE)
        fail_msg("DU-20 its directory taken away: %s %s", err.cls, err.what);
    assert_int_not_equal(access(out, F_OK), 0);
    m.what = NOTHING;
    sh("rm -rf '%s.nibble-job'; mv '%s.gone' '%s.nibble-job'", out, out, out);
    goes_on("DU-20 put back", out, &o, want, &res);
    assert_int_equal(res.resumed, 1);
}

/* Weights, then what lies beside them, config.json last, then the directory's name. What is there before that cannot be loaded. */
static void order_and_leftovers(void **state)
{
    const nb_quantize_opts o = options(NB_QUANT_AWQ);
    const char *last;
    nb_quantize_result res;
    char out[64], part[300];
    nb_store *s = NULL;
    nb_loaded l = { 0 };
    nb_err err = { 0 };

    (void)state;
    renamed[0] = 0;
    calls(&o);
    last = strstr(renamed, "config.json ");
    while (last && strstr(last + 1, " config.json "))
        last = strstr(last + 1, " config.json ") + 1;
    if (strncmp(renamed, "model.safetensors ", 18) != 0 || !last || strcmp(last, "config.json count ") != 0)
        fail_msg("DU-02 the order is %s", renamed);
    snprintf(out, sizeof out, "%s", at("half"));
    stopped(out, "DU-02");
    snprintf(part, sizeof part, "%s.nibble-job/result", out);
    if (nb_load_store(&l, part, NULL, &err) == NB_OK)
        fail_msg("DU-02 a result without its last file was taken");
    nb_load_close(&l);
    snprintf(part, sizeof part, "%s.nibble-job/result/model.safetensors.part", out);
    assert_int_equal(access(part, R_OK), 0);
    memset(&err, 0, sizeof err);
    if (nb_open(part, &s, &err) != NB_EFORMAT || strcmp(err.cls, "fmt.unfinished") != 0)
        fail_msg("DU-04 a file that is being written was taken: %s %s", err.cls, err.what);
    goes_on("DU-02 half-made", out, &o, want, &res);
}

static void changed_input(void **state)
{
    meddler m = { .at = 9, .what = CHANGE };
    nb_quantize_opts o = options(NB_QUANT_AWQ);
    nb_err err = { 0 };
    nb_status rc;
    struct stat st;

    (void)state;
    o.on_row = meddle;
    o.user = &m;
    sh("cp -rL %s '%s'", tiny, at("src"));
    snprintf(m.path, sizeof m.path, "%s", at("src"));
    assert_int_equal(stat(at("src/model.safetensors"), &st), 0);
    rc = nb_quantize(at("src"), at("changed"), &o, NULL, &err);
    if (rc != NB_EREAD || strcmp(err.cls, "io.changed") != 0)
        fail_msg("DU-19 input changed: %d %s %s", rc, err.cls, err.what);
    assert_int_not_equal(access(at("changed"), F_OK), 0);
    assert_int_equal(truncate(at("src/model.safetensors"), st.st_size), 0);
    m.what = NOTHING;
    memset(&err, 0, sizeof err);
    if (nb_quantize(at("src"), at("changed"), &o, NULL, &err) != NB_OK)
        fail_msg("DU-19 input restored: %s %s", err.cls, err.what);
    same_dir("DU-19", at("changed"), want);
}

static void planted(void **state)
{
    const nb_quantize_opts o = options(NB_QUANT_AWQ);
    nb_quantize_result res;
    nb_err err;
    char out[64], precious[64];

    (void)state;
    snprintf(out, sizeof out, "%s", at("planted"));
    snprintf(precious, sizeof precious, "%s", at("precious"));
    sh("mkdir '%s'; echo mine >'%s/file'; ln -s '%s' '%s.nibble-job'", precious, precious, precious, out);
    if (run(out, &o, NULL, &err) != NB_EWRITE)
        fail_msg("DU-21 the job's directory is a link: %s", err.what);
    sh("rm '%s.nibble-job'; mkdir '%s.nibble-job'; ln -s '%s' '%s.nibble-job/result'", out, out, precious, out);
    sh("ln -s '%s/file' '%s.nibble-job/inputs-00007'; ln -s '%s/file' '%s.nibble-job/job.json'", precious, out, precious, out);
    if (run(out, &o, NULL, &err) == NB_OK)
        sh("rm -rf '%s'", out);
    sh("test \"$(cat '%s/file')\" = mine; rm -rf '%s.nibble-job'", precious, out);
    sh("mkdir '%s.nibble-job'; echo mine >'%s.nibble-job/notes.txt'", out, out); /* a file that is not ours stays */
    arm(OFF, 0, 0);
    assert_int_equal(run(out, &o, &res, &err), NB_OK);
    sh("test \"$(cat '%s.nibble-job/notes.txt')\" = mine; rm -rf '%s.nibble-job' '%s'", out, out, out);
}

/* Refused before any weight is read, and nothing is made. */
static void names_and_room(void **state)
{
    nb_quantize_opts o = options(NB_QUANT_AWQ);
    const nb_convert_opts to = { .dtype = NB_DT_F32 };
    nb_convert_sum sum;
    nb_err err;
    char copy[64];

    (void)state;
    if (run(want, &o, NULL, &err) != NB_EEXISTS || strcmp(err.cls, "out.exists") != 0)
        fail_msg("DU-05: %s", err.cls);
    snprintf(copy, sizeof copy, "%s", at("same"));
    sh("cp -rL %s '%s'; ln -s same '%s'", tiny, copy, at("link"));
    o.force = true;
    memset(&err, 0, sizeof err);
    if (nb_quantize(copy, at("link"), &o, NULL, &err) != NB_EEXISTS || strcmp(err.cls, "out.is_input") != 0)
        fail_msg("DU-06: %s", err.cls);
    assert_int_not_equal(access(at("link.nibble-job"), F_OK), 0);
    sh("diff -r %s '%s'", tiny, copy);
    o.force = false;
    disk_full = true;
    if (run(at("room"), &o, NULL, &err) != NB_EWRITE || strcmp(err.cls, "out.no_space") != 0 || !strstr(err.what, "MB are free"))
        fail_msg("DU-07: %s %s", err.cls, err.what);
    memset(&err, 0, sizeof err);
    if (nb_convert(tiny, at("room"), &to, &sum, &err) != NB_EWRITE || strcmp(err.cls, "out.no_space") != 0 ||
        !strstr(err.what, "MB are free"))
        fail_msg("DU-07, convert: %s %s", err.cls, err.what);
    disk_full = false;
    assert_int_not_equal(access(at("room"), F_OK), 0);
    assert_int_not_equal(access(at("room.nibble-job"), F_OK), 0);
}

/* ---- what the world does ---- */

static bool clock_jumps;

/* The time of day leaps back and forth by years. */
int clock_gettime(clockid_t id, struct timespec *t)
{
    static atomic_long turn;
    const int rc = (int)syscall(SYS_clock_gettime, id, t);

    if (clock_jumps && id == CLOCK_REALTIME)
        t->tv_sec += atomic_fetch_add(&turn, 1) % 2 ? -100000000 : 100000000;
    return rc;
}

static void halt(void *user, const nb_quantize_row *r)
{
    if (r->done % *(size_t *)user == 0)
        raise(SIGSTOP);
}

/* In a child: stopped at every `each`-th linear and continued by us; without a terminal and descriptors; the clock jumping. */
static void suspended(void **state)
{
    static const struct {
        const char *label;
        size_t each;
        bool bare, jumps;
    } rows[] = { { "DU-24 suspended, continued", 3, false, false },
                 { "DU-24 no terminal, no descriptors", 1000, true, false },
                 { "DU-24 the clock jumps", 1000, false, true } };
    char out[64];

    (void)state;
    snprintf(out, sizeof out, "%s", at("halted"));
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_quantize_opts o = options(NB_QUANT_AWQ);
        size_t each = rows[i].each, stops = 0;
        int st = 0;
        const pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0) {
            nb_err err;
            o.on_row = halt;
            o.user = &each;
            clock_jumps = rows[i].jumps;
            if (rows[i].bare) {
                setsid();
                for (int fd = 0; fd < 3; fd++)
                    close(fd);
            }
            _exit(run(out, &o, NULL, &err));
        }
        while (waitpid(pid, &st, WUNTRACED) == pid && WIFSTOPPED(st)) {
            stops++;
            assert_int_equal(kill(pid, SIGCONT), 0);
        }
        if (!WIFEXITED(st) || WEXITSTATUS(st) != NB_OK || stops != 14 / each)
            fail_msg("%s: status %x, stopped %zu times", rows[i].label, (unsigned)st, stops);
        same_dir(rows[i].label, out, want);
        sh("rm -rf '%s'", out);
    }
}

/* ---- the same bytes ---- */

static void deterministic(void **state)
{
    nb_quantize_opts o = options(NB_QUANT_AWQ);
    struct stat st;
    nb_err err;

    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        char label[64], out[64];
        nb_quantize_result res;

        snprintf(label, sizeof label, "NU-12 %d threads", threads);
        snprintf(out, sizeof out, "%s", at("threads"));
        assert_int_equal(nb_pool_open(&o.pool, threads, &err), NB_OK);
        goes_on(label, out, &o, want, &res);
        nb_pool_close(o.pool);
        o.pool = NULL;
    }
    for (size_t i = 0; i < nb_kern_count(); i++) {
        nb_quantize_result res;
        char label[64], out[64];

        if (nb_kern_at(i)->need & ~nb_cpu_features())
            continue;
        o.kern = nb_kern_at(i);
        snprintf(label, sizeof label, "NU-12 kernels %s", o.kern->name);
        snprintf(out, sizeof out, "%s", at("kern"));
        goes_on(label, out, &o, want, &res);
    }
    assert_int_equal(stat(at("want/model.safetensors"), &st), 0);
    umask(022);
    assert_int_equal(run(at("mode"), &o, NULL, &err), NB_OK);
    assert_int_equal(stat(at("mode/model.safetensors"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0644); /* DU-23 */
    sh("! grep -rq '%s' '%s'", scratch, at("mode"));
}

/* Memory short: activations in files, the same bytes; shorter: refused with the cap that works, which does. */
static void caps(void **state)
{
    nb_quantize_opts o = options(NB_QUANT_AWQ);
    nb_quantize_result res;
    unsigned long long least = 0;
    const char *says;
    nb_err err;
    char out[64];

    (void)state;
    snprintf(out, sizeof out, "%s", at("cap"));
    o.memory = 1000000;
    if (run(out, &o, NULL, &err) != NB_ENOMEM || strcmp(err.cls, "mem.budget") != 0 || !(says = strstr(err.what, "--memory ")) ||
        sscanf(says, "--memory %lluM", &least) != 1)
        fail_msg("MM-01: %s %s", err.cls, err.what);
    assert_int_not_equal(access(out, F_OK), 0);
    assert_int_not_equal(access(at("cap.nibble-job"), F_OK), 0);
    o.memory = (uint64_t)(least + 8) * 1000000; /* this process has grown a little since */
    goes_on("MM-01 the cap that was named", out, &o, want, &res);
}

static void no_memory(void **state)
{
    const nb_quantize_opts o = options(NB_QUANT_AWQ);
    char out[64];
    uint64_t all;
    nb_err err;

    (void)state;
    snprintf(out, sizeof out, "%s", at("nomem"));
    nb_mem_fail_at(0);
    assert_int_equal(run(out, &o, NULL, &err), NB_OK);
    all = nb_mem_fail_at(0);
    sh("rm -rf '%s'", out);
    for (size_t i = 0; i < points() / 2; i++) {
        const uint64_t n = 1 + (uint64_t)(nb_rng_uniform(13, 0, i) * (double)all);
        nb_quantize_result res;
        char label[64];
        nb_status rc;

        snprintf(label, sizeof label, "MM-03 allocation %llu of %llu", (unsigned long long)n, (unsigned long long)all);
        nb_mem_fail_at(n);
        rc = run(out, &o, NULL, &err);
        nb_mem_fail_at(0);
        if (rc != NB_OK && rc != NB_ENOMEM)
            fail_msg("%s: %d %s %s", label, rc, err.cls, err.what);
        if (rc == NB_OK)
            sh("rm -rf '%s' '%s.nibble-job'", out, out);
        goes_on(label, out, &o, want, &res);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed),        cmocka_unit_test(faults),         cmocka_unit_test(cut_writes),
        cmocka_unit_test(flipped),       cmocka_unit_test(record),         cmocka_unit_test(mismatch),
        cmocka_unit_test(damaged),       cmocka_unit_test(disturbed),      cmocka_unit_test(changed_input),
        cmocka_unit_test(planted),       cmocka_unit_test(caps),           cmocka_unit_test(no_memory),
        cmocka_unit_test(deterministic), cmocka_unit_test(names_and_room), cmocka_unit_test(order_and_leftovers),
        cmocka_unit_test(suspended),
    };

    return cmocka_run_group_tests(tests, make, drop);
}
