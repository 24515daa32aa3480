"""The standard gRPC health service: on every listener of the data, and on a separate listener for probes.

Readiness asks whether clients may be sent here. The server is ready while every listener listens, until it drains.
Liveness asks whether a restart would help. It would not while the event loop answers, draining included. So the
listener for probes opens first and closes last. It serves nothing else, so it needs no encryption, and may listen on
addresses where the data must not.

The messages of grpc.health.v1 have one field each: the service's name, and its status. protobuf's own StringValue and
Int32Value have the same form on the wire and fit whatever protobuf is installed. The generated modules of
grpcio-health-checking fit one major version, and a package that pins another one would keep the server from starting.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from dataplane_server.core.calls.refusal import Refusal, draining
from dataplane_server.service.binding import bind
from dataplane_server.service.endless import EndlessCalls
from dataplane_server.service.error_table import ERROR_TABLE
from dataplane_server.service.grpc.boundary import SERVICE

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]

HEALTH_SERVICE = "grpc.health.v1.Health"
READINESS = "readiness"
LIVENESS = "liveness"

_READY_NAMES = ("", SERVICE, READINESS)
_LAST_ANSWERS_S = 0.5


class Status(IntEnum):
    """HealthCheckResponse.ServingStatus."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class Health:
    """The health service; NOT_SERVING at first. Its watches end with the other endless calls, so they do not delay
    shutdown.
    """

    def __init__(self, endless: EndlessCalls) -> None:
        self._endless = endless
        self._statuses = dict.fromkeys(_READY_NAMES, Status.NOT_SERVING)
        self._changed = asyncio.Event()  # set once, at the next change, and then replaced

    def serve_on(self, server: grpc.aio.Server) -> None:
        """Add the service to a server that has not started."""
        codec = (StringValue.FromString, Int32Value.SerializeToString)
        methods: dict[str, Any] = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check, *codec),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch, *codec),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(HEALTH_SERVICE, methods),))

    def report(self, *, ready: bool) -> None:
        """Set the readiness that is reported from now on."""
        self.set(dict.fromkeys(_READY_NAMES, Status.SERVING if ready else Status.NOT_SERVING))

    def set(self, statuses: dict[str, Status]) -> None:
        """Report these statuses by service from now on."""
        self._statuses.update(statuses)
        self._changed.set()
        self._changed = asyncio.Event()

    async def _check(self, request: StringValue, context: Context) -> Int32Value:
        if request.value not in self._statuses:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service; known: {', '.join(self._statuses)}")
        return Int32Value(value=self._statuses[request.value])

    async def _watch(self, request: StringValue, context: Context) -> None:
        """The status, and each later one. A caller that reads slowly misses those in between."""
        try:
            with self._endless.running():
                sent = None
                while True:
                    changed = self._changed
                    status = self._statuses.get(request.value, Status.SERVICE_UNKNOWN)
                    if status != sent:
                        await self._endless.write(context.write(Int32Value(value=status)))
                    sent = status
                    await changed.wait()
        except Refusal as refusal:
            await context.abort(ERROR_TABLE[refusal.reason], refusal.message)


class HealthListener:
    """A gRPC server with only the health service: `start`, then `stop` once."""

    def __init__(self) -> None:
        self._endless = EndlessCalls()
        self._health = Health(self._endless)
        self._grpc: grpc.aio.Server | None = None

    async def start(self, address: str) -> str:
        """Listen, and report that the server is alive and not ready. Returns the address. Raises OSError if the address
        cannot be bound.
        """
        self._grpc = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        self._health.serve_on(self._grpc)
        self._health.set({LIVENESS: Status.SERVING})
        bound = bind(self._grpc, address, setting="health")
        await self._grpc.start()
        return bound

    def report(self, *, ready: bool) -> None:
        """Set the readiness that is reported from now on."""
        self._health.report(ready=ready)

    async def stop(self) -> None:
        """End watches and close. Waits at most half a second for other calls."""
        self._endless.end_all(draining())
        if self._grpc is not None:
            await self._grpc.stop(_LAST_ANSWERS_S)
