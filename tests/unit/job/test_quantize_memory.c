/* test_quantize_memory.c - the cap of a quantization job holds for the resident size that the system measured, with activations in memory
 * and in files, and the one that a refusal names is enough. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "io/io.h"
#include "job/quantize.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CHECKED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CHECKED 1
#endif
#endif

enum { D = 128, ROWS = 512, LEN = 64, VOCAB = 96 }; /* 16 MB of activations a copy */

static char scratch[32], model[64], ids[64];

static void put(nb_sink *s, bool write, const char *name, nb_dtype t, uint64_t n, uint64_t k)
{
    const uint64_t shape[2] = { n, k };
    const size_t count = (size_t)(n * (k ? k : 1));
    nb_err err = { 0 };
    float *w;

    if (!write) {
        assert_int_equal(nb_sink_declare(s, name, t, k ? 2 : 1, shape, &err), NB_OK);
        return;
    }
    w = nb_alloc_array(count, sizeof *w);
    for (size_t i = 0; i < count; i++) {
        const int32_t id = (int32_t)(nb_rng_uniform(2, 1, i) * VOCAB);
        w[i] = (float)(k ? 0.1 * nb_rng_normal(2, strlen(name), i) : 1.0);
        if (t == NB_DT_I32)
            memcpy(&w[i], &id, sizeof id);
    }
    assert_int_equal(nb_sink_write(s, name, 0, w, count * sizeof *w, &err), NB_OK);
    nb_free(w);
}

static int make(void **state)
{
    static const char config[] = "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":128,"
                                 "\"intermediate_size\":128,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":4,"
                                 "\"vocab_size\":96,\"rms_norm_eps\":1e-5,\"max_position_embeddings\":4096,\"tie_word_embeddings\":true}";
    static const char *const linears[] = { "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                                           "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj" };
    char path[100], name[100];
    nb_err err = { 0 };
    nb_sink *s;
    FILE *f;

    (void)state;
    snprintf(scratch, sizeof scratch, "%s/nibble-qmem-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(scratch))
        return -1;
    snprintf(model, sizeof model, "%s/model.safetensors", scratch);
    snprintf(ids, sizeof ids, "%s/ids.safetensors", scratch);
    snprintf(path, sizeof path, "%s/config.json", scratch);
    f = fopen(path, "w");
    if (!f || fputs(config, f) < 0 || fclose(f) != 0 || nb_st_sink_file(&s, model, true, &err) != NB_OK)
        return -1;
    for (int write = 0; write < 2; write++) {
        put(s, write, "model.embed_tokens.weight", NB_DT_F32, VOCAB, D);
        put(s, write, "model.norm.weight", NB_DT_F32, D, 0);
        for (int l = 0; l < 2; l++) {
            snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", l);
            put(s, write, name, NB_DT_F32, D, 0);
            snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm.weight", l);
            put(s, write, name, NB_DT_F32, D, 0);
            for (size_t i = 0; i < NB_LEN(linears); i++) {
                snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, linears[i]);
                put(s, write, name, NB_DT_F32, D, D);
            }
        }
        if (!write && nb_sink_begin(s, &err) != NB_OK)
            return -1;
    }
    if (nb_sink_finish(s, &err) != NB_OK)
        return -1;
    nb_sink_close(s);
    if (nb_st_sink_file(&s, ids, true, &err) != NB_OK)
        return -1;
    put(s, false, "input_ids", NB_DT_I32, ROWS, LEN);
    assert_int_equal(nb_sink_begin(s, &err), NB_OK);
    put(s, true, "input_ids", NB_DT_I32, ROWS, LEN);
    assert_int_equal(nb_sink_finish(s, &err), NB_OK);
    nb_sink_close(s);
    snprintf(model, sizeof model, "%s", scratch);
    return 0;
}

static int drop(void **state)
{
    char cmd[100];

    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf '%s' '%s'-*", scratch, scratch);
    return system(cmd);
}

/* Peak of a child that does the job, in bytes; *least: the cap that a refusal names. */
static uint64_t peak(const char *out, nb_quant_method method, uint64_t cap, nb_status want, unsigned long long *least)
{
    struct rusage r;
    char word[32] = "";
    int st, fd[2];
    pid_t pid;

    assert_int_equal(pipe(fd), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const nb_quantize_opts o = { .method = method,
                                     .bits = 4,
                                     .group_size = 32,
                                     .sym = true,
                                     .scale_dtype = NB_DT_F16,
                                     .calib = ids,
                                     .order = NB_GPTQ_GAR,
                                     .gptaq = 0.5,
                                     .memory = cap };
        nb_err err = { 0 };
        const nb_status rc = nb_quantize(model, out, &o, NULL, &err);
        const char *says = strstr(err.what, "--memory ");
        if (says && write(fd[1], says + 9, strcspn(says + 9, "M")) < 0)
            _exit(99);
        if (rc != NB_OK && rc != want)
            fprintf(stderr, "%s: %s\n", err.cls, err.what);
        _exit(rc);
    }
    close(fd[1]);
    assert_true(read(fd[0], word, sizeof word - 1) >= 0);
    close(fd[0]);
    assert_int_equal(wait4(pid, &st, 0, &r), pid);
    if (!WIFEXITED(st) || WEXITSTATUS(st) != (int)want)
        fail_msg("%s: exit %d, want %d", out, WIFEXITED(st) ? WEXITSTATUS(st) : -1, want);
    if (least)
        *least = strtoull(word, NULL, 10);
    return (uint64_t)r.ru_maxrss * 1024;
}

static void caps(void **state)
{
    static const struct {
        const char *label;
        nb_quant_method method;
    } rows[] = { { "gptq", NB_QUANT_GPTQ }, { "awq", NB_QUANT_AWQ } };

    (void)state;
#ifdef CHECKED
    printf("skipped: a sanitizer takes memory of its own\n");
    skip();
#endif
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        unsigned long long least = 0;
        char a[100], b[100], cmd[300];
        uint64_t free_peak, got;

        snprintf(a, sizeof a, "%s-%s-free", scratch, rows[i].label);
        snprintf(b, sizeof b, "%s-%s-least", scratch, rows[i].label);
        peak(b, rows[i].method, 1000000, NB_ENOMEM, &least);
        assert_true(least > 1);
        free_peak = peak(a, rows[i].method, 0, NB_OK, NULL);
        got = peak(b, rows[i].method, least * 1000000, NB_OK, NULL);
        printf("%s: %.0f MB without a cap, %.0f MB under a cap of %llu MB\n", rows[i].label, (double)free_peak / 1e6, (double)got / 1e6,
               least);
        if (got > least * 1000000)
            fail_msg("MM-01 DU-22 %s: %llu bytes resident under a cap of %llu MB", rows[i].label, (unsigned long long)got, least);
        assert_true(free_peak > got + (8u << 20)); /* the cap did something */
        snprintf(cmd, sizeof cmd, "diff -r '%s' '%s'", a, b);
        assert_int_equal(system(cmd), 0); /* MM: the same bytes */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(caps) };

    return cmocka_run_group_tests(tests, make, drop);
}
