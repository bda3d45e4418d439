"""Part 4: what a device can do at most, measured, and what limits a kernel."""

from cudalab.devices import per_cycle
from cudalab.dtypes import itemsize
from cudalab.errors import BadShape
from cudalab.expressions import cdiv
from cudalab.occupancy import LIMITS
from cudalab.parts.p03_memory import bulk, interleaved
from cudalab.problem import shapes
from cudalab.roofline.roofs import COMPUTE
from cudalab.spec import Launch, Op, Tensor
from cudalab.studies.memory.bandwidth import FROM_L2, IN_BULK, ROW
from cudalab.studies.roofline import COLUMNS, Target, conclude, measure, plot
from cudalab.study import Study

TITLE = "the roofline: a device's roofs, and what limits a kernel"


def stamped(entry, grid, block, args, smem=0):
    """A launch whose blocks write when and where they worked: multiprocessor, cycles at start and end, nanoseconds at start and end."""
    first, _, dims = args.partition(" | ")
    yield Tensor("stamps", (grid, 5), "u64", "out")
    yield Launch(entry, grid=grid, block=block, args=f"{first} stamps {dims}", smem=smem)


# -- arithmetic

roof_fma = Op(
    "roof_fma",
    title="D = C + a·a, to and fro for R rounds: T rows of J sums that share a",
    dims=("T", "J", "R"),
    inputs=dict(A="T", C="T, J"),
    outputs=dict(D="T, J"),
    reference=lambda A, C: C + (A * A)[:, None],
    scale=lambda A, C: abs(C) + (A * A)[:, None],
    depth=lambda p: 1,
    unit=lambda p: 2.0**-53 if p.dtype == "f64" else 2.0**-24,
    flops=lambda p: 2 * p.T * p.J * (2 * p.R + 1),
    bytes=lambda p: itemsize(p.dtype) * p.T * (1 + 2 * p.J),
    samples=(dict(A=0, C=0, D=0),),
    peers=(),
    dtypes=("f32", "f64"),
    shapes=dict(emulate=shapes("520x8x40 1x1x1", ("T", "J", "R")), check=shapes("1x1x1 257x7x33 1000x16x100 135168x8x3", ("T", "J", "R")),
                bench=shapes("135168x16x10000", ("T", "J", "R"))),
)


@roof_fma.step(1, THREADS=256, CHAINS=lambda p: p.J, UNROLL=8, tune=dict(THREADS=(128, 256, 512), UNROLL=(2, 4, 8)))
def chains(p, c):
    if p.J > 32:
        raise BadShape(f"J={p.J}: a thread holds its J sums in registers, at most 32")
    yield from stamped("roof_fma", cdiv(p.T, c.THREADS), c.THREADS, "A C D | T J R")


MATRIX = ("M", "N", "K", "R")
roof_tensor = Op(
    "roof_tensor",
    title="C = A·Bᵀ, R times over, operands as near to the tensor cores as they can be",
    dims=MATRIX,
    inputs=dict(A="M, K", B="N, K"),
    outputs=dict(C=lambda p: "i32: M, N" if p.dtype == "int8" else "f32: M, N"),
    reference=lambda A, B: A @ B.T,
    scale=lambda A, B: (A * A).sum(axis=1)[:, None] ** 0.5 * (B * B).sum(axis=1)[None, :] ** 0.5,
    depth=lambda p: p.K,
    unit=lambda p: 2.0**-13 if p.dtype.startswith("fp8") else 2.0**-23,  # bits that tensor cores keep of a sum: emulator/accumulate.py
    flops=lambda p: 2 * p.M * p.N * p.K * p.R,
    bytes=lambda p: itemsize(p.dtype) * (p.M + p.N) * p.K + 4 * p.M * p.N,
    samples=(dict(A=0, C=0), dict(B=0, C=1)),
    peers=(),
    dtypes=("bf16", "f16", "tf32", "fp8_e4m3", "int8"),
    shapes=dict(emulate=shapes("130x67x24x2 66x9x72x1", MATRIX), check=shapes("1x1x1x1 129x255x31x3 1000x70x120x5", MATRIX),
                bench=shapes("16896x256x128x2000 33792x128x32x2000", MATRIX)),
)


