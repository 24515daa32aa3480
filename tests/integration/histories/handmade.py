"""Histories made by hand, an event at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.integration.histories.history import PULSES_A_GRACE, Batch, Delivery, Ending, History, Outcome, WriteBack

GRACE = 1000
LONG = 100_000


class Silence(NamedTuple):
    """The process was stopped in between."""

    process: str
    begin: int
    end: int


class Slow(NamedTuple):
    """Of the process's pulses, all but every `one_in`th are missing."""

    process: str
    one_in: int


class Complaint(NamedTuple):
    text: str


class Shared(NamedTuple):
    """Several processes may hold a claim of this task together."""

    task: str = "rows"


Event = Delivery | Ending | WriteBack | Batch | Silence | Slow | Complaint | Shared


def history_of(events: Sequence[Event]) -> History:
    """Two rows of group g were put; three processes run all the time. The rest is told by events, in any order."""
    made = History(GRACE, ("rows",))
    made.batches.append(Batch("producer", "g", ("a", "b"), begun_at=10, outcome="done"))
    made.pulses = {process: list(range(0, LONG, GRACE // PULSES_A_GRACE)) for process in ("first", "second", "third")}
    for event in events:
        if isinstance(event, Delivery):
            made.deliveries.append(event)
        elif isinstance(event, Ending):
            made.endings.append(event)
        elif isinstance(event, WriteBack):
            made.writes.append(event)
        elif isinstance(event, Batch):
            made.batches.append(event)
        elif isinstance(event, Complaint):
            made.complaints.append(event.text)
        elif isinstance(event, Shared):
            made.shared_tasks |= {event.task}
        elif isinstance(event, Slow):
            made.pulses[event.process] = made.pulses[event.process][:: event.one_in]
        else:
            pulses = made.pulses[event.process]
            made.pulses[event.process] = [at for at in pulses if not event.begin < at < event.end]
    return made


def deliver(process: str, fence: int, asked_at: int, got_at: int, rows: str = "ab", *, whole: bool = False) -> Delivery:
    return Delivery(process, "rows", f"c-{fence}", fence, asked_at, got_at, tuple(rows), (1,) * len(rows), whole)


def commit(process: str, fence: int, begun_at: int, outcome: Outcome = "done", *, columns: bool = False) -> Ending:
    return Ending(process, fence, "commit", begun_at, begun_at + 10, outcome, columns)


def release(process: str, fence: int, begun_at: int) -> Ending:
    return Ending(process, fence, "release", begun_at, begun_at + 10, "done")


def put(rows: str, group: str = "", outcome: Outcome = "done", begun_at: int = 10) -> Batch:
    return Batch("producer", group, tuple(rows), begun_at, outcome)


RELEASED_AND_COMMITTED_BY_ANOTHER: list[Event] = [
    deliver("first", 1, 20, 30),
    release("first", 1, 40),
    deliver("second", 2, 20, 41),
    commit("second", 2, 50),
]


def stopped_fenced_and_redelivered(*, columns: bool = False, late_columns: bool = False) -> list[Event]:
    """columns: the second process commits with columns; late_columns: the first one tries to."""
    return [
        Silence("first", 40, 5000),
        deliver("first", 1, 20, 30),
        deliver("second", 2, 20, 1041),
        commit("first", 1, 5010, "fenced", columns=late_columns),
        commit("second", 2, 2000, columns=columns),
    ]
