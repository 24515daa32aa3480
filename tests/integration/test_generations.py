"""Generations: a meta names its very rows, and is never taken for others that have their ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from dataplane_client.client import DataPlaneClient, read_columns, write_columns
from dataplane_client.errors import NotFoundError, ReplacedError
from dataplane_client.records.meta import KVBatchMeta


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
def test_a_meta_is_refused_for_a_row_that_was_put_again_or_is_gone_and_creates_none(
    flow: DataPlaneClient, old: KVBatchMeta, use: Callable[[DataPlaneClient, KVBatchMeta], object]
) -> None:
    with pytest.raises(ReplacedError, match="'y'"):
        use(flow, old)
    use(flow, old.subset([0]))
    use(flow, replace(old, generations=None))
    flow.clear_samples(None, "p")
    with pytest.raises(NotFoundError, match="'x'"):
        use(flow, old)
    assert flow.partition("p").rows == 0
