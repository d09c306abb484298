#!/usr/bin/env python3
"""Soak test of nibble serve: many open clients for a long time. Exit 1 on a failed request, a block still held between runs, or growth.

Runs of `nibble bench serve` follow each other until --minutes are over. After each run nobody asks: requests that run or wait and blocks
in use must then be 0. The resident size is compared with that after the first run that met a full pool: until then blocks are first touched.

usage: soak.py --nibble BIN --model DIR [--minutes 30] [--clients 256] [--requests 1024] [--growth 1.0] [--serve "OPTIONS"]
"""
import argparse
import json
import os
import re
import subprocess
import sys
import time
import urllib.request

ap = argparse.ArgumentParser()
ap.add_argument("--nibble", required=True)
ap.add_argument("--model", required=True)
ap.add_argument("--minutes", type=float, default=30)
ap.add_argument("--clients", type=int, default=256)
ap.add_argument("--requests", type=int, default=1024, help="of one run")
ap.add_argument("--growth", type=float, default=1.0, help="percent of the resident size that may come once the pool is full")
ap.add_argument("--serve", default="--max-seqs 64 --kv-cache 64M", help="options of nibble serve")
a = ap.parse_args()
EVICTIONS = "nibble:evictions_total"


def start():
    """The server and its URL."""
    server = subprocess.Popen([a.nibble, "serve", a.model, "--port", "0", "--no-request-log", "--max-queued", "0", *a.serve.split()],
                              stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        ready = re.search(r"is ready at (http\S+)", line)
        if ready:
            return server, ready.group(1).rstrip("/")
    raise SystemExit("nibble serve has ended before it was ready")


def resident(pid):
    with open("/proc/%d/status" % pid) as f:
        return int(re.search(r"VmRSS:\s+(\d+) kB", f.read()).group(1))


def metrics(url, *names):
    text = urllib.request.urlopen(url + "/metrics", timeout=60).read().decode()
    return {n: float(re.search(r"^%s(?:\{[^}]*\})? (\S+)$" % n, text, re.M).group(1)) for n in names}


def held(url):
    """What the server still holds for requests: those that run, those that wait, the share of blocks in use."""
    left = metrics(url, "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    return {n: v for n, v in left.items() if v}


def load(url, seed):
    out = subprocess.run([a.nibble, "bench", "serve", "--base-url", url, "--num-prompts", str(a.requests), "--max-concurrency", str(a.clients),
                          "--random-input-len", "32", "--random-output-len", "32", "--random-range-ratio", "0.5", "--seed", str(seed), "--json", "-q"],
                         capture_output=True, text=True)
    if not out.stdout:
        raise SystemExit(out.stderr)
    return json.loads(out.stdout)


server, url = start()
failed = asked = runs = 0
first, last, left = None, 0, {}
began = time.monotonic()
try:
    while time.monotonic() - began < 60 * a.minutes or not first:
        r = load(url, runs)
        failed += r["failed"]
        asked += a.requests
        runs += 1
        time.sleep(1)
        left = held(url)
        last = resident(server.pid)
        if first is None and metrics(url, EVICTIONS)[EVICTIONS] > 0:
            first = last
        print("%5.1f min, run %d: %d requests, %d failed, %.0f tok/s, resident %d kB, held %s" % (
            (time.monotonic() - began) / 60, runs, asked, failed, r["output_throughput"], last, left or "nothing"), flush=True)
        if left:
            break
finally:
    server.terminate()
    code = server.wait(60)
growth = 100 * (last / first - 1) if first else 0
print("load average %.1f; %d runs, %d requests, %d failed, growth %+.2f %%, exit %d" % (os.getloadavg()[0], runs, asked, failed, growth, code))
sys.exit(1 if failed or left or growth > a.growth or code else 0)