def steps_of_k(p):
    """Instructions that K takes: 32 bytes each."""
    return cdiv(p.K * itemsize(p.dtype), 32)


@roof_tensor.step(1, min_sm=lambda p: 89 if p.dtype.startswith("fp8") else 80, WARPS=8, TILES_M=2, TILES_N=8, STEPS=steps_of_k,
                  tune=dict(WARPS=(4, 8), TILES_M=(2, 4), TILES_N=(4, 8)))
def warp(p, c):
    most = 2 if p.dtype.startswith("fp8") else 4  # a Hopper converts fp8 to f16, in twice the registers
    if c.STEPS > most:
        raise BadShape(f"K={p.K} of {p.dtype}: a warp holds its operands in registers, at most {32 * most} bytes of K")
    grid = cdiv(p.M, 16 * c.TILES_M * c.WARPS) * cdiv(p.N, 8 * c.TILES_N)
    yield from stamped("roof_tensor", grid, 32 * c.WARPS, "A B C | M N K R")


@roof_tensor.step(2, min_sm=90, max_sm=90, WARPGROUPS=2, COLUMNS=lambda p: 64 if p.N <= 64 else 128 if p.N <= 128 else 256,
                  STEPS=steps_of_k, tune=dict(WARPGROUPS=(1, 2, 3), COLUMNS=(64, 128, 256)))
def warpgroup(p, c):
    panels = cdiv(c.STEPS, 4) * 128  # bytes of K
    smem = panels * (64 * c.WARPGROUPS + c.COLUMNS)
    if p.N > c.COLUMNS or panels > 512:
        raise BadShape(f"N={p.N} K={p.K} of {p.dtype}: a block holds all of B in shared memory, at most 256 rows of 512 bytes")
    yield from stamped("roof_tensor", cdiv(p.M, 64 * c.WARPGROUPS), 128 * c.WARPGROUPS, "A B C | M N K R", smem)


# -- memory

SHEET = ("H", "W")
PASSES = (*SHEET, "R")


def vector(p):
    """Floats that one instruction moves along a row: as many as stay aligned."""
    return 4 if p.W % 4 == 0 else 2 if p.W % 2 == 0 else 1


roof_read = Op(
    "roof_read",
    title="S = the sums of the columns of X, R times over",
    dims=PASSES,
    inputs=dict(X="H, W"),
    outputs=dict(S="W"),
    reference=lambda X: X.sum(axis=0),
    scale=lambda X: abs(X).sum(axis=0),
    depth=lambda p: p.H,
    flops=lambda p: p.H * p.W * p.R,
    bytes=lambda p: 4 * (p.H + 1) * p.W,
    samples=(dict(X=1, S=0),),
    peers=(),
    shapes=dict(emulate=shapes("9x2052x2 11x135x1 1x1x1", PASSES), check=shapes("1x1x1 7x4099x3 40x6150x1 19x20000x2", PASSES),
                bench=shapes("992x540672x1 8x540672x1000", PASSES)),
)


@roof_read.step(1, THREADS=1024, BLOCKS=1, UNROLL=16, VEC=vector, ONCE=lambda p: int(p.R == 1), zero=("ONCE",),
                tune=dict(THREADS=(256, 512, 1024), BLOCKS=(1, 2, 4), UNROLL=(4, 8, 16)))
def global_memory(p, c):
    yield Launch("roof_read", grid=cdiv(p.W, c.THREADS * c.VEC), block=c.THREADS, args="X S H W R")


@roof_read.step(2, THREADS=512, UNROLL=8, tune=dict(THREADS=(256, 512, 1024), UNROLL=(4, 8)))
def shared_memory(p, c):
    room = 99 * 1024 // (16 * c.THREADS)  # what a block may have on every device
    if p.H > room:
        raise BadShape(f"H={p.H}: a block holds its columns in shared memory, at most {room} rows")
    yield from stamped("roof_read", cdiv(p.W, 4 * c.THREADS), c.THREADS, "X S | H W R", 16 * c.THREADS * p.H)


