"""The timing protocol without a device: schedule, statistics, batch sizes, rows, what happens to peers, and the peers' own errors."""

import json
import statistics
from types import SimpleNamespace

import pytest

from cudalab import measure, pairs, peers, results
from cudalab.devices import find_device
from cudalab.errors import BadConfig, LabError, UnknownName
from cudalab.pairs import Summary
from cudalab.registry import ops

SGEMM = ops()["sgemm"]
STEP = SGEMM.steps[0]
PROBLEM = SGEMM.problem(dict(M=256, N=128, K=64))
MEASURED = dict(error=1e-7, peer_error=2e-7, peer_note="candidate 3", seed=0, sm_clock_mhz=1980, power_w=400.0, temperature_c=50,
                throttle=[], versions=dict(nvrtc="13.0"))
FIELDS = """op step shape dtype variant device peer protocol time_s time_iqr_s flops bytes roof roof_share peer_time_s ratio error
peer_error config seed source_digest sm_clock_mhz power_w temperature_c throttle versions date""".split()


class Clock:
    """Two arms on one machine that grows slower with every batch."""

    def __init__(self, ours_s, peer_s, drift=0.0):
        self.order, self.seconds, self.drift = [], dict(A=ours_s, B=peer_s), drift

    def arm(self, letter):
        def batch():
            self.order.append(letter)
            return self.seconds[letter] * (1 + self.drift * len(self.order))
        return batch


def test_step_and_peer_alternate_abba():
    clock, ticks = Clock(1.0, 2.0), []
    found = pairs.alternate(clock.arm("A"), clock.arm("B"), 6, lambda: ticks.append(1))
    assert "".join(clock.order) == "ABBAABBAABBA"
    assert found == [(1.0, 2.0)] * 6 and len(ticks) == 6


def test_without_a_peer_there_are_only_our_batches():
    clock = Clock(1.0, 2.0)
    assert pairs.alternate(clock.arm("A"), None, 4, lambda: None) == [(1.0, None)] * 4 and clock.order == ["A"] * 4


def test_a_drifting_machine_leaves_the_ratio_alone():
    clock = Clock(1e-3, 1.1e-3, drift=0.002)
    summary = pairs.summarise(pairs.alternate(clock.arm("A"), clock.arm("B"), pairs.PAIRS, lambda: None))
    assert summary.ratio == pytest.approx(1.1, rel=2e-4)
    assert pairs.PAIRS >= 15 and pairs.PAIRS % 2 == 0


def test_statistics_are_medians_and_interquartile_ranges():
    ours = [1.0, 1.0, 2.0, 3.0, 100.0]
    summary = pairs.summarise([(a, 2 * a) for a in ours])
    assert summary == Summary(2.0, 2.0, 4.0, 4.0, 2.0, 0.0)
    assert pairs.summarise([(a, None) for a in ours]) == Summary(2.0, 2.0, None, None, None, None)
    assert pairs.iqr([5.0]) == 0.0
    assert pairs.iqr(list(range(101))) == 50


def test_the_ratio_is_the_median_of_ratios_not_the_ratio_of_medians():
    found = [(1.0, 1.0), (2.0, 6.0), (4.0, 4.0)]
    assert pairs.summarise(found).ratio == 1.0 != statistics.median(b for _, b in found) / statistics.median(a for a, _ in found)


