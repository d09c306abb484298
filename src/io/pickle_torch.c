/* pickle_torch.c - the constructors of pickle.h: which globals there are, storages, views, mappings.
 *
 * Source of what PyTorch writes: torch/_utils.py and torch/serialization.py (2.13). */
#include <string.h>

#include "io/io_priv.h"
#include "io/pickle_priv.h"
#include "tensor/tensor.h"

typedef enum role { ODICT, TENSOR, PARAMETER, SIZE, DEVICE_OF, STORAGE, DTYPE, REFUSED } role;

static const struct global {
    const char *module, *name;
    role role;
    nb_dtype dtype;
} globals[] = {
    { "collections", "OrderedDict", ODICT, NB_DT_NONE },
    { "torch._utils", "_rebuild_tensor_v2", TENSOR, NB_DT_NONE },
    { "torch._utils", "_rebuild_parameter", PARAMETER, NB_DT_NONE },
    { "torch", "Size", SIZE, NB_DT_NONE },
    { "torch", "device", DEVICE_OF, NB_DT_NONE },
    { "torch", "HalfStorage", STORAGE, NB_DT_F16 },
    { "torch", "BFloat16Storage", STORAGE, NB_DT_BF16 },
    { "torch", "FloatStorage", STORAGE, NB_DT_F32 },
    { "torch", "DoubleStorage", STORAGE, NB_DT_F64 },
    { "torch", "BoolStorage", STORAGE, NB_DT_BOOL },
    { "torch", "ByteStorage", STORAGE, NB_DT_U8 },
    { "torch", "CharStorage", STORAGE, NB_DT_I8 },
    { "torch", "ShortStorage", STORAGE, NB_DT_I16 },
    { "torch", "IntStorage", STORAGE, NB_DT_I32 },
    { "torch", "LongStorage", STORAGE, NB_DT_I64 },
    { "torch", "float16", DTYPE, NB_DT_F16 },
    { "torch", "bfloat16", DTYPE, NB_DT_BF16 },
    { "torch", "float32", DTYPE, NB_DT_F32 },
    { "torch", "float64", DTYPE, NB_DT_F64 },
    { "torch", "bool", DTYPE, NB_DT_BOOL },
    { "torch", "uint8", DTYPE, NB_DT_U8 },
    { "torch", "int8", DTYPE, NB_DT_I8 },
    { "torch", "int16", DTYPE, NB_DT_I16 },
    { "torch", "int32", DTYPE, NB_DT_I32 },
    { "torch", "int64", DTYPE, NB_DT_I64 },
    /* Known, and refused by name, so that the sentence can say what it is (PK-18). */
    { "torch", "ComplexFloatStorage", REFUSED, NB_DT_NONE },
    { "torch", "ComplexDoubleStorage", REFUSED, NB_DT_NONE },
    { "torch", "QInt8Storage", REFUSED, NB_DT_NONE },
    { "torch", "QInt32Storage", REFUSED, NB_DT_NONE },
    { "torch", "QUInt8Storage", REFUSED, NB_DT_NONE },
    { "torch", "QUInt4x2Storage", REFUSED, NB_DT_NONE },
    { "torch", "QUInt2x4Storage", REFUSED, NB_DT_NONE },
    { "torch.storage", "UntypedStorage", REFUSED, NB_DT_NONE },
    { "torch._utils", "_rebuild_tensor_v3", REFUSED, NB_DT_NONE },
    { "torch._utils", "_rebuild_sparse_tensor", REFUSED, NB_DT_NONE },
    { "torch._utils", "_rebuild_sparse_csr_tensor", REFUSED, NB_DT_NONE },
    { "torch._utils", "_rebuild_nested_tensor", REFUSED, NB_DT_NONE },
    { "torch._utils", "_rebuild_qtensor", REFUSED, NB_DT_NONE },
    { "torch._utils", "_rebuild_meta_tensor_no_storage", REFUSED, NB_DT_NONE },
    { "torch._utils", "_rebuild_wrapper_subclass", REFUSED, NB_DT_NONE },
    { "torch._tensor", "_rebuild_from_type_v2", REFUSED, NB_DT_NONE },
};

const size_t nb_pkl_n_globals = NB_LEN(globals);

static nb_status bad_args(nb_pkl *v, const char *what)
{
    return nb_pkl_fail(v, NB_EFORMAT, "pkl.args", "%s", what);
}

