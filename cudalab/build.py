"""From a plan to machine code: .cu -> PTX, cubin, SASS, resources.  The folder that holds them is cache and dump in one."""

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import shutil
import time
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cudalab import includes, nvrtc, pacing, sass
from cudalab.dtypes import itemsize
from cudalab.errors import BadLaunch, CompileError, LabError, Spills
from cudalab.installed import cure
from cudalab.occupancy import limits, occupancy
from cudalab.spec import KERNELS, Plan, Pointer, Scalar, Step
from cudalab.tensormap import TensorMap

TARGETS = ("sm_80", "sm_89", "sm_90a", "sm_120a")  # what every step is tested against
FORMAT = 1  # of kernel.json; raise it when what it holds changes
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
PARAM = re.compile(r"\.param(?:\s+\.align\s+\d+)?\s+\.(\w+)(?:\s+\.\w+(?:\s+\d+)?)*\s+[\w$]+(?:\[(\d+)\])?")
KINDS = {"f32": "f32", "f64": "f64", "u64": "ptr", "s64": "ptr", "b64": "ptr", "u32": "i32", "s32": "i32", "b32": "b32",
         "u16": "i16", "s16": "i16", "b16": "i16", "f16": "f16", "u8": "i8", "s8": "i8", "b8": "i8"}  # PTX type -> Param.kind


@dataclass(frozen=True)
class Param:
    """A kernel parameter of `size` bytes.  kind: ptr (an address or any 64-bit integer: PTX does not tell which), i32, f32, …, bytes."""

    kind: str
    size: int


@dataclass(frozen=True)
class Kernel:
    """What a compiled kernel takes.  symbol: its name in PTX and cubin.  registers: per thread; stack and spills: bytes per thread;
    static_smem: bytes per block; max_threads: threads of a block that its launch bounds allow, None without any."""

    entry: str
    symbol: str
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    static_smem: int
    max_threads: int | None
    params: tuple[Param, ...]


@dataclass(frozen=True)
class Build:
    """A compiled plan.  kernels: by the entry that launches name.  log: NVRTC's and ptxas's.  seconds: what this call of build took."""

    folder: Path
    target: str
    kernels: Mapping[str, Kernel]
    log: str
    cached: bool
    seconds: float
    source: str = field(repr=False)
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)
    _listing: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def sass(self) -> str:
        """The SASS with source lines, kept as kernel.sass in the folder where that can be written.  Raises MissingTool without nvdisasm."""
        if not self._listing:  # cached_property would let one thread at a time make any build's, in Python 3.11
            self._listing.append(self._disassembled())
        return self._listing[0]

    def _disassembled(self) -> str:
        path = self.folder / "kernel.sass"
        try:
            head, _, listing = path.read_text().partition("\n")
            if head == _sass_head(listing):
                return listing
        except (OSError, UnicodeDecodeError):
            pass  # not there yet, or damaged: written anew
        listing = sass.disassemble(self.folder / "kernel.cubin")
        temporary = self.folder / f".sass-{os.getpid()}-{os.urandom(4).hex()}"
        try:
            temporary.write_text(f"{_sass_head(listing)}\n{listing}")
            temporary.replace(path)
        except OSError:
            pass  # what cannot be kept can still be read
        finally:
            _remove(temporary)
        return listing


def target_for(sm: int) -> str:
    """The target that holds all of a device's instructions: 89 -> sm_89, 90 -> sm_90a (wgmma and its like exist only with the a)."""
    return f"sm_{sm}a" if sm >= 90 else f"sm_{sm}"


def sm_of(target: str) -> int:
    """The compute capability of a target: sm_90a -> 90.  Raises LabError for what is not a target."""
    if not (found := re.fullmatch(r"sm_(\d{2,3})[af]?", target)):
        raise LabError(f"'{target}' is not a target; write {', '.join(TARGETS)} or another of that form")
    return int(found[1])


def dumps_folder(dumps: Path | None = None) -> Path:
    """Where builds are kept: `dumps`, else $CUDALAB_DUMPS, else dumps/ of the checkout, else the user's cache folder."""
    if chosen := dumps or os.environ.get("CUDALAB_DUMPS"):
        return Path(chosen).absolute()
    if (KERNELS.parent / "setup.cfg").exists():
        return KERNELS.parent / "dumps"
    import platformdirs
    return platformdirs.user_cache_path("cudalab") / "dumps"


