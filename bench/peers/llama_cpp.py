#!/usr/bin/env python3
"""nibble beside llama.cpp on one model shape, interleaved, medians and ratios.

  python3 bench/peers/llama_cpp.py --llama DIR --work DIR [--shape 1b|135m] [--rounds 5] [--threads 2]

--llama is a folder with llama-bench and llama-quantize (build/bin of the engine inside the source distribution of
llama-cpp-python, configured with GGML_NATIVE=ON, outside this tree). --work keeps the two models between runs: a GGUF
with random weights quantized to Q4_0 by llama-quantize with its defaults, and an AWQ GEMM g128 checkpoint of the same
shape with random codes and a 16-bit head, written by nibble_gen_model. Needs the Python package gguf once, to write
the first file. Weights of both sit in private memory (llama-bench -lm none). Both figures of a round come from one
moment; the ratio is that of the medians.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

SHAPES = {
    "1b": dict(hidden=2048, layers=16, heads=32, kv_heads=8, ffn=8192, vocab=32000),
    "135m": dict(hidden=576, layers=30, heads=9, kv_heads=3, ffn=1536, vocab=49152),
}


def write_gguf(path, s):
    import gguf
    import numpy as np

    rng = np.random.default_rng(1)
    head_dim = s["hidden"] // s["heads"]
    kv = s["kv_heads"] * head_dim
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(8192)
    w.add_embedding_length(s["hidden"])
    w.add_block_count(s["layers"])
    w.add_feed_forward_length(s["ffn"])
    w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv_heads"])
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    w.add_rope_dimension_count(head_dim)
    w.add_vocab_size(s["vocab"])
    w.add_file_type(1)
    w.add_tokenizer_model("no_vocab")

    def matrix(name, n, k):
        w.add_tensor(name, (rng.standard_normal((n, k), dtype=np.float32) / k**0.5).astype(np.float16))

    def ones(name):
        w.add_tensor(name, np.ones(s["hidden"], np.float32))

    matrix("token_embd.weight", s["vocab"], s["hidden"])
    matrix("output.weight", s["vocab"], s["hidden"])
    ones("output_norm.weight")
    for i in range(s["layers"]):
        p = f"blk.{i}."
        ones(p + "attn_norm.weight")
        ones(p + "ffn_norm.weight")
        matrix(p + "attn_q.weight", s["hidden"], s["hidden"])
        matrix(p + "attn_k.weight", kv, s["hidden"])
        matrix(p + "attn_v.weight", kv, s["hidden"])
        matrix(p + "attn_output.weight", s["hidden"], s["hidden"])
        matrix(p + "ffn_gate.weight", s["ffn"], s["hidden"])
        matrix(p + "ffn_up.weight", s["ffn"], s["hidden"])
        matrix(p + "ffn_down.weight", s["hidden"], s["ffn"])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def run(cmd):
    p = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if p.returncode:
        sys.exit(f"{' '.join(cmd)}\n{p.stderr[-2000:]}")
    return p.stdout


def prepare(a, s):
    os.makedirs(a.work, exist_ok=True)
    q4 = os.path.join(a.work, f"{a.shape}-{a.type}.gguf")
    awq = os.path.join(a.work, f"{a.shape}-awq-g{a.group}")
    if not os.path.exists(q4):
        f16 = os.path.join(a.work, f"{a.shape}-f16.gguf")
        if not os.path.exists(f16):
            write_gguf(f16, s)
        run([os.path.join(a.llama, "llama-quantize"), f16, q4, a.type.upper()])
    if not os.path.exists(awq):
        run([a.gen, awq] + [f"{k}={v}" for k, v in s.items()] + [f"group={a.group}"])
    return q4, awq


def llama_round(a, q4):
    base = [os.path.join(a.llama, "llama-bench"), "-m", q4, "-t", str(a.threads), "-r", "1", "-lm", "none", "-lzm", "off", "-o", "json"]
    rows = json.loads(run(base + ["-p", str(a.prompt), "-n", str(a.decode), "-d", str(a.depth)]))
    prefill = [r["avg_ts"] for r in rows if r["n_prompt"] and not r["n_gen"]]
    decode = [r["avg_ts"] for r in rows if r["n_gen"] and not r["n_prompt"]]
    return prefill[0], decode[0]


def nibble_round(a, awq):
    r = json.loads(run([a.nibble, "bench", awq, "--json", "-q", "--rounds", "1", "--threads", str(a.threads), "--prompt", str(a.prompt),
                        "--decode", str(a.decode), "--depth", str(a.depth)]))
    return r["prefill_tok_s"], r["decode_tok_s"], r["decode_share_of_read"], r["read_bytes_s"], r


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--llama", required=True)
    ap.add_argument("--work", required=True)
    ap.add_argument("--nibble", default="build/release/nibble")
    ap.add_argument("--gen", default="build/release/nibble_gen_model")
    ap.add_argument("--shape", default="1b", choices=SHAPES)
    ap.add_argument("--type", default="q4_0")
    ap.add_argument("--group", type=int, default=0)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--prompt", type=int, default=512)
    ap.add_argument("--decode", type=int, default=64)
    ap.add_argument("--depth", type=int, default=0)
    a = ap.parse_args()
    s = SHAPES[a.shape]
    a.group = a.group or (128 if s["hidden"] % 128 == 0 else 64)
    q4, awq = prepare(a, s)
    ours, peer = [], []
    for _ in range(a.rounds):
        ours.append(nibble_round(a, awq))
        peer.append(llama_round(a, q4))
        print(f"  nibble {ours[-1][0]:8.1f} {ours[-1][1]:7.2f}   llama.cpp {peer[-1][0]:8.1f} {peer[-1][1]:7.2f}   read {ours[-1][3] / 1e9:.1f} GB/s", file=sys.stderr)
    med = lambda rows, i: statistics.median(r[i] for r in rows)
    print(json.dumps({
        "cpu": ours[0][4]["cpu"], "cpu_family": ours[0][4]["cpu_family"], "kernel": ours[0][4]["kernel"], "shape": a.shape, "peer": f"llama.cpp {a.type}",
        "threads": a.threads, "rounds": a.rounds, "prompt": a.prompt, "depth": a.depth,
        "nibble": {"prefill": med(ours, 0), "decode": med(ours, 1), "decode_share_of_read": med(ours, 2)},
        "llama.cpp": {"prefill": med(peer, 0), "decode": med(peer, 1)},
        "ratio": {"prefill": med(ours, 0) / med(peer, 0), "decode": med(ours, 1) / med(peer, 1)},
    }, indent=1))


if __name__ == "__main__":
    main()
