# `nibble serve` and the system around it: a log nobody reads, few resources, kills, what it leaves on disk (hardening 7, 9, 10).
set -eu
command -v curl >/dev/null || { echo "skipped: curl is not installed"; exit 77; }
model=models/pemberley-4m
pid=
reader=
trap '[ -z "$pid" ] || kill -9 $pid 2>/dev/null || true; [ -z "$reader" ] || kill -9 $reader 2>/dev/null || true' EXIT

fail() {
    echo "FAIL $*" >&2
    [ ! -s "$TMP/body" ] || head -c 2000 "$TMP/body" >&2
    [ ! -f "$TMP/err" ] || cat "$TMP/err" >&2
    exit 1
}
# start OPTIONS...: a server under $limits, on a free port unless one is given; $url is where it is.
limits=:
start() {
    rm -f "$TMP/err" # the words waited for must be this server's
    (eval "$limits"; exec "$NIBBLE" serve $model --port 0 --max-model-len 128 --kv-cache 8M "$@") >"$TMP/out" 2>"$TMP/err" &
    pid=$!
    until grep -qs 'is ready at' "$TMP/err"; do
        kill -0 $pid 2>/dev/null || fail "start ($limits) $*: the server ended"
        sleep 0.02
    done
    url=$(sed -n 's/.*is ready at \([^ ]*\).*/\1/p' "$TMP/err")
}
# ended CODE: wait for the server's end
ended() {
    rc=0
    wait $pid || rc=$?
    pid=
    [ $rc -eq "$1" ] || fail "exit $rc, want $1"
}
ask() { # BODY [curl options]: the status of an answer to it, or to a short one
    data=${1:-'{"prompt":"It is","max_tokens":2}'}
    [ $# -eq 0 ] || shift
    curl -sS -o "$TMP/body" -w '%{http_code}' -H 'Content-Type: application/json' --data-binary "$data" "$@" "$url/v1/completions"
}
get() { curl -sS -o "$TMP/body" -w '%{http_code}' "$url$1"; }

# PC-11: no core dumps, no file open for writing but the three it was given; OV-15: figures, without a word of a prompt.
start --api-key some-key
[ "$(ask "" -H 'Authorization: Bearer some-key')" = 200 ] || fail "one answer"
grep -q '^Max core file size *0 *0 ' /proc/$pid/limits || fail "PC-11: core dumps are on"
inherited=$(for fd in /proc/$$/fd/*; do readlink "$fd" || true; done)
for fd in /proc/$pid/fd/*; do
    target=$(readlink "$fd" || true)
    ! printf '%s\n' "$inherited" | grep -qxF -- "$target" || continue
    case $target in
    "" | "$TMP/out" | "$TMP/err" | socket:* | pipe:* | anon_inode:* | /dev/*) ;;
    *) [ "$(sed -n 's/^flags:.*\(.\)$/\1/p' "/proc/$pid/fdinfo/${fd##*/}")" = 0 ] || fail "PC-11: $target is open for writing" ;;
    esac
done
[ "$(get /metrics)" = 401 ] || fail "OV-15: the figures need a key"
curl -sS -H 'Authorization: Bearer some-key' "$url/metrics" >"$TMP/body"
for name in vllm:num_requests_running vllm:num_requests_waiting vllm:kv_cache_usage_perc nibble:numeric_errors_total nibble:engine_silence_seconds; do
    grep -q "^$name{" "$TMP/body" || fail "OV-15: no $name"
done
[ "$(ask '{"prompt":"Lydia","temperature":9}' -H 'Authorization: Bearer some-key')" = 400 ] || fail "a refusal"
curl -sS -H 'Authorization: Bearer some-key' "$url/metrics" >"$TMP/body"
grep -q '^nibble:requests_rejected_total{.*code="inval' "$TMP/body" || fail "OV-15: refusals are not counted"
! grep -q 'Lydia\|It is' "$TMP/body" "$TMP/err" || fail "OV-15: words of a prompt"
kill -TERM $pid
ended 0
echo "ok PC-11, OV-15 nothing on disk, figures without words"

# MM-05, MM-06: no locked memory, small stacks; stacks of its own threads are of one size.
limits='ulimit -l 0 2>/dev/null; ulimit -s 256'
start
limits=:
[ "$(ask)" = 200 ] && [ "$(ask '{"prompt":"It is","guided_json":{"type":"object","properties":{"a":{"type":"string"}}}}')" = 200 ] || fail "MM-06"
kill -TERM $pid
ended 0
echo "ok MM-05, MM-06 small stacks, no locked memory"

