"""The standard gRPC health service: on every listener of the data, and on a separate listener for probes.

Readiness asks whether clients may be sent here. The server is ready while every listener listens, until it drains.
Liveness asks whether a restart would help. It would not while the event loop answers, draining included. So the
listener for probes opens first and closes last. It serves nothing else, so it needs no encryption, and may listen on
addresses where the data must not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from dataplane_server.core.calls.refusal import Refusal, draining
from dataplane_server.service.binding import bind
from dataplane_server.service.boundary import SERVICE
from dataplane_server.service.endless import EndlessCalls
from dataplane_server.service.error_table import ERROR_TABLE

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]

READINESS = "readiness"
LIVENESS = "liveness"

_READY_NAMES = ("", SERVICE, READINESS)
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_LAST_ANSWERS_S = 0.5


class Health(health.aio.HealthServicer):  # type: ignore[misc]  # published without type information
    """The health service; NOT_SERVING at first. Its watches end with the other endless calls, so they do not delay
    shutdown.
    """

    def __init__(self, endless: EndlessCalls) -> None:
        super().__init__()
        self._endless = endless
        self._server_status = dict.fromkeys(_READY_NAMES, _NOT_SERVING)

    async def report(self, *, ready: bool) -> None:
        """Set the readiness that is reported from now on."""
        for name in _READY_NAMES:
            await self.set(name, _SERVING if ready else _NOT_SERVING)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:  # noqa: N802  # gRPC's name
        try:
            with self._endless.running():
                await super().Watch(request, context)
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
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        await self._health.set(LIVENESS, _SERVING)
        bound = bind(self._grpc, address)
        await self._grpc.start()
        return bound

    async def report(self, *, ready: bool) -> None:
        """Set the readiness that is reported from now on."""
        await self._health.report(ready=ready)

    async def stop(self) -> None:
        """End watches and close. Waits at most half a second for other calls."""
        self._endless.end_all(draining())
        if self._grpc is not None:
            await self._grpc.stop(_LAST_ANSWERS_S)
