/* html.c - see html.h. */
#include "job/html.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/utf8.h"

void nb_html_text(nb_buf *b, const char *s)
{
    const size_t n = strlen(s);

    for (size_t i = 0; i < n;) {
        uint32_t c;
        const int len = nb_u8_next(s + i, n - i, &c, NULL);
        if (c == '&')
            nb_buf_puts(b, "&amp;");
        else if (c == '<')
            nb_buf_puts(b, "&lt;");
        else if (c == '>')
            nb_buf_puts(b, "&gt;");
        else if (c == '"')
            nb_buf_puts(b, "&quot;");
        else if (c == '\'')
            nb_buf_puts(b, "&#39;");
        else if (len < 0 || (c < 0x20 && c != '\t' && c != '\n') || (c >= 0x7f && c <= 0x9f) || (c & 0xfffe) == 0xfffe ||
                 (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069)) /* bidi controls would turn our own text around */
            nb_buf_puts(b, NB_FFFD);
        else
            nb_buf_put(b, s + i, (size_t)len);
        i += (size_t)(len < 0 ? -len : len);
    }
}

/* clang-format off */
static const char style[] =
    ":root{color-scheme:light dark;--bg:#f7f8fa;--card:#fff;--ink:#16202c;--soft:#56637340;--dim:#536070;--line:#dde2e9;"
    "--grid:#e8ecf1;--accent:#0b5cad;--warn:#7a4b00;--warnbg:#fff6e3;--c0:#0b62c4;--c1:#c2410c;--c2:#0b7f56;--c3:#8b31d6;"
    "--c4:#b3123f;--c5:#0e7490;--c6:#6b6f00;--c7:#6b4a2f}\n"
    "@media (prefers-color-scheme:dark){:root{--bg:#0f151c;--card:#171f29;--ink:#e7edf4;--soft:#9fb0c040;--dim:#a3b1c0;"
    "--line:#2a3644;--grid:#25303d;--accent:#7cb8ff;--warn:#ffd591;--warnbg:#33270f;--c0:#6db3ff;--c1:#ff9a5c;--c2:#4fd39c;"
    "--c3:#cf9dff;--c4:#ff8fa6;--c5:#58cfe6;--c6:#d9d64f;--c7:#d3ab86}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,'Segoe UI',"
    "Roboto,'Helvetica Neue',Arial,sans-serif}\n"
    "main,header,footer{max-width:1080px;margin:0 auto;padding:0 24px}header{padding-top:36px;padding-bottom:8px}\n"
    "header p{margin:4px 0;color:var(--dim);overflow-wrap:anywhere}header .small{font-size:13px;letter-spacing:.06em;"
    "text-transform:uppercase;color:var(--accent);font-weight:600}\n"
    "h1{font-size:28px;line-height:1.2;margin:2px 0 6px;overflow-wrap:anywhere}h2{font-size:19px;margin:0 0 4px}\n"
    ".section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:20px 22px;margin:18px 0}\n"
    ".section>p{margin:0 0 14px;color:var(--dim);max-width:80ch}\n"
    ".cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:12px;margin:18px 0}\n"
    ".card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px}.card dt{font-size:13px;"
    "color:var(--dim)}\n"
    ".card dd{margin:0}.card .value{font-size:25px;font-weight:650;font-variant-numeric:tabular-nums;line-height:1.3}\n"
    ".card .note{font-size:12.5px;color:var(--dim);font-variant-numeric:tabular-nums}dl{margin:0}\n"
    ".notice{border:1px solid var(--line);border-left:4px solid var(--warn);background:var(--warnbg);color:var(--warn);"
    "border-radius:6px;padding:10px 14px;margin:14px 0;overflow-wrap:anywhere}\n"
    "figure{margin:18px 0 6px}figcaption{font-weight:600;margin-bottom:2px}figure p{margin:0 0 6px;color:var(--dim);"
    "font-size:13.5px}\n"
    ".pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:6px 28px}\n"
    ".plot{overflow-x:auto}svg{display:block;width:100%;height:auto}.plot>svg{min-width:400px}.pair .plot>svg{max-width:620px}.plot>.wide{min-width:760px}svg text{fill:var(--dim);"
    "font-size:12px}\n"
    "svg .name{fill:var(--ink)}svg .grid{stroke:var(--grid)}svg .axis{stroke:var(--dim)}svg .track{fill:var(--grid)}\n"
    ".key{display:flex;flex-wrap:wrap;gap:2px 18px;list-style:none;margin:4px 0 2px;padding:0;font-size:13px}\n"
    ".key li{display:flex;align-items:center;gap:7px;overflow-wrap:anywhere}.key svg{width:26px;height:12px;flex:none}\n"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}\n"
    "caption{text-align:left;font-weight:600;padding:6px 0;font-size:15px}th,td{padding:6px 10px;"
    "border-bottom:1px solid var(--line);text-align:left;vertical-align:top}\n"
    "thead th{color:var(--dim);font-weight:600;white-space:nowrap}tbody th{font-weight:500;min-width:8em;overflow-wrap:anywhere}"
    ".n{text-align:right;white-space:nowrap}\n"
    "details{margin:6px 0 0;font-size:13.5px}summary{cursor:pointer;color:var(--accent);width:max-content}\n"
    "summary:focus-visible{outline:2px solid var(--accent);outline-offset:2px}code{font:13px ui-monospace,SFMono-Regular,Consolas,"
    "monospace;overflow-wrap:anywhere}\n"
    "footer{color:var(--dim);font-size:13px;padding-top:6px;padding-bottom:40px}\n"
    "@media print{body{background:#fff}.section,.card{break-inside:avoid;border-color:#bbb}details{display:none}}\n";
