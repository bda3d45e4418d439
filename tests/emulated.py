"""CUDA C++ and bare PTX on the emulator, for its tests."""

import functools
import re
from pathlib import Path

import numpy as np

from cudalab import nvrtc
from cudalab.emulator import Emulator

HEADER = ".version 8.7\n.target {target}\n.address_size 64\n"


@functools.cache
def compile_cuda(text: str, target: str = "sm_90a", *options: str) -> str:
    """The PTX of a CUDA C++ text, whose lines are those of a file kernel.cu."""
    flags = [f"--gpu-architecture={target}", "-std=c++17", "-lineinfo", *options]
    flags += [f"-I{folder}" for folder in nvrtc.include_folders()] if "#include" in text else []
    return nvrtc.compile_program(Path("kernel.cu"), text.encode(), flags, []).ptx.decode()


def cuda(text: str, grid, block, *args, target: str = "sm_90a", smem: int = 0, emulator: Emulator | None = None, cluster=None):
    """Run the kernel `k` of a CUDA C++ text; arrays are buffers.  Returns them as they are afterwards."""
    return (emulator or Emulator(target)).run_ptx(compile_cuda(text, target), "k", grid, block, args, smem=smem, cluster=cluster)


def kernel(body: str, parameters: str, before: str = "") -> str:
    return f'{before}\nextern "C" __global__ void k({parameters}) {{\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n{body}\n}}\n'


def ptx_program(body: str, params: int, registers: str = "", target: str = "sm_90a") -> str:
    """A kernel `k` around a PTX body, which finds its parameters' addresses in %a0, %a1, …, its thread in %i (32 bits) and %w (64)."""
    declared = ",\n".join(f"    .param .u64 p{number}" for number in range(params))
    loads = "\n".join(f"    ld.param.u64 %a{n}, [p{n}];\n    cvta.to.global.u64 %a{n}, %a{n};" for n in range(params))
    return (HEADER.format(target=target) + f".visible .entry k(\n{declared}\n)\n{{\n"
            f"    .reg .b64 %a<{params}>;\n    .reg .b32 %i;\n    .reg .b64 %w;\n    {registers}\n"
            f"{loads}\n    mov.u32 %i, %tid.x;\n    cvt.u64.u32 %w, %i;\n{body}\n    ret;\n}}\n")


WIDTH = dict(pred=1, b8=1, u8=1, s8=1, b16=2, u16=2, s16=2, f16=2, bf16=2, b32=4, u32=4, s32=4, f32=4, f16x2=4, bf16x2=4,
             b64=8, u64=8, s64=8, f64=8)


def apply(instruction: str, result: str, *operands: tuple[str, np.ndarray], target: str = "sm_90a") -> np.ndarray:
    """One instruction over arrays, one thread an element.  `instruction` has %d for the result and %0, %1, … for the operands, each
    given as (type of its register, values).  result: the type of the result's register.  Returns its values, as unsigned integers."""
    body, registers = [], [f".reg .{_register(result)} %d;"]
    for number, (kind, _) in enumerate(operands):
        registers.append(f".reg .{_register(kind)} %{number};")
        body += _load(kind, f"%{number}", f"%a{number}", number)
        registers.append(f".reg .b64 %at{number}; .reg .b16 %h{number};")
    registers.append(".reg .b64 %at; .reg .b16 %h;")
    body.append(f"    {instruction}")
    width = WIDTH[result]
    body += [f"    mad.lo.u64 %at, %w, {width}, %a{len(operands)};"]
    if result == "pred":
        body += ["    selp.b16 %h, 1, 0, %d;", "    st.global.u8 [%at], %h;"]
    else:
        body += [f"    st.global.b{8 * width} [%at], %d;"]
    count = len(operands[0][1])
    arrays = [np.ascontiguousarray(np.broadcast_to(values, count)) for _, values in operands]
    out = np.zeros(count, f"u{width}")
    program = ptx_program("\n".join(body), len(operands) + 1, " ".join(registers), target)
    threads = min(count, 256)
    assert count % threads == 0
    program = program.replace("    mov.u32 %i, %tid.x;", "    .reg .b32 %cta, %nt;\n    mov.u32 %i, %tid.x;\n    mov.u32 %cta, %ctaid.x;\n"
                              "    mov.u32 %nt, %ntid.x;\n    mad.lo.u32 %i, %cta, %nt, %i;")
    return Emulator(target).run_ptx(program, "k", count // threads, threads, (*arrays, out))[-1]


def _register(kind: str) -> str:
    return kind if kind in ("pred", "f32", "f64") else f"b{max(16, 8 * WIDTH[kind])}"


def _load(kind: str, name: str, base: str, number: int) -> list[str]:
    lines = [f"    mad.lo.u64 %at{number}, %w, {WIDTH[kind]}, {base};"]
    if kind == "pred":
        return [*lines, f"    ld.global.u8 %h{number}, [%at{number}];", f"    setp.ne.b16 {name}, %h{number}, 0;"]
    return [*lines, f"    ld.global.b{8 * WIDTH[kind]} {name}, [%at{number}];"]


def line_of(text: str, mark: str) -> int:
    """The number of the first line that holds a mark."""
    return next(number for number, line in enumerate(text.splitlines(), 1) if re.search(mark, line))
