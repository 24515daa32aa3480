"""Staleness, orders and retired versions through a client, over both transports."""

from __future__ import annotations

import pytest
import torch

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import ClaimTimeoutError, GroupFencedError, InvalidArgumentError, NotFoundError
from dataplane_client.policies import TaskPolicy


@pytest.fixture
def client(client: DataPlaneClient) -> DataPlaneClient:
    client.register_partition("p", ["x"], 8, ["train", "score"])
    return client


def put(client: DataPlaneClient, *versions: int) -> None:
    names = [f"v{version}" for version in versions]
    tags = [{"weight_version": version} for version in versions]
    client.put_samples(names, "p", {"x": torch.arange(len(names))}, tags)


def test_a_task_gets_no_row_beyond_its_bound_and_its_claims_tell_the_staleness(client: DataPlaneClient) -> None:
    put(client, 3, 5, 7)
    description = client.set_policies("p", {"train": TaskPolicy(max_staleness=2, order="newest_version")})
    train = next(task for task in description.tasks if task.task == "train")
    assert train.policy == TaskPolicy(max_staleness=2, order="newest_version")
    assert (train.stale_rows, description.weight_version) == (1, 7)
    with client.claim("p", "train", ["x"], 8, min_size=1) as claim:
        assert claim.meta.sample_ids == ["v7", "v5"]
        assert claim.staleness == [0, 2]
    with pytest.raises(ClaimTimeoutError, match="1 of 1 untaken rows are staler than max_staleness 2"):
        client.claim("p", "train", ["x"], 1, timeout_s=0)
    with client.claim("p", "score", ["x"], 8, min_size=1, order="oldest_version") as claim:
        assert claim.meta.sample_ids == ["v3", "v5", "v7"]


def test_the_trainer_retires_old_rows_and_groups_and_producers_are_told_before(client: DataPlaneClient) -> None:
    put(client, 3, 5)
    client.set_policies("p", {"train": TaskPolicy(max_staleness=1)})
    group = client.reserve_group("p", "g", ["g0"], weight_version=4)
    assert client.set_weight_version("p", 6) == 0
    group.put(["g0"], {"x": torch.zeros(1, dtype=torch.int64)})
    assert group.abort_hint == "weight version 4 is 2 behind 6; task 'train' takes at most 1"
    assert client.set_weight_version("p", 7, retire_below=5) == 2
    with pytest.raises(GroupFencedError):
        group.commit()
    assert client.partition("p").removed_rows["retired"] == 2
    assert client.list_samples("p").meta.sample_ids == ["v5"]


def test_an_order_by_a_tag_follows_the_tag(client: DataPlaneClient) -> None:
    names = ["a", "b", "c"]
    client.put_samples(names, "p", {"x": torch.arange(3)}, [{"score": 1}, {"score": 3}, {}])
    client.put_samples(["a"], "p", None, [{"score": 7.5}])
    options = {"order": "highest_tag", "order_tag": "score", "min_size": 1}
    with client.claim("p", "train", ["x"], 8, **options) as claim:  # type: ignore[arg-type]
        assert claim.meta.sample_ids == ["a", "b", "c"]


def test_what_is_wrong_in_a_policy_is_told_before_anything_changes(client: DataPlaneClient) -> None:
    with pytest.raises(InvalidArgumentError, match="task 'train': max_staleness must be"):
        client.set_policies("p", {"train": TaskPolicy(max_staleness=-1)})
    with pytest.raises(InvalidArgumentError, match="when_stale must be one of"):
        client.set_policies("p", {"train": TaskPolicy(when_stale="forget")})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="needs the name of the tag"):
        client.claim("p", "train", ["x"], 1, order="highest_tag")
    with pytest.raises(NotFoundError, match="no task 'judge'"):
        client.set_policies("p", {"train": TaskPolicy(3), "judge": TaskPolicy()})
    assert client.partition("p").tasks[0].policy == TaskPolicy()
