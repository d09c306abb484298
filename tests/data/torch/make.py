"""Writes zip.bin, legacy.bin, nocrc.bin and values.json of this folder: every element type, views, tied weights, and the bytes
torch itself reads back. usage: python make.py (in this folder; torch 2.13.0)"""
import collections
import json

import torch

torch.manual_seed(7)
sd = collections.OrderedDict(
    plain=torch.arange(6, dtype=torch.float32).reshape(2, 3),
    transposed=torch.arange(6, dtype=torch.int32).reshape(2, 3).t(),
    parameter=torch.nn.Parameter(torch.randn(2, 3).bfloat16()),
    steps=torch.arange(24, dtype=torch.int16).reshape(2, 3, 4)[:, 1:, ::2],
    expanded=torch.randn(3, 1).half().expand(3, 5),
    row=torch.randn(3, 4).half()[1],
    permuted=torch.arange(24, dtype=torch.int64).reshape(2, 3, 4).permute(2, 0, 1),
    empty=torch.zeros(0, 3),
    scalar=torch.tensor(3.5, dtype=torch.float64),
    flags=torch.tensor([True, False, True]),
    bytes=torch.arange(5, dtype=torch.uint8),
    signed=torch.arange(-2, 3, dtype=torch.int8),
)
sd["tied"] = sd["parameter"]
sd._metadata = collections.OrderedDict(x=dict(version=1))
torch.save(sd, "zip.bin")
torch.save(sd, "legacy.bin", _use_new_zipfile_serialization=False)
torch.serialization.set_crc32_options(False)
torch.save({"state_dict": dict(sd), "epoch": 3}, "nocrc.bin")
values = {}
for name, t in torch.load("zip.bin").items():
    t = t.detach().contiguous()
    raw = bytes(t.reshape(-1).view(torch.uint8).numpy()) if t.numel() else b""
    values[name] = {"dtype": str(t.dtype)[6:], "shape": list(t.shape), "bytes": raw.hex()}
json.dump(values, open("values.json", "w"), indent=1)
