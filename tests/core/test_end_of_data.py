"""A closed partition: it takes no new rows, and claims that can never be served end at once."""

from __future__ import annotations

from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Failed, Waiting
from dataplane_server.core.calls.refusal import Reason


def waits(caller: Caller, *fields: str, batch_size: int, **more: object) -> int:
    waiting = caller.apply(caller.claim_call(*fields, batch_size=batch_size, **more))  # type: ignore[arg-type]
    assert isinstance(waiting, Waiting)
    return waiting.ticket


# -- claims that wait --------------------------------------------------------------------------------------------------


def test_claims_for_which_too_few_rows_are_left_end_when_their_partition_closes(caller: Caller) -> None:
    caller.put_rows(["s1", "s2", "s3"], "a")
    caller.take("a", consume=True)
    too_many = [waits(caller, "a", batch_size=3), waits(caller, "b", batch_size=4, min_size=3)]
    stays = waits(caller, "b", batch_size=2)
    of_other_task = waits(caller, "b", batch_size=3, task="score")
    step = caller.apply(caller.shard_call("b", batch_size=4)), caller.apply(caller.shard_call("b", dp_rank=1))
    ranks = [one.ticket for one in step if isinstance(one, Waiting)]
    assert caller.close() == 4
    first, second, *others = caller.plane.take_effects()
    assert [one.ticket for one in (first, second, *others)] == [*too_many, *ranks]
    assert isinstance(first, Failed)
    assert first.refusal.reason is Reason.END_OF_DATA
    assert "min_size=2" in first.refusal.message
    assert first.refusal.metadata == {"partition_id": "p", "task": "train", "left": "2", "cause": "end_of_data"}
    caller.put_rows(["s2", "s3"], "b")
    assert [effect.ticket for effect in caller.plane.take_effects()] == [stays]
    caller.put_rows(["s1"], "b")
    assert [effect.ticket for effect in caller.plane.take_effects()] == [of_other_task]


def test_a_claim_waits_for_rows_that_others_hold_or_delay(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    held = caller.take("a").claim_id
    caller.close()
    ticket = waits(caller, "a", batch_size=1)
    caller.release(held, delay_s=5.0)
    assert caller.plane.take_effects() == []
    (granted,) = caller.pass_time(6.0)
    assert granted.ticket == ticket
