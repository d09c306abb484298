# Mistakes and files of users (users.md, section 5) as they meet the program.
set -eu

code() { # wanted exit code, command...
    want=$1
    shift
    rc=0
    "$@" >"$TMP/out" 2>"$TMP/err" || rc=$?
    if [ "$rc" -ne "$want" ]; then
        echo "not ok: exit $rc, want $want: $*"
        cat "$TMP/out" "$TMP/err"
        exit 1
    fi
}
says() { # file, pattern
    if ! grep -q "$2" "$1"; then
        echo "not ok: no \"$2\" in"
        cat "$1"
        exit 1
    fi
}
copy() { # name
    rm -rf "$TMP/$1"
    cp -r "$in" "$TMP/$1"
    chmod -R u+w "$TMP/$1"
}

in=tests/data/layouts/awq-gemm-g32-asym-bf16-gptqmodel
weights=$in/model.safetensors
size=$(wc -c <"$weights")
head=$(od -An -tu8 -N8 "$weights" | tr -d ' ')

# BB-02: codes come back in column order. Through two other packings and as floats the weights are the same numbers.
code 0 "$NIBBLE" convert "$in" --to f32 -o "$TMP/f32"
code 0 "$NIBBLE" convert "$in" --to awq-gemv -o "$TMP/gemv"
code 0 "$NIBBLE" diff "$TMP/gemv" "$TMP/f32"
echo "ok BB-02"

# BB-10: a download that stopped: each cut has its own sentence.
for cut in 0 4 8 $((8 + head / 2)) $((8 + head + 1)) $((size - 1)); do
    copy cut
    truncate -s "$cut" "$TMP/cut/model.safetensors"
    rc=0
    "$NIBBLE" check "$TMP/cut" >"$TMP/out" 2>"$TMP/err" || rc=$?
    [ "$rc" -ne 0 ] || { echo "not ok BB-10: $cut bytes pass"; exit 1; }
    says "$TMP/err" 'model.safetensors'
done
says "$TMP/err" 'st.truncated .* 1 bytes missing, first tensor affected "'
echo "ok BB-10"

# BB-11: bytes behind the last tensor.
copy tail
printf x >>"$TMP/tail/model.safetensors"
code 4 "$NIBBLE" check "$TMP/tail"
says "$TMP/err" 'st.trailing_bytes \[FIL-006\]: .*1 bytes after the last tensor'
code 4 "$NIBBLE" run "$TMP/tail" hi
head -c 1048576 /dev/zero >>"$TMP/tail/model.safetensors"
code 4 "$NIBBLE" check "$TMP/tail"
says "$TMP/err" '1048577 bytes after'
echo "ok BB-11"

# BB-13: dense where packed was meant, and packed without any configuration.
code 5 "$NIBBLE" convert "$TMP/f32" --to awq -o "$TMP/never"
says "$TMP/err" 'these tensors are dense'
mkdir "$TMP/bare"
cp "$weights" "$TMP/bare/model.safetensors"
echo '{"model_type": "qwen2"}' >"$TMP/bare/config.json"
code 0 "$NIBBLE" inspect "$TMP/bare"
says "$TMP/out" '^note  *no quantization config was found; shapes say awq-gemm, 4 bits, group size 32$'
code 0 "$NIBBLE" diff "$in" "$TMP/bare"
code 1 "$NIBBLE" check "$TMP/bare"
says "$TMP/out" '\[CFG-001\]'
echo "ok BB-13"

# BB-14: the settings in any of three files; a contradiction is told with both values.
quant='{"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true, "version": "gemm"}'
for name in quantize_config.json quant_config.json; do
    copy side
    rm -f "$TMP/side/quantize_config.json"
    sed '/"quantization_config"/,/^  }/d' "$in/config.json" >"$TMP/side/config.json"
    if grep -q quantization_config "$TMP/side/config.json"; then
        echo "not ok BB-14: the test did not remove the settings"
        exit 1
    fi
    echo "$quant" >"$TMP/side/$name"
    code 0 "$NIBBLE" diff "$in" "$TMP/side"
done
copy side
echo "$quant" | sed 's/32/64/' >"$TMP/side/quantize_config.json"
code 0 "$NIBBLE" check "$TMP/side"
says "$TMP/out" '[Dd]isagree on group_size (32 vs 64).*\[CFG-009\]'
echo "ok BB-14"

# BB-16: scales of any float type are accepted and mean the same.
code 0 "$NIBBLE" convert "$in" --to awq --scale-dtype f32 -o "$TMP/s32"
code 0 "$NIBBLE" diff "$in" "$TMP/s32"
code 0 "$NIBBLE" convert "$in" --to awq --scale-dtype f16 -o "$TMP/s16"
code 0 "$NIBBLE" diff "$in" "$TMP/s16"
for name in s32 s16; do
    code 0 "$NIBBLE" check "$TMP/$name" --level must
done
echo "ok BB-16"
