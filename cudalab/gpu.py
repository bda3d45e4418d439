"""The backend that runs plans on a GPU: CuPy owns the memory and the context, cuda.bindings loads the cubin and launches.

Everything goes through one explicit non-blocking stream, which is CuPy's current stream too while a plan or a peer runs.
"""

import ctypes
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

import numpy as np

from cudalab.build import build, target_for, verify
from cudalab.check import refuse_changed
from cudalab.devices import Device
from cudalab.dtypes import device_dtype, is_float, itemsize, numpy_dtype
from cudalab.errors import BadLaunch, LabError, NoDevice, OutOfMemory, UnknownName, UnusableDevice
from cudalab.installed import cure
from cudalab.spec import Copy, Fill, Launch, Plan, Tensor
from cudalab.tensormap import MAP_FORMATS, TensorMap

SENTINEL = 0xA5  # every byte of an integer output before a run: a value that no kernel here computes
NAN = 0xFF  # every byte of a floating-point output before a run: NaN in all formats, bf16 and fp8 too
DEFAULT_SMEM = 48 * 1024  # a block's shared memory beyond this must be asked for with a function attribute
PORTABLE_CLUSTER = 8
TENSOR_MAP = 128  # bytes of a CUtensorMap
C_TYPES = dict(f32=ctypes.c_float, f64=ctypes.c_double, i8=ctypes.c_int8, u8=ctypes.c_uint8, i32=ctypes.c_int32, u32=ctypes.c_uint32,
               i64=ctypes.c_int64, u64=ctypes.c_uint64)
# what a kernel that failed leaves behind: every later call repeats it, and nothing runs in this process any more
STICKY = {f"CUDA_ERROR_{name}" for name in ("ILLEGAL_ADDRESS MISALIGNED_ADDRESS INVALID_ADDRESS_SPACE INVALID_PC ILLEGAL_INSTRUCTION "
                                            "HARDWARE_STACK_ERROR LAUNCH_FAILED LAUNCH_TIMEOUT ASSERT").split()}


