"""Objects of types that msgpack and the contract do not know travel as the name of their type and bytes.

The name comes from the wire, so it only chooses among what this process has registered: no name imports or calls
anything else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import torch

if TYPE_CHECKING:
    from PIL.Image import Image

_IMAGE: Final = "PIL.Image.Image"
_MOST_NAME_BYTES: Final = 256
_BYTES_PER_PIXEL: Final = {
    "L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4, "YCbCr": 3, "HSV": 3, "LAB": 3, "I": 4, "F": 4, "I;16": 2,
}  # fmt: skip

_T = TypeVar("_T")


@dataclass(frozen=True)
class RegisteredType:
    """How values of a type travel."""

    name: str
    kind: type
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]

    def to_bytes(self, value: object) -> bytes:
        """Raises TypeError if `encode` returns something else, and what it raises."""
        data = self.encode(value)
        if type(data) is not bytes:
            raise TypeError(f"encode of type {self.name!r} returned {type(data).__name__}, not bytes")
        return data

    def from_bytes(self, data: bytes) -> object:
        """Raises ValueError if `decode` raises, or returns a value of another type."""
        try:
            value = self.decode(data)
        except Exception as error:  # the bytes come from elsewhere, and the code is a caller's
            raise ValueError(f"{len(data)} bytes are no value of type {self.name!r}: {error!r}") from error
        if not isinstance(value, self.kind):
            raise ValueError(f"decode of type {self.name!r} returned {type(value).__name__}")
        return value


_by_name: dict[str, RegisteredType] = {}
_by_kind: dict[type, RegisteredType] = {}


def register_type(name: str, kind: type[_T], encode: Callable[[_T], bytes], decode: Callable[[bytes], _T]) -> None:
    """Let objects hold values of a class, in this process. Writers and readers register it, under the same name.

    name: 1 to 256 bytes, what travels beside the bytes. kind: the class; values of its subclasses travel likewise, and
    come back as what decode returns. encode, decode: to and from bytes; decode gets whatever a writer has put under the
    name, and must raise for what it does not know.

    A reader that has not registered the name gets UnsupportedTypeError, which names field, row and type. PIL's images
    are registered already. Raises ValueError if name or kind is registered otherwise, and for types of Python, NumPy's
    arrays and tensors.
    """
    if not 0 < len(name.encode()) <= _MOST_NAME_BYTES:
        raise ValueError(f"name has {len(name.encode())} bytes; it must have 1 to {_MOST_NAME_BYTES}")
    if kind.__module__ == "builtins" or kind is np.ndarray or issubclass(kind, (np.generic, torch.Tensor)):
        raise ValueError(f"kind is {kind.__name__}, whose values need no registration, or cannot have one")
    _know_images()
    for known in (_by_name.get(name), _by_kind.get(kind)):
        if known is not None and (known.name, known.kind) != (name, kind):
            raise ValueError(f"type {known.name!r} is registered already, as {known.kind.__qualname__}")
    _add(RegisteredType(name, kind, encode, decode))


def type_of(value: object) -> RegisteredType | None:
    """How a value travels; None if neither its class nor a base of it is registered."""
    _know_images()
    return next((found for base in type(value).__mro__ if (found := _by_kind.get(base))), None)


def type_named(name: str) -> RegisteredType:
    """LookupError if this process has not registered the name."""
    if name == _IMAGE:
        _import_images()
    if name not in _by_name:
        raise LookupError(f"type {name!r} is not registered here; call dataplane_client.register_type")
    return _by_name[name]


def _add(registered: RegisteredType) -> None:
    _by_name[registered.name] = _by_kind[registered.kind] = registered


# -- PIL's images ------------------------------------------------------------------------------------------------------


def _know_images() -> None:
    """A process that has not imported PIL has no images, and is not made to import it."""
    if _IMAGE not in _by_name and "PIL.Image" in sys.modules:
        _import_images()


def _import_images() -> None:
    try:
        from PIL import Image
    except ImportError:
        raise LookupError(f"type {_IMAGE!r} needs PIL, which is not installed here") from None
    _add(RegisteredType(_IMAGE, Image.Image, _image_bytes, _image))


def _image_bytes(image: Image) -> bytes:
    """Mode, width, height and a line feed, then the pixels, row by row."""
    if image.mode not in _BYTES_PER_PIXEL:
        raise ValueError(f"an image of mode {image.mode!r}; convert it to one of {', '.join(_BYTES_PER_PIXEL)}")
    return f"{image.mode} {image.width} {image.height}\n".encode() + image.tobytes()


def _image(data: bytes) -> Image:
    from PIL import Image

    head, _, pixels = data.partition(b"\n")
    mode, width, height = head.decode().split(" ")
    size = (int(width), int(height))
    if min(size) < 0 or size[0] * size[1] * _BYTES_PER_PIXEL[mode] != len(pixels):  # before PIL allocates
        raise ValueError(f"{len(pixels)} bytes for {width} x {height} pixels of mode {mode}")
    return Image.frombytes(mode, size, pixels)
