# `nibble serve` from outside, with curl: start, endpoints, streams, errors (AT-11), keys (AT-4), crowds, drain.
set -eu
command -v curl >/dev/null || { echo "skipped: curl is not installed"; exit 77; }
model=$TMP/model
cp -r models/pemberley-4m "$model"
cat >"$model/chat_template.jinja" <<'EOF'
{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}{{ raise_exception('only users speak here') }}{% endif %}{% endfor %}
EOF
prompt="It is a truth universally acknowledged"
want=", and it is not to be supposed that the living of the family,"
pid=
trap '[ -z "$pid" ] || kill -9 $pid 2>/dev/null || true' EXIT

fail() {
    echo "FAIL $*" >&2
    [ ! -s "$TMP/body" ] || head -c 2000 "$TMP/body" >&2
    cat "$TMP/err" >&2
    exit 1
}
# start OPTIONS...: a server on a free port; $url is where it is.
start() {
    rm -f "$TMP/err"
    "$NIBBLE" serve "$model" --port 0 "$@" >"$TMP/out" 2>"$TMP/err" &
    pid=$!
    until grep -qs 'is ready at' "$TMP/err"; do
        kill -0 $pid 2>/dev/null || fail "start: the server ended"
        sleep 0.02
    done
    url=$(sed -n 's/.*is ready at \(http[^ ]*\).*/\1/p' "$TMP/err")
}
# stop SIGNAL CODE
stop() {
    kill "-$1" $pid
    rc=0
    wait $pid || rc=$?
    pid=
    [ $rc -eq "$2" ] || fail "SIG$1: exit $rc, want $2"
}
# post PATH BODY [curl options]: $status, the body in $TMP/body, headers in $TMP/head
post() {
    path=$1 body=$2
    shift 2
    status=$(printf '%s' "$body" | curl -sS -o "$TMP/body" -D "$TMP/head" -w '%{http_code}' -H 'Content-Type: application/json' "$@" --data-binary @- "$url$path")
}
get() {
    path=$1
    shift
    status=$(curl -sS -o "$TMP/body" -D "$TMP/head" -w '%{http_code}' "$@" "$url$path")
}
has() { grep -qF -- "$1" "$TMP/body" || fail "$label: no $1"; }
# error LABEL STATUS TYPE CODE PARAM: the answer just received
error() {
    label=$1
    [ "$status" = "$2" ] || fail "$label: status $status, want $2"
    has "\"type\":\"$3\""
    has "\"code\":\"$4\""
    has "\"param\":$5"
    echo "ok AT-11 $label"
}

start --max-model-len 256 --max-seqs 8 --kv-cache 64M --log-format json
grep -q 'curl http' "$TMP/err" || fail "no curl line"
get /health
[ "$status" = 200 ] && [ ! -s "$TMP/body" ] || fail "health"
get /v1/models
label=models; has '"id":"model"'; has '"max_model_len":256'; has '"object":"list"'; has '"format":"dense","bits":16'
get /v1/models/model
[ "$status" = 200 ] || fail "one model"
for path in /version /load /props /metrics /live / /ui /models; do
    get $path
    [ "$status" = 200 ] || fail "$path: $status"
done
get /metrics
label=metrics
for name in num_requests_running kv_cache_usage_perc prefix_cache_queries_total prompt_tokens_total generation_tokens_total request_success_total \
    time_to_first_token_seconds_bucket inter_token_latency_seconds_count e2e_request_latency_seconds_sum request_queue_time_seconds_count \
    request_prefill_time_seconds_sum request_decode_time_seconds_sum request_max_num_generation_tokens_sum iteration_tokens_total_count \
    request_prompt_tokens_bucket request_generation_tokens_bucket; do
    has "vllm:$name{"
done
echo "ok endpoints that tell about the server (AT-14 names)"

