"""The lab's parts, in order.  A part is a module of this package that holds its title, its ops and its studies."""

from cudalab.parts import p01_trace, p02_vecadd, p03_memory, p04_roofline, p05_sgemm, p06_fp8gemm, p06_fragments, p06_tcgemm, p08_argmax
from cudalab.parts import p08_axis, p08_layernorm, p08_reduce, p08_rmsnorm, p08_softmax

PARTS = (p01_trace, p02_vecadd, p03_memory, p04_roofline, p05_sgemm, p06_tcgemm, p06_fp8gemm, p06_fragments,
         p08_reduce, p08_softmax, p08_rmsnorm, p08_layernorm, p08_argmax, p08_axis)
