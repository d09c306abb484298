#!/usr/bin/env python3
"""nibble serve beside other engines: one model, one load, interleaved rounds, medians and ratios. Tables for bench/SERVING.md.

All engines are started first and stay; one is loaded at a time, in turn, so that a busy machine is the same to all. Load: 16 clients, 512
shared and 64 own prompt tokens, 64 new tokens, greedy, random ids. Servers get it over HTTP from `nibble bench serve`; OpenVINO GenAI runs in
process (no HTTP, no text). Per round and engine: a run with a new shared prefix (cold), then one with the same prefix and other own tokens
(warm). What cannot be had is skipped and said.

usage: serve_peers.py --nibble BIN --model DIR [--llama-server BIN --gguf FILE] [--openvino PYTHON DIR] [--vllm BIN DIR]
                      [--rounds 5] [--requests 100] [--clients 16] [--seed N] [--json FILE]
       serve_peers.py --table FILE...      tables from the files of earlier calls
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request

PREFIX, OWN, NEW = 512, 64, 64
KEYS = (("output_throughput", "output tok/s"), ("p50_ttft_ms", "ttft p50, ms"), ("p99_ttft_ms", "ttft p99, ms"), ("median_tpot_ms", "tpot, ms"))

ap = argparse.ArgumentParser()
ap.add_argument("--nibble")
ap.add_argument("--model")
ap.add_argument("--llama-server")
ap.add_argument("--gguf")
ap.add_argument("--openvino", nargs=2, metavar=("PYTHON", "DIR"))
ap.add_argument("--vllm", nargs=2, metavar=("BIN", "DIR"))
ap.add_argument("--vllm-env", action="append", default=[], metavar="NAME=VALUE")
ap.add_argument("--rounds", type=int, default=5)
ap.add_argument("--requests", type=int, default=100)
ap.add_argument("--clients", type=int, default=16)
ap.add_argument("--threads", type=int, default=2)
ap.add_argument("--vocab", type=int, default=32000)
ap.add_argument("--seed", type=int, default=1000)
ap.add_argument("--json")
ap.add_argument("--table", nargs="+")
a = ap.parse_args()


def table(rows, clients):
    names = sorted({r["engine"] for r in rows}, key=lambda n: (n != "nibble", n))
    states = [s for s in ("cold", "warm") if any(r["state"] == s for r in rows)]
    print("\n| %d client%s | engine | " % (clients, "s" * (clients > 1)) + " | ".join(label for _, label in KEYS) + " | rounds | tok/s beside nibble |")
    print("|---|---|" + "---|" * (len(KEYS) + 2))
    for state in states:
        base = None
        for name in names:
            mine = [r for r in rows if r["engine"] == name and r["state"] == state]
            if not mine:
                continue
            m = [statistics.median(r[key] for r in mine) for key, _ in KEYS]
            base = base or m[0]
            print("| %s | %s | %.1f | %.0f | %.0f | %.1f | %d | %.2f |" % (state, name, *m, len(mine), m[0] / base))


if a.table:
    rows = [json.loads(line) for name in a.table for line in open(name)]
    for clients in sorted({r["clients"] for r in rows}, reverse=True):
        table([r for r in rows if r["clients"] == clients], clients)
    sys.exit()


class Server:
    """An OpenAI server in a process of its own."""

    def __init__(self, name, port, command, env=None):
        self.name, self.port = name, port
        self.log = open("serve_peers.%s.log" % name.replace(" ", "_"), "w+")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})})

    def wait(self):
        for _ in range(1500):
            if self.process.poll() is not None:
                self.log.seek(0)
                raise OSError("%s ended: %s" % (self.name, self.log.read()[-300:]))
            try:
                urllib.request.urlopen("http://127.0.0.1:%d/health" % self.port, timeout=2)
                return
            except OSError:
                time.sleep(0.2)
        raise OSError("%s does not answer" % self.name)

    def load(self, prefix_seed, seed, n):
        out = subprocess.run([a.nibble, "bench", "serve", "--port", str(self.port), "--num-prompts", str(n), "--max-concurrency",
                              str(a.clients), "--random-prefix-len", str(PREFIX), "--random-input-len", str(OWN), "--random-output-len", str(NEW), "--seed", str(seed),
                              "--prefix-seed", str(prefix_seed), "--vocab", str(a.vocab), "--metric-percentiles", "50,99", "--json", "-q"], capture_output=True, text=True)
        return json.loads(out.stdout)

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()
        os.remove(self.log.name)


class InProcess:
    """bench/peers/openvino_server.py."""

    def __init__(self, name, python, model):
        self.name = name
        here = os.path.dirname(os.path.abspath(__file__))
        self.process = subprocess.Popen([python, os.path.join(here, "peers", "openvino_server.py"), model, "cache", str(a.threads)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def wait(self):
        line = self.process.stdout.readline()
        if not line:
            raise OSError("%s ended" % self.name)

    def load(self, prefix_seed, seed, n):
        q = {"seed": seed, "prefix_seed": prefix_seed, "requests": n, "clients": a.clients, "prefix": PREFIX, "own": OWN, "new": NEW, "vocab": a.vocab}
        self.process.stdin.write(json.dumps(q) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


per = PREFIX + OWN + NEW + 64
engines = [Server("nibble", 8201, [a.nibble, "serve", a.model, "--port", "8201", "--max-seqs", str(a.clients), "--max-model-len", "1024", "--threads", str(a.threads),
                                   "--no-request-log", "-q"])]
if a.llama_server:
    engines.append(Server("llama-server", 8202, [a.llama_server, "-m", a.gguf, "--port", "8202", "-np", str(a.clients), "-c", str(per * a.clients), "-t", str(a.threads),
                                                 "-fa", "on", "-lm", "none", "--no-webui"]))
else:
    print("skipped: llama-server (no --llama-server)")
if a.openvino:
    engines.append(InProcess("OpenVINO GenAI", *a.openvino))
else:
    print("skipped: OpenVINO GenAI (no --openvino)")
if a.vllm:
    engines.append(Server("vLLM", 8203, [a.vllm[0], "serve", a.vllm[1], "--port", "8203", "--max-num-seqs", str(a.clients), "--max-model-len", "1024",
                                         "--enable-prefix-caching"], dict(v.split("=", 1) for v in a.vllm_env)))
else:
    print("skipped: vLLM (no --vllm)")
rows = []
try:
    for e in list(engines):
        try:
            e.wait()
        except OSError as why:
            print("skipped: %s (%s)" % (e.name, why))
            engines.remove(e)
    for k in range(-1, a.rounds):  # the first round warms up and is not counted
        turn = (a.seed // 10 + k) % len(engines)
        for e in engines[turn:] + engines[:turn]:
            for state, seed in (("cold", a.seed + 2 * k), ("warm", a.seed + 2 * k + 1)):
                n = a.requests if k >= 0 else 2
                r = e.load(a.seed + 2 * k, seed, n)
                if r["failed"] or r["total_output_tokens"] != n * NEW:
                    print("  note: %s: %d failed, %d tokens" % (e.name, r["failed"], r["total_output_tokens"]))
                if k < 0:
                    continue
                row = {"engine": e.name, "state": state, "round": k, "clients": a.clients, "requests": a.requests, **{key: r[key] for key, _ in KEYS}}
                rows.append(row)
                print("round %d %-14s %s: %.1f tok/s, ttft p50 %.0f p99 %.0f ms, tpot %.1f ms" % (
                    k + 1, e.name, state, r["output_throughput"], r["p50_ttft_ms"], r["p99_ttft_ms"], r["median_tpot_ms"]), flush=True)
                if a.json:
                    with open(a.json, "a") as f:
                        f.write(json.dumps(row) + "\n")
finally:
    for e in engines:
        e.close()
table(rows, a.clients)
