"""What the ladders over rows share: sizes, and how a row is spread over threads."""

import math

from cudalab.dtypes import itemsize
from cudalab.errors import BadConfig, BadShape
from cudalab.expressions import cdiv
from cudalab.spec import AHEAD, Launch, i64, shapes

DIMS = ("M", "N")
DTYPES = ("bf16", "f16", "f32")
SHAPES = dict(
    emulate=shapes("3x1104 5x33 2x1", DIMS),
    check=shapes("64x1024 7x1 1x77 1x1 33x129 5x8192 3x16384 2x151936 2x65537 1x262144 1x262143 257x96 1000x8 4099x33", DIMS),
    bench=shapes("32768x4096 8192x8192 4096x151936 524288x1024 262144x2048 131072x4096 65536x8192 32768x16384 16384x32768 8192x65536 "
                 "4096x131072 2048x262144 1048576x64 1x151936", DIMS))
REGISTERS, FEWER = 32, 28  # of a thread, for its part of the row: in blocks of up to 512 threads, and in larger ones
SHARED_OF_ALL = 227 * 1024  # of a multiprocessor of sm_90
SHARED_BYTES = 96 * 1024  # of a block, for a row: what sm_89 has, less what the reduction needs


FEW, FEWEST = 2**20, 2**18  # packs of all rows: up to here the time is that of one load and one exchange, not memory's


def added_in_order(p):
    """Terms that a thread of a row adds in order; the rest is added in a tree, whose depth hardly counts."""
    return 16 + p.N // 256


def moved(p):
    """Bytes of one read and one write of everything."""
    return 2 * itemsize(p.dtype) * p.M * p.N


def packed(p):
    """Elements from one row to the next, of x and of y."""
    return i64(p.N), i64(p.N)


