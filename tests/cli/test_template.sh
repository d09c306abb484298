# nibble template: exact bytes of prompts, both forms, exit codes.
set -eu

model=models/pemberley-4m

same() { # label, wanted text (printf), command...
    label=$1
    printf "$2" >"$TMP/want"
    shift 2
    "$@" >"$TMP/out"
    if ! cmp "$TMP/want" "$TMP/out"; then
        echo "not ok $label"
        diff "$TMP/want" "$TMP/out" || :
        exit 1
    fi
    echo "ok $label"
}

refused() { # label, exit code, part of the message, command...
    label=$1 want=$2 text=$3
    shift 3
    rc=0
    "$@" >"$TMP/out" 2>"$TMP/err" || rc=$?
    if [ "$rc" -ne "$want" ] || [ -s "$TMP/out" ] || ! grep -qF "$text" "$TMP/err" || [ "$(wc -l <"$TMP/err")" -ne 1 ]; then
        echo "not ok $label: exit $rc, want $want and: $text"
        cat "$TMP/out" "$TMP/err"
        exit 1
    fi
    echo "ok $label"
}

echo '[{"role":"user","content":"Who?"},{"role":"assistant","content":"She"}]' >"$TMP/chat.json"
same "messages" '<|begin_of_text|>Who?\n\nShe' "$NIBBLE" template "$model" "$TMP/chat.json"
same "messages from stdin" '<|begin_of_text|>Who?\n\nShe' sh -c '"$NIBBLE" template models/pemberley-4m - <"$TMP/chat.json"'
same "as JSON" '{\n  "prompt": "<|begin_of_text|>Who?\\n\\nShe"\n}\n' "$NIBBLE" template "$model" "$TMP/chat.json" --json

mkdir "$TMP/model"
cat >"$TMP/model/tokenizer_config.json" <<'END'
{"bos_token": "<s>", "chat_template": "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if tools %}{{ tools|tojson }}{% endif %}{% if add_generation_prompt %}[assistant]{% endif %}{{ x }}"}
END
echo '{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"add_generation_prompt":false,"x":1.0}' >"$TMP/request.json"
echo '[{"name":"f","n":1}]' >"$TMP/tools.json"
same "generation prompt by default" '<s>[user] Who?\n[assistant] She\n[assistant]' "$NIBBLE" template "$TMP/model" "$TMP/chat.json"
same "object with variables" '<s>[user] hi\n1.0' "$NIBBLE" template "$TMP/model" "$TMP/request.json"
same "tools" '<s>[user] hi\n[{"name": "f", "n": 1}]1.0' "$NIBBLE" template "$TMP/model" "$TMP/request.json" --tools "$TMP/tools.json"

same "kwargs" '<s>[user] Who?\n[assistant] She\n[assistant]y' "$NIBBLE" template "$TMP/model" "$TMP/chat.json" --kwargs '{"x":"y"}'
same "kwargs over the object's own" '<s>[user] hi\nTrue' "$NIBBLE" template "$TMP/model" "$TMP/request.json" --kwargs '{"x":true,"unused":[1]}'
same "kwargs and tools" '<s>[user] hi\n[{"name": "f", "n": 1}]2' \
    "$NIBBLE" template "$TMP/model" "$TMP/request.json" --tools "$TMP/tools.json" --kwargs '{"x":2}'

"$NIBBLE" template "$model" "$TMP/chat.json" >"$TMP/prompt"
ids=$("$NIBBLE" tokenize "$model" --file "$TMP/prompt" --no-special)
same "tokens" "$ids\n" "$NIBBLE" template "$model" "$TMP/chat.json" --tokens
"$NIBBLE" tokenize "$model" --file "$TMP/prompt" --no-special -v >"$TMP/pieces"
"$NIBBLE" template "$model" "$TMP/chat.json" --tokens -v | cmp - "$TMP/pieces"
echo "ok tokens with pieces"
"$NIBBLE" template "$model" "$TMP/chat.json" --tokens --json | tr -d ' \n' >"$TMP/out"
for part in '"prompt":"<|begin_of_text|>Who?' "\"ids\":[$(echo "$ids" | tr ' ' ',')]" '"pieces":["<|begin_of_text|>"'; do
    grep -qF "$part" "$TMP/out" || { echo "not ok tokens as JSON: $part"; cat "$TMP/out"; exit 1; }
done
echo "ok tokens as JSON"

echo '[{"role":"user","content":"a<|begin_of_text|>b"}]' >"$TMP/inject.json"
"$NIBBLE" template "$model" "$TMP/inject.json" --tokens -v >"$TMP/out"
[ "$(grep -c '<|begin_of_text|>' "$TMP/out")" -eq 1 ] || { echo "not ok TK-13 a control token in a message"; cat "$TMP/out"; exit 1; }
echo "ok TK-13 a control token in a message is text"
"$NIBBLE" template "$model" "$TMP/inject.json" --tokens -v --special >"$TMP/out"
[ "$(grep -c '<|begin_of_text|>' "$TMP/out")" -eq 2 ] || { echo "not ok --special"; cat "$TMP/out"; exit 1; }
echo "ok TK-13 an option allows it"