# MM-04: an address space that is enough, and one that is not: a sentence, no crash.
rc=0
(ulimit -v 2000000; exec "$NIBBLE" serve $model --port 0 --max-model-len 128 --kv-cache 3G) >"$TMP/out" 2>"$TMP/err" || rc=$?
if grep -q 'AddressSanitizer\|shadow memory' "$TMP/err"; then
    echo "skipped MM-04: a checked build needs terabytes of addresses"
else
    [ $rc -eq 9 ] && grep -q '^nibble: error: mem\.' "$TMP/err" || fail "MM-04: exit $rc"
    limits='ulimit -v 2000000'
    start
    limits=:
    [ "$(ask)" = 200 ] || fail "MM-04"
    kill -TERM $pid
    ended 0
    echo "ok MM-04 address space"
fi

# MM-08: killed, and started again at the same place.
start --host "unix:$TMP/socket"
rc=0
"$NIBBLE" serve $model --host "unix:$TMP/socket" >"$TMP/out" 2>"$TMP/err2" || rc=$?
[ $rc -eq 13 ] || fail "HT-32: two servers at one socket"
kill -KILL $pid
ended 137
[ -S "$TMP/socket" ] || fail "MM-08: the kill left no socket"
start --host "unix:$TMP/socket"
status=$(curl -sS -o "$TMP/body" -w '%{http_code}' --unix-socket "$TMP/socket" http://localhost/health)
[ "$status" = 200 ] || fail "MM-08: $status"
kill -TERM $pid
ended 0
[ ! -e "$TMP/socket" ] || fail "MM-08: the socket stays behind"
start
port=${url##*:}
kill -KILL $pid
ended 137
start --port "$port"
kill -TERM $pid
ended 0
echo "ok MM-08 killed and started again"

# A log that nobody reads: the pipe is full, lines are lost, the server is not.
mkfifo "$TMP/fifo"
(exec <"$TMP/fifo"; while read -r line; do case $line in *curl*) break ;; *ready*) echo "$line" >"$TMP/err" ;; esac; done; exec sleep 600) >/dev/null 2>&1 &
reader=$!
rm -f "$TMP/err"
"$NIBBLE" serve $model --port 0 --max-model-len 128 --kv-cache 8M >"$TMP/out" 2>"$TMP/fifo" &
pid=$!
until [ -s "$TMP/err" ]; do
    kill -0 $pid 2>/dev/null || fail "the server ended"
    sleep 0.02
done
url=$(sed -n 's/.*is ready at \([^ ]*\).*/\1/p' "$TMP/err")
sleep 0.2
dd if=/dev/zero of="$TMP/fifo" bs=1 count=70000 oflag=nonblock 2>/dev/null || true # until it is full
[ "$(ask)" = 200 ] && [ "$(ask)" = 200 ] || fail "a full log"
kill -TERM $pid
ended 0
kill $reader
wait $reader 2>/dev/null || true
reader=
echo "ok a log that nobody reads"

# OV-09, OV-10, OV-08: the engine's thread stops in the middle: not well; then exit 70 with --watchdog, or, on SIGTERM, 143 after the drain.
for way in watchdog TERM; do
    if [ $way = watchdog ]; then more=--watchdog; else more=--drain-seconds=1; fi
    start --stall-seconds 1 $more
    : >"$TMP/frozen"
    "${NB_FREEZE:-freeze}" $pid nb-engine >"$TMP/frozen" 2>/dev/null &
    reader=$!
    until [ -s "$TMP/frozen" ]; do
        if ! kill -0 $reader 2>/dev/null; then
            rc=0
            wait $reader || rc=$?
            reader=
            [ $rc -eq 77 ] || [ $rc -eq 127 ] || fail "freeze: exit $rc"
            echo "skipped OV-10: no thread may be stopped here"
            kill -KILL $pid
            ended 137
            exit 0
        fi
        sleep 0.02
    done
    (ask >/dev/null 2>&1 || true) &
    i=0
    while kill -0 $pid 2>/dev/null && [ "$(get /health 2>/dev/null || true)" = 200 ]; do
        i=$((i + 1))
        [ $i -lt 2000 ] || fail "OV-09: a hanging engine is well"
        sleep 0.02
    done
    [ $way = watchdog ] || kill -TERM $pid
    [ $way = watchdog ] && ended 70 || ended 143
    grep -q '^nibble: error: serve.stalled' "$TMP/err" && grep -q 'silent for' "$TMP/err" || fail "OV-10: no word of it"
    wait $reader || true
    reader=
    echo "ok OV-10 a hanging engine: $way"
done
