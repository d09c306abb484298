#!/bin/sh
# Everything `make check` runs, in order (CLIENTS=1: also real clients of the server; FUZZ=1: each fuzz target for a minute); ends with one line "check: N passed, N failed, N skipped".
set -u
cd "$(dirname "$0")/.."
launch=
command -v ccache >/dev/null 2>&1 && launch=-DCMAKE_C_COMPILER_LAUNCHER=ccache
jobs=$(nproc)
passed=0 failed=0 skipped=0

step() { printf '\n== %s ==\n' "$*"; }

# build PRESET FLAGS TARGETS...: configure and build; a failure counts as one failed test and prints the end of the log.
# FLAGS: in place of the preset's, where less to compile tells as much.
build() {
    preset=$1 flags=$2
    shift 2
    step "build $preset"
    mkdir -p "build/$preset"
    if cmake --preset "$preset" -DNB_TESTS=ON $launch ${flags:+"-DCMAKE_C_FLAGS_RELEASE=$flags" "-DCMAKE_C_FLAGS_DEBUG=$flags"} >"build/$preset/configure.log" 2>&1 &&
        ninja -C "build/$preset" -j "$jobs" "$@" >"build/$preset/build.log" 2>&1; then
        passed=$((passed + 1))
        return 0
    fi
    tail -n 40 "build/$preset/configure.log" "build/$preset/build.log"
    failed=$((failed + 1))
    return 1
}

# tests PRESET ctest-arguments...: run and count from ctest's own report.
tests() {
    preset=$1
    shift
    step "tests $preset"
    log=build/$preset/ctest.log
    ctest --test-dir "build/$preset" -j "$jobs" --output-on-failure "$@" >"$log" 2>&1
    grep -E 'Test +#[0-9]+:|tests passed|FAILED \]' "$log"
    # Rows that a test left out, with the reason it printed.
    grep -hE '^skipped|SKIPPED \] [^0-9]' "build/$preset/Testing/Temporary/LastTest.log" | sort | uniq -c | sort -rn | head -n 40
    grep -q '\*\*\*Failed\|\*\*\*Timeout\|\*\*\*Exception' "$log" && tail -n 80 "$log"
    passed=$((passed + $(grep -cE 'Test +#[0-9]+: .* Passed ' "$log")))
    skipped=$((skipped + $(grep -cE 'Test +#[0-9]+: .*\*\*\*Skipped' "$log")))
    failed=$((failed + $(grep -cE 'Test +#[0-9]+: .*\*\*\*(Failed|Timeout|Exception|Not Run)' "$log")))
    grep -q 'Test +#\|Test *#' "$log" || failed=$((failed + 1))
}

build release "" && tests release
export NB_THIN=7 # sanitizers: every 7th shape of each kernel grid, and of the ways a golden is run; the release run above had them all
build dev "-O1 -g1" && tests dev -L 'unit|cli'
build tsan "-O1 -g1" threads && tests tsan -L threads
unset NB_THIN
build clang "-O0" # for its warnings
if [ "$(uname -m)" = x86_64 ]; then # Arm: kernels and a small model under an emulator
    if tools/check_aarch64.sh install; then
        export NB_THIN=13 NB_NATIVE="$PWD/build/release/nibble"
        build aarch64 "" nibble tests_kern && tests aarch64 -R '^(unit[.]kern|emulated)[.]'
        unset NB_THIN NB_NATIVE
    else
        step "tests aarch64"
        echo "skipped: Arm kernels: no cross compiler, emulator and arm64 libraries (make check-aarch64 says which)"
        skipped=$((skipped + 1))
    fi
fi
if [ "${CLIENTS:-0}" != 0 ]; then
    step "clients of the server"
    tests/clients/run.sh build/release/nibble >build/clients.log 2>&1
    cat build/clients.log
    passed=$((passed + $(grep -c '^ok client' build/clients.log)))
    failed=$((failed + $(grep -c '^not ok client' build/clients.log)))
    skipped=$((skipped + $(grep -c '^skipped' build/clients.log)))
fi
if [ "${FUZZ:-0}" != 0 ]; then
    step "fuzz, 60 s each"
    tools/fuzz.sh 60 >build/fuzz.log 2>&1
    cat build/fuzz.log
    passed=$((passed + $(grep -c '^ok fuzz' build/fuzz.log)))
    failed=$((failed + $(grep -c '^not ok fuzz' build/fuzz.log)))
    grep -q '^\(not \)\{0,1\}ok fuzz' build/fuzz.log || failed=$((failed + 1))
fi
printf '\ncheck: %d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