# The same text as `nibble run`, at once, in a stream, and from a chat.
ask="{\"prompt\":\"$prompt\",\"max_tokens\":16,\"temperature\":0"
post /v1/completions "$ask}"
label="completion"; has "\"text\":\"$want\""; has '"finish_reason":"length"'; has '"completion_tokens":16'
post /v1/completions "$ask,\"stream\":true,\"stream_options\":{\"include_usage\":true}}" -N
grep -qi '^content-type: text/event-stream' "$TMP/head" || fail "stream: type"
got=$(sed -n 's/^data: .*"text":"\([^"]*\)".*/\1/p' "$TMP/body" | tr -d '\n')
[ "$got" = "$want" ] || fail "stream: $got"
tail -n 2 "$TMP/body" | grep -q '^data: \[DONE\]$' || fail "stream: no end"
grep -qi '^openai-processing-ms: [0-9]' "$TMP/head" || fail "API-6: no processing time"
label="usage in a stream"; has '"choices":[],"usage":{"prompt_tokens":'; has '"usage":null'
post /v1/chat/completions "{\"messages\":[{\"role\":\"user\",\"content\":\"$prompt\"}],\"max_tokens\":16,\"temperature\":0}"
label="chat"; has "\"content\":\"$want\""; has '"object":"chat.completion"'; has '"refusal":null'
post /v1/chat/completions "{\"messages\":[{\"role\":\"user\",\"content\":\"$prompt\"}],\"max_tokens\":16,\"temperature\":0,\"stream\":true}" -N
got=$(sed -n 's/^data: .*"delta":{"content":"\([^"]*\)"}.*/\1/p' "$TMP/body" | tr -d '\n')
[ "$got" = "$want" ] || fail "chat stream: $got"
label="role first"; head -n 1 "$TMP/body" | grep -q '"delta":{"role":"assistant","content":""}' || fail "$label"
echo "ok the same text in every form (AT-7)"

# Log-probabilities: the token of the text is always told (SMP-8), others by name.
post /v1/completions "$ask,\"logprobs\":0}"
label="SMP-8 top_logprobs"; has '"top_logprobs":[{",":-'
post /v1/chat/completions "{\"messages\":[{\"role\":\"user\",\"content\":\"$prompt\"}],\"max_tokens\":1,\"temperature\":0,\"logprobs\":true,\"logprob_token_ids\":[5,7],\"return_tokens_as_token_ids\":true}"
for id in 5 7; do label="logprob_token_ids"; has "{\"token\":\"token_id:$id\","; done
# Two prompts: the cached tokens of both count.
post /reset_prefix_cache ''
twice="$prompt $prompt $prompt $prompt $prompt $prompt $prompt"
post /v1/completions "{\"prompt\":\"$twice\",\"max_tokens\":1}"
post /v1/completions "{\"prompt\":\"$twice\",\"max_tokens\":1}"
one=$(sed -n 's/.*"cached_tokens":\([0-9]*\)}.*/\1/p' "$TMP/body")
post /v1/completions "{\"prompt\":[\"$twice\",\"$twice\"],\"max_tokens\":1}"
label="cached tokens of two prompts"; [ "$one" -gt 0 ] || fail "$label"; has "{\"cached_tokens\":$((2 * one))}"; has '"preemptions":0'
post /v1/completions "{\"prompt\":\"$twice\",\"max_tokens\":2,\"stream\":true,\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true}}" -N
[ "$(grep -c "{\"cached_tokens\":$one}" "$TMP/body")" -ge 2 ] || fail "cached tokens in a stream"
echo "ok log-probabilities and usage"

# Stop strings, at every cut; the answer's end tells which.
i=3
while [ $i -lt 30 ]; do
    cut=$(printf %s "$want" | cut -c$i-$((i + 4)))
    before=$(printf %s "$want" | awk -v s="$cut" '{ print substr($0, 1, index($0, s) - 1) }')
    post /v1/completions "$ask,\"stop\":[\"$cut\",\"zzz\"]}"
    label="stop at $i"; has "\"text\":\"$before\""; has '"finish_reason":"stop"'; has "\"stop_reason\":\"$cut\""
    post /v1/completions "$ask,\"stop\":\"$cut\",\"stream\":true}" -N
    got=$(sed -n 's/^data: .*"text":"\([^"]*\)".*/\1/p' "$TMP/body" | tr -d '\n')
    [ "$got" = "$before" ] || fail "$label in a stream: $got"
    i=$((i + 7))
done
echo "ok stop strings (RQ-21, DET-3)"

# Everybody at once gets what one alone gets (AT-3 from outside).
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
    n=$((4 + i))
    printf '{"prompt":"%s","max_tokens":%d,"temperature":0}' "$prompt" $n |
        curl -sS -H 'Content-Type: application/json' --data-binary @- "$url/v1/completions" >"$TMP/crowd.$i" &
    crowd="${crowd:-} $!"
done
# shellcheck disable=SC2086
wait $crowd
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
    text=$(sed -n 's/.*"text":"\([^"]*\)".*/\1/p' "$TMP/crowd.$i")
    case $want in "$text"*) [ -n "$text" ] ;; *) case $text in "$want"*) ;; *) fail "crowd $i: $text" ;; esac ;; esac
