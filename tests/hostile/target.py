"""A server process as those who attack it see it: its addresses, its memory, and how its other clients fare."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from tests.integration.wire.local_peer import MIB, Peers

from dataplane_client.client import DataPlaneClient


class Target(Peers):
    """A server process. address: its Unix socket. http: HOST:PORT of its metrics."""

    def __init__(self, pid: int, address: str, client: DataPlaneClient, http: str = "") -> None:
        super().__init__(address.removeprefix("unix://") + ".local", client)
        self.pid = pid
        self.address = address
        self.http = http

    @property
    def grpc_address(self) -> str:
        """As gRPC writes it."""
        return self.address.replace("unix://", "unix:")

    def fill(self) -> None:
        """Partition p as `requests` has it, and in it a row of 1 MiB that `local_peer.read` reads."""
        self.client.register_partition("p", ["x", "y", "z"], 0, ["train"])
        self.client.put_samples(["s", "t"], "p", {"y": torch.tensor([1, 2])}, [{"n": 1}, {}])
        self.client.put_samples(["row"], "p", {"x": torch.zeros(1, MIB, dtype=torch.uint8)})

    @contextlib.contextmanager
    def unharmed(self, what: str) -> Iterator[None]:
        """A block after which the server has and holds what it did, and serves. what: is said when it does not."""
        before = self._told()
        yield
        assert self._told() == before, what
        assert self.client.get_samples(["s", "t"], "p", ["y"])["y"].tolist() == [1, 2], what

    def _told(self) -> object:
        status = self.client.server_status(timeout_s=120.0)
        held = (status.rows, status.memory_used_bytes, status.waiting_claims, status.waiting_puts)
        return held, self.client.partitions()

    @property
    def own_bytes(self) -> int:
        """Memory of the process, without the arena."""
        return own_bytes(self.pid)

    @property
    def busy_s(self) -> float:
        """Processor time of the process, in seconds. No other client waited longer, whatever else the machine does."""
        user, system = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    @contextlib.contextmanager
    def stays_within(self, size_bytes: int) -> Iterator[None]:
        """A block in which the process takes at most so much more memory, and is busy for at most three seconds."""
        before, began = self.own_bytes, self.busy_s
        with peak_of(self.pid) as peak:
            yield
            self.client.server_status(timeout_s=120.0)
        assert max(peak) - before < size_bytes
        assert self.busy_s - began < 3.0

    @property
    def descriptors(self) -> int:
        """How many the process has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    @property
    def is_healthy(self) -> bool:
        """What it says to a probe."""
        with urllib.request.urlopen(f"http://{self.http}/healthz", timeout=120) as answer:
            return bool(answer.status == 200)


def own_bytes(pid: int) -> int:
    """Memory of a process, without what it shares. Raises OSError if it has ended, IndexError as it ends."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0]) << 10


@contextlib.contextmanager
def peak_of(pid: int) -> Iterator[list[int]]:
    """A list that has, when the block is over, the most memory that the process had meanwhile, while it was there."""
    over, peak = threading.Event(), [0]

    def watch() -> None:
        with contextlib.suppress(OSError, IndexError):
            peak[0] = own_bytes(pid)
            while not over.wait(0.005):
                peak[0] = max(peak[0], own_bytes(pid))

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            yield peak
        finally:
            over.set()
    watching.result()
