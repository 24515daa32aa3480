"""Rows of the caller's own node first, within a bound of fairness.

A claim looks at what it would take and at three times as much behind that. It takes the first row of all, so no row is
passed over for ever: a row with n rows before it is taken by claim n + 1 at the latest. Then it takes rows of its node
in order, then others in order. A claim of whole groups does the same with groups.

A group is on the node of its first row that has bytes. A step takes its rows in order; see `verbs.exchanges`.
"""

from __future__ import annotations

import numpy as np

from dataplane_server.core.calls.values import Int64Array, Slots
from dataplane_server.core.rows.regions import NODE_SHIFT
from dataplane_server.core.rows.row_table import RowTable
from dataplane_server.core.tasks.group_view import GroupView
from dataplane_server.core.tasks.task_states import Amount
from dataplane_server.core.tasks.view import View, within_tokens
from dataplane_server.core.tasks.views import AnyView

_LOOKED_AT = 4
"""Times the size of a claim."""


def pop_near(view: AnyView, amount: Amount, rows: RowTable, node: int) -> Slots:
    """As `view.pop`, of an amount that is ready."""
    if isinstance(view, GroupView):
        return _pop_groups(view, amount, rows, node)
    return _pop_rows(view, amount, rows, node)


def _pop_rows(view: View, amount: Amount, rows: RowTable, node: int) -> Slots:
    looked_at = view.pop(amount._replace(batch_size=_LOOKED_AT * amount.batch_size, max_tokens=0))
    order = _near_first(_nodes(rows, looked_at), node, amount)
    chosen = looked_at[order[: within_tokens(rows["sequence_length"][looked_at[order]], amount.max_tokens)]]
    taken = np.isin(looked_at, chosen)
    if not taken.all():
        view.return_rows(looked_at[~taken])
    return looked_at[taken]


def _pop_groups(view: GroupView, amount: Amount, rows: RowTable, node: int) -> Slots:
    groups = view.first(_LOOKED_AT * amount.batch_size, counts_rows=amount.counts_rows)
    begins = np.cumsum([0, *map(len, groups[:-1])])
    order = _near_first(nodes_of_units(rows, np.concatenate(groups), begins), node, amount)
    fitting = view.fitting([groups[place] for place in order], amount)
    taken = np.concatenate([groups[place] for place in np.sort(order[:fitting])])
    view.remove(taken)
    return taken


def nodes_of_units(rows: RowTable, slots: Slots, begins: Int64Array) -> Int64Array:
    """The node of each unit: that of its first row with bytes, -1 if it has none. A unit is a run of slots, at least
    one. begins: where they begin.
    """
    nodes = _nodes(rows, slots)
    known = np.flatnonzero(nodes >= 0)
    first = np.append(known, len(slots))[np.searchsorted(known, begins)]
    found: Int64Array = np.where(first < np.append(begins[1:], len(slots)), np.append(nodes, -1)[first], -1)
    return found


def _nodes(rows: RowTable, slots: Slots) -> Int64Array:
    return rows.places.first_offsets(slots) >> NODE_SHIFT


def _near_first(nodes: Int64Array, node: int, amount: Amount) -> Int64Array:
    """The places of what a claim may take: the first, those on its node, others."""
    is_far = nodes != node
    is_far[0] = False
    return np.argsort(is_far, kind="stable")[: amount.batch_size]
