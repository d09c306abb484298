/* pickle.c - see pickle.h. One loop over a table of opcodes.
 *
 * Stream: PROTO 2, opcodes with their operands, STOP. Reference of the language: CPython Lib/pickletools.py; of what
 * PyTorch writes: torch/_utils.py, torch/serialization.py (2.13). */
#include "io/pickle.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/bits.h"
#include "base/u8.h"
#include "io/io_priv.h"
#include "io/pickle_priv.h"

#define ON_PATH 0x80000000u /* in tags of containers, while the finished graph is walked */

nb_status nb_pkl_fail(nb_pkl *v, nb_status code, const char *cls, const char *fmt, ...)
{
    char where[128];
    va_list ap;

    va_start(ap, fmt);
    nb_vfail(v->err, code, cls, "", fmt, ap);
    va_end(ap);
    snprintf(where, sizeof where, "%.64s offset %zu", v->record, v->op);
    nb_err_at(v->err, NULL, where);
    return code;
}

nb_status nb_pkl_nomem(nb_pkl *v)
{
    return nb_enomem(v->err, "a pickle");
}

nb_pkl_node *nb_pkl_node_at(const nb_pkl *v, nb_pkl_ref r)
{
    return nb_pool_at(&v->nodes, r);
}

nb_status nb_pkl_new(nb_pkl *v, nb_pkl_kind kind, uint32_t count, uint32_t a, uint32_t b, nb_pkl_ref *out)
{
    nb_pkl_node *x;

    if (v->nodes.n >= NB_PKL_NODES)
        return nb_pkl_fail(v, NB_ELIMIT, "limit.pickle_nodes", "more than %d objects", NB_PKL_NODES);
    x = nb_pool_reach(&v->nodes, v->nodes.n);
    if (!x)
        return nb_pkl_nomem(v);
    *x = (nb_pkl_node){ .tag = (uint32_t)kind | count << 4, .a = a, .b = b };
    *out = v->nodes.n++;
    return NB_OK;
}

nb_status nb_pkl_push(nb_pkl *v, nb_pkl_ref r)
{
    nb_pkl_ref *to = nb_pool_reach(&v->stack, v->stack.n);

    if (!to)
        return nb_pkl_nomem(v);
    *to = r;
    v->stack.n++;
    return NB_OK;
}

nb_status nb_pkl_push_new(nb_pkl *v, nb_pkl_kind kind, uint32_t count, uint32_t a, uint32_t b)
{
    nb_pkl_ref r = 0;
    nb_status rc = nb_pkl_new(v, kind, count, a, b, &r);

    return rc == NB_OK ? nb_pkl_push(v, r) : rc;
}

/* Objects above the last mark. */
static uint32_t above(const nb_pkl *v)
{
    return v->stack.n - (v->marks.n ? *(uint32_t *)nb_pool_at(&v->marks, v->marks.n - 1) : 0);
}

nb_status nb_pkl_need(nb_pkl *v, uint32_t k)
{
    if (above(v) >= k)
        return NB_OK;
    return nb_pkl_fail(v, NB_EFORMAT, "pkl.stack", "needs %u objects, %u are there", k, above(v));
}

/* The k-th object from the top, 0 the topmost. */
nb_pkl_ref nb_pkl_peek(const nb_pkl *v, uint32_t k)
{
    return *(nb_pkl_ref *)nb_pool_at(&v->stack, v->stack.n - 1 - k);
}

static nb_status need_mark(nb_pkl *v)
{
    if (v->marks.n > 0)
        return NB_OK;
    return nb_pkl_fail(v, NB_EFORMAT, "pkl.stack", "no mark is on the stack");
}

nb_pkl_ref nb_pkl_item(const nb_pkl *v, const nb_pkl_node *tuple, uint32_t k)
{
    return *(nb_pkl_ref *)nb_pool_at(&v->items, tuple->a + k);
}

static nb_status bad_type(nb_pkl *v, const char *what)
{
    return nb_pkl_fail(v, NB_EFORMAT, "pkl.type", "%s", what);
}

/* ---- opcodes. x is the operand when it is a number of at most four bytes, else the constant of the table row ---- */

