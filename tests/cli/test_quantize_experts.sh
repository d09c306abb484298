# nibble quantize of a mixture of experts: the table of tokens, what stays as it is, overrides by module.
set -eu

. tests/cli/code.sh

model=tests/data/models/qwen2_moe
printf '{"+:.*mlp.*down_proj": {"bits": 8}, "-:.*layers.0.self_attn": {}}' >"$TMP/dynamic.json"

# two rows of 20 ids below 96, as a safetensors file
head='{"ids":{"dtype":"I32","shape":[2,20],"data_offsets":[0,160]}}'
{
    # shellcheck disable=SC2059
    printf "\\$(printf %03o ${#head})\\0\\0\\0\\0\\0\\0\\0%s" "$head"
    i=0
    while [ $i -lt 40 ]; do
        # shellcheck disable=SC2059
        printf "\\$(printf %03o $((i * 37 % 95 + 1)))\\0\\0\\0"
        i=$((i + 1))
    done
} >"$TMP/ids.safetensors"

code 0 "$NIBBLE" quantize $model --method rtn --group-size 8 -o "$TMP/rtn"
grep -q 'model.layers.0.mlp.gate"' "$TMP/rtn/quantize_config.json"
grep -q 'model.layers.0.mlp.shared_expert_gate"' "$TMP/rtn/quantize_config.json"
code 0 "$NIBBLE" check "$TMP/rtn"
echo "ok 1 routers and gates stay, by their full names"

code 0 "$NIBBLE" quantize $model --method rtn --group-size 8 --format compressed-tensors --dynamic "$TMP/dynamic.json" --ignore 'experts\.1\.' -o "$TMP/some"
[ "$(grep -c 'layers.0.self_attn' "$TMP/err")" -eq 0 ]
[ "$(grep -c 'experts.1.' "$TMP/err")" -eq 0 ]
code 0 "$NIBBLE" check "$TMP/some"
grep -q 'model.layers.0.self_attn.q_proj' "$TMP/some/config.json"
echo "ok 2 overrides from a file, patterns to ignore"

code 2 "$NIBBLE" quantize $model --method rtn --group-size 8 --dynamic "$TMP/dynamic.json" -o "$TMP/no"
grep -q 'one setting for all linears' "$TMP/err"
code 2 "$NIBBLE" quantize $model --method rtn --moe-calib some -o "$TMP/no"
code 2 "$NIBBLE" quantize $model --method rtn --awq-gqa-vo -o "$TMP/no"
[ ! -e "$TMP/no" ]
echo "ok 3 refusals"

code 0 "$NIBBLE" quantize $model --method awq --group-size 8 --calib "$TMP/ids.safetensors" -o "$TMP/awq" --json
[ "$(grep -c 'experts  least .* median .* most' "$TMP/err")" -eq 2 ]
grep -q '"without":' "$TMP/out"
code 0 "$NIBBLE" check "$TMP/awq"
code 0 "$NIBBLE" eval "$TMP/awq" --ids "$TMP/ids.safetensors" --ref $model
code 0 "$NIBBLE" quantize $model --method gptq --asym --format awq-gemm --group-size 8 --moe-calib all --calib "$TMP/ids.safetensors" -o "$TMP/gptq"
[ "$(grep -c 'least  *40 .* most  *40' "$TMP/err")" -eq 2 ]
code 0 "$NIBBLE" check "$TMP/gptq"
echo "ok 4 tokens of each expert, routed or all"
