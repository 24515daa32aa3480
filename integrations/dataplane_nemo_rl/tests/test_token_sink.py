"""The calls of NeMo-RL's token sink: each model call is a row, put before the call is answered, by many threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDict

from dataplane_client.client import DataPlaneClient
from dataplane_nemo_rl import DataPlaneAdapter

CALLS, FIRST = 24, 7
TOKENS = ["input_ids", "token_mask", "generation_logprobs"]


def one(value: object) -> object:
    """A small column, as a tensor for numbers and otherwise an array of one object."""
    return torch.tensor([value]) if isinstance(value, (bool, int, float)) else np.fromiter([value], object, 1)


def record(call: int) -> dict[str, Any]:
    """The row of a call: 3 jagged columns, 18 small ones, and 2 of media. Every third call has no token, and its empty
    columns have torch's default type; every fourth has its numbers in other types, every second no picture.
    """
    tokens = call % 3 * (call + 1)
    dtypes = [torch.int64, torch.bool, torch.float32] if tokens else [torch.float32] * 3
    rows = [torch.ones(tokens).to(dtype) for dtype in dtypes]
    fields: dict[str, Any] = {
        name: torch.nested.nested_tensor([row], layout=torch.jagged) for name, row in zip(TOKENS, rows, strict=True)
    }
    numbers = {f"count_{n}": call + n for n in range(6)} | {f"score_{n}": call / 4 for n in range(4)}
    texts = {f"text_{n}": f"{call}-{n}" for n in range(5)} | {"stop": None, "usage": {"prompt": call}, "parent": [call]}
    fields |= {name: one(value) for name, value in (numbers | texts).items()}
    if call % 4 == 1:
        fields |= {name: torch.tensor([numbers[name]], dtype=torch.int32) for name in ("count_0", "count_1")}
        fields |= {name: torch.tensor([numbers[name]], dtype=torch.float64) for name in ("score_0", "score_1")}
        fields["count_2"] = np.fromiter([numbers["count_2"]], object, 1)
    fields["pixel_values"] = NonTensorStack([torch.full((2, call + 1, 3), call, dtype=torch.uint8)] * (call % 2))
    fields["patches"] = torch.full((1, call, 4), 0.5) if call % 2 else torch.zeros(1, 0)
    return fields


def test_calls_of_many_threads_are_rows_that_come_back_whole(
    adapter: DataPlaneAdapter, client: DataPlaneClient
) -> None:
    """The first has no empty column and the usual types, which the fields keep."""
    stage(adapter, FIRST)
    together = threading.Barrier(8)

    def work(thread: int) -> None:
        together.wait(20)
        for call in range(thread, CALLS, 8):
            stage(adapter, call)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    described = client.partition("staged")
    assert (described.rows, len(described.fields), described.tasks) == (CALLS, 3 + 18 + 2, ())
    for call in range(CALLS):
        assert_same(adapter.get_samples([f"call-{call}"], "staged", [field.name for field in described.fields]), call)
    some = adapter.get_samples(["call-7", "call-1", "call-3"], "staged", [*TOKENS, "count_0", "score_0"])
    assert [len(row) for row in some["input_ids"].unbind()] == [8, 2, 0]
    assert (some["count_0"].tolist(), some["score_0"].tolist()) == ([7, 1, 3], [1.75, 0.25, 0.75])
    adapter.clear_samples([f"call-{call}" for call in range(CALLS)], "staged")
    assert client.partition("staged").size_bytes == 0


def stage(adapter: DataPlaneAdapter, call: int) -> None:
    meta = adapter.put_samples(
        [f"call-{call}"], "staged", TensorDict(record(call), batch_size=[1]), [{"rollout": f"r{call % 5}"}]
    )
    assert meta.sequence_lengths == [call % 3 * (call + 1)]


def assert_same(read: TensorDict, call: int) -> None:
    """A row as it was put, but for the types of its numbers, which are those of the first call."""
    first = record(FIRST)
    for name, column in record(call).items():
        value = read.get(name)
        if name == "pixel_values":
            (pictures,) = value.tolist()
            assert [picture.shape for picture in pictures] == [(2, call + 1, 3)] * (call % 2)
        elif isinstance(column, torch.Tensor):
            flat = column.values() if column.is_nested else column
            assert value.dtype == first[name].dtype
            assert value.flatten().tolist() == flat.flatten().tolist()
        else:
            assert value.tolist() == list(column)
