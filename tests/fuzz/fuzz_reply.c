/* fuzz_reply.c - any text as a model's reply in every format: the events of one text do not depend on how it is cut. The first two
 * bytes choose formats, the size of pieces, and whether calls are given out as they are written too. */
#include <string.h>

#include "fuzz_file.h"
#include "text/reply.h"

typedef struct sink {
    nb_buf out;
    int last, index;
} sink;

static void event(void *ctx, const nb_reply_event *e)
{
    sink *s = ctx;

    if ((int)e->kind != s->last || e->kind >= NB_REPLY_CALL)
        nb_buf_printf(&s->out, "\n%d ", (int)e->kind);
    s->last = (int)e->kind;
    if (e->kind == NB_REPLY_CALL && (e->index != s->index || !e->id || !e->n))
        abort();
    s->index += e->kind == NB_REPLY_CALL_END;
    nb_buf_put(&s->out, e->text, e->n);
}

static void run(const nb_reply_opts *o, bool live, const char *text, size_t n, size_t step, sink *s)
{
    nb_reply *r = NULL;

    s->last = -1;
    if (nb_reply_open(o, &r, NULL) != NB_OK)
        abort();
    if (live)
        nb_reply_live(r, true);
    for (size_t i = 0; i < n; i += step) {
        if (nb_reply_feed(r, text + i, step < n - i ? step : n - i, event, s, NULL) != NB_OK)
            abort();
    }
    if (nb_reply_finish(r, event, s, NULL) != NB_OK || nb_reply_calls(r) != s->index)
        abort();
    nb_reply_close(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char tools[] =
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":[\"string\","
        "\"null\"]}}}}}]";
    nb_json *list = NULL;
    nb_reply_opts o = { 0 };
    sink whole = { 0 }, cut = { 0 };

    if (size < 2)
        return 0;
    if (nb_json_parse(tools, sizeof tools - 1, "json", 0, &list, NULL) != NB_OK)
        abort();
    o.tools = (nb_tool_format)(data[0] % NB_TOOLS_N);
    o.reason = (nb_reason_format)(data[0] / NB_TOOLS_N % NB_REASON_N);
    o.tool_list = data[1] & 64 ? list : NULL;
    if (data[1] & 128) { /* made for text that a grammar holds to its form: other text does no harm */
        run(&o, true, (const char *)data + 2, size - 2, 1 + data[1] % 16, &cut);
        cut.out.n = 0;
        cut.index = 0;
    }
    run(&o, false, (const char *)data + 2, size - 2, size, &whole);
    run(&o, false, (const char *)data + 2, size - 2, 1 + data[1] % 16, &cut);
    if (whole.out.n != cut.out.n || (whole.out.n && memcmp(whole.out.p, cut.out.p, whole.out.n) != 0))
        abort();
    nb_buf_clear(&whole.out);
    nb_buf_clear(&cut.out);
    nb_json_free(list);
    return 0;
}