roof_write = Op(
    "roof_write",
    title="Y = a·bᵀ",
    dims=SHEET,
    inputs=dict(A="H", B="W"),
    outputs=dict(Y="H, W"),
    reference=lambda A, B: A[:, None] * B[None, :],
    scale=lambda A, B: abs(A)[:, None] * abs(B)[None, :],
    depth=lambda p: 1,
    flops=lambda p: p.H * p.W,
    bytes=lambda p: 4 * (p.H * p.W + p.H + p.W),
    samples=(dict(A=0, Y=0), dict(B=0, Y=1)),
    peers=(),
    shapes=dict(emulate=shapes("5x2052 3x135", SHEET), check=shapes("1x1 7x4099 40x6150 33x1", SHEET), bench=shapes("992x540672", SHEET)),
)


@roof_write.step(1, THREADS=512, UNROLL=4, VEC=vector, tune=dict(THREADS=(256, 512, 1024), UNROLL=(2, 4, 8)))
def streamed(p, c):
    yield Launch("roof_write", grid=cdiv(p.W, c.THREADS * c.VEC), block=c.THREADS, args="A B Y H W")


def tiles(p, c):
    """Blocks of ROWS rows by THREADS vectors."""
    return cdiv(p.W, c.THREADS * c.VEC) * cdiv(p.H, c.ROWS)


@roof_write.step(2, THREADS=1024, ROWS=8, VEC=vector, tune=dict(THREADS=(256, 512, 1024), ROWS=(1, 2, 4, 8)))
def tiled_product(p, c):
    yield Launch("roof_write", grid=tiles(p, c), block=c.THREADS, args="A B Y H W")


roof_copy = Op(
    "roof_copy",
    title="Y = X",
    dims=SHEET,
    inputs=dict(X="H, W"),
    outputs=dict(Y="H, W"),
    reference=lambda X: X,
    scale=lambda X: abs(X),
    depth=lambda p: 1,
    flops=lambda p: p.H * p.W,
    bytes=lambda p: 8 * p.H * p.W,
    samples=(dict(X=0, Y=0), dict(X=1, Y=1)),
    peers=(),
    shapes=dict(emulate=shapes("9x2052 11x135", SHEET), check=shapes("1x1 7x4099 40x6150 33x1", SHEET), bench=shapes("992x540672", SHEET)),
)


@roof_copy.step(1, THREADS=512, BLOCKS=2, UNROLL=8, VEC=vector, tune=dict(THREADS=(256, 512, 1024), BLOCKS=(1, 2), UNROLL=(4, 8)))
def batched(p, c):
    yield Launch("roof_copy", grid=cdiv(p.W, c.THREADS * c.VEC), block=c.THREADS, args="X Y H W")


@roof_copy.step(2, THREADS=256, ROWS=1, VEC=vector, tune=dict(THREADS=(256, 512, 1024), ROWS=(1, 2, 4)))
def one_pass(p, c):
    yield Launch("roof_copy", grid=tiles(p, c), block=c.THREADS, args="X Y H W")


ops = (roof_fma, roof_tensor, roof_read, roof_write, roof_copy)


# -- the roofs

CYCLES = 4_000_000  # that a roof kernel lasts: two milliseconds
L2_PART = 1 / 15  # of L2 that a matrix in it takes: where part 3's curves are highest


