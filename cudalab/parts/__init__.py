"""The lab's parts, in order.  A part is a module of this package that holds its title and its ops."""

from cudalab.parts import p04_roofline, p05_sgemm, p06_tcgemm

PARTS = (p04_roofline, p05_sgemm, p06_tcgemm)
