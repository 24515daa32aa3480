"""The methods of local.proto: those that move values are in `local_calls`, the others call the gRPC service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from dataplane_server.access.gate import OPEN_GATE, Gate, acting_as
from dataplane_server.access.roles import Caller
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.service.grpc.servicer import DataPlaneServicer
from dataplane_server.service.local.local_calls import LocalCalls
from dataplane_server.service.local.local_session import LocalSession
from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb
from rl_dataplane.v1.local_frames import SHARED_METHODS

URGENT_VERBS = frozenset({"CommitClaim", "FinishWrite", "ReleaseClaim", "FinishGroup", "AbortGroup", "Fetch"})
"""Others wait for what they end."""
_SERVICE = plane_pb.DESCRIPTOR.services_by_name["DataPlaneService"]


@dataclass(frozen=True, slots=True)
class LocalMethod:
    """verb: its name in metrics and logs. request: the class of its message. call: answers at once, or with an
    awaitable if it waits.
    """

    verb: str
    request: type[Message]
    call: Callable[[Any, Any], Message | Awaitable[Message]]


def local_methods(calls: LocalCalls, servicer: DataPlaneServicer, gate: Gate = OPEN_GATE) -> dict[int, LocalMethod]:
    """The methods that a session may call, by number."""
    methods: dict[int, LocalMethod] = {
        pb.LOCAL_METHOD_PUT: LocalMethod("PutSamples", pb.LocalPutRequest, calls.put),
        pb.LOCAL_METHOD_COMMIT: LocalMethod("CommitClaim", pb.LocalCommitRequest, calls.commit),
        pb.LOCAL_METHOD_FINISH_WRITE: LocalMethod("FinishWrite", pb.FinishWriteRequest, calls.finish_write),
        pb.LOCAL_METHOD_READ: LocalMethod("ReadColumns", pb.LocalReadRequest, calls.read),
    }
    shared = {number: _as_over_grpc(verb, servicer) for verb, number in SHARED_METHODS.items()}
    return {number: _guarded(method, gate) for number, method in (methods | shared).items()}


def _guarded(method: LocalMethod, gate: Gate) -> LocalMethod:
    """A method that asks the gate first. The handle of a FinishWrite belongs to its session, which began the write."""

    def call(message: Any, session: LocalSession) -> Message | Awaitable[Message]:
        caller = gate.at_unix_socket()
        with acting_as(caller):
            if method.verb != "FinishWrite":
                gate.permit(method.verb, _request_in(message), session.owner)
            answer = method.call(message, session)
        return answer if isinstance(answer, Message) else _as(caller, answer)

    return replace(method, call=call) if gate.asks_for_credentials else method


def _request_in(message: Any) -> Any:
    """The request of a message that says beside it where values are."""
    if isinstance(message, pb.LocalReadRequest):
        return message.request
    return message.header if isinstance(message, (pb.LocalPutRequest, pb.LocalCommitRequest)) else message


async def _as(caller: Caller, answer: Awaitable[Message]) -> Message:
    with acting_as(caller):
        return await answer


def _as_over_grpc(verb: str, servicer: DataPlaneServicer) -> LocalMethod:
    method = getattr(servicer, verb)
    request = GetMessageClass(_SERVICE.methods_by_name[verb].input_type)
    return LocalMethod(verb, request, lambda message, session: method(message, None))


def _refuse(request: object, session: LocalSession) -> Message:
    raise Refusal(Reason.INVALID_REQUEST, "unknown method")


UNKNOWN_METHOD = LocalMethod("Unknown", pb.LetGoRequest, _refuse)
