"""The rows of the target table: which figures of which set make each, and what it must reach."""

ZEN4, ZEN5 = "Zen 4", "Zen 5"
# Peers of the sets "others": name for people, probe.
OTHERS = (("ik_llama.cpp Q4_0, wheel for AVX2", "ik wheel"), ("OpenVINO GenAI", "openvino"), ("vLLM with zentorch", "vllm"))


class Row:
    """must and goal: numbers, or {machine: number}. `less`: smaller is better. What names no machine is Zen 5's."""

    def __init__(self, id_, what, must, goal, of, unit="x", less=False, peer=None, sets=(), only=None):
        self.id, self.what, self.must, self.goal, self.of, self.unit, self.less = id_, what, must, goal, of, unit, less
        self.peer, self.sets = peer, sets
        self.only = only  # the peer of the figure, where others that may be better have none

    def target(self, which, zen):
        v = getattr(self, which)
        return v.get(zen, v.get(ZEN5)) if isinstance(v, dict) else v

    def verdict(self, zen):
        if not self.of:
            return "not measured"
        good = (lambda limit: self.of[0] <= limit) if self.less else (lambda limit: self.of[0] >= limit)
        if self.only and good(self.target("must", zen)):
            return f"only against {self.only}"
        if self.target("goal", zen) is not None and good(self.target("goal", zen)):
            return "goal met"
        return "must met" if good(self.target("must", zen)) else "missed"

    def foreign(self, zen):
        """Is the target one of another machine?"""
        return zen != ZEN5 and not (isinstance(self.must, dict) and zen in self.must) and self.unit == "x" and self.peer is not None

    def show(self, v):
        if v is None:
            return "-"
        return f"{100 * v:.0f} %" if self.unit == "%" else f"{v:.2f}x"


def best_peer(figures, choices):
    """Of ratios to several peers the least, whose it is, and which engines have none. A wheel for AVX2 does not stand for its engine."""
    found, engines = [], {}
    for name, set_, ours, theirs in choices:
        r = figures.ratio(set_, ours, theirs)
        if r:
            found.append((r, name))
        if "wheel" not in name:
            engine = name.split(" ")[0]
            engines[engine] = engines.get(engine) or bool(r)
    of, name = min(found) if found else (None, None)
    return of, name, [engine for engine, has in engines.items() if not has]