nb_status nb_pkl_op_global(nb_pkl *v, uint32_t x)
{
    const unsigned char *word[2];
    size_t len[2];
    char esc[2][NB_ESC_CAP];

    (void)x;
    for (int k = 0; k < 2; k++) {
        const unsigned char *end = memchr(v->p + v->i, '\n', v->n - v->i);
        if (!end)
            return nb_pkl_fail(v, NB_EFORMAT, "pkl.truncated", "the stream ends inside the name of a global");
        word[k] = v->p + v->i;
        len[k] = (size_t)(end - word[k]);
        v->i += len[k] + 1;
    }
    for (size_t j = 0; j < NB_LEN(globals); j++) {
        if (strlen(globals[j].module) != len[0] || memcmp(globals[j].module, word[0], len[0]) != 0 || strlen(globals[j].name) != len[1] ||
            memcmp(globals[j].name, word[1], len[1]) != 0)
            continue;
        if (globals[j].role == REFUSED)
            return nb_pkl_fail(v, NB_EUNSUPPORTED, "pkl.unsupported_tensor", "a kind of tensor that is not read (%s.%s); plain tensors are",
                               globals[j].module, globals[j].name);
        return nb_pkl_push(v, NB_PKL_R_GLOBALS + (nb_pkl_ref)j);
    }
    return nb_pkl_fail(v, NB_EUNSUPPORTED, "pkl.global", "global \"%s.%s\" is not allowed: a checkpoint of plain tensors does not need it",
                       nb_esc(esc[0], sizeof esc[0], (const char *)(word[0]), len[0]),
                       nb_esc(esc[1], sizeof esc[1], (const char *)(word[1]), len[1]));
}

/* Row of a global; NULL for other objects. */
static const struct global *global_of(const nb_pkl *v, nb_pkl_ref r)
{
    const nb_pkl_node *x = nb_pkl_node_at(v, r);
    return NB_PKL_KIND(x->tag) == NB_PKL_GLOBAL ? &globals[x->a] : NULL;
}

static nb_status bad_storage(nb_pkl *v, const char *what)
{
    return nb_pkl_fail(v, NB_EFORMAT, "pkl.storage", "%s", what);
}

/* PK-13: ("storage", class, key, location, count); files from before the zip container add a sixth, None. */
nb_status nb_pkl_op_persid(nb_pkl *v, uint32_t x)
{
    const nb_pkl_node *t, *key, *word;
    const struct global *cls;
    const char *name;
    int64_t count;
    uint64_t bytes, index;
    nb_pkl_storage *s;
    bool had;
    nb_status rc = nb_pkl_need(v, 1);

    (void)x;
    if (rc != NB_OK)
        return rc;
    t = nb_pkl_node_at(v, nb_pkl_peek(v, 0));
    if (NB_PKL_KIND(t->tag) != NB_PKL_TUPLE || NB_PKL_COUNT(t->tag) < 5 || NB_PKL_COUNT(t->tag) > 6)
        return bad_storage(v, "a persistent id that is not a tuple of five");
    word = nb_pkl_node_at(v, nb_pkl_item(v, t, 0));
    cls = global_of(v, nb_pkl_item(v, t, 1));
    key = nb_pkl_node_at(v, nb_pkl_item(v, t, 2));
    count = nb_pkl_int(v, nb_pkl_item(v, t, 4), -1);
    if (NB_PKL_KIND(word->tag) != NB_PKL_STR || NB_PKL_COUNT(word->tag) != 7 || memcmp(v->p + word->a, "storage", 7) != 0)
        return bad_storage(v, "a persistent id that does not begin with \"storage\"");
    if (!cls || cls->role != STORAGE)
        return bad_storage(v, "a storage without a storage class");
    if (NB_PKL_KIND(key->tag) != NB_PKL_STR || nb_pkl_kind_of(v, nb_pkl_item(v, t, 3)) != NB_PKL_STR)
        return bad_storage(v, "key and location of a storage must be texts");
    if (NB_PKL_COUNT(t->tag) == 6 && nb_pkl_item(v, t, 5) != NB_PKL_R_NONE)
        return nb_pkl_fail(v, NB_EUNSUPPORTED, "pkl.unsupported_tensor", "a storage that is a view of another storage");
    name = (const char *)v->p + key->a;
    if (NB_PKL_COUNT(key->tag) == 0 || NB_PKL_COUNT(key->tag) > 255 || memchr(name, '/', NB_PKL_COUNT(key->tag)) ||
        memchr(name, '\\', NB_PKL_COUNT(key->tag)) || memchr(name, '\0', NB_PKL_COUNT(key->tag)) ||
        (name[0] == '.' && NB_PKL_COUNT(key->tag) <= 2))
        return bad_storage(v, "the key of a storage is not a plain name");
    if (nb_pkl_kind_of(v, nb_pkl_item(v, t, 4)) != NB_PKL_INT || count < 0 || !nb_dtype_bytes(cls->dtype, (uint64_t)count, &bytes) ||
        bytes > INT64_MAX)
        return bad_storage(v, "the count of a storage is negative or too large");
    if (nb_strmap_put(v->named, name, NB_PKL_COUNT(key->tag), v->storages.n, &had) != NB_OK)
        return nb_pkl_nomem(v);
    nb_strmap_get(v->named, name, NB_PKL_COUNT(key->tag), &index);
    if (had) {
        s = nb_pool_at(&v->storages, (uint32_t)index);
        if (s->dtype != cls->dtype || s->count != (uint64_t)count)
            return nb_pkl_fail(v, NB_EFORMAT, "pkl.storage_conflict", "storage \"%.*s\" is named with two types or counts", (int)s->key_len,
                               s->key);
    } else {
        s = nb_pool_reach(&v->storages, v->storages.n);
        if (!s)
            return nb_pkl_nomem(v);
        *s = (nb_pkl_storage){ .key = name, .key_len = NB_PKL_COUNT(key->tag), .dtype = cls->dtype, .count = (uint64_t)count };
        v->storages.n++;
    }
    v->stack.n--;
    return nb_pkl_push_new(v, NB_PKL_STORAGE, 0, (uint32_t)index, 0);
}