done
echo "ok AT-3 the same answer in a crowd"

post /tokenize "{\"prompt\":\"$prompt\"}"
ids=$(sed -n 's/.*"tokens":\(\[[0-9,]*\]\).*/\1/p' "$TMP/body")
post /detokenize "{\"tokens\":$ids}"
label="tokenize and back"; has "$prompt"
post /apply-template '{"messages":[{"role":"user","content":"abc"}]}'
label="template"; has 'abc"}'
echo "ok tokenize, detokenize, apply-template"

# AT-11: one request per row of the table.
t=invalid_request_error
post /v1/chat/completions '{"messages":'; error "bad JSON" 400 $t invalid_json null
post /v1/chat/completions '{"messages":"x"}'; error "wrong type" 400 $t invalid_type '"messages"'
post /v1/chat/completions '{"model":"model"}'; error "missing" 400 $t missing_required_parameter '"messages"'
post /v1/completions "$ask,\"top_p\":2}"; error "out of range" 400 $t invalid_value '"top_p"'
post /v1/completions "$ask,\"stream_options\":{}}"; error "options without stream" 400 $t invalid_value '"stream_options"'
post /v1/completions '{"prompt":"a","max_tokens":256}'; error "answer over the context" 400 $t context_length_exceeded '"max_tokens"'
long=$(awk 'BEGIN { for (i = 0; i < 400; i++) printf "truth " }')
post /v1/completions "{\"prompt\":\"$long\"}"; error "RQ-07 prompt over the context" 400 $t context_length_exceeded '"prompt"'
post /v1/completions "{\"prompt\":[5$(printf ',5%.0s' $(seq 256))]}"; error "BB-18 one token over the context" 400 $t context_length_exceeded '"prompt"'
has "maximum context length is 256 tokens"; has "the prompt has 257"
post /v1/completions "$ask}"
label="BB-18 the next request"; has "\"text\":\"$want"
post /v1/chat/completions '{"messages":[]}'; error "nothing asked" 400 $t empty_prompt '"messages"'
post /v1/chat/completions '{"messages":[{"role":"system","content":"x"}]}'; error "template refuses" 400 $t template_error '"messages"'
label="its words"; has "only users speak here"
post /v1/chat/completions '{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://192.0.2.1/"}}]}]}'
error "HT-29 image" 400 $t unsupported_content '"messages[0].content[0]"'
post /v1/completions "$ask,\"model\":\"other\"}"; error "unknown model" 404 $t model_not_found '"model"'
get /v1/nothing; error "unknown path" 404 $t not_found null
get /v1/models/other; error "unknown model by path" 404 $t model_not_found '"model"'
get //v1/models; error "HT-15 two slashes" 404 $t not_found null
get /v1/completions; error "wrong method" 405 $t method_not_allowed null
grep -qi '^allow: POST, OPTIONS' "$TMP/head" || fail "no Allow"
post /v1/completions "$ask}" -H 'Content-Type: text/plain'; error "HT-17 media type" 415 $t unsupported_media_type null
post /v1/completions "$ask}" -H 'Content-Encoding: gzip'; error "HT-17 coded" 415 $t unsupported_media_type null
post /v1/completions "$ask}" -H 'Origin: http://evil.example'; error "HT-25 origin" 403 permission_error forbidden null
post /v1/completions "$ask}" -H 'Host: evil.example'; error "HT-26 host" 403 permission_error forbidden null
get / -X OPTIONS -H 'Origin: http://localhost:3000'
[ "$status" = 204 ] || fail "preflight: $status"
get /v1/models -H 'X-Request-Id: mine-1'
grep -qi '^x-request-id: mine-1' "$TMP/head" || fail "request id"
get /v1/models -H 'X-Request-Id: bad id'
! grep -qi '^x-request-id: bad' "$TMP/head" || fail "HT-24 hostile id"
status=$(curl -sS -I -o "$TMP/body" -w '%{http_code}' "$url/v1/models")
[ "$status" = 200 ] || fail "HEAD: $status"
echo "ok HT-16, HT-24, HT-25"

