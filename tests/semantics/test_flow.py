"""Backpressure: which new rows come at once, which wait, what lets them go on, and which rows make room."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.core.caller import Caller
from tests.forked import FORKS, forking
from tests.integration.command.conftest import Command
from tests.semantics.callers import Caller as AnyCaller
from tests.semantics.callers import Refused
from tests.semantics.conftest import ON_ONE_WAY
from tests.waiting import eventually, soon

from dataplane_client import aio
from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import InvalidArgumentError, OutOfSpaceError, PartitionFullError
from dataplane_client.options import TransportChoice
from dataplane_client.records import flow
from dataplane_client.records.tasks import TaskPolicy
from dataplane_server.core.calls.answers import Admitted, Answered, Failed, Reservation, Waiting
from dataplane_server.core.calls.filters import Term
from dataplane_server.core.calls.flow import DrawBand
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import AbortGroup, AbortWrite, Advance, PutSamples, StoreValues
from dataplane_server.core.calls.values import Tags


def new(caller: Caller, ids: Sequence[str], size: int = 1) -> PutSamples:
    return caller.put_call(ids, {"a": [size] * len(ids)})


def waits(caller: Caller, *ids: str, size: int = 1) -> int:
    return caller.wait(new(caller, ids, size))


def admitted(caller: Caller) -> list[int]:
    """The tickets of puts that may go on now; they are finished."""
    effects = caller.plane.take_effects()
    tickets = [effect.ticket for effect in effects if isinstance(effect, Admitted)]
    assert len(tickets) == len(effects), effects
    for ticket in tickets:
        caller.finish(ticket)
    return tickets


def waiting(client: DataPlaneClient, count: int = 1) -> Callable[[], bool]:
    return lambda: client.partition("p").waiting_calls == count


@pytest.fixture
def full(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p has the rows a and b, and room for no more."""
    client.register_partition("p", ["x"], 0, ["train"])
    client.set_policies("p", flow=flow.FlowPolicy(max_rows=2))
    client.put_samples(["a", "b"], "p", {"x": torch.arange(2)})
    return client


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


@pytest.mark.parametrize("flow", [{"max_rows": 3}, {"max_bytes": 3}])
def test_puts_under_way_together_stay_within_the_budget_and_one_that_ends_makes_room(
    caller: Caller, flow: dict[str, int]
) -> None:
    caller.set_flow(**flow)
    first = caller.begin(new(caller, ["u", "v"]))
    ticket = waits(caller, "x", "y")
    caller.apply(AbortWrite(first.ticket))
    assert admitted(caller) == [ticket]


@pytest.mark.parametrize("at_hand", [False, True], ids=["values to come", "values at hand"])
def test_a_put_that_waits_for_memory_keeps_its_room_under_a_policy_that_is_set_meanwhile(
    caller: Caller, at_hand: bool
) -> None:
    caller.put_rows(["x"], "a")
    caller.put_rows(["large"], "a", size=4000)
    put = new(caller, ["y"], 200)
    ticket = caller.wait(StoreValues(put, 200) if at_hand else put)
    caller.set_flow(max_rows=1)
    caller.clear(["large"])
    assert admitted(caller) == [ticket]
    assert rows(caller) == "xy"


@pytest.mark.parametrize("budget", ["max_rows", "max_bytes"])
def test_a_put_whose_rows_are_cleared_meanwhile_is_refused_if_they_have_no_room(caller: Caller, budget: str) -> None:
    caller.set_flow(**{budget: 2})
    caller.put_rows(["x", "y"], "a")
    begun = caller.begin(new(caller, ["x"]))
    caller.clear(["x"])
    caller.put_rows(["z"], "a")
    caller.fails(Reason.PARTITION_FULL, begun.ticket)
    assert rows(caller) == "yz"


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


