"""A trainer's rank sends its weights to the engine on the same device, through shared memory.

    trainer                               engine
    fill buffer 0  ---- message 0 ---->   read buffer 0
    fill buffer 1  <--- answer 0  -----
                   ---- message 1 ---->   read buffer 1
    fill buffer 0  <--- answer 1  -----
                   ---- complete  ---->   check that nothing is missing
                   <--- answer    -----

A message names its buffer, the number of used bytes, and each weight's name, dtype, shape and first byte. A buffer is
written again only after the answer to its message, so the engine may read it until then. All messages of a stream carry
its number, so a stream that starts anew is never mistaken for one that broke off.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dataplane_client.codec import dtype_name
from trainer_adapter.refit._channels import RequestChannel
from trainer_adapter.refit._generation_parameters import RefitInfo
from trainer_adapter.refit._shared_buffers import SharedBuffer
from trainer_adapter.refit._weight_groups import AlternateBuffers, Group, expect_end, fill, largest_group, plan_groups

ALIGNMENT = 512
"""Bytes; the alignment of CUDA's allocator."""


def shared_buffers(device: torch.device) -> AlternateBuffers[SharedBuffer]:
    """Buffers for streams, which make none before they are needed."""
    return AlternateBuffers(lambda size_bytes: SharedBuffer(size_bytes, device))


def stream_weights(
    endpoint: str,
    info: RefitInfo,
    parameters: Iterator[tuple[str, Tensor]],
    *,
    device: torch.device,
    buffer_size_bytes: int,
    timeout_s: float = 120.0,
    buffers: AlternateBuffers[SharedBuffer] | None = None,
) -> None:
    """Send all weights to one engine; returns when the engine has them and has closed the buffers.

    The socket lives as long as the call: in a socket that stayed, the first message could go to the connection of an
    engine that has just left.

    info: names, shapes and dtypes of parameters. device: of the buffers; the engine must use the same one.
    buffer_size_bytes: of both buffers together; each is as large as the largest weight at least.
    timeout_s: for each answer of the engine.
    buffers: to be used again by later calls (None: only by this one). CUDA memory that an engine was told of, and that
    it never opened and closed, is not freed before this process ends. So buffers of failed calls would add up.

    Raises TimeoutError naming the endpoint if no engine answers in time, RuntimeError with the engine's reason if it
    refuses, ValueError if parameters and info differ. Errors on this side are sent to the engine.
    """
    groups = plan_groups(info, buffer_size_bytes // 2, ALIGNMENT)
    buffers = shared_buffers(device) if buffers is None else buffers
    with contextlib.closing(RequestChannel(endpoint, timeout_s)) as channel:
        try:
            _send(channel, groups, buffers, parameters, device)
        except BaseException as error:
            _send_failure(channel, error)
            raise


def _send(
    channel: RequestChannel,
    groups: list[Group],
    buffers: AlternateBuffers[SharedBuffer],
    parameters: Iterator[tuple[str, Tensor]],
    device: torch.device,
) -> None:
    stream, size = os.urandom(8), largest_group(groups)
    for index, group in enumerate(groups):
        buffer = buffers.of(index, size)
        fill(buffer.tensor, group, parameters)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # another process reads it in another CUDA stream
        channel.await_answer()
        channel.send({"stream": stream, "index": index, **_describe_group(buffer, group)})
    expect_end(parameters)
    channel.await_answer()
    channel.send({"stream": stream, "index": len(groups), "complete": True})
    channel.await_answer()


def _describe_group(buffer: SharedBuffer, group: Group) -> dict[str, Any]:
    weights = [[place.name, dtype_name(place.dtype), list(place.shape), place.start] for place in group.places]
    return {"handle": buffer.handle, "used_bytes": group.size_bytes, "weights": weights}


def _send_failure(channel: RequestChannel, error: BaseException) -> None:
    """Send the error as the message that the engine waits for, unless the engine itself failed."""
    with contextlib.suppress(TimeoutError, RuntimeError):
        if isinstance(error, Exception) and channel.usable:
            channel.await_answer()
            channel.send({"failed": f"{type(error).__name__}: {error}"})
            channel.await_answer()
