/* test_api.c - the public interface from a caller's side: statuses, errors, callbacks, text, answers, logits. */
#include <dirent.h>
#include <fenv.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "nibble/nibble.h"

#define MODEL     "models/pemberley-4m"
#define BROKEN    "tests/data/layouts/awq-gemm-g32-skip-autoawq"
#define QUANTIZED "tests/data/layouts/awq-gemm-g32-asym-bf16-gptqmodel"

static const char prompt[] = "It is a truth universally acknowledged";

/* ---- statuses and errors ---- */

static void test_errors(void **state)
{
    nibble_error e[11];                  /* one a row: the order in which an initializer is evaluated is open */
    nibble_model *m = (nibble_model *)e; /* must become NULL */
    char *json = (char *)e;
    const nibble_model_options bad_cpu = { .cpu = "abacus" };
    const nibble_quantize_options no_method = { .bits = 4, .group_size = 128 };
    const nibble_quantize_options odd_method = { .method = "magic", .bits = 4, .group_size = 128 };
    const nibble_quantize_options no_calib = { .method = "awq", .bits = 4, .group_size = 128, .threads = 1 };
    const nibble_quantize_options wide = { .method = "rtn", .bits = 4, .group_size = 96, .threads = 1 };
    const struct {
        const char *label, *cls;
        int got, want;
    } rows[] = {
        { "absent model", "io.not_found", nibble_open("tests/data/absent", NULL, &m, &e[0]), NIBBLE_OPEN },
        { "no path", "arg.null", nibble_open(NULL, NULL, &m, &e[1]), NIBBLE_ARGUMENT },
        { "kernels of another name", "arg.cpu", nibble_open(MODEL, &bad_cpu, &m, &e[2]), NIBBLE_ARGUMENT },
        { "inspect, absent", "io.not_found", nibble_inspect("tests/data/absent", &json, &e[3]), NIBBLE_OPEN },
        { "check, absent", "io.not_found", nibble_check("tests/data/absent", 1, NULL, &json, &e[4]), NIBBLE_OPEN },
        { "check, no result", "arg.null", nibble_check(MODEL, 1, NULL, NULL, &e[5]), NIBBLE_ARGUMENT },
        { "quantize, no options", "arg.null", nibble_quantize(MODEL, "absent/out", NULL, &e[6]), NIBBLE_ARGUMENT },
        { "quantize, no method", "arg.null", nibble_quantize(MODEL, "absent/out", &no_method, &e[7]), NIBBLE_ARGUMENT },
        { "quantize, unknown method", "quantize.method", nibble_quantize(MODEL, "absent/out", &odd_method, &e[8]), NIBBLE_ARGUMENT },
        { "quantize, no calibration", "quantize.calib", nibble_quantize(MODEL, "absent/out", &no_calib, &e[9]), NIBBLE_ARGUMENT },
        { "quantize, group that does not fit", "quantize.group", nibble_quantize(MODEL, "absent/out", &wide, &e[10]), NIBBLE_ARGUMENT },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].got != rows[i].want || e[i].status != rows[i].want || strcmp(e[i].cls, rows[i].cls) != 0 || e[i].message[0] == 0)
            fail_msg("%s: got %d %s (%s), want %d %s", rows[i].label, rows[i].got, e[i].cls, e[i].message, rows[i].want, rows[i].cls);
    assert_null(m);
    assert_null(json);
    assert_string_equal(e[0].file, "tests/data/absent");
    assert_string_equal(e[10].rule, "SHP-004");
    assert_int_equal(nibble_open("tests/data/absent", NULL, &m, NULL), NIBBLE_OPEN); /* nobody wants the words */
    assert_int_equal(nibble_inspect(MODEL, &json, e), NIBBLE_OK);
    assert_int_equal(e->status, NIBBLE_OK);
    nibble_free(json);
    nibble_free(NULL);
    nibble_close(NULL);
}

static void test_reports(void **state)
{
    nibble_error e;
    char *json;

    (void)state;
    assert_int_equal(nibble_inspect(QUANTIZED, &json, &e), NIBBLE_OK);
    assert_non_null(strstr(json, "\"layout\": \"awq-gemm\""));
    nibble_free(json);
    assert_int_equal(nibble_check(QUANTIZED, 2, NULL, &json, &e), NIBBLE_OK);
    assert_non_null(strstr(json, "\"ok\": true"));
    nibble_free(json);
    assert_int_equal(nibble_check(BROKEN, 2, NULL, &json, &e), NIBBLE_NO);
    assert_int_equal(e.status, NIBBLE_NO);
    assert_non_null(strstr(json, "\"ok\": false"));
    assert_non_null(strstr(json, "CFG-015"));
    nibble_free(json);
}

