# AT-12: clients of `nibble serve` that need no network: every endpoint as recorded, what Open WebUI sends, the board's metrics.
# The others are in tests/clients (make check CLIENTS=1).
set -eu
command -v curl >/dev/null || { echo "skipped: curl is not installed"; exit 77; }
model=$TMP/pemberley
cp -r models/pemberley-4m "$model"
cat >"$model/chat_template.jinja" <<'TEMPLATE'
{{ bos_token }}{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}
{% endfor %}
TEMPLATE
"$NIBBLE" serve "$model" --port 0 --no-request-log 2>"$TMP/err" &
pid=$!
trap 'kill $pid 2>/dev/null || true' EXIT
until grep -q 'is ready at' "$TMP/err"; do
    kill -0 $pid 2>/dev/null || { cat "$TMP/err"; exit 1; }
    sleep 0.05
done
url=$(sed -n 's/.*is ready at \(http[^ ]*\).*/\1/p' "$TMP/err")
tests/clients/transcripts.sh "$url"
if command -v python3 >/dev/null; then
    python3 tests/clients/webui_replay.py "$url/v1"
else
    echo "skipped: Open WebUI's requests (python3 is not installed)"
fi

# The load client: fields of the request, and a rising rate.
"$NIBBLE" bench serve --base-url "$url" --num-prompts 8 --input-len 8 --output-len 4 --top-p 0.9 --top-k 4 --min-p 0.01 --presence-penalty 0.5 \
    --ramp-up-strategy exponential --ramp-up-start-rps 50 --ramp-up-end-rps 200 --json -q >"$TMP/bench"
for want in '"completed": 8' '"total_output_tokens": 32' '"ramp_up_end_rps": 200'; do
    grep -q "$want" "$TMP/bench" || { cat "$TMP/bench"; echo "FAIL bench serve: no $want"; exit 1; }
done
if "$NIBBLE" bench serve --base-url "$url" --num-prompts 1 --input-len 8 --output-len 4 --top-p 0 --json -q >"$TMP/bench"; then
    echo "FAIL bench serve: top_p 0 was not sent"
    exit 1
fi
echo "ok bench serve: sampling, rising rate"

# AT-14: every series the board draws is there.
curl -sS "$url/metrics" | sed -nE 's/^([a-z0-9_:]+)[{ ].*/\1/p' | sort -u >"$TMP/have"
grep '"expr"' deploy/grafana.json | grep -oE '(vllm|nibble):[a-z0-9_]+|(http|process)_[a-z_]+' | sort -u >"$TMP/want"
[ "$(wc -l <"$TMP/want")" -ge 10 ] || { echo "FAIL the board names too few series"; exit 1; }
missing=$(comm -13 "$TMP/have" "$TMP/want")
[ -z "$missing" ] || { echo "FAIL AT-14: the board draws what is not told: $missing"; exit 1; }
echo "ok AT-14 $(wc -l <"$TMP/want") series of the board"
