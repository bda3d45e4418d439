"""ld, st, mov, cvta, isspacep, cp.async, and what has no result: every type, vector, state space, cache hint and order of memory."""

import numpy as np
import pytest

from cudalab.emulator import Emulator, KernelFault
from ptx_oracle import read, write
from ptx_program import Program, custom, on_both

BYTES = np.random.default_rng(7).integers(0, 256, 4096, dtype=np.uint8)
TYPES = ("b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64")
REGISTERS = ".reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %d<9>, %p; .reg .f32 %f<9>; .reg .f64 %e<9>; .reg .b32 %s, %t;"


ZERO = dict(f="0f00000000", e="0d0000000000000000")


def size(kind):
    return int(kind[1:]) // 8


def holders(kind, count=1, wide=False):
    """Registers for values of a type; wide: larger than they."""
    letter = {"f32": "f", "f64": "e"}.get(kind) or ("d" if wide or size(kind) == 8 else "r" if size(kind) == 4 else "h")
    return [f"%{letter}{n}" for n in range(count)]


def width(register):
    return dict(h=2, r=4, d=8, f=4, e=8)[register[1]]


def copied():
    """Through every state space: load as a type, into a register of its size and a wider one, and store as it."""
    for kind in TYPES:
        for count in (1, 2, 4):
            n = size(kind)
            if n * count > 16:
                continue
            for space in ("global", "shared", "local", "generic", "const"):
                step = n * count
                vector = f".v{count}" if count > 1 else ""
                names = holders(kind, count)
                group = names[0] if count == 1 else "{" + ", ".join(names) + "}"
                text = [f"    mad.lo.u64 %p, %w, {step}, %a0;", f"    mad.lo.u64 %at, %w, {step}, %a1;"]
                before = ""
                if space == "global":
                    text += [f"    ld.global{vector}.{kind} {group}, [%p];", f"    st.global{vector}.{kind} [%at], {group};"]
                elif space == "generic":
                    text += ["    cvta.global.u64 %p, %p;", f"    ld{vector}.{kind} {group}, [%p];", "    cvta.global.u64 %at, %at;",
                             f"    st{vector}.{kind} [%at], {group};"]
                elif space == "const":
                    before = ".const .align 16 .b8 table[1024] = {" + ", ".join(map(str, BYTES[:1024].tolist())) + "};"
                    text += ["    mov.u64 %p, table;", f"    mad.lo.u64 %p, %w, {step}, %p;", f"    ld.const{vector}.{kind} {group}, [%p];",
                             f"    st.global{vector}.{kind} [%at], {group};"]
                else:
                    declared = ".shared .align 16 .b8 tile[1024];" if space == "shared" else ".local .align 16 .b8 own[64];"
                    text = [f"    {declared}" if space == "local" else "", *text]
                    before = declared if space == "shared" else ""
                    place = "%s" if space == "shared" else "own+16"
                    text += ["    mov.u32 %t, tile;", f"    mad.lo.u32 %s, %i, {step}, %t;"] if space == "shared" else []
                    text += [f"    ld.global{vector}.{kind} {group}, [%p];", f"    st.{space}{vector}.{kind} [{place}], {group};",
                             *(f"    mov.b{8 * width(name)} {name}, {ZERO.get(name[1], 0)};"
                               for name in names),
                             f"    ld.{space}{vector}.{kind} {group}, [{place}];", f"    st.global{vector}.{kind} [%at], {group};"]
                yield custom(f"ld, st .{space}{vector}.{kind}", "\n".join(text), [BYTES[:32 * step], np.zeros(32 * step, "u1")],
                             {1: BYTES[:32 * step]}, registers=REGISTERS, before=before)
        if kind[0] in "us":
            target = holders(kind, 1, wide=True)[0]
            text = [f"    mad.lo.u64 %p, %w, {n}, %a0;", f"    ld.global.{kind} {target}, [%p];", "    mad.lo.u64 %at, %w, 8, %a1;",
                    f"    st.global.b64 [%at], {target};", f"    mad.lo.u64 %at, %w, {n}, %a2;", f"    st.global.{kind} [%at], {target};"]
            values = BYTES[:32 * n].view(f"u{n}")
            yield custom(f"ld.{kind} into 64 bits", "\n".join(text), [values, np.zeros(32, "u8"), np.zeros(32, f"u{n}")],
                         {1: [write(read(int(v), kind), 64) for v in values], 2: values}, registers=REGISTERS)


