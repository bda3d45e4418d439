"""Small PTX programs over edge values, run on the emulator and, with -m gpu, on a device.  Both are held against one table of cases.

A case is one instruction, arrays of operands and an oracle: a Python function of the operands' bits that gives the result's bits.  The
oracle may also answer with a set (one of these), NAN (any NaN of the result's type), ANY (PTX leaves it open) or Within(low, high)
(hardware approximates; the bounds are the ones PTX publishes).  Where it gives bits, emulator and device must both give just those.

The emulator holds what all lanes have in common as a scalar and works on some lanes apart, so each case runs in five ways: operands that
differ by lane, the first operand the same everywhere, the last one, all of them, and under a guard that lets every other lane through.
"""

import hashlib
import itertools
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cudalab.emulator import Emulator
from cudalab.spec import Launch, Pointer
from ptx_oracle import ANY, NAN, Differs, Within, is_nan, value_of

HEADER = ".version 8.8\n.target {target}\n.address_size 64\n"
WIDTH = dict(pred=1, b8=1, u8=1, s8=1, b16=2, u16=2, s16=2, f16=2, bf16=2, b32=4, u32=4, s32=4, f32=4, tf32=4, f16x2=4, bf16x2=4,
             b64=8, u64=8, s64=8, f64=8, e4m3x2=2, e5m2x2=2, e2m1x2=1, e2m3x2=2, e3m2x2=2, ue8m0x2=2)
OLD = 0x5A5A5A5A5A5A5A5A  # what a guarded result holds in the lanes that are not let through
FEW = 64  # rows looked at in the ways that hold an operand fixed
UNIFORM = 3  # rows of which all lanes hold the same operands


@dataclass(frozen=True)
class Program:
    """A kernel `k`, what it is launched with, and the check of what its buffers hold afterwards, there or (True) on a device.  sm: what it
    needs of a device."""

    name: str
    ptx: str
    buffers: tuple[np.ndarray, ...]
    check: Callable[[list[np.ndarray], bool], None]
    grid: int = 1
    block: int = 32
    sm: int = 80

    def verify(self, run: Callable, device: bool = False) -> None:
        self.check(run(self), device)


def on_emulator(program: Program) -> list[np.ndarray]:
    return Emulator(output=lambda text: None).run_ptx(program.ptx, "k", program.grid, program.block, program.buffers)


def on_gpu(gpu) -> Callable:
    """A function that runs a program on a device, through the package's own loading and launching."""
    def run(program: Program) -> list[np.ndarray]:
        import cupy
        text = program.ptx.encode() + b"\0"
        built = SimpleNamespace(folder=Path(hashlib.sha256(text).hexdigest()), cubin=text, target=gpu.target)  # the driver takes PTX too
        names = [f"b{number}" for number in range(len(program.buffers))]
        with gpu.stream:
            buffers = {name: cupy.asarray(array) for name, array in zip(names, program.buffers)}
        launch = Launch("k", (program.grid, 1, 1), (program.block, 1, 1), tuple(Pointer(name) for name in names))
        status, = gpu._launch(gpu._load(built), SimpleNamespace(symbol="k", static_smem=0), launch, buffers, program.name)()
        gpu._check(status, program.name)
        gpu.synchronize(program.name)
        return [buffers[name].get() for name in names]
    return run


def on_both(programs: Iterable[Program]) -> tuple[Callable, Callable]:
    """Two tests of a table of programs: on the emulator, and the same on a device.  Each runs the whole table, which is made when the first
    of them runs, not when tests are collected; what fails is listed by name."""
    made = []

    def table() -> list[Program]:
        if not made:
            made.extend(programs)
        assert made
        return made

    def test_on_emulator():
        report([(program, failure(program, on_emulator, False)) for program in table()])

    @pytest.mark.gpu
    def test_on_gpu(gpu):
        within = [program for program in table() if program.sm <= gpu.device.sm]
        if not within:
            pytest.skip(f"all of it needs more than compute capability {gpu.device.sm / 10}")
        report([(program, failure(program, on_gpu(gpu), True)) for program in within])

    return test_on_emulator, test_on_gpu


def failure(program: Program, run: Callable, device: bool) -> str | None:
    """What is wrong with a program, or None."""
    try:
        program.verify(run, device)
    except (Exception, pytest.fail.Exception) as error:  # also what is no wrong result: the rest of the table is still of interest
        return f"{type(error).__name__}: {error}"
    return None


def report(outcomes: list[tuple[Program, str | None]]) -> None:
    wrong = [f"{program.name}: {text}" for program, text in outcomes if text]
    if wrong:
        pytest.fail(f"{len(wrong)} of {len(outcomes)} programs\n" + "\n".join(wrong), pytrace=False)


# -- operands


