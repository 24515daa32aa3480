"""All errors of calls to the data plane.

They derive from DataPlaneError. Each is also a built-in error, such as KeyError, ValueError or TimeoutError, so that
handlers written for other data planes keep working. A call that raises has changed nothing on the server, unless the
error's description says that this is unknown. Errors can be pickled, because trainers raise them across processes.
"""

from __future__ import annotations

from collections.abc import Mapping


class DataPlaneError(Exception):
    """A call to the data plane failed.

    reason: the contract's ErrorReason without its prefix, or "" if the server gave none.
    details: what the error is about, as named by the server: partition_id, sample_id, field, task, and the like. For a
        connection that failed, `grpc` is what gRPC said.
    retry_after_s: seconds after which the server suggests to try again, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        details: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.details = dict(details or {})
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuilt, (type(self), self.message, self.reason, self.details, self.retry_after_s))


def _rebuilt(
    kind: type[DataPlaneError], message: str, reason: str, details: dict[str, str], retry_after_s: float | None
) -> DataPlaneError:
    return kind(message, reason=reason, details=details, retry_after_s=retry_after_s)


class InvalidArgumentError(DataPlaneError, ValueError):
    """The call is invalid in any state: malformed or duplicate ids, rows that do not fit the field, lengths that
    differ.
    """


class UnsupportedTypeError(DataPlaneError, TypeError):
    """A value has an unsupported type; nothing was sent. Of a read: a type that this process has not registered."""


class NotFoundError(DataPlaneError, KeyError):
    """A partition, task, sample, field of a sample or open claim does not exist (see reason)."""


class ReplacedError(NotFoundError):
    """The sample was cleared and put again: it is not the row that the meta's generation names."""


class ClaimNotFoundError(NotFoundError):
    """The claim has ended: committed, released, or dropped with its partition."""


class ClaimFencedError(ClaimNotFoundError):
    """The server has ended the claim: its session expired, its task was reset, or its partition's definition was
    replaced. Its rows may have been redelivered; the claim can no longer write or commit.
    """


class GroupFencedError(NotFoundError):
    """The group is no longer reserved: it was finished, aborted, retired, or rolled back with its session."""


class SessionExpiredError(DataPlaneError, ConnectionError):
    """The client's session expired, and so did the one opened after it. Its rows were released."""


class PreconditionError(DataPlaneError, RuntimeError):
    """The call is not allowed in the current state; repeating it unchanged does not help."""


class ConditionFailedError(PreconditionError):
    """A row does not fit `only_if` of the put, or does not exist; nothing was put."""


class TooFewRowsError(PreconditionError):
    """Fewer rows can be drawn than the draw needs; none was drawn. The message says what the others lack."""


class DeadlineError(DataPlaneError, TimeoutError):
    """The call did not end within its timeout_s. It is unknown whether a call that changes something took effect. With
    the two subclasses it did not.
    """


class ClaimTimeoutError(DeadlineError):
    """Too few rows became ready in time; none was claimed. The message names the fields that rows lack."""


class EndOfDataError(DataPlaneError, EOFError):
    """The partition is closed, and fewer rows are left for the task than the claim needs; none was claimed."""


class OutOfSpaceError(DeadlineError):
    """The memory budget had no space in time, or a configured limit is reached; nothing was stored."""


class PartitionFullError(OutOfSpaceError):
    """The partition had no room for new rows in time, by its FlowPolicy or the pace of a task; nothing was stored. The
    message says what would make room.
    """


class UnavailableError(DataPlaneError, ConnectionError):
    """Until the deadline, the server could not be reached or was shutting down. It is unknown whether a call that
    changes something took effect.
    """


class SupersededError(DataPlaneError, RuntimeError):
    """A later attempt of the same call replaced this one."""


class AppendConflictError(DataPlaneError, RuntimeError):
    """Another call changed the per-token values of a row while entries for its end arrived; nothing was appended."""


class PermissionDeniedError(DataPlaneError, PermissionError):
    """The server knows the caller, whose roles do not allow the call there; nothing has changed."""


class AuthenticationError(PermissionDeniedError):
    """The server does not know the caller: there is no token or certificate, or not one that it accepts."""


class CorruptedError(DataPlaneError, RuntimeError):
    """A value is not the one that its producer hashed (partitions with digests). details: partition_id, sample_id,
    field. Of a read, nothing was returned; of a write, nothing was stored.
    """


class InternalError(DataPlaneError, RuntimeError):
    """The server has a defect, or its response violates the contract."""


class ClosedError(DataPlaneError, RuntimeError):
    """The client was closed before the call or during it. If during it, it is unknown whether the call took effect."""
