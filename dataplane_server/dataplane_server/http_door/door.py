"""The door: a listener of its own that turns each request into calls of the gRPC service, and their answer into JSON.

    POST /v1/partitions/{partition}/samples    put samples, atomically; with a group_id as a new group
    GET /v1/partitions/{partition}             describe a partition, in protobuf's JSON mapping

A put takes the way of a put over gRPC: the same checks, limits, waits and metrics (as transport "grpc"). It is put
whole or not at all, also if its caller hangs up. A group is reserved under a session of the request, so that nothing of
it is left if the request fails or the server is killed; the FinishGroup that shows it has the caller's request_id.
Requests with the same request_id are carried out one after the other; all get the answer of the first that succeeds, or
are refused if they ask for something else.

A body has at most 4 MiB, and 10 s to arrive. A thread parses long ones, one after the other, while the event loop goes
on: the parser gives way between the numbers and objects of a body. A put waits 10 s for room and 10 s for space.
"""

from __future__ import annotations

import asyncio
import uuid
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from aiohttp import web
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict

from dataplane_server.access.gate import OPEN_GATE, Gate, acting_as, current_caller
from dataplane_server.access.http import caller_of
from dataplane_server.access.tls import Tls
from dataplane_server.core.calls.answers import ROW_CONSUMED
from dataplane_server.core.calls.columns import Shape
from dataplane_server.core.calls.limits import Limits
from dataplane_server.core.calls.refusal import Reason, Refusal
from dataplane_server.core.calls.requests import CloseSession, FinishGroup, OpenSession
from dataplane_server.http_door.answers import answer, error_answer, request_error
from dataplane_server.http_door.body import PutBody, parse_body
from dataplane_server.http_door.columns import packed, wire_columns
from dataplane_server.http_listener import HttpListener
from dataplane_server.observe.metrics import Metrics
from dataplane_server.observe.tracing import Tracing
from dataplane_server.service.call_scope import CallScope
from dataplane_server.service.error_table import status_of
from dataplane_server.service.servicer import DataPlaneServicer
from dataplane_server.service.shell import Shell
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1.frames import frame_prefix

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_BODY_BYTES = 4 << 20
"""Of JSON. Its values have at most four times as many, so they are one chunk of a stream."""
_SHORT_BYTES = 64 << 10
"""A body of this size is parsed on the event loop, within some milliseconds."""
MAX_CONNECTIONS = 16
BODY_S = 10.0
WAIT_S = 10
_LIFETIME_S = BODY_S + 3 * WAIT_S
_GRACE_S = 60.0
"""Of the session of a group; longer than a request lives."""
_LAST_S = 1.0
"""For the rest of a body that was refused, and for requests under way when the door closes."""


