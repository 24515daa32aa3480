"""Collectives for named values: from one rank to all ranks of a group, and from all to all.

Neither pickle nor torch's object collectives are used: what ranks send each other is data and never runs code. A
msgpack frame goes first (its size, then its bytes); the elements of each tensor follow as one broadcast of bytes.

All functions are collective: every rank of the group calls them. A failure before sending is sent as well, so the other
ranks raise instead of waiting. They wait for a rank that never calls until the group's own timeout.

Supported values:
- tensors of every element type of the data plane, of any shape, also without rows or dimensions, and torch.jagged
  nested tensors that are ragged in dim 1; those with equal rows share their offsets after the exchange,
- object arrays (N,), PackedTensors, and what msgpack supports: None, bool, int of 64 bits, float, str, bytes, and lists
  and mappings of all these. NumPy scalars arrive as Python's, tuples as lists, mappings as dictionaries.
Any other value is a TypeError that names it, on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import msgpack
import torch
import torch.distributed
from torch.distributed import ProcessGroup

from dataplane_client.records.meta import KVBatchMeta
from trainer_adapter._collective_message import CollectiveMessage, allocate_buffers, pack_message, unpack_message
from trainer_adapter._remote_errors import decode_error, encode_error


def broadcast_values(
    make: Callable[[], Mapping[str, Any] | None], *, source: int, group: ProcessGroup, device: torch.device
) -> dict[str, Any]:
    """Return the values that `make` returns on the source, on every rank; other ranks do not call theirs.

    source: a global rank. device: the one that the group communicates over, CUDA for nccl. All tensors are there
    afterwards; the source's keep their memory if they were there before. On CUDA the copies may still be queued on the
    current stream.

    The source raises what `make` raises. The other ranks raise an error of the data plane with its own type, and
    RuntimeError with type and message of any other.
    """
    if torch.distributed.get_rank() != source:
        return unpack_message(_receive(source, group, device))
    try:
        message = pack_message(make(), device)
    except BaseException as error:
        _send(_error_frame(error), source, group, device)
        raise
    _send(_header_frame(message), source, group, device)
    _broadcast(message.buffers, source, group)
    return unpack_message(message)


def gather_values(values: Mapping[str, Any], *, group: ProcessGroup, device: torch.device) -> list[dict[str, Any]]:
    """Return the values of every rank on every rank, in the order of the group's ranks. Names may differ by rank.

    device: as for broadcast_values. Each rank ends up with all tensors of all ranks. If one rank's values are not
    supported, all ranks raise.
    """
    try:
        own_message = pack_message(values, device)
    except BaseException as error:
        _gather_frames(_error_frame(error), group, device)
        raise
    ranks, own = torch.distributed.get_process_group_ranks(group), torch.distributed.get_rank()
    frames = zip(ranks, _gather_frames(_header_frame(own_message), group, device), strict=True)
    headers = {source: _open_frame(frame, source) for source, frame in frames}
    messages = [
        own_message if source == own else CollectiveMessage(header, allocate_buffers(header, device))
        for source, header in headers.items()
    ]
    for source, message in zip(ranks, messages, strict=True):
        _broadcast(message.buffers, source, group)
    return [unpack_message(message) for message in messages]


def extremes_over(value: int, group: ProcessGroup | None, device: torch.device | None) -> tuple[int, int]:
    """The smallest and the largest value of all ranks of the group (None: of all ranks); one all-reduce of 64-bit
    integers.
    """
    extremes = torch.tensor([-value, value])
    if device is not None:
        extremes = extremes.to(device, non_blocking=True)
    torch.distributed.all_reduce(extremes, op=torch.distributed.ReduceOp.MAX, group=group)
    smallest, largest = extremes.tolist()
    return -int(smallest), int(largest)


def meta_values(meta: KVBatchMeta) -> dict[str, Any]:
    """The fields of a meta by name, which ranks can exchange."""
    return {column.name: getattr(meta, column.name) for column in fields(meta)}


# --- frames: [True, header of the message] or [False, encoded error] ---


def _header_frame(message: CollectiveMessage) -> bytes:
    frame: bytes = msgpack.packb([True, message.header])
    return frame


def _error_frame(error: BaseException) -> bytes:
    frame: bytes = msgpack.packb([False, encode_error(error)])
    return frame


def _open_frame(frame: bytes, source: int) -> bytes:
    """Return the header. Raises the error that the source sent instead."""
    is_header, content = msgpack.unpackb(frame)
    if not is_header:
        raise decode_error(content, source)
    header: bytes = content
    return header


def _receive(source: int, group: ProcessGroup, device: torch.device) -> CollectiveMessage:
    size = torch.zeros(1, dtype=torch.int64, device=device)
    torch.distributed.broadcast(size, src=source, group=group)
    frame = torch.empty(int(size.item()), dtype=torch.uint8, device=device)
    torch.distributed.broadcast(frame, src=source, group=group)
    header = _open_frame(_to_bytes(frame), source)
    buffers = allocate_buffers(header, device)
    _broadcast(buffers, source, group)
    return CollectiveMessage(header, buffers)


def _send(frame: bytes, source: int, group: ProcessGroup, device: torch.device) -> None:
    torch.distributed.broadcast(torch.tensor([len(frame)], device=device), src=source, group=group)
    torch.distributed.broadcast(_to_tensor(frame, device), src=source, group=group)


def _broadcast(buffers: list[torch.Tensor], source: int, group: ProcessGroup) -> None:
    for buffer in buffers:
        if buffer.numel():
            torch.distributed.broadcast(buffer, src=source, group=group)


def _gather_frames(frame: bytes, group: ProcessGroup, device: torch.device) -> list[bytes]:
    """Gather the sizes of all frames, then all frames, each padded to the longest."""
    world = torch.distributed.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world)]
    torch.distributed.all_gather(sizes, torch.tensor([len(frame)], device=device), group=group)
    lengths = torch.cat(sizes).tolist()
    frames = [torch.empty(max(lengths), dtype=torch.uint8, device=device) for _ in range(world)]
    torch.distributed.all_gather(frames, _to_tensor(frame.ljust(max(lengths), b"\0"), device), group=group)
    return [_to_bytes(found[:length]) for found, length in zip(frames, lengths, strict=True)]


def _to_tensor(frame: bytes, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(frame), dtype=torch.uint8).to(device)


def _to_bytes(frame: torch.Tensor) -> bytes:
    return frame.cpu().numpy().tobytes()