def hinted():
    """Hints and orders change no value."""
    loads = [".ca", ".cg", ".cs", ".lu", ".cv", ".nc", ".volatile", ".weak", ".relaxed.cta", ".relaxed.gpu", ".relaxed.sys", ".acquire.cta",
             ".acquire.gpu", ".acquire.sys", ".relaxed.cluster", ".L1::no_allocate", ".L1::evict_last", ".L1::evict_first", ".L2::64B",
             ".L2::128B",
             ".L2::256B", ".L1::evict_unchanged.L2::128B", ".nc.L1::no_allocate.L2::256B", ".mmio.relaxed.sys"]
    stores = [".wb", ".cg", ".cs", ".wt", ".volatile", ".weak", ".relaxed.cta", ".relaxed.gpu", ".relaxed.sys", ".release.cta",
              ".release.gpu",
              ".release.sys", ".release.cluster", ".L1::no_allocate", ".L1::evict_last", ".mmio.relaxed.sys"]

    def spaced(form):
        words = form.strip(".").split(".")
        front = [w for w in words if w in ("volatile", "weak", "relaxed", "acquire", "release", "mmio", "cta", "gpu", "sys", "cluster")]
        return "".join(f".{w}" for w in front) + ".global" + "".join(f".{w}" for w in words if w not in front)
    for number, form in enumerate(loads):
        other = stores[number % len(stores)]
        text = ["    mad.lo.u64 %p, %w, 4, %a0;", f"    ld{spaced(form)}.u32 %r0, [%p];", "    mad.lo.u64 %at, %w, 4, %a1;",
                f"    st{spaced(other)}.u32 [%at], %r0;"]
        yield custom(f"ld{form}, st{other}", "\n".join(text), [BYTES[:128].view("u4"), np.zeros(32, "u4")], {1: BYTES[:128].view("u4")},
                     registers=REGISTERS, sm=90)
    text = ["    createpolicy.fractional.L2::evict_last.b64 %d0, 1.0;", "    mad.lo.u64 %p, %w, 16, %a0;",
            "    ld.global.L2::cache_hint.v4.u32 {%r0, %r1, %r2, %r3}, [%p], %d0;", "    mad.lo.u64 %at, %w, 16, %a1;",
            "    prefetch.global.L2 [%p];", "    prefetch.global.L1 [%p];", "    prefetchu.L1 [%p];",
            "    st.global.L2::cache_hint.v4.u32 [%at], {%r0, %r1, %r2, %r3}, %d0;"]
    yield custom("L2::cache_hint", "\n".join(text), [BYTES[:512], np.zeros(512, "u1")], {1: BYTES[:512]}, registers=REGISTERS, sm=80)
    fences = ["membar.cta;", "membar.gl;", "membar.sys;", "fence.sc.gpu;", "fence.acq_rel.cta;", "fence.sc.sys;", "fence.acq_rel.cluster;",
              "fence.proxy.async;", "fence.proxy.alias;", "nanosleep.u32 100;", "bar.sync 0;", "bar.sync 1, 32;", "barrier.sync 2;",
              "barrier.cta.sync.aligned 3, 32;", "bar.warp.sync -1;", "pmevent 3;", "griddepcontrol.wait;",
              "griddepcontrol.launch_dependents;"]
    text = [f"    {fence}" for fence in fences] + ["    mad.lo.u64 %at, %w, 4, %a0;", "    st.global.u32 [%at], %i;"]
    yield custom("fences, sleeps, barriers", "\n".join(text), [np.zeros(32, "u4")], {0: np.arange(32)}, registers=REGISTERS, sm=90)


