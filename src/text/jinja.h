/* jinja.h - inside of the template engine: syntax tree, values, and the state of one render. Private to the floor.
 *
 *   jinja_lex.c      text and tags to tokens, whitespace     jinja_tokens.c   token stream, nodes, names, errors
 *   jinja_parse.c    expressions to nodes                    jinja_stmt.c     statements to nodes, template handle
 *   jinja_eval.c     expressions, calls                      jinja_exec.c     statements, scopes, loops, macros, render
 *   jinja_value.c    values: build, compare, iterate         jinja_text.c     str, repr, tojson
 *   jinja_math.c     numbers                                 jinja_attr.c     a.b and a[b]
 *   jinja_format.c   printf, str.format                      jinja_date.c     strftime
 *   jinja_filters.c  filters on text and numbers             jinja_lists.c    filters on lists and dicts
 *   jinja_tests.c    tests                                   jinja_methods.c  methods of str, list, dict
 *   jinja_funcs.c    global functions                        jinja_search.c   search, strip, replace, pad
 *   jinja_case.c     case mapping, character classes
 *
 * A compiled template is immutable; names, nodes and texts live in its arena. Everything a render makes lives in the
 * arena of its jrun. Failures inside compile and render leave through one longjmp: all they hold is an arena and two
 * buffers that the entry function releases. Behaviour: spec chat-templates 3-8; limits: hardening 4 and 5.8. */
#ifndef NB_TEXT_JINJA_H
#define NB_TEXT_JINJA_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/strmap.h"
#include "text/chat.h"

#define J_SOURCE_MOST ((size_t)1 << 20)   /* bytes of source                                            */
#define J_NEST_MOST   200                 /* levels of blocks and expressions in the source             */
#define J_CALL_MOST   64                  /* macros and recursive loops inside each other (JT-06)       */
#define J_EVAL_MOST   2000                /* nodes being evaluated inside each other, over all macros   */
#define J_VALUE_MOST  256                 /* levels of a value that is printed, compared or serialised  */
#define J_STEPS_MOST  10000000            /* nodes executed; long texts and lists count by their size   */
#define J_OUTPUT_MOST ((size_t)16 << 20)  /* bytes of output, and of any one text                       */
#define J_LIST_MOST   1000000             /* elements of a list                                         */
#define J_MEMORY_MOST ((size_t)128 << 20) /* bytes of all values a render makes                         */
#define J_RANGE_MOST  100000              /* elements of range()                                        */

/* ---- values ---- */

typedef enum jtype {
    J_ABSENT, /* an argument that was not given; never a value of the language */
    J_UNDEF,
    J_NONE,
    J_BOOL,
    J_INT,
    J_BIG, /* an integer beyond 64 bits, as decimal text */
    J_FLOAT,
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_NS,
    J_RANGE,
    J_VIEW, /* what d.items(), d.keys(), d.values() return */
    J_GEN,  /* one-shot iterator: map, select, items ... */
    J_MACRO,
    J_FUNC,
    J_METHOD,
    J_LOOP,
    J_CYCLER,
    J_JOINER
} jtype;

typedef struct jstr {
    const char *s; /* not terminated; lives in the template or the render's arena */
    size_t n;      /* bytes       */
    size_t chars;  /* code points */
} jstr;

typedef struct jval jval;
typedef struct jlist jlist;
typedef struct jdict jdict;
typedef struct jnode jnode;
typedef struct jscope jscope;
typedef struct jrun jrun;
typedef struct jsig jsig;

struct jval {
    uint8_t t;
    bool safe;  /* a text marked by |safe or |e */
    bool fixed; /* list or dict of the request: never changed */
    union {
        bool b;
        int64_t i;
        double f;
        const jstr *s; /* STR; BIG: its digits; UNDEF: the name that was missing, or NULL */
        jlist *l;      /* LIST, TUPLE, GEN, CYCLER */
        jdict *d;      /* DICT, NS */
        struct jrange *r;
        struct jview *view;
        struct jmacro *m;
        const jsig *fn;
        struct jmethod *me;
        struct jloop *loop;
        struct jjoin *join;
    } u;
};

struct jlist {
    jval *v;
    size_t n, cap;
    size_t at; /* GEN: consumed so far; CYCLER: position */
};

typedef struct jpair {
    jval k, v;
    uint64_t hash;
} jpair;

struct jdict {
    jpair *p; /* in order of insertion */
    size_t n, cap;
    uint32_t *index; /* of entries, by hash; NULL while small; 0 is empty, else entry + 1 */
    size_t n_index;
};

typedef struct jrange {
    int64_t start, stop, step;
    size_t n;
} jrange;

