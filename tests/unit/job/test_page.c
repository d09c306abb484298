/* test_page.c - HTML pages: well-formed whatever the names are, nothing from outside, the same bytes for the same input. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/map.h"
#include "job/chart.h"
#include "job/html.h"
#include "job/page_eval.h"
#include "job/page_quant.h"

static const char nasty[] = "<script>alert(\"x\")</script>&'\x01\xff\xe2\x80\xae]]>-->";

/* ---- a small checker: every tag is closed in its order, attributes are quoted, no stray < or & ---- */

static const char *at_name(const char *p, char *out, size_t cap)
{
    size_t n = 0;

    while ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '-' || *p == ':')
        out[n < cap - 1 ? n++ : n] = *p++;
    out[n] = 0;
    return p;
}

static bool entity(const char *p)
{
    static const char *const known[] = { "&amp;", "&lt;", "&gt;", "&quot;", "&#39;" };

    for (size_t i = 0; i < NB_LEN(known); i++)
        if (strncmp(p, known[i], strlen(known[i])) == 0)
            return true;
    return false;
}

/* NULL when well-formed, else where it is not. */
static const char *check_tag(const char **at, char stack[64][16], size_t *depth)
{
    const char *start = *at, *p = start + 1;
    char name[16], attr[32];
    const bool closes = *p == '/';

    p = at_name(p + closes, name, sizeof name);
    if (!name[0])
        return start;
    while (*p == ' ') {
        p = at_name(p + 1, attr, sizeof attr);
        if (!attr[0] || p[0] != '=' || p[1] != '"')
            return start;
        for (p += 2; *p && *p != '"'; p++)
            if (*p == '<' || (*p == '&' && !entity(p)))
                return p;
        p += *p == '"';
    }
    const bool empty = *p == '/';
    p += empty;
    if (*p != '>')
        return start;
    if (closes && (*depth == 0 || strcmp(stack[--*depth], name) != 0))
        return start;
    if (!closes && !empty) {
        if (*depth == 64)
            return start;
        strcpy(stack[(*depth)++], name);
    }
    *at = p + 1;
    return NULL;
}

static void check_page(const char *label, const char *page)
{
    static const char *const outside[] = { "<script", "<link", "<img",    "<iframe", "<object", "src=",
                                           "href=",   "url(",  "@import", "onload",  "onclick", "javascript:" };
    char stack[64][16];
    size_t depth = 0;
    const char *p = page + strlen("<!DOCTYPE html>"), *bad = NULL;

    assert_int_equal(strncmp(page, "<!DOCTYPE html>", 15), 0);
    while (*p && !bad) {
        if (*p == '<')
            bad = check_tag(&p, stack, &depth);
        else if (*p == '&' && !entity(p))
            bad = p;
        else
            p++;
    }
    if (bad || depth != 0)
        fail_msg("%s: not well-formed at \"%.60s\", depth %zu", label, bad ? bad : "", depth);
    for (size_t i = 0; i < NB_LEN(outside); i++)
        if (strstr(page, outside[i]))
            fail_msg("%s: has %s", label, outside[i]);
    if (strstr(page, "nan"))
        fail_msg("%s: %.80s", label, strstr(page, "nan") - 40);
    assert_non_null(strstr(page, "lang=\"en\""));
    assert_non_null(strstr(page, "prefers-color-scheme:dark"));
}

/* ---- parts ---- */

static void escapes(void **state)
{
    static const struct {
        const char *text, *want;
    } rows[] = {
        { "plain", "plain" },
        { "<b>&\"'", "&lt;b&gt;&amp;&quot;&#39;" },
        { "a\x01z\x7f", "a\xef\xbf\xbdz\xef\xbf\xbd" },
        { "\xff\xc3", "\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80" },
        { "\xe2\x80\xaetxt", "\xef\xbf\xbdtxt" },
        { "\xef\xbf\xbe", "\xef\xbf\xbd" },
        { "tab\tline\n", "tab\tline\n" },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_buf b = { 0 };
        nb_html_text(&b, rows[i].text);
        assert_string_equal(b.p, rows[i].want);
        nb_buf_clear(&b);
    }
}