def moves():
    """Packing and unpacking, symbols, special registers."""
    text = ["    mad.lo.u64 %p, %w, 8, %a0;", "    ld.global.b64 %d0, [%p];", "    mov.b64 {%r0, %r1}, %d0;",
            "    mov.b64 %d1, {%r1, %r0};",
            "    mov.b64 {%h0, %h1, %h2, %h3}, %d1;", "    mov.b64 %d2, {%h3, %h2, %h1, %h0};", "    mov.b32 {%h4, %h5}, %r0;",
            "    mov.b32 %r2, {%h5, %h4};", "    mov.b64 {_, %r3}, %d0;", "    mov.b64 {%f0, %f1}, %d0;", "    mov.b64 %d4, {%f1, %f0};"]
    for number, register in enumerate(("%d1", "%d2", "%d4")):
        text += [f"    mad.lo.u64 %at, %w, 8, %a{number + 1};", f"    st.global.b64 [%at], {register};"]
    for number, register in enumerate(("%r2", "%r3"), 4):
        text += [f"    mad.lo.u64 %at, %w, 4, %a{number};", f"    st.global.b32 [%at], {register};"]
    x = BYTES[:256].view("u8")
    turned = x << np.uint64(32) | x >> np.uint64(32)
    pieces = turned.view("u2").reshape(-1, 4)[:, ::-1]
    yield custom("mov of pieces", "\n".join(text), [x, *(np.zeros(32, "u8") for _ in range(3)), *(np.zeros(32, "u4") for _ in range(2))],
                 {1: turned, 2: np.ascontiguousarray(pieces).view("u8")[:, 0], 3: turned,
                  4: np.ascontiguousarray(x.view("u2").reshape(-1, 4)[:, 1::-1]).view("u4")[:, 0], 5: x.view("u4")[1::2]},
                 registers=REGISTERS)
    text = ["    mov.b64 %d0, 5;", "    mov.b128 %q, {%d0, %w};", "    mov.b128 %y, %q;", "    mov.b128 {%d1, %d2}, %y;",
            "    mad.lo.u64 %at, %w, 16, %a0;", "    st.global.v2.b64 [%at], {%d1, %d2};", "    ld.global.b128 %q, [%at];",
            "    mad.lo.u64 %at, %w, 16, %a1;", "    st.global.b128 [%at], %q;"]
    expected = np.array([[5, lane] for lane in range(32)], "u8").reshape(-1)
    yield custom("b128", "\n".join(text), [np.zeros(64, "u8"), np.zeros(64, "u8")], {0: expected, 1: expected},
                 registers=REGISTERS + ".reg .b128 %q, %y;", sm=90)


def spaces():
    text = ["    .local .align 8 .b8 own[16];", "    mov.u32 %r8, 0;", "    mov.u32 %r1, tile;", "    cvt.u64.u32 %d1, %r1;",
            "    cvta.shared.u64 %d1, %d1;", "    mov.u64 %d2, own;", "    cvta.local.u64 %d2, %d2;", "    cvta.global.u64 %d3, %a0;",
            "    mov.u64 %d5, number;", "    cvta.const.u64 %d4, %d5;"]
    bit, expected = 0, 0
    for register, own in (("%d1", "shared"), ("%d2", "local"), ("%d3", "global")):
        for space in ("shared", "local", "global", "shared::cta"):
            text += [f"    isspacep.{space} %g, {register};", "    selp.b32 %r2, 1, 0, %g;", f"    shl.b32 %r2, %r2, {bit};",
                     "    or.b32 %r8, %r8, %r2;"]
            expected |= (space.split("::")[0] == own) << bit
            bit += 1
    text += ["    mad.lo.u64 %at, %w, 4, %a0;", "    st.global.u32 [%at], %r8;",
             "    st.u32 [%d1], 77;", "    ld.shared.u32 %r3, [tile];", "    st.local.u32 [own], %i;", "    ld.u32 %r4, [%d2];",
             "    ld.u32 %r5, [%d4];", "    ld.const.u32 %r6, [number];", "    add.u32 %r3, %r3, %r4;", "    add.u32 %r3, %r3, %r5;",
             "    add.u32 %r3, %r3, %r6;", "    cvta.to.shared.u64 %d6, %d1;", "    mov.u32 %r7, tile;", "    cvt.u32.u64 %r1, %d6;",
             "    sub.u32 %r7, %r7, %r1;", "    add.u32 %r3, %r3, %r7;", "    mad.lo.u64 %at, %w, 4, %a1;", "    st.global.u32 [%at], %r3;"]
    yield custom("cvta, isspacep", "\n".join(text), [np.zeros(32, "u4"), np.zeros(32, "u4")],
                 {0: [expected] * 32, 1: np.arange(32) + 77 + 2000},
                 registers=REGISTERS + ".reg .pred %g;", before=".shared .align 8 .b8 tile[16];\n.const .u32 number = 1000;")


