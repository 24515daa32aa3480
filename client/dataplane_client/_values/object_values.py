"""Values of object fields as msgpack bytes.

A value is supported if it comes back equal and of the same type:

- None, bool, int within 64 bits, float, str and bytes;
- lists, tuples and dicts of values, with keys that are str or int, at most 128 deep;
- NumPy scalars, and arrays of numbers or text;
- tensors: on the CPU and without gradients when they come back;
- PIL's images, and values of types that `registered_types` knows by name: as bytes.

Other types are compared exactly. Sets, bytearrays and subclasses (enums, OrderedDict) would come back as another type;
they are refused, not converted. What msgpack has no type for travels as an array that begins with a mark, an extension
without data (see the contract). Types are named by tables of this process, so no code comes from the wire.

A value takes at most about fifty times its bytes in memory (small negative numbers in a list), and 20 KB more: both
sides refuse a row that has more than 256 containers and one for every 8 bytes.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

import msgpack
import numpy as np
import numpy.typing as npt
import torch

from dataplane_client._values.dtypes import dtype_name, torch_dtype
from dataplane_client._values.registered_types import type_named, type_of
from dataplane_client._values.rows import bits

_MAX_DEPTH: Final = 128
_MAX_DIMENSIONS: Final = 32
_FREE_CONTAINERS: Final = 256
_BYTES_PER_CONTAINER: Final = 8
_SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes})
_SUPPORTED: Final = (
    "None, bool, int, float, str, bytes, list, tuple, dict, NumPy scalars and arrays of numbers or text, tensors, or "
    "PIL's images, or register the type with dataplane_client.register_type"
)
_NUMBERS: Final = {
    dtype.name: dtype
    for dtype in map(np.dtype, ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"))
}
_SHORT: Final = 900
_CONTAINER_BYTES: Final = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])
_LAST_CHARACTER: Final = 0x10FFFF

Array = npt.NDArray[Any]


class _Mark(enum.IntEnum):
    """What the items behind the mark are."""

    TUPLE = 1
    ARRAY = 2
    SCALAR = 3
    TENSOR = 4
    REGISTERED = 5


class ObjectPacker:
    """Packs one value after the other. Not thread-safe."""

    def __init__(self) -> None:
        self._packer = msgpack.Packer(default=_marked, strict_types=True)

    def pack(self, value: object) -> bytes:
        """The bytes of a value. Raises TypeError for an unsupported type and ValueError for an unsupported value."""
        containers = _check(value, 0)
        packed: bytes = self._packer.pack(value)
        _check_containers(containers, len(packed))
        return packed


def unpack_object(data: memoryview) -> object:
    """The inverse of ObjectPacker.pack. Raises ValueError for bytes that it could not have written, and LookupError for
    a type that this process has not registered.
    """
    try:
        return _unpack(bytes(data))
    except TypeError as error:
        raise ValueError(str(error)) from None


def _unpack(data: bytes) -> object:
    if _may_have_many_containers(data):
        return _unpack_marked(data)
    value: object = msgpack.unpackb(data, strict_map_key=False)
    try:
        _check_containers(_check(value, 0), len(data))
    except _MarkFoundError:
        return _unpack_marked(data)
    return value


def _may_have_many_containers(data: bytes) -> bool:
    """Each container begins with a byte of its own; other values may hold such bytes as well. A short row needs little
    memory, whatever it has, and one that begins with no container is none.
    """
    if len(data) <= _SHORT or data[0] not in _CONTAINER_BYTES:
        return False
    return len(data) - len(data.translate(None, _CONTAINER_BYTES)) > _most_containers(len(data))


def _unpack_marked(data: bytes) -> object:
    row = _Row(len(data))
    value: object = msgpack.unpackb(
        data, strict_map_key=False, list_hook=row.on_list, object_hook=row.on_map, ext_hook=_mark
    )
    _check(value, 0)
    return value


# -- checks ------------------------------------------------------------------------------------------------------------


class _MarkFoundError(TypeError):
    """An extension in a value: in bytes, the mark of an array."""


def _check(value: object, depth: int) -> int:
    """The number of containers in a value, itself included. Raises for what is not supported."""
    items: Iterable[object]
    if type(value) is dict:
        for key in value:
            if type(key) is not str and type(key) is not int:
                raise TypeError(f"unsupported dict key of type {_type_name(key)}; use str or int")
        items = value.values()
    elif type(value) is list or type(value) is tuple:
        items = value
    else:
        return 0 if type(value) in _SCALARS else _check_array_or_scalar(value)
    if depth == _MAX_DEPTH:
        raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
    containers = 1
    for item in items:
        if type(item) not in _SCALARS:
            containers += _check(item, depth + 1)
    return containers


def _check_array_or_scalar(value: object) -> int:
    if isinstance(value, np.generic) or type(value) is np.ndarray:
        if not isinstance(value, (np.str_, np.bytes_)) and _numpy_name(value.dtype) is None:
            raise TypeError(f"unsupported {_type_name(value)} of {value.dtype}; use numbers or text")
        shape: tuple[int, ...] = value.shape
    elif isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_nested or value.is_meta:
            raise TypeError(f"unsupported {value.layout} tensor on {value.device}; make it dense first")
        dtype_name(value.dtype)
        shape = tuple(value.shape)
    elif type_of(value) is not None:
        return 1
    else:
        kind = _MarkFoundError if type(value) is msgpack.ExtType else TypeError
        raise kind(f"unsupported type {_type_name(value)}; use {_SUPPORTED}")
    if len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"{len(shape)} dimensions; at most {_MAX_DIMENSIONS} are supported")
    return 1


def _check_elements(kind: str, data: bytes) -> None:
    """Check the bytes of an array. kind: NumPy's letter for the kind of its elements."""
    if kind == "b" and data.translate(None, b"\0\1"):
        raise ValueError("a byte of a bool must be 0 or 1")
    if kind == "U" and (np.frombuffer(data, "<u4") > _LAST_CHARACTER).any():
        raise ValueError("a character outside Unicode")