def test_rows_that_come_while_a_put_waits_are_not_new(caller: Caller) -> None:
    caller.put_rows(["x", "y"], "a")
    caller.set_flow(max_rows=2)
    first, second = waits(caller, "u", "v"), caller.wait(caller.put_call(["u", "v"], {"b": [1, 1]}))
    caller.clear(["x", "y"])
    assert [admitted(caller), admitted(caller)] == [[first], [second]]


def test_nothing_is_evicted_for_rows_that_have_come_while_their_put_waited(caller: Caller) -> None:
    caller.put_rows(["x", "y"], "a")
    caller.set_flow(max_rows=2, when_full="evict")
    claims = [caller.take("a"), caller.take("a")]
    first, second = waits(caller, "u"), caller.wait(caller.put_call(["u"], {"b": [1]}))
    caller.release(claims[0].claim_id)
    assert [admitted(caller), admitted(caller)] == [[first], [second]]
    caller.release(claims[1].claim_id)
    assert rows(caller) == "yu"


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
    failed = caller.effect(Failed)
    assert (failed.ticket, failed.refusal.reason) == (ticket, Reason.PUT_TOO_LARGE)
    with caller.refuses(Reason.PUT_TOO_LARGE, "'p'", *words):
        caller.apply(new(caller, ["u", "v", "w"], 10))


# -- those that wait ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [None, 0, 1, 300_000], ids=["tags alone", "empty", "small", "large"])
def test_a_put_waits_in_the_data_plane_and_goes_on_when_rows_are_cleared(via: AnyCaller, size: int | None) -> None:
    via.set_flow(max_rows=2)
    via.put("ab", "a")
    waiter = via.begin_put("c", *("b" * (size is not None)), size=size or 0, tags={"n": 1})
    assert (via.waiting(), via.partition().waiting_calls) == (1, 1)
    via.clear("a")
    assert len(waiter.answer()) == 1
    assert (via.listed(), via.waiting()) == ("bc", 0)
    if size is not None:
        assert via.sizes("c", "b") == [size]


def test_a_call_that_waits_in_vain_says_what_would_make_room_as_the_partition_does_while_it_waits(
    via: AnyCaller,
) -> None:
    via.set_flow(max_rows=2)
    via.put("ab", "a")
    via.commit(via.claim())
    via.commit(via.claim(task="score"))
    waiter = via.begin_put("c", "a", timeout_s=5.0)
    why = via.partition().waits_because
    refused = waiter.in_vain()
    assert "'p' has no room for 1 new row" in why
    assert "2 of max_rows 2 rows are here" in why
    assert "1 row is done with by every task: clear them, or register with clear_when_consumed" in why
    assert why in refused.message
    assert refused.reason == "PARTITION_FULL"
    assert (refused.details["partition_id"], refused.details["rows"]) == ("p", "2")
    assert (via.partition().waits_because, via.listed()) == ("", "ab")


def test_a_partition_that_rejects_does_so_at_once_and_changes_nothing(via: AnyCaller) -> None:
    via.set_flow(max_rows=2, when_full="reject")
    via.put("ab", "a")
    words = ("no room for 1 new row", "2 of max_rows 2")
    with via.refuses("PARTITION_FULL", "'p'", *words):
        via.put("c", "a", timeout_s=10_000.0)
    with via.refuses("PARTITION_FULL", *words):
        via.reserve("g", "c", timeout_s=10_000.0)
    via.put("ab", "a")  # rows that exist need no room


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda via: via.set_flow(max_rows=4), ""),
        (lambda via: via.set_flow(max_rows=1), "PUT_TOO_LARGE"),
        (lambda via: via.close(), "PARTITION_CLOSED"),
        (lambda via: via.drop(), "PARTITION_NOT_FOUND"),
    ],
    ids=["raised", "lowered", "closed", "dropped"],
)
def test_calls_that_wait_follow_what_becomes_of_the_partition(
    via: AnyCaller, change: Callable[[AnyCaller], object], reason: str
) -> None:
    via.set_flow(max_rows=2)
    via.put("ab", "a")
    put, group = via.begin_put("cd", "a"), via.begin_reserve("g", "ef")
    assert via.waiting() == 2
    change(via)
    if reason:
        for waiter in (put, group):
            with pytest.raises(Refused) as caught:
                waiter.answer()
            assert caught.value.reason == reason
    else:
        put.answer()
        via.clear()
        assert group.answer().abort() == 2