static nb_status op_const(nb_pkl *v, uint32_t x)
{
    return nb_pkl_push(v, x);
}

static nb_status op_container(nb_pkl *v, uint32_t kind)
{
    return nb_pkl_push_new(v, (nb_pkl_kind)kind, 0, 0, 0);
}

static nb_status push_int(nb_pkl *v, uint64_t x)
{
    return nb_pkl_push_new(v, NB_PKL_INT, 0, (uint32_t)(x & 0xFFFFFFFFu), (uint32_t)(x >> 32));
}

static nb_status op_uint(nb_pkl *v, uint32_t x)
{
    return push_int(v, x);
}

static nb_status op_int(nb_pkl *v, uint32_t x)
{
    return push_int(v, x | (x & 0x80000000u ? (uint64_t)0xFFFFFFFFu << 32 : 0));
}

/* n bytes of two's complement, little-endian. */
static nb_status op_long(nb_pkl *v, uint32_t n)
{
    const unsigned char *p = v->p + v->i;
    uint64_t x = 0;

    if (n > 8)
        return nb_pkl_fail(v, NB_EFORMAT, "pkl.number", "an integer of %u bytes, 8 at most", n);
    if (n > v->n - v->i)
        return nb_pkl_fail(v, NB_EFORMAT, "pkl.truncated", "the stream ends inside an operand");
    for (uint32_t k = 0; k < n; k++)
        x |= (uint64_t)p[k] << (8 * k);
    if (n > 0 && n < 8 && p[n - 1] & 0x80)
        x |= UINT64_MAX << (8 * n);
    v->i += n;
    return push_int(v, x);
}

static nb_status op_float(nb_pkl *v, uint32_t x)
{
    (void)x;
    if (v->n - v->i < 8)
        return nb_pkl_fail(v, NB_EFORMAT, "pkl.truncated", "the stream ends inside an operand");
    v->i += 8;
    return nb_pkl_push(v, NB_PKL_R_FLOAT);
}

static nb_status op_text(nb_pkl *v, uint32_t n)
{
    const size_t from = v->i;

    if (n > v->n - v->i)
        return nb_pkl_fail(v, NB_EFORMAT, "pkl.length", "a text of %u bytes, %zu are left", n, v->n - v->i);
    if (nb_u8_check((const char *)v->p + from, n) < n)
        return nb_pkl_fail(v, NB_EFORMAT, "pkl.utf8", "a text that is not valid UTF-8");
    v->i += n;
    return nb_pkl_push_new(v, NB_PKL_STR, n, (uint32_t)from, 0);
}

static nb_status op_mark(nb_pkl *v, uint32_t x)
{
    uint32_t *to = nb_pool_reach(&v->marks, v->marks.n);

    (void)x;
    if (!to)
        return nb_pkl_nomem(v);
    *to = v->stack.n;
    v->marks.n++;
    return NB_OK;
}

/* The k topmost objects become a tuple. */
static nb_status make_tuple(nb_pkl *v, uint32_t k)
{
    const uint32_t from = v->items.n;

    if (k == 0)
        return nb_pkl_push(v, NB_PKL_R_EMPTY);
    for (uint32_t j = 0; j < k; j++) {
        nb_pkl_ref *to;
        if (v->items.n >= NB_PKL_OPS)
            return nb_pkl_fail(v, NB_ELIMIT, "limit.pickle_nodes", "too many items in tuples");
        to = nb_pool_reach(&v->items, v->items.n);
        if (!to)
            return nb_pkl_nomem(v);
        *to = nb_pkl_peek(v, k - 1 - j);
        v->items.n++;
    }
    v->stack.n -= k;
    return nb_pkl_push_new(v, NB_PKL_TUPLE, k, from, 0);
}

static nb_status op_small_tuple(nb_pkl *v, uint32_t k)
{
    nb_status rc = nb_pkl_need(v, k);
    return rc == NB_OK ? make_tuple(v, k) : rc;
}