def build(plan: Plan, target: str, *, dumps: Path | None = None) -> Build:
    """Compile the plan's kernels for `target` (such as sm_90a), or take them from the cache.

    The plan's config goes in as macros, its problem's kind as DTYPE_BF16 and VARIANT_NT, say; an entry that is not a plain identifier is a
    C++ name expression.
    Raises BadConfig if a static_assert fails or resources run out, CompileError for any other refusal (Spills for a spill that the
    step is not there to teach), MissingTool without NVRTC, LabError if the dumps folder cannot be written.
    """
    started = time.perf_counter()
    step = plan.step
    if not step.runs_on(sm_of(target), plan.problem):
        raise CompileError(f"{step.path} needs {step.capabilities(plan.problem)}, which {target} is not: choose another --arch")
    source = step.source.absolute()
    try:
        text = source.read_bytes()
    except OSError as error:
        raise CompileError(f"{source} cannot be read: {error.strerror}") from None
    includes.require_text(source, text)
    names = sorted({launch.entry for launch in plan.launches if not IDENTIFIER.fullmatch(launch.entry)})
    headers, folders = _headers(source, text, step.folders)
    options = [f"--gpu-architecture={target}", "-std=c++17", "-lineinfo", *_macros(plan),
               *(f"-I{folder}" for folder in folders), "--ptxas-options=-v", "--ptxas-options=-warn-spills"]
    pace = plan.config.get(pacing.TUNABLE, 0)
    made_by = [FORMAT, pacing.VERSION] if pace else [FORMAT]
    key = _digest(json.dumps([*made_by, str(source), _digest(text), headers, options, names, nvrtc.version()]).encode())
    folder = dumps_folder(dumps) / step.op.name / step.id / f"{target}-{key[:12]}"

    record, cached = _load(folder, key), True
    if record is None:
        cached = False
        program = nvrtc.compile_program(source, text, options, names)
        ptx = program.ptx.decode()
        about = dict(key=key, step=step.path, source=str(source), target=target, config=dict(plan.config), nvrtc=nvrtc.version(),
                     options=options, headers=headers, log=program.log,
                     kernels=[asdict(kernel) for kernel in _kernels(ptx, program.log, program.symbols)])
        cubin = pacing.paced(program.cubin, pace)
        files = {"kernel.cu": text, "kernel.ptx": program.ptx, "kernel.cubin": cubin}
        _store(folder, key, about, files)
        record = about, files
    about, files = record
    kernels = {k["entry"]: Kernel(**k | {"params": tuple(Param(**p) for p in k["params"])}) for k in about["kernels"]}
    _refuse_slow_code(step, kernels.values(), about["log"], folder)
    return Build(folder, target, types.MappingProxyType(kernels), about["log"], cached, time.perf_counter() - started,
                 files["kernel.cu"].decode(errors="replace"), files["kernel.ptx"].decode(), files["kernel.cubin"])


def _macros(plan: Plan) -> list[str]:
    kind = [f"{what}_{name.upper()}" for what, name in zip(("DTYPE", "VARIANT"), plan.problem.kind) if name]
    return [f"-D{name}={value}" for name, value in (*plan.config.items(), *((name, 1) for name in kind))]


def verify(build: Build, plan: Plan) -> None:
    """Do the plan's launches fit the compiled kernels?  Raises BadLaunch that says which does not, and why."""
    sm = sm_of(build.target)
    for launch in plan.launches:
        kernel = build.kernels.get(launch.entry)
        if kernel is None:
            if re.search(rf"\btemplate\s*<[^;{{}}]*\b{re.escape(launch.entry)}\s*\(", build.source):
                raise BadLaunch(f"{plan.step.source.name}: '{launch.entry}' is a template, and what is compiled is an instance: name one, "
                                f"such as --entry '{launch.entry}<128>'")
            raise BadLaunch(f"{plan.step.source.name} has no kernel '{launch.entry}'; it has {', '.join(build.kernels) or 'none'}")
        _verify_arguments(kernel, launch.args)
        threads = math.prod(launch.block)
        if kernel.max_threads is not None and threads > kernel.max_threads:
            raise BadLaunch(f"{launch.entry}: a block of {threads} threads; its __launch_bounds__ allow {kernel.max_threads}")
        smem = kernel.static_smem + launch.smem
        if smem > limits(sm).smem_per_block:
            raise BadLaunch(f"{launch.entry} needs {smem} bytes of shared memory a block; {build.target} has {limits(sm).smem_per_block}: "
                            f"take smaller tiles or fewer stages")
        if not occupancy(sm, threads, kernel.registers, smem).blocks:
            raise BadLaunch(f"{launch.entry}: {threads} threads of {kernel.registers} registers are more than {build.target} holds")
        if launch.cluster and (sm < 90 or any(size % part for size, part in zip(launch.grid, launch.cluster))):
            raise BadLaunch(f"{launch.entry}: clusters of {launch.cluster} need sm_90 and a grid that they divide, not {launch.grid}")


