"""The reason under which rows are given up when an exception ends their use."""

from __future__ import annotations

_MAX_BYTES = 256


def reason_of(error: BaseException) -> str:
    """The exception's type and message on one line, cut to the 256 bytes that the server takes."""
    try:
        message = " ".join(str(error).split())
    except Exception:  # noqa: BLE001  # the type alone is better than an error of __str__
        message = ""
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text.encode(errors="replace")[:_MAX_BYTES].decode(errors="ignore")
