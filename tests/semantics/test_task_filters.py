"""The filter of a task: rows that none of its claims gets, withheld or dropped."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.caller import Caller
from tests.semantics.callers import Caller as AnyCaller
from tests.semantics.callers import Refused
from tests.semantics.conftest import ON_ONE_WAY

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import InvalidArgumentError
from dataplane_client.records import tasks as policies
from dataplane_server.core.calls.answers import Failed, Granted
from dataplane_server.core.calls.filters import Filter, Term
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.values import Tags

SPREAD: Filter = (Term(">", "std", values=(0,)),)
MATH: Filter = (Term("==", "source", values=("math",)),)
WHOLE: Filter = (Term("==", "whole", values=(1,)),)
ROWS: dict[str, Tags] = {
    "flat": {"std": 0, "source": "math"},
    "good": {"std": 0.5, "source": "math"},
    "code": {"std": 0.5, "source": "code"},
    "bare": {},
}


def put_tags(caller: Caller, **rows: Tags) -> None:
    caller.put(caller.put_call(list(rows), {"a": [1] * len(rows)}, tags=list(rows.values())))


def removed(caller: Caller) -> int:
    return caller.plane.partition_info("p", 0.0).removed_rows["filtered"]


def resident(caller: Caller) -> tuple[str, ...]:
    return tuple(caller.plane.list_samples("p", "", [], (), 1000, 0, 0.0).sample_ids)


def claimed(caller: Caller, **more: object) -> set[str]:
    grant = caller.take("a", batch_size=9, min_size=1, **more)
    caller.release(grant.claim_id)
    return set(grant.sample_ids)


def sharded(caller: Caller, where: Filter = ()) -> set[str]:
    ranks = [caller.take_shard("a", dp_rank=rank, batch_size=9, min_size=2, where=where) for rank in (0, 1)]
    return {name for grant in ranks for name in grant.sample_ids}


def drawn(caller: Caller, where: Filter = ()) -> set[str]:
    return set(caller.draw("a", batch_size=9, min_size=1, task="train", where=where).sample_ids)


def test_a_row_does_not_have_the_tags_of_the_row_whose_place_it_takes(caller: Caller) -> None:
    put_tags(caller, **ROWS)
    assert claimed(caller, where=MATH) == {"flat", "good"}
    caller.clear(list(ROWS))
    put_tags(caller, w={}, x={}, y={}, z={})
    caller.wait(caller.claim_call("a", where=MATH))


# -- withheld ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("take", "expected"),
    [
        (claimed, {"good", "code", "g0", "g1", "h0"}),
        (lambda caller: claimed(caller, where=MATH), {"good"}),
        (lambda caller: claimed(caller, order="highest_tag", order_tag="std"), {"good", "code", "g0", "g1", "h0"}),
        (lambda caller: claimed(caller, whole_groups=True), {"good", "code", "g0", "g1"}),
        (lambda caller: claimed(caller, task="score"), {*ROWS, "g0", "g1", "h0", "h1"}),
        (sharded, {"good", "code", "g0", "g1", "h0"}),
        (drawn, {"good", "code", "g0", "g1", "h0"}),
        (lambda caller: drawn(caller, MATH), {"good"}),
    ],
    ids=["plain", "with a filter", "in an order", "whole groups", "of another task", "shards", "draw", "narrow draw"],
)
def test_no_claim_or_draw_of_a_task_gets_a_row_that_does_not_fit_its_filter(
    caller: Caller, take: Callable[[Caller], set[str]], expected: set[str]
) -> None:
    put_tags(caller, **ROWS)
    for group in "gh":
        caller.put_group(group, [f"{group}0", f"{group}1"], "a")
    put_tags(caller, g0={"std": 1}, g1={"std": 1}, h0={"std": 1}, h1={"std": 0})
    caller.set_policy(where=SPREAD)
    assert take(caller) == expected


def test_a_shard_that_is_granted_again_has_no_row_that_does_not_fit_the_filter_by_then(caller: Caller) -> None:
    put_tags(caller, x={"std": 1}, y={"std": 1})
    first = caller.take_shard("a", dp_world=1, batch_size=2)
    assert first.sample_ids == ("x", "y")
    caller.release(first.claim_id)
    caller.set_policy(where=SPREAD)
    put_tags(caller, x={"std": 0})
    assert caller.take_shard("a", dp_world=1, batch_size=2).sample_ids == ("y",)


def put_spread(via: AnyCaller) -> None:
    """Rows whose std is 0, 1, 2, 3 in a row that is truncated, and unknown."""
    via.put("vwxyz", "a", tags=[{"std": 0}, {"std": 1}, {"std": 2}, {"std": 3, "truncated": True}, {}])


def test_a_task_gets_rows_that_fit_its_filter_and_others_are_withheld_and_counted(via: AnyCaller) -> None:
    put_spread(via)
    via.set_policy(where="std > 0 and truncated is null", order="highest_tag", order_tag="std")
    assert via.task().excluded_rows == 1  # `truncated` may come where it is null
    via.commit(claim := via.claim("a", size=9, least=1))
    assert claim.ids == "xw"
    assert sorted(via.draw("a", size=9, least=1, task="train").ids) == ["w", "x"]
    refused = via.begin_claim("a", timeout_s=0.5).in_vain()
    assert refused.reason == "CLAIM_TIMEOUT"
    assert "3 of 3 untaken rows do not fit the filter of task 'train' (2 lack a tag that it names)" in refused.message
    with via.refuses("TOO_FEW_ROWS", "3 do not fit the filter of task 'train'"):
        via.draw("a", size=3, task="train")
    via.put("z", tags={"std": 4})
    assert via.claim("a").ids == "z"
    assert via.claim("a", task="score", size=5).ids == "vwxyz"


def test_a_group_of_which_one_row_does_not_fit_is_not_given_whole(caller: Caller) -> None:
    caller.set_policy(where=WHOLE)
    caller.put_group("g", ["g0", "g1"], "a")
    put_tags(caller, g0={"whole": True})
    caller.wait(caller.claim_call("a", whole_groups=True))
    put_tags(caller, g1={"whole": True})
    assert caller.effect(Granted).grant.sample_ids == ("g0", "g1")


def test_waiting_claims_follow_tags_and_policies(caller: Caller) -> None:
    put_tags(caller, **ROWS)
    caller.set_policy(where=(*SPREAD, *MATH, Term("and")))
    caller.wait(caller.claim_call("a", batch_size=2))
    put_tags(caller, good={"source": "web"})
    assert caller.plane.take_effects() == []
    caller.set_policy(where=SPREAD)
    assert caller.effect(Granted).grant.sample_ids == ("good", "code")


# -- dropped -----------------------------------------------------------------------------------------------------------


def test_rows_that_have_what_the_filter_names_are_dropped_with_their_groups_and_others_withheld(caller: Caller) -> None:
    put_tags(caller, **ROWS)
    caller.put_group("g", ["g0", "g1"], "a")
    put_tags(caller, g0={"std": 0, "source": "math"})
    caller.set_policy(where=(*SPREAD, *MATH, Term("and")), when_excluded="drop")
    assert resident(caller) == ("good", "bare")
    assert removed(caller) == 4
    told = caller.plane.sample("p", "g1").events[-1]
    assert (told.what, told.reason) == ("cleared", "it did not fit the filter of task 'train'")
    put_tags(caller, bare={"std": 0, "source": None})
    assert resident(caller) == ("good", "bare")
    put_tags(caller, bare={"source": "code"})
    assert resident(caller) == ("good",)


@pytest.mark.parametrize("end", ["commit", "release"])
@pytest.mark.parametrize("whose", ["train", "score"])
def test_rows_that_a_claim_holds_are_dropped_as_soon_as_it_has_ended(caller: Caller, whose: str, end: str) -> None:
    caller.set_policy(where=SPREAD, when_excluded="drop")
    caller.put_group("g", ["g0", "g1"], "a")
    put_tags(caller, g0={"std": 1})
    held = caller.take("a", task=whose)
    put_tags(caller, g1={"std": 0})
    caller.put_rows(["x"], "a")
    assert resident(caller) == ("g0", "g1", "x")
    getattr(caller, end)(held.claim_id)
    assert resident(caller) == ("x",)
    assert removed(caller) == 2


def test_a_reserved_group_is_dropped_when_it_is_finished(caller: Caller) -> None:
    caller.set_policy(where=SPREAD, when_excluded="drop")
    reserved = caller.reserve("g", ["g0", "g1"]).reservation_id
    caller.put(caller.put_call(["g0", "g1"], {"a": [1, 1]}, tags=[{"std": 0}] * 2, reservation_id=reserved))
    assert resident(caller) == ("g0", "g1")
    assert caller.finish_group(reserved).rows == 2
    assert resident(caller) == ()


def test_groups_that_do_not_fit_are_dropped_when_they_are_finished_and_do_not_delay_the_end_of_data(
    via: AnyCaller,
) -> None:
    put_spread(via)
    via.set_policy(where="std > 0", when_excluded="drop")
    assert (via.listed(), via.partition().removed_rows["filtered"]) == ("wxyz", 1)
    via.put_group("flat", "fl", tags={"std": 0.0})
    via.put_group("good", "go", tags={"std": 0.5})
    assert via.partition().removed_rows["filtered"] == 3
    via.commit(claim := via.claim("a", size=4, whole_groups=True))
    assert claim.ids == "wxygo"
    waiting = via.begin_claim("a")
    assert via.close() == 0
    via.put("z", tags={"std": 0})
    with pytest.raises(Refused) as caught:
        waiting.answer()
    assert caught.value.reason == "END_OF_DATA"


# -- what callers are told ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
def test_rows_that_do_not_fit_do_not_delay_the_end_of_data_and_those_that_lack_a_tag_do(
    caller: Caller, whole: bool
) -> None:
    put_tags(caller, **ROWS)
    caller.set_policy(where=SPREAD)
    caller.wait(caller.claim_call("a", batch_size=3, whole_groups=whole))
    assert caller.close() == 0
    put_tags(caller, bare={"std": 0})
    assert caller.effect(Failed).refusal.reason is Reason.END_OF_DATA
    assert claimed(caller, whole_groups=whole) == {"good", "code"}


def test_the_filters_of_policies_count_as_bookkeeping(new_caller: Callable[..., Caller]) -> None:
    caller = new_caller(bookkeeping_bytes=1 << 19)
    caller.register(("a",), ("train", "score"))
    long: Filter = (Term("in", "source", values=("x" * 60_000,)),)
    for _ in range(3):
        caller.set_policy(where=long)
    with caller.refuses(Reason.LIMIT_REACHED, "--bookkeeping"):
        caller.set_policy(task="score", where=long)
    caller.set_policy()
    caller.set_policy(task="score", where=long)


@ON_ONE_WAY
def test_a_filter_that_no_claim_could_have_is_refused_to_a_client_and_its_policy_is_told(
    client: DataPlaneClient,
) -> None:
    client.register_partition("p", ["a"], 0, ["train"])
    wrong = {
        r"filter 'std >', column": {"where": "std >"},
        "when_excluded must be one of": {"where": "std > 0", "when_excluded": "forget"},
        "age changes without a call": {"where": "age_s > 60"},
    }
    for words, terms in wrong.items():
        with pytest.raises(InvalidArgumentError, match=words):
            client.set_policies("p", {"train": policies.TaskPolicy(**terms)})  # type: ignore[arg-type]
    assert client.partition("p").task("train").policy == policies.TaskPolicy()
    policy = policies.TaskPolicy(where="std > 0 and truncated is null", order="highest_tag", order_tag="std")
    assert client.set_policies("p", {"train": policy}).task("train").policy == policy