# A client that leaves: its request ends, the others go on (AT-8), nothing stays behind.
printf '{"prompt":"%s","max_tokens":200,"temperature":0,"ignore_eos":true,"stream":true}' "$prompt" >"$TMP/long"
left() { get /metrics; sed -n 's/^vllm:request_success_total{.*finished_reason="abort"} //p' "$TMP/body"; }
before=$(left)
curl -sN -H 'Content-Type: application/json' --data-binary @"$TMP/long" "$url/v1/completions" | head -c 40 >/dev/null || true
curl -s -m 0.2 -H 'Content-Type: application/json' -d '{"prompt":"It","max_tokens":200,"ignore_eos":true,"n":4}' "$url/v1/completions" >/dev/null || true
i=0
until get /load && grep -q '"queued":0,"running":0,"kv_usage":0' "$TMP/body"; do
    i=$((i + 1))
    [ $i -lt 300 ] || fail "AT-8: something still runs"
    sleep 0.05
done
[ "$(left)" -gt "$before" ] || fail "AT-8: nothing was cut short"
echo "ok AT-8 clients that leave"
post /reset_prefix_cache ''
label="reset"; has '"dropped":'
post /abort '{"all":true}'
label="abort"; has '"aborted":0'
grep -q '"level":"info","message":"cmpl-' "$TMP/err" || fail "OV-16: no line per request"
stop TERM 0
echo "ok OV-08 drained with nothing to do"

# Keys: everything but health needs one; tenants do not share cached prompts (AT-4, PC-03).
start --api-key first-key --api-key second-key --admin-key boss --max-model-len 256 --kv-cache 64M
get /health; [ "$status" = 200 ] || fail "health needs no key"
get /v1/models; error "HT-23 no key" 401 authentication_error invalid_api_key null
grep -qi '^www-authenticate: Bearer' "$TMP/head" || fail "no challenge"
get /nothing; error "HT-15 unknown path without a key" 401 authentication_error invalid_api_key null
get /metrics; error "metrics without a key" 401 authentication_error invalid_api_key null
get /v1/models -H 'Authorization: Bearer wrong'; error "HT-23 wrong key" 401 authentication_error invalid_api_key null
get /v1/models -H 'Authorization: Bearer first-key' -H 'Authorization: Bearer first-key'; error "HT-23 two keys" 401 authentication_error invalid_api_key null
get /v1/models -H 'X-Api-Key: second-key'; [ "$status" = 200 ] || fail "X-Api-Key: $status"
post /reset_prefix_cache '' -H 'Authorization: Bearer first-key'; error "admin path with a plain key" 403 permission_error forbidden null
post /reset_prefix_cache '' -H 'Authorization: Bearer boss'; [ "$status" = 200 ] || fail "admin key: $status"
# PC-12: without an admin key, a key ends only its own requests.
start_two() { # "id of key one's request" in $TMP/id
    printf '{"prompt":"%s","max_tokens":200,"temperature":0,"ignore_eos":true,"stream":true}' "$prompt" |
        curl -sSN -H 'Authorization: Bearer first-key' -H 'X-Request-Id: mine' -H 'Content-Type: application/json' --data-binary @- "$url/v1/completions" >"$TMP/own" &
    own=$!
    until grep -qs 'data: ' "$TMP/own"; do sleep 0.01; done
}
text=$(awk 'BEGIN { for (i = 0; i < 25; i++) printf "It is a truth " }')
cached() { # key: cached tokens of the prompt
    post /v1/completions "{\"prompt\":\"$text\",\"max_tokens\":1}" -H "Authorization: Bearer $1"
    sed -n 's/.*"prompt_tokens_details":{"cached_tokens":\([0-9]*\)}.*/\1/p' "$TMP/body"
}
[ "$(cached first-key)" = 0 ] && [ "$(cached first-key)" -gt 0 ] && [ "$(cached second-key)" = 0 ] && [ "$(cached second-key)" -gt 0 ] || fail "AT-4 tenants"
echo "ok AT-4 tenants do not share"

