"""ik_llama.cpp out of its wheel (built for AVX2) behind peer_common's loop: peer_ik.py MODEL.gguf THREADS

For machines where its source distribution cannot be built; decoding is bound by memory, prefill is slower than a native build."""
import sys

import peer_common


def make():
    from ik_llama_cpp import _ctypes_api as C

    C.llama_backend_init()
    m = C.llama_model_default_params()
    m.use_mmap, m.repack_tensors, m.n_gpu_layers = False, True, 0
    model = C.llama_model_load_from_file(sys.argv[1].encode(), m)
    c = C.llama_context_default_params()
    c.n_ctx, c.n_batch, c.n_ubatch, c.n_seq_max, c.flash_attn = 16 * 256, 2048, 512, 16, True
    c.n_threads = c.n_threads_batch = int(sys.argv[2])
    ctx = C.llama_init_from_model(model, c) if model else None
    if not ctx:
        raise RuntimeError("the model cannot be opened")

    def step(rows):
        """rows: (token, position, sequence, logits wanted)"""
        b = C.llama_batch_init(len(rows), 0, 1)
        b.n_tokens = len(rows)
        for i, (token, pos, seq, want) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, pos, 1, want
            b.seq_id[i][0] = seq
        failed = C.llama_decode(ctx, b)
        C.llama_batch_free(b)
        if failed:
            raise RuntimeError(f"llama_decode {failed}")
        C.llama_get_logits_ith(ctx, -1)[0]

    def generate(prompts, tokens):
        C.llama_kv_cache_clear(ctx)
        for seq, p in enumerate(prompts):
            for at in range(0, len(p), 512):
                part = p[at:at + 512]
                step([(t, at + i, seq, int(at + i + 1 == len(p))) for i, t in enumerate(part)])
        for k in range(tokens - 1):  # the first token comes out of the prompt
            step([(p[k % len(p)], len(p) + k, seq, 1) for seq, p in enumerate(prompts)])

    return generate


peer_common.serve(make, 32000)
