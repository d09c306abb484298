# Models with recurrent layers through the whole program: inspect, check, quantize (what stays floats is listed), check again, the
# same logits whatever the threads and tables, AWQ nearer to the original than rounding; convert there and back.
set -eu

. tests/cli/code.sh

root=tests/data/models-2026
model=$root/qwen3_5-q64
ids=$model/golden.safetensors

code 0 "$NIBBLE" inspect $model
grep -q 'qwen3_5_text' "$TMP/out"
for m in qwen3_next lfm2 granitemoehybrid nemotron_h-latent falcon_h1 mamba2 jamba kimi_linear minimax olmo_hybrid gemma3n gemma4 deepseek_v32 longcat_flash zamba2 deepseek_v4; do
    code 0 "$NIBBLE" check $root/$m
    if grep -E 'NAM-00|SHP-0|cfg\.' "$TMP/out" "$TMP/err"; then
        echo "not ok: check finds something in $m"
        exit 1
    fi
done
echo "ok 1 inspect and check know them"

code 0 "$NIBBLE" quantize $model --method awq --group-size 32 --calib $ids -q -o "$TMP/awq"
code 0 "$NIBBLE" quantize $model --method rtn --group-size 32 -q -o "$TMP/rtn"
code 0 "$NIBBLE" check "$TMP/awq"
grep -q 'in_proj_b' "$TMP/awq/config.json"
grep -q '0 errors' "$TMP/out"
echo "ok 2 quantize leaves rates and decays alone, and says so"

code 0 "$NIBBLE" eval "$TMP/awq" --input-ids $ids:input_ids --dump "$TMP/a.safetensors" --greedy 5 --threads 1
code 0 "$NIBBLE" eval "$TMP/awq" --input-ids $ids:input_ids --dump "$TMP/b.safetensors" --greedy 5 --threads 2
code 0 "$NIBBLE" eval "$TMP/awq" --input-ids $ids:input_ids --dump "$TMP/c.safetensors" --greedy 5 --cpu scalar
cmp "$TMP/a.safetensors" "$TMP/b.safetensors"
cmp "$TMP/a.safetensors" "$TMP/c.safetensors"
echo "ok 3 the same logits from one thread, two, and the scalar table"

kl() {
    code 0 "$NIBBLE" eval "$1" --ids $ids:input_ids --ref $model
    sed -n 's/.*KL(ref || model) *\([0-9.]*\).*/\1/p' "$TMP/out" | head -n 1
}
a=$(kl "$TMP/awq")
r=$(kl "$TMP/rtn")
awk -v a="$a" -v r="$r" 'BEGIN { exit !(a > 0 && a < r) }' || { echo "not ok: KL of AWQ $a, of rounding $r"; exit 1; }
echo "ok 4 KL of AWQ below that of rounding"

code 0 "$NIBBLE" convert "$TMP/awq" --to compressed-tensors -o "$TMP/ct"
code 0 "$NIBBLE" diff "$TMP/awq" "$TMP/ct"
code 0 "$NIBBLE" eval "$TMP/ct" --input-ids $ids:input_ids --dump "$TMP/d.safetensors" --greedy 5
cmp "$TMP/a.safetensors" "$TMP/d.safetensors"
echo "ok 5 converted to another layout: the same logits"

code 0 "$NIBBLE" bench $root/lfm2 --prompt 8 --decode 4 --depth 5 --batch 2 --rounds 1 -q
echo "ok 6 bench goes back to where the prompt ended"
