"""The GPU backend where there is no GPU: what a person is told, and what it would hand to the driver."""

import ctypes
from types import SimpleNamespace

import pytest

from cudalab import gpu as backends
from cudalab.errors import BadLaunch, LabError, NoDevice, UnknownName, UnusableDevice
from cudalab.gpu import Gpu
from cudalab.registry import ops
from cudalab.spec import Copy, Fill, Launch, Plan, Pointer, TensorMap, f32, i32

driver = pytest.importorskip("cuda.bindings.driver")
OK = driver.CUresult.CUDA_SUCCESS
SGEMM = ops()["sgemm"]


def answers(monkeypatch, **functions):
    for name, value in functions.items():
        monkeypatch.setattr(driver, name, value if callable(value) else lambda *_, value=value: value)


def no_library(_):
    raise RuntimeError("Failed to dlopen libcuda.so.1")


RESULTS = driver.CUresult


@pytest.mark.parametrize("init, words", [(no_library, "install the driver"), ((RESULTS.CUDA_ERROR_NO_DEVICE,), "CUDA_VISIBLE_DEVICES"),
                                         ((RESULTS.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,), "reboot"),
                                         ((RESULTS.CUDA_ERROR_SYSTEM_NOT_READY,), "nvidia-smi")])
def test_no_device_is_one_line_with_the_cure(monkeypatch, init, words):
    answers(monkeypatch, cuInit=init)
    if words in ("reboot", "nvidia-smi"):  # something is there and does not work: never taken for a machine without a GPU
        with pytest.raises(UnusableDevice, match=words):
            backends.backend(None)
    else:
        assert backends.backend(None, target="sm_89").target == "sm_89" and backends.backend().name == "emulator"
    with pytest.raises(NoDevice, match=words) as error:
        backends.backend("gpu")
    assert "\n" not in str(error.value)


def test_a_device_that_is_not_there_and_a_backend_that_is_not(monkeypatch):
    answers(monkeypatch, cuInit=(OK,), cuDriverGetVersion=(OK, 13000), cuDeviceGetCount=(OK, 1))
    with pytest.raises(NoDevice, match="no device 3"):
        Gpu(3)
    with pytest.raises(UnknownName, match="'gpu'"):
        backends.backend("cpu9")


def test_a_driver_too_old_for_the_packages_is_told_which_line_to_install():
    pytest.importorskip("cupy")
    with pytest.raises(UnusableDevice, match=r"CUDA 11\.8 .*update the driver.*cuda11"):
        backends._import_cupy(11080)


def array(address, nbytes=64):
    return SimpleNamespace(data=SimpleNamespace(ptr=address), itemsize=4, nbytes=nbytes)


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    """A backend without a device behind it, and the calls that reach the driver."""
    calls = []
    monkeypatch.setenv("CUDALAB_DUMPS", str(tmp_path))

    def launch(config, function, params, extra):
        pointers = ctypes.cast(params, ctypes.POINTER(ctypes.c_void_p))
        grid, block = (config.gridDimX, config.gridDimY, config.gridDimZ), (config.blockDimX, config.blockDimY, config.blockDimZ)
        cluster = [(a.value.clusterDim.x, a.value.clusterDim.y, a.value.clusterDim.z) for a in config.attrs] if config.numAttrs else []
        calls.append(("launch", grid, block, config.sharedMemBytes, int(config.hStream), cluster,
                      lambda i, kind: kind.from_address(pointers[i]).value))
        return (OK,)

    answers(monkeypatch, cuModuleLoadData=(OK, driver.CUmodule(1)), cuModuleGetFunction=(OK, driver.CUfunction(2)), cuLaunchKernelEx=launch,
            cuFuncSetAttribute=lambda function, name, value: calls.append(("attribute", name.name, value)) or (OK,),
            cuMemsetD8Async=lambda pointer, byte, count, stream: calls.append(("fill", int(pointer), byte, count)) or (OK,),
            cuMemcpyDtoDAsync=lambda target, source, count, stream: calls.append(("copy", int(target), int(source), count)) or (OK,))
    gpu = Gpu.__new__(Gpu)
    gpu._driver, gpu._modules, gpu._smem, gpu._lost = driver, {}, {}, None
    gpu.stream, gpu.device, gpu.target = SimpleNamespace(ptr=77), SimpleNamespace(sm=90, name="a device", driver="13.0"), "sm_90a"
    gpu.calls = calls
    return gpu


def kernel(static_smem=0):
    return SimpleNamespace(symbol="sgemm", static_smem=static_smem)


def test_arguments_geometry_and_stream_reach_the_driver(recorded):
    launch = Launch("sgemm", (3, 2, 1), (128, 1, 1), (Pointer("A", 5), i32(-7), f32(0.5)), smem=0)
    call = recorded._launch(None, kernel(), launch, {"A": array(4096)}, "sgemm/x")
    assert call() == (OK,) == call()
    (_, grid, block, smem, stream, cluster, value), _ = recorded.calls
    assert (grid, block, smem, stream, cluster) == ((3, 2, 1), (128, 1, 1), 0, 77, [])
    assert value(0, ctypes.c_uint64) == 4096 + 5 * 4 and value(1, ctypes.c_int32) == -7 and value(2, ctypes.c_float) == 0.5


