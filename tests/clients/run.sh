#!/bin/sh
# Real clients, unmodified, against `nibble serve`. usage: run.sh PATH_OF_NIBBLE [MODEL]
# Packages go into build/clients, pinned here; without network or tools a client is skipped and says so. `make check CLIENTS=1`.
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
    cat >"$model/chat_template.jinja" <<'EOF'
{{ bos_token }}{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}
{% endfor %}
EOF
fi
"$nibble" serve "$model" --port 0 --no-request-log 2>"$tmp/err" &
pid=$!
until grep -q 'is ready at' "$tmp/err"; do
    kill -0 $pid 2>/dev/null || { cat "$tmp/err"; exit 1; }
    sleep 0.05
done
url=$(sed -n 's/.*is ready at \(http[^ ]*\).*/\1/p' "$tmp/err")/v1
failed=0
client() { # NAME command...
    name=$1
    shift
    if "$@" >"$tmp/$name.log" 2>&1; then
        echo "ok client $name: $(grep -c '^ok ' "$tmp/$name.log") checks"
    else
        failed=1
        cat "$tmp/$name.log"
        echo "not ok client $name"
    fi
}
python=$work/venv/bin/python
if [ ! -x "$python" ] && ! python3 -m venv "$work/venv" >"$work/venv.log" 2>&1; then
    echo "skipped: Python clients (python3-venv is not installed)"
elif ! timeout 600 "$python" -m pip install -q openai==3.57.0 langchain-openai==1.7.4 >"$work/pip.log" 2>&1; then
    echo "skipped: Python clients (their packages cannot be fetched)"
else
    client openai-python "$python" tests/clients/openai_sdk.py "$url"
    client langchain "$python" tests/clients/langchain_chat.py "$url"
fi
if ! command -v npm >/dev/null 2>&1; then
    echo "skipped: Node clients (npm is not installed)"
elif ! (cd "$work" && cp ../../tests/clients/openai_node.mjs . && timeout 300 npm install --silent --no-fund --no-audit openai@6 >npm.log 2>&1); then
    echo "skipped: Node clients (their packages cannot be fetched)"
else
    client openai-node node "$work/openai_node.mjs" "$url"
fi
exit $failed
