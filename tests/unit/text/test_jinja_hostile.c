/* test_jinja_hostile.c - rows JT-01 .. JT-12, JT-16 of hardening 5.8: limits, depth, numbers; and failing memory. */
#include "vectors.h"

#include <stdbool.h>
#include <time.h>

#include "text/chat.h"

static const struct tm fixed = {
    .tm_year = 124, .tm_mon = 6, .tm_mday = 26, .tm_hour = 1, .tm_min = 2, .tm_sec = 3, .tm_wday = 5, .tm_yday = 207
};

static nb_status render(const char *src, size_t n, const char *vars, nb_buf *out, nb_err *err)
{
    nb_template *t = NULL;
    nb_json *v = NULL;
    nb_status rc = NB_OK;

    if (vars && nb_json_parse(vars, strlen(vars), "json", 0, &v, err) != NB_OK)
        fail_msg("variables: %s", err->what);
    rc = nb_template_open(src, n, &t, err);
    if (rc == NB_OK)
        rc = nb_template_render(t, v, &fixed, out, err);
    nb_template_close(t);
    nb_json_free(v);
    return rc;
}

/* want: class of the error, or NULL for success; text: what its sentence must contain, or the output. */
static const struct {
    const char *label, *src;
    nb_status code;
    const char *cls, *text;
} rows[] = {
    { "JT-01 syntax: line and column", "a\nb {{ 1 2 }}", NB_EFORMAT, "tmpl.syntax", "line 2, column 8" },
    { "JT-01 unfinished tag", "{% if x", NB_EFORMAT, "tmpl.syntax", "line 1" },
    { "JT-01 not UTF-8", "a\xff", NB_EFORMAT, "tmpl.utf8", "byte 1" },
    { "JT-02 include", "\n{% include 'x' %}", NB_EUNSUPPORTED, "tmpl.unsupported", "line 2, column 4: no statement is called \"include\"" },
    { "JT-02 import", "{% import 'x' as y %}", NB_EUNSUPPORTED, "tmpl.unsupported", "import" },
    { "JT-02 from", "{% from 'x' import y %}", NB_EUNSUPPORTED, "tmpl.unsupported", "from" },
    { "JT-02 extends", "{% extends 'x' %}", NB_EUNSUPPORTED, "tmpl.unsupported", "extends" },
    { "JT-02 unknown tag", "{% frob %}", NB_EUNSUPPORTED, "tmpl.unsupported", "frob" },
    { "JT-02 unknown filter", "{{ 1|frob }}", NB_EUNSUPPORTED, "tmpl.unsupported", "line 1, column 6: no filter is called \"frob\"" },
    { "JT-02 unknown test", "{{ 1 is frob }}", NB_EUNSUPPORTED, "tmpl.unsupported", "no test is called \"frob\"" },
    { "JT-02 unknown function", "{{ frob() }}", NB_EFORMAT, "tmpl.eval", "frob" },
    { "JT-03 class", "{{ ''.__class__.__mro__ }}", NB_EFORMAT, "tmpl.eval", "__class__" },
    { "JT-03 globals", "{{ range.__globals__['os'] }}", NB_EFORMAT, "tmpl.eval", "__globals__" },
    { "JT-03 attr", "{{ ''|attr('__class__')|attr('__base__') }}", NB_EFORMAT, "tmpl.eval", "__class__" },
    { "JT-03 format", "{{ '{0.__class__.__init__}'.format(1) }}", NB_EFORMAT, "tmpl.eval", "__class__" },
    { "JT-03 item", "{{ ''['__class__']['x'] }}", NB_EFORMAT, "tmpl.eval", "__class__" },
    { "JT-03 lipsum", "{{ lipsum.__globals__.os }}", NB_EFORMAT, "tmpl.eval", "__globals__" },
    { "JT-04 range", "{{ range(10**9)|list }}", NB_ELIMIT, "limit.template_steps", "range" },
    { "JT-04 nested ranges", "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", NB_ELIMIT,
      "limit.template_steps", "steps" },
    { "JT-04 nested bodies",
      "{% set n = namespace(x=0) %}{% for i in range(99999) %}{% for j in range(99999) %}{% set n.x = n.x + 1 %}{% endfor %}{% endfor %}",
      NB_ELIMIT, "limit.template_steps", "steps" },
    { "JT-16 a generator of nothing", "[{{ nothing|map(attribute='a.b')|join(',') }}]", NB_OK, NULL, "[]" },
    { "JT-05 repeat", "{{ 'abc' * 10**9 }}", NB_ELIMIT, "limit.template", "grows" },
    { "JT-05 repeat a list", "{{ [1] * 10**9 }}", NB_ELIMIT, "limit.template", "elements" },
    { "JT-05 repeat beyond size_t", "{{ 'abc' * 9223372036854775807 }}", NB_ELIMIT, "limit.template", "grows" },
    { "JT-05 concatenate", "{% set n = namespace(s='x' * 1000) %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}", NB_ELIMIT,
      "limit.template", "" },
    { "JT-05 tilde", "{% set n = namespace(s='x' * 1000) %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}", NB_ELIMIT,
      "limit.template", "" },
    { "JT-05 pad", "{{ 'a'|center(10**12) }}", NB_ELIMIT, "limit.template", "grows" },
    { "JT-05 ljust", "{{ 'a'.ljust(2**62) }}", NB_ELIMIT, "limit.template", "grows" },
    { "JT-05 printf width", "{{ '%999999999d' % 1 }}", NB_ELIMIT, "limit.template", "width" },
    { "JT-05 format width", "{{ '{:999999999}'.format(1) }}", NB_ELIMIT, "limit.template", "width" },
    { "JT-05 printf star", "{{ '%*d' % (10**12, 1) }}", NB_ELIMIT, "limit.template", "" },
    { "JT-05 printf precision", "{{ '%.99999f' % 1 }}", NB_ELIMIT, "limit.template", "precision" },
    { "JT-05 indent", "{{ ('a\\n' * 10000)|indent(10000) }}", NB_ELIMIT, "limit.template", "grows" },
    { "JT-05 join", "{{ range(99999)|join('x' * 100000) }}", NB_ELIMIT, "limit.template", "grows" },
    { "JT-05 replace", "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}", NB_ELIMIT, "limit.template", "grows" },
    { "JT-05 tojson indent", "{{ [1]|tojson(indent=10**9) }}", NB_ELIMIT, "limit.template", "indent" },
    { "JT-05 tojson shared parts",
      "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s|tojson }}", NB_ELIMIT,
      "limit.template_steps", "" },
    { "JT-05 equal shared parts",
      "{% set n = namespace(s=[1], t=[1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% set n.t = [n.t, n.t] %}{% endfor %}{{ n.s "
      "== n.t }}",
      NB_ELIMIT, "limit.template_steps", "" },
    { "JT-05 output", "{% set s = 'x' * 1000000 %}{% for i in range(99) %}{{ s }}{% endfor %}", NB_ELIMIT, "limit.template", "prints" },
    { "JT-06 macro", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", NB_ELIMIT, "limit.template", "64 levels" },
    { "JT-06 two macros", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", NB_ELIMIT,
      "limit.template", "64 levels" },
    { "JT-06 recursive loop", "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", NB_ELIMIT, "limit.template", "64 levels" },
    { "JT-06 caller", "{% macro a() %}{% call a() %}{% endcall %}{{ caller }}{% endmacro %}{{ a() }}", NB_ELIMIT, "limit.template",
      "64 levels" },
    { "JT-06 60 deep is fine", "{% macro m(n) %}{{ n }}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60)|length }}", NB_OK, NULL,
      "112" },
    { "JT-08 add", "{{ 9223372036854775807 + 1 }}", NB_EFORMAT, "tmpl.eval", "64 bits" },
    { "JT-08 subtract", "{{ -9223372036854775807 - 2 }}", NB_EFORMAT, "tmpl.eval", "64 bits" },
    { "JT-08 multiply", "{{ 9223372036854775807 * 2 }}", NB_EFORMAT, "tmpl.eval", "64 bits" },
    { "JT-08 negate", "{% set m = -9223372036854775807 - 1 %}{{ -m }}", NB_EFORMAT, "tmpl.eval", "64 bits" },
    { "JT-08 power", "{{ 2**10000 }}", NB_EFORMAT, "tmpl.eval", "64 bits" },
    { "JT-08 divide by 0", "{{ 1 / 0 }}", NB_EFORMAT, "tmpl.eval", "zero" },
    { "JT-08 floor divide by 0", "{{ 1 // 0 }}", NB_EFORMAT, "tmpl.eval", "zero" },
    { "JT-08 modulo 0", "{{ 1 % 0 }}", NB_EFORMAT, "tmpl.eval", "zero" },
    { "JT-08 modulo 0.0", "{{ 1 % 0.0 }}", NB_EFORMAT, "tmpl.eval", "zero" },
    { "JT-08 least by -1", "{% set m = -9223372036854775807 - 1 %}{{ m // -1 }}", NB_EFORMAT, "tmpl.eval", "64 bits" },
    { "JT-08 least modulo -1", "{% set m = -9223372036854775807 - 1 %}{{ m % -1 }}", NB_OK, NULL, "0" },
    { "JT-08 abs", "{% set m = -9223372036854775807 - 1 %}{{ m|abs }}", NB_EFORMAT, "tmpl.eval", "64 bits" },
    { "JT-08 slice step 0", "{{ [1][::0] }}", NB_EFORMAT, "tmpl.eval", "step" },
    { "JT-08 slice least step", "{% set m = -9223372036854775807 - 1 %}{{ [1,2][::m] }}{{ 'ab'[::m] }}{{ [1,2][m:] }}", NB_OK, NULL,
      "[2]b[1, 2]" },
    { "JT-08 int of a huge float", "{{ 1e300|int }}", NB_EFORMAT, "tmpl.eval", "64 bits" },
    { "JT-08 int of infinity", "{{ (1e308 * 10)|int(7) }}", NB_OK, NULL, "7" },
    { "JT-08 range bounds", "{% set m = -9223372036854775807 - 1 %}{{ range(m, 9223372036854775807) }}", NB_ELIMIT, "limit.template_steps",
      "range" },
    { "JT-09 raise_exception", "{{ raise_exception('no \x1b[31m' ~ 'x' * 500) }}", NB_EFORMAT, "tmpl.raise", "no \\x1b[31m" },
    { "JT-10 content is data", "{{ x }}{{ x|string }}", NB_OK, NULL, "{{ 1 }}{% if %}{{ 1 }}{% if %}" },
    { "JT-12 printing itself", "{% set n = namespace() %}{% set n.a = [n] %}{{ n }}", NB_EFORMAT, "tmpl.eval", "nests" },
    { "JT-12 comparing itself",
      "{% set n = namespace(a=[1], b=[1]) %}{% for i in range(400) %}{% set n.a = [n.a] %}{% set n.b = [n.b] %}{% endfor %}{{ n.a == n.b "
      "}}",
      NB_EFORMAT, "tmpl.eval", "nests" },
    { "JT-12 serialising deep lists",
      "{% set n = namespace(a=[]) %}{% for i in range(400) %}{% set n.a = [n.a] %}{% endfor %}{{ n.a|tojson }}", NB_EFORMAT, "tmpl.eval",
      "nests" },
    { "JT-16 lone percent", "{{ strftime_now('%') }}{{ strftime_now('%Q%-%_') }}", NB_OK, NULL, "%%Q%_" },
};

static void test_rows(void **state)
{
    size_t bad = 0;

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_buf out = { 0 };
        nb_err err = { 0 };
        const nb_status rc = render(rows[i].src, strlen(rows[i].src), "{\"x\": \"{{ 1 }}{% if %}\"}", &out, &err);
        const bool good =
            rc == rows[i].code && (rc == NB_OK ? strcmp(out.p ? out.p : "", rows[i].text) == 0 && !rows[i].cls
                                               : strcmp(err.cls, rows[i].cls) == 0 && strstr(err.what, rows[i].text) && out.n == 0);
        if (!good) {
            bad++;
            print_message("not ok: %s: got %d %s: %s %s\n", rows[i].label, rc, err.cls, err.what, out.p ? out.p : "");
        }
        nb_buf_clear(&out);
    }
    assert_int_equal(bad, 0);
}

