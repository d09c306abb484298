/* route.c - the table of endpoints. Paths match exactly; "/v1" in front is optional where clients leave it out. */
#include <string.h>

#include "serve/server_priv.h"

static const nb_route routes[] = {
    { "POST", "/v1/chat/completions", NB_ROUTE_KEY, true, nb_route_chat },
    { "POST", "/chat/completions", NB_ROUTE_KEY, true, nb_route_chat },
    { "POST", "/v1/completions", NB_ROUTE_KEY, true, nb_route_completions },
    { "POST", "/completions", NB_ROUTE_KEY, true, nb_route_completions },
    { "POST", "/v1/responses", NB_ROUTE_KEY, true, nb_route_responses },
    { "POST", "/generate", NB_ROUTE_KEY, true, nb_route_generate },
    { "POST", "/v1/embeddings", NB_ROUTE_KEY, true, nb_route_embeddings },
    { "POST", "/embeddings", NB_ROUTE_KEY, true, nb_route_embeddings },
    { "GET", "/health_generate", NB_ROUTE_KEY, true, nb_route_health_generate },
    { "GET", "/v1/models", NB_ROUTE_KEY, true, nb_route_models },
    { "GET", "/models", NB_ROUTE_KEY, true, nb_route_models },
    { "GET", "/v1/models/*", NB_ROUTE_KEY, true, nb_route_model },
    { "GET", "/models/*", NB_ROUTE_KEY, true, nb_route_model },
    { "POST", "/tokenize", NB_ROUTE_KEY, true, nb_route_tokenize },
    { "POST", "/v1/tokenize", NB_ROUTE_KEY, true, nb_route_tokenize },
    { "POST", "/detokenize", NB_ROUTE_KEY, true, nb_route_detokenize },
    { "POST", "/v1/detokenize", NB_ROUTE_KEY, true, nb_route_detokenize },
    { "POST", "/apply-template", NB_ROUTE_KEY, true, nb_route_template },
    { "GET", "/health", NB_ROUTE_OPEN, false, nb_route_health },
    { "GET", "/ping", NB_ROUTE_OPEN, false, nb_route_health },
    { "GET", "/live", NB_ROUTE_OPEN, false, nb_route_live },
    { "GET", "/version", NB_ROUTE_KEY, false, nb_route_version },
    { "GET", "/metrics", NB_ROUTE_KEY, false, nb_route_metrics },
    { "GET", "/load", NB_ROUTE_KEY, false, nb_route_load },
    { "GET", "/props", NB_ROUTE_KEY, true, nb_route_props },
    { "POST", "/reset_prefix_cache", NB_ROUTE_ADMIN, true, nb_route_reset },
    { "POST", "/flush_cache", NB_ROUTE_ADMIN, true, nb_route_reset },
    { "POST", "/abort", NB_ROUTE_ADMIN, true, nb_route_abort },
    { "GET", "/openapi.json", NB_ROUTE_KEY, false, nb_route_openapi },
    { "GET", "/", NB_ROUTE_OPEN, false, nb_route_page },
    { "GET", "/ui", NB_ROUTE_OPEN, false, nb_route_page },
};

const nb_route *nb_route_at(size_t i)
{
    return i < NB_LEN(routes) ? &routes[i] : NULL;
}

static bool fits(const char *pattern, const char *path)
{
    const size_t n = strlen(pattern);

    if (pattern[n - 1] == '*')
        return strncmp(pattern, path, n - 1) == 0 && path[n - 1];
    return strcmp(pattern, path) == 0;
}

const nb_route *nb_route_find(const char *path, const char *method, bool *path_known, nb_buf *allow)
{
    const nb_route *hit = NULL;
    const bool head = strcmp(method, "HEAD") == 0;

    *path_known = false;
    for (size_t i = 0; i < NB_LEN(routes); i++) {
        if (!fits(routes[i].path, path))
            continue;
        *path_known = true;
        nb_buf_printf(allow, "%s%s", allow->n ? ", " : "", strcmp(routes[i].method, "GET") == 0 ? "GET, HEAD" : routes[i].method);
        if (strcmp(routes[i].method, method) == 0 || (head && strcmp(routes[i].method, "GET") == 0))
            hit = &routes[i];
    }
    if (*path_known)
        nb_buf_puts(allow, ", OPTIONS");
    return hit;
}
