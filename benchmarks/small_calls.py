"""How many small calls a second one server answers, over gRPC and at its direct port, by number of clients.

An operation is a put of one row of 8 kB, a read of it, or a claim of one row with its commit (two calls). Clients are
workers on the server's machine with one call under way each. They are raw: messages and a connection, without our
client's code, so what they cost themselves is small beside the server's part, and 16 fit. Both ways take turns.

The last goal is of our client: rows a second that it puts one by one, and held with `batching`.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import grpc
import numpy as np
import torch

from dataplane_client import DataPlaneClient, connect
from report import Session, in_rate, in_times, table
from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import data_plane_pb2_grpc as plane_grpc
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import HEAD
from servers import server_process
from timing import alternate
from workers import OURS, Worker, worker

_OPERATIONS, _WAYS, _CLIENTS = ("put", "read", "claim"), ("grpc", "direct"), (1, 4, 16)
_TIMES, _ROUNDS, _SECONDS = 2.0, 3, 1.0
_TOGETHER = 8.0
_CLAIMED_ROWS, _PUT_ROWS = 30_000, 5_000
_VALUES = np.arange(1_000, dtype="<i8").tobytes()
_PUT_IN, _CLAIMED, _TASK, _FIELD = "small", "claimed", "train", "x"
_TIMEOUT_S = 20


def measure(session: Session) -> None:
    """Measure the goal of small calls."""
    with server_process("1GiB") as server, connect(server.unix) as client, ExitStack() as stack:
        client.register_partition(_PUT_IN, [_FIELD], 0, [_TASK])
        client.register_partition(_CLAIMED, [_FIELD], 0, [_TASK])
        for first in range(0, _CLAIMED_ROWS, _PUT_ROWS):
            ids = [str(row) for row in range(first, first + _PUT_ROWS)]
            client.put_samples(ids, _CLAIMED, {_FIELD: torch.zeros(_PUT_ROWS)})
        with session.phase(f"{max(_CLIENTS)} clients of small calls"):
            systems: dict[str, list[Worker]] = {}
            for number, way in enumerate(_WAYS * max(_CLIENTS)):
                one = stack.enter_context(worker(OURS, "small_calls", number))
                one.call("connect", way=way, address=server.tcp)
                systems.setdefault(way, []).append(one)
        for count in _CLIENTS:
            with session.phase(f"small calls of {count} clients"):
                _by_clients(session, client, {way: workers[:count] for way, workers in systems.items()})
        with session.phase("puts that travel together"):
            _together(session, client)


def _by_clients(session: Session, client: DataPlaneClient, systems: Mapping[str, Sequence[Worker]]) -> None:
    count = len(systems["grpc"])
    turns = {way: partial(_round, client, workers) for way, workers in systems.items()}
    measured = alternate(turns, session.rounds(_ROUNDS), 1)
    session.keep(f"small_calls.{count}", measured)
    rows = []
    for step in _OPERATIONS:
        over_grpc, direct = (measured[way][step] for way in _WAYS)
        ratio, rates = over_grpc.over(direct), [in_rate(each, digits=0) for each in (over_grpc, direct)]
        rows.append([step, *rates, in_times(ratio)])
        if count == max(_CLIENTS):
            times = f"at least {_TIMES:.0f} x as many at the direct port as over gRPC"
            text = f"{in_times(ratio)} x: {rates[1]} against {rates[0]} /s"
            session.goal(f"{step} of one row, {count} clients: {times}", text, ratio.median >= _TIMES, ratio.median)
    title = f"operations a second of {count} clients; median (min..max)"
    session.console.print(table(title, ("operation", *_WAYS, "ratio"), rows))


def _round(client: DataPlaneClient, workers: Sequence[Worker]) -> Mapping[str, float]:
    """Seconds for each operation, when all clients are busy."""
    found = {}
    for operation in _OPERATIONS:
        for each in workers:
            each.begin("run", operation=operation, seconds=_SECONDS)
        found[operation] = 1.0 / sum(done / seconds for done, seconds in [each.finish() for each in workers])
    client.reset(_CLAIMED, _TASK)
    return found


def _together(session: Session, client: DataPlaneClient) -> None:
    """The goal of puts of one row by our client, one by one and held with `batching`."""
    turns = {"alone": partial(_alone, client), "together": partial(_held, client)}
    measured = alternate(turns, session.rounds(_ROUNDS), 1)
    session.keep("small_calls.together", measured)
    alone, together = (measured[how]["put"] for how in turns)
    ratio = alone.over(together)
    text = f"{in_times(ratio)} x: {in_rate(together, digits=0)} against {in_rate(alone, digits=0)} rows/s"
    session.goal(
        f"put_later of one row: at least {_TOGETHER:.0f} x as many as put_samples",
        text,
        ratio.median >= _TOGETHER,
        ratio.median,
    )


def _alone(client: DataPlaneClient) -> Mapping[str, float]:
    """Seconds for a row."""
    return _seconds_each(client, lambda name, row: client.put_samples([name], _PUT_IN, row))


def _held(client: DataPlaneClient) -> Mapping[str, float]:
    with client.batching() as batching:
        return _seconds_each(client, lambda name, row: batching.put_later([name], _PUT_IN, row))


def _seconds_each(client: DataPlaneClient, put: Callable[[str, dict[str, object]], object]) -> Mapping[str, float]:
    row: dict[str, object] = {_FIELD: [torch.arange(1_000)]}
    began, done = time.monotonic(), 0
    while time.monotonic() - began < _SECONDS:
        put(f"s{done}", row)
        done += 1
    seconds = time.monotonic() - began
    client.clear_samples(None, _PUT_IN)
    return {"put": seconds / done}


# -- a client ----------------------------------------------------------------------------------------------------------


class _OverGrpc:
    """The service's stub on a channel of its own."""

    def __init__(self, address: str) -> None:
        self._stub: Any = plane_grpc.DataPlaneServiceStub(grpc.insecure_channel(address))

    def put(self, header: plane_pb.PutSamplesHeader) -> None:
        chunk = plane_pb.Chunk(offset_bytes=0, data=_VALUES)
        self._stub.PutSamples(iter([plane_pb.PutSamplesRequest(header=header, chunk=chunk)]), timeout=_TIMEOUT_S)

    def read(self, request: plane_pb.ReadColumnsRequest) -> int:
        return sum(len(answer.chunk.data) for answer in self._stub.ReadColumns(request, timeout=_TIMEOUT_S))

    def claim(self, request: plane_pb.ClaimSamplesRequest) -> Any:
        return self._stub.ClaimSamples(request, timeout=_TIMEOUT_S)

    def commit(self, header: plane_pb.CommitClaimHeader) -> None:
        self._stub.CommitClaim(iter([plane_pb.CommitClaimRequest(header=header)]), timeout=_TIMEOUT_S)