/* ---- callbacks ---- */

typedef struct calls {
    int cancel_after, cancelled, progress, logs;
} calls;

static int count_cancelled(void *user)
{
    calls *c = user;

    return ++c->cancelled > c->cancel_after;
}

static void count_progress(void *user, const char *what, const char *item, uint64_t done, uint64_t total)
{
    (void)item;
    assert_non_null(what);
    assert_true(total == 0 || done <= total);
    ((calls *)user)->progress++;
}

static void count_log(void *user, int level, const char *line)
{
    assert_true(level >= 0 && level <= 3);
    assert_non_null(line);
    ((calls *)user)->logs++;
}

static nibble_model *open_model(int threads, const nibble_host *host)
{
    const nibble_model_options o = { .threads = threads, .context = 256, .host = host };
    nibble_error e;
    nibble_model *m;

    if (nibble_open(MODEL, &o, &m, &e) != NIBBLE_OK)
        fail_msg("%s: %s", e.cls, e.message);
    return m;
}

static int32_t *tokens(nibble_model *m, size_t *n)
{
    nibble_error e;
    int32_t *ids;

    assert_int_equal(nibble_tokenize(m, prompt, sizeof prompt - 1, 1, 0, &ids, n, &e), NIBBLE_OK);
    return ids;
}

static void test_cancel(void **state)
{
    calls c = { .cancel_after = 5 };
    const nibble_host host = { .log = count_log, .progress = count_progress, .cancelled = count_cancelled, .user = &c };
    nibble_sampling how = nibble_greedy();
    nibble_error e;
    nibble_model *m;
    int32_t *ids;
    size_t n, n_answer;
    char *json;

    (void)state;
    c.cancel_after = 1 << 20;
    m = open_model(1, &host);
    ids = tokens(m, &n);
    how.max_tokens = 100;
    c.cancelled = 0;
    c.cancel_after = 5;
    assert_int_equal(nibble_generate(m, ids, n, &how, NULL, NULL, &n_answer, &e), NIBBLE_CANCELED);
    assert_string_equal(e.cls, "canceled");
    assert_true(n_answer >= 1 && n_answer <= 5);
    c.cancel_after = 1 << 20; /* the same handle answers again */
    how.max_tokens = 3;
    assert_int_equal(nibble_generate(m, ids, n, &how, NULL, NULL, &n_answer, &e), NIBBLE_OK);
    assert_int_equal(n_answer, 3);
    c.cancel_after = -1;
    c.cancelled = 0;
    {
        float *out = malloc(n * nibble_vocab(m) * sizeof *out);
        assert_non_null(out);
        assert_int_equal(nibble_logits(m, ids, n, out, &e), NIBBLE_CANCELED);
        free(out);
    }
    nibble_free(ids);
    nibble_close(m);

    c = (calls){ .cancel_after = 0 };
    assert_int_equal(nibble_check(QUANTIZED, 1, &host, &json, &e), NIBBLE_CANCELED);
    assert_null(json);
    c = (calls){ .cancel_after = 1 << 20 };
    assert_int_equal(nibble_check(QUANTIZED, 1, &host, &json, &e), NIBBLE_OK);
    assert_true(c.progress > 0);
    nibble_free(json);
}

static void remove_all(const char *dir)
{
    DIR *d = opendir(dir);
    char at[PATH_MAX];

    assert_non_null(d);
    for (const struct dirent *f = readdir(d); f; f = readdir(d)) {
        snprintf(at, sizeof at, "%s/%s", dir, f->d_name);
        unlink(at);
    }
    closedir(d);
    rmdir(dir);
}

static void test_quantize(void **state)
{
    char dir[] = "/tmp/nibble-api-XXXXXX", out[64];
    calls c = { .cancel_after = 3 };
    const nibble_host host = { .cancelled = count_cancelled, .user = &c };
    const nibble_quantize_options o = { .method = "rtn", .bits = 4, .group_size = 64, .threads = 1, .host = &host };
    nibble_error e;
    struct stat st;
    char *json;

    (void)state;
    assert_non_null(mkdtemp(dir));
    strcpy(out, dir);
    strcat(out, "/out");
    assert_int_equal(nibble_quantize(MODEL, out, &o, &e), NIBBLE_CANCELED);
    assert_int_not_equal(stat(out, &st), 0); /* nothing under the final name */
    c.cancel_after = 1 << 20;
    assert_int_equal(nibble_quantize(MODEL, out, &o, &e), NIBBLE_OK);
    assert_int_equal(nibble_quantize(MODEL, out, &o, &e), NIBBLE_EXISTS);
    assert_int_equal(nibble_check(out, 1, NULL, &json, &e), NIBBLE_OK);
    assert_non_null(strstr(json, "\"format\": \"awq-gemm\""));
    nibble_free(json);
    assert_int_equal(nibble_inspect(out, &json, &e), NIBBLE_OK);
    assert_non_null(strstr(json, "\"group_size\": 64"));
    nibble_free(json);
    remove_all(out);
    assert_int_equal(rmdir(dir), 0); /* nothing was left beside it either */
}

