#!/bin/sh
# Schemathesis against the published /openapi.json: requests made from the document, good and bad, and their answers checked against it.
# usage: [NIBBLE=PROGRAM] [BASE_URL=http://HOST:PORT OPENAI_API_KEY=KEY] tests/clients/schemathesis.sh
#
# Without BASE_URL a server with the small model of the tree is started. The program is `schemathesis` of the path, or SCHEMATHESIS
# (pip install schemathesis==4.32.5). Exit 77: it is not there. EXAMPLES: requests per endpoint and phase (20).
#
# Left out: positive_data_acceptance, as relations between fields (stream_options without stream, a prompt over the context) are not in a
# JSON schema; 408, 414, 431 and the like come from the transport, which its own tests cover.
set -eu
st=${SCHEMATHESIS:-$(command -v schemathesis || true)}
[ -n "$st" ] || { echo "skipped: schemathesis is not installed"; exit 77; }
tmp=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill $pid; rm -rf "$tmp"' EXIT
url=${BASE_URL:-}
key=${OPENAI_API_KEY:-some-key}
if [ -z "$url" ]; then
    cp -r "$(dirname "$0")/../../models/pemberley-4m" "$tmp/model"
    printf '%s' '{{ bos_token }}{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}{% endfor %}' >"$tmp/model/chat_template.jinja"
    "${NIBBLE:-nibble}" serve "$tmp/model" --port 0 --max-model-len 64 --no-request-log --api-key "$key" 2>"$tmp/err" &
    pid=$!
    until grep -qs 'is ready at' "$tmp/err"; do
        kill -0 $pid || { cat "$tmp/err"; exit 1; }
        sleep 0.05
    done
    url=$(sed -n 's/.*is ready at \(http[^ ]*\).*/\1/p' "$tmp/err")
fi
rc=0
(cd "$tmp" && "$st" --config-file /dev/null run "$url/openapi.json" --url "$url" --max-examples "${EXAMPLES:-20}" --phases examples,coverage,fuzzing --header "Authorization: Bearer $key" --exclude-checks positive_data_acceptance \
    --request-timeout 60 --seed 1 --no-color) >"$tmp/report" 2>&1 || rc=$? # it leaves its notes in the folder it runs in
tail -n "${LINES_SHOWN:-60}" "$tmp/report"
[ $rc -eq 0 ] || { echo "not ok schemathesis"; exit 1; }
curl -sSf "$url/health" >/dev/null || { echo "not ok: the server is not well after it"; exit 1; }
echo "ok schemathesis"
