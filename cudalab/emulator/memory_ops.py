"""Loads and stores.  PTX ISA, "Data Movement and Conversion Instructions: ld, ldu, st, prefetch, …".

Cache operators, eviction priorities and levels of coherence change when others see a value, which here is always at once.
"""

from cudalab.emulator.errors import PtxError
from cudalab.emulator.program import Address, Variable
from cudalab.emulator.table import instruction

SPACES = ("global", "shared", "local", "param", "const")
ORDER = "weak volatile relaxed acquire release mmio cta cluster gpu sys"
CACHE = "ca cg cs lu cv wb wt nc L1::* L2::* level::* unified"
WHERE = "global shared shared::cta shared::cluster local param param::entry param::func const"


def space_of(code, ins, address: Address) -> str:
    """The state space of an access: named by the instruction, or generic.  A device function's parameters are the thread's own memory."""
    space = next((p.split("::")[0] for p in ins.parts[1:] if p.split("::")[0] in SPACES), "generic")
    if space == "param":
        kernel = code.image.kernel
        own = address.base in kernel.params if isinstance(address.base, Variable) else code.image.owner[code.site] is kernel
        return "param" if own and not ins.has("param::func") else "local"
    return "cluster" if ins.has("shared::cluster") else space


@instruction("ld", "ldu", modifiers=f"{ORDER} {CACHE} {WHERE} v2 v4 v8")
def ld(code, ins):
    target, address, *policy = ins.operands
    place, offset = code.place(address, space_of(code, ins, address))
    kind = ins.type
    items = target.items if ins.one_of("v2", "v4", "v8") else (target,)
    mask = f", {code.mask}" if code.mask else ""
    dtype = code.constant(kind.dtype)
    if len(items) == 1:
        code.assign(target, f"memory.load({place}, {offset}, {dtype}, {code.site}{mask})", kind)
        return
    values = code.temp(f"memory.load_vector({place}, {offset}, {dtype}, {len(items)}, {code.site}{mask})")
    for number, item in enumerate(items):
        code.assign(item, f"{values}[{number}]", kind)


@instruction("st", modifiers=f"{ORDER} {CACHE} {WHERE} v2 v4 v8", writes=0)
def st(code, ins):
    address, source, *policy = ins.operands
    place, offset = code.place(address, space_of(code, ins, address))
    values = code.values(source, ins.type)
    if len(values) != int((ins.one_of("v2", "v4", "v8") or "v1")[1:]):
        raise PtxError(f"a vector of another length than the instruction's: {ins}")
    mask = f", {code.mask}" if code.mask else ""
    code.line(f"memory.store({place}, {offset}, {code.constant(ins.type.dtype)}, ({', '.join(values)},), {code.site}{mask})")


@instruction("prefetch", "prefetchu", "applypriority", "discard", modifiers=f"{CACHE} {WHERE} L1 L2 tensormap", writes=0)
def hint(code, ins):
    """Hints to the caches change no value.  discard may lose what lies there, and so is refused."""
    if ins.parts[0] == "discard":
        raise PtxError(f"discard makes memory undefined, which is not supported: {ins}")


@instruction("membar", "fence", modifiers=f"{ORDER} gl sc acq_rel", writes=0)
def fence(code, ins):
    """Every access here is seen by all at once, in the order of execution."""
    if code.watched:
        code.line(f"chunk.fence({ins.mnemonic!r}, lanes, {code.site})")
