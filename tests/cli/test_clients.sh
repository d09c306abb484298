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

# AT-14: every series the board draws is there.
curl -sS "$url/metrics" | sed -nE 's/^([a-z0-9_:]+)[{ ].*/\1/p' | sort -u >"$TMP/have"
grep '"expr"' deploy/grafana.json | grep -oE '(vllm|nibble):[a-z0-9_]+|(http|process)_[a-z_]+' | sort -u >"$TMP/want"
[ "$(wc -l <"$TMP/want")" -ge 10 ] || { echo "FAIL the board names too few series"; exit 1; }
missing=$(comm -13 "$TMP/have" "$TMP/want")
[ -z "$missing" ] || { echo "FAIL AT-14: the board draws what is not told: $missing"; exit 1; }
echo "ok AT-14 $(wc -l <"$TMP/want") series of the board"
