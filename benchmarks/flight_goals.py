"""Our gRPC path, over a Unix socket and over TCP, and our direct port, over TCP, beside Arrow Flight, with client and
server processes for both.

The bytes of batches G and D are packed in advance, put, and read back without padding. Flight sends them as one column
cut into record batches of 2 or 4 MiB; the faster size counts.
"""

from __future__ import annotations

from functools import partial

from batches import Batch, D, G, build
from data_plane import Rounds
from dataplane_client import connect
from dataplane_client.options import TransportChoice
from peers.environments import ARROW_FLIGHT, NotInstalledError, environment
from report import Session, in_rate, in_times
from servers import ServerProcess, server_process
from timing import Round, alternate
from workers import Worker, WorkerError, worker

_CHUNKS = {"Flight, 2 MiB": 2 << 20, "Flight, 4 MiB": 4 << 20}
_WAYS: tuple[tuple[str, TransportChoice, str], ...] = (
    ("gRPC", "grpc", "unix"),
    ("gRPC", "grpc", "tcp"),
    ("direct", "direct", "tcp"),
)
_ROUNDS = {"G": 31, "D": 9}


def measure(session: Session) -> None:
    """Measure the goals on throughput over sockets."""
    try:
        with session.phase("environment of Arrow Flight"):
            python = environment(ARROW_FLIGHT, session.torch)
        with server_process() as server, worker(python, "peers.arrow_flight") as flight:
            for batch in map(build, (G, D)):
                flight.call("prepare", size_bytes=batch.jagged_bytes, chunk_bytes=list(_CHUNKS.values()))
                for ours, transport, socket in _WAYS:
                    with session.phase(f"batch {batch.name} beside Flight: {ours}, {socket}"):
                        _beside(session, batch, f"{ours}, {socket}", transport, socket, server, flight)
    except (NotInstalledError, WorkerError) as error:
        session.console.print(f"Arrow Flight is left out: {error}")
        session.goal("gRPC: at least Arrow Flight's throughput", "Flight is missing", None)


def _beside(
    session: Session,
    batch: Batch,
    way: str,
    transport: TransportChoice,
    socket: str,
    server: ServerProcess,
    flight: Worker,
) -> None:
    address = server.unix if socket == "unix" else server.tcp
    with connect(address, transport=transport) as client:
        ours = Rounds(client, batch, None)
        systems: dict[str, Round] = {"ours": ours}
        for name, size in _CHUNKS.items():
            systems[name] = partial(flight.call, "round", transport=socket, chunk_bytes=size)
        measured = alternate(systems, session.rounds(_ROUNDS[batch.name]), session.warmups)
        ours.close()
    size_bytes = batch.jagged_bytes
    session.compare(f"flight.{batch.name}.{way}", f"batch {batch.name}, {way}", measured, size_bytes=size_bytes)
    for step in ("put", "read"):
        own = measured["ours"][step]
        peer = min((measured[name][step] for name in _CHUNKS), key=lambda each: each.median)
        ratio, (rate, theirs) = peer.over(own), (in_rate(each, size_bytes / 1e9) for each in (own, peer))
        title = f"{way}, {step} of {batch.name}'s bytes: at least Arrow Flight's throughput"
        session.goal(title, f"{in_times(ratio)} x: {rate} against {theirs} GB/s", ratio.median >= 1, ratio.median)
