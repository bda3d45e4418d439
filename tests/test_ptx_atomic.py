"""atom and red: every operation, type and state space, and each order of memory.  Oracle: Python integers and fractions.

Several lanes on one address go in any order, so there only what does not depend on it is asked: the end, and the set of what was found.
"""

import itertools
import random

import numpy as np
import pytest

from ptx_oracle import FORMATS, arithmetic, decode, floats, integers, read, value_of, write
from ptx_program import custom, on_both, rows

REAL = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")


def plain(operation, kind):
    """old, operand -> new, on bits."""
    if operation == "exch":
        return lambda old, b: b
    if operation in ("inc", "dec"):
        return (lambda old, b: 0 if old >= b else old + 1) if operation == "inc" else lambda old, b: b if old == 0 or old > b else old - 1
    if kind in REAL:
        one = extreme(operation, kind.removesuffix("x2")) if operation != "add" else arithmetic("add", kind.removesuffix("x2"))
        if kind.endswith("x2"):
            return lambda old, b: one(old & 0xFFFF, b & 0xFFFF) | one(old >> 16, b >> 16) << 16
        return one
    n = int(kind[1:])
    function = {"add": lambda a, b: a + b, "min": min, "max": max, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
                "xor": lambda a, b: a ^ b}[operation]
    return lambda old, b: write(function(read(old, kind), read(b, kind)), n) if kind[0] in "us" else function(old, b)


def extreme(operation, name):
    def oracle(old, b):
        return (min if operation == "min" else max)((old, b), key=lambda v: (value_of(v, name), not v & FORMATS[name].sign))
    return oracle


FORMS = [*(f"{o}.b{n}" for n in (32, 64) for o in ("and", "or", "xor", "exch")), *(f"{o}.{s}{n}" for n in (32, 64) for s in "us" for o in (
    "min", "max")), "add.u32", "add.s32", "add.u64", "inc.u32", "dec.u32", "add.f32", "add.f64", "add.noftz.f16", "add.noftz.f16x2",
    "add.noftz.bf16", "add.noftz.bf16x2"]
WIDTH = dict(f16=2, bf16=2, f32=4, f64=8, f16x2=4, bf16x2=4)


def width_of(kind):
    return WIDTH.get(kind) or int(kind[1:]) // 8


def ordinary(kind, space):
    """Edge values: no NaN, whose bits are open; no subnormals where global memory flushes them."""
    if kind not in REAL:
        return integers(kind.replace("b", "u"))
    name = kind.removesuffix("x2")
    values = [v for v in floats(name) if decode(v, name)[0] == "num" and (name != "f32" or value_of(v, name) == 0 or
                                                                         abs(value_of(v, name)) >= 2.0 ** -100)]
    return [v | w << 16 for v, w in zip(values, values[3:] + values[:3])] if kind.endswith("x2") else values


def register(kind):
    return {2: "b16", 4: "f32" if kind == "f32" else "b32", 8: "f64" if kind == "f64" else "b64"}[width_of(kind)]


def of_one_address_each():
    """Lane by lane, so that the result is certain: what was found, and what lies there afterwards."""
    draw = random.Random(1)
    for form, space in itertools.product(FORMS, ("global", "shared", "generic", "shared::cta")):
        operation, kind = form.split(".")[0], form.split(".")[-1]
        if space == "shared::cta" and operation != "add":
            continue
        width, declared = width_of(kind), register(kind)
        pairs = rows(ordinary(kind, space), ordinary(kind, space), most=128)
        count = len(pairs) // 32 * 32
        pairs = draw.sample(pairs, count)
        where = f".{space}" if space != "generic" else ""
        text = [f"    mad.lo.u64 %at, %w, {width}, %a1;", f"    ld.global.b{8 * width} %b, [%at];", f"    mad.lo.u64 %p, %w, {width}, %a0;"]
        if space.startswith("shared"):
            text += [f"    ld.global.b{8 * width} %x, [%p];", f"    mad.lo.u32 %s, %i, {width}, 0;", "    mov.u32 %t, tile;",
                     "    add.u32 %s, %s, %t;", f"    st.shared.b{8 * width} [%s], %x;"]
        address = "%s" if space.startswith("shared") else "%p"
        order = draw.choice(("", ".relaxed.gpu", ".acquire.cta", ".release.sys", ".acq_rel.gpu"))
        text += [f"    atom{order}{where}.{form} %d, [{address}], %b;",
                 f"    red{order.replace('acquire', 'relaxed').replace('acq_rel', 'release')}"
                 f"{where}.{form} [{address}], %b;" if operation != "exch" else ""]
        if space.startswith("shared"):
            text += [f"    ld.shared.b{8 * width} %x, [%s];", f"    st.global.b{8 * width} [%p], %x;"]
        text += [f"    mad.lo.u64 %at, %w, {width}, %a2;", f"    st.global.b{8 * width} [%at], %d;"]
        combine = plain(operation, kind)
        after = [combine(old, b) for old, b in pairs]
        if operation != "exch":
            after = [combine(now, b) for now, (_, b) in zip(after, pairs)]
        known = [n for n, v in enumerate(after) if kind not in REAL or all(x[0] != "nan" for x in (decode(v & 0xFFFF if "x2" in kind else v,
                                                                                                          kind.removesuffix("x2")),))]
        dtype = f"u{width}"
        yield custom(f"atom{where}.{form}{order}", "\n".join(t for t in text if t),
                     [np.array([old for old, _ in pairs], dtype), np.array([b for _, b in pairs], dtype), np.zeros(count, dtype)],
                     {0: lambda got, after=after, known=known: all(int(got[n]) == after[n] for n in known), 2: [old for old, _ in pairs]},
                     registers=f".reg .{declared} %b, %d, %x; .reg .b64 %p; .reg .b32 %s, %t;", block=count, sm=90,
                     before=f".shared .align 16 .b8 tile[{max(count, 1) * width}];")


