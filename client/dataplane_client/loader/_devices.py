"""Batches on their way to a device: by the loop's own thread, or ahead of it by another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dataplane_client.batched_data_dict import BatchedDataDict


def moved(batch: BatchedDataDict[Any], device: torch.device) -> BatchedDataDict[Any]:
    """The batch on the device, whatever is there already as it is. To a CUDA device through pinned memory; it may then
    still be on its way on the current stream.
    """
    if device.type == "cpu":
        return batch
    return BatchedDataDict(
        {name: _moved(value, device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
    )


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_nested:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class Arrival:
    """A batch that the calling thread has put on its way to a device, on its current stream there."""

    def __init__(self, batch: BatchedDataDict[Any], device: torch.device) -> None:
        self._batch = batch
        self._device = device
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._event = None if self._stream is None else self._stream.record_event()

    def batch(self) -> BatchedDataDict[Any]:
        """The batch, for the calling thread's current stream: what is queued there from now on finds it complete."""
        if self._stream is None or self._event is None:
            return self._batch
        stream = torch.cuda.current_stream(self._device)
        if stream != self._stream:
            stream.wait_event(self._event)
            for tensor in _memory_of(self._batch):
                tensor.record_stream(stream)
        return self._batch


def _memory_of(batch: BatchedDataDict[Any]) -> Iterator[torch.Tensor]:
    for value in batch.values():
        if isinstance(value, torch.Tensor) and value.is_nested:
            yield value.values()
        elif isinstance(value, torch.Tensor):
            yield value
