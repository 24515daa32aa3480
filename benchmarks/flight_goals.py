"""Measure our gRPC path, over a Unix socket and over TCP, and our direct port, over TCP, beside Arrow Flight, with
client and server processes for both.

The bytes of batches G and D are packed in advance, put, and read back without padding. Flight sends them as one column
cut into record batches of 2 or 4 MiB; the faster size counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from batches import Batch, D, G, build
from data_plane import StreamRounds
from dataplane_client import connect
from dataplane_client.options import TransportChoice
from peers.environments import ARROW_FLIGHT, NotInstalledError, environment
from servers import ServerProcess, server_process
from session import Goal, Session, in_times
from timing import Round, Series, Steps, alternate
from workers import Worker, WorkerError, worker

_CHUNKS = {"Flight, 2 MiB": 2 << 20, "Flight, 4 MiB": 4 << 20}
_OURS = "ours"
_TRANSPORTS: dict[str, TransportChoice] = {"gRPC": "grpc", "direct": "direct"}
_ROUNDS = {"G": 31, "D": 9}


@dataclass(frozen=True)
class Way:
    """How our values travel, and Flight's beside them."""

    ours: Literal["gRPC", "direct"]
    socket: Literal["unix", "tcp"]

    @property
    def name(self) -> str:
        return f"{self.ours}, {self.socket}"


_WAYS = (Way("gRPC", "unix"), Way("gRPC", "tcp"), Way("direct", "tcp"))


def measure(session: Session) -> None:
    """Measure the goals on throughput over sockets."""
    try:
        with session.phase("environment of Arrow Flight"):
            python = environment(ARROW_FLIGHT, session.torch)
        with server_process() as server, worker(python, "peers.arrow_flight", session.logs) as flight:
            for spec in (G, D):
                _beside(session, build(spec), server, flight)
    except (NotInstalledError, WorkerError) as error:
        session.console.print(f"Arrow Flight is left out: {error}")
        session.goals.append(Goal("gRPC: at least Arrow Flight's throughput", "Flight is missing", None))


def _beside(session: Session, batch: Batch, server: ServerProcess, flight: Worker) -> None:
    flight.call("prepare", size_bytes=batch.jagged_bytes, chunk_bytes=list(_CHUNKS.values()))
    for way in _WAYS:
        with session.phase(f"batch {batch.name} beside Flight: {way.name}"):
            _beside_flight(session, batch, way, server, flight)


def _beside_flight(session: Session, batch: Batch, way: Way, server: ServerProcess, flight: Worker) -> None:
    address, transport = (server.unix if way.socket == "unix" else server.tcp), _TRANSPORTS[way.ours]
    with connect(address, transport=transport) as ours:
        stream = StreamRounds(ours, batch)
        systems: dict[str, Round] = {_OURS: stream}
        for name, size in _CHUNKS.items():
            systems[name] = partial(flight.call, "round", transport=way.socket, chunk_bytes=size)
        measured = alternate(systems, session.rounds(_ROUNDS[batch.name]), session.warmups)
        stream.close()
    session.keep(f"flight.{batch.name}.{way.name}", measured)
    rows = [[name, *(_rate(batch, steps[step]) for step in ("put", "read"))] for name, steps in measured.items()]
    title = f"bytes of batch {batch.name} ({batch.jagged_bytes / 1e6:.3g} MB), {way.name}: GB/s, median (min..max)"
    session.show(title, ("system", "put", "read"), rows)
    for step in ("put", "read"):
        session.goals.append(_goal(batch, way, step, measured))


def _goal(batch: Batch, way: Way, step: str, measured: Mapping[str, Steps]) -> Goal:
    ours, peer = measured[_OURS][step], min((measured[name][step] for name in _CHUNKS), key=lambda each: each.median)
    ratio = peer.over(ours)
    text = f"{in_times(ratio)} x: {_rate(batch, ours)} against {_rate(batch, peer)} GB/s"
    title = f"{way.name}, {step} of {batch.name}'s bytes: at least Arrow Flight's throughput"
    return Goal(title, text, ratio.median >= 1, ratio.median)


def _rate(batch: Batch, series: Series) -> str:
    size = batch.jagged_bytes / 1e9
    return f"{size / series.median:.2f} ({size / series.high:.2f}..{size / series.low:.2f})"