def _verify_arguments(kernel: Kernel, args: tuple[Pointer | Scalar | TensorMap, ...]) -> None:
    if len(args) != len(kernel.params):
        raise BadLaunch(f"{kernel.entry} takes {len(kernel.params)} parameters; the launch passes {len(args)}")
    for number, (argument, param) in enumerate(zip(args, kernel.params), 1):
        match argument:
            case Pointer(name=name):
                given, kinds, size = f"the address of {name}", ("ptr",), 8
            case Scalar(dtype=dtype, value=value):
                size = itemsize(dtype)
                given, kinds = f"{value} as {dtype}", _scalar_kinds(dtype, size)
            case TensorMap(name=name):
                given, kinds, size = f"a tensor map over {name}", ("bytes",), 128
        if param.size != size or param.kind not in kinds:
            raise BadLaunch(f"{kernel.entry}: parameter {number} is {param.kind} of {param.size} bytes; the launch passes {given}")


def _scalar_kinds(dtype: str, size: int) -> tuple[str, ...]:
    if dtype == "f16":  # a struct of two bytes to the compiler
        return ("f16", "i16", "bytes")
    return (dtype, f"b{8 * size}") if dtype.startswith("f") else ("ptr" if size == 8 else f"i{8 * size}", f"b{8 * size}")


def _headers(source: Path, text: bytes, more: tuple[Path, ...]) -> tuple[list[tuple[str, str]], list[Path]]:
    """What the key must know of the headers that a source includes, directly or not, and the include folders in order.

    more: folders of headers beside the source's.  Ours go by their digest.  CUDA's own are looked for only when an include is found in none
    of our folders, so a lean kernel compiles without them; they go by the time their folder last changed, as by an upgrade: reading
    them all takes up to 0.4 s.
    """
    found, outside = includes.headers(source, text, more)
    toolkit = nvrtc.include_folders() if outside else ()
    known = [(str(path), _digest(content)) for path, content in found.items()]
    known += [(str(folder), f"changed {folder.stat().st_mtime_ns}") for folder in toolkit]
    return known, [source.parent, *more, includes.COMMON, *toolkit]


def _kernels(ptx: str, log: str, symbols: Mapping[str, str]) -> list[Kernel]:
    """Every entry of the PTX with the resources that ptxas reports."""
    resources, current = {}, {}
    for line in log.splitlines():
        if found := re.search(r"Compiling entry function '(.+?)' for", line):
            current = resources[found[1]] = dict(registers=None, stack=None, spill_stores=0, spill_loads=0, static_smem=0)
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stack, stores, loads = map(int, found.groups())
            # the kernel's own line comes first, then those of functions it calls and that were not inlined: their spills are its spills
            current.update(stack=stack if current["stack"] is None else current["stack"],
                           spill_stores=current["spill_stores"] + stores, spill_loads=current["spill_loads"] + loads)
        elif found := re.search(r"Used (\d+) registers", line):
            smem = re.search(r"(\d+) bytes smem", line)
            current.update(registers=int(found[1]), static_smem=int(smem[1]) if smem else 0)
    entries = {symbol: name for name, symbol in symbols.items()}
    plain = [_plain_name(symbol) for symbol in resources]
    kernels = []
    for symbol, params, directives in re.findall(r"\.entry\s+([\w$]+)\s*(?:\((.*?)\))?(.*?)\{", ptx, re.DOTALL):
        used = resources.get(symbol)
        if used is None or used["registers"] is None or used["stack"] is None:
            raise CompileError(f"NVRTC {nvrtc.version()} compiled '{symbol}' but its log does not say what registers and stack it takes, "
                               f"so the lab cannot use it: keep to the NVRTC of the extras ({cure()})")
        threads = re.search(r"\.(?:maxntid|reqntid)\s+([\d, ]+)", directives)
        name = _plain_name(symbol)
        kernels.append(Kernel(
            entries.get(symbol) or (name if plain.count(name) == 1 else symbol), symbol, **used,
            max_threads=math.prod(map(int, threads[1].split(","))) if threads else None,
            params=tuple(_param(declaration) for declaration in params.split(",") if declaration.strip())))
    return kernels