/* The non-negative integers of a tuple, made once per tuple. NULL in *out stands for "not such a tuple". */
static nb_status numbers(nb_pkl *v, nb_pkl_ref r, const uint64_t **out, uint32_t *n)
{
    static const uint64_t none[1];
    nb_pkl_node *t = nb_pkl_node_at(v, r);
    uint64_t *x;
    const uint64_t **slot;

    *out = NULL;
    if (NB_PKL_KIND(t->tag) != NB_PKL_TUPLE)
        return NB_OK;
    *n = NB_PKL_COUNT(t->tag);
    if (*n == 0)
        *out = none;
    if (t->b)
        *out = *(const uint64_t **)nb_pool_at(&v->numbers, t->b - 1);
    if (*out || *n > NB_MAX_RANK)
        return NB_OK;
    for (uint32_t k = 0; k < *n; k++) {
        if (nb_pkl_kind_of(v, nb_pkl_item(v, t, k)) != NB_PKL_INT || nb_pkl_int(v, nb_pkl_item(v, t, k), -1) < 0)
            return NB_OK;
    }
    x = nb_arena_alloc(&v->arena, *n * sizeof *x);
    slot = nb_pool_reach(&v->numbers, v->numbers.n);
    if (!x || !slot)
        return nb_pkl_nomem(v);
    for (uint32_t k = 0; k < *n; k++)
        x[k] = (uint64_t)nb_pkl_int(v, nb_pkl_item(v, t, k), 0);
    *out = *slot = x;
    t->b = ++v->numbers.n;
    return NB_OK;
}

/* PK-15: last element of the view; false when 64 bits cannot count it. */
static bool last_element(const nb_pkl_tensor *t, uint64_t *last)
{
    uint64_t step;

    *last = t->offset;
    for (unsigned k = 0; k < t->rank; k++) {
        if (!nb_mul_u64(t->shape[k] - 1, t->stride[k], &step) || !nb_add_u64(*last, step, last))
            return false;
    }
    return true;
}