/* Axes of any range: no endless loop, no figure outside, no NaN. */
static void charts(void **state)
{
    static const double ranges[][3] = {
        { 0, 0, 0 },          { 1, 1, 1 },       { -1, 0, 1 },       { 1e-300, 1, 1e300 }, { -5, -4, -3 },
        { 1e-9, 2e-9, 3e-9 }, { NAN, NAN, NAN }, { INFINITY, 1, 2 }, { 0, 1e18, 5 },
    };
    static const double xs[] = { 0, 1, 2 };

    (void)state;
    for (size_t i = 0; i < NB_LEN(ranges); i++)
        for (int how = 0; how < 6; how++) {
            const nb_series s = { .name = nasty, .y = ranges[i] };
            const nb_axis y = { .label = nasty, .log = how % 2, .unit = (nb_unit)(how / 2) };
            const char *const names[] = { nasty, "b", "a very long name that does not fit before the bar \xc3\xa4\xc3\xa4" };
            const nb_mean m[] = { { .mean = ranges[i][0], .lo = 1, .hi = 2 }, { .mean = ranges[i][1] }, { .mean = ranges[i][2] } };
            nb_buf b = { 0 };
            nb_html_begin(&b, "Test", nasty, nasty);
            nb_html_section(&b, nasty, nasty);
            nb_chart_lines(&b, &(nb_lines){ .title = nasty, .about = "", .x = y, .y = y, .xs = xs, .n_x = 3, .series = &s, .n_series = 1 });
            nb_chart_bars(&b, &(nb_bars){ .title = nasty, .about = "", .x = { .label = "" }, .names = names, .values = m, .n = 3 });
            nb_chart_points(&b,
                            &(nb_points){ .title = nasty, .about = "", .x = y, .y = y, .names = names, .xs = xs, .ys = ranges[i], .n = 3 });
            nb_html_end(&b, nasty);
            assert_false(b.failed);
            assert_null(strstr(b.p, "inf"));
            check_page("charts", b.p);
            nb_buf_clear(&b);
        }
}

/* ---- pages ---- */

static void eval_page(void **state)
{
    static const char *const models[] = { nasty, "dir/<b>", "other/<b>", "" };
    static nb_eval e;
    static nb_inspect what[5];
    nb_window win = { .n = 2, .feed = 2, .first = 1 };
    char part[] = "a/<i>.txt", part2[] = "b";
    char *parts[] = { part, part2 };
    nb_evalset set = {
        .protocol = "rows-2", .about = "about & more", .win = &win, .n_win = 1, .n_parts = 2, .parts = parts, .max_len = 2, .scored = 1
    };
    nb_eval_score scores[2] = { { .positions = 3, .kl.mean = 0.5 }, { .positions = 0 } };
    double alone[] = { 0.1, NAN, 0.3 };
    const nb_layer_errors layers[4] = {
        { 3, 10, alone, alone }, { 3, 10, alone, alone }, { 3, 10, alone, alone }, { 3, 10, alone, alone }
    };
    const nb_choice_score choice[5] = { { .n = 3, .acc.mean = 0.5, .same = -1 } };
    const char *const hints[] = { nasty };

    (void)state;
    e = (nb_eval){ .n_models = 4, .n_parts = 2, .n_bins = 2, .max_len = 2, .has_ref = true, .drawn = "1 row", .resamples = 10 };
    for (size_t i = 0; i < 4; i++) {
        e.model[i].all = (nb_eval_score){ .scored = 1, .positions = 2, .ppl.mean = 3e5, .kl.mean = 0.1 * (double)i, .word_ppl = 4 };
        e.model[i].kl_at[1] = NAN;
        snprintf(what[i].types[0].name, sizeof what[i].types[0].name, "I32");
        what[i].n_types = 1;
        what[i].types[0].n_bytes = what[i].n_bytes = 1000 * (i + 1);
        what[i].n_params = i == 2 ? 0 : 100;
        snprintf(what[i].model_type, sizeof what[i].model_type, "<llama>");
    }
    e.model[1].part = scores;
    for (size_t n = 1; n <= 4; n += 3)
        for (int how = 0; how < 4; how++) {
            const nb_eval_all a = { .n_models = n,
                                    .models = models,
                                    .ref = how & 1 ? "ref</title>" : NULL,
                                    .what = how & 2 ? what : NULL,
                                    .data = nasty,
                                    .set = &set,
                                    .eval = &e,
                                    .choice_file = "q&a.jsonl",
                                    .choice = how & 2 ? choice : NULL,
                                    .layers = how & 1 ? layers : NULL,
                                    .hints = hints,
                                    .n_hints = 1 };
            nb_buf b = { 0 }, again = { 0 };
            e.has_ref = how & 1;
            e.n_models = n;
            nb_page_eval(&b, &a, "nibble");
            nb_page_eval(&again, &a, "nibble");
            assert_false(b.failed);
            check_page("eval", b.p);
            assert_string_equal(b.p, again.p);
            assert_non_null(strstr(b.p, "&lt;script&gt;"));
            nb_buf_clear(&b);
            nb_buf_clear(&again);
        }
}

