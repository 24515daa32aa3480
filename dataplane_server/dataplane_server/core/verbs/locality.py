"""Rows of the caller's own node first, within a bound of fairness.

A claim looks at the rows that it would take and at three times as many behind them. It takes the first of all, so no
row is passed over for ever: the row at place n of a queue is taken by the nth claim at the latest. Then it takes rows
of its node in order, then others in order. Groups and shards are taken in their order.
"""

from __future__ import annotations

import numpy as np

from dataplane_server.core.calls.values import Slots
from dataplane_server.core.rows.regions import NODE_SHIFT
from dataplane_server.core.rows.row_table import RowTable
from dataplane_server.core.tasks.task_states import Amount
from dataplane_server.core.tasks.view import View, within_tokens

_LOOKED_AT = 4
"""Times the size of a claim."""


def pop_near(view: View, amount: Amount, rows: RowTable, node: int) -> Slots:
    """As `view.pop`, of an amount that is ready."""
    looked_at = view.pop(amount._replace(batch_size=_LOOKED_AT * amount.batch_size, max_tokens=0))
    is_far = rows.places.first_offsets(looked_at) >> NODE_SHIFT != node
    is_far[0] = False
    order = np.argsort(is_far, kind="stable")[: amount.batch_size]
    chosen = looked_at[order[: within_tokens(rows["sequence_length"][looked_at[order]], amount.max_tokens)]]
    taken = np.isin(looked_at, chosen)
    if not taken.all():
        view.return_rows(looked_at[~taken])
    return looked_at[taken]
