"""OpenVINO GenAI behind peer_common's loop: peer_openvino.py MODEL_DIR THREADS"""
import sys

import peer_common


def make():
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    scheduler.max_num_batched_tokens = 2048
    pipe = genai.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU", {"INFERENCE_NUM_THREADS": int(sys.argv[2])})

    def generate(prompts, tokens):
        c = genai.GenerationConfig()
        c.max_new_tokens = c.min_new_tokens = tokens
        c.ignore_eos = True
        c.do_sample = False
        pipe.generate([ov.Tensor(np.array([p], dtype=np.int64)) for p in prompts], [c] * len(prompts))

    return generate


peer_common.serve(make, 32000)
