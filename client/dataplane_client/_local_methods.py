"""Methods of local.proto by the verb of the gRPC service that they stand for."""

from __future__ import annotations

from typing import Any

from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import SHARED_METHODS

_SERVICE = plane_pb.DESCRIPTOR.services_by_name["DataPlaneService"]


LOCAL_METHODS = {
    verb: (number, getattr(plane_pb, _SERVICE.methods_by_name[verb].output_type.name))
    for verb, number in SHARED_METHODS.items()
}
"""Number and response class of the methods that are as over gRPC."""

LOCAL_WRITES: dict[str, tuple[int, Any]] = {
    "PutSamples": (pb.LOCAL_METHOD_PUT, pb.LocalPutRequest),
    "CommitClaim": (pb.LOCAL_METHOD_COMMIT, pb.LocalCommitRequest),
}
"""Number and request class of the methods that write values."""
