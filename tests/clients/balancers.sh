#!/bin/sh
# Two replicas behind haproxy, nginx and vllm-router on loopback, with the files of deploy/ (only ports and paths differ): answers are the
# same as without, hashing on the prefix finds more in the cache than round robin, a replica that goes takes no request with it.
# usage: balancers.sh PATH_OF_NIBBLE MODEL [LOAD]      (LOAD: options of `nibble bench serve`)
# Exit 77: no balancer is installed (Debian: haproxy, nginx-light). VLLM_ROUTER=PROGRAM: also PyPI's vllm-router.
set -eu
nibble=$1 model=$2
load=${3:---num-prompts 96 --max-concurrency 8 --prefix-repetition-num-prefixes 12 --prefix-repetition-prefix-len 192 --prefix-repetition-suffix-len 16 --prefix-repetition-output-len 4}
PATH=$PATH:/usr/sbin
tmp=$(mktemp -d)
pids=
trap 'for p in $pids; do kill $p 2>/dev/null || true; done; wait 2>/dev/null; rm -rf "$tmp"' EXIT
fail() {
    echo "not ok $*"
    exit 1
}
# replica NAME PORT: sets $port, $pid
replica() {
    rm -f "$tmp/$1.err"
    "$nibble" serve "$model" --port "$2" --no-request-log 2>"$tmp/$1.err" &
    pid=$!
    pids="$pids $pid"
    until grep -qs 'is ready at' "$tmp/$1.err"; do
        kill -0 $pid 2>/dev/null || { cat "$tmp/$1.err"; fail "replica $1"; }
        sleep 0.05
    done
    port=$(sed -n 's/.*is ready at http:.*:\([0-9]*\).*/\1/p' "$tmp/$1.err")
}
value() { sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" "$2" | head -n 1; }
# share: prompt tokens of both replicas found in the cache, since the last reset
counters() {
    for p in $one $two; do curl -sS "http://127.0.0.1:$p/load"; echo; done |
        sed -n 's/.*"queried_tokens":\([0-9]*\),"hit_tokens":\([0-9]*\).*/\1 \2/p' | awk '{ q += $1; h += $2 } END { print q, h }'
}
# drive LABEL: the load through $front; sets $share (per cent)
drive() {
    for p in $one $two; do curl -sS -d '' "http://127.0.0.1:$p/reset_prefix_cache" >/dev/null; done
    before=$(counters)
    # shellcheck disable=SC2086
    "$nibble" bench serve --port "$front" --dataset-name prefix_repetition $load --json -q >"$tmp/result" || { cat "$tmp/result"; fail "$1: the load"; }
    [ "$(value failed "$tmp/result")" = 0 ] || { cat "$tmp/result"; fail "$1: requests failed"; }
    share=$(echo "$before $(counters)" | awk '{ printf "%.1f", 100 * ($4 - $2) / ($3 - $1) }')
    echo "ok $1: $share % of prompt tokens cached, ttft p50 $(value median_ttft_ms "$tmp/result" | cut -c1-6) ms, $(value output_throughput "$tmp/result" | cut -c1-6) tok/s"
}
# up: until $front answers
up() {
    i=0
    until curl -sf -o /dev/null "http://127.0.0.1:$front/health"; do
        i=$((i + 1))
        [ $i -lt 200 ] && kill -0 "$balancer" 2>/dev/null || { cat "$tmp/balancer.err"; fail "$1 does not answer"; }
        sleep 0.1
    done
}
# balancer NAME command...: in the background; ends with down
balancer() {
    name=$1
    shift
    "$@" >"$tmp/balancer.err" 2>&1 &
    balancer=$!
    pids="$pids $balancer"
    up "$name"
}
down() {
    kill "$balancer" 2>/dev/null || true
    wait "$balancer" 2>/dev/null || true
}
greater() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > b) }'; }
ask='{"prompt":"It is a truth","max_tokens":8,"temperature":0}'
text() { curl -sS -H 'Content-Type: application/json' -d "$ask" "http://127.0.0.1:$1/v1/completions" | sed -n 's/.*"text":"\([^"]*\)".*/\1/p'; }
# common NAME: what every balancer must do with the hash: answer, stream piece by piece, survive the end of a replica
common() {
    [ "$(text "$front")" = "$(text "$one")" ] && [ -n "$(text "$one")" ] || fail "$1: another answer"
    pieces=$(curl -sSN -H 'Content-Type: application/json' -d "${ask%\}},\"stream\":true}" "http://127.0.0.1:$front/v1/completions" | grep -c '^data: {')
    [ "$pieces" -ge 8 ] || fail "$1: $pieces events"
    echo "ok $1: the same answer, and as a stream"
}
# lose NAME: a replica drains and goes while requests come
lose() {
    replica three 0
    gone=$pid third=$port
    sed "s/127.0.0.1:$two/127.0.0.1:$third/" "$tmp/config" >"$tmp/config.lose"
    down
    balancer "$1" "$2" "$3" "$tmp/config.lose"
    # shellcheck disable=SC2086
    "$nibble" bench serve --port "$front" --dataset-name prefix_repetition $load --json -q >"$tmp/result" &
    bench=$!
    sleep 0.3
    kill "$gone"
    wait "$bench" || true
    [ "$(value failed "$tmp/result")" = 0 ] || { cat "$tmp/result"; fail "$1: requests failed while a replica left"; }
    echo "ok $1: a replica leaves, no request fails"
    down
}