@pytest.mark.parametrize("call_s", (1e-6, 1e-5, 3e-4, 2e-2))
@pytest.mark.parametrize("sets", (1, 7, 64))
@pytest.mark.parametrize("launches", (1, 3, 1000))
def test_a_batch_is_long_enough_and_fits_the_queue(call_s, sets, launches):
    n = pairs.calls_per_batch(call_s, sets, launches)
    most = max(1, pairs.QUEUE // launches)
    assert 1 <= n <= most
    assert n == most or (n * call_s >= pairs.BATCH_S and n % sets == 0)


def test_rotating_sets_are_more_than_three_times_l2():
    l2 = 60 * 2**20
    for nbytes in (12 * 10**6, 100 * 2**20, 805 * 10**6, 180 * 2**20):
        sets = pairs.set_count(nbytes, l2)
        assert sets * nbytes > 3 * l2 and (sets - 1) * nbytes <= 3 * l2
    assert pairs.set_count(12, l2) == pairs.SETS


@pytest.mark.parametrize("peer", ("cublas", None))
@pytest.mark.parametrize("step", SGEMM.steps, ids=lambda s: s.id)
def test_rows_are_complete_and_become_json(step, peer, tmp_path):
    summary = Summary(1e-3, 1e-5, 1.1e-3, 1e-5, 1.1, 0.01) if peer else Summary(1e-3, 1e-5, None, None, None, None)
    found = measure.row(step.plan(PROBLEM), find_device("h200"), peer, "steady", summary, **MEASURED)
    assert not set(FIELDS) - set(found)
    assert json.loads(json.dumps(found)) == found
    results.append(tmp_path / "rows.jsonl", [found])
    assert results.read(tmp_path / "rows.jsonl") == [found]
    assert 0 < found["roof_share"] and found["shape"] == dict(M=256, N=128, K=64) and found["step"] == step.id


def peer_named(name, missing=None, only=()):
    return peers.Peer(name, name, only, lambda *_: None, lambda: missing, lambda: "1.0")


@pytest.fixture
def benched(monkeypatch):
    """bench_step with the device's part replaced; `stop` is what measuring against a peer of that name raises (None: it is left out)."""
    stop = {}

    def bench(gpu, plan, protocol, seed, with_peer, progress, say):
        def against(peer):
            name = peer.name if peer else None
            if name in stop:
                if stop[name] is None:
                    return None
                raise stop[name]
            return dict(peer=name, protocol=protocol, config=dict(plan.config))
        return SimpleNamespace(against=against)

    monkeypatch.setattr(measure, "_Bench", bench)
    return stop


def test_a_missing_peer_is_said_and_the_others_are_measured(benched):
    said = []
    wanted = [peer_named("a", "pip install a"), peer_named("b"), peer_named("c", only=("softmax",))]
    rows = list(measure.bench_step(None, STEP, PROBLEM, peers=wanted, say=said.append))
    assert [row["peer"] for row in rows] == ["b"]
    assert len(said) == 2 and "pip install a" in said[0] and "does not compute sgemm" in said[1]


def test_without_peers_there_is_one_row(benched):
    assert [row["peer"] for row in measure.bench_step(None, STEP, PROBLEM)] == [None]


def test_peers_that_are_left_out_leave_a_row_without_a_peer(benched):
    benched["a"] = None
    rows = measure.bench_step(None, STEP, PROBLEM, peers=[peer_named("a"), peer_named("b")])
    assert [row["peer"] for row in rows] == ["b"]
    assert [row["peer"] for row in measure.bench_step(None, STEP, PROBLEM, peers=[peer_named("a")])] == [None]


def test_an_interrupt_keeps_the_rows_before_it(benched):
    benched["b"] = KeyboardInterrupt()
    rows = []
    with pytest.raises(KeyboardInterrupt):
        for row in measure.bench_step(None, STEP, PROBLEM, peers=[peer_named("a"), peer_named("b")]):
            rows.append(row)
    assert [row["peer"] for row in rows] == ["a"]


def test_tunables_reach_the_plan_and_wrong_ones_are_refused(benched):
    name, value = next(iter(STEP.config(PROBLEM).items()))
    assert next(measure.bench_step(None, STEP, PROBLEM, config={name: value // 2}))["config"][name] == value // 2
    with pytest.raises(BadConfig):
        next(measure.bench_step(None, STEP, PROBLEM, config=dict(NONE=1)))
    with pytest.raises(BadConfig, match="steady"):
        next(measure.bench_step(None, STEP, PROBLEM, protocol="fast"))


def test_peers_of_the_op_exist():
    assert all(peers.find_peer(name).name == name for op in ops().values() for name in op.peers)
    with pytest.raises(UnknownName, match="FILE.py:NAME"):
        peers.find_peer("cutlass")


def test_a_users_peer_is_loaded_from_its_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def mine(problem, buffers):\n    return lambda: buffers.append(problem['M'])\n\n"
                    "def nothing(problem, buffers):\n    pass\n")
    peer = peers.find_peer(f"{file}:mine")
    assert peers.find_peer(f"{file.rename(tmp_path / 'mine.txt')}:mine").name == "mine.txt:mine", "whatever the file's suffix"
    (tmp_path / "mine.txt").rename(file)
    seen = []
    peer.prepare(PROBLEM, seen, None)()
    assert seen == [256] and peer.name == "mine.py:mine" and peer.missing() is None
    with pytest.raises(LabError, match="zero-argument call"):
        peers.find_peer(f"{file}:nothing").prepare(PROBLEM, seen, None)


@pytest.mark.parametrize("name, content, word", [("f", None, "no file"), ("f", "import nothing_of_this_name", "does not import"),
                                                 ("f", "def g(): pass", "it has g"), ("f", "def (", "SyntaxError"),
                                                 ("f", "raise SystemExit(3)", "SystemExit: 3"), ("f", "raise ValueError('a\\nb')", "a b")])
def test_a_users_peer_that_does_not_load_is_one_line(tmp_path, name, content, word):
    file = tmp_path / "mine.py"
    if content is not None:
        file.write_text(content)
    with pytest.raises(LabError, match=word) as error:
        peers.find_peer(f"{file}:{name}")
    assert "\n" not in str(error.value)


def test_nvml_reports_reasons_and_what_is_missing():
    from cudalab.nvml import Monitor
    monitor = Monitor.__new__(Monitor)
    monitor._samples = [(300_000, 40, 0x1), (450_000, 45, 0x4 | 0x20)]
    assert monitor.summary() == dict(power_w=450.0, temperature_c=45, throttle=["power cap", "thermal (software)"])
    assert monitor.summary() == dict(power_w=None, temperature_c=None, throttle=None)
    monitor._samples = [(None, 40, 0x1)]
    assert monitor.summary() == dict(power_w=None, temperature_c=40, throttle=[])


@pytest.mark.parametrize("target", ("sm_80", "sm_90a", "sm_120a"))
def test_the_measuring_kernels_compile(target):
    from pathlib import Path

    from cudalab import hold, nvrtc
    program = nvrtc.compile_program(Path("hold.cu"), hold.SOURCE.encode(), [f"--gpu-architecture={target}", "-std=c++17"], [])
    assert b".entry hold" in program.ptx and b".entry clocks" in program.ptx