stop TERM 0
start --api-key first-key --api-key second-key --max-model-len 256 --kv-cache 64M
start_two
post /abort '{"request_id":"cmpl-mine"}' -H 'Authorization: Bearer second-key'
label="PC-12 another's request"; has '"aborted":0'
post /abort '{"all":true}' -H 'Authorization: Bearer second-key'
has '"aborted":0'
post /abort '{"all":true}'
[ "$status" = 401 ] || fail "PC-12: abort without a key"
wait $own
grep -q '"finish_reason":"length"' "$TMP/own" || fail "PC-12: another key ended a request"
echo "ok PC-12 nobody ends another's request"

# Draining: what runs ends, new requests are refused, the exit code tells.
printf '{"prompt":"%s","max_tokens":200,"temperature":0,"ignore_eos":true}' "$prompt" >"$TMP/long"
curl -sS -H 'Authorization: Bearer first-key' -H 'Content-Type: application/json' --data-binary @"$TMP/long" "$url/v1/completions" >"$TMP/last" &
last=$!
until get /load -H 'Authorization: Bearer first-key' && grep -q '"running":1' "$TMP/body"; do kill -0 $last 2>/dev/null || break; done
stop TERM 0
wait $last
grep -q '"finish_reason":"length"' "$TMP/last" || fail "OV-08: the last answer was cut"
echo "ok OV-08 drained"

# More than the queue holds: what is accepted is answered, the rest is told when to come again (AT-10, OV-01).
start --max-model-len 256 --max-seqs 1 --max-queued 2 --kv-cache 16M
crowd=
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
    curl -sS -o "$TMP/full.$i" -D "$TMP/full.head.$i" -w '%{http_code}\n' -H 'Content-Type: application/json' \
        -d "{\"prompt\":\"$prompt\",\"max_tokens\":100,\"temperature\":0,\"ignore_eos\":true}" "$url/v1/completions" >"$TMP/full.status.$i" &
    crowd="$crowd $!"
done
# shellcheck disable=SC2086
wait $crowd
ok=0 full=0
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
    case $(cat "$TMP/full.status.$i") in
    200) ok=$((ok + 1)); grep -q '"completion_tokens":100' "$TMP/full.$i" || fail "AT-10: an accepted answer is short" ;;
    429) full=$((full + 1)); grep -q '"code":"queue_full"' "$TMP/full.$i" && grep -qi '^retry-after: [1-9]' "$TMP/full.head.$i" &&
        grep -qi '^retry-after-ms: [1-9]' "$TMP/full.head.$i" || fail "AT-10: 429 without Retry-After" ;;
    *) fail "AT-10: status $(cat "$TMP/full.status.$i")" ;;
    esac
done
[ $ok -ge 1 ] && [ $full -ge 1 ] || fail "AT-10: $ok answered, $full refused"
get /metrics
label="rejects are counted"; has 'nibble:requests_rejected_total{engine="0",model_name="model",code="queue_full"}'
stop TERM 0
echo "ok AT-10 overload"

# RAD-3, 9.7: the options of those who come from vLLM.
start --max-model-len 256 --prefix-cache-policy lfu --error-style vllm --api-key k
vllm_error() { # LABEL STATUS TYPE: the answer just received
    label=$1
    [ "$status" = "$2" ] || fail "$label: status $status, want $2"
    has "\"type\":\"$3\""
    has "\"code\":$2}"
}
auth="Authorization: Bearer k"
post /v1/completions "{\"prompt\":\"$prompt\",\"max_tokens\":16,\"temperature\":0}" -H "$auth"
label="lfu"; [ "$status" = 200 ] || fail "lfu: $status"; has '"text":", and it is'
post /v1/completions '{"prompt":5}' -H "$auth"
vllm_error "value" 400 BadRequestError
post /v1/completions '{"prompt":"a","model":"other"}' -H "$auth"
vllm_error "model" 404 NotFoundError
post /v1/completions '{"prompt":"a"}'
vllm_error "key" 401 Unauthorized
get "/$(printf '%09000d' 0)"
vllm_error "long path" 414 "URI Too Long"
stop TERM 0
echo "ok 9.7 error style"

