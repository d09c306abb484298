# nibble convert: a complete directory, nothing half-written, exit codes.
set -eu

. tests/cli/code.sh

in=tests/data/layouts/awq-gemm-g32-asym-bf16-gptqmodel
code 0 "$NIBBLE" convert "$in" --to bf16 -o "$TMP/plain"
grep -q ': 26 tensors, .*, bf16; 14 quantized linears widened; ' "$TMP/out"
for f in "$in"/*; do
    name=$(basename "$f")
    case $name in
    config.json | quantize_config.json | *.safetensors) ;;
    *) cmp "$f" "$TMP/plain/$name" ;;
    esac
done
[ ! -e "$TMP/plain/quantize_config.json" ]
if grep -q quantization_config "$TMP/plain/config.json"; then
    echo "not ok: config.json still says that it is quantized"
    exit 1
fi
code 0 "$NIBBLE" inspect "$TMP/plain"
grep -q '^quantization  none$' "$TMP/out"
echo "ok dequantize"

code 12 "$NIBBLE" convert "$in" --to f16 -o "$TMP/plain"
grep -q '^nibble: error: out.exists' "$TMP/err"
code 0 "$NIBBLE" convert "$in" --to f16 -o "$TMP/plain" --force --json
grep -q '"dtype": "f16"' "$TMP/out"
echo "ok force"

# shards of 0.1 MB, and back to one file: the same tensors
code 0 "$NIBBLE" convert models/pemberley-4m --to f32 -o "$TMP/wide" --shard-size 0.001
[ -e "$TMP/wide/model.safetensors.index.json" ]
code 0 "$NIBBLE" convert "$TMP/wide" --to bf16 -o "$TMP/back"
code 0 "$NIBBLE" convert models/pemberley-4m --to bf16 -o "$TMP/again"
cmp "$TMP/back/model.safetensors" "$TMP/again/model.safetensors"
code 0 "$NIBBLE" convert models/pemberley-4m --to bf16 -o "$TMP/one" --threads 1
cmp "$TMP/one/model.safetensors" "$TMP/again/model.safetensors"
echo "ok shards, threads"

rm -f "$TMP/wide/model-00001-of-"*
code 3 "$NIBBLE" convert "$TMP/wide" --to bf16 -o "$TMP/never"
grep -q '^nibble: error: idx.missing_shard \[FIL-003\]: model-00001-of-.*: listed in the index but not on disk; ' "$TMP/err"
code 2 "$NIBBLE" convert models/pemberley-4m --to f31 -o "$TMP/never"
code 2 "$NIBBLE" convert models/pemberley-4m --to f16
code 3 "$NIBBLE" convert "$TMP/absent" --to f16 -o "$TMP/never"
code 12 "$NIBBLE" convert "$TMP/back" --to f16 -o "$TMP/back" --force
[ ! -e "$TMP/never" ]
[ -z "$(find "$TMP" -name '*nibble-*')" ]
echo "ok nothing half-written"
