"""Measure the latency of one claim and one commit, beside the floor of any call on the same machine.

    python benchmarks/claim_latency.py [--calls N] [--rows N]

Runs a server process and one client in this process, over a Unix socket: once with values in shared memory (calls then
use the local socket), once over gRPC. Rows are put before they are claimed. Every claim takes --rows of them (1); its
commit carries no column, or one with a float32 a row. There are two floors: 64 bytes there and back over a Unix socket
between two otherwise idle Python processes, and a unary gRPC call of the same server that changes nothing
(GetServerStatus). All take turns within each round of 50 calls, so other load on the machine affects them alike. Times
are those of one call, as its caller sees it.

Goals: the median claim and the median commit take at most 0.7 ms.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import grpc
import torch
from rich.console import Console
from rich.table import Table

from dataplane_client import DataPlaneClient, connect
from dataplane_client.options import TransportChoice
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc
from servers import server_process
from timing import seconds, undisturbed

GOAL_MS = 0.7
ROUND_CALLS = 50
WARMUP_ROUNDS = 2
FLOOR_BYTES = 64
_SPAWN = multiprocessing.get_context("spawn")

Times = dict[str, list[float]]
"""Seconds of each call, by the name of the call."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=3000, help="calls of each kind")
    parser.add_argument("--rows", type=int, default=1, help="rows in a claim")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    console.print(f"{platform.machine()}, Python {platform.python_version()}, grpcio {grpc.__version__}")
    with ExitStack() as stack:
        systems: dict[str, Callable[[], Times]] = {
            "Unix socket, plain Python": stack.enter_context(_bare_round_trips()),
            "GetServerStatus, gRPC": stack.enter_context(_status_calls()),
        }
        for transport in ("shm", "grpc"):
            systems[transport] = stack.enter_context(_claims(transport, options.rows))
        found = _measured(systems, max(1, options.calls // ROUND_CALLS))
    console.print(_table(found, options.rows))


def _measured(systems: Mapping[str, Callable[[], Times]], rounds: int) -> Times:
    found: Times = {}
    for number in range(WARMUP_ROUNDS + rounds):
        for system in systems.values():
            for name, times in system().items():
                if number >= WARMUP_ROUNDS:
                    found.setdefault(name, []).extend(times)
    return found


# -- floors ------------------------------------------------------------------------------------------------------------


@contextmanager
def _bare_round_trips() -> Iterator[Callable[[], Times]]:
    """A round of messages to a process that echoes them."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        address = str(Path(folder) / "echo.sock")
        listener.bind(address)
        listener.listen()
        echo = _SPAWN.Process(target=_echo, args=(address,), daemon=True)
        echo.start()
        peer, _ = listener.accept()
        message = bytes(FLOOR_BYTES)

        def exchange() -> None:
            peer.sendall(message)
            received = 0
            while received < FLOOR_BYTES:
                received += len(peer.recv(FLOOR_BYTES))

        with peer:
            yield lambda: {"floor: Unix socket, plain Python": _times(exchange)}
        echo.join(30)


def _echo(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(address)
        while data := peer.recv(FLOOR_BYTES):
            peer.sendall(data)


@contextmanager
def _status_calls() -> Iterator[Callable[[], Times]]:
    """A round of calls that change nothing."""
    with server_process("256MiB") as server, grpc.insecure_channel(server.unix) as channel:
        stub: Any = pb_grpc.DataPlaneServiceStub(channel)
        request = pb.GetServerStatusRequest()
        yield lambda: {"floor: GetServerStatus, gRPC": _times(lambda: stub.GetServerStatus(request))}


def _times(call: Callable[[], object]) -> list[float]:
    with undisturbed():
        return [seconds(call)[0] for _ in range(ROUND_CALLS)]


# -- claims ------------------------------------------------------------------------------------------------------------


@contextmanager
def _claims(transport: Literal["shm", "grpc"], rows: int) -> Iterator[Callable[[], Times]]:
    """A round of claims and commits; half of the commits carry a column."""
    with server_process("1GiB") as server, connect(server.unix, transport=transport) as client:
        client.register_partition("p", ["x", "y"], 0, ["train"])
        yield lambda: _claim_round(client, transport, rows)


def _claim_round(client: DataPlaneClient, transport: TransportChoice, rows: int) -> Times:
    count = ROUND_CALLS * rows
    client.put_samples([f"s{row}" for row in range(count)], "p", {"x": torch.zeros(count, 1)})
    column = {"y": torch.ones(rows, 1)}
    names = "claim", "commit", "commit with a column"
    found: Times = {f"{name}, {transport}": [] for name in names}
    claims, bare, with_column = found.values()
    with undisturbed():
        for number in range(ROUND_CALLS):
            claim_s, claim = seconds(lambda: client.claim("p", "train", ["x"], rows))
            claims.append(claim_s)
            began = time.perf_counter()
            claim.commit(column if number % 2 else None)
            (with_column if number % 2 else bare).append(time.perf_counter() - began)
    client.clear_samples(None, "p")
    return found


def _table(found: Times, rows: int) -> Table:
    table = Table(title=f"one call, claims of {rows} row(s), ms", box=None, title_justify="left")
    for heading in ("call", "calls", "p50", "p90", "p99", f"p50 at most {GOAL_MS}"):
        table.add_column(heading, justify="left" if heading == "call" else "right")
    for name, times in found.items():
        cuts = statistics.quantiles((value * 1e3 for value in times), n=100)
        goal = "" if name.startswith("floor") else "holds" if cuts[49] <= GOAL_MS else "does not hold"
        table.add_row(name, f"{len(times):,}", *(f"{cuts[cut]:.3f}" for cut in (49, 89, 98)), goal)
    return table


if __name__ == "__main__":
    main()
