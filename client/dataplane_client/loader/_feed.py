"""Claims for a loader, one after the other: full ones while rows are coming, what is left at the end.

A claim for batch_size rows never comes when fewer are left, and a claim for one row makes tiny batches whenever
producers are slower than the trainer. So claims ask for full batches, for a short while each; when one is not filled,
the partition tells whether full ones can still come. They can't once all announced rows were put and fewer than a batch
are untaken; then one row is enough. They are not waited for either when that takes half of idle_timeout_s: some of the
rows that are missing may never be ready.

The end of a pass. Rows that another loader holds may come back, because it releases them or is killed. So a pass ends
when all announced rows were put and the task has consumed all resident rows: no row is lost with a killed loader.

This requires that other loaders commit without waiting for this one. The workers of a torch DataLoader break that rule.
The DataLoader asks its workers in a fixed order and waits for each. A worker commits a batch when it is asked for the
next one, and its prefetch thread holds claims meanwhile. If worker A waited at the server until worker B had committed,
B would wait for the DataLoader and the DataLoader for A. So in a DataLoader worker a pass ends when all announced rows
were put and none is untaken or delayed. Each worker delivers and commits the rows that it holds before it ends, so the
task has consumed all rows when the DataLoader ends. If a worker is killed, torch ends the whole DataLoader with an
error; the rows that the worker held come again in the next pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from dataplane_client.batched_data_dict import BatchedDataDict
from dataplane_client.client import Claim, DataPlaneClient
from dataplane_client.descriptions import PartitionDescription
from dataplane_client.errors import ClaimTimeoutError
from dataplane_client.loader._settings import LoaderSettings

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 0.5
"""How long a claim waits on the server; this long a loader that is closed may take to notice."""


class RowFeed:
    """The claims of one claimer. For one thread. waits_for_others: False in a worker of a torch DataLoader."""

    def __init__(self, client: DataPlaneClient, settings: LoaderSettings, waits_for_others: bool) -> None:
        self._client = client
        self._settings = settings
        self._waits_for_others = waits_for_others

    def next(self, is_stopped: Callable[[], bool]) -> Claim | None:
        """The next claim; None when there will be no more, or when stopped. Blocks until then, for ever if need be."""
        least, began = self._settings.least_size, time.monotonic()
        for wait_s in _growing_waits():
            if is_stopped():
                return None
            claim = self._claim(least, wait_s)
            if claim is not None:
                return claim
            if self._settings.until_consumed:
                partition = self._client.partition(self._settings.partition_id)
                if self._is_over(partition):
                    return None
                least = self._least_size(partition, time.monotonic() - began)
        return None

    def read(self, claim: Claim, device: str) -> BatchedDataDict[Any]:
        """The values of a claim's rows."""
        return self._client.read_columns(
            claim.meta,
            self._settings.fields,
            layout=self._settings.layout,
            pad_value_dict=self._settings.pad_value_dict,
            pad_to_seqlen=self._settings.pad_to_seqlen,
            device=device,
        )

    def _claim(self, least: int, wait_s: float) -> Claim | None:
        settings = self._settings
        try:
            return self._client.claim(
                settings.partition_id,
                settings.task_name,
                settings.required_fields,
                settings.batch_size,
                min_size=least,
                whole_groups=settings.whole_groups,
                max_tokens=settings.max_tokens,
                timeout_s=wait_s,
            )
        except ClaimTimeoutError:
            return None

    def _is_over(self, partition: PartitionDescription) -> bool:
        task = partition.task(self._settings.task_name)
        if partition.rows_put_total < partition.num_samples or task.untaken_rows or task.delayed_rows:
            return False
        if not self._waits_for_others:
            return True
        if task.claimed_rows:
            return False
        return self._client.check_consumption_status(self._settings.partition_id, [self._settings.task_name])

    def _least_size(self, partition: PartitionDescription, waited_s: float) -> int:
        if partition.rows_put_total < partition.num_samples:
            return self._settings.least_size
        group_rows = (partition.grpo_group_size or 1) if self._settings.whole_groups else 1
        untaken = partition.task(self._settings.task_name).untaken_rows
        is_rest = untaken < self._settings.least_size * group_rows or waited_s > self._settings.idle_timeout_s / 2
        return 1 if is_rest else self._settings.least_size


def _growing_waits() -> Iterator[float]:
    wait_s = _FIRST_WAIT_S
    while True:
        yield wait_s
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
