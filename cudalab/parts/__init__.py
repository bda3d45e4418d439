"""The lab's parts, in order.  A part is a module of this package that holds its title and its ops."""

from cudalab.parts import p03_memory, p04_roofline, p05_sgemm

PARTS = (p03_memory, p04_roofline, p05_sgemm)
