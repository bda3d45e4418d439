"""The compile side: every step on every target, what a build holds, the cache, and what each refusal says."""

import ctypes
import dataclasses
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import toy

from cudalab import build as lab
from cudalab import installed, nvrtc, registry
from cudalab.build import TARGETS, Param, build, sm_of, target_for, verify
from cudalab.errors import BadConfig, BadLaunch, CompileError, LabError, MissingTool, Spills, UnknownName
from cudalab.spec import KERNELS, f32, i32

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


# --- every step of the registry

@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("step", registry.steps(), ids=lambda step: step.path)
def test_step_compiles_and_its_launches_fit(step, target):
    if sm_of(target) < step.min_sm:
        with pytest.raises(CompileError, match="needs compute capability"):
            build(step.plan(step.op.shapes["check"][0]), target)
        return
    for problem in step.op.shapes["check"]:
        plan = step.plan(problem)
        built = build(plan, target)
        verify(built, plan)
        for launch in plan.launches:
            kernel = built.kernels[launch.entry]
            assert kernel.max_threads is not None, "every kernel of ours has __launch_bounds__"
            assert step.spills or not kernel.spill_stores + kernel.spill_loads


# --- what a build holds

def test_a_build_holds_everything(tmp_path):
    built = build(toy.plan(tmp_path), "sm_90a", dumps=tmp_path / "dumps")
    assert re.fullmatch(r"sm_90a-[0-9a-f]{12}", built.folder.name) and built.folder.parent == tmp_path / "dumps/toy/kernel"
    assert sorted(path.name for path in built.folder.iterdir()) == ["kernel.cu", "kernel.cubin", "kernel.json", "kernel.ptx"]
    kernel = built.kernels["copy"]
    assert kernel.symbol == "copy" and 8 <= kernel.registers <= 32 and kernel.max_threads == 256 and kernel.static_smem == 0
    assert kernel.params == (Param("ptr", 8), Param("ptr", 8), Param("i32", 4))
    assert built.source == toy.COPY and ".entry copy(" in built.ptx and built.cubin.startswith(b"\x7fELF")
    again = build(toy.plan(tmp_path), "sm_90a", dumps=tmp_path / "dumps")
    assert again.cached and not built.cached
    assert (again.kernels, again.ptx, again.cubin, again.log) == (built.kernels, built.ptx, built.cubin, built.log)


def test_sass_is_written_on_first_demand_and_again_when_damaged(tmp_path):
    built = build(toy.plan(tmp_path), "sm_89", dumps=tmp_path / "dumps")
    path = built.folder / "kernel.sass"
    assert not path.exists()
    assert "LDG" in built.sass and f'"{tmp_path}/kernel.cu", line 3' in built.sass
    whole = path.read_text()
    path.write_text(whole[:-100])
    assert build(toy.plan(tmp_path), "sm_89", dumps=tmp_path / "dumps").sass == built.sass and path.read_text() == whole


def test_names_templates_and_several_kernels(tmp_path):
    text = '''namespace lab { template <int N, class T> __global__ void __launch_bounds__(N) fill(T* A, float v) { __shared__ T s[N];
                  s[threadIdx.x] = v; __syncthreads(); A[threadIdx.x] = s[N - 1 - threadIdx.x]; } }
              __global__ void __launch_bounds__(64, 2) axpy(float* A, double d, short s, char c) { A[c] = d + s; }
              struct Five { int x[5]; };
              extern "C" __global__ void plain(const __grid_constant__ Five f, int* out) { *out = f.x[threadIdx.x]; }
              extern "C" __global__ void nothing() {}'''
    built = build(toy.plan(tmp_path, text, entries=("lab::fill<128, float>", "axpy")), "sm_90a", dumps=tmp_path / "dumps")
    assert set(built.kernels) == {"lab::fill<128, float>", "axpy", "plain", "nothing"}
    fill, axpy = built.kernels["lab::fill<128, float>"], built.kernels["axpy"]
    assert fill.symbol == "_ZN3lab4fillILi128EfEEvPT0_f" and fill.static_smem == 512 and fill.max_threads == 128
    assert fill.params == (Param("ptr", 8), Param("f32", 4))
    assert axpy.symbol.startswith("_Z4axpy") and [p.kind for p in axpy.params] == ["ptr", "f64", "i16", "i8"] and axpy.max_threads == 64
    assert built.kernels["plain"].params == (Param("bytes", 20), Param("ptr", 8)) and built.kernels["plain"].max_threads is None
    assert built.kernels["nothing"].params == ()


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


def test_nvrtc_is_told_to_leave_its_own_cache_alone(tmp_path, monkeypatch):
    from cuda.bindings import nvrtc as binding
    compile_program, given = binding.nvrtcCompileProgram, []

    def spy(program, count, options):
        given.extend(options)
        return compile_program(program, count, options)
    monkeypatch.setattr(binding, "nvrtcCompileProgram", spy)
    build(toy.plan(tmp_path), "sm_80", dumps=tmp_path / "dumps")
    assert (b"-no-cache" in given) == (nvrtc._major_minor() >= nvrtc.CACHING)