class HttpDoor:
    """The door of one server, on its event loop. body_s: how long a body may take to arrive, in seconds."""

    def __init__(
        self,
        servicer: DataPlaneServicer,
        shell: Shell,
        metrics: Metrics,
        tracing: Tracing | None = None,
        gate: Gate = OPEN_GATE,
        tls: Tls | None = None,
        body_s: float = BODY_S,
    ) -> None:
        self._servicer = servicer
        self._shell = shell
        self._metrics = metrics
        self._tracing = tracing
        self._body_s = body_s
        self._gate = gate
        self.threads = ThreadPoolExecutor(1, "http-door")
        self._listener = HttpListener("http-door", MAX_CONNECTIONS, _LIFETIME_S, gate, tls)
        self._under_way: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def start(self, host: str, port: int) -> int:
        """Listen. Returns the port; the system chooses one for port 0. Raises OSError."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors_as_json, self._as_caller])
        app.router.add_post("/v1/partitions/{partition}/samples", self._serve_put)
        app.router.add_get("/v1/partitions/{partition}", self._serve_partition, allow_head=False)
        options = {"lingering_time": _LAST_S, "shutdown_timeout": _LAST_S}
        return await self._listener.start(app, host, port, handler_cancellation=True, auto_decompress=False, **options)

    async def stop(self) -> None:
        """Close the listener and, after a second, requests that are under way."""
        await self._listener.stop()
        await asyncio.to_thread(self.threads.shutdown)

    @web.middleware
    async def _as_caller(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Serve a request as its caller, who is known before its body is read."""
        try:
            caller = caller_of(request, self._gate)
        except Refusal as refusal:
            return error_answer(status_of(refusal))
        with acting_as(caller):
            return await handler(request)

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _serve_put(self, request: web.Request) -> web.Response:
        data = await self._body(request)
        return await self._call("PutSamples", request, lambda partition_id: self._put(partition_id, data, request))

    async def _serve_partition(self, request: web.Request) -> web.Response:
        return await self._call("GetPartition", request, self._describe)

    async def _body(self, request: web.Request) -> bytes:
        if request.content_type != "application/json" or "Content-Encoding" in request.headers:
            raise web.HTTPUnsupportedMediaType(text="the body must be application/json, without a Content-Encoding")
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, request.content_length or 0)
        try:
            data = await asyncio.wait_for(request.read(), self._body_s)
        except asyncio.TimeoutError:
            raise web.HTTPRequestTimeout(text=f"the body did not arrive within {self._body_s:g} s") from None
        except ConnectionError:
            raise asyncio.CancelledError from None  # the caller has gone
        self._listener.arrived(request)
        return data

    async def _call(
        self, verb: str, request: web.Request, work: Callable[[str], Awaitable[dict[str, object]]]
    ) -> web.Response:
        """Carry out a request as a call of the service is: timed, counted, and answered once the answer is stable."""
        traceparent = request.headers.get("traceparent", "")
        with CallScope(self._metrics, self._tracing, "grpc", verb, traceparent) as call:
            value = await work(request.match_info["partition"])
            await self._stable()
            call.end()
            return answer(value)
        await self._stable()
        return error_answer(call.status)

    async def _stable(self) -> None:
        if (pending := self._shell.unstable()) is not None:
            await pending

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def _describe(self, partition_id: str) -> dict[str, object]:
        asked = pb.GetPartitionRequest(partition_id=partition_id)
        self._gate.permit("GetPartition", asked)
        response = await self._servicer.GetPartition(asked, None)
        described: dict[str, object] = MessageToDict(
            response.partition, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        return described

    async def _put(self, partition_id: str, data: bytes, request: web.Request) -> dict[str, object]:
        caller, wait = f"http {request.remote}", Duration(seconds=WAIT_S)
        header = pb.PutSamplesHeader(partition_id=partition_id, caller=caller, wait_timeout=wait)
        self._gate.permit("PutSamples", header)  # before anything is made of the body
        info = self._shell.plane.partition_info(partition_id, self._shell.now())
        stored = {field.name: field.shape for field in info.fields if field.shape is not None}
        read = partial(_read, data, header, stored, self._shell.plane.limits)
        if len(data) > _SHORT_BYTES:
            body, values = await asyncio.get_running_loop().run_in_executor(self.threads, read)
        else:
            body, values = read()
        self._gate.permit("PutSamples", header)  # makes its request_id the caller's own
        async with self._under_way.setdefault(header.request_id, asyncio.Lock()):
            if body.group_id is None:
                return {"request_id": body.request_id, **await self._put_rows(header, values)}
            rows = await self._put_group(header, values, body.group_id, body.weight_version)
        return {"request_id": body.request_id, **_told(rows, 0, 0)}

    async def _put_rows(self, header: pb.PutSamplesHeader, values: bytes) -> dict[str, int]:
        """Returns how many rows are new, how many existed, and how many of these a task has consumed."""
        response = await self._servicer.PutSamples(_frames(header, values), None)
        replaced = len(header.sample_ids) - response.created_rows
        return _told(response.created_rows, replaced, response.outcomes.count(ROW_CONSUMED))

    async def _put_group(self, header: pb.PutSamplesHeader, values: bytes, group_id: str, version: int | None) -> int:
        """Reserve, put and finish, unless this request has finished before. Returns how many rows the group has."""
        done = self._finished(header.request_id, header.request_digest)
        if done is not None:
            return done
        session = self._shell.apply(OpenSession("", header.caller, _GRACE_S, current_caller().name))
        try:
            reserved = await self._servicer.ReserveGroup(
                pb.ReserveGroupRequest(
                    request_id=uuid.uuid4().hex,
                    partition_id=header.partition_id,
                    group_id=group_id,
                    sample_ids=header.sample_ids,
                    session_id=session.session_id,
                    weight_version=version,
                    wait_timeout=header.wait_timeout,
                ),
                None,
            )
            finish = FinishGroup(header.request_id, reserved.reservation_id, digest=header.request_digest)
            header.request_id, header.reservation_id = uuid.uuid4().hex, reserved.reservation_id
            await self._put_rows(header, values)
            return self._shell.apply(finish).rows
        finally:
            self._shell.apply(CloseSession(session.session_id))

    def _finished(self, request_id: str, digest: bytes) -> int | None:
        """What a finished request showed. FinishGroup without a reservation recalls its answer, or changes nothing."""
        try:
            return self._shell.apply(FinishGroup(request_id, "", digest=digest)).rows
        except Refusal as refusal:
            if refusal.reason is not Reason.GROUP_FENCED:
                raise
            return None


def _told(created: int, replaced: int, consumed: int) -> dict[str, int]:
    return {"created_rows": created, "replaced_rows": replaced, "consumed_rows": consumed}


def _read(
    data: bytes, header: pb.PutSamplesHeader, stored: Mapping[str, Shape], limits: Limits
) -> tuple[PutBody, bytes]:
    """Parse a body, and complete the header of its put. stored: the shapes of the fields that hold values. Returns the
    bytes of the values, too.
    """
    body = parse_body(data, limits)
    columns, values = wire_columns(body.samples, stored, body.dtypes)
    version = {} if body.weight_version is None else {"weight_version": body.weight_version}
    tags = [(sample.sample_id, {**version, **sample.tags}) for sample in body.samples]
    lengths = [sample.sequence_length for sample in body.samples]
    header.request_id, header.request_digest = body.request_id, body.digest(header.partition_id)
    header.create_only = body.create_only and body.group_id is None  # a group is new in any case
    header.sample_ids.extend(sample.sample_id for sample in body.samples)
    header.columns.extend(columns)
    if any(of for _, of in tags):
        header.row_tags.extend(packed(f"tags of sample {name!r}", of) for name, of in tags)
    if max(lengths, default=-1) >= 0:
        header.sequence_lengths = np.array(lengths, "<i8").tobytes()
    return body, values


async def _frames(header: pb.PutSamplesHeader, values: bytes) -> AsyncIterator[bytes]:
    yield frame_prefix(header.SerializeToString(), 0, len(values)) + values


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        return request_error(error)
