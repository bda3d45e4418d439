"""Part 1: from a Python call to silicon.  `cli.py trace` follows any call; the study keeps what one matmul took."""

from cudalab.studies.trace import STUDIES

TITLE = "from a Python call to silicon: 'trace matmul', 'trace STEP'"

ops = ()
studies = STUDIES
