"""The edge of the service, around every method: refusals become statuses, defects are logged, calls are measured."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import grpc
from google.rpc import status_pb2

from dataplane_server.observe.metrics import Metrics
from dataplane_server.observe.tracing import Tracing
from dataplane_server.service.error_table import DETAILS_KEY
from dataplane_server.service.failures import Failures
from rl_dataplane.v1 import data_plane_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["DataPlaneService"].full_name
_CODES = {code.value[0]: code for code in grpc.StatusCode}

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]


class Boundary(grpc.aio.ServerInterceptor):
    """Wraps the methods of our service; health and reflection pass through."""

    def __init__(self, metrics: Metrics, tracing: Tracing | None = None) -> None:
        self._metrics = metrics
        self._tracing = tracing
        self._failures = Failures(metrics)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        service, _, verb = handler_call_details.method.removeprefix("/").partition("/")
        if handler is None or service != SERVICE:
            return cast("Handler | None", handler)
        # Frames of streams stay bytes, see service.frames; all other messages are protobuf's to read and write.
        codec = (
            None if handler.request_streaming else handler.request_deserializer,
            None if handler.response_streaming else handler.response_serializer,
        )
        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._endless(verb, handler.stream_stream), *codec)
        if handler.response_streaming:
            stream = self._stream(verb, handler.unary_stream)
            return grpc.unary_stream_rpc_method_handler(stream, *codec)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(self._single(verb, handler.stream_unary), *codec)
        return grpc.unary_unary_rpc_method_handler(self._single(verb, handler.unary_unary), *codec)

    def _single(self, verb: str, method: Callable[[Any, Context], Awaitable[Any]]) -> Callable[[Any, Any], Any]:
        async def behaviour(request: Any, context: Context) -> Any:
            async with self._guarded(verb, context):
                return await method(request, context)

        return behaviour

    def _stream(
        self, verb: str, method: Callable[[Any, Context], AsyncGenerator[Any, None]]
    ) -> Callable[[Any, Any], Any]:
        async def behaviour(request: Any, context: Context) -> AsyncIterator[Any]:
            async with self._guarded(verb, context), contextlib.aclosing(method(request, context)) as responses:
                async for response in responses:
                    yield response

        return behaviour

    def _endless(
        self, verb: str, method: Callable[[Any, Context], Awaitable[Awaitable[None]]]
    ) -> Callable[[Any, Any], Any]:
        """A stream that has no end of its own. Its method opens it and returns what goes on from there; counted and
        measured is the opening.
        """

        async def behaviour(requests: Any, context: Context) -> None:
            async with self._guarded(verb, context):
                going_on = await method(requests, context)
            async with self._guarded(verb, context, counted=False):
                await going_on

        return behaviour

    @contextlib.asynccontextmanager
    async def _guarded(self, verb: str, context: Context, *, counted: bool = True) -> AsyncIterator[None]:
        began = time.monotonic()
        code = "OK"
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            code = "CANCELLED"
            raise
        except Exception as error:  # noqa: BLE001  # the last line of defence
            code, status = self._failures.status(verb, error)
            await _abort(context, status)
        finally:
            if counted:
                seconds = time.monotonic() - began
                self._metrics.call(verb, "grpc", code, seconds)
                if self._tracing is not None:
                    self._tracing.call(verb, "grpc", code, seconds, _traceparent(context))


def _traceparent(context: Context) -> str:
    metadata: Any = context.invocation_metadata() or ()  # pairs, whatever the type stubs say
    return next((value for key, value in metadata if key == "traceparent"), "")


async def _abort(context: Context, status: status_pb2.Status) -> None:
    details = ((DETAILS_KEY, status.SerializeToString()),)
    await context.abort(_CODES[status.code], status.message, trailing_metadata=details)