class Gpu:
    """One device, its primary context (shared with CuPy) and one stream.

    Raises NoDevice, with the cure, where there is no driver, no device, or a driver too old for the installed packages.
    """

    name = "gpu"

    def __init__(self, ordinal: int = 0):
        self._driver, handle, driver_version = _open_driver(ordinal)
        cupy = _import_cupy(driver_version)
        try:
            cupy.cuda.Device(ordinal).use()
            cupy.cuda.runtime.free(0)  # makes the primary context, and makes it this thread's current one
            self.stream = cupy.cuda.Stream(non_blocking=True)
            self.pci_bus_id = cupy.cuda.Device(ordinal).pci_bus_id
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise UnusableDevice(f"the device refuses a context ({error}); is it in use exclusively, or reset? "
                                 f"'nvidia-smi' shows") from None
        self._cupy = cupy
        self._lost = None  # what was running when a kernel failed
        self._modules = {}  # build folder -> loaded module
        self._smem = {}  # function -> dynamic shared memory it was allowed
        self.device = _describe(self._driver, handle, driver_version)
        self.target = target_for(self.device.sm)

    def run(self, plan: Plan, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The plan's outputs (role out and inout) for these inputs; outputs and scratch are poisoned first.  Synchronous.

        Raises BadLaunch, NoDevice (step too new for the device), OutOfMemory, WrongResult for an input that the kernels have changed, or
        LabError where one of them fails.
        """
        buffers = self.allocate(plan.tensors.values(), str(plan.problem))
        enqueue = self.prepare(plan, buffers)
        with self.stream:
            self.poison(plan.tensors.values(), buffers)
            for name, tensor in plan.tensors.items():
                if tensor.role in ("in", "inout"):
                    host = np.ascontiguousarray(inputs[name], numpy_dtype(tensor.dtype))
                    buffers[name].set(host.view(device_dtype(tensor.dtype)))
            enqueue()
            self.synchronize(plan.step.path)
            refuse_changed(plan, inputs, lambda name: buffers[name].get())
            return {name: buffers[name].get().view(numpy_dtype(tensor.dtype)) for name, tensor in plan.tensors.items()
                    if tensor.role in ("out", "inout")}

    def allocate(self, tensors: Iterable[Tensor], what: str) -> dict:
        """A CuPy array for each tensor: zeros for a state, uninitialised for the rest.  Raises OutOfMemory before anything is taken."""
        tensors = list(tensors)
        self.require(sum(t.nbytes for t in tensors), what)
        with self.stream:
            return {t.name: self._array(t) for t in tensors}

    def _array(self, tensor: Tensor):
        raw = (self._cupy.zeros if tensor.role == "state" else self._cupy.empty)(tensor.shape, f"u{itemsize(tensor.dtype)}")
        return raw.view(device_dtype(tensor.dtype))

    def require(self, nbytes: int, what: str) -> None:
        """Raise OutOfMemory unless the device has `nbytes` free."""
        free = self.free_bytes()
        if nbytes > free:
            raise OutOfMemory(f"{what} needs {nbytes / 1e9:.3g} GB of device memory and {free / 1e9:.3g} GB of {self.device.name}'s "
                              f"{self.device.memory_bytes / 1e9:.3g} GB are free: take a smaller shape, or end what else uses the device")

    def free_bytes(self) -> int:
        """What the driver has free, and what CuPy's pool holds unused.

        The pool gives that back by itself where an allocation needs it, and only then: the driver clears memory that it gets back, which
        takes a tenth off what DRAM gives to whoever runs next, for 2 ms a gigabyte.
        """
        self.synchronize("device memory")  # what the pool counts as unused may still be in use
        return self._cupy.cuda.runtime.memGetInfo()[0] + self._cupy.get_default_memory_pool().free_bytes()

    def poison(self, tensors: Iterable[Tensor], buffers: Mapping, roles: tuple[str, ...] = ("out", "scratch")) -> None:
        """Fill outputs with NaN (integers: a sentinel) and scratch with 0xFF bytes, so that what is not written shows."""
        for tensor in tensors:
            if tensor.role in roles:
                byte = NAN if tensor.role == "scratch" or is_float(tensor.dtype) else SENTINEL
                self._check(self._fill(buffers[tensor.name], byte)()[0], tensor.name)

    def prepare(self, plan: Plan, buffers: Mapping) -> Callable[[], None]:
        """A call that enqueues the whole plan on the stream: no allocation, no compilation, a few microseconds a launch.

        buffers: tensor name -> CuPy array.  The call keeps everything it needs alive.  Raises BadLaunch or NoDevice here, not later.
        """
        if not plan.step.runs_on(self.device.sm, plan.problem):
            raise NoDevice(f"{plan.step.path} needs {plan.step.capabilities(plan.problem)}; {self.device.name} has "
                           f"{self.device.sm / 10}: take another step of the ladder")
        built = build(plan, self.target)
        verify(built, plan)
        module = self._load(built)
        calls = []
        for action in plan.actions:
            match action:
                case Launch():
                    label = f"{plan.step.path} ({action.entry})"
                    calls.append((self._launch(module, built.kernels[action.entry], action, buffers, label), label))
                case Fill():
                    calls.append((self._fill(buffers[action.name], action.byte), f"{plan.step.path} (fill of {action.name})"))
                case Copy():
                    label = f"{plan.step.path} (copy to {action.target})"
                    calls.append((self._copy(buffers[action.target], buffers[action.source]), label))
        calls, kept, success = tuple(calls), dict(buffers), self._driver.CUresult.CUDA_SUCCESS

        def enqueue():
            for call, label in calls:
                status = call()[0]
                if status != success:
                    self._check(status, label)

        enqueue.kept = kept
        return enqueue

    def launches(self, plan: Plan) -> list:
        """The plan's launches, compiled and ready to be enqueued on any stream with any buffers (prepared.Prepared); for plans that only
        launch."""
        from cudalab.prepared import Prepared
        built = build(plan, self.target)
        verify(built, plan)
        module = self._load(built)
        return [Prepared(self, module, built.kernels[launch.entry], launch, f"{plan.step.path} ({launch.entry})")
                for launch in plan.launches]

    def capture(self, enqueue: Callable[[], None], times: int, what: str) -> Callable[[], None]:
        """A call that launches a CUDA graph of `times` repetitions of a prepared call, recorded here without running anything.

        Raises LabError where the call does what a graph cannot hold, such as waiting for the device.
        """
        self.synchronize(what)
        try:
            with self.stream:
                self.stream.begin_capture()
                try:
                    for _ in range(times):
                        enqueue()
                finally:
                    graph = self.stream.end_capture()
                graph.upload(self.stream)
        except (self._cupy.cuda.runtime.CUDARuntimeError, NotImplementedError) as error:
            raise LabError(f"{what} cannot be captured into a graph ({error}): measure it by stream") from None
        self.synchronize(what)
        return _keep(functools.partial(graph.launch, self.stream), graph, enqueue)

    def resident_blocks(self, plan: Plan) -> int:
        """How many blocks of the plan's first launch one multiprocessor holds, as the driver works it out.

        CUDA Driver API, "Occupancy: cuOccupancyMaxActiveBlocksPerMultiprocessor".
        """
        built, launch = build(plan, self.target), plan.launches[0]
        kernel = built.kernels[launch.entry]
        status, function = self._driver.cuModuleGetFunction(self._load(built), kernel.symbol.encode())
        self._check(status, plan.step.path)
        self._allow_smem(function, kernel, launch, plan.step.path)
        status, blocks = self._driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, math.prod(launch.block), launch.smem)
        self._check(status, plan.step.path)
        return blocks

    def synchronize(self, what: str) -> None:
        """Wait for the stream.  A kernel that failed raises LabError, which names `what` (a step's path) was running then."""
        if not self._lost:
            try:
                return self.stream.synchronize()
            except self._cupy.cuda.runtime.CUDARuntimeError as error:
                self._lose(what, str(error))
        self._lose(self._lost, "see the first error")

    def _lose(self, what: str, why: str) -> NoReturn:
        self._lost = self._lost or what
        raise LabError(f"{what} failed on the device ({why}) and took the context with it: start again; "
                       f"'compute-sanitizer python cli.py check {what.split()[0]}' says where it went wrong")

    # -- preparing single calls; each gives a zero-argument call that returns the driver's (status, …)

    def _launch(self, module, kernel, launch: Launch, buffers: Mapping, label: str) -> Callable:
        config, function = self._configured(module, kernel, launch, label)
        config.hStream = self._driver.CUstream(self.stream.ptr)
        values = [self._encode(a, buffers[a.name], label) if isinstance(a, TensorMap) else _argument(a, buffers) for a in launch.args]
        addresses = (ctypes.c_void_p * max(1, len(values)))(*map(ctypes.addressof, values))
        call = functools.partial(self._driver.cuLaunchKernelEx, config, function, ctypes.addressof(addresses), 0)
        return _keep(call, values, addresses)

    def _configured(self, module, kernel, launch: Launch, label: str):
        """A CUlaunchConfig without a stream, and the function, allowed the shared memory and the cluster that the launch takes."""
        driver = self._driver
        status, function = driver.cuModuleGetFunction(module, kernel.symbol.encode())
        self._check(status, label)
        self._allow_smem(function, kernel, launch, label)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid  # the driver counts blocks, with a cluster too
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
        config.sharedMemBytes = launch.smem
        attributes = []
        if launch.cluster:
            if math.prod(launch.cluster) > PORTABLE_CLUSTER:
                self._set(function, driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, label)
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            size = attribute.value.clusterDim
            size.x, size.y, size.z = launch.cluster
            attributes.append(attribute)
        if launch.early and self.device.sm >= 90:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        if attributes:
            config.attrs = attributes
        config.numAttrs = len(attributes)
        return config, function

    def _encode(self, tensor_map: TensorMap, array, label: str):
        """The 128 bytes of a CUtensorMap.  CUDA Driver API, "Tensor Map Object Management: cuTensorMapEncodeTiled"."""
        driver, rank = self._driver, len(tensor_map.dims)

        def choice(kind: str, name: str):
            return getattr(getattr(driver, f"CUtensorMap{kind}"), name)

        swizzle = f"SWIZZLE_{tensor_map.swizzle}B" if tensor_map.swizzle else "SWIZZLE_NONE"
        fill = "NAN_REQUEST_ZERO_FMA" if tensor_map.fill == "nan" else "NONE"
        status, encoded = driver.cuTensorMapEncodeTiled(
            choice("DataType", f"CU_TENSOR_MAP_DATA_TYPE_{MAP_FORMATS[tensor_map.dtype][1]}"), rank, array.data.ptr + tensor_map.offset,
            [driver.cuuint64_t(n) for n in tensor_map.dims], [driver.cuuint64_t(n) for n in tensor_map.strides],
            [driver.cuuint32_t(n) for n in tensor_map.box], [driver.cuuint32_t(n) for n in tensor_map.element_strides],
            choice("Interleave", "CU_TENSOR_MAP_INTERLEAVE_NONE"), choice("Swizzle", f"CU_TENSOR_MAP_{swizzle}"),
            choice("L2promotion", "CU_TENSOR_MAP_L2_PROMOTION_L2_128B"), choice("FloatOOBfill", f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{fill}"))
        self._check(status, f"{label}: the tensor map over {tensor_map.name}")
        return (ctypes.c_char * TENSOR_MAP).from_buffer_copy(ctypes.string_at(encoded.getPtr(), TENSOR_MAP))

    def _fill(self, array, byte: int) -> Callable:
        driver = self._driver
        return functools.partial(driver.cuMemsetD8Async, driver.CUdeviceptr(array.data.ptr), byte, array.nbytes,
                                 driver.CUstream(self.stream.ptr))

    def _copy(self, target, source) -> Callable:
        driver = self._driver
        if target.nbytes != source.nbytes:
            raise BadLaunch(f"a copy between buffers of {source.nbytes} and {target.nbytes} bytes")
        return functools.partial(driver.cuMemcpyDtoDAsync, driver.CUdeviceptr(target.data.ptr), driver.CUdeviceptr(source.data.ptr),
                                 target.nbytes, driver.CUstream(self.stream.ptr))

    def _load(self, built):
        if built.folder not in self._modules:
            status, module = self._driver.cuModuleLoadData(built.cubin)
            if status in (self._driver.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU, self._driver.CUresult.CUDA_ERROR_INVALID_IMAGE,
                          self._driver.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION):
                raise NoDevice(f"the driver (CUDA {self.device.driver}) refuses the code that NVRTC made for {built.target}: "
                               f"update the driver, or in a fresh environment pip install -e '.[cuda12]'")
            self._check(status, f"loading {built.folder.name}")
            self._modules[built.folder] = module
        return self._modules[built.folder]

    def _allow_smem(self, function, kernel, launch: Launch, label: str) -> None:
        if kernel.static_smem + launch.smem > DEFAULT_SMEM and launch.smem > self._smem.get(int(function), 0):
            attribute = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._set(function, attribute, launch.smem, label)
            self._smem[int(function)] = launch.smem  # never lowered: a call prepared before may need more

    def _set(self, function, attribute, value: int, label: str) -> None:
        if self._driver.cuFuncSetAttribute(function, attribute, value)[0] != self._driver.CUresult.CUDA_SUCCESS:
            raise BadLaunch(f"{label}: {self.device.name} refuses {attribute.name} = {value}")

    def _check(self, status, label: str) -> None:
        if status == self._driver.CUresult.CUDA_SUCCESS:
            return
        name = getattr(status, "name", str(status))
        if name in STICKY:
            self._lose(label, name)
        raise BadLaunch(f"{label}: the driver refuses it: {name}")


def backend(name: str | None = None, **emulated):
    """The backend called `name`, a Gpu or an Emulator; without a name ("auto") the GPU, where there is none the emulator.

    emulated: what an Emulator is made with.  Raises NoDevice if the GPU was asked for by name, and UnusableDevice, unless the emulator was
    asked for, where there is a GPU or a driver that does not work.
    """
    if name not in (None, "auto", Gpu.name, "emulator"):
        raise UnknownName(f"no backend is called '{name}'; there are '{Gpu.name}', 'emulator' and 'auto'")
    try:
        if name != "emulator":
            return Gpu()
    except UnusableDevice:
        raise
    except NoDevice:
        if name == Gpu.name:
            raise
    from cudalab.emulator import Emulator  # not before it is known to be needed: it takes a fifth of a second
    return Emulator(**emulated)


def _argument(argument, buffers: Mapping) -> ctypes._SimpleCData:
    if hasattr(argument, "name"):
        array = buffers[argument.name]
        return ctypes.c_void_p(array.data.ptr + argument.offset * array.itemsize)
    if argument.dtype not in C_TYPES:
        raise BadLaunch(f"an argument of type {argument.dtype} cannot be passed by value; possible: {' '.join(C_TYPES)}")
    return C_TYPES[argument.dtype](argument.value)


def _keep(call: Callable, *what) -> Callable:
    """The call, holding on to `what`: the driver reads the arguments through bare addresses."""
    call.kept = what
    return call


def _open_driver(ordinal: int):
    """The driver module, the device handle, the driver's CUDA version (13000).  Raises NoDevice with the cure."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise NoDevice(f"cuda.bindings is not installed ({error}): {cure(gpu=True)}") from None
    try:
        status = driver.cuInit(0)[0]
    except RuntimeError:
        raise NoDevice("there is no NVIDIA driver here (libcuda was not found); install the driver, "
                       "in a container start it with --gpus all") from None
    results = driver.CUresult
    if status == results.CUDA_ERROR_NO_DEVICE:
        raise NoDevice("the driver sees no GPU; is one there, and does CUDA_VISIBLE_DEVICES let it through?")
    if status in (results.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, results.CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE):
        raise UnusableDevice(f"the driver's kernel module and its libcuda disagree ({status.name}); reboot after the driver's update, "
                       f"or take /usr/local/cuda/compat out of LD_LIBRARY_PATH")
    if status != results.CUDA_SUCCESS:
        raise UnusableDevice(f"the NVIDIA driver does not start: {status!r}; 'nvidia-smi' says more")
    status, version = driver.cuDriverGetVersion()
    status, count = driver.cuDeviceGetCount()
    if status != results.CUDA_SUCCESS or ordinal >= count:
        raise NoDevice(f"there is no device {ordinal}; the driver sees {count}")
    status, handle = driver.cuDeviceGet(ordinal)
    return driver, handle, version


def _import_cupy(driver_version: int):
    try:
        import cupy
        runtime = cupy.cuda.runtime.runtimeGetVersion()
    except ImportError as error:
        raise UnusableDevice(f"CuPy does not import ({str(error).strip().splitlines()[0]}): {cure(gpu=True)}") from None
    if driver_version // 1000 < runtime // 1000:  # within one major version every driver runs every toolkit
        raise UnusableDevice(f"the driver supports CUDA {_version(driver_version)} and the installed packages are "
                             f"for CUDA {runtime // 1000}: update the driver, "
                             f"or in a fresh environment pip install -e '.[cuda{driver_version // 1000}]'")
    return cupy


def _describe(driver, handle, driver_version: int) -> Device:
    def attribute(name: str) -> int:
        return driver.cuDeviceGetAttribute(getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), handle)[1]

    name = driver.cuDeviceGetName(256, handle)[1].split(b"\0")[0].decode()
    # the memory moves two words a clock, in kHz; the bus is counted in bits
    dram = 2 * attribute("MEMORY_CLOCK_RATE") * 1e3 * attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8
    sm = 10 * attribute("COMPUTE_CAPABILITY_MAJOR") + attribute("COMPUTE_CAPABILITY_MINOR")
    return Device(name, sm, attribute("MULTIPROCESSOR_COUNT"), attribute("CLOCK_RATE") * 1e3, attribute("L2_CACHE_SIZE"),
                  driver.cuDeviceTotalMem(handle)[1], dram, _version(driver_version))


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
