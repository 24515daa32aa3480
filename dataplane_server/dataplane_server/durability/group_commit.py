"""Puts calls on stable storage, as many at once as came while the ones before were under way.

What is written, in order: the values that the calls of a batch put, which are in the arena by then; the batch, as one
record, which is in the log as a whole or not at all; and only then do the answers to its calls leave. So the log never
names values that are not on stable storage, and a torn record is always its last one.

Files are written in one thread at a time, beside the event loop. If that fails, the process must end: what a failed
sync left on the disk is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial

from dataplane_server.core.calls.life_calls import Settle
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.core.plane import DataPlane
from dataplane_server.durability.call_codec import encode_batch
from dataplane_server.durability.log_writer import LogWriter
from dataplane_server.storage.arena import Arena

_RECORD_BYTES = 64 << 20
_MOST_CALLS = 4096
"""In a batch that no answer waits for, such as one of heartbeats."""

Stable = asyncio.Future[None]
"""Done when a batch is on stable storage. Shared, so it must be shielded from the cancellation of one that waits."""


class GroupCommit:
    """Collects calls, and writes them when something waits for them. Used on one event loop."""

    def __init__(
        self,
        plane: DataPlane,
        arena: Arena,
        log: LogWriter,
        failed: Callable[[Exception], object],
        in_thread: Callable[[Callable[[], None]], Awaitable[None]] = asyncio.to_thread,
    ) -> None:
        """failed: called if calls cannot be written. in_thread: runs a function beside the event loop."""
        self._in_thread = in_thread
        self._plane = plane
        self._arena = arena
        self._log = log
        self._failed = failed
        self._settle: Callable[[Settle], object] = lambda call: None
        self._batch: list[bytes] = []
        self._awaited: Stable | None = None  # of the batch
        self._under_way: Stable | None = None  # of the batch that is being written
        self._writing: asyncio.Task[None] | None = None
        self._rests = False

    def start(self, settle: Callable[[Settle], object]) -> None:
        """settle: applies a call once it may, because the frees that waited for it are on stable storage."""
        self._settle = settle

    def append(self, payload: bytes) -> None:
        self._batch.append(payload)

    def unstable(self) -> Stable | None:
        """What to wait for until all calls that were applied so far are on stable storage. None if they are."""
        if self._batch:
            self._awaited = self._awaited or asyncio.get_running_loop().create_future()
            self._write()
            return self._awaited
        return self._under_way

    def write_if_due(self) -> None:
        """Write the batch if bytes wait for it that its calls have freed, or if it has many calls, also if no answer
        waits.
        """
        if (self._plane.releases_deferred or len(self._batch) >= _MOST_CALLS) and self._under_way is None:
            self.unstable()

    async def close(self) -> None:
        while (pending := self.unstable()) is not None:
            await asyncio.shield(pending)

    @contextlib.asynccontextmanager
    async def at_rest(self) -> AsyncIterator[None]:
        """A block without awaits, in which nothing is written but by `write_now`. It comes also while clients call
        without a pause: it waits for one batch.
        """
        self._rests = True
        try:
            if self._under_way is not None:
                await asyncio.shield(self._under_way)
            yield
        finally:
            self._rests = False
            if self._awaited is not None:
                self._write()

    def write_now(self) -> None:
        """Put all calls that were applied so far on stable storage. Blocks the event loop; to be called `at_rest`."""
        if not self._batch:
            return
        stable, self._awaited = self._awaited, None
        batch, releases = self._take()
        with self._ended_on_error():
            self._put_on_disk(batch)
        self._written(stable, releases)

    def _write(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_batches())

    async def _write_batches(self) -> None:
        while self._awaited is not None and not self._rests:
            stable, self._under_way, self._awaited = self._awaited, self._awaited, None
            batch, releases = self._take()
            with self._ended_on_error():
                await self._in_thread(partial(self._put_on_disk, batch))
            self._under_way = None
            self._written(stable, releases)

    def _take(self) -> tuple[list[bytes], int]:
        """The batch, and how many releases its calls and those before have deferred."""
        batch, self._batch = self._batch, []
        return batch, self._plane.releases

    @contextlib.contextmanager
    def _ended_on_error(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failed(error)
            raise

    def _written(self, stable: Stable | None, releases: int) -> None:
        if self._plane.releases_deferred:
            with contextlib.suppress(Refusal):  # the log has ended: no call uses the bytes again
                self._settle(Settle(releases))
        if stable is not None:
            stable.set_result(None)

    def _put_on_disk(self, batch: list[bytes]) -> None:
        for record in _records(batch):
            self._arena.sync()
            self._log.append(record)
            self._log.sync()


def _records(batch: list[bytes]) -> Iterator[bytes]:
    """The calls, as records of about _RECORD_BYTES at most."""
    begin = size = 0
    for place, call in enumerate(batch):
        if size and size + len(call) > _RECORD_BYTES:
            yield encode_batch(batch[begin:place])
            begin, size = place, 0
        size += len(call)
    yield encode_batch(batch[begin:])
