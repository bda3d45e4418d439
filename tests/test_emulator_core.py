"""The emulator: parsing, control flow, memory, warps, atomics, copies, calls, the SGEMM ladder; and what it says when a kernel is wrong."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cudalab import registry
from cudalab.check import check_step
from cudalab.emulator import Deadlock, Emulator, KernelFault, PtxError
from cudalab.emulator.parser import parse
from cudalab.errors import BadLaunch, LabError
from emulated import HEADER, compile_cuda, cuda, kernel, line_of, ptx_program

RNG = np.random.default_rng(0)


# -- the ladder; every step on its shapes: test_emulator_sanitizer


@pytest.mark.parametrize("target", ["sm_80", "sm_120a"])
def test_other_targets(target):
    step = registry.resolve_step("sgemm/8")
    assert all(check_step(step, step.op.shapes["emulate"][0], Emulator(target)))


# -- parsing

REFUSED = {
    "no ptx": ("int main() {}", "not PTX"),
    "unclosed body": (HEADER.format(target="sm_80") + ".entry k() {\n ret;", "never closed"),
    "no semicolon": (HEADER.format(target="sm_80") + ".entry k() {\n .reg .b32 %r;\n ret }", "without an end|cannot be read"),
    "undeclared": (HEADER.format(target="sm_80") + ".entry k() {\n mov.u32 %r1, 0; ret; }", "line 5: '%r1' is not declared"),
    "twice": (HEADER.format(target="sm_80") + ".entry k() {\n L: L: ret; }", "declared twice"),
    "bad type": (HEADER.format(target="sm_80") + ".entry k() {\n .reg .b31 %r; ret; }", "unknown type"),
    "guard": (HEADER.format(target="sm_80") + ".entry k() {\n .reg .b32 %r; @%r ret; }", "not a predicate"),
}


@pytest.mark.parametrize("text, message", REFUSED.values(), ids=REFUSED)
def test_damaged_ptx_is_refused_with_its_line(text, message):
    with pytest.raises(PtxError, match=message):
        parse(text)


def test_unknown_instructions_and_modifiers_are_refused_with_their_lines():
    for instruction in ("frobnicate.b32 %d, 1;", "add.wobble.s32 %d, 1, 2;", "mma.sync.wrong %d, 1;"):
        program = ptx_program(f"    .reg .b32 %d;\n    .loc 1 7 0\n    {instruction}", 1)
        program = program.replace(".address_size 64", '.address_size 64\n.file 1 "a/own.cu"')
        with pytest.raises(PtxError, match=rf"not supported: '{instruction[:-1].split()[0]}.*PTX line \d+, own.cu:7"):
            Emulator().run_ptx(program, "k", 1, 1, (np.zeros(1, "u4"),))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damaged_text_never_hangs_or_breaks_the_parser(data):
    text = compile_cuda(kernel("""    __shared__ float s[32];
    s[i & 31] = x[i];
    __syncthreads();
    if (i < n) x[i] = s[31 - (i & 31)] * 2;""", "float* x, int n"))
    text = text[text.index(".version"):]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        cut = data.draw(st.integers(0, 30))
        noise = data.draw(st.sampled_from(["", "{", "}", ";", "[", ",", "%", ".b32 ", "@", "0x", '"', "/*", ":"]))
        text = text[:at] + noise + text[at + cut:]
    try:
        program = Emulator().program(text)
        for name, function in program.module.functions.items():
            if function.entry and function.body is not None:
                program.kernel(name)
    except LabError:
        pass


def test_scopes_of_inline_assembly_keep_labels_and_registers_apart():
    text = kernel("""    int y[3];
#pragma unroll
    for (int j = 0; j < 3; ++j)
        asm volatile("{ .reg .pred p; .reg .b32 t; mov.b32 t, 0; L: add.s32 t, t, 1; setp.lt.s32 p, t, %1; @p bra L; mov.b32 %0, t; }"
                     : "=r"(y[j]) : "r"(i + j));
    x[i] = y[0] + 100 * y[1] + 10000 * y[2];""", "int* x")
    (got,) = cuda(text, 1, 5, np.zeros(5, np.int32))
    assert got.tolist() == [max(1, i) + 100 * max(1, i + 1) + 10000 * (i + 2) for i in range(5)]


def test_variables_with_initialisers():
    text = kernel("    x[i] = table[i] + *pointer + *names[i & 1];", "float* x",
                  """__constant__ float table[4] = {1, 2, 3, 4};
