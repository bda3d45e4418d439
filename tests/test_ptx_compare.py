"""setp, set, selp, slct: every comparison of every type, with every boolean operation.  Oracle: fractions and Python integers."""

import functools
import operator

import pytest

from ptx_oracle import decode, encode, floats, flushed, integers, number, read, value_of
from ptx_program import case, on_both, rows, several

ORDERED = dict(eq=operator.eq, ne=operator.ne, lt=operator.lt, le=operator.le, gt=operator.gt, ge=operator.ge)
UNSIGNED = dict(lo=operator.lt, ls=operator.le, hi=operator.gt, hs=operator.ge)
UNORDERED = {f"{name}u": function for name, function in ORDERED.items()}
BOOLEANS = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
REAL = ("f16", "bf16", "f32", "f64")
WHOLE = ("u16", "s16", "u32", "s32", "u64", "s64", "b16", "b32", "b64")


@functools.cache
def seen(bits, name, ftz):
    """What a comparison sees of an operand; None of a NaN."""
    x = flushed(decode(bits, name), name) if ftz else decode(bits, name)
    return None if x == ("nan",) else value_of(encode(x, name), name)


def compared(which, name, ftz=False):
    """0 or 1 for the bits of two values."""
    def real(a, b):
        one, other = seen(a, name, ftz), seen(b, name, ftz)
        nan = None in (one, other)
        if which in ("num", "nan"):
            return int(nan == (which == "nan"))
        if nan:
            return int(which in UNORDERED)
        return int((UNORDERED.get(which) or ORDERED[which])(one, other))

    def whole(a, b):
        kind = f"u{name[1:]}" if which in UNSIGNED else name.replace("b", "u")
        return int((UNSIGNED.get(which) or ORDERED[which])(read(a, kind), read(b, kind)))
    return real if name in REAL else whole


def comparisons_of(name):
    if name in REAL:
        return [*ORDERED, *UNORDERED, "num", "nan"]
    if name[0] == "b":
        return ["eq", "ne"]
    return [*ORDERED, *(UNSIGNED if name[0] == "u" else ())]


def pairs(name):
    edges = floats(name)[::2] + floats(name)[1:4] if name in REAL else integers(name.replace("b", "u"))[:14]
    return rows(edges, edges, most=80) + [(v, v) for v in edges]


def with_flag(values):
    return [(*row, n % 2) for n, row in enumerate(values)] + [(*row, 1 - n % 2) for n, row in enumerate(values)]


def needs(name):
    return 90 if name == "bf16" else 80


def packed_pairs(name):
    return [(a | c << 16, b | d << 16) for (a, b), (c, d) in zip(pairs(name), pairs(name)[3:])]


def boolean(turn):
    return list(BOOLEANS.items())[turn % 3]


def setting_predicates():
    """All comparisons of a type: plain, with the opposite beside them, joined with a third predicate and with its opposite."""
    for name in (*REAL, *WHOLE):
        of = [(which, compared(which, name), *boolean(turn)) for turn, which in enumerate(comparisons_of(name))]
        yield several(f"setp.{name}", f"{name} {name}", pairs(name),
                      [(f"setp.{which}.{name} {{0}}, %0, %1", "pred", one) for which, one, _, _ in of], sm=needs(name))
        single = name in ("f16", "bf16")  # of half precision only a pair gives two results
        if not single:
            yield several(f"setp.{name}, both results", f"{name} {name}", pairs(name),
                          [(f"setp.{which}.{name} {{0}}|{{1}}, %0, %1", "pred pred", lambda a, b, f=one: (f(a, b), 1 - f(a, b)))
                           for which, one, _, _ in of])
        for turned in (0, 1):
            parts = []
            for which, one, word, function in of:
                def joined(a, b, c, f=one, g=function, turned=turned, single=single):
                    first, second = g(f(a, b), c ^ turned), g(1 - f(a, b), c ^ turned)
                    return first if single else (first, second)
                parts.append((f"setp.{which}.{word}.{name} {'{0}' if single else '{0}|{1}'}, %0, %1, {'!' * turned}%2",
                              "pred" if single else "pred pred", joined))
            yield several(f"setp.{name} with {'!' * turned}p", f"{name} {name} pred", with_flag(pairs(name)), parts, sm=needs(name))
        if single:
            yield several(f"setp.{name}x2", f"{name}x2 {name}x2", packed_pairs(name),
                          [(f"setp.{which}.{name}x2 {{0}}|{{1}}, %0, %1", "pred pred", packed(one)) for which, one, _, _ in of],
                          sm=needs(name))
    for name in ("f16", "f32"):
        yield several(f"setp.ftz.{name}", f"{name} {name}", pairs(name),
                      [(f"setp.{which}.ftz.{name} {{0}}, %0, %1", "pred", compared(which, name, True)) for which in comparisons_of(name)])