def copies():
    """cp.async: every size, bytes left out become zeros, a copy can be ignored."""
    def program(name, lines, nbytes, expected, sm=80):
        text = ["    mov.u32 %t, tile;", f"    mad.lo.u32 %s, %i, {nbytes}, %t;", f"    mad.lo.u64 %p, %w, {nbytes}, %a0;",
                *(f"    st.shared.b8 [%s+{n}], 255;" for n in range(nbytes)), *lines, "    cp.async.wait_all;", "    bar.sync 0;",
                f"    mad.lo.u64 %at, %w, {nbytes}, %a1;",
                *(f"    ld.shared.b32 %r0, [%s+{n}];\n    st.global.b32 [%at+{n}], %r0;" for n in range(0, nbytes, 4))]
        return custom(name, "\n".join(text), [BYTES[:32 * nbytes], np.zeros(32 * nbytes, "u1")], {1: expected.reshape(-1)},
                      registers=REGISTERS + ".reg .pred %g;", before=".shared .align 16 .b8 tile[1024];", sm=sm)
    for nbytes in (4, 8, 16):
        whole = BYTES[:32 * nbytes].reshape(32, nbytes)
        for form in ("ca", "cg")[:1 + (nbytes == 16)]:
            yield program(f"cp.async.{form} of {nbytes}", [f"    cp.async.{form}.shared.global [%s], [%p], {nbytes};"], nbytes, whole)
            for hint in (".L2::128B", ".L2::64B"):
                yield program(f"cp.async.{form}{hint} of {nbytes}", [f"    cp.async.{form}.shared.global{hint} [%s], [%p], {nbytes};"],
                              nbytes, whole)
            cut = whole.copy()
            for lane in range(32):
                cut[lane, lane % (nbytes + 1):] = 0
            yield program(f"cp.async.{form} of 0 to {nbytes}", [f"    rem.u32 %r1, %i, {nbytes + 1};",
                                                                f"    cp.async.{form}.shared.global [%s], [%p], {nbytes}, %r1;"], nbytes,
                          cut)
            ignored = whole.copy()
            ignored[::2] = 0
            yield program(f"cp.async.{form} of {nbytes}, some ignored",
                          ["    and.b32 %r1, %i, 1;", "    setp.eq.u32 %g, %r1, 0;",
                           f"    cp.async.{form}.shared.global [%s], [%p], {nbytes}, %g;"], nbytes, ignored)
            guarded = whole.copy()
            guarded[::2] = 255
            yield program(f"cp.async.{form} of {nbytes}, guarded",
                          ["    and.b32 %r1, %i, 1;", "    setp.ne.u32 %g, %r1, 0;",
                           f"    @%g cp.async.{form}.shared.global [%s], [%p], {nbytes};"], nbytes, guarded)


