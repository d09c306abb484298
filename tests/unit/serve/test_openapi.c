/* test_openapi.c - /openapi.json against the table of routes, the fields that are read, and the refusals that are given. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "serve/server_priv.h"

static nb_json *doc;

static int open_doc(void **state)
{
    nb_err err = { 0 };

    (void)state;
    if (nb_json_parse((const char *)nb_openapi, nb_openapi_size, "openapi.json", 0, &doc, &err) != NB_OK)
        fail_msg("%s", err.what);
    return 0;
}

static int close_doc(void **state)
{
    (void)state;
    nb_json_free(doc);
    return 0;
}

/* "/v1/models/" followed by a star as the document writes it. */
static void documented(const char *path, char *out, size_t cap)
{
    const size_t n = strlen(path);

    if (path[n - 1] == '*')
        snprintf(out, cap, "%.*s{id}", (int)n - 1, path);
    else
        snprintf(out, cap, "%s", path);
}

static void test_routes(void **state)
{
    const nb_json *paths = nb_json_get(doc, "paths");
    size_t n = 0, described = 0;

    (void)state;
    for (const nb_route *r; (r = nb_route_at(n)); n++) {
        char path[64], method[8] = "";
        const nb_json *op;

        documented(r->path, path, sizeof path);
        for (size_t i = 0; r->method[i]; i++)
            method[i] = (char)tolower((unsigned char)r->method[i]);
        op = nb_json_get(nb_json_get(paths, path), method);
        if (!op)
            fail_msg("%s %s is not in openapi.json", r->method, path);
        /* an open one says so; the others have the answer of a missing key */
        if ((r->cls == NB_ROUTE_OPEN) != (nb_json_typeof(nb_json_get(op, "security")) == NB_JARR) ||
            (r->cls == NB_ROUTE_OPEN) == (nb_json_get(nb_json_get(op, "responses"), "401") != NULL))
            fail_msg("%s %s: who may use it", r->method, path);
    }
    for (size_t i = 0; i < nb_json_len(paths); i++)
        described += nb_json_len(nb_json_member(paths, i, &(const char *){ NULL }));
    assert_int_equal(described, n); /* and nothing else is */
}

static void test_fields(void **state)
{
    const nb_json *schemas = nb_json_get(nb_json_get(doc, "components"), "schemas");
    const nb_json *chat = nb_json_get(nb_json_get(schemas, "ChatRequest"), "properties"),
                  *text = nb_json_get(nb_json_get(schemas, "CompletionRequest"), "properties");
    const char *name;

    (void)state;
    for (size_t i = 0; (name = nb_ask_known(i)); i++)
        if (!nb_json_get(chat, name) && !nb_json_get(text, name))
            fail_msg("the field %s is not in openapi.json", name);
    for (int which = 0; which < 2; which++)
        for (size_t i = 0; i < nb_json_len(which ? chat : text); i++) {
            bool hit = false;

            nb_json_member(which ? chat : text, i, &name);
            for (size_t k = 0; !hit && nb_ask_known(k); k++)
                hit = strcmp(name, nb_ask_known(k)) == 0;
            if (!hit)
                fail_msg("openapi.json has the field %s, which means nothing", name);
        }
}

/* Every code in the source of a refusal: a word in quotes behind a status and a comma. */
static void codes_of(const char *path, const nb_json *known, size_t *n)
{
    char *src = NULL;
    size_t len;
    nb_err err = { 0 };

    assert_int_equal(nb_read_file(path, 1 << 20, &src, &len, &err), NB_OK);
    for (const char *p = src; (p = strstr(p, ", \""));) {
        char code[40];
        bool hit = false;
        const bool status = p >= src + 3 && isdigit((unsigned char)p[-1]) && isdigit((unsigned char)p[-2]) &&
                            isdigit((unsigned char)p[-3]) && p[-3] >= '4' && p[-3] <= '5';

        p += 3;
        if (!status || sscanf(p, "%39[a-z_]", code) != 1 || p[strlen(code)] != '"')
            continue;
        for (size_t i = 0; !hit && i < nb_json_len(known); i++)
            hit = strcmp(nb_json_str(nb_json_at(known, i), ""), code) == 0;
        if (!hit)
            fail_msg("%s: the code %s is not in openapi.json", path, code);
        (*n)++;
    }
    nb_free(src);
}

static void test_codes(void **state)
{
    const nb_json *error = nb_json_get(nb_json_get(nb_json_get(nb_json_get(doc, "components"), "schemas"), "Error"), "properties");
    const nb_json *known = NULL;
    DIR *d = opendir("src/serve");
    size_t n = 0;

    (void)state;
    known = nb_json_get(nb_json_get(nb_json_get(nb_json_get(error, "error"), "properties"), "code"), "enum");
    assert_true(nb_json_len(known) > 30);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[320];
        const size_t len = strlen(e->d_name);

        snprintf(path, sizeof path, "src/serve/%s", e->d_name);
        if (len > 2 && strcmp(e->d_name + len - 2, ".c") == 0 && strcmp(e->d_name, "errors.c") != 0 && strcmp(e->d_name, "loadgen.c") != 0)
            codes_of(path, known, &n);
    }
    closedir(d);
    assert_true(n > 80);
}

/* References lead somewhere. */
static void refs(const nb_json *v)
{
    for (size_t i = 0; i < nb_json_len(v); i++) {
        const char *key = "";
        const nb_json *x = nb_json_typeof(v) == NB_JOBJ ? nb_json_member(v, i, &key) : nb_json_at(v, i);

        if (strcmp(key, "$ref") == 0) {
            const nb_json *at = doc;
            char ref[128];

            snprintf(ref, sizeof ref, "%s", nb_json_str(x, ""));
            assert_true(strncmp(ref, "#/", 2) == 0);
            for (char *save = NULL, *part = strtok_r(ref + 2, "/", &save); part; part = strtok_r(NULL, "/", &save))
                at = nb_json_get(at, part);
            if (!at)
                fail_msg("%s leads nowhere", nb_json_str(x, ""));
        }
        refs(x);
    }
}

static void test_refs(void **state)
{
    (void)state;
    refs(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_routes), cmocka_unit_test(test_fields), cmocka_unit_test(test_codes),
                                        cmocka_unit_test(test_refs) };

    return cmocka_run_group_tests(tests, open_doc, close_doc);
}
