"""Generations: a meta names its very rows, and is never taken for others that have their ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from dataplane_client.client import DataPlaneClient
from dataplane_client.columns import kv_first_write, read_columns, write_columns
from dataplane_client.errors import InvalidArgumentError, NotFoundError, ReplacedError
from dataplane_client.meta import KVBatchMeta


@pytest.fixture
def flow(client: DataPlaneClient) -> DataPlaneClient:
    """Partition p with fields a and b."""
    client.register_partition("p", ["a", "b"], 2, ["train"])
    return client


@pytest.fixture
def old(flow: DataPlaneClient) -> KVBatchMeta:
    """A meta of rows x and y, of which y was cleared and put again since."""
    meta = flow.put_samples(["x", "y"], "p", {"a": torch.tensor([1.0, 2.0])})
    flow.clear_samples(["y"], "p")
    flow.put_samples(["y"], "p", {"a": torch.tensor([9.0])})
    return meta


USES: dict[str, Callable[[DataPlaneClient, KVBatchMeta], object]] = {
    "get_data": lambda client, meta: client.get_data(meta),
    "read_columns": lambda client, meta: read_columns(client, meta, ["a"]),
    "read_columns as views": lambda client, meta: read_columns(client, meta, ["a"], layout="jagged"),
    "write_columns": lambda client, meta: write_columns(client, meta, {"b": torch.zeros(meta.size)}),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_meta_is_refused_for_a_row_that_was_cleared_and_put_again(
    flow: DataPlaneClient, old: KVBatchMeta, use: Callable[[DataPlaneClient, KVBatchMeta], object]
) -> None:
    with pytest.raises(ReplacedError, match="'y'"):
        use(flow, old)
    use(flow, old.subset([0]))
    use(flow, replace(old, generations=None))


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_meta_is_refused_for_a_row_that_is_gone_and_creates_none(
    flow: DataPlaneClient, old: KVBatchMeta, use: Callable[[DataPlaneClient, KVBatchMeta], object]
) -> None:
    flow.clear_samples(None, "p")
    with pytest.raises(NotFoundError, match="'x'"):
        use(flow, old)
    assert flow.partition("p").rows == 0


def test_every_row_has_a_generation_of_its_own_which_grows_and_stays(flow: DataPlaneClient) -> None:
    first = flow.put_samples(["x", "y"], "p", {"a": torch.zeros(2)}).generations
    again = flow.put_samples(["y", "x", "z"], "p", {"a": torch.zeros(3)}).generations
    assert first is not None
    assert again is not None
    assert again[:2] == [first[1], first[0]]
    assert first[0] < first[1] < again[2]
    assert flow.claim("p", "train", ["a"], 3).meta.generations == [*first, again[2]]
    assert flow.sample("p", "z").generation == again[2]


def test_the_meta_of_a_first_write_names_its_rows(flow: DataPlaneClient) -> None:
    flow.register_partition("q", ["input_ids", "input_lengths", "sample_mask"], 2, ["train"])
    batch = {
        "input_ids": torch.arange(8).reshape(2, 4),
        "input_lengths": torch.tensor([2, 4]),
        "sample_mask": torch.ones(2),
    }
    meta = kv_first_write(batch, sample_ids=["x", "y"], dp_client=flow, partition_id="q")
    assert meta.generations == flow.claim("q", "train", ["input_ids"], 2).meta.generations
    assert meta.generations is not None


def test_a_clear_by_a_meta_leaves_rows_that_came_later(flow: DataPlaneClient, old: KVBatchMeta) -> None:
    assert flow.clear_samples(old.sample_ids, "p", generations=old.generations) == 1
    assert flow.get_samples(["y"], "p", ["a"])["a"].tolist() == [9.0]
    with pytest.raises(InvalidArgumentError, match="1 generations, but the call names 2"):
        flow.clear_samples(["x", "y"], "p", generations=[1])