async def test_a_waiting_group_does_not_block_the_event_loop_and_leaves_nothing_when_it_is_cancelled(
    full: DataPlaneClient, transport: TransportChoice
) -> None:
    async with await aio.connect(full.target, timeout_s=60.0, transport=transport) as async_client:
        first = asyncio.create_task(async_client.reserve_group("p", "g", ["c"]))
        await soon(waiting(full))
        second = asyncio.create_task(async_client.reserve_group("p", "h", ["d"]))
        await soon(waiting(full, 2))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await soon(waiting(full))
        full.clear_samples(None, "p")
        assert await (await second).abort() == 1
        await soon(lambda: full.partition("p").open_groups == 0)
    assert (full.partition("p").rows_put_total, full.partition("p").waiting_calls) == (3, 0)


def _reserve(address: str, transport: TransportChoice, ready: Connection) -> None:
    with connect(address, transport=transport) as client:
        ready.send(None)
        client.reserve_group("p", "g", ["c"])


@FORKS
def test_a_client_that_is_killed_while_its_group_waits_leaves_nothing_behind(
    full: DataPlaneClient, transport: TransportChoice
) -> None:
    context = forking()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_reserve, args=(full.target, transport, sender), daemon=True)
    process.start()
    assert receiver.poll(60)
    eventually(waiting(full))
    process.kill()
    process.join()
    eventually(waiting(full, 0))
    full.clear_samples(None, "p")
    assert (full.partition("p").open_groups, full.partition("p").rows_put_total) == (0, 2)


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


@pytest.mark.parametrize(
    ("flow", "left"),
    [({"max_rows": 4}, "acde"), ({"max_rows": 4, "max_versions": 2}, "cdae"), ({"max_versions": 2}, "bcdae")],
)
def test_a_put_evicts_no_row_that_it_names_unless_that_is_too_old(
    caller: Caller, flow: dict[str, object], left: str
) -> None:
    caller.put_versions(a=1, b=4, c=4, d=4)
    caller.set_flow(when_full="evict", **flow)
    caller.put_rows(["a", "e"], "a")
    assert rows(caller) == left


def test_a_row_that_a_put_evicts_and_creates_again_waits_for_the_pace_as_a_new_one_does(caller: Caller) -> None:
    caller.put_versions(old=0)
    caller.commit(caller.take("a").claim_id)
    caller.set_version(1)
    caller.put_versions(x=1)
    caller.set_policy(0, rows_per_version=2)
    caller.set_flow(max_versions=1, when_full="evict")
    ticket = caller.wait(StoreValues(new(caller, ["old", "y"]), 2))
    assert rows(caller) == "oldx"
    caller.commit(caller.take("a").claim_id)
    assert admitted(caller) == []
    caller.set_version(2)
    assert admitted(caller) == [ticket]
    assert rows(caller) == "oldy"


def test_a_row_that_a_put_evicts_and_creates_again_takes_its_own_place_before_the_task(caller: Caller) -> None:
    caller.put_versions(old=0)
    caller.set_version(1)
    caller.set_policy(1, rows_per_version=1)
    caller.set_flow(max_versions=1, when_full="evict")
    begun = caller.answer(Reservation, StoreValues(new(caller, ["old", "y"]), 2))
    caller.finish(begun.ticket)
    assert rows(caller) == "oldy"
    waits(caller, "z")


def test_a_row_that_a_put_evicts_and_creates_again_keeps_its_room(caller: Caller) -> None:
    caller.put_versions(old=0)
    caller.set_version(1)
    caller.set_flow(max_rows=2, max_versions=1, when_full="evict")
    begun = caller.begin(new(caller, ["old", "y"]))
    ticket = waits(caller, "z")
    caller.finish(begun.ticket)
    assert admitted(caller) == [ticket]
    assert rows(caller) == "yz"


