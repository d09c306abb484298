#!/usr/bin/env python3
"""Vectors of GGUF block types for tests/unit/io/test_gguf.c.

Random block bytes (scales kept finite) and the values that the reference package computes from them.
Usage: make_gguf_blocks.py OUT.bin      (gguf 0.19.0, numpy)
Layout, little-endian, per type: u32 type number, u32 blocks, u32 bytes per block, u32 values per block, block bytes, f32 values.
"""
import struct
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

# byte offsets of the f16 scales inside a block
SCALES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
          T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}
rng = np.random.default_rng(20240607)
with open(sys.argv[1], "wb") as out:
    for t, at in SCALES.items():
        block, size = GGML_QUANT_SIZES[t]
        n = 6 if block == 32 else 3
        raw = rng.integers(0, 256, (n, size), dtype=np.uint8)
        raw[1, :] = 255
        raw[2, :] = 0
        for o in at:
            d = (rng.standard_normal(n) * 0.05).astype("<f2")
            d[2] = np.float16(6e-8)  # a subnormal scale
            raw[:, o:o + 2] = d.view(np.uint8).reshape(n, 2)
        values = dequantize(raw.reshape(n, size), t).astype("<f4")
        out.write(struct.pack("<4I", int(t), n, size, block) + raw.tobytes() + values.tobytes())
