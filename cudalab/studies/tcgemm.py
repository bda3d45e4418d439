"""Study of part 6: what low precision costs and what it saves, from FP32 down to FP8 with each scaling.

Every way multiplies the same float32 matrices, rounded to what it takes, and is held against the float64 product of the matrices as they
were: so the error is that of the elements, of the sums and of the result together.  The error of the sums alone is measured against the
float64 product of the rounded elements, after what rounding the result may do is taken off.
Three TF32 products for one (3xTF32): each matrix is the sum of a TF32 number and a TF32 remainder, and the product of the remainders is
left out; here they stand side by side along K, so that one product of three times the depth adds them up.  Its idea: S. Markidis et al.,
"NVIDIA Tensor Core Programmability, Performance & Precision", arXiv:1803.04014; H. Ootomo and R. Yokota, arXiv:2203.03341.
"""

import inspect

from cudalab.study import Study

SIZES, DEPTHS = (128, 512), (256, 1024, 4096, 16384)  # M and N whose errors are looked at, and K, on a device
EMULATED_SIZES, EMULATED_DEPTHS = (16, 16), (384,)
SIDE = 2048  # M = N of what is timed
BLOCK, LARGEST = 128, 448.0  # K (and N) of one scale; the largest e4m3 number
BATCHES = 5
NORMAL, OUTLIERS, WIDE = "normal", "outliers", "wide"
WAYS = ("f32", "3xtf32", "tf32", "f16", "bf16", "fp8 block", "fp8 promoted", "fp8 fast")
COLOURS = dict(zip(WAYS, ("#222222", "#2f6ca3", "#6ea6d8", "#4f7d4f", "#9bbf6b", "#7a5aa0", "#b5532a", "#e0955a")))
LINES = {NORMAL: "-", OUTLIERS: ":"}


