"""Dead letters: rows that a task was handed max_deliveries times and never committed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import DeadLetter, Waiting
from dataplane_server.core.calls.refusal import Reason


@pytest.fixture
def twice(new_caller: Callable[..., Caller]) -> Caller:
    """A caller whose partition delivers a row twice; s1 and s2 are there."""
    caller: Caller = new_caller()
    caller.register(tasks=("train", "score"), max_deliveries=2)
    caller.put_rows(["s1", "s2"], "a")
    return caller


def dead(caller: Caller, task: str = "train") -> list[DeadLetter]:
    return caller.plane.dead_letters("p", task)


def fail(caller: Caller, reason: str, **of_claim: object) -> None:
    caller.release(caller.take("a", **of_claim).claim_id, reason=reason)


def test_a_row_is_dead_when_its_last_delivery_failed(twice: Caller) -> None:
    fail(twice, "first", batch_size=2)
    assert dead(twice) == []
    fail(twice, "second", batch_size=2)
    assert dead(twice) == [DeadLetter("s1", 2, "second"), DeadLetter("s2", 2, "second")]
    assert isinstance(twice.apply(twice.claim_call("a")), Waiting)
    assert (twice.task().dead_rows, twice.standing("s1").state) == (2, "dead")


def test_dead_letters_are_told_in_order_of_arrival(twice: Caller) -> None:
    for _ in range(2):
        claims = [twice.take("a").claim_id for _ in range(2)]
        for claim_id in reversed(claims):
            twice.release(claim_id, reason="x")
    assert [letter.sample_id for letter in dead(twice)] == ["s1", "s2"]


def test_a_dead_row_that_is_put_again_under_its_id_lives(twice: Caller) -> None:
    for _ in range(2):
        fail(twice, "poison")
    twice.clear(["s1"])
    twice.put_rows(["s1"], "a")
    assert dead(twice) == []
    assert twice.take("a", batch_size=2).deliveries.tolist() == [1, 1]


@pytest.mark.parametrize(("partition_id", "task"), [("nowhere", "train"), ("p", "nobody")])
def test_dead_letters_of_what_is_not_there_are_refused(twice: Caller, partition_id: str, task: str) -> None:
    reason = Reason.PARTITION_NOT_FOUND if partition_id == "nowhere" else Reason.TASK_NOT_REGISTERED
    with twice.refuses(reason):
        twice.plane.dead_letters(partition_id, task)


def test_more_deliveries_than_are_counted_cannot_be_asked_for(caller: Caller) -> None:
    caller.register(max_deliveries=65_535)
    with caller.refuses(Reason.INVALID_REQUEST, "max_deliveries must be 0 to 65535, got 65536"):
        caller.register(max_deliveries=65_536)
