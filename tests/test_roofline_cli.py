"""`roofline` and `run` as a person types them; a language model's kernels; the picture and where its labels go."""

import json
import random

import pytest
from command import fails, works
from test_roofline import DRAM, H200, row
from test_verdict import SGEMM, csv, played  # noqa: F401  (a fixture)

from cudalab import gpu, installed, measure, registry, results, study
from cudalab.devices import find_device
from cudalab.errors import BadResults, LabError
from cudalab.roofline import chart, labels, model, ncu, placement, roofs

QWEN = dict(model_type="qwen2", num_hidden_layers=28, hidden_size=1536, intermediate_size=8960, num_attention_heads=12,
            num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True)


@pytest.fixture
def config(tmp_path):
    """Writes a config.json with changes; a key that is None is left out."""
    def write(**changes):
        file = tmp_path / "config.json"
        file.write_text(json.dumps({key: value for key, value in (QWEN | changes).items() if value is not None}))
        return file
    return write


# A model's kernels

def test_a_models_sizes_are_read(config):
    found = model.load(config())
    assert (found.layers, found.d, found.ff, found.heads, found.kv, found.head, found.vocab) == (28, 1536, 8960, 12, 2, 128, 151936)
    # 1.54 billion weights: what the model is said to have, its embedding counted once
    assert 28 * found.layer_weights + 151936 * 1536 == pytest.approx(1.54e9, rel=0.01)
    gone = dict.fromkeys(("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size"))
    older = model.load(config(**gone, n_layer=12, n_embd=768, n_head=12))
    assert (older.layers, older.kv, older.ff, older.head) == (12, 12, 3072, 64)
    nested = model.load(config(text_config=dict(hidden_size=2048, head_dim=256)))
    assert (nested.d, nested.head) == (2048, 256)


def test_a_decode_step_streams_every_weight_once(config):
    found = model.load(config())
    step = model.kernels(found, 1, 1, "bf16", "decode")
    read = sum(k.count * k.read for k in step)
    weights = 2 * (28 * found.layer_weights + 151936 * 1536)
    assert weights < read < weights * 1.01, "3.09 GB a token, with the head's matrix"
    flops = sum(k.count * k.flops for k in step if k.matrix)
    assert flops == pytest.approx(weights, rel=0.01), "two operations a weight of two bytes"


def test_a_prefill_is_a_decode_step_for_every_token_but_for_the_head(config):
    found, names = model.load(config()), ("qkv", "output", "gate_up", "down", "attention_norm", "rope_append", "silu_product")
    prefill, decode = ({k.name: k for k in model.kernels(found, 3, 100, "bf16", phase)} for phase in model.PHASES)
    for name in names:
        assert prefill[name].flops == 100 * decode[name].flops and prefill[name].written == 100 * decode[name].written
    assert prefill["head"] == model.Kernel(**{**vars(decode["head"]), "phase": "prefill"})
    # causal: token i sees i + 1 keys
    assert prefill["attention"].flops == 3 * sum(4 * (i + 1) * 1536 for i in range(100))
    assert decode["attention"].flops == 3 * 4 * 100 * 1536 and decode["attention"].read == 2 * (3 * 1536 + 2 * 3 * 100 * 256)


@pytest.mark.parametrize("changes, says", [
    (dict(hidden_size=None), "lacks hidden_size or n_embd"), (dict(num_hidden_layers=0), "must be a positive integer, not 0"),
    (dict(vocab_size="many"), "must be a positive integer, not 'many'"), (dict(num_key_value_heads=5), "12 heads are not a multiple of 5"),
    (dict(num_local_experts=8), "mixture of experts"), (dict(hidden_size=1e12), "must be a positive integer")])
def test_a_configuration_that_will_not_do_is_one_line(config, changes, says):
    with pytest.raises(LabError, match=says):
        model.load(config(**changes))


