# `nibble run` and `nibble bench`: the same text from every thread count and kernel, limits, stops, errors.
set -eu
model=models/pemberley-4m
prompt="It is a truth universally acknowledged"
want=", and it is not to be supposed that the living of the family,"

run() { "$NIBBLE" run "$@" 2>"$TMP/err"; }
check() { # label got want
    [ "$2" = "$3" ] || { printf 'FAIL %s\n got: %s\nwant: %s\n' "$1" "$2" "$3" >&2; cat "$TMP/err" >&2; exit 1; }
    echo "ok $1"
}
fails() { # label exit-code class-pattern arguments...
    label=$1 code=$2 pattern=$3
    shift 3
    got=0
    "$NIBBLE" "$@" >"$TMP/out" 2>"$TMP/err" </dev/null || got=$?
    [ "$got" = "$code" ] && grep -q "$pattern" "$TMP/err" && [ "$(wc -l <"$TMP/err")" = 1 ] && [ ! -s "$TMP/out" ] ||
        { echo "FAIL $label: exit $got, want $code and $pattern" >&2; cat "$TMP/err" "$TMP/out" >&2; exit 1; }
    echo "ok $label"
}

greedy=$(run $model "$prompt" --temperature 0 -n 16 -q)
check "greedy continuation" "$greedy" "$want"
check "prompt from a pipe" "$(printf '%s\n' "$prompt" | run $model --temperature 0 -n 16 -q)" "$want"
printf '%s' "$prompt" >"$TMP/prompt"
check "prompt from a file" "$(run $model --file "$TMP/prompt" --temperature 0 -n 16 -q)" "$want"
check "one thread, scalar kernels" "$(run $model "$prompt" --temperature 0 -n 16 -q --threads 1 --cpu scalar)" "$want"

sampled=$(run $model "$prompt" --temperature 0.8 --top-p 0.95 --seed 7 -n 40 -q)
check "same seed, same text" "$(run $model "$prompt" --temperature 0.8 --top-p 0.95 --seed 7 -n 40 -q --threads 1)" "$sampled"
[ "$(run $model "$prompt" --temperature 0.8 --top-p 0.95 --seed 8 -n 40 -q)" != "$sampled" ] || { echo "FAIL seeds 7 and 8 agree" >&2; exit 1; }
echo "ok another seed, another text"

check "stop string is cut, also when split over tokens" "$(run $model "$prompt" --temperature 0 -n 16 -q --stop "sed that")" ", and it is not to be suppo"
check "the stop that ends first wins" "$(run $model "$prompt" --temperature 0 -n 16 -q --stop "the living" --stop "that")" ", and it is not to be supposed "
json=$(run $model "$prompt" --temperature 0 -n 16 --json)
case $json in *'"finish_reason": "length"'*'"completion_tokens": 16'*) echo "ok --json" ;; *) echo "FAIL --json: $json" >&2; exit 1 ;; esac
run $model "$prompt" --temperature 0 -n 4 >/dev/null
grep -q 'prompt tokens at .* tok/s, 4 tokens at .* threads\?$' "$TMP/err" || { echo "FAIL figures" >&2; cat "$TMP/err" >&2; exit 1; }
echo "ok line of figures"

fails "missing model" 3 'io.not_found' run "$TMP/nothing" x
fails "empty directory" 3 FIL-001 run "$TMP/." x
fails "prompt longer than the context" 6 'limit.context' run $model "$prompt" --context 4
fails "context beyond the model's" 2 arg.context run $model "$prompt" --context 100000
fails "bad temperature" 2 'arg.value' run $model x --temperature -3
fails "unknown kernel" 2 arg.cpu run $model x --cpu sse9
fails "option misspelled" 2 'did you mean --max-tokens' run $model x --max-token 3

bench=$("$NIBBLE" bench $model --prompt 32 --decode 4 --rounds 1 --json 2>/dev/null)
case $bench in *'"prefill_tok_s"'*'"decode_tok_s"'*'"read_bytes_s"'*) echo "ok bench --json" ;; *) echo "FAIL bench: $bench" >&2; exit 1 ;; esac
# The shape of --json: one row of prefill, every depth with the first batch, every other batch at the first depth.
rows=$("$NIBBLE" bench $model --prompt 32 --decode 2 --rounds 2 --depth 3,0,40 --batch 2,1,5 --json 2>/dev/null | tr -d ' \n')
for key in cpu cpu_family kernel threads rounds prompt decode depth batch prefill_tok_s decode_tok_s read_bytes_s step_bytes decode_share_of_read; do
    case $rows in *"\"$key\":"*'"rows":['*) ;; *) echo "FAIL bench --json has no $key in front of its rows: $rows" >&2; exit 1 ;; esac
done
number='[0-9.e+-]*'
check "rows of bench --json" "$(printf %s "$rows" | grep -oE "\\{\"what\":\"[a-z]*\",\"tokens\":[0-9]*,\"batch\":[0-9]*,\"depth\":[0-9]*,\"tok_s\":$number,\"min\":$number,\"max\":$number,\"share_of_read\":($number|null)\\}" |
    sed -E 's/.*"what":"([a-z]*)","tokens":([0-9]*),"batch":([0-9]*),"depth":([0-9]*),.*/\1 \2 \3 \4/' | tr '\n' ';')" \
    "prefill 32 1 0;decode 2 2 3;decode 2 2 0;decode 2 2 40;decode 2 1 3;decode 2 5 3;"
check "median between min and max" "$(printf %s "$rows" | grep -oE '"tok_s":[^}]*"share' |
    awk -F'[:,]' '{ if ($4 <= $2 && $2 <= $6 && $4 > 0) ok++ } END { print ok }')" 6
"$NIBBLE" bench $model --prompt 8 --decode 2 --rounds 1 -q | grep -q 'decode, 16 sequences at depth 0' || { echo "FAIL table of bench" >&2; exit 1; }
fails "a depth that is no number" 2 'arg.value' bench $model --depth 0,x
fails "an empty batch" 2 'arg.value' bench $model --batch 1,
fails "no sequences" 2 'bench.sizes' bench $model --batch 0 --rounds 1
fails "bench beyond the context" 2 'bench.sizes' bench $model --prompt 5000 --rounds 1
streams=$("$NIBBLE" bench $model --streams 3 --requests 5 --prefix 40 --prompt 10 --decode 4 --json 2>/dev/null)
case $streams in *'"cold"'*'"output_tok_s"'*'"warm"'*'"cached_share"'*'"engine_share"'*) echo "ok bench --streams" ;; *) echo "FAIL bench --streams: $streams" >&2; exit 1 ;; esac
fails "streams beyond the context" 2 'arg.context' bench $model --streams 2 --prompt 5000
fails "activations that do not exist" 2 'arg.value' run $model x --act a4
fails "two forms of activations" 2 'arg.conflict' bench $model --act a8 --exact-fp32
fails "a cache type that does not exist" 2 'arg.value' bench $model --kv f64