def _most_containers(size_bytes: int) -> int:
    return _FREE_CONTAINERS + size_bytes // _BYTES_PER_CONTAINER


def _check_containers(containers: int, size_bytes: int) -> None:
    if containers > _most_containers(size_bytes):
        raise ValueError(
            f"{containers} or more lists, dicts, tuples and arrays in {size_bytes} bytes; a row may have "
            f"{_FREE_CONTAINERS}, and one more for every {_BYTES_PER_CONTAINER} bytes"
        )


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# -- to msgpack --------------------------------------------------------------------------------------------------------


def _marked(value: object) -> list[object]:
    """A value that msgpack has no type for, as a marked array."""
    if type(value) is tuple:
        return [_on_wire(_Mark.TUPLE), *value]
    if isinstance(value, torch.Tensor):
        data = bits(value).cpu().contiguous().numpy().tobytes()
        _check_elements("b" if value.dtype is torch.bool else "", data)
        return [_on_wire(_Mark.TENSOR), dtype_name(value.dtype), data, *value.shape]
    if isinstance(value, np.str_):
        return [_on_wire(_Mark.SCALAR), "U", str.__str__(value)]  # str() would cut trailing zeros
    if isinstance(value, np.bytes_):
        return [_on_wire(_Mark.SCALAR), "S", bytes(value)]
    if not isinstance(value, np.generic) and type(value) is not np.ndarray:
        return _registered(value)
    mark = _Mark.ARRAY if isinstance(value, np.ndarray) else _Mark.SCALAR
    data = np.asarray(value, value.dtype.newbyteorder("<")).tobytes()
    _check_elements(value.dtype.kind, data)
    return [_on_wire(mark), _numpy_name(value.dtype), data, *value.shape]


def _registered(value: object) -> list[object]:
    found = type_of(value)
    if found is None:  # an int; msgpack holds all others
        raise ValueError(f"the integer {value} needs more than 64 bits (-2**63 to 2**64 - 1)")
    return [_on_wire(_Mark.REGISTERED), found.name, found.to_bytes(value)]


def _on_wire(mark: _Mark) -> msgpack.ExtType:
    return msgpack.ExtType(int(mark), b"")


