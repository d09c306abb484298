"""Line charts as SVG, written by hand: no library, small files, readable on light and dark pages."""
import math
from xml.sax.saxutils import escape

COLORS = ["#1f6fd0", "#d0631f", "#2f9e55", "#8a4fc0", "#777777"]
W, H, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 64, 150, 44, 48


def nice_ticks(lo, hi, log):
    if log:
        out, e = [], math.floor(math.log10(lo))
        while 10**e <= hi * 1.001:
            out += [m * 10**e for m in (1, 2, 5) if lo * 0.999 <= m * 10**e <= hi * 1.001]
            e += 1
        return out
    step = 10 ** math.floor(math.log10(hi or 1))
    step = next(s for s in (step / 5, step / 2, step, 2 * step) if hi / s <= 6)
    return [i * step for i in range(int(hi / step) + 1)]


def number(v):
    return f"{v:g}" if v < 1000 else f"{v / 1000:g}k"


def chart(title, x_name, y_name, series, log_x=False, log_y=False):
    """series: [(name, [(x, y, low, high)])]; x 0 on a logarithmic axis sits at its left end under its own name."""
    series = [(n, p) for n, p in series if p]
    xs = sorted({p[0] for _, pts in series for p in pts})
    ys = [v for _, pts in series for p in pts for v in p[1:]]
    if not xs:
        return None
    y_lo, y_hi = (min(ys) * 0.8, max(ys) * 1.25) if log_y else (0, max(ys) * 1.08)
    pos = [x for x in xs if x > 0]
    zero = log_x and xs[0] == 0
    x_lo, x_hi = (pos[0] / (4 if zero else 1), pos[-1]) if log_x else (min(0, xs[0]), xs[-1])

    def px(x):
        if log_x:
            x = max(x, x_lo)
            part = math.log(x / x_lo) / (math.log(x_hi / x_lo) or 1)
        else:
            part = (x - x_lo) / ((x_hi - x_lo) or 1)
        return LEFT + part * (W - LEFT - RIGHT)

    def py(y):
        part = math.log(y / y_lo) / math.log(y_hi / y_lo) if log_y else (y - y_lo) / (y_hi - y_lo)
        return H - BOTTOM - part * (H - TOP - BOTTOM)

    o = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {H}" font-family="sans-serif" font-size="12">',
         f'<rect width="{W}" height="{H}" fill="#ffffff"/>', f'<text x="{LEFT}" y="24" font-size="15" fill="#111">{escape(title)}</text>']
    for y in nice_ticks(y_lo, y_hi, log_y):
        o.append(f'<line x1="{LEFT}" y1="{py(y):.1f}" x2="{W - RIGHT}" y2="{py(y):.1f}" stroke="#e2e2e2"/>'
                 f'<text x="{LEFT - 8}" y="{py(y) + 4:.1f}" text-anchor="end" fill="#444">{number(y)}</text>')
    last = -99
    for x in xs:
        o.append(f'<line x1="{px(x):.1f}" y1="{H - BOTTOM}" x2="{px(x):.1f}" y2="{H - BOTTOM + 5}" stroke="#444"/>')
        if px(x) - last > 24:
            o.append(f'<text x="{px(x):.1f}" y="{H - BOTTOM + 19}" text-anchor="middle" fill="#444">{number(x)}</text>')
            last = px(x)
    o.append(f'<path d="M{LEFT} {TOP}V{H - BOTTOM}H{W - RIGHT}" fill="none" stroke="#444"/>'
             f'<text x="{(LEFT + W - RIGHT) / 2}" y="{H - 10}" text-anchor="middle" fill="#444">{escape(x_name)}</text>'
             f'<text transform="translate(16 {(TOP + H - BOTTOM) / 2}) rotate(-90)" text-anchor="middle" fill="#444">{escape(y_name)}</text>')
    labels = []
    for i, (name, pts) in enumerate(series):
        c = COLORS[i % len(COLORS)]
        pts = sorted(pts)
        o.append(f'<polyline fill="none" stroke="{c}" stroke-width="2" points="' + " ".join(f"{px(p[0]):.1f},{py(p[1]):.1f}" for p in pts) + '"/>')
        for x, y, low, high in pts:
            o.append(f'<line x1="{px(x):.1f}" y1="{py(low):.1f}" x2="{px(x):.1f}" y2="{py(high):.1f}" stroke="{c}"/>'
                     f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="3" fill="{c}"><title>{escape(name)}, {number(x)}: {y:.1f}</title></circle>')
        labels.append([py(pts[-1][1]), px(pts[-1][0]), name, c])
    labels.sort()
    for i, (y, x, name, c) in enumerate(labels):
        if i and y < labels[i - 1][0] + 15:
            labels[i][0] = y = labels[i - 1][0] + 15
        o.append(f'<text x="{W - RIGHT + 10}" y="{y + 4:.1f}" fill="{c}">{escape(name)}</text>')
    return "\n".join(o + ["</svg>"]) + "\n"


def bars(title, x_name, rows, ideal=None):
    """rows: [(name, value, low, high)], lengths from 0 with their spread; a dashed line at `ideal`."""
    if not rows:
        return None
    left, height = 130, 74 + 44 * len(rows) + BOTTOM
    hi, bottom = max([r[3] for r in rows] + [ideal or 0]) * 1.05, height - BOTTOM

    def px(v):
        return left + v / hi * (W - left - 60)

    o = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {height}" font-family="sans-serif" font-size="12">',
         f'<rect width="{W}" height="{height}" fill="#ffffff"/>', f'<text x="{left}" y="24" font-size="15" fill="#111">{escape(title)}</text>']
    for x in nice_ticks(0, hi, False):
        o.append(f'<line x1="{px(x):.1f}" y1="54" x2="{px(x):.1f}" y2="{bottom}" stroke="#e2e2e2"/>'
                 f'<text x="{px(x):.1f}" y="{bottom + 19}" text-anchor="middle" fill="#444">{number(x)}</text>')
    for i, (name, v, low, high) in enumerate(rows):
        y = 66 + 44 * i
        o.append(f'<text x="{left - 10}" y="{y + 17}" text-anchor="end" fill="#111">{escape(name)}</text>'
                 f'<rect x="{left}" y="{y}" width="{px(v) - left:.1f}" height="26" rx="2" fill="{COLORS[i % len(COLORS)]}" fill-opacity="0.75"/>'
                 f'<path d="M{px(low):.1f} {y + 13}H{px(high):.1f}M{px(low):.1f} {y + 8}v10M{px(high):.1f} {y + 8}v10" stroke="#111" fill="none"/>'
                 f'<text x="{max(px(high), px(ideal or 0)) + 10:.1f}" y="{y + 17}" fill="#111">{v:.2f}</text>')
    if ideal:
        o.append(f'<line x1="{px(ideal):.1f}" y1="54" x2="{px(ideal):.1f}" y2="{bottom}" stroke="#777" stroke-dasharray="5 4"/>'
                 f'<text x="{px(ideal):.1f}" y="47" text-anchor="middle" fill="#444">ideal</text>')
    o.append(f'<line x1="{left}" y1="54" x2="{left}" y2="{bottom}" stroke="#444"/>'
             f'<text x="{(left + W - 60) / 2}" y="{height - 10}" text-anchor="middle" fill="#444">{escape(x_name)}</text>')
    return "\n".join(o + ["</svg>"]) + "\n"


