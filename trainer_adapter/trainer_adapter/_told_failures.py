"""The failure of one rank as the others raise it: told as plain data, never as an object that would run on arrival."""

from __future__ import annotations

from typing import Any

from dataplane_client import errors
from dataplane_client.errors import DataPlaneError
from trainer_adapter._parcel import NotCarried

_KINDS: dict[str, type[DataPlaneError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, DataPlaneError)
}


def told(error: BaseException) -> list[Any]:
    """What msgpack carries of it: its type, its text, and what else a data-plane error says."""
    if isinstance(error, DataPlaneError) and type(error).__name__ in _KINDS:
        return [type(error).__name__, _sendable(error.message), error.reason, error.details, error.retry_after_s]
    if isinstance(error, NotCarried):
        return [NotCarried.__name__, _sendable(str(error))]
    return ["", text_of(error)]


def text_of(error: BaseException) -> str:
    """Type and text of an error."""
    return _sendable(f"{type(error).__name__}: {error}")


def _sendable(text: str) -> str:
    """Without what UTF-8 cannot say: telling of a failure must not fail."""
    return text.encode(errors="replace").decode()


def heard(account: list[Any], source: int) -> Exception:
    """What to raise for what rank `source` told: a data-plane error as what it was, NotCarried, or RuntimeError."""
    kind, text, *rest = account
    if kind == NotCarried.__name__:
        return NotCarried(f"rank {source}: {text}")
    if kind in _KINDS:
        reason, details, retry_after_s = rest
        return _KINDS[kind](f"rank {source}: {text}", reason=reason, details=details, retry_after_s=retry_after_s)
    return RuntimeError(f"rank {source} failed: {text}")
