"""The standard health service: beside the data on every listener, and on a listener of its own for probes.

An orchestrator's probes ask two things. Readiness: may clients be sent here? Not before every listener listens, nor
from the moment in which the server drains. Liveness: would killing it help? Not as long as its event loop answers, and
least of all while it drains. So the listener for probes is the first to open and the last to close. It has no other
service, needs no encryption, and may listen where the data must not.
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
    """Tells whether services serve; at first they do not. Its watches end with the other endless calls instead of
    holding up the end of their server.
    """

    def __init__(self, endless: EndlessCalls) -> None:
        super().__init__()
        self._endless = endless
        self._server_status = dict.fromkeys(_READY_NAMES, _NOT_SERVING)

    async def report(self, *, ready: bool) -> None:
        """What is told from now on."""
        for name in _READY_NAMES:
            await self.set(name, _SERVING if ready else _NOT_SERVING)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:  # noqa: N802  # gRPC's name
        try:
            with self._endless.running():
                await super().Watch(request, context)
        except Refusal as refusal:
            await context.abort(ERROR_TABLE[refusal.reason], refusal.message)


class HealthListener:
    """A gRPC server with the health service alone: `start`, then `stop` once."""

    def __init__(self) -> None:
        self._endless = EndlessCalls()
        self._health = Health(self._endless)
        self._grpc: grpc.aio.Server | None = None

    async def start(self, address: str) -> str:
        """Answer that the server lives and is not ready; the address. Raises OSError when it cannot be had."""
        self._grpc = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        await self._health.set(LIVENESS, _SERVING)
        bound = bind(self._grpc, address)
        await self._grpc.start()
        return bound

    async def report(self, *, ready: bool) -> None:
        """What is told from now on of readiness."""
        await self._health.report(ready=ready)

    async def stop(self) -> None:
        """End watches and close. Waits for other answers under way for at most half a second."""
        self._endless.end_all(draining())
        if self._grpc is not None:
            await self._grpc.stop(_LAST_ANSWERS_S)
