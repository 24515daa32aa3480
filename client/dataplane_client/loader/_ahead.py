"""Batches claimed and materialized ahead by a thread of this process.

The thread holds a permit for each batch that it has claimed and nobody has taken; there are `prefetch` of them. So rows
of at most that many batches wait here, and those of one more are in the loop's hands.
"""

from __future__ import annotations

import threading
from collections import deque

import torch

from dataplane_client.client import Claim, DataPlaneClient
from dataplane_client.errors import ClosedError
from dataplane_client.loader._batch import LoadedBatch
from dataplane_client.loader._devices import Arrival, moved
from dataplane_client.loader._feed import RowFeed
from dataplane_client.loader._giving_back import CLOSING_S, give_back
from dataplane_client.loader._settings import LoaderSettings


class ReadAhead:
    """The thread and what it has ready. It ends when there are no more rows, at the first error, and when closed."""

    dropped_batches = 0
    restarts = 0

    def __init__(self, client: DataPlaneClient, settings: LoaderSettings, waits_for_others: bool) -> None:
        self._feed = RowFeed(client, settings, waits_for_others)
        self._device = torch.device(settings.device)
        self._read_on = settings.device if self._device.type == "cuda" else "cpu"  # other devices cannot pad for us
        self._changed = threading.Condition()
        self._ready: deque[tuple[Claim, Arrival]] = deque()
        self._permits = min(settings.prefetch, settings.max_batches or settings.prefetch)
        self._ungranted = None if settings.max_batches is None else settings.max_batches - self._permits
        self._error: BaseException | None = None
        self._is_over = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="dataplane-loader", daemon=True)
        self._thread.start()

    def next(self, timeout_s: float) -> LoadedBatch | None:
        """The next batch; None when there will be no more. Raises TimeoutError, what the thread met, or ClosedError."""
        with self._changed:
            if not self._changed.wait_for(self._has_news, timeout_s):
                raise TimeoutError
            if self._is_closed:
                raise ClosedError("the loader was closed")
            if not self._ready:
                if self._error is not None:
                    raise self._error
                return None
            claim, arrival = self._ready.popleft()
            if self._ungranted != 0:
                self._permits += 1
                self._ungranted = None if self._ungranted is None else self._ungranted - 1
            self._changed.notify_all()
        return LoadedBatch.of_claim(arrival.batch(), claim)

    def close(self) -> None:
        """End the thread and give back what nobody has taken. Closing twice is fine."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(CLOSING_S)
        with self._changed:
            unused = [claim for claim, _ in self._ready]
            self._ready.clear()
        give_back(unused)

    def _has_news(self) -> bool:
        return bool(self._ready) or self._is_over or self._is_closed

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  # it is raised again where the batches are wanted
            self._error = error
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _work(self) -> None:
        while self._has_permit():
            claim = self._feed.next(lambda: self._is_closed)
            if claim is None:
                return
            try:
                arrival = Arrival(moved(self._feed.read(claim, self._read_on), self._device), self._device)
            except BaseException as error:
                give_back([claim], "" if self._is_closed else type(error).__name__)
                raise
            self._offer(claim, arrival)

    def _has_permit(self) -> bool:
        """Wait for a permit and take it; False when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._permits or self._is_closed)
            self._permits -= 1
            return not self._is_closed

    def _offer(self, claim: Claim, arrival: Arrival) -> None:
        with self._changed:
            if not self._is_closed:
                self._ready.append((claim, arrival))
                self._changed.notify_all()
                return
        give_back([claim])
