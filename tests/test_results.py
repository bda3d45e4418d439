"""Rows: what is kept, what is refused, what the README and the picture say of them."""

import json
import os
import re

import pytest

from cudalab import readme, registry, results
from cudalab.errors import BadResults, LabError
from cudalab.spec import KERNELS

SGEMM = registry.ops()["sgemm"]


def test_the_newest_row_of_a_key_counts(results_folder, row):
    file = results_folder / "nvidia_h200.jsonl"
    results.append(file, [row(time_s=3e-3, date="2026-12-02T00:00:00Z"), row(time_s=4e-3, date="2026-12-01T00:00:00Z")])
    results.append(file, [row(time_s=5e-3, date="2026-12-01T12:00:00Z", peer="cublaslt")])
    assert {(r["peer"], r["time_s"]) for r in results.rows()} == {("cublas", 3e-3), ("cublaslt", 5e-3)}
    assert len(results.read(file)) == 3, "older rows stay in the file"
    results.append(file, [row(time_s=6e-3, date="2026-12-02T00:00:00Z")])
    assert [r["time_s"] for r in results.rows("NVIDIA H200") if r["peer"] == "cublas"] == [6e-3], "of one second, the later line"
    assert results.rows("NVIDIA A100") == []


@pytest.mark.parametrize("field, value", [
    ("peer", "cublaslt"), ("protocol", "sustained"), ("shape", dict(M=1, N=2, K=3)), ("step", "01_naive"), ("device", "NVIDIA A100"),
    ("variant", "causal"), ("dtype", "f16"), ("op", "reduce")])
def test_each_part_of_the_key_tells_rows_apart(row, field, value):
    assert len(results.newest([row(), row(**{field: value})])) == 2


def test_the_order_of_a_shape_does_not_matter(row):
    assert results.key(row(shape=dict(M=1, N=2, K=3))) == results.key(row(shape=dict(K=3, N=2, M=1)))


@pytest.mark.parametrize("change, word", [
    (dict(time_s=0), "time_s"), (dict(time_s=float("nan")), "time_s"), (dict(time_s="1"), "time_s"), (dict(time_s=True), "time_s"),
    (dict(device=None), "device"), (dict(device=""), "device"), (dict(shape={}), "shape"), (dict(shape=dict(M=0)), "shape"),
    (dict(shape=[1, 2]), "shape"), (dict(ratio=-1), "ratio"), (dict(peer=3), "peer"), (dict(date=None), "date"),
    (dict(date="yesterday"), "date"), (dict(date="2026-13-01T00:00:00Z"), "date")])
def test_a_damaged_field_is_named_with_file_and_line(tmp_path, row, change, word):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row()) + "\n\n" + json.dumps({**row(), **change}) + "\n")
    with pytest.raises(BadResults, match=f"rows.jsonl:3: '{word}'"):
        results.read(file)


@pytest.mark.parametrize("line, words", [
    ("{", "not JSON"), ("[]", "not a JSON object"), ('{"op": "sgemm"}', "lacks step"), ("3", "not a JSON object")])
def test_a_damaged_line_is_named_and_nothing_of_its_file_is_merged(tmp_path, results_folder, row, line, words):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row()) + "\n" + line + "\n")
    with pytest.raises(BadResults, match=f"rows.jsonl:2: .*{words}"):
        results.merge(file)
    assert not results_folder.exists()


def test_bytes_that_are_not_text_are_an_error(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadResults, match="not UTF-8"):
        results.read(tmp_path / "rows.jsonl")


def test_merging_twice_adds_once_and_sorts_by_device(tmp_path, results_folder, row):
    file = tmp_path / "rows.jsonl"
    results.append(file, [row(), row(), row(device="NVIDIA GeForce RTX 4060")])
    assert results.merge(file) == {"NVIDIA H200": 1, "NVIDIA GeForce RTX 4060": 1}
    assert results.merge(file) == {"NVIDIA H200": 0, "NVIDIA GeForce RTX 4060": 0}
    assert sorted(p.name for p in results_folder.iterdir()) == ["nvidia_geforce_rtx_4060.jsonl", "nvidia_h200.jsonl"]


