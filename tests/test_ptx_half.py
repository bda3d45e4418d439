"""Half precision and bfloat16, one value and two, instruction by instruction.  Oracle: fractions, rounded once."""

import pytest

from ptx_oracle import FORMATS, NAN, arithmetic, decode, encode, floats, flushed, packed
from ptx_program import case, on_both, rows
from test_ptx_float import extreme, hidden_ties, near_the_middle

NAMES = ("f16", "bf16")


def pairs(name):
    return rows(floats(name), floats(name), most=110) + near_the_middle(name, 2, 60, 1)


def triples(name):
    return rows(floats(name), floats(name), floats(name), most=96) + near_the_middle(name, 3, 96, 2) + hidden_ties(name)


def joined(values):
    """Rows of packed pairs: each value with another one in the upper half."""
    return [tuple(v | w << 16 for v, w in zip(row, other)) for row, other in zip(values, values[7:] + values[:7])]


def both(instruction, operands, name, values, oracle, sm):
    """The instruction for one value and for a pair."""
    kind = instruction.split()[0].rsplit(".", 1)[-1]
    yield case(instruction, " ".join([name] * operands), name, values, oracle, sm=sm)
    yield case(instruction.replace(f".{kind} ", f".{kind}x2 "), " ".join([f"{name}x2"] * operands), f"{name}x2", joined(values),
               packed(oracle), sm=sm)


def sums_and_products():
    for name in NAMES:
        flags = [dict(ftz=f, sat=s) for f in (False, True) for s in (False, True)] if name == "f16" else [{}]
        for flag in flags:
            suffix = "".join(f".{k}" for k, v in flag.items() if v)
            for operation in ("add", "sub", "mul"):
                yield from both(f"{operation}.rn{suffix}.{name} %d, %0, %1;", 2, name, pairs(name), arithmetic(operation, name, **flag),
                                80 if name == "f16" else 90)
            yield from both(f"fma.rn{suffix}.{name} %d, %0, %1, %2;", 3, name, triples(name), arithmetic("fma", name, **flag), 80)
        yield from both(f"fma.rn.relu.{name} %d, %0, %1, %2;", 3, name, triples(name), arithmetic("fma", name, relu=True), 80)
    yield from both("fma.rn.ftz.relu.f16 %d, %0, %1, %2;", 3, "f16", triples("f16"), arithmetic("fma", "f16", ftz=True, relu=True), 80)


def extremes():
    for name in NAMES:
        for operation in ("min", "max"):
            for ftz in (False, True)[:1 + (name == "f16")]:
                for nan in (False, True):
                    for xorsign in (False, True):
                        flags = f"{'.ftz' * ftz}{'.NaN' * nan}{'.xorsign.abs' * xorsign}.{name}"
                        oracle = extreme(name, operation == "max", ftz=ftz, nan=nan, xorsign=xorsign, absolute=xorsign)
                        one, two = both(f"{operation}{flags} %d, %0, %1;", 2, name, pairs(name), oracle, 86 if xorsign else 80)
                        yield one
                        if not xorsign:  # there a NaN may have any sign
                            yield two


def signs():
    for name in NAMES:
        form = FORMATS[name]
        values = [(v,) for v in floats(name) if decode(v, name) != ("nan",)]  # the sign of a NaN is open
        for ftz in (False, True)[:1 + (name == "f16")]:
            def flush(b, name=name, form=form, ftz=ftz):
                return b & form.sign if ftz and flushed(decode(b, name), name) != decode(b, name) else b
            yield from both(f"abs{'.ftz' * ftz}.{name} %d, %0;", 1, name, values, lambda b, f=flush, form=form: f(b) & ~form.sign, 80)
            yield from both(f"neg{'.ftz' * ftz}.{name} %d, %0;", 1, name, values, lambda b, f=flush, form=form: f(b) ^ form.sign, 80)
        for operation in ("abs", "neg"):
            nans = [(v,) for v in floats(name) if decode(v, name) == ("nan",)]
            yield case(f"{operation}.{name} %d, %0;", name, name, nans, lambda b: NAN, name=f"{operation}.{name} of NaN")


def every_value():
    """All 65536 values of one operand: x * 1 + 0, which is x, with every NaN the canonical one."""
    for name in NAMES:
        one = encode(("num", 0, 1), name)

        def oracle(b, *_, name=name):
            return FORMATS[name].nan if decode(b, name) == ("nan",) else 0 if b == FORMATS[name].sign else b
        values = [(b, one, 0) for b in range(0, 65536, 9)]
        yield case(f"fma.rn.{name} %d, %0, %1, %2;", f"{name} {name} {name}", name, values, oracle, guard=False, name=f"every {name}")


test_sums_and_products, test_sums_and_products_gpu = on_both(sums_and_products())
test_extremes, test_extremes_gpu = on_both(extremes())
test_signs, test_signs_gpu = on_both(signs())
test_every_value, test_every_value_gpu = on_both(every_value())


@pytest.fixture(scope="module")
def gpu():
    from cudalab.gpu import Gpu
    return Gpu()
