"""Part 8: special values as NumPy has them, shapes, clusters, pipelines, the same bits every time, rows that stand apart, the library."""

import dataclasses
import types

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cudalab import check, functions, registry
from cudalab.build import build, verify
from cudalab.dtypes import encode, numpy_dtype
from cudalab.emulator import Emulator
from cudalab.errors import BadShape, LabError, Spills
from cudalab.spec import Fill, Tensor, f32, i64

OPS = registry.ops()
UNSTABLE = {"softmax/01_unshifted", "layernorm/01_two_moments"}  # the stability study shows how they fail
STABLE = [step for name in ("softmax", "rmsnorm", "layernorm", "argmax", "axis") for step in OPS[name].steps if step.path not in UNSTABLE]
INF, NAN = float("inf"), float("nan")
LIMIT = {"rmsnorm": 1e17, "layernorm": 1e17}  # squares of what is larger add up to more than f32 has, in NumPy's too
SPECIAL = (0.0, -0.0, 1.0, -2.5, 1e-40, -1e-30, 80.0, 1e4, -1e4, 5e16, 3e38, -3e38, INF, -INF, NAN)
once = settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def judge(step, problem, x, place, overrides=types.MappingProxyType({})):
    op = step.op
    inputs = check.draw(op, problem, "normal", check.generator(0)) | {"x": encode(np.asarray(x, np.float32), problem.dtype)}
    plan = step.plan(problem, step.config(problem, overrides))
    return check.compare(op, problem, inputs, place.run(plan, inputs), exact=False)


# -- special values

def special_rows(step, drawn, dtype, width):
    """Rows that hold what was drawn, and some that are nothing else."""
    limit = LIMIT.get(step.op.name, INF)
    with np.errstate(over="ignore"):
        allowed = [v for v in SPECIAL if not np.isfinite(v) or abs(v) < limit and np.isfinite(np.float64(v).astype(numpy_dtype(dtype)))]
    x = np.random.default_rng(0).standard_normal((8, width)).astype(np.float32)
    for row, column, value in drawn:
        x[row, column] = allowed[value % len(allowed)]
    x[5], x[6], x[7] = -INF, NAN, 2.0
    return x


def special_cases():
    """Every step, the last of each ladder in all its types, and those that have clusters with rows that two blocks share."""
    for step in STABLE:
        for dtype in dict.fromkeys(dtype for dtype, _ in step.kinds()) if step is step.op.steps[-1] else ("f32",):
            yield pytest.param(step, dtype, 40, {}, id=f"{step.path}-{dtype}")
        if "CLUSTER" in step.tunables:
            yield pytest.param(step, "bf16", 1104, dict(CLUSTER=2), id=f"{step.path}-two-blocks")


@pytest.mark.parametrize("step, dtype, width, tunables", list(special_cases()))
def test_special_values_come_out_as_numpy_has_them(step, dtype, width, tunables):
    problem = step.op.problem(dict(M=8, N=width), dtype, step.kinds()[-1][1])  # of the variants the last: a maximum
    place = Emulator()

    @once
    @given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, width - 1), st.integers(0, 99)), max_size=24))
    def check_them(drawn):
        verdict = judge(step, problem, special_rows(step, drawn, dtype, width), place, tunables)
        assert verdict, verdict.reason
    check_them()


@pytest.mark.parametrize("variant", ("sum_first", "sum_last", "mean_last", "max_first"))
def test_special_values_along_either_axis(variant):
    steps = [step for step in OPS["axis"].steps if variant in {kind for _, kind in step.kinds()}]
    assert steps
    for step in steps:
        drawn = [(0, 3, 12), (1, 4, 13), (2, 5, 12), (2, 6, 13), (3, 7, 14), (4, 8, 4)]  # inf, -inf, both, NaN, subnormal
        verdict = judge(step, step.op.problem(dict(M=8, N=40), "f32", variant), special_rows(step, drawn, "f32", 40), Emulator())
        assert verdict, f"{step.path}: {verdict.reason}"


@pytest.mark.parametrize("step", OPS["argmax"].steps, ids=lambda step: step.path)
def test_the_lowest_place_of_equals_wins(step):
    problem = step.op.problem(dict(M=7, N=1104), "f16")
    x = np.zeros((7, 1104), np.float32)
    x[1, [1103, 700, 8]] = 3
    x[2, :] = -INF
    x[3, [900, 17]] = NAN
    x[3, 3] = INF
    x[4, :], x[4, [1000, 5]] = -1, [-0.0, 0.0]
    x[5, :], x[5, [5, 1000]] = -1, [-0.0, 0.0]
    x[6, :], x[6, [5, 6]] = -1, [-0.0, 0.0]
    plan = step.plan(problem)
    assert list(Emulator().run(plan, {"x": x.astype(np.float16)})["index"]) == [0, 8, 0, 17, 5, 5, 5] == list(x.argmax(1))


@pytest.mark.parametrize("N", (33, 130, 200))
@pytest.mark.parametrize("step", OPS["argmax"].steps, ids=lambda step: step.path)
def test_nothing_past_the_end_of_a_row_counts(step, N):
    """Of rows whose largest element is negative, and of a thread whose last loads would lie past the end."""
    problem = step.op.problem(dict(M=3, N=N), "f32")
    x = -1 - np.random.default_rng(0).random((3, N), np.float32)
    tunables = {name: value for name, value in dict(CLUSTER=2, SPLIT=2, LANES=32, LOADS=4).items() if name in step.tunables}
    assert judge(step, problem, x, Emulator(), tunables)


def test_unshifted_powers_overflow_and_two_moments_cancel():
    """The first steps are there to show it."""
    softmax, layernorm = OPS["softmax"].steps, OPS["layernorm"].steps
    problem = OPS["softmax"].problem(dict(M=1, N=40), "f32")
    x = np.full((1, 40), 100.0)
    assert not judge(softmax[0], problem, x, Emulator()) and judge(softmax[1], problem, x, Emulator())
    problem = OPS["layernorm"].problem(dict(M=1, N=40), "f32")
    x = 4096 + np.random.default_rng(0).standard_normal((1, 40)) / 16
    assert not judge(layernorm[0], problem, x, Emulator()) and judge(layernorm[1], problem, x, Emulator())


@pytest.mark.parametrize("name", ("bulk", "kept"))
@pytest.mark.parametrize("pivot", (4096.0, 1e8, -1e8))
def test_a_bad_pivot_costs_no_digits(name, pivot):
    """Of rows far from zero, and of some whose first pack, from which moments are taken, lies far from the rest."""
    step = registry.resolve_step(f"layernorm/{name}")
    problem = step.op.problem(dict(M=2, N=1104), "f32")
    x = np.random.default_rng(0).standard_normal((2, 1104)) / 16
    x[0] += 4096
    x[1, :128] = pivot
    assert judge(step, problem, x, Emulator())


# -- shapes

SHAPED = ["softmax/registers", "layernorm/cluster", "argmax/split", "argmax/transposed", "axis/transposed", "axis/slabs",
          "reduce/last_block"]


@pytest.mark.parametrize("name", SHAPED)
def test_any_shape_is_right(name):
    step = registry.resolve_step(name)

    @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(st.integers(1, 9), st.sampled_from((1, 2, 7, 31, 32, 33, 64, 100, 257, 1000)), st.sampled_from(step.kinds()))
    def right(M, N, kind):
        problem = step.op.problem({"N": M * N} if step.op.dims == ("N",) else dict(M=M, N=N), *kind)
        for verdict in check.check_step(step, problem, Emulator(sanitize=True)):
            assert verdict, f"{problem}: {verdict.reason}"
    right()


@pytest.mark.parametrize("variant", ["sum_first", "max_first"])
@pytest.mark.parametrize("rows", [61, 64, 77])  # two whole groups of loads for some threads, for all; rows behind them
def test_slabs_read_every_row_once(rows, variant):
    step = registry.resolve_step("axis/slabs")
    problem = step.op.problem(dict(M=rows, N=21), "f32", variant)
    for verdict in check.check_step(step, problem, Emulator(sanitize=True), overrides=dict(WIDE=8, DEEP=4, SLABS=2, VEC=1, LOADS=4)):
        assert verdict, verdict.reason


@pytest.mark.parametrize("name, variant", [("argmax/transposed", None), ("axis/transposed", "sum_last"), ("axis/transposed", "max_last")])
@pytest.mark.parametrize("tunables", [dict(LANES=1, ROWS=1), dict(LANES=4, ROWS=2), dict(LANES=8, ROWS=8), dict(LANES=32, ROWS=32),
                                      dict(VEC=1)],
                         ids=lambda tunables: "-".join(f"{name}{value}" for name, value in tunables.items()))
@pytest.mark.parametrize("M, N", [(77, 32), (130, 20), (1, 8)])
def test_rows_that_join_together_come_out_where_they_belong(name, variant, tunables, M, N):
    step = registry.resolve_step(name)
    problem = step.op.problem(dict(M=M, N=N), "f32", variant)
    for verdict in check.check_step(step, problem, Emulator(sanitize=True), overrides=tunables | dict(THREADS=64)):
        assert verdict, verdict.reason


CLUSTERS = [("softmax/cluster", 3, 1100, dict(CLUSTER=4, LANES=64)), ("layernorm/cluster", 2, 777, dict(CLUSTER=8, LANES=32)),
            ("rmsnorm/cluster", 2, 40, dict(CLUSTER=4, LANES=32, EARLY=0)), ("argmax/cluster", 3, 1003, dict(CLUSTER=3, LANES=64)),
            ("softmax/pipelined", 7, 1104, dict(CLUSTER=2, LANES=64, GRID=4, STAGES=2)),
            ("rmsnorm/pipelined", 5, 1104, dict(CLUSTER=1, LANES=96, GRID=1, STAGES=2)),
            ("rmsnorm/pipelined", 3, 16, dict(CLUSTER=4, LANES=32, GRID=4, STAGES=1, KEEP=0)),  # more blocks than packs
            ("layernorm/pipelined", 5, 520, dict(CLUSTER=4, LANES=32, GRID=4, STAGES=3)),
            ("softmax/bulk", 5, 1104, dict(CLUSTER=2, LANES=32, ROWS=2)), ("rmsnorm/bulk", 2, 16, dict(CLUSTER=4, LANES=32, ROWS=1)),
            ("layernorm/bulk", 5, 1104, dict(CLUSTER=4, LANES=32, ROWS=3)),
            ("layernorm/kept", 23, 520, dict(CLUSTER=4, LANES=32, STAGES=3, GRID=8)),  # two clusters claim rows from each other
            ("rmsnorm/kept", 23, 520, dict(CLUSTER=4, LANES=32, STAGES=3, GRID=8)),
            ("rmsnorm/kept", 9, 1104, dict(CLUSTER=2, LANES=96, STAGES=4, GRID=6)),
            ("rmsnorm/kept", 5, 16, dict(CLUSTER=4, LANES=32, STAGES=2, GRID=4)),  # more blocks than packs
            ("layernorm/kept", 9, 1104, dict(CLUSTER=1, LANES=96, STAGES=4, GRID=3)),
            ("layernorm/kept", 5, 16, dict(CLUSTER=4, LANES=32, STAGES=2, GRID=4))]


@pytest.mark.parametrize("name, M, N, tunables, delivery", [
    (*case, delivery) for case in CLUSTERS for delivery in (("lazy", "eager") if case[0].endswith(("/pipelined", "/kept")) else ("lazy",))])
def test_clusters_and_pipelines_share_rows_rightly(name, M, N, tunables, delivery):
    step = registry.resolve_step(name)
    problem = step.op.problem(dict(M=M, N=N), "bf16" if N % 8 == 0 else "f32")
    place = Emulator(sanitize=delivery == "lazy", delivery=delivery)
    for verdict in check.check_step(step, problem, place, overrides=tunables):
        assert verdict, verdict.reason


def test_a_row_that_does_not_fit_is_refused_with_what_to_do():
    problem = OPS["softmax"].problem(dict(M=1, N=262144), "bf16")
    for name in ("registers", "shared"):
        with pytest.raises(BadShape, match="take a"):
            registry.resolve_step(f"softmax/{name}").plan(problem)
    with pytest.raises(BadShape, match="multiple of 16 bytes"):
        registry.resolve_step("softmax/pipelined").plan(OPS["softmax"].problem(dict(M=1, N=1001), "bf16"))


# -- the same bits every time

@pytest.mark.parametrize("name, sizes, variant", [
    ("reduce/last_block", dict(N=40000), None), ("reduce/early", dict(N=70000), None), ("axis/slabs", dict(M=300, N=40), "sum_first"),
    ("axis/split", dict(M=2, N=5000), "sum_last"), ("layernorm/kept", dict(M=23, N=520), None), ("rmsnorm/kept", dict(M=23, N=520), None)])
def test_sums_do_not_depend_on_how_blocks_run(name, sizes, variant):
    """All blocks together, and a few at a time: the sums are the same to the last bit, and the counters are left at zero."""
    step = registry.resolve_step(name)
    problem = step.op.problem(sizes, "f32", variant)
    plan = step.plan(problem)
    inputs = check.draw(step.op, problem, "normal", check.generator(1))
    together, apart, again = Emulator(), Emulator(lanes=256), Emulator()
    first = together.run(plan, inputs)
    for other in (apart.run(plan, inputs), again.run(plan, inputs)):
        assert all(np.array_equal(first[key].view(np.uint32), other[key].view(np.uint32)) for key in first)
    # a second launch finds the counters as the first did, and does all of the work again
    forget = [Fill(name, 0xff) for name in step.op.outputs]
    twice = dataclasses.replace(plan, actions=(*plan.actions, *forget, *plan.actions))
    assert all(np.array_equal(first[key], value) for key, value in Emulator().run(twice, inputs).items())


# -- rows that stand apart

@pytest.mark.parametrize("name, tail", [("softmax/registers", ()), ("softmax/pipelined", ()), ("softmax/bulk", ()),
                                        ("rmsnorm/cluster", (f32(1e-6),)), ("layernorm/registers", (f32(1e-5),)),
                                        ("layernorm/bulk", (f32(1e-5),)), ("layernorm/kept", (f32(1e-5),)),
                                        ("rmsnorm/kept", (f32(1e-6),)), ("argmax/keys", None), ("axis/packs", None),
                                        ("argmax/transposed", None), ("axis/transposed", None)])
def test_rows_may_stand_apart(name, tail):
    """A view of the left half of a larger array: the kernels take its stride."""
    step = registry.resolve_step(name)
    M, N, wide = 4, 48, 96
    problem = step.op.problem(dict(M=M, N=N), "f32")
    strides = (i64(wide),) if tail is None else (i64(wide), i64(N), *tail)
    plan = functions.with_tail(step.plan(problem), strides)
    tensors = {**plan.tensors, "x": Tensor("x", (M, wide), "f32", "in")}
    inputs = check.draw(step.op, problem, "normal", check.generator(0))
    large = np.random.default_rng(1).standard_normal((M, wide)).astype(np.float32)
    outputs = Emulator(sanitize=True).run(dataclasses.replace(plan, tensors=types.MappingProxyType(tensors)), inputs | {"x": large})
    assert check.compare(step.op, problem, inputs | {"x": large[:, :N].copy()}, outputs, exact=False)


@pytest.mark.parametrize("shape, strides, size, whether", [
    ((4, 8), (32, 4), 4, True), ((4, 8), (64, 4), 4, True), ((4, 8), (4, 16), 4, False), ((2, 3, 8), (96, 32, 4), 4, True),
    ((2, 3, 8), (192, 32, 4), 4, False), ((2, 1, 8), (64, 999, 4), 4, True), ((5, 1), (8, 999), 2, True), ((1, 8), (0, 2), 2, True),
    ((3, 8), (0, 2), 2, False), ((8,), (2,), 2, True), ((3, 8), (-16, 2), 2, False)])
def test_which_arrays_are_rows_as_they_lie(shape, strides, size, whether):
    assert functions.collapses(shape, strides, size) == whether


@pytest.mark.parametrize("addresses, size, together",
                         [((256, 512), 2, 8), ((256, 516), 2, 2), ((256, 514), 2, 1), ((0, 8), 4, 2), ((2,), 4, 1)])
def test_how_much_moves_at_once_depends_on_where_arrays_lie(addresses, size, together):
    assert functions.alignment(addresses, size) == together


# -- the step that the library takes

LENGTHS = (1, 1000, 1024, 16384, 32768, 49152, 65537, 151936, 262143, 262144)


@pytest.mark.parametrize("sm, shared", ((80, 163), (90, 227), (120, 99)))
@pytest.mark.parametrize("dtype", ("f32", "bf16"))
@pytest.mark.parametrize("name", ("softmax", "rmsnorm", "layernorm", "argmax", "axis", "reduce"))
def test_there_is_a_step_for_every_shape_and_alignment(name, dtype, sm, shared):
    """shared: KiB of a block's shared memory."""
    op = OPS[name]
    for variant in ("sum_last", "sum_first") if name == "axis" else (None,):
        for M in (1, 7, 5000):
            for N in LENGTHS:
                problem = op.problem({"N": M * N} if name == "reduce" else dict(M=M, N=N), dtype, variant)
                for vec in (1, 2, 16 // np.dtype(numpy_dtype(dtype)).itemsize):
                    step, config = functions.choose(name, problem, vec, sm)
                    plan = step.plan(problem, step.config(problem, config))
                    assert all(launch.smem <= shared * 1024 for launch in plan.launches)
                    assert plan.launches and step.min_sm <= sm and plan.config.get("VEC", 1) <= vec
                    assert plan.step.path not in UNSTABLE


@pytest.mark.parametrize("target", ("sm_80", "sm_90a"))
@pytest.mark.parametrize("name", ("softmax", "rmsnorm", "layernorm"))
def test_the_steps_that_the_library_takes_do_not_spill(name, target):
    """Where registers are scarce: widths between those of the ladders, and few rows."""
    for M, N, dtype, vec in ((64, 5120, "bf16", 8), (64, 8192, "bf16", 8), (64, 8192, "f16", 8), (20000, 6144, "bf16", 8),
                             (1, 4096, "f32", 4), (100, 16384, "f32", 4), (1, 151936, "bf16", 8), (8, 151936, "f32", 4),
                             (64, 2047, "bf16", 1)):
        problem = OPS[name].problem(dict(M=M, N=N), dtype)
        step, config = functions.choose(name, problem, vec, int(target[3:5]))
        plan = step.plan(problem, step.config(problem, config))
        verify(build(plan, target), plan)


@pytest.mark.parametrize("vec", (1, 8))
@pytest.mark.parametrize("name", ("softmax", "rmsnorm", "layernorm"))
def test_where_a_step_spills_the_library_takes_one_that_holds_nothing(name, vec, monkeypatch):
    class Device:
        sm, name = 120, "a device that nobody has measured"

    class Machine:
        device = Device

        def launches(self, plan):
            if plan.step.name != functions.ANY_ROW[name]:
                raise Spills("as if")
            verify(build(plan, "sm_120a"), plan)
            return [plan.step.path]
    monkeypatch.setattr(functions, "_gpu", lambda device: Machine())
    tail = (i64(16384), i64(16384)) + (() if name == "softmax" else (f32(1e-6),))
    ready = functions._ready.__wrapped__(0, name, (8, 16384), "bf16", None, vec, tail)
    assert ready.launches == (registry.resolve_step(f"{name}/{functions.ANY_ROW[name]}").path,)
    assert ready.plan.config.get("VEC", 1) <= vec and ready.plan.launches[0].args[-len(tail):] == tail


def test_what_the_library_cannot_take_is_one_line():
    class Array:
        dtype, ndim, shape, size = np.dtype(np.float64), 2, (2, 2), 4
    with pytest.raises(LabError, match="float64.*astype"):
        functions.sum(Array())
    with pytest.raises(LabError, match="axis 2"):
        functions._axis(Array(), 2)


def test_the_package_offers_the_functions():
    import cudalab
    assert all(callable(getattr(cudalab, name)) for name in cudalab._FUNCTIONS)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cudalab.nothing  # noqa: B018


# -- on a device

@pytest.fixture(scope="module")
def cp():
    import cupy
    return cupy


def agrees(op, problem, inputs, outputs):
    verdict = check.compare(OPS[op], problem, inputs, outputs, exact=False)
    assert verdict, verdict.reason


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ("f32", "f16", "bf16"))
@pytest.mark.parametrize("M, N, wide", [(300, 4096, 4096), (33, 1000, 1003), (5000, 60, 64), (2, 151936, 151936), (1, 7, 7),
                                        (5, 65537, 65537), (64, 512, 1024)])
def test_the_library_agrees_with_numpy(cp, dtype, M, N, wide):
    import cudalab
    host = {name: encode(np.random.default_rng(3).standard_normal(shape, np.float32), dtype)
            for name, shape in (("x", (M, wide)), ("w", (N,)), ("b", (N,)))}
    x, w, b = (cp.asarray(a.view(f"u{a.itemsize}")).view(a.dtype) for a in host.values())
    x, host["x"] = x[:, :N], host["x"][:, :N]
    sizes = dict(M=M, N=N)

    def back(y):
        return y.get()
    agrees("softmax", OPS["softmax"].problem(sizes, dtype), {"x": host["x"]}, {"y": back(cudalab.softmax(x))})
    agrees("rmsnorm", OPS["rmsnorm"].problem(sizes, dtype), {n: host[n] for n in "xw"}, {"y": back(cudalab.rms_norm(x, w))})
    agrees("layernorm", OPS["layernorm"].problem(sizes, dtype), host, {"y": back(cudalab.layer_norm(x, w, b))})
    agrees("argmax", OPS["argmax"].problem(sizes, dtype), {"x": host["x"]}, {"index": back(cudalab.argmax(x, 1))})
    agrees("axis", OPS["axis"].problem(sizes, dtype, "sum_last"), {"x": host["x"]}, {"y": back(cudalab.sum(x, 1))})
    agrees("axis", OPS["axis"].problem(sizes, dtype, "sum_first"), {"x": host["x"]}, {"y": back(cudalab.sum(x, 0))})
    flat, total = np.ascontiguousarray(host["x"]).reshape(-1), cudalab.sum(x).reshape(1)
    agrees("reduce", OPS["reduce"].problem(dict(N=M * N), dtype), {"x": flat}, {"total": back(total)})


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ("f32", "bf16"))
def test_the_library_takes_arrays_as_they_lie(cp, dtype):
    """Other axes, three dimensions, views that begin anywhere, a place for the result, infinities and NaN."""
    import cudalab
    host = np.random.default_rng(4).standard_normal((5, 33, 72), np.float32)
    host[0, 3, 5], host[1, 4, 6], host[2, 5, :], host[3, :, 7] = INF, NAN, -INF, -INF
    host = encode(host, dtype)
    x = cp.asarray(host.view(f"u{host.itemsize}")).view(host.dtype)

    def check_rows(name, own, along, outputs, **more):
        rows = np.ascontiguousarray(np.moveaxis(own, along, -1)).reshape(-1, own.shape[along])
        problem = OPS[name].problem(dict(M=rows.shape[0], N=rows.shape[1]), dtype, "sum_last" if name == "axis" else None)
        key, = OPS[name].outputs
        outputs = np.moveaxis(outputs, along, -1).reshape(rows.shape) if outputs.ndim == own.ndim else outputs.reshape(-1)
        agrees(name, problem, {"x": rows, **more}, {key: np.ascontiguousarray(outputs)})

    for view in (np.s_[:], np.s_[:, ::2], np.s_[1:4, :, 1:70], np.s_[:, :, 3:4], np.s_[0:1, 2:9, 5:]):
        for along in range(3):
            check_rows("softmax", host[view], along, cudalab.softmax(x[view], along).get())
            check_rows("argmax", host[view], along, cudalab.argmax(x[view], along).get())
            check_rows("axis", host[view], along, cudalab.sum(x[view], along).get())
        w, b = (encode(np.random.default_rng(5 + i).standard_normal(host[view].shape[-1:], np.float32), dtype) for i in range(2))
        weight, bias = (cp.asarray(a.view(f"u{a.itemsize}")).view(a.dtype) for a in (w, b))
        out = cp.empty(host[view].shape, x.dtype)
        assert cudalab.rms_norm(x[view], weight, out=out).data.ptr == out.data.ptr
        check_rows("rmsnorm", host[view], 2, out.get(), w=w)
        assert cudalab.layer_norm(x[view], weight, bias, out=out).data.ptr == out.data.ptr
        check_rows("layernorm", host[view], 2, out.get(), w=w, b=b)
    assert int(cudalab.argmax(x)) == int(host.astype(np.float32).argmax())
    zeros, ones = cp.zeros((2, 8), cp.float32), cp.ones(8, cp.float32)
    assert float(cudalab.rms_norm(zeros + 3, ones, eps=7.0)[0, 0]) == pytest.approx(3 / 4)
    assert float(cudalab.layer_norm(cp.arange(8, dtype=cp.float32)[None], ones, ones, eps=10.75)[0, 7]) == pytest.approx(1 + 3.5 / 4)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ("layernorm/kept", "rmsnorm/kept"))
@pytest.mark.parametrize("M, N", [(4500, 1032), (1500, 16392), (300, 75976)])
def test_clusters_that_stay_claim_every_row_once(name, M, N):
    """More rows than clusters, several times over: twice, for the second launch finds the counter that the first one left."""
    from cudalab.gpu import Gpu
    step = registry.resolve_step(name)
    problem = step.op.problem(dict(M=M, N=N), "bf16")
    plan = step.plan(problem)
    inputs = check.draw(step.op, problem, "normal", check.generator(2))
    outputs = Gpu().run(dataclasses.replace(plan, actions=(*plan.actions, Fill("y", 0xff), *plan.actions)), inputs)
    assert check.compare(step.op, problem, inputs, outputs, exact=False)


@pytest.mark.gpu
def test_the_library_works_on_the_current_stream_and_does_not_wait(cp):
    """Behind a held stream every call returns; a captured one runs again with new contents."""
    import cudalab
    from cudalab.gpu import Gpu
    from cudalab.hold import Hold
    gpu = Gpu()
    x = cp.random.random((64, 4096), dtype=cp.float32)
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
        expected = [cudalab.softmax(x), cudalab.argmax(x, 1), cudalab.sum(x)]  # compiled, and what they keep is there
        stream.synchronize()
        gpu.stream = stream
        hold, done = Hold(gpu), cp.cuda.Event()
        with hold:
            got = [cudalab.softmax(x), cudalab.argmax(x, 1), cudalab.sum(x)]
            done.record(stream)
            assert not done.done
        stream.synchronize()
        hold.confirm()
        assert all(bool((a == b).all()) for a, b in zip(got, expected))
        y = cp.empty_like(x)
        cudalab.softmax(x, out=y)
        stream.begin_capture()
        cudalab.softmax(x, out=y)
        graph = stream.end_capture()
        x *= 2
        graph.launch(stream)
        stream.synchronize()
        agrees("softmax", OPS["softmax"].problem(dict(M=64, N=4096), "f32"), {"x": x.get()}, {"y": y.get()})


@pytest.mark.gpu
@pytest.mark.parametrize("shape, axis", [((0,), None), ((0, 5), 0), ((5, 0), 1), ((5, 0), 0), ((0, 5), None)])
def test_sums_of_nothing(cp, shape, axis):
    import cudalab
    total = cudalab.sum(cp.empty(shape, cp.float32), axis)
    assert total.shape == np.empty(shape).sum(axis).shape and not total.any()


@pytest.mark.gpu
def test_sums_are_the_same_bits_every_time(cp):
    import cudalab
    x = cp.random.standard_normal((1000, 4099), dtype=cp.float32)
    first = [cudalab.sum(x), cudalab.sum(x, 0), cudalab.sum(x, 1)]
    for _ in range(20):
        assert all(bool((a == b).all()) for a, b in zip(first, (cudalab.sum(x), cudalab.sum(x, 0), cudalab.sum(x, 1))))
