"""prime-rl's transports between a sender and its ranks, as a worker (see `serving`).

Runs inside the environment of the re-created peers. The sender is this process, and each rank is another.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exchanges import micro_batches as grids
from exchanges.rank_processes import GridRounds, RankProcesses
from peers.prime_rl import FileReceiver, FileSender, ZmqReceiver, ZmqSender, structs
from serving import serve

_PRELOADED = ("torch", "peers.prime_rl")
_MEMORY = Path("/dev/shm")  # noqa: S108  # the system's folder in memory


class Calls:
    """The calls of the driver."""

    def __init__(self, folder: Path) -> None:
        self._grid = grids.build()
        self._files = RankProcesses(_PRELOADED, FileReceiver, folder)
        zmq = ZmqSender()
        self._subscribers = RankProcesses(_PRELOADED, ZmqReceiver, zmq.port, zmq.ready_port)
        zmq.wait_for(grids.RANKS)
        grid = structs(self._grid)
        self._rounds = {
            "files": GridRounds(grid, FileSender(folder), self._files),
            "ZMQ": GridRounds(grid, zmq, self._subscribers),
        }

    def prepare(self) -> Mapping[str, Any]:
        """Send the grid once over each transport, untimed, and check that it arrives unchanged."""
        for rounds in self._rounds.values():
            rounds.check(self._grid)
        return {}

    def round(self, transport: str) -> Mapping[str, Any]:
        return self._rounds[transport]()

    def close(self) -> None:
        self._files.close()
        self._subscribers.close()


def main() -> None:
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        calls = Calls(Path(folder))
        try:
            serve({"prepare": calls.prepare, "round": calls.round})
        finally:
            calls.close()


if __name__ == "__main__":
    main()