static nb_status op_tuple(nb_pkl *v, uint32_t x)
{
    uint32_t k;
    nb_status rc = need_mark(v);

    (void)x;
    if (rc != NB_OK)
        return rc;
    k = above(v);
    v->marks.n--;
    return make_tuple(v, k);
}

/* Hang a new cell onto a list or mapping. */
static nb_status hang(nb_pkl *v, nb_pkl_ref container, nb_pkl_ref key, nb_pkl_ref value)
{
    nb_pkl_node *c = nb_pkl_node_at(v, container);
    nb_pkl_cell *x;

    if (v->cells.n >= NB_PKL_OPS - 1)
        return nb_pkl_fail(v, NB_ELIMIT, "limit.pickle_nodes", "too many items");
    x = nb_pool_reach(&v->cells, v->cells.n);
    if (!x)
        return nb_pkl_nomem(v);
    *x = (nb_pkl_cell){ .key = key, .value = value };
    v->cells.n++;
    if (c->b)
        ((nb_pkl_cell *)nb_pool_at(&v->cells, c->b - 1))->next = v->cells.n;
    else
        c->a = v->cells.n;
    c->b = v->cells.n;
    c->tag += 16;
    return NB_OK;
}

/* A key of a mapping: a text or an integer, not there yet (PK-12). */
nb_status nb_pkl_set_item(nb_pkl *v, nb_pkl_ref dict, nb_pkl_ref key, nb_pkl_ref value)
{
    const nb_pkl_node *k = nb_pkl_node_at(v, key);
    unsigned char head[16];
    char esc[NB_ESC_CAP];
    nb_buf b = { 0 };
    bool had = false, ok;

    if (NB_PKL_KIND(k->tag) != NB_PKL_STR && NB_PKL_KIND(k->tag) != NB_PKL_INT)
        return nb_pkl_fail(v, NB_EFORMAT, "pkl.key", "a key that is neither a text nor an integer");
    nb_put_le32(head, dict);
    nb_put_le32(head + 4, NB_PKL_KIND(k->tag));
    nb_put_le32(head + 8, k->a);
    nb_put_le32(head + 12, k->b);
    if (NB_PKL_KIND(k->tag) == NB_PKL_INT) {
        ok = nb_strmap_put(v->keys, (const char *)head, 16, 0, &had) == NB_OK;
    } else {
        nb_buf_put(&b, head, 8);
        nb_buf_put(&b, v->p + k->a, NB_PKL_COUNT(k->tag));
        ok = !b.failed && nb_strmap_put(v->keys, b.p, b.n, 0, &had) == NB_OK;
        nb_buf_clear(&b);
    }
    if (!ok)
        return nb_pkl_nomem(v);
    if (had && NB_PKL_KIND(k->tag) == NB_PKL_INT)
        return nb_pkl_fail(v, NB_EFORMAT, "pkl.duplicate_key", "key %lld appears twice in one mapping", (long long)nb_pkl_int(v, key, 0));
    if (had)
        return nb_pkl_fail(v, NB_EFORMAT, "pkl.duplicate_key", "key \"%s\" appears twice in one mapping",
                           nb_esc(esc, sizeof esc, (const char *)(v->p + k->a), NB_PKL_COUNT(k->tag)));
    return hang(v, dict, key, value);
}

static nb_status op_append(nb_pkl *v, uint32_t x)
{
    nb_status rc = nb_pkl_need(v, 2);

    (void)x;
    if (rc != NB_OK)
        return rc;
    if (nb_pkl_kind_of(v, nb_pkl_peek(v, 1)) != NB_PKL_LIST)
        return bad_type(v, "only a list can be appended to");
    rc = hang(v, nb_pkl_peek(v, 1), NB_PKL_R_NONE, nb_pkl_peek(v, 0));
    v->stack.n--;
    return rc;
}

/* The k objects above the last mark, and the container below it. */
static nb_status begin_items(nb_pkl *v, nb_pkl_kind kind, const char *what, uint32_t *k, nb_pkl_ref *container)
{
    nb_status rc = need_mark(v);

    if (rc != NB_OK)
        return rc;
    *k = above(v);
    v->marks.n--;
    if (above(v) - *k < 1)
        return nb_pkl_fail(v, NB_EFORMAT, "pkl.stack", "nothing is below the mark");
    *container = nb_pkl_peek(v, *k);
    return nb_pkl_kind_of(v, *container) == kind ? NB_OK : bad_type(v, what);
}

