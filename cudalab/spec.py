"""What is computed and how it is launched, as plain data: Op, Step, Plan.  The standard library only: `list` is fast.

A step is a pure function from (problem, config) to what a device shall do: `Launch`, `Fill`, `Copy` over named buffers.
A backend runs it; nothing here touches a device.
"""

import math
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cudalab.errors import BadConfig, BadLaunch, BadShape
from cudalab.expressions import evaluate

KERNELS = Path(__file__).resolve().parent.parent / "kernels_cu"

# our name of a type -> NumPy's, which NumPy and CuPy take wherever they take a dtype
DTYPES = dict(f32="float32", f64="float64", f16="float16", i8="int8", u8="uint8", i32="int32", u32="uint32", i64="int64", u64="uint64")

MAX_GRID = (2**31 - 1, 65535, 65535)  # CUDA C++ Programming Guide, "Compute Capabilities", technical specifications
MAX_BLOCK = (1024, 1024, 64)
MAX_ELEMENTS = 2**31 - 2**16  # kernels index with 32-bit integers; what is left over keeps a tile that overhangs an edge below 2^31


def itemsize(dtype: str) -> int:
    """Bytes of one element: f32 -> 4."""
    return int(dtype[1:]) // 8


class Values(Mapping):
    """An immutable set of named integers: a problem's dimensions or a step's tunables.  `p.M` and `p["M"]` both read."""

    def __init__(self, values: Mapping[str, int] = (), /, **more: int):
        self.__dict__["_values"] = types.MappingProxyType(dict(values, **more))

    def __getitem__(self, name):
        return self._values[name]

    def __getattr__(self, name):
        if name.startswith("_") or name not in self._values:
            raise AttributeError(name)
        return self._values[name]

    def __setattr__(self, name, value):
        raise TypeError("values are immutable")

    def __iter__(self):
        return iter(self._values)

    def __len__(self):
        return len(self._values)

    def __hash__(self):
        return hash(tuple(self._values.items()))

    def __repr__(self):
        return " ".join(f"{name}={value}" for name, value in self._values.items())


@dataclass(frozen=True)
class Tensor:
    """A named buffer of a plan.

    role: in, out, inout (restored between repeats), scratch (poisoned unless filled), state (zero before the first run; what a
    run leaves in it is what the next one finds).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "f32"
    role: str = "scratch"

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * itemsize(self.dtype)


def scratch(name: str, shape: tuple[int, ...], dtype: str = "f32") -> Tensor:
    """Working memory that a step needs beside the op's tensors; yield it before the launches that use it."""
    return Tensor(name, shape, dtype, "scratch")


