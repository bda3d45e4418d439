"""Damaged PTX ends in an error of ours, never in a hang or another traceback; and programs drawn at random give what a plain Python
interpreter of the same program gives."""

import re
import signal
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cudalab.emulator import Emulator, backend
from cudalab.errors import LabError
from emulated import compile_cuda
from ptx_oracle import arithmetic
from ptx_program import case, custom, kernel, on_emulator

QUICK = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
LONGEST = 20  # seconds that one damaged program may take

SMALL = kernel("""    .reg .b32 %x<6>; .reg .f32 %f<4>; .reg .b16 %h<3>; .reg .b64 %d<3>; .reg .pred %p, %q; .reg .f64 %e;
    .shared .align 16 .b8 tile[256];
    .local .align 8 .b8 own[32];
    mad.lo.u64 %d0, %w, 4, %a0;
    ld.global.u32 %x0, [%d0];
    mov.u32 %x1, tile;
    mad.lo.u32 %x1, %i, 4, %x1;
    st.shared.u32 [%x1], %x0;
    bar.sync 0;
    ld.shared.v2.u32 {%x2, %x3}, [tile+8];
    setp.lt.and.s32 %p|%q, %x2, 77, %p;
    @!%p bra SKIP;
    cvt.rn.f32.u32 %f0, %x2;
    fma.rn.f32 %f1, %f0, 0f3F800000, 0f40000000;
    cvt.rn.f16x2.f32 %x4, %f1, %f0;
    add.f16x2 %x4, %x4, %x4;
    shfl.sync.bfly.b32 %x5|%q, %x4, 1, 31, -1;
    atom.global.add.u32 %x3, [%a0+4], 1;
SKIP:
    st.local.u64 [own], %d0;
    and.b32 %x2, %i, 1;
    T: .branchtargets ONE, TWO;
    brx.idx %x2, T;
ONE:
    cp.async.ca.shared.global [%x1], [%d0], 4;
    cp.async.wait_all;
TWO:
    prmt.b32 %x3, %x0, %x2, 0x3201;
    lop3.b32 %x3, %x3, %x0, 0x55, 0x96;
    selp.b32 %x3, %x3, %x4, %q;
    { .param .b32 a; .param .b32 r; st.param.b32 [a], %x3; call.uni (r), half, (a); ld.param.b32 %x5, [r]; }
    vote.sync.ballot.b32 %x4, %q, 0xffffffff;
    st.global.u32 [%d0], %x3;""", 1,
               before=".global .align 4 .u32 table[3] = {1, 2, 3};\n.func (.param .b32 out) half(.param .b32 in)\n{\n    .reg .b32 %x;\n"
                      "    ld.param.b32 %x, [in];\n    shr.u32 %x, %x, 1;\n    st.param.b32 [out], %x;\n    ret;\n}\n", target="sm_90")
NOISE = ["", "{", "}", ";", "[", "]", ",", "%", "%x0", "%p", ".b32 ", ".f64", ".v4", "@", "0x", "0f", "-", "99999999999999999999",
         "<1000000000>", '"',
         "/*", ":", "!", "|", "(", ")", "=", "_", ".reg", ".param", ".u8", "\n", "\0", "é", "tile", "%tid.x", "ret;", "bra SKIP;", "trap;"]


@contextmanager
def patience():
    """A program that does not end in time fails the test, instead of hanging it."""
    def late(number, frame):
        raise TimeoutError(f"more than {LONGEST} s")
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def parse_and_run(text: str, monkeypatch, run: bool = True):
    """Whatever comes of it but an error of ours is a failure."""
    with monkeypatch.context() as patched, patience():
        patched.setattr(backend, "PATIENCE", 2000)
        emulator = Emulator("sm_90", output=lambda shown: None)
        try:
            if run:
                emulator.run_ptx(text, "k", 1, 32, (np.arange(64, dtype=np.uint32),))
            else:
                program = emulator.program(text)
                for name, function in program.module.functions.items():
                    if function.entry and function.body is not None:
                        program.kernel(name)
        except LabError as error:
            assert "\n" not in str(error).strip() and str(error)


def test_the_undamaged_program_runs():
    Emulator("sm_90").run_ptx(SMALL, "k", 1, 32, (np.arange(64, dtype=np.uint32),))


@QUICK
@given(data=st.data())
def test_characters_cut_out_and_put_in(monkeypatch_once, data):
    text = SMALL
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.sampled_from(NOISE)) + text[at + data.draw(st.integers(0, 12)):]
    parse_and_run(text, monkeypatch_once)


