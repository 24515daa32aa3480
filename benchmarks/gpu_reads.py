"""Measure reads to a GPU beside the bus.

Batch G is put over shared memory and read with `device=`: ragged values go through pinned memory and are padded on the
device. Beside it are its jagged bytes from one pinned block, which is the floor, and a read to the host whose padded
tensors are sent afterwards. Each ends when the device has everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from batches import Batch, G, build
from dataplane_client import DataPlaneClient, KVBatchMeta, kv_first_write, read_columns
from session import Session, in_ms, in_times
from timing import Round, alternate, seconds, undisturbed

_ROUNDS = 31
_BUS = "the bus: jagged bytes from one pinned block"


def measure(session: Session, client: DataPlaneClient, device: torch.device) -> None:
    """Print the time of each way, and its ratio to the bus."""
    batch = build(G)
    meta, names = _put(client, batch), list(batch.columns)
    systems: dict[str, Round] = {
        _BUS: _round(device, _over_the_bus(batch.jagged_bytes, device)),
        "read_columns(device=...)": _round(device, lambda: read_columns(client, meta, names, device=device)),
        "read_columns, then to(device)": _round(device, lambda: read_columns(client, meta, names).to(device)),
    }
    measured = alternate(systems, session.rounds(_ROUNDS), session.warmups)
    session.keep("gpu.reads", measured)
    bus = measured[_BUS]["read"]
    rows = [
        (name, in_ms(steps["read"]), in_times(steps["read"].over(bus)), _rate(batch, steps["read"].median))
        for name, steps in measured.items()
    ]
    sizes = f"{batch.jagged_bytes / 1e6:.3g} MB, padded {batch.padded_bytes / 1e6:.3g} MB"
    session.show(f"batch G to {device}: {sizes}; median (min..max)", ("way", "ms", "x bus", "GB/s, jagged"), rows)


def _put(client: DataPlaneClient, batch: Batch) -> KVBatchMeta:
    columns = {name: torch.from_numpy(column) for name, column in batch.columns.items()}
    client.register_partition("reads", list(columns), 0, ["train"], per_token_fields=batch.per_token)
    ids = [f"sample_{row}" for row in range(batch.rows)]
    return kv_first_write(columns, sample_ids=ids, dp_client=client, partition_id="reads")


def _over_the_bus(size_bytes: int, device: torch.device) -> Callable[[], object]:
    source = torch.ones(size_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    target = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    return lambda: target.copy_(source, non_blocking=True)


def _round(device: torch.device, read: Callable[[], object]) -> Round:
    def whole() -> None:
        read()
        wait(device)

    def once() -> Mapping[str, float]:
        wait(device)
        with undisturbed():
            return {"read": seconds(whole)[0]}

    return once


def wait(device: torch.device) -> None:
    """Until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _rate(batch: Batch, took_s: float) -> str:
    return f"{batch.jagged_bytes / took_s / 1e9:.2f}"