/* _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, backward_hooks[, metadata]). */
static nb_status make_tensor(nb_pkl *v, const nb_pkl_node *args)
{
    nb_pkl_tensor t = { 0 }, *to;
    const nb_pkl_storage *s;
    uint32_t n_size = 0, n_stride = 0;
    uint64_t last, bytes;
    int64_t offset;
    const char *bad = NULL;
    nb_status rc;

    if (NB_PKL_COUNT(args->tag) < 6 || NB_PKL_COUNT(args->tag) > 7)
        return bad_args(v, "a tensor takes six arguments");
    if (nb_pkl_kind_of(v, nb_pkl_item(v, args, 0)) != NB_PKL_STORAGE || nb_pkl_kind_of(v, nb_pkl_item(v, args, 1)) != NB_PKL_INT ||
        nb_pkl_kind_of(v, nb_pkl_item(v, args, 2)) != NB_PKL_TUPLE || nb_pkl_kind_of(v, nb_pkl_item(v, args, 3)) != NB_PKL_TUPLE ||
        nb_pkl_kind_of(v, nb_pkl_item(v, args, 4)) != NB_PKL_BOOL)
        return bad_args(v, "a tensor is made from storage, offset, size, stride, flag and hooks");
    if (NB_PKL_COUNT(args->tag) == 7 && nb_pkl_item(v, args, 6) != NB_PKL_R_NONE &&
        NB_PKL_COUNT(nb_pkl_node_at(v, nb_pkl_item(v, args, 6))->tag) > 0)
        return nb_pkl_fail(v, NB_EUNSUPPORTED, "pkl.unsupported_tensor", "a tensor with conjugate or negative bits");
    t.storage = nb_pkl_node_at(v, nb_pkl_item(v, args, 0))->a;
    s = nb_pool_at(&v->storages, t.storage);
    offset = nb_pkl_int(v, nb_pkl_item(v, args, 1), -1);
    rc = numbers(v, nb_pkl_item(v, args, 2), &t.shape, &n_size);
    if (rc == NB_OK)
        rc = numbers(v, nb_pkl_item(v, args, 3), &t.stride, &n_stride);
    if (rc != NB_OK)
        return rc;
    t.rank = n_size;
    t.offset = (uint64_t)offset;
    if (n_size > NB_MAX_RANK || n_stride > NB_MAX_RANK)
        return nb_pkl_fail(v, NB_ELIMIT, "limit.rank", "%u dimensions, limit %d", n_size, NB_MAX_RANK);
    if (!t.shape || !t.stride || offset < 0)
        bad = "a size, stride or offset is not a number from zero";
    else if (n_size != n_stride)
        bad = "size and stride have different lengths";
    else if (!nb_shape_count(t.shape, t.rank, &t.count) || !nb_dtype_bytes(s->dtype, t.count, &bytes) || bytes > INT64_MAX)
        bad = "its size overflows";
    else if (t.count == 0 ? t.offset > s->count : !last_element(&t, &last) || last >= s->count)
        bad = "it reaches past the end of its storage";
    if (bad)
        return nb_pkl_fail(v, NB_EFORMAT, "pkl.view", "a tensor over storage \"%.*s\" (%llu elements): %s", (int)s->key_len, s->key,
                           (unsigned long long)s->count, bad);
    to = nb_pool_reach(&v->tensors, v->tensors.n);
    if (!to)
        return nb_pkl_nomem(v);
    *to = t;
    v->stack.n -= 2;
    return nb_pkl_push_new(v, NB_PKL_TENSOR, 0, v->tensors.n++, 0);
}

/* OrderedDict(), or as Python 2 wrote it: OrderedDict([[key, value], ...]). */
static nb_status make_dict(nb_pkl *v, const nb_pkl_node *args)
{
    nb_pkl_ref dict, pair, ignored;
    uint32_t step = 0;
    nb_status rc = nb_pkl_new(v, NB_PKL_DICT, 0, 0, 0, &dict);

    if (rc == NB_OK && NB_PKL_COUNT(args->tag) > 0 &&
        (NB_PKL_COUNT(args->tag) > 1 || nb_pkl_kind_of(v, nb_pkl_item(v, args, 0)) != NB_PKL_LIST))
        rc = bad_args(v, "OrderedDict takes nothing or one list of pairs");
    while (rc == NB_OK && NB_PKL_COUNT(args->tag) == 1 && nb_pkl_next(v, nb_pkl_item(v, args, 0), &step, &ignored, &pair)) {
        const nb_pkl_node *x = nb_pkl_node_at(v, pair);
        nb_pkl_ref kv[2];
        uint32_t at_item = 0;
        bool two = NB_PKL_COUNT(x->tag) == 2;
        if (two && NB_PKL_KIND(x->tag) == NB_PKL_TUPLE) {
            kv[0] = nb_pkl_item(v, x, 0);
            kv[1] = nb_pkl_item(v, x, 1);
        } else if (two && NB_PKL_KIND(x->tag) == NB_PKL_LIST) {
            nb_pkl_next(v, pair, &at_item, &ignored, &kv[0]);
            nb_pkl_next(v, pair, &at_item, &ignored, &kv[1]);
        } else {
            return bad_args(v, "OrderedDict takes nothing or one list of pairs");
        }
        rc = nb_pkl_set_item(v, dict, kv[0], kv[1]);
    }
    if (rc != NB_OK)
        return rc;
    v->stack.n -= 2;
    return nb_pkl_push(v, dict);
}

