"""cudalab: a GPU kernel lab.  Raw CUDA sources, compiled at run time, checked, timed and compared with the best peer."""

__version__ = "0.1.0"
