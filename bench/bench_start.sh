#!/bin/sh
# From a warm file to the first token, to a server that answers, and the most memory in between.
# usage: bench_start.sh NIBBLE MODEL [rounds]
# Each round reads the weights once with plain read() (dd, 1 MB at a time), runs one token, and starts the server until /health says
# 200; medians follow. MODEL is a directory with *.safetensors and a tokenizer. Where nibble_timed lies beside NIBBLE, it touches as much
# memory before each start as the file has and a quarter more (bench/timed.c says why).
set -eu
nibble=$1 model=$2 rounds=${3:-5}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT INT TERM
now() { date +%s.%N; }
since() { echo "$(now) $1" | awk '{ printf "%.3f\n", $1 - $2 }'; }
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
port=$((20000 + $$ % 20000))
cat "$model"/*.safetensors >/dev/null
timed=$(dirname "$nibble")/nibble_timed
bytes=$(cat "$model"/*.safetensors | wc -c)
touch_memory() { [ ! -x "$timed" ] || "$timed" -m $((bytes * 5 / 4 / 1048576)) true >/dev/null; }
i=0
while [ $i -lt "$rounds" ]; do
    t=$(now)
    for f in "$model"/*.safetensors; do dd if="$f" of=/dev/null bs=1M status=none; done
    since "$t" >>"$tmp/read"
    touch_memory
    t=$(now)
    "$nibble" run "$model" "hello there" --raw --max-tokens 1 --temperature 0 -q >/dev/null
    since "$t" >>"$tmp/run"
    touch_memory
    t=$(now)
    "$nibble" serve "$model" --port $port -q >/dev/null 2>"$tmp/serve.err" &
    pid=$!
    until curl -sf -o /dev/null "http://127.0.0.1:$port/health"; do
        kill -0 $pid 2>/dev/null || { cat "$tmp/serve.err" >&2; exit 1; }
        sleep 0.01
    done
    since "$t" >>"$tmp/serve"
    awk '/VmHWM/ { print $2 * 1024 }' /proc/$pid/status >>"$tmp/peak"
    kill $pid
    wait $pid || true
    i=$((i + 1))
done
r=$(median "$tmp/read") a=$(median "$tmp/run") s=$(median "$tmp/serve") p=$(median "$tmp/peak")
echo "file $bytes bytes; medians of $rounds rounds"
echo "plain read            $r s"
echo "run to first token    $a s  $(echo "$a $r" | awk '{ printf "%.2f", $1 / $2 }') x read"
echo "serve to /health 200  $s s  $(echo "$s $r" | awk '{ printf "%.2f", $1 / $2 }') x read"
echo "peak of serve         $p bytes  $(echo "$p $bytes" | awk '{ printf "%.2f", $1 / $2 }') x file"