def rows(*columns: Iterable[int], most: int = 400) -> list[tuple[int, ...]]:
    """Every combination of the columns' values; a fixed sample of them where there are more than `most`."""
    every = list(itertools.product(*columns))
    return every if len(every) <= most else random.Random(len(every)).sample(every, most)


def kernel(body: str, buffers: int, registers: str = "", target: str = "sm_80", before: str = "") -> str:
    """A kernel `k` around a body, which finds the buffers' addresses in %a0, %a1, …, its thread in %i (32 bits) and %w (64)."""
    declared = ", ".join(f".param .u64 p{number}" for number in range(buffers))
    loads = "\n".join(f"    ld.param.u64 %a{n}, [p{n}];\n    cvta.to.global.u64 %a{n}, %a{n};" for n in range(buffers))
    return (HEADER.format(target=target) + f"{before}\n.visible .entry k({declared})\n{{\n    .reg .b64 %a<{buffers}>, %w, %at;\n"
            f"    .reg .b32 %i, %cta, %nt;\n    .reg .b16 %h;\n    .reg .pred %guard;\n    {registers}\n{loads}\n"
            "    mov.u32 %i, %tid.x;\n    mov.u32 %cta, %ctaid.x;\n    mov.u32 %nt, %ntid.x;\n    mad.lo.u32 %i, %cta, %nt, %i;\n"
            f"    cvt.u64.u32 %w, %i;\n{body}\n    ret;\n}}\n")


def result_names(count: int) -> list[str]:
    return ["%d", "%e", "%f"][:count] if count < 4 else [f"%d{n}" for n in range(count)]


def several(name: str, operands: str, values: list, parts: list, **options) -> Program:
    """One program of several instructions over the same operands, each (text with {0}, {1} for its results, their types, oracle)."""
    outcomes = " ".join(results for _, results, _ in parts)
    names, text = iter(result_names(len(outcomes.split()))), ""
    for instruction, results, _ in parts:
        text += instruction.format(*(next(names) for _ in results.split())) + ";"

    def oracle(*row):
        given = [one(*row) for _, _, one in parts]
        return tuple(x for one in given for x in (one if isinstance(one, tuple) else (one,)))
    return case(text, operands, outcomes, values, oracle, name=name, **options)


def _register(kind: str) -> str:
    return kind if kind in ("pred", "f32", "f64") else f"b{max(16, 8 * WIDTH[kind])}"


def _load(kind: str, name: str, address: str) -> list[str]:
    if kind == "pred":
        return [f"    ld.global.u8 %h, [{address}];", f"    setp.ne.b16 {name}, %h, 0;"]
    return [f"    ld.global.{'b' if kind not in ('f32', 'f64') else 'f'}{8 * WIDTH[kind]} {name}, [{address}];"]


def _store(kind: str, name: str, address: str) -> list[str]:
    if kind == "pred":
        return [f"    selp.b16 %h, 1, 0, {name};", f"    st.global.u8 [{address}], %h;"]
    return [f"    st.global.b{8 * WIDTH[kind]} [{address}], {name};"]


def _set_old(kind: str, name: str) -> str:
    if kind == "pred":
        return f"    setp.ne.u32 {name}, %i, %i;"
    register = _register(kind)
    if register == "b16":
        return f"    mov.b16 {name}, 0x5A5A;"
    return f"    mov.b{register[1:]} {name}, 0x{OLD & (1 << int(register[1:])) - 1:X};"


