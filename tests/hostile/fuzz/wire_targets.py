"""What peers send: frames of streams, requests, frames of local sockets, bodies over HTTP.

Every input is answered or refused. An exception of another kind, an answer INTERNAL, a broken law of the core, and a
reading that differs from protobuf's are defects.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
from collections.abc import AsyncIterator

from google.rpc import error_details_pb2, status_pb2
from tests.hostile.fuzz.inputs import pieces
from tests.hostile.fuzz.world import LIMITS, SERVICE, World, calls, loop
from tests.proto.test_frames import parsed, read

from dataplane_client._requests.requests import put_request
from dataplane_client.records.descriptions import FieldDescription
from dataplane_http.app import json_of
from dataplane_http.columns import columns_of
from dataplane_http.models import Put
from dataplane_server.core.calls.refusal import Refusal
from dataplane_server.service.local.local_connection import LocalConnection
from dataplane_server.service.messages.frames import FrameReader
from dataplane_server.service.messages.parsing import Messages, _nested
from rl_dataplane.v1 import data_plane_pb2 as pb
from rl_dataplane.v1 import local_pb2
from rl_dataplane.v1.frames import TooManyPartsError, check_parts, frame_prefix, parse_frame
from rl_dataplane.v1.local_frames import HEAD

VERBS = [method.name for method in SERVICE.methods if method.name != "Session"]
"""In the order of the contract."""
_STORED = {
    "x": FieldDescription("x", "jagged", "int64", (), False, 1, 8),
    "y": FieldDescription("y", "dense", "float32", (), False, 1, 4),
    "o": FieldDescription("o", "object", "", (), False, 1, 1),
}
_NESTED = _nested(pb.PutSamplesRequest.DESCRIPTOR)
_ANSWER_S = 30.0


# -- frames ------------------------------------------------------------------------------------------------------------


def frame(data: bytes) -> None:
    """A frame is read as protobuf reads it, or refused where protobuf refuses it; its parts are counted in any case."""
    with contextlib.suppress(TooManyPartsError):
        check_parts(data, _NESTED, most=64)
    try:
        found = parse_frame(data)
    except TooManyPartsError:
        return
    except ValueError:
        found = None
    ours, theirs = parsed(data, pb.PutSamplesRequest), read(data, pb.PutSamplesRequest)
    if ours != theirs:
        raise AssertionError(f"read as {ours}, by protobuf as {theirs}")
    if found is not None and found.chunk is not None:
        again = parse_frame(frame_prefix(found.header, found.offset, len(found.chunk)) + bytes(found.chunk))
        if again != found:
            raise AssertionError(f"written and read again: {again} instead of {found}")


def stream(data: bytes) -> None:
    """A stream of frames has the size that it declares (the first two bytes), or is refused."""
    loop().run_until_complete(_read(int.from_bytes(data[:2], "little"), pieces(data[2:])))


async def _read(size: int, frames: list[bytes]) -> None:
    reader = FrameReader(_stream(frames), pb.CommitClaimHeader, Messages(LIMITS))
    try:
        await reader.first()
        values = b"".join([bytes(chunk) async for chunk in reader.chunks(size)])
    except Refusal:
        return
    expected = b"".join(pb.CommitClaimRequest.FromString(frame).chunk.data for frame in frames)
    if values != expected or len(values) != size:
        raise AssertionError(f"{len(values)} bytes of values; declared are {size}, and protobuf reads {len(expected)}")


async def _stream(frames: list[bytes]) -> AsyncIterator[bytes]:
    for message in frames:
        yield message


# -- requests ----------------------------------------------------------------------------------------------------------


def requests(data: bytes) -> None:
    """Requests of any verbs, each a piece whose first byte says the verb, are answered or refused, one by one."""
    sent = [(VERBS[piece[0] % len(VERBS)], piece[1:]) for piece in pieces(data) if piece]
    loop().run_until_complete(calls(World(), sent))


# -- local sockets -----------------------------------------------------------------------------------------------------


def local(data: bytes) -> None:
    """What a client sends after it attached is answered, or closes its connection; then nothing of it is held."""
    defects = _defects()
    try:
        loop().run_until_complete(asyncio.wait_for(_local(data), _ANSWER_S))
    finally:
        defects.raise_found()  # which says more than an answer does


async def _local(data: bytes) -> None:
    world = World()
    await world.fill()
    ours, peer = socket.socketpair()
    for end in (ours, peer):
        end.setblocking(False)
    await loop().connect_accepted_socket(lambda: LocalConnection(world.endpoint, peer), peer)
    descriptors = await _attach(ours)
    try:
        answers = await _talk(ours, data)
    finally:
        ours.close()
        for descriptor in descriptors:
            os.close(descriptor)
    while world.endpoint.connections:  # noqa: ASYNC110  # the server tells nobody
        await asyncio.sleep(0)
    if world.endpoint.buffers.held_bytes:
        raise AssertionError("bytes are held for a connection that is closed")
    _check_answers(answers)
    world.end()


async def _attach(ours: socket.socket) -> list[int]:
    await loop().sock_sendall(ours, HEAD.pack(0, local_pb2.LOCAL_METHOD_ATTACH))
    readable = asyncio.Event()
    loop().add_reader(ours, readable.set)
    await readable.wait()
    loop().remove_reader(ours)
    return socket.recv_fds(ours, 4096, 8)[1]


async def _talk(ours: socket.socket, data: bytes) -> bytes:
    """Send everything, then hang up. Returns what was answered."""
    sending = asyncio.ensure_future(_send(ours, data))
    answers = b""
    while more := await _received(ours):
        answers += more
    await sending
    return answers


async def _send(ours: socket.socket, data: bytes) -> None:
    try:
        await loop().sock_sendall(ours, data)
        ours.shutdown(socket.SHUT_WR)
    except OSError:  # the server has closed it
        pass


async def _received(ours: socket.socket) -> bytes:
    try:
        return await loop().sock_recv(ours, 1 << 16)
    except ConnectionResetError:
        return b""


def _check_answers(answers: bytes) -> None:
    while len(answers) >= HEAD.size:
        size, outcome = HEAD.unpack_from(answers)
        body, answers = answers[HEAD.size : HEAD.size + size], answers[HEAD.size + size :]
        if outcome == local_pb2.LOCAL_OUTCOME_ERROR and len(body) == size:
            info = error_details_pb2.ErrorInfo()
            status = status_pb2.Status.FromString(body)
            if not any(detail.Unpack(info) for detail in status.details) or info.reason == "INTERNAL":
                raise AssertionError(f"answered with {status}")


class _Defects(logging.Handler):
    """Errors that the server logs, and exceptions that reach the event loop."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._found: list[str] = []
        logging.getLogger("dataplane_server").addHandler(self)
        loop().set_exception_handler(lambda _, context: self._found.append(str(context)))

    def emit(self, record: logging.LogRecord) -> None:
        self._found.append(record.getMessage())

    def raise_found(self) -> None:
        found, self._found = self._found, []
        if found:
            raise AssertionError("\n".join(found))


_defects = functools.cache(_Defects)


# -- HTTP --------------------------------------------------------------------------------------------------------------


def http(data: bytes) -> None:
    """A body is refused, or becomes a put that the service answers or refuses."""
    try:
        body = Put.model_validate(json_of(data))
        ids, tags = [sample.sample_id for sample in body.samples], [sample.tags for sample in body.samples]
        put = put_request("http", "p", ids, columns_of(body.samples, _STORED, body.dtypes), "http", tags=tags)
    except (ValueError, TypeError):
        return
    values = b"".join(column.values for column in put.write.columns)
    message = frame_prefix(put.header.SerializeToString(), 0, len(values)) + values
    if len(message) < 1 << 16:
        loop().run_until_complete(calls(World(), [("PutSamples", len(message).to_bytes(2, "little") + message)]))
