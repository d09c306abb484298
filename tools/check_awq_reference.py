#!/usr/bin/env python3
"""Development only: does a reference implementation read an AWQ GEMM directory of nibble as nibble itself does?

    check_awq_reference.py AWQ_DIR F32_DIR [PACKING_UTILS.py]

F32_DIR is what `nibble convert AWQ_DIR --to f32 -o F32_DIR` wrote. Every quantized linear is unpacked with the functions
of GPTQModel (gptqmodel/quantization/awq/utils/packing_utils.py) or of AutoAWQ (awq/utils/packing_utils.py), whichever is
installed or given as a file, dequantized in float32 and compared with nibble's values: they must be equal, bit for bit.
Needs torch and safetensors. Exit 1 when a value differs.
"""
import glob
import importlib
import importlib.util
import json
import os
import sys

import torch
from safetensors import safe_open


def reference(path):
    if path:
        spec = importlib.util.spec_from_file_location("packing_utils", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    for name in ("gptqmodel.quantization.awq.utils.packing_utils", "awq.utils.packing_utils"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    sys.exit("neither gptqmodel nor awq is installed; give the path of a packing_utils.py")


def tensors(folder):
    out = {}
    for name in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        with safe_open(name, "pt") as f:
            for key in f.keys():
                out[key] = f.get_tensor(key)
    return out


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    ref = reference(sys.argv[3] if len(sys.argv) == 4 else None)
    config = json.load(open(os.path.join(sys.argv[1], "config.json")))["quantization_config"]
    assert config["quant_method"] == "awq" and config["version"] == "gemm", config
    awq, plain = tensors(sys.argv[1]), tensors(sys.argv[2])
    linears = bad = 0
    for key, qweight in awq.items():
        if not key.endswith(".qweight"):
            if not key.endswith((".qzeros", ".scales")) and not torch.equal(awq[key].float(), plain[key].float()):
                print(f"{key}: differs")
                bad += 1
            continue
        stem = key[: -len(".qweight")]
        scales = awq[stem + ".scales"].float()
        group = config["group_size"] if config["group_size"] > 0 else qweight.shape[0]
        if scales.shape[0] * group != qweight.shape[0]:
            sys.exit(f"{stem}: {scales.shape[0]} groups of {group} do not make {qweight.shape[0]} inputs")
        value = ref.dequantize_gemm(qweight, awq[stem + ".qzeros"], scales, config["bits"], group).t()
        linears += 1
        if not torch.equal(value, plain[stem + ".weight"]):
            print(f"{stem}: largest difference {(value - plain[stem + '.weight']).abs().max():g}")
            bad += 1
    print(f"{linears} linears read with {ref.__name__} ({ref.__file__}), {len(awq)} tensors, {bad} differ")
    sys.exit(1 if bad or not linears else 0)


main()
