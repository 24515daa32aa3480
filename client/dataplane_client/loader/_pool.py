"""Worker processes as the loader sees them: permits go out, batches come in, and those that die are replaced.

A batch that a worker hands over is adopted before anybody sees it: from then on its claim is this process's, and the
worker's death harms nothing. One that cannot be adopted was ended by the server meanwhile; its rows come again, so it
is dropped. Each worker holds permits for `prefetch` batches that it has claimed and that were not yet taken from it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections import deque
from multiprocessing.connection import wait

import msgpack
import torch

from dataplane_client._log import log_event
from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import ClaimNotFoundError, ClosedError
from dataplane_client.grants import ClaimedGroup
from dataplane_client.loader import _parcel, _wire
from dataplane_client.loader._batch import LoadedBatch
from dataplane_client.loader._devices import moved
from dataplane_client.loader._giving_back import CLOSING_S
from dataplane_client.loader._nursery import Nursery
from dataplane_client.loader._settings import LoaderSettings
from dataplane_client.meta import KVBatchMeta

_MOST_RESTARTS = 10
"""Workers that are replaced in one iteration; whatever kills more than that kills the next one, too."""

_STARTING_S = 60.0
"""How long the first worker may take to come up, which is mostly importing torch; no waiting for rows."""

_CLOSED_AFTER_S = 0.25
"""How long a loop that waits for a batch may take to notice that its loader was closed by another thread."""


class _Worker:
    """One worker process. owed: permits that it has, and has not yet sent a batch for."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.owed = 0
        self.pid = 0

    def tell(self, kind: bytes, body: bytes) -> None:
        """One that is gone is found out when its messages are read."""
        with contextlib.suppress(OSError):
            _wire.send(self.peer, kind, body)


class WorkerPool:
    """The workers of one iteration. For one thread, but close."""

    def __init__(self, client: DataPlaneClient, nursery: Nursery, settings: LoaderSettings) -> None:
        self._client = client
        self._nursery = nursery
        self._settings = settings
        self._device = torch.device(settings.device)
        self._permits = settings.max_batches
        self._up_since: float | None = None
        self._is_over = False
        self._is_closed = False
        self._error: Exception | None = None
        self.dropped_batches = 0
        self.restarts = 0
        self._changing = threading.RLock()
        self._workers: deque[_Worker] = deque()
        for _ in range(settings.num_workers):
            self._start()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that have been heard of."""
        return [worker.pid for worker in self._workers if worker.pid]

    def next(self, timeout_s: float) -> LoadedBatch | None:
        """The next batch; None when there will be no more. Raises TimeoutError, what a worker met, ClosedError, or
        RuntimeError when too many workers have died.
        """
        began = time.monotonic()
        while not self._is_over:
            if self._error is not None:
                raise self._error
            try:
                batch = self._heard(self._speaker(self._deadline(began, timeout_s)))
            except (OSError, ValueError):
                self._check_open()  # its sockets were closed at that moment
                raise
            if batch is not None:
                return batch
        return None

    def close(self) -> None:
        """End the workers, which give back what nobody has taken. Closing twice is fine."""
        with self._changing:
            self._is_closed = True
            workers = list(self._workers)
            self._workers.clear()
        for worker in workers:
            with contextlib.suppress(OSError):
                worker.peer.shutdown(socket.SHUT_WR)
        until = time.monotonic() + CLOSING_S
        for worker in workers:
            _await_end(worker, until)

    def _start(self) -> None:
        worker = _Worker(self._nursery.fork())
        worker.tell(_wire.SETTINGS, msgpack.packb(self._settings.message()))
        self._workers.append(worker)
        self._permit(worker, self._settings.prefetch)

    def _permit(self, worker: _Worker, batches: int) -> None:
        """Let it claim so many batches more, or as many as are still wanted."""
        if self._permits is not None:
            batches = min(batches, self._permits)
            self._permits -= batches
        if batches:
            worker.owed += batches
            worker.tell(_wire.PERMIT, msgpack.packb(batches))

    def _deadline(self, began: float, timeout_s: float) -> float:
        """Until when to wait for rows. The time until there is a worker does not count."""
        if self._up_since is None:
            return began + timeout_s + _STARTING_S
        return max(began, self._up_since) + timeout_s

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the loader was closed")

    def _speaker(self, until: float) -> _Worker:
        """The next worker to have said something; each in its turn."""
        while True:
            left_s = until - time.monotonic()
            ready = wait([worker.peer for worker in self._workers], min(max(left_s, 0.0), _CLOSED_AFTER_S))
            with self._changing:
                self._check_open()
                if ready:
                    worker = next(worker for worker in self._workers if worker.peer in ready)
                    self._workers.remove(worker)
                    self._workers.append(worker)
                    return worker
            if left_s <= 0:
                raise TimeoutError

    def _heard(self, worker: _Worker) -> LoadedBatch | None:
        kind, body, fd = _wire.receive(worker.peer) or (b"", b"", None)
        if kind == _wire.BATCH and fd is not None:
            return self._taken_over(worker, fd)
        if kind == _wire.HELLO:
            worker.pid = msgpack.unpackb(body)
            self._up_since = self._up_since or time.monotonic()
        elif kind == _wire.END:
            self._is_over = True
        elif kind == _wire.FAILED:
            self._error = _wire.error_of_message(body)
        else:
            self._replace(worker)
        return None

    def _taken_over(self, worker: _Worker, fd: int) -> LoadedBatch | None:
        head, data = _parcel.unpack(fd, "sample_ids")
        deliveries, claim_id = head.pop("deliveries"), head.pop("claim_id")
        groups = tuple(ClaimedGroup(**group) for group in head.pop("groups"))
        meta = KVBatchMeta(**head)
        worker.owed -= 1
        try:
            claim = self._client.adopt_claim(claim_id, meta)
        except ClaimNotFoundError:
            log_event(logging.INFO, "loader_claim_ended", where=self._settings.where, claim=claim_id)
            self.dropped_batches += 1
            self._permits = None if self._permits is None else self._permits + 1
            claim = None
        worker.tell(_wire.TAKEN, claim_id.encode())
        self._permit(worker, 1)
        if claim is None:
            return None
        return LoadedBatch(moved(data, self._device), meta, claim_id, claim.fence, deliveries, groups, claim)

    def _replace(self, worker: _Worker) -> None:
        if self.restarts == _MOST_RESTARTS:
            self._error = RuntimeError(f"{self.restarts + 1} worker processes of a loader have died")
            return
        self.restarts += 1
        # What it held comes again when its session's grace is over.
        log_event(logging.WARNING, "loader_worker_died", where=self._settings.where, pid=worker.pid)
        with self._changing:
            self._check_open()
            self._workers.remove(worker)
            worker.peer.close()
            self._permits = None if self._permits is None else self._permits + worker.owed
            self._start()


def _await_end(worker: _Worker, until: float) -> None:
    """Read what a worker still has to say until its end, and make an end where it makes none. Its end of the socket is
    open as long as it lives, so that its process id is no other's.
    """
    with worker.peer:
        while True:
            if not wait([worker.peer], max(until - time.monotonic(), 0.0)):
                if worker.pid:
                    os.kill(worker.pid, signal.SIGKILL)
                return
            message = _wire.receive(worker.peer)
            if message is None:
                return
            kind, body, fd = message
            if kind == _wire.HELLO:
                worker.pid = msgpack.unpackb(body)
            if fd is not None:
                os.close(fd)
