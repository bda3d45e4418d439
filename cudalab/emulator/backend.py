"""The backend that runs plans without a GPU: the PTX that NVRTC wrote, on the CPU.  It never reports a time for a kernel."""

import dataclasses
import functools
import sys
import types
from collections.abc import Callable, Mapping

import numpy as np

from cudalab.build import build, sm_of, verify
from cudalab.check import refuse_changed
from cudalab.devices import Device
from cudalab.emulator import families  # noqa: F401  (fills the instruction table)
from cudalab.emulator.accumulate import Accumulator
from cudalab.emulator.chunk import WARP, Chunk
from cudalab.emulator.errors import PtxError
from cudalab.emulator.image import Image, Layout
from cudalab.emulator.memory import BLOCK_ALIGN, UNSET, Memory
from cudalab.emulator.parser import parse
from cudalab.emulator.rounding import arithmetic
from cudalab.emulator.sanitizer import Sanitizer
from cudalab.emulator.scheduler import Scheduler
from cudalab.emulator.segments import cut
from cudalab.emulator.tensor_maps import encode
from cudalab.dtypes import is_float, itemsize, numpy_dtype
from cudalab.errors import BadLaunch, UnknownName
from cudalab.spec import Copy, Fill, Launch, Plan, Pointer, Scalar, Tensor
from cudalab.tensormap import TensorMap

LANES = 16384  # that run together: enough to make NumPy's cost per call small, few enough for its arrays to stay in cache
RESIDENT = 1 << 17  # threads that a large device holds at once: so many may wait for each other
PATIENCE = 10_000_000  # steps of one chunk
SENTINEL = 0xA5  # every byte of an integer output before a run, as in cudalab.gpu


class Program:
    """A module of PTX made ready: segments of every kernel that has been asked for.  watched: with calls to observers compiled in."""

    def __init__(self, ptx: str, watched: bool = False):
        self.module, self.layout = _module(ptx)
        self.watched = watched
        self._kernels = {}

    def kernel(self, symbol: str) -> tuple[Image, dict]:
        """The kernel's image and segments."""
        if symbol not in self._kernels:
            function = self.module.functions.get(symbol)
            if function is None or not function.entry or function.body is None:
                entries = [name for name, f in self.module.functions.items() if f.entry]
                raise PtxError(f"the PTX has no kernel {symbol}; it has: {', '.join(entries) or 'none'}")
            image = Image(self.layout, function)
            self._kernels[symbol] = image, cut(image)
        return self._kernels[symbol]


@functools.lru_cache(maxsize=4)
def _module(ptx: str) -> tuple:
    """A PTX text parsed and laid out, which what is watched and what is not have in common."""
    module = parse(ptx)
    return module, Layout.of(module)


@functools.lru_cache(maxsize=64)
def make_program(ptx: str, watched: bool) -> Program:
    """The program of a PTX text, shared by all that run it."""
    return Program(ptx, watched)


def print_to_stderr(text: str) -> None:
    sys.stderr.write(text)


