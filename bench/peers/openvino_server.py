#!/usr/bin/env python3
"""OpenVINO GenAI's continuous batching in process, driven as bench/serve_peers.py asks: one JSON object a line on stdin, one answered.

{"seed", "prefix_seed", "requests", "clients", "prefix", "own", "new", "vocab"} -> {"output_throughput", "p50_ttft_ms", "p99_ttft_ms",
"median_tpot_ms", "failed"}. As many requests as there are clients are in flight; a step at a time, no HTTP, no text.

usage: openvino_server.py MODEL_DIRECTORY cache|no-cache THREADS       (in a Python with openvino-genai)
"""
import json
import random
import sys
import time

import numpy as np
import openvino as ov
import openvino_genai as genai

scheduler = genai.SchedulerConfig()
scheduler.cache_size = 2
scheduler.max_num_seqs = 64
scheduler.max_num_batched_tokens = 512
scheduler.dynamic_split_fuse = True
scheduler.enable_prefix_caching = sys.argv[2] == "cache"
pipe = genai.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU", {"INFERENCE_NUM_THREADS": int(sys.argv[3])})
ids = 0


def percentile(v, p):
    return float(np.percentile(v, p))


def run(q):
    global ids
    shared = random.Random("prefix %d" % q["prefix_seed"])
    prefix = [shared.randrange(1000, q["vocab"]) for _ in range(q["prefix"])]
    own = random.Random("own %d" % q["seed"])
    prompts = [prefix + [own.randrange(1000, q["vocab"]) for _ in range(q["own"])] for _ in range(q["requests"])]
    config = genai.GenerationConfig()
    config.max_new_tokens = q["new"]
    config.min_new_tokens = q["new"]
    config.ignore_eos = True
    config.do_sample = False
    flying, ttft, tpot, tokens, at = {}, [], [], 0, 0
    began = time.perf_counter()
    while at < len(prompts) or flying:
        while at < len(prompts) and len(flying) < q["clients"]:
            handle = pipe.add_request(ids, ov.Tensor(np.array([prompts[at]], dtype=np.int64)), config)
            flying[ids] = [handle, time.perf_counter(), None, 0]
            ids, at = ids + 1, at + 1
        pipe.step()
        now = time.perf_counter()
        for k in list(flying):
            f = flying[k]
            while f[0].can_read():
                for out in f[0].read().values():
                    f[3] += len(out.generated_ids)
                f[2] = f[2] or now
            if str(f[0].get_status()).endswith("RUNNING"):
                continue
            ttft.append(1e3 * (f[2] - f[1]))
            if f[3] > 1:
                tpot.append(1e3 * (now - f[2]) / (f[3] - 1))
            tokens += f[3]
            del flying[k]
    seconds = time.perf_counter() - began
    return {"output_throughput": tokens / seconds, "p50_ttft_ms": percentile(ttft, 50), "p99_ttft_ms": percentile(ttft, 99),
            "median_tpot_ms": percentile(tpot, 50) if tpot else 0, "failed": len(prompts) - len(ttft), "total_output_tokens": tokens}


print(json.dumps({"ready": True, "version": genai.__version__}), flush=True)
for line in sys.stdin:
    print(json.dumps(run(json.loads(line))), flush=True)
