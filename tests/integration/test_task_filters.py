"""The filter of a task through a client, over both transports."""

from __future__ import annotations

import pytest
import torch

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import ClaimTimeoutError, EndOfDataError, InvalidArgumentError
from dataplane_client.loader import ClaimLoader
from dataplane_client.meta import Tag
from dataplane_client.policies import TaskPolicy

SPREAD = "std > 0 and truncated is null"


@pytest.fixture
def client(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p with rows whose std is their number, an unknown one, and one that is truncated."""
    client.register_partition("p", ["x"], 5, ["train", "score"])
    tags: list[dict[str, Tag]] = [{"std": 0}, {"std": 1}, {"std": 2}, {"std": 3, "truncated": True}, {}]
    client.put_samples([f"s{row}" for row in range(5)], "p", {"x": torch.arange(5)}, tags)
    return client


def test_a_task_gets_rows_that_fit_its_filter_and_others_are_withheld(client: DataPlaneClient) -> None:
    policy = TaskPolicy(where=SPREAD, order="highest_tag", order_tag="std")
    described = client.set_policies("p", {"train": policy}).task("train")
    assert (described.policy, described.excluded_rows) == (policy, 1)  # `truncated` may come where it is null
    with client.claim("p", "train", ["x"], 9, min_size=1) as claim:
        assert claim.meta.sample_ids == ["s2", "s1"]
    assert sorted(client.draw_samples("p", ["x"], 9, min_size=1, task_name="train").meta.sample_ids) == ["s1", "s2"]
    with pytest.raises(ClaimTimeoutError, match="3 of 3 untaken rows do not fit the filter of task 'train'"):
        client.claim("p", "train", ["x"], 1, timeout_s=0)
    client.put_samples(["s4"], "p", tags=[{"std": 4}])
    with client.claim("p", "train", ["x"], 1) as claim:
        assert claim.meta.sample_ids == ["s4"]
    assert client.claim("p", "score", ["x"], 5).meta.size == 5


def test_groups_that_do_not_fit_are_dropped_when_they_are_finished(client: DataPlaneClient) -> None:
    client.set_policies("p", {"train": TaskPolicy(where="std > 0", when_excluded="drop")})
    assert client.partition("p").removed_rows["filtered"] == 1
    for name, std in (("flat", 0.0), ("good", 0.5)):
        ids = [f"{name}0", f"{name}1"]
        with client.reserve_group("p", name, ids) as group:
            group.put(ids, {"x": torch.arange(2)}, [{"std": std}] * 2)
    described = client.partition("p")
    assert described.removed_rows["filtered"] == 3
    assert described.rows_put_total == described.rows + 3
    with client.claim("p", "train", ["x"], 4, whole_groups=True) as claim:
        assert claim.meta.sample_ids == ["s1", "s2", "s3", "good0", "good1"]
    client.close_partition("p")
    with pytest.raises(ClaimTimeoutError, match="1 of 1 untaken rows do not fit"):
        client.claim("p", "train", ["x"], 1, timeout_s=0)
    client.put_samples(["s4"], "p", tags=[{"std": 0}])
    with pytest.raises(EndOfDataError):
        client.claim("p", "train", ["x"], 1, timeout_s=0)


def test_a_loader_takes_rows_in_its_order_that_fit_and_does_not_wait_for_others(client: DataPlaneClient) -> None:
    client.put_samples(["s4"], "p", tags=[{"std": 0}])
    client.set_policies("p", {"train": TaskPolicy(where="std > 0"), "score": TaskPolicy(where="std > 0")})
    order = {"order": "highest_tag", "order_tag": "std"}
    with ClaimLoader(client.target, "p", "train", ["x"], 2, **order) as loader:  # type: ignore[arg-type]
        assert [batch.meta.sample_ids for batch in loader] == [["s3", "s2"], ["s1"]]
    with ClaimLoader(client.target, "p", "score", ["x"], 1, where="std > 1", max_batches=2) as loader:
        assert [batch.meta.sample_ids for batch in loader] == [["s2"], ["s3"]]


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (TaskPolicy(where="std >"), r"task 'train': filter 'std >', column"),
        (TaskPolicy(where="std > 0", when_excluded="forget"), "when_excluded must be one of"),  # type: ignore[arg-type]
        (TaskPolicy(where="age_s > 60"), "age changes without a call"),
    ],
)
def test_what_is_wrong_in_a_filter_is_told_before_anything_changes(
    client: DataPlaneClient, policy: TaskPolicy, words: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        client.set_policies("p", {"train": policy})
    assert client.partition("p").task("train").policy == TaskPolicy()
