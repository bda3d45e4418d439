"""What happens in a call: one cupy.matmul or one step, from Python to the kernel.

- follow.py: what is traced and how, and what it says
- timeline.py: events joined by correlation ids, as a table and as a trace for Perfetto
- activity.py: events from CUPTI
- launch_cost.py: what a launch costs where nothing is traced
"""
