"""A one-kernel step made from a text, for tests of what surrounds real steps."""

from pathlib import Path

from cudalab.spec import Launch, Op, Plan, Step

COPY = '''extern "C" __global__ void __launch_bounds__(256) copy(const float* A, float* C, int N) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < N) C[i] = A[i];
}
'''

op = Op("toy", title="C = A", dims=("N",), inputs=dict(A="N"), outputs=dict(C="N"), reference=lambda A: A, scale=lambda A: abs(A),
        depth=lambda p: 1, flops=lambda p: p.N, bytes=lambda p: 8 * p.N, samples=(), peers=(), shapes={})


def plan(folder: Path, text: str = COPY, *, entries=("copy",), block=256, args="A C N", smem=0, spills=False, cluster=None,
         **config) -> Plan:
    """The plan of N = 1000 for a source with this text, written to `folder`/kernel.cu."""
    source = folder / "kernel.cu"
    source.write_text(text)

    def actions(p, c):
        for entry in entries:
            yield Launch(entry, grid=4, block=block, args=args, smem=smem, cluster=cluster)
    return Step(op, 1, "kernel", source, actions, config, {}, 80, spills).plan(op.problem(dict(N=1000)))
