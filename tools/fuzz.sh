#!/bin/sh
# Build every fuzz target with libFuzzer, ASan and UBSan and run each for SECONDS (60), from the seeds of tests/fuzz/fuzz.cmake
# and what earlier runs found. usage: tools/fuzz.sh [SECONDS [NAME...]]
# A find is written to build/fuzz/find-NAME-...; the exit code is 1 then.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
[ $# -eq 0 ] || shift
build=${NB_FUZZ_BUILD:-build/fuzz}
launch=
command -v ccache >/dev/null 2>&1 && launch=-DCMAKE_C_COMPILER_LAUNCHER=ccache
mkdir -p "$build"
if ! cmake --preset fuzz -B "$build" $launch >"$build/configure.log" 2>&1 ||
    ! ninja -C "$build" -j "$(nproc)" fuzz >"$build/build.log" 2>&1; then
    tail -n 40 "$build/configure.log" "$build/build.log"
    echo "not ok fuzz: build (needs clang-14 and libclang-rt-14-dev)"
    exit 1
fi
[ $# -gt 0 ] || set -- $(cd "$build" && ls fuzz_*.seeds | sed 's/fuzz_\(.*\).seeds/\1/')
bad=0
for name; do
    corpus=$build/corpus/$name
    mkdir -p "$corpus"
    while read -r seed; do
        [ -z "$seed" ] || cp "$seed" "$corpus/seed-$(basename "$seed")"
    done <"$build/fuzz_$name.seeds"
    if "$build/fuzz_$name" -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$build/find-$name-" "$corpus" >"$build/fuzz_$name.log" 2>&1; then
        echo "ok fuzz.$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$build/fuzz_$name.log") runs in $seconds s"
    else
        bad=1
        tail -n 60 "$build/fuzz_$name.log"
        echo "not ok fuzz.$name"
    fi
done
exit $bad