def test_a_line_that_was_cut_off_does_not_swallow_the_next_row(tmp_path, row):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"op": "sge')
    results.append(file, [row()])
    assert json.loads(file.read_text().splitlines()[1]) == row()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_place_is_an_error_that_names_it(tmp_path, row):
    tmp_path.chmod(0o500)
    with pytest.raises(BadResults, match="cannot write .*rows.jsonl: Permission denied"):
        results.append(tmp_path / "rows.jsonl", [row()])


def test_a_place_that_cannot_be_is_an_error_that_names_it(tmp_path, row):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadResults, match="cannot write .*rows.jsonl"):
        results.append(tmp_path / "file" / "rows.jsonl", [row()])


def test_tuned_configurations_belong_to_step_device_shape_and_source(monkeypatch, results_folder):
    step, other = SGEMM.steps[4], SGEMM.steps[0]
    problem, small = SGEMM.problem(dict(M=4096, N=4096, K=4096)), SGEMM.problem(dict(M=8, N=8, K=8))
    config = dict(step.config(problem))
    assert results.tuned(step, "NVIDIA H200", problem) is None
    results.save_tuned(step, "NVIDIA H200", problem, config, 2e-3)
    results.save_tuned(step, "NVIDIA H200", problem, config | {"BM": 64}, 1e-3)
    assert results.tuned(step, "NVIDIA H200", problem) == config | {"BM": 64}
    assert results.tuned(step, "NVIDIA H200", small) is None
    assert results.tuned(step, "NVIDIA A100", problem) is None
    assert results.tuned(other, "NVIDIA H200", problem) is None
    assert results.rows() == [], "they are not measured rows"
    monkeypatch.setattr(results, "source_digest", lambda step: "another source")
    assert results.tuned(step, "NVIDIA H200", problem) is None
    (results_folder / "tuned" / "nvidia_h200.jsonl").write_text("[1]\n")
    with pytest.raises(BadResults, match="nvidia_h200.jsonl:1"):
        results.tuned(step, "NVIDIA H200", problem)


def test_changes_compare_with_the_last_row_of_the_same_key(results_folder, row):
    results.append(results_folder / "nvidia_h200.jsonl", [row(time_s=4e-3)])
    same, new = results.changes([row(time_s=5e-3), row(peer="cublaslt")])
    assert same.speed == pytest.approx(0.8) and new.speed is None and new.before is None
    assert results.slower([same, new], 0.97) == [same] and results.slower([same, new], 0.8) == []


# What is made of them

def ladder_rows(row):
    shapes = [dict(shape) for shape in SGEMM.shapes["bench"]]
    return [row(step=step.id, shape=shape, time_s=1 / (number + 1), peer_time_s=0.25, peer=peer)
            for number, step in enumerate(SGEMM.steps) for shape in shapes for peer in SGEMM.peers]