/* before + n times part + middle + n times end + after */
static void repeated(const char *label, const char *before, const char *part, const char *middle, const char *end, const char *after, int n,
                     nb_status code, const char *cls, const char *text)
{
    nb_buf src = { 0 }, out = { 0 };
    nb_err err = { 0 };
    nb_status rc;

    nb_buf_puts(&src, before);
    for (int i = 0; i < n; i++)
        nb_buf_puts(&src, part);
    nb_buf_puts(&src, middle);
    for (int i = 0; i < n; i++)
        nb_buf_puts(&src, end);
    nb_buf_puts(&src, after);
    rc = render(src.p, src.n, NULL, &out, &err);
    if (rc != code || (cls && strcmp(err.cls, cls) != 0) || (text && strcmp(out.p ? out.p : "", text) != 0))
        fail_msg("%s: got %d %s: %s", label, rc, err.cls, err.what);
    nb_buf_clear(&src);
    nb_buf_clear(&out);
}

static void test_depth(void **state)
{
    static const struct {
        const char *label, *before, *part, *middle, *end, *after;
        int n;
    } deep[] = {
        { "JT-07 parentheses", "{{ ", "(", "1", ")", " }}", 100000 },
        { "JT-07 brackets", "{{ ", "[", "1", "]", " }}", 100000 },
        { "JT-07 not", "{{ ", "not ", "1", "", " }}", 100000 },
        { "JT-07 minus", "{{ ", "-", "1", "", " }}", 100000 },
        { "JT-07 inline if", "{{ ", "1 if 0 else ", "1", "", " }}", 80000 },
        { "JT-07 inline if on the left", "{{ 1", " if 1", "", "", " }}", 100000 },
        { "JT-07 filters", "{{ 1", "|abs", "", "", " }}", 100000 },
        { "JT-07 subscripts", "{{ 1", "[0]", "", "", " }}", 100000 },
        { "JT-07 calls", "{{ x", "()", "", "", " }}", 100000 },
        { "JT-07 blocks", "", "{% if 1 %}", "x", "{% endif %}", "", 40000 },
        { "JT-07 loops", "", "{% for i in [1] %}", "x", "{% endfor %}", "", 30000 },
        { "JT-07 filter chain of a block", "{% filter abs", "|abs", " %}{% endfilter %}", "", "", 100000 },
        { "JT-07 targets", "{% for ", "(", "a", ")", " in x %}{% endfor %}", 100000 },
    };
    static const struct {
        const char *label, *before, *part, *middle, *end, *after;
        int n;
        const char *out;
    } flat[] = {
        { "JT-07 flat tilde", "{% set x = 'a'", " ~ ''", " %}{{ x }}", "", "", 100000, "a" },
        { "JT-07 flat plus", "{{ 0", " + 1", " }}", "", "", 100000, "100000" },
        { "JT-07 flat and", "{{ 1", " and 1", " }}", "", "", 100000, "1" },
        { "JT-07 flat comparisons", "{{ 1", " == 1", " }}", "", "", 100000, "True" },
        { "JT-07 many elif", "{% if 0 %}", "{% elif 0 %}", "{% else %}z{% endif %}", "", "", 50000, "z" },
        { "JT-07 many statements", "", "{% set a = 1 %}", "{{ a }}", "", "", 60000, "1" },
        { "JT-07 long list", "{{ [", "1,", "2]|length }}", "", "", 400000, "400001" },
        { "JT-07 adjacent strings", "{{ (", "'a'", ")|length }}", "", "", 300000, "300000" },
        { "JT-07 150 parentheses", "{{ ", "(", "1", ")", " }}", 150, "1" },
        { "JT-07 150 blocks", "", "{% if 1 %}", "x", "{% endif %}", "", 150, "x" },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(deep); i++)
        repeated(deep[i].label, deep[i].before, deep[i].part, deep[i].middle, deep[i].end, deep[i].after, deep[i].n, NB_ELIMIT, NULL, NULL);
    for (size_t i = 0; i < NB_LEN(flat); i++)
        repeated(flat[i].label, flat[i].before, flat[i].part, flat[i].middle, flat[i].end, flat[i].after, flat[i].n, NB_OK, NULL,
                 flat[i].out);
    repeated("JT-01 too long", "", "0123456789abcdef", "", "", "x", 65536, NB_ELIMIT, "limit.template", NULL);
    repeated("JT-16 long format", "{{ strftime_now('", "%Y", "')|length }}", "", "", 5000, NB_OK, NULL, "20000");
    /* an expression deep in a macro, 64 times over, hits the limit of evaluation and not the stack */
    repeated("JT-06 deep macros", "{% macro m(n) %}{{ ", "[", "m(n + 1)", "][0]", " }}{% endmacro %}{{ m(0) }}", 90, NB_ELIMIT,
             "limit.template", NULL);
}