/* clang-format on */

void nb_html_begin(nb_buf *b, const char *small, const char *title, const char *below)
{
    nb_buf_puts(b, "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta charset=\"utf-8\"/>\n"
                   "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>");
    nb_html_text(b, title);
    nb_buf_puts(b, " - ");
    nb_html_text(b, small);
    nb_buf_puts(b, "</title>\n<style>\n");
    nb_buf_puts(b, style);
    nb_buf_puts(b, "</style>\n</head>\n<body>\n<header>\n<p class=\"small\">");
    nb_html_text(b, small);
    nb_buf_puts(b, "</p>\n<h1>");
    nb_html_text(b, title);
    nb_buf_puts(b, "</h1>\n<p>");
    nb_html_text(b, below);
    nb_buf_puts(b, "</p>\n</header>\n<main>\n<div>\n");
}

void nb_html_end(nb_buf *b, const char *program)
{
    nb_buf_puts(b, "</div>\n</main>\n<footer>Written by ");
    nb_html_text(b, program);
    nb_buf_puts(b, ". The page is one file and asks for nothing else.</footer>\n</body>\n</html>\n");
}

/* Sections follow one another inside the frame's first div. */
void nb_html_section(nb_buf *b, const char *title, const char *about)
{
    nb_buf_puts(b, "</div>\n<div class=\"section\" role=\"region\">\n<h2>");
    nb_html_text(b, title);
    nb_buf_puts(b, "</h2>\n");
    if (about) {
        nb_buf_puts(b, "<p>");
        nb_html_text(b, about);
        nb_buf_puts(b, "</p>\n");
    }
}

void nb_html_notice(nb_buf *b, const char *text)
{
    nb_buf_puts(b, "<p class=\"notice\" role=\"note\">");
    nb_html_text(b, text);
    nb_buf_puts(b, "</p>\n");
}

void nb_html_cards(nb_buf *b)
{
    nb_buf_puts(b, "<dl class=\"cards\">\n");
}

void nb_html_card(nb_buf *b, const char *name, const char *value, const char *note)
{
    nb_buf_puts(b, "<div class=\"card\"><dt>");
    nb_html_text(b, name);
    nb_buf_puts(b, "</dt><dd class=\"value\">");
    nb_html_text(b, value);
    nb_buf_puts(b, "</dd><dd class=\"note\">");
    nb_html_text(b, note);
    nb_buf_puts(b, "</dd></div>\n");
}

void nb_html_cards_end(nb_buf *b)
{
    nb_buf_puts(b, "</dl>\n");
}

/* ---- tables: which columns are numbers is in the class of their heads and cells ---- */

void nb_html_table(nb_buf *b, const char *caption, const char *const *columns, size_t n)
{
    nb_buf_puts(b, "<div class=\"scroll\"><table>\n");
    if (caption) {
        nb_buf_puts(b, "<caption>");
        nb_html_text(b, caption);
        nb_buf_puts(b, "</caption>\n");
    }
    nb_buf_puts(b, "<thead><tr>");
    for (size_t i = 0; i < n; i++) {
        nb_buf_puts(b, columns[i][0] == '#' ? "<th scope=\"col\" class=\"n\">" : "<th scope=\"col\">");
        nb_html_text(b, columns[i] + (columns[i][0] == '#'));
        nb_buf_puts(b, "</th>");
    }
    nb_buf_puts(b, "</tr></thead>\n<tbody>\n");
}

void nb_html_row(nb_buf *b, const char *const *cells, size_t n)
{
    nb_buf_puts(b, "<tr>");
    for (size_t i = 0; i < n; i++) {
        const bool number = cells[i][0] == '#';
        nb_buf_puts(b, i == 0 ? (number ? "<th scope=\"row\" class=\"n\">" : "<th scope=\"row\">") : number ? "<td class=\"n\">" : "<td>");
        nb_html_text(b, cells[i] + number);
        nb_buf_puts(b, i == 0 ? "</th>" : "</td>");
    }
    nb_buf_puts(b, "</tr>\n");
}

void nb_html_table_end(nb_buf *b)
{
    nb_buf_puts(b, "</tbody>\n</table></div>\n");
}

const char *nb_html_num(char out[32], double v)
{
    const double a = fabs(v);

    if (!isfinite(v))
        snprintf(out, 32, "-");
    else if (a >= 1e6 || (a > 0 && a < 1e-3))
        snprintf(out, 32, "%.2e", v);
    else if (a >= 1000)
        snprintf(out, 32, "%.0f", v);
    else
        snprintf(out, 32, "%.4g", v);
    return out;
}

const char *nb_html_bytes(char out[32], double bytes)
{
    static const char *const unit[] = { "B", "KB", "MB", "GB", "TB" };
    size_t i = 0;

    while (bytes >= 1000 && i + 1 < NB_LEN(unit)) {
        bytes /= 1000;
        i++;
    }
    snprintf(out, 32, i && bytes < 100 ? "%.1f %s" : "%.0f %s", bytes, unit[i]);
    return out;
}
