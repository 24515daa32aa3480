"""A closed partition: it takes no new rows, and claims that can never be served end at once."""

from __future__ import annotations

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Failed, Granted, Waiting
from dataplane_server.core.calls.refusal import Reason


def waits(caller: Caller, *fields: str, batch_size: int, **more: object) -> int:
    waiting = caller.apply(caller.claim_call(*fields, batch_size=batch_size, **more))  # type: ignore[arg-type]
    assert isinstance(waiting, Waiting)
    return waiting.ticket


def ended(caller: Caller) -> list[int]:
    """The tickets of the claims that were told that the data has ended; nothing else has happened."""
    effects = caller.plane.take_effects()
    for effect in effects:
        assert isinstance(effect, Failed)
        assert effect.refusal.reason is Reason.END_OF_DATA
    return [effect.ticket for effect in effects]


# -- no new rows -------------------------------------------------------------------------------------------------------


def test_a_closed_partition_takes_no_new_row_and_lives_on_otherwise(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    caller.close()
    assert caller.plane.partition_info("p").closed
    with caller.refuses(Reason.PARTITION_CLOSED, "'p'", "'s2'", "1 more"):
        caller.apply(caller.put_call(["s1", "s2", "s3"], {"b": [1, 1, 1]}))
    with caller.refuses(Reason.PARTITION_CLOSED, "'p'", "'g'"):
        caller.reserve("g", ["s2"])
    caller.put_rows(["s1"], "a", "b", size=5)
    claim = caller.take("a", "b")
    caller.write_back(claim.claim_id, ["s1"], {"b": [7]})
    assert caller.read(["s1"], "b").size_bytes == 7
    assert caller.commit(claim.claim_id).consumed_rows == 1


def test_closing_again_changes_nothing_and_a_replacement_opens_again(caller: Caller) -> None:
    caller.close()
    before = caller.state()
    assert caller.close() == 0
    assert caller.state() == before
    caller.register(tasks=("train", "score"), replace=False)
    assert caller.plane.partition_info("p").closed
    caller.register(tasks=("train", "score"))
    assert not caller.plane.partition_info("p").closed
    caller.put_rows(["s1"], "a")


def test_the_answer_counts_also_claims_that_end_for_rows_which_another_one_consumes(caller: Caller) -> None:
    caller.put_rows(["s1", "s2", "s3"], "a")
    first = waits(caller, "a", batch_size=4)
    served = waits(caller, "a", batch_size=2, consume=True)
    second = waits(caller, "b", batch_size=3)
    assert caller.close() == 2
    effects = caller.plane.take_effects()
    assert [(type(one), one.ticket) for one in effects] == [(Failed, first), (Granted, served), (Failed, second)]


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
    assert first.refusal.message == (
        "partition 'p' is closed and 2 rows are left for task 'train', fewer than min_size 3; a claim with min_size=2 "
        "gets rows that are left"
    )
    assert first.refusal.metadata == {"partition_id": "p", "task": "train", "left": "2", "cause": "end_of_data"}
    caller.put_rows(["s2", "s3"], "b")
    assert [effect.ticket for effect in caller.plane.take_effects()] == [stays]
    caller.put_rows(["s1"], "b")
    assert [effect.ticket for effect in caller.plane.take_effects()] == [of_other_task]


@pytest.mark.parametrize("how", ["committed", "cleared", "dead"])
def test_a_claim_that_waits_ends_when_rows_that_it_waits_for_are_gone(caller: Caller, how: str) -> None:
    caller.register(tasks=("train", "score"), max_deliveries=1)
    caller.put_rows(["s1", "s2"], "a")
    held = caller.take("a").claim_id
    ticket = waits(caller, "a", batch_size=2)
    caller.close()
    assert ended(caller) == []
    if how == "committed":
        caller.commit(held)
    elif how == "cleared":
        caller.clear(["s1"])
    else:
        caller.release(held, reason="bad")
    assert ended(caller) == [ticket]


def test_a_claim_waits_for_rows_that_others_hold_or_delay(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    held = caller.take("a").claim_id
    caller.close()
    ticket = waits(caller, "a", batch_size=1)
    caller.release(held, delay_s=5.0)
    assert caller.plane.take_effects() == []
    (granted,) = caller.pass_time(6.0)
    assert granted.ticket == ticket


# -- claims that come --------------------------------------------------------------------------------------------------


def test_a_claim_gets_what_is_left_and_then_learns_of_the_end(caller: Caller) -> None:
    caller.put_rows(["s1", "s2", "s3"], "a")
    caller.close()
    with caller.refuses(Reason.END_OF_DATA, "3 rows are left", "min_size=3"):
        caller.apply(caller.claim_call("a", batch_size=4))
    rest = caller.take("a", batch_size=4, min_size=1)
    assert rest.sample_ids == ("s1", "s2", "s3")
    ticket = waits(caller, "a", batch_size=1)  # the claim may yet be released
    caller.commit(rest.claim_id)
    assert ended(caller) == [ticket]
    with caller.refuses(Reason.END_OF_DATA, "'p' is closed and no row is left for task 'train'"):
        caller.apply(caller.claim_call("a"))


def test_whole_groups_are_counted_as_groups(caller: Caller) -> None:
    caller.put_group("g", ["g1", "g2"], "a")
    caller.put_group("h", ["h1", "h2"], "a")
    caller.put_rows(["s1"], "a")
    caller.close()
    with caller.refuses(Reason.END_OF_DATA, "3 groups are left", "min_size=3"):
        caller.apply(caller.claim_call("a", batch_size=4, whole_groups=True))
    ticket = waits(caller, "b", batch_size=3, whole_groups=True)
    caller.commit(caller.take("a").claim_id)  # g1: its group cannot be claimed whole any more
    assert ended(caller) == [ticket]
    with caller.refuses(Reason.END_OF_DATA, "2 groups are left", "min_size=2", "gets the 1 rows of groups of which"):
        caller.apply(caller.claim_call("a", batch_size=3, whole_groups=True))
    caller.clear(["g1"])
    assert caller.take("a", batch_size=3, whole_groups=True).sample_ids == ("h1", "h2", "s1", "g2")