def targets(device, small=False):
    """What is measured on a device, or (small) counted on the emulator: work for about CYCLES, or more bytes than L2 could hide."""
    sms, rates, found = (1 if small else device.sms), per_cycle(device)[0], []

    def add(roof, through, step, sizes, dtype, work, unit, counters, **more):
        problem = step.op.problem(sizes, dtype)
        found.append(Target(roof, through, step, problem, work(problem), unit, counters, **more))

    def in_bulk(roof, size, times, warm):  # by the copy engine: the step and the settings of part 3
        per_sm, config = IN_BULK.tuning(size)
        R = size // ROW
        if device.sm in LIMITS and bulk_smem(config) <= LIMITS[device.sm].smem_per_block:
            add(roof, "cp.async.bulk", bulk, dict(R=R, P=times), None, lambda p: ROW * p.R * p.P, "byte", ("async_global_bytes",),
                warm=warm, outside=True, config=dict(config, BLOCKS=min(per_sm * sms, cdiv(R, config["ROWS"]) * times)))

    def rounds(rate, work):  # of so much work an SM
        return 2 if small else max(2, int(CYCLES * rate / work))

    for roof, dtype, J in (("fp32", "f32", 16), ("fp64", "f64", 8)):
        if roof in rates:
            T = 1024 * sms
            sizes = dict(T=T, J=J, R=rounds(rates[roof], 4 * 1024 * J))
            add(roof, "FMA", chains, sizes, dtype, roof_fma.flops, "FLOP", (f"flops_{dtype}",))
    for dtype in roof_tensor.dtypes:
        roof = COMPUTE.get(dtype, dtype)
        if roof not in rates:
            continue
        eight = roof == "fp8"  # a Hopper's mma.sync converts it first, in registers that leave room for half of the block's work
        for through, step, rows, columns, depth in (("wgmma", warpgroup, 128, 256, 512),
                                                    ("mma.sync", warp, 256 if eight or small else 512, 64, 32 if eight else 64)):
            K = (32 if small else depth) // itemsize(dtype)
            N = 64 if small else columns
            R = rounds(rates[roof], 2 * rows * N * K)
            add(roof, through, step, dict(M=rows * sms, N=N, K=K, R=R), dtype, roof_tensor.flops, "FLOP", ("flops_tensor",))
    W, floats = 4096, 4096 * sms  # of a row: a block's width, so that blocks follow each other in memory; a width for blocks that stay
    H = 24 if small else min(2**32, device.memory_bytes // 16) // (4 * W)
    sheet, both = dict(H=H, W=W), ("global_load_bytes", "global_store_bytes")
    sizes = dict(H=cdiv(H * W, floats), W=floats, R=1)
    add("dram_read", "ld.global", global_memory, sizes, None, passes, "byte", ("global_load_bytes",), outside=True)
    in_bulk("dram_read", H * W, 4, warm=False)  # a quarter four times: NumPy checks whole columns of it
    add("dram_write", "st.global", tiled_product, sheet, None, lambda p: 4 * p.H * p.W, "byte", ("global_store_bytes",), outside=True)
    add("dram_copy", "ld, st.global", one_pass, sheet, None, roof_copy.bytes, "byte", both, outside=True)
    size = 16 * 2**10 if small else int(L2_PART * device.l2_bytes)
    times = rounds(40, size // sms)
    per_sm, config = FROM_L2.tuning(size)
    add("l2", "ld.global.cg", interleaved, dict(R=size // ROW, P=times), None, lambda p: ROW * p.R * p.P, "byte", ("global_load_bytes",),
        warm=True, outside=True, config=dict(config, BLOCKS=per_sm * sms))
    in_bulk("l2", size, times, warm=True)
    sizes = dict(H=8, W=2048 * sms, R=rounds(128, 4 * 2048 * 8))
    add("shared", "ld.shared", shared_memory, sizes, None, passes, "byte", ("shared_load_bytes",))
    return found


def bulk_smem(config):
    """Bytes that a block of part 3's reads in bulk needs at most: its pieces, its sums and its barriers."""
    return ROW * config["ROWS"] * config["STAGES"] + 16 * config["THREADS"] + 1024


def passes(p):
    """Bytes that all passes over X read."""
    return 4 * p.H * p.W * p.R


TITLE_OF_ROOFS = "what the device can do at most, by kernels that do nothing else"
studies = (Study("roofline/roofs", TITLE_OF_ROOFS, measure(targets), COLUMNS, plot, conclude),)