def test_a_second_instance_is_another_build(tmp_path):
    text = "template <int N> __global__ void fill(float* A) { A[threadIdx.x] = N; }"
    one, two = (build(toy.plan(tmp_path, text, entries=(f"fill<{n}>",)), "sm_80", dumps=tmp_path / "dumps") for n in (1, 2))
    assert one.folder != two.folder and set(one.kernels) == {"fill<1>"} and set(two.kernels) == {"fill<2>"}


def test_cuda_headers_are_found(tmp_path):
    text = '#include <cuda_fp16.h>\nextern "C" __global__ void copy(__half* A, float* C, int N) { C[N] = __half2float(A[N]); }'
    built = build(toy.plan(tmp_path, text), "sm_80", dumps=tmp_path / "dumps")
    headers = dict(json.loads((built.folder / "kernel.json").read_text())["headers"])
    assert headers and set(headers) == {str(folder) for folder in nvrtc.include_folders()}, "an upgrade of CUDA's headers changes the key"


def test_targets():
    assert [target_for(sm) for sm in (80, 86, 89, 90, 100, 120)] == ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"]
    assert [sm_of(target) for target in TARGETS] == [80, 89, 90, 120]
    with pytest.raises(LabError, match="is not a target"):
        sm_of("hopper")


def test_an_unknown_target_names_the_known_ones(tmp_path):
    with pytest.raises(UnknownName, match="'sm_999'; it has .*sm_90 "):
        build(toy.plan(tmp_path), "sm_999", dumps=tmp_path / "dumps")


# --- the key

def test_the_key_covers_source_headers_config_target_and_nvrtc(tmp_path, monkeypatch):
    (tmp_path / "outer.cuh").write_text('#include "inner.cuh"\n')
    inner = tmp_path / "inner.cuh"
    inner.write_text("#define VALUE 1\n")
    text = '#include "outer.cuh"\nextern "C" __global__ void copy(float* A, float* C, int N) { C[N] = VALUE + SIZE; }'
    dumps = tmp_path / "dumps"
    folders = {build(toy.plan(tmp_path, text, SIZE=1), "sm_80", dumps=dumps).folder}
    assert build(toy.plan(tmp_path, text, SIZE=1), "sm_80", dumps=dumps).cached
    folders.add(build(toy.plan(tmp_path, text, SIZE=2), "sm_80", dumps=dumps).folder)
    folders.add(build(toy.plan(tmp_path, text, SIZE=1), "sm_89", dumps=dumps).folder)
    folders.add(build(toy.plan(tmp_path, text + "\n", SIZE=1), "sm_80", dumps=dumps).folder)
    inner.write_text("#define VALUE 3\n")
    changed = build(toy.plan(tmp_path, text, SIZE=1), "sm_80", dumps=dumps)
    folders.add(changed.folder)
    assert len(folders) == 5 and not changed.cached
    monkeypatch.setattr(nvrtc, "version", lambda: "99.9")
    with pytest.raises(MissingTool, match="keep one CUDA line"):  # not the cached build: another NVRTC asks for its own
        build(toy.plan(tmp_path, text, SIZE=1), "sm_80", dumps=dumps)


def test_a_warm_build_is_quick_and_leaves_nvrtc_alone(tmp_path):
    code = ("import sys, time, pathlib; sys.path[:0] = ['tests', '.']; import toy; from cudalab.build import build\n"
            f"plan = toy.plan(pathlib.Path({str(tmp_path)!r})); b = build(plan, 'sm_80', dumps=pathlib.Path({str(tmp_path / 'dumps')!r}))\n"
            "print(b.cached, b.seconds, 'cuda.bindings.nvrtc' in sys.modules, 'cuda.pathfinder' in sys.modules)")

    def run():
        return subprocess.run([sys.executable, "-c", code], cwd=KERNELS.parent, capture_output=True, text=True, check=True).stdout.split()
    assert run()[0] == "False"
    cached, seconds, bindings, pathfinder = run()
    assert cached == "True" and float(seconds) < 0.1 and bindings == "False"
    assert pathfinder == str(not any(name in installed.versions() for name in installed.NVRTC))


# --- damage, concurrency, interrupts, folders that cannot be written

