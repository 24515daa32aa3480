"""gRPC reflection: tools such as grpcurl ask the server for its contract, on a stream that they keep open."""

from __future__ import annotations

from typing import Any

import google.protobuf
import grpc
from google.protobuf.runtime_version import VersionError

from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.service.endless import EndlessCalls
from dataplane_server.service.error_table import ERROR_TABLE
from dataplane_server.service.grpc.boundary import SERVICE
from dataplane_server.service.grpc.health import HEALTH_SERVICE


def serve_reflection(server: grpc.aio.Server, endless: EndlessCalls) -> None:
    """Add the service to a server that has not started. Its streams are among the endless calls. Raises ImportError
    without a grpcio-reflection that fits.
    """
    try:
        from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
    except ModuleNotFoundError as error:
        raise ImportError("--reflection needs grpcio-reflection: pip install 'rl-dataplane[reflection]'") from error
    except (VersionError, RuntimeError) as error:  # its generated modules check protobuf and grpcio
        installed = f"protobuf=={google.protobuf.__version__}"
        raise ImportError(
            f"--reflection: the installed grpcio-reflection does not fit {installed}: "
            f"pip install --upgrade grpcio-reflection '{installed}'"
        ) from error

    class Servicer(reflection.aio.ReflectionServicer):  # type: ignore[misc]  # it has no types
        async def ServerReflectionInfo(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
            try:
                with endless.running():
                    async for response in super().ServerReflectionInfo(request_iterator, context):
                        await endless.write(context.write(response))  # within the block, unlike a yield
            except Refusal as refusal:
                await context.abort(ERROR_TABLE[refusal.reason], refusal.message)

    servicer = Servicer((SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
