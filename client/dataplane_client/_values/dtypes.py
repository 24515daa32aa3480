"""The supported tensor element types, as torch dtypes; and torch devices by name.

Names and item sizes are those of `rl_dataplane.v1.element_types`: the name is torch's own without its ``torch.``
prefix; the item size is the number of bytes of one element on the wire, which are the element's bytes in memory,
little-endian.

An element type is supported if a tensor of it can be made, viewed as bytes and rebuilt from those bytes alone. Two
groups fail that and are refused. Quantized types (``qint8``, ``quint8``, ``qint32``, ``quint4x2``, ``quint2x4``) keep
their scale and zero point outside the bytes. Shell types (``int1`` to ``int7``, ``uint1`` to ``uint7``, ``bits*``) name
a width for compilers and have no operations. ``float4_e2m1fn_x2`` is supported: one element is one byte that holds two
values.

The table lacks element types that the running torch does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from dataplane_client.errors import InvalidArgumentError
from rl_dataplane.v1.element_types import ITEM_SIZES


@dataclass(frozen=True, slots=True)
class WireDtype:
    """One row of the table; item_size is in bytes."""

    name: str
    torch_dtype: torch.dtype
    item_size: int


WIRE_DTYPES: Final = tuple(
    WireDtype(name, getattr(torch, name), item_size) for name, item_size in ITEM_SIZES.items() if hasattr(torch, name)
)
_BY_NAME: Final = {entry.name: entry for entry in WIRE_DTYPES}
_BY_TORCH_DTYPE: Final = {entry.torch_dtype: entry for entry in WIRE_DTYPES}


def torch_dtype(name: str, field: str | None = None) -> torch.dtype:
    """The torch dtype of a canonical name. Raises ValueError, naming the field if given, for any other name."""
    entry = _BY_NAME.get(name)
    if entry is None:
        reason = (
            f"needs a newer torch than {torch.__version__}" if name in ITEM_SIZES else "is not a known element type"
        )
        raise ValueError(f"{_prefix(field)}dtype {name!r} {reason}")
    return entry.torch_dtype


def dtype_name(dtype: torch.dtype, field: str | None = None) -> str:
    """The canonical name of a dtype. Raises TypeError, naming the field if given, for an unsupported one."""
    entry = _BY_TORCH_DTYPE.get(dtype)
    if entry is None:
        raise TypeError(f"{_prefix(field)}unsupported dtype {dtype}: its bytes alone do not hold its values")
    return entry.name


def parsed_device(device: torch.device | str, where: str) -> torch.device:
    """The device of this name. Raises InvalidArgumentError."""
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise InvalidArgumentError(f"{where}: {device!r} is not a device such as 'cpu' or 'cuda:0'") from None


def _prefix(field: str | None) -> str:
    return "" if field is None else f"field {field!r}: "
