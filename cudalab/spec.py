"""What is computed and how it is launched, as plain data: Op, Step, Plan.  The standard library only: `list` is fast.

A step is a pure function from (problem, config) to what a device shall do: `Launch`, `Fill`, `Copy` over named buffers.
A backend runs it; nothing here touches a device.
"""

import math
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cudalab.dtypes import itemsize
from cudalab.errors import BadConfig, BadLaunch, BadShape, UnknownName
from cudalab.expressions import evaluate
from cudalab.problem import Problem, Values, shapes  # noqa: F401  (parts write `spec.shapes`)
from cudalab.tensormap import TensorMap

KERNELS = Path(__file__).resolve().parent.parent / "kernels_cu"

MAX_GRID = (2**31 - 1, 65535, 65535)  # CUDA C++ Programming Guide, "Compute Capabilities", technical specifications
MAX_BLOCK = (1024, 1024, 64)
# Kernels index with 32-bit integers.  What is left over keeps below 2^31 what overhangs an edge: a tile, or where the threads of a launch
# would go on, up to AHEAD elements further.
AHEAD = 2**24
MAX_ELEMENTS = 2**31 - AHEAD


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


def i64(value: int) -> Scalar:
    return Scalar(value, "i64")


def f32(value: float) -> Scalar:
    return Scalar(value, "f32")


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    entry: the kernel's name in the source (extern "C", or a C++ name expression such as `gemm<128, 8>`).
    grid: blocks; block: threads, each an int or up to three.  cluster: blocks of one cluster (the grid still counts blocks).
    args: names separated by spaces (a tensor is passed as its address, a dimension as a 32-bit integer), or a tuple of names,
    Scalar, Pointer and TensorMap values.  smem: dynamic shared memory in bytes.
    early: it may start while the launch ahead of it ends; its kernel waits for that one (griddepcontrol.wait) before it touches memory.
    CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization" (sm_90; before that it starts when the other has ended).
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
    problem: Problem
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

    dims: names of the problem's dimensions.  dtypes, variants: what `problem.dtype` and `problem.variant` may be, the usual one first.
    inputs, outputs: tensor name -> its shape as expressions over the dimensions, of the problem's type of elements unless it names its own
    ("i32: M"); where that depends on the kind, a function of the problem that gives the text.
    reference: the inputs (float64) as keyword arguments -> the output array (with several outputs: a tuple in their order).
    scale: the same -> per element of the output, the magnitude that errors are measured against (integer outputs must be equal).
    Both get the problem too, as `p`, if they have a parameter of that name; only its kind counts, where inputs are cut to a sample.
    depth: problem -> number of terms that one output element sums.  unit: problem -> unit roundoff of the accumulator.
    flops, bytes: problem -> floating-point operations, bytes of compulsory traffic (each input read once, each output written once).
    samples: ways to cut the problem down to a part that NumPy can check: tensor name -> axis along which it is cut; or a function of the
    problem that gives them.  kinds: of input, see `check`; draw(tensor, problem, kind, rng) makes an input of its own kind of kind, as
    float32 of the generator's module, or gives None where the usual will do.
    peers: names in `cudalab.peers` of the libraries to compare with.
    shapes: purpose (emulate, check, bench) -> sizes; here they become problems of the usual kind.
    """

    name: str
    title: str
    dims: tuple[str, ...]
    inputs: Mapping[str, str | Callable[[Problem], str]]
    outputs: Mapping[str, str | Callable[[Problem], str]]
    reference: Callable
    scale: Callable
    depth: Callable[[Problem], int]
    flops: Callable[[Problem], int]
    bytes: Callable[[Problem], int]
    samples: tuple[Mapping[str, int], ...] | Callable[[Problem], tuple[Mapping[str, int], ...]]
    peers: tuple[str, ...]
    shapes: Mapping[str, tuple[Values, ...]]
    dtypes: tuple[str, ...] = ("f32",)
    variants: tuple[str | None, ...] = (None,)
    unit: Callable[[Problem], float] = lambda p: 2.0**-24
    kinds: tuple[str, ...] = ("normal", "integers")
    draw: Callable | None = None
    steps: list["Step"] = field(default_factory=list)

    def __post_init__(self):
        usual = {purpose: tuple(Problem(sizes, self.dtypes[0], self.variants[0]) for sizes in found)
                 for purpose, found in self.shapes.items()}
        object.__setattr__(self, "shapes", types.MappingProxyType(usual))

    def problem(self, sizes: Mapping[str, int], dtype: str | None = None, variant: str | None = None) -> Problem:
        """A checked problem, of the usual kind unless one is named.

        Raises BadShape for missing, unknown, zero or too large dimensions, UnknownName for a kind that the op does not have.
        """
        if set(sizes) != set(self.dims):
            raise BadShape(f"{self.name} has the dimensions {' '.join(self.dims)}; got {' '.join(sizes) or 'none'}")
        for dim in self.dims:
            if not isinstance(sizes[dim], int) or sizes[dim] < 1:
                raise BadShape(f"{dim}={sizes[dim]}: every dimension of {self.name} must be an integer of at least 1")
        problem = Problem({dim: sizes[dim] for dim in self.dims}, dtype or self.dtypes[0], variant or self.variants[0])
        for what, value, known in (("dtype", problem.dtype, self.dtypes), ("variant", problem.variant, self.variants)):
            if value not in known:
                raise UnknownName(f"{self.name} has no {what} '{value}'; it has {' '.join(str(name) for name in known)}")
        for tensor in self.tensors(problem).values():
            if tensor.elements > MAX_ELEMENTS:
                raise BadShape(f"{tensor.name} of {problem} has {tensor.elements} elements; the kernels index with 32 bits, "
                               f"at most {MAX_ELEMENTS}: take a smaller shape")
        return problem

    def tensors(self, problem: Problem) -> dict[str, Tensor]:
        """The op's own buffers, inputs first."""
        def make(name, text, role):
            dtype, _, shape = (text(problem) if callable(text) else text).rpartition(":")
            return Tensor(name, evaluate(shape, problem), dtype.strip() or problem.dtype, role)
        both = (self.inputs, "in"), (self.outputs, "out")
        return {name: make(name, text, role) for texts, role in both for name, text in texts.items()}

    def cuts(self, problem: Problem) -> tuple[Mapping[str, int], ...]:
        """The op's `samples` for this problem."""
        return self.samples(problem) if callable(self.samples) else self.samples

    def step(self, number: int, *, min_sm: int | Callable[[Problem], int] = 80, max_sm: int = 999,
             tune: Mapping[str, tuple[int, ...]] = types.MappingProxyType({}), zero: tuple[str, ...] = (), spills: bool = False,
             dtypes: tuple[str, ...] = (), variants: tuple[str | None, ...] = (), emulate: str = "",
             **tunables: int | Callable[[Problem], int]):
        """Register the decorated plan function as step `number`; its name and the number give the `.cu` file.

        tunables: NAME=default, an integer, a function of the problem, or one of problem and config for a tunable that follows from others
        (those before it, and all that do not follow); one named PACE is for the machine code (pacing.py), all are macros of the source.
        tune: NAME -> values that `tune` searches.
        zero: names of tunables for which 0 has a meaning.  min_sm: the lowest compute capability that runs it, a function of the problem
        where that depends on the kind; max_sm: the highest (wgmma ends with 9.0).  spills: the step may spill registers.
        dtypes, variants: those of the op that it takes, by default all.  emulate: shapes for the emulator in place of the op's, as text.
        """
        def register(plan):
            step = Step(self, number, plan.__name__, KERNELS / self.name / f"{number:02d}_{plan.__name__}.cu", plan,
                        types.MappingProxyType(dict(tunables)), types.MappingProxyType(dict(tune)), min_sm, spills, zero, dtypes, variants,
                        max_sm, shapes(emulate, self.dims))
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
    make_actions: Callable[[Problem, Values], Iterator]
    tunables: Mapping[str, int | Callable[[Problem], int]]
    tune: Mapping[str, tuple[int, ...]]
    min_sm: int | Callable[[Problem], int] = 80
    spills: bool = False
    zero: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()  # none: all that the op has; so for variants
    variants: tuple[str | None, ...] = ()
    max_sm: int = 999
    emulate: tuple[Values, ...] = ()  # shapes for the emulator; none: the op's
    folders: tuple[Path, ...] = ()  # where headers lie beside its own folder and the common one

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

    def kinds(self, dtypes: Sequence[str] = (), variants: Sequence[str | None] = ()) -> list[tuple[str, str | None]]:
        """The kinds of problem that the step takes, as (dtype, variant), the usual one first; of those named, where some are."""
        return [(dtype, variant) for dtype in self.dtypes or self.op.dtypes for variant in self.variants or self.op.variants
                if dtype in (dtypes or (dtype,)) and variant in (variants or (variant,))]

    def refuses(self, problem: Problem) -> str:
        """Why the step cannot take a problem of its op; empty where it can."""
        try:
            self.plan(problem)
        except BadShape as error:
            return str(error)
        return ""

    def capabilities(self, problem: Problem) -> str:
        """The compute capabilities that run the step on a problem of this kind, as words."""
        lowest = self.min_sm(problem) if callable(self.min_sm) else self.min_sm
        return f"compute capability {lowest / 10}" + ("" if self.max_sm == lowest else " or later")

    def runs_on(self, sm: int, problem: Problem) -> bool:
        """Whether a device of this compute capability has the instructions that a problem of this kind needs."""
        return (self.min_sm(problem) if callable(self.min_sm) else self.min_sm) <= sm <= self.max_sm

    def shapes(self, purpose: str) -> tuple[Values, ...]:
        """The op's shapes for a purpose; for the emulator its own, where it has some."""
        return self.emulate if purpose == "emulate" and self.emulate else self.op.shapes[purpose]

    def problems(self, purpose: str, dtypes: Sequence[str] = (), variants: Sequence[str | None] = ()) -> list[Problem]:
        """Its shapes for a purpose, those that it takes, of each kind named, by default of every kind."""
        found = [self.op.problem(sizes, *kind) for kind in self.kinds(dtypes, variants) for sizes in self.shapes(purpose)]
        return [problem for problem in found if not self.refuses(problem)]

    def config(self, problem: Problem, overrides: Mapping[str, int] = types.MappingProxyType({})) -> Values:
        """The tunables for a problem, those that follow from others last.

        Raises BadConfig for a name that the step does not have, or a value below 1 that it never takes.
        """
        for name in overrides:
            if name not in self.tunables:
                raise BadConfig(f"{self.path} has no tunable {name}; it has {' '.join(self.tunables) or 'none'}")
        chosen, known = {}, {}
        for name, value in sorted(self.tunables.items(), key=lambda item: _follows(item[1])):  # a stable sort: otherwise as declared
            given = (problem, Values(known)) if _follows(value) else (problem,)
            chosen[name] = int(value(*given)) if callable(value) else int(value)
            known[name] = overrides.get(name, chosen[name])
            if known[name] < (name not in self.zero) and known[name] not in (chosen[name], *self.tune.get(name, ())):
                raise BadConfig(f"{self.path}: {name}={known[name]} is not legal: {self._legal(name, chosen[name])}")
        return Values({name: known[name] for name in self.tunables})

    def _legal(self, name: str, default: int) -> str:
        """Values of a tunable that a person could take instead."""
        values = dict.fromkeys((default, *self.tune.get(name, ())))
        return f"it is {default} by default" + (f"; 'tune' tries {' '.join(map(str, sorted(values)))}" if len(values) > 1 else "")

    def plan(self, problem: Problem, config: Values | None = None) -> Plan:
        """What to launch for this problem.  Raises BadShape, BadConfig or BadLaunch before anything runs."""
        if problem.kind not in self.kinds():
            wanted, *taken = (" ".join(filter(None, kind)) for kind in (problem.kind, *self.kinds()))
            raise BadShape(f"{self.path} takes {', '.join(taken)}; not {wanted}: take another step of the ladder")
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


def _follows(tunable) -> bool:
    """Whether a tunable's default is a function of other tunables, too."""
    return callable(tunable) and tunable.__code__.co_argcount == 2


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
        case Scalar(value=int(value), dtype=dtype) if (found := re.fullmatch(r"([iu])(8|16|32|64)", dtype)):
            lowest, bits = (-(2 ** (int(found[2]) - 1)), int(found[2])) if found[1] == "i" else (0, int(found[2]))
            if not lowest <= value < lowest + 2**bits:
                raise BadLaunch(f"{entry}: argument {value} does not fit {dtype}, which holds {lowest} to {lowest + 2**bits - 1}")
            return argument
        case Pointer() | Scalar():
            return argument
        case TensorMap(name=name):
            if name not in tensors:
                raise BadLaunch(f"{entry}: a tensor map over '{name}', which is none of the tensors {' '.join(tensors)}")
            return argument
        case str() if argument in tensors:
            return Pointer(argument)
        case str() if argument in problem:
            return _argument(i32(problem[argument]), tensors, problem, entry)
    raise BadLaunch(f"{entry}: argument '{argument}' is neither a tensor ({' '.join(tensors)}) nor a dimension ({' '.join(problem)})")