/* ---- text ---- */

static void test_text(void **state)
{
    nibble_model *m = open_model(1, NULL);
    int32_t *ids, *bare;
    nibble_error e;
    size_t n, n_bare, len;
    char *text;

    (void)state;
    ids = tokens(m, &n);
    assert_int_equal(nibble_tokenize(m, prompt, sizeof prompt - 1, 0, 0, &bare, &n_bare, &e), NIBBLE_OK);
    assert_true(n_bare <= n);
    assert_int_equal(nibble_detokenize(m, ids, n, 1, &text, &len, &e), NIBBLE_OK);
    assert_string_equal(text, prompt);
    assert_int_equal(len, sizeof prompt - 1);
    nibble_free(text);
    nibble_free(bare);
    nibble_free(ids);
    assert_int_equal(nibble_tokenize(m, NULL, 0, 0, 0, &ids, &n, &e), NIBBLE_OK);
    assert_int_equal(n, 0);
    assert_non_null(ids);
    assert_int_equal(nibble_detokenize(m, ids, 0, 0, &text, NULL, &e), NIBBLE_OK);
    assert_string_equal(text, "");
    nibble_free(text);
    nibble_free(ids);
    assert_int_equal(nibble_chat_prompt(m, "[{\"role\":\"user\",\"content\":\"hi\"}]", &text, &len, &e), NIBBLE_OK);
    assert_string_equal(text, "<|begin_of_text|>hi"); /* its template is BOS and the text */
    nibble_free(text);
    nibble_close(m);
}

static void link_file(const char *dir, const char *name)
{
    char from[PATH_MAX + 32], at[128], real[PATH_MAX];

    assert_non_null(realpath(MODEL, real));
    snprintf(from, sizeof from, "%s/%s", real, name);
    snprintf(at, sizeof at, "%s/%s", dir, name);
    assert_int_equal(symlink(from, at), 0);
}

/* The same model without the file that holds its template. */
static void test_no_template(void **state)
{
    static const char *const names[] = { "config.json", "model.safetensors", "tokenizer.json" };
    char dir[] = "/tmp/nibble-api-XXXXXX", at[128], *text = dir;
    nibble_model *m;
    nibble_error e;

    (void)state;
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < 3; i++)
        link_file(dir, names[i]);
    assert_int_equal(nibble_open(dir, NULL, &m, &e), NIBBLE_OK);
    for (size_t i = 0; i < 3; i++) { /* the files may go away */
        snprintf(at, sizeof at, "%s/%s", dir, names[i]);
        unlink(at);
    }
    rmdir(dir);
    assert_int_equal(nibble_chat_prompt(m, "[{\"role\":\"user\",\"content\":\"hi\"}]", &text, NULL, &e), NIBBLE_UNSUPPORTED);
    assert_string_equal(e.cls, "tmpl.missing");
    assert_null(text);
    nibble_close(m);
}

/* ---- answers ---- */

typedef struct answer {
    char text[4096];
    size_t n;
    int pieces, stop_at;
} answer;

static int collect(void *user, const char *text, size_t n)
{
    answer *a = user;

    assert_true(a->n + n < sizeof a->text);
    memcpy(a->text + a->n, text, n);
    a->text[a->n += n] = 0;
    return ++a->pieces == a->stop_at;
}

static size_t best(const float *row, size_t vocab)
{
    size_t b = 0;

    for (size_t i = 1; i < vocab; i++)
        if (row[i] > row[b])
            b = i;
    return b;
}

