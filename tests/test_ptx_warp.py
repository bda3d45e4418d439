"""What the lanes of a warp do together: shfl, vote, match, redux, activemask, elect, bar.red, lane masks.

Oracle: Python over the lanes."""

import functools
import operator
import random

import numpy as np
import pytest

from ptx_oracle import to_signed
from ptx_program import custom, on_both

LANES = range(32)
ALL = 0xFFFFFFFF


def loaded(number, register, width=4):
    """One value a thread from buffer `number`."""
    return [f"    mad.lo.u64 %at, %w, {width}, %a{number};", f"    ld.global.b{8 * width} {register}, [%at];"]


def stored(number, register, width=4):
    return [f"    mad.lo.u64 %at, %w, {width}, %a{number};", f"    st.global.b{8 * width} [%at], {register};"]


def shuffled(mode, values, b, c, members=ALL):
    """PTX ISA, shfl.sync, semantics: source lane and predicate of each lane."""
    result, flags = [], []
    for lane in LANES:
        bval, cval, mask = b[lane] & 31, c[lane] & 31, c[lane] >> 8 & 31
        highest = lane & mask | cval & ~mask & 31
        lowest = lane & mask
        j = dict(up=lane - bval, down=lane + bval, bfly=lane ^ bval, idx=lowest | bval & ~mask & 31)[mode]
        inside = j >= highest if mode == "up" else j <= highest
        result.append(values[j if inside else lane])
        flags.append(int(inside))
    return result, flags


def shuffles():
    draw = random.Random(1)
    values = [draw.getrandbits(32) for _ in range(64)]
    for mode in ("up", "down", "bfly", "idx"):
        for kind in ("uniform", "by lane"):
            text, expected = [], []
            text += loaded(0, "%x")
            for number in range(12):
                if kind == "uniform":
                    b, c = draw.getrandbits(6), draw.choice((0x1F, 0, 0x181F, 0x1800, 0x1C1F, 0x101F, 0x0707, 0x1F1F))
                    bs, cs = [b] * 32, [c] * 32
                    text.append(f"    shfl.sync.{mode}.b32 %d|%p, %x, {b}, {c}, -1;")
                else:
                    mask = draw.choice((0, 0x1800, 0x1C00, 0x1000))
                    bs, cs = [draw.getrandbits(5) for _ in LANES], [mask | (0 if mode == "up" else 31)] * 32
                    text += [f"    mov.u32 %b, {bs[0]};"]
                    for lane in LANES[1:]:
                        text += [f"    setp.eq.u32 %q, %lane, {lane};", f"    selp.b32 %b, {bs[lane]}, %b, %q;"]
                    text.append(f"    shfl.sync.{mode}.b32 %d|%p, %x, %b, {cs[0]}, 0xffffffff;")
                text += ["    selp.b32 %e, 1, 0, %p;", *stored(1 + 2 * number, "%d"), *stored(2 + 2 * number, "%e")]
                results, flags = [], []
                for warp in (0, 1):
                    r, f = shuffled(mode, values[32 * warp:32 * warp + 32], bs, cs)
                    results, flags = results + r, flags + f
                expected += [results, flags]
            yield custom(f"shfl.sync.{mode}, {kind}", "\n".join(["    mov.u32 %lane, %laneid;", *text]),
                         [np.array(values, "u4"), *(np.zeros(64, "u4") for _ in expected)], dict(enumerate(expected, 1)),
                         registers=".reg .b32 %x, %d, %e, %b, %lane; .reg .pred %p, %q;", block=64)
    # only some lanes take part, in two groups that go separate ways
    body = "\n".join([*loaded(0, "%x"), "    mov.u32 %lane, %laneid;", "    setp.lt.u32 %p, %lane, 12;", "    @!%p bra HIGH;",
                      "    shfl.sync.bfly.b32 %d, %x, 3, 0x1f, 0xfff;", "    bra END;", "HIGH:",
                      "    shfl.sync.idx.b32 %d, %x, 20, 0x1f, 0xfffff000;", "END:", *stored(1, "%d")])
    expected = [values[w * 32 + ((lane ^ 3) if lane < 12 else 20)] for w in (0, 1) for lane in LANES]
    yield custom("shfl.sync of parts", body, [np.array(values, "u4"), np.zeros(64, "u4")], {1: expected},
                 registers=".reg .b32 %x, %d, %lane; .reg .pred %p;", block=64)


