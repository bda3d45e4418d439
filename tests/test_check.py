"""check itself: right results in any order of summation pass, every kind of wrong one fails."""

import numpy as np
import pytest

from cudalab import check
from cudalab.errors import BadConfig
from cudalab.registry import ops

SGEMM = ops()["sgemm"]
DEPTHS = (1, 2, 33, 128, 1000, 4096, 16384)


def problem_of(M, N, K):
    return SGEMM.problem(dict(M=M, N=N, K=K))


def drawn(problem, kind="normal", seed=0):
    return check.draw(SGEMM, problem, kind, check.generator(seed))


def compare(problem, inputs, C, **more):
    return check.compare(SGEMM, problem, inputs, {"C": C}, **{"exact": False, **more})


def in_order(A, B, ks):
    """Float32 sums, one multiply-add after the other, in the order `ks`."""
    C = np.zeros((A.shape[0], B.shape[1]), np.float32)
    for k in ks:
        C += A[:, k:k + 1] * B[k:k + 1]
    return C


def naive(A, B):
    return in_order(A, B, range(A.shape[1]))


def backwards(A, B):
    return in_order(A, B, reversed(range(A.shape[1])))


def blocked(A, B, block=64):
    """Partial sums of blocks, added up: split-K."""
    K = A.shape[1]
    parts = [in_order(A, B, range(k, min(k + block, K))) for k in range(0, K, block)]
    return sum(parts[1:], parts[0])


@pytest.mark.parametrize("K", DEPTHS)
@pytest.mark.parametrize("order", [naive, backwards, blocked])
def test_a_float32_result_in_any_order_is_right(order, K):
    problem = problem_of(24, 17, K)
    inputs = drawn(problem)
    own = check.error_of(SGEMM, problem, inputs, {"C": inputs["A"] @ inputs["B"]})
    C = order(**inputs)
    assert compare(problem, inputs, C)
    assert compare(problem, inputs, C, peer_error=own), "a peer that is lucky must not make a right result wrong"
    exact = drawn(problem, "integers")
    assert compare(problem, exact, order(**exact), exact=True)


def test_positive_inputs_are_right_too():
    problem = problem_of(8, 8, 4096)
    rng = np.random.default_rng(0)
    inputs = dict(A=rng.random((8, 4096), np.float32), B=rng.random((4096, 8), np.float32))
    assert compare(problem, inputs, naive(**inputs))


@pytest.mark.parametrize("N", (1000000, 4194304))
def test_the_sums_of_blocks_may_meet_by_atomics_in_any_order(N):
    """As in reduce/atomic: its blocks' sums, exact, one after the other in orders of chance, for the inputs that `check` draws."""
    op = ops()["reduce"]
    step, problem = op.steps[5], op.problem(dict(N=N))
    blocks = step.plan(problem).launches[0].grid[0]
    x = check.draw(op, problem, "normal", check.generator(0))["x"]
    padded = np.pad(x.astype(np.float64), (0, -N % (4096 * blocks)))
    parts = padded.reshape(-1, blocks, 4096).sum((0, 2)).astype(np.float32)
    rng = np.random.default_rng(0)
    for _ in range(60):
        total = np.cumsum(rng.permutation(parts), dtype=np.float32)[-1:]
        verdict = check.compare(op, problem, dict(x=x), dict(total=total), exact=False)
        assert verdict, verdict.reason
    total[0] += 0.1  # a tenth of one element too much
    assert not check.compare(op, problem, dict(x=x), dict(total=total), exact=False)


def wrong_element(C, inputs):
    scale = SGEMM.scale(**{n: a.astype(np.float64) for n, a in inputs.items()})
    C[-1, -1] += 0.01 * scale[-1, -1]
    return C


def wrong_by_a_hundredth_of_its_value(C, inputs):
    C.flat[np.abs(C).argmax()] *= 1.01
    return C


def last_term_missing(C, inputs):
    return C - inputs["A"][:, -1:] * inputs["B"][-1:]


def one_nan(C, inputs):
    C[1, 2] = np.nan
    return C


def one_infinity(C, inputs):
    C[1, 2] = np.inf
    return C


def unwritten(C, inputs):
    C[-1] = np.frombuffer(b"\xff" * C[-1].nbytes, np.float32)  # what poisoned memory holds
    return C


def transposed(C, inputs):
    return np.ascontiguousarray(C.T)


def stale_zeros(C, inputs):
    return np.zeros_like(C)


def rows_swapped(C, inputs):
    C[[0, 1]] = C[[1, 0]]
    return C


SPOILED = (wrong_element, wrong_by_a_hundredth_of_its_value, last_term_missing, one_nan, one_infinity, unwritten, transposed, stale_zeros,
           rows_swapped)


@pytest.mark.parametrize("K", DEPTHS)
@pytest.mark.parametrize("kind", check.KINDS)
def test_a_wrong_result_fails(kind, K):
    problem = problem_of(*(2 * (32 if K <= 4096 else 16,)), K)
    inputs = drawn(problem, kind)
    right, changed = inputs["A"] @ inputs["B"], 0
    for spoil in SPOILED:
        spoiled = spoil(right.copy(), inputs)
        if kind == "integers" and np.array_equal(spoiled, right):
            continue  # the change changes nothing here
        verdict, changed = compare(problem, inputs, spoiled, exact=kind == "integers"), changed + 1
        assert not verdict, spoil
        assert verdict.reason and "\n" not in verdict.reason, spoil
    assert changed >= len(SPOILED) - 3


