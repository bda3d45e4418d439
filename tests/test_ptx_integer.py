"""Integer arithmetic and logic, instruction by instruction.  Oracle: Python integers."""

import random

import numpy as np
import pytest

from ptx_oracle import ANY, Differs, clamp, integers, read, to_signed, write
from ptx_program import case, custom, rows, on_both

TYPES = ("u16", "s16", "u32", "s32", "u64", "s64")


def bits_of(kind):
    return int(kind[1:])


def pairs(kind):
    return rows(integers(kind), integers(kind), most=192)


def triples(kind):
    return rows(integers(kind), integers(kind), integers(kind), most=192)


def binary(function, kind):
    """An oracle from a function of two (or three) values of a type."""
    return lambda *values: write(function(*(read(v, kind) for v in values)), bits_of(kind))


def quotient(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def dividing(kind, function):
    lowest = -(1 << bits_of(kind) - 1)

    def oracle(a, b):
        x, y = read(a, kind), read(b, kind)
        if y == 0 or kind[0] == "s" and x == lowest and y == -1:
            return ANY  # PTX: division by zero yields an unspecified value; of the overflow it says nothing
        return write(function(x, y), bits_of(kind))
    return oracle


def arithmetic():
    for kind in TYPES:
        n = bits_of(kind)
        both, three, at = f"{kind} {kind}", f"{kind} {kind} {kind}", f"{kind} %d, %0, %1"
        for name, function in (("add", lambda a, b: a + b), ("sub", lambda a, b: a - b), ("mul.lo", lambda a, b: a * b),
                               ("mul.hi", lambda a, b, n=n: a * b >> n), ("min", min), ("max", max)):
            yield case(f"{name}.{at};", both, kind, pairs(kind), binary(function, kind))
        yield case(f"div.{at};", both, kind, pairs(kind), dividing(kind, quotient))
        yield case(f"rem.{at};", both, kind, pairs(kind), dividing(kind, lambda a, b: a - b * quotient(a, b)))
        yield case(f"mad.lo.{kind} %d, %0, %1, %2;", three, kind, triples(kind), binary(lambda a, b, c: a * b + c, kind))
        yield case(f"mad.hi.{kind} %d, %0, %1, %2;", three, kind, triples(kind), binary(lambda a, b, c, n=n: (a * b >> n) + c, kind))
        yield case(f"sad.{kind} %d, %0, %1, %2;", three, kind, triples(kind), binary(lambda a, b, c: abs(a - b) + c, kind))
        if n < 64:
            wide = f"{kind[0]}{2 * n}"
            yield case(f"mul.wide.{kind} %d, %0, %1;", both, wide, pairs(kind),
                       lambda a, b, k=kind, n=n: write(read(a, k) * read(b, k), 2 * n))
            yield case(f"mad.wide.{kind} %d, %0, %1, %2;", f"{both} {wide}", wide, rows(integers(kind), integers(kind), integers(wide)),
                       lambda a, b, c, k=kind, n=n: write(read(a, k) * read(b, k) + c, 2 * n))
        if kind[0] == "s":
            one = [(v,) for v in integers(kind)]
            yield case(f"abs.{kind} %d, %0;", kind, kind, one, binary(abs, kind))
            yield case(f"neg.{kind} %d, %0;", kind, kind, one, binary(lambda a: -a, kind))
    clamped = lambda f: lambda *v: write(clamp(f(*(read(x, "s32") for x in v)), "s32"), 32)  # noqa: E731
    yield case("add.sat.s32 %d, %0, %1;", "s32 s32", "s32", pairs("s32"), clamped(lambda a, b: a + b))
    yield case("sub.sat.s32 %d, %0, %1;", "s32 s32", "s32", pairs("s32"), clamped(lambda a, b: a - b))
    yield case("mad.hi.sat.s32 %d, %0, %1, %2;", "s32 s32 s32", "s32", triples("s32"), clamped(lambda a, b, c: (a * b >> 32) + c))
    yield case("min.relu.s32 %d, %0, %1;", "s32 s32", "s32", pairs("s32"), binary(lambda a, b: max(min(a, b), 0), "s32"), sm=90)
    yield case("max.relu.s32 %d, %0, %1;", "s32 s32", "s32", pairs("s32"), binary(lambda a, b: max(a, b, 0), "s32"), sm=90)


def halves(function, kind):
    one = binary(function, kind)
    return lambda *v: one(*(x & 0xFFFF for x in v)) | one(*(x >> 16 for x in v)) << 16


def pairs_of_halves():
    values = rows(integers("u32")[::2] + [0x80007FFF, 0x7FFF8000, 0xFFFF0001, 0x0001FFFF, 0x80008000], [0x00010001, 0xFFFFFFFF, 0x7FFF8000,
                                                                                                    0x80007FFF, 0, 0x12348765])
    for kind in ("u16", "s16"):
        for name, function in (("add", lambda a, b: a + b), ("min", min), ("max", max)):
            yield case(f"{name}.{kind}x2 %d, %0, %1;", "b32 b32", "b32", values, halves(function, kind), sm=90)
    yield case("min.relu.s16x2 %d, %0, %1;", "b32 b32", "b32", values, halves(lambda a, b: max(min(a, b), 0), "s16"), sm=90)
    yield case("max.relu.s16x2 %d, %0, %1;", "b32 b32", "b32", values, halves(lambda a, b: max(a, b, 0), "s16"), sm=90)


def of_24_bits():
    def read24(value, kind):
        return to_signed(value, 24) if kind == "s32" else value & 0xFFFFFF

    for kind in ("u32", "s32"):
        for half, shift in (("lo", 0), ("hi", 16)):
            def product(a, b, k=kind, s=shift):
                return read24(a, k) * read24(b, k) >> s
            yield case(f"mul24.{half}.{kind} %d, %0, %1;", f"{kind} {kind}", kind, pairs(kind), lambda a, b, p=product: write(p(a, b), 32))
            yield case(f"mad24.{half}.{kind} %d, %0, %1, %2;", f"{kind} {kind} {kind}", kind, triples(kind),
                       lambda a, b, c, p=product: write(p(a, b) + c, 32))

    def saturating(a, b, c):
        high = to_signed(read24(a, "s32") * read24(b, "s32") >> 16, 32)
        return write(clamp(high + to_signed(c, 32), "s32"), 32)
    yield case("mad24.hi.sat.s32 %d, %0, %1, %2;", "s32 s32 s32", "s32", triples("s32"), saturating)


def dots():
    values = rows([0, 0xFFFFFFFF, 0x80808080, 0x7F7F7F7F, 0x0180FF7F, 0x89ABCDEF], [0, 0xFFFFFFFF, 0x80808080, 0x01FF7F80, 0x12345678],
                  [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
    for one in ("u32", "s32"):
        for other in ("u32", "s32"):
            def byte(value, n, kind):
                return read(value >> 8 * n & 255, f"{kind[0]}8")

            def dp4a(a, b, c, one=one, other=other):
                return write(c + sum(byte(a, n, one) * byte(b, n, other) for n in range(4)), 32)
            yield case(f"dp4a.{one}.{other} %d, %0, %1, %2;", "b32 b32 b32", "b32", values, dp4a)
            for half, first in (("lo", 0), ("hi", 2)):
                def dp2a(a, b, c, one=one, other=other, first=first):
                    return write(c + sum(read(a >> 16 * n & 0xFFFF, f"{one[0]}16") * byte(b, first + n, other) for n in range(2)), 32)
                yield case(f"dp2a.{half}.{one}.{other} %d, %0, %1, %2;", "b32 b32 b32", "b32", values, dp2a)


def carries():
    for n in (32, 64):
        mask = (1 << n) - 1
        edge = [0, 1, mask, mask - 1, 1 << n - 1, (1 << n - 1) - 1]
        four = rows(edge, edge, edge, edge, most=300)
        wide = "b%d b%d b%d b%d" % (n, n, n, n)
        for sign in "us":
            for name, function in (("add", lambda a, b: a + b), ("sub", lambda a, b: a - b)):
                def chain(a, b, c, d, f=function, n=n, mask=mask):
                    total = f(a | b << n, c | d << n)
                    return total & mask, total >> n & mask
                text = f"{name}.cc.{sign}{n} %d, %0, %2; {name}c.{sign}{n} %e, %1, %3;"
                yield case(text, wide, f"b{n} b{n}", four, chain)

            def three(a, b, c, d, n=n, mask=mask):
                low = a + c
                middle = b + d + (low >> n)
                return low & mask, middle & mask, (0 + 0 + (middle >> n)) & mask
            yield case(f"add.cc.{sign}{n} %d, %0, %2; addc.cc.{sign}{n} %e, %1, %3; addc.{sign}{n} %f, 0, 0;", wide, f"b{n} b{n} b{n}",
                       four,
                       three)

            def borrow(a, b, c, d, n=n, mask=mask):
                low, middle = a - c, b - d - (a < c)
                return low & mask, middle & mask, -int(middle < 0) & mask
            yield case(f"sub.cc.{sign}{n} %d, %0, %2; subc.cc.{sign}{n} %e, %1, %3; subc.{sign}{n} %f, 0, 0;", wide, f"b{n} b{n} b{n}",
                       four,
                       borrow)

            def product(a, b, c, d, sign=sign, n=n, mask=mask):
                low = (a * b & mask) + c
                high = (read(a, f"{sign}{n}") * read(b, f"{sign}{n}") >> n & mask) + d + (low >> n)
                return low & mask, high & mask, high >> n
            yield case(f"mad.lo.cc.{sign}{n} %d, %0, %1, %2; madc.hi.cc.{sign}{n} %e, %0, %1, %3; addc.{sign}{n} %f, 0, 0;", wide,
                       f"b{n} b{n} b{n}", four, product)

            def crossed(a, b, c, d, sign=sign, n=n, mask=mask):
                high = (read(a, f"{sign}{n}") * read(b, f"{sign}{n}") >> n & mask) + c
                return high & mask, (a * b & mask) + d + (high >> n) & mask
            yield case(f"mad.hi.cc.{sign}{n} %d, %0, %1, %2; madc.lo.{sign}{n} %e, %0, %1, %3;", wide, f"b{n} b{n}", four, crossed)


def logic():
    for n in (16, 32, 64):
        kind, mask = f"b{n}", (1 << n) - 1
        for name, function in (("and", lambda a, b: a & b), ("or", lambda a, b: a | b), ("xor", lambda a, b: a ^ b)):
            yield case(f"{name}.{kind} %d, %0, %1;", f"{kind} {kind}", kind, pairs(kind), function)
        one = [(v,) for v in integers(kind)]
        yield case(f"not.{kind} %d, %0;", kind, kind, one, lambda a, m=mask: ~a & m)
        yield case(f"cnot.{kind} %d, %0;", kind, kind, one, lambda a: int(a == 0))
        amounts = rows(integers(kind), [0, 1, 7, n // 2, n - 1, n, n + 1, 63, 64, 65, 255, 256, 0x80000000, 0xFFFFFFFF])
        yield case(f"shl.{kind} %d, %0, %1;", f"{kind} u32", kind, amounts, lambda a, s, m=mask, n=n: a << min(s, n) & m)
        for sign in "bus":
            def right(a, s, sign=sign, n=n, mask=mask):
                return (to_signed(a, n) if sign == "s" else a) >> min(s, n) & mask
            yield case(f"shr.{sign}{n} %d, %0, %1;", f"{kind} u32", kind, amounts, right)
    predicates = rows([0, 1], [0, 1])
    yield case("and.pred %d, %0, %1;", "pred pred", "pred", predicates, lambda a, b: a & b)
    yield case("or.pred %d, %0, %1;", "pred pred", "pred", predicates, lambda a, b: a | b)
    yield case("xor.pred %d, %0, %1;", "pred pred", "pred", predicates, lambda a, b: a ^ b)
    yield case("not.pred %d, %0;", "pred", "pred", [(0,), (1,)], lambda a: 1 - a)
    for amount in (0, 5, 31, 32, 40):  # literals are another way through the emulator
        yield case(f"shl.b32 %d, %0, {amount};", "b32", "b32", [(v,) for v in integers("u32")], lambda a, s=amount: a << s & 0xFFFFFFFF)
        yield case(f"shr.s32 %d, %0, {amount};", "b32", "b32", [(v,) for v in integers("u32")],
                   lambda a, s=amount: to_signed(a, 32) >> s & 0xFFFFFFFF)
    funnel = rows(integers("u32")[::2], integers("u32")[1::2], [0, 1, 8, 31, 32, 33, 63, 64, 0xFFFFFFFF])
    for limit, amount in (("clamp", lambda c: min(c, 32)), ("wrap", lambda c: c & 31)):
        yield case(f"shf.l.{limit}.b32 %d, %0, %1, %2;", "b32 b32 u32", "b32", funnel,
                   lambda a, b, c, f=amount: (b << 32 | a) << f(c) >> 32 & 0xFFFFFFFF)
        yield case(f"shf.r.{limit}.b32 %d, %0, %1, %2;", "b32 b32 u32", "b32", funnel,
                   lambda a, b, c, f=amount: (b << 32 | a) >> f(c) & 0xFFFFFFFF)


def counts():
    for n in (32, 64):
        one = [(v,) for v in dict.fromkeys([*integers(f"u{n}"), *(1 << k for k in range(n)), *((1 << k) - 1 for k in range(n))])]
        yield case(f"popc.b{n} %d, %0;", f"b{n}", "u32", one, lambda a: a.bit_count())
        yield case(f"clz.b{n} %d, %0;", f"b{n}", "u32", one, lambda a, n=n: n - a.bit_length())
        yield case(f"brev.b{n} %d, %0;", f"b{n}", f"b{n}", one, lambda a, n=n: int(f"{a:0{n}b}"[::-1], 2))
        for sign in "us":
            def find(a, sign=sign, n=n):
                return (~a & (1 << n) - 1 if sign == "s" and a >> n - 1 else a).bit_length() - 1 & 0xFFFFFFFF
            yield case(f"bfind.{sign}{n} %d, %0;", f"b{n}", "u32", one, find)
            yield case(f"bfind.shiftamt.{sign}{n} %d, %0;", f"b{n}", "u32", one,
                       lambda a, f=find, n=n: f(a) if f(a) == 0xFFFFFFFF else n - 1 - f(a))


def fields():
    places = [0, 1, 8, 31, 32, 33, 63, 64, 200, 255, 256, 257]
    for n in (32, 64):
        def meant(function, n=n):
            """PTX takes places of up to 255; of more a device's 32-bit forms, as the emulator, use the low eight bits, 64-bit not."""
            return lambda *row: Differs(function(*row), ANY) if n == 64 and max(row[-2:]) > 255 else function(*row)
        values = rows(integers(f"u{n}")[::2], places, places, most=500)
        for sign in "us":
            def extract(a, start, length, sign=sign, n=n):
                start, length = start & 255, length & 255
                extra = 0 if sign == "u" or length == 0 else a >> min(start + length - 1, n - 1) & 1
                return sum((a >> start + i & 1 if i < length and start + i < n else extra) << i for i in range(n))
            yield case(f"bfe.{sign}{n} %d, %0, %1, %2;", f"b{n} u32 u32", f"b{n}", values, meant(extract))

        def insert(a, b, start, length, n=n):
            start, length = start & 255, length & 255
            for i in range(min(length, max(n - start, 0))):
                b = b & ~(1 << start + i) | (a >> i & 1) << start + i
            return b
        values = rows(integers(f"u{n}")[::4], integers(f"u{n}")[1::4], places, places, most=500)
        yield case(f"bfi.b{n} %d, %0, %1, %2, %3;", f"b{n} b{n} u32 u32", f"b{n}", values, meant(insert))
    for limit, amount in (("clamp", lambda v: min(v, 32)), ("wrap", lambda v: v & 31)):
        values = rows([0, 1, 5, 16, 31, 32, 33, 40, 255, 0xFFFFFFFF], [0, 1, 5, 16, 31, 32, 33, 40, 255, 0xFFFFFFFF])

        def mask(a, b, f=amount):
            return sum(1 << i for i in range(32) if f(a) <= i < f(a) + f(b))
        yield case(f"bmsk.{limit}.b32 %d, %0, %1;", "u32 u32", "b32", values, mask)
        for sign in "us":
            def extend(a, b, sign=sign, f=amount):
                length = f(b)
                if not length:
                    return 0
                return write(read(a & (1 << length) - 1, f"{sign}{length}"), 32)
            yield case(f"szext.{limit}.{sign}32 %d, %0, %1;", "b32 u32", "b32",
                       rows(integers("u32"), [0, 1, 2, 8, 16, 31, 32, 33, 0xFFFFFFFF]), extend)

    def nth(mask, base, offset):
        offset = to_signed(offset, 32)
        if offset == 0:
            return base if mask >> base & 1 else 0xFFFFFFFF
        hits = [i for i in (range(base, 32) if offset > 0 else range(base, -1, -1)) if mask >> i & 1]
        return hits[abs(offset) - 1] if len(hits) >= abs(offset) else 0xFFFFFFFF
    values = rows([0, 0xFFFFFFFF, 0x80000001, 0x5A5A5A5A, 0x00FF0000], [0, 1, 15, 16, 31], [0, 1, 2, 8, 32, 0xFFFFFFFF, 0xFFFFFFFE, 33])
    yield case("fns.b32 %d, %0, %1, %2;", "b32 u32 s32", "b32", values, nth)


def permuted(a, b, selector, mode):
    eight = [(b << 32 | a) >> 8 * n & 255 for n in range(8)]
    s = selector & 3
    picks = {"f4e": [s, s + 1, s + 2, s + 3], "b4e": [s, s - 1 & 7, s - 2 & 7, s - 3 & 7], "rc8": [s] * 4,
             "ecl": [max(s, n) for n in range(4)], "ecr": [min(s, n) for n in range(4)], "rc16": [2 * (s & 1), 2 * (s & 1) + 1] * 2}
    if mode:
        return sum(eight[p] << 8 * n for n, p in enumerate(picks[mode]))
    result = 0
    for n in range(4):
        nibble = selector >> 4 * n & 15
        byte = eight[nibble & 7]
        result |= (255 * (byte >> 7) if nibble & 8 else byte) << 8 * n
    return result


def permutations():
    draw = random.Random(2)
    values = [(draw.getrandbits(32), draw.getrandbits(32), draw.getrandbits(32)) for _ in range(250)] + [(0x80FF7F01, 0x007E8081, 0xFEDC)]
    for mode in ("", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        yield case(f"prmt.b32{'.' + mode if mode else ''} %d, %0, %1, %2;", "b32 b32 b32", "b32", values,
                   lambda a, b, c, m=mode: permuted(a, b, c, m))


def truth_tables():
    """All 256 functions of three bits."""
    body = "    mad.lo.u64 %at, %w, 12, %a0;\n    ld.global.b32 %x, [%at];\n    ld.global.b32 %y, [%at+4];\n"
    body += "    ld.global.b32 %z, [%at+8];\n"
    body += "    mad.lo.u64 %at, %w, 1024, %a1;\n"
    body += "".join(f"    lop3.b32 %r, %x, %y, %z, {table};\n    st.global.b32 [%at+{4 * table}], %r;\n" for table in range(256))
    operands = np.random.default_rng(3).integers(0, 1 << 32, (32, 3), dtype=np.uint32)
    expected = np.zeros((32, 256), np.uint32)
    for lane, (a, b, c) in enumerate(operands.tolist()):
        for table in range(256):
            expected[lane, table] = sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32))
    yield custom("lop3, every table", body, [operands.reshape(-1), np.zeros(32 * 256, np.uint32)], {1: expected.reshape(-1)},
                 registers=".reg .b32 %x, %y, %z, %r;")
    values = rows([0, 0xFFFFFFFF, 0xF0F00000], [0, 0xFFFFFFFF], [0, 0xCC000000], [0, 1])
    for boolean, function in (("or", lambda p, q: p | q), ("and", lambda p, q: p & q)):
        for table in (0x00, 0x80, 0x96, 0xFF):
            def oracle(a, b, c, q, table=table, function=function):
                result = sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32))
                return result, function(int(result != 0), q)
            yield case(f"lop3.{boolean}.b32 %d|%e, %0, %1, %2, {table}, %3;", "b32 b32 b32 pred", "b32 pred", values, oracle, sm=70,
                       target="sm_80")


test_arithmetic, test_arithmetic_gpu = on_both(arithmetic())
test_pairs_of_halves, test_pairs_of_halves_gpu = on_both(pairs_of_halves())
test_of_24_bits, test_of_24_bits_gpu = on_both(of_24_bits())
test_dots, test_dots_gpu = on_both(dots())
test_carries, test_carries_gpu = on_both(carries())
test_logic, test_logic_gpu = on_both(logic())
test_counts, test_counts_gpu = on_both(counts())
test_fields, test_fields_gpu = on_both(fields())
test_permutations, test_permutations_gpu = on_both(permutations())
test_truth_tables, test_truth_tables_gpu = on_both(truth_tables())


@pytest.fixture(scope="module")
def gpu():
    from cudalab.gpu import Gpu
    return Gpu()