@pytest.mark.parametrize(("size", "left"), [(20, "zgn"), (40, "gn"), (60, "xyzg")], ids=["some", "most", "too many"])
def test_a_value_that_rows_share_makes_room_with_the_last_of_them(caller: Caller, size: int, left: str) -> None:
    for sample_id in "xy":
        caller.put_once({sample_id: b"v" * 20})
    caller.put_rows(["z"], "a", size=20)
    reserved = caller.reserve("g", ["g"])
    caller.put_once({"g": b"w" * 20}, reservation_id=reserved.reservation_id)
    caller.set_flow(max_bytes=60, when_full="evict")
    assert isinstance(caller.apply(new(caller, ["n"], size)), Waiting) == (size == 60)
    assert rows(caller) == left.removesuffix("n")


def test_nothing_is_evicted_for_a_group_that_waited_and_is_there_by_then(caller: Caller) -> None:
    caller.put_rows(["a", "b", "c", "d"], "a")
    claim = caller.take("a", batch_size=4)
    caller.set_flow(max_rows=4, when_full="evict")
    calls = [("g", ["x", "y"]), ("g", ["z", "w"]), ("h", ["y", "z"])]
    tickets = [caller.wait(caller.reserve_call(*call)) for call in calls]
    caller.release(claim.claim_id)
    made, *refused = caller.plane.take_effects()
    assert isinstance(made, Answered)
    assert [one.refusal.reason for one in refused if isinstance(one, Failed)] == [Reason.SAMPLE_EXISTS] * 2
    assert [made.ticket, *(one.ticket for one in refused if isinstance(one, Failed))] == tickets
    assert rows(caller) == "cdxy"


def test_rows_that_have_become_old_enough_make_room_for_a_put_that_waits(caller: Caller) -> None:
    caller.put_rows(["x", "y"], "a")
    caller.set_flow(max_rows=2, when_full="evict", evict_where=(Term(">", "age_s", of_row=True, values=(10,)),))
    ticket = waits(caller, "z")
    while caller.now < 12.0:
        caller.now = caller.plane.next_due or math.inf
        caller.apply(Advance())
    assert admitted(caller) == [ticket]
    assert rows(caller) == "yz"


def test_rows_that_were_rolled_back_do_not_count_for_the_band_as_no_draw_can_have_them(caller: Caller) -> None:
    caller.set_flow(band=DrawBand(1.0, 0.0, 4.0))
    caller.put_rows(["stays"], "a")
    reservation_id = caller.reserve("g", ["a", "b", "c"]).reservation_id
    ticket = waits(caller, "x", "y")
    caller.abort_group(reservation_id)
    assert admitted(caller) == [ticket]


@pytest.mark.parametrize("end", ["aborted", "failed", "retired"])
def test_rows_from_before_the_band_do_not_count_for_it_when_they_are_rolled_back_or_fail(
    caller: Caller, end: str
) -> None:
    reservation_id = caller.reserve("g", ["a", "b", "c"], weight_version=1).reservation_id
    caller.put_rows(["stays"], "a")
    caller.set_flow(band=DrawBand(1.0, 0.0, 4.0))
    if end == "retired":
        caller.set_version(2, retire_below=2)
    else:
        failed = ("a", "b") if end == "failed" else ()
        caller.apply(AbortGroup(caller.request_id(), reservation_id, "", failed))
    caller.put_rows(["x", "y"], "a")
    assert len(caller.draw("a", batch_size=2).sample_ids) == 2


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


