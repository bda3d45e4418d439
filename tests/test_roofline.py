"""The one model of what a device can do: the architecture's figures, measured roofs in their place, what bounds an op; the roofs' study."""

import numpy as np
import pytest

from cudalab import registry, results
from cudalab.build import build
from cudalab.devices import NAMED, find_device, per_cycle
from cudalab.emulator import Emulator
from cudalab.errors import LabError
from cudalab.parts import p04_roofline as part
from cudalab.register_banks import count
from cudalab.roofline import roofs
from cudalab.sass import functions
from cudalab.studies.roofline import conclude, measure, rate_inside

H200 = NAMED["NVIDIA H200"]


def row(roof="fp32", through="FMA", protocol="steady", rate=66e12, unit="FLOP", **more):
    """A row of the study as a device gives it."""
    own = roofs.architecture(H200).get(roof)
    inside = rate / (H200.sms * 1.98e9)
    return dict(study=roofs.STUDY, device=H200.name, date="2026-12-01T00:00:00Z", versions={}, roof=roof, through=through,
                protocol=protocol, unit=unit, per_cycle=inside, architecture_per_cycle=own and own.per_cycle,
                architecture_share=own and inside / own.per_cycle, rate_per_s=rate, rate=f"{rate / 1e12:.1f} T/s", time_s=2e-3,
                sm_clock_mhz=1980, power_w=400.0, temperature_c=40, throttle=None) | more


DRAM = [row("dram_read", "ld.global", rate=4.5e12, unit="byte"), row("dram_write", "st.global", rate=4.0e12, unit="byte")]


# The architecture

@pytest.mark.parametrize("device, roof, tera", [
    ("a100-sxm4-80gb", "bf16", 312), ("a100-sxm4-80gb", "tf32", 156), ("a100-sxm4-80gb", "int8", 624), ("a100-sxm4-80gb", "fp64", 9.7),
    ("3090", "f16", 71), ("a6000", "bf16", 154.8), ("4090", "bf16", 165.2), ("4090", "fp8", 330.3), ("4090", "int8", 660.6),
    ("l40s", "bf16", 362), ("l40s", "fp8", 733), ("4060", "bf16", 30.2), ("5090", "bf16", 209.5), ("5090", "int8", 838),
    ("h200", "fp64", 33.5)])
def test_tensor_roofs_are_the_data_sheets_figures(device, roof, tera):
    assert roofs.architecture(find_device(device))[roof].value / 1e12 == pytest.approx(tera, rel=0.02)


def test_hopper_an_sm_and_cycle():
    found = roofs.architecture(H200)
    assert {name: found[name].per_cycle for name in ("fp32", "bf16", "f16", "tf32", "fp8", "int8", "shared")} == dict(
        fp32=256, bf16=4096, f16=4096, tf32=2048, fp8=8192, int8=8192, shared=128)
    assert "l2" not in found and "fp8" not in roofs.architecture(find_device("a100-sxm4-80gb"))


@pytest.mark.parametrize("device", NAMED.values(), ids=lambda d: d.name)
def test_every_roof_has_a_source(device):
    found = roofs.architecture(device)
    assert {"fp32", "fp64", "bf16", "dram_read", "dram_write", "dram_copy", "shared"} <= set(found)
    assert all(len(roof.source) > 20 and roof.value > 0 and roof.per_cycle > 0 and not roof.measured for roof in found.values())


def test_a_device_of_an_unknown_architecture_has_fp32_and_memory_only():
    from dataclasses import replace
    found = roofs.architecture(replace(H200, sm=130))
    assert set(found) == {"fp32", "dram_read", "dram_write", "dram_copy", "shared"} and per_cycle(replace(H200, sm=130))[1]


# Measured roofs

