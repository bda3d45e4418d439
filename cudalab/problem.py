"""The size and kind of what is computed: named dimensions, the element type, the variant."""

import types
from collections.abc import Mapping

from cudalab.errors import BadShape


class Values(Mapping):
    """An immutable set of named integers: a problem's dimensions or a step's tunables.  `p.M` and `p["M"]` both read."""

    def __init__(self, values: Mapping[str, int] = (), /, **more: int):
        self.__dict__["_values"] = types.MappingProxyType(dict(values, **more))

    def __getitem__(self, name):
        return self._values[name]

    def __getattr__(self, name):
        if name.startswith("_") or name not in self._values:
            raise AttributeError(name)
        return self._values[name]

    def __setattr__(self, name, value):
        raise TypeError("values are immutable")

    def __iter__(self):
        return iter(self._values)

    def __len__(self):
        return len(self._values)

    def __hash__(self):
        return hash(tuple(self._values.items()))

    def __repr__(self):
        return " ".join(f"{name}={value}" for name, value in self._values.items())


class Problem(Values):
    """The dimensions, as a mapping, and with them `.dtype`, the type of the elements, and `.variant`, a name such as "nt", or None.

    Two problems are equal if their kinds are, too; beside other mappings only the dimensions count.
    """

    def __init__(self, sizes: Mapping[str, int], dtype: str = "f32", variant: str | None = None):
        super().__init__(sizes)
        self.__dict__.update(dtype=dtype, variant=variant)

    @property
    def kind(self) -> tuple[str, str | None]:
        return self.dtype, self.variant

    def __eq__(self, other):
        same = super().__eq__(other)
        return same and self.kind == other.kind if isinstance(other, Problem) else same

    __hash__ = Values.__hash__

    def __repr__(self):
        return " ".join([super().__repr__(), *kind_words(*self.kind)])


def kind_words(dtype: str, variant: str | None) -> list[str]:
    """How a kind is written behind a shape: nothing for f32 without a variant."""
    return ([dtype] if dtype != "f32" else []) + ([variant] if variant else [])


def shapes(text: str, dims: tuple[str, ...]) -> tuple[Values, ...]:
    """Sizes written as "4096x4096x1024 1000", in the order of `dims`; one number alone stands for all dimensions."""
    problems = []
    for word in text.split():
        try:
            sizes = [int(size) for size in word.lower().split("x")]
        except ValueError:
            raise BadShape(f"'{word}' is not a shape; write {'x'.join(dims)}, such as {'x'.join(['512'] * len(dims))}") from None
        sizes = sizes * len(dims) if len(sizes) == 1 else sizes
        if len(sizes) != len(dims):
            raise BadShape(f"'{word}' has {len(sizes)} sizes; {'x'.join(dims)} needs {len(dims)}")
        problems.append(Values(dict(zip(dims, sizes))))
    return tuple(problems)