def widest(p):
    """Elements of the widest load: as many as 16 bytes hold and rows of N keep aligned."""
    return math.gcd(p.N, 16 // itemsize(p.dtype))


def check_width(p, c):
    """Raises BadConfig for VEC elements that rows of N do not keep aligned."""
    if widest(p) % c.VEC:
        raise BadConfig(f"VEC={c.VEC}: rows of {p.N} elements of {p.dtype} can move {widest(p)} at once, or 1, 2, 4 where that is fewer")


def check_ahead(c, threads):
    """Raises BadConfig where so many threads, LOADS packs each, take more in a round than 32-bit indices have left (see spec.py)."""
    if threads * c.LOADS * c.VEC > AHEAD:
        raise BadConfig(f"LOADS={c.LOADS}: {threads} threads take more than {AHEAD} elements a round, past what 32 bits index")


def packs(p, vec):
    """Loads of `vec` elements that a row takes."""
    return cdiv(p.N, vec)


def few(p, c):
    """Whether the rows are few: then weights are asked for beside a row, and many blocks have a part of it."""
    return p.M * packs(p, c.VEC) <= FEW


def fewest(p, c):
    """Whether they are so few that each should have more threads than four packs a thread make."""
    return p.M * packs(p, c.VEC) <= FEWEST


def middling(p, c):
    """Whether rows are of 256 to 768 packs: 2 to 6 thousand elements of 16 bits."""
    return 256 <= packs(p, c.VEC) <= 768


def lanes_to_spare(p, c):
    """Threads of a row: a quarter more than have two packs each."""
    return 32 * cdiv(5 * packs(p, c.VEC), 256)


def lanes(p, c):
    """Threads of a row in one block: one a pack up to a warp, then whole warps that have about four packs a thread."""
    count = packs(p, c.VEC)
    return 1 << (count - 1).bit_length() if count <= 32 else min(1024, 32 * cdiv(count, 128))


def lanes_of_pairs(p, c):
    """The same, but that a thread of a short row has two packs, and no load takes less than a sector of 32 bytes of it."""
    count = lanes(p, c)
    return count // 2 if 2 < count <= 32 and packs(p, c.VEC) <= 32 else count


def rows_of_block(p, c):
    """Rows of a block: short ones make 256 packs together, in whole warps and at most 128 threads."""
    return max(32 // c.LANES, min(128 // c.LANES, 256 // (c.LANES * held(p, c)))) if c.LANES <= 32 else 1


def rows_read_by_block(p, c):
    """The same where a row leaves one number: up to 512 threads where each has but a few packs, for blocks start one a cycle."""
    threads = 512 // min(4, cdiv(packs(p, c.VEC), c.LANES))
    return max(1, threads // c.LANES) if c.LANES <= 32 else 1


def loads_of_thread(p, c):
    """Loads of a thread that are under way together: up to four."""
    return next(n for n in (1, 2, 4) if n >= min(4, cdiv(packs(p, c.VEC), c.LANES)))


def blocks_of_row(p, c):
    """Blocks of the cluster that shares a row: so many that 512 threads of each have about five packs of it; of few rows, that 128 have
    two."""
    row = packs(p, c.VEC)
    if few(p, c):
        return next((blocks for blocks in (2, 4, 8) if row <= 256 * blocks), 16)
    return next((blocks for blocks in (2, 4) if row <= 5 * 512 * blocks), 8 if fits(p, c.VEC, 1024, 8) else 16)


def lanes_of_cluster(p, c):
    """Threads of each block of the cluster: few that have five packs each, 512 that have eight, else as many as make seven."""
    share = cdiv(packs(p, c.VEC), c.CLUSTER)
    small = next((threads for threads, most in ((128, 5), (256, 5), (512, 8)) if share <= most * threads), None)
    return small or min(1024, 32 * cdiv(cdiv(share, 7), 32))


def blocks_together(p, c):
    """Blocks that shall fit a multiprocessor: two where registers hold a share for each, so that one loads while the other writes."""
    return 2 if c.LANES <= 512 and c.VECS <= 5 and not few(p, c) else 1


def held(p, c):
    """Packs of a row that each of its threads holds."""
    return cdiv(packs(p, c.VEC), c.LANES * c.get("CLUSTER", 1))


def fits(p, vec, threads, blocks=1):
    """Whether the registers of so many threads of so many blocks hold a row."""
    return cdiv(packs(p, vec), threads * blocks) * max(4, vec * itemsize(p.dtype)) <= 4 * (REGISTERS if threads <= 512 else FEWER)


def check_held(p, c):
    """Raises BadShape for a row that its threads' registers cannot hold, BadConfig where VECS packs a thread are not what it takes."""
    check_width(p, c)
    threads = c.LANES * c.get("CLUSTER", 1)
    if not fits(p, c.VEC, c.LANES, c.get("CLUSTER", 1)):
        raise BadShape(f"a row of {p.N} elements of {p.dtype} does not fit the registers of {threads} threads: take a later step")
    if c.VECS != held(p, c):
        raise BadConfig(f"VECS={c.VECS}: {threads} threads hold a row of {p.N} in {held(p, c)} packs of {c.VEC} each")


def lanes_of_warp(p, c):
    """Threads of a row: one a pack, up to a warp."""
    return min(32, lanes(p, c))


def rows_of_thread(p, c):
    """Rows that a thread takes at once: four, at most one a lane."""
    return min(c.LANES, 4)


def check_transposed(p, c):
    """Raises BadShape for rows too long for a few loads of each lane of a warp, BadConfig where VECS loads are not what they take."""
    check_width(p, c)
    if packs(p, c.VEC) > 8 * 32:
        raise BadShape(f"a row of {p.N} elements of {p.dtype} is too long for a warp: take another step")
    if c.VECS != held(p, c) or c.VECS * c.ROWS > 32:
        raise BadConfig(f"VECS={c.VECS}, ROWS={c.ROWS}: {c.LANES} threads hold a row in {held(p, c)} packs each, and 32 of them at most")


def blocks_of_transposed(p, c):
    """Blocks of the launch, of THREADS // LANES groups that have ROWS rows each."""
    return cdiv(p.M, c.THREADS // c.LANES * c.ROWS)


def check_shared(p):
    """Raises BadShape for a row that the shared memory of a block cannot hold."""
    if p.N * itemsize(p.dtype) > SHARED_BYTES:
        raise BadShape(f"a row of {p.N} elements of {p.dtype} does not fit the shared memory of a block: take another step")


def share(p, c):
    """Packs of a row that one block of its cluster has."""
    return cdiv(packs(p, c.VEC), c.CLUSTER)


def blocks_of_pipeline(p, c):
    """Blocks of the cluster: one where a row and the next fit a block's part of shared memory, else as many as make them fit."""
    return next((blocks for blocks in (1, 2, 4) if packs(p, c.VEC) <= 2048 * blocks), 8)


def lanes_of_pipeline(p, c):
    """Threads of a block: about four packs each of its share of a row, 1024 at most."""
    return min(1024, 32 * cdiv(share(p, c), 128))


def held_of_share(p, c):
    """Packs of its block's share that a thread holds."""
    return cdiv(share(p, c), c.LANES)


def stages(p, c):
    """Rows under way to a block: about 32 KiB of them, two where shared memory allows it."""
    row = 16 * share(p, c)
    return max(1, min(8, max(2, 32 * 1024 // row), 216 * 1024 // row))


def places(p, c):
    """Blocks that run at once where each has a multiprocessor to itself.  A cluster lies within one group of multiprocessors; an H200's 132
    are groups of several sizes, so clusters of 4, 8 and 16 leave some idle, and one cluster too many begins when the others have ended."""
    return {4: 120, 8: 112, 16: 112}.get(c.CLUSTER, 132)  # 120 for 8 would fit; of equal shares the last ended later


def blocks_that_stay(p, c):
    """Blocks of the whole launch: as many as fill a device of 132 multiprocessors by threads or by shared memory."""
    fit = min(2048 // c.LANES, 220 * 1024 // (c.STAGES * 16 * share(p, c) + 2048), 16, 65536 // (48 * c.LANES))
    return places(p, c) * max(1, fit)


def whole_packs(p, c):
    """Raises BadShape for rows that are not whole packs of 16 bytes, BadConfig for other packs."""
    if p.N * itemsize(p.dtype) % 16:
        raise BadShape(f"rows of {p.N} elements of {p.dtype} are not a multiple of 16 bytes, which bulk copies move: take an earlier step")
    if c.VEC * itemsize(p.dtype) != 16:
        raise BadConfig(f"VEC={c.VEC}: a pack that bulk copies bring is 16 bytes")


def check_pipelined(p, c):
    """Raises BadShape for rows that are not whole packs of 16 bytes, BadConfig where VECS packs a thread are not what a row takes."""
    whole_packs(p, c)
    if c.VECS != held_of_share(p, c):
        raise BadConfig(f"VECS={c.VECS}: {c.LANES} threads hold {held_of_share(p, c)} packs each")
    if held_of_share(p, c) > REGISTERS // 4:
        raise BadConfig(f"LANES={c.LANES}: {held_of_share(p, c)} packs of 16 bytes a thread do not fit its registers")


def clusters(p, c):
    """Clusters of the launch: what GRID blocks make, and no more than there are rows."""
    return max(1, min(p.M, c.GRID // c.CLUSTER))


def room(p, c):
    """Bytes of shared memory for the rows under way."""
    return c.STAGES * 16 * share(p, c)


def blocks_of_bulk(p, c):
    """Blocks of the cluster: so few that a block's share of a row takes 40 KiB at most, or 16."""
    return next((blocks for blocks in (1, 2, 4, 8) if packs(p, c.VEC) <= 2500 * blocks), 16)


def lanes_of_bulk(p, c):
    """Threads of a block: as few as have eight packs each of its share of a row, 512 at most."""
    return next((threads for threads in (32, 64, 128, 256, 320) if share(p, c) <= 8 * threads), 512)


def blocks_by_room(p, c):
    """Blocks that shared memory has room for, as far as threads have 40 registers then."""
    return max(1, min(SHARED_OF_ALL // (room_of_rows(p, c) + 4096), 65536 // (40 * c.LANES), 16))


def room_of_rows(p, c):
    """Bytes of shared memory for a block's shares of its rows."""
    return c.ROWS * 16 * share(p, c)


def fits_bulk(p, vec):
    """Whether a bulk step takes these rows, where so many elements may move at once."""
    return vec * itemsize(p.dtype) == 16 and 16 * cdiv(packs(p, vec), 16) + 4096 <= SHARED_OF_ALL


KEPT = 2560  # packs of a share at most, for the registers of a block to hold their weights, and biases


def bulk_launch(p, c, entry, args):
    """The launch of a bulk step.  Raises BadShape for rows that are not whole packs of 16 bytes or do not fit."""
    whole_packs(p, c)
    if room_of_rows(p, c) + 4096 > SHARED_OF_ALL:
        raise BadShape(f"{c.ROWS} rows of {p.N} elements of {p.dtype} do not fit the shared memory of {c.CLUSTER} blocks")
    return Launch(entry, grid=cdiv(p.M, c.ROWS) * c.CLUSTER, block=c.LANES, smem=room_of_rows(p, c),
                  cluster=(c.CLUSTER, 1, 1) if c.CLUSTER > 1 else None, args=args)


def lanes_of_kept(p, c):
    """Threads that keep a share of the weights: as few as have four packs of each, in whole warps."""
    return min(992, 32 * cdiv(share(p, c), 128))


def bytes_told(c):
    """Shared memory for what blocks tell each other of a row: eight bytes for each warp of the cluster, its number, five barriers."""
    return 8 * c.CLUSTER * c.LANES // 32 + 48


def most_stages(p, c):
    """Rows that shared memory has room for: of the device, and of what a kernel may have without asking for more (48 KiB)."""
    return min(SHARED_OF_ALL // (16 * share(p, c) + bytes_told(c)), 48 * 1024 // bytes_told(c))


def stages_of_kept(p, c):
    """Rows under way to a block or in it: six in clusters of 16, whose exchange takes longest, else four; or what there is room for."""
    return max(2, min(6 if c.CLUSTER == 16 else 4, most_stages(p, c)))


def blocks_of_kept(p, c):
    """Blocks of the launch: up to four on each of 132 multiprocessors, as it has registers (96 a thread) and shared memory for."""
    room_of_stages = c.STAGES * (16 * share(p, c) + bytes_told(c)) + 1024
    return 132 * max(1, min(4, 65536 // (96 * (c.LANES + 32)), SHARED_OF_ALL // room_of_stages))


def kept_launch(p, c, entry, args):
    """The launch of a kept step.  Raises BadShape for rows that are not whole packs of 16 bytes or whose weights no block keeps."""
    check_pipelined(p, c)
    if c.LANES > 992:
        raise BadConfig(f"LANES={c.LANES}: at most 992, for a warp more brings the rows")
    if share(p, c) > KEPT:
        raise BadShape(f"weights of {p.N} elements of {p.dtype} do not fit the registers of {c.CLUSTER} blocks: take the step before")
    if c.STAGES > most_stages(p, c):
        raise BadConfig(f"STAGES={c.STAGES}: shared memory has room for {most_stages(p, c)} rows under way")
    return Launch(entry, grid=clusters(p, c) * c.CLUSTER, block=c.LANES + 32, smem=room(p, c),
                  cluster=(c.CLUSTER, 1, 1) if c.CLUSTER > 1 else None, args=args)


# Tunables.  VEC: elements of a load; LANES: threads of a row in a block; ROWS: rows of a block; CLUSTER: blocks of a row; VECS: loads of a
# thread; BLOCKS: blocks that shall fit a multiprocessor; HINT: see stream.cuh.
IN_REGISTERS = dict(VEC=widest, LANES=lanes, ROWS=rows_of_block, VECS=held, BLOCKS=1, HINT=0)
TUNE_REGISTERS = dict(VEC=(1, 2, 4, 8), LANES=(1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024),
                      HINT=(0, 1, 2))
ACROSS = dict(VEC=widest, CLUSTER=blocks_of_row, LANES=lanes_of_cluster, VECS=held, BLOCKS=blocks_together, HINT=0)
TUNE_ACROSS = dict(CLUSTER=(2, 4, 8, 16), LANES=(128, 256, 320, 384, 480, 512, 608, 640, 704, 768, 1024), BLOCKS=(1, 2, 3, 4),
                   HINT=(0, 1, 2))
# ROWS: rows of a thread.
TUNE_TRANSPOSED = dict(VEC=(1, 2, 4, 8), LANES=(1, 2, 4, 8, 16, 32), ROWS=(1, 2, 4, 8, 16, 32), THREADS=(64, 128, 256, 512), HINT=(0, 1, 2))
# GRID: blocks, or as many clusters as that makes; 132 multiprocessors of an H200.  STAGES: rows that are brought at once.
PIPELINED = dict(VEC=widest, CLUSTER=blocks_of_pipeline, LANES=lanes_of_pipeline, VECS=held_of_share, STAGES=stages,
                 GRID=blocks_that_stay, BLOCKS=1, HINT=1)
TUNE_PIPELINED = dict(CLUSTER=(1, 2, 4, 8), LANES=(32, 64, 96, 128, 192, 256, 320, 384, 512, 608, 640, 1024),
                      STAGES=(1, 2, 3, 4, 6, 8, 16), BLOCKS=(1, 2), HINT=(0, 1),
                      GRID=(112, 120, 132, 224, 240, 264, 384, 396, 512, 528, 660, 768, 792, 1056, 1584, 2112))
# ROWS: rows of a cluster; LOADS: packs of weights that a thread fetches at once.
IN_BULK = dict(VEC=widest, CLUSTER=blocks_of_bulk, LANES=lanes_of_bulk, ROWS=1, BLOCKS=blocks_by_room)
TUNE_BULK = dict(CLUSTER=(1, 2, 4, 8, 16), LANES=(32, 64, 128, 256, 320, 512), ROWS=(1, 2, 4))
# GRID: blocks, or as many clusters as that makes; those that find no place come when others have ended, and no row is left.
IN_KEPT = dict(VEC=widest, CLUSTER=blocks_of_bulk, LANES=lanes_of_kept, VECS=held_of_share, STAGES=stages_of_kept, GRID=blocks_of_kept)
TUNE_KEPT = dict(CLUSTER=(1, 2, 4, 8, 16), LANES=(32, 64, 128, 256, 352, 416, 480, 512, 608, 704, 800), STAGES=(2, 3, 4, 5, 6),
                 GRID=(112, 120, 132, 264, 396, 528))
IN_SHARED = dict(THREADS=512, VEC=widest, HINT=0)
TUNE_SHARED = dict(THREADS=(128, 256, 512, 1024), VEC=(1, 2, 4, 8), HINT=(0, 1, 2))
