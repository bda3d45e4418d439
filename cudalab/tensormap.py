"""How the copy engine of sm_90 and later sees a buffer: a tensor of tiles, as plain data."""

import math
from dataclasses import dataclass

from cudalab.errors import BadLaunch

# element formats of a tensor map: our name -> (bytes, the name of its CUtensorMapDataType)
MAP_FORMATS = dict(u8=(1, "UINT8"), i8=(1, "UINT8"), e4m3=(1, "UINT8"), e5m2=(1, "UINT8"), u16=(2, "UINT16"), f16=(2, "FLOAT16"),
               bf16=(2, "BFLOAT16"), u32=(4, "UINT32"), i32=(4, "INT32"), f32=(4, "FLOAT32"), f32_ftz=(4, "FLOAT32_FTZ"),
               tf32=(4, "TFLOAT32"), tf32_ftz=(4, "TFLOAT32_FTZ"), u64=(8, "UINT64"), i64=(8, "INT64"), f64=(8, "FLOAT64"))
SWIZZLES = (0, 32, 64, 128)


@dataclass(frozen=True)
class TensorMap:
    """A kernel argument `const __grid_constant__ CUtensorMap`: how cp.async.bulk.tensor sees a buffer as tiles (mode "tiled").

    name: the buffer; offset: bytes from its start to the tensor's.  dtype: see MAP_FORMATS.  dims: elements, innermost first, as everything
    here.  box: what one copy takes.  strides: bytes from one element to the next along dims[1:] (default: packed).  element_strides:
    every how manyth element is taken.  swizzle: 0, 32, 64 or 128 bytes.  fill: what elements outside read as, zero or nan.

    Raises BadLaunch for what the driver would refuse: CUDA Driver API, "Tensor Map Object Management: cuTensorMapEncodeTiled".
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    box: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    element_strides: tuple[int, ...] | None = None
    swizzle: int = 0
    fill: str = "zero"
    offset: int = 0

    def __post_init__(self):
        size, rank = MAP_FORMATS.get(self.dtype, (0,))[0], len(self.dims)
        if not size:
            self._refuse(f"no elements of type {self.dtype}; there are {' '.join(MAP_FORMATS)}")
        if self.strides is None:
            object.__setattr__(self, "strides", tuple(size * math.prod(self.dims[:axis]) for axis in range(1, rank)))
        if self.element_strides is None:
            object.__setattr__(self, "element_strides", (1,) * rank)
        if not 1 <= rank <= 5 or (len(self.box), len(self.strides), len(self.element_strides)) != (rank, rank - 1, rank):
            self._refuse(f"{rank} dims, {len(self.box)} of the box, {len(self.strides)} strides, {len(self.element_strides)} element "
                         f"strides; possible are 1 to 5 dims, as many of the box and element strides, one stride fewer")
        if any(not 1 <= d <= 2**32 for d in self.dims) or any(not 1 <= b <= 256 for b in self.box):
            self._refuse(f"dims {self.dims}, box {self.box}: dims are 1 to 2^32, the box 1 to 256")
        if any(s % 16 or not 0 < s < 2**40 for s in self.strides) or self.offset % 16:
            self._refuse(f"strides {self.strides}, offset {self.offset}: every stride and the start must be a multiple of 16 bytes")
        if any(not 1 <= s <= 8 for s in self.element_strides) or self.element_strides[0] != 1:
            self._refuse(f"element strides {self.element_strides}: they are 1 to 8, and 1 along the innermost dimension")
        inner = self.box[0] * size
        if inner % 16:
            self._refuse(f"a box of {inner} bytes along the innermost dimension: it must be a multiple of 16")
        if self.swizzle not in SWIZZLES or self.swizzle and inner > self.swizzle:
            self._refuse(f"swizzle {self.swizzle} with a box of {inner} bytes along the innermost dimension: it is one of {SWIZZLES}, and "
                         f"no fewer bytes than the box has")
        if self.fill not in ("zero", "nan") or self.fill == "nan" and "f" not in self.dtype:
            self._refuse(f"fill {self.fill} of {self.dtype}: it is zero, or nan for floating point")

    def _refuse(self, why: str):
        raise BadLaunch(f"a tensor map over {self.name}: {why}")

    @property
    def itemsize(self) -> int:
        return MAP_FORMATS[self.dtype][0]
