"""Deliveries: how often each row was handed to a task, and how every one of them ended."""

from __future__ import annotations

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Grant
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import AbandonRequest

WAYS = ["committed", "released", "expired", "reset", "cleared", "abandoned", "registered anew"]


def end_one(caller: Caller, how: str) -> None:
    """Hand s1 and s2 to train, and end that."""
    request = caller.claim_call("a", batch_size=2, session_id=caller.open_session(5.0))
    grant = caller.apply(request)
    assert isinstance(grant, Grant)
    claim_id = grant.claim_id
    if how == "committed":
        caller.commit(claim_id)
    elif how == "released":
        caller.release(claim_id)
    elif how == "expired":
        caller.pass_time(5.0)
    elif how == "reset":
        caller.reset()
    elif how == "cleared":
        caller.clear(["s1", "s2"])
    elif how == "abandoned":
        caller.abandon_request(request.request_id)
    else:
        caller.register(tasks=("train", "score"))
    caller.plane.take_effects()


@pytest.mark.parametrize("how", WAYS)
def test_every_delivery_is_counted_once_where_it_ended(caller: Caller, how: str) -> None:
    caller.put_rows(["s1", "s2"], "a")
    end_one(caller, how)
    train = caller.task()
    told = "reset" if how == "registered anew" else how
    assert {way: rows for way, rows in train.ended_deliveries.items() if rows} == {told: 2}
    assert (train.delivered_rows_total, train.claimed_rows) == (2, 0)


@pytest.mark.parametrize(("how", "told"), [("released", 1), ("abandoned", 1), ("reset", 1), ("expired", 2)])
def test_only_a_delivery_that_failed_counts(caller: Caller, how: str, told: int) -> None:
    caller.put_rows(["s1", "s2"], "a")
    end_one(caller, how)
    assert caller.take("a", batch_size=2).deliveries.tolist() == [told, told]


def test_every_row_is_in_one_of_five_states(caller: Caller) -> None:
    caller.register(tasks=("train",), max_deliveries=1)
    caller.put_rows([f"s{i}" for i in range(5)], "a")
    caller.release(caller.take("a").claim_id, reason="poison")
    caller.release(caller.take("a").claim_id, delay_s=5.0)
    caller.commit(caller.take("a").claim_id)
    caller.take("a")
    train = caller.task()
    states = (train.untaken_rows, train.claimed_rows, train.consumed_rows, train.delayed_rows, train.dead_rows)
    assert states == (1, 1, 1, 1, 1)


@pytest.mark.parametrize("consumed_by", [(), ("train",), ("train", "score")])
def test_every_row_that_is_gone_is_counted_by_why(caller: Caller, consumed_by: tuple[str, ...]) -> None:
    caller.put_rows(["s1", "s2"], "a")
    for task in consumed_by:
        caller.commit(caller.take("a", task=task).claim_id)
    caller.abort_group(caller.reserve("g", ["s3"]).reservation_id)
    caller.clear(["s1"])
    info = caller.plane.partition_info("p")
    why = "consumed" if len(consumed_by) == 2 else "cleared"
    assert {key: rows for key, rows in info.removed_rows.items() if rows} == {why: 1, "rolled_back": 1}
    assert info.rows_put_total == info.rows + sum(info.removed_rows.values()) == 3


def test_a_claim_abandoned_before_it_was_sent_is_refused_when_it_comes(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    request = caller.claim_call("a")
    assert caller.abandon_request(request.request_id).released_rows == 0
    with caller.refuses(Reason.SUPERSEDED):
        caller.apply(request)
    assert caller.task().untaken_rows == 1


def test_a_claim_that_consumed_its_rows_is_answered_as_before_though_it_was_abandoned(caller: Caller) -> None:
    caller.put_rows(["s1"], "a")
    request = caller.claim_call("a", consume=True)
    first = caller.apply(request)
    assert caller.abandon_request(request.request_id).released_rows == 0
    assert repr(caller.apply(request)) == repr(first)
    assert caller.task().consumed_rows == 1


def test_a_refused_abandonment_changes_nothing(caller: Caller) -> None:
    request = caller.shard_call("a")
    caller.apply(request)
    with caller.refuses(Reason.INVALID_REQUEST):
        caller.apply(AbandonRequest("", request.request_id))
