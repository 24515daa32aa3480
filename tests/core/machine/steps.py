"""Steps of the model: a batch that is split between ranks once, and stays so for whoever asks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from tests.core.machine.lines import Line, Unit, rows_of, tokens
from tests.core.machine.partition import PartitionModel
from tests.core.machine.refusals import refuse_if
from tests.core.machine.things import Handed, Shard, Step, Wait, Wish

from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import ClaimShard
from dataplane_server.core.verbs.balance import split_by_weight

if TYPE_CHECKING:
    from tests.core.machine.claims import Claims


class Steps:
    def __init__(self, model: Claims) -> None:
        self._model = model

    def claim(self, wish: ClaimShard) -> Handed | None:
        """None when the caller has to wait: alone, or with the others of its step."""
        model = self._model
        model.supersede_wait(wish.request_id)
        self._check_sizes(wish)
        partition = model.check_wish(wish)
        asked = self._asked(partition, wish)
        refuse_if((asked is not None and alike(asked) != alike(wish), Reason.INVALID_REQUEST))
        step = self._taken(partition, wish)
        if step is not None:
            self._check_not_committed(step, wish)
            handed = self.hand(partition, step, wish)
            model.serve(partition)
            return handed
        if self.waiting(wish) is not None or not model.may_take(partition, wish):
            model.check_may_wait(partition, wish)
            return None
        handed = self.hand(partition, self.take(partition, wish, partition.line(wish)), wish)
        model.serve(partition)
        return handed

    def _check_sizes(self, wish: ClaimShard) -> None:
        ranks = 0 <= wish.dp_rank < wish.dp_world
        sizes = wish.dp_world <= wish.min_size <= wish.batch_size
        groups = wish.whole_groups or "groups" not in (wish.balance, wish.unit)
        refuse_if((not ranks or not sizes or not groups, Reason.INVALID_REQUEST))

    def _check_not_committed(self, step: Step, wish: ClaimShard) -> None:
        handed, session = step.shards[wish.dp_rank].handed, self._model.session(wish.session_id)
        if handed is not None and handed.claim.ended == "committed" and session is not None and not wish.again:
            refuse_if((session not in handed.claim.seen, Reason.SHARD_COMMITTED))

    def _taken(self, partition: PartitionModel, wish: ClaimShard) -> Step | None:
        return next((step for step in partition.steps[wish.task] if step.wish.step == wish.step), None)

    def waiting(self, wish: ClaimShard) -> Wait | None:
        """The callers that wait for the same step."""
        key = (wish.partition_id, wish.task, wish.step)
        for wait in self._model.waiting:
            other = wait.wish
            if isinstance(other, ClaimShard) and (other.partition_id, other.task, other.step) == key:
                return wait
        return None

    def _asked(self, partition: PartitionModel, wish: ClaimShard) -> Wish | None:
        """The first wish for the step."""
        step, wait = self._taken(partition, wish), self.waiting(wish)
        return step.wish if step is not None else None if wait is None else wait.wish

    def take(self, partition: PartitionModel, wish: ClaimShard, line: Line) -> Step:
        """The rows of a step leave the line, and what belonged to a step long past comes back to it."""
        units = line.first(wish)
        partition.hold(wish.task, [row for unit in units for row in rows_of(unit)])
        parts = [[units[i] for i in part] for part in split(units, wish)]
        step = Step(wish, [Shard([row for unit in part for row in rows_of(unit)]) for part in parts])
        steps = partition.steps[wish.task]
        steps.append(step)
        if len(steps) > self._model.limits.remembered_steps:
            self._forget(partition, steps[0])
        return step

    def hand(self, partition: PartitionModel, step: Step, wish: ClaimShard) -> Handed:
        shard = step.shards[wish.dp_rank]
        session = self._model.session(wish.session_id)
        handed = shard.handed
        if handed is not None and not handed.claim.ended:
            if session is not None and handed.claim.holders and session not in handed.claim.holders:
                handed.claim.holders.append(session)
                session.claims.append(handed.claim)
            return handed
        if handed is not None and handed.claim.ended == "committed":
            return handed
        rows = [row for row in shard.rows if row.resident and row.standings[wish.task].state == "delayed"]
        unit = {row: row.group if wish.whole_groups and row.group else row for row in rows}
        kept = {unit[row] for row in rows if partition.withholds(wish.task, row)}
        withheld = [row for row in rows if unit[row] in kept]
        shard.rows = [row for row in shard.rows if row not in withheld]
        partition.untake(wish.task, withheld)
        rows = [row for row in rows if row not in withheld]
        partition.deliver(wish.task, rows)
        shard.handed = self._model.handed(wish, rows, [session] if session else [])
        shard.handed.claim.shard = shard
        return shard.handed

    def _forget(self, partition: PartitionModel, step: Step) -> None:
        partition.steps[step.wish.task].remove(step)
        rows = [row for shard in step.shards for row in shard.rows if row.resident]
        for shard in step.shards:
            if shard.handed is not None and not shard.handed.claim.ended:
                shard.handed.claim.shard = None
        task = step.wish.task
        partition.untake(task, [row for row in rows if row.standings[task].state == "delayed"])


def alike(wish: Wish) -> tuple[object, ...]:
    """What all callers of a step must ask for alike."""
    assert isinstance(wish, ClaimShard)
    sizes = (wish.dp_world, wish.batch_size, wish.min_size, wish.max_tokens)
    unit = wish.unit or ("groups" if wish.whole_groups else "rows")
    return (*sizes, wish.required_fields, wish.balance, wish.whole_groups, unit, wish.where, wish.order, wish.order_tag)


def split(units: Sequence[Unit], wish: ClaimShard) -> list[list[int]]:
    """Which units each rank gets. By weight, only the laws of a split are checked here, not how well it is balanced."""
    if wish.balance == "groups" or (wish.balance == "rows" and not wish.whole_groups):
        least, more = divmod(len(units), wish.dp_world)
        sizes = [least + (rank < more) for rank in range(wish.dp_world)]
        starts = [sum(sizes[:rank]) for rank in range(wish.dp_world)]
        return [list(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]
    by_rows = wish.balance == "rows"
    weights = np.array([len(rows_of(unit)) if by_rows else tokens(unit) for unit in units], np.int64)
    parts = split_by_weight(weights, wish.dp_world, even=not by_rows)
    assert len(parts) == wish.dp_world
    assert sorted(position for part in parts for position in part) == list(range(len(units)))
    assert by_rows or max(map(len, parts)) - min(map(len, parts)) <= 1
    return parts


HELD_FOR_STEP = math.inf
