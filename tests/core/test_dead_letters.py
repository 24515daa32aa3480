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


def test_a_session_that_dies_fails_what_it_held(twice: Caller) -> None:
    for _ in range(2):
        twice.take("a", session_id=twice.open_session(5.0))
        twice.pass_time(5.0)
    assert dead(twice) == [DeadLetter("s1", 2, "expired")]


def test_a_delivery_that_was_not_used_does_not_bring_a_row_nearer_to_its_death(twice: Caller) -> None:
    for _ in range(5):
        twice.release(twice.take("a", batch_size=2).claim_id)
    assert dead(twice) == []
    assert twice.take("a", batch_size=2).deliveries.tolist() == [1, 1]


def test_a_row_that_is_committed_at_its_last_delivery_lives(twice: Caller) -> None:
    fail(twice, "first")
    assert twice.commit(twice.take("a").claim_id).consumed_rows == 1
    assert dead(twice) == []


def test_without_a_limit_no_row_dies(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    for _ in range(50):
        fail(caller, "again")
    assert dead(caller) == []
    assert caller.take("a").deliveries.tolist() == [51]


def test_a_row_is_dead_for_the_task_that_gave_it_up(twice: Caller) -> None:
    for _ in range(2):
        fail(twice, "poison", task="train")
    assert dead(twice, "score") == []
    assert twice.take("a", task="score").sample_ids == ("s1",)


def test_a_dead_row_does_not_wait_for_a_delay(twice: Caller) -> None:
    fail(twice, "first")
    twice.release(twice.take("a").claim_id, delay_s=60.0, reason="second")
    assert dead(twice) == [DeadLetter("s1", 2, "second")]
    twice.pass_time(60.0)
    assert dead(twice) == [DeadLetter("s1", 2, "second")]


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


def test_a_field_put_to_a_dead_row_does_not_raise_it(twice: Caller) -> None:
    for _ in range(2):
        fail(twice, "poison", batch_size=2)
    twice.put_rows(["s1"], "a", "b")
    assert isinstance(twice.apply(twice.claim_call("a", "b")), Waiting)


def test_a_group_with_a_dead_row_is_not_handed_out_whole(twice: Caller) -> None:
    twice.clear()
    twice.put_group("g", ["g1", "g2"], "a")
    for _ in range(2):
        fail(twice, "poison")
    assert isinstance(twice.apply(twice.claim_call("a", whole_groups=True)), Waiting)


@pytest.mark.parametrize(("partition_id", "task"), [("nowhere", "train"), ("p", "nobody")])
def test_dead_letters_of_what_is_not_there_are_refused(twice: Caller, partition_id: str, task: str) -> None:
    reason = Reason.PARTITION_NOT_FOUND if partition_id == "nowhere" else Reason.TASK_NOT_REGISTERED
    with twice.refuses(reason):
        twice.plane.dead_letters(partition_id, task)


def test_more_deliveries_than_are_counted_cannot_be_asked_for(caller: Caller) -> None:
    caller.register(max_deliveries=65_535)
    with caller.refuses(Reason.INVALID_REQUEST, "max_deliveries must be 0 to 65535, got 65536"):
        caller.register(max_deliveries=65_536)
