"""Which rows of a task are ready for claims of one kind, and which of them come first.

A row is ready if it is untaken and visible, has produced the fields, fits the filter, and is within the bounds of the
task's policy. So a view never has a row that its task must not get, and neither has a claim: what is granted comes from
views, and the bounds move with policy and weight version before any claim of that turn is served.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dataplane_server.core.calls.filters import ALL_ROWS, Filter, asks
from dataplane_server.core.calls.names import UNKNOWN_VERSION
from dataplane_server.core.calls.policies import ClaimOrder
from dataplane_server.core.calls.values import BoolArray, Slots
from dataplane_server.core.rows.matching import fitting
from dataplane_server.core.rows.row_table import RowTable
from dataplane_server.core.tasks.eligibility import Bounds, outdated
from dataplane_server.core.tasks.queues import Keys
from dataplane_server.core.tasks.task_states import UNTAKEN


class Kind(NamedTuple):
    """A kind of claims. mask: of the fields that rows must have produced."""

    mask: int
    whole_groups: bool = False
    where: Filter = ALL_ROWS
    order: ClaimOrder = "ready"
    order_tag: str = ""

    @property
    def moves_with_version(self) -> bool:
        """Whether rows become ready, or not, when the partition's weight version changes."""
        return asks(self.where, "staleness")


class Readiness:
    """The rows that are ready for claims of a kind. bounds: of the task's policy. column: which rows a view has
    marked.
    """

    def __init__(self, rows: RowTable, state_column: str, kind: Kind, bounds: Bounds, beside: int) -> None:
        """beside: bytes that the view keeps for a row elsewhere."""
        self.kind = kind
        self.bounds = bounds
        self.column = f"ready:{state_column}:{kind}"
        self._rows = rows
        self._state_column = state_column
        self._mask = np.uint64(kind.mask)
        self._beside = beside
        rows.add_column(self.column, np.bool_, beside)

    def close(self) -> None:
        self._rows.drop_column(self.column, self._beside)

    @property
    def marked(self) -> npt.NDArray[Any]:
        """The column, by slot. It moves when rows are created."""
        return self._rows[self.column]

    @property
    def can_change(self) -> bool:
        """Whether a row that is ready may become unready by a tag, a version or a policy."""
        return self.bounds != Bounds() or bool(self.kind.where) or self.kind.order != "ready"

    def of(self, slots: Slots, *, keep: bool = True) -> BoolArray:
        """Which of the rows are ready. keep: see `RowTable.tag_values`."""
        rows = self._rows
        ready: BoolArray = (rows["produced"][slots] & self._mask) == self._mask
        ready &= rows[self._state_column][slots] == UNTAKEN
        ready &= ~rows["hidden"][slots]
        if self.bounds.oldest is not None:
            ready &= ~outdated(rows["weight_version"][slots], self.bounds.oldest)
        for where in filter(None, (self.kind.where, self.bounds.where)):
            ready &= fitting(rows, where, slots, None, keep=keep)
        return ready

    def follow(self, bounds: Bounds) -> Slots | None:
        """Other bounds, or another weight version. Returns the marked rows that are not ready any more; None if others
        may have become ready, or not by their versions. Costs two array operations over all rows.
        """
        before, self.bounds = self.bounds, bounds
        moves = self.kind.moves_with_version or bounds.where != before.where or asks(bounds.where, "staleness")
        if bounds.oldest is None or (before.oldest is not None and bounds.oldest < before.oldest) or moves:
            return None
        return np.flatnonzero(self.marked & outdated(self._rows["weight_version"], bounds.oldest))

    def mark(self, slots: Slots) -> Slots:
        """Mark the rows that are ready and not yet marked. Returns them."""
        marked = self._rows[self.column]
        fresh: Slots = slots[self.of(slots) & ~marked[slots]]
        marked[fresh] = True
        return fresh

    def no_longer(self, slots: Slots) -> Slots:
        """Those of the rows that are marked and not ready."""
        gone: Slots = slots[self.marked[slots] & ~self.of(slots)]
        return gone

    def keys(self, slots: Slots) -> Keys:
        """What orders rows. Those without a version or number come last."""
        order = self.kind.order
        if order in ("lowest_tag", "highest_tag"):
            keys: Keys = self._rows.tag_numbers(self.kind.order_tag, slots)
        else:
            keys = self._rows["weight_version"][slots].astype(np.float64)
            keys[keys == UNKNOWN_VERSION] = np.nan
        if order in ("newest_version", "highest_tag"):
            keys = -keys
        return np.where(np.isnan(keys), np.inf, keys)
