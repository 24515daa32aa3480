"""slime's data source on the data plane: what is drawn, given back, used, saved, and there again after a kill."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.integration.failpoints.lives import Lives

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import (
    ClaimTimeoutError,
    DataPlaneError,
    DeadlineError,
    InvalidArgumentError,
    OutOfSpaceError,
    UnavailableError,
)
from dataplane_slime import DataPlaneDataSource, convert_samples_to_train_data, note_rollout
from dataplane_slime.tests.samples import Prompts, Sample, Status, generated

NewSource = Callable[..., DataPlaneDataSource]


@pytest.fixture
def new_source(address: str, tmp_path: Path) -> Iterator[NewSource]:
    """Data sources, which are closed at the end. Without prompts, another one puts groups."""
    made: list[DataPlaneDataSource] = []

    def make(prompts: bool = True, **settings: Any) -> DataPlaneDataSource:
        path = f"{Prompts.__module__}.{Prompts.__name__}" if prompts else ""
        given: dict[str, Any] = {"data_plane_address": address, "data_plane_prompts": path, "save": str(tmp_path)}
        made.append(DataPlaneDataSource(SimpleNamespace(**{**given, **settings}), sample_type=Sample))
        return made[-1]

    yield make
    for source in made:
        source.close()
        source.close()


def prompts_of(groups: list[list[Sample]]) -> list[str]:
    assert all(len({sample.prompt for sample in group}) == 1 and len(group) == 2 for group in groups)
    return [group[0].prompt for group in groups]


def without_name(group: list[Sample]) -> list[dict[str, Any]]:
    return [{**sample.to_dict(), "metadata": None} for sample in group]


EXPERTS = np.arange(8, dtype=np.int32).reshape(2, 2, 2)


@pytest.mark.parametrize(
    "changes",
    [
        ({}, {}),
        ({"tokens": [1, 2], "loss_mask": [1, 0]}, {"tokens": [3], "loss_mask": [1]}),
        ({"tokens": [1], "rollout_log_probs": [0.1]}, {"tokens": [2], "rollout_log_probs": None}),
        ({"rollout_routed_experts": EXPERTS}, {"rollout_routed_experts": EXPERTS[:1]}),
        ({"reward": {"math": 0.5}, "status": Status.TRUNCATED}, {"weight_versions": ["3", "default"]}),
    ],
)
def test_samples_come_back_as_they_were_put(new_source: NewSource, changes: tuple[dict[str, Any], ...]) -> None:
    source = new_source(prompts=False)
    group = [Sample(4, index, "p", metadata={"task": "math"}, **change) for index, change in enumerate(changes)]
    source.add_samples([group])
    (drawn,) = source.get_samples(1)
    np.testing.assert_equal(without_name(drawn), without_name(group))
    assert drawn[0].metadata["task"] == "math"


def test_groups_that_were_given_back_are_drawn_before_new_prompts(new_source: NewSource) -> None:
    source = new_source()
    groups = source.get_samples(3)
    assert prompts_of(groups) == ["p0", "p1", "p2"]
    partial = generated(groups[1], 3, Status.ABORTED)
    source.add_samples([partial])
    again = source.get_samples(2)
    assert prompts_of(again) == ["p1", "p3"]
    assert again[0] == partial
    assert len(source) == 1000


def test_partial_rollouts_outlive_the_process(client: DataPlaneClient, new_source: NewSource) -> None:
    former = new_source()
    first, second = former.get_samples(2)
    former.add_samples([generated(first, 3, Status.ABORTED)])
    resumed = new_source()  # the server does not know that the other one is dead
    resumed.load()
    groups = resumed.get_samples(3)
    assert prompts_of(groups) == ["p0", "p1", "p2"]
    assert groups[0] == first
    assert groups[1] == second
    assert client.list_samples("slime").meta.tags[0]["weight_version"] == 3  # type: ignore[index]


def rollout(source: DataPlaneDataSource, tells: bool, count: int = 2) -> list[str]:
    """Draw, generate, and train on some groups."""
    groups = [generated(group, 1) for group in source.get_samples(count)]
    if tells:
        note_rollout(SimpleNamespace(), groups, source)
    return prompts_of(groups)


@pytest.mark.parametrize("tells", [True, False])
def test_a_run_that_is_killed_and_resumed_trains_on_every_prompt_once(
    client: DataPlaneClient, new_source: NewSource, tells: bool
) -> None:
    killed = new_source()
    killed.load(-1)
    trained = rollout(killed, tells) + rollout(killed, tells)
    killed.save(1)
    assert client.partition("slime").rows == 0
    rollout(killed, tells)  # not saved
    killed.get_samples(1)
    resumed = new_source()
    resumed.load(1)
    trained += rollout(resumed, tells) + rollout(resumed, tells)
    resumed.save(3)
    assert trained == [f"p{number}" for number in range(8)]
    assert client.partition("slime").rows == 0


def test_a_group_that_is_in_flight_during_a_save_is_not_lost(new_source: NewSource) -> None:
    killed = new_source()
    rollout(killed, tells=True)
    rollout(killed, tells=True)  # ahead of training: it is saved with the next rollout
    in_flight = killed.get_samples(1)
    killed.save(0)
    resumed = new_source()
    resumed.load(0)
    assert prompts_of(resumed.get_samples(4)) == ["p2", "p3", *prompts_of(in_flight), "p5"]


def test_a_loop_that_calls_no_hook_tells_what_it_used_by_the_conversion(
    client: DataPlaneClient, new_source: NewSource
) -> None:
    killed = new_source(rollout_all_samples_process_path="dataplane_slime.note_rollout")
    used, *in_flight = killed.get_samples(4)
    for sample in generated(used, 1):
        sample.reward = 1.0
    convert_samples_to_train_data(SimpleNamespace(), [used])
    killed.save(0)
    assert client.partition("slime").rows == 2 * len(in_flight)
    resumed = new_source()
    resumed.load(0)
    assert prompts_of(resumed.get_samples(4)) == [*prompts_of(in_flight), "p4"]


def test_groups_that_both_functions_name_count_once(new_source: NewSource) -> None:
    source = new_source(rollout_all_samples_process_path="dataplane_slime.note_rollout")
    for step in range(2):
        (group,) = source.get_samples(1)
        group[0].reward = group[1].reward = 1.0
        note_rollout(args=None, all_groups=[group], data_source=source)
        convert_samples_to_train_data(SimpleNamespace(), [group])
        source.save(step)
    source.load(1)
    assert prompts_of(source.get_samples(1)) == ["p2"]


def test_groups_that_a_rollout_aborted_are_not_done_with(client: DataPlaneClient, new_source: NewSource) -> None:
    source = new_source()
    done, aborted = source.get_samples(2)
    groups = [generated(done, 1), generated(aborted, 1, Status.ABORTED)]
    source.note_rollout([[samples] for samples in groups])  # lists in lists
    source.add_samples([aborted])
    source.save(0)
    assert client.partition("slime").rows == 2
    assert prompts_of(source.get_samples(1)) == [aborted[0].prompt]


def test_groups_that_are_too_stale_are_removed(new_source: NewSource) -> None:
    source = new_source(data_plane_max_staleness=1)
    groups = source.get_samples(3)
    for version, group in enumerate(groups):
        source.add_samples([generated(group, version, Status.ABORTED)])
    assert prompts_of(source.get_samples(3)) == ["p1", "p2", "p3"]


def test_a_source_without_prompts_waits_for_the_groups_that_others_put(new_source: NewSource) -> None:
    source = new_source(prompts=False, data_plane_timeout_s=0.05, n_samples_per_prompt=2)
    feeder = new_source(prompts=False)
    assert len(source) == 0
    feeder.add_samples([[Sample(None, index, "p") for index in range(2)]])
    assert len(source) == 1
    with pytest.raises(ClaimTimeoutError, match="1 ready"):
        source.get_samples(2)
    assert prompts_of(feeder.get_samples(1)) == ["p"]  # it was not kept


def test_without_time_to_wait_what_is_there_is_drawn(new_source: NewSource) -> None:
    source = new_source(prompts=False, data_plane_timeout_s=0)
    assert source.get_samples(2) == []
    source.add_samples([[Sample(None, index, "p") for index in range(2)]])
    assert prompts_of(source.get_samples(2)) == ["p"]
    assert source.get_samples(1) == []
    source.save(0)  # the group was drawn, and counts as used
    assert len(source) == 0


def test_without_time_to_wait_a_source_of_prompts_is_asked_once(new_source: NewSource) -> None:
    source = new_source(data_plane_timeout_s=0)
    assert prompts_of(source.get_samples(2)) == ["p0", "p1"]
    left: list[list[list[Sample]]] = [[]]
    source._prompts = SimpleNamespace(get_samples=lambda _: left.pop())  # IndexError the second time
    assert source.get_samples(1) == []


def test_prompts_that_are_all_there_already_do_not_make_drawing_endless(new_source: NewSource) -> None:
    holder = new_source()
    holder.get_samples(2)
    source = new_source(data_plane_timeout_s=0.05)
    source._prompts = SimpleNamespace(get_samples=lambda count: Prompts(SimpleNamespace(save="")).get_samples(1))
    with pytest.raises(ClaimTimeoutError):
        source.get_samples(1)


def test_a_source_of_prompts_that_is_at_its_end_is_asked_once(new_source: NewSource) -> None:
    source = new_source(data_plane_timeout_s=0.5)
    left: list[list[list[Sample]]] = [[]]
    source._prompts = SimpleNamespace(get_samples=lambda _: left.pop())  # IndexError the second time
    with pytest.raises(ClaimTimeoutError):
        source.get_samples(1)


def test_groups_are_not_drawn_when_the_source_of_prompts_fails_on_the_way(new_source: NewSource) -> None:
    source = new_source()
    prompts: Any = source._prompts
    failures = [OSError("no more pages")]

    def next_prompt(_: int) -> list[list[Sample]]:
        groups: list[list[Sample]] = prompts.get_samples(1)
        if groups[0][0].prompt == "p1" and failures:
            prompts._next -= 1  # it comes with the next call
            raise failures.pop()
        return groups

    source._prompts = SimpleNamespace(get_samples=next_prompt, save=prompts.save)
    with pytest.raises(OSError, match="no more pages"):
        source.get_samples(2)
    source.save(0)  # takes what is drawn as used
    assert prompts_of(source.get_samples(2)) == ["p0", "p1"]


def test_prompts_that_could_not_be_put_come_again(new_source: NewSource, monkeypatch: pytest.MonkeyPatch) -> None:
    source = new_source()
    put, failures = DataPlaneDataSource._put, [OutOfSpaceError("full")]

    def may_fail(self: DataPlaneDataSource, group: Any) -> None:
        if failures:
            raise failures.pop()
        put(self, group)

    monkeypatch.setattr(DataPlaneDataSource, "_put", may_fail)
    with pytest.raises(OutOfSpaceError):
        source.get_samples(1)
    failures.append(OutOfSpaceError("full"))
    with pytest.raises(OutOfSpaceError):
        source.save(0)  # the source of prompts would go on behind it
    assert prompts_of(source.get_samples(2)) == ["p0", "p1"]


@pytest.mark.parametrize("error", [DeadlineError, UnavailableError])
def test_a_draw_that_is_not_answered_is_made_again_and_asks_for_no_new_prompts(
    client: DataPlaneClient, new_source: NewSource, monkeypatch: pytest.MonkeyPatch, error: type[DataPlaneError]
) -> None:
    source = new_source()
    claim, failures = source._client.claim, [error("no answer before the deadline")] * 2

    def may_fail(*args: Any, **settings: Any) -> Any:
        if failures:
            raise failures.pop()
        return claim(*args, **settings)

    monkeypatch.setattr(source._client, "claim", may_fail)
    assert prompts_of(source.get_samples(2)) == ["p0", "p1"]
    assert client.partition("slime").rows == 4


@pytest.mark.parametrize("settings", [{}, {"prompts": False, "data_plane_timeout_s": 0}])
def test_a_draw_waits_for_the_next_life_of_a_durable_server(
    durable: Lives, new_source: NewSource, settings: dict[str, Any]
) -> None:
    source = new_source(data_plane_address=durable.address, **settings)
    source.add_samples([[Sample(index=index, prompt="p") for index in range(2)]])
    durable.end()
    with ThreadPoolExecutor(1) as threads:
        drawn = threads.submit(source.get_samples, 1)
        assert durable.begin() is None, durable.log
        assert prompts_of(drawn.result(200.0)) == ["p"]


def test_a_prompt_that_a_dead_process_has_reserved_is_drawn_when_its_session_is_over(
    client: DataPlaneClient, address: str, new_source: NewSource
) -> None:
    source = new_source()
    with connect(address) as dead:
        dead.reserve_group("slime", "0", ["0/0", "0/1"])
        timer = threading.Timer(1.0, dead.close)
        timer.start()
        assert prompts_of(source.get_samples(1)) == ["p0"]
        timer.join()


def test_a_group_whose_claim_the_server_has_ended_can_still_be_given_back(
    client: DataPlaneClient, new_source: NewSource
) -> None:
    source = new_source()
    first, second = source.get_samples(2)
    client.reset("slime", "rollout")  # as when the session expires
    source.add_samples([generated(first, 1)])
    source.note_rollout([second])
    assert source.get_samples(1) == [first]


def test_a_group_that_slime_still_has_is_not_drawn_again(client: DataPlaneClient, new_source: NewSource) -> None:
    source = new_source()
    first, second = source.get_samples(2)
    client.reset("slime", "rollout")  # as when the session expires
    assert prompts_of(source.get_samples(1)) == ["p2"]
    source.add_samples([generated(first, 1, Status.ABORTED)])
    source.note_rollout([second])
    assert source.get_samples(1) == [first]


def test_a_group_that_another_process_has_drawn_meanwhile_stays_as_that_one_has_it(
    client: DataPlaneClient, new_source: NewSource
) -> None:
    late, source = new_source(), new_source()
    (drawn,) = late.get_samples(1)
    client.reset("slime", "rollout")  # as when the session expires
    (again,) = source.get_samples(1)
    late.add_samples([generated(drawn, 1)])
    source.add_samples([again])
    assert source.get_samples(1) == [again]


@pytest.mark.parametrize("expired", [True, False])
def test_a_group_that_is_gone_is_given_back_in_vain(
    client: DataPlaneClient, new_source: NewSource, expired: bool
) -> None:
    source = new_source()
    gone, there = source.get_samples(2)
    client.clear_samples(["0/0"], "slime")
    if expired:
        client.reset("slime", "rollout")  # as when the session expires
    source.add_samples([generated(gone, 1), generated(there, 1)])
    assert source.get_samples(1) == [there]


def test_other_tasks_may_have_a_group_that_is_given_back(client: DataPlaneClient, new_source: NewSource) -> None:
    source = new_source()
    (group,) = source.get_samples(1)
    client.extend_partition("slime", consumer_tasks=["judge"])
    client.claim("slime", "judge", ["sample"], 2).commit()
    client.reset("slime", "rollout")  # as when the session expires
    source.add_samples([generated(group, 1)])
    assert source.get_samples(1) == [group]


def test_a_group_that_could_not_be_given_back_can_be_given_back_again_or_is_drawn_as_it_was(
    new_source: NewSource,
) -> None:
    source = new_source()
    first, second = source.get_samples(2)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="3 rows, but the call names 2 samples"):
            source.add_samples([generated(first, 1), [*second, second[0]]])
    source.add_samples([first, generated(second, 1)])
    assert source.get_samples(2) == [first, second]
    with pytest.raises(InvalidArgumentError):
        source.add_samples([[*second, second[0]]])
    assert source.get_samples(1) == [second]


def test_groups_that_slime_aborts_and_does_not_give_back_are_drawn_again(
    client: DataPlaneClient, new_source: NewSource
) -> None:
    source = new_source()
    done, *aborted = source.get_samples(3)
    note_rollout(SimpleNamespace(partial_rollout=False), [generated(done, 1)], source)
    source.save(0)
    assert prompts_of(source.get_samples(3)) == [*prompts_of(aborted), "p3"]
    assert client.partition("slime").rows == 6


def test_staleness_counts_from_the_newest_token(client: DataPlaneClient, new_source: NewSource) -> None:
    source = new_source(data_plane_max_staleness=1)
    old, new = source.get_samples(2)
    old[0].weight_versions, new[0].weight_versions = ["6"], ["7", "9"]
    source.add_samples([old, new])
    assert client.partition("slime").weight_version == 9
    assert client.partition("slime").removed_rows["filtered"] == 2 * len(old)


def test_versions_of_a_resumed_process_follow_those_before_it(client: DataPlaneClient, new_source: NewSource) -> None:
    killed = new_source(data_plane_max_staleness=2)
    killed.add_samples([generated(killed.get_samples(2)[0], 50, Status.ABORTED)])
    resumed = new_source(data_plane_max_staleness=2)
    resumed.load()
    for version in (1, 2):
        groups = resumed.get_samples(2)
        assert prompts_of(groups) == ["p0", "p1"]
        resumed.add_samples([generated(group, version, Status.ABORTED) for group in groups])
        assert client.partition("slime").weight_version == 50 + version
    tags = client.list_samples("slime").meta.tags or []
    assert sorted(each["weight_version"] for each in tags) == [50, 50, 51, 51]  # type: ignore[type-var]
    assert [sample.weight_versions for sample in resumed.get_samples(1)[0]] == [["50", "1", "2"]] * 2


def test_a_version_that_the_server_did_not_learn_is_told_again(
    client: DataPlaneClient, new_source: NewSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = new_source()
    (group,) = source.get_samples(1)
    with monkeypatch.context() as patch:
        patch.setattr(DataPlaneClient, "set_weight_version", None)
        with pytest.raises(TypeError):
            source.add_samples([generated(generated(group, 6), 7)])
    source.add_samples([group])
    assert client.partition("slime").weight_version == 7


def test_slime_is_needed_for_its_classes_only(address: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="slime"):
        DataPlaneDataSource(SimpleNamespace(data_plane_address=address))