def test_rows_that_do_not_fit_the_filter_of_a_task_do_not_count_for_its_pace_and_those_that_lack_a_tag_do(
    caller: Caller,
) -> None:
    caller.set_policy(0, rows_per_version=2, where=SCORE)
    caller.set_version(0)
    tags: list[Tags] = [{"weight_version": 0}, {"weight_version": 0, "score": 9}]
    caller.put(caller.put_call(["a", "b"], {"a": [1, 1]}, tags=tags))
    tickets = waits(caller, "c", "d"), waits(caller, "e")
    assert "task 'train' has 1 row before it" in caller.plane.partition_info("p").waits_because
    caller.put(caller.put_call(["a"], tags=[{"score": 9}]))
    assert admitted(caller) == [tickets[0]]


def test_rows_that_are_claimed_when_the_version_moves_count_for_the_former_one(caller: Caller) -> None:
    caller.set_policy(0, rows_per_version=2)
    caller.set_version(0)
    caller.put_versions(a=0, b=0)
    claim, ticket = caller.take(batch_size=2), waits(caller, "c", "d")
    caller.set_version(1)
    assert admitted(caller) == []
    caller.commit(claim.claim_id)
    assert admitted(caller) == [ticket]


def test_rows_that_come_back_after_the_version_moved_count_for_the_new_one_once_they_are_taken(caller: Caller) -> None:
    caller.set_policy(1, rows_per_version=2)
    caller.put_versions(a=0, b=0, c=0, d=0)
    claim, ticket = caller.take(batch_size=2), waits(caller, "e", "f")
    caller.set_version(1)
    caller.release(claim.claim_id)
    caller.commit(caller.take(batch_size=2).claim_id)
    assert admitted(caller) == []
    caller.set_version(2)
    assert admitted(caller) == [ticket]


def test_a_partition_that_is_registered_anew_counts_no_rows_that_were_taken_before(caller: Caller) -> None:
    caller.set_policy(0, rows_per_version=2)
    caller.set_version(0)
    caller.put_versions(a=0, b=0)
    caller.commit(caller.take(batch_size=2).claim_id)
    caller.clear()
    ticket = waits(caller, "c", "d")
    caller.set_version(0)  # every rank may say it: that lets in no rows of a version about to pass
    assert admitted(caller) == []
    caller.register(tasks=("train", "score"))
    assert admitted(caller) == [ticket]


def test_rows_that_a_waiting_claim_consumes_as_it_is_served_make_room_at_once(caller: Caller) -> None:
    caller.set_policy(1, rows_per_version=2)
    caller.put_versions(a=0, b=0, c=0, d=0)
    caller.take(batch_size=2)
    caller.set_version(1)
    ticket = waits(caller, "e", "f")
    consuming = caller.wait(caller.claim_call("b", batch_size=2, consume=True))
    caller.put_rows(["c", "d"], "b")
    effects = caller.plane.take_effects()
    assert [(type(effect).__name__, effect.ticket) for effect in effects] == [
        ("Granted", consuming),
        ("Admitted", ticket),
    ]


@ON_ONE_WAY
def test_a_producer_is_paced_so_that_no_row_turns_stale(client: DataPlaneClient, threads: ThreadPoolExecutor) -> None:
    client.register_partition("p", ["x"], 0, ["train"])
    client.set_policies("p", {"train": TaskPolicy(max_staleness=1, when_stale="drop", rows_per_version=2)})
    client.set_weight_version("p", 0)

    def produce() -> None:
        for number in range(24):
            with client.reserve_group("p", f"g{number}", [f"s{number}"]) as group:
                version = client.partition("p").weight_version  # with room, generation begins
                group.put(group.meta.sample_ids, {"x": [1.0]}, [{"weight_version": version}])

    producer = threads.submit(produce)
    staleness = []
    for version in range(1, 13):
        eventually(partial(_has_put, client, min(2 * version + 2, 24)))  # the rows of two versions
        with client.claim("p", "train", ["x"], 2) as claim:
            staleness += claim.staleness
        client.set_weight_version("p", version)
    producer.result(60)
    assert (len(staleness), max(staleness)) == (24, 1)
    assert client.partition("p").removed_rows["stale"] == 0


def _has_put(client: DataPlaneClient, rows: int) -> bool:
    return client.partition("p").rows_put_total == rows