static nb_status op_appends(nb_pkl *v, uint32_t x)
{
    uint32_t k;
    nb_pkl_ref list;
    nb_status rc = begin_items(v, NB_PKL_LIST, "only a list can be appended to", &k, &list);

    (void)x;
    if (rc != NB_OK)
        return rc;
    for (uint32_t j = k; j-- > 0 && rc == NB_OK;)
        rc = hang(v, list, NB_PKL_R_NONE, nb_pkl_peek(v, j));
    v->stack.n -= k;
    return rc;
}

static nb_status op_setitem(nb_pkl *v, uint32_t x)
{
    nb_status rc = nb_pkl_need(v, 3);

    (void)x;
    if (rc != NB_OK)
        return rc;
    if (nb_pkl_kind_of(v, nb_pkl_peek(v, 2)) != NB_PKL_DICT)
        return bad_type(v, "only a mapping can be given an item");
    rc = nb_pkl_set_item(v, nb_pkl_peek(v, 2), nb_pkl_peek(v, 1), nb_pkl_peek(v, 0));
    v->stack.n -= 2;
    return rc;
}

static nb_status op_setitems(nb_pkl *v, uint32_t x)
{
    uint32_t k;
    nb_pkl_ref dict;
    nb_status rc = begin_items(v, NB_PKL_DICT, "only a mapping can be given items", &k, &dict);

    (void)x;
    if (rc != NB_OK)
        return rc;
    if (k % 2 != 0)
        return bad_type(v, "a key without a value");
    for (uint32_t j = k; j > 0 && rc == NB_OK; j -= 2)
        rc = nb_pkl_set_item(v, dict, nb_pkl_peek(v, j - 1), nb_pkl_peek(v, j - 2));
    v->stack.n -= k;
    return rc;
}

/* Slots are numbered as they are used, so none can reach the length of the stream (PK-08). */
static nb_status op_put(nb_pkl *v, uint32_t slot)
{
    nb_pkl_ref *to;
    nb_status rc = nb_pkl_need(v, 1);

    if (rc != NB_OK)
        return rc;
    if (slot >= v->n || slot >= NB_PKL_OPS)
        return nb_pkl_fail(v, NB_EFORMAT, "pkl.memo", "slot %u, in a stream of %zu bytes", slot, v->n);
    to = nb_pool_reach(&v->memo, slot);
    if (!to)
        return nb_pkl_nomem(v);
    if (*to == 0 && ++v->n_memo > NB_PKL_MEMO)
        return nb_pkl_fail(v, NB_ELIMIT, "limit.pickle_memo", "more than %d memo slots", NB_PKL_MEMO);
    *to = nb_pkl_peek(v, 0) + 1;
    return NB_OK;
}

static nb_status op_get(nb_pkl *v, uint32_t slot)
{
    const uint32_t c = slot >> NB_POOL_BITS;
    nb_pkl_ref r = 0;

    if (v->memo.chunk && c < NB_POOL_CHUNKS && v->memo.chunk[c])
        r = *(nb_pkl_ref *)nb_pool_at(&v->memo, slot);
    if (r == 0)
        return nb_pkl_fail(v, NB_EFORMAT, "pkl.memo", "slot %u was never written", slot);
    return nb_pkl_push(v, r - 1);
}

static nb_status op_proto(nb_pkl *v, uint32_t version)
{
    if (v->op == 0 && version == 2)
        return NB_OK;
    return nb_pkl_fail(v, NB_EUNSUPPORTED, "pkl.protocol",
                       v->op == 0 ? "pickle protocol %u; what PyTorch writes is 2" : "a second protocol mark (%u)", version);
}

static nb_status op_stop(nb_pkl *v, uint32_t x)
{
    (void)x;
    if (v->marks.n > 0 || v->stack.n != 1)
        return nb_pkl_fail(v, NB_EFORMAT, "pkl.stack", "%u objects and %u marks at the end, expected one object", v->stack.n, v->marks.n);
    v->root = nb_pkl_peek(v, 0);
    v->stopped = true;
    return NB_OK;
}

