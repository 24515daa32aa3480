"""Giving rows back to a task as if it had never taken them.

Claims and steps that hold any of the rows end as a whole: a claim on half of its rows would be a surprise for whoever
commits it. What they held goes back, too. Rows come first in line, in order of arrival.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataplane_server.core.calls import ResetResult
from dataplane_server.core.claims import ClaimDesk
from dataplane_server.core.partition import Partition
from dataplane_server.core.state import State
from dataplane_server.core.steps import StepDesk
from dataplane_server.core.task_states import CLAIMED, DELAYED, UNTAKEN


def reset_task(
    state: State,
    claims: ClaimDesk,
    steps: StepDesk,
    partition: Partition,
    task_name: str,
    sample_ids: Sequence[str] | None,
    now: float,
) -> ResetResult:
    """Restore rows (None: all) to a task; ids that do not exist are fine. The caller serves those who wait."""
    task, rows = partition.task(task_name), partition.rows
    if sample_ids is None:
        named = rows.all_slots()
    else:
        found = rows.find_existing(sample_ids)
        named = found[found >= 0]
    of_steps = steps.forget(partition, task_name, None if sample_ids is None else named)
    of_steps = of_steps[np.isin(task.states[of_steps], (CLAIMED, DELAYED))]
    reach = np.concatenate([named, of_steps])
    held, fenced = claims.fence(partition, task_name, None if sample_ids is None else reach, now)
    slots = np.unique(np.concatenate([reach, held]))
    slots = slots[np.argsort(rows.generations(slots))]
    taken = slots[task.states[slots] != UNTAKEN]
    task.deliveries.forget(named)
    task.restore(taken)
    if sample_ids is None:
        state.journal.note_all("reset", partition.partition_id, now, task=task_name)
    else:
        state.journal.note("reset", partition.partition_id, rows.ids(taken), now, task=task_name)
    return ResetResult(len(taken), fenced)
