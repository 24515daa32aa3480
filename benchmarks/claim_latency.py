"""The latency of one claim and one commit, beside the floor of any call on the same machine.

One client in this process, over a Unix socket: once with values in shared memory (calls then use the local socket),
once over gRPC. Rows are put before they are claimed. A claim takes one of them; its commit carries no column, or one
with a float32. There are two floors: 64 bytes there and back between two otherwise idle Python processes, and a unary
gRPC call of the same server that changes nothing (GetServerStatus). All take turns within each round of 50 calls, so
other load on the machine affects them alike. Times are those of one call, as its caller sees it.
"""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import grpc
import torch

from dataplane_client import Claim, DataPlaneClient, connect
from dataplane_client.options import TransportChoice
from report import Session, compare, in_ms
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc
from servers import server_process
from timing import Round, alternate, repeated, timed, undisturbed

GOAL_S = 0.0007
ROUNDS, ROUND_CALLS, FLOOR_BYTES = 60, 50, 64
TRANSPORTS: tuple[TransportChoice, ...] = ("shm", "grpc")


def measure(session: Session) -> None:
    with ExitStack() as stack:
        systems: dict[str, Round] = {
            "floor: Unix socket, plain Python": many(stack.enter_context(bare_exchange())),
            "floor: GetServerStatus, gRPC": many(stack.enter_context(status_call())),
        }
        for transport in TRANSPORTS:
            server = stack.enter_context(server_process("1GiB"))
            client = stack.enter_context(connect(server.unix, transport=transport))
            client.register_partition("p", ["x", "y"], 0, ["train"])
            systems[transport] = partial(claims, client)
        measured = alternate(systems, session.rounds(ROUNDS), session.warmups)
    each = {f"{name} {step}".strip(): {"": took} for name, steps in measured.items() for step, took in steps.items()}
    compare(session.console, "one call", each)
    for transport in TRANSPORTS:
        for step, took in measured[transport].items():
            title = f"{step} of one row, {transport}: p50 at most {GOAL_S * 1e3:.1f} ms"
            session.goal(title, f"{in_ms(took)} ms", took.median <= GOAL_S, took.median)


def many(call: Callable[[], object]) -> Round:
    def one_round() -> Mapping[str, tuple[float, ...]]:
        with undisturbed():
            return {"": repeated(call, ROUND_CALLS).values}

    return one_round


@contextmanager
def bare_exchange() -> Iterator[Callable[[], None]]:
    """A message to a process that echoes it. Forks, so it comes before all else."""
    ours, theirs = socket.socketpair()
    other = multiprocessing.get_context("fork").Process(target=echo, args=(ours, theirs), daemon=True)
    other.start()
    theirs.close()

    def exchange() -> None:
        ours.sendall(bytes(FLOOR_BYTES))
        ours.recv(FLOOR_BYTES, socket.MSG_WAITALL)

    with ours:
        yield exchange
    other.join(30)


def echo(other: socket.socket, own: socket.socket) -> None:
    other.close()
    while data := own.recv(FLOOR_BYTES):
        own.sendall(data)


@contextmanager
def status_call() -> Iterator[Callable[[], object]]:
    """A call that changes nothing."""
    with server_process("256MiB") as server, grpc.insecure_channel(server.unix) as channel:
        stub: Any = pb_grpc.DataPlaneServiceStub(channel)
        yield lambda: stub.GetServerStatus(pb.GetServerStatusRequest())


def claims(client: DataPlaneClient) -> Mapping[str, list[float]]:
    """A round of claims and commits; half of the commits carry a column."""
    column, ids = {"y": torch.ones(1, 1)}, [f"s{row}" for row in range(ROUND_CALLS)]
    client.put_samples(ids, "p", {"x": torch.zeros(ROUND_CALLS, 1)})
    held: list[Claim] = []

    def claim() -> None:
        held.append(client.claim("p", "train", ["x"], 1))

    found: dict[str, list[float]] = {"claim": [], "commit": [], "commit with a column": []}
    for number in range(ROUND_CALLS):
        values, commit = (column, "commit with a column") if number % 2 else (None, "commit")
        steps: dict[str, Callable[[], object]] = {"claim": claim, commit: partial(commit_last, held, values)}
        for step, took in timed(**steps).items():
            found[step].append(took)
    client.clear_samples(None, "p")
    return found


def commit_last(held: list[Claim], column: dict[str, torch.Tensor] | None) -> None:
    held.pop().commit(column)
