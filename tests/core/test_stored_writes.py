"""A write with its values at hand is one call, and does what reserving and finishing do as two."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.core.machine.clients import Clients
from tests.core.replayed import RecordedPlane

from dataplane_server.core.calls.answers import Reservation, Stored
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.requests import Call, CommitClaim, FinishWrite, PutSamples, StoreValues
from dataplane_server.core.plane import DataPlane
from dataplane_server.core.stats.digest import digest

SEEDS = [5, *(pytest.param(seed, marks=pytest.mark.long) for seed in (*range(5), *range(6, 12)))]


def turn(plane: DataPlane, call: Call[Any], now: float) -> tuple[object, list[object]]:
    """What a call is answered, and its effects."""
    try:
        answer: object = plane.apply(call, now)
    except Refusal as refusal:
        answer = refusal
    return answer, list(plane.take_effects())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_goes_on_as_if_each_had_been_made_in_two_steps(seed: int) -> None:
    clients = Clients(random.Random(seed))
    clients.run(600, 10_000, 600)
    turns = [(now, call) for now, call, _ in clients.world.plane.turns]
    of_two, of_one = DataPlane(clients.world.plane.limits), RecordedPlane(clients.world.plane.limits)
    stored = 0
    while turns:
        now, call = turns.pop(0)
        expected, effects = turn(of_two, call, now)
        finish = turns[0][1] if turns else None
        if (
            isinstance(call, (PutSamples, CommitClaim))
            and isinstance(expected, Reservation)
            and isinstance(finish, FinishWrite)
            and finish.ticket == expected.ticket
        ):
            answer, caused = turn(of_one, StoreValues(call, expected.size_bytes), now)
            if isinstance(answer, (Stored, Refusal)):  # the refusal of its end: there was none of its beginning
                runs = expected.runs
                assert turns.pop(0)[0] == now
                expected, more = turn(of_two, finish, now)
                effects += more
            if isinstance(answer, Stored):
                assert answer.runs == runs
                answer, stored = answer.result, stored + 1
        else:
            answer, caused = turn(of_one, call, now)
        assert (digest(answer), digest(caused)) == (digest(expected), digest(effects)), (
            call,
            answer,
            expected,
            caused,
            effects,
        )
    assert stored > 0
    for name in of_one.partitions:
        assert of_one.partition_info(name) == of_two.partition_info(name)
    of_one.check_invariants()
    of_one.check_replay()
