"""Steps: one batch for all ranks of a data-parallel job, split once and the same for every call.

The first call for a step of a task takes the rows of all ranks out of the queue and splits them into shards. From then
on the rows belong to the step. A call for a rank is granted its shard, as one claim that all callers of the rank hold
together (its tensor-, context- and pipeline-parallel ranks). When the last holder of a shard is gone and it was not
committed, its rows do not return to the queue: they are held for the step, and the next caller of the rank gets them
under a new claim. So a job that lost a rank, or all of them, repeats the step with the same rows.

In a cluster, ranks then exchange rows, so that more of them are on the node from which their rank has called last, for
any step of the task with as many ranks; see `verbs.exchanges`.

A step is forgotten after `remembered_steps` later ones of its task have begun, or by a reset; rows still held for it
then return to the queue. Until then calls for it are answered even if its shards were committed: a slow rank of a fast
leader must see the rows of this step, not those of another. A slow rank has had a session since before the commit. The
session of a trainer that starts again is younger, and is refused a shard that was committed, unless it asks for it
`again`: by mistake it would train on the rows twice.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from dataplane_server.core.calls.answers import Grant, Waiting
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import ClaimCall, ClaimShard, unit_of
from dataplane_server.core.calls.values import Epochs, Int64Array, Slots
from dataplane_server.core.rows.bookkeeping import DELAY_BYTES
from dataplane_server.core.rows.group_table import with_groups
from dataplane_server.core.rows.row_table import RowTable
from dataplane_server.core.state.claim_table import ClaimTable
from dataplane_server.core.state.partition import Partition
from dataplane_server.core.state.state import State
from dataplane_server.core.tasks.task import Task
from dataplane_server.core.tasks.task_states import DELAYED
from dataplane_server.core.verbs.balance import split_by_weight, split_in_order
from dataplane_server.core.verbs.claim_queue import ClaimQueue
from dataplane_server.core.verbs.claims import Claims
from dataplane_server.core.verbs.exchanges import move_home
from dataplane_server.core.verbs.locality import nodes_of_units

MAX_DP_WORLD = 65_536

_OF_ONE_CALL = ("request_id", "dp_rank", "session_id", "node", "again")
_Key = tuple[str, str]
_NO_ROWS: Slots = np.zeros(0, np.int64)
_ROW_BYTES = 200
"""Of a row of a step."""


@dataclass(slots=True, eq=False)
class _Shard:
    """Rows of one rank. grant: the last one for them; None before the first."""

    slots: Slots
    epochs: Epochs
    grant: Grant | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """wanted: by the first call; all others must want the same. nodes: on which each rank has called last, for this or
    another step, 0 for none; shared with the steps before it that have as many ranks.
    """

    wanted: ClaimShard
    shards: list[_Shard]
    nodes: list[int]

    def slots(self, partition: Partition) -> Slots:
        """Its rows that still exist."""
        left = [partition.rows.left(shard.slots, shard.epochs) for shard in self.shards]
        return np.concatenate([_NO_ROWS, *left])

    @property
    def kept_bytes(self) -> int:
        """Memory, also of ids and arrays in its grants."""
        return _kept_bytes(len(self.shards), sum(len(shard.slots) for shard in self.shards))


def _kept_bytes(shards: int, rows: int) -> int:
    return 1024 + 1032 * shards + _ROW_BYTES * rows


class MissingRank(NamedTuple):
    """A rank for which steps keep rows that it does not hold. world: how many ranks the last of these steps has."""

    rank: int
    world: int
    steps: list[int]
    slots: Slots


class Steps:
    """Steps that have their rows, by partition, task and number. Steps that wait for rows are in the claim queue."""

    def __init__(self, state: State, queue: ClaimQueue, table: ClaimTable, claims: Claims) -> None:
        self._state = state
        self._queue = queue
        self._table = table
        self._claims = claims
        self._steps: dict[_Key, OrderedDict[int, _Step]] = {}

    # -- claim ---------------------------------------------------------------------------------------------------------

    def claim(self, call: ClaimShard, now: float) -> Grant | Waiting:
        partition = self._check(call)
        if self._find(call) is None:
            waits = self._queue.waiting_step(call) is not None
            slots = None if waits else self._queue.take(partition, call)
            if slots is None:
                return Waiting(self._queue.wait(partition, call, now))
            self.begin(partition, call, slots, [call])
        return self.grant(partition, call, now)

    def begin(self, partition: Partition, call: ClaimShard, slots: Slots, callers: Iterable[ClaimCall]) -> None:
        """Split rows that have just left their view. From now on they are held for the step. callers: of the step."""
        rows = partition.rows
        partition.task(call.task).hold(slots)
        steps = self._steps.setdefault(_key(call), OrderedDict())
        nodes = _nodes_of_ranks(steps, call, callers)
        bounds = _bounds(partition, slots, call)
        shards = []
        for part in _split(rows, slots, bounds, call, nodes):
            chosen = [np.arange(bounds[unit], bounds[unit + 1]) for unit in part]
            mine = slots[np.concatenate([_NO_ROWS, *chosen])]
            shards.append(_Shard(mine, rows.epochs(mine)))
        step = steps[call.step] = _Step(call, shards, nodes)
        rows.keep(step.kept_bytes)
        partition.task(call.task).uncommitted[call.step] = len(shards)
        self._forget_old(partition, _key(call))

    def grant(self, partition: Partition, call: ClaimShard, now: float) -> Grant:
        """Grant a rank its shard of a step that has its rows."""
        step = self._steps[_key(call)][call.step]
        step.nodes[call.dp_rank] = call.node
        shard = step.shards[call.dp_rank]
        grant = self._current_grant(shard, call.session_id)
        if grant is None:
            slots = self._held_rows(partition, call, shard)
            grant = shard.grant = self._claims.grant(partition, call, slots, now)
        return grant

    def _find(self, call: ClaimShard) -> _Step | None:
        steps = self._steps.get(_key(call))
        return None if steps is None else steps.get(call.step)

    def _current_grant(self, shard: _Shard, session_id: str) -> Grant | None:
        """The last grant of a shard, if its claim is open (the session then holds it beside others) or was committed;
        None if its rows have to be granted again.
        """
        if shard.grant is None:
            return None
        claim = self._table.get(shard.grant.claim_id)
        if claim is None:
            committed = self._table.committed_shard(shard.grant.claim_id) is not None
            return replace(shard.grant, committed=True) if committed else None
        if session_id and claim.sessions:  # one that was granted without a session lasts until a call ends it
            self._table.hold(claim, session_id)
        return shard.grant

    def _held_rows(self, partition: Partition, call: ClaimShard, shard: _Shard) -> Slots:
        """Rows of a shard that are held for its step: they still exist and are not dead. Those that the task's policy
        withholds by now leave the step, in a step of whole groups with their groups: no call would get them any more.
        """
        rows, task = partition.rows, partition.task(call.task)
        held: Slots = rows.left(shard.slots, shard.epochs)
        held = held[task.states[held] == DELAYED]
        withheld = task.is_stale(held) | task.is_excluded(held)
        if call.whole_groups:
            withheld = with_groups(rows["group"][held], withheld)
        if withheld.any():
            stay = ~np.isin(shard.slots, held[withheld])
            shard.slots, shard.epochs = shard.slots[stay], shard.epochs[stay]
            rows.keep(-_ROW_BYTES * np.count_nonzero(withheld))
            task.end_delay(held[withheld], math.inf)
            held = held[~withheld]
        return held

    def _check(self, call: ClaimShard) -> Partition:
        where = {"partition_id": call.partition_id, "task": call.task}
        if not 0 <= call.dp_rank < call.dp_world <= MAX_DP_WORLD:
            message = (
                f"a shard needs 0 <= dp_rank < dp_world <= {MAX_DP_WORLD}, "
                f"got dp_rank {call.dp_rank} and dp_world {call.dp_world}"
            )
            raise Refusal(Reason.INVALID_REQUEST, message, **where)
        if call.min_size < call.dp_world:
            message = (
                f"a step of {call.dp_world} ranks needs min_size >= {call.dp_world}, got {call.min_size}: each rank "
                "gets a row; a plain claim takes fewer"
            )
            raise Refusal(Reason.INVALID_REQUEST, message, **where)
        if call.balance == "groups" and not call.whole_groups:
            message = "a split by groups needs whole groups (whole_groups)"
            raise Refusal(Reason.INVALID_REQUEST, message, **where)
        partition = self._queue.check(call)
        if call.session_id:
            self._state.sessions.find(call.session_id)
        step = self._find(call)
        before = step.wanted if step is not None else self._queue.waiting_step(call)
        if before is not None and (differing := _differing(_common(before), _common(call))):
            message = (
                f"partition {call.partition_id!r}, task {call.task!r}: {differing} in the first call of step "
                f"{call.step}, and all ranks of a step must claim alike"
            )
            raise Refusal(Reason.INVALID_REQUEST, message, **where)
        if step is None or not self._is_granted(step.shards[call.dp_rank]):
            self._table.check_room(self._queue.callers)
        if step is None:
            kept_bytes = _kept_bytes(call.dp_world, call.batch_size) + DELAY_BYTES * call.batch_size
            self._state.bookkeeping.check(kept_bytes, urgent=True)
        elif not call.again:
            self._check_not_committed(partition, call, step.shards[call.dp_rank])
        return partition

    def _check_not_committed(self, partition: Partition, call: ClaimShard, shard: _Shard) -> None:
        """Refusal SHARD_COMMITTED to a session that was opened after the commit: a new process, and no slow rank."""
        if shard.grant is None or not self._table.committed_before(shard.grant.claim_id, call.session_id):
            return
        next_step = partition.task(call.task).next_step
        message = (
            f"partition {call.partition_id!r}, task {call.task!r}: step {call.step}, dp_rank {call.dp_rank} of "
            f"{call.dp_world}, was committed before this session was opened; claim step {next_step} (next_step), or "
            "the same rows once more (again=True)"
        )
        more = {"step": call.step, "dp_rank": call.dp_rank, "next_step": next_step}
        raise Refusal(Reason.SHARD_COMMITTED, message, partition_id=call.partition_id, task=call.task, **more)

    def missing(self, partition: Partition, task: Task) -> list[MissingRank]:
        """The ranks that have not claimed their shards of steps that others have begun, or have given them back."""
        found: dict[int, MissingRank] = {}
        for number, step in self._steps.get((partition.partition_id, task.name), {}).items():
            for rank, shard in enumerate(step.shards):
                if not task.uncommitted.get(number) or self._is_granted(shard):
                    continue
                left = partition.rows.left(shard.slots, shard.epochs)
                slots = left[task.states[left] == DELAYED]
                if len(slots):
                    before = found.get(rank, MissingRank(rank, 0, [], _NO_ROWS))
                    all_slots = np.concatenate([before.slots, slots])
                    found[rank] = MissingRank(rank, len(step.shards), [*before.steps, number], all_slots)
        return list(found.values())

    def shard_of(self, partition: Partition, task: str, slot: int) -> tuple[int | None, int | None]:
        """The newest step and the rank whose shard has a row; None twice if there is none."""
        for number, step in reversed(self._steps.get((partition.partition_id, task), {}).items()):
            for rank, shard in enumerate(step.shards):
                if slot in partition.rows.left(shard.slots, shard.epochs):
                    return number, rank
        return None, None

    def _is_granted(self, shard: _Shard) -> bool:
        """Whether the claim of its last grant is open, or was committed."""
        claim_id = "" if shard.grant is None else shard.grant.claim_id
        return self._table.get(claim_id) is not None or self._table.committed_shard(claim_id) is not None

    # -- steps that end ------------------------------------------------------------------------------------------------

    def forget(self, partition: Partition, task: str | None = None, slots: Slots | None = None) -> Slots:
        """Forget the steps of a task (None: of all tasks) that hold any of the rows (None: all steps). Returns the rows
        of these steps that still exist. The caller ends the claims on them.
        """
        gone = [_NO_ROWS]
        for key in [k for k in self._steps if k[0] == partition.partition_id and task in (None, k[1])]:
            for step in list(self._steps[key].values()):
                rows = step.slots(partition)
                if slots is None or np.isin(rows, slots).any():
                    gone.append(rows)
                    self._drop(partition, step)
        return np.concatenate(gone)

    def _forget_old(self, partition: Partition, key: _Key) -> None:
        """Forget the oldest steps above the limit; rows that are held for them return to the queue."""
        for step in list(self._steps[key].values())[: -self._state.limits.remembered_steps]:
            self._drop(partition, step)
            partition.task(key[1]).end_delay(step.slots(partition), math.inf)

    def kept_bytes(self, partition_id: str) -> int:
        """Memory of the steps of a partition."""
        return sum(
            step.kept_bytes for key, steps in self._steps.items() if key[0] == partition_id for step in steps.values()
        )

    def _drop(self, partition: Partition, step: _Step) -> None:
        """Forget a step. The claims of its shards that are still open are like others from now on."""
        partition.rows.keep(-step.kept_bytes)
        for shard in step.shards:
            if shard.grant is not None:
                self._table.leave_step(shard.grant.claim_id)
        task = partition.tasks.get(step.wanted.task)
        if task is not None:
            task.uncommitted.pop(step.wanted.step, None)
        steps = self._steps[_key(step.wanted)]
        del steps[step.wanted.step]
        if not steps:
            del self._steps[_key(step.wanted)]


def _key(call: ClaimShard) -> _Key:
    return call.partition_id, call.task


def _common(call: ClaimShard) -> dict[str, object]:
    """What all calls of a step must have in common."""
    names = [field.name for field in fields(call) if field.name not in _OF_ONE_CALL]
    return {**{name: getattr(call, name) for name in names}, "unit": unit_of(call)}


def _differing(first: dict[str, object], now: dict[str, object]) -> str:
    """In words, such as: batch_size is 6 here and was 4; empty if nothing differs."""
    return ", ".join(f"{name} is {now[name]!r} here and was {was!r}" for name, was in first.items() if now[name] != was)


def _nodes_of_ranks(steps: OrderedDict[int, _Step], call: ClaimShard, callers: Iterable[ClaimCall]) -> list[int]:
    """Where the ranks of a step that begins have called last, for the steps before it or for this one."""
    last = next(reversed(steps.values()), None)
    nodes = last.nodes if last is not None and len(last.nodes) == call.dp_world else [0] * call.dp_world
    for caller in callers:
        if isinstance(caller, ClaimShard):
            nodes[caller.dp_rank] = caller.node
    return nodes


def _bounds(partition: Partition, slots: Slots, call: ClaimShard) -> Int64Array:
    """Where units begin, and where the last one ends. What is split: groups if whole groups are wanted, else rows."""
    if not call.whole_groups:
        return np.arange(len(slots) + 1)
    return np.cumsum([0, *(part.rows for part in partition.groups.parts(slots))])


def _split(rows: RowTable, slots: Slots, bounds: Int64Array, call: ClaimShard, nodes: Sequence[int]) -> list[list[int]]:
    """Which units each rank gets."""
    if call.balance == "groups":
        return split_in_order(len(bounds) - 1, call.dp_world)
    weights = np.diff(bounds)
    if call.balance == "tokens":
        lengths = np.maximum(rows["sequence_length"][slots], 0).astype(np.int64)
        weights = np.add.reduceat(lengths, bounds[:-1])
    if call.balance == "tokens" or call.whole_groups:
        split = split_by_weight(weights, call.dp_world, even=call.balance == "tokens")
    else:
        split = split_in_order(len(weights), call.dp_world)
    return move_home(split, weights, nodes_of_units(rows, slots, bounds[:-1]), nodes) if any(nodes) else split