def packed(one):
    return lambda a, b: (one(a & 0xFFFF, b & 0xFFFF), one(a >> 16, b >> 16))


ONES = dict(f32=encode(number(1), "f32"), f16=encode(number(1), "f16"), bf16=encode(number(1), "bf16"), u32=0xFFFFFFFF, s32=0xFFFFFFFF,
            u16=0xFFFF, s16=0xFFFF)


def setting_values():
    for name in ("f32", "f64", "u32", "s32", "u16", "s16", "u64", "s64", "b32", "f16", "bf16"):
        plain, third, pair = [], [], []
        for turn, which in enumerate(comparisons_of(name)):
            results = (name, "u16", "s16", "u32", "s32") if name in ("f16", "bf16") else ("u32", "s32", "f32")
            result = results[turn % len(results)]
            one, value, (word, function) = compared(which, name), ONES[result], boolean(turn)
            plain.append((f"set.{which}.{result}.{name} {{0}}, %0, %1", result, lambda a, b, f=one, v=value: v * f(a, b)))
            third.append((f"set.{which}.{word}.{result}.{name} {{0}}, %0, %1, %2", result,
                          lambda a, b, c, f=one, g=function, v=value: v * g(f(a, b), c)))
            if name in ("f16", "bf16"):
                pair.append((f"set.{which}.{name}x2.{name}x2 {{0}}, %0, %1", f"{name}x2", lambda a, b, f=packed(one), v=ONES[name]:
                             v * f(a, b)[0] | v * f(a, b)[1] << 16))
        yield several(f"set.{name}", f"{name} {name}", pairs(name), plain, sm=needs(name), held_back=False)
        yield several(f"set.{name} with p", f"{name} {name} pred", with_flag(pairs(name)), third, sm=needs(name), held_back=False)
        if pair:
            yield several(f"set.{name}x2", f"{name}x2 {name}x2", packed_pairs(name), pair, sm=needs(name), held_back=False)
    yield case("set.lt.ftz.f32.f32 %d, %0, %1;", "f32 f32", "f32", pairs("f32"), lambda a,
               b: ONES["f32"] * compared("lt", "f32", True)(a, b), held_back=False)


def choosing():
    for kind in ("b16", "b32", "b64", "u16", "s16", "u32", "s32", "u64", "s64", "f32", "f64"):
        edges = floats(kind)[::3] if kind in REAL else integers(kind.replace("b", "u"))[:9]
        values = rows(edges, edges[::-1], [0, 1])
        yield case(f"selp.{kind} %d, %0, %1, %2;", f"{kind} {kind} pred", kind, values, lambda a, b, p: a if p else b)
        for sign in ("s32", "f32"):
            def slct(a, b, c, sign=sign):
                if sign == "s32":
                    return b if c >> 31 else a
                return a if compared("ge", "f32")(c, 0) else b
            values = rows(edges[:5], edges[:5][::-1], floats("f32"))
            yield case(f"slct.{kind}.{sign} %d, %0, %1, %2;", f"{kind} {kind} {sign}", kind, values, slct)
    yield case("slct.ftz.u32.f32 %d, %0, %1, %2;", "u32 u32 f32", "u32", rows([1, 2], [3, 4], floats("f32")),
               lambda a, b, c: a if compared("ge", "f32", True)(c, 0) else b)


test_setting_predicates, test_setting_predicates_gpu = on_both(setting_predicates())
test_setting_values, test_setting_values_gpu = on_both(setting_values())
test_choosing, test_choosing_gpu = on_both(choosing())


@pytest.fixture(scope="module")
def gpu():
    from cudalab.gpu import Gpu
    return Gpu()
