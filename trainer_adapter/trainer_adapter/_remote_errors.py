"""Errors of one rank as the others raise them, sent as plain data and never as objects that run code on arrival."""

from __future__ import annotations

from typing import Any

from dataplane_client import errors
from dataplane_client.errors import DataPlaneError
from trainer_adapter._collective_message import UnsupportedValue

_KINDS: dict[str, type[DataPlaneError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, DataPlaneError)
}


def encode_error(error: BaseException) -> list[Any]:
    """Encode an error for msgpack: its type, its text, and the other fields of a data-plane error."""
    if isinstance(error, DataPlaneError) and type(error).__name__ in _KINDS:
        return [type(error).__name__, _to_utf8(error.message), error.reason, error.details, error.retry_after_s]
    if isinstance(error, UnsupportedValue):
        return [UnsupportedValue.__name__, _to_utf8(str(error))]
    return ["", describe_error(error)]


def describe_error(error: BaseException) -> str:
    """Type and text of an error, in valid UTF-8."""
    return _to_utf8(f"{type(error).__name__}: {error}")


def _to_utf8(text: str) -> str:
    """Replace what UTF-8 cannot encode, because sending an error must not fail."""
    return text.encode(errors="replace").decode()


def decode_error(encoded: list[Any], source: int) -> Exception:
    """The exception to raise for an error of rank `source`: a data-plane error, UnsupportedValue or RuntimeError."""
    kind, text, *rest = encoded
    if kind == UnsupportedValue.__name__:
        return UnsupportedValue(f"rank {source}: {text}")
    if kind in _KINDS:
        reason, details, retry_after_s = rest
        return _KINDS[kind](f"rank {source}: {text}", reason=reason, details=details, retry_after_s=retry_after_s)
    return RuntimeError(f"rank {source} failed: {text}")
