"""PyTorch is nowhere: not in the sources, not in what the extras install, not in what a run imports."""

import configparser
import re
import subprocess
import sys

import pytest

from cudalab.spec import KERNELS

ROOT = KERNELS.parent
SOURCES = [path for folder in ("cudalab", "tests", "docs", "kernels_cu") for path in ROOT.glob(f"{folder}/**/*.py")] + [*ROOT.glob("*.py")]
IMPORT = re.compile(r"^\s*(?:import|from)\s+torch\b|import_module\(['\"]torch|__import__\(['\"]torch", re.MULTILINE)


def test_no_source_imports_it():
    assert len(SOURCES) > 20
    assert [str(path) for path in SOURCES if IMPORT.search(path.read_text())] == []


def test_the_pattern_would_find_it():
    assert IMPORT.search("x\n    import torch\n") and IMPORT.search("from torch import nn") and not IMPORT.search("import torchbearer")


def test_no_requirement_names_it():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    wanted = [config["options"]["install_requires"], *config["options.extras_require"].values()]
    names = {re.split(r"[^\w.-]", line, maxsplit=1)[0].lower() for block in wanted for line in block.split("\n") if line}
    assert {"numpy", "click"} <= names and not {name for name in names if "torch" in name}


@pytest.mark.parametrize("verb", ["list", "show step5", "bench step1", "doctor"])
def test_no_run_imports_it(verb):
    """In a process of its own, where importing it would be an error."""
    code = ("import sys; sys.modules['torch'] = None; import cli\n"
            "try: cli.main(sys.argv[1:], standalone_mode=False)\n"
            "finally: print(sorted(m for m in sys.modules if m.startswith('torch') and sys.modules[m]), file=sys.stderr)")
    ran = subprocess.run([sys.executable, "-c", code, *verb.split()], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.splitlines()[-1] == "[]"
