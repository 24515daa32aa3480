"""Results of workers in a form that every group can send to the driver, so that results do not depend on the group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dataplane_client.batched_data_dict import BatchedDataDict


def make_portable(result: Any) -> Any:
    """Keep tensors that are values of a mapping, detached and on the CPU. Deeper tensors, which are metrics of one
    element, become Python numbers, and dtypes become their names. A BatchedDataDict stays one.
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
