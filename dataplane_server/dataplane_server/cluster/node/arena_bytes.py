"""Runs of a node's arena as messages name them, and work on its bytes in a thread, if it takes long."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Int64Array, Run, Runs
from dataplane_server.storage.arena import Arena
from rl_dataplane.v1 import local_pb2 as pb

A = TypeVar("A")

_LONG_BYTES = 2 << 20


def runs_of(message: pb.ArenaRuns) -> Runs:
    """Refusal INVALID_REQUEST unless there is a size for each offset."""
    if len(message.offsets) != len(message.sizes) or len(message.sizes) % 8:
        raise Refusal(Reason.INVALID_REQUEST, "runs: one size, of 8 bytes, is needed for each offset")
    return Runs(np.frombuffer(message.offsets, "<i8"), np.frombuffer(message.sizes, "<i8"))


def touch(arena: Arena, run: Run) -> None:
    """Read a byte of each page of a run. Without Python's lock."""
    np.frombuffer(arena.view(run), np.uint8)[:: mmap.PAGESIZE].max()


async def in_thread_if_long(work: Callable[[], A], size_bytes: int) -> A:
    if size_bytes <= _LONG_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(None, work)


def are_inside(arena: Arena, offsets: Int64Array, sizes: Int64Array) -> bool:
    """Whether runs are within the arena, whatever their numbers."""
    inside = (offsets >= 0) & (sizes >= 0) & (sizes <= len(arena.memory) - offsets.clip(min=0))
    return bool(inside.all())
