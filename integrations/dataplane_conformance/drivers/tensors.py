"""Values as tensors, and back, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from tensordict import TensorDict

from dataplane_conformance.system import Value


def tensor_of(value: Value) -> torch.Tensor:
    """Of one dimension, with a memory of its own."""
    dtype: torch.dtype = getattr(torch, value.dtype)
    return torch.frombuffer(bytearray(value.data), dtype=dtype) if value.data else torch.empty(0, dtype=dtype)


def value_of(tensor: torch.Tensor) -> Value:
    """The elements as they are, whatever floats they name."""
    data = tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()
    return Value(str(tensor.dtype).removeprefix("torch."), data)


def values_of(batch: TensorDict, fields: Iterable[str], ids: Sequence[str]) -> dict[str, dict[str, Value]]:
    """The rows of a batch by their ids."""
    columns = {field: batch.get(field).unbind() for field in fields}
    return {row: {field: value_of(column[at]) for field, column in columns.items()} for at, row in enumerate(ids)}
