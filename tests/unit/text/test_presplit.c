/* test_presplit.c - pre-tokenizers and regular expressions against recorded results of the reference library. */
#include "vectors.h"

#include "text/onig.h"
#include "text/presplit.h"

static void describe(const nb_json *spec, const nb_json *text, const nb_pieces *p)
{
    char *s = nb_json_dump(spec, 0, true);
    char *t = nb_json_dump(text, 0, true);

    print_message("%s: %s: got", s, t);
    for (size_t i = 0; i < p->list.n && i < 12; i++)
        print_message(" [%.*s]", (int)p->list.v[i].n, p->text + p->list.v[i].off);
    print_message("\n");
    nb_free(s);
    nb_free(t);
}

static bool same_pieces(const nb_json *want, const nb_pieces *p)
{
    if (nb_json_len(want) == 1 && nb_json_str_len(nb_json_at(want, 0)) == 0)
        return p->list.n == 0; /* a step that does nothing keeps an empty text there; here it is no piece */
    if (nb_json_len(want) != p->list.n)
        return false;
    for (size_t i = 0; i < p->list.n; i++) {
        if (!same_str(nb_json_at(want, i), p->text + p->list.v[i].off, p->list.v[i].n))
            return false;
    }
    return true;
}

static void recorded(void **state)
{
    size_t n = 0, at = 0;
    char *text = slurp(golden_dir(), "pretokenizers.jsonl", &n);
    int lines = 0, bad = 0, scripts = 0, folded = 0;
    nb_json *line;
    (void)state;

    if (!text) {
        print_message("skipped: no pretokenizers.jsonl under %s\n", golden_dir());
        skip();
    }
    while ((line = next_line(text, n, &at))) {
        const nb_json *spec = nb_json_get(line, "pre_tokenizer"), *in = nb_json_get(line, "text");
        const char *re = nb_json_str(nb_json_get(nb_json_get(spec, "pattern"), "Regex"), "");
        bool raw = false;
        nb_presplit *ps = NULL;
        nb_pieces p = { 0 };
        nb_err err = { 0 };

        lines++;
        if (strcmp(nb_json_str(nb_json_get(spec, "type"), ""), "UnicodeScripts") == 0) {
            assert_int_equal(nb_presplit_open(spec, &raw, &ps, &err), NB_EUNSUPPORTED);
            scripts++;
        } else if (strcmp(re, "(?i:ss)") == 0) { /* folding to several characters: PCRE2 has none */
            folded++;
        } else {
            if (nb_presplit_open(spec, &raw, &ps, &err) != NB_OK)
                fail_msg("%s: %s", re, err.what);
            assert_int_equal(nb_presplit_run(ps, nb_json_str(in, ""), nb_json_str_len(in), true, &p, &err), NB_OK);
            if (!same_pieces(nb_json_get(line, "pieces"), &p)) {
                if (++bad <= 20)
                    describe(spec, in, &p);
            }
        }
        nb_pieces_clear(&p);
        nb_presplit_close(ps);
        nb_json_free(line);
    }
    nb_free(text);
    print_message("%d vectors, %d differ; skipped: %d UnicodeScripts (not supported), %d (?i:ss)\n", lines, bad, scripts, folded);
    assert_int_equal(bad, 0);
}

static size_t chars(const char *s, size_t n)
{
    size_t k = 0;

    for (size_t i = 0; i < n; i++)
        k += ((unsigned char)s[i] & 0xC0) != 0x80;
    return k;
}