def _numpy_name(dtype: np.dtype[Any]) -> str | None:
    """The name of an element type: NumPy's for numbers, U or S and the length for text; None if it is not supported."""
    if dtype.kind in "US" and dtype.itemsize:
        return f"{dtype.kind}{dtype.itemsize // (4 if dtype.kind == 'U' else 1)}"
    return dtype.name if dtype.name in _NUMBERS else None


# -- from msgpack ------------------------------------------------------------------------------------------------------


class _Row:
    """What msgpack calls while it reads one row: counts containers, and rebuilds marked arrays."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._containers = 0

    def on_list(self, items: list[object]) -> object:
        self.on_map(None)
        mark = items[0] if items else None
        return _REBUILD[mark](items) if isinstance(mark, _Mark) else items

    def on_map(self, entries: object) -> object:
        self._containers += 1
        _check_containers(self._containers, self._size_bytes)
        return entries


def _mark(code: int, data: bytes) -> _Mark:
    if data or not _Mark.TUPLE <= code <= _Mark.REGISTERED:
        raise ValueError(f"an extension of type {code} and {len(data)} bytes")
    return _Mark(code)


def _tuple(items: list[object]) -> tuple[object, ...]:
    return tuple(islice(items, 1, None))


def _array(items: list[object]) -> Array:
    name, data, shape = _parts(items)
    dtype = _numpy_dtype(name)
    _check_size(shape, dtype.itemsize, data)
    array: Array = np.ndarray(shape, dtype, bytearray(data))
    _check_elements(dtype.kind, data)
    return array


def _scalar(items: list[object]) -> object:
    if len(items) == 3 and items[1] == "U" and type(items[2]) is str:
        return np.str_(items[2])
    if len(items) == 3 and items[1] == "S" and type(items[2]) is bytes:
        return np.bytes_(items[2])
    if len(items) == 3 and items[1] in _NUMBERS:
        return _array(items)[()]
    raise ValueError(f"a NumPy scalar of {items[1:2]}")


def _tensor(items: list[object]) -> torch.Tensor:
    name, data, shape = _parts(items)
    dtype = torch_dtype(name)
    _check_size(shape, dtype.itemsize, data)
    _check_elements("b" if dtype is torch.bool else "", data)
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return flat.view(dtype).reshape(shape)


def _named(items: list[object]) -> object:
    if len(items) != 3 or type(items[1]) is not str or type(items[2]) is not bytes:
        raise ValueError("a registered type without its name and bytes")
    return type_named(items[1]).from_bytes(items[2])


_REBUILD: Final[dict[_Mark, Callable[[list[object]], object]]] = {
    _Mark.TUPLE: _tuple,
    _Mark.ARRAY: _array,
    _Mark.SCALAR: _scalar,
    _Mark.TENSOR: _tensor,
    _Mark.REGISTERED: _named,
}


def _parts(items: list[object]) -> tuple[str, bytes, tuple[int, ...]]:
    """The element type, the elements and the shape of a marked array."""
    _, name, data, *sizes = [*items, None, None][: max(3, len(items))]
    if type(name) is not str or type(data) is not bytes or len(sizes) > _MAX_DIMENSIONS:
        raise ValueError("an array without element type, bytes and shape")
    shape = tuple(size for size in sizes if type(size) is int and size >= 0)
    if len(shape) != len(sizes):
        raise ValueError(f"an array of shape {sizes}")
    return name, data, shape


def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name[:1] in ("U", "S") and name[1:].isdecimal() and name.isascii() and len(name) <= len("S2147483647"):
        return np.dtype(f"<{name}")
    if name not in _NUMBERS:
        raise ValueError(f"an array of the unknown element type {name!r}")
    return _NUMBERS[name]


def _check_size(shape: tuple[int, ...], item_size: int, data: bytes) -> None:
    if math.prod(shape) * item_size != len(data):
        raise ValueError(f"an array of shape {shape} and {item_size} bytes an element in {len(data)} bytes")
    if math.prod(max(size, 1) for size in shape) * max(item_size, 1) > (1 << 63) - 1:
        raise ValueError(f"an array of shape {shape} is too large")
