# Mistakes and files of users (users.md, section 5) as they meet the program.
set -eu

. tests/cli/code.sh
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

# BB-12: ranges that overlap or leave a hole are refused with the tensor's name; another order of a sound header is fine.
file() { # name, header, bytes of data
    {
        printf "$(printf '\\%03o\\%03o\\0\\0\\0\\0\\0\\0' $((${#2} % 256)) $((${#2} / 256)))"
        printf '%s' "$2"
        head -c "$3" /dev/zero
    } >"$TMP/$1.safetensors"
}
entry() { # name, begin, end
    printf '"%s":{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]}' "$1" $(($3 - $2)) "$2" "$3"
}
file overlap "{$(entry first 0 32),$(entry second 16 48)}" 48
code 4 "$NIBBLE" inspect "$TMP/overlap.safetensors"
says "$TMP/err" 'st.offsets \[FIL-006\]: .*: second: starts at byte 16, expected 32: the file has'
file hole "{$(entry first 0 32),$(entry second 48 64)}" 64
code 4 "$NIBBLE" inspect "$TMP/hole.safetensors"
says "$TMP/err" 'st.offsets \[FIL-006\]: .*: second: starts at byte 48, expected 32: the file has'
file order "{$(entry second 32 64),$(entry third 64 65),$(entry first 0 32)}" 65
code 0 "$NIBBLE" inspect "$TMP/order.safetensors"
says "$TMP/out" '3 tensors, 65 bytes\|3 tensors, 65 B'
echo "ok BB-12"

# BB-13: dense where packed was meant, and packed without any configuration.
code 5 "$NIBBLE" convert "$TMP/f32" --to awq -o "$TMP/never"
says "$TMP/err" 'these tensors are dense'
mkdir "$TMP/bare"
cp "$weights" "$TMP/bare/model.safetensors"
echo '{"model_type": "qwen2"}' >"$TMP/bare/config.json"
code 0 "$NIBBLE" inspect "$TMP/bare"
says "$TMP/out" '^note  *no quantization config was found; shapes say awq-gemm, 4 bits, group size 32$'
code 0 "$NIBBLE" diff "$in" "$TMP/bare"
code 1 "$NIBBLE" check "$TMP/bare" # the sizes in config.json are missing
says "$TMP/out" 'warning: Found 14 packed linears .* Their shapes say awq-gemm, 4 bits, group size 32; .*\[CFG-001\]'
cp "$in/config.json" "$in"/tokenizer* "$TMP/bare/"
sed -i '/"quantization_config"/,/^  }/d' "$TMP/bare/config.json"
code 0 "$NIBBLE" check "$TMP/bare" --format awq --bits 4 --group-size 32
if grep -q CFG-001 "$TMP/out"; then
    echo "not ok BB-13: a warning about what was asked for"
    exit 1
fi
code 1 "$NIBBLE" check "$TMP/bare" --group-size 64
says "$TMP/out" 'error: The packed tensors do not have the shapes of .*, group size 64, .*\[CFG-001\]'
code 0 "$NIBBLE" inspect "$TMP/bare" --bits 4 --format awq-gemm
says "$TMP/out" '^quantization  awq, layout awq-gemm, 4 bits, group 32'
code 2 "$NIBBLE" check "$in" --bits 4
says "$TMP/err" 'arg.conflict: .*are for models without a quantization config; this one has config.json$'
code 5 "$NIBBLE" check models/pemberley-4m --format awq
says "$TMP/err" 'conv.dense: .*these tensors are dense'
code 0 "$NIBBLE" run "$TMP/bare" hi -n 2
says "$TMP/err" 'no quantization config was found; shapes say awq-gemm'
code 0 "$NIBBLE" run "$in" hi -n 2
cp "$TMP/out" "$TMP/labelled"
code 0 "$NIBBLE" run "$TMP/bare" hi -n 2
cmp "$TMP/out" "$TMP/labelled"
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
