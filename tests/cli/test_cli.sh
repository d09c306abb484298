# The program around its verbs: usage, help, spelling, errors as JSON, closed and full outputs, exit codes (hardening 3, CL rows).
set -eu
model=models/pemberley-4m
fail() { echo "not ok: $*"; cat "$TMP/out" "$TMP/err"; exit 1; }

code() { # label, wanted exit code, wanted text on stderr ("" for none at all), command...
    label=$1 want=$2 says=$3
    shift 3
    rc=0
    "$@" >"$TMP/out" 2>"$TMP/err" </dev/null || rc=$?
    [ "$rc" -eq "$want" ] || fail "$label: exit $rc, want $want"
    if [ -n "$says" ]; then
        grep -qF -- "$says" "$TMP/err" || fail "$label: stderr lacks \"$says\""
    else
        [ ! -s "$TMP/err" ] || fail "$label: words on stderr"
    fi
    echo "ok $label"
}

# Usage, version, help.
code "no arguments: usage on stderr" 2 "usage: nibble VERB" "$NIBBLE"
[ ! -s "$TMP/out" ] || fail "usage on stdout"
code "--version" 0 "" "$NIBBLE" --version
grep -qE '^nibble [0-9]+\.[0-9]+\.[0-9]+$' "$TMP/out" && grep -qE 'kernels [a-z0-9-]+ on ' "$TMP/out" || fail "--version"
code "--help" 0 "" "$NIBBLE" --help
verbs=$(awk '/^  [a-z]+ / && $1 != "help" { print $1 }' "$TMP/out")
[ "$(echo "$verbs" | wc -l)" -ge 9 ] || fail "--help lists too few verbs"
for verb in $verbs; do
    code "$verb --help" 0 "" "$NIBBLE" "$verb" --help
    grep -q "^usage: nibble $verb" "$TMP/out" || fail "$verb --help has no usage line"
    grep -q 'given twice the last one counts' "$TMP/out" || fail "$verb --help does not say what a repeated option means"
    cp "$TMP/out" "$TMP/page"
    "$NIBBLE" help "$verb" | cmp - "$TMP/page" || fail "help $verb is another page"
    case $verb in
    explain | formats | doctor) code "$verb needs no word" 0 "" "$NIBBLE" "$verb" -q ;;
    *) code "CL-01 $verb without its model" 2 "nibble: error: arg." "$NIBBLE" "$verb" ;;
    esac
    code "CL-01 $verb, unknown option" 2 'did you mean --threads?' "$NIBBLE" "$verb" --thread 1
    awk '/^  -/ { print $1 }' "$TMP/page" | grep -qx -- --json || fail "$verb has no --json"
done
code "info is inspect" 0 "" "$NIBBLE" info $model

# CL-01: words that mean nothing.
code "CL-01 unknown verb" 2 'nibble: error: arg.verb: no verb "inspekt"; did you mean inspect?' "$NIBBLE" inspekt $model
code "CL-01 verb like no other" 2 'arg.verb: no verb "frobnicate"; nibble --help' "$NIBBLE" frobnicate
code "CL-01 help of an unknown verb" 2 'arg.verb: no verb "chekc"; did you mean check?' "$NIBBLE" help chekc
code "CL-01 model and verb swapped" 2 "the verb comes first: nibble inspect $model" "$NIBBLE" $model inspect
code "CL-01 option before the verb" 2 'arg.verb: "--json" comes before the verb' "$NIBBLE" --json inspect $model
code "CL-01 control bytes in a word" 2 'no verb "a\x1b[31m"' "$NIBBLE" "$(printf 'a\033[31m')"
code "CL-01 option like no other" 2 'arg.option: inspect has no option "--frobnicate"; nibble inspect --help' "$NIBBLE" inspect --frobnicate
code "CL-06 a key of the client on the command line" 2 'arg.option: bench serve has no option "--api-key"' "$NIBBLE" bench serve --api-key some-key
code "CL-01 one word too many" 2 'arg.extra: unexpected argument "more"' "$NIBBLE" inspect $model more
code "CL-01 value for a flag" 2 "arg.value: --json takes no value" "$NIBBLE" inspect $model --json=yes
code "CL-01 missing value, last word" 2 "arg.value: --context needs a value (N)" "$NIBBLE" inspect $model --context
code "CL-01 missing value, option follows" 2 "needs a value (OUT)" "$NIBBLE" quantize $model -o --force
for value in 12x x "" " 5" 5.5 -3 0 99999999999999999999 1e3 nan; do
    code "CL-01 --context \"$value\"" 2 "expected an integer from 1 to" "$NIBBLE" inspect $model "--context=$value"
