"""Whether exactly the rows are lost that had values on nodes that died."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tests.integration.histories.history import History, named


def disagreements_on_lost_rows(history: History, dead: Collection[str]) -> Iterator[str]:
    """dead: what the names of processes on dead nodes begin with. Values lie on the node of the process that wrote
    them, and groups are lost as a whole.
    """
    for batch in history.batches:
        lost = history.lost.intersection(batch.rows)
        if batch.group and lost and len(lost) < len(batch.rows) and batch.outcome == "done":
            yield f"of the group {batch.group} only {named(sorted(lost))} are lost"
        if batch.outcome == "done" and _is_of(batch.process, dead) and len(lost) < len(batch.rows):
            yield f"{named(batch.rows)} of {batch.process}, whose node is dead, are not lost"
        if lost and not any(_is_of(process, dead) for process in _writers(history, batch.process, batch.rows)):
            yield f"{named(sorted(lost))} are lost, and no process on a dead node wrote to them"


def _writers(history: History, producer: str, rows: tuple[str, ...]) -> Iterator[str]:
    yield producer
    writes = {(write.process, write.fence) for write in history.writes}
    for task in history.tasks:
        for row in rows:
            for holding in history.by_row.get((task, row), []):
                yield from (process for process, fence in writes if fence == holding.fence)
                yield from (ending.process for ending in holding.endings if ending.columns)


def _is_of(process: str, dead: Collection[str]) -> bool:
    return process.partition("-")[0] in dead