def test_the_verb_places_a_models_kernels(lab, config, tmp_path):
    result = works(lab("roofline", "--model", config(), "--sequence", 4096, "--plot", tmp_path / "model.svg", "--device", "H200"))
    assert "prefill/gate_up" in result.stdout and "4096x17920x1536" in result.stdout and "decode/head" in result.stdout
    assert "decode: at least" in result.stdout and "tokens a second" in result.stdout
    assert (tmp_path / "model.svg").read_text().count("<text") > 10
    words = ("--model", config(), "--phase", "decode", "--dtype", "fp8_e4m3", "--batch", 64, "--json")
    found = json.loads(works(lab("roofline", *words)).stdout)
    points = {p["kernel"]: p for p in found["points"]}
    assert set(points) == {f"decode/{k.name}" for k in model.kernels(model.load(config()), 1, 1, "bf16", "decode")}
    assert points["decode/head"]["compute"] == "fp8" and points["decode/head"]["bound"] == "dram" and found["sentences"]
    total = sum(p["count"] * p["floor_s"] for p in points.values())
    assert f"{64 / total:,.0f} tokens a second" in found["sentences"][0]


# Steps

def test_a_step_is_placed_by_its_ops_work_and_by_what_is_counted(lab):
    found = json.loads(works(lab("roofline", "step9", "--device", "RTX 4060", "--json")).stdout)
    (point,) = found["points"]
    assert found["device"] == "NVIDIA GeForce RTX 4060" and {r["name"] for r in found["roofs"]} >= {"fp32", "bf16", "dram_read", "shared"}
    assert point["flops"] == 2 * 4096**3 and point["bytes"] == 3 * 4 * 4096**2 and point["bound"] == "fp32"
    assert point["floor_s"] == pytest.approx(2 * 4096**3 / 15.11e12, rel=0.01) and point["time_s"] is None
    assert point["limit"] and point["counters"]["flops_f32"] > 0 and "counted at 130x260x66" in point["words"]
    assert "no bank conflicts" not in point["first"], "the step that has none"


def test_times_come_from_the_results(lab, tmp_path, row):  # noqa: F811  (the fixture of results' rows)
    file = tmp_path / "rows.jsonl"
    results.append(file, [row(time_s=4e-3), row(time_s=3e-3, date="2026-12-02T00:00:00Z"), row(time_s=1e-3, protocol="sustained")])
    results.merge(file)
    (point,) = json.loads(works(lab("roofline", "step5", "--no-counters", "--json")).stdout)["points"]
    assert point["time_s"] == 3e-3 and point["source"] == "results, 2026-12-02" and point["limit"] is None
    assert point["share"] == pytest.approx(point["floor_s"] / 3e-3) and point["rate_per_s"] == pytest.approx(2 * 4096**3 / 3e-3)
    assert "3.000 ms" in works(lab("roofline", "step5", "--no-counters")).stdout


def test_a_problem_larger_than_the_devices_memory_is_refused(lab):
    fails(lab("roofline", "step5", "--shape", "40000", "--device", "RTX 4060"), "needs 19.2 GB", "has 8.59 GB", "smaller --shape")
    works(lab("roofline", "step5", "--shape", "40000", "--device", "H200", "--no-counters"))


def test_what_ncu_counted_is_printed_by_level_unit_and_reason(played):  # noqa: F811
    (launch,) = ncu.read(csv(("sgemm", SGEMM)))
    lines = "\n".join(placement.counters_lines(launch))
    assert "DRAM read 134.2 MB, DRAM written 67.11 MB" in lines and "fma 81%, dram 4%" in lines and "wait 0.90, warps" in lines
    assert placement.counters_lines({}) == []


def test_without_a_name_every_step_of_the_lab_is_placed(lab):
    found = json.loads(works(lab("roofline", "--json")).stdout)["points"]
    assert {p["kernel"] for p in found} == {step.path for step in registry.steps()} and all(p["floor_s"] > 0 for p in found)


def test_measured_roofs_count_without_a_gpu_too(lab, tmp_path):
    file = tmp_path / "rows.jsonl"
    results.append(file, [row(rate=60e12), *DRAM])
    results.merge_studies(file)
    result = works(lab("roofline", "sgemm", "--no-counters"))
    assert "60 TFLOP/s" in result.stdout and "measured, steady, by FMA, 2026-12-01" in result.stdout


