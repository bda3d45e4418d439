"""cudalab: a GPU kernel lab.  Raw CUDA sources, compiled at run time, checked, timed and compared with the best peer.

Functions over CuPy arrays: softmax, rms_norm, layer_norm, argmax, sum, see cudalab.functions; matmul, see cudalab.products.
"""

__version__ = "0.1.0"
_FUNCTIONS = ("softmax", "rms_norm", "layer_norm", "argmax", "sum")


def __getattr__(name):
    if name in _FUNCTIONS:
        from cudalab import functions
        return getattr(functions, name)
    if name == "matmul":
        from cudalab.products import matmul
        return matmul
    raise AttributeError(f"module 'cudalab' has no attribute '{name}'")
