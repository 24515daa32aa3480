"""Copies of batches to a device, made by the prefetch thread and used by the training loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dataplane_client.batched_data_dict import BatchedDataDict

Batch = BatchedDataDict[Any]


class DeviceCopy:
    """A copy of a batch to a device, queued on the current stream of the thread that constructs it.

    Values that are on the device already, as those of a read to CUDA, and values that are not tensors are not copied.
    Copies may not have finished yet.
    """

    def __init__(self, batch: Batch, device: torch.device) -> None:
        self._batch = batch if device.type == "cpu" else _copy_to_device(batch, device)
        self._device = device
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._event = None if self._stream is None else self._stream.record_event()

    def batch(self) -> Batch:
        """The batch. Work that the calling thread queues on its current stream from now on sees complete values."""
        if self._stream is None or self._event is None:
            return self._batch
        stream = torch.cuda.current_stream(self._device)
        if stream != self._stream:
            stream.wait_event(self._event)
            for tensor in _dense_tensors(self._batch):
                tensor.record_stream(stream)
        return self._batch


def _copy_to_device(batch: Batch, device: torch.device) -> Batch:
    return BatchedDataDict(
        {
            name: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
        }
    )


def _dense_tensors(batch: Batch) -> Iterator[torch.Tensor]:
    """The tensors of a batch; of a nested tensor its values, in whose memory a read puts the bounds of its rows."""
    tensors = (value for value in batch.values() if isinstance(value, torch.Tensor))
    return (tensor.values() if tensor.is_nested else tensor for tensor in tensors)