def test_hardware_counters_give_a_step_its_time_and_verdict(played):  # noqa: F811
    played(csv(("sgemm", SGEMM)))
    step = registry.resolve_step("step9")
    problem, known = step.op.problem(dict(M=4096, N=4096, K=4096)), roofs.architecture(H200)
    point = placement.by_counters(placement.place(step, problem, known), step, problem, {})
    assert (point["limit"], point["source"], point["time_s"]) == ("fma", "ncu", pytest.approx(2.717504e-3))
    assert point["share"] == pytest.approx(point["floor_s"] / 2.717504e-3) and point["counters"]["launches"][0]["kernel"] == "sgemm"
    assert "fma 81%" in placement.points_text([point]) and json.dumps(point)


class Played:
    """A GPU as far as the verb looks at it."""
    name, target, device = "gpu", "sm_90a", H200


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Plays a GPU on which every roof takes what `row` says, and every step three milliseconds; returns what was measured."""
    seen = []
    monkeypatch.setattr(gpu, "backend", lambda name=None, **emulated: Played())

    def timing(place, plan, **more):
        seen.append((plan.step.path, dict(plan.problem)))
        return measure.Timing(3e-3, 1e-5, 1980.0, {}, 400.0, 40, [])

    def run(one, place, progress):
        seen.append(one.name)
        yield from (row(rate=60e12), *DRAM)
    monkeypatch.setattr(measure, "time_plan", timing)
    monkeypatch.setattr(study, "run", run)
    return seen


def test_on_a_gpu_roofs_are_measured_once_and_steps_where_no_result_is(lab, on_a_gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(installed, "program", lambda name: None)
    result = works(lab("roofline", "step5", "--json", "--save", tmp_path / "rows.jsonl"))
    found = json.loads(result.stdout)
    assert on_a_gpu == ["roofline/roofs", ("sgemm/05_blocktile_2d", dict(M=4096, N=4096, K=4096))]
    (point,) = found["points"]
    assert (point["time_s"], point["source"], point["share"]) == (3e-3, "measured now", pytest.approx(2 * 4096**3 / 60e12 / 3e-3))
    assert "ncu is not there" in result.stderr and point["limit"] is None
    assert {roof["name"]: roof["measured"] for roof in found["roofs"]}["fp32"] is True
    results.merge_studies(tmp_path / "rows.jsonl")
    on_a_gpu.clear()
    works(lab("roofline", "--json"))
    assert on_a_gpu == [], "kept roofs count, and of steps that nobody named only results"
    works(lab("roofline", "--measure", "--json"))
    assert on_a_gpu == ["roofline/roofs"]
    assert lab("roofline", "step5", "--device", "H200", "--backend", "gpu").exit_code == 2


def test_on_a_gpu_a_step_has_its_verdict_from_hardware(lab, on_a_gpu, played):  # noqa: F811
    calls = played(csv(("sgemm", SGEMM)))
    text = works(lab("roofline", "step9", "--shape", "1024")).stdout
    assert "3.000 ms" in text and "fma 81%" in text and "sgemm/09_conflict_free: the FP32 pipe 81% busy.  First: it is at the roof" in text
    (call,) = calls()
    assert call[call.index("--shape") + 1] == "1024x1024x1024"


# What a person gets wrong

def test_bad_input_is_one_line_with_the_cure(lab, config, tmp_path):
    fails(lab("roofline", "--device", "RTX 9999"), "no device is called")
    fails(lab("roofline", "stepp5"), "no step or op is called", "nearest")
    fails(lab("roofline", "step5", "--dtype", "bf16"), "has no dtype 'bf16'")
    fails(lab("roofline", "sgemm", "--save", tmp_path / "rows.jsonl"), "--measure and --save need a GPU")
    fails(lab("roofline", "sgemm", "--plot", "x.pdf"), ".svg or .png")
    fails(lab("roofline", "--model", tmp_path / "none.json"), "cannot read")
    (tmp_path / "bad.json").write_text("{")
    fails(lab("roofline", "--model", tmp_path / "bad.json"), "is not JSON")
    fails(lab("roofline", "--model", config(), "--batch", 4096, "--sequence", 100000, "--device", "4060"), "GB", "a smaller batch")
    fails(lab("roofline", "--model", config(), "--dtype", "int3"), "no element type is called 'int3'")
    fails(lab("run", "step5"), "no NVIDIA driver")
    assert lab("roofline", "step5", "sgemm", "--shape", "512").exit_code == 2


# The picture

def test_labels_keep_clear_of_points_and_of_each_other():
    rng = random.Random(1)
    for crowd in (1, 5, 20, 45):
        points = [(rng.uniform(100, 700), rng.uniform(100, 400)) for _ in range(crowd)]
        sizes = [(rng.uniform(20, 70), 11) for _ in points]
        line = labels.along([(0, 0), (800, 500)])
        boxes = labels.place(points, sizes, (0, 0, 800, 500), line)
        assert None not in boxes
        for i, box in enumerate(boxes):
            assert box[0] >= 0 and box[1] >= 0 and box[2] <= 800 and box[3] <= 500
            assert (box[2] - box[0], box[3] - box[1]) == pytest.approx(sizes[i])
            assert not any(labels.overlap(box, other) for other in [*boxes[:i], *boxes[i + 1:], *line])
            assert not any(box[0] < x < box[2] and box[1] < y < box[3] for x, y in points)
    assert labels.place([(5, 5)], [(100, 100)], (0, 0, 50, 50)) == [None], "no room"


def test_points_that_touch_share_a_label():
    assert labels.clusters([(0, 0), (50, 0), (4, 0), (8, 0)], 5) == [((4, 0), [0, 2, 3]), ((50, 0), [1])]
    assert chart._joined(["sgemm/1", "sgemm/2", "reduce/3"]) == "sgemm/1, 2\nreduce/3"


def drawn_boxes(figure):
    """Boxes of all texts in the axes as matplotlib draws them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (axes,) = figure.axes
    return axes, [t.get_window_extent(canvas.get_renderer()) for t in axes.texts]


