#!/bin/sh
# Every endpoint of a server with models/pemberley-4m, with curl, compared with the answers in transcripts.txt.
# usage: transcripts.sh ROOT_URL [--record]      (ROOT_URL such as http://127.0.0.1:8000; the server is fresh and called "pemberley")
#
# A transcript is a line "> METHOD PATH [BODY]" and the answer below it: status, media type, body. What differs from run to run stands as
# a word in capitals: ids, times, the fingerprint, the version. Bits do not depend on the machine, so the text is compared as it is.
set -eu
url=$1
want=$(dirname "$0")/transcripts.txt
got=$(mktemp)
trap 'rm -f "$got" "$got".*' EXIT
plain() {
    sed -E -e 's/"(chatcmpl|cmpl|resp|msg|health|call)[-_][0-9A-Za-z]+"/"\1-ID"/g' -e 's/"id":"[0-9a-f]{32}"/"id":"ID"/g' \
        -e 's/"(created|created_at|completed_at)":[0-9]+/"\1":TIME/g' -e 's/"fp_[0-9a-f]+"/"FINGERPRINT"/g' -e 's/"seed":[0-9]+/"seed":SEED/g' \
        -e 's/"((queue|ttft|tpot)_ms|e2e_latency)":[0-9.e-]+/"\1":TIME/g' -e 's/"version":"[^"]*","commit":"[^"]*"/"version":VERSION/g' \
        -e 's/"(kernels?)":"[^"]*"/"\1":KERNEL/g' -e 's/"(server_load|queued|running|kv_usage|kv_cached|dropped)":[0-9.e-]+/"\1":N/g' \
        -e '/^(vllm|nibble|process|http)[a-z_:]*[{ ]/d'
}
grep '^> ' "$want" | while read -r _ method path body; do
    echo "> $method $path${body:+ $body}"
    printf %s "$body" | curl -sSN -X "$method" -H 'Content-Type: application/json' --data-binary @- -o "$got.body" -w '%{http_code} %{content_type}\n' "$url$path" || exit 1
    case $path in / | /ui) head -n 1 "$got.body" ;; *) cat "$got.body" ;; esac | plain
    echo
done >"$got"
if [ "${2:-}" = --record ]; then
    { head -n 1 "$want"; cat "$got"; } >"$got.new"
    cp "$got.new" "$want"
    exit
fi
sed 1d "$want" >"$got.want"
diff "$got.want" "$got" >"$got.diff" || { cat "$got.diff"; echo "not ok transcripts (< recorded, > now)"; exit 1; }
grep '^> ' "$got" | cut -c3- | cut -d' ' -f1,2 | sort | uniq -c | awk '{ print "ok", $2, $3, "x" $1 }'