/* Every opcode has its name here; the ones without a function are refused (PK-01). */
static const struct {
    const char *name;
    nb_status (*run)(nb_pkl *v, uint32_t x);
    uint32_t width, x; /* operand bytes that are a number; constant for those without */
} ops[256] = {
    ['('] = { .name = "MARK", .run = op_mark },
    [')'] = { .name = "EMPTY_TUPLE", .run = op_const, .x = NB_PKL_R_EMPTY },
    ['.'] = { .name = "STOP", .run = op_stop },
    ['0'] = { .name = "POP" },
    ['1'] = { .name = "POP_MARK" },
    ['2'] = { .name = "DUP" },
    ['B'] = { .name = "BINBYTES" },
    ['C'] = { .name = "SHORT_BINBYTES" },
    ['F'] = { .name = "FLOAT" },
    ['G'] = { .name = "BINFLOAT", .run = op_float },
    ['I'] = { .name = "INT" },
    ['J'] = { .name = "BININT", .run = op_int, .width = 4 },
    ['K'] = { .name = "BININT1", .run = op_uint, .width = 1 },
    ['L'] = { .name = "LONG" },
    ['M'] = { .name = "BININT2", .run = op_uint, .width = 2 },
    ['N'] = { .name = "NONE", .run = op_const, .x = NB_PKL_R_NONE },
    ['P'] = { .name = "PERSID" },
    ['Q'] = { .name = "BINPERSID", .run = nb_pkl_op_persid },
    ['R'] = { .name = "REDUCE", .run = nb_pkl_op_construct },
    ['S'] = { .name = "STRING" },
    ['T'] = { .name = "BINSTRING" },
    ['U'] = { .name = "SHORT_BINSTRING", .run = op_text, .width = 1 },
    ['V'] = { .name = "UNICODE" },
    ['X'] = { .name = "BINUNICODE", .run = op_text, .width = 4 },
    [']'] = { .name = "EMPTY_LIST", .run = op_container, .x = NB_PKL_LIST },
    ['a'] = { .name = "APPEND", .run = op_append },
    ['b'] = { .name = "BUILD", .run = nb_pkl_op_build },
    ['c'] = { .name = "GLOBAL", .run = nb_pkl_op_global },
    ['d'] = { .name = "DICT" },
    ['e'] = { .name = "APPENDS", .run = op_appends },
    ['g'] = { .name = "GET" },
    ['h'] = { .name = "BINGET", .run = op_get, .width = 1 },
    ['i'] = { .name = "INST" },
    ['j'] = { .name = "LONG_BINGET", .run = op_get, .width = 4 },
    ['l'] = { .name = "LIST" },
    ['o'] = { .name = "OBJ" },
    ['p'] = { .name = "PUT" },
    ['q'] = { .name = "BINPUT", .run = op_put, .width = 1 },
    ['r'] = { .name = "LONG_BINPUT", .run = op_put, .width = 4 },
    ['s'] = { .name = "SETITEM", .run = op_setitem },
    ['t'] = { .name = "TUPLE", .run = op_tuple },
    ['u'] = { .name = "SETITEMS", .run = op_setitems },
    ['}'] = { .name = "EMPTY_DICT", .run = op_container, .x = NB_PKL_DICT },
    [0x80] = { .name = "PROTO", .run = op_proto, .width = 1 },
    [0x81] = { .name = "NEWOBJ", .run = nb_pkl_op_construct, .x = 1 },
    [0x82] = { .name = "EXT1" },
    [0x83] = { .name = "EXT2" },
    [0x84] = { .name = "EXT4" },
    [0x85] = { .name = "TUPLE1", .run = op_small_tuple, .x = 1 },
    [0x86] = { .name = "TUPLE2", .run = op_small_tuple, .x = 2 },
    [0x87] = { .name = "TUPLE3", .run = op_small_tuple, .x = 3 },
    [0x88] = { .name = "NEWTRUE", .run = op_const, .x = NB_PKL_R_TRUE },
    [0x89] = { .name = "NEWFALSE", .run = op_const, .x = NB_PKL_R_FALSE },
    [0x8a] = { .name = "LONG1", .run = op_long, .width = 1 },
    [0x8b] = { .name = "LONG4" },
    [0x8c] = { .name = "SHORT_BINUNICODE" },
    [0x8d] = { .name = "BINUNICODE8" },
    [0x8e] = { .name = "BINBYTES8" },
    [0x8f] = { .name = "EMPTY_SET" },
    [0x90] = { .name = "ADDITEMS" },
    [0x91] = { .name = "FROZENSET" },
    [0x92] = { .name = "NEWOBJ_EX" },
    [0x93] = { .name = "STACK_GLOBAL" },
    [0x94] = { .name = "MEMOIZE" },
    [0x95] = { .name = "FRAME" },
    [0x96] = { .name = "BYTEARRAY8" },
    [0x97] = { .name = "NEXT_BUFFER" },
    [0x98] = { .name = "READONLY_BUFFER" },
};

