"""Moves bytes between a node's arena and arrays, in a thread if it takes long, so that the event loop goes on.

numpy copies without Python's lock. No array is kept over the arena, which cannot close while there is one.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.values import Int64Array, Run, Runs
from dataplane_server.core.rows.ranges import merged_runs
from dataplane_server.storage.arena import Arena
from rl_dataplane.v1 import local_pb2 as pb

A = TypeVar("A")
ByteArray = npt.NDArray[np.uint8]

_LONG_BYTES = 2 << 20


def runs_of(message: pb.ArenaRuns) -> Runs:
    """Refusal INVALID_REQUEST unless there is a size for each offset."""
    if len(message.offsets) != len(message.sizes) or len(message.sizes) % 8:
        raise Refusal(Reason.INVALID_REQUEST, "runs: one size, of 8 bytes, is needed for each offset")
    return Runs(np.frombuffer(message.offsets, "<i8"), np.frombuffer(message.sizes, "<i8"))


async def gather(arena: Arena, offsets: Int64Array, sizes: Int64Array) -> ByteArray:
    """The bytes of runs, one after another: a view of the arena if they are one piece, else a copy.

    Raises ValueError for runs outside the arena.
    """
    _check_inside(arena, offsets, sizes)
    runs = merged_runs(offsets, sizes)
    if len(runs) == 1:
        return _view(arena, runs[0])
    return await in_thread_if_long(partial(_gather, arena, runs), int(sizes.sum()))


async def scatter(arena: Arena, data: ByteArray, offsets: Int64Array, sizes: Int64Array) -> None:
    """Write bytes to runs, one after another. Raises ValueError if they are not as many, or outside the arena."""
    _check_inside(arena, offsets, sizes)
    if len(data) != sizes.sum():
        raise ValueError(f"{len(data)} bytes for runs of {sizes.sum()}")
    await in_thread_if_long(partial(_scatter, arena, data, merged_runs(offsets, sizes)), len(data))


def touch(arena: Arena, run: Run) -> None:
    """Read a byte of each page of a run. Without Python's lock."""
    _view(arena, run)[:: mmap.PAGESIZE].max()


async def in_thread_if_long(work: Callable[[], A], size_bytes: int) -> A:
    if size_bytes <= _LONG_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(None, work)


def are_inside(arena: Arena, offsets: Int64Array, sizes: Int64Array) -> bool:
    """Whether runs are within the arena, whatever their numbers."""
    inside = (offsets >= 0) & (sizes >= 0) & (sizes <= len(arena.memory) - offsets.clip(min=0))
    return bool(inside.all())


def _check_inside(arena: Arena, offsets: Int64Array, sizes: Int64Array) -> None:
    if len(offsets) != len(sizes):
        raise ValueError(f"{len(offsets)} offsets for {len(sizes)} sizes")
    if not are_inside(arena, offsets, sizes):
        raise ValueError(f"a run is outside the arena of {len(arena.memory)} bytes")


def _view(arena: Arena, run: Run) -> ByteArray:
    return np.frombuffer(arena.view(run), np.uint8)


def _gather(arena: Arena, runs: list[Run]) -> ByteArray:
    gathered = np.empty(sum(run.size_bytes for run in runs), np.uint8)
    at = 0
    for run in runs:
        gathered[at : at + run.size_bytes] = _view(arena, run)
        at += run.size_bytes
    return gathered


def _scatter(arena: Arena, data: ByteArray, runs: list[Run]) -> None:
    at = 0
    for run in runs:
        _view(arena, run)[:] = data[at : at + run.size_bytes]
        at += run.size_bytes
