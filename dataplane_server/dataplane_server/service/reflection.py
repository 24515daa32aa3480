"""gRPC reflection: tools such as grpcurl ask the server for its contract."""

from __future__ import annotations

import google.protobuf
import grpc
from google.protobuf.runtime_version import VersionError

from dataplane_server.service.boundary import SERVICE
from dataplane_server.service.health import HEALTH_SERVICE


def serve_reflection(server: grpc.aio.Server) -> None:
    """Add the service to a server that has not started. Raises ImportError without a grpcio-reflection that fits."""
    try:
        from grpc_reflection.v1alpha import reflection
    except ModuleNotFoundError as error:
        raise ImportError("--reflection needs grpcio-reflection: pip install 'rl-dataplane[reflection]'") from error
    except (VersionError, RuntimeError) as error:  # its generated modules check protobuf and grpcio
        installed = f"protobuf=={google.protobuf.__version__}"
        raise ImportError(
            f"--reflection: the installed grpcio-reflection does not fit {installed}: "
            f"pip install --upgrade grpcio-reflection '{installed}'"
        ) from error
    reflection.enable_server_reflection((SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME), server)
