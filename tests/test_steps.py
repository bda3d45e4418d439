"""Every step of every ladder, as data and as text: launches, tunables, and what its `.cu` promises a reader.  No GPU, no compiler."""

import collections
import functools
import math
import re

import pytest
from kinds import few

from cudalab import includes, pacing, registry, tune
from cudalab.errors import BadConfig, LabError
from cudalab.expressions import cdiv
from cudalab.spec import KERNELS, MAX_ELEMENTS, Pointer
from cudalab.tensormap import TensorMap

STEPS = registry.steps()
SGEMM = [step for step in STEPS if step.op.name == "sgemm"]
NUMBERS_OF_RESULTS = re.compile(r"\d\s*(%|x\b|times|TFLOP|GFLOP|[GTMk]B/s|ms|µs|registers)", re.IGNORECASE)
every_step = pytest.mark.parametrize("step", STEPS, ids=lambda step: step.path)


def signature(step, entry):
    """Parameters of a kernel as its source, or a header of it, writes them: [(is a pointer, name)]."""
    text = step.source.read_bytes()
    texts = [text, *includes.headers(step.source, text)[0].values()]
    found = next(filter(None, (re.search(rf"\b{re.escape(entry)}\s*\(([^)]*)\)\s*\{{", t.decode()) for t in texts)), None)
    assert found, f"{step.source} has no kernel {entry}"
    return [("*" in parameter, re.findall(r"\w+", parameter)[-1]) for parameter in found[1].split(",")]


@functools.cache
def cases(step):
    """Plans of the step for its shapes of every purpose, in the kinds that tests take; a failure says which by the plan's problem."""
    return [step.plan(problem) for problem in dict.fromkeys(problem for purpose in step.op.shapes for problem in few(step, purpose))]


def main_of(plan):
    """The launch of a product's tiles, whatever comes before and after it."""
    return next(launch for launch in plan.launches if launch.entry == "sgemm")


def comment_of(lines, at):
    """The comment on a line or just above it."""
    return "//" in lines[at] or lines[at - 1].lstrip().startswith("//")


# What is launched

@every_step
def test_launches_fit_the_kernel(step):
    """Arguments agree with the source's parameters by name and kind; pointers stay inside their buffers; every output of the op is an
    argument of some launch."""
    parameters_of = functools.cache(functools.partial(signature, step))
    for plan in cases(step):
        problem = plan.problem
        assert plan.launches, problem
        for launch in plan.launches:
            parameters, where = parameters_of(launch.entry), (problem, launch)
            assert [isinstance(a, Pointer) for a in launch.args] == [pointer for pointer, _ in parameters], where
            for argument, (_, name) in zip(launch.args, parameters):
                if isinstance(argument, TensorMap):
                    assert argument.name == name and plan.tensors[name].elements == math.prod(argument.dims), where
                elif isinstance(argument, Pointer):
                    assert 0 <= argument.offset < plan.tensors[argument.name].elements, where
                    assert argument.name == name or argument.name not in step.op.tensors(problem), where
                elif name in problem:
                    padded = launch.entry == "sgemm" and plan.config.get("ALIGN")  # K goes on with zeros to a whole slice
                    assert argument.dtype == "i32", where
                    assert argument.value == problem[name] or padded and argument.value > problem[name], where
            assert 0 <= launch.smem <= 227 * 1024, f"{where}: more dynamic shared memory than any block can have"
        passed = {a.name for launch in plan.launches for a in launch.args if isinstance(a, (Pointer, TensorMap))}
        assert passed >= set(step.op.outputs), problem


@pytest.mark.parametrize("step", SGEMM, ids=lambda step: step.path)
def test_sgemm_blocks_cover_the_output(step):
    """One block a tile unless the step has WORKERS (see below); one thread for its TM x TN outputs, in each of SLICES groups."""
    for plan in cases(step):
        problem, config, launch = plan.problem, plan.config, main_of(plan)
        if "WORKERS" not in config:
            assert math.prod(launch.grid) == cdiv(problem.M, config.BM) * cdiv(problem.N, config.BN), problem
        assert (math.prod(launch.block) * config.get("TM", 1) * config.get("TN", 1)
                == config.BM * config.BN * config.get("SLICES", 1)), problem


STREAM_K = [step for step in SGEMM if "WORKERS" in step.tunables]


@pytest.mark.parametrize("step", STREAM_K, ids=lambda step: step.path)
@pytest.mark.parametrize("workers", [None, 0, 1, 7, 24, 132, 1000])
def test_sgemm_workers_cover_every_slice_once(step, workers):
    """The workers' pieces, cut as the kernel cuts them, hold every slice of every tile once; what one leaves another one takes."""
    for plan in cases(step):
        cover_every_slice_once(step, plan.problem, workers)