def test_a_cluster_and_large_shared_memory_are_asked_for(recorded):
    launch = Launch("sgemm", (4, 1, 1), (32, 1, 1), (), smem=100_000, cluster=(2, 1, 1))
    recorded._launch(None, kernel(), launch, {}, "sgemm/x")()
    assert recorded.calls[0] == ("attribute", "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", 100_000)
    assert recorded.calls[1][5] == [(2, 1, 1)] and recorded.calls[1][1] == (4, 1, 1) and recorded.calls[1][3] == 100_000


def test_a_tensor_map_is_encoded_by_the_driver(recorded, monkeypatch):
    asked, encoded = [], driver.CUtensorMap()
    encoded.opaque = [driver.cuuint64_t(100 + i) for i in range(16)]
    answers(monkeypatch, cuTensorMapEncodeTiled=lambda *arguments: asked.append(arguments) or (OK, encoded))
    tensor_map = TensorMap("A", "bf16", (64, 32, 8), (32, 4, 2), swizzle=64, offset=256)
    call = recorded._launch(None, kernel(), Launch("sgemm", (1, 1, 1), (32, 1, 1), (tensor_map, i32(9))), {"A": array(4096)}, "sgemm/x")
    assert call() == (OK,)
    kind, rank, address, *sizes, interleave, swizzle, promotion, fill = asked[0]
    assert (kind.name, rank, address) == ("CU_TENSOR_MAP_DATA_TYPE_BFLOAT16", 3, 4096 + 256)
    assert [[int(n) for n in size] for size in sizes] == [[64, 32, 8], [128, 4096], [32, 4, 2], [1, 1, 1]]
    assert (interleave.name, swizzle.name) == ("CU_TENSOR_MAP_INTERLEAVE_NONE", "CU_TENSOR_MAP_SWIZZLE_64B")
    assert fill.name == "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE"
    value = recorded.calls[-1][-1]
    assert value(0, ctypes.c_uint64) == 100 and value(1, ctypes.c_int32) == 9
    answers(monkeypatch, cuTensorMapEncodeTiled=(RESULTS.CUDA_ERROR_INVALID_VALUE, None))
    with pytest.raises(BadLaunch, match="the tensor map over A: the driver refuses it"):
        recorded._launch(None, kernel(), Launch("sgemm", (1, 1, 1), (32, 1, 1), (tensor_map,)), {"A": array(4096)}, "sgemm/x")


def test_static_shared_memory_counts_and_the_limit_is_never_lowered(recorded):
    def asked(static, dynamic):
        before = len(recorded.calls)
        recorded._launch(None, kernel(static), Launch("sgemm", (1, 1, 1), (32, 1, 1), (), smem=dynamic), {}, "sgemm/x")
        return [value for _, _, value in recorded.calls[before:]]
    assert asked(0, 48 * 1024) == [] and asked(40_000, 20_000) == [20_000] and asked(0, 90_000) == [90_000] and asked(0, 60_000) == []


def test_a_plan_is_enqueued_in_order(recorded):
    step = SGEMM.steps[0]
    plan = step.plan(SGEMM.problem(dict(M=3, N=5, K=2)))
    plan = Plan(step, plan.problem, plan.config, plan.tensors, (Fill("C", 0), *plan.actions, Copy("C", "B")))
    enqueue = recorded.prepare(plan, {"A": array(1000), "B": array(2000), "C": array(3000)})
    assert not recorded.calls, "preparing enqueues nothing"
    enqueue()
    assert [call[0] for call in recorded.calls] == ["fill", "launch", "copy"]
    assert recorded.calls[0] == ("fill", 3000, 0, 64) and recorded.calls[2] == ("copy", 3000, 2000, 64)
    value = recorded.calls[1][-1]
    assert [value(i, ctypes.c_uint64) for i in range(3)] == [1000, 2000, 3000]
    assert [value(i, ctypes.c_int32) for i in (3, 4, 5)] == [3, 5, 2]


def test_a_copy_between_sizes_is_refused(recorded):
    with pytest.raises(BadLaunch, match="64 and 32"):
        recorded._copy(array(0, 32), array(0, 64))


def test_what_the_driver_refuses_and_what_a_kernel_broke_are_told_apart(recorded, monkeypatch):
    step = SGEMM.steps[0]
    plan = Plan(step, SGEMM.problem(dict(M=1, N=1, K=1)), step.plan(SGEMM.problem(dict(M=1, N=1, K=1))).config, {}, (Fill("C", 0),))
    answers(monkeypatch, cuMemsetD8Async=(RESULTS.CUDA_ERROR_INVALID_VALUE,))
    with pytest.raises(BadLaunch, match="INVALID_VALUE"):
        recorded.prepare(plan, {"C": array(0)})()
    answers(monkeypatch, cuMemsetD8Async=(RESULTS.CUDA_ERROR_ILLEGAL_ADDRESS,))
    with pytest.raises(LabError, match=f"compute-sanitizer python cli.py check {step.path}"):
        recorded.prepare(plan, {"C": array(0)})()
    with pytest.raises(LabError, match="start again"):  # and from then on everything says so
        recorded.synchronize("sgemm/other")


def test_a_step_newer_than_the_device_is_refused_before_anything(recorded):
    from dataclasses import replace
    step = replace(SGEMM.steps[0], min_sm=100)
    with pytest.raises(NoDevice, match="needs compute capability 10.0"):
        recorded.prepare(step.plan(SGEMM.problem(dict(M=1, N=1, K=1))), {})