def swaps():
    for kind, width in (("b16", 2), ("b32", 4), ("b64", 8)):
        for space in ("global", "shared", "generic"):
            edges = integers(f"u{8 * width}")[:8]
            triples = [(a, b, c) for a, b, c in rows(edges, edges, edges[::-1], most=64)]
            triples = [(a, a if n % 2 else b, c) for n, (a, b, c) in enumerate(triples)][:64]
            where = f".{space}" if space != "generic" else ""
            text = [f"    mad.lo.u64 %p, %w, {width}, %a0;", f"    mad.lo.u64 %at, %w, {width}, %a1;",
                    f"    ld.global.b{8 * width} %b, [%at];",
                    f"    mad.lo.u64 %at, %w, {width}, %a2;", f"    ld.global.b{8 * width} %c, [%at];"]
            if space == "shared":
                text += [f"    ld.global.b{8 * width} %x, [%p];", "    mov.u32 %t, tile;", f"    mad.lo.u32 %s, %i, {width}, %t;",
                         f"    st.shared.b{8 * width} [%s], %x;"]
            text += [f"    atom{where}.cas.{kind} %d, [{'%s' if space == 'shared' else '%p'}], %b, %c;"]
            if space == "shared":
                text += [f"    ld.shared.b{8 * width} %x, [%s];", f"    st.global.b{8 * width} [%p], %x;"]
            text += [f"    mad.lo.u64 %at, %w, {width}, %a3;", f"    st.global.b{8 * width} [%at], %d;"]
            columns = [np.array([row[n] for row in triples], f"u{width}") for n in range(3)]
            yield custom(f"atom{where}.cas.{kind}", "\n".join(text), [*columns, np.zeros(64, f"u{width}")],
                         {0: [c if a == b else a for a, b, c in triples], 3: columns[0]}, block=64,
                         registers=f".reg .{kind} %b, %c, %d, %x; .reg .b64 %p; .reg .b32 %s, %t;", sm=90,
                         before=f".shared .align 16 .b8 tile[{64 * width}];")
    body = """    shl.b64 %at, %w, 4;
    add.u64 %p, %a0, %at;
    mov.b64 %l, 7;
    mov.b128 %b, {%l, %w};
    mov.b64 %u, 99;
    mov.b128 %c, {%u, %w};
    atom.global.cas.b128 %d, [%p], %b, %c;
    add.u64 %p, %a1, %at;
    atom.global.exch.b128 %d, [%p], %d;
    mov.b128 {%l, %u}, %d;
    add.u64 %p, %a2, %at;
    st.global.v2.b64 [%p], {%l, %u};"""
    held = np.array([[7 if lane % 3 else 8, lane] for lane in range(32)], "u8").reshape(-1)
    second = np.arange(64, dtype="u8") << 33
    expected = held.copy().reshape(32, 2)
    expected[[lane for lane in range(32) if lane % 3], 0] = 99
    yield custom("atom.cas.b128, atom.exch.b128", body, [held, second, np.zeros(64, "u8")], {0: expected.reshape(-1), 1: held, 2: second},
                 registers=".reg .b128 %b, %c, %d; .reg .b64 %l, %u, %p;", sm=90)


