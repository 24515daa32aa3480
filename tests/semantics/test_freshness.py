"""Weight versions and staleness: what a task does not get, what is dropped or retired, and who is told."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.caller import Caller
from tests.semantics.callers import Caller as AnyCaller
from tests.semantics.conftest import ON_ONE_WAY

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import InvalidArgumentError, NotFoundError
from dataplane_client.records import tasks as policies
from dataplane_server.core.calls.answers import Granted, Retired, Waiting
from dataplane_server.core.calls.refusal import Reason
from dataplane_server.core.calls.requests import GiveUpClaim
from dataplane_server.core.calls.values import Tags


def ready(caller: Caller, task: str = "train", **more: object) -> tuple[str, ...]:
    """What a claim gets at once; it is released."""
    answer = caller.apply(caller.claim_call("a", batch_size=9, min_size=1, task=task, **more))  # type: ignore[arg-type]
    if isinstance(answer, Waiting):
        caller.apply(GiveUpClaim(answer.ticket))
        return ()
    caller.release(answer.claim_id)
    return answer.sample_ids


# -- the bound ---------------------------------------------------------------------------------------------------------


def test_a_row_beyond_the_bound_is_withheld_from_that_task_only(via: AnyCaller) -> None:
    for row, version in (("x", 3), ("y", 5), ("z", 7)):
        via.put(row, "a", version=version)
    via.put("u", "a")
    via.set_policy(max_staleness=2, order="newest_version")
    assert via.partition().weight_version == 7
    claim = via.claim("a", size=9, least=1)
    assert (claim.ids, claim.staleness) == ("zy", [0, 2])
    assert (via.task().stale_rows, via.task("score").stale_rows) == (2, 0)
    others = via.claim("a", size=9, least=1, task="score", order="oldest_version")
    assert (others.ids, others.staleness) == ("xyzu", [4, 2, 0, -1])


def test_a_timeout_says_that_rows_are_too_stale(via: AnyCaller) -> None:
    via.put("x", "a", version=1)
    via.put("y", "a", version=5)
    via.put("z", "a")
    via.set_policy(max_staleness=2)
    refused = via.begin_claim("a", size=2, timeout_s=0.5).in_vain()
    assert refused.reason == "CLAIM_TIMEOUT"
    words = "2 of 3 untaken rows are staler than max_staleness 2 (the weight version is 5), or of an unknown"
    assert words in refused.message


def test_the_trainer_retires_old_rows_and_groups_and_producers_are_told_before(via: AnyCaller) -> None:
    via.put("x", "a", version=3)
    via.put("y", "a", version=5)
    via.set_policy(max_staleness=1)
    group = via.reserve("g", "z", version=4)
    assert group.put("z", "a") == ""
    assert via.set_version(6) == 0
    assert group.put("z", "a") == "weight version 4 is 2 behind 6; task 'train' takes at most 1"
    assert via.set_version(7, retire_below=5) == 2
    with via.refuses("GROUP_FENCED", "'g' was retired: weight version below 5"):
        group.put("z", "a")
    removed = via.partition().removed_rows
    assert (via.listed(), removed["retired"], removed["rolled_back"]) == ("y", 1, 1)


def test_rows_turn_stale_in_the_queue_when_the_trainer_or_a_row_moves_on(caller: Caller) -> None:
    caller.put_versions(x=1, y=2)
    caller.set_policy(1)
    assert ready(caller) == ("x", "y")
    caller.put_versions(z=3)
    assert ready(caller) == ("y", "z")
    caller.set_version(4)
    assert ready(caller) == ("z",)
    caller.set_version(5)
    assert ready(caller) == ()
    caller.set_version(2)
    assert ready(caller) == ("x", "y", "z")


def test_a_row_whose_version_is_put_as_null_is_of_an_unknown_one(caller: Caller) -> None:
    caller.put_versions(x=3)
    caller.set_policy(2)
    assert ready(caller) == ("x",)
    caller.put(caller.put_call(["x"], tags=[{"weight_version": None}]))
    assert ready(caller) == ()
    caller.set_policy(None)
    assert caller.take().staleness.tolist() == [-1]


def test_the_versions_of_a_group_that_has_no_row_yet_and_at_its_end_count_as_ones_that_were_seen(
    caller: Caller,
) -> None:
    caller.put_versions(old=1)
    caller.set_policy(1)
    reservation_id = caller.reserve("g", [], weight_version=4).reservation_id
    assert (caller.plane.partition_info("p").weight_version, ready(caller)) == (4, ())
    caller.put(caller.add_call(reservation_id, ["g0"], {"a": [1]}))
    caller.finish_group(reservation_id, weight_version=6)
    assert caller.plane.partition_info("p").weight_version == 6


def test_a_waiting_claim_is_served_by_another_policy(caller: Caller) -> None:
    caller.put_versions(x=1, y=3)
    caller.set_policy(0)
    caller.wait(caller.claim_call("a", batch_size=2))
    caller.set_policy(None)
    assert caller.effect(Granted).grant.staleness.tolist() == [0, 2]


# -- rows that go ------------------------------------------------------------------------------------------------------


def test_dropped_rows_go_with_their_group_once_no_claim_holds_one(caller: Caller) -> None:
    caller.put_group("g", ["g0", "g1"], "a")
    caller.put_group("h", ["h0", "h1"], "a")
    caller.put(caller.put_call(["g0", "h0", "h1"], tags=[{"weight_version": version} for version in (1, 1, 1)]))
    held = caller.take("a", task="score", batch_size=1)
    assert held.sample_ids == ("g0",)
    caller.set_policy(1, when_stale="drop")
    caller.set_version(5)
    info = caller.plane.partition_info("p", 0.0)
    assert (info.rows, info.removed_rows["stale"]) == (2, 2)
    caller.commit(held.claim_id)
    caller.set_version(6)
    assert caller.plane.partition_info("p", 0.0).removed_rows["stale"] == 4


def test_a_row_that_arrives_or_comes_back_too_stale_is_dropped(caller: Caller) -> None:
    caller.set_policy(1, when_stale="drop")
    caller.put_versions(x=4)
    held = caller.take("a")
    caller.set_version(9)
    caller.put_versions(y=4, z=8)
    assert caller.plane.partition_info("p", 0.0).removed_rows["stale"] == 1
    caller.release(held.claim_id)
    info = caller.plane.partition_info("p", 0.0)
    assert (info.rows, info.removed_rows["stale"]) == (1, 2)
    told = caller.plane.sample("p", "x").events[-1]
    assert (told.what, told.reason) == ("cleared", "it was staler than the 1 versions that task 'train' allows")


def test_retiring_removes_rows_and_reserved_groups_of_old_versions_in_any_state(caller: Caller) -> None:
    caller.put_versions(x=1, y=2, z=3, unknown=None)
    claimed = caller.take("a")
    old, young = caller.reserve("old", ["o0"], weight_version=1), caller.reserve("young", ["n0"], weight_version=2)
    empty = caller.reserve("empty", [], weight_version=0)
    assert caller.set_version(4, retire_below=2) == Retired(rows=2, groups=2)
    removed = caller.plane.partition_info("p", 0.0).removed_rows
    assert (removed["retired"], removed["rolled_back"]) == (1, 1)
    assert caller.plane.partitions["p"].counters.groups_aborted == 2
    assert caller.commit(claimed.claim_id).consumed_rows == 0
    for reservation in (old, empty):
        with caller.refuses(Reason.GROUP_FENCED, "was retired: weight version below 2"):
            caller.finish_group(reservation.reservation_id)
    caller.put(caller.put_call(["n0"], {"a": [1]}, reservation_id=young.reservation_id))
    assert ready(caller, "score") == ("y", "z", "unknown")


# -- order -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "tag", "expected"),
    [
        ("ready", "", "abcde"),
        ("oldest_version", "", "bcdae"),
        ("newest_version", "", "adbce"),
        ("lowest_tag", "score", "dabce"),
        ("highest_tag", "score", "cbade"),
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_rows_and_groups_come_in_the_order_of_the_claim_or_of_the_policy(
    caller: Caller, order: str, tag: str, expected: str, whole: bool
) -> None:
    tags: list[Tags] = [
        {"weight_version": 7, "score": 1.25},
        {"weight_version": 2, "score": 1.5},
        {"weight_version": 2, "score": 2},
        {"weight_version": 5, "score": -3},
        {"score": "no number"},
    ]
    for name, of_row in zip("abcde", tags, strict=True):
        caller.put(caller.put_call([name], {"a": [1]}, tags=[of_row]))
    assert "".join(ready(caller, order=order, order_tag=tag, whole_groups=whole)) == expected
    caller.set_policy(None, task="score", order=order, order_tag=tag)
    assert "".join(ready(caller, "score", whole_groups=whole)) == expected


def test_a_row_whose_tag_changes_takes_its_new_place(via: AnyCaller) -> None:
    via.put("xyz", "a", tags={"score": 1})
    order = {"size": 3, "order": "highest_tag", "order_tag": "score"}
    via.release(claim := via.claim("a", **order))
    assert claim.ids == "xyz"
    via.put("zx", tags=[{"score": 2}, {"score": 0}])
    assert via.claim("a", **order).ids == "zyx"


def test_rows_that_are_retired_before_their_group_is_finished_count_as_not_put(caller: Caller) -> None:
    caller.register(num_samples=2)
    caller.reserve("old", ["o0"], weight_version=1)
    growing = caller.reserve("growing", ["n0", "n1"]).reservation_id
    tags: list[Tags] = [{"weight_version": 1}, {"weight_version": 2}]
    caller.put(caller.put_call(["n0", "n1"], {"a": [1, 1]}, tags=tags, reservation_id=growing))
    assert caller.set_version(2, retire_below=2) == Retired(rows=2, groups=1)
    caller.finish_group(growing)
    caller.commit(caller.take("a").claim_id)
    assert not caller.plane.consumption("p", ["train"]).consumed
    caller.put_rows(["more"], "a")
    caller.commit(caller.take("a").claim_id)
    assert caller.plane.consumption("p", ["train"]).consumed


def test_retiring_above_the_version_is_refused_and_removes_nothing(caller: Caller) -> None:
    caller.put(caller.put_call(["s"], {"a": [1]}, tags=[{"weight_version": 3}]))
    with caller.refuses(Reason.INVALID_REQUEST, "'p'", "retire_below 99 is above version 3"):
        caller.set_version(3, retire_below=99)
    assert (caller.plane.partition_info("p").rows, caller.plane.partition_info("p").weight_version) == (1, 3)
    assert caller.set_version(3, retire_below=3).rows == 0


@pytest.mark.parametrize("version", ["7", 1.5, -7, True, (1 << 31) - 1])
def test_a_tag_that_is_no_weight_version_is_refused_at_the_put(caller: Caller, version: Any) -> None:
    with caller.refuses(Reason.INVALID_REQUEST, "sample 's2'", "weight_version", f"got {version!r}"):
        caller.put(caller.put_call(["s1", "s2"], tags=[{"weight_version": 7}, {"weight_version": version}]))
    assert caller.plane.partition_info("p").rows == 0
    caller.put(caller.put_call(["s1", "s2"], tags=[{"weight_version": 7}, {"weight_version": None}]))


@ON_ONE_WAY
def test_what_is_wrong_in_a_policy_is_told_to_a_client_before_anything_changes(client: DataPlaneClient) -> None:
    client.register_partition("p", ["a"], 0, ["train"])
    for wrong in ({"max_staleness": -1}, {"when_stale": "forget"}, {"rows_per_version": -1}, {"order": "std"}):
        with pytest.raises(InvalidArgumentError, match=f"TaskPolicy.*{next(iter(wrong))}"):
            policies.TaskPolicy(**wrong)
    rules: list[dict[str, Any]] = [{"when_stale": "drop"}, {"when_stale": "deliver"}, {"when_excluded": "drop"}]
    for alone in rules:
        with pytest.raises(InvalidArgumentError, match=f"'train': {next(iter(alone))} .* needs"):
            client.set_policies("p", {"train": policies.TaskPolicy(**alone)})
    with pytest.raises(NotFoundError, match="'judge'"):
        client.set_policies("p", {"train": policies.TaskPolicy(3), "judge": policies.TaskPolicy()})
    with pytest.raises(InvalidArgumentError, match="tag"):
        client.claim("p", "train", ["a"], 1, order="highest_tag")
    assert client.partition("p").task("train").policy == policies.TaskPolicy()
    policy = policies.TaskPolicy(max_staleness=2, order="newest_version")
    assert client.set_policies("p", {"train": policy}).task("train").policy == policy