def test_one_ulp_fails_where_sums_are_exact():
    problem = problem_of(8, 8, 64)
    inputs = drawn(problem, "integers")
    C = naive(**inputs)
    C[3, 3] = np.nextafter(C[3, 3], np.float32(np.inf))
    assert not compare(problem, inputs, C, exact=True)


def to_tf32(array):
    return ((array.view(np.uint32) + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32)


def test_tf32_is_not_fp32():
    for K, beside_peer in ((512, False), (16384, True)):
        problem = problem_of(64, 64, K)
        inputs = drawn(problem)
        C = to_tf32(inputs["A"]) @ to_tf32(inputs["B"])
        peer = check.error_of(SGEMM, problem, inputs, {"C": naive(**inputs)}) if beside_peer else None
        assert not compare(problem, inputs, C, peer_error=peer)


def test_worse_than_twice_the_peer_fails():
    problem = problem_of(16, 16, 4096)
    unit = 2.0**-24
    assert check.judge(SGEMM, problem, check.Error(18 * unit, 1.8 * unit), exact=False, peer_error=check.Error(10 * unit, unit))
    assert not check.judge(SGEMM, problem, check.Error(21 * unit, 1.8 * unit), exact=False, peer_error=check.Error(10 * unit, unit))
    assert not check.judge(SGEMM, problem, check.Error(18 * unit, 2.1 * unit), exact=False, peer_error=check.Error(10 * unit, unit))


def test_one_element_is_not_held_to_a_lucky_peer():
    """A sum of 2^28 terms: 2 u times the root of its depth, 32 + 2^12, and beside a peer never less than an eighth of that."""
    op = ops()["reduce"]
    problem, unit = op.problem(dict(N=2**28), "f32"), 2.0**-24
    lucky, floor = check.Error(0.0, 0.0), 2 * (32 + 2**12) ** 0.5 / 8 * unit
    assert check.judge(op, problem, check.Error(0.99 * floor, 0.99 * floor), exact=False, peer_error=lucky)
    assert not check.judge(op, problem, check.Error(1.01 * floor, 1.01 * floor), exact=False, peer_error=lucky)
    assert check.judge(op, problem, check.Error(7 * floor, 7 * floor), exact=False)
    assert not check.judge(op, problem, check.Error(9 * floor, 9 * floor), exact=False)


@pytest.mark.parametrize("outputs, word", [({}, "nothing"), ({"C": np.zeros((3, 4), np.float32)}, "(3, 4)"),
                                           ({"C": np.zeros((4, 3), np.float64)}, "float64")])
def test_a_missing_or_misshapen_output_fails(outputs, word):
    problem = problem_of(4, 3, 5)
    verdict = check.compare(SGEMM, problem, drawn(problem), outputs, exact=False)
    assert not verdict and word in verdict.reason


def test_a_row_of_zeros_may_only_be_zero():
    problem = problem_of(4, 4, 8)
    inputs = drawn(problem)
    inputs["A"][2] = 0
    C = naive(**inputs)
    assert compare(problem, inputs, C)
    C[2, 1] = 1e-30
    assert not compare(problem, inputs, C)


def test_blocks_of_rows_give_the_same_error_as_the_whole():
    problem = problem_of(33, 9, 100)
    inputs = drawn(problem)
    outputs = {"C": naive(**inputs)}
    whole, blocks = check.error_of(SGEMM, problem, inputs, outputs), check.error_of(SGEMM, problem, inputs, outputs, rows=7)
    assert blocks.max == pytest.approx(whole.max, rel=1e-6) and blocks.rms == pytest.approx(whole.rms, rel=1e-6)
    outputs["C"][32, 8] = np.nan
    assert np.isnan(check.error_of(SGEMM, problem, inputs, outputs, rows=7).max)


@pytest.mark.parametrize("kind", check.KINDS)
def test_inputs_are_seeded_and_never_all_zero(kind):
    problem = problem_of(17, 5, 9)
    first, again, other = drawn(problem, kind, 1), drawn(problem, kind, 1), drawn(problem, kind, 2)
    for name in ("A", "B"):
        assert first[name].dtype == np.float32 and first[name].any()
        assert np.array_equal(first[name], again[name]) and not np.array_equal(first[name], other[name])


@pytest.mark.parametrize("K", (1, 4096, 2**20))
def test_integers_keep_every_sum_exact(K):
    largest = np.abs(check.draw_tensor(SGEMM.tensors(problem_of(1, 1, K))["A"], K, "integers", check.generator(0))).max()
    assert 1 <= largest * largest * K <= 2**24 or K == 1


def test_sums_that_cannot_be_exact_are_refused():
    with pytest.raises(BadConfig, match="not exact"):
        check.draw_tensor(SGEMM.tensors(problem_of(1, 1, 1))["A"], 2**25, "integers", check.generator(0))


class NumPyBackend:
    """Computes the op as a backend would, with a mistake where one is asked for."""

    def __init__(self, spoil=lambda C, inputs: C):
        self.spoil = spoil

    def run(self, plan, inputs):
        assert set(inputs) == {"A", "B"}
        return {"C": self.spoil(inputs["A"] @ inputs["B"], inputs)}


def test_check_step_judges_both_kinds_of_input():
    step, problem = SGEMM.steps[0], problem_of(33, 20, 65)
    verdicts = check.check_step(step, problem, NumPyBackend())
    assert [v.kind for v in verdicts] == list(check.KINDS) and all(verdicts) and all(v.problem == problem for v in verdicts)
    assert not any(check.check_step(step, problem, NumPyBackend(wrong_element)))
