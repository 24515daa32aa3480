"""Every error of a call to the data plane, in one family.

All derive from DataPlaneError; each is also a KeyError, ValueError, TimeoutError or so, so that handlers written for
other data planes keep working. A call that raises has changed nothing on the server, except where UnavailableError
says that nobody knows. Errors survive pickling, since trainers raise them across processes.
"""

from __future__ import annotations

from collections.abc import Mapping


class DataPlaneError(Exception):
    """A call to the data plane failed.

    reason: why, in one word (the contract's ErrorReason without its prefix, or "" when the server said none).
    details: what the server named: partition_id, sample_id, field, task, and the like.
    retry_after_s: after how many seconds the server suggests to try again, or None.
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
    """The call is wrong in any state: malformed or duplicate ids, rows that do not fit the field, lengths that
    differ.
    """


class UnsupportedTypeError(DataPlaneError, TypeError):
    """A value of a type that does not travel; nothing was sent."""


class NotFoundError(DataPlaneError, KeyError):
    """Partition, task, sample, produced field or open claim that does not exist (see reason)."""


class ReplacedError(NotFoundError):
    """The sample was cleared and put again since: it is another row than the one that the meta's generation names."""


class ClaimNotFoundError(NotFoundError):
    """The claim has ended: committed, released, or dropped with its partition."""


class ClaimFencedError(ClaimNotFoundError):
    """The server has ended the claim, since its session died, its task was reset or its partition registered anew. Its
    rows may be with others by now: nothing that was made of them is accepted any more.
    """


class GroupFencedError(NotFoundError):
    """The group is not reserved any more: it was finished, aborted, or rolled back with its session."""


class SessionExpiredError(DataPlaneError, ConnectionError):
    """The client's session has died, and again when it was opened anew. What it held is with others."""


class PreconditionError(DataPlaneError, RuntimeError):
    """The call would be right in another state; repeating it as it is does not help."""


class DeadlineError(DataPlaneError, TimeoutError):
    """The call did not end within its timeout_s. Of a call that changes something nobody knows whether it took effect;
    the two subclasses know: it did not.
    """


class ClaimTimeoutError(DeadlineError):
    """Too few rows became ready in time; none was taken. The message says which fields the rows lack."""


class OutOfSpaceError(DeadlineError):
    """The memory budget had no room in time, or a configured limit is reached; nothing was stored."""


class UnavailableError(DataPlaneError, ConnectionError):
    """The server could not be reached, or is shutting down, until the deadline. Whether a call that changes something
    took effect is not known.
    """


class SupersededError(DataPlaneError, RuntimeError):
    """A later attempt of the same call took this one's place."""


class InternalError(DataPlaneError, RuntimeError):
    """A defect of the server, or a response that breaks the contract."""


class ClosedError(DataPlaneError, RuntimeError):
    """The client was closed before the call or during it; of the latter nobody knows whether it took effect."""
