#!/usr/bin/env python3
"""nibble serve beside other engines: one model, one load, interleaved rounds, medians and ratios. Tables for bench/SERVING.md.

All engines are started first and stay; one is loaded at a time, in turn, so that a busy machine is the same to all. Load: 16 clients, 512
shared and 64 own prompt tokens, 64 new tokens, greedy, random ids. Servers get it over HTTP from `nibble bench serve`; OpenVINO GenAI runs in
process (no HTTP, no text). Per round and engine: a run with a new shared prefix (cold), then one with the same prefix and other own tokens
(warm). What cannot be had, or stops answering, is skipped and said; no round begins that would not end within --minutes.

usage: serve_peers.py --nibble BIN --model DIR [--a8] [--llama-server BIN --gguf FILE] [--openvino PYTHON DIR] [--vllm BIN DIR]
                      [--rounds 5] [--minutes 12] [--requests 48] [--clients 16] [--seed N] [--json FILE]
       serve_peers.py --table FILE...      tables from the files of earlier calls
--a8: nibble a second time, with 8-bit activations (--act a8).
"""
import argparse
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import time
import urllib.request

PREFIX, OWN, NEW = 512, 64, 64
NAME_A8 = "nibble, 8-bit activations"
HANGS = 300  # seconds without the end of a run
KEYS = (("output_throughput", "output tok/s"), ("p50_ttft_ms", "ttft p50, ms"), ("p99_ttft_ms", "ttft p99, ms"), ("median_tpot_ms", "tpot, ms"))

ap = argparse.ArgumentParser()
ap.add_argument("--nibble")
ap.add_argument("--model")
ap.add_argument("--a8", action="store_true")
ap.add_argument("--llama-server")
ap.add_argument("--gguf")
ap.add_argument("--openvino", nargs=2, metavar=("PYTHON", "DIR"))
ap.add_argument("--vllm", nargs=2, metavar=("BIN", "DIR"))
ap.add_argument("--vllm-env", action="append", default=[], metavar="NAME=VALUE")
ap.add_argument("--rounds", type=int, default=5)
ap.add_argument("--minutes", type=float, default=12)
ap.add_argument("--requests", type=int, default=48)
ap.add_argument("--clients", type=int, default=16)
ap.add_argument("--threads", type=int, default=2)
ap.add_argument("--vocab", type=int, default=32000)
ap.add_argument("--seed", type=int, default=1000)
ap.add_argument("--json")
ap.add_argument("--table", nargs="+")
a = ap.parse_args()


def table(rows, clients):
    names = sorted({r["engine"] for r in rows}, key=lambda n: (not n.startswith("nibble"), n))
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


def targets(rows, clients):
    """What is asked for at 16 clients, from the medians of these rows."""
    def mid(state, name, key):
        return statistics.median(r[key] for r in rows if r["engine"] == name and r["state"] == state)

    whole = {n for n in {r["engine"] for r in rows} if {r["state"] for r in rows if r["engine"] == n} == {"cold", "warm"}}
    rows = [r for r in rows if r["engine"] in whole]
    peers = sorted(n for n in whole if not n.startswith("nibble"))
    if clients != 16 or not peers or "nibble" not in whole:
        return
    print("\n| what | must | " + " | ".join(n for n in ("nibble", NAME_A8) if any(r["engine"] == n for r in rows)) + " |")
    print("|---|---|" + "---|" * len({r["engine"] for r in rows if r["engine"].startswith("nibble")}))
    asked = [("output, warm", "1.2x", "warm", "output_throughput", max, peers)]
    asked += [("output, " + state, "2x", state, "output_throughput", max, ["vLLM"]) for state in ("warm", "cold") if "vLLM" in peers]
    asked += [("output, " + state, "4x", state, "output_throughput", max, ["llama-server"]) for state in ("warm", "cold") if "llama-server" in peers]
    asked += [("ttft p50, warm", "1x", "warm", "p50_ttft_ms", min, peers), ("ttft p50, cold", "0.6x", "cold", "p50_ttft_ms", min, peers),
              ("ttft p99, warm", "1x", "warm", "p99_ttft_ms", min, peers), ("ttft p99, cold", "0.6x", "cold", "p99_ttft_ms", min, peers)]
    for what, must, state, key, best, of in asked:
        other = best(of, key=lambda n: mid(state, n, key))
        cells = ["%.2fx" % (mid(state, n, key) / mid(state, other, key)) for n in ("nibble", NAME_A8) if any(r["engine"] == n for r in rows)]
        print("| %s, against %s | %s | %s |" % (what, other if of is not peers else "the best peer (%s)" % other, must, " | ".join(cells)))


