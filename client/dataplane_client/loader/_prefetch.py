"""A thread that claims and reads batches before the training loop asks for them.

At most `prefetch` batches are claimed here and not yet taken by the loop. The loop holds one more.

A thread, because the C kernel copies rows without Python's interpreter lock: with 20 ms of torch work per batch (64
rows of 2,048 tokens in five fields, two cores) a thread loaded 2,600 rows/s, and two worker processes 2,050.
"""

from __future__ import annotations

import threading
from collections import deque

import torch

from dataplane_client._common.reasons import reason_of
from dataplane_client._verbs._sync.claim import Claim
from dataplane_client._verbs._sync.client import DataPlaneClient
from dataplane_client.errors import ClosedError
from dataplane_client.loader._batch import LoadedBatch
from dataplane_client.loader._claim_stream import CLOSING_S, ClaimStream, release_claims
from dataplane_client.loader._devices import DeviceCopy
from dataplane_client.loader._settings import LoaderSettings


class Prefetcher:
    """The thread and its queue of batches.

    The thread ends at the end of the claims, at its first error, and when the prefetcher is closed.
    """

    def __init__(self, client: DataPlaneClient, settings: LoaderSettings, waits_for_others: bool) -> None:
        self._settings = settings
        self._claims = ClaimStream(client, settings, waits_for_others)
        self._device = _this_threads(torch.device(settings.device))
        self._read_device = str(self._device) if self._device.type == "cuda" else "cpu"  # a read can pad on these two
        self._changed = threading.Condition()
        self._ready: deque[tuple[Claim, DeviceCopy]] = deque()
        self._error: BaseException | None = None
        self._is_over = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="dataplane-loader", daemon=True)
        self._thread.start()

    def next(self, timeout_s: float) -> LoadedBatch | None:
        """The next batch, or None at the end. Raises TimeoutError, ClosedError, or the error that ended the thread."""
        with self._changed:
            if not self._changed.wait_for(self._has_news, timeout_s):
                raise TimeoutError
            if self._is_closed:
                raise ClosedError("the loader was closed")
            if not self._ready:
                if self._error is not None:
                    raise self._error
                return None
            claim, copy = self._ready.popleft()
            self._changed.notify_all()
        return LoadedBatch.of_claim(copy.batch(), claim)

    @property
    def ready_batches(self) -> int:
        """How many batches the loop could take now."""
        return len(self._ready)

    @property
    def is_this_thread(self) -> bool:
        """Whether the prefetcher's thread asks, as when it happens to collect garbage."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """End the thread and release the batches that were not taken. Can be called twice."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(CLOSING_S)
        with self._changed:
            unused = [claim for claim, _ in self._ready]
            self._ready.clear()
        release_claims(unused)

    def _has_news(self) -> bool:
        return bool(self._ready) or self._is_over or self._is_closed

    def _run(self) -> None:
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)  # a new thread begins on device 0
                with torch.cuda.stream(torch.cuda.Stream(self._device)):  # beside the training loop's work
                    self._fetch()
            else:
                self._fetch()
        except BaseException as error:  # noqa: BLE001  # `next` raises it
            self._error = error
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _fetch(self) -> None:
        fetched = 0
        while fetched != self._settings.max_batches and self._wait_for_space():
            claim = self._claims.next(lambda: self._is_closed)
            if claim is None:
                return
            try:
                values = self._claims.read(claim, self._read_device, lambda: self._is_closed)
                copy = None if values is None else DeviceCopy(values, self._device)
            except BaseException as error:
                release_claims([claim], "" if self._is_closed else reason_of(error))
                raise
            if copy is None:
                release_claims([claim])
                continue
            self._offer(claim, copy)
            fetched += 1

    def _wait_for_space(self) -> bool:
        """Wait until another batch may be claimed. Returns False when closed."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < self._settings.prefetch or self._is_closed)
            return not self._is_closed

    def _offer(self, claim: Claim, copy: DeviceCopy) -> None:
        with self._changed:
            if not self._is_closed:
                self._ready.append((claim, copy))
                self._changed.notify_all()
                return
        release_claims([claim])


def _this_threads(device: torch.device) -> torch.device:
    """The device, with its index: "cuda" is the current device of the thread that asks, and of no other."""
    return torch.device("cuda", torch.cuda.current_device()) if str(device) == "cuda" else device
