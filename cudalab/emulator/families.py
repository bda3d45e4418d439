"""The files that instructions are lowered in.  A new family: write its file, import it here."""

from cudalab.emulator import async_copy  # noqa: F401
from cudalab.emulator import atomics  # noqa: F401
from cudalab.emulator import barriers  # noqa: F401
from cudalab.emulator import bulk  # noqa: F401
from cudalab.emulator import calls  # noqa: F401
from cudalab.emulator import clusters  # noqa: F401
from cudalab.emulator import compare  # noqa: F401
from cudalab.emulator import control  # noqa: F401
from cudalab.emulator import convert  # noqa: F401
from cudalab.emulator import floating  # noqa: F401
from cudalab.emulator import half  # noqa: F401
from cudalab.emulator import integer  # noqa: F401
from cudalab.emulator import logic  # noqa: F401
from cudalab.emulator import matrix  # noqa: F401
from cudalab.emulator import mbarrier_ops  # noqa: F401
from cudalab.emulator import memory_ops  # noqa: F401
from cudalab.emulator import moves  # noqa: F401
from cudalab.emulator import tensor  # noqa: F401
from cudalab.emulator import video  # noqa: F401
from cudalab.emulator import warp  # noqa: F401
from cudalab.emulator import wgmma  # noqa: F401