class _AtPort:
    """Frames of local.proto at the direct port of a server."""

    def __init__(self, address: str) -> None:
        with grpc.insecure_channel(address) as channel:
            stub: Any = plane_grpc.DataPlaneServiceStub(channel)
            port = stub.GetServerStatus(plane_pb.GetServerStatusRequest(), timeout=_TIMEOUT_S).direct_port
        self._socket = socket.create_connection((address.rpartition(":")[0], port.port), _TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._call(pb.LOCAL_METHOD_DIRECT, pb.DirectRequest(nonce=port.nonce))

    def put(self, header: plane_pb.PutSamplesHeader) -> None:
        self._call(pb.LOCAL_METHOD_PUT, pb.LocalPutRequest(header=header, handle=1, values=_VALUES))

    def read(self, request: plane_pb.ReadColumnsRequest) -> int:
        local = pb.LocalReadRequest(request=request, handle=1, inline_bytes=len(_VALUES))
        return len(pb.LocalReadResponse.FromString(self._call(pb.LOCAL_METHOD_READ, local)).values)

    def claim(self, request: plane_pb.ClaimSamplesRequest) -> Any:
        return plane_pb.ClaimSamplesResponse.FromString(self._call(pb.LOCAL_METHOD_CLAIM_SAMPLES, request))

    def commit(self, header: plane_pb.CommitClaimHeader) -> None:
        self._call(pb.LOCAL_METHOD_COMMIT, pb.LocalCommitRequest(header=header, handle=1, values=b""))

    def _call(self, method: int, request: Any) -> bytes:
        body = request.SerializeToString()
        self._socket.sendall(HEAD.pack(len(body), method) + body)
        size, outcome = HEAD.unpack(self._socket.recv(HEAD.size, socket.MSG_WAITALL))
        answer = self._socket.recv(size, socket.MSG_WAITALL) if size else b""
        if outcome != pb.LOCAL_OUTCOME_UNSPECIFIED:
            raise RuntimeError(f"method {method} was refused: {answer!r}")
        return answer


class Calls:
    """The calls of the driver."""

    def connect(self, way: str, address: str) -> None:
        self._server = _OverGrpc(address) if way == "grpc" else _AtPort(address)
        self._ids = (f"{os.getpid()}-{number}" for number in itertools.count())

    def run(self, operation: str, seconds: float) -> tuple[int, float]:
        """Repeat an operation for this time. Returns how often, and in how many seconds."""
        once: Callable[[], None] = getattr(self, f"_{operation}")
        self._put()
        began, done = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            once()
            done += 1
        return done, time.monotonic() - began

    def _put(self) -> None:
        """A put of one row of 8 kB, always the same one."""
        lengths = np.array([1_000], "<i8").tobytes()
        kinds = {"kind": plane_pb.FIELD_KIND_JAGGED, "data_type": plane_pb.DATA_TYPE_INT64}
        column = plane_pb.Column(name=_FIELD, row_lengths=lengths, **kinds)  # type: ignore[arg-type]
        which: dict[str, Any] = {
            "request_id": next(self._ids),
            "partition_id": _PUT_IN,
            "sample_ids": [str(os.getpid())],
        }
        header = plane_pb.PutSamplesHeader(**which, columns=[column])
        header.wait_timeout.FromSeconds(_TIMEOUT_S)
        self._server.put(header)

    def _read(self) -> None:
        """A read of that row."""
        ids = [str(os.getpid())]
        request = plane_pb.ReadColumnsRequest(partition_id=_PUT_IN, sample_ids=ids, fields=[_FIELD])
        if self._server.read(request) != len(_VALUES):
            raise RuntimeError("the row came back changed")

    def _claim(self) -> None:
        """A claim of one row and its commit."""
        request = plane_pb.ClaimSamplesRequest(
            request_id=next(self._ids),
            partition_id=_CLAIMED,
            task=_TASK,
            required_fields=[_FIELD],
            batch_size=1,
            mode=plane_pb.CLAIM_MODE_ACKNOWLEDGED,
        )
        request.wait_timeout.FromSeconds(_TIMEOUT_S)
        claimed = self._server.claim(request)
        self._server.commit(plane_pb.CommitClaimHeader(request_id=next(self._ids), claim_id=claimed.claim_id))
