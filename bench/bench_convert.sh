#!/bin/sh
# nibble convert awq-gemm -> gptq beside `cp` of the same bytes: throughput and peak memory.
# usage: bench_convert.sh BUILD_DIR [MODEL]     without MODEL a random one of about 1 GB is made
# One JSON line per run; needs GNU time at /usr/bin/time or reads the peak from the kernel through bash otherwise.
set -eu
build=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/nibble-bench-XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
model=${2:-}
if [ -z "$model" ]; then
    model=$work/model
    "$build/nibble_gen_model" "$model" hidden=4096 layers=8 heads=32 kv_heads=8 ffn=12288 vocab=4000
fi
bytes=$(cat "$model"/*.safetensors | wc -c)

now() { date +%s.%N; }
line() { # label, seconds, peak in kB
    awk -v l="$1" -v b="$bytes" -v s="$2" -v p="$3" \
        'BEGIN { printf "{\"bench\":\"convert\",\"case\":\"%s\",\"bytes\":%d,\"seconds\":%.3f,\"gb_per_s\":%.3f,\"peak_mb\":%.0f}\n", l, b, s, b / s / 1e9, p / 1000 }'
}
timed() { # label, command...
    label=$1
    shift
    rm -rf "$work/out"
    cat "$model"/*.safetensors >/dev/null # the page cache holds the input
    sync
    t0=$(now)
    "$@" >"$work/log" 2>"$work/err" &
    pid=$!
    peak=0
    while kill -0 "$pid" 2>/dev/null; do
        p=$(awk '/^VmHWM/ { print $2 }' "/proc/$pid/status" 2>/dev/null || echo 0)
        [ "${p:-0}" -gt "$peak" ] && peak=$p
        sleep 0.02
    done
    wait "$pid"
    line "$label" "$(awk -v a="$t0" -v b="$(now)" 'BEGIN { print b - a }')" "$peak"
}

for round in 1 2 3; do
    timed cp cp -r "$model" "$work/out"
    timed cp-sync sh -c 'cp -r "$1" "$2" && sync -f "$2"' sh "$model" "$work/out"
    timed awq-gemm-to-gptq "$build/nibble" convert "$model" --to gptq -o "$work/out" --threads 2 --no-verify -q
    timed awq-gemm-to-gptq-verified "$build/nibble" convert "$model" --to gptq -o "$work/out" --threads 2 -q
done
