"""From the files of processes to one history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.integration.histories.history import NEVER, Batch, Delivery, Ending, History, Outcome, Unanswered, WriteBack


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a process. facts: what it asked for and what was answered. ended_at: NEVER when it did not return."""

    process: str
    what: str
    begun_at: int
    ended_at: int
    outcome: Outcome
    unexpected: bool
    facts: dict[str, Any]

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(self.facts["rows"])


def read_history(folder: Path, grace_s: float, tasks: tuple[str, ...], shared_tasks: frozenset[str]) -> History:
    """All that the processes of a campaign wrote down."""
    history = History(int(grace_s * 1e9), tasks, shared_tasks)
    for path in sorted(folder.glob("*.jsonl")):
        lines = _lines(path)
        history.pulses[path.stem] = sorted(line["at"] for line in lines)
        history.complaints += [f"{path.stem}: {line['text']}" for line in lines if line["what"] == "complaint"]
        calls = list(_calls(path.stem, lines))
        history.batches += _batches(calls)
        for call in calls:
            _add(history, call)
    return history


def calls_of(path: Path) -> list[Call]:
    """The calls of one process, in the order in which they began."""
    return list(_calls(path.stem, _lines(path)))


def _lines(path: Path) -> list[dict[str, Any]]:
    """Without the half of a line that a killed process leaves."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def _calls(process: str, lines: list[dict[str, Any]]) -> Iterator[Call]:
    ends = {line["call"]: line for line in lines if line["what"] == "end"}
    for line in lines:
        if "call" in line and line["what"] != "end":
            end = ends.get(line["call"], {"at": NEVER, "outcome": "unknown"})
            unexpected = end["outcome"] == "unexpected"
            outcome: Any = "refused" if unexpected else end["outcome"]
            yield Call(process, line["what"], line["at"], end["at"], outcome, unexpected, {**end, **line})


def _add(history: History, call: Call) -> None:
    if call.unexpected:
        history.complaints.append(f"{call.process}: {call.what}: {call.facts['error']}")
    if call.what == "claim" and call.outcome == "done":
        history.deliveries.append(_delivery(call))
    elif call.what == "claim" and call.outcome == "unknown":
        history.unanswered.append(Unanswered(call.process, call.facts["task"], call.facts["most"]))
    elif call.what == "write":
        history.writes.append(WriteBack(call.process, call.facts["fence"], call.outcome))
    elif call.what in {"commit", "release"}:
        columns = call.facts.get("columns", False)
        how: Any = call.what
        fence = call.facts["fence"]
        history.endings.append(Ending(call.process, fence, how, call.begun_at, call.ended_at, call.outcome, columns))


def _delivery(call: Call) -> Delivery:
    facts = call.facts
    rows, generations = call.rows, tuple(facts["generations"])
    names = call.process, facts["task"], facts["claim_id"]
    return Delivery(*names, facts["fence"], call.begun_at, call.ended_at, rows, generations, facts["whole"])


def _batches(calls: list[Call]) -> list[Batch]:
    """What a process put, and its groups: those that were reserved, as they ended."""
    puts: list[Batch] = []
    groups: dict[str, Batch] = {}
    for call in calls:
        if call.what == "put":
            puts.append(Batch(call.process, "", call.rows, call.begun_at, call.outcome))
        elif call.what == "reserve":
            group = call.facts["group"]
            groups[group] = Batch(call.process, group, call.rows, NEVER, "refused", call.begun_at)
        elif call.what in {"fill", "finish", "abort"}:
            group = call.facts["group"]
            groups[group] = _after(call, groups[group])
    return [*puts, *groups.values()]


def _after(call: Call, batch: Batch) -> Batch:
    """A group after one more call of its producer."""
    if call.outcome == "fenced":
        batch = replace(batch, fenced_at=call.ended_at)
    if call.what == "finish":
        outcome = call.outcome if call.outcome in {"done", "unknown"} else "refused"
        batch = replace(batch, begun_at=call.begun_at, outcome=outcome)
    return batch