/* Every allocation fails once: a clean error, or the right output. */
static void test_memory(void **state)
{
    static const char src[] =
        "{% macro m(a, b='x') %}[{{ a|upper ~ b }}]{% endmacro %}{% set n = namespace(l=[]) %}{% for k, v in d|dictsort %}"
        "{% set n.l = n.l + [k ~ v] %}{{ m(k) }}{{ '%s' % v }}{% endfor %}{{ n.l|tojson(indent=2) }}{{ 'a' 'b\\n' }}";
    bool done = false;

    (void)state;
    for (uint64_t i = 1; !done && i < 2000; i++) {
        nb_json *vars = NULL;
        nb_template *t = NULL;
        nb_buf out = { 0 };
        nb_err err = { 0 };
        nb_status rc;
        assert_int_equal(nb_json_parse("{\"d\":{\"b\":1,\"a\":[1,2.5]}}", 25, "json", 0, &vars, &err), NB_OK);
        nb_mem_fail_at(i);
        rc = nb_template_open(src, sizeof src - 1, &t, &err);
        if (rc == NB_OK)
            rc = nb_template_render(t, vars, &fixed, &out, &err);
        done = nb_mem_fail_at(0) < i;
        if (rc == NB_OK)
            assert_string_equal(out.p, "[Ax][1, 2.5][Bx]1[\n  \"a[1, 2.5]\",\n  \"b1\"\n]ab\n");
        else if (rc != NB_ENOMEM)
            fail_msg("allocation %d: %d %s %s", (int)i, rc, err.cls, err.what);
        if (done)
            assert_int_equal(rc, NB_OK);
        nb_template_close(t);
        nb_json_free(vars);
        nb_buf_clear(&out);
    }
    assert_true(done);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_rows), cmocka_unit_test(test_depth), cmocka_unit_test(test_memory) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
