# nibble tokenize: exact output, every way in and out, exit codes.
set -eu

model=models/pemberley-4m

same() { # label, wanted text, command...
    label=$1
    printf '%s\n' "$2" >"$TMP/want"
    shift 2
    "$@" >"$TMP/out"
    if ! diff -u "$TMP/want" "$TMP/out"; then
        echo "not ok $label"
        exit 1
    fi
    echo "ok $label"
}

refused() { # label, exit code, class, command...
    label=$1 want=$2 class=$3
    shift 3
    rc=0
    "$@" >"$TMP/out" 2>"$TMP/err" || rc=$?
    if [ "$rc" -ne "$want" ] || [ -s "$TMP/out" ] || ! grep -q "^nibble: error: $class" "$TMP/err" || [ "$(wc -l <"$TMP/err")" -ne 1 ]; then
        echo "not ok $label: exit $rc, want $want and $class"
        cat "$TMP/out" "$TMP/err"
        exit 1
    fi
    echo "ok $label"
}

same "text" "0 1434 369 262 1934" "$NIBBLE" tokenize $model --text 'It is a truth'
same "no special" "1434 369" "$NIBBLE" tokenize $model --no-special --text 'It is'
same "the file itself" "0 1434 369" "$NIBBLE" tokenize $model/tokenizer.json --text 'It is'
same "pieces" "$(printf '0\t<|begin_of_text|>\n1434\tIt\n369\t\304\240is')" "$NIBBLE" tokenize $model -v --text 'It is'
same "tokenizer.model" "1 372 578 1068 4" "$NIBBLE" tokenize tests/data/tokenizers/sp-bpe --text 'Hello<|user|>'
same "tokenizer.model by its name" "1 372 578 1068" "$NIBBLE" tokenize tests/data/tokenizers/sp-bpe/tokenizer.model --text 'Hello'
same "GGUF, SentencePiece" "1 372 578 1068" "$NIBBLE" tokenize tests/data/tokenizers/gguf-spm/vocab.gguf --text 'Hello'
same "GGUF, decoded" "Hello" "$NIBBLE" tokenize tests/data/tokenizers/gguf-spm/vocab.gguf --decode --skip-special --text '1 372 578 1068'
same "tiktoken" "1250 72 626 111" "$NIBBLE" tokenize tests/data/tokenizers/llama3-tiktoken --text 'Hello'
same "vocab.json and merges.txt" "39 623 78" "$NIBBLE" tokenize tests/data/tokenizers/gpt2-files/vocab.json --text 'Hello'
same "decode" "<|begin_of_text|>It is" "$NIBBLE" tokenize $model --decode --text '0 1434, [369]'
same "decode without special" "It is" "$NIBBLE" tokenize $model --decode --skip-special --text '0 1434 369'
same "decode, JSON" '{"text":"It is"}' "$NIBBLE" tokenize $model --decode --json --text '1434 369'
same "JSON" '{ "ids": [ 1434, 369 ], "pieces": [ "It", "Ġis" ] }' \
    sh -c '"$NIBBLE" tokenize models/pemberley-4m --json --no-special --text "It is" | tr -s "\n " " " | sed "s/ *$//" && echo'

printf 'It is' >"$TMP/text"
same "file" "1434 369" "$NIBBLE" tokenize $model --no-special --file "$TMP/text"
same "standard input" "1434 369" sh -c '"$NIBBLE" tokenize models/pemberley-4m --no-special <"$TMP/text"'
same "special token in the text" "0" "$NIBBLE" tokenize $model --no-special --text '<|begin_of_text|>'
"$NIBBLE" tokenize $model --no-special --plain --text '<|begin_of_text|>' >"$TMP/out"
[ "$(wc -w <"$TMP/out")" -gt 1 ] && ! grep -qw 0 "$TMP/out"
echo "ok special token as plain text"

printf '{"text":"It is"}\n{"text":""}\n{"text":"a\\u0000b"}\n' >"$TMP/in.jsonl"
same "jsonl" "$(printf '{"ids":[1434,369]}\n{"ids":[]}\n{"ids":[68,192,69]}')" "$NIBBLE" tokenize $model --no-special --jsonl "$TMP/in.jsonl"
"$NIBBLE" tokenize $model --no-special --jsonl "$TMP/in.jsonl" >"$TMP/ids.jsonl"
same "jsonl and back" "$(cat "$TMP/in.jsonl")" "$NIBBLE" tokenize $model --decode --jsonl "$TMP/ids.jsonl"

"$NIBBLE" tokenize $model --no-special --file $model/eval.txt >"$TMP/ids"
"$NIBBLE" tokenize $model --decode --file "$TMP/ids" >"$TMP/back"
{ cat $model/eval.txt && echo; } | cmp - "$TMP/back"
echo "ok a book and back"

printf 'a\377b' >"$TMP/bad"
printf 'a\000b' >"$TMP/zero"
refused "TK-10 invalid UTF-8" 4 tok.utf8 "$NIBBLE" tokenize $model --file "$TMP/bad"
refused "TK-10 zero byte" 4 tok.utf8 "$NIBBLE" tokenize $model --file "$TMP/zero"
same "TK-10 zero byte, raw" "68 192 69" "$NIBBLE" tokenize $model --raw --no-special --file "$TMP/zero"
refused "TK-01 absent" 3 tok.missing "$NIBBLE" tokenize tests/data/models/llama --text a
printf '{"model":' >"$TMP/broken.json"
refused "TK-01 bad JSON" 4 tok.json "$NIBBLE" tokenize "$TMP/broken.json" --text a
printf '{"model":{"type":"Foo","vocab":[]}}' >"$TMP/foo.json"
refused "TK-02 model kind" 5 tok.unsupported "$NIBBLE" tokenize "$TMP/foo.json" --text a
refused "no such file" 3 io.not_found "$NIBBLE" tokenize "$TMP/nothing" --text a
refused "no model" 2 arg "$NIBBLE" tokenize --text a
refused "two inputs" 2 arg "$NIBBLE" tokenize $model --text a --file "$TMP/text"
refused "ids that are none" 2 arg.ids "$NIBBLE" tokenize $model --decode --text '1 x'
printf '{"ids":[-1]}\n' >"$TMP/neg.jsonl"
refused "negative id" 4 tok.id "$NIBBLE" tokenize $model --decode --jsonl "$TMP/neg.jsonl"
printf '{"txt":"a"}\n' >"$TMP/key.jsonl"
refused "no text in a line" 4 tok.line "$NIBBLE" tokenize $model --jsonl "$TMP/key.jsonl"
