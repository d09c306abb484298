/* fuzz_template.c - any bytes as a template: a verdict with a reason, and a render within its limits. */
#include "fuzz_file.h"

#include "text/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char request[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"u {{ x }}\"},{\"role\":\"assistant\","
        "\"content\":\"<think>\\na\\n</think>\\nb\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1.0}}}]}],"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"items\":{}}}}}],"
        "\"x\":12345678901234567890,\"s\":\"a,b\",\"d\":{\"b\":[1,2],\"a\":null}}";
    static const struct tm now = { .tm_year = 124, .tm_mon = 6, .tm_mday = 26 };
    nb_template *t = NULL;
    nb_chat *c = NULL;
    nb_json *vars = NULL;
    nb_buf out = { 0 };
    nb_err err = { 0 };

    if (nb_json_parse(request, sizeof request - 1, "json", 0, &vars, &err) != NB_OK)
        abort();
    if (nb_template_open((const char *)data, size, &t, &err) == NB_OK)
        nb_template_render(t, vars, &now, &out, &err);
    if (err.code != NB_OK && (err.what[0] == '\0' || out.n != 0))
        abort();
    nb_buf_clear(&out);
    nb_err_clear(&err);
    if (t && nb_chat_open(NULL, 0, (const char *)data, size, &c, &err) == NB_OK) /* lists may change, requests are adapted */
        nb_chat_render(c, vars, true, &now, &out, &err);
    nb_buf_clear(&out);
    nb_chat_close(c);
    nb_template_close(t);
    nb_json_free(vars);
    return 0;
}
