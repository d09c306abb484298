/* bench_grammar.c - what structured output costs: opening a vocabulary, compiling, masks of a reply's first and later steps.
 *
 *   nb_bench_grammar TOKENIZER.json SCHEMA.json REPLY.txt
 *
 * The reply is encoded and walked twice with one grammar: the first time states and masks are made, the second time they are
 * there. Prints milliseconds of the vocabulary and of compiling, and of masks the mean and the largest, both times. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/map.h"
#include "text/grammar.h"

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static nb_status walk(nb_grammar *g, const nb_ids *ids, uint32_t *bits, const char *label, nb_err *err)
{
    nb_gstate *s = NULL;
    double sum = 0, most = 0, took = 0;
    nb_status rc = nb_gstate_open(g, &s, err);
    size_t i = 0;

    for (; rc == NB_OK && i < ids->n; i++) {
        double t = now();
        rc = nb_gstate_mask(s, bits, err);
        t = now() - t;
        sum += t;
        most = t > most ? t : most;
        t = now();
        if (rc == NB_OK)
            rc = nb_gstate_advance(s, ids->p[i], err);
        took += now() - t;
    }
    printf("%s: %zu of %zu tokens taken, mask mean %.3f ms, largest %.3f ms, advance mean %.4f ms%s\n", label, i, ids->n,
           sum / (double)(i ? i : 1), most, took / (double)(i ? i : 1), nb_gstate_may_end(s) ? ", may end" : "");
    nb_gstate_close(s);
    return rc;
}

int main(int argc, char **argv)
{
    char *json = NULL, *schema = NULL, *reply = NULL;
    size_t n_json, n_schema, n_reply;
    nb_tokenizer *t = NULL;
    nb_gvocab *v = NULL;
    nb_grammar *g = NULL;
    nb_json *j = NULL;
    nb_ids ids = { 0 };
    uint32_t *bits = NULL;
    nb_err err = { 0 };
    nb_status rc;

    if (argc != 4) {
        fprintf(stderr, "usage: nb_bench_grammar TOKENIZER.json SCHEMA.json REPLY.txt\n");
        return 2;
    }
    rc = nb_read_file(argv[1], 1u << 30, &json, &n_json, &err);
    if (rc == NB_OK)
        rc = nb_read_file(argv[2], 1u << 20, &schema, &n_schema, &err);
    if (rc == NB_OK)
        rc = nb_read_file(argv[3], 1u << 20, &reply, &n_reply, &err);
    if (rc == NB_OK)
        rc = nb_json_parse(schema, n_schema, "json", 0, &j, &err);
    if (rc == NB_OK)
        rc = nb_tokenizer_open(json, n_json, NULL, 0, &t, &err);
    if (rc == NB_OK)
        rc = nb_tokenizer_encode(t, reply, n_reply, false, false, &ids, &err);
    double t0 = now();
    if (rc == NB_OK)
        rc = nb_gvocab_open(t, NULL, 0, 0, &v, &err);
    double t1 = now();
    if (rc == NB_OK)
        rc = nb_grammar_new_schema(v, j, NULL, &g, &err);
    if (rc == NB_OK) {
        printf("vocabulary %.1f ms, %.1f MB; grammar %.2f ms\n", t1 - t0, 1e-6 * (double)nb_gvocab_bytes(v), now() - t1);
        bits = nb_alloc_array(nb_gvocab_words(v), sizeof *bits);
        rc = bits ? walk(g, &ids, bits, "first ", &err) : NB_ENOMEM;
    }
    if (rc == NB_OK)
        rc = walk(g, &ids, bits, "second", &err);
    if (rc != NB_OK)
        fprintf(stderr, "%d %s: %s\n", rc, err.cls, err.what);
    else
        printf("grammar with states and masks: %.1f MB\n", 1e-6 * (double)nb_grammar_bytes(g));
    nb_free(bits);
    nb_ids_clear(&ids);
    nb_grammar_unref(g);
    nb_gvocab_close(v);
    nb_tokenizer_close(t);
    nb_json_free(j);
    nb_free(json);
    nb_free(schema);
    nb_free(reply);
    return rc == NB_OK ? 0 : 1;
}
