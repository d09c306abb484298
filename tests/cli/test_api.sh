# The library from outside: exported names, the header alone, the examples, and the installed tree with pkg-config.
set -eu
build=$(dirname "$NIBBLE")
model=models/pemberley-4m
fail() { echo "not ok: $*"; exit 1; }

# Only nibble_* leaves the shared library.
nm -D --defined-only "$build/libnibble.so.0" | awk '{ print $3 }' | grep -v '^__odr_asan' >"$TMP/names"
if grep -v '^nibble_' "$TMP/names"; then fail "names outside nibble_* are exported"; fi
sed -n 's/.*NIBBLE_API [^(]*[ *]\(nibble_[a-z_]*\)(.*/\1/p' include/nibble/nibble.h | sort >"$TMP/declared"
sort "$TMP/names" | diff -u "$TMP/declared" - || fail "declared and exported names differ"
echo "ok exports"

# The header needs nothing before it, in C11 and in C++17.
printf '#include <nibble/nibble.h>\nint main(void) { return (int)nibble_greedy().max_tokens; }\n' >"$TMP/h.c"
${CC:-cc} -std=c11 -Wall -Wextra -Wpedantic -Werror -Iinclude -fsyntax-only "$TMP/h.c" || fail "the header as C11"
echo "ok header C11"
if command -v g++ >/dev/null; then
    cp "$TMP/h.c" "$TMP/h.cc"
    g++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -Iinclude -fsyntax-only "$TMP/h.cc" || fail "the header as C++17"
    echo "ok header C++17"
else
    echo "skipped: no g++, the header was not tried as C++"
fi

# Examples agree with the program.
# The program also measures how fast memory is read, which the library leaves to the caller.
"$NIBBLE" inspect $model --json | sed -e '/"decode_tok_s_bound"/d' -e 's/"notes": \[\],/"notes": []/' >"$TMP/want"
"$build/examples/inspect" $model | diff "$TMP/want" - || fail "inspect example"
"$NIBBLE" run $model "It is a truth" --raw --temperature 0 -n 30 -q >"$TMP/want"
"$build/examples/generate" $model "It is a truth" 30 | diff "$TMP/want" - || fail "generate example"
"$build/examples/logits" $model "It is a truth" >"$TMP/out"
[ "$(wc -l <"$TMP/out")" -eq 5 ] || fail "logits example"
rc=0
"$build/examples/generate" "$TMP/absent" x >"$TMP/out" 2>"$TMP/err" || rc=$?
[ $rc -eq 3 ] && grep -q io.not_found "$TMP/err" || fail "generate example on an absent model: exit $rc"
echo "ok examples"

# The installed tree, moved elsewhere, compiles an example both ways.
if grep -q '^NB_SANITIZE:[A-Z]*=.' "$build/CMakeCache.txt"; then
    echo "skipped: a sanitizer build is not installed"
    exit 0
fi
DESTDIR=$TMP/dest cmake --install "$build" --prefix /opt/nibble --component nibble >/dev/null || fail "install"
mv "$TMP/dest/opt/nibble" "$TMP/moved"
find "$TMP/dest" -type f | grep . && fail "files outside the prefix"
(cd "$TMP/moved" && find . -type f | sort) >"$TMP/files"
grep -E '^./bin/.*(bench|gen|example|test)' "$TMP/files" && fail "development programs were installed"
for f in bin/nibble include/nibble/nibble.h lib.*/libnibble.a lib.*/libnibble.so.0 lib.*/pkgconfig/nibble.pc; do
    grep -qE "^\./$f" "$TMP/files" || fail "$f was not installed"
done
if grep -q '^CMAKE_BUILD_TYPE:[A-Z]*=Release' "$build/CMakeCache.txt"; then
    for verb in $("$NIBBLE" --help | awk '/^  [a-z]+ / && $1 != "help" { print $1 }'); do
        grep -q "man1/nibble-$verb.1" "$TMP/files" || fail "no man page of $verb"
    done
    for place in bash-completion/completions/nibble zsh/site-functions/_nibble fish/vendor_completions.d/nibble.fish; do
        grep -q "share/$place" "$TMP/files" || fail "no completion at $place"
    done
    grep -q 'man1/nibble.1' "$TMP/files" || fail "no man page of nibble"
fi
grep -rlF "$PWD" "$TMP/moved" --include=nibble.pc && fail "the build's path in the pkg-config file"
"$TMP/moved/bin/nibble" --version >/dev/null || fail "the installed program"
echo "ok install"
if command -v pkg-config >/dev/null; then
    PKG_CONFIG_PATH=$(dirname "$(find "$TMP/moved" -name nibble.pc)")
    export PKG_CONFIG_PATH
    libdir=$(dirname "$PKG_CONFIG_PATH")
    "$TMP/moved/bin/nibble" run $model "It is a truth" --raw --temperature 0 -n 30 -q >"$TMP/want"
    ${CC:-cc} -std=c11 examples/generate.c $(pkg-config --cflags --libs nibble) -o "$TMP/shared" || fail "linking with the shared library"
    LD_LIBRARY_PATH=$libdir "$TMP/shared" $model "It is a truth" 30 | diff "$TMP/want" - || fail "running with the shared library"
    rm "$libdir"/libnibble.so*
    ${CC:-cc} -std=c11 examples/generate.c $(pkg-config --cflags --static --libs nibble) -o "$TMP/static" || fail "linking with the archive"
    "$TMP/static" $model "It is a truth" 30 | diff "$TMP/want" - || fail "running with the archive"
    echo "ok pkg-config"
else
    echo "skipped: no pkg-config"
fi