if a.table:
    rows = [json.loads(line) for name in a.table for line in open(name)]
    for clients in sorted({r["clients"] for r in rows}, reverse=True):
        table([r for r in rows if r["clients"] == clients], clients)
        targets([r for r in rows if r["clients"] == clients], clients)
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
                              "--prefix-seed", str(prefix_seed), "--vocab", str(a.vocab), "--metric-percentiles", "50,99", "--json", "-q"], capture_output=True, text=True, timeout=HANGS)
        if out.returncode != 0 and not out.stdout:
            raise OSError("%s: %s" % (self.name, out.stderr[-300:]))
        return json.loads(out.stdout)

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
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
        ready, _, _ = select.select([self.process.stdout], [], [], HANGS)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            raise OSError("%s does not answer" % self.name)
        return json.loads(line)

    def close(self):
        self.process.kill()
        self.process.wait()


def nibble(name, port, more):
    return Server(name, port, [a.nibble, "serve", a.model, "--port", str(port), "--max-seqs", str(a.clients), "--max-model-len", "1024",
                               "--threads", str(a.threads), "--no-request-log", "-q", *more])


def machine():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return "%s, %d cores" % (line.split(":", 1)[1].strip(), os.cpu_count())
    return "%d cores" % os.cpu_count()


signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers end too
print("%s; %d requests a run, %d clients, load average %.1f before" % (machine(), a.requests, a.clients, os.getloadavg()[0]))
per = PREFIX + OWN + NEW + 64
engines = [nibble("nibble", 8201, [])]
if a.a8:
    engines.append(nibble(NAME_A8, 8204, ["--act", "a8"]))
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


def drop(e, why):
    print("skipped: %s (%s)" % (e.name, why), flush=True)
    e.close()
    engines.remove(e)


def one(e, k, state, seed):
    """One run of engine e in round k; the round before the first warms up and is not counted."""
    n = a.requests if k >= 0 else 2
    r = e.load(a.seed + 2 * k, seed, n)
    if r["failed"] or r["total_output_tokens"] != n * NEW:
        print("  note: %s: %d failed, %d tokens" % (e.name, r["failed"], r["total_output_tokens"]))
    if k < 0:
        return
    row = {"engine": e.name, "state": state, "round": k, "clients": a.clients, "requests": a.requests, **{key: r[key] for key, _ in KEYS}}
    rows.append(row)
    print("round %d %-25s %s: %.1f tok/s, ttft p50 %.0f p99 %.0f ms, tpot %.1f ms" % (
        k + 1, e.name, state, r["output_throughput"], r["p50_ttft_ms"], r["p99_ttft_ms"], r["median_tpot_ms"]), flush=True)
    if a.json:
        with open(a.json, "a") as f:
            f.write(json.dumps(row) + "\n")


try:
    for e in list(engines):
        try:
            e.wait()
        except OSError as why:
            drop(e, why)
    began = round_began = longest = 0
    for k in range(-1, a.rounds):
        now = time.monotonic()
        longest = max(longest, now - round_began) if k > 0 else 0
        began = now if k <= 0 else began
        if k > 0 and now - began + longest > 60 * a.minutes:
            print("%d of %d rounds: another would take more than %g minutes in all" % (k, a.rounds, a.minutes))
            break
        round_began = now
        turn = (a.seed // 10 + k) % len(engines)
        for e in engines[turn:] + engines[:turn]:
            try:
                for state, seed in (("cold", a.seed + 2 * k), ("warm", a.seed + 2 * k + 1)):
                    one(e, k, state, seed)
            except (OSError, ValueError, subprocess.TimeoutExpired) as why:
                drop(e, why)
finally:
    for e in engines:
        e.close()
table(rows, a.clients)
targets(rows, a.clients)