def _plain_name(symbol: str) -> str:
    """The name of a function without a namespace or template arguments, as C++ mangles it: _Z4axpyPf -> axpy.  Others stay as they are."""
    if not (found := re.match(r"_Z(\d+)", symbol)):
        return symbol
    name, rest = symbol[found.end():][:int(found[1])], symbol[found.end() + int(found[1]):]
    return symbol if rest.startswith("I") else name


def _param(declaration: str) -> Param:
    kind, size = PARAM.fullmatch(declaration.strip()).groups()
    return Param("bytes", int(size)) if size else Param(KINDS[kind], int(re.sub(r"\D", "", kind)) // 8)


def _refuse_slow_code(step: Step, kernels, log: str, folder: Path) -> None:
    """Raises Spills or CompileError for code that works but that a step must not be: spilled registers, serialised wgmma."""
    for kernel in kernels:
        if (kernel.spill_stores or kernel.spill_loads) and not step.spills:
            raise Spills(f"{step.path}: {kernel.entry} spills {kernel.spill_stores} bytes stored and {kernel.spill_loads} loaded a thread "
                         f"at {kernel.registers} registers: take a smaller tile or looser __launch_bounds__ (code in {folder})")
    if warning := re.search(r".*wgmma.* serialized.*", log):
        raise CompileError(f"{step.path}: {warning[0].strip()} (code in {folder})")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sass_head(listing: str) -> str:
    return f"// nvdisasm {' '.join(sass.FLAGS)} kernel.cubin; sha256 of what follows: {_digest(listing.encode())}"


def _load(folder: Path, key: str) -> tuple[dict, dict[str, bytes]] | None:
    """What a folder of the cache holds; None if it is not there or damaged: it is then written anew."""
    try:
        about = json.loads((folder / "kernel.json").read_text())
        digest = about.pop("digest")
        files = {name: (folder / name).read_bytes() for name in about["files"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    whole = about.get("key") == key and digest == _digest(json.dumps(about).encode())
    return (about, files) if whole and all(_digest(files[name]) == known for name, known in about["files"].items()) else None


def _store(folder: Path, key: str, about: dict, files: Mapping[str, bytes]) -> None:
    """Write the folder beside its place and rename it: another process sees all of it or nothing, and an interrupt leaves nothing."""
    about = about | {"files": {name: _digest(content) for name, content in files.items()}}
    about["digest"] = _digest(json.dumps(about).encode())
    unique = f"{os.getpid()}-{os.urandom(4).hex()}"
    temporary, damaged = folder.parent / f".new-{unique}", folder.parent / f".old-{unique}"
    try:
        temporary.mkdir(parents=True)
        for name, content in files.items():
            (temporary / name).write_bytes(content)
        (temporary / "kernel.json").write_text(json.dumps(about, indent=1))
        for _ in range(20):
            try:
                temporary.rename(folder)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            if _load(folder, key):
                return  # another process was faster, with the same result
            with contextlib.suppress(FileNotFoundError):  # unless another process has just moved it away
                folder.rename(damaged)
            _remove(damaged)
        raise OSError(errno.EBUSY, "others keep replacing it")
    except OSError as error:
        raise _unwritable(folder, error) from None
    finally:
        _remove(temporary)
        _remove(damaged)


def _remove(path: Path) -> None:
    """Remove a file or folder; what cannot be removed stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _unwritable(folder: Path, error: OSError) -> LabError:
    return LabError(f"{folder} cannot be written ({error.strerror}): "
                    f"choose another place with 'cli.py --dumps DIR COMMAND' or CUDALAB_DUMPS")
