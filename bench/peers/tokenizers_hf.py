#!/usr/bin/env python3
"""nibble beside the Python package tokenizers on one vocabulary and text, interleaved, medians and ratios.

  python3 bench/peers/tokenizers_hf.py --bench build/nb_bench_tokenizer --tokenizer tokenizer.json --text TEXT [--rounds 5]

Every round loads tokenizer.json anew and encodes the text once, cut into documents of about --bytes at line ends, on one
thread each: nb_bench_tokenizer, then Tokenizer.from_file and encode_batch_fast (no offsets, no special tokens) with
TOKENIZERS_PARALLELISM=false, in a process of its own as well. The ids must be equal, or the script fails. Figures of a
round come from one moment; a ratio is that of the medians.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time


def documents(path, step):
    data = open(path, "rb").read()
    at = 0
    while at < len(data):
        end = data.find(b"\n", at + step) if len(data) - at > step else -1
        end = end + 1 if end >= 0 else len(data)
        yield data[at:end].decode("utf-8")
        at = end


def peer(args):
    """One measurement of the package: the line that nb_bench_tokenizer prints, as JSON, and all ids hashed."""
    import tokenizers

    docs = list(documents(args.text, args.bytes))
    t0 = time.perf_counter()
    tok = tokenizers.Tokenizer.from_file(args.tokenizer)
    load = time.perf_counter() - t0
    t0 = time.perf_counter()
    out = tok.encode_batch_fast(docs, add_special_tokens=False)
    encode = time.perf_counter() - t0
    h, n = 0xCBF29CE484222325, 0
    for e in out:
        n += len(e.ids)
        for i in e.ids:
            for b in i.to_bytes(4, "little"):
                h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    print(json.dumps({"load": load, "encode": encode, "ids": n, "sum": f"{h:016x}", "version": tokenizers.__version__}))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--bench", help="the program nb_bench_tokenizer")
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("--text", required=True, help="UTF-8")
    ap.add_argument("--bytes", type=int, default=8192)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    args = ap.parse_args()
    if args.peer:
        return peer(args)
    if not args.bench:
        ap.error("--bench is needed")
    env = dict(os.environ, TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")
    again = [sys.executable, __file__, "--peer", "--tokenizer", args.tokenizer, "--text", args.text, "--bytes", str(args.bytes)]
    mine, theirs, version = [], [], ""
    for r in range(args.rounds):
        cmd = [args.bench, args.tokenizer, args.text, str(args.bytes)]
        out = subprocess.run(cmd, check=True, capture_output=True, text=True).stdout.split()
        a = dict(zip(out[::2], out[1::2]))
        b = json.loads(subprocess.run(again, check=True, capture_output=True, text=True, env=env).stdout)
        if (int(a["ids"]), a["sum"]) != (b["ids"], b["sum"]):
            sys.exit(f"the ids differ: {a['ids']} {a['sum']}, tokenizers has {b['ids']} {b['sum']}")
        mb = int(a["bytes"]) / 1e6
        mine.append((float(a["load"]), mb / float(a["encode"])))
        theirs.append((b["load"], mb / b["encode"]))
        version = b["version"]
        (a0, a1), (b0, b1) = mine[-1], theirs[-1]
        print(f"round {r + 1}: load {a0:.3f} s | {b0:.3f} s   encode {a1:.1f} MB/s | {b1:.1f} MB/s", flush=True)
    load = [statistics.median(x[0] for x in y) for y in (mine, theirs)]
    rate = [statistics.median(x[1] for x in y) for y in (mine, theirs)]
    print(f"nibble | tokenizers {version}, {mb:.2f} MB, one thread, medians of {args.rounds}; ids equal")
    print(f"load   {load[0]:.3f} s | {load[1]:.3f} s   {load[1] / load[0]:.2f} x")
    print(f"encode {rate[0]:.1f} MB/s | {rate[1]:.1f} MB/s   {rate[0] / rate[1]:.2f} x")


if __name__ == "__main__":
    main()
