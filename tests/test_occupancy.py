"""Occupancy against figures worked out by hand from NVIDIA's rules, and against properties that must hold."""

import itertools

import pytest

from cudalab.errors import BadLaunch
from cudalab.occupancy import LIMITS, Occupancy, limits, occupancy


@pytest.mark.parametrize("sm, threads, registers, smem, expected", [
    # 128 x 32 registers a warp, 16 warps fit the four partitions: two blocks of eight
    (90, 256, 128, 0, Occupancy(2, 16, 0.25, ("registers",))),
    # one register more is 129 x 32 = 4128, allocated as 4352: three warps a partition, so a second block no longer fits
    (90, 256, 129, 0, Occupancy(1, 8, 0.125, ("registers",))),
    (90, 1024, 32, 0, Occupancy(2, 64, 1.0, ("registers", "warps"))),
    (89, 1024, 32, 0, Occupancy(1, 32, 32 / 48, ("warps",))),
    # 8 KB and the reserved 1 KB: 228 // 9 = 25 blocks by shared memory, 8 of eight warps by warps
    (90, 256, 32, 8192, Occupancy(8, 64, 1.0, ("registers", "warps"))),
    (90, 32, 32, 8192, Occupancy(25, 25, 25 / 64, ("shared memory",))),
    (89, 32, 32, 8192, Occupancy(11, 11, 11 / 48, ("shared memory",))),
    (80, 32, 16, 0, Occupancy(32, 32, 0.5, ("blocks",))),
    (86, 32, 16, 0, Occupancy(16, 16, 16 / 48, ("blocks",))),
    (89, 32, 16, 0, Occupancy(24, 24, 0.5, ("blocks",))),
    (120, 32, 16, 0, Occupancy(24, 24, 0.5, ("blocks",))),
    (90, 128, 32, 227 * 1024, Occupancy(1, 4, 4 / 64, ("shared memory",))),
    (90, 128, 32, 227 * 1024 + 1, Occupancy(0, 0, 0.0, ("shared memory",))),
    (80, 128, 32, 163 * 1024, Occupancy(1, 4, 4 / 64, ("shared memory",))),
    (120, 128, 32, 99 * 1024, Occupancy(1, 4, 4 / 48, ("shared memory",))),
    (90, 1024, 65, 0, Occupancy(0, 0, 0.0, ("registers",))),
    (90, 384, 168, 200 * 1024, Occupancy(1, 12, 12 / 64, ("registers", "shared memory"))),
    (90, 33, 32, 0, Occupancy(32, 64, 1.0, ("registers", "warps", "blocks"))),
])
def test_figures(sm, threads, registers, smem, expected):
    assert occupancy(sm, threads, registers, smem) == expected


@pytest.mark.parametrize("sm", LIMITS)
def test_more_of_a_resource_never_gives_more_blocks(sm):
    for threads, registers, smem in itertools.product((32, 128, 256, 1024), (16, 40, 64, 128, 255), (0, 1000, 49152, 98000)):
        here = occupancy(sm, threads, registers, smem)
        assert here.blocks <= LIMITS[sm].blocks and 0 <= here.fraction <= 1 and here.limits
        assert here.blocks * threads <= LIMITS[sm].warps * 32 and here.blocks * threads * registers <= 65536
        assert here.blocks * (smem + 1024) <= LIMITS[sm].smem
        for more in (occupancy(sm, threads, registers + 8, smem), occupancy(sm, threads, registers, smem + 4096)):
            assert more.blocks <= here.blocks


def test_an_unknown_capability_is_an_error():
    with pytest.raises(BadLaunch, match="7.5 are not known here; known: 8.0"):
        limits(75)
