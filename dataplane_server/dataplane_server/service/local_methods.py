"""Which method of local.proto calls what: those that move values have ways of their own, the others are the gRPC
service's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from dataplane_server.service.local_calls import LocalCalls
from dataplane_server.service.local_connection import LocalMethod
from dataplane_server.service.local_session import LocalSession
from dataplane_server.service.servicer import DataPlaneServicer
from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import SHARED_METHODS

_SERVICE = plane_pb.DESCRIPTOR.services_by_name["DataPlaneService"]


def local_methods(calls: LocalCalls, servicer: DataPlaneServicer) -> dict[int, LocalMethod]:
    """The methods that a session may call, by number."""
    methods: dict[int, LocalMethod] = {
        pb.LOCAL_METHOD_PUT: LocalMethod("PutSamples", pb.LocalPutRequest, calls.put),
        pb.LOCAL_METHOD_COMMIT: LocalMethod("CommitClaim", pb.LocalCommitRequest, calls.commit),
        pb.LOCAL_METHOD_FINISH_WRITE: LocalMethod("FinishWrite", pb.FinishWriteRequest, calls.finish_write),
        pb.LOCAL_METHOD_READ: LocalMethod("ReadColumns", pb.LocalReadRequest, calls.read),
    }
    shared = {number: _as_over_grpc(verb, servicer) for verb, number in SHARED_METHODS.items()}
    return methods | shared


def _as_over_grpc(verb: str, servicer: DataPlaneServicer) -> LocalMethod:
    request = getattr(plane_pb, _SERVICE.methods_by_name[verb].input_type.name)
    return LocalMethod(verb, request, _without_session(getattr(servicer, verb)))


def _without_session(method: Callable[[Any, object], Awaitable[Message]]) -> Callable[..., Awaitable[Message]]:
    async def call(request: Message, session: LocalSession) -> Message:
        return await method(request, None)

    return call