printf '{{ messages[0].content }}|{{ bos_token }}|{{ add_generation_prompt is defined }}|{{ n }}\n' >"$TMP/t.jinja"
echo '{"messages":[{"content":null}],"n":123456789012345678901234567890}' >"$TMP/v.json"
same "exactly these variables" 'None||False|123456789012345678901234567890' "$NIBBLE" template --template "$TMP/t.jinja" "$TMP/v.json"
printf "{{ strftime_now('%%A %%d %%b %%Y %%H:%%M:%%S %%j') }}" >"$TMP/t.jinja"
same "fixed clock" 'Friday 26 Jul 2024 01:02:03 208' "$NIBBLE" template --template "$TMP/t.jinja" "$TMP/v.json" --now '2024-07-26 01:02:03'
same "a leap day" 'Tuesday 29 Feb 2000 00:00:00 060' "$NIBBLE" template --template "$TMP/t.jinja" "$TMP/v.json" --now '2000-02-29 00:00:00'

printf '{%% if true %%}\n{{ raise_exception("roles must alternate") }}{%% endif %%}' >"$TMP/t.jinja"
refused "what a template refuses" 4 "roles must alternate" "$NIBBLE" template --template "$TMP/t.jinja" "$TMP/v.json"
printf 'a\n{{ x' >"$TMP/t.jinja"
refused "syntax" 4 "line 2" "$NIBBLE" template --template "$TMP/t.jinja" "$TMP/v.json"
printf '{{ u.v }}' >"$TMP/t.jinja"
refused "undefined" 4 '"u" is undefined' "$NIBBLE" template --template "$TMP/t.jinja" "$TMP/v.json"
printf '{{ 1|frob }}' >"$TMP/t.jinja"
refused "JT-02 unknown filter" 5 'no filter is called "frob"' "$NIBBLE" template --template "$TMP/t.jinja" "$TMP/v.json"
printf '{%% for i in range(99999) %%}{%% for j in range(99999) %%}{%% endfor %%}{%% endfor %%}' >"$TMP/t.jinja"
refused "JT-04 endless loop" 6 'limit.template_steps' "$NIBBLE" template --template "$TMP/t.jinja" "$TMP/v.json"
refused "no such template" 3 "absent.jinja" "$NIBBLE" template --template "$TMP/absent.jinja" "$TMP/v.json"
refused "clock" 2 "YYYY-MM-DD" "$NIBBLE" template --template "$TMP/t.jinja" "$TMP/v.json" --now yesterday
refused "a clock with a sign" 2 "YYYY-MM-DD" "$NIBBLE" template --template "$TMP/t.jinja" "$TMP/v.json" --now '+2023-02-28 00:00:00'
refused "a clock with more behind it" 2 "YYYY-MM-DD" "$NIBBLE" template --template "$TMP/t.jinja" "$TMP/v.json" --now '2023-02-28 00:00:00Z'
refused "an hour that is none" 2 "YYYY-MM-DD" "$NIBBLE" template --template "$TMP/t.jinja" "$TMP/v.json" --now '2023-02-28 24:00:00'
refused "a day that is none" 2 "no day 30" "$NIBBLE" template --template "$TMP/t.jinja" "$TMP/v.json" --now '2023-02-30 00:00:00'
refused "no request" 2 "MODEL" "$NIBBLE" template "$TMP/model"
echo '{"messages":[]}' >"$TMP/empty.json"
refused "no messages" 2 "messages" "$NIBBLE" template "$TMP/model" "$TMP/empty.json"
mkdir "$TMP/bare"
echo '{}' >"$TMP/bare/tokenizer_config.json"
refused "no chat template" 5 "no chat template" "$NIBBLE" template "$TMP/bare" "$TMP/chat.json"
for name in messages tools tokenize add_generation_prompt bos_token chat_template; do
    refused "JT-14 --kwargs $name" 2 "tmpl.reserved" "$NIBBLE" template "$TMP/model" "$TMP/chat.json" --kwargs "{\"$name\":1}"
done
refused "JT-14 kwargs of another type" 2 "JSON object" "$NIBBLE" template "$TMP/model" "$TMP/chat.json" --kwargs '[1]'
refused "kwargs that are no JSON" 4 "json.json: --kwargs" "$NIBBLE" template "$TMP/model" "$TMP/chat.json" --kwargs '{x'
refused "kwargs without a model" 2 "no --tools, --kwargs" "$NIBBLE" template --template "$TMP/t.jinja" "$TMP/v.json" --kwargs '{}'
refused "tokens without a tokenizer" 3 "tok.missing" "$NIBBLE" template "$TMP/model" "$TMP/chat.json" --tokens
