"""Backpressure: which new rows come at once, which wait, what lets them go on, and which rows make room."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Admitted, Answered, Drawn, Failed, Reservation, Waiting
from dataplane_server.core.calls.filters import Term
from dataplane_server.core.calls.flow import DrawBand
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import AbortWrite, GiveUpWrite, PutSamples
from dataplane_server.core.calls.values import Tags


@pytest.fixture
def caller(caller: Caller) -> Caller:
    caller.register(tasks=("train", "score"))
    return caller


def new(caller: Caller, ids: Sequence[str], size: int = 1) -> PutSamples:
    return caller.put_call(ids, {"a": [size] * len(ids)})


def waits(caller: Caller, *ids: str, size: int = 1) -> int:
    begun = caller.apply(new(caller, ids, size))
    assert isinstance(begun, Waiting)
    return begun.ticket


def admitted(caller: Caller) -> list[int]:
    """The tickets of puts that may go on now; they are finished."""
    effects = caller.plane.take_effects()
    tickets = [effect.ticket for effect in effects if isinstance(effect, Admitted)]
    assert len(tickets) == len(effects), effects
    for ticket in tickets:
        caller.finish(ticket)
    return tickets


def rows(caller: Caller) -> str:
    return "".join(caller.plane.list_samples("p", "", [], (), 100, 0).sample_ids)


# -- budgets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flow", "size"), [({"max_rows": 3}, 1), ({"max_bytes": 30}, 10)])
def test_new_rows_wait_for_room_first_come_first_served(caller: Caller, flow: dict[str, int], size: int) -> None:
    caller.set_flow(**flow)
    caller.put_rows(["x", "y"], "a", size=size)
    large, small = waits(caller, "u", "v", size=size), waits(caller, "w", size=size)
    assert caller.plane.partition_info("p").waiting_calls == 2
    caller.put_rows(["x", "y"], "b", size=size if "max_rows" in flow else 0)
    caller.clear(["x"])
    assert admitted(caller) == [large]
    caller.clear(["y", "u"])
    assert admitted(caller) == [small]
    assert rows(caller) == "vw"


def test_puts_under_way_together_stay_within_the_budget_and_one_that_ends_makes_room(caller: Caller) -> None:
    caller.set_flow(max_rows=3)
    first = caller.apply(new(caller, ["u", "v"]))
    assert isinstance(first, Reservation)
    ticket = waits(caller, "x", "y")
    caller.apply(AbortWrite(first.ticket))
    assert admitted(caller) == [ticket]


def test_nothing_but_new_rows_is_held_up(caller: Caller) -> None:
    reservation_id = caller.reserve("g", ["g1"]).reservation_id
    caller.put_rows(["x", "y"], "a")
    caller.set_flow(max_rows=3, max_bytes=3)
    waits(caller, "z")
    caller.put_rows(["x"], "b", size=5)
    caller.put(caller.put_call(["g1"], {"a": [5]}, reservation_id=reservation_id))
    caller.put(caller.add_call(reservation_id, ["g2"], {"a": [1]}))
    caller.finish_group(reservation_id)
    claim = caller.take("a", batch_size=2)
    caller.write_back(claim.claim_id, ["x"], {"b": [7]})
    caller.commit(claim.claim_id)
    assert caller.plane.partition_info("p").rows == 4


@pytest.mark.parametrize(
    ("flow", "words"),
    [
        ({"max_rows": 2}, ("3 new rows", "max_rows allows 2")),
        ({"max_bytes": 20}, ("30 new bytes", "max_bytes allows 20")),
        ({"band": DrawBand(2.0, 0.0, 5.0)}, ("3 new rows", "the band of draws allows 2")),
    ],
)
def test_what_can_never_come_is_refused_at_once_and_when_a_policy_makes_it_so(
    caller: Caller, flow: dict[str, object], words: tuple[str, ...]
) -> None:
    caller.set_flow(max_rows=4)
    caller.put_rows(["x", "y"], "a")
    ticket = waits(caller, "u", "v", "w", size=10)
    caller.set_flow(**flow)
    (failed,) = caller.plane.take_effects()
    assert isinstance(failed, Failed)
    assert (failed.ticket, failed.refusal.reason) == (ticket, Reason.PUT_TOO_LARGE)
    with caller.refuses(Reason.PUT_TOO_LARGE, "'p'", *words):
        caller.apply(new(caller, ["u", "v", "w"], 10))


def test_a_full_partition_that_rejects_says_what_would_make_room(caller: Caller) -> None:
    caller.set_flow(max_rows=2, when_full="reject")
    caller.put_rows(["x", "y"], "a")
    for task in ("train", "score"):
        caller.take("a", task=task, consume=True)
    words = ("no room for 1 new rows", "2 of max_rows 2", "1 rows are done with by every task: clear them")
    with caller.refuses(Reason.PARTITION_FULL, "'p'", *words):
        caller.apply(new(caller, ["z"]))
    with caller.refuses(Reason.PARTITION_FULL, *words):
        caller.reserve("g", ["z"])


# -- those that wait ---------------------------------------------------------------------------------------------------


def test_a_put_that_waited_in_vain_says_why_and_the_partition_does_before(caller: Caller) -> None:
    caller.set_flow(max_rows=1)
    caller.put_rows(["x"], "a")
    ticket = waits(caller, "y")
    why = caller.plane.partition_info("p").waits_because
    refusal = caller.apply(GiveUpWrite(ticket))
    assert (refusal.reason, refusal.message.startswith(why)) == (Reason.PARTITION_FULL, True)
    assert "1 of max_rows 1 rows are here" in why
    assert caller.plane.partition_info("p").waits_because == ""


# -- eviction ----------------------------------------------------------------------------------------------------------

SCORE = (Term("<", "score", False, (3,)),)


@pytest.mark.parametrize(
    ("flow", "left"),
    [
        ({"max_rows": 5}, "bcdez"),
        ({"max_rows": 5, "evict_first": "oldest_version"}, "abcez"),
        ({"max_rows": 5, "evict_where": SCORE}, "abcdz"),
        ({"max_bytes": 43}, "cdez"),
        ({"max_versions": 2}, "acez"),
        ({"max_versions": 1, "evict_first": "oldest_version"}, "aez"),
    ],
)
def test_rows_make_room_by_the_rule_and_are_counted_and_named(
    caller: Caller, flow: dict[str, object], left: str
) -> None:
    versions, scores = (7, 5, 6, 4, 7), (9, 8, 7, 6, 1)
    tags: list[Tags] = [{"weight_version": v, "score": s} for v, s in zip(versions, scores, strict=True)]
    caller.put(caller.put_call("abcde", {"a": [10] * 5}, tags=tags))
    caller.set_flow(when_full="evict", **flow)
    caller.put_rows(["z"], "a", size=10)
    assert rows(caller) == left
    gone = sorted(set("abcde") - set(left))
    assert caller.plane.partition_info("p").removed_rows["evicted"] == len(gone)
    for sample_id in gone:
        last = caller.plane.sample("p", sample_id).events[-1]
        assert (last.what, last.reason[:7]) == ("cleared", "evicted")


def test_groups_are_evicted_whole_and_what_is_claimed_delayed_or_reserved_stays(caller: Caller) -> None:
    caller.put_rows(["d"], "a")
    caller.release(caller.take("a").claim_id, delay_s=10.0)
    caller.put_group("g", ["g1", "g2"], "a")
    caller.put_group("h", ["h1", "h2"], "a")
    caller.put_group("i", ["i1", "i2"], "a")
    caller.reserve("j", ["j1"])
    assert caller.take("a").sample_ids == ("g1",)
    caller.set_flow(max_rows=8, when_full="evict")
    caller.put_rows(["z"], "a")
    assert rows(caller) == "dg1g2i1i2j1z"


def test_nothing_is_evicted_unless_it_makes_enough_room(caller: Caller) -> None:
    caller.put_rows(["x", "y", "z"], "a")
    claim = caller.take("a", batch_size=2)
    caller.set_flow(max_rows=3, when_full="evict")
    ticket = waits(caller, "u", "v")
    assert rows(caller) == "xyz"
    caller.release(claim.claim_id)
    assert admitted(caller) == [ticket]
    assert rows(caller) == "zuv"


def test_a_value_that_rows_share_makes_room_once(caller: Caller) -> None:
    caller.put_rows(["x"], "a", size=10)
    assert caller.take("a").sample_ids == ("x",)
    reservation_id = caller.reserve("g", ["g1", "g2"]).reservation_id
    caller.share(reservation_id, a=30)
    caller.finish_group(reservation_id)
    caller.set_flow(max_bytes=40, when_full="evict")
    waits(caller, "y", size=40)
    assert rows(caller) == "xg1g2"
    caller.set_flow(max_bytes=45, when_full="evict")
    assert rows(caller) == "xg1g2"
    caller.set_flow(max_bytes=50, when_full="evict")
    assert admitted(caller)
    assert rows(caller) == "xy"


# -- pace --------------------------------------------------------------------------------------------------------------


def test_producers_are_paced_so_that_rows_are_trained_within_their_bound(caller: Caller) -> None:
    caller.set_policy(1, rows_per_version=2)
    caller.set_version(0)
    caller.put_versions(a=0, b=0, c=0, d=0)
    ticket, later = waits(caller, "e", "f"), waits(caller, "g")
    assert "task 'train' has 4 rows before it" in caller.plane.partition_info("p").waits_because
    for version in (1, 2):
        claim = caller.take(batch_size=2, min_size=2)
        caller.commit(claim.claim_id)
        assert admitted(caller) == []
        caller.set_version(version)
        assert admitted(caller) == [[ticket], [later]][version - 1]


def test_rows_that_are_claimed_when_the_version_moves_count_for_the_former_one(caller: Caller) -> None:
    caller.set_policy(0, rows_per_version=2)
    caller.set_version(0)
    caller.put_versions(a=0, b=0)
    claim, ticket = caller.take(batch_size=2), waits(caller, "c", "d")
    caller.set_version(1)
    assert admitted(caller) == []
    caller.commit(claim.claim_id)
    assert admitted(caller) == [ticket]


def test_rows_that_a_waiting_claim_consumes_as_it_is_served_make_room_at_once(caller: Caller) -> None:
    caller.set_policy(0, rows_per_version=2)
    caller.set_version(0)
    caller.put_versions(a=0, b=0)
    claim = caller.take(batch_size=2)
    caller.set_version(1)
    caller.set_policy(0, rows_per_version=2, when_stale="deliver")
    ticket = waits(caller, "c", "d")
    consuming = caller.apply(caller.claim_call(batch_size=2, consume=True))
    assert isinstance(consuming, Waiting)
    caller.release(claim.claim_id)
    effects = caller.plane.take_effects()
    assert [(type(effect).__name__, effect.ticket) for effect in effects] == [
        ("Granted", consuming.ticket),
        ("Admitted", ticket),
    ]


def test_rows_that_became_too_stale_hold_nobody_up(caller: Caller) -> None:
    caller.set_policy(0, rows_per_version=2)
    caller.set_version(0)
    caller.put_versions(a=0, b=0)
    ticket = waits(caller, "c", "d")
    caller.set_version(1)
    assert admitted(caller) == [ticket]


# -- band --------------------------------------------------------------------------------------------------------------


def test_draws_and_puts_wait_for_each_other_within_the_band(caller: Caller) -> None:
    caller.set_flow(band=DrawBand(1.0, 0.0, 2.0))
    draw = caller.apply(caller.draw_call("a", batch_size=2))
    assert isinstance(draw, Waiting)
    caller.put_rows(["x", "y"], "a")
    (answered,) = caller.plane.take_effects()
    assert isinstance(answered, Answered)
    assert isinstance(answered.answer, Drawn)
    assert answered.answer.sample_ids in (("x", "y"), ("y", "x"))
    caller.put_rows(["v", "w"], "a")
    ticket = waits(caller, "z")
    caller.draw("a")
    assert admitted(caller) == [ticket]
    with caller.refuses(Reason.INVALID_REQUEST, "'p'", "3 rows can never stay in the band from 0 to 2"):
        caller.draw("a", batch_size=3)


@pytest.mark.parametrize("seed", range(20))
def test_the_band_holds_over_random_interleavings(caller: Caller, seed: int) -> None:
    dice = random.Random(seed)
    ratio = dice.choice([0.5, 1.0, 3.0])
    band = DrawBand(ratio, -2.0, -2.0 + 2 * (1 + 4 * ratio) + 8)
    caller.set_flow(band=band)
    put = drawn = 0
    under_way: list[int] = []
    for number in range(120):
        if dice.random() < 0.5:
            begun = caller.apply(new(caller, [f"{number}-{n}" for n in range(dice.randint(1, 4))]))
            under_way += [begun.ticket] if isinstance(begun, Reservation) else []
        else:
            answer = caller.apply(caller.draw_call(batch_size=dice.randint(1, 4), min_size=1)) if put else None
            drawn += len(answer.sample_ids) if isinstance(answer, Drawn) else 0
        if under_way and dice.random() < 0.7:
            caller.finish(under_way.pop())
        for effect in caller.plane.take_effects():
            if isinstance(effect, Admitted):
                under_way.append(effect.ticket)
            elif isinstance(effect, Answered) and isinstance(effect.answer, Drawn):
                drawn += len(effect.answer.sample_ids)
        put = caller.plane.partition_info("p").rows_put_total
        assert band.least <= ratio * put - drawn <= band.most
    assert put > 20
    assert drawn > 20


# -- policies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flow", "words"),
    [
        ({"max_rows": 0}, ("max_rows must be 1 to", "got 0")),
        ({"max_bytes": -1}, ("max_bytes",)),
        ({"evict_where": SCORE}, ("evict_where needs when_full 'evict'",)),
        ({"band": DrawBand(0.0, 0.0, 9.0)}, ("samples_per_insert above 0",)),
        ({"band": DrawBand(5e-324, 0.0, 9.0)}, ("at least 1e-09; got (5e-324, 0.0, 9.0)",)),
        ({"band": DrawBand(1.0, -1e308, 1e308)}, ("numbers up to 1e+15",)),
        ({"band": DrawBand(1.0, 0.0, math.nan)}, ("numbers up to 1e+15",)),
        ({"band": DrawBand(1.0, 0.0, float("inf"))}, ("finite",)),
        ({"band": DrawBand(2.0, 0.0, 2.5)}, ("too narrow", "3 wide")),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(
    caller: Caller, flow: dict[str, object], words: tuple[str, ...]
) -> None:
    with caller.refuses(Reason.INVALID_REQUEST, *words):
        caller.set_flow(**flow)


def test_a_pace_needs_a_bound(caller: Caller) -> None:
    with caller.refuses(Reason.INVALID_REQUEST, "rows_per_version", "max_staleness"):
        caller.set_policy(None, rows_per_version=4)
