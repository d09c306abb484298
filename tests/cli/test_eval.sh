# nibble eval --dump: the same bytes whatever the threads and kernels, and exit codes of refused input.
set -eu

code() { # wanted exit code, wanted start of the error, command...
    want=$1
    says=$2
    shift 2
    rc=0
    "$@" >"$TMP/out" 2>"$TMP/err" || rc=$?
    if [ "$rc" -ne "$want" ] || ! grep -q "$says" "$TMP/err"; then
        echo "not ok: exit $rc, want $want and \"$says\": $*"
        cat "$TMP/out" "$TMP/err"
        exit 1
    fi
}

model=tests/data/layouts/awq-gemm-g32-asym-bf16-gptqmodel
ids=tests/data/models/llama/golden.safetensors # any small ids

code 0 "1 x 40 tokens" "$NIBBLE" eval $model --input-ids $ids:input_ids --dump "$TMP/a.safetensors" --hidden --greedy 5 --threads 1
code 0 "" "$NIBBLE" eval $model --input-ids $ids:input_ids --dump "$TMP/b.safetensors" --hidden --greedy 5 --threads 2
code 0 "" "$NIBBLE" eval $model --input-ids $ids:input_ids --dump "$TMP/c.safetensors" --hidden --greedy 5 --cpu scalar
cmp "$TMP/a.safetensors" "$TMP/b.safetensors"
cmp "$TMP/a.safetensors" "$TMP/c.safetensors"
echo "ok the same bytes from 1 and 2 threads and from scalar kernels"

code 0 "" "$NIBBLE" eval $model --input-ids $ids --dump "$TMP/d.safetensors" --exact-fp32
! cmp -s "$TMP/a.safetensors" "$TMP/d.safetensors"
echo "ok exact-fp32 differs"

code 12 "out.exists" "$NIBBLE" eval $model --input-ids $ids --dump "$TMP/d.safetensors"
code 0 "" "$NIBBLE" eval $model --input-ids $ids --dump "$TMP/d.safetensors" --force
code 2 "arg.conflict" "$NIBBLE" eval $model --input-ids $ids
code 3 "error: " "$NIBBLE" eval "$TMP/none" --input-ids $ids --dump "$TMP/e.safetensors"
code 3 "error: " "$NIBBLE" eval $model --input-ids "$TMP/none.safetensors" --dump "$TMP/e.safetensors"
code 4 "ids.tensor" "$NIBBLE" eval $model --input-ids $ids:nothing --dump "$TMP/e.safetensors"
code 4 "ids.shape" "$NIBBLE" eval $model --input-ids $ids:logits --dump "$TMP/e.safetensors"
cp -R $model "$TMP/unknown"
sed -e 's/"qwen2"/"rwkv9"/' -e 's/Qwen2ForCausalLM/Rwkv9ForCausalLM/' $model/config.json >"$TMP/unknown/config.json"
code 5 "cfg.arch" "$NIBBLE" eval "$TMP/unknown" --input-ids $ids --dump "$TMP/e.safetensors"
[ ! -e "$TMP/e.safetensors" ]
echo "ok refused input leaves no file"