def bits(flags):
    return sum(int(f) << lane for lane, f in enumerate(flags))


def votes():
    draw = random.Random(2)
    for members in (ALL, 0x0000FFFF, 0x5A5A5A5A, 0x80000000, 0x00000001):
        taking = [lane for lane in LANES if members >> lane & 1]
        for name, pattern in dict(none=[0] * 32, all=[1] * 32, some=[draw.getrandbits(1) for _ in LANES],
                                  one=[lane == 31 for lane in LANES],
                                  even=[lane % 2 for lane in LANES]).items():
            text = ["    mov.u32 %lane, %laneid;", *loaded(0, "%x"), "    setp.ne.u32 %p, %x, 0;",
                    f"    mov.u32 %m, {members};", "    shr.u32 %d, %m, %lane;", "    and.b32 %d, %d, 1;", "    setp.eq.u32 %q, %d, 0;",
                    "    @%q bra END;"]
            expected = []
            chosen = [int(pattern[lane]) for lane in taking]
            for number, (form, result) in enumerate((("all", all(chosen)), ("any", any(chosen)), ("uni", len(set(chosen)) == 1)), 1):
                text += [f"    vote.sync.{form}.pred %r, %p, {members};", "    selp.b32 %d, 1, 0, %r;", *stored(number, "%d")]
                expected.append([int(result) if lane in taking else 0 for lane in LANES])
            text += ["    vote.sync.ballot.b32 %d, %p, %m;", *stored(4, "%d"), "    vote.sync.ballot.b32 %d, !%p, %m;", *stored(5, "%d"),
                     "END:"]
            ballot = bits(pattern) & members
            expected += [[ballot if lane in taking else 0 for lane in LANES],
                         [~ballot & members if lane in taking else 0 for lane in LANES]]
            yield custom(f"vote.sync of {name} in {members:08x}", "\n".join(text),
                         [np.array(pattern, "u4"), *(np.zeros(32, "u4") for _ in expected)], dict(enumerate(expected, 1)),
                         registers=".reg .b32 %x, %d, %m, %lane; .reg .pred %p, %q, %r;")


def matches():
    draw = random.Random(3)
    for width in (4, 8):
        for name, values in dict(same=[7] * 32, few=[draw.randrange(3) << 8 * width - 2 for _ in LANES], different=list(LANES),
                                 almost=[5] * 31 + [5 | 1 << 8 * width - 1]).items():
            text = [*loaded(0, "%x" if width == 4 else "%y", width)]
            source = "%x" if width == 4 else "%y"
            text += [f"    match.any.sync.b{8 * width} %d, {source}, 0xffffffff;", *stored(1, "%d"),
                     f"    match.all.sync.b{8 * width} %d|%p, {source}, 0xffffffff;", *stored(2, "%d"), "    selp.b32 %d, 1, 0, %p;",
                     *stored(3, "%d"), "    setp.ge.u32 %p, %i, 20;", "    @%p bra END;",
                     f"    match.any.sync.b{8 * width} %d, {source}, 0xfffff;", *stored(4, "%d"), "END:"]
            same = len(set(values)) == 1
            expected = {1: [bits(v == w for w in values) for v in values], 2: [ALL if same else 0] * 32, 3: [int(same)] * 32,
                        4: [bits(v == w for w in values) & 0xFFFFF if lane < 20 else 0 for lane, v in enumerate(values)]}
            yield custom(f"match.sync.b{8 * width} of {name}", "\n".join(text),
                         [np.array(values, f"u{width}"), *(np.zeros(32, "u4") for _ in expected)], expected,
                         registers=".reg .b32 %x, %d; .reg .b64 %y; .reg .pred %p;")


