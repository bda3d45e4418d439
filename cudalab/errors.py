"""Every error that a person can cause: one line that says what is wrong and what cures it."""


class LabError(Exception):
    """Base of all errors the command prints as one line, without a traceback."""


class UnknownName(LabError):
    """A step, op or peer that does not exist, or a name that fits several."""


class BadShape(LabError):
    """A shape that an op or a step cannot take; names the constraint."""


class BadConfig(LabError):
    """A tunable that does not exist or a value that the kernel refuses (a failed static_assert, too many resources)."""


class BadLaunch(LabError):
    """A launch that disagrees with the compiled kernel: entry, parameters, block size, dynamic shared memory."""


class CompileError(LabError):
    """NVRTC refused the source; the message is NVRTC's own, with file and line."""


class Spills(BadConfig, CompileError):
    """Registers spill to local memory in a step that is not there to teach it: the build fails, and a search goes on without it."""


class MissingTool(LabError):
    """A library or program that is not installed; names the command that installs it."""


class NoDevice(LabError):
    """There is no usable GPU: no driver, no device, or a driver too old for the toolkit."""


class UnusableDevice(NoDevice):
    """A GPU or its driver is there but cannot be used as things are installed: said, never passed over as if there were none."""


class OutOfMemory(LabError):
    """The device has too little memory; says how much is needed and how much is free."""


class WrongResult(LabError):
    """A kernel's output is not what the reference computes."""


class BadResults(LabError):
    """A results file that cannot be read or written, or a damaged line in it; names the file and the line."""
