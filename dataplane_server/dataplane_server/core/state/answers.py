"""Remembered answers, for callers that repeat a call.

A caller whose connection broke repeats its call with the same request_id. If the first attempt was applied, the answer
is repeated and nothing else happens. Answers are kept for a time and up to a number. A caller retries within its own
deadline, which is far shorter.

The answer to a put has a generation for every row. Rows that one put created have consecutive generations, so these are
kept as ranges: 16,384 answers of 512 rows take 0.3 MB and not 67.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from dataplane_server.core.calls.answers import PutResult
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Int64Array

MAX_REQUEST_ID_BYTES = 64


@dataclass(frozen=True, slots=True)
class Abandoned:
    """In place of an answer: the caller gave the request up, which is refused if it still arrives."""


@dataclass(frozen=True, slots=True)
class _Answer:
    verb: str
    value: object
    at: float


@dataclass(frozen=True, slots=True, eq=False)
class _PackedPut:
    """A PutResult, with its generations as ranges."""

    created_rows: int
    size_bytes: int
    starts: Int64Array
    lengths: Int64Array


class Answers:
    """Answers by request_id. `now` is monotonic, in seconds."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._answers: OrderedDict[str, _Answer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def recall(self, request_id: str, verb: str, now: float) -> object | None:
        """The remembered answer, or None. Refusal if the id is malformed or belongs to a call of another verb."""
        if not 1 <= len(request_id.encode()) <= MAX_REQUEST_ID_BYTES:
            message = f"request_id must have 1 to {MAX_REQUEST_ID_BYTES} bytes, got {len(request_id.encode())}"
            raise Refusal(Reason.INVALID_REQUEST, message)
        self._expire(now)
        answer = self._answers.get(request_id)
        if answer is None:
            return None
        if answer.verb != verb:
            message = f"request_id {request_id!r} was used for {answer.verb} and cannot be used for {verb}"
            raise Refusal(Reason.INVALID_REQUEST, message, request_id=request_id)
        return _unpack(answer.value) if isinstance(answer.value, _PackedPut) else answer.value

    def remember(self, request_id: str, verb: str, value: object, now: float) -> None:
        """Keep an answer. It replaces, and is younger than, an earlier one to the same request."""
        self._answers.pop(request_id, None)
        self._answers[request_id] = _Answer(verb, _pack(value) if isinstance(value, PutResult) else value, now)
        if len(self._answers) > self._limits.remembered_requests:
            self._answers.popitem(last=False)

    def _expire(self, now: float) -> None:
        while self._answers and next(iter(self._answers.values())).at < now - self._limits.remember_s:
            self._answers.popitem(last=False)


def _pack(put: PutResult) -> _PackedPut:
    generations = put.generations
    begins = (generations[1:] - generations[:-1] != 1).nonzero()[0] + 1
    starts, lengths = generations[:1].copy(), np.array([len(generations)])  # of one range, or none
    if len(begins):
        begins = np.concatenate([[0], begins])
        starts, lengths = generations[begins], np.diff(begins, append=len(generations))
    return _PackedPut(put.created_rows, put.size_bytes, starts, lengths[: len(starts)])


def _unpack(put: _PackedPut) -> PutResult:
    before = np.cumsum(put.lengths) - put.lengths
    generations: Int64Array = np.arange(put.lengths.sum()) + np.repeat(put.starts - before, put.lengths)
    return PutResult(put.created_rows, put.size_bytes, generations)