# -- band --------------------------------------------------------------------------------------------------------------


def test_draws_and_puts_wait_for_each_other_within_the_band(via: AnyCaller) -> None:
    via.set_flow(band=(1.0, 0.0, 2.0))
    draw = via.begin_draw("a", size=2)
    assert "rows put are 0 ahead of draws" in via.partition().waits_because
    via.put("xy", "a")
    assert sorted(draw.answer().ids) == ["x", "y"]
    refused = via.begin_draw("a", timeout_s=0.5).in_vain()
    assert (refused.reason, "below the band's 0; new rows make room" in refused.message) == ("TOO_FEW_ROWS", True)
    via.put("vw", "a")
    put = via.begin_put("z", "a")
    via.draw("a")
    put.answer()
    refused = via.begin_put("u", "a", timeout_s=0.5).in_vain()
    assert (refused.reason, "beyond the band's 2; draws make room" in refused.message) == ("PARTITION_FULL", True)
    with via.refuses("INVALID_REQUEST", "'p'", "3 rows can never stay in the band from 0 to 2"):
        via.draw("a", size=3)


def test_a_draw_that_waits_follows_its_band_and_ends_with_the_data(via: AnyCaller) -> None:
    via.set_flow(band=(1.0, 0.0, 4.0))
    via.put("xy", "a")
    first, second, third = via.begin_draw("a", size=4), via.begin_draw("a", size=2), via.begin_draw("a")
    via.set_flow(band=(1.0, -2.0, 1.0))
    with pytest.raises(Refused, match=r"INVALID_REQUEST: .* 4 rows can never stay in the band from -2 to 1"):
        first.answer()
    assert second.answer().ids
    via.close()
    for late in (third.answer, partial(via.draw, "a")):
        with pytest.raises(Refused, match=r"TOO_FEW_ROWS: .* below the band's -2; no new rows come"):
            late()


def test_rows_that_are_all_gone_hold_up_no_new_ones_for_draws_that_cannot_come(via: AnyCaller) -> None:
    via.set_flow(band=(1.0, 0.0, 2.0))
    via.put("xy", "a")
    put = via.begin_put("zu", "a")
    via.clear()
    put.answer()
    assert len(via.draw("a", size=2).ids) == 2


