"""Arrow Flight at its best: one column of whole buffers, sent in record batches of a few MiB.

Runs inside Flight's environment, as a worker (see `workers`) that is the client. The server is a separate process and
keeps what it received. Reading ends when every record batch has arrived.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from timing import timed

_START_S = 30.0


class Server(flight.FlightServerBase):  # type: ignore[misc]
    """Keeps tables by name."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._tables: dict[bytes, Any] = {}

    def do_put(self, _context: Any, descriptor: Any, reader: Any, _writer: Any) -> None:
        self._tables[descriptor.path[0]] = reader.read_all()

    def do_get(self, _context: Any, ticket: Any) -> Any:
        return flight.RecordBatchStream(self._tables[ticket.ticket])


class Calls:
    """The calls of the driver."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        places = {"unix": f"grpc+unix://{Path(folder) / 'flight.sock'}", "tcp": "grpc+tcp://127.0.0.1:0"}
        self._clients = {name: self._stack.enter_context(_client(place)) for name, place in places.items()}
        self.close = self._stack.close

    def prepare(self, size_bytes: int, chunk_bytes: list[int]) -> None:
        """Make `size_bytes` bytes in record batches of each chunk size, and check that they come back unchanged."""
        values = np.random.default_rng(0).integers(0, 1 << 62, size_bytes // 8)
        self._batches = {size: _cut(values, size // 8) for size in chunk_bytes}
        for transport in self._clients:
            self.round(transport, chunk_bytes[0])
            if not np.array_equal(self._last["x"].to_numpy(), values):
                raise RuntimeError("what was put came back changed")

    def round(self, transport: str, chunk_bytes: int) -> Mapping[str, float]:
        """Put the bytes and read them back."""
        client, batches = self._clients[transport], self._batches[chunk_bytes]
        return timed(put=lambda: _put(client, batches), read=lambda: self._read(client))

    def _read(self, client: Any) -> None:
        self._last = client.do_get(flight.Ticket(b"x")).read_all()


def _cut(values: Any, length: int) -> list[Any]:
    pieces = (values[start : start + length] for start in range(0, len(values), length))
    return [pa.record_batch([pa.array(piece)], ["x"]) for piece in pieces]


def _put(client: Any, batches: list[Any]) -> None:
    writer, _ = client.do_put(flight.FlightDescriptor.for_path(b"x"), batches[0].schema)
    for batch in batches:
        writer.write_batch(batch)
    writer.close()


@contextmanager
def _client(location: str) -> Iterator[Any]:
    """A client of a server process at the given location."""
    process = subprocess.Popen([sys.executable, "-m", "peers.arrow_flight", location], stdout=subprocess.PIPE)
    try:
        said = process.stdout.readline() if process.stdout is not None else b""  # ends with the process at the latest
        where = f"grpc+tcp://127.0.0.1:{int(said)}" if location.startswith("grpc+tcp") else location
        with flight.connect(where) as client:
            deadline = time.monotonic() + _START_S
            client.wait_for_available(timeout=_START_S)
            if time.monotonic() > deadline:
                raise RuntimeError(f"no Flight server at {where}")
            yield client
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    server = Server(sys.argv[1])
    print(server.port, flush=True)
    server.serve()
