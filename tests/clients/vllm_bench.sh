#!/bin/sh
# `vllm bench serve` (VLLM=PROGRAM) against `nibble serve`, and its file beside the one `nibble bench serve` writes: the same keys.
# usage: vllm_bench.sh ROOT_URL MODEL_DIRECTORY       Exit 77: no VLLM.
set -eu
url=$1 model=$2
if [ -z "${VLLM:-}" ]; then
    echo "skipped: vllm bench serve (set VLLM to a vllm program; its packages are gigabytes)"
    exit 77
fi
nibble=${NIBBLE:-build/release/nibble}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
flags="--num-prompts 24 --max-concurrency 4 --random-input-len 24 --random-output-len 12 --seed 3 --metric-percentiles 50,99 --percentile-metrics ttft,tpot,itl,e2el
    --ignore-eos --goodput ttft:60000 --label x --metadata a=b --save-result --save-detailed --result-dir $tmp --disable-tqdm --dataset-name random --backend openai"
# shellcheck disable=SC2086
"$VLLM" bench serve --base-url "$url" --model "$(basename "$model")" --tokenizer "$model" --temperature 0 $flags --result-filename theirs.json >"$tmp/out" 2>&1 || { tail -n 30 "$tmp/out"; exit 1; }
grep -E 'Successful requests|Failed requests|Output token throughput' "$tmp/out"
echo "ok vllm bench serve ran"
# shellcheck disable=SC2086
"$nibble" bench serve --base-url "$url" $flags --result-filename ours.json >/dev/null
keys() { python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); print("\n".join(sorted(d)))' "$1"; }
for who in theirs ours; do
    python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); sys.exit(not (d["completed"] == 24 and d["total_output_tokens"] == 288 and d["mean_ttft_ms"] > 0))' "$tmp/$who.json" ||
        { cat "$tmp/$who.json"; exit 1; }
done
keys "$tmp/theirs.json" >"$tmp/theirs"
keys "$tmp/ours.json" >"$tmp/ours"
missing=$(comm -23 "$tmp/theirs" "$tmp/ours" | tr '\n' ' ')
[ -z "$missing" ] || { echo "not ok keys of vllm's file that ours has not: $missing"; exit 1; }
echo "ok its $(wc -l <"$tmp/theirs") keys are in our file too; beyond them: $(comm -13 "$tmp/theirs" "$tmp/ours" | tr '\n' ' ')"
