"""Random calls against the core and its model, call by call and bit for bit; see `modelled_plane`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.drawn_calls import (
    FIELDS,
    LIMITS,
    PARTITIONS,
    TASKS,
    claim_requests,
    columns,
    definitions,
    partition_ids,
    puts,
    sample_ids,
    some_fields,
)
from tests.core.modelled_plane import ModelledPlane

from dataplane_server.core.calls import ClaimSamples, CommitClaim, Definition, PutSamples

pytestmark = pytest.mark.timeout(1800)  # a failure is shrunk before it is shown

NAME = os.environ.get("HYPOTHESIS_PROFILE", "quick")
PROFILE = settings.get_profile(NAME)
RUNS = PROFILE.max_examples * (1 if NAME == "quick" else 2)
"""A run of the machine is cheap; but there is one share of time for all tests together."""

T = TypeVar("T")
choices = st.integers(0, 1000)
rarely = st.integers(0, 5).map(lambda n: n == 5)


def pick(items: Iterable[T], choice: int) -> T:
    items = list(items)
    return items[choice % len(items)]


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = ModelledPlane(LIMITS)
        self.steps = 0
        self.as_predicted = False

    @initialize(per_token=st.sampled_from([frozenset(), frozenset("a"), frozenset("ab")]))
    def register_what_most_calls_need(self, per_token: frozenset[str]) -> None:
        for partition_id in PARTITIONS:
            self.world.register(Definition(partition_id, FIELDS, TASKS, 3, per_token))

    @invariant()
    def everything_is_as_predicted(self) -> None:
        self.as_predicted = False
        self.world.check()
        self.steps += 1
        self.world.now += self.steps % 3
        self.as_predicted = True

    # -- partitions ----------------------------------------------------------------------------------------------------

    @rule(definition=definitions(), sure=rarely)
    def register(self, definition: Definition, sure: bool) -> None:
        if sure or definition.partition_id not in self.world.partitions:
            self.world.register(definition)

    @rule(partition_id=partition_ids, sure=rarely)
    def drop(self, partition_id: str, sure: bool) -> None:
        if sure:
            self.world.drop(partition_id)

    @rule(partition_id=partition_ids, ids=sample_ids, all_rows=rarely)
    def clear(self, partition_id: str, ids: list[str], all_rows: bool) -> None:
        self.world.clear(partition_id, None if all_rows else ids[:2])

    # -- writes --------------------------------------------------------------------------------------------------------

    @rule(calls=st.lists(puts(), min_size=1, max_size=4), hold=rarely)
    def put(self, calls: list[PutSamples], hold: bool) -> None:
        tickets = [self.world.begin(replace(call, request_id=self.world.request_id())) for call in calls]
        for ticket in tickets[::-1]:
            if ticket is not None and not hold:
                self.world.finish(ticket)

    @precondition(lambda self: self.world.claims or (self.world.claim_ids and self.steps % 8 == 0))
    @rule(data=st.data(), names=some_fields, choice=choices, hold=st.booleans())
    def commit(self, data: st.DataObject, names: list[str], choice: int, hold: bool) -> None:
        claim_id = pick([*self.world.claims] * 8 + self.world.claim_ids, choice)
        if not names:
            self.world.commit_alone(claim_id)
            return
        claim = self.world.claims.get(claim_id)
        specs = data.draw(columns(len(claim.rows) if claim else 1, names))
        ticket = self.world.begin(CommitClaim(self.world.request_id(), claim_id, specs))
        if ticket is not None and not hold:
            self.world.finish(ticket)

    @precondition(lambda self: self.world.writes)
    @rule(choice=choices)
    def begin_anew_what_is_under_way(self, choice: int) -> None:
        self.world.begin(pick(self.world.writes.values(), choice).call)

    @precondition(lambda self: self.world.admitted())
    @rule(choice=choices)
    def finish(self, choice: int) -> None:
        self.world.finish(pick(self.world.admitted(), choice))

    @precondition(lambda self: self.world.writes)
    @rule(choice=choices)
    def abort(self, choice: int) -> None:
        self.world.abort(pick(self.world.writes, choice))

    @precondition(lambda self: self.world.queue)
    @rule(choice=choices)
    def give_up_write(self, choice: int) -> None:
        self.world.give_up_write(pick(self.world.queue, choice))

    # -- reads ---------------------------------------------------------------------------------------------------------

    @rule(
        partition_id=partition_ids,
        ids=sample_ids,
        names=some_fields.filter(bool),
        rows=st.sampled_from(["that hold the fields", "that are there", "as drawn"]),
    )
    def begin_read(self, partition_id: str, ids: list[str], names: list[str], rows: str) -> None:
        partition = self.world.partitions.get(partition_id)
        if partition is not None and rows != "as drawn":
            needed = set(names) if rows == "that hold the fields" else set()
            ids = [i for i, row in partition.rows.items() if needed <= row.values.keys()][::-1] or ids
        self.world.begin_read(partition_id, ids, names)

    @precondition(lambda self: self.world.reads)
    @rule(choice=choices)
    def end_read(self, choice: int) -> None:
        self.world.end_read(pick(self.world.reads, choice))

    # -- claims --------------------------------------------------------------------------------------------------------

    @rule(requests=st.lists(claim_requests(), min_size=1, max_size=3))
    def claim(self, requests: list[ClaimSamples]) -> None:
        for request in requests:
            self.world.claim(replace(request, request_id=self.world.request_id()))

    @precondition(lambda self: self.world.waiting)
    @rule(choice=choices)
    def claim_anew_what_waits(self, choice: int) -> None:
        self.world.claim(pick(self.world.waiting.values(), choice))

    @precondition(lambda self: self.world.waiting)
    @rule(choice=choices, gone=st.booleans())
    def end_a_wait(self, choice: int, gone: bool) -> None:
        ticket = pick(self.world.waiting, choice)
        if gone:
            self.world.abandon_claim(ticket)
        else:
            self.world.give_up_claim(ticket)

    @precondition(lambda self: self.world.claims or (self.world.claim_ids and self.steps % 8 == 0))
    @rule(choice=choices)
    def release(self, choice: int) -> None:
        self.world.release(pick([*self.world.claims] * 8 + self.world.claim_ids, choice))

    # -- the whole -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.remembered())
    @rule(choice=choices)
    def repeat(self, choice: int) -> None:
        self.world.repeat(pick(self.world.remembered(), choice))

    @precondition(lambda self: self.steps > 30 and not self.world.draining)
    @rule(sure=rarely)
    def drain(self, sure: bool) -> None:
        if sure:
            self.world.drain()

    def teardown(self) -> None:
        """Read what is there and let go of everything: not one byte stays in use."""
        if not self.as_predicted:
            return  # the failure that ended the run is the one to show
        world = self.world
        for partition_id, partition in world.partitions.items():
            for name in partition.definition.fields:
                if ids := [row.sample_id for row in partition.rows.values() if name in row.values]:
                    world.begin_read(partition_id, ids, [name])
        world.check()
        for partition_id in world.partitions:
            world.clear(partition_id, None)
        for ticket in list(world.reads):
            world.end_read(ticket)
        for ticket in list(world.writes):
            world.abort(ticket)
        world.check()
        assert world.plane.totals().memory_used_bytes == 0
        world.plane.check_replay()


TestCoreAgainstModel = Machine.TestCase
TestCoreAgainstModel.settings = settings(PROFILE, max_examples=RUNS)
