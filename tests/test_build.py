"""The compile side: every step on every target, what a build holds, the key, the cache under damage and concurrency."""

import ctypes
import errno
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import toy
from kinds import few, spread

from cudalab import build as lab
from cudalab import installed, nvrtc, registry, sass
from cudalab.build import TARGETS, Param, build, sm_of, target_for, verify
from cudalab.errors import CompileError, LabError, MissingTool, UnknownName
from cudalab.spec import KERNELS

# --- every step of the registry

OTHERS = [target for target in TARGETS if target != "sm_90a"]


def plans_for(step, target):
    """What the tests compile: for sm_90a all that the emulator runs, and what `check` compiles for a large shape; for other
    targets one plan."""
    here = [step.plan(problem) for problem in few(step, "check") if step.runs_on(sm_of(target), problem)]
    if target != "sm_90a":
        return spread(here, 1)
    emulated = spread([step.plan(problem) for problem in few(step, "emulate")], len(here) + 9)
    known = {(plan.config, plan.problem.kind) for plan in emulated}
    return emulated + [plan for plan in here if (plan.config, plan.problem.kind) not in known][-1:]  # the last shapes are the large ones


@pytest.mark.parametrize("step", registry.steps(), ids=lambda step: step.path)
def test_step_compiles_and_its_launches_fit(step):
    """On sm_90a, and on one more of the targets that it runs on, another one from step to step; CI compiles every step for every target
    with the other CUDA line."""
    others = [target for target in OTHERS if any(step.runs_on(sm_of(target), problem) for problem in step.problems("check"))]
    work = [(plan, target) for target in ("sm_90a", *others[step.number % max(1, len(others)):][:1]) for plan in plans_for(step, target)]
    with ThreadPoolExecutor() as pool:  # each configuration once, and several at a time
        list(pool.map(lambda one: build(*one), work))
    for plan, target in work:
        built = build(plan, target)
        verify(built, plan)
        for launch in plan.launches:
            kernel = built.kernels[launch.entry]
            assert kernel.max_threads is not None, f"{target}: every kernel of ours has __launch_bounds__"
            assert step.spills or not kernel.spill_stores + kernel.spill_loads, target


def test_steps_refuse_the_targets_they_do_not_run_on():
    for step in registry.steps():
        kinds = {problem.kind: problem for problem in step.problems("check")}.values()
        for problem, target in ((problem, target) for problem in kinds for target in TARGETS if not step.runs_on(sm_of(target), problem)):
            with pytest.raises(CompileError, match="needs compute capability"):
                build(step.plan(problem), target)


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


def test_two_threads_disassemble_two_builds_side_by_side(tmp_path, monkeypatch):
    built = [build(toy.plan(tmp_path), target, dumps=tmp_path / "dumps") for target in ("sm_80", "sm_89")]
    both, calls = threading.Barrier(2), []

    def disassemble(cubin):
        calls.append(cubin)
        both.wait(10)
        return str(cubin)
    monkeypatch.setattr(sass, "disassemble", disassemble)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda one: one.sass, built))
    assert found == [str(one.folder / "kernel.cubin") for one in built]
    assert [one.sass for one in built] == found and len(calls) == 2, "once for each"


def test_sass_that_cannot_be_kept_can_be_read(tmp_path, monkeypatch):
    def refused(path, content):
        raise OSError(errno.EROFS, "Read-only file system")
    built = build(toy.plan(tmp_path), "sm_89", dumps=tmp_path / "dumps")
    monkeypatch.setattr(type(tmp_path), "write_text", refused)
    assert "LDG" in built.sass and not (built.folder / "kernel.sass").exists()


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


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_STACK)[1] != resource.RLIM_INFINITY, reason="the stack may not be unlimited here")
@pytest.mark.parametrize("main", [True, False])
def test_nvrtc_has_the_stack_it_needs(tmp_path, main):
    """Where `ulimit -s` is unlimited a thread has 2 MiB, less than NVRTC takes for the largest kernel."""
    code = ("from concurrent.futures import ThreadPoolExecutor\nfrom cudalab import build, registry\n"
            "step = registry.resolve_step('step12')\nplan = step.plan(step.problems('bench')[0])\n"
            + ("build.build(plan, 'sm_90a')" if main else "ThreadPoolExecutor().submit(build.build, plan, 'sm_90a').result()"))
    ran = subprocess.run([sys.executable, "-c", code], cwd=KERNELS.parent, env={**os.environ, "CUDALAB_DUMPS": str(tmp_path)},
                         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, [resource.RLIM_INFINITY] * 2), capture_output=True,
                         text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_without_a_thread_for_nvrtc_the_process_ends(tmp_path):
    code = ("import sys, threading, toy\nfrom pathlib import Path\nfrom cudalab import build, errors\n"
            "def refuse(self): raise RuntimeError('can\\'t start new thread')\nthreading.Thread.start = refuse\n"
            "try: build.build(toy.plan(Path(sys.argv[1])), 'sm_80', dumps=Path(sys.argv[1]) / 'dumps')\nexcept errors.LabError as e: print(e)")
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=KERNELS.parent, capture_output=True, text=True, timeout=60,
                         env={**os.environ, "PYTHONPATH": f"{KERNELS.parent}:{Path(__file__).parent}"})
    assert (ran.returncode, ran.stderr) == (0, "") and "no thread for NVRTC" in ran.stdout


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


