"""Our client for a `grid`, as a worker: one put, a row for each micro-batch, and a shard for each rank."""

from __future__ import annotations

from collections.abc import Sequence

from dataplane_client import connect
from dataplane_client.options import TransportChoice
from grid import BATCHES, FIELDS, PER_TOKEN, RANKS, WAIT_S, Grid, GridCalls, MicroBatch, arrays


class _Sender:
    """Puts the grid."""

    def __init__(self, address: str, transport: TransportChoice) -> None:
        self._client = connect(address, transport=transport)
        self._partition = f"grid {transport}"
        self._client.register_partition(self._partition, FIELDS, 0, ["train"], per_token_fields=list(PER_TOKEN))

    def send(self, grid: Grid, step: int) -> None:
        rows = [arrays(batch) for rank in grid for batch in rank]
        columns = {name: [row[name] for row in rows] for name in FIELDS}
        self._client.put_samples([f"{step}_{number}" for number in range(len(rows))], self._partition, columns)

    def clear(self, step: int) -> None:
        self._client.clear_samples(None, self._partition)


class _Receiver:
    """Claims and reads the shard of a rank, with balance "rows" that of its own rows. Commits after the round."""

    def __init__(self, rank: int, address: str, transport: TransportChoice) -> None:
        self._client, self._rank = connect(address, transport=transport), rank
        self._partition = f"grid {transport}"

    def receive(self, step: int) -> Sequence[MicroBatch]:
        self._claim = self._client.claim_shard(
            self._partition,
            "train",
            FIELDS,
            RANKS * BATCHES,
            step=step,
            dp_rank=self._rank,
            dp_world=RANKS,
            balance="rows",
            timeout_s=WAIT_S,
        )
        batch = self._client.read_columns(self._claim.meta, FIELDS, layout="auto")
        return [{name: batch[name][number] for name in FIELDS} for number in range(BATCHES)]

    def release(self) -> None:
        self._claim.commit()


class Calls(GridCalls):
    """The calls of the driver, for our client."""

    def __init__(self) -> None:
        super().__init__({"auto": _Receiver, "grpc": _Receiver})

    def prepare(self, address: str, transport: TransportChoice) -> None:
        """Connect all, and check that the grid arrives unchanged."""
        self.open_way(transport, _Sender(address, transport), self.grid, address, transport)
        self.check(transport)