/* ---- the finished graph ---- */

typedef struct frame {
    nb_pkl_ref container;
    uint32_t step;
} frame;

/* Walk everything that hangs on the root as a reader would: no circle, bounded depth, bounded number of visits, however
 * often a part is shared (PK-10, PK-11). */
static nb_status walk(nb_pkl *v)
{
    frame path[NB_PKL_DEPTH];
    size_t depth = 0, visits = 0;
    nb_pkl_ref next = v->root, ignored;
    bool have = true;

    for (;;) {
        nb_pkl_node *x = have ? nb_pkl_node_at(v, next) : NULL;
        if (have && ++visits > NB_PKL_NODES)
            return nb_pkl_fail(v, NB_ELIMIT, "limit.pickle_nodes", "shared parts make more than %d objects", NB_PKL_NODES);
        if (have && NB_PKL_KIND(x->tag) >= NB_PKL_TUPLE && NB_PKL_KIND(x->tag) <= NB_PKL_DICT) {
            if (x->tag & ON_PATH)
                return nb_pkl_fail(v, NB_EFORMAT, "pkl.cycle", "a container holds itself");
            if (depth == NB_PKL_DEPTH)
                return nb_pkl_fail(v, NB_ELIMIT, "limit.pickle_depth", "containers nest deeper than %d", NB_PKL_DEPTH);
            x->tag |= ON_PATH;
            path[depth++] = (frame){ next, 0 };
        }
        if (depth == 0)
            return NB_OK;
        x = nb_pkl_node_at(v, path[depth - 1].container);
        if (NB_PKL_KIND(x->tag) == NB_PKL_TUPLE) {
            have = path[depth - 1].step < (NB_PKL_COUNT(x->tag & ~ON_PATH));
            if (have)
                next = nb_pkl_item(v, x, path[depth - 1].step++);
        } else {
            have = nb_pkl_next(v, path[depth - 1].container, &path[depth - 1].step, &ignored, &next);
        }
        if (!have) {
            x->tag &= ~ON_PATH;
            depth--;
        }
    }
}

static nb_status set_up(nb_pkl *v)
{
    static const nb_pkl_kind fixed[NB_PKL_R_GLOBALS] = { NB_PKL_NONE, NB_PKL_BOOL, NB_PKL_BOOL, NB_PKL_TUPLE, NB_PKL_FLOAT, NB_PKL_DEVICE };
    nb_pool *const pools[] = { &v->nodes, &v->cells, &v->items, &v->stack, &v->marks, &v->memo, &v->tensors, &v->storages, &v->numbers };
    static const size_t sizes[] = { sizeof(nb_pkl_node),   sizeof(nb_pkl_cell),    sizeof(nb_pkl_ref),
                                    sizeof(nb_pkl_ref),    sizeof(uint32_t),       sizeof(nb_pkl_ref),
                                    sizeof(nb_pkl_tensor), sizeof(nb_pkl_storage), sizeof(uint64_t *) };
    nb_pkl_ref r;
    nb_status rc = NB_OK;

    for (size_t k = 0; k < NB_LEN(pools); k++)
        pools[k]->size = sizes[k];
    for (size_t k = 0; k < NB_PKL_R_GLOBALS && rc == NB_OK; k++)
        rc = nb_pkl_new(v, fixed[k], 0, k == NB_PKL_R_TRUE, 0, &r);
    for (size_t k = 0; k < nb_pkl_n_globals && rc == NB_OK; k++)
        rc = nb_pkl_new(v, NB_PKL_GLOBAL, 0, (uint32_t)k, 0, &r);
    v->keys = nb_strmap_new(64);
    v->named = nb_strmap_new(64);
    return rc == NB_OK && v->keys && v->named ? NB_OK : nb_pkl_nomem(v);
}