/* Greedy text is the argmax of the logits, row by row; logits do not depend on the number of threads. */
static void test_answers(void **state)
{
    nibble_model *m = open_model(1, NULL), *two = open_model(2, NULL);
    nibble_sampling how = nibble_greedy();
    const size_t vocab = nibble_vocab(m);
    answer a = { .stop_at = -1 }, b = { .stop_at = 2 };
    int32_t all[64], *ids;
    float *logits, *again;
    nibble_error e;
    size_t n, n_answer, len;
    char *text;

    (void)state;
    assert_true(vocab > 0 && nibble_context(m) == 256 && nibble_kernel(m)[0]);
    ids = tokens(m, &n);
    how.max_tokens = 24;
    assert_int_equal(nibble_generate(m, ids, n, &how, collect, &a, &n_answer, &e), NIBBLE_OK);
    assert_int_equal(n_answer, 24);
    memcpy(all, ids, n * sizeof *ids);
    logits = malloc(64 * vocab * sizeof *logits);
    again = malloc(64 * vocab * sizeof *again);
    assert_true(logits && again && n + 24 <= 64);
    for (size_t i = 0; i < 24; i++) {
        assert_int_equal(nibble_logits(m, all, n + i, logits, &e), NIBBLE_OK);
        all[n + i] = (int32_t)best(logits + (n + i - 1) * vocab, vocab);
    }
    assert_int_equal(nibble_detokenize(m, all + n, 24, 1, &text, &len, &e), NIBBLE_OK);
    assert_string_equal(a.text, text);
    nibble_free(text);
    assert_int_equal(nibble_logits(m, all, n + 24, logits, &e), NIBBLE_OK);
    assert_int_equal(nibble_logits(two, all, n + 24, again, &e), NIBBLE_OK);
    assert_memory_equal(logits, again, (n + 24) * vocab * sizeof *logits);
    free(logits);
    free(again);

    /* the callback ends the answer, and that is no error */
    assert_int_equal(nibble_generate(two, ids, n, &how, collect, &b, &n_answer, &e), NIBBLE_OK);
    assert_int_equal(b.pieces, 2);
    assert_true(n_answer < 24 && memcmp(a.text, b.text, b.n) == 0);
    nibble_free(ids);
    nibble_close(m);
    nibble_close(two);
}

/* ---- the caller's floating-point environment ---- */

/* Control bits of this thread: rounding, flushing, masks; x87 precision behind them. */
static uint64_t fp_control(void)
{
#if defined(__x86_64__)
    uint16_t x87;

    __asm__ volatile("fnstcw %0" : "=m"(x87));
    return (_mm_getcsr() & ~0x3fu) | (uint64_t)x87 << 32;
#elif defined(__aarch64__)
    uint64_t fpcr;

    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    return fpcr;
#else
    return (uint64_t)fegetround();
#endif
}

static void flush_subnormals(void)
{
#if defined(__x86_64__)
    const uint16_t single = 0x007f; /* 24 bits of precision, all masked */

    _mm_setcsr(_mm_getcsr() | 0x8040);
    __asm__ volatile("fldcw %0" : : "m"(single));
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(fp_control() | 1u << 24));
#endif
}

static char *bytes_of(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *p = malloc(1 << 24);

    assert_true(f && p);
    *n = fread(p, 1, 1 << 24, f);
    assert_true(*n > 0 && feof(f));
    fclose(f);
    return p;
}

/* Everything that computes, once: logits of a model opened here, a sampled answer, a quantized file. */
typedef struct results {
    float *logits;
    answer text;
    char *file;
    size_t n_logits, n_file;
} results;

static void compute(results *r)
{
    char dir[] = "/tmp/nibble-api-XXXXXX", out[64], file[96];
    const nibble_quantize_options o = { .method = "rtn", .bits = 4, .group_size = 64, .threads = 2 };
    nibble_model *m = open_model(2, NULL);
    const nibble_sampling how = { .max_tokens = 12, .temperature = 0.8f, .top_p = 0.9f, .repetition_penalty = 1.1f, .seed = 5 };
    nibble_error e;
    size_t n, n_answer;
    int32_t *ids = tokens(m, &n);

    *r = (results){ .text.stop_at = -1, .n_logits = n * nibble_vocab(m) };
    r->logits = malloc(r->n_logits * sizeof *r->logits);
    assert_non_null(r->logits);
    assert_int_equal(nibble_logits(m, ids, n, r->logits, &e), NIBBLE_OK);
    assert_int_equal(nibble_generate(m, ids, n, &how, collect, &r->text, &n_answer, &e), NIBBLE_OK);
    nibble_free(ids);
    nibble_close(m);
    assert_non_null(mkdtemp(dir));
    snprintf(out, sizeof out, "%s/out", dir);
    assert_int_equal(nibble_quantize(MODEL, out, &o, &e), NIBBLE_OK);
    snprintf(file, sizeof file, "%s/model.safetensors", out);
    r->file = bytes_of(file, &r->n_file);
    remove_all(out);
    assert_int_equal(rmdir(dir), 0);
}

static void results_clear(results *r)
{
    free(r->logits);
    free(r->file);
}

