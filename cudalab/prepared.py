"""A launch that goes to any stream with any buffers: what the library's functions enqueue."""

import ctypes
from collections.abc import Mapping
from types import SimpleNamespace

from cudalab.gpu import C_TYPES, TENSOR_MAP, Gpu
from cudalab.spec import Launch
from cudalab.tensormap import TensorMap

KEPT_MAPS = 256  # encoded tensor maps of one argument; a program that has more buffers than that in turn encodes again


class Prepared:
    """One launch with room for its arguments, which enqueue fills.  A tensor map is encoded once for each address it is over."""

    def __init__(self, gpu: Gpu, module, kernel, launch: Launch, label: str):
        self._gpu, self._label = gpu, label
        self._config, self._function = gpu._configured(module, kernel, launch, label)
        self._arguments = launch.args
        self._values = [self._room(argument) for argument in launch.args]
        self._addresses = (ctypes.c_void_p * len(self._values))(*map(ctypes.addressof, self._values))
        self._maps: dict[tuple[int, int], bytes] = {}  # (number of the argument, address) -> the encoded map

    def enqueue(self, stream: int, pointers: Mapping[str, int]) -> None:
        """Enqueue on the stream with that address; pointers: buffer name -> address.  The driver copies the arguments before it returns."""
        for number, (argument, value) in enumerate(zip(self._arguments, self._values)):
            if isinstance(argument, TensorMap):
                value.raw = self._encoded(number, argument, pointers[argument.name])
            elif hasattr(argument, "name"):
                value.value = pointers[argument.name]
        driver = self._gpu._driver
        self._config.hStream = driver.CUstream(stream)
        status, = driver.cuLaunchKernelEx(self._config, self._function, ctypes.addressof(self._addresses), 0)
        self._gpu._check(status, self._label)

    @staticmethod
    def _room(argument):
        if isinstance(argument, TensorMap):
            return ctypes.create_string_buffer(TENSOR_MAP)
        return ctypes.c_void_p() if hasattr(argument, "name") else C_TYPES[argument.dtype](argument.value)

    def _encoded(self, number: int, tensor_map: TensorMap, address: int) -> bytes:
        if (number, address) not in self._maps:
            if len(self._maps) >= KEPT_MAPS:
                self._maps.clear()
            array = SimpleNamespace(data=SimpleNamespace(ptr=address))
            self._maps[number, address] = bytes(self._gpu._encode(tensor_map, array, self._label).raw)
        return self._maps[number, address]