def reductions():
    draw = random.Random(4)
    values = [draw.getrandbits(32) for _ in LANES]
    functions = {"add.u32": lambda v: sum(v) & ALL, "add.s32": lambda v: sum(v) & ALL, "min.u32": min, "max.u32": max,
                 "min.s32": lambda v: min(v, key=lambda x: to_signed(x, 32)), "max.s32": lambda v: max(v, key=lambda x: to_signed(x, 32)),
                 "and.b32": lambda v: functools.reduce(operator.and_, v), "or.b32": lambda v: functools.reduce(operator.or_, v),
                 "xor.b32": lambda v: functools.reduce(operator.xor, v)}
    for source in (values, [v | 0xFF000000 for v in values], [ALL] * 32):
        text = [*loaded(0, "%x")]
        expected = {}
        for number, (form, function) in enumerate(functions.items(), 1):
            text += [f"    redux.sync.{form} %d, %x, 0xffffffff;", *stored(number, "%d")]
            expected[number] = [function(source)] * 32
        text += ["    setp.lt.u32 %p, %i, 7;", "    @!%p bra END;"]
        for number, (form, function) in enumerate(functions.items(), 10):
            text += [f"    redux.sync.{form} %d, %x, 0x7f;", *stored(number, "%d")]
            expected[number] = [function(source[:7])] * 7 + [0] * 25
        yield custom(f"redux.sync {source[0]:08x}", "\n".join([*text, "END:"]),
                     [np.array(source, "u4"), *(np.zeros(32, "u4") for _ in expected)],
                     expected, registers=".reg .b32 %x, %d; .reg .pred %p;")


def masks():
    body, expected = [], {}
    for number, (name, function) in enumerate(dict(eq=lambda i: 1 << i, lt=lambda i: (1 << i) - 1, le=lambda i: (2 << i) - 1,
                                                   gt=lambda i: ALL & ~((2 << i) - 1), ge=lambda i: ALL & ~((1 << i) - 1)).items()):
        body += [f"    mov.u32 %d, %lanemask_{name};", *stored(number, "%d")]
        expected[number] = [function(i % 32) for i in range(70)]
    body += ["    mov.u32 %d, %laneid;", *stored(5, "%d"), "    mov.u32 %d, WARP_SZ;", *stored(6, "%d"), "    mov.u32 %d, %ntid.x;",
             *stored(7, "%d")]
    expected |= {5: [i % 32 for i in range(70)], 6: [32] * 70, 7: [70] * 70}
    yield custom("lane masks", "\n".join(body), [np.zeros(70, "u4") for _ in expected], expected, registers=".reg .b32 %d;", block=70)
    body = ["    activemask.b32 %d;", *stored(0, "%d"), "    elect.sync %d|%p, 0xffffffff;", *stored(1, "%d"), "    selp.b32 %d, 1, 0, %p;",
            *stored(2, "%d"), "    bar.warp.sync 0xffffffff;"]
    yield custom("activemask, elect", "\n".join(body), [np.zeros(64, "u4") for _ in range(3)],
                 {0: [ALL] * 64, 1: lambda got: (got.reshape(2, 32) == got.reshape(2, 32)[:, :1]).all(),
                  2: lambda got: (got.reshape(2, 32).sum(axis=1) == 1).all()}, registers=".reg .b32 %d; .reg .pred %p;", block=64, sm=90)


def barriers():
    pattern = [random.Random(5).getrandbits(1) for _ in range(96)]
    body = [*loaded(0, "%x"), "    setp.ne.u32 %p, %x, 0;", "    barrier.cta.red.popc.aligned.u32 %d, 0, %p;", *stored(1, "%d"),
            "    barrier.cta.red.and.aligned.pred %q, 1, %p;", "    selp.b32 %d, 1, 0, %q;", *stored(2, "%d"),
            "    bar.red.or.pred %q, 2, 96, !%p;", "    selp.b32 %d, 1, 0, %q;", *stored(3, "%d"), "    bar.red.popc.u32 %d, 3, 96, !%p;",
            *stored(4, "%d")]
    yield custom("bar.red", "\n".join(body), [np.array(pattern, "u4"), *(np.zeros(96, "u4") for _ in range(4))],
                 {1: [sum(pattern)] * 96, 2: [int(all(pattern))] * 96, 3: [int(not all(pattern))] * 96, 4: [96 - sum(pattern)] * 96},
                 registers=".reg .b32 %x, %d; .reg .pred %p, %q;", block=96)


test_shuffles, test_shuffles_gpu = on_both(shuffles())
test_votes, test_votes_gpu = on_both(votes())
test_matches, test_matches_gpu = on_both(matches())
test_reductions, test_reductions_gpu = on_both(reductions())
test_masks, test_masks_gpu = on_both(masks())
test_barriers, test_barriers_gpu = on_both(barriers())


@pytest.fixture(scope="module")
def gpu():
    from cudalab.gpu import Gpu
    return Gpu()