def calls():
    """Direct and through pointers, with several arguments, structures, recursion; predicated; and what comes back."""
    before = """
.func (.param .b32 out) twice(.param .b32 in)
{
    .reg .b32 %x;
    ld.param.b32 %x, [in];
    add.u32 %x, %x, %x;
    st.param.b32 [out], %x;
    ret;
}
.func (.param .b32 out) thrice(.param .b32 in)
{
    .reg .b32 %x;
    ld.param.b32 %x, [in];
    mul.lo.u32 %x, %x, 3;
    st.param.b32 [out], %x;
    ret;
}
.func (.param .align 8 .b8 out[16]) both(.param .align 8 .b8 in[16], .param .b64 k)
{
    .reg .b64 %x<3>;
    ld.param.b64 %x0, [in];
    ld.param.b64 %x1, [in+8];
    ld.param.b64 %x2, [k];
    add.u64 %x0, %x0, %x2;
    mul.lo.u64 %x1, %x1, %x2;
    st.param.b64 [out], %x1;
    st.param.b64 [out+8], %x0;
    ret;
}
.func (.param .b32 out) sum(.param .b32 in)
{
    .reg .b32 %x, %y;
    .reg .pred %p;
    ld.param.b32 %x, [in];
    mov.b32 %y, 0;
    setp.eq.u32 %p, %x, 0;
    @%p bra END;
    sub.u32 %y, %x, 1;
    {
        .param .b32 a;
        .param .b32 r;
        st.param.b32 [a], %y;
        call.uni (r), sum, (a);
        ld.param.b32 %y, [r];
    }
    add.u32 %y, %y, %x;
END:
    st.param.b32 [out], %y;
    ret;
}
"""
    one = "{{ .param .b32 a; .param .b32 r; st.param.b32 [a], %i; {call} ld.param.b32 %r0, [r]; }}"
    store = "\n    mad.lo.u64 %at, %w, 4, %a0;\n    st.global.b32 [%at], %r0;"
    lanes = np.arange(32, dtype="u4")

    def program(name, body, expected, registers=""):
        return custom(name, body + store, [np.zeros(32, "u4")], {0: expected}, registers=REGISTERS + ".reg .pred %g;" + registers,
                      before=before)
    yield program("call", one.format(call="call.uni (r), twice, (a);"), lanes * 2)
    yield program("call, diverged", "    setp.lt.u32 %g, %i, 9;\n    @!%g bra ELSE;\n" + one.format(call="call (r), twice, (a);")
                  + "\n    bra DONE;\nELSE:\n" + one.format(call="call (r), thrice, (a);") + "\nDONE:",
                  np.where(lanes < 9, lanes * 2, lanes * 3))
    yield program("call by itself", one.format(call="call (r), sum, (a);"), lanes * (lanes + 1) // 2)
    pointer = ("    mov.u64 %d0, twice;\n    mov.u64 %d1, thrice;\n    and.b32 %r1, %i, 1;\n    setp.eq.u32 %g, %r1, 0;\n"
               "    selp.b64 %d0, %d0, %d1, %g;\n    P: .callprototype (.param .b32 _) _ (.param .b32 _);\n")
    yield program("call through pointers", pointer + one.format(call="call (r), %d0, (a), P;"), np.where(lanes % 2, lanes * 3, lanes * 2))
    listed = pointer.replace("P: .callprototype (.param .b32 _) _ (.param .b32 _);", "T: .calltargets twice, thrice;")
    yield program("call of listed targets", listed + one.format(call="call (r), %d0, (a), T;"), np.where(lanes % 2, lanes * 3, lanes * 2))
    structure = ("{ .param .align 8 .b8 a[16]; .param .b64 k; .param .align 8 .b8 r[16]; st.param.b64 [a], %w; st.param.b64 [a+8], %w; "
                 "mov.b64 %d0, 7; st.param.b64 [k], %d0; call.uni (r), both, (a, k); ld.param.b64 %d1, [r]; ld.param.b64 %d2, [r+8]; }\n"
                 "    sub.u64 %d1, %d1, %d2;\n    cvt.u32.u64 %r0, %d1;")
    yield program("call with structures", structure, lanes * 7 - (lanes + np.uint32(7)))


test_copied, test_copied_gpu = on_both(copied())
test_hinted, test_hinted_gpu = on_both(hinted())
test_moves, test_moves_gpu = on_both(moves())
test_spaces, test_spaces_gpu = on_both(spaces())
test_copies, test_copies_gpu = on_both(copies())
test_calls, test_calls_gpu = on_both(calls())


# -- what ends a kernel: on a device that takes the context with it, so on the emulator only


@pytest.mark.parametrize("instruction", ["trap", "brkpt"])
def test_a_kernel_that_stops_itself(instruction):
    program = custom(instruction, f"    setp.eq.u32 %guard, %i, 5;\n    @%guard {instruction};", [np.zeros(1, "u4")], {})
    with pytest.raises(KernelFault, match=rf"stops itself \({instruction}\); block \(0, 0, 0\), thread \(5, 0, 0\)"):
        run(program)


def test_exit_ends_single_lanes():
    program = custom("exit",
                     "    and.b32 %cta, %i, 3;\n    setp.eq.u32 %guard, %cta, 1;\n    @%guard exit;\n    mad.lo.u64 %at, %w, 4, %a0;\n"
                     "    st.global.u32 [%at], 1;", [np.zeros(32, "u4")], {0: [int(i % 4 != 1) for i in range(32)]})
    program.verify(run)


def run(program: Program, output=lambda text: None):
    return Emulator(output=output).run_ptx(program.ptx, "k", program.grid, program.block, program.buffers)


PRINTING = """.extern .func (.param .b32 status) vprintf(.param .b64 format, .param .b64 arguments);
.extern .func __assertfail(.param .b64 message, .param .b64 file, .param .b32 line, .param .b64 function, .param .b64 size);
.global .align 1 .b8 text[16] = {37, 100, 32, 37, 46, 49, 102, 32, 37, 108, 108, 120, 10, 0};
"""


def test_printing_from_ptx():
    body = """    .local .align 8 .b8 values[24];
    .reg .b64 %d<4>; .reg .f64 %e; .reg .b32 %r;
    setp.gt.u32 %guard, %i, 2;
    @%guard bra END;
    st.local.u32 [values], %i;
    cvt.rn.f64.u32 %e, %i;
    mul.f64 %e, %e, 0d3FE0000000000000;
    st.local.f64 [values+8], %e;
    shl.b64 %d0, %w, 36;
    st.local.u64 [values+16], %d0;
    mov.u64 %d1, text;
    cvta.global.u64 %d1, %d1;
    mov.u64 %d2, values;
    cvta.local.u64 %d2, %d2;
    {
        .param .b64 f;
        .param .b64 a;
        .param .b32 r;
        st.param.b64 [f], %d1;
        st.param.b64 [a], %d2;
        call.uni (r), vprintf, (f, a);
        ld.param.b32 %r, [r];
    }
    mad.lo.u64 %at, %w, 4, %a0;
    st.global.b32 [%at], %r;
END:"""
    program, printed = custom("printf", body, [np.zeros(32, "u4")], {0: [3, 3, 3] + [0] * 29}, before=PRINTING), []
    program.verify(lambda p: run(p, printed.append))
    assert "".join(printed) == "0 0.0 0\n1 0.5 1000000000\n2 1.0 2000000000\n"


def test_damage_that_only_a_run_finds():
    """Addresses out of bounds and misaligned, of every size and space."""
    for space, register, before in (("global", "%a0", ""), ("shared", "tile", ".shared .align 16 .b8 tile[64];")):
        for kind, offset, message in (("u32", 64, "out of bounds"), ("u32", 61, "not aligned|out of bounds"),
                                      ("v4.u32", 52, "not aligned|out of"),
                                      ("v4.u32", 64, "out of bounds"), ("u8", 64, "out of bounds"),
                                      ("u64", 60, "not aligned|out of bounds")):
            target = "{%r0, %r1, %r2, %r3}" if kind[0] == "v" else "%d0" if kind == "u64" else "%r0"
            body = f"    ld.{space}.{kind} {target}, [{register}+{offset}];"
            program = custom("damage", body, [np.zeros(64, "u1")], {}, registers=REGISTERS, before=before)
            with pytest.raises(KernelFault, match=message):
                run(program)


@pytest.fixture(scope="module")
def gpu():
    from cudalab.gpu import Gpu
    return Gpu()
