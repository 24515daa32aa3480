"""Results of workers as values that any group can bring to the driver, and that are the same whichever group does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dataplane_client.batched_data_dict import BatchedDataDict


def make_portable(result: Any) -> Any:
    """Tensors that are values of a mapping stay, detached and on the CPU; deeper ones, metrics of one element, become
    Python numbers and dtypes their names. A BatchedDataDict stays one.
    """
    if isinstance(result, Mapping):
        values = {name: _plain(value, keeps_tensors=True) for name, value in result.items()}
        return BatchedDataDict(values) if isinstance(result, BatchedDataDict) else values
    return _plain(result)


def _plain(value: Any, *, keeps_tensors: bool = False) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu() if keeps_tensors else value.item()
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value
