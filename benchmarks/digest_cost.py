"""What it costs that producers hash values and readers compare them.

Rows of 2 MiB, 1 GiB together, and batch G, are put and read in a partition with digests and in one without. The two
take turns within every round. CPU time is of this process, which copies and hashes; the server does neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from batches import G, build
from dataplane_client import DataPlaneClient, KVBatchMeta, connect
from dataplane_client.options import TransportChoice
from report import Session, compare
from servers import server_process
from timing import alternate, undisturbed

TRANSPORTS: tuple[TransportChoice, ...] = ("shm", "direct", "grpc")
Fields = Mapping[str, torch.Tensor]


def measure(session: Session) -> None:
    large = {"pixels": torch.randint(0, 1 << 62, (512, 1 << 18))}
    g = build(G)
    assert g.lengths is not None
    batch = {name: torch.from_numpy(column) for name, column in g.columns.items()}
    with server_process("3GiB") as server:
        for transport in TRANSPORTS:
            address = server.unix if transport == "shm" else server.tcp
            with connect(address, transport=transport, timeout_s=120.0) as client:
                for title, fields, lengths, times in (
                    ("1 GiB in rows of 2 MiB", large, None, session.pick(12, 1)),
                    ("G", batch, g.lengths.tolist(), session.pick(60, 2)),
                ):
                    found = {digests: _Turn(client, fields, lengths, digests) for digests in (False, True)}
                    systems = {("digests" if digests else "none"): turn for digests, turn in found.items()}
                    measured = alternate(systems, times, 2)
                    compare(session.console, f"{transport}, {title}", measured)


class _Turn:
    """Puts rows, reads them and clears them."""

    def __init__(self, client: DataPlaneClient, fields: Fields, lengths: list[int] | None, digests: bool) -> None:
        self._client, self._fields, self._lengths = client, fields, lengths
        self._name = f"with {digests}"
        per_token = [name for name, values in fields.items() if lengths and values.dim() > 1]
        client.register_partition(
            self._name, list(fields), 0, ["t"], per_token_fields=per_token, digests=digests, replace=True
        )

    def __call__(self) -> dict[str, float]:
        names, ids = list(self._fields), [str(row) for row in range(len(next(iter(self._fields.values()))))]
        kept: list[KVBatchMeta] = []

        def put() -> None:
            kept.append(self._client.put_samples(ids, self._name, self._fields, sequence_lengths=self._lengths))

        found = {**_times("put", put), **_times("read", lambda: self._client.read_columns(kept[0], names))}
        self._client.clear_samples(None, self._name)
        return found


def _times(step: str, call: Callable[[], object]) -> dict[str, float]:
    with undisturbed():
        began, began_cpu = time.perf_counter(), time.process_time()
        call()
        return {step: time.perf_counter() - began, f"{step}, CPU": time.process_time() - began_cpu}
