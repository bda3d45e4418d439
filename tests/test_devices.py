"""Devices, their roofs, and finding one by a loose name."""

import pytest

from cudalab.devices import NAMED, find_device
from cudalab.errors import UnknownName
from cudalab.registry import ops
from cudalab.roofline import roofs


@pytest.mark.parametrize("text, name", [("4060", "NVIDIA GeForce RTX 4060"), ("rtx 4090", "NVIDIA GeForce RTX 4090"),
                                        ("h200", "NVIDIA H200"),
                                        ("NVIDIA H200", "NVIDIA H200"), ("A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"), ("l4", "NVIDIA L4"),
                                        ("rtx5090", "NVIDIA GeForce RTX 5090")])
def test_a_loose_name_finds_one_device(text, name):
    assert find_device(text).name == name


@pytest.mark.parametrize("text, words", [("a100", ("40GB", "80GB")), ("h20O", ("H200",)), ("", ("there are", "H200"))])
def test_other_names_list_the_candidates(text, words):
    with pytest.raises(UnknownName) as error:
        find_device(text)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize("device", NAMED.values(), ids=lambda d: d.name)
def test_every_figure_is_plausible_and_has_a_source(device):
    assert device.source and 80 <= device.sm <= 130 and 10 < device.sms < 300
    assert 1e9 < device.clock_hz < 3e9 and 1e11 < device.dram_bytes_per_s < 1e13
    assert 4 * 2**20 < device.l2_bytes < 2**28 and 2**32 < device.memory_bytes < 2**39


@pytest.mark.parametrize("name, tflops", [("h200", 66.9), ("a100-sxm4-80gb", 19.5), ("4090", 82.6), ("4060", 15.1),
                                          ("l40s", 91.6), ("5090", 104.8)])
def test_fp32_roofs_are_the_data_sheets_figures(name, tflops):
    assert roofs.roofs(find_device(name))["fp32"].value / 1e12 == pytest.approx(tflops, rel=0.01)


def test_the_nearer_roof_bounds():
    sgemm, device = ops()["sgemm"], find_device("h200")
    large, flat = sgemm.problem(dict(M=4096, N=4096, K=4096)), sgemm.problem(dict(M=4096, N=4096, K=1))
    assert roofs.floor(sgemm, large, device)[0] == "fp32" and roofs.floor(sgemm, flat, device)[0] == "dram"
    name, least = roofs.floor(sgemm, large, device)
    assert roofs.share(sgemm, large, device, 2 * least) == (name, pytest.approx(0.5), False)
