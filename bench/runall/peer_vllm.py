"""vLLM with zentorch behind peer_common's loop: peer_vllm.py MODEL_DIR THREADS"""
import os
import sys

import peer_common

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "0-" + str(int(sys.argv[2]) - 1))
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


def make():
    import zentorch  # noqa: F401: registers itself as vLLM's platform

    from vllm import LLM, SamplingParams

    llm = LLM(sys.argv[1], dtype="bfloat16", max_model_len=1024, max_num_seqs=16, max_num_batched_tokens=2048, enable_prefix_caching=False)

    def generate(prompts, tokens):
        s = SamplingParams(max_tokens=tokens, min_tokens=tokens, ignore_eos=True, temperature=0, detokenize=False)
        llm.generate([{"prompt_token_ids": p} for p in prompts], s, use_tqdm=False)

    return generate


peer_common.serve(make, 32000)
