#!/usr/bin/env python3
"""nibble serve beside llama.cpp's server: the same load, interleaved rounds, medians, ratios.

Both servers run at the same time, only one is loaded at a time. Load: `nibble bench serve`, 16 clients, prompts of 512 common and 64 own
tokens, 64 new tokens, greedy. Each round draws new prompts; its first run on a server is cold (a new common prefix), its second warm.
Weights of the peer sit in private memory (--load).

usage: llama_server.py --nibble BIN --llama-server BIN --model DIR --gguf Q4_0.gguf [--rounds 5] [--requests 48] [--clients 16]
"""
import argparse
import json
import statistics
import subprocess
import sys
import time
import urllib.request

ap = argparse.ArgumentParser()
ap.add_argument("--nibble", required=True)
ap.add_argument("--llama-server", required=True)
ap.add_argument("--model", required=True)
ap.add_argument("--gguf", required=True)
ap.add_argument("--rounds", type=int, default=5)
ap.add_argument("--requests", type=int, default=48)
ap.add_argument("--clients", type=int, default=16)
ap.add_argument("--threads", type=int, default=2)
ap.add_argument("--vocab", type=int, default=40000)
ap.add_argument("--load", default="-lm none", help="how the peer loads its weights: \"-lm none\", or \"--no-mmap\" for older ones")
a = ap.parse_args()
PREFIX, OWN, NEW = 512, 64, 64


def wait(port):
    for _ in range(600):
        try:
            urllib.request.urlopen("http://127.0.0.1:%d/health" % port, timeout=2)
            return
        except OSError:
            time.sleep(0.2)
    sys.exit("no server at port %d" % port)


def load(port, seed):
    out = subprocess.run([a.nibble, "bench", "serve", "--port", str(port), "--num-prompts", str(a.requests), "--max-concurrency", str(a.clients),
                          "--random-prefix-len", str(PREFIX), "--random-input-len", str(OWN), "--random-output-len", str(NEW), "--seed", str(seed),
                          "--vocab", str(a.vocab), "--metric-percentiles", "50,99", "--json", "-q"], capture_output=True, text=True)
    r = json.loads(out.stdout)
    if r["failed"] or r["total_output_tokens"] != a.requests * NEW:
        print("  note: %d failed, %d tokens" % (r["failed"], r["total_output_tokens"]))
    return r


nibble = subprocess.Popen([a.nibble, "serve", a.model, "--port", "8201", "--max-seqs", str(a.clients), "--max-model-len", "1024", "--threads", str(a.threads),
                           "--no-request-log", "-q"])
per = PREFIX + OWN + NEW + 64
peer = subprocess.Popen([a.llama_server, "-m", a.gguf, "--port", "8202", "-np", str(a.clients), "-c", str(per * a.clients), "-t", str(a.threads), *a.load.split(),
                         "--no-webui"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
names = {8201: "nibble", 8202: "llama.cpp"}
rows = {}
try:
    for port in names:
        wait(port)
    for k in range(a.rounds):
        for port in (8201, 8202) if k % 2 == 0 else (8202, 8201):
            for state in ("cold", "warm"):
                r = load(port, 1000 + k)
                rows.setdefault((names[port], state), []).append(r)
                print("round %d %-9s %s: %.1f tok/s, ttft p50 %.0f p99 %.0f ms, tpot %.1f ms" % (
                    k + 1, names[port], state, r["output_throughput"], r["p50_ttft_ms"], r["p99_ttft_ms"], r["median_tpot_ms"]), flush=True)
finally:
    nibble.terminate()
    peer.terminate()
    nibble.wait()
    peer.wait()
print("\nmedians of %d rounds, %d requests, %d clients" % (a.rounds, a.requests, a.clients))
for state in ("cold", "warm"):
    for key, label in (("output_throughput", "output tok/s"), ("p50_ttft_ms", "ttft p50 ms"), ("p99_ttft_ms", "ttft p99 ms"), ("median_tpot_ms", "tpot ms")):
        n, p = (statistics.median(r[key] for r in rows[(who, state)]) for who in ("nibble", "llama.cpp"))
        print("  %-4s %-13s nibble %9.1f   llama.cpp %9.1f   ratio %.2f" % (state, label, n, p, n / p))