def test_measured_roofs_take_the_place_of_the_architectures(tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [row(rate=66e12), row(rate=60e12, protocol="sustained"), row("bf16", "wgmma", rate=900e12),
            row("bf16", "mma.sync", rate=600e12), *DRAM]
    results.append(file, rows)
    results.merge_studies(file)
    found = roofs.roofs(H200)
    assert (found["fp32"].value, found["fp32"].measured, found["bf16"].value) == (66e12, True, 900e12)
    assert "wgmma" in found["bf16"].source and not found["fp8"].measured
    assert roofs.roofs(H200, "sustained")["fp32"].value == 60e12, "of the same protocol"
    assert roofs.roofs(H200, "sustained")["bf16"].value == 900e12, "steady where that protocol has none"
    assert not roofs.roofs(find_device("4060"))["fp32"].measured, "of another device"
    sgemm = registry.ops()["sgemm"]
    large, flat = sgemm.problem(dict(M=4096, N=4096, K=4096)), sgemm.problem(dict(M=4096, N=4096, K=1))
    assert roofs.share(sgemm, large, H200, 4 * 4096**3 / 66e12) == ("fp32", pytest.approx(0.5), True)
    name, least = roofs.floor(sgemm, flat, H200)
    assert name == "dram" and least == pytest.approx(2 * 4 * 4096 / 4.5e12 + 4 * 4096**2 / 4.0e12), "reads and writes by their own roofs"


def test_rows_of_one_table_are_held_against_the_same_roofs():
    of_then = dict(op="sgemm", step="01_naive", shape=dict(M=4096, N=4096, K=4096), dtype="f32", variant=None, device=H200.name,
                   protocol="steady", time_s=4e-3, roof="fp32", roof_share=0.5, roof_measured=False)
    gone = of_then | dict(op="of_another_day"), of_then | dict(device="of another house"), of_then | dict(shape=dict(M=0, N=1, K=1))
    results.append(results.study_file(roofs.STUDY, H200.name), [row(rate=50e12), *DRAM])
    now, *others = roofs.by_present_roofs([of_then, *gone])
    assert now == of_then | dict(roof_share=pytest.approx(2 * 4096**3 / 50e12 / 4e-3), roof_measured=True)
    assert others == list(gone)


def test_an_op_is_under_the_roof_of_its_own_units():
    known = roofs.architecture(H200)
    tensor, read = registry.ops()["roof_tensor"], registry.ops()["roof_read"]
    sizes = dict(M=64, N=64, K=64, R=2)
    assert [roofs.compute_roof(tensor.problem(sizes, dtype), known) for dtype in tensor.dtypes] == [
        "bf16", "f16", "tf32", "fp8", "int8"]
    assert roofs.compute_roof(read.problem(dict(H=2, W=2, R=1)), known) == "fp32"
    fma = registry.ops()["roof_fma"]
    assert roofs.compute_roof(fma.problem(dict(T=2, J=2, R=1), "f64"), known) == "fp64"
    without = {name: roof for name, roof in known.items() if name != "fp8"}
    assert roofs.compute_roof(tensor.problem(sizes, "fp8_e4m3"), without) == "fp32"


def test_counted_work_is_held_against_tensor_cores_and_fp64():
    counts = dict(flops_f32=0, flops_f64=0, flops_tensor=4096 * 1000, dram_bytes=1, shared_load_wavefronts=0, shared_store_wavefronts=0,
                  async_shared_bytes=128 * 2000, warp_instructions=4)
    shared, tensor, *_ = roofs.demands(counts, H200, "bf16")
    assert (shared.name, shared.work, tensor.name) == ("shared", 2000, "bf16") and tensor.share == pytest.approx(0.5)
    doubles = dict(counts, flops_tensor=0, flops_f64=128 * 5000)
    assert roofs.demands(doubles, H200)[0].name == "fp64"
    assert roofs.demands(counts, H200, "fp8_e5m2")[1].name == "fp8"


# Roof kernels

@pytest.mark.parametrize("device", NAMED.values(), ids=lambda d: d.name)
def test_roof_kernels_fill_a_device(device):
    """Every roof that the device has is measured; what is timed from inside is one wave, as many blocks on every SM; what is read from L2
    fits there, what is read from DRAM does not."""
    from cudalab.build import verify
    from cudalab.occupancy import occupancy
    target = f"sm_{device.sm}a" if device.sm >= 90 else f"sm_{device.sm}"
    found = [t for t in part.targets(device) if t.step.runs_on(device.sm, t.problem)]
    assert {t.roof for t in found} == {n for n in roofs.architecture(device) if n != "l2"} | {"l2"}
    for t in found:
        plan = t.plan
        (launch,) = plan.launches
        assert t.work > 0 and plan.nbytes < device.memory_bytes / 4
        assert t.outside or launch.grid[0] % device.sms == 0
        assert plan.nbytes < 0.7 * device.l2_bytes if t.roof == "l2" else not t.outside or plan.nbytes > 4 * device.l2_bytes
        if device is H200 and t.roof in ("fp32", "bf16", "fp8", "shared"):
            built = build(plan, target)
            verify(built, plan)
            kernel = built.kernels[launch.entry]
            blocks = occupancy(device.sm, launch.block[0], kernel.registers, kernel.static_smem + launch.smem).blocks
            assert launch.grid[0] <= device.sms * blocks, f"{t.roof} by {t.through}: a second wave"


def loop(plan, opcode):
    """The innermost loop of a plan's kernel with the most of an opcode."""
    listing = next(iter(functions(build(plan, "sm_90a").sass).values()))
    loops = [[i for i in listing if j.target <= i.address <= j.address] for j in listing if j.target is not None and j.target < j.address]
    return max(loops, key=lambda body: sum(i.opcode.startswith(opcode) for i in body) / len(body))


def test_the_multiply_adds_wait_for_no_register():
    """What the roof of FP32 rests on: a loop that is multiply-adds but for its counter, each of which finds its operands (at the loop's
    end the operand caches are taken to be empty)."""
    chains = registry.resolve_step("roof_fma/1")
    body = loop(chains.plan(chains.op.problem(dict(T=1024, J=16, R=100))), "FFMA")
    banks = count(body)
    assert banks.conflicts <= 1 and banks.multiply_adds >= 128 and len(body) - banks.multiply_adds <= 4


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_wgmma_follows_wgmma(dtype):
    """A pass is sixteen instructions on the same sums, one fence and one wait, and nothing that touches the sums."""
    warpgroup = registry.resolve_step("roof_tensor/2")
    K = 512 // (2 if dtype == "bf16" else 1)
    body = loop(warpgroup.plan(warpgroup.op.problem(dict(M=256, N=256, K=K, R=10), dtype)), ("HGMMA", "IGMMA"))
    assert sum("GMMA" in i.opcode for i in body) == 16
    assert not [i for i in body if i.opcode.split(".")[0] in ("MOV", "IMAD", "STL", "LDL", "LDS", "LDG")]


def test_a_warp_keeps_its_operands_in_registers():
    warp = registry.resolve_step("roof_tensor/1")
    body = loop(warp.plan(warp.op.problem(dict(M=512, N=64, K=32, R=10), "bf16")), "HMMA")
    assert sum("HMMA" in i.opcode for i in body) == 32 and len(body) <= 37, "2 x 8 tiles, two steps of K, and no register set to zero"


@pytest.mark.parametrize("step, sizes, dtype, says", [
    ("roof_tensor/1", dict(M=8, N=8, K=65, R=1), "bf16", "at most 128 bytes of K"),
    ("roof_tensor/2", dict(M=8, N=257, K=8, R=1), "bf16", "at most 256 rows of 512 bytes"),
    ("roof_tensor/2", dict(M=8, N=8, K=129, R=1), "tf32", "at most 256 rows of 512 bytes"),
    ("roof_fma/1", dict(T=8, J=33, R=1), "f32", "at most 32"), ("roof_read/2", dict(H=13, W=8, R=1), "f32", "at most 12 rows")])
def test_a_shape_that_does_not_fit_is_named(step, sizes, dtype, says):
    found = registry.resolve_step(step)
    with pytest.raises(LabError, match=says):
        found.plan(found.op.problem(sizes, dtype))


def test_a_roof_kernel_does_what_it_claims():
    """Counted in the PTX that runs: exactly the operations or bytes that its rate is worked out from; one that did less would be named."""
    def few(device, small):
        return [t for t in part.targets(device, small) if t.roof in ("fp32", "fp64", "tf32", "l2", "shared", "dram_read")]
    rows = list(measure(few)(Emulator(device=H200), lambda *_: None))
    assert len(rows) == 9
    for found in rows:
        sums = 8 * 4 * 64 if (found["roof"], found["through"]) == ("l2", "ld.global.cg") else 0  # its eight blocks add those in L2
        assert found["counted"] == found["expected"] + sums, found["roof"]
    assert "did the work" in conclude(rows)[0]
    assert "fp32: less work" in conclude([rows[0] | dict(counted=1), *rows[1:]])[0]


# What a device says

def stamps(blocks=4, sms=2, cycles=1000, ns=500.0, skew=10):
    """Blocks of the SMs in turns; a block starts `skew` cycles behind the one before it on its SM."""
    first = np.arange(blocks) // sms * skew
    return np.stack([np.arange(blocks) % sms, 7 + first, 7 + first + cycles, np.full(blocks, 100), np.full(blocks, 100 + int(ns))], axis=1)


def test_a_rate_is_that_of_an_sm_over_all_its_blocks():
    per_cycle, clock = rate_inside(stamps().astype(np.uint64), 8080)
    assert per_cycle == pytest.approx(8080 / 2 / 1010) and clock == pytest.approx(2e9)
    lopsided = np.concatenate([stamps(), stamps()[:1]])  # one SM had a third block, and its share of the work
    assert rate_inside(lopsided, 10100)[0] == pytest.approx((3 * 2020 / 1010 + 2 * 2020 / 1010) / 2)


@pytest.mark.parametrize("broken", [stamps(cycles=0), stamps(ns=0.0), np.full((4, 5), 0xA5A5A5A5A5A5A5A5, np.uint64)])
def test_stamps_that_no_device_leaves_are_refused(broken):
    with pytest.raises(LabError, match="too short"):
        rate_inside(broken, 1000)


def test_sentences_and_picture_of_measured_roofs(tmp_path):
    from cudalab import plot
    rows = [row(rate=66e12), row(rate=64e12, protocol="sustained", sm_clock_mhz=1900, power_w=500.0),
            row("l2", "ld.global.cg", rate=10e12, unit="byte"), row("bf16", "mma.sync", rate=620e12), *DRAM]
    said = conclude(rows)
    assert "fp32 by FMA: 252.5 of 256 operations a cycle and SM (98.6%) at 1980 MHz" in said[0] and "at 1900 MHz and 500 W" in said[0]
    assert "l2 by ld.global.cg" in said[1] and " of " not in said[1]
    assert said[-1].startswith("Below 90% of the architecture's figure: bf16 by mma.sync, dram_write")
    (study,) = part.studies
    assert plot.draw_study(study, rows, tmp_path / "roofs.png").stat().st_size > 5000
