"""The file of peers that docs/torch_peers.md shows, saved as it says, with PyTorch and CuPy played: neither need be here."""

import re
import sys
from unittest.mock import MagicMock

import pytest

from cudalab import peers, registry, results
from cudalab.errors import LabError
from cudalab.problem import Problem
from cudalab.spec import KERNELS

ROOT = KERNELS.parent
PAGE = ROOT / "docs" / "torch_peers.md"
NAME = "torch_peers.py"
OPS = dict(add="vecadd", sgemm="sgemm", matmul_nt="tcgemm", fp8_per_tensor="fp8gemm", fp8_row_wise="fp8gemm", softmax="softmax",
           rmsnorm="rmsnorm", layernorm="layernorm", total="reduce", along="axis", argmax="argmax")  # function -> whose problems it takes
IN_PLACE = "add", "sgemm", "matmul_nt", "along"


@pytest.fixture
def torch(monkeypatch, tmp_path):
    """PyTorch played, in a folder that has the file."""
    code, = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / NAME).write_text(code)
    monkeypatch.chdir(tmp_path)
    played = MagicMock(name="torch")
    monkeypatch.setitem(sys.modules, "torch", played)
    monkeypatch.setitem(sys.modules, "cupy", MagicMock(name="cupy"))
    return played


def prepared(name: str, problem: Problem | None = None):
    """The peer's call for its op's first problem, over arrays of exactly the op's names; and those arrays."""
    op = registry.ops()[OPS[name]]
    problem = problem or op.problem(op.shapes["bench"][0])
    buffers = {tensor: MagicMock(name=tensor, dtype="float32") for tensor in op.tensors(problem)}
    return peers.find_peer(f"{NAME}:{name}").prepare(problem, buffers, None), buffers


@pytest.mark.parametrize("name", OPS)
def test_a_function_takes_the_names_of_its_op_and_fills_the_output_once(torch, name):
    call, _ = prepared(name)
    out = torch.as_tensor.return_value  # whatever array it is of
    for copies in (1, 1):
        call()
        assert out.copy_.call_count == (0 if name in IN_PLACE else copies)
    asked = {"add": torch.add, "sgemm": torch.mm, "matmul_nt": torch.mm}.get(name)
    assert asked is None or asked.call_count == 2 and asked.call_args.kwargs == dict(out=out)


def test_a_shape_is_compiled_once_for_all_its_sets_and_apart_from_other_shapes(torch):
    peer = peers.find_peer(f"{NAME}:softmax")
    for compiled, rows in ((1, 4), (1, 4), (2, 5), (2, 5)):
        torch.as_tensor.return_value = MagicMock(shape=(rows, 8), dtype="float32")
        peer.prepare(None, dict(x=MagicMock(), y=MagicMock()), None)
        assert torch.compile.call_count == torch.compiler.reset.call_count == compiled


@pytest.mark.parametrize("name, dtype, variant", [("matmul_nt", "bf16", "nn"), ("matmul_nt", "fp8_e4m3", "nt"),
                                                  ("fp8_per_tensor", "fp8_e4m3", "block"), ("fp8_row_wise", "fp8_e4m3", "block")])
def test_what_pytorch_does_not_compute_is_declined(torch, name, dtype, variant):
    with pytest.raises(LabError, match="--variant"):
        prepared(name, Problem(dict(M=16, N=16, K=128), dtype, variant))


def test_tf32_is_on_where_the_problem_is_of_tf32_alone(torch):
    for name, dtype, precision in (("matmul_nt", "tf32", "high"), ("matmul_nt", "bf16", "highest"), ("sgemm", "f32", "highest")):
        prepared(name, Problem(dict(M=16, N=16, K=16), dtype, "nt"))
        assert torch.set_float32_matmul_precision.call_args.args == (precision,)


def test_every_peer_of_a_row_and_of_a_command_of_the_readme_is_there(torch, monkeypatch):
    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"--peer (\S+:\w+)", text))
    given = {peer for peer in named if not peer.startswith("mine.py:")}  # the one that the text shows itself
    assert len(given) > 5 and all(callable(peers.find_peer(peer).prepare) for peer in given)
    monkeypatch.delenv("CUDALAB_RESULTS")
    of_rows = {row["peer"] for row in results.rows() if row["peer"] and ":" in row["peer"]}
    assert of_rows and all(peers.find_peer(peer).name == peer for peer in of_rows)
