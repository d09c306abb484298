#include "text/charsmap.h"

#include <string.h>

#include "base/bits.h"
#include "text/base64.h"
#include "text/utf8.h"

struct nb_charsmap {
    nb_buf blob;
    size_t n_units;
    const char *words; /* the replacements, with a zero at the end of the last */
    size_t n_words;
};

/* Fields of a unit: bit 8 says that a value hangs on it, bits 31 and 7 to 0 are the byte that leads to it, the rest is how
 * far its children are. */
static uint32_t unit(const nb_charsmap *m, size_t at)
{
    return nb_le32(m->blob.p + 4 + 4 * at);
}

static bool has_value(uint32_t u)
{
    return (u >> 8 & 1) != 0;
}

static uint32_t byte_of(uint32_t u)
{
    return u & 0x800000FFu;
}

static size_t jump(uint32_t u)
{
    return (size_t)(u >> 10) << ((u & 0x200u) >> 6);
}

/* A block of children and the byte to look at next, on the way down. */
typedef struct visit {
    uint32_t base;
    unsigned byte;
} visit;

/* The next child below v: 1 and its own block in *next, 0 when there is none, -1 and why. */
static int next_child(const nb_charsmap *m, visit *v, size_t *next, const char **why)
{
    for (; v->byte < 256; v->byte++) {
        const size_t at = v->base ^ v->byte;
        if (at >= m->n_units) {
            *why = "a place is outside";
            return -1;
        }
        if (byte_of(unit(m, at)) != v->byte)
            continue;
        *next = at ^ jump(unit(m, at));
        v->byte++;
        if (*next >= m->n_units)
            *why = "a place is outside";
        else if (has_value(unit(m, at)) && (unit(m, *next) & 0x7FFFFFFFu) >= m->n_words)
            *why = "a replacement is outside";
        return *why ? -1 : 1;
    }
    return 0;
}

/* Walk everything that can be reached. Blocks may have several parents, but none may be its own ancestor. */
static nb_status check(const nb_charsmap *m, nb_err *err)
{
    enum { NEW, OPEN, DONE };
    unsigned char *state = nb_calloc(m->n_units, 1);
    visit *stack = nb_alloc_array(m->n_units, sizeof *stack); /* each block is open once at most */
    size_t depth = 0, next = jump(unit(m, 0));
    const char *why = next < m->n_units ? NULL : "its first place is outside";
    nb_status rc = state && stack ? NB_OK : nb_enomem(err, "the character map");

    if (rc == NB_OK && !why) {
        stack[depth++] = (visit){ (uint32_t)next, 1 };
        state[next] = OPEN;
    }
    while (rc == NB_OK && !why && depth > 0) {
        const int found = next_child(m, &stack[depth - 1], &next, &why);
        if (found == 0) {
            state[stack[--depth].base] = DONE;
        } else if (found > 0 && state[next] == OPEN) {
            why = "it has a cycle";
        } else if (found > 0 && state[next] == NEW) {
            stack[depth++] = (visit){ (uint32_t)next, 1 };
            state[next] = OPEN;
        }
    }
    nb_free(state);
    nb_free(stack);
    return why && rc == NB_OK ? nb_fail(err, NB_EFORMAT, "tok.charsmap", "", "the character map is broken: %s", why) : rc;
}

static nb_status read(nb_charsmap *m, const char *text, size_t n, nb_err *err)
{
    size_t size;

    if (!nb_base64(&m->blob, text, n))
        return m->blob.failed ? nb_enomem(err, "the character map")
                              : nb_fail(err, NB_EFORMAT, "tok.charsmap", "", "the character map is not base64");
    size = m->blob.n >= 4 ? nb_le32(m->blob.p) : 0;
    if (size < 4 || size % 4 != 0 || size > m->blob.n - 4)
        return nb_fail(err, NB_EFORMAT, "tok.charsmap", "", "the character map has %zu bytes and says that %zu of them are its tree",
                       m->blob.n, size);
    m->n_units = size / 4;
    m->words = m->blob.p + 4 + size;
    m->n_words = m->blob.n - 4 - size;
    if (nb_u8_check(m->words, m->n_words) < m->n_words)
        return nb_fail(err, NB_EFORMAT, "tok.charsmap", "", "the replacements of the character map are not valid UTF-8");
    return check(m, err);
}

nb_status nb_charsmap_open(const char *text, size_t n, nb_charsmap **out, nb_err *err)
{
    nb_charsmap *m = nb_calloc(1, sizeof *m);
    nb_status rc = m ? read(m, text, n, err) : nb_enomem(err, "the character map");

    *out = NULL;
    if (rc == NB_OK)
        *out = m;
    else
        nb_charsmap_close(m);
    return rc;
}

void nb_charsmap_close(nb_charsmap *m)
{
    if (!m)
        return;
    nb_buf_clear(&m->blob);
    nb_free(m);
}

bool nb_charsmap_find(const nb_charsmap *m, const char *s, size_t n, nb_buf *out)
{
    size_t at = jump(unit(m, 0));

    for (size_t i = 0; i < n && s[i]; i++) {
        const unsigned char c = (unsigned char)s[i];
        uint32_t u;
        at ^= c;
        u = unit(m, at);
        if (byte_of(u) != c)
            return false;
        at ^= jump(u);
        if (has_value(u)) {
            const char *w = m->words + (unit(m, at) & 0x7FFFFFFFu);
            nb_buf_put(out, w, strlen(w)); /* the buffer ends with a zero */
            return true;
        }
    }
    return false;
}