@pytest.mark.parametrize("name", ["kernel.cu", "kernel.ptx", "kernel.cubin", "kernel.json"])
@pytest.mark.parametrize("damage", ["gone", "truncated", "altered", "a folder"])
def test_damaged_entries_are_rebuilt(tmp_path, name, damage):
    first = build(toy.plan(tmp_path), "sm_80", dumps=tmp_path / "dumps")
    path = first.folder / name
    content = path.read_bytes()
    path.unlink()
    if damage == "truncated":
        path.write_bytes(content[:len(content) // 2])
    elif damage == "altered":
        path.write_bytes(content.replace(b'"registers": ', b'"registers": 1') if name == "kernel.json" else content[:-1] + b"\x01")
    elif damage == "a folder":
        path.mkdir()
    again = build(toy.plan(tmp_path), "sm_80", dumps=tmp_path / "dumps")
    assert not again.cached and again.kernels == first.kernels and path.read_bytes()
    assert build(toy.plan(tmp_path), "sm_80", dumps=tmp_path / "dumps").cached
    assert os.listdir(first.folder.parent) == [first.folder.name]


def test_a_file_in_the_place_of_an_entry_is_replaced(tmp_path):
    folder = build(toy.plan(tmp_path), "sm_80", dumps=tmp_path / "dumps").folder
    lab._remove(folder)
    folder.write_text("in the way")
    assert build(toy.plan(tmp_path), "sm_80", dumps=tmp_path / "dumps").folder == folder and folder.is_dir()


def _build_at_once(folder, barrier, results):
    plan = toy.plan(folder)
    barrier.wait()
    built = build(plan, "sm_80", dumps=folder / "dumps")
    results.put((built.folder.name, built.kernels["copy"].registers, len(built.cubin)))


def test_processes_that_build_the_same_at_once_all_succeed(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    toy.plan(tmp_path)
    workers = [context.Process(target=_build_at_once, args=(tmp_path, barrier, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    got = {results.get(timeout=60) for _ in workers}
    for worker in workers:
        worker.join()
    assert len(got) == 1 and [worker.exitcode for worker in workers] == [0, 0, 0]
    assert os.listdir(tmp_path / "dumps/toy/kernel") == [got.pop()[0]]


def test_another_process_that_was_faster_is_believed(tmp_path, monkeypatch):
    plan, compile_program = toy.plan(tmp_path), nvrtc.compile_program

    def overtaken(*arguments):
        monkeypatch.setattr(nvrtc, "compile_program", compile_program)
        build(plan, "sm_80", dumps=tmp_path / "dumps")
        return compile_program(*arguments)
    monkeypatch.setattr(nvrtc, "compile_program", overtaken)
    built = build(plan, "sm_80", dumps=tmp_path / "dumps")
    assert not built.cached and os.listdir(built.folder.parent) == [built.folder.name]


def test_an_interrupt_leaves_nothing_half_written(tmp_path, monkeypatch):
    def interrupted(path, content):
        path.with_name("half").touch()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    monkeypatch.setattr(type(tmp_path), "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(toy.plan(tmp_path), "sm_80", dumps=tmp_path / "dumps")
    assert os.listdir(tmp_path / "dumps/toy/kernel") == []


def test_ctrl_c_ends_the_wait_for_a_compiler_that_took_the_signal_for_itself(tmp_path, monkeypatch):
    from cuda.bindings import nvrtc as binding

    def deaf(*arguments):
        ctypes.CDLL(None).signal(signal.SIGINT, ctypes.c_void_p(1))  # SIG_IGN
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
    monkeypatch.setattr(binding, "nvrtcCompileProgram", deaf)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        build(toy.plan(tmp_path), "sm_80", dumps=tmp_path / "dumps")
    assert time.monotonic() - started < 5 and not (tmp_path / "dumps").exists()


def test_a_folder_that_cannot_be_written_names_the_cure(tmp_path, monkeypatch):
    blocked = tmp_path / "dumps"
    blocked.write_text("a file, which stops root too")
    with pytest.raises(LabError, match=r"cannot be written \(.+\): choose another place with --dumps DIR or CUDALAB_DUMPS") as error:
        build(toy.plan(tmp_path), "sm_80", dumps=blocked)
    assert "\n" not in str(error.value)
    monkeypatch.setenv("CUDALAB_DUMPS", str(tmp_path / "elsewhere"))
    assert build(toy.plan(tmp_path), "sm_80").folder.is_relative_to(tmp_path / "elsewhere")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is always full")
def test_a_full_disk_names_the_cure_and_leaves_nothing(tmp_path, monkeypatch):
    def write_to_full(path, content):
        path.symlink_to("/dev/full")
        with open(path, "wb", buffering=0) as file:
            file.write(content)
    monkeypatch.setattr(type(tmp_path), "write_bytes", write_to_full)
    with pytest.raises(LabError, match=r"cannot be written \(No space left on device\)"):
        build(toy.plan(tmp_path), "sm_80", dumps=tmp_path / "dumps")
    assert os.listdir(tmp_path / "dumps/toy/kernel") == []


# --- what is refused

def refused(tmp_path, error, text, target="sm_90a", **options):
    with pytest.raises(error) as caught:
        build(toy.plan(tmp_path, text, **options), target, dumps=tmp_path / "dumps")
    return str(caught.value)


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
