"""ClaimLoader, the iterable that a training loop uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from dataplane_client._common.arguments import checked_names
from dataplane_client._common.displays import short_list
from dataplane_client._common.reasons import reason_of
from dataplane_client._values.columns_layout import Layout
from dataplane_client._verbs._sync.client import connect
from dataplane_client.loader._batch import LoadedBatch
from dataplane_client.loader._iterator import ClaimIterator, OpenIterators
from dataplane_client.loader._prefetch import Prefetcher
from dataplane_client.loader._settings import LoaderSettings
from dataplane_client.records.filters import Where
from dataplane_client.records.tasks import BatchUnit, ClaimOrder, Selection


class ClaimLoader(IterableDataset[LoadedBatch]):
    """The rows of a task as LoadedBatches, claimed and read by a thread in the background. See __init__ for settings.

        with ClaimLoader(address, "step-7", "train", ["tokens"], 32) as loader:
            for batch in loader:
                ...

    A batch is committed when the next one is asked for. If the loop ends in another way, the current batch is

    - committed, if the loader is used in a `with` block, as above, and the block ends without an exception (`break`);
    - released with the exception's type and message as its reason, if an exception ends the block;
    - released, if the loop was left without such a block, or the loader was closed.

    batch.commit(fields), which writes columns back, and batch.release() replace that commit or release. Rows that were
    prefetched and not used are released at once, and their deliveries do not count.

    Each `iter` starts an iteration with a client of its own. The loader itself holds only settings, so it can be
    pickled.

    For more processes, use a torch DataLoader: `DataLoader(loader, batch_size=None, num_workers=2,
    multiprocessing_context="forkserver")`. Its workers must not be forked from a process that uses gRPC. Each worker
    iterates over a share of the rows with a prefetch thread of its own. The loop can neither commit nor release the
    batches: a worker commits a batch when the DataLoader asks it for the next one, which is before the loop has used
    it. A worker's iteration ends when no row is left to claim, even if other loaders still hold rows. If a worker is
    killed, the DataLoader raises an error. Rows that the worker had not committed come again in the next iteration,
    perhaps for the second time. Rows that it had committed and the loop had not received are lost to training. With
    prefetch_factor=1 a worker is normally asked only after the DataLoader has received its last batch. Use a plain loop
    where no row may be lost.

    Ranks that wait for each other in collectives should not share a task through loaders: at the end of the data one
    would wait for a batch that another has not committed. They use DataPlaneClient.claim_shard.
    """

    def __init__(
        self,
        address: str,
        partition_id: str,
        task_name: str,
        fields: Sequence[str],
        batch_size: int,
        *,
        min_size: int | None = None,
        required_fields: Sequence[str] | None = None,
        prefetch: int = 2,
        num_workers: int = 0,
        layout: Layout = "padded",
        pad_value_dict: Mapping[str, int | float] | None = None,
        pad_to_seqlen: int = 0,
        device: torch.device | str = "cpu",
        whole_groups: bool = False,
        unit: BatchUnit | None = None,
        max_tokens: int | None = None,
        where: Where | None = None,
        order: ClaimOrder | None = None,
        order_tag: str = "",
        max_batches: int | None = None,
        until_consumed: bool = True,
        idle_timeout_s: float = 60.0,
        client_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Opens nothing. Raises ValueError or TypeError for invalid settings.

        address: of the server; each iteration opens a client of its own. fields: the fields to read. required_fields:
        the fields that a row must have to be claimed (None: fields).

        batch_size: rows of a batch (with whole_groups: groups). min_size: the smallest batch (None: batch_size).
        Smaller batches come only at the end: when the partition's announced num_samples rows were put, or it was
        closed, and too few are left, or after waiting for full ones for half of idle_timeout_s. whole_groups, unit,
        max_tokens: as in claim; unit="rows" makes the sizes count the rows of whole groups. where, order, order_tag: as
        in claim. Rows that do not fit `where` stay unconsumed, and the iteration waits for them; rows that do not fit
        the policy of the task (set_policies) are not waited for.

        prefetch: batches to claim ahead. At most prefetch + 1 batches are claimed at a time.
        num_workers: must be 0. For worker processes use a torch DataLoader, as above.

        layout, pad_value_dict, pad_to_seqlen: as in read_columns. device: where to put tensors.

        until_consumed: whether an iteration ends when the partition's announced rows were put and the task has consumed
        all resident rows, including those that others hold, but not its dead letters. With num_samples 0 it ends when a
        row was put and no other resident row is unconsumed. If False, the iteration does not end. Either way it ends
        when the partition is closed (close_partition) and the task has no row left. max_batches: the number of batches
        after which an iteration ends in any case. idle_timeout_s: how long `next` waits for a batch before it raises
        ClaimTimeoutError, or UnavailableError while the server is away; it can be called again.

        client_options: keyword arguments of `connect`, for the client of each iteration.
        """
        super().__init__()
        if num_workers:
            raise ValueError(
                f"num_workers must be 0, got {num_workers}: a ClaimLoader reads in one thread; for worker processes "
                "use torch.utils.data.DataLoader(loader, batch_size=None, num_workers=...)"
            )
        names = checked_names("field name", fields, "ClaimLoader")
        required = names if required_fields is None else checked_names("field name", required_fields, "ClaimLoader")
        self._settings = LoaderSettings(
            address=address,
            partition_id=partition_id,
            task_name=task_name,
            fields=names,
            required_fields=required,
            batch_size=batch_size,
            min_size=min_size,
            prefetch=prefetch,
            layout=layout,
            pad_value_dict=dict(pad_value_dict or {}),
            pad_to_seqlen=pad_to_seqlen,
            device=str(device),
            whole_groups=whole_groups,
            unit=unit,
            max_tokens=max_tokens,
            selection=Selection(where, order, order_tag),
            max_batches=max_batches,
            until_consumed=until_consumed,
            idle_timeout_s=idle_timeout_s,
            client_options=dict(client_options or {}),
        )
        self._iterators = OpenIterators()

    def __repr__(self) -> str:
        settings = self._settings
        fields = short_list(settings.fields, 30)
        return f"<ClaimLoader {settings.address} {settings.flow} batches of {settings.batch_size} with {fields}>"

    def __iter__(self) -> ClaimIterator:
        """Start an iteration. Blocks until the server answers. Raises what `connect` raises."""
        client = connect(self._settings.address, **self._settings.client_options)
        try:
            prefetcher = Prefetcher(client, self._settings, waits_for_others=get_worker_info() is None)
        except BaseException:
            client.close()
            raise
        iterator = ClaimIterator(client, prefetcher, self._settings)
        self._iterators.add(iterator)
        return iterator

    def close(self) -> None:
        """End all iterations: release current and prefetched batches.

        Blocks until that is done; each call to the server takes at most 5 s. A loop that waits for a batch gets a
        ClosedError. The loader can be used again.
        """
        self._iterators.close("closed")

    def __enter__(self) -> ClaimLoader:
        self._iterators.keep()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._iterators.finish()
        finally:
            self._iterators.close("closed" if error is None else reason_of(error))

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self._settings}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._settings = state["settings"]
        self._iterators = OpenIterators()
