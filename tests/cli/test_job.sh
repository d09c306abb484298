# nibble quantize as a job: the plan alone, caps, a death by SIGKILL, refusals, the log, what engines say about the result.
set -eu
model=models/pemberley-4m
small="--calib $model/calib.txt --calib-rows 4 --calib-len 64"
fail() { echo "not ok $*"; cat "$TMP/out" "$TMP/err"; exit 1; }
code() { # LABEL EXIT WORDS COMMAND...: WORDS are on stderr
    label=$1 want=$2 words=$3
    shift 3
    rc=0
    "$@" >"$TMP/out" 2>"$TMP/err" || rc=$?
    [ "$rc" -eq "$want" ] || fail "$label: exit $rc, want $want"
    grep -q -e "$words" "$TMP/err" || fail "$label: it does not say $words"
}

# shellcheck disable=SC2086
code "plan only" 0 '^  disk  ' "$NIBBLE" quantize $model --plan-only $small
for word in linears groups calibration size memory time; do
    grep -q "^  $word  " "$TMP/err" || fail "plan: no word about $word"
done
[ ! -s "$TMP/out" ] || fail "plan only: output"
# shellcheck disable=SC2086
code "plan as JSON" 0 'plan' "$NIBBLE" quantize $model --plan-only --json $small
grep -q '"peak_bytes": [0-9]' "$TMP/out" && grep -q '"tokens": 256' "$TMP/out" || fail "plan as JSON"
echo "ok the plan, and nothing written"

# shellcheck disable=SC2086
code "MM-01 a cap too small" 9 'the smallest cap that works is --memory [0-9]*M' "$NIBBLE" quantize $model --memory 4M $small -o "$TMP/no"
least=$(sed -n 's/.*--memory \([0-9]*\)M.*/\1/p' "$TMP/err")
# shellcheck disable=SC2086
code "MM-01 no size" 2 '4G or 800M' "$NIBBLE" quantize $model --memory lots $small -o "$TMP/no"
[ ! -e "$TMP/no" ] && [ ! -e "$TMP/no.nibble-job" ] || fail "MM-01: something was written"
# shellcheck disable=SC2086
code "the cap that it named" 0 'cap' "$NIBBLE" quantize $model --memory "$((least + 2))M" $small --log "$TMP/log.jsonl" -o "$TMP/capped"
[ "$(grep -c '"event":"module"' "$TMP/log.jsonl")" -eq 28 ] || fail "log: modules"
head -n 1 "$TMP/log.jsonl" | grep -q '"event":"plan"' || fail "log: plan"
tail -n 1 "$TMP/log.jsonl" | grep -q '"event":"end"' || fail "log: end"
grep -q '"error_rtn":.*"error":.*"ratio":.*"samples":256.*"seconds":' "$TMP/log.jsonl" || fail "log: numbers"
# shellcheck disable=SC2086
"$NIBBLE" quantize $model $small -q -o "$TMP/free" 2>"$TMP/err" || fail "without a cap"
diff -r "$TMP/free" "$TMP/capped" >"$TMP/out" || fail "the cap changed the bytes"
echo "ok MM-01 caps, the log"

# The recipe is in the file, the card beside it, and no name of this machine in either.
head -c 2000 "$TMP/free/model.safetensors" | grep -aq '"nibble":"{.*calib_sha256.*source_sha256\|"nibble":"{.*source_sha256.*calib_sha256' || fail "recipe in the metadata"
grep -q '^| calib_sha256 | [0-9a-f]\{64\} |$' "$TMP/free/QUANTIZATION.md" || fail "recipe in the card"
! grep -rqa "$TMP" "$TMP/free" || fail "DU-23 a path of this machine in the output"
echo "ok the recipe travels with the result"

# Killed for good after the first layer: the same command goes on. Other options are refused; --restart drops it.
start() { # options: a job that is killed when it is in its second layer
    rm -rf "$TMP/killed" "$TMP/killed.nibble-job"
    : >"$TMP/err"
    "$NIBBLE" quantize $model --calib $model/calib.txt --calib-rows 16 --calib-len 128 -o "$TMP/killed" >"$TMP/out" 2>"$TMP/err" &
    pid=$!
    until grep -q 'model.layers.1' "$TMP/err" || ! kill -0 $pid 2>/dev/null; do sleep 0.02; done
    kill -KILL $pid 2>/dev/null || fail "DU-13: the job ended before it could be killed"
    wait $pid 2>/dev/null || true
    [ ! -e "$TMP/killed" ] && [ -s "$TMP/killed.nibble-job/job.json" ] || fail "DU-13: nothing to go on from"
}
"$NIBBLE" quantize $model --calib $model/calib.txt --calib-rows 16 --calib-len 128 -q -o "$TMP/whole" 2>"$TMP/err" || fail "the whole job"
start
code "DU-14 other options" 11 'job.mismatch: .*another awq_clip: 20, now 10' \
    "$NIBBLE" quantize $model --calib $model/calib.txt --calib-rows 16 --calib-len 128 --awq-clip 10 -o "$TMP/killed"
