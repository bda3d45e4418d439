"""Planted bugs: real kernels with one textual change each, and what the sanitizer must say.  Kernels without a change must be clean."""

from dataclasses import dataclass

from cudalab.emulator import Deadlock, KernelFault
from cudalab.emulator.sanitizer import DivergentBarrier, InFlight, MissingFence, MissingProxyFence, Race, Uninitialised


@dataclass(frozen=True)
class Mutant:
    """kernel: a step of the ladder ("sgemm/3") or a .cu of this folder ("reduce").  old -> new: the change; old occurs exactly once.
    fault, says: the class of what is found and a pattern of its message.  tunables: of the step."""

    name: str
    kernel: str
    old: str
    new: str
    fault: type[KernelFault]
    says: str
    tunables: tuple = ()

    @property
    def id(self) -> str:
        return f"{self.kernel}-{self.name}".replace("/", "_").replace(" ", "_")


BARRIER = r"a barrier \(__syncthreads\(\)\) between them would order them"
WARP = r"__syncwarp\(\), or a barrier, between them would order them"
EITHER = f"({WARP}|{BARRIER})"
BLOCKS = r"different blocks: use atomics, or a flag with __threadfence\(\)"
FENCE, SYNC, SYNCWARP = "__threadfence();", "__syncthreads();", "__syncwarp();"
TINY = (("BM", 32), ("BN", 64), ("TM", 4), ("TN", 4), ("BK", 4), ("STAGES", 3))  # tiles that compile and run fast
# several pieces of each tile
STREAM = (*TINY, ("SLICES", 1), ("WORKERS", 5), ("LEAD", 0), ("SPACING", 1), ("COPY_AT", 0))


def race(before: str, cure: str) -> str:
    """The pattern of a race's message: the earlier access by block and thread with its line, the cure, the later line."""
    who = r"(block .*thread .*|another lane of its warp)"
    return rf"race on .*{before} by {who} at \S+:\d+.*not ordered; {cure}.*; block .*thread .*\.cu:\d+"