done
for value in 0.5x x "" " 1" -1 101 nan inf 1e999; do
    code "CL-01 --temperature \"$value\"" 2 "expected a number from 0 to 100" "$NIBBLE" run $model x "--temperature=$value"
done
code "CL-01 --threads 0" 2 "expected an integer from 1 to" "$NIBBLE" check $model --threads 0
code "CL-01 --cpu of another name" 2 "arg.cpu" "$NIBBLE" run $model x --cpu abacus
code "CL-01 --errors of another kind" 2 "arg.value: --errors" "$NIBBLE" inspect $model --errors=xml
code "CL-02 the last of two counts" 0 "" "$NIBBLE" run $model "It is a truth" --raw -q --temperature 0 -n 9 -n 3
cp "$TMP/out" "$TMP/last"
"$NIBBLE" run $model "It is a truth" --raw -q --temperature 0 -n 3 | cmp - "$TMP/last" || fail "CL-02"
code "two dashes end options" 3 'nibble: error: io.not_found: --json' "$NIBBLE" inspect -- --json

# Errors as JSON: one object a line, whatever the error is about.
json() { # label, wanted class, wanted exit, command...
    label=$1 class=$2 want=$3
    shift 3
    rc=0
    "$@" >"$TMP/out" 2>"$TMP/err" </dev/null || rc=$?
    [ "$rc" -eq "$want" ] || fail "$label: exit $rc, want $want"
    [ "$(wc -l <"$TMP/err")" -eq 1 ] || fail "$label: not one line"
    grep -q '^{"level":"error","class":"'"$class"'","exit":'"$want"',.*"detail":".*}$' "$TMP/err" || fail "$label: not that object"
    echo "ok $label"
}
json "--errors=json, absent file" io.not_found 3 "$NIBBLE" inspect "$TMP/absent" --errors=json
json "--errors json, two words" io.not_found 3 "$NIBBLE" inspect "$TMP/absent" --errors json
json "--errors=json, unknown option" arg.option 2 "$NIBBLE" inspect --frobnicate --errors=json
json "--errors=json, unknown verb" arg.verb 2 "$NIBBLE" frobnicate --errors=json
json "--errors=json, quotes and control bytes" io.not_found 3 "$NIBBLE" inspect "$(printf 'a"\\\033b')" --errors=json

# CL-03: nobody takes the output.
rc=0; "$NIBBLE" inspect $model >&- 2>"$TMP/err" || rc=$?
[ $rc -eq 8 ] && grep -q '^nibble: error: out.write: ' "$TMP/err" || fail "CL-03 stdout closed: exit $rc"
echo "ok CL-03 stdout closed"
if [ -w /dev/full ]; then
    rc=0; "$NIBBLE" inspect $model >/dev/full 2>"$TMP/err" || rc=$?
    [ $rc -eq 8 ] && grep -q '^nibble: error: out.write: ' "$TMP/err" || fail "CL-03 /dev/full: exit $rc"
    rc=0; "$NIBBLE" run $model "It is" --raw -q >/dev/full 2>"$TMP/err" || rc=$?
    [ $rc -eq 8 ] && grep -q '^nibble: error: out.write: ' "$TMP/err" || fail "CL-03 /dev/full while streaming: exit $rc"
    rc=0; "$NIBBLE" check tests/data/layouts/awq-gemm-g32-skip-autoawq >/dev/full 2>"$TMP/err" || rc=$?
    [ $rc -eq 8 ] || fail "CL-03 /dev/full with a negative answer: exit $rc"
    echo "ok CL-03 /dev/full"
else
    echo "skipped: no /dev/full"
