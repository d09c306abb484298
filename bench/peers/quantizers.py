#!/usr/bin/env python3
"""One row of golden/quantizers/peers.json by the program it was measured with, run by bench/quantize_peers.py --peers.

usage: quantizers.py gptqmodel|llm-compressor SETTINGS MODEL CALIB ROWS OUT     (in the environment that --install made for it)

SETTINGS is the row's, as JSON; CALIB holds token ids, of which the first ROWS rows are used in their order. Writes the checkpoint to OUT and
prints a line of JSON: processor seconds (user and system) from behind the imports to the written file, and peak memory. What has to be
changed for a run without an accelerator is in `notes` of peers.json and marked below.
"""
import json
import os
import resource
import sys

os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # stops at its start on fewer than three processors otherwise
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def rows_of(calib, n):
    from safetensors.numpy import load_file

    return [[int(t) for t in r] for r in load_file(calib)["input_ids"][:n]]


def spent():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime


def set_awq(clip, duo):
    """Two settings of GPTQModel's AWQ that have no option."""
    from gptqmodel.looper.awq_processor import AWQProcessor

    init = AWQProcessor.__init__

    def with_settings(self, *args, **more):
        init(self, *args, **more)
        self.apply_clip, self.duo_scaling = clip, duo

    AWQProcessor.__init__ = with_settings


def gptqmodel(s, model, rows, out):
    import torch
    from gptqmodel import GPTQModel, QuantizeConfig

    keys = ("bits", "group_size", "sym", "desc_act", "act_group_aware", "damp_percent", "mse", "format")
    awq = s["quant_method"] == "awq"
    if awq:
        set_awq(s.get("clip", True), s.get("duo", True))
    t0 = spent()
    q = QuantizeConfig(device="cpu", offload_to_disk=False, method=s["quant_method"], **{k: s[k] for k in keys if k in s})
    # the packed module of AWQ refuses float32, in which the recorded search ran under a changed program
    dtype = "float16" if awq and s["dtype"] == "float32" else s["dtype"]
    m = GPTQModel.load(model, q, dtype=getattr(torch, dtype))
    m.quantize([dict(input_ids=r, attention_mask=[1] * len(r)) for r in rows], batch_size=1, calibration_sort=None)
    m.save(out)
    return t0


def llm_compressor(s, model, rows, out):
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.awq import AWQModifier
    from llmcompressor.modifiers.quantization import GPTQModifier
    from llmcompressor.pipelines.cache import IntermediatesCache
    from transformers import AutoModelForCausalLM

    IntermediatesCache.pin_memory = lambda *args: None  # stops without an accelerator

    t0 = spent()
    scheme = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "symmetric": s["sym"], "strategy": "group",
                                                              "group_size": s["group_size"]}}}
    more = {"duo_scaling": s["duo_scaling"]} if "duo_scaling" in s else {}
    mod = {"awq": AWQModifier, "gptq": GPTQModifier}[s["method"]](config_groups=scheme, ignore=["lm_head"], **more)
    m = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    data = Dataset.from_dict({"input_ids": rows, "attention_mask": [[1] * len(r) for r in rows]})
    oneshot(model=m, recipe=[mod], dataset=data, max_seq_length=len(rows[0]), num_calibration_samples=len(rows), shuffle_calibration_samples=False)
    m.save_pretrained(out, save_compressed=True)
    return t0


def main():
    program, settings, model, calib, n, out = sys.argv[1:]
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    run = {"gptqmodel": gptqmodel, "llm-compressor": llm_compressor}[program]
    t0 = run(json.loads(settings), model, rows_of(calib, int(n)), out)
    print(json.dumps({"cpu_s": spent() - t0, "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}), flush=True)


if __name__ == "__main__":
    main()