TOKENS = re.findall(r"\.?[%$\w:]+|\s+|.", SMALL)
WORDS = [n for n, token in enumerate(TOKENS) if token.strip() and n > 12]


@settings(QUICK, max_examples=120)
@given(changes=st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(WORDS)), min_size=1, max_size=2))
def test_words_changed_for_others_of_the_program(monkeypatch_once, changes):
    tokens = list(TOKENS)
    for at, other in changes:
        tokens[at] = TOKENS[other]
    parse_and_run("".join(tokens), monkeypatch_once)


LINES = SMALL.splitlines(keepends=True)


@QUICK
@given(moves=st.lists(st.tuples(st.sampled_from(["drop", "double", "swap"]), st.integers(0, len(LINES) - 1),
                                st.integers(0, len(LINES) - 1)),
                      min_size=1, max_size=3))
def test_lines_dropped_doubled_and_swapped(monkeypatch_once, moves):
    lines = list(LINES)
    for kind, one, other in moves:
        if kind == "swap":
            lines[one], lines[other] = lines[other], lines[one]
        else:
            lines[one] = "" if kind == "drop" else lines[one] * 2
    parse_and_run("".join(lines), monkeypatch_once)


@settings(QUICK, max_examples=40)
@given(data=st.data())
def test_damage_to_what_the_compiler_writes(monkeypatch_once, data):
    text = compile_cuda(FROM_CUDA)
    text = text[text.index(".version"):]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.sampled_from(NOISE)) + text[at + data.draw(st.integers(0, 40)):]
    parse_and_run(text, monkeypatch_once, run=False)


FROM_CUDA = r"""
__constant__ float weights[4] = {1, 2, 3, 4};
__device__ __noinline__ float mean(const float* x, int n) {
    float s = 0;
    for (int i = 0; i < n; ++i) s += x[i] * weights[i & 3];
    return s / n;
}
extern "C" __global__ void k(float* x, double* y, int n) {
    __shared__ float4 s[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    s[threadIdx.x & 63] = reinterpret_cast<float4*>(x)[i];
    __syncthreads();
    switch (n & 7) { case 0: x[i] = 1; break; case 1: x[i] = 2; break; case 2: x[i] += 3; break;
                     case 3: x[i] *= 4; break; case 5: x[i] = 9; }
    y[i] = sqrt(y[i]) + mean(x, n) + s[threadIdx.x ^ 1].w + __shfl_xor_sync(~0u, x[i], 1);
}
"""


# -- programs drawn at random, against an interpreter of one lane at a time

MASK = 0xFFFFFFFF
OPERATIONS = {"add.u32": lambda a, b: a + b, "sub.u32": lambda a, b: a - b, "mul.lo.u32": lambda a, b: a * b, "and.b32": lambda a, b: a & b,
              "or.b32": lambda a, b: a | b, "xor.b32": lambda a, b: a ^ b, "min.u32": min, "max.u32": max,
              "shl.b32": lambda a, b: a << min(b, 32),
              "shr.u32": lambda a, b: a >> min(b, 32), "mul.hi.u32": lambda a, b: a * b >> 32}
COMPARISONS = {"lt": lambda a, b: a < b, "ge": lambda a, b: a >= b, "eq": lambda a, b: a == b, "ne": lambda a, b: a != b}
REGISTERS = 4
operands = st.one_of(st.integers(0, REGISTERS - 1).map(lambda n: ("register", n)), st.sampled_from([0, 1, 2, 5, 31, 0x80000000, MASK]).map(
    lambda v: ("literal", v)))
targets = st.integers(0, REGISTERS - 1)
operation = st.tuples(st.just("set"), targets, st.sampled_from(list(OPERATIONS)), operands, operands)
guarded = st.tuples(st.just("guard"), st.sampled_from(list(COMPARISONS)), operands, operands, st.booleans(), operation)


def blocks(inner):
    body = st.lists(inner, max_size=4)
    return st.one_of(st.tuples(st.just("if"), st.sampled_from(list(COMPARISONS)), operands, operands, body, body),
                     st.tuples(st.just("loop"), targets, body))


programs = st.lists(st.recursive(st.one_of(operation, guarded), blocks, max_leaves=12), min_size=1, max_size=8)


