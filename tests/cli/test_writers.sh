# Quantized hybrids as other tools write them: AutoRound (its own quant_method, tensors below the language model of a multimodal
# file), llm-compressor (nested text_config, experts apart or fused and left in 16 bits), GPTQModel (renamed expert modules of
# Granite). Each is made from nibble's own output by renaming and joining, so its logits must be the same bits.
set -eu

if ! command -v python3 >/dev/null; then
    echo "skipped: other tools' names of quantized hybrids: no python3 to rename tensors with"
    exit 77
fi

. tests/cli/code.sh

root=tests/data/models-2026

# rewrite FROM TO HOW: the checkpoint FROM as another tool would have written it.
rewrite() {
    mkdir "$2"
    python3 - "$@" <<'PY'
import json, re, struct, sys

source, target, how = sys.argv[1:]
config = json.load(open(source + "/config.json"))
data = open(source + "/model.safetensors", "rb").read()
size = struct.unpack("<Q", data[:8])[0]
header, body = json.loads(data[8:8 + size]), data[8 + size:]
header.pop("__metadata__", None)
tensors = {n: (t["dtype"], t["shape"], body[t["data_offsets"][0]:t["data_offsets"][1]]) for n, t in header.items()}


def nest(outer, architecture):
    """The text model inside a multimodal one: config in text_config, tensors below model.language_model."""
    global config, tensors
    quantization = config.pop("quantization_config")
    config.pop("architectures")
    config = {"architectures": [architecture], "model_type": outer, "text_config": config, "quantization_config": quantization}
    tensors = {re.sub(r"^model\.", "model.language_model.", n): t for n, t in tensors.items()}


def join(pattern, name):
    """Rows of gate_proj and up_proj, one below the other, under a new name; the leaf weight_shape counts them."""
    for n in [n for n in tensors if re.search(pattern + r"\.gate_proj\.", n)]:
        (kind, shape, gate), (_, _, up) = tensors.pop(n), tensors.pop(n.replace("gate_proj", "up_proj"))
        if n.endswith("weight_shape"):
            rows, columns = struct.unpack("<2q" if kind == "I64" else "<2i", gate)
            both = struct.pack("<2q" if kind == "I64" else "<2i", 2 * rows, columns)
        else:
            shape, both = [2 * shape[0]] + shape[1:], gate + up
        tensors[re.sub(pattern + r"\.gate_proj", name, n)] = (kind, shape, both)


def fuse():
    """16-bit experts of a layer as two tensors: gate_up_proj [E, 2F, D], gate rows first, and down_proj [E, D, F]."""
    for first in [n for n in tensors if n.endswith("experts.0.gate_proj.weight")]:
        base, gate_up, down, e = first[:-len("0.gate_proj.weight")], b"", b"", 0
        while f"{base}{e}.gate_proj.weight" in tensors:
            kind, (rows, columns), gate = tensors.pop(f"{base}{e}.gate_proj.weight")
            gate_up += gate + tensors.pop(f"{base}{e}.up_proj.weight")[2]
            down += tensors.pop(f"{base}{e}.down_proj.weight")[2]
            e += 1
        tensors[base + "gate_up_proj"] = (kind, [e, 2 * rows, columns], gate_up)
        tensors[base + "down_proj"] = (kind, [e, columns, rows], down)


if how == "autoround":
    nest("qwen3_5", "Qwen3_5ForConditionalGeneration")
    old = config["quantization_config"]
    config["quantization_config"] = {
        "quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "autoround_version": "0.16.0", "data_type": "int",
        "bits": 4, "sym": True, "group_size": old["group_size"], "block_name_to_quantize": "model.language_model.layers",
        "extra_config": {n.rsplit(".", 1)[0]: {"bits": 16, "data_type": "float"} for n in tensors if "in_proj_a.weight" in n or "in_proj_b.weight" in n}}
elif how.startswith("llm-compressor"):
    if how.endswith("fused"):
        fuse()
    nest("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration")
    ignore = config["quantization_config"]["ignore"]
    config["quantization_config"]["ignore"] = [re.sub(r"^model\.", "model.language_model.", n) for n in ignore] + ["re:.*visual.*"]
elif how == "granite":
    join(r"experts\.(\d+)", r"input_linear.\1.linear")
    tensors = {re.sub(r"experts\.(\d+)\.down_proj", r"output_linear.\1.linear", n): t for n, t in tensors.items()}

index, at = {}, 0
for n, (kind, shape, raw) in tensors.items():
    index[n] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(raw)]}
    at += len(raw)
text = json.dumps(index).encode()
text += b" " * (-len(text) % 8)
with open(target + "/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))
json.dump(config, open(target + "/config.json", "w"))
PY
}

# same NAME A B MODEL: both open, the second without a finding, and their logits are the same bits.
same() {
    rm -f "$TMP/a.safetensors" "$TMP/b.safetensors"
    ids=$root/$4/golden.safetensors:input_ids
    code 0 "$NIBBLE" check "$3"
    grep -q '0 errors' "$TMP/out"
    code 0 "$NIBBLE" eval "$2" --input-ids "$ids" --dump "$TMP/a.safetensors" --greedy 5
    code 0 "$NIBBLE" eval "$3" --input-ids "$ids" --dump "$TMP/b.safetensors" --greedy 5
    cmp "$TMP/a.safetensors" "$TMP/b.safetensors"
    echo "ok $1"
}

code 0 "$NIBBLE" quantize $root/qwen3_5-q64 --method rtn --sym --format gptq --group-size 32 -q -o "$TMP/q"
rewrite "$TMP/q" "$TMP/q-autoround" autoround
same "1 AutoRound, below the language model" "$TMP/q" "$TMP/q-autoround" qwen3_5-q64

code 0 "$NIBBLE" quantize $root/qwen3_5_moe --method rtn --sym --format compressed-tensors --group-size -1 -q -o "$TMP/moe"
rewrite "$TMP/moe" "$TMP/moe-llmc" llm-compressor
same "2 llm-compressor, experts apart" "$TMP/moe" "$TMP/moe-llmc" qwen3_5_moe

code 0 "$NIBBLE" quantize $root/qwen3_5_moe --method rtn --sym --format compressed-tensors --group-size -1 --ignore '.*mlp[.]experts.*' -q -o "$TMP/fused"
rewrite "$TMP/fused" "$TMP/fused-llmc" llm-compressor-fused
grep -q 'mlp.experts.gate_up_proj' "$TMP/fused-llmc/model.safetensors"
same "3 llm-compressor, fused experts left in 16 bits" "$TMP/fused" "$TMP/fused-llmc" qwen3_5_moe

code 0 "$NIBBLE" quantize $root/granitemoehybrid --method rtn --sym --format compressed-tensors --group-size -1 -q -o "$TMP/granite"
rewrite "$TMP/granite" "$TMP/granite-gptqmodel" granite
grep -q 'input_linear.0.linear.weight_packed' "$TMP/granite-gptqmodel/model.safetensors"
same "4 GPTQModel's names of Granite's experts" "$TMP/granite" "$TMP/granite-gptqmodel" granitemoehybrid
