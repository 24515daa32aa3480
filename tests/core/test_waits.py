"""Why calls wait: each cause, with its evidence, in queries and in the refusal of a call that has waited too long."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Failed, Waiting
from dataplane_server.core.calls.causes import CAUSES, Cause, ExplainedWait
from dataplane_server.core.calls.filters import Term
from dataplane_server.core.calls.flow import DrawBand
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.calls.requests import (
    Call,
    ClaimSamples,
    ClaimShard,
    CloseSession,
    Drain,
    DrawSamples,
    DropPartition,
    GiveUpClaim,
    GiveUpWrite,
    OpenSession,
    PutSamples,
    ReserveGroup,
)
from dataplane_server.core.calls.values import Tags

Stall = Callable[[Caller], Call[object]]
"""Sets a stall up. Returns the call that is to wait."""
KINDS = {ClaimSamples: "claim", ClaimShard: "claim", PutSamples: "put", ReserveGroup: "group", DrawSamples: "draw"}
BEST = (Term("==", "best", values=(1,)),)


def put(caller: Caller, ids: str, *fields: str, who: str = "", tags: Tags | None = None, size: int = 1) -> None:
    """A row for each letter."""
    lengths = {name: [size] * len(ids) for name in fields or ("a",)}
    caller.put(caller.put_call(list(ids), lengths, caller=who, tags=None if tags is None else [tags] * len(ids)))


def session(caller: Caller, name: str) -> str:
    return caller.apply(OpenSession("", name, 1000.0)).session_id


TABLE: list[tuple[Stall, Cause, str]] = []


def told(cause: Cause, words: str) -> Callable[[Stall], Stall]:
    """The main cause of what a stall makes wait, and words of its summary."""

    def noted(stall: Stall) -> Stall:
        TABLE.append((stall, cause, words))
        return stall

    return noted


@told("never_put", "no row was ever put into the partition")
def never_put(caller: Caller) -> Call[object]:
    return caller.claim_call("a")


@told(
    "missing_field",
    "2 of 3 untaken rows lack field 'b'; it was last put 41 s ago by 'critic', whose session ended 31 s ago",
)
def missing_field(caller: Caller) -> Call[object]:
    critic = session(caller, "critic")
    put(caller, "uvw", "a")
    put(caller, "u", "b", who="critic")
    caller.now += 10.0
    caller.apply(CloseSession(critic))
    caller.now += 31.0
    return caller.claim_call("a", "b", batch_size=3)


@told("stale_rows", "3 of 3 untaken rows are staler than max_staleness 1 (the weight version is 5)")
def stale_rows(caller: Caller) -> Call[object]:
    caller.put_versions(u=1, v=1, w=None)
    caller.set_policy(1)
    caller.set_version(5)
    return caller.claim_call("a")


@told("unknown_version", "1 of 1 untaken rows name no weight version, and max_staleness is 1")
def unknown_version(caller: Caller) -> Call[object]:
    caller.put_versions(u=None)
    caller.set_policy(1)
    return caller.claim_call("a")


@told("task_filter", "2 of 2 untaken rows do not fit the filter of task 'train'")
def task_filter(caller: Caller) -> Call[object]:
    caller.set_policy(where=BEST)
    put(caller, "uv", tags={"best": 0})
    return caller.claim_call("a")


@told("claim_filter", "2 of 2 untaken rows do not fit the filter of the claim (where)")
def claim_filter(caller: Caller) -> Call[object]:
    put(caller, "uv", tags={"best": 0})
    return caller.claim_call("a", where=BEST)


@told("claim_filter", "of the claim (where); none has the tag 'a' or 'bset' (a filter sees tags, and 'a' is a field)")
def filter_of_a_field(caller: Caller) -> Call[object]:
    put(caller, "uv", tags={"best": 0})
    return caller.claim_call("a", where=(Term(">", "a", values=(0,)), Term("==", "bset", values=(1,)), Term("or")))


@told("task_filter", "of task 'train' (2 lack a tag that it names); none has the tag 'bset'")
def policy_of_a_misspelt_tag(caller: Caller) -> Call[object]:
    caller.set_policy(where=(Term(">", "bset", values=(0,)),))
    put(caller, "uv", tags={"best": 0})
    return caller.claim_call("a")


@told("incomplete_groups", "'g', by client 'agent' for 0.0 s (2 of its 2 rows have no value: 'u', 'v')")
def incomplete_groups(caller: Caller) -> Call[object]:
    caller.reserve("g", ["u", "v"], session(caller, "agent"))
    return caller.claim_call("a", whole_groups=True)


@told("broken_groups", "2 of 2 untaken rows belong to groups of which other rows are taken")
def broken_groups(caller: Caller) -> Call[object]:
    caller.put_group("g", ["u", "v", "w"], "a")
    caller.commit(caller.take("a").claim_id)
    return caller.claim_call("a", whole_groups=True)


@told("missing_field", "1 of 3 untaken rows lack field 'b'")
def missing_in_groups(caller: Caller) -> Call[object]:
    caller.put_group("g", ["u", "v", "w"], "a")
    put(caller, "uv", "b")
    return caller.claim_call("b", whole_groups=True, batch_size=3, unit="rows")


@told(
    "rank_missing",
    "2 rows of 2 steps from 3 to 4 are kept for dp_rank 1 of 2, which has not claimed them or has given them back",
)
def rank_missing(caller: Caller) -> Call[object]:
    put(caller, "stuvwx")
    for step in (3, 4):
        caller.commit(caller.take_shard("a", step=step, dp_rank=0, batch_size=3).claim_id)
    return caller.shard_call("a", step=5, dp_rank=0, batch_size=3)


@told("delayed_rows", "1 row is delayed by a release, the first for 60 s more")
def delayed_rows(caller: Caller) -> Call[object]:
    put(caller, "u")
    caller.release(caller.take("a").claim_id, delay_s=60.0)
    return caller.claim_call("a")


@told("claims_held", "2 rows are held by client 'trainer-2' (claim 'c-2', for 300 s)")
def claims_held(caller: Caller) -> Call[object]:
    put(caller, "uv")
    caller.take("a", batch_size=2, session_id=session(caller, "trainer-2"))
    caller.now += 300.0
    return caller.claim_call("a", batch_size=2, session_id=session(caller, "trainer-1"))


@told("silent_producer", "the last came 0.0 s ago by 'rollout'")
def own_claim_and_silence(caller: Caller) -> Call[object]:
    put(caller, "uv", who="rollout")
    trainer = session(caller, "trainer")
    caller.take("a", batch_size=2, session_id=trainer)
    return caller.claim_call("a", batch_size=2, session_id=trainer)


@told("dead_letters", "1 row is among the dead letters; one of them failed for 'NaN in the loss'")
def dead_letters(caller: Caller) -> Call[object]:
    caller.register(max_deliveries=1)
    put(caller, "u")
    caller.release(caller.take("a").claim_id, reason="NaN in the loss")
    return caller.claim_call("a")


@told("put_again", "2 rows were put again after task 'train' consumed them")
def put_again(caller: Caller) -> Call[object]:
    put(caller, "uv", "a")
    caller.commit(caller.take("a", batch_size=2).claim_id)
    put(caller, "uv", "a")
    return caller.claim_call("a", batch_size=2)


@told("end_of_data", "all 2 announced rows (num_samples) were put")
def announced_rows(caller: Caller) -> Call[object]:
    caller.register(num_samples=2)
    put(caller, "uv")
    caller.commit(caller.take("a", batch_size=2).claim_id)
    return caller.claim_call("a")


@told("end_of_data", "all 2 announced rows (num_samples) were put")
def announced_rows_with_one_group_too_many(caller: Caller) -> Call[object]:
    rolled_back(caller)
    return announced_rows(caller)


@told("silent_producer", "no put has come meanwhile")
def rolled_back(caller: Caller) -> Call[object]:
    caller.register(num_samples=2)
    caller.abort_group(caller.reserve("g", ["u", "v"]).reservation_id)
    return caller.claim_call("a")


@told("missing_field", "1 of 1 untaken rows lack field 'b'; no put of it is remembered")
def closed_with_a_field_missing(caller: Caller) -> Call[object]:
    put(caller, "u")
    caller.close()
    return caller.claim_call("b")


@told("silent_producer", "no put has come meanwhile; the last came 41 s ago by 'rollout-3'")
def silent_producer(caller: Caller) -> Call[object]:
    put(caller, "uv", who="rollout-3")
    caller.now += 41.0
    return caller.claim_call("a", batch_size=3)


@told("rows_budget", "'rollout' waits 0.0 s to put 1 row: 2 of max_rows 2 rows are here")
def rows_budget(caller: Caller) -> Call[object]:
    caller.set_flow(max_rows=2)
    put(caller, "uv")
    caller.take("a", session_id=session(caller, "trainer"))
    return caller.put_call(["w"], {"a": [1]}, caller="rollout")


@told("bytes_budget", "10 of max_bytes 10 bytes are here or on their way, and 1 more would come")
def bytes_budget(caller: Caller) -> Call[object]:
    caller.set_flow(max_bytes=10)
    put(caller, "uv", size=5)
    caller.take("a", session_id=session(caller, "trainer"))
    return caller.put_call(["w"], {"a": [1]})


@told("versions_budget", "a row is older than weight version 2, and max_versions is 1")
def versions_budget(caller: Caller) -> Call[object]:
    caller.set_flow(max_versions=1)
    caller.put_versions(u=1)
    caller.take("a", session_id=session(caller, "trainer"))
    caller.set_version(2)
    return caller.put_call(["w"], {"a": [1]})


@told("not_cleared", "2 rows are done with by every task")
def not_cleared(caller: Caller) -> Call[object]:
    caller.set_flow(max_rows=2)
    put(caller, "uv")
    caller.commit(caller.take("a", batch_size=2).claim_id)
    return caller.put_call(["w"], {"a": [1]})


@told(
    "consumer_gone",
    "task 'train' has 2 rows before it, and it was last claimed 31 s ago by 'trainer', whose session ended 31 s",
)
def consumer_gone(caller: Caller) -> Call[object]:
    caller.set_flow(max_rows=2)
    put(caller, "uv")
    trainer = session(caller, "trainer")
    caller.release(caller.take("a", session_id=trainer).claim_id)
    caller.apply(CloseSession(trainer))
    caller.now += 31.0
    return caller.put_call(["w"], {"a": [1]})


@told("weight_version_pace", "task 'train' has 2 rows before it or taken since the weight version moved")
def paced(caller: Caller) -> Call[object]:
    caller.set_policy(0, rows_per_version=2)
    caller.put_versions(u=1, v=1)
    caller.take("a", session_id=session(caller, "trainer"))
    return caller.put_call(["w"], {"a": [1]})


@told("version_not_advanced", "more may come when the trainer sets the next weight version")
def version_not_advanced(caller: Caller) -> Call[object]:
    caller.set_policy(0, rows_per_version=2)
    caller.put_versions(u=1, v=1)
    caller.commit(caller.take("a", batch_size=2).claim_id)
    return caller.put_call(["w"], {"a": [1]})


@told("version_not_advanced", "no new rows come: a client waits 0.0 s to put")
def a_trainer_that_waits_for_its_own_version(caller: Caller) -> Call[object]:
    caller.apply(version_not_advanced(caller))
    return caller.claim_call("a")


@told("draw_band", "rows put are 2 ahead of draws")
def draw_band(caller: Caller) -> Call[object]:
    caller.set_flow(band=DrawBand(1.0, 0.0, 2.0))
    put(caller, "uv")
    return caller.put_call(["w"], {"a": [1]})


@told("draw_band", "a draw of 1 rows would be below the band's 0")
def early_draw(caller: Caller) -> Call[object]:
    caller.set_flow(band=DrawBand(1.0, 0.0, 2.0))
    return caller.draw_call(batch_size=1)


@told("band_too_narrow", "puts wait as well, so neither can go on")
def band_too_narrow(caller: Caller) -> Call[object]:
    caller.set_flow(band=DrawBand(1.0, 0.0, 2.0))
    put(caller, "u")
    caller.apply(caller.put_call(["w", "x"], {"a": [1, 1]}))
    return caller.draw_call(batch_size=2)


@told("rows_budget", "'agent' waits 0.0 s to reserve 1 row: 1 of max_rows 1 rows")
def reserved_group_without_room(caller: Caller) -> Call[object]:
    caller.set_flow(max_rows=1)
    put(caller, "u")
    caller.take("a", session_id=session(caller, "trainer"))
    return caller.reserve_call("g", ["w"], session(caller, "agent"))


@told("memory_budget", "the put holds 200 bytes of values, 96 bytes of the memory budget of 4 KiB")
def memory_budget(caller: Caller) -> Call[object]:
    put(caller, "u", size=4000)
    caller.take("a", session_id=session(caller, "trainer"))
    return caller.put_call(["w"], {"a": [200]}, caller="rollout")


@told("memory_held", "lent to puts under way ('slow' 3.906 KiB)")
def memory_held(caller: Caller) -> Call[object]:
    assert not isinstance(caller.apply(caller.put_call(["u"], {"a": [4000]}, caller="slow")), Waiting)
    return caller.put_call(["w"], {"a": [200]}, caller="rollout")


@told("not_cleared", "partition 'p' holds 3.906 KiB: 1 row is done with by every task")
def memory_not_cleared(caller: Caller) -> Call[object]:
    put(caller, "u", size=4000)
    caller.commit(caller.take("a").claim_id)
    return caller.put_call(["w"], {"a": [200]}, caller="rollout")


@pytest.fixture
def caller(new_caller: Callable[..., Caller]) -> Caller:
    """A caller of a data plane of 4 KiB with partition p: fields a and b, task train."""
    one = new_caller(memory_bytes=4096)
    one.register(num_samples=100)
    return one


def explained(caller: Caller, partition_id: str = "p", task: str = "") -> list[ExplainedWait]:
    """What is told, which changes nothing."""
    before = caller.plane.digest()
    told = caller.plane.explain_waits(partition_id, task, caller.now)
    assert caller.plane.digest() == before
    assert told.unexamined == 0
    return list(told.waits)


@pytest.mark.parametrize(("stall", "cause", "words"), TABLE, ids=[row[0].__name__ for row in TABLE])
def test_a_wait_has_one_main_cause_which_its_refusal_tells_as_well(
    caller: Caller, stall: Stall, cause: Cause, words: str
) -> None:
    call = stall(caller)
    waiting = caller.apply(call)
    assert isinstance(waiting, Waiting)
    wait = next(one for one in explained(caller) if one.waiting == KINDS[type(call)])
    assert wait.findings[0].cause == cause
    assert words in wait.summary
    give_up: Call[Refusal] = (
        GiveUpWrite(waiting.ticket) if isinstance(call, PutSamples) else GiveUpClaim(waiting.ticket)
    )
    refusal = caller.apply(give_up)
    assert refusal.metadata["cause"] == cause
    assert [finding.text for finding in wait.findings if finding.text not in refusal.message] == []


def test_a_small_put_behind_a_large_one_that_enough_have_passed_is_told_so(caller: Caller) -> None:
    put(caller, "u", size=3000)
    caller.apply(caller.put_call(["large"], {"a": [2000]}))
    for name in ("v", "w"):
        put(caller, name, size=1000)
        caller.clear([name])
    caller.register(partition_id="q")
    small = caller.wait(caller.put_call(["x"], {"a": [1000]}, partition_id="q"))
    assert explained(caller, "q")[0].findings[0].cause == "queue_order"
    refusal = caller.apply(GiveUpWrite(small))
    assert refusal.metadata["cause"] == "queue_order"
    assert "waits behind one that needs 1.953 KiB" in refusal.message


def test_every_cause_has_a_stall() -> None:
    tested = {cause for _, cause, _ in TABLE}
    assert CAUSES.keys() - tested == {
        "draining",
        "slow_producer",
        "queue_order",
        "node_lost",
    }  # below, and in test_nodes


def test_a_claim_behind_one_that_wants_more_is_told_so_and_the_one_before_it_why(caller: Caller) -> None:
    put(caller, "uv")
    caller.apply(caller.claim_call("a", batch_size=8))
    behind = caller.wait(caller.claim_call("a"))
    (wait,) = explained(caller)
    assert (wait.findings[0].cause, wait.calls) == ("silent_producer", 2)
    refusal = caller.apply(GiveUpClaim(behind))
    assert refusal.metadata["cause"] == "queue_order"
    assert "2 ready rows would do, but 1 other claim is queued for the task" in refusal.message


def test_rows_that_come_too_slowly_are_told_before_those_that_others_hold(caller: Caller) -> None:
    put(caller, "uv")
    caller.take("a", batch_size=2, session_id=session(caller, "trainer-2"))
    caller.apply(caller.claim_call("a", batch_size=2))
    caller.now += 5.0
    put(caller, "w", who="rollout")
    (wait,) = explained(caller)
    assert [finding.cause for finding in wait.findings] == ["slow_producer", "claims_held"]
    assert "puts come, the last 0.0 s ago by 'rollout'" in wait.summary


def test_a_server_that_drains_says_so(caller: Caller) -> None:
    ticket = caller.apply(caller.claim_call("a"))
    caller.apply(Drain())
    (wait,) = explained(caller, "")
    assert (wait.waiting, wait.findings[0].cause, wait.calls) == ("", "draining", 0)
    assert isinstance(ticket, Waiting)
    assert [type(effect) for effect in caller.plane.take_effects()] == [Failed]


def drawn(caller: Caller) -> Call[object]:
    put(caller, "uv")
    caller.draw("a", task="train")
    return caller.put_call(["w"], {"a": [1]})


@pytest.mark.parametrize(
    ("stall", "cause"),
    [
        (announced_rows, "end_of_data"),
        (announced_rows_with_one_group_too_many, "end_of_data"),
        (rolled_back, ""),
        (consumer_gone, "consumer_gone"),
        (never_put, ""),
        (silent_producer, "consumer_gone"),
        (drawn, ""),
    ],
    ids=["all taken", "all taken but what was rolled back", "rolled back", "gone", "empty", "never claimed", "drawn"],
)
def test_a_task_that_takes_no_rows_is_explained_where_its_partition_is_named(
    caller: Caller, stall: Stall, cause: str
) -> None:
    stall(caller)
    assert explained(caller, "") == []
    found = explained(caller, "p", "train")
    assert [(wait.waiting, wait.task, wait.findings[0].cause) for wait in found] == [("", "train", cause)] * bool(cause)


def test_what_happened_in_a_partition_that_was_dropped_is_no_evidence(caller: Caller) -> None:
    put(caller, "uv", who="rollout-3")
    caller.now += 1
    caller.apply(DropPartition("r", "p"))
    caller.now += 1
    caller.register()
    caller.apply(caller.claim_call("a"))
    (wait,) = explained(caller)
    assert [finding.cause for finding in wait.findings] == ["never_put"]
    put(caller, "w", "b")
    (wait,) = explained(caller)
    assert "no put of it is remembered" in wait.summary


def test_a_put_that_waits_for_a_consumer_is_told_of_which_task(caller: Caller) -> None:
    caller.apply(consumer_gone(caller))
    (wait,) = [wait for wait in explained(caller) if wait.waiting == "put"]
    assert wait.next_step(wait.findings[0]).startswith("Start the consumer of train.")


def test_roots_are_told_first_each_followed_by_the_waits_that_end_with_it(caller: Caller) -> None:
    caller.register(partition_id="q")
    caller.apply(
        caller.claim_call("a", partition_id="q")
    )  # the oldest, and a victim: of the put into q, of that into p
    for call in (memory_held(caller), caller.put_call(["w"], {"a": [200]}, partition_id="q")):
        caller.now += 1.0
        caller.apply(call)
    told = [(wait.partition_id, wait.waiting, wait.findings[0].cause, wait.behind) for wait in explained(caller, "")]
    assert told == [
        ("p", "put", "memory_held", None),
        ("q", "claim", "memory_held", 0),
        ("q", "put", "memory_held", 0),
    ]


def test_a_task_that_lacks_a_field_is_behind_the_writer_that_waits_itself(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller()
    caller.register(tasks=("train", "critic"))
    critic = session(caller, "critic")
    put(caller, "uv", "a")
    put(caller, "u", "b", who="critic")
    caller.apply(caller.claim_call("a", "b", batch_size=2))
    caller.now += 1.0
    caller.apply(caller.claim_call("a", task="critic", batch_size=8, session_id=critic))
    told = [(wait.task, wait.findings[0].cause, wait.behind) for wait in explained(caller, "")]
    assert told == [("critic", "silent_producer", None), ("train", "missing_field", 0)]


def test_fields_of_one_put_are_told_together(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller()
    caller.register(fields=("a", "b", "c", "d"))
    put(caller, "uv")
    put(caller, "u", "b", "c", who="critic")
    put(caller, "u", "d", who="reward")
    caller.apply(caller.claim_call("a", "b", "c", "d", batch_size=2))
    (wait,) = explained(caller)
    texts = [finding.text for finding in wait.findings if finding.cause == "missing_field"]
    assert [text.partition("lack ")[2].partition(";")[0] for text in texts] == ["fields 'b', 'c'", "field 'd'"]
    assert "they were last put 0.0 s ago by 'critic'" in texts[0]


def test_claims_of_one_kind_are_explained_together_and_kinds_one_by_one(caller: Caller) -> None:
    for call in (caller.claim_call("a"), caller.claim_call("a", batch_size=2), caller.claim_call("b")):
        caller.apply(call)
        caller.now += 1.0
    assert [(wait.calls, wait.age_s) for wait in explained(caller, "")] == [(2, 3.0), (1, 1.0)]
    causes = list(caller.plane.waiting_causes(caller.now))
    assert causes == [("p", "train", "never_put", 2), ("p", "train", "never_put", 1)]


def test_beyond_64_waits_the_others_are_counted(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller()
    for number in range(70):
        caller.register(partition_id=f"p{number}")
        caller.apply(caller.claim_call("a", partition_id=f"p{number}"))
    told = caller.plane.explain_waits("", "", caller.now)
    assert (len(told.waits), told.unexamined) == (64, 6)
    causes = [cause for _, _, cause, _ in caller.plane.waiting_causes(caller.now)]
    assert causes == ["never_put"] * 64 + ["not_examined"] * 6
