/* errors.c - statuses, their phrases and their types. */
#include "serve/errors.h"

#include <string.h>

#include "base/json.h"
#include "text/utf8.h"

static const struct {
    int status;
    const char *reason, *type;
} table[] = {
    { 200, "OK", "" },
    { 204, "No Content", "" },
    { 400, "Bad Request", "invalid_request_error" },
    { 401, "Unauthorized", "authentication_error" },
    { 403, "Forbidden", "permission_error" },
    { 404, "Not Found", "invalid_request_error" },
    { 405, "Method Not Allowed", "invalid_request_error" },
    { 408, "Request Timeout", "invalid_request_error" },
    { 411, "Length Required", "invalid_request_error" },
    { 413, "Content Too Large", "invalid_request_error" },
    { 414, "URI Too Long", "invalid_request_error" },
    { 415, "Unsupported Media Type", "invalid_request_error" },
    { 417, "Expectation Failed", "invalid_request_error" },
    { 429, "Too Many Requests", "rate_limit_error" },
    { 431, "Request Header Fields Too Large", "invalid_request_error" },
    { 500, "Internal Server Error", "server_error" },
    { 501, "Not Implemented", "invalid_request_error" },
    { 503, "Service Unavailable", "server_error" },
    { 504, "Gateway Timeout", "server_error" },
    { 505, "HTTP Version Not Supported", "invalid_request_error" },
};

const char *nb_reason(int status)
{
    for (size_t i = 0; i < NB_LEN(table); i++)
        if (table[i].status == status)
            return table[i].reason;
    return "Error";
}

/* As in vllm/entrypoints: what its own checks raise has a class's name, anything else the phrase of the status. */
static const char *vllm_type(int status)
{
    switch (status) {
    case 400:
        return "BadRequestError";
    case 404:
        return "NotFoundError";
    case 500:
        return "InternalServerError";
    default:
        return nb_reason(status);
    }
}

const char *nb_error_type(nb_error_style style, int status)
{
    if (style == NB_ERRORS_VLLM)
        return vllm_type(status);
    for (size_t i = 0; i < NB_LEN(table); i++)
        if (table[i].status == status)
            return table[i].type;
    return status < 500 ? "invalid_request_error" : "server_error";
}

void nb_put_text(nb_buf *b, const char *s, size_t n)
{
    nb_buf fixed = { 0 };

    if (nb_u8_check(s, n) == n) {
        nb_json_put_str(b, s, n);
        return;
    }
    nb_u8_repair(&fixed, s, n);
    nb_json_put_str(b, fixed.p ? fixed.p : "", fixed.n);
    b->failed = b->failed || fixed.failed;
    nb_buf_clear(&fixed);
}

void nb_error_put(nb_buf *b, nb_error_style style, int status, const char *code, const char *param, const char *message)
{
    const char *type = nb_error_type(style, status);

    nb_buf_puts(b, "{\"error\":{\"message\":");
    nb_put_text(b, message, strlen(message));
    nb_buf_puts(b, ",\"type\":");
    nb_put_text(b, type, strlen(type));
    nb_buf_puts(b, ",\"param\":");
    if (param)
        nb_put_text(b, param, strlen(param));
    else
        nb_buf_puts(b, "null");
    nb_buf_puts(b, ",\"code\":");
    if (style == NB_ERRORS_VLLM)
        nb_buf_printf(b, "%d", status);
    else
        nb_put_text(b, code, strlen(code));
    nb_buf_puts(b, "}}");
}
