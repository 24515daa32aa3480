"""One pass over the rows of a task.

Law: a batch is committed when the next one is asked for, unless it was committed or released by then; a batch that is
at hand when the pass ends otherwise is released, with a reason, since it may have been used in part. What was claimed
ahead and never used is given back as if it had never been delivered.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from dataplane_client.client import DataPlaneClient
from dataplane_client.errors import ClaimTimeoutError, ClosedError, DataPlaneError
from dataplane_client.loader._ahead import ReadAhead
from dataplane_client.loader._batch import LoadedBatch
from dataplane_client.loader._giving_back import CLOSING_S
from dataplane_client.loader._pool import WorkerPool
from dataplane_client.loader._settings import LoaderSettings


class ClaimIterator(Iterator[LoadedBatch]):
    """What `iter` of a ClaimLoader returns. For one thread, but close. It closes itself when it is through, and when
    nobody refers to it any more.

    The error of a commit is raised by the `next` that made it; the pass can go on after that.
    """

    def __init__(self, client: DataPlaneClient, source: ReadAhead | WorkerPool, settings: LoaderSettings) -> None:
        self._client = client
        self._source = source
        self._settings = settings
        self._pid = os.getpid()
        self._changing = threading.Lock()
        self._at_hand: LoadedBatch | None = None
        self._taken = 0
        self._is_through = False
        self._is_closed = False

    @property
    def dropped_batches(self) -> int:
        """Batches of workers that the server had taken back before they were handed over; their rows come again."""
        return self._source.dropped_batches

    @property
    def restarts(self) -> int:
        """Workers that died and were replaced."""
        return self._source.restarts

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers, as far as they have been heard of."""
        return self._source.pids if isinstance(self._source, WorkerPool) else []

    def __iter__(self) -> ClaimIterator:
        return self

    def __next__(self) -> LoadedBatch:
        if self._is_through:
            raise StopIteration
        if self._is_closed:
            raise ClosedError("the loader was closed")
        self._commit()
        batch = None if self._taken == self._settings.max_batches else self._next()
        if batch is None:
            self._is_through = True
            self.close()
            raise StopIteration
        if not self._handed_out(batch):
            with contextlib.suppress(DataPlaneError):
                batch.release(timeout_s=CLOSING_S)
            raise ClosedError("the loader was closed")
        return batch

    def close(self, reason: str = "closed") -> None:
        """Release the batch at hand for this reason and give back what was claimed ahead. Closing twice is fine."""
        with self._changing:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        batch = self._settled()
        if batch is not None:
            with contextlib.suppress(DataPlaneError):  # the server finds out when the session ends
                batch.release(reason=reason, timeout_s=CLOSING_S)
        self._source.close()
        self._client.close()

    def finish(self) -> None:
        """Commit the batch at hand, then close. Raises what a commit raises, and is closed then, too."""
        try:
            self._commit()
        finally:
            self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the interpreter's end anything may be gone
            if self._pid == os.getpid():  # else it is the parent's, who may still use it
                self.close("the loop was left")

    def _next(self) -> LoadedBatch | None:
        try:
            return self._source.next(self._settings.idle_timeout_s)
        except TimeoutError as error:
            if isinstance(error, DataPlaneError):
                raise
        raise ClaimTimeoutError(self._what_is_missing())

    def _handed_out(self, batch: LoadedBatch) -> bool:
        """Have it at hand, unless the loader was closed meanwhile."""
        with self._changing:
            if not self._is_closed:
                self._taken += 1
                self._at_hand = batch
            return not self._is_closed

    def _commit(self) -> None:
        batch = self._settled()
        if batch is not None:
            batch.commit()

    def _settled(self) -> LoadedBatch | None:
        """The batch at hand if its claim is open; it is not at hand any more."""
        with self._changing:
            batch, self._at_hand = self._at_hand, None
        return None if batch is None or batch.is_settled else batch

    def _what_is_missing(self) -> str:
        partition = self._client.partition(self._settings.partition_id)
        task = partition.task(self._settings.task_name)
        return (
            f"{self._settings.where}: no batch within {self._settings.idle_timeout_s:g} s; of {partition.num_samples} "
            f"announced rows {partition.rows_put_total} were put, {task.untaken_rows} are untaken, {task.claimed_rows} "
            f"claimed, {task.consumed_rows} consumed; wanted are {self._settings.least_size} with the fields "
            f"{', '.join(self._settings.required_fields)}"
        )