def case(instruction: str, operands: str, results: str, values: list[tuple[int, ...]], oracle: Callable, *, sm: int = 80,
         registers: str = "", target: str = "", guard: bool = True, name: str = "", held_back: bool = True) -> Program:
    """The program of one instruction, or of a few.

    instruction: has %d (%e, %f; of more than three %d0, %d1, …) for results and %0, %1, … for operands.  operands, results: their
    types.  values: rows of operands' bits.
    oracle: of one row, gives the result, or a tuple of results.
    held_back: a device leaves the results of lanes that a guard holds back as they were.  Not so for set and testp, which ptxas (CUDA
    13.0) makes of two instructions and guards one of them only: there a device's lanes that are held back are not looked at.
    """
    kinds, outcomes = operands.split(), results.split()
    count, names = len(values), result_names(len(outcomes))
    threads = min(128, -(-count // 32) * 32)
    blocks = -(-count // threads)
    total = blocks * threads
    columns = [np.array([row[n] for row in values] + [values[0][n]] * (total - count), f"u{WIDTH[kind]}") for n, kind in enumerate(kinds)]
    ways, text = _ways(kinds, values, guard), []
    for number, (_, fixed, guarded) in enumerate(ways):
        for n, kind in enumerate(kinds):
            if fixed[n] is None:
                text.append(f"    mad.lo.u64 %at, %w, {WIDTH[kind]}, %a{n};")
                text += _load(kind, f"%{n}", "%at")
            else:
                text += _load(kind, f"%{n}", f"%a{n}+{fixed[n] * WIDTH[kind]}")
        if guarded:
            text += [_set_old(kind, d) for kind, d in zip(outcomes, names)]
        statements = [s.strip() for s in instruction.split(";") if s.strip()]
        text += [f"    {'@%guard ' if guarded else ''}{s};" for s in statements]
        for buffer, (kind, d) in enumerate(zip(outcomes, names), len(kinds)):
            text.append(f"    mad.lo.u64 %at, %w, {WIDTH[kind]}, %a{buffer};")
            text += _store(kind, d, f"%at+{number * total * WIDTH[kind]}")
    held = [*((kind, f"%{n}") for n, kind in enumerate(kinds)), *zip(outcomes, names)]
    declared = "".join(f".reg .{_register(kind)} {register}; " for kind, register in held)
    body = "\n".join(["    and.b32 %cta, %i, 1;", "    setp.eq.u32 %guard, %cta, 0;", *text])
    ptx = kernel(body, len(kinds) + len(outcomes), declared + registers, target or f"sm_{sm}")
    outputs = [np.zeros(len(ways) * total, f"u{WIDTH[kind]}") for kind in outcomes]

    def check(buffers, device):
        got = [array.reshape(len(ways), total)[:, :max(count, 1)].tolist() for array in buffers[len(kinds):]]
        known, wrong = {}, []
        for number, (way, fixed, guarded) in enumerate(ways):
            for at in range(count if number in (0, 4) else min(count, FEW)):
                row = tuple(values[at][n] if f is None else values[f][n] for n, f in enumerate(fixed))
                if row not in known:
                    expected = oracle(*row)
                    known[row] = expected if isinstance(expected, tuple) else (expected,)
                for kind, expected, actual in zip(outcomes, known[row], got):
                    if isinstance(expected, Differs):
                        expected = expected.device if device else expected.here
                    if guarded and at % 2:
                        if device and not held_back:
                            continue
                        expected = 0 if kind == "pred" else OLD & (1 << 8 * WIDTH[kind]) - 1
                    if not agrees(expected, actual[number][at], kind):
                        wrong.append((way, row, actual[number][at], expected))
        if wrong:
            pytest.fail(f"{len(wrong)} of {instruction}: " + "; ".join(describe(kinds, *w) for w in wrong[:6]), pytrace=False)

    return Program(name or re.sub(r"[^\w.|]+", "-", instruction).strip("-"), ptx, (*columns, *outputs), check, blocks, threads, sm)


def _ways(kinds, values, guard):
    """(name, which row each operand is fixed to, guarded?)"""
    free, last = [None] * len(kinds), len(kinds) - 1
    ways = [("lanes", free, False), ("first fixed", [0, *free[1:]], False), ("last fixed", [*free[:last], min(1, len(values) - 1)], False)]
    ways += [(f"row {row} everywhere", [row] * len(kinds), False) for row in random.Random(1).sample(range(len(values)),
                                                                                                     min(UNIFORM, len(values)))]
    return ways + [("guarded", free, True)] if guard else ways


def agrees(expected, actual: int, kind: str) -> bool:
    if expected is ANY:
        return True
    if expected is NAN:
        return is_nan(actual, kind)
    if isinstance(expected, (set, frozenset)):
        return any(agrees(one, actual, kind) for one in expected)
    if isinstance(expected, Within):
        return not is_nan(actual, kind) and expected.low <= value_of(actual, kind) <= expected.high
    return actual == expected


def describe(kinds, way, row, actual, expected) -> str:
    shown = ", ".join(f"{value:#x}" for value in row)
    return f"({shown}) [{way}] gives {actual:#x}, not {expected if not isinstance(expected, int) else hex(expected)}"


def custom(name: str, body: str, buffers: Iterable[np.ndarray], expected: dict[int, object], *, registers: str = "", before: str = "",
           grid: int = 1, block: int = 32, sm: int = 80, target: str = "") -> Program:
    """A program of any body.  expected: what the buffers of these numbers hold afterwards, an array of bits or a check of the buffer."""
    buffers = tuple(np.ascontiguousarray(b) for b in buffers)

    def check(outputs, device):
        for number, wanted in expected.items():
            if callable(wanted):
                assert wanted(outputs[number]), f"{name}: buffer {number} holds {outputs[number].tolist()[:64]}"
            else:
                got = outputs[number]
                wanted = np.asarray(wanted, got.dtype)
                bits = f"u{got.dtype.itemsize}"
                wrong = (got.view(bits) != wanted.view(bits)).nonzero()[0]
                assert not len(wrong), f"{name}: buffer {number}, elements {wrong[:8]}: {got[wrong[:8]]}, not {wanted[wrong[:8]]}"

    return Program(name, kernel(body, len(buffers), registers, target or f"sm_{sm}", before), buffers, check, grid, block, sm)
