"""A loader's claims, one after the other: full batches while rows are coming, the rest at the end.

Batch sizes. A claim for batch_size rows waits for ever when fewer are left. A claim for one row makes tiny batches when
producers are slower than the trainer. So the stream asks for full batches, with a short wait on the server each time.
After a claim that timed out it asks the server whether full batches can still come. They cannot when all announced rows
were put and fewer than a batch are untaken. Then, and after half of idle_timeout_s, it asks for at least one row: some
of the missing rows may never be ready. The server refuses a claim at once if its partition is closed and too few rows
are left (EndOfDataError). Then the stream asks for one row, too.

The end of an iteration. Rows that another loader holds may come back, because it releases them or is killed. So an
iteration ends when all announced rows were put and the task has consumed all resident rows but its dead letters. No row
is lost with a killed loader. It also ends, with or without until_consumed, when the partition is closed and no row is
left to claim.

A server that is away, as while it starts again, is asked until it answers: its rows, claims and sessions come back. If
a row is removed before it is read, the claim is released, and the others come again.

This requires that other loaders commit without waiting for this one. The workers of a torch DataLoader break that rule.
The DataLoader asks its workers in a fixed order and waits for each. A worker commits a batch when it is asked for the
next one, and its prefetch thread holds claims meanwhile. If worker A waited at the server until worker B had committed,
B would wait for the DataLoader and the DataLoader for A. So in a DataLoader worker an iteration ends when all announced
rows were put and none is untaken or delayed. Each worker delivers and commits the rows that it holds before it ends, so
the task has consumed all rows when the DataLoader ends. If a worker is killed, torch ends the whole DataLoader with an
error; the rows that the worker held come again in the next iteration.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from dataplane_client._verbs._sync.claim import Claim
from dataplane_client._verbs._sync.client import DataPlaneClient
from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.errors import (
    ClaimTimeoutError,
    DataPlaneError,
    DeadlineError,
    EndOfDataError,
    NotFoundError,
    OutOfSpaceError,
    UnavailableError,
)
from dataplane_client.loader._settings import LoaderSettings
from dataplane_client.records.descriptions import PartitionDescription

CLOSING_S: Final = 5.0
"""Longest time of one step of closing a loader: a call, also one of the thread, or the end of the thread."""

_FIRST_WAIT_S: Final = 0.05
_LONGEST_WAIT_S: Final = 0.5
"""How long a claim waits on the server, and how long a loader may take to notice that it was closed."""

_REMOVED: Final = ("SAMPLE_NOT_FOUND", "ROW_REPLACED")


class ClaimStream:
    """The claims of one loader and the values of their rows. For one thread.

    waits_for_others: whether the stream ends only when rows held by others are consumed; False in DataLoader workers.
    """

    def __init__(self, client: DataPlaneClient, settings: LoaderSettings, waits_for_others: bool) -> None:
        self._client = client
        self._settings = settings
        self._waits_for_others = waits_for_others

    def next(self, is_stopped: Callable[[], bool]) -> Claim | None:
        """The next claim, or None at the end and when stopped. Blocks until then, without a limit, also while the
        server is away: who waits for a batch bounds that wait.
        """
        min_size, started = self._settings.min_batch_size, time.monotonic()
        for wait_s in _growing_waits():
            if is_stopped():
                return None
            try:
                claim = self._claim(min_size, wait_s)
                if claim is not None:
                    return claim
                partition = self._client.partition(self._settings.partition_id, timeout_s=CLOSING_S)
                if self._settings.until_consumed or partition.closed:
                    if self._is_over(partition):
                        return None
                    min_size = self._min_size(partition, time.monotonic() - started)
            except EndOfDataError:
                if min_size == 1:
                    return None
                min_size = 1
            except (UnavailableError, DeadlineError) as error:
                _wait_for_server(error, wait_s)
        return None

    def read(self, claim: Claim, device: str, is_stopped: Callable[[], bool]) -> BatchedDataDict[Any] | None:
        """The values of a claim's rows; None if one of these was removed, and when stopped. Blocks as `next` does."""
        for wait_s in _growing_waits():
            if is_stopped():
                return None
            try:
                return self._client.read_columns(
                    claim.meta,
                    self._settings.fields,
                    layout=self._settings.layout,
                    pad_value_dict=self._settings.pad_value_dict,
                    pad_to_seqlen=self._settings.pad_to_seqlen,
                    device=device,
                )
            except NotFoundError as error:
                if error.reason not in _REMOVED:
                    raise
                return None
            except (UnavailableError, DeadlineError) as error:
                _wait_for_server(error, wait_s)
        return None

    def _claim(self, min_size: int, wait_s: float) -> Claim | None:
        """A claim, or None if too few rows are ready."""
        settings = self._settings
        try:
            return self._client.claim(
                settings.partition_id,
                settings.task_name,
                settings.required_fields,
                settings.batch_size,
                min_size=min_size,
                whole_groups=settings.whole_groups,
                unit=settings.unit,
                max_tokens=settings.max_tokens,
                where=settings.selection.where,
                order=settings.selection.order,
                order_tag=settings.selection.order_tag,
                timeout_s=wait_s,
            )
        except ClaimTimeoutError:
            return None

    def _is_over(self, partition: PartitionDescription) -> bool:
        task = partition.task(self._settings.task_name)
        withheld = task.stale_rows + task.excluded_rows  # neither they nor dead letters are waited for
        if not _has_all_rows(partition) or task.untaken_rows > withheld or task.delayed_rows:
            return False
        return not (self._waits_for_others and task.claimed_rows)

    def _min_size(self, partition: PartitionDescription, waited_s: float) -> int:
        if not _has_all_rows(partition):
            return self._settings.min_batch_size
        group_rows = (partition.grpo_group_size or 1) if self._settings.counts_groups else 1
        task = partition.task(self._settings.task_name)
        untaken = task.untaken_rows - task.stale_rows - task.excluded_rows
        is_rest = untaken < self._settings.min_batch_size * group_rows or waited_s > self._settings.idle_timeout_s / 2
        return 1 if is_rest else self._settings.min_batch_size


def _has_all_rows(partition: PartitionDescription) -> bool:
    """Whether no rows are expected any more; those that were rolled back are."""
    rows_put = partition.rows_put_total - partition.removed_rows.get("rolled_back", 0)
    return partition.closed or rows_put >= max(partition.num_samples, 1)


def release_claims(claims: Iterable[Claim], reason: str = "") -> None:
    """Release the claims that are open. Without a reason their deliveries do not count.

    Errors are ignored: the server releases the claims when the session ends.
    """
    for claim in claims:
        if claim.state == "open":
            with contextlib.suppress(DataPlaneError):
                claim.release(reason=reason, timeout_s=CLOSING_S)


def _wait_for_server(error: UnavailableError | DeadlineError, wait_s: float) -> None:
    """Raises the error if it is not that of a server that is away."""
    if isinstance(error, OutOfSpaceError):
        raise error
    time.sleep(wait_s)


def _growing_waits() -> Iterator[float]:
    wait_s = _FIRST_WAIT_S
    while True:
        yield wait_s
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
