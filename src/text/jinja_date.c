/* jinja_date.c - strftime with English names, whatever the locale. Spec chat-templates 7. */
#include "text/jinja.h"

#include <stdio.h>
#include <string.h>

static const char *const days[] = { "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday" };
static const char *const months[] = { "January", "February", "March",     "April",   "May",      "June",
                                      "July",    "August",   "September", "October", "November", "December" };

/* ISO 8601 week and its year. */
static int iso_week(const struct tm *t, int *year)
{
    const int wday = (t->tm_wday + 6) % 7;
    int week = (t->tm_yday - wday + 10) / 7, y = t->tm_year + 1900;
    const int jan1 = ((wday - t->tm_yday) % 7 + 371) % 7; /* weekday of January 1st, Monday 0 */
    const bool leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;

    if (week < 1) { /* belongs to the year before */
        y--;
        const bool before = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
        const int first = (jan1 + 371 - 365 - before) % 7;
        week = first == 3 || (first == 2 && before) ? 53 : 52;
    } else if (week == 53 && !(jan1 == 3 || (jan1 == 2 && leap))) {
        week = 1;
        y++;
    }
    *year = y;
    return week;
}

static void put_num(jrun *r, int v, int width, char pad, char flag)
{
    char b[24];

    if (flag == '-')
        width = 0;
    else if (flag == '_')
        pad = ' ';
    else if (flag == '0')
        pad = '0';
    nb_j_put(r, b, (size_t)snprintf(b, sizeof b, pad == '0' ? "%0*d" : "%*d", width, v));
}

static void put_str(jrun *r, const char *s, size_t n)
{
    nb_j_put(r, s, n ? n : strlen(s));
}

static void put_date(jrun *r, const struct tm *t, const char *f);

/* One conversion; false: there is no such letter. */
static bool date_part(jrun *r, const struct tm *t, char letter, char flag)
{
    static const struct {
        char letter;
        const char *means;
    } compound[] = { { 'c', "%a %b %e %H:%M:%S %Y" },
                     { 'D', "%m/%d/%y" },
                     { 'x', "%m/%d/%y" },
                     { 'F', "%Y-%m-%d" },
                     { 'T', "%H:%M:%S" },
                     { 'X', "%H:%M:%S" },
                     { 'R', "%H:%M" },
                     { 'h', "%b" },
                     { 'r', "%I:%M:%S %p" } };
    const int hour12 = t->tm_hour % 12 ? t->tm_hour % 12 : 12, year = t->tm_year + 1900;
    const int wday = ((t->tm_wday % 7) + 7) % 7, mon = ((t->tm_mon % 12) + 12) % 12;
    int iso_year, week;
    char zone[16];

    for (size_t i = 0; i < NB_LEN(compound); i++)
        if (compound[i].letter == letter) {
            put_date(r, t, compound[i].means);
            return true;
        }
    switch (letter) {
    case 'a':
        put_str(r, days[wday], 3);
        return true;
    case 'A':
        put_str(r, days[wday], 0);
        return true;
    case 'b':
        put_str(r, months[mon], 3);
        return true;
    case 'B':
        put_str(r, months[mon], 0);
        return true;
    case 'p':
        put_str(r, t->tm_hour < 12 ? "AM" : "PM", 0);
        return true;
    case 'P':
        put_str(r, t->tm_hour < 12 ? "am" : "pm", 0);
        return true;
    case 'n':
    case 't':
    case '%':
        put_str(r, letter == 'n' ? "\n" : letter == 't' ? "\t" : "%", 0);
        return true;
    case 'd':
        put_num(r, t->tm_mday, 2, '0', flag);
        return true;
    case 'e':
        put_num(r, t->tm_mday, 2, ' ', flag);
        return true;
    case 'H':
        put_num(r, t->tm_hour, 2, '0', flag);
        return true;
    case 'k':
        put_num(r, t->tm_hour, 2, ' ', flag);
        return true;
    case 'I':
        put_num(r, hour12, 2, '0', flag);
        return true;
    case 'l':
        put_num(r, hour12, 2, ' ', flag);
        return true;
    case 'M':
        put_num(r, t->tm_min, 2, '0', flag);
        return true;
    case 'S':
        put_num(r, t->tm_sec, 2, '0', flag);
        return true;
    case 'f':
        put_str(r, "000000", 0);
        return true;
    case 'm':
        put_num(r, t->tm_mon + 1, 2, '0', flag);
        return true;
    case 'j':
        put_num(r, t->tm_yday + 1, 3, '0', flag);
        return true;
    case 'y':
        put_num(r, year % 100, 2, '0', flag);
        return true;
    case 'C':
        put_num(r, year / 100, 2, '0', flag);
        return true;
    case 'Y':
        put_num(r, year, 0, '0', flag);
        return true;
    case 'w':
        put_num(r, wday, 0, '0', flag);
        return true;
    case 'u':
        put_num(r, wday ? wday : 7, 0, '0', flag);
        return true;
    case 'U':
        put_num(r, (t->tm_yday + 7 - wday) / 7, 2, '0', flag);
        return true;
    case 'W':
        put_num(r, (t->tm_yday + 7 - (wday + 6) % 7) / 7, 2, '0', flag);
        return true;
    case 'G':
    case 'V':
    case 'g':
        week = iso_week(t, &iso_year);
        put_num(r, letter == 'V' ? week : letter == 'G' ? iso_year : iso_year % 100, letter == 'G' ? 0 : 2, '0', flag);
        return true;
    case 's': {
        struct tm copy = *t;
        nb_j_put(r, zone, (size_t)snprintf(zone, sizeof zone, "%lld", (long long)mktime(&copy)));
        return true;
    }
    case 'z': /* of a naive local time Python prints nothing */
    case 'Z':
        return true;
    default:
        return false;
    }
}

static void put_date(jrun *r, const struct tm *t, const char *f)
{
    for (; *f; f++) {
        if (*f == '%' && f[1])
            date_part(r, t, *++f, '\0');
        else
            nb_j_put(r, f, 1);
    }
}

jval nb_j_strftime(jrun *r, const jstr *s)
{
    const size_t mark = nb_j_mark(r);
    struct tm local = { 0 };

    if (r->now) {
        local = *r->now;
    } else {
        const time_t t = time(NULL);
        localtime_r(&t, &local);
    }
    for (size_t i = 0; i < s->n;) {
        size_t from = i, k = i + 1;
        char flag = '\0';
        if (s->s[i] != '%') {
            while (i < s->n && s->s[i] != '%')
                i++;
            nb_j_put(r, s->s + from, i - from);
            continue;
        }
        if (k < s->n && (s->s[k] == '-' || s->s[k] == '_' || s->s[k] == '0'))
            flag = s->s[k++];
        nb_j_charge(r, 1);
        i = k < s->n ? k + 1 : s->n;
        if (k >= s->n || !date_part(r, &local, s->s[k], flag))
            nb_j_put(r, s->s + from, i - from); /* what is no conversion stays as it is */
    }
    return nb_j_take(r, mark);
}
