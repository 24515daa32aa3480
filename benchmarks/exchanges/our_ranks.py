"""Our client for a grid of micro-batches, as a worker (see `serving`): one put, and a shard for each rank.

A micro-batch is a row. `claim_shard` with balance "rows" divides the rows in order, so each rank gets its own. A rank
commits after the round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dataplane_client import BatchedDataDict, connect
from dataplane_client.options import TransportChoice
from exchanges import micro_batches as grids
from exchanges.rank_processes import WAIT_S, GridRounds, RankProcesses
from serving import serve

_TASK = "train"
_PRELOADED = ("torch", "dataplane_client")
_ROWS = grids.RANKS * grids.BATCHES


class Sender:
    """Puts the grid."""

    def __init__(self, address: str, transport: TransportChoice, partition: str) -> None:
        self._client = connect(address, transport=transport)
        self._partition = partition
        self._client.register_partition(partition, grids.FIELDS, 0, [_TASK], per_token_fields=list(grids.PER_TOKEN))

    def send(self, grid: grids.Grid, step: int) -> None:
        rows = [grids.arrays(batch) for rank in grid for batch in rank]
        columns = {name: [row[name] for row in rows] for name in grids.FIELDS}
        ids = [f"{step}_{number}" for number in range(len(rows))]
        self._client.put_samples(ids, self._partition, columns)

    def clear(self, step: int) -> None:
        self._client.clear_samples([f"{step}_{number}" for number in range(_ROWS)], self._partition)


class Receiver:
    """Claims and reads the shard of a rank."""

    def __init__(self, rank: int, address: str, transport: TransportChoice, partition: str) -> None:
        self._client = connect(address, transport=transport)
        self._rank, self._partition = rank, partition
        self._claim: Any = None

    def receive(self, step: int) -> Sequence[Mapping[str, Any]]:
        self._claim = self._client.claim_shard(
            self._partition,
            _TASK,
            grids.FIELDS,
            _ROWS,
            step=step,
            dp_rank=self._rank,
            dp_world=grids.RANKS,
            balance="rows",
            timeout_s=WAIT_S,
        )
        batch = self._client.read_columns(self._claim.meta, grids.FIELDS, layout="auto")
        return [_row(batch, number) for number in range(grids.BATCHES)]

    def release(self) -> None:
        self._claim.commit()


def _row(batch: BatchedDataDict[Any], number: int) -> dict[str, Any]:
    return {name: batch[name][number] for name in grids.FIELDS}


class Calls:
    """The calls of the driver."""

    def __init__(self) -> None:
        self._rounds: dict[TransportChoice, GridRounds] = {}
        self._ranks: list[RankProcesses] = []

    def prepare(self, address: str, transport: TransportChoice) -> Mapping[str, Any]:
        """Start the ranks, send the grid once, untimed, and check that it arrives unchanged."""
        partition = f"grid {transport}"
        sender = Sender(address, transport, partition)
        self._ranks.append(RankProcesses(_PRELOADED, Receiver, address, transport, partition))
        grid = grids.build()
        self._rounds[transport] = GridRounds(grid, sender, self._ranks[-1])
        self._rounds[transport].check(grid)
        return {}

    def round(self, transport: TransportChoice) -> Mapping[str, Any]:
        return self._rounds[transport]()

    def close(self) -> None:
        for ranks in self._ranks:
            ranks.close()


def main() -> None:
    calls = Calls()
    try:
        serve({"prepare": calls.prepare, "round": calls.round})
    finally:
        calls.close()


if __name__ == "__main__":
    main()
