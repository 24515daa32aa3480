"""Nodes of a cluster: each has its budget, its rows go with it, and claims prefer the rows of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.caller import Caller

from dataplane_server.core.calls.answers import Admitted, Failed
from dataplane_server.core.calls.life_calls import Recover, Settle
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.node_calls import AddNode, LoseNode, SetMirror
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.rows.regions import NODE_SHIFT, Mirror, Regions, node_of

BUDGET = 1024


@pytest.fixture
def cluster(new_caller: Callable[..., Caller]) -> Caller:
    """Nodes 1 and 2, of 1 KiB each, and partition p."""
    return with_two_nodes(new_caller(memory_bytes=BUDGET, cluster=True))


def with_two_nodes(caller: Caller) -> Caller:
    assert [caller.apply(AddNode(name)) for name in ("north", "south")] == [1, 2]
    caller.register(tasks=("train", "score"))
    return caller


def put(caller: Caller, sample_ids: list[str], node: int, size: int = 8, **more: object) -> None:
    lengths: Mapping[str, list[int]] = {"a": [size] * len(sample_ids)}
    caller.put(caller.put_call(sample_ids, lengths, node=node, **more))  # type: ignore[arg-type]


def test_a_full_node_makes_only_its_own_puts_wait(cluster: Caller) -> None:
    put(cluster, ["big"], 1, BUDGET)
    waiting = cluster.wait(cluster.put_call(["s1"], {"a": [8]}, node=1))
    put(cluster, ["s2"], 2)
    cluster.clear(["big"])
    assert cluster.effect(Admitted).ticket == waiting


def test_a_put_that_waits_longest_is_served_first_on_each_node(cluster: Caller) -> None:
    for node in (1, 2):
        put(cluster, [f"big{node}"], node, BUDGET)
    order = [(f"s{n}", 1 + n % 2) for n in range(6)]
    tickets = {}
    for name, node in order:
        begun = cluster.wait(cluster.put_call([name], {"a": [BUDGET // 2]}, node=node))
        tickets[begun] = name
    cluster.clear(["big2"])
    admitted = [tickets[effect.ticket] for effect in cluster.plane.take_effects() if isinstance(effect, Admitted)]
    assert admitted == ["s1", "s3"]


def test_a_put_on_a_node_that_is_unknown_or_gone_is_refused(cluster: Caller) -> None:
    cluster.apply(LoseNode(2))
    for node in (0, 2, 3):
        with cluster.refuses(Reason.NODE_LOST, f"node {node}"):
            cluster.apply(cluster.put_call(["s"], {"a": [8]}, node=node))


@pytest.mark.parametrize("flow", [{"max_rows": 2}, {"max_rows": 1, "when_full": "evict"}])
def test_a_put_on_a_lost_node_takes_no_room_in_its_partition_and_evicts_nothing(
    cluster: Caller, flow: dict[str, object]
) -> None:
    put(cluster, ["s1"], 1)
    cluster.set_flow(**flow)
    cluster.apply(LoseNode(2))
    with cluster.refuses(Reason.NODE_LOST):
        cluster.apply(cluster.put_call(["s2"], {"a": [8]}, node=2))
    cluster.begin(cluster.put_call(["s2"], {"a": [8]}, node=1))


def test_a_lost_node_takes_its_rows_and_no_others(cluster: Caller) -> None:
    put(cluster, ["n1", "n2"], 1)
    put(cluster, ["s1", "s2", "s3"], 2)
    assert cluster.apply(LoseNode(2)) == 3
    assert cluster.plane.partition_info("p").removed_rows["lost"] == 3
    assert list(cluster.take("a", batch_size=5, min_size=1).sample_ids) == ["n1", "n2"]
    story = cluster.plane.sample("p", "s1")
    assert (story.events[-1].what, story.events[-1].reason) == ("lost", "node 2 left the cluster")


def test_a_row_is_lost_with_any_node_that_has_bytes_of_it(cluster: Caller) -> None:
    put(cluster, ["empty"], 2, size=0)
    put(cluster, ["mixed"], 1)
    cluster.put(cluster.put_call(["mixed"], {"b": [8]}, node=2))
    assert cluster.apply(LoseNode(2)) == 1
    assert cluster.take("a").sample_ids == ("empty",)


def test_claimed_rows_are_lost_too_and_the_claim_goes_on_without_them(cluster: Caller) -> None:
    put(cluster, ["n1"], 1)
    put(cluster, ["s1"], 2)
    grant = cluster.take("a", batch_size=2)
    cluster.apply(LoseNode(2))
    assert cluster.commit(grant.claim_id).consumed_rows == 1


def test_a_finished_group_goes_with_one_of_its_rows(cluster: Caller) -> None:
    reserved = cluster.reserve("g", ["g1", "g2"])
    for sample_id, node in (("g1", 1), ("g2", 2)):
        put(cluster, [sample_id], node, reservation_id=reserved.reservation_id)
    cluster.finish_group(reserved.reservation_id)
    put(cluster, ["alone"], 1)
    assert cluster.apply(LoseNode(2)) == 2
    assert list(cluster.take("a", batch_size=5, min_size=1).sample_ids) == ["alone"]


def test_the_producer_of_a_reserved_group_learns_that_a_row_is_lost(cluster: Caller) -> None:
    reserved = cluster.reserve("g", ["g1", "g2"])
    put(cluster, ["g1"], 2, reservation_id=reserved.reservation_id)
    cluster.apply(LoseNode(2))
    with cluster.refuses(Reason.GROUP_FENCED, "group 'g' was lost: node 2 left the cluster"):
        cluster.finish_group(reserved.reservation_id)
    event = cluster.plane.sample("p", "g2").events[-1]
    assert (event.what, event.reason) == ("rolled_back", "node 2 left the cluster")


def test_rows_that_are_lost_before_their_group_is_finished_count_as_not_put(cluster: Caller) -> None:
    cluster.register(num_samples=3)
    reserved = cluster.reserve("g", ["g1", "g2"])
    put(cluster, ["g1"], 2, reservation_id=reserved.reservation_id)
    put(cluster, ["s1"], 2)
    put(cluster, ["s2"], 1)
    assert cluster.apply(LoseNode(2)) == 3
    removed = cluster.plane.partition_info("p").removed_rows
    assert (removed["lost"], removed["rolled_back"]) == (1, 2)
    cluster.commit(cluster.take("a").claim_id)
    assert not cluster.plane.consumption("p", ["train"]).consumed


@pytest.mark.parametrize("waits", ["for space", "for room in its partition"])
def test_writes_that_wait_for_a_lost_node_end(cluster: Caller, waits: str) -> None:
    put(cluster, ["big"], 2 if waits == "for space" else 1, BUDGET)
    cluster.set_flow(max_rows=None if waits == "for space" else 1)
    cluster.wait(cluster.put_call(["s1"], {"a": [8]}, node=2))
    cluster.apply(LoseNode(2))
    assert cluster.effect(Failed).refusal.reason is Reason.NODE_LOST


def test_a_write_whose_bytes_a_lost_node_had_makes_no_row(cluster: Caller) -> None:
    begun = cluster.begin(cluster.put_call(["s1"], {"a": [8]}, node=2))
    cluster.apply(LoseNode(2))
    with pytest.raises(Refusal, match="node 2 has left the cluster"):
        cluster.finish(begun.ticket)
    assert (cluster.plane.totals().rows, cluster.used) == (0, 0)


def test_an_arena_that_comes_back_has_its_number_and_rows_and_one_that_was_lost_another(cluster: Caller) -> None:
    put(cluster, ["s1"], 2)
    assert cluster.apply(AddNode("south")) == 2
    assert len(cluster.take("a").sample_ids) == 1
    cluster.apply(LoseNode(2))
    assert cluster.apply(AddNode("south")) == 3
    put(cluster, ["s1"], 3)


def test_a_reader_of_a_lost_row_keeps_its_bytes_from_nothing(cluster: Caller) -> None:
    put(cluster, ["s1"], 2)
    plan = cluster.read(["s1"], "a")
    cluster.apply(LoseNode(2))
    assert node_of(plan.runs[0].offset) == 2
    assert cluster.used == 8, "until the read ends"


# -- mirrors -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def mirrored(cluster: Caller) -> Caller:
    """The same cluster with a node 3; node 2 has a row s1, and its mirror on 3."""
    assert cluster.apply(AddNode("west")) == 3
    put(cluster, ["s1"], 2)
    assert cluster.apply(SetMirror(2, 3, "m")) == 0
    return cluster


def test_a_node_that_ends_lives_on_in_its_mirror(mirrored: Caller) -> None:
    mirrored.wait(mirrored.put_call(["big"], {"a": [BUDGET]}, node=2))
    assert mirrored.apply(LoseNode(2)) == 0
    mirrored.effect(Failed)
    with mirrored.refuses(Reason.NODE_LOST, "node 2"):
        mirrored.apply(mirrored.put_call(["s"], {"a": [8]}, node=2))
    (run,) = mirrored.read(["s1"], "a").runs
    assert node_of(run.offset) == 2
    assert (mirrored.plane.versions(np.array([run.offset]), np.array([8])) == 0).all()
    assert list(mirrored.take("a").sample_ids) == ["s1"]


def test_a_node_that_lived_on_in_its_mirror_is_lost_with_it(mirrored: Caller) -> None:
    put(mirrored, ["w1", "w2"], 3)
    mirrored.apply(LoseNode(2))
    assert mirrored.apply(LoseNode(3)) == 3
    assert mirrored.plane.sample("p", "s1").events[-1].reason == "node 2 left the cluster"
    assert [region.number for region in mirrored.plane.nodes()] == [1]


FORGET = SetMirror(2, 3, "")


@pytest.mark.parametrize(
    ("calls", "lost"),
    [
        pytest.param([FORGET, LoseNode(2), LoseNode(2), LoseNode(7)], [0, 1, 0, 0], id="a node without mirror, once"),
        pytest.param([LoseNode(3), LoseNode(2)], [0, 1], id="a node whose mirror ended before"),
        pytest.param([LoseNode(2), FORGET], [0, 1], id="a mirror that is forgotten"),
        pytest.param([LoseNode(2), SetMirror(2, 1, "n"), LoseNode(3), LoseNode(1)], [0, 0, 0, 1], id="the last mirror"),
    ],
)
def test_a_row_is_lost_when_neither_its_node_nor_a_mirror_has_it(
    mirrored: Caller, calls: list[LoseNode | SetMirror], lost: list[int]
) -> None:
    assert [mirrored.apply(call) for call in calls] == lost
    assert mirrored.plane.partition_info("p").removed_rows["lost"] == 1


def test_a_mirror_takes_the_place_of_a_former_one_on_its_node(mirrored: Caller) -> None:
    mirrored.apply(SetMirror(2, 3, "newer"))
    assert mirrored.plane.mirrors_of(2) == (Mirror(3, "newer"),)


def test_a_node_that_has_ended_is_forgotten_with_its_last_byte(mirrored: Caller) -> None:
    mirrored.apply(LoseNode(2))
    mirrored.clear(["s1"])
    assert [region.number for region in mirrored.plane.nodes()] == [1, 3]


def test_a_node_that_has_ended_is_forgotten_with_its_last_byte_though_other_bytes_are_still_deferred(
    mirrored: Caller,
) -> None:
    mirrored.apply(Recover(False, defer_frees=True))
    put(mirrored, ["n1"], 1)
    mirrored.apply(LoseNode(2))
    mirrored.clear(["s1"])
    assert [region.number for region in mirrored.plane.nodes()] == [1, 2, 3], "the disk may still have its row"
    mirrored.clear(["n1"])
    mirrored.apply(Settle(1))
    assert [region.number for region in mirrored.plane.nodes()] == [1, 3]
    mirrored.apply(Settle(2))
    assert mirrored.used == 0


def test_a_node_without_bytes_leaves_nothing_to_its_mirror(mirrored: Caller) -> None:
    mirrored.apply(SetMirror(1, 3, "n"))
    mirrored.apply(LoseNode(1))
    assert [region.number for region in mirrored.plane.nodes()] == [2, 3]


def test_an_arena_that_comes_back_after_its_node_ended_is_a_new_node(mirrored: Caller) -> None:
    mirrored.apply(LoseNode(2))
    assert mirrored.apply(AddNode("south")) == 4


def test_no_mirror_is_on_a_node_that_is_not_there_or_has_ended(mirrored: Caller) -> None:
    mirrored.apply(LoseNode(2))
    for node in (2, 7):
        with mirrored.refuses(Reason.NODE_LOST, f"node {node}"):
            mirrored.apply(SetMirror(1, node, "n"))
    with mirrored.refuses(Reason.NODE_LOST, "node 7"):
        mirrored.apply(SetMirror(7, 1, "n"))


def test_a_mirror_may_itself_live_on_in_one(mirrored: Caller) -> None:
    """But the mirrors that it had do not."""
    mirrored.apply(SetMirror(3, 1, "n"))
    put(mirrored, ["w1"], 3)
    assert [mirrored.apply(LoseNode(number)) for number in (3, 2)] == [0, 1]
    assert list(mirrored.take("a").sample_ids) == ["w1"]


# -- locality ----------------------------------------------------------------------------------------------------------


def claim(caller: Caller, node: int, size: int, **more: object) -> list[str]:
    return list(caller.take("a", batch_size=size, min_size=1, node=node, **more).sample_ids)


def test_a_claim_takes_the_first_row_and_then_those_of_its_node(cluster: Caller) -> None:
    for n in range(8):
        put(cluster, [f"s{n}"], 1 + n % 2)
    assert claim(cluster, 2, 3) == ["s0", "s1", "s3"]
    assert claim(cluster, 1, 3) == ["s2", "s4", "s6"]
    assert claim(cluster, 1, 3) == ["s5", "s7"]


def take_all(caller: Caller, names: list[str], take: Callable[[], list[str]]) -> None:
    """Each is taken once, and none is passed over for ever."""
    taken: list[str] = []
    while len(taken) < len(names):
        first, got = next(name for name in names if name not in taken), take()
        assert first in got
        taken += got
    assert sorted(taken) == sorted(names)
    caller.plane.check_invariants()
    caller.plane.check_replay()


@given(st.lists(st.sampled_from([1, 2]), min_size=1, max_size=40), st.data())
def test_each_row_is_claimed_once_and_none_is_passed_over_for_ever(nodes: list[int], data: st.DataObject) -> None:
    caller = with_two_nodes(Caller(Limits(memory_bytes=BUDGET, cluster=True)))
    for n, node in enumerate(nodes):
        put(caller, [f"s{n}"], node)
    at = st.sampled_from([1, 2]), st.integers(1, 4)
    take_all(caller, [f"s{n}" for n in range(len(nodes))], lambda: claim(caller, *map(data.draw, at)))


# -- locality of groups ------------------------------------------------------------------------------------------------


def put_group(caller: Caller, name: str, *nodes: int, size: int = 8, tokens: int = 1) -> None:
    """A group with a row on each of the nodes."""
    reserved = caller.reserve(name, [])
    for row, node in enumerate(nodes):
        more = {"reservation_id": reserved.reservation_id, "add_to_group": True, "sequence_lengths": [tokens]}
        put(caller, [f"{name}.{row}"], node, size, **more)
    caller.finish_group(reserved.reservation_id)


def claim_groups(caller: Caller, node: int, size: int, **more: object) -> list[str]:
    """The names of the groups; all of their rows are in the claim, side by side."""
    grant = caller.take("a", batch_size=size, min_size=1, node=node, whole_groups=True, **more)
    ids = iter(grant.sample_ids)
    assert all(next(ids) == f"{part.group_id}.{row}" for part in grant.groups for row in range(part.rows))
    return [part.group_id for part in grant.groups]


@pytest.mark.parametrize(
    ("node", "first", "second"),
    [(2, ["g0", "g1", "g3"], ["g2", "g5", "g7"]), (0, ["g0", "g1", "g2"], ["g3", "g4", "g5"])],
    ids=["in a cluster", "of no node"],
)
@pytest.mark.parametrize("order", ["ready", "oldest_version"])
def test_a_claim_takes_the_first_group_and_then_those_of_its_node(
    cluster: Caller, node: int, first: list[str], second: list[str], order: str
) -> None:
    for n in range(8):
        put_group(cluster, f"g{n}", *[1 + n % 2] * 2)
    assert claim_groups(cluster, node, 3, order=order) == first
    assert claim_groups(cluster, node, 3, order=order) == second
    left = [f"g{n}" for n in range(8) if f"g{n}" not in first + second]
    assert claim_groups(cluster, 0, 8, order=order) == left, "in their places"


def test_a_group_counts_by_its_first_row_that_has_bytes(cluster: Caller) -> None:
    put_group(cluster, "first", 1)
    put_group(cluster, "far", 1, 2, 2)
    put_group(cluster, "near", 2, 1)
    put_group(cluster, "nowhere", 2, size=0)
    reserved = cluster.reserve("late", ["late.0", "late.1"])
    for row, size in enumerate((0, 8)):
        put(cluster, [f"late.{row}"], 2, size, reservation_id=reserved.reservation_id)
    cluster.finish_group(reserved.reservation_id)
    assert claim_groups(cluster, 2, 3) == ["first", "near", "late"]
    put_group(cluster, "last", 2)
    assert claim_groups(cluster, 2, 3) == ["far", "nowhere", "last"], "in order of the queue"


@pytest.mark.parametrize(("unit", "size"), [("groups", 2), ("rows", 4)])
def test_a_claim_of_groups_looks_at_four_times_its_size(cluster: Caller, unit: str, size: int) -> None:
    for n in range(8):
        put_group(cluster, f"far{n}", 1, 1)
    put_group(cluster, "near", 2, 2)
    assert claim_groups(cluster, 2, size, unit=unit) == ["far0", "far1"], "the near group is beyond the first eight"
    assert claim_groups(cluster, 2, size, unit=unit) == ["far2", "near"]


@pytest.mark.parametrize("bound", [{"max_tokens": 40}, {"unit": "rows"}], ids=str)
def test_a_claim_that_prefers_groups_keeps_to_its_rows_and_tokens(cluster: Caller, bound: dict[str, object]) -> None:
    for n in range(4):
        put_group(cluster, f"g{n}", *[1 + n % 2] * 2, tokens=10)
    assert claim_groups(cluster, 2, 4, **bound) == ["g0", "g1"]
    assert claim_groups(cluster, 2, 4, **bound) == ["g2", "g3"]


@given(st.lists(st.lists(st.sampled_from([1, 2]), min_size=1, max_size=3), min_size=1, max_size=16), st.data())
def test_each_group_is_claimed_once_and_none_is_passed_over_for_ever(
    groups: list[list[int]], data: st.DataObject
) -> None:
    caller = with_two_nodes(Caller(Limits(memory_bytes=BUDGET, cluster=True)))
    for n, nodes in enumerate(groups):
        put_group(caller, f"g{n}", *nodes, tokens=data.draw(st.integers(0, 5)))

    def take() -> list[str]:
        bounds = {"unit": data.draw(st.sampled_from(["rows", "groups"])), "max_tokens": data.draw(st.integers(0, 9))}
        return claim_groups(caller, data.draw(st.sampled_from([1, 2])), data.draw(st.integers(1, 4)), **bounds)

    take_all(caller, [f"g{n}" for n in range(len(groups))], take)


# -- locality of shards ------------------------------------------------------------------------------------------------


def take_step(caller: Caller, step: int, nodes: tuple[int, ...] = (2, 1), **asked: object) -> list[list[str]]:
    """The shards of a step; rank i calls on node nodes[i]."""
    asked = {"dp_world": len(nodes), "batch_size": 8, **asked}
    calls = enumerate(nodes)
    return [
        list(caller.take_shard("a", step=step, dp_rank=rank, node=node, **asked).sample_ids) for rank, node in calls
    ]


def put_steps(caller: Caller, steps: int) -> None:
    """Eight rows of one length for each step, two and two on nodes 1 and 2; the name of a row begins with its node."""
    for n in range(8 * steps):
        node = 1 + n // 2 % 2
        put(caller, [f"{node}-{n}"], node, sequence_lengths=[10])


def at_home(shards: list[list[str]], nodes: tuple[int, ...] = (2, 1)) -> int:
    return sum(int(name[0]) == node for shard, node in zip(shards, nodes, strict=True) for name in shard)


@pytest.mark.parametrize("balance", ["rows", "tokens"])
def test_from_the_second_step_on_ranks_get_the_rows_of_their_nodes(cluster: Caller, balance: str) -> None:
    put_steps(cluster, 3)
    assert [at_home(take_step(cluster, step, balance=balance)) for step in range(3)] == [4, 8, 8]


def test_the_first_step_knows_the_ranks_that_wait_for_it(cluster: Caller) -> None:
    for rank, node in enumerate((2, 1)):
        cluster.wait(cluster.shard_call("a", dp_rank=rank, node=node, batch_size=8))
    put_steps(cluster, 1)
    assert at_home(take_step(cluster, 0)) == 8


def test_all_callers_of_a_rank_get_its_rows_wherever_they_are(cluster: Caller) -> None:
    put_steps(cluster, 2)
    take_step(cluster, 0)
    assert take_step(cluster, 1) == take_step(cluster, 1, (1, 2)) == take_step(cluster, 1, (0, 0))


def test_a_rank_is_where_it_called_last_for_any_step(cluster: Caller) -> None:
    put_steps(cluster, 2)
    take_step(cluster, 0, (1, 2))
    take_step(cluster, 0, (2, 1))
    assert at_home(take_step(cluster, 1)) == 8


@pytest.mark.parametrize("forget", ["reset", "outside", "other ranks"])
def test_ranks_whose_nodes_are_not_known_get_rows_in_order(cluster: Caller, forget: str) -> None:
    put_steps(cluster, 3)
    take_step(cluster, 0)
    if forget == "reset":
        cluster.reset()
    elif forget == "outside":
        take_step(cluster, 1, (0, 0))
    else:
        take_step(cluster, 1, (2, 1, 2, 1))
    assert at_home(take_step(cluster, 2)) == 4


@pytest.mark.parametrize(("balance", "home"), [("rows", 4), ("tokens", 4), ("groups", 2)])
def test_groups_are_exchanged_unless_they_are_split_in_order(cluster: Caller, balance: str, home: int) -> None:
    for n in range(8):
        put_group(cluster, f"{1 + n % 2}-{n}", *[1 + n % 2] * 2)
    _, shards = (take_step(cluster, n, balance=balance, whole_groups=True, batch_size=4) for n in range(2))
    assert at_home(shards) == 2 * home
    assert [[name[-1] for name in shard] for shard in shards] == [["0", "1"] * 2] * 2


# -- versions of runs --------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 255), unique=True, min_size=1), st.integers(0, (1 << 20) - 1), st.integers(1, 1 << 16))
def test_the_version_of_a_range_changes_when_any_of_its_bytes_is_released(
    pieces: list[int], start: int, size: int
) -> None:
    regions = Regions()
    regions.add("one", 1 << 20)
    assert regions.allocate_columns(np.array([[1 << 20]]), 1) is not None
    end = min(start + size, 1 << 20)
    watched = np.array([start]), np.array([end])
    for piece in pieces:
        before = regions.region(1).versions(*watched)
        regions.release_rows(np.array([(1 << NODE_SHIFT) + piece * 4096]), np.array([4096]))
        if piece * 4096 < end and start < (piece + 1) * 4096:
            assert (regions.region(1).versions(*watched) > before).all()


def test_versions_far_from_a_release_stay() -> None:
    regions = Regions()
    regions.add("one", 1 << 30)
    assert regions.allocate_columns(np.array([[1 << 30]]), 1) is not None
    far = np.array([1 << 29]), np.array([(1 << 29) + 4096])
    before = regions.region(1).versions(*far)
    regions.release_rows(np.array([1 << NODE_SHIFT]), np.array([1 << 20]))
    assert (regions.region(1).versions(*far) == before).all()


def test_a_claim_that_waits_for_rows_of_a_dead_node_is_told_so_until_others_come(cluster: Caller) -> None:
    put(cluster, ["s1", "s2"], 2)
    cluster.now += 1
    cluster.apply(LoseNode(2))
    cluster.now += 5
    claim = cluster.claim_call("a", batch_size=2)
    cluster.apply(claim)
    (wait,) = cluster.plane.explain_waits("p", "train", cluster.now).waits
    text = "2 rows were lost with nodes, the last 5.0 s ago, and none has come since"
    assert (wait.findings[0].cause, wait.findings[0].text) == ("node_lost", text)
    cluster.now += 1
    put(cluster, ["s3"], 1)
    (wait,) = cluster.plane.explain_waits("p", "train", cluster.now).waits
    assert "node_lost" not in [finding.cause for finding in wait.findings]
