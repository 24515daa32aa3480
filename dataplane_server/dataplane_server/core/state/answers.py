"""Remembered answers, for callers that repeat a call.

A caller whose connection broke repeats its call with the same request_id. If the first attempt was applied, the answer
is repeated and nothing else happens. Answers are kept for a time, up to a number, and up to their memory together. A
caller retries within its own deadline, which is far shorter. With each answer goes the fingerprint of its call: another
call under the same request_id is refused, so that its caller does not take the answer for its own.

The answer to a put has a generation for every row. Rows that one put created have consecutive generations, so these are
kept as ranges: 16,384 answers of 512 rows take 0.3 MB and not 67. The answer to a claim has the ids of its rows too; a
row takes about 50 bytes with an id of 36, and not 140.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dataplane_server.core.calls.answers import Drawn, Grant, PartitionInfo, PutResult, Registered, Reserved
from dataplane_server.core.calls.fingerprints import fingerprint
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import RepeatableCall
from dataplane_server.core.calls.values import Int64Array
from dataplane_server.core.rows.bookkeeping import GROUP_BYTES, id_bytes, text_bytes
from dataplane_server.core.state.partition import definition_bytes

MAX_REQUEST_ID_BYTES = 64
_ANSWER_BYTES = 700
_MANY_ROWS = 64
_NONE: Int64Array = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Abandoned:
    """In place of an answer: the caller gave the request up, which is refused if it still arrives."""


@dataclass(frozen=True, slots=True)
class _Answer:
    verb: str
    fingerprint: bytes
    value: object
    at: float
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _PackedPut:
    """A PutResult, with its generations as ranges."""

    created_rows: int
    size_bytes: int
    starts: Int64Array
    lengths: Int64Array
    abort_hint: str
    outcomes: bytes


@dataclass(frozen=True, slots=True, eq=False)
class _PackedGrant:
    """A Grant of many rows: ids joined, generations as ranges, small numbers in small arrays."""

    grant: Grant
    joined_ids: str
    id_lengths: npt.NDArray[np.uint16]
    sequence_lengths: npt.NDArray[np.int32]
    generations: tuple[Int64Array, Int64Array]
    deliveries: npt.NDArray[np.uint16]
    staleness: npt.NDArray[np.int32]


class Answers:
    """Answers by request_id. `now` is monotonic, in seconds. size_bytes: an estimate of their memory, from above."""

    def __init__(self, limits: Limits) -> None:
        self.size_bytes = 0
        self._limits = limits
        self._answers: OrderedDict[str, _Answer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def recall(self, request_id: str, verb: str, now: float, call: RepeatableCall[Any] | None = None) -> object | None:
        """The remembered answer, or None. Refusal if the id is malformed, or was used for a call of another verb, or
        for another call than this one (None: for whichever).
        """
        if not 1 <= len(request_id.encode()) <= MAX_REQUEST_ID_BYTES:
            message = f"request_id must have 1 to {MAX_REQUEST_ID_BYTES} bytes, got {len(request_id.encode())}"
            raise Refusal(Reason.INVALID_REQUEST, message)
        while self._answers and next(iter(self._answers.values())).at < now - self._limits.remember_s:
            self._forget_oldest()
        answer = self._answers.get(request_id)
        if answer is None:
            return None
        other = f" and cannot be used for {verb}" if answer.verb != verb else ""
        if not other and call is not None and answer.fingerprint not in (b"", fingerprint(call)):
            other = ", by a call that asked for something else"
        if other:
            message = f"request_id {request_id!r} was used for {answer.verb}{other}; each call needs an id of its own"
            raise Refusal(Reason.REQUEST_ID_USED, message, request_id=request_id)
        return _unpack(answer.value)

    def remember(
        self, request_id: str, verb: str, value: object, now: float, call: RepeatableCall[Any] | None = None
    ) -> None:
        """Keep the answer to a call (None: to whichever call comes). It replaces, and is younger than, an earlier one
        to the same request.
        """
        before = self._answers.pop(request_id, None)
        if before is not None:
            self.size_bytes -= before.size_bytes
        packed, known_by = _pack(value), b"" if call is None else fingerprint(call)
        answer = self._answers[request_id] = _Answer(verb, known_by, packed, now, _size_bytes(packed))
        self.size_bytes += answer.size_bytes
        limits = self._limits
        while len(self._answers) > limits.remembered_requests or self.size_bytes > limits.bookkeeping_bytes // 8:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, answer = self._answers.popitem(last=False)
        self.size_bytes -= answer.size_bytes


def _size_bytes(packed: object) -> int:
    """Memory of an answer and its place, from above."""
    if isinstance(packed, _PackedPut):
        arrays_bytes = packed.starts.nbytes + packed.lengths.nbytes + len(packed.outcomes)
        return _ANSWER_BYTES + arrays_bytes + 4 * len(packed.abort_hint)
    if isinstance(packed, PutResult):
        return _ANSWER_BYTES + packed.generations.nbytes + len(packed.outcomes) + 4 * len(packed.abort_hint)
    if isinstance(packed, _PackedGrant):
        small = (packed.id_lengths, packed.sequence_lengths, packed.deliveries, packed.staleness)
        arrays = (*small, *packed.generations)
        return _of_grant(packed.grant) + text_bytes(packed.joined_ids) + sum(array.nbytes for array in arrays)
    if isinstance(packed, Grant):
        return _of_grant(packed) + id_bytes(packed.sample_ids) + 40 * len(packed.sample_ids)
    if isinstance(packed, Drawn):
        of_rows = id_bytes(packed.sample_ids) + 48 * len(packed.sample_ids)
        return 2 * _ANSWER_BYTES + packed.tag_bytes + of_rows
    if isinstance(packed, Reserved):
        return _ANSWER_BYTES + packed.generations.nbytes
    if isinstance(packed, Registered):
        return _size_bytes(packed.partition)
    if isinstance(packed, PartitionInfo):
        return _ANSWER_BYTES + 2 * definition_bytes(packed.definition)
    return _ANSWER_BYTES


def _of_grant(grant: Grant) -> int:
    """Memory of a grant without ids and numbers of rows."""
    groups = GROUP_BYTES * len(grant.groups) + sum(text_bytes(part.group_id) for part in grant.groups)
    return 2 * _ANSWER_BYTES + grant.tag_bytes + 8 * len(grant.tags) + groups


# -- packing -----------------------------------------------------------------------------------------------------------


def _pack(value: object) -> object:
    if isinstance(value, PutResult) and len(value.generations) >= _MANY_ROWS:
        ranges = _ranges(value.generations)
        return _PackedPut(value.created_rows, value.size_bytes, *ranges, value.abort_hint, value.outcomes)
    if isinstance(value, Grant) and len(value.sample_ids) >= _MANY_ROWS:
        rest = replace(value, sequence_lengths=_NONE, generations=_NONE, deliveries=_NONE, staleness=_NONE)
        return _PackedGrant(
            replace(rest, sample_ids=()),
            "".join(value.sample_ids),
            np.fromiter(map(len, value.sample_ids), np.uint16, len(value.sample_ids)),
            value.sequence_lengths.astype(np.int32),
            _ranges(value.generations),
            value.deliveries.astype(np.uint16),
            value.staleness.astype(np.int32),
        )
    return value


def _unpack(packed: object) -> object:
    if isinstance(packed, _PackedPut):
        generations = _from_ranges(packed.starts, packed.lengths)
        return PutResult(packed.created_rows, packed.size_bytes, generations, packed.abort_hint, packed.outcomes)
    if isinstance(packed, _PackedGrant):
        ends = np.cumsum(packed.id_lengths, dtype=np.int64).tolist()
        return replace(
            packed.grant,
            sample_ids=tuple([packed.joined_ids[begin:end] for begin, end in pairwise([0, *ends])]),
            sequence_lengths=packed.sequence_lengths.astype(np.int64),
            generations=_from_ranges(*packed.generations),
            deliveries=packed.deliveries.astype(np.int64),
            staleness=packed.staleness.astype(np.int64),
        )
    return packed


def _ranges(generations: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Starts and lengths of runs of consecutive numbers."""
    begins = (generations[1:] - generations[:-1] != 1).nonzero()[0] + 1
    starts, lengths = generations[:1].copy(), np.array([len(generations)])  # of one range, or none
    if len(begins):
        begins = np.concatenate([[0], begins])
        starts, lengths = generations[begins], np.diff(begins, append=len(generations))
    return starts, lengths[: len(starts)]


def _from_ranges(starts: Int64Array, lengths: Int64Array) -> Int64Array:
    before = np.cumsum(lengths) - lengths
    generations: Int64Array = np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
    return generations