def test_threads_whose_first_compilation_is_at_once_all_succeed(tmp_path):
    """`tune` compiles like this.  A fresh process: NVRTC fails only where a first compilation is not alone."""
    code = ("import sys, toy\nfrom concurrent.futures import ThreadPoolExecutor\nfrom pathlib import Path\n"
            "from cudalab.build import build\nfolder = Path(sys.argv[1])\nplans = [toy.plan(folder, W=w) for w in range(4)]\n"
            "with ThreadPoolExecutor(4) as pool:\n"
            "    print(len({b.folder for b in pool.map(lambda p: build(p, 'sm_80', dumps=folder / 'dumps'), plans)}))")
    folders = [str(KERNELS.parent), str(Path(__file__).parent)]
    for _ in range(2):
        ran = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True,
                             env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)})
        assert (ran.returncode, ran.stdout) == (0, "4\n"), ran.stderr
        shutil.rmtree(tmp_path / "dumps")


def test_another_process_that_was_faster_is_believed(tmp_path, monkeypatch):
    plan, compile_program = toy.plan(tmp_path), nvrtc.compile_program

    def overtaken(*arguments):
        monkeypatch.setattr(nvrtc, "compile_program", compile_program)
        build(plan, "sm_80", dumps=tmp_path / "dumps")
        return compile_program(*arguments)
    monkeypatch.setattr(nvrtc, "compile_program", overtaken)
    built = build(plan, "sm_80", dumps=tmp_path / "dumps")
    assert not built.cached and os.listdir(built.folder.parent) == [built.folder.name]


@pytest.fixture
def ctrl_c():
    """SIGINT raises KeyboardInterrupt, also where the tests run in the background of a shell, which has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_leaves_nothing_half_written(tmp_path, monkeypatch, ctrl_c):
    def interrupted(path, content):
        path.with_name("half").touch()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    monkeypatch.setattr(type(tmp_path), "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(toy.plan(tmp_path), "sm_80", dumps=tmp_path / "dumps")
    assert os.listdir(tmp_path / "dumps/toy/kernel") == []


def test_ctrl_c_ends_the_wait_for_a_compiler_that_took_the_signal_for_itself(tmp_path, monkeypatch, ctrl_c):
    from cuda.bindings import nvrtc as binding
    finish = threading.Event()

    def deaf(*arguments):
        ctypes.CDLL(None).signal(signal.SIGINT, ctypes.c_void_p(1))  # SIG_IGN
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)
        finish.wait(10)
    monkeypatch.setattr(binding, "nvrtcCompileProgram", deaf)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        build(toy.plan(tmp_path), "sm_80", dumps=tmp_path / "dumps")
    assert time.monotonic() - started < 5 and not (tmp_path / "dumps").exists()
    assert nvrtc.abandoned()  # the thread works on: nobody may take down what it works with
    finish.set()
    nvrtc._let_them_end()
    assert not nvrtc.abandoned()


def test_a_folder_that_cannot_be_written_names_the_cure(tmp_path, monkeypatch):
    blocked = tmp_path / "dumps"
    blocked.write_text("a file, which stops root too")
    cure = r"choose another place with 'cli\.py --dumps DIR COMMAND' or CUDALAB_DUMPS"
    with pytest.raises(LabError, match=rf"cannot be written \(.+\): {cure}") as error:
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