def test_the_readme_gets_the_tables_and_keeps_the_rest(tmp_path, row):
    file = tmp_path / "README.md"
    file.write_text(f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n")
    readme.write_readme(file, ladder_rows(row))
    text = file.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    for step in SGEMM.steps:
        assert f"| `{step.id}` | {step.header[0]} |" in text
    assert text.count("| `" + SGEMM.steps[-1].id) == 1 + len(SGEMM.shapes["bench"]), "the last step is the fastest everywhere here"
    ratio = 0.25 * len(SGEMM.steps)
    assert f"{ratio:.3f} | {ratio:.3f} |" in text and text.count(f"GFLOP is {ratio:.3f}.") == len(SGEMM.peers)
    assert f"Beside cublas: {ratio:.3f} to {ratio:.3f} times as fast, slower at none of the {len(SGEMM.shapes['bench'])} shapes." in text
    assert f"`python cli.py bench sgemm --all-shapes --save rows.jsonl && {readme._AFTER}`" in text
    readme.write_readme(file, ladder_rows(row))
    assert file.read_text() == text, "written twice, it stays the same"
    assert list(tmp_path.glob(".*")) == []


def test_the_readme_says_where_the_library_is_faster_and_leaves_out_a_peer_of_one_step(row):
    slow, fast = dict(M=1024, N=1024, K=1024), dict(M=4096, N=4096, K=4096)
    text = readme.tables([row(shape=fast, time_s=2e-3), row(shape=fast, time_s=2e-3, peer="cublaslt"),
                          row(shape=slow), row(step="01_naive")])
    assert "Beside cublas: 0.750 to 1.500 times as fast, slower at 1024³." in text
    assert "The geometric mean" not in text and "Beside cublaslt: 1.500 times as fast, at 4096³." in text
    assert "| share of the roof | × cublas |\n" in text, "the ladder shows the peers that every step was measured against"


def test_a_peer_without_a_ratio_has_no_column_and_no_part_in_the_command(row):
    small = dict(M=1024, N=1024, K=1024)
    op = registry.ops()["softmax"]
    shapes = [dict(shape) for shape in op.shapes["bench"][:2]]
    found = [row(op="softmax", step=step, shape=shape, dtype="bf16", peer=peer, roof="dram", time_s=time_s) for shape in shapes
             for step, time_s in (("01_unshifted", 4e-3), ("08_bulk", 3e-3)) for peer in ("copy", "torch_peers.py:softmax")]
    text = readme.tables(found)
    assert "cupy" in op.peers and "cupy" not in text
    assert "| share of the roof | copy TB/s | × copy | × torch_peers.py:softmax |\n" in text
    assert "--all-shapes --peer copy --peer torch_peers.py:softmax --save" in text
    last = SGEMM.steps[-1].id
    text = readme.tables([row(step=last), row(step=last, peer="cublaslt"), row(step=last, shape=small, peer="cublaslt")])
    assert re.search(r"\| 1024³ \|[^|]*\|[^|]*\|[^|]*\|[^|]*\| - \| - \| 0.750 \|", text), "cublaslt's speed is not cublas's"


def test_a_ratio_to_what_only_moves_bytes_says_what_an_early_start_gives(row):
    shapes = [dict(shape) for shape in registry.ops()["softmax"].shapes["bench"][:2]]

    def text(step, **more):
        return readme.tables([row(op="softmax", step=one, shape=shape, dtype="bf16", roof="dram", time_s=time_s, **more)
                              for shape in shapes for one, time_s in (("01_unshifted", 4e-3), (step, 3e-3))])
    said = "The copy is a plain launch, which begins when the call before it has ended; `04_registers` may begin while that one ends"
    assert text("04_registers", peer="copy").count(said) == 1
    assert "plain launch" not in text("08_bulk", peer="copy") + text("04_registers", peer="cupy")


def test_one_step_is_no_ladder_and_counts_only_if_it_is_the_last_or_the_fastest_elsewhere(tmp_path, row, monkeypatch):
    from cudalab import plot
    last = SGEMM.steps[-1].id
    alone = readme.tables([row(step=last, time_s=2e-3)])
    assert "every step" not in alone and "the fastest step at each shape" in alone and "also measured" not in alone
    with pytest.raises(BadResults, match="nothing measured"):
        plot.draw([row(step=last)], tmp_path)
    small = dict(M=1024, N=1024, K=1024)
    text = readme.tables([row(), row(peer="cublaslt", peer_time_s=2e-3), row(shape=small)])
    assert "the fastest step" not in text.split("###")[1] and "every step" not in text
    assert "| `05_blocktile_2d` | 4096³ | 34.4 | 50% of fp32 | 0.750 | 0.500 |" in text
    assert f'`python cli.py bench sgemm/5 --shape "4096x4096x4096 1024x1024x1024" --save rows.jsonl && {readme._AFTER}`' in text
    op = registry.ops()["tcgemm"]
    found = [row(op="tcgemm", step=step, dtype=dtype, variant="nt", time_s=time_s) for step, dtype, time_s in (
        ("10_persistent", "bf16", 2e-3), ("11_overlapped", "bf16", 1e-3), ("11_overlapped", "f16", 1e-3), ("10_persistent", "tf32", 1e-3))]
    assert op.steps[-1].id != "11_overlapped"
    text = readme.tables(found)
    assert "f16, nt, the fastest step at each shape" in text, "11 is the fastest of bf16"
    assert "tf32, nt, the fastest" not in text and "| `10_persistent` | 4096³ tf32 nt |" in text


def test_the_list_on_top_has_a_line_and_a_link_for_every_part(row):
    rows = [row(step=step, time_s=time_s, shape=dict(M=n, N=n, K=n), peer=peer, dtype="f32") for n in (4096, 2048, 1024)
            for step, time_s in (("01_naive", 4e-3), ("12_stream_k", 2e-3)) for peer in SGEMM.peers]
    rows += [row(op="vecadd", step=step, shape=dict(N=n), time_s=time_s, peer="cupy_add", flops=1e6, roof="dram")
             for n in (2**28, 2**26) for step, time_s in (("05_vectors", 3e-3), ("06_one_pass", 2e-3))]
    rows += [row(device="NVIDIA A100")]
    text = readme.tables(rows)
    lists = text[:text.index("###")].strip().split("\n\n")
    assert [part.splitlines()[0].split(":")[0] for part in (lists[0], lists[2])] == ["On NVIDIA H200", "On NVIDIA A100"]
    vecadd, sgemm = lists[1].splitlines()
    assert sgemm == ("- [sgemm: a fast FP32 matmul, step by step past cuBLAS](#sgemm-a-fast-fp32-matmul-step-by-step-past-cublas): "
                     "`sgemm/12_stream_k` 68.7 TFLOP/s, 50% of fp32, at 4096³; 1.500 × cublas over 2 shapes, 1.500 × cublaslt over 2")
    assert vecadd.endswith("at 268435456; 1.500 × cupy_add over 2 shapes"), "where no shape is large, all count"
    assert "The geometric mean over the 2 shapes is 1.500." in text and "The geometric mean over the 2 shapes of at least 10" in text
    assert lists[3].endswith("(#sgemm-a-fast-fp32-matmul-step-by-step-past-cublas)"), "one step of many is no headline"


def test_links_of_the_list_lead_to_headings():
    assert readme.anchor("trace: from a Python call to silicon: 'trace matmul'") == "trace-from-a-python-call-to-silicon-trace-matmul"
    text = (KERNELS.parent / "README.md").read_text()
    headings = {readme.anchor(line.lstrip("# ")) for line in text.splitlines() if line.startswith("##")}
    links = re.findall(r"\]\(#([^)]*)\)", text)
    assert len(links) > 5 and set(links) <= headings


def test_in_a_part_with_many_kinds_only_the_first_is_unfolded_and_no_picture_is(tmp_path, row):
    from cudalab import plot
    kinds = [("bf16", "nt"), ("bf16", "nn"), ("f16", "nt"), ("tf32", "nt")]
    rows = [row(op="tcgemm", step=step, dtype=dtype, variant=variant, time_s=time_s) for dtype, variant in kinds
            for step, time_s in (("11_overlapped", 1e-3), ("12_split_k", 2e-3))]
    plot.draw(rows, tmp_path / "docs")
    few, text = (readme.tables(rows[:count], tmp_path / "docs") for count in (6, 8))
    assert "<details>" not in few and few.count("![") == 3
    assert text.count("<details>") == text.count("</details>") == 3 and text.count("![") == 4
    unfolded = re.sub(r"(?s)<details>.*?</details>", "", text)
    assert unfolded.count("![") == 4 and "bf16, nt, the steps measured" in unfolded and "f16, nt, the steps measured" in text
    assert unfolded.count(", the steps measured (") == 1
    assert "<summary>tcgemm, tf32, nt: the steps measured, and the fastest at each shape; 3.000 × " in text
    assert len(re.findall(r"</summary>\n\n", text)) == len(re.findall(r"\n\n</details>", text)) == 3, "so Markdown is read inside"


@pytest.mark.parametrize("dtype", ["bf16", "fp8_e4m3"])
def test_every_step_is_said_only_where_all_that_take_the_kind_have_a_row(tmp_path, row, dtype):
    """Of bf16 all steps take it, of fp8 all but the last."""
    from cudalab import plot
    op = registry.ops()["tcgemm"]
    taking = [step.id for step in op.steps if (dtype, "nt") in step.kinds()]
    assert (len(taking) == len(op.steps)) == (dtype == "bf16")
    usual = [row(op="tcgemm", step=step.id, dtype="bf16", variant=variant, time_s=9e-3) for variant in ("nt", "nn") for step in op.steps]
    led = [row(op="tcgemm", step=step, dtype=dtype, variant="nt") for step in taking]
    others = [row(op="tcgemm", step=step, dtype="f16", variant="nt") for step in taking[-2:]]
    for rows, whole in ((led, True), (led[1:], False)):
        kept = [r for r in usual if (r["dtype"], r["variant"]) != (dtype, "nt")] + others + rows
        plot.draw(kept, tmp_path / "docs")
        text, name = readme.tables(kept, tmp_path / "docs"), f"{dtype} nt"
        said, unsaid = ("every step", "the steps measured")[::1 if whole else -1]
        assert f"{dtype}, nt, {said} (" in text and f"{dtype}, nt, {unsaid} (" not in text
        assert f"![tcgemm {name}: {said} beside its peers" in text
        assert dtype == "bf16" or f"<summary>tcgemm, {dtype}, nt: {said}, and the fastest" in text


def test_what_was_sustained_is_a_line_under_the_shapes(row):
    small = dict(M=2048, N=2048, K=2048)
    rows = [row(op="tcgemm", step=step, dtype=dtype, variant="nt") for dtype in ("bf16", "f16")
            for step in ("11_overlapped", "12_split_k")]
    more = [row(op="tcgemm", step="11_overlapped", dtype="f16", variant="nt", protocol="sustained", shape=shape, peer=peer, time_s=time_s)
            for shape in (small, dict(M=4096, N=4096, K=4096)) for peer, time_s in (("cublaslt", 2e-3), ("cublas", 1.5e-3))]
    own = row(op="tcgemm", step="12_split_k", dtype="f16", variant="nt", protocol="sustained", peer="mine.py:mine")
    alone = row(op="tcgemm", step="10_persistent", dtype="f16", variant="nt", protocol="sustained", peer=None, peer_time_s=None, shape=small)
    text, plain = readme.tables(rows + more), readme.tables(rows)
    line = "4096³ `11_overlapped` 2.000 × cublas, 1.500 × cublaslt; 2048³ `11_overlapped` 2.000 × cublas, 1.500 × cublaslt."
    under = (f"\n\nSustained ([two seconds on end](#how-it-is-measured)): {line}\n\n`python cli.py bench tcgemm/11 "
             f'--shape "4096x4096x4096 2048x2048x2048" --dtype f16 --sustained --save rows.jsonl && {readme._AFTER}`')
    assert text.count(under) == 1 and text.replace(under, "") == plain, "it changes no table"
    assert text.index("f16, nt, the fastest step at each shape") < text.index(line)
    text = readme.tables([*rows, own, alone])
    assert "4096³ `12_split_k` 0.750 × mine.py:mine; 2048³ `10_persistent` 4.3 TFLOP/s, 50% of fp32." in text
    assert "bench tcgemm/12 --shape 4096x4096x4096 --dtype f16 --peer mine.py:mine --sustained" in text


@pytest.mark.parametrize("text", ["no markers", f"{readme.END}\n{readme.BEGIN}", f"{readme.BEGIN}\n{readme.BEGIN}\n{readme.END}"])
def test_a_readme_without_its_markers_is_left_alone(tmp_path, row, text):
    file = tmp_path / "README.md"
    file.write_text(text)
    with pytest.raises(BadResults, match="results:begin"):
        readme.write_readme(file, [row()])
    assert file.read_text() == text and list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize("name, says", [("file/README.md", "cannot write"), ("file", "not UTF-8")])
def test_a_readme_that_cannot_be_is_a_line(tmp_path, row, name, says):
    (tmp_path / "file").write_bytes(b"\xff")
    with pytest.raises(BadResults, match=says):
        readme.write_readme(tmp_path / name, [row()])


def test_other_protocols_shapes_and_unknown_steps_stay_out_of_the_tables(row):
    """What was only sustained has no table to stand under."""
    rows = [row(protocol="sustained"), row(step="99_gone"), row(shape=dict(M=3, N=3, K=3)), row(op="gone")]
    assert readme.tables(rows) == ""


def test_the_picture_is_the_same_for_the_same_rows(tmp_path, row):
    from cudalab import plot
    first, second = (plot.draw(ladder_rows(row), tmp_path / name) for name in "ab")
    assert [f.name for f in first] == ["sgemm-nvidia_h200.svg"] == [f.name for f in (tmp_path / "a").iterdir()]
    assert [f.read_bytes() for f in first] == [f.read_bytes() for f in second]
    svg = first[0].read_text()
    assert all(step.id in svg for step in SGEMM.steps) and all(peer in svg for peer in SGEMM.peers)
    with pytest.raises(LabError, match="nothing measured"):
        plot.draw([row(protocol="sustained")], tmp_path)


def test_every_row_in_this_checkout_is_sound(monkeypatch):
    monkeypatch.delenv("CUDALAB_RESULTS")
    devices = {row["device"] for row in results.rows()}
    assert {file.stem for file in results.root().glob("*.jsonl")} == {results.slug(device) for device in devices}