LADDER = [
    # step 3: tiles in shared memory
    Mutant("dropped barrier before the reads", "sgemm/3", f"{SYNC}  // read after write", "// read after write", Race,
           race("write", BARRIER) + "|" + race("read", BARRIER) + "|uninit"),
    Mutant("dropped barrier behind the reads", "sgemm/3", f"{SYNC}  // write after read", "// write after read", Race, race("read",
           EITHER)),
    Mutant("barrier before the tile is complete", "sgemm/3", f"""#pragma unroll
        for (int i = 0; i < BK; i += PASS_B) {{
            const int k = i + threadIdx.x / BN, col = threadIdx.x % BN;
            const bool inside = k0 + k < K && block_col + col < N;
            sB[k][col] = inside ? B[(k0 + k) * N + block_col + col] : 0.0f;
        }}
        {SYNC}  // read after write""", f"""{SYNC}
        for (int i = 0; i < BK; i += PASS_B) {{
            const int k = i + threadIdx.x / BN, col = threadIdx.x % BN;
            const bool inside = k0 + k < K && block_col + col < N;
            sB[k][col] = inside ? B[(k0 + k) * N + block_col + col] : 0.0f;
        }}
        //""", KernelFault, race("(read|write)", BARRIER) + "|uninitialised"),
    Mutant("off by one in the guard of a load", "sgemm/3", "block_row + row < M && k0 + k < K", "block_row + row <= M && k0 + k < K",
           KernelFault, r"read of 4 bytes at \d+ bytes behind the end of A .*out of bounds; block .*thread .*03_shared_tile.cu:\d+"),
    Mutant("off by one in the guard of the result", "sgemm/3", "if (row < M && col < N)", "if (row <= M && col < N)",
           KernelFault, r"write of 4 bytes at \d+ bytes behind the end of C .*out of bounds"),
    Mutant("wrong column of the tile", "sgemm/3", "sB[k][col] = inside", "sB[k][0] = inside", Race, race("write", WARP)),
    Mutant("divergent barrier", "sgemm/3", f"{SYNC}  // read after write", """if (tx % 2 == 0) __syncthreads();
        else asm volatile("bar.sync 0;");  // read after write""",
           DivergentBarrier,
           r"divergent barrier: block .*thread .* of the same warp waits for barrier 0 at .*\.cu:\d+.*move the barrier out"),
    Mutant("threads end before the barrier", "sgemm/3", "    float acc = 0.0f;",
           "    if (block_row + ty >= M) return;\n    float acc = 0.0f;",
           DivergentBarrier, r"thread .* has ended before the barrier that others of its block wait at; guard the work"),
    # step 5: a register tile
    Mutant("tile not filled to its end", "sgemm/5", "for (int i = 0; i < BK; i += PASS_B)", "for (int i = 0; i < BK - PASS_B; i += PASS_B)",
           Uninitialised, r"uninitialised read: nobody has written the 4 bytes at shared address \d+; write it, or wait"),
    Mutant("threads share an element of the result", "sgemm/5", "const int row = block_row + ty * TM + m, col",
           "const int row = block_row + m, col",
           Race, race("write", EITHER)),
    Mutant("blocks share an element of the result", "sgemm/5", "C[row * N + col] = acc[m][n]", "C[row * N + (col - block_col)] = acc[m][n]",
           Race, race("write", BLOCKS)),
    # step 6: vectors
    Mutant("misaligned vector of global memory", "sgemm/6", "load<VEC_K>(v, &A[(block_row + row) * K + k0 + k])",
           "load<VEC_K>(v, &A[(block_row + row) * K + (k0 + k ? k0 + k - 1 : 0)])", KernelFault,
           r"read of 8 bytes at byte \d+ of A .*not aligned to 8"),
    Mutant("misaligned vector of shared memory", "sgemm/6", "load<4>(&rA[m], &sA[k][ty * TM + m])",
           "load<4>(&rA[m], &sA[k][ty * TM + m + 1])",
           KernelFault, r"read of 16 bytes at shared address \d+ .*not aligned to 16"),
    # step 8: a pipeline of cp.async
    Mutant("dropped wait", "sgemm/8", "cp_async_wait<STAGES - 2>();", "", KernelFault,
           r"a read of shared memory that an asynchronous copy.*not yet"),
    Mutant("weakened wait", "sgemm/8", "cp_async_wait<STAGES - 2>();", "cp_async_wait<STAGES - 1>();", KernelFault,
           r"a read of shared memory that an asynchronous copy"),
    Mutant("wait behind the barrier", "sgemm/8", f"cp_async_wait<STAGES - 2>();\n        {SYNC}",
           f"{SYNC}\n        cp_async_wait<STAGES - 2>();",
           Race, race("write", BARRIER)),
    Mutant("dropped barrier", "sgemm/8", f"{SYNC}  // read after write", "// read after write", KernelFault, race("write", BARRIER)),
    Mutant("filling the slot that is read", "sgemm/8", "stage == 0 ? STAGES - 1 : stage - 1", "stage", KernelFault,
           r"read of shared memory that an asynchronous copy|" + race("read", BARRIER)),
    Mutant("missing commit", "sgemm/8", "copy_slice(stage * BK, stage);\n        cp_async_commit();", "copy_slice(stage * BK, stage);",
           KernelFault, r"a read of shared memory that an asynchronous copy"),
    Mutant("no zeros past the edge", "sgemm/8", "&B[unsigned(k0 + k) * N + block_col + col], inside);",
           "&B[unsigned(k0 + k) * N + block_col + col], true);", KernelFault, r"asynchronous copy of \d+ bytes at .*out of bounds"),
    # steps 10 to 12: warps store through shared memory, blocks wait for each other
    Mutant("missing __syncwarp before the reads", "sgemm/10", f"{SYNCWARP}  // the rows are complete", "", Race, race("write", WARP), TINY),
    Mutant("missing __syncwarp behind the reads", "sgemm/10", f"{SYNCWARP}  // the rows are read", "//", Race, race("read", WARP), TINY),
    Mutant("missing barrier between sums and tiles", "sgemm/11", f"{SYNC}  // everyone has read the last slice: shared memory is free", "",
           Race, race("read", EITHER), TINY),
    Mutant("sums without a fence", "sgemm/12", f"if (owed) {FENCE}", "", Race, race("write", BLOCKS), STREAM),
    Mutant("last sums without a fence", "sgemm/12", f"{FENCE}\n        {SYNC}  // all of the block's sums", f"{SYNC}  //", Race,
           race("write", BLOCKS), (*STREAM, ("WORKERS", 40))),
    Mutant("flag seen without a fence", "sgemm/12", f"flags[block] = 0;  // as the next launch expects it\n                    {FENCE}",
           "flags[block] = 0;", Race, race("write", BLOCKS), STREAM),
    Mutant("flag before all sums", "sgemm/12", f"{SYNC}  // all of the block's sums are visible before its flag is", "", Race,
           race("write", BLOCKS), (*STREAM, ("WORKERS", 40))),
    Mutant("sums read before the flag is seen", "sgemm/12", f"{SYNC}  // the flag was seen before anyone reads the sums", "", KernelFault,
           race("(write|read)", BLOCKS) + "|uninitialised", STREAM),
]

