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

# ---- measuring: what must be in the JSON, the same on 1 and 2 threads and with scalar kernels; options that exclude each other

pemberley=models/pemberley-4m
head -2 tests/data/eval/docs.jsonl >"$TMP/few.jsonl"
tail -2 tests/data/eval/choices.jsonl >"$TMP/choices.jsonl"
echo "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife." >"$TMP/one.txt"
text=$TMP/few.jsonl
"$NIBBLE" quantize $pemberley --method rtn -o "$TMP/rtn" -q
measure() { "$NIBBLE" eval "$TMP/rtn" $pemberley --text $text --text "$TMP/one.txt" --protocol documents-64 --ref $pemberley --json --layers -q "$@"; }
measure --threads 1 >"$TMP/a.json"
measure --threads 2 >"$TMP/b.json"
cmp "$TMP/a.json" "$TMP/b.json"
for key in '"protocol": "documents-64"' '"drawn": "' '"kl_median"' '"kl_99"' '"kl_999"' '"top1"' '"top5"' '"ppl_ratio"' \
    '"word_ppl"' '"bits_per_byte"' '"alone"' '"drift"' '"parts"' '"models"' '"kl_by_position"'; do
    grep -q "$key" "$TMP/a.json" || { echo "not ok: no $key in the JSON"; exit 1; }
done
"$NIBBLE" eval $pemberley --choices "$TMP/choices.jsonl" --json -q >"$TMP/c.json"
grep -q '"questions": 2' "$TMP/c.json"
echo "ok measures named in the JSON, the same for any number of threads"

code 2 "arg.missing" "$NIBBLE" eval $pemberley
code 2 "arg.missing" "$NIBBLE" eval --text $text
code 2 "arg.conflict" "$NIBBLE" eval $pemberley --text $text --ids $ids
code 2 "arg.conflict" "$NIBBLE" eval $pemberley --text $text --layers
code 2 "arg.conflict" "$NIBBLE" eval $pemberley --ids $ids --window 64
code 2 "arg.conflict" "$NIBBLE" eval $pemberley --text $text --ref $pemberley --ref-logits "$TMP/none"
code 2 "arg.conflict" "$NIBBLE" eval $pemberley $pemberley --text $text --save-logits "$TMP/none"
code 2 "eval.protocol" "$NIBBLE" eval $pemberley --text $text --protocol wikitext
code 2 "eval.vocab" "$NIBBLE" eval $pemberley --text $text --protocol documents-64 --ref $model
code 4 "json.text" "$NIBBLE" eval $pemberley --text tests/data/eval/choices.jsonl
code 4 "choice.line" "$NIBBLE" eval $pemberley --choices $text
code 4 "topk.header" "$NIBBLE" eval $pemberley --text $text --ref-logits $text
code 3 "" "$NIBBLE" eval $pemberley --choices "$TMP/none"
echo "ok refused options and files"

code 0 "positions (documents-64)" "$NIBBLE" eval $pemberley --text $text --protocol documents-64 --save-logits "$TMP/r.topk"
code 12 "out.exists" "$NIBBLE" eval $pemberley --text $text --protocol documents-64 --save-logits "$TMP/r.topk"
"$NIBBLE" eval "$TMP/rtn" --text $text --protocol documents-64 --ref-logits "$TMP/r.topk" -q >"$TMP/out"
grep -q "lower bound" "$TMP/out"
code 11 "eval.topk" "$NIBBLE" eval "$TMP/rtn" --text $text --protocol documents-32 --ref-logits "$TMP/r.topk"
echo "ok a reference from saved logits"

mkdir -p "$TMP/<script>&" && cp -R "$TMP/rtn" "$TMP/<script>&/<b>x"
code 0 "the same as a page" "$NIBBLE" eval "$TMP/rtn" "$TMP/<script>&/<b>x" --text $text --protocol documents-64 --ref $pemberley --layers \
    --choices "$TMP/choices.jsonl" --report "$TMP/eval.html"
code 12 "out.exists" "$NIBBLE" eval "$TMP/rtn" --text $text --report "$TMP/eval.html"
"$NIBBLE" quantize $pemberley --method rtn -o "$TMP/rtn2" -q --report "$TMP/quantize.html"
for page in eval quantize; do
    ! grep -qE '<script|<link|<img|src=|href=|url\(' "$TMP/$page.html" || { echo "not ok: $page.html asks for something"; exit 1; }
    [ "$(grep -c '<svg' "$TMP/$page.html")" -ge 4 ]
    if command -v xmllint >/dev/null; then xmllint --noout "$TMP/$page.html"; fi
done
grep -q '&lt;b&gt;x' "$TMP/eval.html"
echo "ok pages"
