"""Memory that a trainer fills and an engine on the same device reads without a copy.

On the CPU it is an anonymous memory file, which the engine opens through the trainer's entry in /proc. The kernel frees
it with its last user, even after a crash. On a GPU it is memory of torch's allocator, opened through its CUDA IPC
handle. A handle is a list of numbers and bytes, for MessagePack.
"""

from __future__ import annotations

import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class SharedBuffer:
    """Bytes to fill (`tensor`, uint8), and a handle with which another process on this host opens them.

    The memory exists as long as this buffer. On the CPU it also exists as long as another process has it open; on a GPU
    torch counts one opening of a handle, so keep the buffer until all engines have closed theirs: a stream of weights
    that succeeds ends after that.
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
            self.handle = ["memory", os.getpid(), descriptor, os.fstat(descriptor).st_ino]


def open_buffer(handle: list[Any], device: torch.device) -> Tensor:
    """Map the bytes of a handle (uint8), on `device` if they are on a GPU.

    Raises ConnectionError if they are not reachable from this process, ValueError for an invalid handle.
    """
    kind, *parts = handle
    if kind != ("cuda" if device.type == "cuda" else "memory"):
        raise ValueError(f"the trainer's memory is of kind {kind!r}, which cannot be opened on {device}")
    if kind == "cuda":
        # The first part is the device's number in the trainer, which may differ in this process.
        tensor = torch.empty(0, dtype=torch.uint8, device=device)
        storage = torch.UntypedStorage._new_shared_cuda(tensor.device.index, *parts[1:])  # noqa: SLF001  # torch has no public name
        return tensor.set_(storage)
    pid, descriptor, inode = parts
    return _open_memory(f"/proc/{int(pid)}/fd/{int(descriptor)}", inode)


def _open_memory(path: str, inode: int) -> Tensor:
    """inode: of the file; in another container the path may be that of another process."""
    try:
        if Path(path).stat().st_ino != inode:
            raise FileNotFoundError(f"{path} is another file")
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise ConnectionError(
            f"the trainer's memory cannot be opened ({error}): the trainer must run on this host, as this user, and "
            "its process must be visible in /proc"
        ) from error
    try:
        return _map_file(descriptor)
    finally:
        os.close(descriptor)


def _map_file(descriptor: int) -> Tensor:
    """Map the whole file. It is writable, because torch has no read-only tensors."""
    return torch.frombuffer(mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED), dtype=torch.uint8)
