"""How deliveries end, what becomes of their rows, and why rows are gone."""

from __future__ import annotations

import pytest
from tests.core.caller import Caller
from tests.core.test_ended_claims import ended

from dataplane_server.core.calls.answers import DeadLetter, ReleaseResult, ResetResult
from dataplane_server.core.calls.refusal import Reason


@pytest.mark.parametrize(
    ("how", "counted"),
    [
        ("committed", "committed"),
        ("released", "released"),
        ("session closed", "released"),
        ("session died", "expired"),
        ("task reset", "reset"),
        ("registered anew", "reset"),
        ("cleared", "cleared"),
        ("abandoned", "abandoned"),
    ],
)
def test_every_delivery_is_counted_once_where_it_ended(caller: Caller, how: str, counted: str) -> None:
    ended(caller, how, "s1", "s2")
    train = caller.task()
    assert {way: rows for way, rows in train.ended_deliveries.items() if rows} == {counted: 2}
    assert (train.delivered_rows_total, train.claimed_rows) == (2, 0)


@pytest.mark.parametrize(("how", "times"), [("released", 1), ("abandoned", 1), ("task reset", 1), ("session died", 2)])
def test_only_a_delivery_that_failed_counts(caller: Caller, how: str, times: int) -> None:
    ended(caller, how, "s1", "s2")
    assert caller.take("a", batch_size=2).deliveries.tolist() == [times, times]


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


def test_more_rows_than_are_cleared_in_one_step_are_counted_by_what_became_of_each(caller: Caller) -> None:
    ids = [f"s{i}" for i in range(40_000)]
    caller.put(caller.put_call(ids, tags=[{}] * len(ids)))
    for task in ("train", "score"):
        caller.take(batch_size=30_000, task=task, consume=True)
    caller.clear(ids)
    removed = caller.plane.partition_info("p").removed_rows
    assert {why: rows for why, rows in removed.items() if rows} == {"consumed": 30_000, "cleared": 10_000}


# -- reset -------------------------------------------------------------------------------------------------------------


def test_a_claim_that_holds_one_of_the_rows_is_fenced_as_a_whole(caller: Caller) -> None:
    caller.put_rows(["s1", "s2", "s3"], "a")
    touched, other = caller.take("a", batch_size=2), caller.take("a")
    assert caller.reset(["s2"]) == ResetResult(2, 1)
    with caller.refuses(Reason.CLAIM_FENCED, touched.claim_id):
        caller.commit(touched.claim_id)
    assert caller.commit(other.claim_id).consumed_rows == 1
    assert caller.take("a", batch_size=2).sample_ids == ("s1", "s2")


# -- dead letters ------------------------------------------------------------------------------------------------------


def test_a_row_is_dead_when_its_last_delivery_failed(caller: Caller) -> None:
    caller.register(tasks=("train", "score"), max_deliveries=2)
    caller.put_rows(["s1", "s2"], "a")
    caller.release(caller.take("a", batch_size=2).claim_id, reason="first")
    assert caller.plane.dead_letters("p", "train") == []
    caller.release(caller.take("a", batch_size=2).claim_id, reason="second")
    assert caller.plane.dead_letters("p", "train") == [DeadLetter("s1", 2, "second"), DeadLetter("s2", 2, "second")]
    caller.wait(caller.claim_call("a"))
    assert (caller.task().dead_rows, caller.standing("s1").state) == (2, "dead")


# -- releases with a delay ---------------------------------------------------------------------------------------------


@pytest.fixture
def delayed(caller: Caller) -> Caller:
    """A caller with s1 and s2, held back for train until 10 s, and s3."""
    caller.put_rows(["s1", "s2", "s3"], "a")
    assert caller.release(caller.take("a", batch_size=2).claim_id, delay_s=10.0) == ReleaseResult(2)
    return caller


def test_rows_whose_delay_is_over_come_first_in_line_and_in_their_order(delayed: Caller) -> None:
    delayed.pass_time(10.0)
    assert delayed.take("a", batch_size=3).sample_ids == ("s1", "s2", "s3")


def test_once_delayed_rows_are_cleared_a_claim_waits_for_those_that_are_left_or_for_producers(delayed: Caller) -> None:
    delayed.release(delayed.take("a").claim_id, delay_s=60.0)
    delayed.apply(delayed.claim_call("a", batch_size=4))
    told = []
    for cleared in (None, ["s1", "s2"], ["s3"]):
        if cleared:
            delayed.clear(cleared)
        (wait,) = delayed.plane.explain_waits("p", "train", delayed.now).waits
        told.append("".join(finding.text for finding in wait.findings if finding.cause == "delayed_rows"))
    assert ["10 s" in told[0], "60 s" in told[1], told[2]] == [True, True, ""], told


def test_delays_that_were_overtaken_without_end_leave_little_behind(caller: Caller) -> None:
    """White box: how many entries are kept is told nowhere."""
    caller.put_rows(["s1"], "a")
    for _ in range(400):
        caller.release(caller.take("a").claim_id, delay_s=86_400.0)
        caller.reset(["s1"])
    assert len(caller.plane._state.delays._heap) < 200
