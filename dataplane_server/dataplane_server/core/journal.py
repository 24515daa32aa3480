"""What happened to samples, call by call, so that the story of one can be told.

A call is one record, and each of its rows one cell of a ring: the hash of the sample's id. The string is not kept, and
its hash was computed when the row was looked up, so a call with many rows costs one array operation. The story of a
sample is a search through the ring for its hash. The ring has a fixed number of cells; a record goes when its first
cell is needed again. A record takes eight cells at least, so that calls with one row each cannot fill the memory with
records. What calls have in common but for time and claim (fields, task, caller) is kept once.

A record may concern every row of a partition: then it has one cell, for the partition. It belongs to the stories of
samples that are known to have been there at the time.

Two samples of a partition whose hashes agree would share their events: among a million samples there is such a pair in
one server of some forty million.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from dataplane_server.core.calls import SampleEvent
from dataplane_server.core.columns import Int64Array

_LEAST_CELLS = 8
_MOST_EVENTS = 1024
"""Of one story; the last ones. Looking them up takes some milliseconds."""
_MOST_TOPICS = 4096
_BIRTHS = ("put", "reserved")
_ENDS = ("cleared", "rolled_back")


class _Topic(NamedTuple):
    """What calls have in common."""

    partition_id: str
    what: str
    who: str
    task: str
    fields: tuple[str, ...]
    reason: str


class _Record(NamedTuple):
    """One call. Its cells begin at `begin`, counted from the first that was ever written; rows is 0 for a call that
    concerns every row of the partition.
    """

    begin: int
    rows: int
    at: float
    claim_id: str
    topic: _Topic


_begin_of = itemgetter(0)


class Journal:
    """Remembers calls with `limit` rows together (one with fewer than eight counts as one of eight), the last ones."""

    def __init__(self, limit: int) -> None:
        self._cells: Int64Array = np.zeros(limit, np.int64)
        self._end = 0  # cells ever taken
        self._records: deque[_Record] = deque()
        self._topics: dict[_Topic, _Topic] = {}

    def note(
        self,
        what: str,
        partition_id: str,
        sample_ids: Sequence[str],
        now: float,
        *,
        who: str = "",
        task: str = "",
        claim_id: str = "",
        fields: tuple[str, ...] = (),
        reason: str = "",
    ) -> None:
        """Remember that something happened to samples; of more than `limit`, to the last ones."""
        rows = len(sample_ids)
        spare = rows - len(self._cells)
        if spare > 0:
            sample_ids, rows = sample_ids[spare:], len(self._cells)
        if rows:
            hashes = np.fromiter(map(hash, sample_ids), np.int64, rows)
            self._append(hashes, rows, now, claim_id, _Topic(partition_id, what, who, task, fields, reason))

    def note_all(
        self, what: str, partition_id: str, now: float, *, who: str = "", task: str = "", reason: str = ""
    ) -> None:
        """Remember that something happened to every row of a partition."""
        if len(self._cells):
            hashes = np.array([_hash_of_all(partition_id)])
            self._append(hashes, 0, now, "", _Topic(partition_id, what, who, task, (), reason))

    def story(self, partition_id: str, sample_id: str) -> tuple[SampleEvent, ...]:
        """What happened to samples of this id, oldest first, as far as it is remembered; of more than 1,024 events the
        last.
        """
        found = np.flatnonzero((self._cells == hash(sample_id)) | (self._cells == _hash_of_all(partition_id)))
        last = self._end - 1
        written = np.sort(last - (last - found) % max(len(self._cells), 1))[-_MOST_EVENTS:]
        records = [record for position in written.tolist() if (record := self._record_at(position)) is not None]
        return tuple(map(_event, _of_the_sample([each for each in records if each.topic.partition_id == partition_id])))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _append(self, hashes: Int64Array, rows: int, now: float, claim_id: str, topic: _Topic) -> None:
        """Take cells for a record, and let go of those that had them before."""
        begin, size = self._end, len(self._cells)
        self._write(begin % size, hashes)
        self._end = begin + max(len(hashes), _LEAST_CELLS)
        self._records.append(_Record(begin, rows, now, claim_id, self._topics.get(topic) or self._kept(topic)))
        while self._records and self._records[0].begin < self._end - size:
            self._records.popleft()

    def _kept(self, topic: _Topic) -> _Topic:
        if len(self._topics) >= _MOST_TOPICS:
            self._topics.clear()
        kept = topic._replace(fields=tuple(map(sys.intern, topic.fields)))
        self._topics[kept] = kept
        return kept

    def _write(self, at: int, hashes: Int64Array) -> None:
        head = len(self._cells) - at
        self._cells[at : at + len(hashes)] = hashes[:head]
        if head < len(hashes):
            self._cells[: len(hashes) - head] = hashes[head:]

    def _record_at(self, position: int) -> _Record | None:
        """The record to which a cell belongs; None for a cell whose record is gone, or that no row has written."""
        number = bisect_right(self._records, position, key=_begin_of) - 1
        if number < 0:
            return None
        record = self._records[number]
        return record if position < record.begin + max(record.rows, 1) else None


def _hash_of_all(partition_id: str) -> int:
    return hash(("every row of", partition_id))


def _of_the_sample(records: Sequence[_Record]) -> list[_Record]:
    """Without what happened to the whole partition before the sample is known to have been there, or after it went."""
    kept = []
    there: bool | None = None
    for record in records:
        if record.rows == 0 and not there:
            continue
        kept.append(record)
        if record.topic.what in _BIRTHS:
            there = True
        elif record.topic.what in _ENDS:
            there = False
        elif there is None:
            there = True
    return kept


def _event(record: _Record) -> SampleEvent:
    topic = record.topic
    return SampleEvent(record.at, topic.what, topic.who, topic.task, record.claim_id, topic.fields, topic.reason)