found=
for program in haproxy nginx "${VLLM_ROUTER:-}"; do
    [ -n "$program" ] && command -v "$program" >/dev/null && found=1
done
[ -n "$found" ] || { echo "skipped: balancers (neither haproxy nor nginx is installed)"; exit 77; }
command -v curl >/dev/null || { echo "skipped: balancers (curl is not installed)"; exit 77; }
replica one 0
one=$port
replica two 0
two=$port
front=$((one > 40000 ? one - 20000 : one + 20000))

if command -v haproxy >/dev/null; then
    sed -e "s/127.0.0.1:8000/127.0.0.1:$front/" -e "s/127.0.0.1:8001/127.0.0.1:$one/" -e "s/127.0.0.1:8002/127.0.0.1:$two/" deploy/haproxy.cfg >"$tmp/config"
    sed 's/balance hash .*/balance roundrobin/' "$tmp/config" >"$tmp/config.rr"
    balancer haproxy haproxy -f "$tmp/config.rr"
    drive "haproxy, round robin"
    spread=$share
    down
    balancer haproxy haproxy -f "$tmp/config"
    common haproxy
    drive "haproxy, hash of the prefix"
    greater "$share" "$spread" || fail "haproxy: the hash finds no more than round robin"
    lose haproxy haproxy -f
else
    echo "skipped: haproxy is not installed"
fi

if command -v nginx >/dev/null; then
    { echo "daemon off; pid $tmp/nginx.pid; error_log stderr;"; sed -e "s/127.0.0.1:8000/127.0.0.1:$front/" -e "s/127.0.0.1:8001/127.0.0.1:$one/" \
        -e "s/127.0.0.1:8002/127.0.0.1:$two/" -e "s|^http {|http { access_log off; client_body_temp_path $tmp/body; proxy_temp_path $tmp/proxy; fastcgi_temp_path $tmp/f; uwsgi_temp_path $tmp/u; scgi_temp_path $tmp/s;|" deploy/nginx.conf; } >"$tmp/config"
    sed 's/^ *hash .*//' "$tmp/config" >"$tmp/config.rr"
    balancer nginx nginx -p "$tmp" -c "$tmp/config.rr"
    drive "nginx, round robin"
    spread=$share
    down
    balancer nginx nginx -p "$tmp" -c "$tmp/config"
    common nginx
    drive "nginx, hash of the prefix"
    greater "$share" "$spread" || fail "nginx: the hash finds no more than round robin"
    lose nginx nginx -c
else
    echo "skipped: nginx is not installed"
fi

if [ -n "${VLLM_ROUTER:-}" ]; then
    for policy in round_robin cache_aware; do
        balancer vllm-router "$VLLM_ROUTER" --host 127.0.0.1 --port "$front" --policy $policy --worker-urls "http://127.0.0.1:$one" "http://127.0.0.1:$two"
        common "vllm-router"
        drive "vllm-router, $policy"
        down
    done
else
    echo "skipped: vllm-router (set VLLM_ROUTER to the program of PyPI's package)"
fi
