"""The loop of a peer's worker: requests of random ids, timed from outside the engine.

generate(list of prompts, tokens) must draw exactly that many tokens for each prompt. Prefill is the time of one token after the
prompt; decode the time of `decode` more tokens, from the difference of two runs with fresh prompts, so that no cache helps."""
import json
import os
import random
import sys
import time


def serve(make, vocab):
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what engines print goes with their messages
    rng = random.Random(1)

    def say(what):
        out.write(json.dumps({"bench": what}) + "\n")
        out.flush()

    def prompts(batch, n):
        return [[rng.randrange(300, vocab) for _ in range(n)] for _ in range(batch)]

    try:
        generate = make()
        generate(prompts(1, 32), 4)
        say({"ready": True})
    except Exception as e:  # whatever an engine raises is the reason it is skipped
        say({"error": f"{type(e).__name__}: {str(e)[:200]}"})
        return

    def took(batch, n, tokens):
        p = prompts(batch, n)
        t = time.perf_counter()
        generate(p, tokens)
        return time.perf_counter() - t

    for line in sys.stdin:
        r = json.loads(line)
        try:
            first = took(r["batch"], r["prompt"], 1)
            if r["what"] == "prefill":
                say({"tok_s": r["batch"] * r["prompt"] / first})
            else:
                whole = took(r["batch"], r["prompt"], 1 + r["decode"])
                say({"tok_s": r["batch"] * r["decode"] / max(whole - first, 1e-9)})
        except Exception as e:
            say({"error": f"{type(e).__name__}: {str(e)[:200]}"})
