"""Rounds through our own client: put as a rollout worker does, read as a trainer does.

Each round puts its rows under new ids and clears them after it was timed. As in a trainer's loop, the batch of the
previous round stays alive until the next one is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from batches import Batch
from dataplane_client import (
    BatchedDataDict,
    DataPlaneClient,
    connect,
    kv_first_write,
    pack_jagged_fields,
    read_columns,
)
from dataplane_client._values.columns_layout import Layout
from dataplane_client.meta import KVBatchMeta
from timing import seconds, undisturbed

_numbers = itertools.count()


def connect_over_grpc(address: str) -> DataPlaneClient:
    """Connect a client over gRPC, even if it could share memory with the server."""
    return connect(address, transport="grpc")


class PaddedRounds:
    """Padded tensors in, a padded batch out (or, in layout "jagged", nested tensors)."""

    def __init__(self, client: DataPlaneClient, batch: Batch, layout: Layout = "padded") -> None:
        self._client = client
        self._layout = layout
        self._columns = {name: torch.from_numpy(column) for name, column in batch.columns.items()}
        self._ragged = batch.lengths is not None
        self._ids = [f"sample_{row}" for row in range(batch.rows)]
        self._partition = f"{batch.name}-{next(_numbers)}"
        self._last: BatchedDataDict[Any] | None = None
        client.register_partition(self._partition, list(batch.columns), 0, ["train"], per_token_fields=batch.per_token)
        self._round = itertools.count()
        self()
        self._check()

    def __call__(self) -> Mapping[str, float]:
        number = next(self._round)
        ids = [f"{name}_{number}" for name in self._ids]
        with undisturbed():
            put, meta = seconds(lambda: self._put(ids))
            read, self._last = seconds(lambda: self._read(meta))
        self._client.clear_samples(ids, self._partition)
        return {"put": put, "read": read}

    def close(self) -> None:
        """Release what the rounds hold, here and on the server."""
        self._last = None
        self._client.drop_partition(self._partition)

    def _put(self, ids: list[str]) -> KVBatchMeta:
        if self._ragged:
            return kv_first_write(self._columns, sample_ids=ids, dp_client=self._client, partition_id=self._partition)
        return self._client.put_samples(ids, self._partition, self._columns)

    def _read(self, meta: KVBatchMeta) -> BatchedDataDict[Any]:
        return read_columns(self._client, meta, list(self._columns), layout=self._layout)

    def _check(self) -> None:
        for name, column in self._columns.items() if self._last is not None else ():
            found = self._last[name]  # type: ignore[index]
            padded = torch.nested.to_padded_tensor(found, 0, output_size=column.shape) if found.is_nested else found
            if not torch.equal(padded, column):
                raise RuntimeError(f"{self._partition}: field {name!r} came back changed")


class StreamRounds:
    """Packed fields in, packed fields out: the cost of the connection, without padding or packing."""

    def __init__(self, client: DataPlaneClient, batch: Batch) -> None:
        self._client = client
        columns = {name: torch.from_numpy(column) for name, column in batch.columns.items()}
        lengths = None if batch.lengths is None else torch.from_numpy(batch.lengths)
        self._fields = pack_jagged_fields(columns, lengths=lengths, token_aligned_fields=set(batch.per_token))
        self._names = list(columns)
        self._rows = batch.rows
        self._partition = f"{batch.name}-{next(_numbers)}"
        self._round = itertools.count()
        self._last: object = None
        client.register_partition(self._partition, self._names, 0, ["train"], per_token_fields=batch.per_token)

    def __call__(self) -> Mapping[str, float]:
        number = next(self._round)
        ids = [f"sample_{row}_{number}" for row in range(self._rows)]
        with undisturbed():
            put, _ = seconds(lambda: self._client.put_samples(ids, self._partition, self._fields))
            read, self._last = seconds(lambda: self._client.get_samples(ids, self._partition, self._names))
        self._client.clear_samples(ids, self._partition)
        return {"put": put, "read": read}

    def close(self) -> None:
        """Release what the rounds hold, here and on the server."""
        self._last = None
        self._client.drop_partition(self._partition)