# -- policies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flow", "words"),
    [
        ({"max_rows": 0}, ("max_rows must be 1 to", "got 0")),
        ({"max_bytes": -1}, ("max_bytes",)),
        ({"when_full": "evict"}, ("when_full 'evict' needs a budget: max_rows",)),
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


PACE = TaskPolicy(max_staleness=1, rows_per_version=1)


@ON_ONE_WAY
@pytest.mark.parametrize(
    "policy",
    [
        flow.FlowPolicy(),
        flow.FlowPolicy(max_rows=1, max_bytes=(1 << 62) - 1, max_versions=3, when_full="reject"),
        flow.FlowPolicy(9, when_full="evict", evict_first="oldest_version", evict_where="score < 3 and age_s > 60"),
        flow.FlowPolicy(band=flow.DrawBand(0.5, -8.0, 8.25)),
    ],
)
def test_a_description_tells_the_policy_that_was_set(client: DataPlaneClient, policy: flow.FlowPolicy) -> None:
    client.register_partition("p", ["x"], 0, ["train"])
    assert client.set_policies("p", {"train": PACE}, flow=policy).flow == policy
    client.set_policies("p", {"train": TaskPolicy()})
    assert client.partition("p").flow == policy  # a call without flow keeps it
    assert client.set_policies("p", flow=flow.FlowPolicy()).flow == flow.FlowPolicy()


def test_a_policy_that_the_client_cannot_send_is_refused_before_anything_changes(client: DataPlaneClient) -> None:
    client.register_partition("p", ["x"], 0, ["train"])
    wrong: list[tuple[dict[str, TaskPolicy], dict[str, Any], str]] = [
        ({}, {"max_rows": 0}, "FlowPolicy: max_rows must be"),
        ({}, {"max_bytes": 1 << 62}, "max_bytes must be"),
        ({}, {"max_versions": -1}, "max_versions must be"),
        ({}, {"when_full": "wait"}, "when_full must be one of"),
        ({}, {"evict_first": "newest"}, "evict_first must be one of"),
        ({}, {"max_rows": 1, "when_full": "evict", "evict_where": "score <"}, "filter 'score <', column"),
        ({}, {"max_rows": 1, "evict_where": "score < 3"}, "evict_where needs when_full 'evict', got 'block'"),
        ({}, {"band": (1.0, 0.0, 9.0)}, "band must be a DrawBand"),
        ({"train": TaskPolicy(rows_per_version=4)}, {}, "rows_per_version paces producers by max_staleness"),
    ]
    for tasks, of_flow, words in wrong:
        with pytest.raises(InvalidArgumentError, match=words):
            client.set_policies("p", tasks, flow=flow.FlowPolicy(**of_flow))
    for given, told in (({"train": {"max_staleness": 1}}, None), ({}, {"max_rows": 1})):
        with pytest.raises(InvalidArgumentError, match=r"(Task|Flow)Policy"):
            client.set_policies("p", given, flow=told)  # type: ignore[arg-type]
    described = client.partition("p")
    assert (described.flow, described.task("train").policy) == (flow.FlowPolicy(), TaskPolicy())


# -- the next life of a server -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tasks", "policy", "words", "transport"),
    [
        ({}, flow.FlowPolicy(max_rows=2), "2 of max_rows 2 rows", "grpc"),
        ({}, flow.FlowPolicy(band=flow.DrawBand(1.0, 0.0, 2.0)), "rows put are 2 ahead of draws", "shm"),
        ({"train": PACE}, None, "task 'train' has 2 rows before it or taken", "shm"),
    ],
    ids=["budget", "band", "pace"],
)
def test_what_holds_producers_up_does_so_after_the_server_was_killed_and_a_put_that_waited_goes_on_there(
    tmp_path: Path,
    threads: ThreadPoolExecutor,
    transport: TransportChoice,
    tasks: dict[str, TaskPolicy],
    policy: flow.FlowPolicy | None,
    words: str,
) -> None:
    address = f"unix://{tmp_path}/s"
    arguments = ["--listen", address, "--data-dir", str(tmp_path / "data"), "--memory", "1MiB", "--http", ""]

    def put(sample_id: str, version: int | None = None, timeout_s: float | None = None) -> None:
        tags = None if version is None else [{"weight_version": version}]
        client.put_samples([sample_id], "p", {"x": torch.arange(1)}, tags, timeout_s=timeout_s)

    with contextlib.ExitStack() as running:
        first = running.enter_context(contextlib.closing(Command(arguments, tmp_path / "first.log")))
        client = running.enter_context(connect(address, timeout_s=60.0, transport=transport))
        client.register_partition("p", ["x"], 0, ["train"])
        client.set_weight_version("p", 0)
        put("past", 0)
        client.claim("p", "train", ["x"], 1).commit()
        client.clear_samples(["past"], "p")
        client.set_weight_version("p", 1)
        client.set_policies("p", tasks, flow=policy)
        put("a", 1)
        client.claim("p", "train", ["x"], 1).commit()
        put("b", 1)
        waiter = threads.submit(put, "c")
        eventually(waiting(client))
        first.end(signal.SIGKILL)
        second = running.enter_context(contextlib.closing(Command(arguments, tmp_path / "second.log")))
        eventually(waiting(client))
        assert words in client.partition("p").waits_because
        with pytest.raises(PartitionFullError, match=words) as full:
            put("d", timeout_s=0.05)
        assert isinstance(full.value, OutOfSpaceError)
        client.draw_samples("p", ["x"], 1)
        client.set_weight_version("p", 2)
        client.clear_samples(["b"], "p")
        waiter.result(60)
        assert client.list_samples("p").meta.sample_ids == ["a", "c"]
        second.check_books()
