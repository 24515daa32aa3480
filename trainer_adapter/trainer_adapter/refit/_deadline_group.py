"""A process group separate from torch's default one, with a deadline for every wait.

It is made directly from its backend, so torch's global state does not know it: a process can be in this group and in
the default one, or have no default group, as engines do. Members find each other through a torch store that rank 0
serves at ip:port. As with every torch group, the network between the ranks must be trusted.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

_POLL_S = 0.001
_RETRY_S = 0.1
_COMPLETE = "complete"
"""Set in the store of a group that all ranks have joined."""


class DeadlineGroup:
    """Collectives with a deadline. After a failure the group is closed, so that the other ranks notice.

    Only this object refers to pending work: gloo closes its connections when nothing refers to them.
    """

    def __init__(self, ip: str, port: int, world_size: int, rank: int, device: torch.device, timeout_s: float) -> None:
        """Returns when all ranks have joined. Uses gloo on "cpu" and NCCL on a GPU.

        Raises TimeoutError if they have not joined within timeout_s.
        """
        self.rank, self.device, self._timeout_s = rank, device, timeout_s
        self._name = f"the group for weights at {ip}:{port}"
        timeout = timedelta(seconds=timeout_s)
        self._group: Any = None
        self._pending: dict[int, Any] = {}
        self._started = 0
        try:
            self._store: Any = _meet(ip, port, world_size, rank, timeout_s)
            self._group = _backend(self._store, rank, world_size, device, timeout)
            self.any_failed(False)  # backends connect at first use
            with suppress(RuntimeError, ConnectionError):  # rank 0 may have left already, and the store with it
                self._store.set(_COMPLETE, "")
        except (RuntimeError, ConnectionError) as error:
            self.close()
            text = f"not all {world_size} ranks joined {self._name} within {timeout_s} s: {error}"
            raise TimeoutError(text) from error

    @property
    def closed(self) -> bool:
        return self._group is None

    def start_broadcast(self, tensor: Tensor) -> int:
        """Start a broadcast from rank 0. Returns a number for `wait`; until then the tensor must not be touched."""
        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor, options.asyncOp = 0, 0, True
        return self._track(self._open_group().broadcast([tensor], options))

    def wait(self, started: int) -> None:
        """Wait for started work. ConnectionError if a rank is gone or late; the group is closed then."""
        try:
            if self.device.type == "cuda":
                self._poll(started)
            self._pending[started].wait()
            del self._pending[started]
        except RuntimeError as error:
            self._abort()
            text = f"a rank of {self._name} is gone, or was silent for {self._timeout_s} s"
            raise ConnectionError(text) from error

    def any_failed(self, failed: bool) -> bool:
        """Whether `failed` is true on any rank; a collective call."""
        flag = torch.tensor([int(failed)], device=self.device)
        options = torch.distributed.AllreduceOptions()
        options.reduceOp = torch.distributed.ReduceOp.MAX  # type: ignore[assignment]  # an enum's member in the stubs
        options.asyncOp = True
        self.wait(self._track(self._open_group().allreduce([flag], options)))
        return bool(flag.item())

    def close(self) -> None:
        """Close the group; can be called again."""
        self._pending.clear()
        group, self._group, self._store = self._group, None, None
        if group is not None and self.device.type == "cuda":
            group.shutdown()

    def _open_group(self) -> Any:
        if self._group is None:
            raise RuntimeError(f"{self._name} is closed")
        return self._group

    def _track(self, work: Any) -> int:
        self._started += 1
        self._pending[self._started] = work
        return self._started

    def _poll(self, started: int) -> None:
        """Poll until the work is completed: NCCL's own wait only queues behind it, and its watchdog would end the
        process.
        """
        deadline = time.monotonic() + self._timeout_s
        while not self._pending[started].is_completed():
            if time.monotonic() > deadline:
                raise RuntimeError("not completed in time")
            time.sleep(_POLL_S)

    def _abort(self) -> None:
        """Close without waiting for pending work, which will never complete."""
        if self._group is not None:
            self._group.abort()
        self._pending.clear()
        self._group = self._store = None


def _meet(ip: str, port: int, world_size: int, rank: int, timeout_s: float) -> Any:
    """The store of a group that is not complete.

    If it is, a rank has left it and joins again before rank 0 has left: the next group's store comes at the same place.
    RuntimeError or ConnectionError if it does not come in time.
    """
    store = torch.distributed.TCPStore  # type: ignore[attr-defined]  # public, but not to type checkers
    timeout = timedelta(seconds=timeout_s)
    if rank == 0:
        return store(ip, port, world_size, True, timeout=timeout)
    deadline = time.monotonic() + timeout_s
    while True:
        left = deadline - time.monotonic()
        try:
            found = store(ip, port, world_size, False, timeout=timedelta(seconds=max(left, _RETRY_S)))
            if not found.check([_COMPLETE]):
                found.set_timeout(timeout)
                return found
        except (RuntimeError, ConnectionError):  # rank 0 is just leaving, or has not come
            if left <= 0:
                raise
        if left <= 0:
            raise RuntimeError("its ranks have met before, and rank 0 has not left it")
        time.sleep(_RETRY_S)


def _backend(store: Any, rank: int, world_size: int, device: torch.device, timeout: timedelta) -> Any:
    if device.type != "cuda":
        return torch.distributed.ProcessGroupGloo(store, rank, world_size, timeout)
    nccl = torch.distributed.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = 2 * timeout + timedelta(minutes=1)  # noqa: SLF001  # so that our deadline comes first
    return nccl(store, rank, world_size, options)
