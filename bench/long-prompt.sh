#!/bin/sh
# AT-9, measured: 16 answers stream while prompts of 8,000 tokens are read. Prints the gaps between tokens (p50, p99, longest) without
# and with the long prompts, and the time to their first token. usage: bench/long-prompt.sh NIBBLE MODEL [STEP_MS]
set -eu
nibble=${1:?usage: bench/long-prompt.sh NIBBLE MODEL [STEP_MS]} model=${2:?} step=${3:-200}
tmp=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill $pid; rm -rf "$tmp"' EXIT
"$nibble" serve "$model" --port 0 --step-ms "$step" --no-request-log >"$tmp/out" 2>"$tmp/err" &
pid=$!
until grep -qs 'is ready at' "$tmp/err"; do
    kill -0 $pid
    sleep 0.05
done
url=$(sed -n 's/.*is ready at \(http[^ ]*\).*/\1/p' "$tmp/err")
long() { # SEED: a prompt of 8,000 ids; prints the seconds to its only token
    awk -v s="$1" 'BEGIN { printf "{\"max_tokens\":1,\"temperature\":0,\"prompt\":["
        for (i = 0; i < 8000; i++) printf "%s%d", i ? "," : "", (i * 7919 + s * 104729) % 30000 + 10
        print "]}" }' | curl -sS -o /dev/null -w '%{time_total}\n' -H 'Content-Type: application/json' --data-binary @- "$url/v1/completions"
}
streams() { # LABEL
    "$nibble" bench serve --base-url "$url" --num-prompts 16 --max-concurrency 16 --random-input-len 32 --random-output-len "$2" \
        --metric-percentiles 50,99,100 --json >"$tmp/$1.json" 2>/dev/null
    tr ',{}' '\n\n\n' <"$tmp/$1.json" | awk -v l="$1" -F: '/"p(50|99|100)_itl_ms"/ { gsub(/[" ]/, "", $1); printf "%s %s %.1f ms\n", l, $1, $2 }'
}
streams alone 256
streams beside 512 &
s=$!
sleep 2
long 1 >"$tmp/one" & one=$!
long 2 >"$tmp/two"
wait $one
wait $s
echo "step budget $step ms; two prompts of 8000 tokens took $(cat "$tmp/one") s and $(cat "$tmp/two") s"
