"""Refusals: how the core says that a call cannot be served.

`Refusal` is the only exception that the core raises on purpose; any other is a defect. Its reason decides the status
code (see `service.error_table`). Its message tells people the partition, sample, field and rule; its metadata tells
programs.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager

MAX_MESSAGE = 1000
MAX_METADATA_VALUE = 256
"""In characters. A refusal repeats names from callers, which may be long, and must fit into a header of a few KiB."""


class Reason(enum.Enum):
    """Why a call was refused. Names and meanings are those of ErrorReason in data_plane.proto."""

    INVALID_REQUEST = enum.auto()
    DUPLICATE = enum.auto()
    ROW_COUNT_MISMATCH = enum.auto()
    FIELD_NOT_DECLARED = enum.auto()
    FIELD_MISMATCH = enum.auto()
    LENGTH_MISMATCH = enum.auto()
    MALFORMED_STREAM = enum.auto()
    PUT_TOO_LARGE = enum.auto()
    PARTITION_NOT_FOUND = enum.auto()
    SAMPLE_NOT_FOUND = enum.auto()
    FIELD_NOT_PRODUCED = enum.auto()
    TASK_NOT_REGISTERED = enum.auto()
    CLAIM_NOT_FOUND = enum.auto()
    FIELD_HOLDS_VALUES = enum.auto()
    NO_SPACE = enum.auto()
    LIMIT_REACHED = enum.auto()
    CLAIM_TIMEOUT = enum.auto()
    DRAINING = enum.auto()
    SUPERSEDED = enum.auto()
    CLAIM_FENCED = enum.auto()
    SESSION_EXPIRED = enum.auto()
    GROUP_FENCED = enum.auto()
    GROUP_INCOMPLETE = enum.auto()
    ROW_REPLACED = enum.auto()
    ROW_RESERVED = enum.auto()
    SAMPLE_EXISTS = enum.auto()
    PARTITION_DIFFERS = enum.auto()
    PARTITION_CLOSED = enum.auto()
    END_OF_DATA = enum.auto()
    APPEND_CONFLICT = enum.auto()
    SNAPSHOT_FAILED = enum.auto()
    CONDITION_FAILED = enum.auto()
    TOO_FEW_ROWS = enum.auto()
    PARTITION_FULL = enum.auto()
    UNAUTHENTICATED = enum.auto()
    PERMISSION_DENIED = enum.auto()
    NODE_LOST = enum.auto()
    REQUEST_ID_USED = enum.auto()
    SHARD_COMMITTED = enum.auto()
    OVERLOADED = enum.auto()
    DIGESTS_REQUIRED = enum.auto()
    DIGEST_MISMATCH = enum.auto()
    GROUP_GIVEN_UP = enum.auto()


class Refusal(Exception):
    """A call that cannot be served unchanged, or cannot be served now."""

    def __init__(self, reason: Reason, message: str, **metadata: str | int) -> None:
        if len(message) > MAX_MESSAGE:
            message = f"{message[:MAX_MESSAGE]}..."
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = {key: str(value)[:MAX_METADATA_VALUE] for key, value in metadata.items()}


@contextmanager
def naming(where: str, **metadata: str) -> Iterator[None]:
    """A block whose refusals tell what they are about."""
    try:
        yield
    except Refusal as refusal:
        raise Refusal(refusal.reason, f"{where}: {refusal.message}", **metadata, **refusal.metadata) from None


def draining() -> Refusal:
    return Refusal(Reason.DRAINING, "the server is shutting down")


def server_ended() -> Refusal:
    return Refusal(Reason.DRAINING, "the server that this call waited at has ended; repeat the call")


def superseded() -> Refusal:
    return Refusal(Reason.SUPERSEDED, "a later call with the same request_id took over from this one")


def session_expired(session_id: str) -> Refusal:
    why = "it expired (no heartbeat within its grace period) or was closed"
    message = f"session {session_id[:256]!r} is not open: {why}"
    return Refusal(Reason.SESSION_EXPIRED, message, session_id=session_id)
