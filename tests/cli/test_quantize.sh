# nibble quantize: the plan and one line per linear on stderr, a complete directory, refusals that name the way out, Ctrl-C.
set -eu

. tests/cli/code.sh

model=models/pemberley-4m
small="--calib $model/calib.txt --calib-rows 4 --calib-len 64"

# shellcheck disable=SC2086
code 0 "$NIBBLE" quantize $model --method awq $small -o "$TMP/awq"
grep -q '^plan: AWQ' "$TMP/err"
grep -q 'linears  *28 in 4 layers, 3.1 M weights' "$TMP/err"
grep -q 'calibration  *4 rows of 64 tokens' "$TMP/err"
[ "$(grep -c 'error .* -> .* ratio' "$TMP/err")" -eq 28 ]
[ ! -s "$TMP/out" ]
for f in tokenizer.json tokenizer_config.json generation_config.json; do
    cmp "$model/$f" "$TMP/awq/$f"
done
grep -q '"quant_method": "awq"' "$TMP/awq/config.json"
grep -q '"torch_dtype": "float16"' "$TMP/awq/config.json"
[ -s "$TMP/awq/quantize_config.json" ]
code 0 "$NIBBLE" check "$TMP/awq"
echo "ok 1 awq from text, a checkpoint that passes check"

# shellcheck disable=SC2086
code 0 "$NIBBLE" quantize $model --method awq $small --threads 1 -q -o "$TMP/one"
cmp "$TMP/awq/model.safetensors" "$TMP/one/model.safetensors"
[ "$(grep -vc '^nibble: warning: calib.few: 256 calibration tokens' "$TMP/err")" -eq 0 ]
echo "ok 2 same bytes with one thread, silent with -q"

code 0 "$NIBBLE" quantize $model --method rtn --sym --group-size -1 --json -o "$TMP/rtn"
grep -q '"method": "rtn"' "$TMP/out"
[ "$(grep -c '"module":' "$TMP/out")" -eq 28 ]
code 0 "$NIBBLE" check "$TMP/rtn"
echo "ok 3 rtn, symmetric, one group per output, as JSON"

code 12 "$NIBBLE" quantize $model --method rtn -o "$TMP/rtn"
code 0 "$NIBBLE" quantize $model --method rtn -o "$TMP/rtn" --force
code 12 "$NIBBLE" quantize $model --method rtn -o $model --force
[ -f $model/model.safetensors ]
code 2 "$NIBBLE" quantize $model --method rtn --group-size 96 -o "$TMP/no"
grep -q 'SHP-004.*128, 64, 32, 16, -1' "$TMP/err"
code 2 "$NIBBLE" quantize $model --method awq -o "$TMP/no"
grep -q -e '--calib FILE' "$TMP/err"
code 2 "$NIBBLE" quantize $model --method gptp -o "$TMP/no"
code 2 "$NIBBLE" quantize $model --method rtn --sym --asym -o "$TMP/no"
code 2 "$NIBBLE" quantize $model --method rtn
code 5 "$NIBBLE" quantize "$TMP/awq" --method rtn -o "$TMP/no"
grep -q 'already quantized' "$TMP/err"
[ ! -e "$TMP/no" ]
echo "ok 4 refusals"