SMALL = [
    Mutant("dropped barrier", "reduce", f"{SYNC}  // all parts are there", "", KernelFault, race("write", BARRIER) + "|uninitialised"),
    Mutant("barrier out of the loop", "reduce", f"        {SYNC}  // this turn's sums are there\n    }}", f"    }}\n    {SYNC}", Race,
           race("(write|read)", EITHER)),
    Mutant("divergent barrier in the tree", "reduce",
           f"if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];\n        {SYNC}",
           f"if (threadIdx.x < half - 5) {{ part[threadIdx.x] += part[threadIdx.x + half];\n        {SYNC} }}", DivergentBarrier,
           "divergent barrier"),
    Mutant("missing __syncwarp before the write", "reduce", f"{SYNCWARP}  // read before anyone writes", "", Race, race("read", WARP)),
    Mutant("missing __syncwarp behind the write", "reduce", f"{SYNCWARP}  // written before anyone reads", "", Race, race("write", WARP)),
    Mutant("wrong index", "reduce", "part[threadIdx.x ^ half]", "part[threadIdx.x ^ (half + 128)]", KernelFault, "out of bounds"),
    Mutant("uninitialised tail", "reduce", "part[threadIdx.x] = i < n ? x[i] : 0.0f;", "if (i < n) part[threadIdx.x] = x[i];",
           Uninitialised,
           r"uninitialised read: nobody has written the 4 bytes at shared address"),
    Mutant("table not emptied", "histogram", "bin < BINS; bin += THREADS) own[bin] = 0",
           "bin < BINS - THREADS; bin += THREADS) own[bin] = 0",
           Uninitialised, "uninitialised atomic access"),
    Mutant("missing barrier before counting", "histogram", f"{SYNC}  // the table is empty", "", KernelFault,
           race("write", BARRIER) + "|uninitialised atomic"),
    Mutant("missing barrier behind counting", "histogram", f"{SYNC}  // all have counted", "", Race,
           race("atomic access", BARRIER)),
    Mutant("count without an atomic", "histogram", "atomicAdd(&own[x[i]], 1u)", "own[x[i]] += 1", Race, race("(read|write)", EITHER)),
    Mutant("sum of all without an atomic", "histogram", "atomicAdd(&counts[bin], own[bin])", "counts[bin] += own[bin]", Race,
           race("(read|write)", BLOCKS)),
    Mutant("missing barrier before the warps' values", "softmax", f"{SYNC}  // every warp's value is there", "", KernelFault,
           race("write", BARRIER) + "|uninitialised"),
    Mutant("place used again too early", "softmax", f"{SYNC}  // all have read", "//", Race, race("read", BARRIER)),
    Mutant("one warp's value missing", "softmax", "if (threadIdx.x % 32 == 0) of_warp", "if (threadIdx.x % 64 == 0) of_warp", Uninitialised,
           "uninitialised read"),
    Mutant("ticket before the sum", "last_block", f"{FENCE}  // the sum is there before the ticket is drawn", "", Race, race("write",
           BLOCKS)),
    Mutant("sums before the ticket", "last_block", f"{FENCE}  // the ticket is drawn before sums are read", "", Race, race("write",
           BLOCKS)),
    Mutant("another thread reads", "last_block", f"{SYNC}  // `last` is known", "", KernelFault, race("write", EITHER) + "|uninitialised"),
    Mutant("fence of the block only", "last_block", f"{FENCE}  // the sum is there", "__threadfence_block();  // the sum is there", Race,
           race("write", BLOCKS)),
    Mutant("flag without a fence", "handoff", f"{FENCE}  // the sums are there before the flag is", "", Race, race("write", BLOCKS)),
    Mutant("flag that is never raised", "handoff", "atomicExch(&flags[blockIdx.x], 1)", "atomicExch(&flags[blockIdx.x], 0)", Deadlock,
           r"spins on something that nobody is left to change: .*thread .*handoff.cu:\d+"),
    Mutant("flag polled by a plain read", "handoff", "while (atomicAdd(&flags[blockIdx.x - 1], 0) == 0) {}",
           "while (flags[blockIdx.x - 1] == 0) __nanosleep(1);", KernelFault, race("(read|atomic access)", BLOCKS) + "|spins on"),
    Mutant("flag raised before all have written", "handoff", f"{SYNC}  // all of the block's sums", "", Race, race("write", BLOCKS)),
    Mutant("wrong count of a named barrier", "named_barriers", "wait(FULL + slot, THREADS)", "wait(FULL + slot, THREADS - 32)", KernelFault,
           r"barrier \d+ is asked to wait for \d+ threads, by others for \d+"),
    Mutant("slot used again too early", "named_barriers", "if (turn >= SLOTS) wait(EMPTY + slot, THREADS);", "", KernelFault,
           race("read", BARRIER) + "|arrives at barrier"),
    Mutant("full barrier of another slot", "named_barriers", "wait(FULL + slot, THREADS)", "wait(FULL + (slot ^ 1), THREADS)", KernelFault,
           race("write", BARRIER) + "|uninitialised|cannot go on|arrives at barrier"),
    Mutant("arrival at the empty barrier missing", "named_barriers", "if (turn + SLOTS < turns) arrive(EMPTY + slot, THREADS);", "",
           Deadlock,
           r"cannot go on: \d+ threads \(first: block .*thread .*\) wait for barrier \d+ at .*named_barriers.cu:\d+"),
    Mutant("last byte of the neighbourhood not set", "stencil", "for (int j = threadIdx.x; j < THREADS + 2 * R; j += THREADS) near",
           "for (int j = threadIdx.x; j < THREADS + 2 * R - 1; j += THREADS) near", Uninitialised,
           r"nobody has written the byte at shared address 69"),
    Mutant("missing barrier, bytes", "stencil", f"{SYNC}  // the neighbourhood is there", "", KernelFault, "uninitialised|" + race("write",
           EITHER)),
    Mutant("neighbouring bytes", "stencil", "j < THREADS + 2 * R; j += THREADS) near[j]", "j < THREADS + 2 * R; j += THREADS) near[j & ~1]",
           Race,
           race("write", WARP)),
    Mutant("element of a local table not set", "stencil", "j <= 2 * R; ++j) table[order[j]] =", "j < 2 * R; ++j) table[order[j]] =",
           Uninitialised,
           r"nobody has written the 2 bytes at local address \d+; give the variable a value first"),
]

