"""A gRPC server that answers as a server did at a moment: its clock stands still, and nothing changes."""

from __future__ import annotations

import asyncio
import mmap
import sys
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import grpc

from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import Call, StoreValues
from dataplane_server.observe.metrics import Metrics
from dataplane_server.replaying.moments import text_of
from dataplane_server.replaying.past import Past
from dataplane_server.service.binding import bind
from dataplane_server.service.grpc.boundary import Boundary
from dataplane_server.service.grpc.servicer import DataPlaneServicer
from dataplane_server.service.messages.parsing import Messages
from dataplane_server.service.shell import Shell
from dataplane_server.service.values import Values
from dataplane_server.storage.arena import Arena
from rl_dataplane.v1 import data_plane_pb2_grpc as pb_grpc

A = TypeVar("A")


class _StillShell(Shell):
    """Refuses every call of the core, also reads: the values are not there."""

    def __init__(self, past: Past, metrics: Metrics, now: float, why: str) -> None:
        super().__init__(past.plane, metrics, lambda: now)
        self._why = why

    def apply(self, call: Call[A]) -> A:
        raise Refusal(Reason.INVALID_REQUEST, self._why)

    def store(self, call: StoreValues, fill: object) -> NoReturn:
        raise Refusal(Reason.INVALID_REQUEST, self._why)


async def serve(past: Past, folder: Path, until: float, socket_folder: Path) -> None:
    """Serve on a socket in a folder, which has the moment as its name, until the standard input ends. Prints the
    address as soon as it serves.
    """
    now = past.now(until)
    metrics = Metrics(past.plane, lambda: True, lambda: now)
    why = f"this is a replay of {folder} until {text_of(until)}: it is read-only, and has no values"
    shell, arena = _StillShell(past, metrics, now, why), Arena(mmap.PAGESIZE, shared=False)
    boundary = Boundary(metrics, Messages(past.plane.limits), shell.stable)
    server = grpc.aio.server(interceptors=[boundary])
    servicer: Any = DataPlaneServicer(shell, Values(shell.plane, arena), metrics, started=past.began)
    pb_grpc.add_DataPlaneServiceServicer_to_server(servicer, server)
    address = bind(server, f"unix://{socket_folder}/{text_of(until)}")
    await server.start()
    print(address, flush=True)  # noqa: T201  # for the process that waits for it
    await asyncio.to_thread(sys.stdin.buffer.read)
    await server.stop(1.0)
    arena.close()