fi
# The reader of the pipe is gone before the first byte.
gone() { # label, command...
    label=$1
    shift
    : >"$TMP/err"
    { { sleep 0.3; rc=0; "$@" 2>"$TMP/err" || rc=$?; echo $rc >"$TMP/rc"; } | :; }
    [ "$(cat "$TMP/rc")" -eq 141 ] || fail "$label: exit $(cat "$TMP/rc"), want 141"
    [ ! -s "$TMP/err" ] || fail "$label: not silent"
    echo "ok $label"
}
gone "CL-03 pipe closed early" "$NIBBLE" inspect $model
gone "CL-03 pipe closed early, help" "$NIBBLE" --help
gone "CL-03 pipe closed early, streaming" "$NIBBLE" run $model "It is" --raw -q
gone "CL-03 pipe closed early, negative answer" "$NIBBLE" check tests/data/layouts/awq-gemm-g32-skip-autoawq

# CL-04: stderr closed, full, or a pipe that nobody reads. The work goes on.
run="$NIBBLE run $model 0 --raw --temperature 0 -n 4"
$run >"$TMP/want" 2>/dev/null
rc=0; $run >"$TMP/out" 2>&- || rc=$?
[ $rc -eq 0 ] && cmp "$TMP/out" "$TMP/want" || fail "CL-04 stderr closed: exit $rc"
if [ -w /dev/full ]; then
    rc=0; $run >"$TMP/out" 2>/dev/full || rc=$?
    [ $rc -eq 0 ] && cmp "$TMP/out" "$TMP/want" || fail "CL-04 stderr full: exit $rc"
fi
{ { sleep 0.3; rc=0; $run 2>&1 >"$TMP/out" || rc=$?; echo $rc >"$TMP/rc"; } | :; }
[ "$(cat "$TMP/rc")" -eq 0 ] && cmp "$TMP/out" "$TMP/want" || fail "CL-04 stderr without a reader: exit $(cat "$TMP/rc")"
rc=0; "$NIBBLE" inspect "$TMP/absent" 2>&- || rc=$?
[ $rc -eq 3 ] || fail "CL-04 exit code without stderr: $rc"
echo "ok CL-04 stderr closed, full, without a reader"

# CL-05: no descriptor at all. An output file must not get number 1 or 2, where messages would land in it.
out=$TMP/closed
rc=0; "$NIBBLE" quantize $model --method rtn --group-size 64 -o "$out" <&- >&- 2>&- || rc=$?
[ $rc -eq 0 ] || fail "CL-05 all closed: exit $rc"
"$NIBBLE" quantize $model --method rtn --group-size 64 -o "$TMP/open" 2>/dev/null
cmp "$out/model.safetensors" "$TMP/open/model.safetensors" && cmp "$out/config.json" "$TMP/open/config.json" || fail "CL-05 other bytes"
echo "ok CL-05 standard descriptors absent"
rc=0; "$NIBBLE" run $model -n 2 --raw <&- >"$TMP/out" 2>"$TMP/err" || rc=$?
[ $rc -eq 2 ] || [ $rc -eq 0 ] || fail "CL-05 stdin absent: exit $rc"
echo "ok CL-05 stdin absent reads as empty"

# Ctrl-C and its kin end in order with a plain exit code.
for sig in INT:130 TERM:143 HUP:129; do
    rm -rf "$TMP/q" "$TMP/q.nibble-job"
    : >"$TMP/err"
    env --default-signal=INT,TERM,HUP "$NIBBLE" quantize $model --method awq --group-size 64 --calib $model/calib.txt --calib-rows 4 --calib-len 32 -o "$TMP/q" \
        >"$TMP/out" 2>"$TMP/err" &
    pid=$!
    until grep -q 'model.layers' "$TMP/err" || ! kill -0 $pid 2>/dev/null; do sleep 0.02; done
    kill -"${sig%:*}" $pid 2>/dev/null || fail "SIG${sig%:*}: the job ended before it could be stopped"
    rc=0; wait $pid || rc=$?
    [ $rc -eq "${sig#*:}" ] || fail "SIG${sig%:*}: exit $rc, want ${sig#*:}"
    [ ! -e "$TMP/q" ] || fail "SIG${sig%:*}: a file under the final name"
    echo "ok SIG${sig%:*} exits ${sig#*:}"
done
