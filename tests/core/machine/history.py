"""What was handed out and how it ended, delivery by delivery, and the laws that hold for every such story.

The stories know nothing of lines, deadlines or counts. Whatever else the model and the plane agree on, a row has one
owner at a time, is committed once, and every delivery ends once: in the number that the plane tells for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tests.core.machine.things import Claim, Ledger, Row

from dataplane_server.core.calls.answers import TaskInfo


@dataclass(eq=False)
class Delivery:
    """A row in the hands of somebody, once. ended: how, empty until it has; a consuming claim is committed at once."""

    row: Row
    claim: Claim
    ledger: Ledger
    ended: str = ""

    @property
    def is_open(self) -> bool:
        return not self.ended and not self.claim.ended and self.row.resident


class History:
    def __init__(self) -> None:
        self._deliveries: list[Delivery] = []
        self._commits: Counter[tuple[Row, str]] = Counter()

    def granted(self, claim: Claim, ledger: Ledger, *, whole: bool) -> None:
        """Rows were handed out: none of them is in anybody's hands for the task; groups asked for whole are whole."""
        mine = set(claim.rows)
        for one in self._deliveries:
            assert not (one.row in mine and one.claim.task == claim.task and one.is_open), "a row has two owners"
        self._deliveries += [Delivery(row, claim, ledger) for row in claim.rows]
        for group in {row.group for row in claim.rows if row.group is not None and whole}:
            assert mine.issuperset(group.rows), f"group {group.group_id} was split"

    def note_ends(self) -> None:
        """After every call: deliveries end with their claim, or with their row."""
        for one in self._deliveries:
            if not one.ended:
                one.ended = one.claim.ended or ("" if one.row.resident else "cleared")
                if one.ended == "committed":
                    self._commits[one.row, one.claim.task] += 1
                    assert self._commits[one.row, one.claim.task] == 1, "a row was committed twice"

    def reset(self, rows: Iterable[Row], tasks: Iterable[str]) -> None:
        """The rows may be committed once more for the tasks. What ended before is counted before."""
        self.note_ends()
        for task in tasks:
            for row in list(rows):
                del self._commits[row, task]

    def check_told(self, ledger: Ledger, told: TaskInfo) -> None:
        """Every delivery of a task is open, or has ended once, as the plane counts them."""
        of_task = [one for one in self._deliveries if one.ledger is ledger]
        assert told.delivered_rows_total == len(of_task)
        assert told.ended_deliveries == Counter(one.ended for one in of_task if one.ended)
        assert told.claimed_rows == sum(not one.ended for one in of_task)
