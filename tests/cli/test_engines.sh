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