def points(f, set_, probe, metric_of, xs):
    out = []
    for x in xs:
        v = f.of(set_, probe(x) if callable(probe) else probe, metric_of(x))
        if v:
            out.append((x, *v))
    return out


def all_plots(f, threads, depths, batches, layers):
    """(file name, caption, SVG) of every plot that has figures."""
    depth = [("nibble", points(f, "growth-depth", "nibble", lambda d: f"decode x1 @{d}", depths)),
             ("llama.cpp Q4_0", points(f, "growth-depth", lambda d: f"llama.cpp q4_0 @{d}", lambda d: f"decode x1 @{d}", depths))]
    batch = [("nibble A16", points(f, "growth-batch", "nibble", lambda b: f"decode x{b} @128", batches)),
             ("nibble A8", points(f, "growth-batch", "nibble a8", lambda b: f"decode x{b} @128", batches)),
             ("llama.cpp Q4_0", points(f, "growth-batch", "llama.cpp q4_0", lambda b: f"decode x{b} @32", batches))]

    thread = [(name, f.ratio(set_, (many, metric), (one, metric))) for name, set_, one, many, metric in (
        ("prefill, 1B", "1b", "nibble 1 thread", "nibble", "prefill"),
        ("decode, 1B", "1b", "nibble 1 thread", "nibble", "decode x1 @0"),
        ("prefill, 135M", "135m", "nibble 1", f"nibble {threads}", "prefill"),
        ("decode, 135M", "135m", "nibble 1", f"nibble {threads}", "decode x1 @0"))] if threads > 1 else []
    layer = [("prefill of 128", points(f, "growth-layers", lambda n: f"nibble {n}", lambda n: "prefill", layers)),
             ("decode", points(f, "growth-layers", lambda n: f"nibble {n}", lambda n: "decode x1 @0", layers))]
    return [(name, caption, svg) for name, caption, svg in (
        ("depth.svg", "decode of the 1B shape, tokens a second by tokens already in the cache",
         chart("Decode at depth, 1B shape", "tokens cached", "tokens a second", depth, log_x=True)),
        ("batch.svg", "sequences that decode together, 1B shape, tokens a second of all",
         chart("Sequences together, 1B shape", "sequences (m)", "tokens a second, all", batch, log_x=True)),
        ("threads.svg", "gain of threads over one",
         bars(f"Gain of {threads} threads", "times one thread", [(n, *v) for n, v in thread if v], ideal=threads)),
        ("layers.svg", "layers of the 135M shape, tokens a second",
         chart("Layers, 135M shape", "layers", "tokens a second", layer, log_x=True, log_y=True))) if svg]