class Emulator:
    """Runs plans on the CPU.

    target: what NVRTC compiles for.  lanes: how many lanes run together.  observers: see hooks.py; without any, nothing is watched.
    delivery: when copies of the bulk engines take effect: "lazy", when somebody waits for them; "eager", when they start.  A correct kernel
    computes the same both ways.  mma: how tensor cores add up, one of the models in accumulate.py.
    output: called with what a kernel prints; by default it goes to stderr.  progress: called with blocks done, blocks of the launch, and
    the kernel's name, first before the first block.
    device: whose limits and multiprocessors count for those who ask; a run does not depend on it.
    """

    name = "emulator"

    def __init__(self, target: str = "sm_90a", *, observers: tuple = (), lanes: int = LANES,
                 output: Callable[[str], object] | None = None, delivery: str = "lazy", mma: str = "float64",
                 sanitize: bool = False, device: Device | None = None):
        if delivery not in ("lazy", "eager"):
            raise UnknownName(f"delivery is 'lazy' or 'eager', not '{delivery}'")
        self.delivery = delivery
        self.mma = Accumulator(mma, target).mma
        self.target, self.lanes, self.output, self.device = target, lanes, output or print_to_stderr, device
        self.observers = (*observers, Sanitizer()) if sanitize else tuple(observers)
        self.progress: Callable[[int, int, str], object] | None = None
        self._buffer: np.ndarray | None = None  # of the memory of the last run: the next one need not ask the system for pages

    def run(self, plan: Plan, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The plan's outputs (role out and inout) for these inputs; outputs and scratch are poisoned first, states are zero.

        Raises BadLaunch, PtxError for what is not supported, KernelFault for what a kernel does wrong, WrongResult for a changed input.
        """
        if not plan.step.runs_on(sm_of(self.target), plan.problem):
            raise BadLaunch(f"{plan.step.path} needs {plan.step.capabilities(plan.problem)}, which {self.target} does not have: "
                            f"take another --arch, or --device")
        program, symbols = self._compiled(plan)
        kernels = {entry: program.kernel(symbol) for entry, symbol in symbols.items()}
        memory = self._memory(program, plan.tensors, plan.launches, kernels)
        for name, tensor in plan.tensors.items():
            if tensor.role in ("in", "inout"):
                memory.array(name)[:] = np.ascontiguousarray(inputs[name], numpy_dtype(tensor.dtype)).reshape(-1).view(np.uint8)
            elif tensor.role == "state":
                memory.array(name)[:] = 0
            else:
                memory.array(name)[:] = UNSET if tensor.role == "scratch" or is_float(tensor.dtype) else SENTINEL
        for observer in self.observers:
            observer.ready(memory, {name for name, tensor in plan.tensors.items() if tensor.role in ("out", "scratch")},
                           {name for name, tensor in plan.tensors.items() if tensor.role == "in"})
        for action in plan.actions:
            match action:
                case Launch():
                    self._launch(*kernels[action.entry], action, plan.tensors, memory)
                case Fill():
                    memory.array(action.name)[:] = action.byte
                    for observer in self.observers:
                        observer.filled(memory, action.name)
                case Copy():
                    if plan.tensors[action.target].nbytes != plan.tensors[action.source].nbytes:
                        raise BadLaunch(f"a copy between buffers of {plan.tensors[action.source].nbytes} and "
                                        f"{plan.tensors[action.target].nbytes} bytes")
                    memory.array(action.target)[:] = memory.array(action.source)
                    for observer in self.observers:
                        observer.copied(memory, action.target, action.source)
        refuse_changed(plan, inputs, memory.array)
        return {name: memory.array(name).view(numpy_dtype(tensor.dtype)).reshape(tensor.shape).copy()
                for name, tensor in plan.tensors.items() if tensor.role in ("out", "inout")}

    def _compiled(self, plan: Plan) -> tuple[Program, dict[str, str]]:
        """The program of a plan, compiled or, where the step's source is PTX, as it is; and entry -> name of the kernel in it."""
        if plan.step.source.suffix == ".ptx":
            return self.program(plan.step.source.read_text(errors="replace")), {launch.entry: launch.entry for launch in plan.launches}
        built = build(plan, self.target)
        verify(built, plan)
        return self.program(built.ptx), {launch.entry: built.kernels[launch.entry].symbol for launch in plan.launches}

    def run_ptx(self, ptx: str, kernel: str, grid, block, args: tuple, *, smem: int = 0, cluster=None,
                unset: tuple[int, ...] = (), buffers: Mapping[str, np.ndarray] = types.MappingProxyType({})) -> list[np.ndarray]:
        """Launch a kernel of any PTX text.

        args: a NumPy array is a buffer of its size and contents, a Scalar or NumPy scalar a value, a TensorMap is over one of `buffers`.
        unset: numbers of the arguments, from 1, whose contents count as never written.
        Returns what the arguments that are arrays hold afterwards, in their order, then the buffers.
        """
        program = self.program(ptx)
        arrays = {f"argument {number}": np.ascontiguousarray(a) for number, a in enumerate(args, 1) if isinstance(a, np.ndarray)}
        arrays |= {name: np.ascontiguousarray(array) for name, array in buffers.items()}
        tensors = {name: Tensor(name, (array.nbytes,), "u8") for name, array in arrays.items()}
        passed = tuple(Pointer(f"argument {number}") if isinstance(a, np.ndarray) else a for number, a in enumerate(args, 1))
        launch = Launch(kernel, _three(grid), _three(block), passed, smem, cluster and _three(cluster))
        kernels = {kernel: program.kernel(kernel)}
        memory = self._memory(program, tensors, (launch,), kernels)
        for name, array in arrays.items():
            memory.array(name)[:] = array.reshape(-1).view(np.uint8)
        for observer in self.observers:
            observer.ready(memory, {f"argument {number}" for number in unset})
        self._launch(*kernels[kernel], launch, tensors, memory)
        return [memory.array(name).view(array.dtype).reshape(array.shape).copy() for name, array in arrays.items()]

    def program(self, ptx: str) -> Program:
        """PTX text made ready; the latest are kept."""
        return make_program(ptx, bool(self.observers))

    def blocks_together(self, image: Image, launch: Launch) -> int:
        """How many blocks of a launch run together; never part of a cluster.  Blocks that may wait for each other run together as far as
        they would on a device."""
        threads = -(-int(np.prod(launch.block)) // WARP) * WARP
        cluster = int(np.prod(clustered(image, launch).cluster or 1))
        lanes = max(self.lanes, RESIDENT) if image.polls else self.lanes
        together = max(1, lanes // threads // cluster) * cluster
        return min(together, int(np.prod(launch.grid)))

    def _memory(self, program: Program, tensors: Mapping[str, Tensor], launches, kernels: Mapping) -> Memory:
        param = shared = local = 0
        for launch in launches:
            image = kernels[launch.entry][0]
            blocks = self.blocks_together(image, launch)
            threads = -(-int(np.prod(launch.block)) // WARP) * WARP
            param = max(param, image.param_size)
            shared = max(shared, blocks * -(-max(image.shared_size(launch.smem), 1) // BLOCK_ALIGN) * BLOCK_ALIGN)
            local = max(local, blocks * threads * -(-image.local_size // 16) * 16)
        memory = Memory(program.layout, [(t.name, t.nbytes) for t in tensors.values()], param, shared, local, self._buffer)
        self._buffer = memory.buffer
        return memory

    def _launch(self, image: Image, segments: dict, launch: Launch, tensors: Mapping[str, Tensor], memory: Memory) -> None:
        launch = clustered(image, launch)
        self._pass_arguments(image, launch, tensors, memory)
        memory.observers = self.observers
        total, together = int(np.prod(launch.grid)), self.blocks_together(image, launch)
        if self.progress:
            self.progress(0, total, launch.entry)
        for first in range(0, total, together):
            chunk = Chunk(image, launch, memory, first, min(together, total - first), self.observers, self.output,
                          self.delivery == "eager")
            chunk.accumulator = Accumulator(self.mma, image.layout.module.target)
            for observer in self.observers:
                observer.begin(chunk)
            with arithmetic():
                Scheduler(chunk, segments, PATIENCE).run()
            for observer in self.observers:
                observer.end(chunk)
            if self.progress:
                self.progress(first + chunk.blocks, total, launch.entry)

    def _pass_arguments(self, image: Image, launch: Launch, tensors: Mapping[str, Tensor], memory: Memory) -> None:
        if len(launch.args) != len(image.kernel.params):
            raise BadLaunch(f"{image.kernel.name} takes {len(image.kernel.params)} parameters; the launch passes {len(launch.args)}")
        for number, (argument, param) in enumerate(zip(launch.args, image.kernel.params), 1):
            match argument:
                case Pointer(name=name, offset=offset):
                    data = np.uint64(memory.named[name].start + offset * itemsize(tensors[name].dtype)).tobytes()
                case Scalar(value=value, dtype=dtype):
                    data = np.array(value, numpy_dtype(dtype)).tobytes()
                case TensorMap(name=name, offset=offset):
                    data = encode(argument, memory.named[name].start + offset)
                case _:
                    # a NumPy scalar, or the bytes of a struct as it lies in memory
                    data = argument.tobytes() if isinstance(argument, np.generic) else bytes(argument)
            if len(data) != param.nbytes:
                raise BadLaunch(f"{image.kernel.name}: parameter {number} has {param.nbytes} bytes; the launch passes {len(data)}")
            start = memory.param_start + image.offsets[param]
            memory.bytes[start:start + param.nbytes] = np.frombuffer(data, np.uint8)


def clustered(image: Image, launch: Launch) -> Launch:
    """The launch with the cluster that the kernel itself asks for (__cluster_dims__) where the launch names none.

    PTX ISA, "Cluster Dimension Directives: .reqnctapercluster".  Raises BadLaunch where they disagree or do not divide the grid.
    """
    asked = image.kernel.directives.get("reqnctapercluster")
    cluster = launch.cluster or (asked and _three(asked))
    if asked and _three(asked) != cluster:
        raise BadLaunch(f"{image.kernel.name} is compiled for clusters of {_three(asked)}, launched with {cluster}")
    if cluster and any(g % c for g, c in zip(launch.grid, cluster)):
        raise BadLaunch(f"{image.kernel.name}: clusters of {cluster} do not divide the grid of {launch.grid}")
    return dataclasses.replace(launch, cluster=cluster)


def _three(size) -> tuple[int, int, int]:
    return (*((size,) if isinstance(size, int) else size), 1, 1)[:3]
