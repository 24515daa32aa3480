"""Histories made by hand, a call at a time."""

from __future__ import annotations

from tests.integration.histories.history import Batch, Delivery, Ending, History, Outcome

GRACE = 1000
LONG = 100_000


def new_history() -> History:
    """Two rows of group g were put; three processes run all the time; nobody has claimed a row yet."""
    made = History(GRACE, ("rows",))
    made.batches.append(Batch("producer", "g", ("a", "b"), begun_at=10, outcome="done"))
    made.pulses = {process: list(range(0, LONG, 100)) for process in ("first", "second", "third")}
    return made


def deliver(
    history: History, process: str, fence: int, asked_at: int, got_at: int, rows: str = "ab", *, whole: bool = False
) -> None:
    claim = Delivery(process, "rows", f"c-{fence}", fence, asked_at, got_at, tuple(rows), (1,) * len(rows), whole)
    history.deliveries.append(claim)


def commit(
    history: History, process: str, fence: int, begun_at: int, outcome: Outcome = "done", *, columns: bool = False
) -> None:
    history.endings.append(Ending(process, fence, "commit", begun_at, begun_at + 10, outcome, columns))


def release(history: History, process: str, fence: int, begun_at: int, outcome: Outcome = "done") -> None:
    history.endings.append(Ending(process, fence, "release", begun_at, begun_at + 10, outcome))


def silence(history: History, process: str, begin: int, end: int) -> None:
    """Take the process for stopped in between."""
    history.pulses[process] = [at for at in history.pulses[process] if not begin < at < end]


def put(history: History, rows: str, group: str = "", outcome: Outcome = "done", begun_at: int = 10) -> None:
    history.batches.append(Batch("producer", group, tuple(rows), begun_at, outcome))


def released_and_committed_by_another(history: History) -> None:
    deliver(history, "first", 1, 20, 30)
    release(history, "first", 1, 40)
    deliver(history, "second", 2, 20, 41)
    commit(history, "second", 2, 50)


def stopped_fenced_and_redelivered(history: History) -> None:
    silence(history, "first", 40, 5000)
    deliver(history, "first", 1, 20, 30)
    deliver(history, "second", 2, 20, 1041)
    commit(history, "first", 1, 5010, "fenced")
    commit(history, "second", 2, 2000)
