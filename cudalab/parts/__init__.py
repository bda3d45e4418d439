"""The lab's parts, in order.  A part is a module of this package that holds its title, its ops and its studies."""

from cudalab.parts import p01_trace, p02_vecadd, p04_roofline, p05_sgemm, p06_tcgemm

PARTS = (p01_trace, p02_vecadd, p04_roofline, p05_sgemm, p06_tcgemm)
