"""The loader as a training loop holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from dataplane_client.client import connect
from dataplane_client.columns_layout import Layout
from dataplane_client.loader._ahead import ReadAhead
from dataplane_client.loader._batch import LoadedBatch
from dataplane_client.loader._iterator import ClaimIterator
from dataplane_client.loader._passes import Passes
from dataplane_client.loader._pool import WorkerPool
from dataplane_client.loader._settings import LoaderSettings


class ClaimLoader(IterableDataset[LoadedBatch]):
    """The rows of a task as LoadedBatches, claimed and materialized ahead. See __init__ for its settings.

        with ClaimLoader(address, "step-7", "train", ["tokens"], 32) as loader:
            for batch in loader:
                ...

    A batch is committed when the next one is asked for. When the loop ends otherwise, the batch at hand is

    - committed, if the loader is used in a `with` block, as above, and the block is left in good order (`break`);
    - released with the exception's name as its reason, if the block is left by an exception;
    - released, if the loop was left without such a block, or the loader was closed.

    batch.commit(fields), to write columns back, and batch.release() take the place of that. Rows that were claimed
    ahead and not used are given back at once, as if they had never been delivered.

    Each `iter` is a pass of its own with a client of its own, which it opens: the loader itself holds settings only and
    can be pickled.

    Under a torch DataLoader (batch_size=None) each of its workers iterates for itself, and a batch counts as used when
    the DataLoader asks the worker for the next one, which it does ahead of the training loop. Of the rows that are on
    their way to the loop when a DataLoader's worker is killed, those that were committed are lost to training, and the
    others come again, perhaps twice; batches can neither be committed nor released by the loop. `num_workers` of the
    loader itself has none of these drawbacks. Let a DataLoader start its workers with multiprocessing_context="spawn"
    or "forkserver", since gRPC does not survive a fork.
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
        max_tokens: int | None = None,
        max_batches: int | None = None,
        until_consumed: bool = True,
        idle_timeout_s: float = 60.0,
        client_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises ValueError for settings that make no sense; nothing is opened yet.

        fields: what is read. required_fields: what a row must have produced to be claimed (None: fields).

        batch_size: rows of a batch (with whole_groups: groups), min_size: the least there may be (None: batch_size).
        Smaller ones come only at the end, once the partition's announced num_samples rows were put and too few are
        left, or full ones were waited for in vain for half of idle_timeout_s. max_tokens: of a batch together, which
        may cut it short.

        prefetch: batches claimed ahead, by each worker. num_workers: processes that claim and materialize; 0 for one
        thread of this process. How many there are changes how fast rows come, not which. A worker that dies is
        replaced; what it had claimed and not handed over comes again when its session's grace is over. At most
        max(num_workers, 1) * prefetch + 1 batches are claimed at a time.

        layout, pad_value_dict, pad_to_seqlen: as read_columns. device: where tensors are wanted. Workers materialize in
        memory that they share with this process, from where it moves them.

        until_consumed: whether a pass ends when the partition's announced rows were put and the task has consumed all
        that are there, those that others hold included; with num_samples 0 that is as soon as it is empty. Otherwise it
        goes on for ever. max_batches: end after so many batches in any case. idle_timeout_s: `next` raises
        ClaimTimeoutError when it has waited so long for a batch; it can be called again.

        client_options: settings of ClientOptions by name, for the client of this process and those of the workers.
        """
        super().__init__()
        self._settings = LoaderSettings(
            address=address,
            partition_id=partition_id,
            task_name=task_name,
            fields=list(fields),
            required_fields=list(fields if required_fields is None else required_fields),
            batch_size=batch_size,
            min_size=min_size,
            prefetch=prefetch,
            num_workers=num_workers,
            layout=layout,
            pad_value_dict=dict(pad_value_dict or {}),
            pad_to_seqlen=pad_to_seqlen,
            device=str(device),
            whole_groups=whole_groups,
            max_tokens=max_tokens,
            max_batches=max_batches,
            until_consumed=until_consumed,
            idle_timeout_s=idle_timeout_s,
            client_options=dict(client_options or {}),
        )
        self._passes = Passes()

    def __iter__(self) -> ClaimIterator:
        """Begin a pass. Blocks until the server answers; raises what `connect` raises."""
        client = connect(self._settings.address, **self._settings.client_options)
        try:
            in_data_loader = get_worker_info() is not None
            if self._settings.num_workers and not in_data_loader:
                source: ReadAhead | WorkerPool = WorkerPool(client, self._passes.nursery(), self._settings)
            else:
                source = ReadAhead(client, self._settings, waits_for_others=not in_data_loader)
        except BaseException:
            client.close()
            raise
        iterator = ClaimIterator(client, source, self._settings)
        self._passes.add(iterator)
        return iterator

    def close(self) -> None:
        """End all passes: batches at hand are released, rows claimed ahead given back, workers ended. Blocks until that
        is done, for 15 s at most. A loop that waits for a batch gets a ClosedError. The loader can be used again.
        """
        self._passes.close("closed")

    def __enter__(self) -> ClaimLoader:
        self._passes.keep()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._passes.finish()
        finally:
            self._passes.close("closed" if kind is None else kind.__name__)

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self._settings}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._settings = state["settings"]
        self._passes = Passes()
