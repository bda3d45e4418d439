"""What limits a kernel: a device's roofs, kernels as points under them, and a verdict with what to try first.

- roofs.py: what a device could do at most, measured or by its architecture, and what bounds an op
- placement.py: steps, and a language model's kernels (model.py), as points under the roofs
- chart.py: the picture of the points; labels.py: where their names go
- verdict.py: the limit, read off counters; ncu.py: the counters of a device
"""
