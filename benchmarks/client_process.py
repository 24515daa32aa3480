"""One client in a separate process, as a worker (see `serving`): for many concurrent clients, and memory figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

import memory
from batches import Spec, build
from data_plane import PaddedRounds
from dataplane_client import DataPlaneClient, connect
from dataplane_client.options import TransportChoice
from serving import serve


class Calls:
    """The calls of the driver."""

    def __init__(self) -> None:
        self._client: DataPlaneClient | None = None
        self._rounds: PaddedRounds | None = None
        self._stream: tuple[str, list[str], dict[str, torch.Tensor]] = ("", [], {})

    def connect(self, address: str, transport: TransportChoice) -> Mapping[str, Any]:
        """Open a connection."""
        self._client = connect(address, transport=transport)
        return {}

    def prepare(self, spec: dict[str, Any], client: int) -> Mapping[str, Any]:
        """Make a batch and send it once, untimed. Returns the bytes of a round, put and read, without padding."""
        batch = build(Spec(**{**spec, "name": f"{spec['name']}-client-{client}"}))
        self._rounds = PaddedRounds(self._connected(), batch)
        return {"bytes": 2 * batch.jagged_bytes}

    def rounds(self, seconds: float) -> Mapping[str, Any]:
        """Run rounds for `seconds`. Returns how many, in how many seconds."""
        if self._rounds is None:
            raise RuntimeError("no batch was prepared")
        began, done = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            self._rounds()
            done += 1
        return {"rounds": done, "seconds": time.monotonic() - began}

    def close(self) -> Mapping[str, Any]:
        if self._rounds is not None:
            self._rounds.close()
        self._connected().close()
        return {}

    def stream(self, spec: dict[str, Any]) -> Mapping[str, Any]:
        """Make a batch for `stream_put` and `stream_read`. Returns the bytes of its values."""
        batch = build(Spec(**spec))
        columns = {name: torch.from_numpy(column) for name, column in batch.columns.items()}
        self._stream = (batch.name, [f"sample_{row}" for row in range(batch.rows)], columns)
        self._connected().register_partition(batch.name, list(columns), 0, ["train"])
        return {"bytes": batch.jagged_bytes}

    def stream_put(self) -> Mapping[str, Any]:
        """Put the batch. Returns the growth of this process at its peak, in bytes."""
        partition, ids, columns = self._stream
        return _most_beyond(lambda: self._connected().put_samples(ids, partition, columns))

    def stream_read(self) -> Mapping[str, Any]:
        """Read the batch back. Returns the growth of this process at its peak, in bytes, including the values read."""
        partition, ids, columns = self._stream
        return _most_beyond(lambda: self._connected().get_samples(ids, partition, list(columns)))

    def _connected(self) -> DataPlaneClient:
        if self._client is None:
            raise RuntimeError("there is no connection")
        return self._client


def _most_beyond(call: Callable[[], object]) -> Mapping[str, int]:
    memory.forget_peak()
    before = memory.resident()
    call()
    return {"beyond": memory.peak() - before}


def main() -> None:
    calls = Calls()
    names = ("connect", "prepare", "rounds", "close", "stream", "stream_put", "stream_read")
    serve({name: getattr(calls, name) for name in names})


if __name__ == "__main__":
    main()
