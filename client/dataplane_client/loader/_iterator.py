"""One iteration over the rows of a task, and the open iterations of a loader.

Law: a batch is committed when the next one is asked for, unless it was committed or released before. If the iteration
ends in another way, the current batch is released with a reason, since it may have been used in part. Prefetched
batches that were not used are released without a reason, so their deliveries do not count.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator

from dataplane_client._common.tracebacks import short_tracebacks
from dataplane_client._connect.deadline import ANSWER_MARGIN_S
from dataplane_client._verbs._sync.client import DataPlaneClient
from dataplane_client.errors import (
    ClaimTimeoutError,
    ClosedError,
    DataPlaneError,
    DeadlineError,
    PreconditionError,
    UnavailableError,
)
from dataplane_client.loader._batch import LoadedBatch
from dataplane_client.loader._claim_stream import CLOSING_S
from dataplane_client.loader._prefetch import Prefetcher
from dataplane_client.loader._settings import LoaderSettings


@short_tracebacks
class ClaimIterator(Iterator[LoadedBatch]):
    """The iterator of a ClaimLoader. For one thread, except `close`.

    It closes itself at its end and when it is garbage-collected. If a commit fails, the `next` that made it raises the
    error; the iteration can continue after that. A commit that was not answered is repeated by the following `next`.
    """

    def __init__(self, client: DataPlaneClient, prefetcher: Prefetcher, settings: LoaderSettings) -> None:
        self._client = client
        self._prefetcher = prefetcher
        self._settings = settings
        self._pid = os.getpid()
        self._changing = threading.Lock()
        self._current: LoadedBatch | None = None
        self._is_over = False
        self.is_closed = False

    def __repr__(self) -> str:
        state = "over" if self._is_over else "closed" if self.is_closed else "open"
        return f"<ClaimIterator {self._settings.flow} {self._prefetcher.ready_batches} batches prefetched {state}>"

    def __reduce__(self) -> tuple[object, ...]:
        raise PreconditionError("an iterator of a ClaimLoader cannot be pickled: pickle the loader")

    def __iter__(self) -> ClaimIterator:
        return self

    def __next__(self) -> LoadedBatch:
        if self._is_over:
            raise StopIteration
        if self.is_closed:
            raise ClosedError("the loader was closed")
        self._commit()
        batch = self._next()
        if batch is None:
            self._is_over = True
            self.close()
            raise StopIteration
        if not self._make_current(batch):
            with contextlib.suppress(DataPlaneError):
                batch.release(timeout_s=CLOSING_S)
            raise ClosedError("the loader was closed")
        return batch

    def close(self, reason: str = "closed") -> None:
        """Release the current batch for this reason and the prefetched ones without one. Can be called twice."""
        with self._changing:
            was_closed, self.is_closed = self.is_closed, True
        if was_closed:
            return
        batch = self._take_current()
        if batch is not None:
            with contextlib.suppress(DataPlaneError):  # the server releases it when the session ends
                batch.release(reason=reason, timeout_s=CLOSING_S)
        self._prefetcher.close()
        self._client.close()

    def finish(self) -> None:
        """Commit the current batch, then close. If the commit fails, close and raise its error."""
        try:
            self._commit()
        finally:
            self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the interpreter's end anything may be gone
            if self._pid != os.getpid():  # in a forked child the parent may still use it
                return
            if self._prefetcher.is_this_thread:  # which may hold a lock of the client, and cannot wait for itself
                threading.Thread(target=self.close, args=["the loop was left"]).start()
            else:
                self.close("the loop was left")

    def _next(self) -> LoadedBatch | None:
        try:
            return self._prefetcher.next(self._settings.idle_timeout_s)
        except TimeoutError as error:
            if isinstance(error, DataPlaneError):
                raise
        raise ClaimTimeoutError(self._timeout_message())

    def _make_current(self, batch: LoadedBatch) -> bool:
        """Set the current batch. Returns False when the loader was closed meanwhile."""
        with self._changing:
            if not self.is_closed:
                self._current = batch
            return not self.is_closed

    def _commit(self) -> None:
        batch = self._take_current()
        if batch is None:
            return
        try:
            batch.commit()
        except DataPlaneError as error:
            # Under its request_id, which the batch keeps, the next try takes effect once.
            if not batch.is_settled and type(error) in (DeadlineError, UnavailableError):
                self._make_current(batch)
            raise

    def _take_current(self) -> LoadedBatch | None:
        """Clear the current batch. Returns it if it is neither committed nor released."""
        with self._changing:
            batch, self._current = self._current, None
        return None if batch is None or batch.is_settled else batch

    def _timeout_message(self) -> str:
        """Raises the error of a server that is away, which says more."""
        settings = self._settings
        partition = self._client.partition(settings.partition_id, timeout_s=ANSWER_MARGIN_S)
        task, unit = partition.task(settings.task_name), "groups" if settings.counts_groups else "rows"
        return (
            f"partition {settings.partition_id!r}, task {settings.task_name!r}: no batch within "
            f"{settings.idle_timeout_s:g} s; a batch needs {settings.min_batch_size} {unit} with the fields "
            f"{', '.join(settings.required_fields)}; of {partition.num_samples} announced rows "
            f"{partition.rows_put_total} were put, {task.untaken_rows} are untaken, {task.claimed_rows} claimed, "
            f"{task.consumed_rows} consumed"
        )


class OpenIterators:
    """The open iterators of one loader in one process, held by weak references.

    Within a `with` block of the loader they are kept alive until the block ends. A loop that is left drops its iterator
    before anything shows whether an error ended it; only the block's `__exit__` knows.
    """

    def __init__(self) -> None:
        self._open: weakref.WeakSet[ClaimIterator] = weakref.WeakSet()
        self._kept: list[ClaimIterator] = []
        self._keeps = False

    def add(self, iterator: ClaimIterator) -> None:
        self._open.add(iterator)
        if self._keeps:
            self._kept = [*(one for one in self._kept if not one.is_closed), iterator]

    def keep(self) -> None:
        """Keep iterators alive from now on, until `close`."""
        self._keeps = True

    def finish(self) -> None:
        """Commit the current batches of the kept iterators. Raises the error of one that fails, after the others."""
        with contextlib.ExitStack() as finishing:
            for iterator in self._kept:
                finishing.callback(iterator.finish)

    def close(self, reason: str) -> None:
        """Release the current batches for this reason and end all iterations."""
        self._keeps = False
        for iterator in list(self._open):
            iterator.close(reason)
        self._kept.clear()
