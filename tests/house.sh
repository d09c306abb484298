#!/bin/sh
# Rules of the tree that no compiler checks. usage: house.sh RULE (run from the repository root).
set -eu
fail() { echo "FAIL: $*" >&2; bad=1; }
bad=0
sources() { git ls-files 'src/*.c' 'src/*.h' 'src/*.inc'; }

# Every #include "floor/x.h" under src/ must be allowed by src/FLOORS.
floors() {
    sources | xargs awk '
        BEGIN { while ((getline line < "src/FLOORS") > 0) if (match(line, /^[a-z]+:/)) {
            own = substr(line, 1, RLENGTH - 1); allowed[own] = " " own " " substr(line, RLENGTH + 1) " " } }
        FNR == 1 { split(FILENAME, part, "/"); own = part[2]
            if (own !~ /[.]/ && !(own in allowed)) { print "FAIL: " FILENAME ": floor " own " is not in src/FLOORS"; bad = 1 } }
        own !~ /[.]/ && /^ *# *include *"/ { split($0, q, "\""); inc = q[2]; to = inc; sub("/.*", "", to)
            api = to == "nibble" && own == "api"
            if (to == inc) { print "FAIL: " FILENAME " includes \"" inc "\" without its floor"; bad = 1; next }
            if (!(inc in there)) there[inc] = (getline line < ("src/" inc)) >= 0
            close("src/" inc)
            if (!there[inc] && !api) { print "FAIL: " FILENAME " includes \"" inc "\", which is not in src/"; bad = 1 }
            if (!index(allowed[own], " " to " ") && !api) { print "FAIL: " FILENAME " (floor " own ") includes \"" inc "\""; bad = 1 } }
        END { exit bad }' >&2 || bad=1
}

# One includer per external library (ARCHITECTURE decision 9).
includers() {
    for row in jansson.h:src/base/json.c microhttpd.h:src/serve/http.c pcre2.h:src/text/pattern.c utf8proc.h:src/text/norm.c \
        zip.h:src/io/torch_zip.c mpi.h:src/dist/comm_mpi.c; do
        for f in $(git grep -lE "^ *# *include *<${row%%:*}>" -- src include || true); do
            [ "$f" = "${row#*:}" ] || fail "$f includes <${row%%:*}>; only ${row#*:} may"
        done
    done
    for f in $(git grep -lE '# *include *<(immintrin|arm_neon|x86intrin|emmintrin)\.h>' -- src || true); do
        case $f in src/kern/*/*) ;; *) fail "$f: intrinsics live in folders under src/kern" ;; esac
    done
}

# Each header compiles alone.
headers() {
    for h in $(git ls-files 'src/*.h' 'include/*.h'); do
        case $h in src/kern/avx*) flags="-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx2 -mfma -mf16c" ;; *) flags= ;; esac
        case $h in src/kern/avx*) [ "$(uname -m)" = x86_64 ] || continue ;; src/kern/neon*) [ "$(uname -m)" = aarch64 ] || continue ;; esac
        printf '#include "%s"\n' "$(echo "$h" | sed 's,^src/,,; s,^include/,,')" |
            ${CC:-cc} -std=c11 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -Wall -Wextra -Isrc -Iinclude $flags -fsyntax-only -x c - || fail "$h does not compile alone"
    done
}

# Layout of the source.
format() {
    command -v clang-format-14 >/dev/null || { echo "skipped: clang-format-14 is not installed"; exit 77; }
    git ls-files '*.c' '*.h' '*.inc' | xargs clang-format-14 --dry-run -Werror 2>&1 | grep -m 20 'error:' && fail "run make format"
    :
}

# No path of one machine, no package registry's host, no large file, no unfinished words.
clean() {
    git grep -nIE '(^|[^A-Za-z0-9_.])/(work|root|home)/' -- . ':!tests/house.sh' ':!*.jsonl' && fail "absolute path of one machine"
    git grep -nIiE 'pypi\.org|registry\.npmjs|deb\.debian\.org|pythonhosted' -- . ':!tests/house.sh' && fail "host name of a package registry"
    git grep -nIE '\b(TODO|FIXME|XXX|HACK)\b' -- src include bench tools && fail "unfinished words"
    git ls-files -s | awk '{ hash = $2; sub(/^[^\t]*\t/, ""); print hash, $0 }' | git cat-file --batch-check='%(objectsize) %(rest)' |
        awk '$1 > 8388608 { n = $1; sub(/^[0-9]+ /, ""); print $0 " has " n " bytes" }' | grep . && fail "a tracked file is over 8 MB"
    dup=$(git ls-files 'src/*.c' 'src/*.h' | grep -v '^src/kern/[^/]*/' | sed 's,.*/,,' | sort | uniq -d)
    [ -z "$dup" ] || fail "two source files share a name: $dup"
    :
}

# Functions that no parser should meet (hardening 14): numbers are read by base/num.h, texts printed with their size.
calls() {
    found() { git grep -nE "(^|[^A-Za-z0-9_])($1)[[:space:]]*\(" -- src | grep -vE "^[^:]*:[0-9]*:[[:space:]]*(/\*|\*)|$2" && fail "$3"; :; }
    found 'system|popen|gets|strcpy|strcat|sprintf|vsprintf|alloca|dlopen' '^$' "a call of hardening 14's list"
    found 'atoi|atol|atoll|atof|scanf|fscanf|sscanf|strtol|strtoul|strtoll|strtoull|strtof' '^$' "numbers are read by base/num.h"
    found 'strtod' '^src/(base/num|base/json|text/jinja_math)\.c:' "numbers are read by base/num.h"
    found '_?setjmp|longjmp' '^src/text/jinja' "only the template engine leaves by longjmp (text/jinja.h says why)"
}

# The release program: position-independent, relocations read-only, no executable stack, canaries, fortified calls. NIBBLE: its path.
binary() {
    command -v readelf >/dev/null || { echo "skipped: no readelf"; exit 77; }
    about=$(LC_ALL=C readelf -hldW "$NIBBLE")
    undefined=" $(nm -D --undefined-only "$NIBBLE" | sed 's/.* //; s/@.*//' | tr '\n' ' ')"
    echo "$about" | grep -qE 'Type: +DYN' || fail "no position-independent program"
    echo "$about" | grep -q 'GNU_RELRO' || fail "relocations stay writable"
    echo "$about" | grep -qE 'BIND_NOW|Flags: .*NOW' || fail "symbols are bound lazily"
    echo "$about" | grep -qE 'GNU_STACK .* RW +0x' || fail "executable stack"
    echo "$about" | grep -q 'TEXTREL' && fail "text relocations"
    case $undefined in *" __stack_chk_fail "*) ;; *) fail "no stack canaries" ;; esac
    case $undefined in *" __snprintf_chk "*) ;; *) fail "no fortified calls" ;; esac
    for f in system popen gets strcpy sprintf alloca dlopen; do
        case $undefined in *" $f "*) fail "the program calls $f" ;; esac
    done
}

"$1"
[ "$bad" = 0 ] && echo "ok $1"
exit "$bad"
