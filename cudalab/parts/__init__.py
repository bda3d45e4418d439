"""The lab's parts, in order.  A part is a module of this package that holds its title and its ops."""

from cudalab.parts import p05_sgemm, p08_argmax, p08_axis, p08_layernorm, p08_reduce, p08_rmsnorm, p08_softmax

PARTS = (p05_sgemm, p08_reduce, p08_softmax, p08_rmsnorm, p08_layernorm, p08_argmax, p08_axis)