# shellcheck disable=SC2086
code 0 "$NIBBLE" quantize $model --method gptq $small -o "$TMP/gptq"
grep -q '^plan: GPTQ, 4 bits, symmetric, layout gptq$' "$TMP/err"
[ "$(grep -c 'error .* -> .*  damp 0.05' "$TMP/err")" -eq 28 ]
grep -q '"checkpoint_format": "gptq"' "$TMP/gptq/quantize_config.json"
grep -q '"damp_percent": 0.05' "$TMP/gptq/config.json"
code 0 "$NIBBLE" check "$TMP/gptq"
# shellcheck disable=SC2086
code 0 "$NIBBLE" quantize $model --method gptq --asym --desc-act --bits 3 --group-size 32 --damp 0.1 --mse 0 $small --json -o "$TMP/desc"
grep -q '"damp": 0.1' "$TMP/out"
grep -q '"desc_act": true' "$TMP/desc/config.json"
code 0 "$NIBBLE" check "$TMP/desc"
code 0 "$NIBBLE" run "$TMP/desc" "The" --raw -n 4
# shellcheck disable=SC2086
code 0 "$NIBBLE" quantize $model --method gptq --asym --format awq-gemm $small -q -o "$TMP/gptq-awq"
grep -q '"quant_method": "awq"' "$TMP/gptq-awq/config.json"
code 2 "$NIBBLE" quantize $model --method gptq -o "$TMP/no"
grep -q 'GPTQ needs calibration' "$TMP/err"
# shellcheck disable=SC2086
code 2 "$NIBBLE" quantize $model --method awq --damp 0.1 $small -o "$TMP/no"
grep -q 'belongs to --method gptq' "$TMP/err"
# shellcheck disable=SC2086
code 2 "$NIBBLE" quantize $model --method gptq --desc-act --act-group-aware $small -o "$TMP/no"
# shellcheck disable=SC2086
code 2 "$NIBBLE" quantize $model --method gptq --damp nine $small -o "$TMP/no"
# shellcheck disable=SC2086
code 2 "$NIBBLE" quantize $model --method gptq --format nothing $small -o "$TMP/no"
[ ! -e "$TMP/no" ]
echo "ok 5 gptq: layouts, orders, refusals"

# pemberley is tied
for m in rtn awq gptq; do
    # shellcheck disable=SC2086
    [ $m = rtn ] && data= || data=$small
    # shellcheck disable=SC2086
    code 0 "$NIBBLE" quantize $model --method $m --lm-head $data --plan-only --json
    planned=$(sed -n 's/.*"bytes_out": \([0-9]*\).*/\1/p' "$TMP/out")
    grep -q '"modules": 29' "$TMP/out"
    # shellcheck disable=SC2086
    code 0 "$NIBBLE" quantize $model --method $m --lm-head $data -o "$TMP/head-$m"
    grep -q 'quantize.lm_head: the embedding serves as head; it stays' "$TMP/err"
    [ "$(grep -c ' 29/29  *lm_head  *2048x256 ' "$TMP/err")" -eq 1 ]
    grep -q '"tie_word_embeddings": false' "$TMP/head-$m/config.json"
    grep -q '"lm_head": true' "$TMP/head-$m/config.json"
    size=$(wc -c <"$TMP/head-$m/model.safetensors")
    [ $((size - planned)) -gt 0 ] && [ $((size - planned)) -lt 65536 ] # the header
    code 0 "$NIBBLE" check "$TMP/head-$m"
    code 0 "$NIBBLE" inspect "$TMP/head-$m" --engines
    grep -q '^transformers  *cpu  *RUNS' "$TMP/out"
    grep -q '^gptqmodel  *cpu  *RUNS' "$TMP/out"
    code 0 "$NIBBLE" run "$TMP/head-$m" "The" --raw -n 4
done
echo "ok 6 a head of its own for a tied model"

rm -f "$TMP/err"
"$NIBBLE" quantize $model --method awq --calib $model/calib.txt --calib-len 256 -o "$TMP/no" >"$TMP/out" 2>"$TMP/err" &
pid=$!
n=0
while ! grep -qs ' 2/28 ' "$TMP/err" && [ $n -lt 600 ]; do
    sleep 0.1
    n=$((n + 1))
done
kill -INT $pid 2>/dev/null || true
rc=0
wait $pid || rc=$?
[ "$rc" -eq 130 ] || { echo "not ok: exit $rc after SIGINT"; cat "$TMP/err"; exit 1; }
[ ! -e "$TMP/no" ]
[ -z "$(find "$TMP" -name '*nibble-*' ! -path "$TMP/no.nibble-job*")" ]
echo "ok 7 interrupted: nothing is left but the directory of the job"
