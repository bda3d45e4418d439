"""What every test shares: no test reads or writes the results of this checkout, and the command finds no GPU unless one is played."""

import math

import click.testing
import pytest

import cli
from cudalab import build, gpu
from cudalab.errors import NoDevice


@pytest.fixture(autouse=True)
def results_folder(tmp_path, monkeypatch):
    """An empty results folder; returns its path."""
    folder = tmp_path / "results"
    monkeypatch.setenv("CUDALAB_RESULTS", str(folder))
    monkeypatch.delenv("COLUMNS", raising=False)  # tables as they are in a pipe, not as wide as the terminal that runs the tests
    return folder


@pytest.fixture
def row():
    """A function that makes a valid results row, with the fields given in place of its own."""
    def make(**fields):
        shape = fields.get("shape", dict(M=4096, N=4096, K=4096))
        flops = 2 * math.prod(shape.values())
        time_s, peer_time_s = fields.get("time_s", 4e-3), fields.get("peer_time_s", 3e-3)
        return dict(op="sgemm", step="05_blocktile_2d", shape=shape, dtype="f32", variant=None, device="NVIDIA H200", peer="cublas",
                    protocol="steady", time_s=time_s, time_iqr_s=0.0, flops=flops, bytes=4 * 3 * 4096**2, roof="fp32", roof_share=0.5,
                    peer_time_s=peer_time_s, ratio=peer_time_s and peer_time_s / time_s, config=dict(BM=128), seed=0,
                    date="2026-12-01T00:00:00Z") | fields
    return make


@pytest.fixture
def lab(monkeypatch):
    """Runs the command on a machine without a GPU; returns click's result."""
    def none(ordinal):
        raise NoDevice("there is no NVIDIA driver here")
    monkeypatch.setattr(gpu, "_open_driver", none)
    monkeypatch.setenv("CUDALAB_DUMPS", str(build.dumps_folder()))  # --dumps sets it for the run; put it back afterwards
    return lambda *words: click.testing.CliRunner().invoke(cli.main, [str(word) for word in words])
