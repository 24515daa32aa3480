"""The first put of a rollout batch: what is stored ragged, what the receipt says, what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from dataplane_client.client import DataPlaneClient, connect, kv_first_write
from dataplane_client.errors import DataPlaneError, InvalidArgumentError, UnsupportedTypeError
from dataplane_client.records.meta import KVBatchMeta
from dataplane_server.testing import running_server

IDS = ["a", "b", "c"]
BATCH = {"input_lengths": torch.tensor([2, 4, 3]), "sample_mask": torch.ones(3)}
"""Three rows of 2, 4 and 3 tokens."""


@pytest.fixture(scope="module")
def client() -> Iterator[DataPlaneClient]:
    with running_server(memory_bytes=1 << 20) as address, connect(address) as client:
        client.register_partition("p", [], 0, ["train", "prev_lp"], open=True)
        yield client


def first_write(
    client: DataPlaneClient, width: int = 4, changes: Mapping[str, object] = {}, **more: Any
) -> KVBatchMeta:
    tokens = {"input_ids": torch.arange(3 * width).reshape(3, width)}
    columns = {name: column for name, column in {**tokens, **BATCH, **changes}.items() if column is not None}
    return kv_first_write(columns, **{"sample_ids": IDS, "dp_client": client, "partition_id": "p", **more})


@pytest.mark.parametrize(("multiple", "width"), [(1, 4), (3, 6), (4, 4), (64, 64), (64, 4)])
def test_tensors_as_wide_as_the_longest_row_or_the_multiple_are_stored_by_their_lengths(
    client: DataPlaneClient, multiple: int, width: int
) -> None:
    client.clear_samples(None, "p")
    columns = {"name": np.array(["x", "y", "z"], object), "embedding": torch.zeros(3, 5), "pair": torch.zeros(3, 2)}
    info = {"step": 7, "global_forward_pad_seqlen": 0}
    meta = first_write(client, width, columns, task_name="prev_lp", pad_to_multiple=multiple, extra_info=info)
    target = -(-4 // multiple) * multiple
    assert (meta.task_name, meta.sample_ids, meta.sequence_lengths) == ("prev_lp", IDS, [2, 4, 3])
    assert meta.extra_info == {"step": 7, "global_forward_pad_seqlen": target}
    assert meta.generations == client.list_samples("p").meta.generations
    got = client.get_data(meta)
    rows = [row.tolist() for row in got["input_ids"].unbind()]
    assert rows == [[*range(n * width, n * width + length)] for n, length in enumerate([2, 4, 3])]
    assert [got[name].shape for name in ("sample_mask", "embedding", "pair")] == [(3,), (3, 5), (3, 2)]
    assert got["name"] == ["x", "y", "z"]


REFUSED: dict[str, tuple[dict[str, Any], type[DataPlaneError], list[str]]] = {
    "no mask": ({"changes": {"sample_mask": None}}, InvalidArgumentError, ["'sample_mask'"]),
    "no lengths": ({"changes": {"input_lengths": None}}, InvalidArgumentError, ["'input_lengths'"]),
    "2-d lengths": ({"changes": {"input_lengths": torch.ones(3, 1)}}, InvalidArgumentError, ["input_lengths", "(N,)"]),
    "float lengths": ({"changes": {"input_lengths": torch.ones(3)}}, UnsupportedTypeError, ["input_lengths", "float"]),
    "bool lengths": ({"changes": {"input_lengths": torch.ones(3) > 0}}, UnsupportedTypeError, ["lengths", "bool"]),
    "ids": ({"sample_ids": IDS[:2]}, InvalidArgumentError, ["2 sample_ids", "3"]),
    "a str of ids": ({"sample_ids": "abc"}, UnsupportedTypeError, ["sample ids", "'abc'"]),
    "tags": ({"tags": [{}] * 4}, InvalidArgumentError, ["tags for 4", "3 samples"]),
    "tags 5": ({"tags": 5}, UnsupportedTypeError, ["tags", "int"]),
    "task 5": ({"task_name": 5}, UnsupportedTypeError, ["task name", "int"]),
    "info 5": ({"extra_info": 5}, UnsupportedTypeError, ["extra_info", "5"]),
    "multiple 2.0": ({"pad_to_multiple": 2.0}, UnsupportedTypeError, ["pad_to_multiple", "float"]),
    "multiple 0": ({"pad_to_multiple": 0}, InvalidArgumentError, ["pad_to_multiple", "0"]),
}


@pytest.mark.parametrize(("changed", "error", "facts"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(
    client: DataPlaneClient, changed: dict[str, Any], error: type[DataPlaneError], facts: list[str]
) -> None:
    with pytest.raises(error) as refused:
        first_write(client, **changed)
    assert [fact for fact in facts if fact not in str(refused.value)] == []