def cover_every_slice_once(step, problem, workers):
    config = step.config(problem, {} if workers is None else {"WORKERS": workers})
    plan = step.plan(problem, config)
    main, others = main_of(plan), [launch for launch in plan.launches if launch.entry != "sgemm"]
    k, columns, pitch = (argument.value for argument in main.args[-3:])
    tiles, slices = cdiv(problem.M, config.BM) * cdiv(columns, config.BN), cdiv(k, config.BK * config.SLICES)
    grid = math.prod(main.grid)
    assert grid == (min(config.WORKERS, tiles * slices) or tiles)

    def piece(worker):
        return tiles * slices * worker // grid
    assert (piece(0), piece(grid)) == (0, tiles * slices)
    done, left, taken = collections.defaultdict(list), [], []
    for worker in range(grid):
        begin, end = piece(worker), piece(worker + 1)
        assert begin < end, "a worker without work would never raise the flag that another waits for"
        while begin < end:
            tile, first = divmod(begin, slices)
            last = min(slices, first + end - begin)
            done[tile].append((first, last))
            begin += last - first
            if first > 0:
                left.append((worker, tile))
            else:
                other = worker + 1
                while piece(other) < (tile + 1) * slices:
                    taken.append((other, tile))
                    other += 1
    assert sorted(done) == list(range(tiles))
    for parts in done.values():
        starts, ends = zip(*sorted(parts))
        assert (0, *ends) == (*starts, slices), "a slice twice, or never"
    assert sorted(left) == sorted(taken) and len({worker for worker, _ in left}) == len(left), "one flag a worker, raised and taken once"
    assert plan.tensors["partial"].shape == (grid, config.BM, config.BN)
    assert (plan.tensors["flags"].shape, plan.tensors["flags"].role) == ((grid,), "state")

    assert [launch.entry for launch in others] == ["sgemm_align_b", "sgemm_align_a"] * config.ALIGN
    a, b = main.args[0].name, main.args[1].name
    assert plan.tensors[a].shape == (problem.M, k) and plan.tensors[b].shape == (k, pitch) and pitch % config.VEC_N == 0 and k >= problem.K
    if columns < problem.N:
        assert columns % config.BN == 0 and problem.N - columns <= config.FRINGE and config.ALIGN
        assert plan.tensors["edge"].shape == (problem.N - columns, problem.K)


@pytest.mark.parametrize("step", STREAM_K, ids=lambda step: step.path)
def test_sgemm_check_shapes_share_a_tile_and_leave_a_fringe(step):
    """`check` reaches all of the kernel: one shape at least where workers share tiles while a fringe is left."""
    plans = [step.plan(problem) for problem in step.op.shapes["check"]]
    shared = [(plan, main_of(plan)) for plan in plans if main_of(plan).grid[0] % cdiv(plan.problem.M, plan.config.BM)]
    assert any(main.args[-2].value < plan.problem.N for plan, main in shared)


@pytest.mark.parametrize("step", STREAM_K, ids=lambda step: step.path)
def test_sgemm_kernel_cuts_pieces_as_the_test_above(step):
    code = " ".join(re.sub(r"//.*", "", step.source.read_text()).split())
    assert "static_cast<long long>(tiles_m) * tiles_n * slices * block / static_cast<int>(gridDim.x)" in code
    assert "piece(block) < static_cast<long long>(this_tile + 1) * slices" in code
    assert "while (begin < end)" in code and "if (this_first > 0)" in code and "begin += last - first" in code


@pytest.mark.parametrize("step", SGEMM, ids=lambda step: step.path)
@pytest.mark.parametrize("long", "MNK")
def test_sgemm_takes_the_longest_shapes(step, long):
    """Any shape whose tensors can be indexed can be launched, however long one dimension is."""
    assert step.plan(step.op.problem({dim: MAX_ELEMENTS if dim == long else 1 for dim in "MNK"})).launches
    with pytest.raises(LabError):
        step.op.problem({dim: MAX_ELEMENTS + 1 if dim == long else 1 for dim in "MNK"})


# Tunables

@every_step
def test_tunables_reach_the_source(step):
    """Every tunable stands in the source, or decides what is launched; PACE is for the machine code (test_pacing.py)."""
    code = re.sub(r"//.*", "", step.source.read_text())
    for name in step.tunables.keys() - {pacing.TUNABLE}:
        if not re.search(rf"\b{name}\b", code):
            launched = {(problem, step.plan(problem, step.config(problem, {name: value})).actions)
                        for problem in step.problems("bench") for value in (0, 1, 7) if value or name in step.zero}
            assert len(launched) > len(step.problems("bench")), f"neither {step.source.name} nor its launch depends on {name}"


@every_step
def test_zero_is_taken_where_it_has_a_meaning(step):
    for problem in few(step, "bench"):
        default = step.config(problem)
        for name in step.tunables:
            if name in step.zero:
                assert step.config(problem, {name: 0})[name] == 0
            elif default[name] and 0 not in step.tune.get(name, ()):
                with pytest.raises(BadConfig, match=f"{name}=0 is not legal"):
                    step.config(problem, {name: 0})
    assert set(step.zero) <= set(step.tunables)