__device__ int number = 7;
__device__ int* pointer = &number;
__device__ const char* names[2] = {"a", "b"};""")
    (got,) = cuda(text, 1, 4, np.zeros(4, np.float32))
    assert got.tolist() == [1 + 7 + 97, 2 + 7 + 98, 3 + 7 + 97, 4 + 7 + 98]


# -- control flow


@pytest.mark.parametrize("block", [1, 31, 32, 33, 100, 1024])
def test_loops_of_different_lengths_and_any_block_size(block):
    text = kernel("""    int n = i % 37, s = 0;
    for (int j = 0; j < n; ++j) {
        if (j % 3 == 1) continue;
        if (j > 30) break;
        s += j * i;
    }
    x[i] = s;""", "int* x")
    (got,) = cuda(text, 3, block, np.zeros(3 * block, np.int32))
    assert got.tolist() == [sum(j * i for j in range(i % 37) if j % 3 != 1 and j <= 30) for i in range(3 * block)]


def test_switch_becomes_a_branch_table():
    body = ("    .reg .b32 %s, %v; .reg .b64 %p;\n    and.b32 %s, %i, 3;\n    T: .branchtargets L0, L1, L2, L1;\n    brx.idx %s, T;\n"
            "    L0: mov.b32 %v, 10; bra.uni E;\n    L1: mov.b32 %v, 11; bra.uni E;\n    L2: mov.b32 %v, 12;\n"
            "    E: mad.lo.u64 %p, %w, 4, %a0;\n    st.global.u32 [%p], %v;")
    (got,) = Emulator().run_ptx(ptx_program(body, 1), "k", 1, 40, (np.zeros(40, np.uint32),))
    assert got.tolist() == [10, 11, 12, 11] * 10


def test_lanes_that_exit_early_are_not_waited_for():
    text = kernel("""    if (threadIdx.x >= 40) return;
    s[threadIdx.x] = i;
    __syncthreads();
    x[i] = s[39 - threadIdx.x];""", "int* x", "__shared__ int s[64];")
    (got,) = cuda(text, 2, 64, np.zeros(128, np.int32))
    assert got[:40].tolist() == list(range(39, -1, -1)) and got[64:104].tolist() == list(range(103, 63, -1)) and not got[40:64].any()


def test_calls_through_pointers_and_into_themselves():
    text = kernel("    x[i] = table[i & 1](x[i], i) + fibonacci(i);", "float* x", """
__device__ __noinline__ float twice(float v, int n) { return 2 * v + n; }
__device__ __noinline__ float half(float v, int n) { return v / 2 - n; }
typedef float (*function)(float, int);
__device__ function table[2] = {twice, half};
__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }""")
    x = np.arange(12, dtype=np.float32)
    fibonacci = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89]
    (got,) = cuda(text, 1, 12, x)
    assert got.tolist() == [(v / 2 - i if i & 1 else 2 * v + i) + fibonacci[i] for i, v in enumerate(x.tolist())]


def test_structures_by_value_and_local_arrays():
    text = kernel("""    int a[8];
    for (int j = 0; j < 8; ++j) a[(j * 3 + s.b) & 7] = j * i;
    x[i] = combine(s, a[i & 7]).c + a[s.b];""", "double* x, S s", """struct S { float a; int b; double c; int d[3]; };
