# nibble inspect --engines: verdict, rule and next command; lists, JSON, rule files.
set -eu

. tests/cli/code.sh

gemv=tests/data/layouts/awq-gemv-gptqmodel
code 0 "$NIBBLE" inspect "$gemv" --engines vllm --gpu sm80
cat >"$TMP/want" <<'END'
vllm           sm80       REFUSES       [V-A1] the version field is ignored and the gemm layout assumed; these shapes are another layout's
                          → nibble convert --to awq-gemm

Rules as read from the sources at the versions that -v shows; other versions are not verified.
END
diff -u "$TMP/want" "$TMP/out"
echo "ok verdict"

code 0 "$NIBBLE" inspect "$gemv" --engines
grep -q '^openvino  *cpu  *REFUSES  *\[OV-1\]' "$TMP/out"
code 0 "$NIBBLE" inspect --engines "$gemv" --json --gpu sm90
grep -q '"engine": "sglang"' "$TMP/out"
code 0 "$NIBBLE" inspect --engines vllm,sglang "$gemv"
[ "$(grep -c '^[a-z]' "$TMP/out")" -eq 4 ]
echo "ok lists"

code 2 "$NIBBLE" inspect "$gemv" --engines=vlm
code 2 "$NIBBLE" inspect "$gemv" --engines vllm --gpu sm
code 2 "$NIBBLE" inspect "$gemv" --gpu sm80
echo '{"engines":[{"name":"mine","title":"Mine","version":"1","source":"here","refuse":[],"kernels":[],"none":{"id":"M","verdict":"UNKNOWN","message":"nothing known"}}]}' >"$TMP/rules.json"
code 0 "$NIBBLE" inspect "$gemv" --engines=mine --rules "$TMP/rules.json"
grep -q '^mine  *sm80  *UNKNOWN  *\[M\] nothing known$' "$TMP/out"
echo "ok rule files"

# AT-17: the rules that no checkpoint of tests/data meets, each with one that it decides and one that it lets pass.
plain=models/pemberley-4m
rtn() {
    out=$TMP/$1
    shift
    "$NIBBLE" quantize "$plain" --method rtn --format gptq --sym -q -o "$out" "$@"
}
rtn g16 --group-size 16
rtn g32 --group-size 32
rtn mixed --group-size 32 --ignore '.*k_proj'
rtn label --group-size 32
sed -i 's/"checkpoint_format": "gptq"/"checkpoint_format": "gptq_v2"/' "$TMP/label"/*.json
"$NIBBLE" convert "$plain" --to gguf -q -o "$TMP/plain.gguf" >/dev/null
while read -r model engine verdict; do
    code 0 "$NIBBLE" inspect "$model" --engines "$engine" --gpu sm80
    grep -q "^$engine  *sm80  *$verdict" "$TMP/out" || { echo "$model, $engine: not $verdict"; cat "$TMP/out"; exit 1; }
done <<END
$plain vllm RUNS  *\[V-0\]
$plain transformers RUNS  *\[T-0\]
$TMP/plain.gguf vllm UNKNOWN  *\[V-0\]
$TMP/plain.gguf transformers UNKNOWN  *\[T-0\]
$TMP/g16 vllm REFUSES  *\[V-G2\]
$TMP/g32 vllm RUNS  *\[V-K4\]
$TMP/mixed vllm REFUSES  *\[V-F1\]
$TMP/label transformers CRASHES  *\[T-2\]
$TMP/g32 transformers RUNS  *\[T-1\]
END
echo "ok rules that were not decided above"
