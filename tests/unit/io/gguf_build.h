/* gguf_build.h - GGUF files built by hand for the tests. */
#ifndef NB_TESTS_GGUF_BUILD_H
#define NB_TESTS_GGUF_BUILD_H

#include "io_test.h"

static inline void u32(nb_buf *b, uint32_t v)
{
    unsigned char p[4];
    nb_put_le32(p, v);
    nb_buf_put(b, p, 4);
}

static inline void u64(nb_buf *b, uint64_t v)
{
    unsigned char p[8];
    nb_put_le64(p, v);
    nb_buf_put(b, p, 8);
}

static inline void str(nb_buf *b, const char *s)
{
    u64(b, strlen(s));
    nb_buf_puts(b, s);
}

static inline void head(nb_buf *b, uint32_t version, uint64_t tensors, uint64_t keys)
{
    nb_buf_puts(b, "GGUF");
    u32(b, version);
    u64(b, tensors);
    u64(b, keys);
}

static inline void kv_u32(nb_buf *b, const char *key, uint32_t v)
{
    str(b, key);
    u32(b, 4);
    u32(b, v);
}

static inline void kv_f32(nb_buf *b, const char *key, float v)
{
    str(b, key);
    u32(b, 6);
    u32(b, nb_bits_from_f32(v));
}

static inline void kv_bool(nb_buf *b, const char *key, int v)
{
    str(b, key);
    u32(b, 7);
    nb_buf_putc(b, (char)v);
}

static inline void kv_str(nb_buf *b, const char *key, const char *v)
{
    str(b, key);
    u32(b, 8);
    str(b, v);
}

/* Start of an array: elements follow. kind: 5 i32, 8 string. */
static inline void kv_arr(nb_buf *b, const char *key, uint32_t kind, uint64_t n)
{
    str(b, key);
    u32(b, 9);
    u32(b, kind);
    u64(b, n);
}

/* Row of the tensor table; cols 0: one dimension only. */
static inline void tensor(nb_buf *b, const char *name, uint64_t rows, uint64_t cols, uint32_t type, uint64_t offset)
{
    str(b, name);
    u32(b, cols ? 2 : 1);
    if (cols)
        u64(b, cols);
    u64(b, rows);
    u32(b, type);
    u64(b, offset);
}

static inline void pad_to(nb_buf *b, size_t align)
{
    while (b->n % align != 0)
        nb_buf_putc(b, 0);
}

static inline void zeros(nb_buf *b, size_t n)
{
    while (n-- > 0)
        nb_buf_putc(b, 0);
}

static inline const char *save(nb_buf *b, const char *name)
{
    const char *path = scratch_file(name, b->p, b->n);
    nb_buf_clear(b);
    return path;
}

#endif
