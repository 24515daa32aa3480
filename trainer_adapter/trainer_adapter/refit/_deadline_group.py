"""A process group beside torch's default one, in which no wait lasts longer than a deadline.

It is made from its backend directly, so torch's global state knows nothing of it: a process may be in this group and in
the default one, or have no default one at all, as engines do. Members find each other through a store of torch's that
rank 0 serves at ip:port: as with every group of torch, the network between the ranks must be trusted.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

_POLL_S = 0.001


class DeadlineGroup:
    """Collectives with a deadline for each. After one failed the group is closed, so that the others notice.

    All work under way is kept here alone: gloo closes its connections when nothing refers to them any more.
    """

    def __init__(self, ip: str, port: int, world_size: int, rank: int, device: torch.device, timeout_s: float) -> None:
        """Back when all ranks are there. On "cpu" through gloo, on a GPU through NCCL.

        Raises TimeoutError where they are not there within timeout_s.
        """
        self.rank, self.device, self._timeout_s = rank, device, timeout_s
        self._name = f"the group for weights at {ip}:{port}"
        timeout = timedelta(seconds=timeout_s)
        self._group: Any = None
        self._pending: dict[int, Any] = {}
        self._started = 0
        try:
            self._store: Any = _connect_store(ip, port, world_size, rank, timeout)
            self._group = _backend(self._store, rank, world_size, device, timeout)
            self.any_failed(False)  # backends connect when they are first used
        except (RuntimeError, ConnectionError) as error:
            self.close()
            text = f"not all {world_size} ranks came to {self._name} within {timeout_s} s: {error}"
            raise TimeoutError(text) from error

    @property
    def closed(self) -> bool:
        return self._group is None

    def start_broadcast(self, tensor: Tensor) -> int:
        """From rank 0. Returns what to `wait` for; until then the tensor belongs to the group."""
        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor, options.asyncOp = 0, 0, True
        return self._track(self._open_group().broadcast([tensor], options))

    def wait(self, started: int) -> None:
        """Raises ConnectionError where a rank is gone or not there in time; the group is closed then."""
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
        """Whether it is so on any rank; all must ask."""
        flag = torch.tensor([int(failed)], device=self.device)
        options = torch.distributed.AllreduceOptions()
        options.reduceOp = torch.distributed.ReduceOp.MAX  # type: ignore[assignment]  # an enum's member in the stubs
        options.asyncOp = True
        self.wait(self._track(self._open_group().allreduce([flag], options)))
        return bool(flag.item())

    def close(self) -> None:
        """May be called again."""
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
        """NCCL's own wait only queues behind the work, and its watchdog would end the whole process."""
        deadline = time.monotonic() + self._timeout_s
        while not self._pending[started].is_completed():
            if time.monotonic() > deadline:
                raise RuntimeError("not completed in time")
            time.sleep(_POLL_S)

    def _abort(self) -> None:
        """Without waiting for what is under way: it will never be over."""
        if self._group is not None:
            self._group.abort()
        self._pending.clear()
        self._group = self._store = None


def _connect_store(ip: str, port: int, world_size: int, rank: int, timeout: timedelta) -> Any:
    store_class = torch.distributed.TCPStore  # type: ignore[attr-defined]  # public, but not to type checkers
    return store_class(ip, port, world_size, rank == 0, timeout=timeout)


def _backend(store: Any, rank: int, world_size: int, device: torch.device, timeout: timedelta) -> Any:
    if device.type != "cuda":
        return torch.distributed.ProcessGroupGloo(store, rank, world_size, timeout)
    nccl = torch.distributed.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = 2 * timeout + timedelta(minutes=1)  # noqa: SLF001  # so that our deadline comes first
    return nccl(store, rank, world_size, options)
