"""Studies: what rows gain, how they are kept, shown and drawn; every study of the lab on the emulator."""

import json
import re
import types
from dataclasses import replace

import pytest
import toy
from command import fails, works

from cudalab import counted, devices, gpu, parts, plot, readme, registry, report, results
from cudalab import study as studying
from cudalab.emulator import Emulator
from cudalab.errors import BadResults, LabError, WrongResult
from cudalab.study import Study

H200 = devices.NAMED["NVIDIA H200"]


def lines(axes, rows):
    axes.plot([row["working_set_bytes"] for row in rows], [row["latency_cycles"] for row in rows])
    axes.set_xlabel("working set, bytes")


def measure(place, progress):
    for number, size in enumerate((1 << 10, 1 << 20)):
        progress(number, 2, "chasing")
        yield dict(working_set_bytes=size, latency_cycles=30.5 * (number + 1), bandwidth_bytes_per_s=4.5e12, level="L1")


SIZES = Study("toy/sizes", "latency by size", measure, ("working_set_bytes", "latency_cycles", "bandwidth_bytes_per_s", "level", "gone"),
              lines, lambda rows: [f"The knee is at {rows[-1]['latency_cycles']} cycles."])


@pytest.fixture
def toy_part(monkeypatch):
    """A part with two studies in place of the lab's own; returns it."""
    part = types.SimpleNamespace(__name__="cudalab.parts.p99_toy", TITLE="a toy", ops=(), studies=(
        SIZES, Study("toy/other", "another", measure, ("working_set_bytes",))))
    monkeypatch.setattr(parts, "PARTS", (part,))
    return part


def rows_of(study=SIZES, date="2026-12-01T00:00:00Z", **more):
    rows = list(studying.run(study, Emulator(device=H200)))
    return [row | dict(date=date, device=H200.name, sm_clock_mhz=1980) | more for row in rows]


# Rows

def test_a_row_gains_what_every_row_has():
    first, second = studying.run(SIZES, Emulator("sm_90a", device=H200))
    assert first["study"] == "toy/sizes" and first["device"] == "emulator, as NVIDIA H200" and first["sm_clock_mhz"] is None
    assert first["date"] == second["date"] and "nvrtc" in first["versions"] and second["latency_cycles"] == 61.0
    with pytest.raises(LabError, match="gives no rows"):
        list(studying.run(replace(SIZES, measure=lambda place, progress: iter(())), Emulator(device=H200)))


def test_what_an_emulated_study_counts_is_checked(tmp_path):
    place = Emulator(device=H200)
    assert counted.count_plan(toy.plan(tmp_path), place)["global_load_requests"] == 32
    with pytest.raises(WrongResult, match="toy/kernel"):
        counted.count_plan(toy.plan(tmp_path, toy.COPY.replace("= A[i]", "= A[i] + 1")), place)


def test_the_newest_run_replaces_the_last(results_folder, tmp_path):
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    results.append(old, rows_of())
    results.append(new, [*rows_of(date="2026-11-01T00:00:00Z"), *rows_of(date="2026-12-02T00:00:00Z", latency_cycles=7.5)[:1]])
    name = (SIZES.name, H200.name)
    assert results.merge_studies(old) == {name: 2} and results.merge_studies(old) == {name: 0}
    assert results.merge_studies(new) == {name: 1} and results.merge_studies(old) == {name: 0}
    (row,) = results.study_rows()[name]
    assert row["latency_cycles"] == 7.5 and results.rows() == []
    assert [str(f.relative_to(results_folder)) for f in results_folder.rglob("*.*")] == ["studies/nvidia_h200/toy-sizes.jsonl"]


@pytest.mark.parametrize("change", [dict(study="sizes"), dict(study="../x/y"), dict(device=""), dict(latency_cycles=float("nan")),
                                    dict(latency_cycles=[1]), dict(date=3)])
def test_a_damaged_row_is_named_and_nothing_is_taken(tmp_path, results_folder, change):
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in (rows_of()[0], rows_of()[1] | change)))
    with pytest.raises(BadResults, match=f"rows.jsonl:2: '{next(iter(change))}'"):
        results.merge_studies(file)
    assert not results_folder.exists()


def test_bench_rows_and_study_rows_share_a_file(tmp_path, row):
    file = tmp_path / "rows.jsonl"
    results.append(file, [row(), *rows_of()])
    assert results.merge(file) == {"NVIDIA H200": 1} and sum(results.merge_studies(file).values()) == 2
    assert len(results.rows()) == 1


