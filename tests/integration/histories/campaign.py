"""A campaign from its start to what the server says in the end, and the figures of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from tests import commands
from tests.integration.failpoints.lives import errors_in
from tests.integration.histories.checker import violations
from tests.integration.histories.counters import disagreements
from tests.integration.histories.history import Final, History, TaskCounts
from tests.integration.histories.reader import read_history
from tests.integration.histories.settings import FIELDS, PARTITION, SHARED_TASKS, STOP_FILE, TASKS, Settings
from tests.integration.histories.zygote import THROUGH

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.records.descriptions import PartitionDescription

_STUCK_S = 200.0
_END_S = 600.0
_READ_ROWS = 1000


class Others(Protocol):
    """Clients of a campaign that write their histories into its folder, and that others start."""

    def wait_for_producers(self) -> None:
        """Until no more rows will be put."""

    def wait(self) -> None:
        """Until all have ended, which they do once the campaign is over."""


def run(settings: Settings, others: Others | None = None) -> History:
    """Run clients against a server that is there, until every row is consumed; what they and the server said.
    others: clients that run elsewhere.

    Raises AssertionError when rows are left that nobody consumes, or a process does not end.
    """
    with connect(settings.address, timeout_s=30.0) as client:
        client.register_partition(PARTITION, FIELDS, 0, TASKS, per_token_fields=["tokens"])
        command = [sys.executable, "-m", "tests.integration.histories.zygote", settings.json()]
        with (settings.folder / "stderr").open("w") as stderr:
            pipe = subprocess.PIPE
            zygote = commands.begin(command, stdout=pipe, stderr=stderr, text=True)
        try:
            assert zygote.stdout is not None
            assert zygote.stdout.readline().strip() == THROUGH, "the processes ended before their time"
            if others is not None:
                others.wait_for_producers()
            stuck = _drained(client)
            (settings.folder / STOP_FILE).touch()
            assert zygote.wait(_END_S) == 0, "the processes did not end well"
            if others is not None:
                others.wait()
        finally:
            zygote.kill()
            zygote.wait()
            assert zygote.stdout is not None
            zygote.stdout.close()
        history = read_history(settings.folder, settings.grace_s, TASKS, SHARED_TASKS)
        history.final = final(client, history)
        history.complaints += stuck
        return history


def _drained(client: DataPlaneClient) -> list[str]:
    """Wait until all is consumed; a complaint when nothing is consumed any more and rows are left."""
    last: list[int] = []
    deadline = time.monotonic() + _STUCK_S
    while time.monotonic() < deadline:
        described = client.partition(PARTITION)
        reached = [described.open_groups, *(task.consumed_rows for task in described.tasks)]
        if reached != last:
            last, deadline = reached, time.monotonic() + _STUCK_S
        through = client.check_consumption_status(PARTITION, TASKS)
        if through and not described.open_groups and not any(_unconsumed(described)):
            return []
        time.sleep(0.05)
    return [f"rows are left: {client.partition(PARTITION).tasks}"]


def _unconsumed(described: PartitionDescription) -> Iterable[int]:
    return (task.untaken_rows + task.claimed_rows + task.delayed_rows for task in described.tasks)


def final(client: DataPlaneClient, history: History) -> Final:
    """What the server says in the end. Values of a partition that clears what is consumed are gone by then."""
    described = client.partition(PARTITION)
    columns = [name for name in FIELDS if name not in ("tokens", "prompt")]
    values: dict[str, dict[str, int]] = {}
    lost = _lost(client, history) if described.removed_rows.get("lost") else frozenset()
    rows = [] if described.clear_when_consumed else sorted({row for _, row in history.by_row} - lost)
    for begin in range(0, len(rows), _READ_ROWS):
        some = rows[begin : begin + _READ_ROWS]
        read = client.get_samples(some, PARTITION, columns)
        found = zip(*(read[name].tolist() for name in columns), strict=True)
        values |= {row: dict(zip(columns, numbers, strict=True)) for row, numbers in zip(some, found, strict=True)}
    tasks = {
        task.task: TaskCounts(
            task.untaken_rows,
            task.claimed_rows,
            task.consumed_rows,
            task.delivered_rows_total,
            dict(task.ended_deliveries),
        )
        for task in described.tasks
    }
    return Final(values, described.rows, described.rows_put_total, dict(described.removed_rows), tasks, lost)


def _lost(client: DataPlaneClient, history: History) -> frozenset[str]:
    """The rows of which the server says that they are lost."""
    put = [row for batch in history.batches for row in batch.rows]
    return frozenset(row for row in put if any(e.what == "lost" for e in client.sample(PARTITION, row).events))


def judged(history: History, settings: Settings, log: str = "") -> tuple[list[str], dict[str, int]]:
    """What is wrong, which also goes into a file beside the history, and the figures. log: of the server."""
    found = [*map(str, violations(history)), *disagreements(history), *errors_in(log)]
    (settings.folder / "violations").write_text("\n".join(found))
    return found, {**figures(history, settings), "violations": len(found)}


def figures(history: History, settings: Settings) -> dict[str, int]:
    """What there was of everything, to see that there was enough."""
    faults = [json.loads(line) for line in (settings.folder / "zygote.jsonl").read_text().splitlines()]
    struck = Counter("long stops" if fault.get("long") else f"{fault['what']}s" for fault in faults)
    endings = Counter((ending.how, ending.outcome) for ending in history.endings)
    batches = Counter((bool(batch.group), batch.outcome) for batch in history.batches)
    redelivered = sum(len(holdings) - 1 for holdings in history.by_row.values())
    return {
        "processes": len(history.pulses) - 1,
        "kills": struck["kills"],
        "stops longer than the grace": struck["long stops"],
        "short stops": struck["stops"],
        "rows": history.final.kept if history.final else 0,
        "groups finished": batches[True, "done"],
        "groups aborted or rolled back": batches[True, "refused"],
        "groups and puts of which nobody knows": batches[True, "unknown"] + batches[False, "unknown"],
        "claims": len(history.holdings),
        "claims handed to several": sum(len(held.holders) > 1 for held in history.holdings.values()),
        "claims of whole groups": sum(delivery.whole for delivery in history.deliveries),
        "claims without an answer": len(history.unanswered),
        "commits": endings["commit", "done"],
        "commits refused as fenced": endings["commit", "fenced"],
        "commits of which nobody knows": endings["commit", "unknown"],
        "releases": endings["release", "done"] + endings["release", "unknown"],
        "write-backs": len(history.writes),
        "write-backs refused as fenced": sum(write.outcome == "fenced" for write in history.writes),
        "redeliveries of a row": redelivered,
        "ownership intervals checked": sum(map(len, history.by_row.values())),
    }


def until_enough(enough: Sequence[str], one_round: Callable[[int], Mapping[str, int]]) -> None:
    """Rounds of a campaign by number, at most 20, until there was some of everything that is to happen. AssertionError
    names what did not.
    """
    counts: Counter[str] = Counter()
    for number in range(20):
        counts.update(one_round(number))
        if all(counts[name] for name in enough):
            break
    assert [name for name in enough if not counts[name]] == []


def table(counts: dict[str, int], settings: Settings) -> str:
    """The figures, one a line."""
    title = f"{settings.processes} processes, {settings.seconds:g} s, seed {settings.seed}"
    return "\n".join([title, *(f"  {name:<40}{count:>10,}" for name, count in counts.items()), ""])