static void test_caller_environment(void **state)
{
    static const struct {
        const char *label;
        int round;
        bool flush;
    } rows[] = { { "NU-15 rounding up, subnormals flushed, x87 in single precision", FE_UPWARD, true },
                 { "NU-15 rounding toward zero", FE_TOWARDZERO, false } };
    results want;

    (void)state;
    compute(&want);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const uint64_t before = fp_control();
        results got;

        assert_int_equal(fesetround(rows[i].round), 0);
        if (rows[i].flush)
            flush_subnormals();
        const uint64_t set = fp_control();
        compute(&got);
        const uint64_t after = fp_control();
        fesetenv(FE_DFL_ENV);
        if (set == before || after != set)
            fail_msg("%s: control bits %llx, set to %llx, %llx after the calls", rows[i].label, (unsigned long long)before,
                     (unsigned long long)set, (unsigned long long)after);
        if (got.n_logits != want.n_logits || memcmp(got.logits, want.logits, want.n_logits * sizeof *want.logits) != 0)
            fail_msg("%s: logits differ", rows[i].label);
        if (strcmp(got.text.text, want.text.text) != 0)
            fail_msg("%s: \"%s\", without it \"%s\"", rows[i].label, got.text.text, want.text.text);
        if (got.n_file != want.n_file || memcmp(got.file, want.file, want.n_file) != 0)
            fail_msg("%s: the quantized file differs", rows[i].label);
        results_clear(&got);
    }
    results_clear(&want);
}

static void test_refusals(void **state)
{
    nibble_model *m = open_model(1, NULL);
    nibble_sampling how = nibble_greedy();
    const int32_t far = (int32_t)nibble_vocab(m), one = 1;
    int32_t *many = calloc(257, sizeof *many);
    float out[1];
    nibble_error e;

    (void)state;
    assert_int_equal(nibble_generate(m, NULL, 0, &how, NULL, NULL, NULL, &e), NIBBLE_ARGUMENT);
    assert_string_equal(e.cls, "request.empty");
    assert_int_equal(nibble_generate(m, &far, 1, &how, NULL, NULL, NULL, &e), NIBBLE_ARGUMENT);
    assert_string_equal(e.cls, "request.token");
    assert_int_equal(nibble_generate(m, many, 257, &how, NULL, NULL, NULL, &e), NIBBLE_LIMIT);
    how.temperature = -1;
    assert_int_equal(nibble_generate(m, &one, 1, &how, NULL, NULL, NULL, &e), NIBBLE_ARGUMENT);
    assert_int_equal(nibble_logits(m, NULL, 0, out, &e), NIBBLE_ARGUMENT);
    assert_int_equal(nibble_logits(m, &far, 1, out, &e), NIBBLE_ARGUMENT);
    assert_int_equal(nibble_logits(m, many, 257, out, &e), NIBBLE_LIMIT);
    how = nibble_greedy();
    how.max_tokens = 2;
    assert_int_equal(nibble_generate(m, &one, 1, &how, NULL, NULL, NULL, &e), NIBBLE_OK); /* none of that did harm */
    free(many);
    nibble_close(m);
}

/* Weights that speak ids only: a model without tokenizer.json opens and gives logits. */
static void test_no_tokenizer(void **state)
{
    static const char path[] = "tests/data/models/llama";
    const nibble_model_options o = { .threads = 1 };
    const int32_t ids[2] = { 1, 2 };
    nibble_model *m;
    nibble_error e;
    int32_t *got;
    float *out;
    size_t n;

    (void)state;
    if (access("tests/data/models/llama/tokenizer.json", F_OK) == 0) {
        print_message("skipped: the small llama has a tokenizer\n");
        skip();
    }
    assert_int_equal(nibble_open(path, &o, &m, &e), NIBBLE_OK);
    assert_int_equal(nibble_tokenize(m, "a", 1, 0, 0, &got, &n, &e), NIBBLE_OPEN);
    assert_string_equal(e.cls, "tok.missing");
    assert_null(got);
    assert_int_equal(nibble_generate(m, ids, 2, NULL, NULL, NULL, NULL, &e), NIBBLE_OPEN);
    out = malloc(2 * nibble_vocab(m) * sizeof *out);
    assert_non_null(out);
    assert_int_equal(nibble_logits(m, ids, 2, out, &e), NIBBLE_OK);
    free(out);
    nibble_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors),       cmocka_unit_test(test_reports),
        cmocka_unit_test(test_cancel),       cmocka_unit_test(test_quantize),
        cmocka_unit_test(test_text),         cmocka_unit_test(test_no_template),
        cmocka_unit_test(test_answers),      cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_tokenizer), cmocka_unit_test(test_caller_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