# What is made of them

@pytest.mark.parametrize("name, value, text", [
    ("latency_cycles", 33.04, "33.0"), ("bandwidth_bytes_per_s", 4.549e12, "4.549 TB/s"), ("time_s", 2.5e-6, "2.500 µs"),
    ("working_set_bytes", 1 << 20, "1 MiB"), ("roof_share", 0.973, "97.3%"), ("launches", 12000, "12,000"), ("level", "L2", "L2"),
    ("power_w", 287.4, "287 W"), ("fits", True, "yes"), ("gone", None, "-"), ("flops_per_s", 66e12, "66 TFLOP/s")])
def test_cells_show_the_unit_that_a_name_ends_in(name, value, text):
    assert report.study_cell(name, value) == text


def test_the_readme_gets_picture_sentences_table_and_command(toy_part, tmp_path):
    kept = {(SIZES.name, H200.name): rows_of()}
    files = plot.draw_studies(kept, tmp_path / "docs")
    assert [f.name for f in files] == ["toy-sizes-nvidia_h200.svg"] == [f.name for f in (tmp_path / "docs").iterdir()]
    assert all(f.stat().st_size > 500 for f in files)
    text = readme.tables([], tmp_path / "docs", kept)
    order = ("![toy/sizes on NVIDIA H200](docs/toy-sizes-nvidia_h200.svg)", "The knee is at 61.0 cycles.",
             "`python cli.py study toy/sizes --plot toy-sizes.svg` ([", "rows](results/studies/nvidia_h200/toy-sizes.jsonl)")
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    assert text.startswith(f"On {H200.name}: ") and "- [toy: a toy](#toy-a-toy): 1 study\n\n### toy: a toy\n" in text
    assert "| 1 MiB |" not in text
    assert "| 1 MiB |" in readme.tables([], None, {("toy/other", H200.name): rows_of()}), "where no sentence says what it shows"
    before = [f.read_bytes() for f in files]
    assert [f.read_bytes() for f in plot.draw_studies(kept, tmp_path / "docs")] == before, "the same rows give the same picture"


def test_of_many_studies_tables_and_long_lists_are_folded(toy_part, tmp_path):
    said = [f"Sentence {number}." for number in range(7)]
    studies = [replace(SIZES, name=f"toy/s{number}", conclude=lambda rows: said) for number in range(3)] + [toy_part.studies[1]]
    toy_part.studies = tuple(studies)
    kept = {(study.name, H200.name): rows_of(study) for study in studies}
    plot.draw_studies(kept, tmp_path / "docs")
    text = readme.tables([], tmp_path / "docs", kept)
    unfolded = re.sub(r"(?s)<details>.*?</details>", "", text)
    assert "(#toy-a-toy): 4 studies\n" in text and text.count("![") == unfolded.count("![") == 3
    assert text.count("<summary>2 more of toy/s1</summary>\n\n- Sentence 5.\n- Sentence 6.\n\n</details>") == 1
    assert unfolded.count("- Sentence 4.") == 3 and "Sentence 5" not in unfolded
    assert "<details><summary>the rows of toy/other</summary>\n\n| working set |" in text and "| 1 MiB |" not in unfolded
    del kept[studies[0].name, H200.name]
    assert "<details>" not in readme.tables([], tmp_path / "docs", kept)


# The verb

def test_the_verb_prints_a_table_and_what_follows(lab, toy_part, tmp_path):
    result = works(lab("study", "sizes", "--plot", tmp_path / "sizes.png", "--device", "RTX 4060"))
    assert "The knee is at 61.0 cycles." in result.stdout and "emulator, as NVIDIA GeForce RTX 4060" in result.stdout
    assert re.search(r"^ +working set +latency cycles +bandwidth +level$", result.stdout, re.MULTILINE)
    assert (tmp_path / "sizes.png").stat().st_size > 500
    found = json.loads(works(lab("study", "toy", "--json")).stdout)
    assert [one["study"] for one in found] == ["toy/sizes", "toy/other"] and found[0]["conclusions"] and len(found[1]["rows"]) == 2


