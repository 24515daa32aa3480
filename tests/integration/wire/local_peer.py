"""A peer of a server's local socket that says what it likes, frame by frame."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import socket
import struct
from typing import Any, TypeVar

import numpy as np
from google.protobuf import empty_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from dataplane_client.client import DataPlaneClient
from dataplane_server.testing import ServerThread
from rl_dataplane.v1 import data_plane_pb2 as plane_pb
from rl_dataplane.v1 import local_pb2 as pb

HEAD = struct.Struct("<IHxx")
MIB = 1 << 20
ROW_BYTES = 4096
"""Bytes of the row that every server has from the start."""

_numbers = itertools.count()


def framed(method: int, body: bytes | Message = b"") -> bytes:
    """A request as it is sent."""
    body = body if isinstance(body, bytes) else body.SerializeToString()
    return HEAD.pack(len(body), method) + body


class Peer:
    """A connection, given or to the local socket at a path. Every response has to come within two minutes."""

    def __init__(self, place: str | socket.socket) -> None:
        self.socket = place if isinstance(place, socket.socket) else socket.socket(socket.AF_UNIX)
        self.socket.settimeout(120.0)
        if isinstance(place, str):
            self.socket.connect(place)

    def send(self, method: int, body: bytes | Message = b"") -> None:
        self.socket.sendall(framed(method, body))

    def receive(self) -> tuple[int, bytes]:
        size, outcome = HEAD.unpack(self.exactly(HEAD.size))
        return outcome, self.exactly(size)

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise ConnectionError("the server closed it")
            data += more
        return data

    def call(self, method: int, request: bytes | Message, response: Any = empty_pb2.Empty) -> Any:
        """Make a call that succeeds; without a class for its response, that is taken unread."""
        body = self.said(method, request)
        return response.FromString(body if response is not empty_pb2.Empty else b"")

    def said(self, method: int, request: bytes | Message = b"") -> bytes:
        """The body of the response to a call that succeeds."""
        self.send(method, request)
        outcome, body = self.receive()
        assert outcome == pb.LOCAL_OUTCOME_UNSPECIFIED, status_pb2.Status.FromString(body)
        return body

    def refused(self, method: int, request: bytes | Message = b"") -> tuple[str, str]:
        """Make a call that fails: its reason for programs, and its message."""
        self.send(method, request)
        outcome, body = self.receive()
        assert outcome == pb.LOCAL_OUTCOME_ERROR
        status, info = status_pb2.Status.FromString(body), error_details_pb2.ErrorInfo()
        assert any(detail.Unpack(info) for detail in status.details)
        return info.reason, status.message

    @property
    def ended(self) -> bool:
        """Whether the server closes the connection, without another word."""
        with contextlib.suppress(ConnectionError):
            return self.socket.recv(1) == b""
        return True

    def close(self) -> None:
        self.socket.close()


class Lifeline(Peer):
    """An attached connection and its session."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.send(pb.LOCAL_METHOD_ATTACH)
        data, self.descriptors, _, _ = socket.recv_fds(self.socket, 4096, 8)
        for descriptor in self.descriptors:
            os.set_inheritable(descriptor, False)  # recv_fds ignores MSG_CMSG_CLOEXEC
        self.attached = pb.AttachResponse.FromString(data[HEAD.size :])

    def close(self) -> None:
        super().close()
        while self.descriptors:
            os.close(self.descriptors.pop())


P = TypeVar("P", bound=Peer)


class Peers:
    """What connects to a server: to its local socket, at a path, and to its direct port. client: of the server."""

    def __init__(self, path: str, client: DataPlaneClient) -> None:
        self.path = path
        self.client = client
        self._opened = contextlib.ExitStack()
        self.lifeline = Lifeline(path)

    def _keep(self, peer: P) -> P:
        self._opened.callback(peer.close)
        return peer

    def connect(self) -> Peer:
        return self._keep(Peer(self.path))

    def attach(self) -> Lifeline:
        return self._keep(Lifeline(self.path))

    def join(self, lifeline: Lifeline | None = None) -> Peer:
        peer, session = self.connect(), (lifeline or self.lifeline).attached.session
        peer.call(pb.LOCAL_METHOD_JOIN, pb.JoinRequest(session=session), pb.JoinResponse)
        return peer

    @functools.cached_property
    def direct_port(self) -> plane_pb.DirectPort:
        status = self.join().said(pb.LOCAL_METHOD_GET_SERVER_STATUS)
        return plane_pb.GetServerStatusResponse.FromString(status).direct_port

    def connect_directly(self, source: str = "127.0.0.1") -> Peer:
        return self._keep(Peer(socket.create_connection(("127.0.0.1", self.direct_port.port), 120.0, (source, 0))))

    def join_directly(self, source: str = "127.0.0.1") -> Peer:
        """A connection to the direct port that may call."""
        peer = self.connect_directly(source)
        peer.call(pb.LOCAL_METHOD_DIRECT, pb.DirectRequest(nonce=self.direct_port.nonce), pb.DirectResponse)
        return peer

    def close_peers(self) -> None:
        """All connections but the lifeline."""
        self._opened.close()

    def close(self) -> None:
        self.close_peers()
        self.lifeline.close()


class Host(Peers):
    """A server of this process and what connects to it."""

    def __init__(self, server: ServerThread, path: str, client: DataPlaneClient) -> None:
        super().__init__(path, client)
        self.server = server

    def let_go(self, *handles: int, lifeline: Lifeline | None = None) -> None:
        (lifeline or self.lifeline).send(pb.LOCAL_METHOD_LET_GO, pb.LetGoRequest(handles=handles))

    @property
    def used(self) -> int:
        return self.client.server_status().memory_used_bytes

    def stored(self, sample_id: str) -> bytes:
        return bytes(self.client.get_samples([sample_id], "p", ["x"])["x"].values().tolist())


def put(handle: int, size_bytes: int, values: bytes | None = None, **more: Any) -> pb.LocalPutRequest:
    """A put of one row of size_bytes in field x."""
    number = next(_numbers)
    settings = {"request_id": f"request-{number}", "sample_ids": [f"s{number}"], **more}
    header = plane_pb.PutSamplesHeader(partition_id="p", columns=[column(size_bytes)], **settings)
    header.wait_timeout.FromSeconds(60)
    return pb.LocalPutRequest(header=header, handle=handle, values=values)


def column(size_bytes: int) -> plane_pb.Column:
    """Field x of one row."""
    lengths = np.array([size_bytes], "<i8").tobytes()
    return plane_pb.Column(
        name="x", kind=plane_pb.FIELD_KIND_JAGGED, data_type=plane_pb.DATA_TYPE_UINT8, row_lengths=lengths
    )


def read(handle: int, *sample_ids: str, inline_bytes: int = 0) -> pb.LocalReadRequest:
    """A read of field x."""
    request = plane_pb.ReadColumnsRequest(partition_id="p", sample_ids=sample_ids or ["row"], fields=["x"])
    return pb.LocalReadRequest(request=request, handle=handle, inline_bytes=inline_bytes)


def claim(rows: int = 1, wait_s: int = 60) -> plane_pb.ClaimSamplesRequest:
    """A claim of rows with field x."""
    request = plane_pb.ClaimSamplesRequest(
        request_id=f"request-{next(_numbers)}",
        partition_id="p",
        task="train",
        required_fields=["x"],
        batch_size=rows,
        mode=plane_pb.CLAIM_MODE_ACKNOWLEDGED,
    )
    request.wait_timeout.FromSeconds(wait_s)
    return request
