# nibble check: exact findings, JSON, levels and exit codes on good and broken directories.
set -eu

same() { # label, wanted file, got file
    if ! diff -u "$2" "$3"; then
        echo "not ok $1"
        exit 1
    fi
    echo "ok $1"
}

. tests/cli/code.sh


good=tests/data/layouts/awq-gemm-g32-asym-bf16-gptqmodel

code 0 "$NIBBLE" check "$good"
cat >"$TMP/want" <<END
$good: awq-gemm, 4 bits, group 32, 14 quantized linears, 54 tensors, 238 KB: 0 errors, 0 warnings
END
same "a good checkpoint" "$TMP/want" "$TMP/out"
[ ! -s "$TMP/err" ] || { echo "not ok: words on stderr"; cat "$TMP/err"; exit 1; }

# AutoAWQ excluded this module by name and packed it all the same.
skip=tests/data/layouts/awq-gemm-g32-skip-autoawq
code 1 "$NIBBLE" check "$skip" --level must
cat >"$TMP/want" <<END
model.safetensors: model.layers.1.mlp.down_proj: error: model.layers.1.mlp.down_proj is quantized in the files, but modules_to_not_convert entry "layers.1.mlp.down_proj" says the opposite. Loaders that trust the config will look for model.layers.1.mlp.down_proj.weight. [CFG-015]
END
head -n 1 "$TMP/out" >"$TMP/first"
same "excluded but packed" "$TMP/want" "$TMP/first"

# A config edited by hand: another group size.
cp -r "$good" "$TMP/group"
chmod -R u+w "$TMP/group"
sed -i 's/"group_size": 32/"group_size": 48/' "$TMP/group/config.json"
rm -f "$TMP/group/quantize_config.json" "$TMP/group/tokenizer.json"
code 1 "$NIBBLE" check "$TMP/group" -v
cat >"$TMP/want" <<'END'
model.safetensors: model.layers.0.mlp.down_proj: error: model.layers.0.mlp.down_proj: 256 inputs are not a multiple of group size 48. [SHP-004]
  → Pad the layer or use a group size that divides it (16, 32, 64, 128, 256, -1).
END
grep -A1 'layers.0.mlp.down_proj' "$TMP/out" | head -n 2 >"$TMP/first"
same "group size and suggestion" "$TMP/want" "$TMP/first"
grep -q '^tokenizer.json: warning: tokenizer.json is missing; .* \[FIL-010\]$' "$TMP/out"
tail -n 1 "$TMP/out" | grep -q ': 14 errors, 1 warning$'
echo "ok summary counts"

# Fourteen findings of one rule: five of them, then one line. -v, JSON and SARIF hold all.
code 1 "$NIBBLE" check "$TMP/group"
[ "$(grep -c '\[SHP-004\]$' "$TMP/out")" -eq 5 ]
[ "$(grep -c 'more like this' "$TMP/out")" -eq 1 ]
grep -qx '… and 9 more like this \[SHP-004\] (--level all -v shows them)' "$TMP/out"
code 1 "$NIBBLE" check "$TMP/group" --level all -v
[ "$(grep -c '\[SHP-004\]$' "$TMP/out")" -eq 14 ]
if grep -q 'more like this' "$TMP/out"; then
    echo "not ok: -v does not show all"
    exit 1
fi
code 1 "$NIBBLE" check "$TMP/group" --json
[ "$(grep -c '"rule": *"SHP-004"' "$TMP/out")" -eq 14 ]
code 1 "$NIBBLE" check "$TMP/group" --sarif
[ "$(grep -c '"ruleId": *"SHP-004"' "$TMP/out")" -eq 14 ]
echo "ok repeated findings"

code 1 "$NIBBLE" check "$TMP/group" --level must
if grep -q warning: "$TMP/out"; then
    echo "not ok: a warning at level must"
    exit 1
fi
echo "ok level must"

code 1 "$NIBBLE" check "$TMP/group" --json
grep -q '"ok": *false' "$TMP/out"
grep -q '"rule": *"SHP-004"' "$TMP/out"
grep -q '"errors": *14' "$TMP/out"
echo "ok json"

# An unknown method, and a known one that is not read yet.
cp -r "$good" "$TMP/method"
chmod -R u+w "$TMP/method"
sed -i 's/"quant_method": "awq"/"quant_method": "fp8"/' "$TMP/method/config.json"
code 1 "$NIBBLE" check "$TMP/method" --level must
cat >"$TMP/want" <<'END'
config.json: quant_method: error: Quantization method fp8 is not a 4-bit integer checkpoint this tool understands. [CFG-003]
  → It stores 8-bit floats. Quantize the 16-bit original with `nibble quantize`, or use an AWQ export of the model.
END
head -n 2 "$TMP/out" >"$TMP/first"
same "CF-19 unknown method" "$TMP/want" "$TMP/first"

# Containers that do not open keep their own codes.
code 3 "$NIBBLE" check "$TMP/absent"
code 2 "$NIBBLE" check
code 2 "$NIBBLE" check "$good" --level some
cp -r "$good" "$TMP/cut"
chmod -R u+w "$TMP/cut"
truncate -s -100 "$TMP/cut/model.safetensors"
code 4 "$NIBBLE" check "$TMP/cut"
[ ! -s "$TMP/out" ] && [ "$(wc -l <"$TMP/err")" -eq 1 ]
echo "ok containers"

# The most common mistake with GPTQ: the label says v2, the zero points are v1. The tensors decide.
cp -r tests/data/layouts/gptq-v1-4bit-g32-desc "$TMP/label"
chmod -R u+w "$TMP/label"
code 0 "$NIBBLE" check "$TMP/label" --level should
if grep -q 'ORD-' "$TMP/out"; then echo "not ok: a good GPTQ label"; exit 1; fi
sed -i 's/"checkpoint_format": "gptq"/"checkpoint_format": "gptq_v2"/; s/"format": "gptq"/"format": "gptq_v2"/' "$TMP/label/config.json"
code 0 "$NIBBLE" check "$TMP/label"
cat >"$TMP/want" <<'END'
config.json: checkpoint_format: warning: Config says gptq_v2, zero points say gptq (stored 77777777 everywhere). Using gptq. [ORD-005]
  → Fix checkpoint_format to avoid "!!!!" output in servers.
END
grep -A1 'ORD-005' "$TMP/out" >"$TMP/first"
same "zero points against the label" "$TMP/want" "$TMP/first"
tail -n 1 "$TMP/out" | grep -q ': gptq, 4 bits, group 32, 14 quantized linears'
echo "ok the layout that is used"

# SARIF: one run, the rules that occur, a result per finding with file and tensor
cp -r "$good" "$TMP/sarif dir"
chmod -R u+w "$TMP/sarif dir"
sed -i 's/"group_size": [0-9]*/"group_size": 64/' "$TMP/sarif dir/config.json"
code 1 "$NIBBLE" check "$TMP/sarif dir" --sarif
grep -q '"version": "2.1.0"' "$TMP/out"
grep -q '"ruleId": "CFG-007"' "$TMP/out"
grep -q '"level": "error"' "$TMP/out"
grep -q '"uri": "file://.*/sarif%20dir/' "$TMP/out"
grep -q '"fullyQualifiedName": "model.layers.0.' "$TMP/out"
code 0 "$NIBBLE" check "$good" --sarif
grep -q '"results": \[\]' "$TMP/out"
echo "ok SARIF"
