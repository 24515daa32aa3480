"""One error for a method that failed on some ranks.

Methods are collective, so one failure causes others. Steps that fail together report it on the ranks that succeeded
("another rank failed", "rank 2: ..."), and ranks that wait for a dead one see their connection close. The error names
the first original failure.

All ranks of a collective call enter it, or some wait in it. So if every rank raised, and none because it lost another,
no rank is inside a collective, and the workers can be called again. If only some raised, the state of the others is
unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_ECHO = re.compile(r"another (data-parallel )?rank |rank \d+( failed)?: ")
"""The beginning of a failure that was reported by another rank."""
_LOST = re.compile(
    "Connection (closed|reset) by peer|Connection refused|[Tt]imed out waiting|Operation timed out"
    "|Application timeout caused pair closure"
)
"""What gloo reports, as a RuntimeError, for a rank that does not answer. Errors of other types may say the same of a
server or an engine.
"""
_LOST_KINDS = ("DistBackendError", "DistNetworkError")
"""The types of NCCL's failures."""
_BROKEN = "; the group is broken: shut it down"

MAX_TEXT = 800
"""The most characters of an exception's text that are reported. Other ranks get the same text, so all judge alike."""


class WorkerFailed(RuntimeError):
    """A method failed on some ranks but not on all, or some ranks did not finish in time.

    rank: the first that failed; None if unknown. Its exception is the cause if it is known here.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message, rank)
        self.rank = rank

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Failure:
    """kind, text: of the exception.
    error: the exception, if it is known here.
    died: the rank's process is gone.
    """

    kind: str
    text: str
    error: BaseException | None = None
    died: bool = False

    @property
    def lost_a_rank(self) -> bool:
        """Whether the rank waited for a dead one, or timed out waiting."""
        return self.kind in _LOST_KINDS or (self.kind == "RuntimeError" and _LOST.search(self.text) is not None)

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        return cls(type(error).__qualname__[:MAX_TEXT], str(error)[:MAX_TEXT], error)


def common_error(failures: Mapping[int, Failure], world_size: int) -> BaseException | None:
    """The error to raise if every rank raised: the first original one that is known here.

    None if some ranks have not finished, or have lost another.
    """
    if len(failures) < world_size or any(failure.died or failure.lost_a_rank for failure in failures.values()):
        return None
    known = [failure for failure in failures.values() if failure.error is not None]
    return min(known, key=_priority).error if known else None


def failed_error(method: str, failures: Mapping[int, Failure], unanswered: Sequence[int] = ()) -> WorkerFailed:
    """Build the error of a partial failure.

    failures: in the order in which they became known, at least one.
    unanswered: ranks that had not finished when waiting ended.
    """
    rank = min(failures, key=lambda rank: _priority(failures[rank]))
    failure = failures[rank]
    others = [other for other in failures if other != rank]
    message = f"{method}: rank {rank} failed: {failure.kind}: {failure.text}"
    message += f" (rank(s) {_numbers(others)} failed as well)" if others else ""
    message += f" (rank(s) {_numbers(unanswered)} did not finish)" if unanswered else ""
    found = WorkerFailed(message + _BROKEN, rank)
    found.__cause__ = failure.error
    return found


def late_error(method: str, ranks: Sequence[int], timeout_s: float) -> WorkerFailed:
    """Build the error for ranks that did not finish while no rank failed."""
    return WorkerFailed(
        f"{method}: rank(s) {_numbers(ranks)} did not finish within {timeout_s:g} s{_BROKEN}", min(ranks)
    )


def lost_rank_error(method: str, error: BaseException) -> WorkerFailed:
    """Build the error for a broken connection to an unknown rank, or for one that timed out."""
    found = WorkerFailed(f"{method}: another rank is gone, or did not arrive in time: {error}{_BROKEN}")
    found.__cause__ = error
    return found


def _priority(failure: Failure) -> int:
    """The death of a rank comes first, an echo last. min() keeps the first of equals."""
    if failure.died:
        return 0
    return 2 if failure.lost_a_rank or _ECHO.match(failure.text) else 1


def _numbers(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))


class Health:
    """Whether a group can still be called, and if not, why."""

    def __init__(self) -> None:
        self._reason: str | None = None

    @property
    def is_good(self) -> bool:
        return self._reason is None

    def check(self, method: str) -> None:
        """Raise RuntimeError unless the group can be called."""
        if self._reason is not None:
            raise RuntimeError(f"{method}: this group of workers cannot be called: {self._reason}")

    def end(self, reason: object) -> None:
        """Mark the group as ended. The first reason is kept."""
        if self._reason is None:
            self._reason = str(reason)
