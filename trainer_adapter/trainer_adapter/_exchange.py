"""Named values between the ranks of a group: from one rank to all, and from all to all.

Neither pickle nor the object collectives of torch: what the ranks of a job send each other stays data, whoever sent it.
A msgpack message goes ahead (its size, then its bytes), the elements of each tensor follow as one broadcast of bytes.

All functions are collective: every rank of the group calls them. A failure before the sending is sent as well, so the
others learn of it instead of waiting. They wait for a rank that never calls until the group's own timeout.

Values are
- tensors of every element type that the data plane carries, of any shape, also without rows or dimensions, and
  torch.jagged nested tensors ragged in dim 1; those with equal rows share their offsets afterwards,
- object arrays (N,), PackedTensors, and what msgpack carries: None, bool, int of 64 bits, float, str, bytes, and lists
  and mappings of all these. NumPy scalars come as Python's, tuples as lists, mappings as dictionaries.
Anything else is a TypeError that names the value, on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgpack
import torch
import torch.distributed
from torch.distributed import ProcessGroup

from trainer_adapter._parcel import Parcel, buffers_for, packed_parcel, unpacked_parcel
from trainer_adapter._told_failures import heard, told


def broadcast_values(
    values: Mapping[str, Any] | None, *, source: int, group: ProcessGroup, device: torch.device
) -> dict[str, Any]:
    """What the source passes, on every rank; the others' values are not looked at.

    source: a global rank. device: over which the group communicates, CUDA for nccl; all tensors lie there afterwards,
    those of the source in their old memory if they did before. On CUDA they may be on their way on the current stream.
    """
    return broadcast_outcome(lambda: values, source=source, group=group, device=device)


def broadcast_outcome(
    make: Callable[[], Mapping[str, Any] | None], *, source: int, group: ProcessGroup, device: torch.device
) -> dict[str, Any]:
    """The same, where the source still has to make the values; the others do not call make.

    What make raises is raised by the source. The others raise an error of the data plane as what it is, and a
    RuntimeError with the type and message of any other.
    """
    if torch.distributed.get_rank() != source:
        return unpacked_parcel(_received(source, group, device))
    try:
        parcel = packed_parcel(make(), device)
    except BaseException as error:
        _send(_failure(error), source, group, device)
        raise
    _send(_success(parcel), source, group, device)
    _broadcast(parcel.buffers, source, group)
    return unpacked_parcel(parcel)


def gather_values(values: Mapping[str, Any], *, group: ProcessGroup, device: torch.device) -> list[dict[str, Any]]:
    """The values of every rank on every rank, in the order of the group's ranks. Ranks need not pass the same names.

    device: as broadcast_values. Each rank ends up with all tensors of all ranks. A rank whose values do not travel
    raises, and so do all others.
    """
    try:
        parcel = packed_parcel(values, device)
    except BaseException as error:
        _all_messages(_failure(error), group, device)
        raise
    ranks, own = torch.distributed.get_process_group_ranks(group), torch.distributed.get_rank()
    sealed = zip(ranks, _all_messages(_success(parcel), group, device), strict=True)
    messages = {source: _opened(message, source) for source, message in sealed}
    parcels = [
        parcel if source == own else Parcel(message, buffers_for(message, device))
        for source, message in messages.items()
    ]
    for source, filled in zip(ranks, parcels, strict=True):
        _broadcast(filled.buffers, source, group)
    return [unpacked_parcel(filled) for filled in parcels]


# --- messages: [True, the parcel's message], or [False, what failed] ---


def _success(parcel: Parcel) -> bytes:
    message: bytes = msgpack.packb([True, parcel.message])
    return message


def _failure(error: BaseException) -> bytes:
    message: bytes = msgpack.packb([False, told(error)])
    return message


def _opened(message: bytes, source: int) -> bytes:
    """The parcel's message. Raises what the source has failed with."""
    went_well, content = msgpack.unpackb(message)
    if not went_well:
        raise heard(content, source)
    opened: bytes = content
    return opened


def _received(source: int, group: ProcessGroup, device: torch.device) -> Parcel:
    size = torch.zeros(1, dtype=torch.int64, device=device)
    torch.distributed.broadcast(size, src=source, group=group)
    frame = torch.empty(int(size.item()), dtype=torch.uint8, device=device)
    torch.distributed.broadcast(frame, src=source, group=group)
    message = _opened(_bytes_of(frame), source)
    buffers = buffers_for(message, device)
    _broadcast(buffers, source, group)
    return Parcel(message, buffers)


def _send(message: bytes, source: int, group: ProcessGroup, device: torch.device) -> None:
    torch.distributed.broadcast(torch.tensor([len(message)], device=device), src=source, group=group)
    torch.distributed.broadcast(_frame_of(message, device), src=source, group=group)


def _broadcast(buffers: list[torch.Tensor], source: int, group: ProcessGroup) -> None:
    for buffer in buffers:
        if buffer.numel():
            torch.distributed.broadcast(buffer, src=source, group=group)


def _all_messages(message: bytes, group: ProcessGroup, device: torch.device) -> list[bytes]:
    """Of all ranks: their sizes, then all of them as wide as the longest."""
    world = torch.distributed.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world)]
    torch.distributed.all_gather(sizes, torch.tensor([len(message)], device=device), group=group)
    lengths = torch.cat(sizes).tolist()
    frames = [torch.empty(max(lengths), dtype=torch.uint8, device=device) for _ in range(world)]
    torch.distributed.all_gather(frames, _frame_of(message.ljust(max(lengths), b"\0"), device), group=group)
    return [_bytes_of(frame[:length]) for frame, length in zip(frames, lengths, strict=True)]


def _frame_of(message: bytes, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(message), dtype=torch.uint8).to(device)


def _bytes_of(frame: torch.Tensor) -> bytes:
    return frame.cpu().numpy().tobytes()