def rows(f, threads):
    d0, d128 = "decode x1 @0", "decode x1 @128"
    t = threads
    out = []

    def add(*args, **more):
        out.append(Row(*args, **more))

    def ratio(id_, what, must, goal, set_, ours, theirs, peer="llama.cpp", **more):
        add(id_, what, must, goal, f.ratio(set_, ours, theirs), peer=peer, sets=(set_,), **more)

    for n in sorted({1, t}, reverse=True):
        found = [f.of("kernels", f"avx512-vnni {n}", f"a16 stream m1 k{k} g128") for k in (2048, 8192)]
        found = [x for x in found if x]
        add(f"kernel-{n}", f"m = 1 kernel, A16, g128, k = 2048 and 8192 (the lesser), over a plain read, {n} thread{'s' * (n > 1)}", 0.85, 0.95,
            min(found) if found else None, "%", sets=("kernels",))
    add("share", "decode, 1B: weight bytes a second over the read", {ZEN4: 0.90, ZEN5: 0.65}, {ZEN4: 0.95, ZEN5: 0.75},
        f.of("1b", "nibble", "share"), "%", sets=("1b",))
    ratio("decode-q4_0", "decode, 1B, vs llama.cpp Q4_0", {ZEN4: 1.15, ZEN5: 1.4}, {ZEN4: 1.25, ZEN5: 1.8}, "1b", ("nibble", d0), ("llama.cpp q4_0", d0))
    ratio("decode-q4_1", "decode, 1B, vs llama.cpp Q4_1", 2.3, 3.0, "1b", ("nibble", d0), ("llama.cpp q4_1", d0))
    ratio("decode-q4_k_m", "decode, 1B, vs llama.cpp Q4_K_M", 1.4, 1.8, "1b", ("nibble", d0), ("llama.cpp q4_k_m", d0))
    ratio("decode-135m", "decode, 135M, vs llama.cpp Q4_0 (better of its 1 and 2 threads)", {ZEN4: 1.15, ZEN5: 1.7}, {ZEN4: 1.25, ZEN5: 2.5}, "135m",
          (f"nibble {t}", d0), [("llama.cpp q4_0 1", d0), (f"llama.cpp q4_0 {t}", d0)])
    ratio("depth", "decode, 1B, at depth 4096, vs llama.cpp Q4_0", 2.0, 3.0, "depth", ("nibble", "decode x1 @4096"), ("llama.cpp q4_0", "decode x1 @4096"))
    ratio("prefill-q4_0", "prefill of 512, 1B, A16, vs llama.cpp Q4_0", 1.2, 1.4, "1b", ("nibble", "prefill"), ("llama.cpp q4_0", "prefill"))
    ratio("prefill-q4_k_m", "prefill of 512, 1B, A16, vs llama.cpp Q4_K_M", 1.7, 2.1, "1b", ("nibble", "prefill"), ("llama.cpp q4_k_m", "prefill"))
    ratio("prefill-a8", "prefill of 512, 1B, A8, vs llama.cpp Q4_0", 2.0, 2.5, "1b", ("nibble a8", "prefill"), ("llama.cpp q4_0", "prefill"))

    def best(id_, what, must, goal, choices):
        of, name, without = best_peer(f, choices)
        said = [f"here {name}"] * bool(name) + ["not in the ratio: " + ", ".join(without)] * bool(without)
        add(id_, what + (f" ({'; '.join(said)})" if said else ""), must, goal, of, peer=name or "peers",
            sets=tuple(sorted({c[1] for c in choices})), only=name if without else None)

    for act, ours, must, goal in (("A16", "nibble", {ZEN4: 0.6, ZEN5: 0.9}, {ZEN4: 0.7, ZEN5: 1.05}),
                                  ("A8", "nibble a8", {ZEN4: 1.05, ZEN5: 1.4}, {ZEN4: 1.15, ZEN5: 1.8})):
        best(f"prefill-best-{act.lower()}", f"prefill of 512, 1B, {act}, vs the best CPU peer", must, goal,
             [(n, "1b", (ours, "prefill"), (p, "prefill")) for n, p in (("ik_llama.cpp IQ4_KS", "ik iq4_ks"), ("ik_llama.cpp Q4_0", "ik q4_0"))] +
             [(n, "others", (ours, "prefill"), (p, "prefill")) for n, p in OTHERS])
    best("decode-best-1b", "decode, 1B, vs the best CPU peer", {ZEN4: 1.0, ZEN5: 1.3}, {ZEN4: 1.15, ZEN5: 1.6},
         [(n, "1b", ("nibble", d0), (p, d0)) for n, p in (("ik_llama.cpp Q4_0", "ik q4_0"), ("ik_llama.cpp IQ4_KS", "ik iq4_ks"),
                                                          ("llama.cpp Q4_0", "llama.cpp q4_0"))] +
         [(n, "others", ("nibble", d128), (p, d128)) for n, p in OTHERS])
    best("decode-best-135m", "decode, 135M, vs the best CPU peer (better of its 1 and 2 threads)", {ZEN4: 1.0, ZEN5: 1.5}, {ZEN4: 1.15, ZEN5: 2.0},
         [(n, "135m", (f"nibble {t}", d0), [(f"{p} 1", d0), (f"{p} {t}", d0)]) for n, p in (("ik_llama.cpp Q4_0", "ik q4_0"), ("llama.cpp Q4_0", "llama.cpp q4_0"))] +
         [(n, "others-135m", ("nibble", d128), (p, d128)) for n, p in OTHERS])
    for n, must, goal in ((8, 1.8, 2.3), (16, 1.5, 1.8)):
        m = f"decode x{n} @128"
        ratio(f"batch-{n}", f"{n} sequences decode together, 1B, A16, vs llama.cpp Q4_0", must, goal, "batch", ("nibble", m), ("llama.cpp q4_0", m))
    m16 = "decode x16 @128"
    ratio("batch-16-a8", "16 sequences decode together, 1B, A8, vs llama.cpp Q4_0", 2.3, 3.0, "batch", ("nibble a8", m16), ("llama.cpp q4_0", m16))
    for act, ours, n, must, goal in (("A16", "nibble", 8, {ZEN4: 0.9, ZEN5: 1.2}, {ZEN4: 1.15, ZEN5: 1.6}),
                                     ("A16", "nibble", 16, {ZEN4: 0.9, ZEN5: 1.2}, {ZEN4: 1.15, ZEN5: 1.6}),
                                     ("A8", "nibble a8", 16, {ZEN4: 1.4, ZEN5: 2.0}, {ZEN4: 1.8, ZEN5: 3.0})):
        m = f"decode x{n} @128"
        best(f"batch-best-{n}-{act.lower()}", f"{n} sequences decode together, 1B, {act}, vs the best CPU peer", must, goal,
             [("ik_llama.cpp Q4_0", "batch", (ours, m), ("ik q4_0", m))] +
             [(n_, "others", (ours, m), (p, m)) for n_, p in OTHERS])
    big = f"avx512-vnni {t}"
    add("gemm-a8", "GEMM m = 512, A8, of the vpdpbusd peak", 0.65, 0.75, f.of("kernels", big, "a8 tiles m512 g128"), "%", sets=("kernels",))
    add("gemm-a16", "GEMM m = 512, A16, of half that peak", 0.75, 0.85, f.of("kernels", big, "a16 tiles m512 g128"), "%", sets=("kernels",))
    add("avx2-a8", "AVX2 tier: GEMM m = 512, A8, over the AVX-512 tier", 0.28, 0.33,
        f.ratio("kernels", (f"avx2 {t}", "a8 tiles m512 g128 gmac"), (big, "a8 tiles m512 g128 gmac")), sets=("kernels",))
    add("avx2-m1", "AVX2 tier: m = 1, A16, g128, k = 2048, over a plain read", 0.85, 0.95, f.of("kernels", f"avx2 {t}", "a16 stream m1 k2048 g128"), "%",
        sets=("kernels",))
    if t > 1:
        for id_, what, must, goal, set_, ours, one in (
                ("threads-prefill", "prefill, 1B", 1.8, 1.95, "1b", ("nibble", "prefill"), ("nibble 1 thread", "prefill")),
                ("threads-1b", "decode, 1B", 1.4, 1.6, "1b", ("nibble", d0), ("nibble 1 thread", d0)),
                ("threads-135m", "decode, 135M", 1.2, 1.4, "135m", (f"nibble {t}", d0), ("nibble 1", d0))):
            add(id_, f"1 -> {t} threads: {what}", must, goal, f.ratio(set_, ours, one), sets=(set_,))
    add("start", "warm file to first token, 1B AWQ, over plain read() of the file", 2.5, 1.5, f.ratio("start", ("nibble", "seconds"), ("read", "seconds")),
        less=True, sets=("start",))
    add("rest", "time outside products and attention in 1B decode", 0.12, 0.06, f.of("profile", "nibble", "rest"), "%", less=True, sets=("profile",))
    add("moe", "experts, 8 with 2 active, 1B shape: active bytes a second over the read", 0.60, 0.72, f.of("moe", "nibble", "share"), "%", sets=("moe",))
    for shape, what in (("delta", "gated delta rule"), ("mamba", "Mamba-2")):
        hybrid = f"hybrid of 1B, three layers of {what} to one of attention, over the plain 1B model:"
        add(f"{shape}-share", f"{hybrid} weight bytes a second in decode at depth 0", 0.9, None, f.ratio("hybrid", (shape, "weights"), ("1b", "weights")),
            sets=("hybrid",))
        add(f"{shape}-depth", f"{hybrid} decode at depth 4096", 1.0, None,
            f.ratio("hybrid", (shape, "decode x1 @4096"), ("1b", "decode x1 @4096")), sets=("hybrid",))
        add(f"{shape}-prefill", f"{hybrid} prefill of 512", 0.6, None, f.ratio("hybrid", (shape, "prefill"), ("1b", "prefill")), sets=("hybrid",))
    add("memory", "peak memory of run over packed weights and KV", 1.10, 1.05, f.of("memory", "nibble", "over"), less=True, sets=("memory",))
    return out
