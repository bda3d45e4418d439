"""A user's own .cu as a step: what it takes from a step, from expressions, and what it refuses."""

import pytest

from cudalab import registry, userfile
from cudalab.errors import BadLaunch, LabError, UnknownName
from cudalab.spec import Pointer, f32, i32

SGEMM = registry.ops()["sgemm"]
PROBLEM = SGEMM.problem(dict(M=100, N=50, K=30))
LAUNCH = dict(op="sgemm", entry="mm<16, float>", grid="cdiv(N, T), cdiv(M, T)", block="T, T", args="M N K 1.0 A B -2 .5f C", smem="4*T*T",
              settings=dict(T=16))


@pytest.fixture
def own(tmp_path):
    file = tmp_path / "own.cu"
    file.write_text("// Mine.\n__global__ void mm() {}\n")
    return file


def launch_of(step, **settings):
    (launch,) = step.plan(PROBLEM, step.config(PROBLEM, settings)).launches
    return launch


def test_expressions_see_dimensions_and_settings(own):
    step = userfile.step(own, **LAUNCH)
    launch = launch_of(step)
    assert (launch.entry, launch.grid, launch.block, launch.smem) == ("mm<16, float>", (4, 7, 1), (16, 16, 1), 1024)
    assert launch.args == (i32(100), i32(50), i32(30), f32(1.0), Pointer("A"), Pointer("B"), i32(-2), f32(0.5), Pointer("C"))
    assert step.path == "sgemm/own" and step.header[0] == "Mine" and dict(step.config(PROBLEM)) == dict(T=16)


@pytest.mark.parametrize("word, value", [("1", i32(1)), ("1.", f32(1)), ("1e3", f32(1000)), ("2.5e-1f", f32(.25)), ("1.0F", f32(1))])
def test_numbers_are_passed_by_value(word, value):
    assert userfile._arguments(word) == (value,)


def test_like_takes_everything_from_the_step(own):
    model = registry.resolve_step("step5")
    step = userfile.step(own, like="step5")
    assert launch_of(step) == launch_of(model) and dict(step.tunables) == dict(model.tunables)
    assert step.source == own and step.source != model.source


def test_like_gives_way_to_what_is_given(own):
    model = launch_of(registry.resolve_step("step5"))
    launch = launch_of(userfile.step(own, like="step5", entry="mine", block="TM*32", smem="64", settings=dict(EXTRA=3)), TM=4)
    assert (launch.entry, launch.block, launch.smem, launch.args) == ("mine", (128, 1, 1), 64, model.args)


def test_like_and_op_must_agree(own, monkeypatch):
    with pytest.raises(LabError, match="--op reduce and --like step5 disagree"):
        userfile.step(own, like="step5", op="reduce")


def test_what_is_missing_is_named(own):
    with pytest.raises(LabError, match=r"needs --op, --grid, --block, or --like STEP"):
        userfile.step(own, entry="mm", args="A")
    with pytest.raises(UnknownName, match="no op is called 'gemm'; there are: .*sgemm"):
        userfile.step(own, **{**LAUNCH, "op": "gemm"})
    with pytest.raises(UnknownName, match="nearest: "):
        userfile.step(own, like="stp5")
    with pytest.raises(LabError, match="there is no file gone.cu"):
        userfile.step(own.with_name("gone.cu").relative_to(own.parent), like="step5")


@pytest.mark.parametrize("change, words", [
    (dict(grid="cdiv(Q, 2)"), "unknown name 'Q'"), (dict(grid="1, 2, 3, 4"), "--grid .* has 4 sizes"),
    (dict(grid="M //"), "not an expression"),
    (dict(block="T/3"), "remainder"), (dict(grid="M // 0"), "divides by zero"), (dict(smem="1, 2"), "must be one number"),
    (dict(smem="-4"), "must be one number"), (dict(block="__import__('os')"), "only integers")])
def test_expressions_that_say_nothing_are_refused(own, change, words):
    with pytest.raises(LabError, match=words):
        launch_of(userfile.step(own, **{**LAUNCH, **change}))


@pytest.mark.parametrize("change, words", [(dict(args="A B D"), "argument 'D'"), (dict(block="2048"), "2048"), (dict(grid="0"), "outside"),
                                           (dict(args="A B C 99999999999"), "argument 99999999999 does not fit i32, which holds -2147"),
                                           (dict(args="A -2147483649"), "does not fit i32")])
def test_launches_that_cannot_be_are_refused(own, change, words):
    with pytest.raises(BadLaunch, match=words):
        launch_of(userfile.step(own, **{**LAUNCH, **change}))


def test_the_file_of_a_step_is_that_step():
    step = registry.resolve_step("step5")
    assert userfile.step(step.source) is step
    assert userfile.step(step.source, like="step5") is not step
