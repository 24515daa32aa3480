"""What went wrong when a method failed on some rank, told as one error.

The methods are collective, so one failure causes others. Steps that fail together say so on the ranks that did well
("another rank failed", "rank 2: ..."); ranks that wait for one that is gone see their connection close. The first real
failure is the one to tell of.

A collective call is entered by all of its ranks, or some of them wait in it. So where every rank has raised, and none
because it lost another, no rank is left in the midst of one, and the workers can be called again. Where only some have,
nothing is known of the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_ECHO = re.compile(r"another rank failed|rank \d+( failed)?: ")
"""How a failure begins that a rank was told of by another."""
_LOST = re.compile("Connection (closed|reset) by peer|Connection refused|[Tt]imed out waiting|Operation timed out")
"""What gloo says of a rank that does not answer."""
_LOST_KINDS = ("DistBackendError", "DistNetworkError")
"""What NCCL's failures are."""
_BROKEN = "; the group is broken, shut it down"

MAX_TEXT = 800
"""Characters of an exception's text that are told, to the other ranks as well, so that all judge by the same."""


class WorkerFailed(RuntimeError):
    """A method failed on some ranks and not on all, or some did not end in time. rank: the first of them, None where
    nobody knows; its exception is the cause, where it is known here.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message, rank)
        self.rank = rank

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Failure:
    """kind, text: of the exception. error: itself, where it is known here. died: the whole rank is gone."""

    kind: str
    text: str
    error: BaseException | None = None
    died: bool = False

    @property
    def lost_a_rank(self) -> bool:
        """Whether the rank was waiting for one that is gone, or came too late."""
        return self.kind in _LOST_KINDS or _LOST.search(self.text) is not None

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        return cls(type(error).__qualname__[:MAX_TEXT], str(error)[:MAX_TEXT], error)


def common_error(failures: Mapping[int, Failure], world_size: int) -> BaseException | None:
    """What to raise where every rank has come out of the method with a failure, the first real one that is known here;
    None where some have not, or have lost another.
    """
    if len(failures) < world_size or any(failure.died or failure.lost_a_rank for failure in failures.values()):
        return None
    known = [failure for failure in failures.values() if failure.error is not None]
    return min(known, key=_priority).error if known else None


def failed_error(method: str, failures: Mapping[int, Failure], unanswered: Sequence[int] = ()) -> WorkerFailed:
    """The error to raise. failures: in the order in which they became known, at least one. unanswered: ranks that had
    not ended when nobody waited any longer.
    """
    rank = min(failures, key=lambda rank: _priority(failures[rank]))
    failure = failures[rank]
    others = [other for other in failures if other != rank]
    message = f"{method}: rank {rank} failed: {failure.kind}: {failure.text}"
    message += f" (rank(s) {_numbers(others)} failed as well)" if others else ""
    message += f" (rank(s) {_numbers(unanswered)} did not end)" if unanswered else ""
    found = WorkerFailed(message + _BROKEN, rank)
    found.__cause__ = failure.error
    return found


def late_error(method: str, ranks: Sequence[int], timeout_s: float) -> WorkerFailed:
    """No rank has failed, but these have not ended."""
    return WorkerFailed(f"{method}: rank(s) {_numbers(ranks)} did not end within {timeout_s:g} s{_BROKEN}", min(ranks))


def lost_rank_error(method: str, error: BaseException) -> WorkerFailed:
    """error: of the connection to a rank, nobody knows which."""
    found = WorkerFailed(f"{method}: another rank has gone: {error}{_BROKEN}")
    found.__cause__ = error
    return found


def _priority(failure: Failure) -> int:
    """The death of a rank explains all else, an echo nothing. min() keeps the first of equals."""
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
        """RuntimeError unless the group can be called."""
        if self._reason is not None:
            raise RuntimeError(f"{method}: this group of workers cannot be called any more: {self._reason}")

    def end(self, reason: object) -> None:
        """The first reason stays."""
        if self._reason is None:
            self._reason = str(reason)
