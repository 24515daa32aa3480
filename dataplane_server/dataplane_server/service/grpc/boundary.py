"""The gRPC interceptor around every method: it parses requests, observes calls, and answers refusals and defects with a
status.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from dataplane_server.access.gate import OPEN_GATE, Credentials, Gate, acting_as, bearer_token
from dataplane_server.access.roles import EVERYTHING, Caller
from dataplane_server.observe.metrics import Metrics
from dataplane_server.observe.tracing import Tracing
from dataplane_server.service.call_scope import CallScope
from dataplane_server.service.error_table import DETAILS_KEY
from dataplane_server.service.grpc.incoming import IncomingRequests
from dataplane_server.service.messages.parsing import Messages
from rl_dataplane.v1 import data_plane_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["DataPlaneService"]
SERVICE = _SERVICE.full_name
_CODES = {code.value[0]: code for code in grpc.StatusCode}

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]


class Boundary(grpc.aio.ServerInterceptor):
    """Wraps the methods of our service. Health and reflection pass through."""

    def __init__(
        self,
        metrics: Metrics,
        messages: Messages,
        stable: Callable[[], Awaitable[None]],
        tracing: Tracing | None = None,
        gate: Gate = OPEN_GATE,
    ) -> None:
        """stable: waits for what every answer waits for before it leaves."""
        self._gate = gate
        self._stable = stable
        self._metrics = metrics
        self._messages = messages
        self._incoming = IncomingRequests()
        self._handlers: dict[str, Handler] = {}
        self._tracing = tracing

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        method = handler_call_details.method
        if method not in self._handlers:
            handler = await continuation(handler_call_details)
            service, _, verb = method.removeprefix("/").partition("/")
            if handler is None or service != SERVICE:
                return cast("Handler | None", handler)
            self._handlers[method] = self._handler(verb, handler)
        return self._handlers[method]

    def _handler(self, verb: str, handler: Any) -> Handler:
        """A method of ours, with what happens around every call."""
        # Frames of streams stay bytes, see service.frames. Other requests are read and parsed within the call, which
        # refuses what is malformed or late. So gRPC takes unary requests for streams; on the wire they are alike.
        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._endless(verb, handler.stream_stream))
        if handler.response_streaming:
            stream = self._stream(verb, handler.unary_stream, _request_of(verb))
            return grpc.stream_stream_rpc_method_handler(stream)
        serializer = handler.response_serializer
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(self._single(verb, handler.stream_unary), None, serializer)
        unary = self._single(verb, handler.unary_unary, _request_of(verb))
        return grpc.stream_unary_rpc_method_handler(unary, None, serializer)

    def _single(
        self, verb: str, method: Callable[[Any, Context], Awaitable[Any]], kind: type[Message] | None = None
    ) -> Callable[[Any, Any], Any]:
        async def behaviour(request: Any, context: Context) -> Any:
            with self._begin(verb, context) as call, acting_as(self._caller(context)):
                response = await method(request if kind is None else await self._request(verb, kind, request), context)
                await self._stable()
                call.end()
                return response
            return await self._abort(context, call)

        return behaviour

    def _stream(
        self, verb: str, method: Callable[[Any, Context], AsyncGenerator[Any, None]], kind: type[Message]
    ) -> Callable[[Any, Any], Any]:
        async def behaviour(stream: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
            with self._begin(verb, context) as call:
                with acting_as(self._caller(context)):
                    request = await self._request(verb, kind, stream)
                async with contextlib.aclosing(method(request, context)) as responses:
                    first = await anext(responses)
                    await self._stable()
                    yield first
                    async for response in responses:
                        yield response
                call.end()
                return
            await self._abort(context, call)

        return behaviour

    def _endless(
        self, verb: str, method: Callable[[Any, Context], Awaitable[Awaitable[None]]]
    ) -> Callable[[Any, Any], Any]:
        """A stream that the client keeps open. Its method opens it and returns the rest of the call. Metrics and traces
        cover the opening.
        """

        async def behaviour(requests: Any, context: Context) -> None:
            with self._begin(verb, context) as call, acting_as(self._caller(context)):
                opened = await method(requests, context)
                call.end()
                await opened
                return
            await self._abort(context, call)

        return behaviour

    async def _abort(self, context: Context, call: CallScope) -> None:
        await self._stable()
        left_s: float | None = context.time_remaining()  # None for no deadline, unlike the type stubs say
        if context.cancelled() or (left_s is not None and left_s <= 0):
            raise asyncio.CancelledError  # the caller has gone; gRPC would log that it cannot be told
        details = ((DETAILS_KEY, call.status.SerializeToString()),)
        await context.abort(_CODES[call.status.code], call.status.message, trailing_metadata=details)

    async def _request(self, verb: str, kind: type[Message], stream: AsyncIterator[bytes]) -> Message:
        request = self._messages.parse(kind, await self._incoming.request(stream))
        self._gate.permit(verb, request)
        return request

    def _caller(self, context: Context) -> Caller:
        """Who calls. Raises, before anything of the request is read, Refusal UNAUTHENTICATED, or CancelledError if the
        call has ended.
        """
        gate = self._gate
        if gate.is_open:
            return EVERYTHING
        peer, token = context.peer(), bearer_token(_header(context, "authorization"))
        if not peer:
            raise asyncio.CancelledError  # gRPC forgets the peer of a call that has ended, at its deadline for example
        if peer.startswith("unix"):
            return gate.at_unix_socket(token)
        return gate.at_port(Credentials(peer, token, _certificate(context) if gate.asks_for_credentials else None))

    def _begin(self, verb: str, context: Context) -> CallScope:
        traceparent = "" if self._tracing is None else _header(context, "traceparent")
        return CallScope(self._metrics, self._tracing, "grpc", verb, traceparent)


def _request_of(verb: str) -> type[Message]:
    return GetMessageClass(_SERVICE.methods_by_name[verb].input_type)


def _header(context: Context, name: str) -> str:
    metadata: Any = context.invocation_metadata() or ()  # pairs, whatever the type stubs say
    return next((value for key, value in metadata if key == name), "")


def _certificate(context: Context) -> tuple[str, ...] | None:
    """The names in the client's certificate: subject alternative names, or the common name of one without any."""
    found = context.auth_context()
    names = found.get("x509_subject_alternative_name") or found.get("x509_common_name")
    return None if names is None else tuple(name.decode(errors="replace") for name in names)