def points_of(names, known, device):
    found = [(s, s.problems("bench")[0]) for name in names for s in registry.ops()[name].steps]
    return [placement.place(step, problem, known) for step, problem in found]


@pytest.mark.parametrize("device", ["H200", "RTX 4060"])
def test_no_text_of_the_picture_covers_another(device, tmp_path):
    chosen = find_device(device)
    known = roofs.architecture(chosen)
    sgemm = points_of(["sgemm"], known, chosen)
    times = [275.7, 22.74, 16.23, 6.704, 4.522, 3.625, 3.547, 3.424, 2.962, 2.791, 2.685, 2.49]
    points = [placement.timed(p, t * 1e-3, "results") for p, t in zip(sgemm, times)]
    points += points_of(["roof_read", "roof_write", "roof_fma", "roof_tensor"], known, chosen)
    figure, boxes = chart.make(points, known, chosen)
    axes, drawn = drawn_boxes(figure)
    assert len(drawn) == len(boxes) >= 8
    for i, a in enumerate(drawn):
        assert axes.bbox.x0 <= a.x0 and a.x1 <= axes.bbox.x1 + 1 and axes.bbox.y0 <= a.y0 and a.y1 <= axes.bbox.y1 + 1
        assert not [b for b in drawn[i + 1:] if labels.overlap((a.x0, a.y0, a.x1, a.y1), (b.x0, b.y0, b.x1, b.y1))]
    words = "\n".join(t.get_text() for t in axes.texts)
    assert "DRAM" in words and "fp32" in words and "sgemm/1" in words and "12" in words
    assert chart.draw(points, known, chosen, tmp_path / f"r.{'svg' if device == 'H200' else 'png'}").stat().st_size > 5000


def test_every_step_of_the_lab_has_its_label_in_one_picture(tmp_path):
    known = roofs.architecture(H200)
    points = points_of([*registry.ops()], known, H200)
    figure, _ = chart.make([p for p in points if p["flops"]], known, H200)
    words = {word for text in figure.axes[0].texts for line in text.get_text().split() for word in line.split("/")}
    assert {step.op.name for step in registry.steps()} <= words


def test_a_picture_of_too_much_or_of_nothing_is_refused(tmp_path):
    known = roofs.architecture(H200)
    point, _ = points_of(["roof_copy"], known, H200)
    with pytest.raises(BadResults, match="nothing to draw"):
        chart.draw([point | dict(flops=0)], known, H200, tmp_path / "x.svg")
    with pytest.raises(LabError, match="name fewer"):
        chart.draw([point] * 200, known, H200, tmp_path / "x.svg")