def state(name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
    """A buffer of zeros that a step's kernels leave as they found it, such as flags; yield it before the launches that use it."""
    return Tensor(name, shape, dtype, "state")


@dataclass(frozen=True)
class Scalar:
    """A kernel argument passed by value."""

    value: int | float
    dtype: str


@dataclass(frozen=True)
class Pointer:
    """A kernel argument that points into a buffer, `offset` elements behind its start."""

    name: str
    offset: int = 0

    def at(self, offset: int) -> "Pointer":
        return Pointer(self.name, self.offset + offset)


def i32(value: int) -> Scalar:
    return Scalar(value, "i32")


def f32(value: float) -> Scalar:
    return Scalar(value, "f32")


# element formats of a tensor map: our name -> (bytes, the name of its CUtensorMapDataType)
MAP_FORMATS = dict(u8=(1, "UINT8"), i8=(1, "UINT8"), e4m3=(1, "UINT8"), e5m2=(1, "UINT8"), u16=(2, "UINT16"), f16=(2, "FLOAT16"),
               bf16=(2, "BFLOAT16"), u32=(4, "UINT32"), i32=(4, "INT32"), f32=(4, "FLOAT32"), f32_ftz=(4, "FLOAT32_FTZ"),
               tf32=(4, "TFLOAT32"), tf32_ftz=(4, "TFLOAT32_FTZ"), u64=(8, "UINT64"), i64=(8, "INT64"), f64=(8, "FLOAT64"))
SWIZZLES = (0, 32, 64, 128)


@dataclass(frozen=True)
class TensorMap:
    """A kernel argument `const __grid_constant__ CUtensorMap`: how cp.async.bulk.tensor sees a buffer as tiles (mode "tiled").

    name: the buffer; offset: bytes from its start to the tensor's.  dtype: see MAP_FORMATS.  dims: elements, innermost first, as everything
    here.  box: what one copy takes.  strides: bytes from one element to the next along dims[1:] (default: packed).  element_strides:
    every how manyth element is taken.  swizzle: 0, 32, 64 or 128 bytes.  fill: what elements outside read as, zero or nan.

    Raises BadLaunch for what the driver would refuse: CUDA Driver API, "Tensor Map Object Management: cuTensorMapEncodeTiled".
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    box: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    element_strides: tuple[int, ...] | None = None
    swizzle: int = 0
    fill: str = "zero"
    offset: int = 0

    def __post_init__(self):
        size, rank = MAP_FORMATS.get(self.dtype, (0,))[0], len(self.dims)
        if not size:
            self._refuse(f"no elements of type {self.dtype}; there are {' '.join(MAP_FORMATS)}")
        if self.strides is None:
            object.__setattr__(self, "strides", tuple(size * math.prod(self.dims[:axis]) for axis in range(1, rank)))
        if self.element_strides is None:
            object.__setattr__(self, "element_strides", (1,) * rank)
        if not 1 <= rank <= 5 or (len(self.box), len(self.strides), len(self.element_strides)) != (rank, rank - 1, rank):
            self._refuse(f"{rank} dims, {len(self.box)} of the box, {len(self.strides)} strides, {len(self.element_strides)} element "
                         f"strides; possible are 1 to 5 dims, as many of the box and element strides, one stride fewer")
        if any(not 1 <= d <= 2**32 for d in self.dims) or any(not 1 <= b <= 256 for b in self.box):
            self._refuse(f"dims {self.dims}, box {self.box}: dims are 1 to 2^32, the box 1 to 256")
        if any(s % 16 or not 0 < s < 2**40 for s in self.strides) or self.offset % 16:
            self._refuse(f"strides {self.strides}, offset {self.offset}: every stride and the start must be a multiple of 16 bytes")
        if any(not 1 <= s <= 8 for s in self.element_strides) or self.element_strides[0] != 1:
            self._refuse(f"element strides {self.element_strides}: they are 1 to 8, and 1 along the innermost dimension")
        inner = self.box[0] * size
        if inner % 16:
            self._refuse(f"a box of {inner} bytes along the innermost dimension: it must be a multiple of 16")
        if self.swizzle not in SWIZZLES or self.swizzle and inner > self.swizzle:
            self._refuse(f"swizzle {self.swizzle} with a box of {inner} bytes along the innermost dimension: it is one of {SWIZZLES}, and "
                         f"no fewer bytes than the box has")
        if self.fill not in ("zero", "nan") or self.fill == "nan" and "f" not in self.dtype:
            self._refuse(f"fill {self.fill} of {self.dtype}: it is zero, or nan for floating point")

    def _refuse(self, why: str):
        raise BadLaunch(f"a tensor map over {self.name}: {why}")

    @property
    def itemsize(self) -> int:
        return MAP_FORMATS[self.dtype][0]


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    entry: the kernel's name in the source (extern "C", or a C++ name expression such as `gemm<128, 8>`).
    grid: blocks; block: threads, each an int or up to three.  cluster: blocks of one cluster (the grid still counts blocks).
    args: names separated by spaces (a tensor is passed as its address, a dimension as a 32-bit integer), or a tuple of names,
    Scalar, Pointer and TensorMap values.  smem: dynamic shared memory in bytes.
    early: it may start while the launch ahead of it ends; its kernel waits for that one (griddepcontrol.wait) before it touches memory.
    CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization" (sm_90).
    """

    entry: str
    grid: int | tuple[int, ...]
    block: int | tuple[int, ...]
    args: str | tuple
    smem: int = 0
    cluster: tuple[int, int, int] | None = None
    early: bool = False


@dataclass(frozen=True)
class Fill:
    """Set every byte of a buffer to `byte` before the launches that follow; counts in the step's time."""

    name: str
    byte: int = 0


@dataclass(frozen=True)
class Copy:
    """Copy the buffer `source` to `target` (same size); counts in the step's time."""

    target: str
    source: str


@dataclass(frozen=True)
class Plan:
    """What a device shall do for one problem: `actions` (Launch, Fill, Copy; launches normalised) over `tensors` by name."""

    step: "Step"
    problem: Values
    config: Values
    tensors: Mapping[str, Tensor]
    actions: tuple[Launch | Fill | Copy, ...]

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(a for a in self.actions if isinstance(a, Launch))

    @property
    def nbytes(self) -> int:
        """Device memory that one set of the plan's buffers takes, in bytes."""
        return sum(t.nbytes for t in self.tensors.values())


@dataclass(frozen=True, eq=False)
class Op:
    """What is computed: dimensions, tensors, NumPy reference, cost, peers.

    dims: names of the problem's dimensions.  inputs, outputs: tensor name -> its shape as expressions over the dimensions.
    reference: the inputs (float64) as keyword arguments -> the output array (with several outputs: a tuple in their order).
    scale: inputs (float64) -> per element of the output, the magnitude that errors are measured against.
    depth: problem -> number of terms that one output element sums.
    flops, bytes: problem -> floating-point operations, bytes of compulsory traffic (each input read once, each output written once).
    samples: ways to cut the problem down to a part that NumPy can check: tensor name -> axis along which it is cut.
    peers: names in `cudalab.peers` of the libraries to compare with.  shapes: purpose (emulate, check, bench) -> problems.
    """

    name: str
    title: str
    dims: tuple[str, ...]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    reference: Callable
    scale: Callable
    depth: Callable[[Values], int]
    flops: Callable[[Values], int]
    bytes: Callable[[Values], int]
    samples: tuple[Mapping[str, int], ...]
    peers: tuple[str, ...]
    shapes: Mapping[str, tuple[Values, ...]]
    dtype: str = "f32"
    steps: list["Step"] = field(default_factory=list)

    def problem(self, sizes: Mapping[str, int]) -> Values:
        """A checked problem.  Raises BadShape for missing, unknown, zero or too large dimensions."""
        if set(sizes) != set(self.dims):
            raise BadShape(f"{self.name} has the dimensions {' '.join(self.dims)}; got {' '.join(sizes) or 'none'}")
        for dim in self.dims:
            if not isinstance(sizes[dim], int) or sizes[dim] < 1:
                raise BadShape(f"{dim}={sizes[dim]}: every dimension of {self.name} must be an integer of at least 1")
        problem = Values({dim: sizes[dim] for dim in self.dims})
        for tensor in self.tensors(problem).values():
            if tensor.elements > MAX_ELEMENTS:
                raise BadShape(f"{tensor.name} of {problem} has {tensor.elements} elements; the kernels index with 32 bits, "
                               f"at most {MAX_ELEMENTS}: take a smaller shape")
        return problem

    def tensors(self, problem: Values) -> dict[str, Tensor]:
        """The op's own buffers, inputs first."""
        def make(shapes, role):
            return {name: Tensor(name, evaluate(shape, problem), self.dtype, role) for name, shape in shapes.items()}
        return make(self.inputs, "in") | make(self.outputs, "out")

    def step(self, number: int, *, min_sm: int = 80, tune: Mapping[str, tuple[int, ...]] = types.MappingProxyType({}),
             zero: tuple[str, ...] = (), spills: bool = False, **tunables: int | Callable[[Values], int]):
        """Register the decorated plan function as step `number`; its name and the number give the `.cu` file.

        tunables: NAME=default, an integer or a function of the problem.  tune: NAME -> values that `tune` searches.
        zero: names of tunables for which 0 has a meaning.  min_sm: the lowest compute capability that runs it.
        spills: the step is there to teach register spills.
        """
        def register(plan):
            step = Step(self, number, plan.__name__, KERNELS / self.name / f"{number:02d}_{plan.__name__}.cu", plan,
                        types.MappingProxyType(dict(tunables)), types.MappingProxyType(dict(tune)), min_sm, spills, zero)
            self.steps.append(step)
            return step
        return register


@dataclass(frozen=True, eq=False)
class Step:
    """One way to compute an op: a `.cu` file and the function that says how to launch it."""

    op: Op
    number: int
    name: str
    source: Path
    make_actions: Callable[[Values, Values], Iterator]
    tunables: Mapping[str, int | Callable[[Values], int]]
    tune: Mapping[str, tuple[int, ...]]
    min_sm: int = 80
    spills: bool = False
    zero: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Number and idea, as in file names and results: 05_blocktile_2d."""
        return self.source.stem

    @property
    def path(self) -> str:
        """Unique name: sgemm/05_blocktile_2d."""
        return f"{self.op.name}/{self.id}"

    @property
    def header(self) -> tuple[str, str]:
        """Title (the first comment line of the source) and prose (the rest of the opening comment)."""
        lines = []
        for line in self.source.read_text(errors="replace").splitlines():
            if not line.startswith("//"):
                break
            lines.append(line[2:].removeprefix(" ").rstrip())
        title, *prose = lines or [self.name]
        return title.rstrip("."), "\n".join(prose).strip("\n")

    def config(self, problem: Values, overrides: Mapping[str, int] = types.MappingProxyType({})) -> Values:
        """The tunables for a problem.  Raises BadConfig for a name that the step does not have, or a value below 1 that it never takes."""
        for name in overrides:
            if name not in self.tunables:
                raise BadConfig(f"{self.path} has no tunable {name}; it has {' '.join(self.tunables) or 'none'}")
        chosen = {name: int(v(problem)) if callable(v) else int(v) for name, v in self.tunables.items()}
        for name, value in overrides.items():
            if value < (name not in self.zero) and value not in (chosen[name], *self.tune.get(name, ())):
                raise BadConfig(f"{self.path}: {name}={value} is not legal: {self._legal(name, chosen[name])}")
        return Values(chosen | dict(overrides))

    def _legal(self, name: str, default: int) -> str:
        """Values of a tunable that a person could take instead."""
        values = dict.fromkeys((default, *self.tune.get(name, ())))
        return f"it is {default} by default" + (f"; 'tune' tries {' '.join(map(str, sorted(values)))}" if len(values) > 1 else "")

    def plan(self, problem: Values, config: Values | None = None) -> Plan:
        """What to launch for this problem.  Raises BadShape, BadConfig or BadLaunch before anything runs."""
        default = self.config(problem)
        config = default if config is None else config
        tensors, actions = self.op.tensors(problem), []
        try:
            for item in self.make_actions(problem, config):
                if isinstance(item, Tensor):
                    tensors[item.name] = item
                else:
                    actions.append(_normalise(item, tensors, problem))
        except (BadLaunch, ZeroDivisionError) as error:
            changed = {name: value for name, value in config.items() if value != default.get(name)}
            if not changed:
                raise
            hints = "; ".join(f"{name}={value}: {self._legal(name, default[name])}" for name, value in changed.items() if name in default)
            raise BadConfig(f"{self.path}: this configuration is not legal ({error}); {hints}") from None
        return Plan(self, problem, config, types.MappingProxyType(tensors), tuple(actions))


def _normalise(action, tensors: Mapping[str, Tensor], problem: Values):
    """The action with grid and block as three integers and every argument a Pointer or a Scalar."""
    if not isinstance(action, Launch):
        return action
    grid, block = _three(action.grid), _three(action.block)
    for name, size, limit in (("grid", grid, MAX_GRID), ("block", block, MAX_BLOCK)):
        if any(not 1 <= s <= m for s, m in zip(size, limit)):
            raise BadLaunch(f"{action.entry}: {name} {size} is outside 1..{limit} for {problem}")
    if math.prod(block) > MAX_BLOCK[0]:
        raise BadLaunch(f"{action.entry}: a block of {block} has {math.prod(block)} threads, at most {MAX_BLOCK[0]} are possible")
    names = action.args.split() if isinstance(action.args, str) else action.args
    args = tuple(_argument(name, tensors, problem, action.entry) for name in names)
    return Launch(action.entry, grid, block, args, action.smem, action.cluster, action.early)


def _three(size: int | tuple[int, ...]) -> tuple[int, int, int]:
    size = (size,) if isinstance(size, int) else tuple(size)
    return (*size, 1, 1)[:3]


def _argument(argument, tensors, problem, entry) -> Pointer | Scalar:
    match argument:
        case Pointer() | Scalar():
            return argument
        case TensorMap(name=name):
            if name not in tensors:
                raise BadLaunch(f"{entry}: a tensor map over '{name}', which is none of the tensors {' '.join(tensors)}")
            return argument
        case str() if argument in tensors:
            return Pointer(argument)
        case str() if argument in problem:
            return i32(problem[argument])
    raise BadLaunch(f"{entry}: argument '{argument}' is neither a tensor ({' '.join(tensors)}) nor a dimension ({' '.join(problem)})")


def shapes(text: str, dims: tuple[str, ...]) -> tuple[Values, ...]:
    """Problems written as "4096x4096x1024 1000", in the order of `dims`; one number alone stands for all dimensions."""
    problems = []
    for word in text.split():
        try:
            sizes = [int(size) for size in word.lower().split("x")]
        except ValueError:
            raise BadShape(f"'{word}' is not a shape; write {'x'.join(dims)}, such as {'x'.join(['512'] * len(dims))}") from None
        sizes = sizes * len(dims) if len(sizes) == 1 else sizes
        if len(sizes) != len(dims):
            raise BadShape(f"'{word}' has {len(sizes)} sizes; {'x'.join(dims)} needs {len(dims)}")
        problems.append(Values(dict(zip(dims, sizes))))
    return tuple(problems)