/* The 13 regex families of real models: lengths of the pieces in characters (of "clip" the pieces, it drops text). */
static void families(void **state)
{
    size_t n = 0, at = 0;
    char *text = slurp(golden_dir(), "families.jsonl", &n);
    nb_json *head = next_line(text, n, &at), *line;
    const nb_json *specs = nb_json_get(head, "families");
    nb_presplit *ps[32] = { NULL };
    nb_pieces p = { 0 };
    int checks = 0, bad = 0;
    nb_err err = { 0 };
    (void)state;

    if (!text) {
        print_message("skipped: no families.jsonl under %s\n", golden_dir());
        skip();
    }
    for (size_t f = 0; f < nb_json_len(specs); f++) {
        bool raw = false;
        const char *key;
        if (nb_presplit_open(nb_json_member(specs, f, &key), &raw, &ps[f], &err) != NB_OK)
            fail_msg("%s: %s", key, err.what);
    }
    while ((line = next_line(text, n, &at))) {
        const nb_json *in = nb_json_get(line, "text");
        for (size_t f = 0; f < nb_json_len(specs); f++) {
            const char *key;
            const nb_json *spec = nb_json_member(specs, f, &key), *want = nb_json_get(line, key);
            bool ok;
            checks++;
            assert_int_equal(nb_presplit_run(ps[f], nb_json_str(in, ""), nb_json_str_len(in), true, &p, &err), NB_OK);
            ok = strcmp(key, "clip") == 0 ? same_pieces(want, &p) : nb_json_len(want) == p.list.n;
            for (size_t i = 0; ok && strcmp(key, "clip") != 0 && i < p.list.n; i++)
                ok = nb_json_int(nb_json_at(want, i), -1) == (int64_t)chars(p.text + p.list.v[i].off, p.list.v[i].n);
            if (!ok && ++bad <= 10)
                describe(spec, in, &p);
        }
        nb_json_free(line);
    }
    for (size_t f = 0; f < nb_json_len(specs); f++)
        nb_presplit_close(ps[f]);
    nb_pieces_clear(&p);
    nb_json_free(head);
    nb_free(text);
    print_message("%d splits, %d differ\n", checks, bad);
    assert_int_equal(bad, 0);
}

/* What Oniguruma and PCRE2 write differently. */
static void translations(void **state)
{
    static const struct {
        const char *label, *from, *to; /* to NULL: refused */
    } rows[] = {
        { "plain", "a+b", "a+b" },
        { "hex digit", "\\h", "[0-9A-Fa-f]" },
        { "multiline means dotall", "(?m:a.b)", "(?s:a.b)" },
        { "interval repeated", "a{2,3}+", "(?:a{2,3})+" },
        { "group interval repeated", "x(ab){2}+", "x(?:(ab){2})+" },
        { "lower bound absent", "a{,2}", "a{0,2}" },
        { "braces that are text", "a{x}", "a\\{x}" },
        { "four digits", "\\u0041", "\\x{0041}" },
        { "a script, not its extensions", "\\p{Han}", "\\p{sc:Han}" },
        { "negated property", "\\p{^L}", "\\P{L}" },
        { "POSIX punct", "[[:punct:]]", "[\\p{P}$+<=>\\^`|~]" },
        { "set in a set", "[a[0-9]]", "[a0-9]" },
        { "intersection", "[a-z&&[aeiou]]", "(?:(?=[a-z])[aeiou])" },
        { "flag s", "(?s:.)", NULL },
        { "open set", "[ab", NULL },
        { "open group", "(ab", NULL },
        { "closing too much", "ab)", NULL },
        { "backslash at the end", "ab\\", NULL },
        { "conditional", "(?(1)a|b)", NULL },
        { "not UTF-8", "\xff", NULL },
    };
    (void)state;

    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_buf out = { 0 };
        nb_err err = { 0 };
        const nb_status rc = nb_onig_translate(rows[i].from, strlen(rows[i].from), &out, &err);
        if (rows[i].to ? rc != NB_OK || strcmp(out.p, rows[i].to) != 0 : rc != NB_EUNSUPPORTED || strcmp(err.cls, "tok.regex") != 0)
            fail_msg("%s: got %d %s %s", rows[i].label, rc, rc == NB_OK ? out.p : err.what, err.cls);
        nb_buf_clear(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded),
        cmocka_unit_test(families),
        cmocka_unit_test(translations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
