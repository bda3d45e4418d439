"""The parser of nvdisasm's listing, on real listings of kernels built here and on single lines."""

import re

import pytest
import toy

from cudalab import sass
from cudalab.build import build
from cudalab.errors import LabError, MissingTool

TEXT = '''#include "twice.cuh"
extern "C" __global__ void __launch_bounds__(256) copy(const float* A, float* C, int N) {
    __shared__ float4 s[256];
    s[threadIdx.x] = reinterpret_cast<const float4*>(A)[threadIdx.x];
    __syncthreads();
    float4 v = s[255 - threadIdx.x];
    if (threadIdx.x < N)
        C[threadIdx.x] = twice(v.x) + v.y * v.z + v.w;
}
extern "C" __global__ void second(float* A) { A[threadIdx.x] = 1; }
'''
HEADER = "__device__ inline float twice(float x) {\n    return x * x * 3.0f + x;\n}\n"


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a"])  # sm_89 is written as sm_80
def test_every_instruction_is_parsed(tmp_path, target):
    (tmp_path / "twice.cuh").write_text(HEADER)
    built = build(toy.plan(tmp_path, TEXT), target, dumps=tmp_path / "dumps")
    found = sass.functions(built.sass)
    assert set(found) == {"copy", "second"}
    assert sum(map(len, found.values())) == len(re.findall(r"^\s+/\*[0-9a-f]{4}\*/", built.sass, re.MULTILINE))
    code = found["copy"]
    assert [i.address for i in code] == list(range(0, 16 * len(code), 16))
    mix = sass.mix(code)
    assert mix["LDG.128"] == 1 and mix["STS.128"] == 1 and mix["LDS.128"] == 1 and mix["STG"] == 1 and mix["BAR"] == 1
    assert mix["FFMA"] + mix.get("FADD", 0) + mix.get("FMUL", 0) >= 4
    assert list(mix.values()) == sorted(mix.values(), reverse=True) and "NOP" not in mix
    by_name = {i.opcode.split(".")[0]: i for i in code}
    assert by_name["LDG"].line == 4 and by_name["BAR"].line == 5 and by_name["LDS"].line == 6 and by_name["STG"].line == 8
    assert by_name["FFMA"].line == 8, "code of a header counts where it is called"
    assert any(i.predicate for i in code), "threads beyond N leave"


def test_lines():
    listing = '''
\t.section\t.text.k,"ax",@progbits
k:
\t//## File "/x/y.cuh", line 3 inlined at "/x/k.cu", line 7
\t//## File "/x/k.cu", line 7
        /*0000*/              @!P1 FFMA R14, R14.reuse, R15, 1 ;
        /*0010*/                   HFMA2 R15, -RZ, RZ, 2, 0 ;
\t//## File "/x/y.cuh", line 4
        /*0020*/             @!UPT UIADD3 UR4, UR4, -0x1, URZ ;
        /*0030*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
        /*10040*/                  BRA `(.L_x_1);
        /*10050*/                  NOP;
'''
    code = sass.functions(listing)["k"]
    assert code[0] == sass.Instruction(0, "FFMA", "R14, R14.reuse, R15, 1", "!P1", 7) and code[1].line == 7
    assert code[2].predicate == "!UPT" and code[2].line is None
    assert code[4].address == 0x10040 and code[4].operands == "`(.L_x_1)" and len(code) == 6
    assert sass.mix(code) == {"BRA": 1, "FFMA": 1, "HMMA.16816": 1, "MOV": 1, "UIADD3": 1}


def test_a_damaged_cubin_and_a_missing_disassembler(tmp_path, monkeypatch):
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(b"not a cubin")
    with pytest.raises(LabError, match="nvdisasm cannot read"):
        sass.disassemble(cubin)
    monkeypatch.setattr(sass.sys, "path", [])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(sass.shutil, "which", lambda name, path: None)
    with pytest.raises(MissingTool, match=r'nvdisasm is not installed.*pip install -e "\.\['):
        sass.disassemble(cubin)
