"""What the compile side refuses, and what it says: sources that are wrong, and launches that do not fit their kernels."""

import dataclasses
import re

import pytest
import toy

from cudalab import installed, nvrtc
from cudalab.build import build, verify
from cudalab.errors import BadConfig, BadLaunch, CompileError, MissingTool, Spills
from cudalab.spec import f32, i32

SPILLING = '''extern "C" __global__ void __launch_bounds__(1024) copy(float* A, float* C, int N) {
    float r[100];
#pragma unroll
    for (int i = 0; i < 100; i++) r[i] = A[i * N + threadIdx.x];
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int i = 0; i < 100; i++) r[i] = r[i] * r[(i + 1) % 100] + 1;
#pragma unroll
    for (int i = 0; i < 100; i++) C[i * N + threadIdx.x] = r[i];
}
'''
SERIALISED = '''extern "C" __global__ void __launch_bounds__(128) copy(float* A, float* C, int N) {
    float d[4] = {0, 0, 0, 0};
    asm volatile("wgmma.fence.sync.aligned;");
    for (int i = 0; i < 4; ++i) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %4, 1, 1, 1, 0, 0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(A));
        d[0] += 1.0f;
    }
    asm volatile("wgmma.commit_group.sync.aligned;");
    asm volatile("wgmma.wait_group.sync.aligned 0;");
    for (int i = 0; i < 4; ++i) C[threadIdx.x * 4 + i] = d[i];
}
'''


def refused(tmp_path, error, text, target="sm_90a", **options):
    with pytest.raises(error) as caught:
        build(toy.plan(tmp_path, text, **options), target, dumps=tmp_path / "dumps")
    return str(caught.value)


@pytest.mark.parametrize("kept", ["", "registers", "stack"])
def test_a_log_without_the_resources_is_no_build(tmp_path, monkeypatch, kept):
    """What NVRTC takes from its own cache comes with an empty log."""
    compile_program = nvrtc.compile_program

    def silent(*arguments):
        program = compile_program(*arguments)
        return dataclasses.replace(program, log="\n".join(line for line in program.log.splitlines() if kept and kept not in line))
    monkeypatch.setattr(nvrtc, "compile_program", silent)
    assert "does not say what registers and stack it takes" in refused(tmp_path, CompileError, toy.COPY)
    assert not (tmp_path / "dumps").exists()


def test_a_failed_static_assert_is_an_illegal_configuration(tmp_path):
    text = 'static_assert(BM % 32 == 0, "BM must be a multiple of the warp");\n' + toy.COPY
    assert refused(tmp_path, BadConfig, text, BM=33) == "this configuration is not legal: BM must be a multiple of the warp (kernel.cu:1)"
    assert "static_assert(BM > 40)" in refused(tmp_path, BadConfig, "static_assert(BM > 40);\n" + toy.COPY, BM=33)


def test_too_much_shared_memory_is_an_illegal_configuration(tmp_path):
    text = toy.COPY.replace("C[i] = A[i];", "{ __shared__ float s[SIZE]; s[i] = A[i]; __syncthreads(); C[i] = s[N - i]; }")
    assert "not legal: Entry function 'copy' uses too much shared data" in refused(tmp_path, BadConfig, text, SIZE=100000)


def test_other_errors_keep_file_and_line(tmp_path):
    message = refused(tmp_path, CompileError, toy.COPY.replace("A[i];", "A[j];"))
    assert f'{tmp_path}/kernel.cu(3): error: identifier "j" is undefined' in message and "C[i] = A[j]" in message


def test_an_error_in_inline_ptx_has_the_line_of_the_source(tmp_path):
    message = refused(tmp_path, CompileError, toy.COPY.replace("if (i < N)", 'asm volatile("wrong.instr;");\n    if (i < N)'))
    assert message.startswith(f"{tmp_path}/kernel.cu(3): error: inline PTX: ") and "'wrong'" in message


@pytest.mark.parametrize("text, said", [
    ("#include <iostream>\n" + toy.COPY, "line 1 (#include <iostream>)"),
    ("#include <cuda.h>\n" + toy.COPY + "int main() {\n    copy<<<1, 1>>>(0, 0, 0);\n    return 0;\n}\n", "line 6 (main), line 7 (<<<)"),
    (toy.COPY + "void run(float* p) {\n    cudaMalloc(&p, 4);\n}\n",
     "line 5 (a function that is neither __global__ nor __device__), line 6 (cudaMalloc)"),
], ids=["include", "main", "runtime"])
def test_host_code_is_told_what_to_remove(tmp_path, text, said):
    message = refused(tmp_path, CompileError, text)
    assert message.startswith(f"{tmp_path}/kernel.cu: the lab compiles device code only; remove ") and said in message
    assert "\n" not in message


def test_words_of_host_code_in_comments_and_strings_are_no_host_code(tmp_path):
    text = "// main() calls kernel<<<1, 1>>>\n" + toy.COPY.replace("A[i];", "A[j];  /* cudaMalloc( */")
    assert "device code only" not in refused(tmp_path, CompileError, text)


