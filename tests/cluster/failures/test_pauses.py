"""Pauses count from a call that a fault kept from its answer, not from a process that had nothing to ask for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cluster.failures.pauses import pauses
from tests.integration.histories.history import History

S = 1_000_000_000
FAULT = 10 * S


def line(at: float, what: str, call: int, **facts: object) -> dict[str, object]:
    return {"at": int(at * S), "what": what, "call": call, **facts}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([line(9, "commit", 1), line(12, "end", 1, outcome="done")], 2.0),
        ([line(11, "commit", 1), line(12, "end", 1, outcome="done")], 1.0),
        ([line(9, "commit", 1), line(11, "end", 1, outcome="unknown"), line(14, "commit", 2)], 0.0),
        ([line(9, "claim", 1), line(19, "end", 1, outcome="done")], 0.0),
        ([line(3, "release", 1), line(19, "claim", 2), line(20, "end", 2, outcome="done")], 0.0),
    ],
    ids=["under way", "begun later", "never answered", "waits for rows", "gave a claim up without a call"],
)
def test_the_pause_of_a_process(lines: list[dict[str, object]], expected: float, tmp_path: Path) -> None:
    beats = [{"at": number * S // 4, "what": "pulse"} for number in range(4 * 30)]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in [*lines, *beats]))
    history = History(2 * S, (), frozenset())
    history.pulses["a"] = [int(str(each["at"])) for each in beats]
    assert pauses(tmp_path, history, [FAULT]) == {"a": expected}