@every_step
def test_tune_space_holds_the_default(step):
    for problem in few(step, "bench"):
        default = step.config(problem)
        for name, values in step.tune.items():
            assert name in step.tunables and len(set(values)) == len(values)
            assert default[name] in values
    for problem in dict.fromkeys((few(step, "bench")[0], few(step, "bench")[-1])) if step.tune else ():
        default = step.config(problem)
        legal, refused = tune.space(step, problem, {}, sample=20)
        sampled = min(20, tune.size(step, {}))
        assert legal[0].config == default and sampled <= len(legal) + refused <= sampled + 1
        assert len({plan.config for plan in legal}) == len(legal)


@every_step
def test_unknown_tunable_is_refused(step):
    with pytest.raises(BadConfig, match="NOSUCH"):
        step.config(step.problems("bench")[0], {"NOSUCH": 1})


@pytest.mark.parametrize("step", [s for s in SGEMM if "VEC_N" in s.tunables], ids=lambda step: step.path)
@pytest.mark.parametrize("N, widest", [(4096, 4), (4098, 2), (4097, 1)])
def test_sgemm_vectors_stay_aligned(step, N, widest):
    problem = step.op.problem(dict(M=64, N=N, K=64))
    assert step.config(problem)["VEC_N"] == widest
    for floats in (1, 2, 4, 3, 8, 0):
        if floats in (1, 2, 4) and floats <= widest:
            assert step.plan(problem, step.config(problem, {"VEC_N": floats})).config["VEC_N"] == floats
        else:
            with pytest.raises(BadConfig, match=f"VEC_N={floats}"):
                step.plan(problem, step.config(problem, {"VEC_N": floats}))


# What the source tells its reader

@every_step
def test_source_fits_on_the_table(step):
    lines = step.source.read_text().splitlines()
    assert len(lines) <= 220 and max(map(len, lines)) <= 140


@every_step
def test_header_explains_the_step(step):
    """A title, then what was before, what is now, how a block's work is laid out, and what limits it."""
    title, prose = step.header
    first = step is min(step.op.steps, key=lambda s: s.number)
    assert 10 <= len(title) <= 120 and "block" in prose.lower()
    assert step.source.read_text().splitlines()[0].endswith(".")
    for heading in ("Limited now by:",) if first else ("Before:", "Now:", "Limited now by:"):
        assert prose.count(heading) == 1, f"{step.source.name}: '{heading}' stands {prose.count(heading)} times in its header"


@every_step
def test_header_states_no_number_of_another_place(step):
    """Values of tunables belong to the step function, results to the benchmark; prose repeats neither."""
    prose = re.sub(r"steps? \d+", "", "\n".join(step.header))
    assert not NUMBERS_OF_RESULTS.search(prose), NUMBERS_OF_RESULTS.search(prose)
    owned = {str(step.config(problem)[name]) for problem in few(step, "bench") for name in step.tunables if not name.startswith("VEC")}
    assert not owned & set(re.findall(r"(?<![\w*.-])\d+(?![\w*.-])", prose)) - {"1", "2", "4"}


@every_step
def test_named_steps_exist(step):
    """A header's "see step N" is a step of the same ladder, and never this one."""
    named = {int(n) for n in re.findall(r"\bsteps? (\d+)", "\n".join(step.header))}
    assert named <= {s.number for s in step.op.steps} - {step.number}


@every_step
def test_barriers_name_their_hazard(step):
    lines = step.source.read_text().splitlines()
    for at, line in enumerate(lines):
        if re.search(r"__syncthreads\(|__syncwarp\(|bar\.sync", line):
            assert comment_of(lines, at), f"{step.source.name}:{at + 1}: a barrier without a comment"


@every_step
def test_kernels_bound_their_blocks_and_asserts_speak(step):
    code = re.sub(r"//.*", "", step.source.read_text())
    kernels = re.findall(r"__global__\s+void([^{]*)\{", code)
    assert kernels and all("__launch_bounds__" in head for head in kernels)
    for assertion in re.findall(r"static_assert\(.*", code):
        assert re.search(r',\s*"[^"]{8,}"\);$', assertion.rstrip()), f"{step.source.name}: no readable message: {assertion}"


def test_every_source_is_a_step():
    """No `.cu` lies about that no step owns, no number stands twice, and every name leads back to its step."""
    assert set(KERNELS.rglob("*.cu")) == {step.source for step in STEPS}
    for op in registry.ops().values():
        numbers = [step.number for step in op.steps]
        assert numbers == sorted(set(numbers))
    for step in STEPS:
        assert registry.resolve(step.path) is step


def test_shapes_are_awkward_enough():
    """The check shapes of every op hold one with a dimension of 1 and one whose dimensions are all odd, unless no step takes odd ones."""
    for op in registry.ops().values():
        problems, odd = op.shapes["check"], op.problem(dict.fromkeys(op.dims, 7))
        assert any(min(p.values()) == 1 for p in problems)
        assert any(all(v % 2 for v in p.values()) for p in problems) or all(step.refuses(odd) for step in op.steps)