def of_one_address():
    """All lanes of several blocks on one address, and on eight."""
    count, blocks = 96, 3
    total = count * blocks
    sums = dict(zip(("add.u32", "add.s32", "add.u64", "add.f32", "add.f64", "max.u32", "min.s32", "and.b32", "or.b32", "xor.b32",
                     "max.s64"),
                    itertools.count()))
    for form in sums:
        operation, kind = form.split(".")
        width, declared = width_of(kind), register(kind)
        for spread in (1, 8):
            for forms in (("atom",), ("red",)):
                load = f"    cvt.rn.{kind}.u32 %b, %i;" if kind in REAL else f"    {'cvt.u64.u32' if width == 8 else 'mov.b32'} %b, %i;"
                text = [load, f"    and.b64 %at, %w, {spread - 1};", f"    mad.lo.u64 %p, %at, {width}, %a0;",
                        f"    atom.global.{form} %d, [%p], %b;" if forms == ("atom",) else f"    red.global.{form} [%p], %b;"]
                start = {"and": -1, "min": 5, "max": 3}.get(operation, 0)
                held = np.full(spread, start).astype({"f32": "f4", "f64": "f8"}.get(kind, f"{'i' if kind[0] == 's' else 'u'}{width}"))
                values = [np.arange(total)[np.arange(total) % spread == part] for part in range(spread)]
                function = {"add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or,
                            "xor": np.bitwise_xor}[operation]
                wanted = np.array([function.reduce(np.r_[np.array([start]), v]) for v in values]).astype(held.dtype)
                yield custom(f"{forms[0]}.{form} by all lanes on {spread}", "\n".join(text), [held], {0: wanted}, grid=blocks, block=count,
                             registers=f".reg .{declared} %b, %d; .reg .b64 %p;")
    text = ["    atom.global.inc.u32 %d, [%a0], 1000000;", "    mad.lo.u64 %at, %w, 4, %a1;", "    st.global.u32 [%at], %d;"]
    yield custom("tickets", "\n".join(text), [np.zeros(1, "u4"), np.zeros(total, "u4")],
                 {0: [total], 1: lambda got: sorted(got.tolist()) == list(range(total))}, registers=".reg .b32 %d;", grid=blocks,
                 block=count)


def vectors():
    """Vectors of atomics: element by element."""
    forms = [("f32", 2, ""), ("f32", 4, ""), ("f16", 2, ".noftz"), ("f16", 8, ".noftz"), ("bf16", 4, ".noftz"), ("f16x2", 4, ".noftz"),
             ("bf16x2", 2, ".noftz")]
    for operation, (kind, lanes, extra) in [("add", form) for form in forms] + [(o, form) for o in ("min", "max") for form in forms[2:]]:
        width, name = width_of(kind), kind.removesuffix("x2")
        count = 32 * lanes
        values = [v for v in ordinary(kind, "global") if abs(value_of(v & 0xFFFF if "x2" in kind else v, name)) < 2.0**10]
        draw = random.Random(6)
        held, given = ([draw.choice(values) for _ in range(count)] for _ in range(2))
        names = [f"%b{n}" for n in range(lanes)]
        found = [f"%d{n}" for n in range(lanes)]
        text = [f"    mad.lo.u64 %at, %w, {lanes * width}, %a1;",
                *(f"    ld.global.b{8 * width} {n}, [%at+{k * width}];" for k, n in enumerate(
            names)), f"    mad.lo.u64 %p, %w, {lanes * width}, %a0;",
                f"    atom.global.v{lanes}.{kind}.{operation}{extra} {{{', '.join(found)}}}, [%p], {{{', '.join(names)}}};",
                f"    red.global.v{lanes}.{kind}.{operation}{extra} [%p], {{{', '.join(names)}}};",
                f"    mad.lo.u64 %at, %w, {lanes * width}, %a2;",
                *(f"    st.global.b{8 * width} [%at+{k * width}], {n};" for k, n in enumerate(
                    found))]
        combine = plain(operation, kind)
        after = [combine(combine(old, b), b) for old, b in zip(held, given)]
        dtype = f"u{width}"
        yield custom(f"atom.v{lanes}.{kind}.{operation}", "\n".join(text),
                     [np.array(held, dtype), np.array(given, dtype), np.zeros(count, dtype)],
                     {0: after, 2: held}, registers=f".reg .{register(kind)} %b<{lanes}>, %d<{lanes}>; .reg .b64 %p;", sm=90)


test_of_one_address_each, test_of_one_address_each_gpu = on_both(of_one_address_each())
test_swaps, test_swaps_gpu = on_both(swaps())
test_of_one_address, test_of_one_address_gpu = on_both(of_one_address())
test_vectors, test_vectors_gpu = on_both(vectors())


@pytest.fixture(scope="module")
def gpu():
    from cudalab.gpu import Gpu
    return Gpu()
