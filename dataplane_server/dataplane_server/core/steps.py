"""Steps: one batch for all ranks of a data-parallel job, split once and the same for whoever asks, however often.

The first call for a step of a task takes the rows of all ranks out of line and splits them into shards. From then on
the rows belong to the step: a call for a rank is handed its shard, as one claim that all callers of the rank hold
together (its tensor-, context- and pipeline-parallel ranks). When nobody holds a shard any more and it was not
committed, its rows do not go back into line: they are held for the step, and the next caller of the rank gets them
under a new claim. So a job that lost a rank, or all of them, repeats the step with the same rows.

A step ends by being forgotten: when so many later ones of its task have begun, or by a reset. What is still held for it
goes back into line then. Until then calls for it are answered even when its shards were committed: a slow rank of a
fast leader must see the rows of this step, not those of another.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np

from dataplane_server.core.balance import split_by_weight, split_in_order
from dataplane_server.core.calls import Grant, Granted, ShardRequest, Waiting
from dataplane_server.core.claim_line import ClaimLine
from dataplane_server.core.claim_table import ClaimTable
from dataplane_server.core.claims import ClaimDesk
from dataplane_server.core.partition import Partition
from dataplane_server.core.refusal import Reason, Refusal
from dataplane_server.core.rows import Generations, Slots
from dataplane_server.core.state import State, draining, superseded
from dataplane_server.core.task_states import DELAYED

MAX_DP_WORLD = 65_536

_Key = tuple[str, str]


@dataclass(slots=True, eq=False)
class _Shard:
    """Rows of one rank. grant: the last that was handed out for them; None before the first."""

    slots: Slots
    stamps: Generations
    grant: Grant | None = None


@dataclass(slots=True, eq=False)
class _Step:
    """wish: of the first caller; all others ask for the same. shards: None until the rows are there."""

    wish: ShardRequest
    shards: list[_Shard] | None = None
    callers: dict[int, ShardRequest] = field(default_factory=dict)  # that wait, by ticket
    line_ticket: int = 0

    def slots(self, partition: Partition) -> Slots:
        """Its rows that are still there."""
        left = [partition.rows.left(shard.slots, shard.stamps) for shard in self.shards or ()]
        return np.concatenate([_NO_ROWS, *left])


_NO_ROWS: Slots = np.zeros(0, np.int64)


class StepDesk:
    """Steps of all tasks, by partition, task and number."""

    def __init__(self, state: State, line: ClaimLine, claims: ClaimTable, desk: ClaimDesk) -> None:
        self._state = state
        self._line = line
        self._claims = claims
        self._desk = desk
        self._steps: dict[_Key, OrderedDict[int, _Step]] = {}
        self._step_of: dict[int, _Step] = {}  # ticket of a caller that waits -> what it waits for
        self._ticket_of: dict[str, int] = {}  # its request_id -> ticket

    # -- claim ---------------------------------------------------------------------------------------------------------

    def claim(self, request: ShardRequest, now: float) -> Grant | Waiting:
        """The shard of a rank, or a wait for the rows of its step (an effect `Granted` or `Failed` follows)."""
        answer = self._state.answers.recall(request.request_id, "claim", now)
        if isinstance(answer, Grant):
            return answer
        if answer is not None:
            raise superseded()
        partition, mask = self._check(request)
        self._supersede(request.request_id, now)
        step = self._find(request)
        if step is not None and step.shards is not None:
            return self._hand(partition, step.shards, request, now)
        self._check_may_wait()
        if step is None:
            step = _Step(request)
            slots = self._line.take(partition, request, mask)
            if slots is None:
                step.line_ticket = self._line.wait(partition, _StepAsker(self, step), mask, now)
            self._steps.setdefault(_key(request), OrderedDict())[request.step] = step
            if slots is not None:
                return self._hand(partition, self._assign(partition, step, slots, now), request, now)
        return self._wait(partition, step, request, now)

    def _find(self, request: ShardRequest) -> _Step | None:
        steps = self._steps.get(_key(request))
        return None if steps is None else steps.get(request.step)

    def _wait(self, partition: Partition, step: _Step, request: ShardRequest, now: float) -> Waiting:
        ticket = self._state.ticket()
        step.callers[ticket] = request
        self._step_of[ticket] = step
        self._ticket_of[request.request_id] = ticket
        partition.task(request.task).observe(now)
        return Waiting(ticket)

    def receive(self, step: _Step, partition: Partition, slots: Slots, now: float) -> None:
        """The rows of a step have come: answer all who wait."""
        step.line_ticket = 0
        shards = self._assign(partition, step, slots, now)
        callers, step.callers = step.callers, {}
        for ticket, request in callers.items():
            self._forget_caller(ticket, request)
            grant = self._hand(partition, shards, request, now)
            self._state.effects.append(Granted(ticket, grant))

    def fail(self, step: _Step, refusal: Refusal) -> None:
        """The rows of a step will not come: tell all who wait, and forget the step."""
        step.line_ticket = 0
        callers, step.callers = step.callers, {}
        for ticket, request in callers.items():
            self._forget_caller(ticket, request)
            self._state.fail(ticket, refusal)
        self._drop(step)

    def _assign(self, partition: Partition, step: _Step, slots: Slots, now: float) -> list[_Shard]:
        """Split rows that have just left their view. They are held for the step from now on."""
        wish, rows = step.wish, partition.rows
        partition.task(wish.task).hold(slots)
        units = _units(partition, slots, wish)
        lengths = np.maximum(rows["sequence_length"][slots], 0).astype(np.int64)
        weights = np.array([int(lengths[begin:end].sum()) for begin, end in units], np.int64)
        by_tokens = wish.balance == "tokens"
        parts = split_by_weight(weights, wish.dp_world) if by_tokens else split_in_order(len(units), wish.dp_world)
        self._steps[_key(wish)].move_to_end(wish.step)  # the order of steps is that in which they got their rows
        step.shards = []
        for part in parts:
            chosen = [np.arange(*units[unit]) for unit in part]
            mine = slots[np.concatenate([_NO_ROWS, *chosen])]
            step.shards.append(_Shard(mine, rows.stamp(mine)))
        self._forget_old(partition, _key(wish), now)
        return step.shards

    def _hand(self, partition: Partition, shards: list[_Shard], request: ShardRequest, now: float) -> Grant:
        shard = shards[request.dp_rank]
        sessions = [request.session_id] if request.session_id else []
        grant = self._standing_grant(shard, sessions)
        if grant is None:
            slots, groups = self._held(partition, request.task, shard), request.whole_groups
            grant = shard.grant = self._desk.hand_out(
                partition, request.task, slots, sessions, now, whole_groups=groups, of_step=True
            )
        partition.task(request.task).observe(now)
        self._state.answers.remember(request.request_id, "claim", grant, now)
        return grant

    def _standing_grant(self, shard: _Shard, sessions: list[str]) -> Grant | None:
        """What callers of the shard were handed last, if that claim is open (it is held by one session more, then) or
        was committed; None when its rows are to be handed out anew.
        """
        if shard.grant is None:
            return None
        claim = self._claims.get(shard.grant.claim_id)
        if claim is None:
            return shard.grant if self._claims.committed_shard(shard.grant.claim_id) is not None else None
        for session_id in sessions:
            self._claims.hold(claim, session_id)
        return shard.grant

    def _held(self, partition: Partition, task: str, shard: _Shard) -> Slots:
        """Rows of a shard that are held for its step: still there, and not dead."""
        slots = partition.rows.left(shard.slots, shard.stamps)
        held: Slots = slots[partition.task(task).states[slots] == DELAYED]
        return held

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check(self, request: ShardRequest) -> tuple[Partition, int]:
        if not 0 <= request.dp_rank < request.dp_world <= MAX_DP_WORLD:
            message = (
                f"a shard needs 0 <= dp_rank < dp_world <= {MAX_DP_WORLD}, "
                f"got dp_rank {request.dp_rank} and dp_world {request.dp_world}"
            )
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=request.partition_id, task=request.task)
        if request.min_size < request.dp_world:
            message = f"a step of {request.dp_world} ranks needs at least so many rows, got min_size {request.min_size}"
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=request.partition_id, task=request.task)
        partition, mask = self._line.check(request)
        if request.session_id:
            self._state.sessions.find(request.session_id)
        step = self._find(request)
        if step is not None and _shared(step.wish) != _shared(request):
            message = (
                f"partition {request.partition_id!r}, task {request.task!r}: step {request.step} was asked for with "
                f"{_shared(step.wish)}, and now with {_shared(request)}"
            )
            raise Refusal(Reason.INVALID_REQUEST, message, partition_id=request.partition_id, task=request.task)
        return partition, mask

    def _check_may_wait(self) -> None:
        if self._state.draining:
            raise draining()
        limit = self._state.limits.max_waiting_claims
        if len(self._step_of) >= limit:
            raise Refusal(Reason.LIMIT_REACHED, f"{limit} calls wait for their step", max_waiting_claims=limit)

    # -- callers that go -----------------------------------------------------------------------------------------------

    def give_up(self, ticket: int, now: float) -> Refusal | None:
        """End the wait of a caller whose deadline has come; what to tell it. None for an unknown ticket."""
        step = self.abandon(ticket, now)
        return None if step is None else self._line.timeout(step.wish)

    def abandon(self, ticket: int, now: float) -> _Step | None:
        """Forget a caller that waits, if there is one; with the last one its step is given up."""
        step = self._step_of.get(ticket)
        if step is None:
            return None
        self._forget_caller(ticket, step.callers.pop(ticket))
        if not step.callers:
            self._line.leave(step.line_ticket)
            self._drop(step)
            self._line.serve(self._state.partition(step.wish.partition_id), now)
        return step

    def abandon_request(self, claim_request_id: str, now: float) -> None:
        """Forget the caller that waits with a request, if there is one."""
        self._supersede(claim_request_id, now)

    def session_ended(self, session_id: str, refusal: Refusal, now: float) -> None:
        """End the waits of a session that is gone."""
        tickets = [t for t, step in self._step_of.items() if step.callers[t].session_id == session_id]
        for ticket in tickets:
            self._state.fail(ticket, refusal)
            self.abandon(ticket, now)

    def _supersede(self, request_id: str, now: float) -> None:
        earlier = self._ticket_of.get(request_id)
        if earlier is not None:
            self._state.fail(earlier, superseded())
            self.abandon(earlier, now)

    def _forget_caller(self, ticket: int, request: ShardRequest) -> None:
        del self._step_of[ticket]
        self._ticket_of.pop(request.request_id, None)

    # -- steps that end ------------------------------------------------------------------------------------------------

    def forget(self, partition: Partition, task: str | None = None, slots: Slots | None = None) -> Slots:
        """Forget the steps of a task (None: of all) that hold any of the rows (None: all steps with rows). All rows of
        these steps that are still there; whoever holds shards of them is for the caller to see to.
        """
        gone = [_NO_ROWS]
        for key in [k for k in self._steps if k[0] == partition.partition_id and task in (None, k[1])]:
            for step in [step for step in self._steps[key].values() if step.shards is not None]:
                rows = step.slots(partition)
                if slots is None or np.isin(rows, slots).any():
                    gone.append(rows)
                    self._drop(step)
        return np.concatenate(gone)

    def _forget_old(self, partition: Partition, key: _Key, now: float) -> None:
        """Forget what so many later steps have come after; what is held for it goes back into line."""
        begun = [step for step in self._steps[key].values() if step.shards is not None]
        for step in begun[: -self._state.limits.remembered_steps]:
            self._drop(step)
            for shard in step.shards or ():
                claim = None if shard.grant is None else self._claims.get(shard.grant.claim_id)
                if claim is not None:
                    claim.of_step = False
            partition.task(key[1]).end_delay(step.slots(partition), math.inf)
        if len(begun) > self._state.limits.remembered_steps:
            self._line.serve(partition, now)

    def _drop(self, step: _Step) -> None:
        steps = self._steps[_key(step.wish)]
        del steps[step.wish.step]
        if not steps:
            del self._steps[_key(step.wish)]


class _StepAsker:
    """A step that waits for its rows; it does so for all its callers, whoever of them goes."""

    session_id = ""

    def __init__(self, desk: StepDesk, step: _Step) -> None:
        self._desk = desk
        self._step = step

    @property
    def wish(self) -> ShardRequest:
        return self._step.wish

    @property
    def callers(self) -> int:
        return len(self._step.callers)

    def receive(self, partition: Partition, slots: Slots, now: float) -> None:
        self._desk.receive(self._step, partition, slots, now)

    def fail(self, refusal: Refusal) -> None:
        self._desk.fail(self._step, refusal)


def _key(request: ShardRequest) -> _Key:
    return request.partition_id, request.task


def _shared(request: ShardRequest) -> dict[str, object]:
    """What all callers of a step must ask for alike."""
    return {
        name: getattr(request, name)
        for name in ("dp_world", "required_fields", "batch_size", "min_size", "balance", "max_tokens", "whole_groups")
    }


def _units(partition: Partition, slots: Slots, wish: ShardRequest) -> list[tuple[int, int]]:
    """What is split, as ranges of rows: groups where they are wanted whole, else rows."""
    if not wish.whole_groups:
        return [(row, row + 1) for row in range(len(slots))]
    return list(pairwise(accumulate((part.rows for part in partition.groups.parts(slots)), initial=0)))
