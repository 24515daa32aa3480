"""Our client in a process of a comparison, as a worker (see `serving`): puts a padded batch, or reads it.

The process that puts and the one that reads are two of these. A read ends when a number of each page is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from batches import Batch, Spec, build
from dataplane_client import DataPlaneClient, connect, kv_first_write, read_columns
from dataplane_client._values.columns_layout import Layout
from dataplane_client.meta import KVBatchMeta
from dataplane_client.options import TransportChoice
from serving import serve
from timing import seconds, undisturbed
from workload import digest, touch


class Calls:
    """The calls of the driver."""

    def __init__(self) -> None:
        self._clients: dict[TransportChoice, DataPlaneClient] = {}
        self._batch: Batch | None = None
        self._columns: dict[str, torch.Tensor] = {}
        self._fields: list[str] = []
        self._layout: Layout = "padded"
        self._last: Mapping[str, Any] = {}

    def connect(self, address: str, transport: TransportChoice) -> Mapping[str, Any]:
        self._clients[transport] = connect(address, transport=transport)
        return {}

    def build(self, spec: dict[str, Any]) -> Mapping[str, Any]:
        """Make a batch and its partition. Returns its fields, its sizes, and a digest of it."""
        self._batch = batch = build(Spec(**spec))
        self._columns = {name: torch.from_numpy(column) for name, column in batch.columns.items()}
        client = next(iter(self._clients.values()))
        client.register_partition(batch.name, list(batch.columns), 0, ["train"], per_token_fields=batch.per_token)
        sizes = f"{batch.rows} rows, {batch.jagged_bytes / 1e6:.3g} MB, padded {batch.padded_bytes / 1e6:.3g} MB"
        return {"fields": list(batch.columns), "sizes": sizes, "digest": digest(self._columns)}

    def expect(self, fields: list[str], layout: Layout) -> Mapping[str, Any]:
        """Tell which fields `read` reads, and how."""
        self._fields, self._layout = fields, layout
        return {}

    def put(self, number: int, transport: TransportChoice) -> Mapping[str, Any]:
        """Put the batch under the ids of a round."""
        batch, client = self._built(), self._clients[transport]
        ids = _ids(number, batch.rows)
        with undisturbed():
            took, _ = seconds(
                lambda: kv_first_write(self._columns, sample_ids=ids, dp_client=client, partition_id=batch.name)
            )
        return {"put": took}

    def read(self, name: str, number: int, rows: int, transport: TransportChoice) -> Mapping[str, Any]:
        """Read the batch of a round."""
        client, meta = self._clients[transport], KVBatchMeta(name, None, _ids(number, rows))
        with undisturbed():
            took, self._last = seconds(lambda: self._read(client, meta))
        return {"read": took}

    def digest(self) -> Mapping[str, Any]:
        """Of the last read."""
        return {"digest": digest(self._last)}

    def clear(self) -> Mapping[str, Any]:
        next(iter(self._clients.values())).clear_samples(None, self._built().name)
        return {}

    def _read(self, client: DataPlaneClient, meta: KVBatchMeta) -> Mapping[str, Any]:
        batch = read_columns(client, meta, self._fields, layout=self._layout)
        touch(batch)
        return batch

    def _built(self) -> Batch:
        if self._batch is None:
            raise RuntimeError("no batch was built")
        return self._batch


def _ids(number: int, rows: int) -> list[str]:
    return [f"{number}_{row}" for row in range(rows)]


def main() -> None:
    calls = Calls()
    names = ("connect", "build", "expect", "put", "read", "digest", "clear")
    serve({name: getattr(calls, name) for name in names})


if __name__ == "__main__":
    main()
