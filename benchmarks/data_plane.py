"""Rounds through our own client: put as a rollout worker does, read as a trainer does. Also a worker (see `workers`).

Each round puts its rows under new ids and clears them after it was timed. As in a trainer's loop, the batch of the
previous round stays alive until the next one is read.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

import torch

from batches import Batch, Spec, build
from dataplane_client import (
    DataPlaneClient,
    KVBatchMeta,
    connect,
    kv_first_write,
    pack_jagged_fields,
    read_columns,
)
from dataplane_client.codec import Layout
from dataplane_client.options import TransportChoice
from servers import forget_peak, memory
from timing import timed
from workload import touch

_numbers = itertools.count()


class Rounds:
    """Padded tensors in, a batch out. layout: of what is read; None puts values that were packed before, and reads them
    so, which is the cost of the connection alone. partition: None for one of its own.
    """

    def __init__(
        self, client: DataPlaneClient, batch: Batch, layout: Layout | None = "padded", partition: str | None = None
    ) -> None:
        self._client, self._batch, self._layout = client, batch, layout
        self._columns = {name: torch.from_numpy(column) for name, column in batch.columns.items()}
        self._ragged = batch.lengths is not None
        if layout is None:
            lengths = None if batch.lengths is None else torch.from_numpy(batch.lengths)
            self._packed = pack_jagged_fields(self._columns, lengths=lengths, token_aligned_fields=set(batch.per_token))
        self._partition = partition or f"{batch.name}-{next(_numbers)}"
        client.register_partition(self._partition, list(batch.columns), 0, ["train"], per_token_fields=batch.per_token)
        self._round = itertools.count()
        self._meta: KVBatchMeta | None = None
        self._last: Any = None

    def __call__(self) -> Mapping[str, float]:
        number = next(self._round)
        times = timed(put=lambda: self.put(number), read=lambda: self.read(number))
        self.clear()
        return times

    def put(self, number: int) -> None:
        ids = self._ids(number)
        if self._layout is not None and self._ragged:
            self._meta = kv_first_write(
                self._columns, sample_ids=ids, dp_client=self._client, partition_id=self._partition
            )
        else:
            values = self._packed if self._layout is None else self._columns
            self._meta = self._client.put_samples(ids, self._partition, values)

    def read(self, number: int) -> Any:
        """What was put in a round, by whichever process."""
        if self._layout is None:
            self._last = self._client.get_samples(self._ids(number), self._partition, list(self._columns))
        else:
            meta = self._meta or KVBatchMeta(self._partition, None, self._ids(number))
            self._last = read_columns(self._client, meta, list(self._columns), layout=self._layout)
        return self._last

    def clear(self) -> None:
        self._client.clear_samples(None, self._partition)

    def check(self) -> None:
        """Raise RuntimeError if the last read differs from the batch."""
        for name, column in self._columns.items():
            found = self._last[name]
            padded = torch.nested.to_padded_tensor(found, 0, output_size=column.shape) if found.is_nested else found
            if not torch.equal(padded, column):
                raise RuntimeError(f"{self._partition}: field {name!r} came back changed")

    def close(self) -> None:
        """Release what the rounds hold, here and on the server."""
        self._last = None
        self._client.drop_partition(self._partition)

    def _ids(self, number: int) -> list[str]:
        return [f"sample_{row}_{number}" for row in range(self._batch.rows)]


def checked_rounds(client: DataPlaneClient, batch: Batch, layout: Layout | None = "padded") -> Rounds:
    """Rounds, after one of them has given the batch back unchanged."""
    rounds = Rounds(client, batch, layout)
    rounds()
    rounds.check()
    return rounds


class Calls:
    """Our client in a process of its own: many clients at once, a process that puts and one that reads, memory."""

    def __init__(self) -> None:
        self._rounds: dict[str, Rounds] = {}
        self._clients: dict[tuple[str, str], DataPlaneClient] = {}

    def prepare(
        self, partition: str, spec: Spec, address: str, transport: TransportChoice, layout: Layout | None = "padded"
    ) -> int:
        """Make a batch and its partition. Returns its bytes without padding."""
        batch, which = build(spec), (address, transport)
        client = self._clients[which] = self._clients.get(which) or connect(address, transport=transport)
        self._rounds[partition] = Rounds(client, batch, layout, partition)
        return batch.jagged_bytes

    def run(self, partition: str, seconds: float) -> tuple[int, float]:
        """Run rounds for `seconds`. Returns how many, in how many seconds."""
        began, done = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            self._rounds[partition]()
            done += 1
        return done, time.monotonic() - began

    def put(self, partition: str, number: int) -> Mapping[str, float]:
        return timed(put=lambda: self._rounds[partition].put(number))

    def read(self, partition: str, number: int) -> Mapping[str, float]:
        """Ends when a number of each page was read."""
        return timed(read=lambda: touch(self._rounds[partition].read(number)))

    def check(self, partition: str) -> None:
        self._rounds[partition].check()

    def clear(self, partition: str) -> None:
        self._rounds[partition].clear()

    def peak(self, partition: str, step: str) -> int:
        """The growth of this process at its peak while it puts or reads, in bytes."""
        forget_peak()
        before = memory("VmRSS")
        getattr(self._rounds[partition], step)(0)
        return memory("VmHWM") - before
