"""The standard health service, whose watches end when the server drains instead of holding it up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health, health_pb2

from dataplane_server.core.refusal import Refusal
from dataplane_server.service.endless import EndlessCalls
from dataplane_server.service.error_table import ERROR_TABLE

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]


class Health(health.aio.HealthServicer):  # type: ignore[misc]  # published without type information
    """Tells whether services serve."""

    def __init__(self, endless: EndlessCalls) -> None:
        super().__init__()
        self._endless = endless

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:  # noqa: N802  # gRPC's name
        try:
            with self._endless.running():
                await super().Watch(request, context)
        except Refusal as refusal:
            await context.abort(ERROR_TABLE[refusal.reason], refusal.message)