UNDER_WAY = r"a (read|write) of the 4 bytes at shared address \d+, which the asynchronous unit issued at \S+:\d+.*is still to "
RACES_COPY = r"races with the asynchronous copy issued at \S+:\d+.*wait for the phase of its mbarrier first"
STUCK = r"cannot go on: .*thread .* waits? for parity \d of the mbarrier at shared address \d+ of block .*arrivals outstanding"

HOPPER = [
    Mutant("full barrier not waited for", "hopper_tile", "wait(full + s, round & 1);", "", KernelFault, f"{UNDER_WAY}write|{RACES_COPY}"),
    Mutant("wrong parity of the full barrier", "hopper_tile", "wait(full + s, round & 1);", "wait(full + s, ~round & 1);", KernelFault,
           f"{UNDER_WAY}write|{STUCK}"),
    Mutant("empty barrier not waited for", "hopper_tile", "wait(empty + s, ~round & 1);", "", KernelFault,
           f"an arrival more than the mbarrier|{RACES_COPY}"),
    Mutant("wrong parity of the empty barrier", "hopper_tile", "wait(empty + s, ~round & 1);", "wait(empty + s, round & 1);", Deadlock,
           STUCK),
    Mutant("too few bytes expected", "hopper_tile", "expect(full + s, A_BYTES + B_BYTES);", "expect(full + s, A_BYTES);", KernelFault,
           f"{STUCK}|{UNDER_WAY}|{RACES_COPY}"),
    Mutant("too many bytes expected", "hopper_tile", "expect(full + s, A_BYTES + B_BYTES);", "expect(full + s, A_BYTES + B_BYTES + 16);",
           Deadlock, STUCK),
    Mutant("one arrival too many expected", "hopper_tile", "CONSUMERS * CLUSTER);", "CONSUMERS * CLUSTER + 1);", Deadlock, STUCK),
    Mutant("one consumer not waited for", "hopper_tile", "CONSUMERS * CLUSTER);", "1);", KernelFault, f"an arrival more|{RACES_COPY}"),
    Mutant("slot given back before wgmma has read it", "hopper_tile", "mma_wait<0>();", "mma_wait<1>();", InFlight,
           f"{UNDER_WAY}read: wait for it first"),
    Mutant("group not committed", "hopper_tile", "            mma_commit();\n", "", InFlight, f"{UNDER_WAY}read: wait for it first"),
    Mutant("all stages in one place", "hopper_tile", "load_2d(bs + s * B_BYTES, &b", "load_2d(bs, &b", KernelFault,
           f"{UNDER_WAY}write|{RACES_COPY}"),
    Mutant("barriers used before all know them", "hopper_tile", "if (CLUSTER > 1) cluster_sync(); else __syncthreads();", "", Race,
           r"race on .* and the write by .*mbarrier.init.* are not ordered; a barrier"),
    Mutant("accumulators read too early", "hopper_tile", "            mma_wait<0>();\n", "", InFlight,
           r"this reads a register that wgmma at \S+:\d+.* still uses; wgmma.wait_group must wait|" + UNDER_WAY),
    Mutant("missing wgmma.fence", "hopper_tile", "            mma_fence();\n", "", MissingFence,
           r"wgmma uses a register written at \S+:\d+.*; wgmma.fence must come between them; block .*thread .*:\d+"),
    Mutant("missing proxy fence", "tma_store", "        fence_async();\n", "", MissingProxyFence,
           r"wgmma or TMA reads the 4 bytes at shared address \d+, written by plain stores at \S+:\d+.*without fence.proxy.async"),
    Mutant("stored before the tile is complete", "tma_store", "__syncthreads();  // the tile is complete", "", KernelFault,
           r"uninitialised read by an asynchronous unit|" + race("write", "")),
    Mutant("written while it is read", "tma_store", "if (t == 0) bulk_wait_read<0>();", "", InFlight,
           f"{UNDER_WAY}read: wait for it first"),
    Mutant("written before others know that it was read", "tma_store", "__syncthreads();  // nobody writes before that", "", KernelFault,
           f"{UNDER_WAY}read|" + race("read", EITHER)),
]
