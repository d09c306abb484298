#!/bin/sh
# Real clients, unmodified, against `nibble serve`. usage: run.sh PATH_OF_NIBBLE [MODEL]
# Packages go into build/clients, pinned here; without network or tools a client is skipped and says so. `make check CLIENTS=1`.
# SCREENSHOTS=FOLDER: pictures of the page. VLLM=PROGRAM is a `vllm` to take `vllm bench serve` from: its packages are gigabytes, they are not fetched here.
set -eu
cd "$(dirname "$0")/../.."
nibble=$1
work=$PWD/build/clients
mkdir -p "$work"
tmp=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill $pid 2>/dev/null || true; rm -rf "$tmp"' EXIT
if [ $# -gt 1 ]; then
    model=$2
else
    cp -r models/pemberley-4m "$tmp/pemberley"
    model=$tmp/pemberley
    cat >"$model/chat_template.jinja" <<'TEMPLATE'
{{ bos_token }}{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}
{% endfor %}
TEMPLATE
fi
"$nibble" serve "$model" --port 0 --no-request-log 2>"$tmp/err" &
pid=$!
until grep -q 'is ready at' "$tmp/err"; do
    kill -0 $pid 2>/dev/null || { cat "$tmp/err"; exit 1; }
    sleep 0.05
done
root=$(sed -n 's/.*is ready at \(http[^ ]*\).*/\1/p' "$tmp/err")
url=$root/v1
failed=0
client() { # NAME command...
    name=$1
    shift
    rc=0
    "$@" >"$tmp/$name.log" 2>&1 || rc=$?
    grep '^skipped' "$tmp/$name.log" || true
    if [ $rc -eq 77 ]; then
        return
    elif [ $rc -eq 0 ]; then
        echo "ok client $name: $(grep -c '^ok ' "$tmp/$name.log") checks"
    else
        failed=1
        cat "$tmp/$name.log"
        echo "not ok client $name"
    fi
}
if [ $# -gt 1 ]; then
    echo "skipped: transcripts (they are of models/pemberley-4m)"
elif ! command -v curl >/dev/null 2>&1; then
    echo "skipped: transcripts (curl is not installed)"
else
    client curl tests/clients/transcripts.sh "$root"
fi
# packages VENV REQUIREMENT...: sets $python to a Python that has them; false, and said, where it cannot be had
packages() {
    python=$work/$1/bin/python
    [ -x "$python" ] || python3 -m venv "$work/$1" >"$work/venv.log" 2>&1 || { echo "skipped: $1 (python3-venv is not installed)"; return 1; }
    name=$1
    shift
    timeout 600 "$python" -m pip install -q "$@" >"$work/pip.log" 2>&1 || { echo "skipped: $name ($(grep -v WARNING "$work/pip.log" | tail -n 1 | cut -c1-120))"; return 1; }
}
if command -v python3 >/dev/null 2>&1; then
    client open-webui python3 tests/clients/webui_replay.py "$url"
else
    echo "skipped: open-webui (python3 is not installed)"
fi
if packages venv openai==3.57.0 langchain-openai==1.7.4; then
    client openai-python "$python" tests/clients/openai_sdk.py "$url"
    client langchain "$python" tests/clients/langchain_chat.py "$url"
fi
if packages litellm litellm==1.106.12 mcp==2.3.0; then # LiteLLM imports mcp and pins an openai of its own
    client litellm "$python" tests/clients/litellm_client.py "$url"
fi
if packages schemathesis schemathesis==4.32.5; then # over a server of its own; EXAMPLES=20 for longer
    client schemathesis env EXAMPLES="${EXAMPLES:-1}" NIBBLE="$nibble" SCHEMATHESIS="$work/schemathesis/bin/schemathesis" tests/clients/schemathesis.sh
fi
if ! command -v npm >/dev/null 2>&1; then
    echo "skipped: Node clients (npm is not installed)"
elif ! (cd "$work" && cp ../../tests/clients/*.mjs ../../tests/clients/package.json . && timeout 300 npm install --silent --no-fund --no-audit >npm.log 2>&1); then
    echo "skipped: Node clients (their packages cannot be fetched)"
else
    client openai-node node "$work/openai_node.mjs" "$url"
    client ai-sdk node "$work/ai_sdk.mjs" "$url"
    client page node "$work/page.mjs" "$nibble" "$model" ${SCREENSHOTS:+"$SCREENSHOTS"}
fi
client vllm-bench tests/clients/vllm_bench.sh "$root" "$model"
client balancers tests/clients/balancers.sh "$nibble" "$model"
exit $failed