static nb_status run(nb_pkl *v)
{
    size_t n_ops = 0;
    nb_status rc = NB_OK;

    if (v->n > 0 && v->p[0] != 0x80)
        return nb_pkl_fail(v, NB_EUNSUPPORTED, "pkl.protocol", "the stream does not begin with its protocol");
    while (rc == NB_OK && !v->stopped) {
        uint32_t x;
        unsigned char c;
        v->op = v->i;
        if (v->i == v->n)
            return nb_pkl_fail(v, NB_EFORMAT, "pkl.truncated", "the stream ends without STOP");
        if (n_ops++ == NB_PKL_OPS)
            return nb_pkl_fail(v, NB_ELIMIT, "limit.pickle_ops", "more than %d opcodes", NB_PKL_OPS);
        c = v->p[v->i++];
        if (!ops[c].run)
            return nb_pkl_fail(v, NB_EUNSUPPORTED, "pkl.opcode", "opcode %s (0x%02x) is not one that builds tensors",
                               ops[c].name ? ops[c].name : "unknown", c);
        if (ops[c].width > v->n - v->i)
            return nb_pkl_fail(v, NB_EFORMAT, "pkl.truncated", "the stream ends inside an operand");
        x = ops[c].x;
        for (uint32_t k = 0; k < ops[c].width; k++)
            x |= (uint32_t)v->p[v->i + k] << (8 * k);
        v->i += ops[c].width;
        rc = ops[c].run(v, x);
    }
    return rc == NB_OK ? walk(v) : rc;
}

nb_status nb_pkl_run(const unsigned char *p, size_t n, const char *record, nb_pkl **out, size_t *used, nb_err *err)
{
    nb_pkl *v = nb_calloc(1, sizeof *v);
    nb_status rc = NB_OK;

    *out = NULL;
    if (!v)
        return nb_enomem(err, "a pickle");
    *v = (nb_pkl){ .p = p, .n = n, .record = record, .err = err };
    if (n > NB_PKL_BYTES) {
        if (used)
            v->n = NB_PKL_BYTES; /* others follow it in the same file */
        else
            rc = nb_fail(err, NB_ELIMIT, "limit.pickle_bytes", "", "a pickle of %zu bytes, limit %d", n, NB_PKL_BYTES);
    }
    if (rc == NB_OK)
        rc = set_up(v);
    if (rc == NB_OK)
        rc = run(v);
    if (rc == NB_OK && used)
        *used = v->i;
    else if (rc == NB_OK && v->i != n)
        rc = nb_pkl_fail(v, NB_EFORMAT, "pkl.trailing", "%zu bytes follow the end of the pickle", n - v->i);
    v->err = NULL;
    if (rc == NB_OK)
        *out = v;
    else
        nb_pkl_close(v);
    return rc;
}

void nb_pkl_close(nb_pkl *v)
{
    if (!v)
        return;
    nb_pool_clear(&v->nodes);
    nb_pool_clear(&v->cells);
    nb_pool_clear(&v->items);
    nb_pool_clear(&v->stack);
    nb_pool_clear(&v->marks);
    nb_pool_clear(&v->memo);
    nb_pool_clear(&v->tensors);
    nb_pool_clear(&v->storages);
    nb_pool_clear(&v->numbers);
    nb_arena_clear(&v->arena);
    nb_strmap_free(v->keys);
    nb_strmap_free(v->named);
    nb_free(v);
}