def test_one_study_that_fails_does_not_lose_the_others(lab, toy_part):
    def broken(place, progress):
        raise LabError("the working set is larger than the memory: take a smaller one")
        yield
    toy_part.studies = (replace(SIZES, name="toy/broken", measure=broken), SIZES)
    result = lab("study", "toy")
    assert result.exit_code == 1 and "1 of 2 studies failed" in result.stderr and "61.0" in result.stdout
    assert [len(one["rows"]) for one in json.loads(lab("study", "toy", "--json").stdout)] == [0, 2]
    toy_part.studies = toy_part.studies[:1]
    for words in ((), ("--json",)):
        fails(lab("study", "toy", *words), "larger than the memory")


def test_studies_are_listed_with_when_they_were_measured(lab, toy_part, tmp_path):
    assert re.search(r"^toy/sizes +latency by size$", works(lab("study")).stdout, re.MULTILINE)
    results.append(tmp_path / "rows.jsonl", rows_of())
    assert "toy/sizes on NVIDIA H200: 2 rows in" in works(lab("results", "merge", tmp_path / "rows.jsonl")).stdout
    assert "nothing newer" in works(lab("results", "merge", tmp_path / "rows.jsonl")).stdout
    for words in (("study",), ("list",)):
        assert re.search(r"^toy/sizes +latency by size +NVIDIA H200, 2026-12-01$", works(lab(*words)).stdout, re.MULTILINE)
    assert json.loads(works(lab("list", "--json")).stdout)[0]["studies"][0]["measured"][0]["device"] == "NVIDIA H200"
    assert "toy/sizes" in works(lab("results")).stdout and len(json.loads(works(lab("results", "--json")).stdout)) == 2
    assert len(json.loads(works(lab("results", "--plot", tmp_path, "--json")).stdout)) == 1


def test_a_study_on_a_device_is_saved_whole_or_not(lab, toy_part, tmp_path, monkeypatch):
    class Played:
        name, target, device = "gpu", "sm_90a", H200
    monkeypatch.setattr(gpu, "backend", lambda name=None, **emulated: Played())
    monkeypatch.setattr(studying, "_clock_and_versions", lambda place: ((lambda: 1979.6), {}))
    file = tmp_path / "rows.jsonl"
    works(lab("study", "sizes", "--save", file))
    assert [(row["device"], row["sm_clock_mhz"]) for row in results.read(file)] == [(H200.name, 1980)] * 2

    def interrupted(place, progress):
        yield dict(working_set_bytes=1)
        raise KeyboardInterrupt
    toy_part.studies = (replace(SIZES, measure=interrupted),)
    assert lab("study", "sizes", "--save", file, "--json").exit_code == 130 and len(results.read(file)) == 2


def test_what_a_person_gets_wrong_is_one_line(lab, toy_part, tmp_path):
    fails(lab("study", "size"), "no study or part", "nearest: ", "sizes")
    fails(lab("study", "toy", "--plot", "x.svg"), "--plot draws one study", "toy/sizes, toy/other")
    fails(lab("study", "sizes", "--plot", "x.pdf"), ".svg or .png")
    fails(lab("study", "other", "--plot", "x.svg"), "has no picture")
    fails(lab("study", "sizes", "--save", tmp_path / "rows.jsonl"), "emulator times nothing")
    fails(lab("study", "sizes", "--device", "RTX 9999"), "no device is called")
    toy_part.studies = (SIZES, replace(SIZES, name="more/sizes"))
    fails(lab("study", "sizes"), "ambiguous: toy/sizes, more/sizes")


# The lab's own

@pytest.mark.parametrize("part", parts.PARTS, ids=lambda part: part.__name__.rpartition(".")[2])
def test_a_study_is_named_after_its_part(part):
    short = part.__name__.rpartition(".")[2].partition("_")[2]
    for study in getattr(part, "studies", ()):
        assert study.part == short and results.STUDY_NAME.fullmatch(study.name) and study.columns and not study.title.endswith(".")


@pytest.mark.parametrize("study", registry.studies().values(), ids=lambda study: study.name)
def test_every_study_counts_on_the_emulator(study, tmp_path):
    """Its rows have the columns, sentences and a picture come of them, and none of them holds a time."""
    rows = list(studying.run(study, Emulator(device=H200)))
    for row in rows:
        results.validate(row)
        assert not [name for name in row if re.search(r"(?<!_per)_s$", name) and row[name] is not None]
    assert any(row.get(name) is not None for name in study.columns for row in rows)
    assert report.studied(study, rows)
    if study.plot:
        assert plot.draw_study(study, rows, tmp_path / "study.svg").stat().st_size > 1000
