#!/bin/sh
# nibble convert awq-gemm -> gptq beside a copy of the same bytes, and nibble check beside `cat`: wall and processor time, peak memory.
# usage: bench_convert.sh BUILD_DIR [MODEL [ROUNDS]]     without MODEL a random one of about 0.9 GB is made
#
# Every round runs every case once, so that what else happens on the machine meets them all; the last lines are medians and their
# ratios. Inputs are in the page cache, but for the cases named cold. `cp --reflink=never` copies bytes; cp-sync also waits for the
# disk, as convert always does. convert writes, syncs, opens the result again and compares; the other one leaves that out.
# One JSON line per run; the peak counts mapped pages of files too.
set -eu
build=$1
ninja -C "$build" --quiet nibble nibble_gen_model nibble_timed
rounds=${3:-5}
work=$(mktemp -d "${TMPDIR:-/tmp}/nibble-bench-XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
model=${2:-}
if [ -z "$model" ]; then
    model=$work/model
    "$build/nibble_gen_model" "$model" hidden=4096 layers=8 heads=32 kv_heads=8 ffn=12288 vocab=4000 >/dev/null
fi
bytes=$(cat "$model"/*.safetensors | wc -c)

run() { # case, cold or warm, command...
    label=$1
    state=$2
    shift 2
    rm -rf "$work/out"
    sync
    if [ "$state" = cold ]; then
        for f in "$model"/*.safetensors; do dd if="$f" iflag=nocache count=0 status=none; done
    else
        cat "$model"/*.safetensors >/dev/null
    fi
    "$build/nibble_timed" "$@" | awk -v l="$label" -v b="$bytes" '{
        printf "{\"bench\":\"convert\",\"case\":\"%s\",\"bytes\":%d,\"seconds\":%.3f,\"cpu_seconds\":%.3f,\"gb_per_s\":%.3f,\"peak_mb\":%.0f}\n",
               l, b, $1, $2, b / $1 / 1e9, $3 / 1000 }' | tee -a "$work/lines"
}

round=0
while [ "$round" -lt "$rounds" ]; do
    round=$((round + 1))
    run cp warm cp --reflink=never -r "$model" "$work/out"
    run cp-sync warm sh -c 'cp --reflink=never -r "$1" "$2" && sync -f "$2"' sh "$model" "$work/out"
    run convert warm "$build/nibble" convert "$model" --to gptq -o "$work/out" --threads 2 -q
    run convert-no-verify warm "$build/nibble" convert "$model" --to gptq -o "$work/out" --threads 2 --no-verify -q
    run cat warm sh -c 'cat "$1"/*.safetensors' sh "$model"
    run check warm "$build/nibble" check "$model" --threads 2 -q
    run cat-cold cold sh -c 'cat "$1"/*.safetensors' sh "$model"
    run check-cold cold "$build/nibble" check "$model" --threads 2 -q
done
awk -F'[:,"}]+' '
    { for (i = 1; i < NF; i++) { if ($i == "case") c = $(i + 1); if ($i == "seconds") s = $(i + 1) } n[c]++; v[c, n[c]] = s }
    function median(c, i, j, t) {
        for (i = 1; i <= n[c]; i++) for (j = i + 1; j <= n[c]; j++) if (v[c, j] < v[c, i]) { t = v[c, i]; v[c, i] = v[c, j]; v[c, j] = t }
        return n[c] % 2 ? v[c, (n[c] + 1) / 2] : (v[c, n[c] / 2] + v[c, n[c] / 2 + 1]) / 2
    }
    function ratio(a, b) { printf "{\"bench\":\"convert\",\"ratio\":\"%s of the speed of %s\",\"median\":%.2f}\n", a, b, median(b) / median(a) }
    END { ratio("convert", "cp"); ratio("convert", "cp-sync"); ratio("convert-no-verify", "cp"); ratio("check", "cat"); ratio("check-cold", "cat-cold") }
' "$work/lines"
