"""Random calls of many clients against the core and its model: clients die, come late, repeat themselves, overtake one
another, and the same few rows, groups and steps come again and again. See `checked_plane` for what is compared.

`python -m pytest` runs it for half a minute; HYPOTHESIS_PROFILE=nightly for many minutes, with other calls every time.
The summary of the run tells how many steps were taken (not that of distributed runs).
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.claim_machine.checked_plane import CheckedPlane
from tests.core.claim_machine.drawn import (
    FIELDS,
    GROUPS,
    LIMITS,
    PARTITIONS,
    TASKS,
    TICK,
    choices,
    claim_id,
    claims,
    columns,
    definitions,
    field_sets,
    partition_ids,
    pick,
    plain_puts,
    rarely,
    recent,
    reservation_id,
    sample_ids,
    seldom,
    session_id,
    shards,
    sizes,
    tasks,
)
from tests.core.claim_machine.things import Row

from dataplane_server.core.calls import (
    AbandonRequest,
    AbortGroup,
    AdoptClaim,
    ClaimSamples,
    ClaimShard,
    ClearSamples,
    CommitClaim,
    Definition,
    DropPartition,
    FinishGroup,
    PutSamples,
    RegisterPartition,
    ReleaseClaim,
    RepeatableCall,
    Reservation,
    ReserveGroup,
    ResetTask,
)

pytestmark = pytest.mark.timeout(7200)  # a failure is shrunk before it is shown

NAME = os.environ.get("HYPOTHESIS_PROFILE", "quick")
PROFILE = settings.get_profile(NAME)
RUNS = PROFILE.max_examples * (2 if NAME == "quick" else 1)
"""Runs of the machine; nightly they have some 70 steps each."""


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = CheckedPlane(LIMITS)
        self.later: list[RepeatableCall[Any]] = []
        self.seen: list[Row] = []
        self.drawn = 0
        self.as_predicted = False

    @initialize(most=st.integers(0, 2))
    def begin(self, most: int) -> None:
        for partition_id in PARTITIONS:
            self.go(RegisterPartition("", Definition(partition_id, FIELDS, TASKS, 3, max_deliveries=most)))
        for _ in range(2):
            self.world.open_session("", 6 + self.tick())

    @invariant()
    def everything_is_as_predicted(self) -> None:
        self.as_predicted = False
        self.world.check()
        self.as_predicted = True
        for partition in self.world.model.partitions.values():
            self.seen += [row for row in partition.rows if row not in self.seen[-40:]]

    def tick(self) -> float:
        """A moment of its own."""
        self.drawn += 1
        return self.drawn * TICK

    def go(self, request: RepeatableCall[Any], late: bool = False) -> object:
        """Send a request, or keep it to be sent later."""
        self.drawn += 1
        request = replace(request, request_id=f"r{self.drawn}")  # type: ignore[type-var]  # all are dataclasses
        if late:
            self.later.append(request)
            return None
        return self.world.send(request)

    def go_with_bytes(self, request: PutSamples | CommitClaim, late: bool, hold: bool) -> None:
        """hold: the last byte comes later."""
        outcome = self.go(request, late)
        if isinstance(outcome, Reservation) and not hold:
            self.world.finish(self.world.model.writes[-1])

    # -- requests that come late, or again -----------------------------------------------------------------------------

    @precondition(lambda self: self.later)
    @rule(choice=choices)
    def send_late(self, choice: int) -> None:
        request = pick(self.later, choice)
        self.later.remove(request)
        self.world.send(request)

    @precondition(lambda self: self.world.sent)
    @rule(choice=choices)
    def send_again(self, choice: int) -> None:
        request = recent(self.world.sent, choice, 40)
        assert request is not None
        self.world.send(request)

    # -- sessions and time ---------------------------------------------------------------------------------------------

    @rule(grace=st.sampled_from([2, 6, 6, 20]), resumed=choices, sure=seldom)
    def open_session(self, grace: int, resumed: int, sure: bool) -> None:
        known = self.world.history.sessions
        if sure and known:
            self.world.open_session(recent(known, resumed, 5) or "", grace)
        elif len(self.world.model.sessions) < 4:
            self.world.open_session("", grace + self.tick())

    @rule(choice=choices)
    def heartbeat(self, choice: int) -> None:
        self.world.heartbeat(session_id(self.world, choice))

    @rule(choice=choices, sure=seldom)
    def close_session(self, choice: int, sure: bool) -> None:
        if sure:
            self.world.close_session(session_id(self.world, choice))

    @rule(seconds=st.sampled_from([0, 0, 1, 1, 2, 3]), noticed=st.sampled_from([True, True, True, False]))
    def time_passes(self, seconds: int, noticed: bool) -> None:
        self.world.pass_time(seconds)
        if noticed:
            self.world.advance()

    @rule(sure=rarely, seconds=st.sampled_from([25, 1000, 100_000]))
    def a_long_time_passes(self, sure: bool, seconds: int) -> None:
        if sure:
            self.world.pass_time(seconds)
            self.world.advance()

    @rule(stalled_s=st.sampled_from([5, 70, 2000]), sure=seldom)
    def the_server_stands_still(self, stalled_s: int, sure: bool) -> None:
        if sure:
            self.world.pass_time(stalled_s)
            self.world.advance(stalled_s)

    @precondition(lambda self: self.world.plane.next_due is not None)
    @rule()
    def the_next_moment_comes(self) -> None:
        due = self.world.plane.next_due
        assert due is not None
        self.world.pass_time(max(0.0, due - self.world.now))
        self.world.advance()

    # -- partitions ----------------------------------------------------------------------------------------------------

    @rule(definition=definitions(), sure=rarely, late=seldom)
    def register(self, definition: Definition, sure: bool, late: bool) -> None:
        if sure or definition.partition_id not in self.world.model.partitions:
            self.go(RegisterPartition("", definition), late)

    @rule(partition_id=partition_ids, sure=rarely, late=seldom)
    def drop(self, partition_id: str, sure: bool, late: bool) -> None:
        if sure:
            self.go(DropPartition("", partition_id), late)

    @rule(partition_id=partition_ids, ids=sample_ids, everything=rarely, late=seldom)
    def clear(self, partition_id: str, ids: tuple[str, ...], everything: bool, late: bool) -> None:
        self.go(ClearSamples("", partition_id, None if everything else ids), late)

    @rule(choice=choices, late=seldom)
    def clear_rows_once_seen(self, choice: int, late: bool) -> None:
        if rows := self.some_seen(choice):
            generations = np.array([row.generation for row in rows], np.int64)
            self.go(ClearSamples("", rows[0].partition_id, tuple(row.sample_id for row in rows), generations), late)

    @rule(choice=choices, names=field_sets.filter(bool))
    def read_rows_once_seen(self, choice: int, names: tuple[str, ...]) -> None:
        rows = self.some_seen(choice)
        if rows and rows[0].partition_id in self.world.model.partitions:
            self.world.read(self.world.model.partitions[rows[0].partition_id], rows, list(names))

    def some_seen(self, choice: int) -> list[Row]:
        """Up to three rows of one partition that were there when somebody looked, of different ids."""
        last = recent(self.seen, choice, 15)
        if last is None:
            return []
        others = [row for row in self.seen[-15:] if row.partition_id == last.partition_id]
        found = {row.sample_id: row for row in [*others[choice % 3 :: 4], last]}
        return list(found.values())[-3:]

    # -- puts ----------------------------------------------------------------------------------------------------------

    @rule(put=plain_puts(), late=seldom, hold=seldom)
    def put(self, put: PutSamples, late: bool, hold: bool) -> None:
        self.go_with_bytes(put, late, hold)

    @rule(choice=choices, late=seldom, hold=seldom)
    def put_to_rows_once_seen(self, choice: int, late: bool, hold: bool) -> None:
        if rows := self.some_seen(choice):
            ids, births = [row.sample_id for row in rows], [row.generation for row in rows]
            values = columns(FIELDS[choice % 2 :], [choice % 5] * len(rows))
            put = PutSamples("", rows[0].partition_id, ids, values, generations=np.array(births, np.int64))
            self.go_with_bytes(put, late, hold)

    @rule(choice=choices, ids=sample_ids, late=seldom, hold=seldom)
    def write_back(self, choice: int, ids: tuple[str, ...], late: bool, hold: bool) -> None:
        claim = recent(self.world.model.claims, choice)
        if claim is not None:
            own = [row.sample_id for row in claim.rows]
            named = ids if choice % 9 == 0 or not own else own[choice % 2 :] or own
            put = PutSamples("", claim.partition_id, named, columns("b", [1] * len(named)), claim_id=claim.claim_id)
            self.go_with_bytes(put, late, hold)

    @rule(choice=choices, late=seldom, hold=seldom)
    def finish_or_abort_a_write(self, choice: int, late: bool, hold: bool) -> None:
        del late, hold
        if writes := self.world.model.writes:
            write = pick(writes, choice)
            if choice % 7:
                self.world.finish(write)
            else:
                self.world.abort_write(write)

    # -- groups --------------------------------------------------------------------------------------------------------

    @rule(
        partition_id=partition_ids,
        group_id=st.sampled_from(GROUPS),
        ids=sample_ids,
        choice=choices,
        version=st.sampled_from([None, 1, 2]),
        late=seldom,
    )
    def reserve(
        self, partition_id: str, group_id: str, ids: tuple[str, ...], choice: int, version: int | None, late: bool
    ) -> None:
        holder = session_id(self.world, choice)
        self.go(ReserveGroup("", partition_id, group_id, ids, holder, version), late)

    @rule(choice=choices, names=st.sampled_from(["a", "ab", "b"]), size=sizes, late=seldom, hold=seldom)
    def put_group(self, choice: int, names: str, size: int, late: bool, hold: bool) -> None:
        group = recent(self.world.model.groups, choice, 5)
        if group is not None:
            own = [row.sample_id for row in group.rows] or ["s0"]
            ids = own if choice % 3 else own[:1]
            values = columns(names, [size] * len(ids))
            put = PutSamples("", group.partition_id, ids, values, reservation_id=group.reservation_id)
            self.go_with_bytes(put, late, hold)

    @rule(choice=choices, name=st.sampled_from("ab"), size=sizes, late=seldom, hold=seldom)
    def put_shared(self, choice: int, name: str, size: int, late: bool, hold: bool) -> None:
        group = recent(self.world.model.groups, choice, 5)
        if group is not None:
            values = columns(name, [size])
            put = PutSamples("", group.partition_id, (), values, reservation_id=group.reservation_id, shared=True)
            self.go_with_bytes(put, late, hold)

    @rule(choice=choices, version=st.sampled_from([None, 3]), late=seldom)
    def finish_group(self, choice: int, version: int | None, late: bool) -> None:
        self.go(FinishGroup("", reservation_id(self.world, choice), version), late)

    @rule(choice=choices, late=seldom, sure=seldom)
    def abort_group(self, choice: int, late: bool, sure: bool) -> None:
        if sure:
            self.go(AbortGroup("", reservation_id(self.world, choice), "why not"), late)

    # -- claims --------------------------------------------------------------------------------------------------------

    @rule(wish=claims(), choice=choices, late=seldom)
    def claim(self, wish: ClaimSamples, choice: int, late: bool) -> None:
        self.go(replace(wish, session_id=session_id(self.world, choice)), late)

    @rule(wish=shards(), choice=choices, late=seldom)
    def claim_shard(self, wish: ClaimShard, choice: int, late: bool) -> None:
        self.go(replace(wish, session_id=session_id(self.world, choice)), late)

    @precondition(lambda self: self.world.model.waiting)
    @rule(choice=choices)
    def stop_waiting(self, choice: int) -> None:
        ticket, _ = pick(self.world.model.callers(), choice)
        if choice % 2:
            self.world.give_up_claim(ticket)
        else:
            self.world.abandon_claim(ticket)

    @rule(choice=choices, late=seldom)
    def abandon(self, choice: int, late: bool) -> None:
        kinds = (ClaimSamples, ClaimShard)
        requests = [one for one in [*self.world.sent[-30:], *self.later] if isinstance(one, kinds)]
        request = recent(requests, choice, 10)
        self.go(AbandonRequest("", "never sent" if request is None else request.request_id), late)

    @rule(choice=choices, late=seldom)
    def commit(self, choice: int, late: bool) -> None:
        self.go(CommitClaim("", claim_id(self.world, choice)), late)

    @rule(choice=choices, size=sizes, late=seldom, hold=seldom)
    def commit_with_columns(self, choice: int, size: int, late: bool, hold: bool) -> None:
        claim = recent(self.world.model.open_claims() or self.world.model.claims, choice)
        if claim is not None:
            rows = len(claim.rows) + (choice % 11 == 0)
            self.go_with_bytes(CommitClaim("", claim.claim_id, columns("b", [size] * rows)), late, hold)

    @rule(
        choice=choices,
        delay_s=st.sampled_from([0, 0, 4, 15]),
        reason=st.sampled_from(["", "", "bad", "worse"]),
        late=seldom,
    )
    def release(self, choice: int, delay_s: int, reason: str, late: bool) -> None:
        delay = delay_s + self.tick() if delay_s else 0.0
        self.go(ReleaseClaim("", claim_id(self.world, choice), delay, reason), late)

    @rule(choice=choices, heir=choices, late=seldom)
    def adopt(self, choice: int, heir: int, late: bool) -> None:
        self.go(AdoptClaim("", claim_id(self.world, choice), session_id(self.world, heir)), late)

    @rule(partition_id=partition_ids, task=tasks, ids=sample_ids, everything=rarely, late=seldom)
    def reset(self, partition_id: str, task: str, ids: tuple[str, ...], everything: bool, late: bool) -> None:
        self.go(ResetTask("", partition_id, task, None if everything else ids), late)

    def teardown(self) -> None:
        if self.as_predicted:  # else the failure that ended the run is the one to show
            self.world.plane.check_replay()


TestClaimsAgainstModel = Machine.TestCase
TestClaimsAgainstModel.settings = settings(PROFILE, max_examples=RUNS)