def draw(distribution: str, sizes: tuple[int, int], depth: int, rng):
    """float32 A (M x depth) and B (N x depth, used transposed).

    normal: N(0, 1).  outliers: one column of A in 128 is a hundred times as large, as activations of language models have it.
    wide: magnitudes spread over the normal numbers' exponential, squared: a few large, most small, everywhere.
    """
    import numpy as np
    A, B = (rng.standard_normal((size, depth), dtype=np.float32) for size in sizes)
    if distribution == OUTLIERS:
        A[:, rng.choice(depth, depth // 128, replace=False)] *= 100
    if distribution == WIDE:
        A, B = (x * np.exp(2 * rng.standard_normal(x.shape, dtype=np.float32)) for x in (A, B))
    return A, B


def prepared(way: str, A, B):
    """The step's name, dtype, variant and inputs for one way to multiply A and B^T."""
    import numpy as np
    from cudalab.dtypes import encode
    if way == "f32":
        return "sgemm/stream_k", "f32", None, dict(A=A, B=np.ascontiguousarray(B.T))
    if way == "3xtf32":
        high = [encode(x, "tf32") for x in (A, B)]
        low = [encode(x - h, "tf32") for x, h in zip((A, B), high)]
        (ah, bh), (al, bl) = high, low
        return "tcgemm/overlapped", "tf32", "nt", dict(A=np.hstack([al, ah, ah]), B=np.hstack([bh, bl, bh]))
    if way == "fp8 block":
        depth, columns = A.shape[1], B.shape[0]
        blocks, bands = -(-depth // BLOCK), -(-columns // BLOCK)
        SA = np.stack([_scale(abs(A[:, k * BLOCK:][:, :BLOCK]).max(1)) for k in range(blocks)])
        SB = np.array([[_scale(abs(B[n * BLOCK:, k * BLOCK:][:BLOCK, :BLOCK]).max()) for k in range(blocks)] for n in range(bands)])
        spread = SA.T.repeat(BLOCK, 1)[:, :depth], SB.repeat(BLOCK, 0)[:columns].repeat(BLOCK, 1)[:, :depth]
        quotients = (encode(x / scale, "fp8_e4m3") for x, scale in zip((A, B), spread))
        return "fp8gemm/promoted", "fp8_e4m3", "block", dict(zip("AB", quotients), SA=SA, SB=SB)
    if way.startswith("fp8"):
        SA, SB = (_scale(abs(x).max()).reshape(1) for x in (A, B))
        variant = way.removeprefix("fp8 ")
        return f"fp8gemm/{variant}", "fp8_e4m3", variant, dict(A=encode(A / SA, "fp8_e4m3"), B=encode(B / SB, "fp8_e4m3"), SA=SA, SB=SB)
    return "tcgemm/overlapped", way, "nt", dict(A=encode(A, way), B=encode(B, way))


def _scale(largest):
    """float32 scales that take the largest element to the largest e4m3 number."""
    import numpy as np
    return np.maximum(np.asarray(largest, np.float32) / np.float32(LARGEST), np.float32(1e-30))


def accuracy(place, progress):
    import numpy as np
    from cudalab.emulator import Emulator
    emulated = place.name == "emulator"
    sizes, depths = (EMULATED_SIZES, EMULATED_DEPTHS) if emulated else (SIZES, DEPTHS)
    # what the instruction keeps of a sum counts here, not only what it is meant to compute
    runner = Emulator(place.target, mma="hardware", device=place.device) if emulated else place
    cases = [(NORMAL, depth) for depth in depths] + [(OUTLIERS, depth) for depth in depths[-1 if emulated else 0:]]
    cases += [] if emulated else [(WIDE, depths[-1])]
    for number, (distribution, depth) in enumerate(cases):
        A, B = draw(distribution, sizes, depth, np.random.default_rng(number))
        reference = A.astype(np.float64) @ B.astype(np.float64).T
        for at, way in enumerate(WAYS):
            progress(number * len(WAYS) + at, len(cases) * len(WAYS), f"{way}, K {depth}, {distribution}")
            row = one(runner, way, A, B, reference) | dict(distribution=distribution, M=sizes[0], N=sizes[1], K=depth)
            yield row if emulated or distribution != NORMAL else row | timed(place, way, depth)


def one(runner, way: str, A, B, reference) -> dict:
    """A row of errors: one product, run and compared."""
    import numpy as np
    from cudalab.dtypes import decode, unit
    from cudalab.registry import resolve_step
    name, dtype, variant, inputs = prepared(way, A, B)
    step = resolve_step(name)
    depth = inputs["A"].shape[1]
    plan = step.plan(step.op.problem(dict(M=len(A), N=len(B), K=depth), dtype, variant))
    C = runner.run(plan, inputs)["C"]
    tensors = plan.tensors
    got = decode(C, tensors["C"].dtype)
    kind = dict(p=plan.problem) if "p" in inspect.signature(step.op.reference).parameters else {}
    meant = step.op.reference(**{n: decode(x, tensors[n].dtype) for n, x in inputs.items()}, **kind)
    rounding = unit(tensors["C"].dtype) if tensors["C"].dtype != "f32" else 0.0
    of_sums = np.maximum(abs(got - meant) - rounding * abs(meant), 0.0)
    return dict(way=way, error=ratio(got - reference, reference), error_of_sums=ratio(of_sums, meant))


def ratio(difference, meant) -> float | None:
    """How large a difference is beside what was meant; None where it overflows."""
    import numpy as np
    found = float(np.linalg.norm(difference) / np.linalg.norm(meant))
    return found if np.isfinite(found) else None


def timed(place, way: str, depth: int) -> dict:
    """The time of one way's product of SIDE x SIDE, elements rounded and scales found before."""
    from cudalab.measure import time_plan
    from cudalab.registry import resolve_step
    import numpy as np
    few = np.zeros((16, 16), np.float32)
    name, dtype, variant, _ = prepared(way, few, few)
    step = resolve_step(name)
    plan = step.plan(step.op.problem(dict(M=SIDE, N=SIDE, K=depth * (3 if way == "3xtf32" else 1)), dtype, variant))
    timing = time_plan(place, plan, batches=BATCHES)
    return dict(time_s=timing.time_s, time_iqr_s=timing.time_iqr_s, flops_per_s=2 * SIDE * SIDE * depth / timing.time_s,
                timed_side=SIDE, sm_clock_mhz=timing.sm_clock_mhz)


def plot(axes, rows):
    for way in WAYS:
        for distribution, line in LINES.items():
            found = [row for row in rows if (row["way"], row["distribution"]) == (way, distribution)]
            axes.plot([row["K"] for row in found], [row["error"] for row in found], line, marker="o", markersize=4, color=COLOURS[way],
                      label=way if distribution == NORMAL else None)
    axes.plot([], [], ":", color="#888888", label="with outliers")
    for way in ("fp8 fast", "fp8 promoted"):
        found = [row for row in rows if (row["way"], row["distribution"]) == (way, NORMAL) and row["error_of_sums"] > 0]
        axes.plot([row["K"] for row in found], [row["error_of_sums"] for row in found], "--", marker="x", color=COLOURS[way],
                  label=f"{way}: sums alone")
    depths = sorted({row["K"] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(depths, [str(depth) for depth in depths])
    axes.minorticks_off()
    axes.set_yscale("log")
    axes.set_xlabel("K")
    axes.set_ylabel("error, as a part of the product (root mean squares)")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


def conclude(rows):
    deepest = max(row["K"] for row in rows)
    at = {(row["way"], row["distribution"]): row for row in rows if row["K"] == deepest}

    def error(way, distribution=NORMAL, field="error"):
        return at[way, distribution][field]
    said = [f"At K = {deepest}, normal elements: " + ", ".join(f"{way} {error(way):.1e}" for way in WAYS) + "."]
    fast, promoted = (error(f"fp8 {way}", field="error_of_sums") for way in ("fast", "promoted"))
    if promoted:
        said.append(f"Sums that the tensor cores keep over all of K are {fast:.1e} off, promoted every {BLOCK} of K {promoted:.1e}: "
                    f"{fast / promoted:.3g} times less.")
    grown = {way: error(way, OUTLIERS) / error(way) for way in ("bf16", "fp8 promoted", "fp8 block")}
    said.append("Outliers multiply the error by " + ", ".join(f"{growth:.2g} ({way})" for way, growth in grown.items()) + ".")
    if lost := sorted(f"{way} ({distribution})" for (way, distribution), row in at.items() if row["error"] is None):
        said.append(f"Overflows: {', '.join(lost)}.")
    if "time_s" in at["f32", NORMAL]:
        base = error("f32", field="time_s")
        speeds = (f"{way} {base / error(way, field='time_s'):.3g} times as fast" for way in WAYS[1:])
        said.append(f"Beside f32 at {SIDE}x{SIDE}x{deepest}: {', '.join(speeds)}.")
    return said


STUDIES = (Study("tcgemm/accuracy", "what low precision costs, and what it saves", accuracy,
                 ("way", "distribution", "K", "error", "error_of_sums", "time_s", "flops_per_s"), plot, conclude),)