class Writer:
    """PTX of a drawn program.  A loop runs as often as the lowest two bits of a register said when it began."""

    def __init__(self):
        self.lines, self.labels, self.counters = [], 0, 0

    def operand(self, what):
        return f"%x{what[1]}" if what[0] == "register" else str(what[1])

    def label(self):
        self.labels += 1
        return f"L{self.labels}"

    def write(self, statements):
        for kind, *rest in statements:
            getattr(self, kind)(*rest)

    def set(self, target, name, a, b, guard=""):
        # a shift's amount is a literal or a register, both operands of anything may be literals
        self.lines.append(f"{guard}{name} %x{target}, {self.operand(a)}, {self.operand(b)};")

    def compare(self, name, a, b):
        self.lines += [f"mov.u32 %y, {self.operand(a)};", f"setp.{name}.u32 %p, %y, {self.operand(b)};"]

    def guard(self, name, a, b, negated, inner):
        self.compare(name, a, b)
        self.set(*inner[1:], guard="@!%p " if negated else "@%p ")

    def loop(self, register, body):
        start, end, number = self.label(), self.label(), self.counters
        self.counters += 1
        self.lines += [f"and.b32 %n{number}, %x{register}, 3;", f"{start}:", f"setp.eq.u32 %p, %n{number}, 0;", f"@%p bra {end};"]
        self.write(body)
        self.lines += [f"sub.u32 %n{number}, %n{number}, 1;", f"bra {start};", f"{end}:"]

    def __getattr__(self, name):
        if name == "if":
            return self.branch
        raise AttributeError(name)

    def branch(self, name, a, b, yes, no):
        other, end = self.label(), self.label()
        self.compare(name, a, b)
        self.lines.append(f"@!%p bra {other};")
        self.write(yes)
        self.lines += [f"bra {end};", f"{other}:"]
        self.write(no)
        self.lines.append(f"{end}:")


def interpret(statements, x):
    """The same on the registers of one lane, a list of integers."""
    def value(what):
        return x[what[1]] if what[0] == "register" else what[1]

    for kind, *rest in statements:
        if kind == "set":
            target, name, a, b = rest
            x[target] = OPERATIONS[name](value(a), value(b)) & MASK
        elif kind == "guard":
            name, a, b, negated, inner = rest
            if COMPARISONS[name](value(a), value(b)) != negated:
                interpret([inner], x)
        elif kind == "if":
            name, a, b, yes, no = rest
            interpret(yes if COMPARISONS[name](value(a), value(b)) else no, x)
        else:
            register, body = rest
            for _ in range(x[register] & 3):
                interpret(body, x)


@settings(QUICK, max_examples=60)
@given(statements=programs, block=st.sampled_from([1, 32, 33, 70]), seed=st.integers(0, 1000))
@example(statements=[("if", "lt", ("register", 0), ("literal", 31),
                      [("loop", 1, [("set", 0, "add.u32", ("register", 0), ("literal", 1))])], [])],
         block=33, seed=0)
def test_control_flow_and_integers_as_an_interpreter_does_them(statements, block, seed):
    writer = Writer()
    writer.write(statements)
    held = np.random.default_rng(seed).integers(0, 1 << 32, (block, REGISTERS), dtype=np.uint32)
    held[:, 0], held[:, 1] = np.arange(block), seed % 5  # one differs by lane, one is the same everywhere
    body = ["mad.lo.u64 %at, %w, 16, %a0;", *(f"ld.global.u32 %x{n}, [%at+{4 * n}];" for n in range(REGISTERS)),
            f"mov.u32 %x1, {seed % 5};", *writer.lines, *(f"st.global.u32 [%at+{4 * n}], %x{n};" for n in range(REGISTERS))]
    expected = []
    for row in held.tolist():
        interpret(statements, row)
        expected += row
    custom("drawn", "\n".join(body), [held.reshape(-1)], {0: expected}, block=block,
           registers=f".reg .b32 %x<{REGISTERS}>, %y, %n<{writer.counters + 1}>; .reg .pred %p;").verify(on_emulator)


@settings(QUICK, max_examples=25)
@given(seed=st.integers(0, 1 << 32), name=st.sampled_from(["f16", "bf16", "f32", "f64"]), operation=st.sampled_from(["add", "mul", "fma"]))
def test_arithmetic_on_any_bits(seed, name, operation):
    count, bits = (3 if operation == "fma" else 2), dict(f16=16, bf16=16, f32=32, f64=64)[name]
    draw = np.random.default_rng(seed)
    values = draw.integers(0, 1 << bits, (64, count), dtype=np.uint64)
    values[32:] = values[32:] >> np.uint64(2) & ~np.uint64(1 << bits - 3)  # numbers of like size
    names = ", ".join(f"%{n}" for n in range(count))
    case(f"{operation}.rn.{name} %d, {names};", " ".join([name] * count), name, [tuple(row) for row in values.tolist()],
         arithmetic(operation, name), sm=90).verify(on_emulator)


@pytest.fixture(scope="module")
def monkeypatch_once():
    """As monkeypatch; one for all examples of a test."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch
