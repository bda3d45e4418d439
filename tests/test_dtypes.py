"""Types of elements and variants: from the problem through macros, the emulator and `check` to rows, tables and the command."""

import json
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from cudalab import check, dtypes, parts, readme, registry, report, results
from cudalab.build import build
from cudalab.emulator import Emulator
from cudalab.errors import BadShape, UnknownName
from cudalab.problem import Problem
from cudalab.spec import Launch, Op, Step, Values, shapes

KINDS = [("f32", None), ("bf16", None), ("bf16", "halved"), ("f16", None), ("fp8_e4m3", None), ("fp8_e5m2", "halved")]
NARROW = ("f16", "bf16", "fp8_e4m3", "fp8_e5m2")
SCALE = '''#include "types.cuh"
extern "C" __global__ void __launch_bounds__(128) scale(const element* A, const float* S, element* C, int M, int K) {
    int row = blockIdx.x;
    for (int k = V * threadIdx.x; k < K; k += V * blockDim.x) {
        float x[V];
        load<V>(x, A + row * K + k);
#pragma unroll
        for (int i = 0; i < V; ++i) x[i] *= S[row];
#if VARIANT_HALVED
#pragma unroll
        for (int i = 0; i < V; ++i) x[i] *= 0.5f;
#endif
        store<V>(C + row * K + k, x);
    }
}
'''


def scaled(p, A, S):
    return A * S[:, None] * (0.5 if p.variant == "halved" else 1.0)


def make_op(**more):
    given = dict(title="C = A times a factor a row", dims=("M", "K"), inputs=dict(A="M, K", S="f32: M"), outputs=dict(C="M, K"),
                 reference=scaled, scale=lambda p, A, S: abs(scaled(p, A, S)), depth=lambda p: 1, flops=lambda p: p.M * p.K,
                 bytes=lambda p: 2 * p.M * p.K * dtypes.itemsize(p.dtype), samples=(dict(A=0, S=0, C=0),), peers=(),
                 shapes=dict(emulate=shapes("3x40 1x8", ("M", "K")), check=shapes("3x40", ("M", "K")), bench=shapes("3x40 64", ("M", "K"))),
                 dtypes=("f32", "bf16", "f16", "fp8_e4m3", "fp8_e5m2"), variants=(None, "halved"))
    return Op("scale", **given | more)


@pytest.fixture
def step(tmp_path):
    source = tmp_path / "scale.cu"
    source.write_text(SCALE)

    def actions(p, c):
        if p.K % c.V:
            raise BadShape(f"rows of {p.K} are not a multiple of {c.V}")
        yield Launch("scale", grid=p.M, block=128, args="A S C M K")
    op = make_op()
    op.steps.append(Step(op, 1, "scale", source, actions, dict(V=lambda p: 16 // dtypes.itemsize(p.dtype) // 2), {}))
    return op.steps[0]


# -- types

@pytest.mark.parametrize("name", NARROW)
def test_every_code_is_decoded(name):
    codes = np.arange(1 << 8 * dtypes.itemsize(name), dtype=f"u{dtypes.itemsize(name)}")
    with np.errstate(invalid="ignore"):
        expected = codes.view(dtypes.numpy_dtype(name)).astype(np.float64)
    assert np.array_equal(dtypes.decode(codes.view(dtypes.device_dtype(name)), name), expected, equal_nan=True)
    values = expected[~np.isnan(expected)]
    again = dtypes.encode(values.astype(np.float32), name)
    finite = np.isfinite(values)
    assert again.dtype == dtypes.numpy_dtype(name) and np.array_equal(again.astype(np.float64)[finite], values[finite])


@pytest.mark.parametrize("name", (*NARROW, "tf32"))
def test_numbers_are_rounded_to_nearest_even(name):
    """Beside ml_dtypes; the middles between two neighbours among them."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.standard_normal(2000), rng.standard_normal(500) * 2.0**-8, [0.0, -0.0, np.nan]]).astype(np.float32)
    digits = dtypes.DTYPES[name].digits
    exact = rng.integers(2**digits, 2**(digits + 1), 500).astype(np.float32) / 2**digits  # one bit more than it has: ties
    x = np.concatenate([x, exact])
    ours = dtypes.encode(x, name).astype(np.float64)
    with np.errstate(over="ignore"):
        theirs = (x.astype(np.float64) if name == "tf32" else x.astype(dtypes.numpy_dtype(name)).astype(np.float64))
    if name == "tf32":
        mantissa, exponent = np.frexp(x.astype(np.float64))
        theirs = np.ldexp(np.rint(mantissa * 2**11) / 2**11, exponent)
    assert np.array_equal(ours, theirs, equal_nan=True)
    assert np.array_equal(np.signbit(ours)[~np.isnan(x)], np.signbit(theirs)[~np.isnan(x)])


@pytest.mark.parametrize("name", [name for name in dtypes.DTYPES if dtypes.is_float(name) and name != "tf32"])
def test_units_are_those_of_the_type(name):
    info = ml_dtypes.finfo(dtypes.numpy_dtype(name))
    assert dtypes.unit(name) == float(info.eps) / 2 and dtypes.least(name) == float(info.smallest_subnormal)
    if name in ("f16", "bf16", "f32"):
        edge = dtypes.overflow(name)
        with np.errstate(over="ignore"):
            assert np.isinf(np.float64(edge).astype(dtypes.numpy_dtype(name)).astype(np.float64))
            assert np.isfinite(np.nextafter(np.float64(edge), 0.0).astype(np.float32 if name == "f32" else np.float64)
                               .astype(dtypes.numpy_dtype(name)).astype(np.float64)) or name == "bf16"


def test_an_unknown_type_is_refused():
    with pytest.raises(UnknownName, match="'f31'"):
        dtypes.itemsize("f31")


# -- problems and steps

def test_a_problem_is_its_sizes_and_its_kind():
    a, b = Problem(dict(M=1)), Problem(dict(M=1), "bf16", "nt")
    assert (a.dtype, a.variant, b.dtype, b.variant) == ("f32", None, "bf16", "nt")
    assert a != b and a == Problem(dict(M=1)) == Values(M=1) and dict(b) == dict(M=1) and len({a, b}) == 2
    assert (str(a), str(b)) == ("M=1", "M=1 bf16 nt")
    with pytest.raises(TypeError):
        a.dtype = "f16"


def test_an_op_knows_its_kinds(step):
    op = step.op
    assert {t.name: t.dtype for t in op.tensors(op.problem(dict(M=2, K=8), "bf16")).values()} == dict(A="bf16", S="f32", C="bf16")
    assert op.shapes["emulate"][0].kind == ("f32", None)
    for kind in (("int8", None), ("f32", "nt")):
        with pytest.raises(UnknownName, match="it has"):
            op.problem(dict(M=2, K=8), *kind)
    other = make_op(outputs=dict(C=lambda p: "f32: M, K" if p.dtype == "fp8_e4m3" else "bf16: M, K"))
    assert [other.tensors(other.problem(dict(M=1, K=1), name))["C"].dtype for name in ("fp8_e4m3", "bf16")] == ["f32", "bf16"]


def test_a_step_may_take_part_of_them(step):
    some = Step(step.op, 2, "some", step.source, step.make_actions, dict(V=4), {}, dtypes=("bf16", "f16"), variants=("halved",))
    assert some.kinds() == [("bf16", "halved"), ("f16", "halved")] and some.kinds(("f16",)) == [("f16", "halved")]
    assert "takes bf16 halved, f16 halved; not f32" in some.refuses(step.op.problem(dict(M=1, K=8)))
    assert {p.kind for p in some.problems("check")} == set(some.kinds())
    with pytest.raises(BadShape, match="not a multiple of 4"):
        some.plan(step.op.problem(dict(M=1, K=6), "bf16", "halved"))
    assert some.refuses(step.op.problem(dict(M=1, K=6), "bf16", "halved"))
    assert not some.refuses(step.op.problem(dict(M=1, K=8), "f16", "halved"))


# -- the build and the emulator

@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_type_runs(step, kind, tmp_path):
    problem = step.op.problem(dict(M=3, K=40), *kind)
    verdicts = check.check_step(step, problem, Emulator(sanitize=True))
    assert [v.kind for v in verdicts] == ["normal", "integers"] and all(verdicts), [v.reason for v in verdicts]
    options = json.loads((build(step.plan(problem), "sm_90a").folder / "kernel.json").read_text())["options"]
    assert f"-DDTYPE_{kind[0].upper()}=1" in options and ("-DVARIANT_HALVED=1" in options) == (kind[1] is not None)


# -- what is right

class Computed:
    """A backend that computes `scale` in float32 and stores it as it is told."""

    def __init__(self, stored):
        self.stored = stored

    def run(self, plan, inputs):
        product = inputs["A"].astype(np.float32) * inputs["S"][:, None]
        return {"C": self.stored(product, plan.problem.dtype)}


def truncated(x, name):
    nearest = dtypes.encode(x, name)
    step_down = dtypes.bits(nearest) - (np.abs(dtypes.decode(nearest, name)) > np.abs(x))
    return step_down.astype(dtypes.bits(nearest).dtype).view(nearest.dtype)


def one_step_off(x, name):
    stored = dtypes.encode(x, name)
    dtypes.bits(stored)[1, 2] += 1
    return stored


@pytest.mark.parametrize("name", NARROW[:3])
def test_rounding_to_the_type_is_right_and_anything_more_is_not(step, name):
    problem = step.op.problem(dict(M=64, K=64), name)
    assert all(check.check_step(step, problem, Computed(dtypes.encode)))
    for spoil in (truncated, one_step_off):
        normal, _ = check.check_step(step, problem, Computed(spoil))
        assert not normal, "a unit in the last place is ten times what the bound allows"
    assert not check.check_step(step, problem, Computed(one_step_off))[1]


def test_a_peer_may_round_once_more(step):
    problem = step.op.problem(dict(M=64, K=64), "bf16")
    ours, unit = check.Error(1e-8, 1e-8), dtypes.unit("bf16")
    assert check.judge_peer(step.op, problem, check.Error(unit, unit / 4), ours)
    assert not check.judge_peer(step.op, problem, check.Error(4 * unit, unit / 4), ours)
    assert not check.judge_peer(step.op, step.op.problem(dict(M=64, K=64)), check.Error(unit, unit / 4), ours)


INDEX = Op("index", title="where the largest is", dims=("M", "K"), inputs=dict(A="M, K"), outputs=dict(index="i32: M"),
           reference=lambda A: A.argmax(1), scale=lambda A: 1.0, depth=lambda p: 1, flops=lambda p: 1, bytes=lambda p: 1, samples=(),
           peers=(), shapes={}, kinds=("normal",))


def test_integer_outputs_are_equal_or_wrong():
    problem = INDEX.problem(dict(M=5, K=9))
    inputs = check.draw(INDEX, problem, "normal", check.generator(0))
    right = inputs["A"].argmax(1).astype(np.int32)
    assert check.compare(INDEX, problem, inputs, dict(index=right), exact=False)
    right[3] += 1
    assert "must be exact" in check.compare(INDEX, problem, inputs, dict(index=right), exact=False).reason


@pytest.mark.parametrize("put, right", [(np.nan, True), (np.inf, False), (0.0, False)])
def test_nan_is_right_only_where_the_reference_has_it(step, put, right):
    problem = step.op.problem(dict(M=4, K=8), "bf16")
    inputs = check.draw(step.op, problem, "normal", check.generator(0))
    inputs["A"][1, 3], inputs["A"][2, 2] = np.nan, -np.inf
    C = dtypes.encode(inputs["A"].astype(np.float32) * inputs["S"][:, None], "bf16")
    C[1, 3] = put
    assert bool(check.compare(step.op, problem, inputs, dict(C=C), exact=False)) == right
    C[1, 3], C[2, 2] = np.nan, -C[2, 2]
    assert not check.compare(step.op, problem, inputs, dict(C=C), exact=False)


def test_what_overflows_the_type_must_be_infinite(step):
    problem = step.op.problem(dict(M=2, K=8), "f16")
    inputs = dict(A=np.full((2, 8), 300, np.float16), S=np.array([300, 2], np.float32))
    C = np.full((2, 8), 600, np.float16)
    C[0] = np.inf
    assert check.compare(step.op, problem, inputs, dict(C=C), exact=False)
    C[0, 1] = 65504
    assert not check.compare(step.op, problem, inputs, dict(C=C), exact=False)


@pytest.mark.parametrize("name", ("i8", "u8", "i32", "int8"))
def test_integer_inputs_spread_over_their_type(name):
    from cudalab.spec import Tensor
    drawn = check.draw_tensor(Tensor("A", (1000,), name, "in"), 8, "normal", check.generator(0))
    assert drawn.dtype == dtypes.numpy_dtype(name) and len(np.unique(drawn)) > 100


def test_fp8_integers_stay_below_what_tensor_cores_sum_exactly():
    from cudalab.spec import Tensor
    drawn = check.draw_tensor(Tensor("A", (1000,), "fp8_e4m3", "in"), 1000, "integers", check.generator(0)).astype(np.float64)
    assert 1 <= np.abs(drawn).max() ** 2 * 1000 <= 2**13 and (drawn == np.rint(drawn)).all()


def test_an_op_draws_its_own_kind():
    op = make_op(kinds=("normal", "ones"), draw=lambda tensor, p, kind, rng: np.ones(tensor.shape, np.float32) if kind == "ones" else None)
    problem = op.problem(dict(M=2, K=8), "bf16")
    assert (check.draw(op, problem, "ones", check.generator(0))["A"] == 1).all()
    assert check.draw(op, problem, "ones", check.generator(0))["A"].dtype == ml_dtypes.bfloat16
    assert not (check.draw(op, problem, "normal", check.generator(0))["A"] == 1).all()


# -- rows, tables, the command

def test_tuned_configurations_belong_to_a_kind(results_folder):
    step = registry.resolve_step("step5")
    plain, other = step.op.problem(dict(M=8, N=8, K=8)), Problem(dict(M=8, N=8, K=8), "bf16")
    results.save_tuned(step, "NVIDIA H200", other, dict(BM=64), 1e-3)
    assert results.tuned(step, "NVIDIA H200", plain) is None and results.tuned(step, "NVIDIA H200", other) == dict(BM=64)
    file = results_folder / "tuned" / "nvidia_h200.jsonl"
    old = json.loads(file.read_text())
    del old["dtype"], old["variant"]  # as rows were before there were kinds
    file.write_text(json.dumps(old) + "\n")
    assert results.tuned(step, "NVIDIA H200", plain) == dict(BM=64) and results.tuned(step, "NVIDIA H200", other) is None


def test_tables_come_by_kind(step, monkeypatch, row):
    monkeypatch.setattr(parts, "PARTS", (SimpleNamespace(__name__="p99_toy", TITLE="a toy", ops=(step.op,)),))
    rows = [row(op="scale", step="scale", shape=dict(M=3, K=40), dtype=dtype, variant=variant, peer=peer, bytes=8_000_000_000, flops=1,
                roof="dram") for dtype, variant, peer in (("f32", None, "a.py:mine"), ("bf16", "halved", None))]
    text = readme.tables(rows)
    assert "`scale` on NVIDIA H200, the fastest step" in text and "`scale` on NVIDIA H200, bf16, halved, the fastest step" in text
    assert "--all-shapes --dtype bf16 --variant halved --save" in text and "--all-shapes --peer a.py:mine --save" in text
    assert "| TB/s |" in text and "TFLOP/s" not in text and "× a.py:mine" in text and "Beside a.py:mine" in text
    assert report.case_text(rows[1]) == "3x40 bf16 halved" and "3x40 bf16 halved" in report.measured(rows)


def test_the_command_takes_kinds(lab):
    result = lab("check", "step1", "--shape", "5x6x7", "--dtype", "bf16")
    assert result.exit_code == 1 and "sgemm has no dtype 'bf16'; it has f32" in result.stderr
    result = lab("check", "step1", "--shape", "5x6x7", "--dtype", "f32", "--variant", "none", "--json")
    assert result.exit_code == 0 and {(r["dtype"], r["variant"]) for r in json.loads(result.stdout)} == {("f32", None)}
    assert "has no variant 'nt'; it has none" in lab("show", "step1", "--variant", "nt").stderr