typedef struct jview {
    jdict *d;
    uint8_t what; /* 'k' 'v' 'i' */
} jview;

typedef struct jmacro {
    const jnode *node; /* MACRO or CALLBLOCK */
    jscope *scope;     /* where it was defined */
} jmacro;

typedef struct jmethod {
    jval self;
    const jsig *sig;
} jmethod;

typedef struct jloop {
    jval *v; /* the elements; NULL: those of range */
    const jrange *range;
    size_t n, i;
    uint32_t depth;
    jval changed; /* arguments of the last loop.changed(): a tuple, or absent */
    const jnode *node;
    jscope *scope; /* of the for statement, for recursive calls */
} jloop;

typedef struct jjoin {
    jval sep;
    bool used;
} jjoin;

/* Evaluated arguments. Functions with fixed parameters find them at arg[0..max) in order, J_ABSENT where not given. */
typedef struct jkw {
    const jstr *name;
    jval v;
} jkw;
typedef struct jcall {
    const jval *arg;
    size_t n;
    const jkw *kw;
    size_t n_kw;
    const jsig *sig; /* what is called */
} jcall;

#define J_PARAMS 5
struct jsig {
    const char *name;
    jval (*fn)(jrun *r, jval self, const jcall *c);
    const char *par[J_PARAMS]; /* parameter names; NULL from the end on */
    uint8_t min, max;          /* parameters needed, and known; max J_ANY: fn binds them itself */
    uint8_t takes;             /* methods: type of self: J_STR, J_LIST (and tuple), J_DICT, ... */
    bool mutates;              /* methods forbidden by the sandbox unless lenient */
};
#define J_ANY 255

/* ---- syntax tree ---- */

typedef enum jkind {
    /* expressions */
    N_CONST,
    N_NAME,
    N_LIST,
    N_TUPLE,
    N_DICT,  /* v: key, value, key, value ... */
    N_ATTR,  /* a . name */
    N_ITEM,  /* a [ b ] */
    N_SLICE, /* v: start, stop, step, each may be NULL; only as b of N_ITEM */
    N_CALL,
    N_FILTER, /* a NULL: the text of a filter block or block set */
    N_TEST,
    N_ARITH, /* v[0] op[0] v[1] op[1] ...: left to right, so that long chains are flat */
    N_COMPARE,
    N_CONCAT,
    N_AND,
    N_OR,
    N_NOT,
    N_NEG,
    N_POS,
    N_COND, /* a if b else c */
    /* statements */
    N_TEXT,
    N_OUT,
    N_IF,          /* v: test, body, test, body ...; an else has test NULL */
    N_FOR,         /* v: target, iterable, filter, body, else */
    N_SET,         /* a target, b value */
    N_SETBLOCK,    /* a target, b filter or NULL, c body */
    N_NSATTR,      /* target name . attribute: id, n */
    N_MACRO,       /* v: N_NAME parameters, then defaults (NULL where none), then body; n parameters */
    N_CALLBLOCK,   /* like N_MACRO; a is the call */
    N_FILTERBLOCK, /* b filter, c body */
    N_WITH,        /* v: target, value ...; last: body */
    N_SCOPE,       /* a body: block, generation */
    N_BREAK,
    N_CONTINUE,
    N_BODY
} jkind;

typedef enum jop { O_ADD, O_SUB, O_MUL, O_DIV, O_FDIV, O_MOD, O_POW, O_EQ, O_NE, O_LT, O_LE, O_GT, O_GE, O_IN, O_NOTIN } jop;

enum { M_VARARGS = 1, M_KWARGS = 2, M_CALLER = 4, F_RECURSIVE = 1, T_NEG = 1 };

typedef struct jargs {
    jnode **pos;
    const uint32_t *kw_name;
    jnode **kw;
    uint32_t n_pos, n_kw;
    jnode *star, *dstar; /* *args, **kwargs or NULL */
} jargs;

/* Nodes are allocated only as far as their kind uses them (nb_j_node): names are 16 bytes. */
struct jnode {
    uint8_t kind, flags;
    uint16_t col;
    uint32_t line;
    uint32_t id; /* name; filter and test: name too */
    uint32_t n;  /* children in v; parameters of a macro */
    union {
        jval val;
        struct {
            union {
                jnode **v;
                jnode *a;
            };
            union {
                jnode *b;
                const uint8_t *op;
                const jargs *args;
            };
            union {
                jnode *c;
                const jsig *sig; /* filter, test; NULL: unknown, fails when executed */
            };
        };
    } u;
};

