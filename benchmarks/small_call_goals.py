"""Measure how many small calls a second one server answers, over gRPC and at its direct port, by number of clients.

An operation is a put of one row of 8 kB, a read of it, or a claim of one row with its commit (two calls). Clients are
raw (see `small_call_client`), each a process with one call under way, on the server's machine. Both ways take turns.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch

from dataplane_client import DataPlaneClient, connect
from servers import ServerProcess, direct_port, server_process
from session import Goal, Session, in_times
from small_call_client import FIELD, PARTITION, TASK
from timing import Steps, alternate
from workers import Worker, worker

_OPERATIONS = ("put", "read", "claim")
_WAYS = ("grpc", "direct")
_CLIENTS = (1, 4, 16)
_TIMES = 2.0
_ROUNDS = 3
_SECONDS = 1.0
_CLAIMED_ROWS = 30_000
_PUT_ROWS = 5_000


def measure(session: Session) -> None:
    """Measure the goal of small calls."""
    with ExitStack() as stack:
        server = stack.enter_context(server_process("1GiB"))
        client = stack.enter_context(connect(server.unix))
        _fill(client)
        with session.phase(f"{max(_CLIENTS)} clients of small calls"):
            systems = {way: _clients(session, stack, server, way) for way in _WAYS}
        for count in _CLIENTS:
            with session.phase(f"small calls of {count} clients"):
                _by_clients(session, client, {way: workers[:count] for way, workers in systems.items()})


def _fill(client: DataPlaneClient) -> None:
    client.register_partition(PARTITION, [FIELD], 0, [TASK])
    client.register_partition("claimed", [FIELD], 0, [TASK])
    for first in range(0, _CLAIMED_ROWS, _PUT_ROWS):
        ids = [str(row) for row in range(first, first + _PUT_ROWS)]
        client.put_samples(ids, "claimed", {FIELD: torch.zeros(_PUT_ROWS)})


def _clients(session: Session, stack: ExitStack, server: ServerProcess, way: str) -> list[Worker]:
    address, port = server.tcp, direct_port(server)
    if way == "direct":
        address = f"{address.rpartition(':')[0]}:{port.port}"
    python, workers = Path(sys.executable), []
    for number in range(max(_CLIENTS)):
        one = stack.enter_context(worker(python, "small_call_client", session.logs, number))
        one.call("connect", transport=way, address=address, nonce=port.nonce.hex())
        workers.append(one)
    return workers


def _by_clients(session: Session, client: DataPlaneClient, systems: Mapping[str, Sequence[Worker]]) -> None:
    count = len(systems["grpc"])
    turns = {way: partial(_round, client, workers) for way, workers in systems.items()}
    measured = alternate(turns, session.rounds(_ROUNDS), 1)
    session.keep(f"small_calls.{count}", measured)
    rows = [[step, *(_rate(measured[way], step) for way in _WAYS), _faster(measured, step)] for step in _OPERATIONS]
    session.show(f"operations a second of {count} clients; median (min..max)", ("operation", *_WAYS, "ratio"), rows)
    if count == max(_CLIENTS):
        session.goals += [_goal(count, measured, step) for step in _OPERATIONS]


def _round(client: DataPlaneClient, workers: Sequence[Worker]) -> Mapping[str, float]:
    """Seconds for each operation, when all clients are busy."""
    found = {}
    for operation in _OPERATIONS:
        for each in workers:
            each.begin("run", operation=operation, seconds=_SECONDS)
        answers = [each.finish() for each in workers]
        found[operation] = 1.0 / sum(answer["done"] / answer["seconds"] for answer in answers)
    client.reset("claimed", TASK)
    return found


def _rate(steps: Steps, step: str) -> str:
    series = steps[step]
    return f"{1 / series.median:,.0f} ({1 / series.high:,.0f}..{1 / series.low:,.0f})"


def _faster(measured: Mapping[str, Steps], step: str) -> str:
    return in_times(measured["grpc"][step].over(measured["direct"][step]))


def _goal(count: int, measured: Mapping[str, Steps], step: str) -> Goal:
    ratio = measured["grpc"][step].over(measured["direct"][step]).median
    text = f"{_faster(measured, step)} x: {_rate(measured['direct'], step)} against {_rate(measured['grpc'], step)} /s"
    title = f"{step} of one row, {count} clients: at least {_TIMES:.0f} x as many at the direct port as over gRPC"
    return Goal(title, text, ratio >= _TIMES, ratio)