@pytest.mark.parametrize("byte", [b"\xff", b"\xe9", b"\0"])
def test_a_source_that_is_no_utf8_text_is_not_read_in_part(tmp_path, byte):
    plan = toy.plan(tmp_path)
    for file, line in ((plan.step.source, 2), (tmp_path / "mine.cuh", 1)):
        plan.step.source.write_bytes(b'#include "mine.cuh"\n// ' + (byte if file == plan.step.source else b"") + b"\n" + toy.COPY.encode())
        (tmp_path / "mine.cuh").write_bytes(byte if file.suffix == ".cuh" else b"")
        with pytest.raises(CompileError, match=re.escape(f"{file}({line}): not UTF-8 text (byte 0x{byte[0]:02x}): save the file as UTF-8")):
            build(plan, "sm_80", dumps=tmp_path / "dumps")


def test_a_missing_header_without_cuda_headers_names_the_package(tmp_path, monkeypatch):
    text = '#include "no_such_header.h"\n' + toy.COPY
    assert "no_such_header.h" in refused(tmp_path, CompileError, text)
    monkeypatch.setattr(nvrtc, "include_folders", lambda: ())
    assert 'pip install -e ".[' in refused(tmp_path, MissingTool, text)
    assert build(toy.plan(tmp_path), "sm_80", dumps=tmp_path / "dumps").kernels, "a lean kernel needs no CUDA headers"


def test_a_name_expression_that_names_nothing(tmp_path):
    message = refused(tmp_path, BadLaunch, toy.COPY, entries=("tile<4>",))
    assert message.startswith(f"{tmp_path}/kernel.cu has no kernel 'tile < 4 >'") and "\n" not in message


def test_a_spill_fails_the_build_unless_it_is_the_lesson(tmp_path):
    message = refused(tmp_path, Spills, SPILLING, block=1024)
    assert re.search(r"copy spills [1-9]\d* bytes stored and [1-9]\d* loaded a thread at 64 registers", message) and "\n" not in message
    assert refused(tmp_path, CompileError, SPILLING, block=1024) == message, "a build from the cache fails in the same way"
    taught = build(toy.plan(tmp_path, SPILLING, block=1024, spills=True), "sm_90a", dumps=tmp_path / "dumps")
    assert taught.cached and taught.kernels["copy"].spill_stores > 0 and taught.kernels["copy"].stack > 0


def test_serialised_wgmma_fails_the_build(tmp_path):
    assert "wgmma.mma_async instructions are serialized" in refused(tmp_path, CompileError, SERIALISED, block=128)


def test_without_nvrtc_the_cure_is_named(tmp_path, monkeypatch):
    from cuda import pathfinder

    def missing(name):
        raise pathfinder.DynamicLibNotFoundError(name)
    monkeypatch.setattr(installed, "versions", dict)
    monkeypatch.setattr(nvrtc, "versions", dict)
    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", missing)
    nvrtc.version.cache_clear()
    nvrtc._library.cache_clear()
    try:
        assert 'NVRTC is not installed, so nothing can be compiled: pip install -e ".[' in refused(tmp_path, MissingTool, toy.COPY)
    finally:
        nvrtc.version.cache_clear()
        nvrtc._library.cache_clear()


def test_an_nvrtc_without_a_wheel_is_asked_for_its_version(monkeypatch):
    known = nvrtc.version()
    monkeypatch.setattr(nvrtc, "versions", dict)
    nvrtc.version.cache_clear()
    try:
        assert re.fullmatch(r"\d+\.\d+ .*nvrtc.*", nvrtc.version()) and known.startswith(nvrtc.version().split()[0] + ".")
    finally:
        nvrtc.version.cache_clear()


# --- launches against kernels

@pytest.mark.parametrize("options, said", [
    (dict(entries=("other",)), "kernel.cu has no kernel 'other'; it has copy"),
    (dict(args="A C"), "takes 3 parameters; the launch passes 2"),
    (dict(args="A N C"), "parameter 2 is ptr of 8 bytes; the launch passes 1000 as i32"),
    (dict(args=("A", "C", f32(1))), "parameter 3 is i32 of 4 bytes; the launch passes 1 as f32"),
    (dict(args=("A", i32(0), "N")), "parameter 2 is ptr of 8 bytes"),
    (dict(block=512), "a block of 512 threads; its __launch_bounds__ allow 256"),
    (dict(smem=227 * 1024 + 1), "needs 232449 bytes of shared memory a block; sm_90a has 232448"),
    (dict(cluster=(3, 1, 1)), "a grid that they divide"),
], ids=["entry", "count", "order", "float", "scalar", "block", "smem", "cluster"])
def test_verify_refuses(tmp_path, options, said):
    plan = toy.plan(tmp_path, **options)
    with pytest.raises(BadLaunch) as error:
        verify(build(plan, "sm_90a", dumps=tmp_path / "dumps"), plan)
    assert said in str(error.value)


def test_verify_accepts_what_fits(tmp_path):
    for options in (dict(smem=227 * 1024), dict(cluster=(2, 1, 1)), dict(block=(16, 16)), dict(args=("A", "C", i32(-1)))):
        plan = toy.plan(tmp_path, **options)
        verify(build(plan, "sm_90a", dumps=tmp_path / "dumps"), plan)


def test_verify_refuses_a_block_with_more_registers_than_an_sm_has(tmp_path):
    text = SPILLING.replace("__launch_bounds__(1024) ", "")
    plan = toy.plan(tmp_path, text, block=1024)
    with pytest.raises(BadLaunch, match=r"1024 threads of \d+ registers are more than sm_90a holds"):
        verify(build(plan, "sm_90a", dumps=tmp_path / "dumps"), plan)
