"""Memory that a trainer fills and an engine on the same device reads, without a copy in between.

On the CPU it is a memory file without a name, which the engine opens through the trainer's entry in /proc: there is
nothing to sweep up, since the kernel frees it with its last holder, however that one died. On a GPU it is memory of
torch's allocator, opened through its CUDA IPC handle. A handle is a list of numbers and bytes, for MessagePack.
"""

from __future__ import annotations

import mmap
import os
import weakref
from typing import Any

import torch
from torch import Tensor


class SharedBuffer:
    """Bytes to fill (`tensor`, uint8), and the handle by which another process on this host opens them.

    The memory is this process's as long as the buffer lives, and others' as long as they have it open.
    """

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        self.tensor: Tensor
        self.handle: list[Any]
        if device.type == "cuda":
            self.tensor = torch.empty(size_bytes, dtype=torch.uint8, device=device)
            self.handle = ["cuda", *self.tensor.untyped_storage()._share_cuda_()]
        else:
            descriptor = os.memfd_create("dataplane-weights", os.MFD_CLOEXEC)
            weakref.finalize(self, os.close, descriptor)
            os.ftruncate(descriptor, max(size_bytes, 1))
            self.tensor = _map_file(descriptor)[:size_bytes]
            self.handle = ["memory", os.getpid(), descriptor]


def open_buffer(handle: list[Any], device: torch.device) -> Tensor:
    """The bytes behind a handle (uint8), on `device` where they lie on a GPU.

    Raises ConnectionError where they cannot be reached from this process, ValueError for what is no handle.
    """
    kind, *parts = handle
    if kind != ("cuda" if device.type == "cuda" else "memory"):
        raise ValueError(f"the trainer's memory is of the kind {kind!r}, which cannot be opened on {device}")
    if kind == "cuda":
        # The first part is the device's number in the trainer, which may count its devices otherwise.
        tensor = torch.empty(0, dtype=torch.uint8, device=device)
        storage = torch.UntypedStorage._new_shared_cuda(tensor.device.index, *parts[1:])  # noqa: SLF001  # what torch has
        return tensor.set_(storage)
    pid, descriptor = parts
    return _open_memory(f"/proc/{int(pid)}/fd/{int(descriptor)}")


def _open_memory(path: str) -> Tensor:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise ConnectionError(
            f"the trainer's memory cannot be opened ({error}): it must live, on this host, as this user, and its "
            "process must be visible from here"
        ) from error
    try:
        return _map_file(descriptor)
    finally:
        os.close(descriptor)


def _map_file(descriptor: int) -> Tensor:
    """Of the whole file; torch has no read-only tensors, so it can be written to."""
    return torch.frombuffer(mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED), dtype=torch.uint8)
