#!/bin/sh
# Rules of the tree that no compiler checks. usage: house.sh RULE (run from the repository root).
set -eu
fail() { echo "FAIL: $*" >&2; bad=1; }
bad=0
sources() { git ls-files 'src/*.c' 'src/*.h' 'src/*.inc'; }

# Every #include "floor/x.h" under src/ must be allowed by src/FLOORS.
floors() {
    for f in $(sources); do
        own=$(echo "$f" | cut -d/ -f2)
        case $own in *.*) continue ;; esac
        allowed=" $own $(sed -n "s/^$own: *//p" src/FLOORS) "
        grep -q "^$own:" src/FLOORS || fail "$f: floor $own is not in src/FLOORS"
        for inc in $(sed -n 's/^ *# *include *"\([^"]*\)".*/\1/p' "$f"); do
            to=$(echo "$inc" | cut -d/ -f1)
            [ "$to" != "$inc" ] || { fail "$f includes \"$inc\" without its floor"; continue; }
            [ -e "src/$inc" ] || { [ "$to" = nibble ] && [ "$own" = api ]; } || fail "$f includes \"$inc\", which is not in src/"
            case $allowed in *" $to "*) ;; *) [ "$to" = nibble ] && [ "$own" = api ] || fail "$f (floor $own) includes \"$inc\"" ;; esac
        done
    done
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
    git ls-files -s | while read -r _ hash _ path; do
        n=$(git cat-file -s "$hash")
        [ "$n" -le 8388608 ] || echo "$path has $n bytes"
    done | grep . && fail "a tracked file is over 8 MB"
    dup=$(git ls-files 'src/*.c' 'src/*.h' | grep -v '^src/kern/[^/]*/' | sed 's,.*/,,' | sort | uniq -d)
    [ -z "$dup" ] || fail "two source files share a name: $dup"
    :
}

"$1"
[ "$bad" = 0 ] && echo "ok $1"
exit "$bad"