struct nb_template {
    nb_arena arena;
    nb_strmap *ids; /* name -> id */
    jstr *names;
    size_t n_names, cap_names;
    jnode *body;
};

/* ---- lexer ---- */

typedef enum jtoken_kind {
    T_TEXT,
    T_OUT_BEGIN,
    T_OUT_END,
    T_STMT_BEGIN,
    T_STMT_END,
    T_NAME,
    T_STR,
    T_INT,
    T_FLOAT,
    T_OP,
    T_END
} jtoken_kind;

typedef struct jtoken {
    uint8_t kind;
    uint16_t op; /* T_OP: the characters, second one in the high byte; T_STMT_END etc.: 0 */
    uint32_t line, col;
    const char *s; /* source, or decoded text */
    size_t n;
} jtoken;

typedef struct jlex {
    const char *src;
    size_t n, at;
    uint32_t line;
    size_t line_at;             /* offset of the line's first byte */
    uint8_t mode;               /* outside, output, statement, raw */
    bool line_starting;         /* the last token ended with a newline, or none came yet */
    char open[J_NEST_MOST + 1]; /* brackets to close */
    size_t n_open;
} jlex;

typedef struct jparse {
    nb_template *t;
    jlex lex;
    jtoken tok, ahead;
    bool has_ahead;
    nb_err *err;
    jmp_buf out;
    int depth;
    int loops;         /* for statements around, inside the current macro */
    uint8_t *mentions; /* flags of the macro being parsed */
    bool soft;         /* in a branch that may never run: unknown filters wait until it does */
    jtoken unknown;    /* first unknown filter or test outside such branches; n = 0: none */
    bool unknown_test;
    jnode **stack; /* children of lists being parsed */
    size_t n_stack, cap_stack;
    nb_buf text; /* adjacent string literals being joined */
} jparse;

/* jinja_lex.c */
void nb_j_lex_init(jlex *x, const char *src, size_t n);
jtoken nb_j_lex_next(jparse *p);

