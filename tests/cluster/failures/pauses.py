"""How long clients were kept from going on after each fault, from the histories that they wrote."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from tests.integration.histories.history import NEVER, History
from tests.integration.histories.reader import Call, calls_of

_STOPPED_NS = 500_000_000
_WAITING = {"claim", "adopt"}
"""These wait for rows: how long they take tells nothing, but their answers do. Nor does a release without an end, with
which a process notes that it gives up a claim without a call.
"""


def pauses(folder: Path, history: History, faults: list[int]) -> dict[str, float]:
    """For each process its longest pause, in seconds: from a fault (times in ns), or from its next call that does not
    wait for rows, until a call of any kind is answered. Times in which the process itself was stopped are left out.
    """
    found = {}
    for path in sorted(folder.glob("*.jsonl")):
        lengths = [
            end - begin
            for begin, end in _spans(calls_of(path), faults)
            if not _was_stopped(history, path.stem, begin, end)
        ]
        found[path.stem] = max(lengths, default=0) / 1e9
    return found


def _spans(calls: list[Call], faults: list[int]) -> Iterator[tuple[int, int]]:
    for fault in faults:
        made = (call for call in calls if fault < call.ended_at < NEVER and call.what not in _WAITING)
        begun = min((call.begun_at for call in made), default=NEVER)
        begin = max(fault, begun)
        answers = (call.ended_at for call in calls if begin < call.ended_at < NEVER and call.outcome != "unknown")
        if (answered := min(answers, default=NEVER)) < NEVER:
            yield begin, answered


def _was_stopped(history: History, process: str, begin: int, end: int) -> bool:
    return history.silence_ns(process, begin, end) > _STOPPED_NS


def told(seconds: list[float]) -> str:
    """A few figures."""
    if not seconds:
        return "none"
    return f"p50 {statistics.median(seconds):.2f} s, max {max(seconds):.2f} s of {len(seconds)}"
