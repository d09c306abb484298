# nibble completion: what bash offers, that every option of every page is there, that the other shells read their script.
set -eu

"$NIBBLE" completion bash >"$TMP/bash"

offers() { # wanted word, words of the command line: the last one is being written
    want=$1
    shift
    got=$(bash -c '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _nibble; echo "${COMPREPLY[*]}"' "$TMP/bash" "$@")
    case " $got " in
    *" $want "*) echo "ok $* -> $want" ;;
    *) echo "not ok $*: wanted $want, got \"$got\"" && exit 1 ;;
    esac
}
offers quantize nibble qua
offers check nibble help ch
offers --method nibble quantize model --me
offers q8 nibble run model --kv q
offers gptq nibble convert model --to gp
offers awq+gptq nibble quantize model --method awq
offers routed nibble quantize model --moe-calib r
offers awq-marlin nibble check model --format awq-m
offers '' nibble convert model --to awq-m # is only read
offers --num-prompts nibble bench serve --num
offers --rounds nibble bench model --ro
offers '' nibble run mod # files, which bash finds by itself

for verb in $("$NIBBLE" --help | awk '/^  [a-z]+ / && $1 != "help" { print $1 }') "bench serve"; do
    "$NIBBLE" $verb --help | grep -oE '^  -[^ ]+' | tr -d ' ' | tr , '\n' >"$TMP/options"
    sed -n "/^    '$verb')/,/;;/p" "$TMP/bash" >"$TMP/part"
    while read -r option; do
        grep -q -- "options+=' $option'" "$TMP/part" || { echo "not ok $verb lacks $option"; exit 1; }
    done <"$TMP/options"
done
echo "ok every option of every verb"

for shell in zsh fish; do
    "$NIBBLE" completion $shell >"$TMP/$shell"
    if command -v $shell >/dev/null; then
        $shell -n "$TMP/$shell"
        echo "ok $shell reads its script"
    else
        echo "skipped: $shell is not installed"
    fi
done

code=0
"$NIBBLE" completion ksh 2>"$TMP/err" || code=$?
[ $code = 2 ] && grep -q "arg.value" "$TMP/err"
code=0
"$NIBBLE" completion 2>"$TMP/err" || code=$?
[ $code = 2 ] && grep -q "arg.missing" "$TMP/err"
echo "ok other shells are refused"