/* jinja_tokens.c */
_Noreturn void nb_j_syntax(jparse *p, const jtoken *at, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;
_Noreturn void nb_j_unexpected(jparse *p, const char *wanted);
_Noreturn void nb_j_parse_stop(jparse *p); /* err is filled */
void *nb_j_keep(jparse *p, size_t bytes);  /* template memory; never NULL */
jnode *nb_j_node(jparse *p, jkind kind, size_t bytes);
#define J_NODE(p, kind, last) nb_j_node(p, kind, offsetof(jnode, last) + sizeof(((jnode *)0)->last))
void nb_j_next(jparse *p);
const jtoken *nb_j_look(jparse *p);
bool nb_j_is_op(const jparse *p, uint16_t op);
bool nb_j_is_name(const jparse *p, const char *name);
bool nb_j_token_is(const jtoken *t, const char *name);
bool nb_j_skip_op(jparse *p, uint16_t op);
bool nb_j_skip_name(jparse *p, const char *name);
void nb_j_expect_op(jparse *p, uint16_t op, const char *what);
void nb_j_expect_name(jparse *p, const char *name);
uint32_t nb_j_intern(jparse *p, const char *s, size_t n);
void nb_j_push(jparse *p, jnode *n);
jnode **nb_j_pop_all(jparse *p, size_t mark, uint32_t *n);
void nb_j_deeper(jparse *p);
/* jinja_parse.c */
jnode *nb_j_parse_expr(jparse *p, bool with_cond);
jnode *nb_j_parse_tuple(jparse *p, bool with_cond);
jnode *nb_j_parse_filters(jparse *p, bool start); /* chain of filters over a block's text; start: its first bar is left out */
jnode *nb_j_parse_primary(jparse *p);
#define J_OP(a)     ((uint16_t)(a))
#define J_OP2(a, b) ((uint16_t)((a) | (b) << 8))

/* ---- render ---- */

typedef struct jbind {
    uint32_t id;
    jval v;
} jbind;

struct jscope {
    jscope *up;
    jbind *b;
    uint32_t n, cap;
    bool kept; /* a macro or caller refers to it */
};

struct jrun {
    const nb_template *t;
    nb_arena arena;
    size_t memory;
    uint64_t steps;
    int eval_depth, call_depth, value_depth;
    nb_buf out;    /* output; captured parts are taken off its end */
    nb_buf build;  /* scratch for texts being built, used from a mark to its end */
    jval *top;     /* by name id: top-level variables; J_ABSENT: none */
    jscope *scope; /* innermost, NULL at top level */
    jscope *spare; /* scopes to use again, linked by up */
    uint32_t line;
    uint8_t jump; /* 0, N_BREAK, N_CONTINUE */
    bool lenient;
    const struct tm *now;
    nb_err *err;
    jmp_buf stop;
};

_Noreturn void nb_j_fail(jrun *r, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
_Noreturn void nb_j_limit(jrun *r, const char *cls, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;
_Noreturn void nb_j_stop(jrun *r, nb_status code, const char *cls, const char *what);

/* jinja_value.c: memory, and values */
void nb_j_charge(jrun *r, uint64_t steps);
void *nb_j_alloc(jrun *r, size_t bytes);
jval nb_j_str(jrun *r, const char *s, size_t n);  /* copied */
jval nb_j_view(jrun *r, const char *s, size_t n); /* not copied: lives in the arena or the template */
jval nb_j_cstr(jrun *r, const char *s);           /* a literal of ours */
size_t nb_j_mark(jrun *r);                        /* begin a text in r->build */
void nb_j_room(jrun *r, size_t more);             /* check the size of what comes before it is built */
jval nb_j_take(jrun *r, size_t mark);             /* the text since mark */
void nb_j_put(jrun *r, const char *s, size_t n);  /* append to r->build, checked */
jval nb_j_list(jrun *r, size_t cap);              /* empty list */
void nb_j_append(jrun *r, jlist *l, jval v);
jval nb_j_tuple2(jrun *r, jval a, jval b);
jval nb_j_dict(jrun *r, size_t cap);
jval *nb_j_dict_get(jrun *r, const jdict *d, jval key);
jval *nb_j_dict_find(jrun *r, const jdict *d, const jstr *key);
void nb_j_dict_set(jrun *r, jdict *d, jval key, jval v);
void nb_j_dict_del(jrun *r, jdict *d, size_t at);
jval nb_j_from_json(jrun *r, const nb_json *v);
bool nb_j_true(jval v);
bool nb_j_equal(jrun *r, jval a, jval b);
int nb_j_order(jrun *r, jval a, jval b); /* -1 0 1; 2: unordered (NaN); fails for unlike types */
const char *nb_j_type_name(jval v);
/* Elements of anything iterable as an array (consumes generators); fails for the others. */
jval *nb_j_items(jrun *r, jval v, size_t *n);
bool nb_j_iterable(jval v);
bool nb_j_length(jval v, size_t *n); /* false: it has none */
bool nb_j_is_str(jval v, const char *s);
static inline jval nb_j_of(jtype t)
{
    jval v = { .t = (uint8_t)t };
    return v;
}
static inline jval nb_j_bool(bool b)
{
    jval v = { .t = J_BOOL };
    v.u.b = b;
    return v;
}
static inline jval nb_j_int(int64_t i)
{
    jval v = { .t = J_INT };
    v.u.i = i;
    return v;
}
static inline jval nb_j_float(double f)
{
    jval v = { .t = J_FLOAT };
    v.u.f = f;
    return v;
}
static inline jval nb_j_loop_item(const jloop *l, size_t i)
{
    return l->range ? nb_j_int(l->range->start + (int64_t)i * l->range->step) : l->v[i];
}
static inline bool nb_j_is_seq(jval v)
{
    return v.t == J_LIST || v.t == J_TUPLE;
}
static inline bool nb_j_is_num(jval v)
{
    return v.t == J_INT || v.t == J_BIG || v.t == J_FLOAT || v.t == J_BOOL;
}
static inline bool nb_j_given(jval v) /* an argument that was given and is not None */
{
    return v.t != J_ABSENT && v.t != J_NONE;
}

/* jinja_math.c */
jval nb_j_arith(jrun *r, jop op, jval a, jval b);
jval nb_j_neg(jrun *r, jval v, bool plus);
jval nb_j_big(jrun *r, const char *s, size_t n); /* decimal digits with optional sign: INT or BIG */
bool nb_j_as_int(jval v, int64_t *out);          /* INT or BOOL */
double nb_j_as_double(jrun *r, jval v);
size_t nb_j_float_repr(double f, char out[32]);
bool nb_j_read_double(const char *s, size_t n, double *out); /* decimal text, whole; any locale */
int nb_j_cmp_num(jval a, jval b);                            /* as nb_j_order */
jval nb_j_to_int(jrun *r, jval v, jval dflt, int64_t base);
jval nb_j_to_float(jrun *r, jval v, jval dflt);
jval nb_j_round(jrun *r, jval v, int64_t digits, const char *method);

/* jinja_text.c */
void nb_j_put_str(jrun *r, jval v); /* append str(v) to r->build */
void nb_j_put_repr(jrun *r, jval v);
jval nb_j_to_str(jrun *r, jval v); /* str(v); a text is returned as it is */
jval nb_j_tojson(jrun *r, jval v, bool ascii, jval indent, jval separators, bool sort);
jval nb_j_escape(jrun *r, jval v); /* HTML; marked */
void nb_j_print(jrun *r, jval v);  /* append str(v) to the output */
void nb_j_emit(jrun *r, const char *s, size_t n);

/* jinja_format.c */
jval nb_j_printf(jrun *r, jval fmt, jval args);
jval nb_j_str_format(jrun *r, jval fmt, const jcall *c);
jval nb_j_strftime(jrun *r, const jstr *fmt);

/* jinja_case.c */
bool nb_j_space(uint32_t cp); /* str.isspace */
void nb_j_put_upper(jrun *r, const jstr *s);
void nb_j_put_lower(jrun *r, const jstr *s);
void nb_j_put_title(jrun *r, const jstr *s, bool filter); /* words start after non-letters; filter: after blanks and -({[< */
void nb_j_put_capital(jrun *r, const jstr *s);
void nb_j_put_swap(jrun *r, const jstr *s);
bool nb_j_printable(uint32_t cp);
bool nb_j_str_is(const jstr *s, const char *what); /* "alpha", "digit", ...: the isX methods */

/* jinja_attr.c */
jval nb_j_getattr(jrun *r, jval v, const jstr *name);
jval nb_j_getitem(jrun *r, jval v, jval key);
jval nb_j_slice(jrun *r, jval v, jval start, jval stop, jval step);
jval nb_j_path(jrun *r, jval v, jval path); /* "a.b.0" or a number, as attribute= arguments */
bool nb_j_contains(jrun *r, jval box, jval v);
jval nb_j_undef(const jstr *name); /* the name must live as long as the render */

/* jinja_eval.c */
jval nb_j_eval(jrun *r, const jnode *n);
jval nb_j_call(jrun *r, jval f, const jcall *c);
jval nb_j_apply(jrun *r, const jsig *s, jval self, const jcall *c); /* bind parameters, then call */
void nb_j_eval_args(jrun *r, const jargs *a, jcall *c);
jval nb_j_eval_filter(jrun *r, const jnode *n, jval self);
const jkw *nb_j_kw(const jcall *c, const char *name);

/* jinja_exec.c */
void nb_j_exec(jrun *r, const jnode *n);
jval nb_j_call_macro(jrun *r, const jmacro *m, const jcall *c);
jval nb_j_call_loop(jrun *r, jloop *l, const jcall *c);
jval nb_j_lookup(jrun *r, uint32_t id);
nb_status nb_j_render(const nb_template *t, const nb_json *vars, const struct tm *now, bool lenient, nb_buf *out, nb_err *err);

/* Tables: NULL when there is no such name. */
const jsig *nb_j_find_filter(const char *s, size_t n);
const jsig *nb_j_find_test(const char *s, size_t n);
const jsig *nb_j_find_method(jval self, const jstr *name);
jval nb_j_call_method(jrun *r, const jmethod *m, const jcall *c);
const jsig *nb_j_find_func(const char *s, size_t n);
extern const jsig nb_j_list_filters[];                               /* ends with a NULL name */
const jsig *nb_j_find_in(const jsig *rows, const char *s, size_t n); /* rows end with a NULL name */
jval *nb_j_lines(jrun *r, const jstr *s, bool keep_ends, size_t *n); /* str.splitlines */
jval nb_j_gen(jrun *r, jval list);                                   /* a one-shot iterator over a list */
void nb_j_sort(jrun *r, jval *v, jval *key, size_t n, bool reverse); /* stable, by key */

/* jinja_search.c */
jval nb_j_strip(jrun *r, jval s, jval chars, int ends); /* ends: 1 left, 2 right, 3 both */
jval nb_j_replace(jrun *r, const jstr *s, const jstr *a, const jstr *b, int64_t most);
size_t nb_j_find(jrun *r, const jstr *s, size_t from, const jstr *what);        /* byte offset, SIZE_MAX when absent */
size_t nb_j_find_last(jrun *r, const jstr *s, size_t end, const jstr *what);    /* beginning before `end` */
jval nb_j_pad(jrun *r, const jstr *s, int64_t width, int where, uint32_t fill); /* where: -1 text left, 0 centre, 1 right */
size_t nb_j_offset(jrun *r, const jstr *s, size_t chars);                       /* bytes of the first `chars` code points */
const jstr *nb_j_need_str(jrun *r, jval v, const char *what);
int64_t nb_j_need_int(jrun *r, jval v, const char *what);

#endif
