# nibble convert between layouts: there and back, config files, refusals, repair.
set -eu

. tests/cli/code.sh
says() { # file, pattern
    if ! grep -q "$2" "$1"; then
        echo "not ok: no \"$2\" in"
        cat "$1"
        exit 1
    fi
}

in=tests/data/layouts/awq-gemm-g32-skip-autoawq

code 0 "$NIBBLE" convert "$in" --to gptq -o "$TMP/gptq"
says "$TMP/out" ': 68 tensors, .*; 14 linears from awq-gemm to gptq_v2; codes, zero points and scales exact; read back and compared; '
says "$TMP/gptq/config.json" '"checkpoint_format": "gptq_v2"'
says "$TMP/gptq/quantize_config.json" '"quant_method": "gptq"'
code 0 "$NIBBLE" convert "$TMP/gptq" --to awq -o "$TMP/back" --threads 1
code 0 "$NIBBLE" convert "$in" --to awq-gemm -o "$TMP/same"
cmp "$TMP/back/model.safetensors" "$TMP/same/model.safetensors"
cmp "$TMP/back/tokenizer.json" "$in/tokenizer.json"
code 0 "$NIBBLE" check "$TMP/gptq"
code 0 "$NIBBLE" check "$TMP/back"
echo "ok awq to gptq to awq"

code 0 "$NIBBLE" convert "$in" --to ct -o "$TMP/ct" --json
says "$TMP/out" '"layout": "compressed-tensors"'
says "$TMP/out" '"verified": true'
[ ! -e "$TMP/ct/quantize_config.json" ]
says "$TMP/ct/config.json" '"quant_method": "compressed-tensors"'
code 0 "$NIBBLE" check "$TMP/ct"
code 0 "$NIBBLE" convert "$in" --to ct -o "$TMP/fast" --no-verify --json
says "$TMP/out" '"verified": false'
cmp "$TMP/ct/model.safetensors" "$TMP/fast/model.safetensors"
echo "ok compressed-tensors"

code 5 "$NIBBLE" convert tests/data/layouts/gptq-v1-4bit-g32-desc --to awq -o "$TMP/never"
says "$TMP/err" '^nibble: error: conv.act_order \[CNV-010\]: .* reordered g_idx; awq-gemm has no g_idx\. .* Keep GPTQ/compressed-tensors, or re-quantize\.$'
code 4 "$NIBBLE" convert "$in" --to gptq-v1 -o "$TMP/never"
says "$TMP/err" '^nibble: error: conv.zero \[CNV-020\]: .* zero points are 0 and cannot be stored in GPTQ v1\. .* Use --to gptq-v2\.$'
code 5 "$NIBBLE" convert "$in" --to gptq --bits 8 -o "$TMP/never"
says "$TMP/err" '^nibble: error: conv.bits \[CNV-060\]: .*Changing bits (4 to 8) is not a conversion\.'
code 5 "$NIBBLE" convert models/pemberley-4m --to awq -o "$TMP/never"
says "$TMP/err" '^nibble: error: conv.dense: .*these tensors are dense'
code 10 "$NIBBLE" convert "$in" --to ct --scale-dtype bf16 -o "$TMP/never"
says "$TMP/err" '^nibble: error: num.scale_inexact \[CNV-030\]: .* scales change when stored as bfloat16 .* pass --lossy\.'
code 0 "$NIBBLE" convert "$in" --to ct --scale-dtype bf16 --lossy -o "$TMP/lossy"
says "$TMP/out" 'codes and zero points exact, [0-9]* of [0-9]* scales rounded, by at most '
code 2 "$NIBBLE" convert "$in" --to awq-gem -o "$TMP/never"
code 2 "$NIBBLE" convert "$in" --to bf16 --repair zeros -o "$TMP/never"
code 5 "$NIBBLE" convert "$in" --repair zeros -o "$TMP/never"
says "$TMP/err" '^nibble: error: conv.repair: .*nothing was written$'
[ ! -e "$TMP/never" ]
[ -z "$(find "$TMP" -name '*nibble-*')" ]
echo "ok refusals"

# BB-01: v2 zero points under the label gptq (v1): read for what they are, and a repaired copy says so
cp -r tests/data/layouts/gptq-v2-3bit-g32-asym "$TMP/label"
chmod -R u+w "$TMP/label"
sed -i 's/"gptq_v2"/"gptq"/g' "$TMP/label"/*onfig.json
code 0 "$NIBBLE" diff tests/data/layouts/gptq-v2-3bit-g32-asym "$TMP/label"
says "$TMP/err" 'the config says gptq, zero points say gptq_v2'
code 0 "$NIBBLE" convert "$TMP/label" --repair zeros -o "$TMP/labelled"
says "$TMP/out" '14 linears from gptq_v2 to gptq_v2, 14 repaired'
says "$TMP/labelled/config.json" '"checkpoint_format": "gptq_v2"'
code 0 "$NIBBLE" diff tests/data/layouts/gptq-v2-3bit-g32-asym "$TMP/labelled"
echo "ok BB-01 label of zero points"

# GGUF: exact for symmetric codes, Q4_1 with its bound, refusal of a reordered g_idx
code 0 "$NIBBLE" convert "$in" --to gguf -o "$TMP/x.gguf"
says "$TMP/out" '14 linears to Q4_1; codes exact, values change by at most .* (0\.00[0-7][0-9] of a step): .*; read back and compared; '
code 0 "$NIBBLE" diff "$in" "$TMP/x.gguf" --tolerance 0.001
code 12 "$NIBBLE" convert "$in" --to gguf -o "$TMP/x.gguf"
code 0 "$NIBBLE" convert tests/data/layouts/gptq-p-3bit-g32 --to gguf -o "$TMP/y.gguf" --json
says "$TMP/out" '"q4_0": 14'
says "$TMP/out" '"inexact": 0'
code 0 "$NIBBLE" diff tests/data/layouts/gptq-p-3bit-g32 "$TMP/y.gguf"
code 5 "$NIBBLE" convert tests/data/layouts/gptq-v1-4bit-g32-desc --to gguf -o "$TMP/z.gguf"
says "$TMP/err" '^nibble: error: gguf.block: .* activation order'
[ ! -e "$TMP/z.gguf" ]
[ -z "$(find "$TMP" -name '*nibble-*')" ]
echo "ok gguf"
