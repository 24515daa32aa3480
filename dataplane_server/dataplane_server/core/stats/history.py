"""The history of samples: what happened to them, call by call.

Each fact has one record, and one cell of a ring for each of its rows: the hash of the sample's id. The string is not
kept, and looking the row up has already computed its hash, so a call with many rows costs one array operation. The
history of a sample is a search through the ring for its hash. The ring has a fixed number of cells; a record is dropped
when its first cell is reused. A record takes at least eight cells, so calls with one row each cannot fill the memory
with records. Facts that differ only in time and claim share one topic (fields, task, caller), which lives as long as
one of its records; the memory of topics is bounded too.

A fact that concerns every row of a partition has one cell, for the partition. It is in the history of each sample that
is known to have existed at the time.

Two samples of a partition whose hashes are equal would share their events. With a million samples, one server in about
forty million has such a pair.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from dataplane_server.core.calls.answers import ResidentSample, SampleEvent, SampleHistory, SampleTask
from dataplane_server.core.calls.values import Int64Array, Slots
from dataplane_server.core.rows.bookkeeping import text_bytes
from dataplane_server.core.state.claim_table import ClaimTable
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.state import PARTITION_DROPPED, Fact
from dataplane_server.core.tasks.task import Task
from dataplane_server.core.verbs.steps import Steps

_LEAST_CELLS = 8
_MOST_EVENTS = 1024
"""Most events of one history, the last ones. The search takes a few milliseconds."""
_MOST_TOPIC_BYTES = 64 << 20
"""Memory of all topics; facts with the oldest ones are forgotten beyond it."""
_BEGINNINGS = ("put", "appended", "reserved")
_ENDS = ("cleared", "rolled_back", "failed", "lost")


class _Topic(NamedTuple):
    """What facts have in common."""

    partition_id: str
    what: str
    who: str
    task: str
    fields: tuple[str, ...]
    reason: str


class Happening(NamedTuple):
    """When something happened, to how many rows (0: to every row of the partition), and its topic."""

    at: float
    rows: int
    partition_id: str
    what: str
    who: str
    task: str
    fields: tuple[str, ...]
    reason: str


class _Known:
    """A topic, the number of its records, and when the last of them was noted."""

    __slots__ = ("last_at", "records", "size_bytes", "topic")

    def __init__(self, topic: _Topic) -> None:
        self.topic = topic._replace(fields=tuple(map(sys.intern, topic.fields)))
        self.records = 0
        self.last_at = 0.0
        texts = (topic.partition_id, topic.who, topic.task, topic.reason, *topic.fields)
        self.size_bytes = 400 + sum(64 + text_bytes(text) for text in texts)


class _Record(NamedTuple):
    """One fact. Its cells begin at `begin`, counted from the first cell ever written. rows: 0 if the fact concerns
    every row of the partition.
    """

    begin: int
    rows: int
    at: float
    claim_id: str
    topic: _Topic


_begin_of = itemgetter(0)


class History:
    """Remembers the last facts, up to `limit` rows in all; a fact of fewer than eight rows counts as eight."""

    def __init__(self, limit: int) -> None:
        self._cells: Int64Array = np.zeros(limit, np.int64)
        self._end = 0  # cells ever taken
        self._records: deque[_Record] = deque()
        self._topics: dict[_Topic, _Known] = {}
        self._topic_bytes = 0

    def note(self, fact: Fact, now: float) -> None:
        """Remember a fact. If it has more than `limit` samples, only the last ones are remembered."""
        what, partition_id, sample_ids, who, task, claim_id, fields, reason = fact
        size = len(self._cells)
        if sample_ids is None:
            rows = 0
            hashes = np.array([_hash_of_all(partition_id)])
        else:
            sample_ids = sample_ids[-size:] if len(sample_ids) > size else sample_ids
            rows = len(sample_ids)
            hashes = np.fromiter(map(hash, sample_ids), np.int64, rows)
        if not size or not len(hashes):
            return
        begin, at = self._end, self._end % size
        before_the_end = hashes[: size - at]
        self._cells[at : at + len(before_the_end)] = before_the_end
        self._cells[: len(hashes) - len(before_the_end)] = hashes[len(before_the_end) :]
        self._end = begin + max(len(hashes), _LEAST_CELLS)
        topic = self._kept(_Topic(partition_id, what, who, task, fields, reason), now)
        self._records.append(_Record(begin, rows, now, claim_id, topic))
        while self._records and (self._records[0].begin < self._end - size or self._topic_bytes > _MOST_TOPIC_BYTES):
            self._release(self._records.popleft().topic)

    def events(self, partition_id: str, sample_id: str) -> tuple[SampleEvent, ...]:
        """The remembered events of the samples of this id, oldest first; at most the last 1,024."""
        found = np.flatnonzero((self._cells == hash(sample_id)) | (self._cells == _hash_of_all(partition_id)))
        last = self._end - 1
        written = np.sort(last - (last - found) % max(len(self._cells), 1))[-_MOST_EVENTS:]
        records = [record for position in written.tolist() if (record := self._record_at(position)) is not None]
        records = [record for record in records if record.topic.partition_id == partition_id]
        return tuple(map(_event, _of_the_sample(records)))

    def latest(self, partition_id: str) -> list[Happening]:
        """What was last noted of a partition, by topic, the last first, without numbers of rows; not of one of the same
        name that was dropped. Costs a look at each topic that is remembered of all partitions.
        """
        found = [(known.last_at, topic) for topic, known in self._topics.items() if topic.partition_id == partition_id]
        began = max((at for at, topic in found if topic.reason == PARTITION_DROPPED), default=-math.inf)
        return sorted((Happening(at, 0, *topic) for at, topic in found if at >= began), reverse=True)

    def recent(self, since: float, most: int) -> Iterator[Happening]:
        """What was noted of all partitions after a time, the last first, at most so much."""
        for record in islice(reversed(self._records), most):
            if record.at <= since:
                return
            yield Happening(record.at, record.rows, *record.topic)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _kept(self, topic: _Topic, now: float) -> _Topic:
        """The topic for one more record."""
        known = self._topics.get(topic)
        if known is None:
            known = _Known(topic)
            self._topics[known.topic] = known
            self._topic_bytes += known.size_bytes
        known.records += 1
        known.last_at = now
        return known.topic

    def _release(self, topic: _Topic) -> None:
        known = self._topics[topic]
        known.records -= 1
        if not known.records:
            del self._topics[topic]
            self._topic_bytes -= known.size_bytes

    def _record_at(self, position: int) -> _Record | None:
        """The record of a cell; None if the record is gone, or no row has written the cell."""
        number = bisect_right(self._records, position, key=_begin_of) - 1
        if number < 0:
            return None
        record = self._records[number]
        return record if position < record.begin + max(record.rows, 1) else None


def _hash_of_all(partition_id: str) -> int:
    return hash(("every row of", partition_id))


def _of_the_sample(records: Sequence[_Record]) -> list[_Record]:
    """Drop facts about the whole partition from before the sample is known to have existed or after its removal."""
    kept = []
    exists: bool | None = None
    for record in records:
        if record.rows == 0 and not exists:
            continue
        kept.append(record)
        if record.topic.what in _BEGINNINGS:
            exists = True
        elif record.topic.what in _ENDS:
            exists = False
        elif exists is None:
            exists = True
    return kept


def _event(record: _Record) -> SampleEvent:
    topic = record.topic
    return SampleEvent(record.at, topic.what, topic.who, topic.task, record.claim_id, topic.fields, topic.reason)


# -- one sample --------------------------------------------------------------------------------------------------------


def sample_history(
    partition: Partition, sample_id: str, table: ClaimTable, steps: Steps, history: History
) -> SampleHistory:
    """Contents, state and history of a sample. A sample that never existed has an empty history."""
    slots = partition.rows.find_existing([sample_id])
    resident = _resident(partition, slots, table, steps) if slots[0] >= 0 else None
    return SampleHistory(resident, history.events(partition.partition_id, sample_id))


def _resident(partition: Partition, slots: Slots, table: ClaimTable, steps: Steps) -> ResidentSample:
    rows, slot = partition.rows, int(slots[0])
    held = [field for field in partition.fields.values() if field.holds(slots)[0]]
    digests = partition.values.digests(slots, held)
    return ResidentSample(
        generation=int(rows.generations(slots)[0]),
        sequence_length=int(rows["sequence_length"][slot]),
        fields=tuple(field.name for field in held),
        tags=rows.tags(slot),
        group_id=partition.groups.id_of(slot),
        hidden=bool(rows["hidden"][slot]),
        tasks=tuple(_sample_task(partition, task, slots, table, steps) for task in partition.tasks.values()),
        digests=() if digests is None else tuple(digests[:, 0].view(np.uint64).tolist()),
    )


def _sample_task(partition: Partition, task: Task, slots: Slots, table: ClaimTable, steps: Steps) -> SampleTask:
    slot = int(slots[0])
    deliveries = int(task.deliveries.counts(slots)[0])
    claim_id = table.holder(partition, task.name, slot)
    return SampleTask(task.name, task.state_of(slot), deliveries, claim_id, *steps.shard_of(partition, task.name, slot))
