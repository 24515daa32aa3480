"""A client at work in a process of its own: how long its calls take, as it saw them.

It puts, reads, claims, commits and clears one row of 1,000 int64 over shared memory, again and again with a pause of
5 ms, so that it asks all the time and does not itself fill the server. Beside that it asks for health over gRPC, and
for /healthz with a connection for each question, every 0.25 s.
"""

from __future__ import annotations

import contextlib
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import grpc
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dataplane_client.client import DataPlaneClient, connect
from dataplane_client.errors import DataPlaneError

_PAUSE_S = 0.005
_HEALTH_EVERY_S = 0.25
_PATIENCE_S = 60.0
_ROW = torch.arange(1000)[None]


@dataclass
class Tally:
    """Seconds of each call, of health over gRPC and of /healthz. failed: errors of calls and of health over gRPC."""

    calls: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    healthz: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def p99_ms(self) -> float:
        return p99_ms(self.calls)


def p99_ms(calls: list[float]) -> float:
    """Of seconds, in milliseconds."""
    return sorted(calls)[int(len(calls) * 0.99)] * 1e3


class Work:
    """The client, its rows, and the tally so far."""

    def __init__(self, client: DataPlaneClient) -> None:
        self.tally = Tally()
        self._client = client
        self._rows = 0
        if "probe" not in {partition.partition_id for partition in client.partitions()}:
            client.register_partition("probe", ["x"], 0, ["train"])

    def turn(self) -> None:
        """One row goes its way. A call that fails ends it; the next turn has another row."""
        client, self._rows = self._client, self._rows + 1
        ids = [f"{id(self)}-{self._rows}"]
        try:
            with timed(self.tally.calls):
                client.put_samples(ids, "probe", {"x": _ROW})
            with timed(self.tally.calls):
                same = torch.equal(client.get_samples(ids, "probe", ["x"])["x"], _ROW)
            with timed(self.tally.calls):
                claim = client.claim("probe", "train", ["x"], 1)
            with timed(self.tally.calls):
                claim.commit()
            with timed(self.tally.calls):
                client.clear_samples(ids, "probe")
        except DataPlaneError as error:
            self.tally.failed.append(f"{type(error).__name__}: {error}")
        else:
            if not same:
                self.tally.failed.append("other values came back")


@contextlib.contextmanager
def timed(times: list[float]) -> Iterator[None]:
    """Also a block that fails has a time."""
    began = time.perf_counter()
    try:
        yield
    finally:
        times.append(time.perf_counter() - began)


def probe(address: str, http: str, asked: Connection) -> None:
    """Work until told to end (False); otherwise answer each question (True) with the tally since the last one."""
    torch.set_num_threads(1)
    over = threading.Event()
    with connect(address, transport="shm", timeout_s=_PATIENCE_S) as client:
        work = Work(client)
        health = threading.Thread(target=_watch_health, args=(work, address, http, over))
        health.start()
        asked.send(None)
        while True:
            if asked.poll(_PAUSE_S):
                if not asked.recv():
                    break
                tally, work.tally = work.tally, Tally()
                asked.send(tally)
            work.turn()
        over.set()
        health.join()


def _watch_health(work: Work, address: str, http: str, over: threading.Event) -> None:
    with grpc.insecure_channel(address.replace("unix://", "unix:")) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while not over.wait(_HEALTH_EVERY_S):
            tally = work.tally
            with timed(tally.health):
                try:
                    stub.Check(health_pb2.HealthCheckRequest(), timeout=_PATIENCE_S)
                except grpc.RpcError as error:
                    tally.failed.append(f"health: {error}")
            with timed(tally.healthz), contextlib.suppress(OSError):  # its connections are few, and may all be taken
                urllib.request.urlopen(f"http://{http}/healthz", timeout=_PATIENCE_S).close()