static nb_status make_size(nb_pkl *v, const nb_pkl_node *args)
{
    nb_pkl_ref r;

    if (NB_PKL_COUNT(args->tag) != 1 || nb_pkl_kind_of(v, nb_pkl_item(v, args, 0)) != NB_PKL_TUPLE)
        return bad_args(v, "torch.Size takes one tuple");
    r = nb_pkl_item(v, args, 0);
    v->stack.n -= 2;
    return nb_pkl_push(v, r);
}

nb_status nb_pkl_op_construct(nb_pkl *v, uint32_t newobj)
{
    const struct global *g;
    const nb_pkl_node *args;
    nb_pkl_ref inner;
    nb_status rc = nb_pkl_need(v, 2);

    if (rc != NB_OK)
        return rc;
    g = global_of(v, nb_pkl_peek(v, 1));
    args = nb_pkl_node_at(v, nb_pkl_peek(v, 0));
    if (!g || g->role > DEVICE_OF || (newobj && g->role != ODICT && g->role != SIZE))
        return nb_pkl_fail(v, NB_EUNSUPPORTED, "pkl.reduce", "%s%s%s is not something that can be constructed",
                           g ? g->module : "this object", g ? "." : "", g ? g->name : "");
    if (NB_PKL_KIND(args->tag) != NB_PKL_TUPLE)
        return bad_args(v, "the arguments are not a tuple");
    switch (g->role) {
    case ODICT:
        return make_dict(v, args);
    case TENSOR:
        return make_tensor(v, args);
    case SIZE:
        return make_size(v, args);
    case PARAMETER:
        if (NB_PKL_COUNT(args->tag) != 3 || nb_pkl_kind_of(v, nb_pkl_item(v, args, 0)) != NB_PKL_TENSOR)
            return bad_args(v, "a parameter is made from a tensor, a flag and hooks");
        inner = nb_pkl_item(v, args, 0);
        break;
    default: /* torch.device: where the tensor was; of no use here */
        if (NB_PKL_COUNT(args->tag) < 1 || NB_PKL_COUNT(args->tag) > 2 || nb_pkl_kind_of(v, nb_pkl_item(v, args, 0)) != NB_PKL_STR)
            return bad_args(v, "torch.device takes a name and an index");
        inner = NB_PKL_R_DEVICE;
    }
    v->stack.n -= 2;
    return nb_pkl_push(v, inner);
}

/* PK-05: attributes of a mapping; the one that torch.nn.Module gives its state is dropped. */
nb_status nb_pkl_op_build(nb_pkl *v, uint32_t x)
{
    nb_pkl_ref key, value;
    uint32_t step = 0;
    bool fine;
    nb_status rc = nb_pkl_need(v, 2);

    (void)x;
    if (rc != NB_OK)
        return rc;
    fine = nb_pkl_kind_of(v, nb_pkl_peek(v, 1)) == NB_PKL_DICT && nb_pkl_kind_of(v, nb_pkl_peek(v, 0)) == NB_PKL_DICT;
    while (fine && nb_pkl_next(v, nb_pkl_peek(v, 0), &step, &key, &value)) {
        size_t n = 0;
        const char *s = nb_pkl_str(v, key, &n);
        fine = s && n == 9 && memcmp(s, "_metadata", 9) == 0;
    }
    if (!fine)
        return nb_pkl_fail(v, NB_EUNSUPPORTED, "pkl.build", "only a mapping may be given state, and only \"_metadata\"");
    v->stack.n--;
    return NB_OK;
}