static void quantize_page(void **state)
{
    const nb_quantize_opts o = { .method = NB_QUANT_GPTQ, .bits = 4, .group_size = -1, .calib = nasty };
    const nb_quantize_plan plan = { .method = NB_QUANT_GPTQ,
                                    .layers = 2,
                                    .rows = 3,
                                    .len = 4,
                                    .in_bytes = 1000,
                                    .out_bytes = 300,
                                    .peak_bytes = 70000000,
                                    .cap_bytes = 100000000,
                                    .kernel = "scalar",
                                    .layout = "gptq",
                                    .threads = 1 };
    static const char *const curves[] = { "<h2>Memory and time over layers</h2>",
                                          "1 of 3 layers were done by an earlier process",
                                          "<figcaption>Memory</figcaption>",
                                          "Resident bytes of the process; the cap is 100 MB.",
                                          "<title>at the end of the layer, layer 1: 40.0 MB</title>",
                                          "<title>most so far, layer 2: 61.0 MB</title>",
                                          "<title>planned peak, layer 0: 70.0 MB</title>",
                                          "<title>cap, layer 0: 100 MB</title>",
                                          "<figcaption>Time</figcaption>",
                                          "<title>seconds a layer, layer 2: 60.5</title>" };
    const nb_quantize_result res = { .modules = 60, .fallbacks = 1, .seconds = 200, .mean_before = 0.1, .mean_after = 0.01 };
    char path[] = "/tmp/nibble-page-XXXXXX";
    const int fd = mkstemp(path);
    nb_err err = { 0 };
    char *text;
    size_t n;

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    for (size_t rows = 0; rows <= 60; rows += 60) {
        const nb_qpage_words w = { .model = nasty, .out = "out/<x>", .program = "nibble", .o = &o };
        nb_qpage *p;
        assert_int_equal(nb_qpage_open(&p, path, false, &err), NB_EEXISTS);
        nb_err_clear(&err);
        assert_int_equal(nb_qpage_open(&p, path, true, &err), NB_OK);
        nb_qpage_plan(p, &plan);
        for (size_t i = 0; i < rows; i++) {
            char name[96];
            snprintf(name, sizeof name, "model.layers.%zu.<mlp>.part%zu&", i / 20, i % 20);
            nb_qpage_row(p, &(nb_quantize_row){ .name = name,
                                                .n = 8,
                                                .k = 16,
                                                .before = 0.1,
                                                .after = i == 7 ? 0 : 0.001 * (double)i,
                                                .ratio = -1,
                                                .damp = i % 2 ? 0.05 : -1,
                                                .note = i == 9 ? nasty : "" });
            if (i % 20 == 19)
                nb_qpage_layer(p, &(nb_quantize_layer){ .layer = i / 20,
                                                        .seconds = i == 39 ? (double)NAN : 1.5 + (double)i,
                                                        .resident = 1000000 * (i + 1),
                                                        .peak = i == 19 ? 0 : 1000000 * (i + 2),
                                                        .resumed = i == 19 });
        }
        assert_int_equal(nb_qpage_finish(p, &w, &res, &err), NB_OK);
        assert_int_equal(nb_read_file(path, 1 << 24, &text, &n, &err), NB_OK);
        check_page("quantize", text);
        assert_true((strstr(text, "Modules with a note") != NULL) == (rows > 0));
        for (size_t i = 0; i < NB_LEN(curves); i++)
            if ((strstr(text, curves[i]) != NULL) != (rows > 0))
                fail_msg("%zu rows: %s%s", rows, rows ? "no " : "", curves[i]);
        nb_free(text);
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(escapes), cmocka_unit_test(charts), cmocka_unit_test(eval_page),
                                        cmocka_unit_test(quantize_page) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
