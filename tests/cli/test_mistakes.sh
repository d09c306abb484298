# The mistakes that users make most: one line on stderr with its class, what was found and what to do; the exit code; and
# nothing under the name of the output. Rows of hardening 5 that need the whole program are here too.
set -eu
model=models/pemberley-4m
out=$TMP/never
fail() { echo "not ok $*"; cat "$TMP/out" "$TMP/err"; exit 1; }

# mistake LABEL EXIT LINE COMMAND...: LINE is all of the message, T standing for the scratch directory.
mistake() {
    label=$1 want=$2
    printf 'nibble: error: %s\n' "$3" >"$TMP/want"
    shift 3
    rc=0
    timeout 60 "$@" >"$TMP/out" 2>"$TMP/all" </dev/null || rc=$?
    grep -a '^nibble: error: ' "$TMP/all" | sed "s|$TMP|T|g" >"$TMP/err" || true
    [ "$rc" -eq "$want" ] || { cp "$TMP/all" "$TMP/err"; fail "$label: exit $rc, want $want"; }
    cmp -s "$TMP/err" "$TMP/want" || { diff "$TMP/want" "$TMP/err" >"$TMP/all" || true; cat "$TMP/all"; fail "$label: another message"; }
    [ ! -e "$out" ] || fail "$label: something has the name of the output"
    [ -z "$(find "$TMP" -maxdepth 1 -name '*nibble-*')" ] || fail "$label: a temporary was left"
    echo "ok $label"
}
copy() { # NAME: the model under that name, links but for config and settings
    rm -rf "${TMP:?}/$1"
    mkdir "$TMP/$1"
    for f in "$model"/*; do ln -s "$PWD/$f" "$TMP/$1/"; done
}
own() { # NAME FILE: replace the link by a copy
    rm "$TMP/$1/$2"
    cp "$model/$2" "$TMP/$1/$2"
}
quant() { # NAME OBJECT: the model with this quantization config
    copy "$1"
    rm "$TMP/$1/config.json"
    sed "s/^{/{\"quantization_config\":$2,/" "$model/config.json" >"$TMP/$1/config.json"
}
"$NIBBLE" quantize $model --method rtn --group-size 64 -o "$TMP/q4" -q 2>"$TMP/err" || fail "a 4-bit model to start from"

# Numbers of options are read whole: no sign that is not asked for, no space, no hexadecimal, nothing behind them (CL-01, CR-05).
number() { # LINE COMMAND...
    line=$1
    shift
    mistake "CL-01 $*" 2 "arg.value: $line" "$NIBBLE" "$@"
}
number '--threads is "+2", expected an integer from 1 to 1024' run $model hi --threads=+2
number '--threads is "2x", expected an integer from 1 to 1024' run $model hi --threads=2x
number '--temperature is "0x1p1", expected a number from 0 to 100' run $model hi --temperature=0x1p1
number '--temperature is " 1", expected a number from 0 to 100' run $model hi "--temperature= 1"
number '--temperature is "nan", expected a number from 0 to 100' run $model hi --temperature nan
number '--request-rate is a number above 0, or inf' bench serve --port 1 --request-rate 5x
number '--burstiness is a number above 0, or inf' bench serve --port 1 --burstiness +1
number 'a ramp needs --ramp-up-strategy, --ramp-up-start-rps and --ramp-up-end-rps, and no --request-rate' bench serve --port 1 --ramp-up-start-rps 1
number '--ramp-up-strategy is linear or exponential' bench serve --port 1 --ramp-up-strategy steep --ramp-up-start-rps 1 --ramp-up-end-rps 2
number '--goodput is a list of ttft:MS, tpot:MS and e2el:MS' bench serve --port 1 --goodput tttf:5
number '--goodput is a list of ttft:MS, tpot:MS and e2el:MS' bench serve --port 1 --goodput 'ttft:500 tpot:5x'
number '--base-url has no port after the colon' bench serve --base-url http://127.0.0.1:99999
number '--base-url has no port after the colon' bench serve --base-url http://127.0.0.1:80x
number '--metric-percentiles is a list such as 50,90,99' bench serve --port 1 --metric-percentiles '50;90'

copy deep
rm "$TMP/deep/config.json"
head -c 200000 /dev/zero | tr '\0' '[' >"$TMP/deep/config.json"
mistake "JS-03 a configuration of 200,000 brackets" 6 'json.depth: config.json: nesting is deeper than 128 levels at byte 128' "$NIBBLE" run "$TMP/deep" hi

# Where is the model?
mistake "wrong path" 3 'io.not_found: T/nosuch: no such file; check the path' "$NIBBLE" run "$TMP/nosuch" hi
mkdir "$TMP/parent" && cp -r "$TMP/q4" "$TMP/parent/"
mistake "the folder above the model" 3 'dir.no_weights: T/parent: no weights here: no .safetensors, no .bin or .pt and no .gguf file' \
    "$NIBBLE" inspect "$TMP/parent"
mkdir "$TMP/sharded" && cp $model/config.json $model/tokenizer.json "$TMP/sharded/"
echo '{"weight_map":{"model.norm.weight":"model-00001-of-00002.safetensors"}}' >"$TMP/sharded/model.safetensors.index.json"
mistake "missing shard" 3 'idx.missing_shard [FIL-003]: model-00001-of-00002.safetensors: listed in the index but not on disk; 1 tensors are missing (model.norm.weight)' \
    "$NIBBLE" run "$TMP/sharded" hi

# Downloads.
copy cut && rm "$TMP/cut/model.safetensors" && head -c 1000000 $model/model.safetensors >"$TMP/cut/model.safetensors"
mistake "truncated download" 4 'st.truncated [FIL-006]: T/cut/model.safetensors: 6348736 bytes missing, first tensor affected "model.embed_tokens.weight"; the download is probably incomplete, fetch the file again' \
    "$NIBBLE" run "$TMP/cut" hi
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n' >"$TMP/cut/model.safetensors"
mistake "FS-16 a pointer of Git LFS" 4 'fmt.mismatch [FIL-009]: T/cut/model.safetensors: is a Git LFS pointer (64 bytes), not the weights: the download is incomplete; run: git lfs pull' \
    "$NIBBLE" run "$TMP/cut" hi
printf '<!DOCTYPE html><html>Sign in to continue</html>' >"$TMP/cut/model.safetensors"
mistake "FS-16 a web page instead of weights" 4 'fmt.mismatch: T/cut/model.safetensors: expected a safetensors file, found a web page: the download went wrong' \
    "$NIBBLE" quantize "$TMP/cut" --method rtn -o "$out"
printf 'GGUF\003\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' >"$TMP/cut/model.safetensors"
mistake "FS-15 a GGUF file under another name" 4 'gguf.meta_type: T/cut/model.safetensors: general.architecture: the key is missing; expected a string' \
    "$NIBBLE" run "$TMP/cut" hi

# Quantize.
mistake "already quantized" 5 'quantize.already: T/q4: the model is already quantized (awq-gemm); quantize starts from 16- or 32-bit weights, and nibble convert --to LAYOUT changes the layout' \
    "$NIBBLE" quantize "$TMP/q4" --method rtn -o "$out"
mistake "group size that does not divide" 2 "quantize.group [SHP-004]: $model: model.layers.0.self_attn.q_proj has 256 inputs, not a multiple of group size 96; use --group-size with one of: 128, 64, 32, 16, -1" \
    "$NIBBLE" quantize $model --method rtn --group-size 96 -o "$out"
mistake "no calibration text" 2 'quantize.calib: AWQ needs calibration data: --calib FILE (text, or token ids as safetensors)' \
    "$NIBBLE" quantize $model --group-size 64 -o "$out"
mistake "calibration text is not there" 3 'io.not_found: T/nosuch.txt: no such file; check the path' \
    "$NIBBLE" quantize $model --group-size 64 --calib "$TMP/nosuch.txt" -o "$out"
echo 'It was a dark and stormy night.' >"$TMP/short.txt"
mistake "calibration text too short" 4 'calib.short: T/short.txt: the calibration text gives 13 tokens, at least 128 are needed and ten thousand are useful; give a longer text of the kind that the model will see' \
    "$NIBBLE" quantize $model --group-size 64 --calib "$TMP/short.txt" -o "$out"
sum=$(cksum "$TMP/q4"/*)
mistake "output exists" 12 'out.exists: T/q4: it exists already; use --force to replace it, or choose another name' \
    "$NIBBLE" quantize $model --method rtn --group-size 64 -o "$TMP/q4"
mistake "output is the input" 12 'out.is_input: T/q4: the output is also an input, which would be lost; choose another name' \
    "$NIBBLE" convert "$TMP/q4" --to gptq --force -o "$TMP/q4"
[ "$sum" = "$(cksum "$TMP/q4"/*)" ] || fail "the existing output changed"

# Models of other programs.
next='Quantize the 16-bit original with `nibble quantize`, or use an AWQ export of the model.'
arrow=$(printf '\342\206\222')
quant fp8 '{"quant_method":"fp8","activation_scheme":"dynamic"}'
mistake "an FP8 model" 5 "cfg.quant_method [CFG-003]: config.json: quant_method: Quantization method fp8 is not a 4-bit integer checkpoint this tool understands. $arrow It stores 8-bit floats. $next" \
    "$NIBBLE" run "$TMP/fp8" hi
quant exl '{"quant_method":"exl2","bits":4.0}'
mistake "an EXL2 model" 5 "cfg.quant_method [CFG-003]: config.json: quant_method: Quantization method exl2 is not a 4-bit integer checkpoint this tool understands. $arrow It stores several bit widths inside one matrix. $next" \
    "$NIBBLE" run "$TMP/exl" hi
quant fp4 '{"quant_method":"modelopt","quant_algo":"NVFP4"}'
mistake "an NVFP4 model" 5 "cfg.quant_method [CFG-003]: config.json: quant_method: Quantization method modelopt is not a 4-bit integer checkpoint this tool understands. $arrow It stores NVIDIA floats. $next" \
    "$NIBBLE" run "$TMP/fp4" hi
mistake "activation order to a layout without it" 5 "conv.act_order [CNV-010]: tests/data/layouts/gptq-v1-4bit-g32-desc: model.layers.0.self_attn.q_proj: the linear uses a reordered g_idx; awq-gemm has no g_idx. $arrow Keep GPTQ/compressed-tensors, or re-quantize." \
    "$NIBBLE" convert tests/data/layouts/gptq-v1-4bit-g32-desc --to awq -o "$out"

# Talking to it.
copy mute && rm "$TMP/mute/tokenizer.json"
mistake "no tokenizer" 3 'tok.missing [FIL-010]: T/mute: there is no tokenizer.json, tokenizer.model, tekken.json, or vocab.json with merges.txt; the model can be inspected and converted but not chatted with' \
    "$NIBBLE" run "$TMP/mute" hi
yes 'It is a truth universally acknowledged,' | head -n 300 >"$TMP/long.txt"
rc=0; timeout 60 "$NIBBLE" run $model "$(cat "$TMP/long.txt")" --raw -n 4 >"$TMP/out" 2>"$TMP/err" || rc=$?
[ $rc -eq 6 ] && grep -q '^nibble: error: limit.context \[KV-20\]: the prompt has [0-9]* tokens, the context holds 1024 with the answer; shorten the prompt or raise --context$' "$TMP/err" ||
    fail "context too long: exit $rc"
echo "ok context too long"
copy plain && rm "$TMP/plain/tokenizer_config.json"
sed '/"chat_template"/d; s/"clean_up_tokenization_spaces": false,/"clean_up_tokenization_spaces": false/' $model/tokenizer_config.json >"$TMP/plain/tokenizer_config.json"
printf '[{"role":"user","content":"hi"}]' >"$TMP/m.json"
mistake "no chat template" 5 'tmpl.none: T/plain: the model has no chat template, so messages cannot be turned into a prompt; put a chat_template.jinja beside the tokenizer, or use text' "$NIBBLE" template "$TMP/plain" "$TMP/m.json"
rc=0; timeout 60 "$NIBBLE" run "$TMP/plain" hi -n 2 -q >"$TMP/out" 2>"$TMP/err" || rc=$?
[ $rc -eq 0 ] || fail "without a chat template run goes on from the text: exit $rc"
echo "ok no chat template: run goes on from the text"

# CF-15: tokens that the model has no row for.
vocab=$(sed -n 's/.*"vocab_size": *\([0-9]*\).*/\1/p' $model/config.json)
copy alien && own alien tokenizer.json
grep -q '"added_tokens": *\[' "$TMP/alien/tokenizer.json" || fail "CF-15: the tokenizer has another form"
sed -i 's/"added_tokens": *\[/&{"id":'"$vocab"',"content":"<more>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":false},/' "$TMP/alien/tokenizer.json"
mistake "CF-15 tokenizer of another model" 4 "cfg.vocab_mismatch: the tokenizer has token $vocab (\"<more>\"), the model $vocab embedding rows: tokenizer and weights are of different models; fetch the files again from one revision" "$NIBBLE" run "$TMP/alien" hi -n 1
sed -i 's/"special":false},/"special":true},/' "$TMP/alien/tokenizer.json"
rc=0; timeout 60 "$NIBBLE" run "$TMP/alien" hi -n 1 >"$TMP/out" 2>"$TMP/err" || rc=$?
[ $rc -eq 0 ] && grep -q "cfg.vocab_mismatch: special token $vocab (\"<more>\") has no embedding row" "$TMP/err" || fail "CF-15 a special token more: exit $rc"
echo "ok CF-15 a special token more is a warning"

# CF-24: generation defaults out of range never reach the sampler. JS-08, JS-10: Python's files.
copy gen && rm "$TMP/gen/generation_config.json"
echo '{"top_p":-3,"top_k":1e99,"temperature":NaN,"min_p":"x","repetition_penalty":0}' >"$TMP/gen/generation_config.json"
rc=0; timeout 60 "$NIBBLE" run "$TMP/gen" "It is" --raw -n 2 --seed 1 >"$TMP/out" 2>"$TMP/err" || rc=$?
[ $rc -eq 0 ] && grep -q 'cfg.value: generation_config.json: ignored, out of range: temperature nan, top_k 1e+99, top_p -3, min_p, not a number, repetition_penalty 0' "$TMP/err" ||
    fail "CF-24 values out of range: exit $rc"
echo "ok CF-24 values out of range are ignored with a warning"
copy twice && rm "$TMP/twice/config.json"
sed 's/^{/{"x":1,"x":[Infinity],/' $model/config.json >"$TMP/twice/config.json"
rc=0; timeout 60 "$NIBBLE" inspect "$TMP/twice" >"$TMP/out" 2>"$TMP/err" || rc=$?
[ $rc -eq 4 ] || fail "JS-08 twice and not finite: exit $rc"
sed 's/^{/{"x":1,"x":2,/' $model/config.json >"$TMP/twice/config.json"
rc=0; timeout 60 "$NIBBLE" run "$TMP/twice" "It is" --raw -n 1 >"$TMP/out" 2>"$TMP/err" || rc=$?
[ $rc -eq 0 ] && [ "$(grep -c 'cfg.duplicate_key: config.json: ' "$TMP/err")" -eq 1 ] || fail "JS-08 a key twice in config.json: exit $rc"
echo "ok JS-08 a key twice in config.json: the last counts, one warning"

# GG-24: scales of blocks that are no numbers.
"$NIBBLE" convert "$TMP/q4" --to gguf -o "$TMP/nan.gguf" -q >"$TMP/out" 2>"$TMP/err" || fail "GG-24: no file to break"
head -c 68 /dev/zero | tr '\0' '\377' | dd of="$TMP/nan.gguf" bs=1 seek=$(($(wc -c <"$TMP/nan.gguf") / 2)) conv=notrunc 2>/dev/null
mistake "GG-24 a block scale that is not finite" 10 'num.scale_nonfinite: T/nan.gguf: model.layers.3.mlp.down_proj.weight: a block scale is NaN or infinite' \
    "$NIBBLE" convert "$TMP/nan.gguf" --to f16 -o "$out"
rc=0; timeout 60 "$NIBBLE" check "$TMP/nan.gguf" >"$TMP/out" 2>"$TMP/err" || rc=$?
[ $rc -eq 1 ] && grep -q 'model.layers.3.mlp.down_proj.weight: error: [0-9]* values are NaN or infinite, the first at [0-9]*: a block scale is. \[VAL-001\]' "$TMP/out" ||
    fail "GG-24 check: exit $rc"
echo "ok GG-24 check"
mistake "a GGUF file where a directory is expected" 5 'quantize.input: quantize reads a Hugging Face directory; first: nibble convert MODEL.gguf --to f16 -o DIR' \
    "$NIBBLE" quantize "$TMP/nan.gguf" --method rtn -o "$out"

# No room for the output: the limit on file sizes stands for a full disk.
rc=0
(ulimit -f 100; timeout 60 "$NIBBLE" quantize $model --method rtn --group-size 64 -o "$out") >"$TMP/out" 2>"$TMP/err" || rc=$?
[ $rc -eq 8 ] && grep -q '^nibble: error: out.no_space: .*: \(writing\|reserving room\) failed: File too large' "$TMP/err" || fail "no space left: exit $rc"
[ ! -e "$out" ] || fail "no space left: something has the name of the output"
echo "ok no space left"
# Ctrl-C during quantize: inputs as they were, nothing under the final name. (Other signals: test_cli.sh.)
sum=$(cksum $model/*)
rm -f "$TMP/err"  # the words waited for below must be this job's
env --default-signal=INT "$NIBBLE" quantize $model --group-size 64 --calib $model/calib.txt --calib-rows 4 --calib-len 32 -o "$out" >"$TMP/out" 2>"$TMP/err" &
pid=$!
until grep -qs 'model.layers' "$TMP/err" || ! kill -0 $pid 2>/dev/null; do sleep 0.02; done
kill -INT $pid 2>/dev/null || fail "Ctrl-C: the job ended before it could be stopped"
rc=0; wait $pid || rc=$?
[ $rc -eq 130 ] && [ ! -e "$out" ] && [ "$sum" = "$(cksum $model/*)" ] || fail "Ctrl-C: exit $rc, or something changed"
[ -z "$(find "$TMP" -maxdepth 1 -name '*nibble-*' ! -name never.nibble-job)" ] || fail "Ctrl-C: a temporary was left"
rm -rf "$out.nibble-job"
grep -q '^nibble: error: canceled: ' "$TMP/err" || fail "Ctrl-C: no word about it"
echo "ok Ctrl-C during quantize"