# Starts that fail say why and never listen (OV-12, HT-27, HT-32).
code() { # LABEL CODE CLASS options...
    label=$1 want_rc=$2 class=$3
    shift 3
    rc=0
    "$NIBBLE" serve "$@" >"$TMP/out" 2>"$TMP/err" || rc=$?
    [ $rc -eq "$want_rc" ] && grep -q "^nibble: error: $class" "$TMP/err" || fail "$label: exit $rc"
    echo "ok $label"
}
code "HT-27 other machines without a key" 2 net.unsafe_bind "$model" --host 0.0.0.0
code "HT-32 address absent" 13 net.bind "$model" --host 192.0.2.1 --api-key x
code "OV-12 no model" 3 io.not_found "$TMP/nothing" --port 0
code "unknown policy" 2 arg.value "$model" --schedule-policy best
code "unknown order of eviction" 2 arg.value "$model" --prefix-cache-policy best
code "unknown error style" 2 arg.value "$model" --error-style best
code "no size" 2 arg.value "$model" --port 0 --kv-cache lots

# AT-15: what `nibble plan` says is what the server then uses: weights and cache within 1 %, workspace within 10 %.
planned() { sed -n "s/^ *\"$1\": \([0-9.]*\),*$/\1/p" "$TMP/plan.json" | head -n 1; }
used() { sed -n "s/^nibble:weights_bytes{.*kind=\"$1\"} //p" "$TMP/body"; }
close() { # LABEL PLANNED USED PERCENT
    awk -v p="$2" -v u="$3" -v m="$4" 'BEGIN { exit !(p > 0 && u > 0 && (p > u ? p - u : u - p) <= u * m / 100) }' || fail "AT-15 $1: planned $2, used $3"
}
for size in "512 16" "1024 64" "1024 512"; do
    context=${size% *} seqs=${size#* }
    start --max-model-len "$context" --max-seqs "$seqs" --max-batched-tokens 1024
    get /metrics
    "$NIBBLE" plan "$model" --context "$context" --max-seqs "$seqs" --max-batched-tokens 1024 --json >"$TMP/plan.json"
    blocks=$(sed -n 's/.*num_gpu_blocks="\([0-9]*\)".*/\1/p' "$TMP/body")
    close weights "$(planned weights)" "$(used packed)" 1
    close cache "$(planned kv_bytes_per_token | awk -v b="$blocks" '{ print $1 * 32 * (b + 1) }')" "$(used kv_pool)" 1
    close "workspace of $size" "$(planned workspace)" "$(used workspace)" 10
    stop TERM 0
done
echo "ok AT-15 plan and serve agree"
start --max-model-len 64 --kv-cache 16M --api-key some-key --metrics-open --metrics-prefix mine
get /metrics
[ "$status" = 200 ] || fail "--metrics-open: $status"
sed -n 's/^\(# .... \)*vllm:/\1mine:/p' "$TMP/body" >"$TMP/theirs"
grep -E '^(# .... )?mine:' "$TMP/body" | diff "$TMP/theirs" - >"$TMP/diff" && [ -s "$TMP/theirs" ] || fail "MET-1: --metrics-prefix"
echo "ok MET-1 a second set of metrics"
get /load; error "only the metrics are open" 401 authentication_error invalid_api_key null
code "HT-32 port in use" 13 net.bind "$model" --port "${url##*:}"
stop INT 0

# OV-01: the queue is bounded by prompt tokens, too; JSON may be without whitespace (GRM-5); an event of a stream may have several tokens (DET-6).
start --max-model-len 256 --max-seqs 1 --kv-cache 16M --max-queued-tokens 40 --stream-interval 5 --json-compact
post /v1/completions '{"prompt":"Anne","max_tokens":60,"temperature":0,"structured_outputs":{"json":{"type":"object","properties":{"n":{"enum":[7]},"m":{"enum":[[1,2]]}},"required":["n","m"],"additionalProperties":false}}}'
label="GRM-5 compact"; has '"text":"{\"n\":7,\"m\":[1,2]}"'
post /v1/completions "$ask,\"stream\":true}" -N
got=$(sed -n 's/^data: .*"text":"\([^"]*\)".*/\1/p' "$TMP/body" | tr -d '\n')
[ "$got" = "$want" ] || fail "DET-6: $got"
[ "$(grep -c '^data: {' "$TMP/body")" = 4 ] || fail "DET-6: $(grep -c '^data: {' "$TMP/body") events of 16 tokens, not 1, 5, 5 and 5"
crowd=
for i in 1 2 3 4 5 6 7 8; do
    curl -sS -o "$TMP/full.$i" -w '%{http_code}\n' -H 'Content-Type: application/json' -d "{\"prompt\":\"$prompt $prompt\",\"max_tokens\":60,\"ignore_eos\":true}" \
        "$url/v1/completions" >"$TMP/full.status.$i" &
    crowd="$crowd $!"
done
# shellcheck disable=SC2086
wait $crowd
cat "$TMP"/full.status.[1-8] | sort | uniq -c >"$TMP/body"
grep -q ' 200$' "$TMP/body" && grep -q ' 429$' "$TMP/body" || fail "OV-01: prompt tokens that wait"
stop TERM 0
echo "ok OV-01 by tokens, DET-6"

# JT-13: a request brings its template only where the operator allows it, and then within the limits of any other.
start --max-model-len 64 --kv-cache 16M
post /v1/chat/completions '{"messages":[{"role":"user","content":"x"}],"max_tokens":1,"chat_template":"Anne"}'
error "JT-13 not allowed" 400 invalid_request_error unsupported_parameter '"chat_template"'
stop TERM 0
start --max-model-len 64 --kv-cache 16M --trust-request-template
post /v1/chat/completions '{"messages":[{"role":"user","content":"x"}],"max_tokens":1,"chat_template":"Anne {{ messages[0].content }}"}'
[ "$status" = 200 ] || fail "JT-13 allowed: $status"
post /v1/chat/completions '{"messages":[{"role":"user","content":"x"}],"max_tokens":1,"chat_template":"{% for i in range(10**9) %}x{% endfor %}"}'
error "JT-13 without end" 400 invalid_request_error template_limit '"messages"'
post /v1/chat/completions '{"messages":[{"role":"user","content":"x"}],"max_tokens":1,"chat_template":"{% if %}"}'
[ "$status" = 400 ] || fail "JT-13 broken: $status"
stop TERM 0

# AT-16, KV-27: prompts stay cached over a restart; a damaged file, or another model, is a miss; the text is the same.
disk="--max-model-len 256 --kv-cache 16M --prefix-cache-dir $TMP/kept --prefix-cache-disk 64M"
long="$prompt, that a single man in possession of a good fortune, must be in want of a wife. However little known the feelings"
long_answer() { # the text, and how many tokens of the prompt were cached
    post /v1/completions "{\"prompt\":\"$long\",\"max_tokens\":16,\"temperature\":0}"
    text=$(sed -n 's/.*"text":"\([^"]*\)".*/\1/p' "$TMP/body")
    cached=$(sed -n 's/.*"prompt_tokens_details":{"cached_tokens":\([0-9]*\)}.*/\1/p' "$TMP/body")
}
# shellcheck disable=SC2086
restart() { # OPTIONS...: ends the server, if any, and starts it with the directory
    [ -z "$pid" ] || stop TERM 0
    start $disk "$@"
}
restart
long_answer
first=$text; [ -n "$first" ] && [ "$cached" = 0 ] || fail "AT-16: first: $cached cached: $text"
restart
long_answer
[ "$text" = "$first" ] && [ "$cached" -ge 32 ] || fail "AT-16: after a restart: $cached cached: $text"
[ -z "$(find "$TMP/kept" -type f ! -perm 600)" ] || fail "AT-16: others may read the files"
stop TERM 0
for file in "$TMP"/kept/*.kv; do printf x | dd of="$file" bs=1 seek=5000 conv=notrunc 2>/dev/null; done
restart
long_answer
[ "$text" = "$first" ] && [ "$cached" = 0 ] || fail "AT-16: damaged: $cached cached: $text"
restart --kv q8
long_answer
[ "$cached" = 0 ] || fail "AT-16: other keys: $cached cached"
restart
long_answer
[ "$text" = "$first" ] && [ "$cached" -ge 32 ] || fail "AT-16: written again: $cached cached: $text"
post /reset_prefix_cache ''
[ -z "$(find "$TMP/kept" -name '*.kv')" ] || fail "AT-16: reset leaves files"
long_answer
rm -r "$TMP/kept"
stop TERM 0
grep -q 'the prefix cache is not kept' "$TMP/err" || fail "AT-16: no warning"
rc=0
"$NIBBLE" serve "$model" --prefix-cache-dir "$TMP/kept" 2>"$TMP/err" || rc=$?
[ $rc -eq 2 ] && grep -q 'given together' "$TMP/err" || fail "KV-27: half of the options: $rc"
echo "ok AT-16 disk tier"