code "DU-13 goes on" 0 'going on after layer 1 of 4' \
    "$NIBBLE" quantize $model --calib $model/calib.txt --calib-rows 16 --calib-len 128 --threads 1 -o "$TMP/killed"
diff -r "$TMP/whole" "$TMP/killed" >"$TMP/out" || fail "DU-13 other bytes"
[ ! -e "$TMP/killed.nibble-job" ] || fail "DU-13: the directory of the job is still there"
echo "ok DU-13 DU-14 killed, refused, gone on"

# Nothing that is shown is needed: no terminal, closed descriptors, a full one; and a bar moves once a second at most.
same() { # LABEL: what was written to $TMP/shown is what it is without all that
    diff -r "$TMP/free" "$TMP/shown" >"$TMP/out" || fail "$1: other bytes"
    rm -rf "$TMP/shown"
}
# shellcheck disable=SC2086
{
    "$NIBBLE" quantize $model $small -o "$TMP/shown" <&- >&- 2>&- || fail "DU-24 closed descriptors"
    same "DU-24 closed descriptors"
    "$NIBBLE" quantize $model $small -o "$TMP/shown" 2>/dev/full || fail "DU-25 a full stderr"
    same "DU-25 a full stderr"
    if script -qec true "$TMP/tty" </dev/null >"$TMP/out" 2>&1; then
        begin=$(date +%s)
        script -qec "$NIBBLE quantize $model $small -o $TMP/shown" "$TMP/tty" </dev/null >"$TMP/out" 2>&1 || fail "DU-25 on a terminal"
        bars=$(tr '\r' '\n' <"$TMP/tty" | grep -c 'quantize [0-9]*/28 modules') # two more: the first one, and a second that had begun
        [ "$bars" -ge 1 ] && [ "$bars" -le $(($(date +%s) - begin + 2)) ] || fail "DU-25: $bars bars"
        same "DU-25 on a terminal"
    else
        echo "skipped DU-25 a terminal: script cannot make one here"
    fi
    if command -v setsid >"$TMP/out"; then
        setsid "$NIBBLE" quantize $model $small -q -o "$TMP/shown" </dev/null || fail "DU-24 no terminal"
        same "DU-24 no terminal"
    else
        echo "skipped DU-24 no terminal: no setsid here"
    fi
}
echo "ok DU-24 DU-25 what is shown changes nothing"

# What the engines say about what was written.
engines() { # DIR
    "$NIBBLE" inspect "$1" --engines vllm,sglang,transformers,gptqmodel --gpu sm80 >"$TMP/out" 2>"$TMP/err" || fail "engines: $1"
    [ "$(grep -c ' RUNS ' "$TMP/out")" -eq 4 ] || fail "engines: $1"
}
engines "$TMP/free"
"$NIBBLE" quantize $model --method rtn -q -o "$TMP/rtn" 2>"$TMP/err" && engines "$TMP/rtn"
# shellcheck disable=SC2086
"$NIBBLE" quantize $model --method gptq $small -q -o "$TMP/gptq" 2>"$TMP/err" && engines "$TMP/gptq"
echo "ok vLLM, SGLang, Transformers and GPTQModel take the result"

# JSON Lines, and a model that writes its own text.
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
    echo "{\"text\": \"It is a truth universally acknowledged, that number $i in possession of a good fortune must be in want of a wife.\"}"
    echo "{\"messages\": [{\"role\": \"user\", \"content\": \"Who is number $i?\"}, {\"role\": \"assistant\", \"content\": \"A clergyman.\"}]}"
done >"$TMP/docs.jsonl"
code "JSON Lines" 0 'from 24 documents' "$NIBBLE" quantize $model --plan-only --calib "$TMP/docs.jsonl" --calib-len 64
code "its own text" 0 'calibration  2 rows of 24 tokens' "$NIBBLE" quantize $model --calib self --calib-rows 2 --calib-len 24 -o "$TMP/self"
"$NIBBLE" quantize $model --calib self --calib-rows 2 --calib-len 24 --threads 1 -q -o "$TMP/self1" 2>"$TMP/err" || fail "its own text, again"
diff -r "$TMP/self" "$TMP/self1" >"$TMP/out" || fail "its own text is another with one thread"
echo "ok calibration from records, and from the model itself"