__device__ __noinline__ S combine(S s, int v) { s.c += v * s.a + s.d[v & 1]; return s; }""")
    s = np.zeros(1, np.dtype([("a", "f4"), ("b", "i4"), ("c", "f8"), ("d", "3i4")], align=True))
    s["a"], s["b"], s["c"], s["d"] = 2, 5, 0.25, (7, 8, 9)
    (got,) = cuda(text, 2, 37, np.zeros(74), s.tobytes())
    for i in range(74):
        a = [0] * 8
        for j in range(8):
            a[(j * 3 + 5) & 7] = j * i
        assert got[i] == 0.25 + a[i & 7] * 2 + (7, 8)[a[i & 7] & 1] + a[5]


# -- barriers, warps


def test_shuffles_within_parts_of_a_warp():
    text = kernel("""    int lane = threadIdx.x & 31;
    x[i] = __shfl_down_sync(~0u, i, 3, 8); y[i] = __shfl_up_sync(~0u, i, 2, 16); z[i] = __shfl_xor_sync(~0u, i, 5);
    if (lane < 16) w[i] = __shfl_sync(0xffff, i, lane * 3, 16);
    else w[i] = __shfl_sync(0xffff0000, i, 20 + (lane & 3));""", "int* x, int* y, int* z, int* w")
    x, y, z, w = cuda(text, 1, 64, *[np.zeros(64, np.int32)] * 4)
    lanes = range(64)
    assert x.tolist() == [i + 3 if i % 8 + 3 < 8 else i for i in lanes]
    assert y.tolist() == [i - 2 if i % 16 >= 2 else i for i in lanes]
    assert z.tolist() == [i ^ 5 for i in lanes]
    assert w.tolist() == [i // 32 * 32 + (i % 16 * 3 % 16 if i % 32 < 16 else 20 + i % 4) for i in lanes]


def test_votes_matches_and_reductions_of_a_warp():
    text = kernel("""    x[i] = __ballot_sync(~0u, i % 3 == 0);
    y[i] = __match_any_sync(~0u, i / 5);
    z[i] = __reduce_add_sync(~0u, i) + __all_sync(~0u, i < 33);
    int p; w[i] = __match_all_sync(~0u, i / 32, &p) + p + __any_sync(~0u, i == 40);""", "unsigned* x, unsigned* y, int* z, unsigned* w")
    x, y, z, w = cuda(text, 1, 64, *[np.zeros(64, np.uint32)] * 4)
    for i in range(64):
        warp = range(i // 32 * 32, i // 32 * 32 + 32)
        assert x[i] == sum(1 << j % 32 for j in warp if j % 3 == 0)
        assert y[i] == sum(1 << j % 32 for j in warp if j // 5 == i // 5)
        assert z[i] == sum(warp) + (i < 32)
        assert w[i] == (0xFFFFFFFF + 1 + (i >= 32)) & 0xFFFFFFFF


def test_a_warp_reduction_over_ragged_blocks():
    text = kernel("""    float v = i < n ? x[i] : 0;
    for (int d = 16; d; d >>= 1) v += __shfl_down_sync(~0u, v, d);
    if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < blockDim.x / 32 ? s[threadIdx.x] : 0;
        for (int d = 16; d; d >>= 1) v += __shfl_down_sync(~0u, v, d);
        if (threadIdx.x == 0) atomicAdd(sum, v);
    }""", "const float* x, float* sum, int n", "__shared__ float s[32];")
    x = RNG.integers(-50, 50, 5000).astype(np.float32)
    assert cuda(text, 13, 416, x, np.zeros(1, np.float32), np.int32(5000))[1][0] == x.sum()


# -- memory


def test_vectors_bytes_and_generic_addresses():
    text = kernel("""    __shared__ int s[64]; int l[2] = {i, -i};
    s[threadIdx.x] = i * 3;
    __syncthreads();
    int* p = i % 3 == 0 ? s + (threadIdx.x ^ 1) : i % 3 == 1 ? l + (i & 1) : y + i;
    float4 v = reinterpret_cast<float4*>(x)[i];
    reinterpret_cast<float4*>(x)[i] = make_float4(v.w, v.z, v.y, v.x + *p);
    b[i] = (signed char)(b[i] * 2);""", "float* x, int* y, signed char* b")
    x, y = np.arange(256, dtype=np.float32), np.arange(64, dtype=np.int32) * 1000
    b = np.arange(-32, 32, dtype=np.int8) * 3
    got, _, small = cuda(text, 1, 64, x, y, b)
    for i in range(64):
        p = (i ^ 1) * 3 if i % 3 == 0 else (i, -i)[i & 1] if i % 3 == 1 else i * 1000
        assert got[4 * i:4 * i + 4].tolist() == [4 * i + 3, 4 * i + 2, 4 * i + 1, 4 * i + p]
    assert (small == (b.astype(np.int32) * 2).astype(np.int8)).all()


def test_atomics_of_every_kind():
    text = kernel("""    old[i] = atomicAdd(x, 3); atomicMax(x + 1, i); atomicMin(x + 2, -i); atomicXor(x + 3, i);
    atomicOr(x + 4, 1 << (i & 31)); atomicAnd(x + 5, ~(1 << (i & 7)));
    atomicInc((unsigned*)x + 6, 9); atomicDec((unsigned*)x + 7, 9); atomicExch(x + 8, i); atomicCAS(x + 9, i, i + 1);
    __shared__ float s[2]; if (threadIdx.x < 2) s[threadIdx.x] = 0; __syncthreads();
    atomicAdd(s + (i & 1), 0.5f); __syncthreads(); if (threadIdx.x < 2) atomicAdd(f + threadIdx.x, s[threadIdx.x]);
    atomicAdd(d, 0.25); atomicAdd(l, 1ull << 33);""", "int* x, int* old, float* f, double* d, unsigned long long* l")
    x = np.array([0, -5, 5, 0, 0, -1, 0, 0, 0, 0], np.int32)
    n = 150
    x, old, f, d, wide = cuda(text, 2, 75, x, np.zeros(n, np.int32), np.zeros(2, np.float32), np.zeros(1), np.zeros(1, np.uint64))
    assert sorted(old.tolist()) == [3 * i for i in range(n)] and x[0] == 3 * n
    assert x[1:6].tolist() == [n - 1, 1 - n, np.bitwise_xor.reduce(np.arange(n)), -1, ~0xFF]
    assert x[6] == n % 10 and x[7] == (10 - n % 10) % 10 and x[8] == n - 1 and x[9] == n
    assert f.tolist() == [37.5, 37.5] and d[0] == n / 4 and wide[0] == n << 33


def test_copies_arrive_when_they_are_waited_for():
    text = kernel("""    __shared__ __align__(16) float s[2][128];
    unsigned to = (unsigned)__cvta_generic_to_shared(&s[0][threadIdx.x * 4]);
    int size = threadIdx.x < 30 ? 16 : threadIdx.x == 30 ? 8 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(x + threadIdx.x * 4), "r"(size));
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to + 512), "l"(x + threadIdx.x));
    asm volatile("cp.async.commit_group;");
    WAIT
    __syncthreads();
    y[threadIdx.x] = s[0][127 - threadIdx.x] + s[0][threadIdx.x];""", "const float* x, float* y")
    x = np.arange(1, 123, dtype=np.float32)  # the last copies have nothing to read there
    _, y = cuda(text.replace("WAIT", 'asm volatile("cp.async.wait_group 1;" ::: "memory");'), 1, 32, x, np.zeros(32, np.float32))
    s = np.r_[x, np.zeros(6, np.float32)]
    assert (y == s[127 - np.arange(32)] + s[:32]).all()
    with pytest.raises(KernelFault, match=r"a read of shared memory that an asynchronous copy.*kernel.cu:13"):
        cuda(text.replace("WAIT", ""), 1, 32, x, np.zeros(32, np.float32))


# -- faults

FAULTS = {
    "behind": ("x[i + 3] = 1;  // here",
               r"4 bytes at 0 bytes behind the end of argument 1 \(256 bytes\), out of bounds; block \(1, 0, 0\), thread \(29, 0, 0\)"),
    "before": ("x[i - 300] = 1;  // here", r"out of bounds; block \(0, 0, 0\), thread \(0, 0, 0\)"),
    "just before": ("x[i - 4] = 1;  // here", r"write of 4 bytes at 16 bytes before argument 1 \(256 bytes\), out of bounds"),
    "nowhere": ("if (i == 37) *(volatile int*)(x + (1 << 30)) = 1;  // here",
                r"belongs to nothing, out of bounds; block \(1, 0, 0\), thread \(5, 0, 0\)"),
    "misaligned": ("*(int4*)(x + (i & 1)) = make_int4(1, 2, 3, 4);  // here",
                   r"write of 16 bytes at byte 4 of argument 1 \(256 bytes\), not aligned to 16; block \(0, 0, 0\), thread \(1, 0, 0\)"),
    "shared": ("__shared__ int s[32]; s[threadIdx.x + (x[i] == 0)] = 1; __syncthreads(); x[i] = s[3];  // here",
               r"write of 4 bytes at shared address 128 \(there are 128 bytes\), out of bounds; block \(0, 0, 0\), thread \(31, 0, 0\)"),
    "local": ("int l[4]; for (int j = 0; j < 4; ++j) l[j] = x[j]; x[i] = l[x[1] + i];  // here",
              r"read of 4 bytes at local address 16 .*thread \(4, 0, 0\)"),
    "atomic": ("atomicAdd(x + 64 + i, 1);  // here", r"atomic of 4 bytes at 0 bytes behind the end of argument 1"),
    "trap": ("if (i == 33) __trap();  // here", r"stops itself \(trap\); block \(1, 0, 0\), thread \(1, 0, 0\)"),
    "assert": ("assert(i < 35);  // here", r"kernel.cu:4: .*: assertion `i < 35' failed; block \(1, 0, 0\), thread \(3, 0, 0\)"),
    "shuffle": ("if (i & 1) x[i] = __shfl_sync(0xaaaaaaaa, i, 2);  // here", "reads lane 2, which does not take part"),
    "member": ("if (i & 1) x[i] = __shfl_sync(0x55555555, i, 2);  // here", "member mask does not name it"),
}


@pytest.mark.parametrize("body, message", FAULTS.values(), ids=FAULTS)
def test_faults_name_kernel_block_thread_and_line(body, message):
    text = kernel(body, "int* x")
    with pytest.raises(KernelFault, match=message) as error:
        cuda(text, 2, 32, np.zeros(64, np.int32))
    assert str(error.value).startswith("k: ") and f"kernel.cu:{line_of(text, '// here')}" in str(error.value)


def test_printing():
    shape = "%3d|%-5u|%x|%c|%s|%.2f|%e|%lld|%5.1f%%\\n"
    text = kernel(f'    if (i % 20 == 3) printf("{shape}", -i, i, i * 255, 65 + i, "text", i / 4.0, 1e10, 1ll << 40, 2.5);', "int* x")
    printed = []
    cuda(text, 1, 64, np.zeros(64, np.int32), emulator=Emulator(output=printed.append))
    values = [(-i, i, i * 255, chr(65 + i), "text", i / 4, 1e10, 1 << 40, 2.5) for i in (3, 23, 43, 63)]
    assert "".join(printed) == "".join(shape.replace("ll", "").replace("\\n", "\n") % v for v in values)


def test_arguments_must_fit():
    text = kernel("    x[i] = n;", "int* x, int n")
    with pytest.raises(BadLaunch, match="parameter 2 has 4 bytes; the launch passes 8"):
        cuda(text, 1, 1, np.zeros(1, np.int32), np.int64(1))
    with pytest.raises(PtxError, match="no kernel other"):
        Emulator().run_ptx(compile_cuda(text), "other", 1, 1, ())


PREDICATED = """    .reg .pred %p, %q; .reg .b32 %x, %y, %z, %s; .reg .b64 %at, %to; .reg .f32 %f; .shared .align 16 .b8 s[512];
    and.b32 %x, %i, 3;
    setp.eq.u32 %p, %x, 1;
    setp.ge.u32 %q, %x, 2;
    mad.lo.u64 %at, %w, 16, %a0;
    mad.lo.u64 %to, %w, 16, %a1;
    mov.u32 %x, 5; mov.u32 %y, 6; mov.u32 %z, 7;
    @%p ld.global.v2.u32 {%x, %y}, [%at];
    @!%p add.u32 %z, %z, %i;
    @%q shfl.sync.idx.b32 %z, %z, 2, 31, 0xcccccccc;
    @%p atom.global.add.u32 %y, [%at+8], 3;
    @%q red.global.add.u32 [%at+8], 1000;
    mov.u64 %at, s; cvt.u32.u64 %s, %at; shl.b32 %y, %i, 4; add.u32 %s, %s, %y; mad.lo.u64 %at, %w, 16, %a0;
    mov.u32 %y, 9; st.shared.v4.u32 [%s], {%y, %y, %y, %y};
    @%p cp.async.cg.shared.global [%s], [%at], 16;
    cp.async.wait_all;
    @%q bar.sync 3, 64; @!%q bar.sync 4, 64;
    @%p ld.shared.u32 %y, [%s];
    mov.b32 %f, %x; @%q fma.rn.f32 %f, %f, %f, %f; mov.b32 %x, %f;
    @%p st.global.v4.u32 [%to], {%x, %y, %z, %i};
    @!%p st.global.v4.u32 [%to], {%z, %y, %x, %i};"""


def test_every_kind_of_instruction_under_a_guard():
    program = ptx_program(PREDICATED.replace("@%q bar.sync 3, 64; @!%q bar.sync 4, 64;", "bar.sync 3, 32;"), 2)
    source = np.arange(128, dtype=np.uint32).reshape(32, 4) + 1
    after, got = Emulator().run_ptx(program, "k", 1, 32, (source, np.zeros((32, 4), np.uint32)))
    expected_after = source.copy()
    for i in range(32):
        if i % 4 == 1:
            expected_after[i, 2] += 3
            assert got[i].tolist() == [4 * i + 1, 4 * i + 1, 7, i]
        else:
            expected_after[i, 2] += 1000 * (i % 4 >= 2)
            five = np.uint32(5).view(np.float32)
            x = (five * five + five).view(np.uint32) if i % 4 >= 2 else 5
            assert got[i].tolist() == [7 + 2 if i % 4 >= 2 else 7 + i, 9, x, i]
    assert (after == expected_after).all()


def test_guarded_barriers_part_a_warp_and_are_found_out():
    with pytest.raises(Deadlock, match=r"16 threads .* wait for barrier 3 .*16 threads .* wait for barrier 4"):
        Emulator().run_ptx(ptx_program(PREDICATED, 2), "k", 1, 32, (np.zeros(128, np.uint32), np.zeros(128, np.uint32)))


def test_instructions_that_only_intrinsics_make():
    text = kernel("""    __shared__ int s; int l = i; int* p = (i & 1) ? &s : &l;
    y[i] = __vabsdiffu4(x[i], x[i + 1]) + __vsadu4(x[i], x[i + 1]) + __isShared(p) * 1000 + __isLocal(p) * 2000 + __isGlobal(x) * 4000;
    y[i] += __ldcg(x + i) + __popc(__activemask()) + (clock64() < 0);
    __nanosleep(100);
    __stcs(z + i, __dp4a(x[i], x[i + 1], 5u) + __byte_perm(x[i], x[i + 1], 0x5140) + __funnelshift_l(x[i], x[i + 1], i));""",
                  "unsigned* x, unsigned* y, unsigned* z")
    x = RNG.integers(0, 1 << 32, 33, dtype=np.uint32)
    _, y, z = cuda(text, 1, 32, x, np.zeros(32, np.uint32), np.zeros(32, np.uint32))
    octets = x.view(np.uint8).reshape(-1, 4).astype(np.int64)
    for i in range(32):
        a, b, difference = int(x[i]), int(x[i + 1]), np.abs(octets[i] - octets[i + 1])
        pieces = sum(int(d) << 8 * n for n, d in enumerate(difference))
        assert y[i] == (pieces + int(difference.sum()) + (1000 if i & 1 else 2000) + 4000 + a + 32) % 2**32
        picked = [octets[i, 0], octets[i + 1, 0], octets[i, 1], octets[i + 1, 1]]
        permuted = sum(int(o) << 8 * n for n, o in enumerate(picked))
        shifted = ((b << 32 | a) << i % 32 >> 32) % 2**32
        assert z[i] == (int((octets[i] * octets[i + 1]).sum()) + 5 + permuted + shifted) % 2**32
