# nibble inspect: the screen, JSON, and bad input as one sentence with its exit code.
set -eu

. tests/cli/code.sh

refused() { # exit code, class, command...
    class=$2
    want=$1
    shift 2
    code "$want" "$@"
    if [ "$(wc -l <"$TMP/err")" -ne 1 ] || [ -s "$TMP/out" ] || ! grep -q "^nibble: error: $class" "$TMP/err"; then
        echo "not ok: want one line of class $class: $*"
        cat "$TMP/out" "$TMP/err"
        exit 1
    fi
    echo "ok $class"
}

code 0 "$NIBBLE" inspect models/pemberley-4m --context 1000
head -n 9 "$TMP/out" >"$TMP/got"
cat >"$TMP/want" <<'END'
models/pemberley-4m
architecture  LlamaForCausalLM (llama)
parameters    3.7 M
shape         4 layers, hidden 256, ffn 768, vocabulary 2048, tied head
attention     4 heads, 2 key-value heads of 64; context 1024
quantization  none
container     safetensors, 1 file, 38 tensors, 7.3 MB
stored        BF16         38 tensors      7.3 MB
END
head -n 8 "$TMP/got" | diff -u "$TMP/want" -
grep -q '^memory .* at context 1000: ' "$TMP/out"
grep -q '^verdict       runs here' "$TMP/out"
grep -q '^speed         at best [0-9.]* tok/s for one answer ([0-9.]* [GM]B/s read here)$' "$TMP/out"
echo "ok screen"

code 0 "$NIBBLE" info tests/data/layouts/awq-gemm-g32-asym-bf16-gptqmodel
grep -q '^quantization  awq, layout awq-gemm, 4 bits, group 32, with zero points; 14 linears$' "$TMP/out"
code 0 "$NIBBLE" inspect --json tests/data/layouts/awq-gemm-g32-asym-bf16-gptqmodel
grep -q '"layout": "awq-gemm"' "$TMP/out"
grep -q '"runs": true' "$TMP/out"
grep -q '"decode_tok_s_bound": [1-9]' "$TMP/out"
echo "ok layout"

# bad input
refused 3 io.not_found "$NIBBLE" inspect "$TMP/absent"
refused 3 dir.no_weights "$NIBBLE" inspect "$TMP"
refused 2 arg. "$NIBBLE" inspect
refused 2 arg. "$NIBBLE" inspect models/pemberley-4m --context 0
head -c 100000 models/pemberley-4m/model.safetensors >"$TMP/short.safetensors"
refused 4 'st.truncated \[FIL-006\]' "$NIBBLE" inspect "$TMP/short.safetensors"
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n' >"$TMP/model.safetensors"
refused 4 'fmt.mismatch \[FIL-009\]' "$NIBBLE" inspect "$TMP/model.safetensors"
printf 'GGUF\001\000\000\000aaaaaaaaaaaaaaaa' >"$TMP/old.gguf"
refused 5 gguf.version "$NIBBLE" inspect "$TMP/old.gguf"
mkdir "$TMP/index"
printf '{"weight_map":{"a.weight":"../../x"}}' >"$TMP/index/model.safetensors.index.json"
refused 4 idx.unsafe_path "$NIBBLE" inspect "$TMP/index"
