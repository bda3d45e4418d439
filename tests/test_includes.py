"""A measurement belongs to its source and the headers that the source includes, and to no other."""

from cudalab import registry, results


def test_a_step_depends_on_its_own_headers_only(tmp_path, monkeypatch):
    step = registry.resolve_step("step12")
    from cudalab import includes
    found, outside = includes.headers(step.source, step.source.read_bytes())
    assert sorted(path.name for path in found) == ["cluster.cuh", "edges.cuh", "ptx.cuh"] and not outside
    digest = results.source_digest(step)
    common = tmp_path / "common"
    common.mkdir()
    for name in ("cluster.cuh", "ptx.cuh"):
        (common / name).write_bytes((includes.COMMON / name).read_bytes())
    monkeypatch.setattr(includes, "COMMON", common)
    assert results.source_digest(step) == digest
    (common / "mma.cuh").write_text("// another step's")
    assert results.source_digest(step) == digest
    (common / "ptx.cuh").write_text("// another comment\n" + (common / "ptx.cuh").read_text())
    assert results.source_digest(step) == digest
    (common / "ptx.cuh").write_text("int changed;")
    assert results.source_digest(step) != digest


def test_compiling_leaves_shared_bytes_alone(tmp_path):
    """Python keeps one object for every string of one byte; an empty log, of one byte, must not be written into it."""
    from cudalab import nvrtc
    source = tmp_path / "quiet.cu"
    source.write_text('extern "C" __global__ void quiet() {}')
    nvrtc.compile_program(source, source.read_bytes(), ["--gpu-architecture=compute_90"], [])
    assert [bytes([value])[0] for value in range(256)] == list(range(256))
