"""One end of a session's stream, told message by message what to send."""

from __future__ import annotations

import queue
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from rl_dataplane.v1 import data_plane_pb2 as pb


def opening(session_id: str = "", grace_s: float | None = None, client_name: str = "") -> pb.SessionRequest:
    open_ = pb.OpenSession(session_id=session_id, client_name=client_name)
    if grace_s is not None:
        open_.grace.FromNanoseconds(int(grace_s * 1e9))
    return pb.SessionRequest(open=open_)


class SessionPeer:
    """A stream. Requests are sent as bytes, so they may be anything."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        method: Any = channel.stream_stream("/rl_dataplane.v1.DataPlaneService/Session")
        self.call = method(iter(self._requests.get, None), timeout=60)

    def send(self, request: pb.SessionRequest | bytes) -> None:
        self._requests.put(request if isinstance(request, bytes) else request.SerializeToString())

    def open(self, session_id: str = "", grace_s: float | None = None, client_name: str = "") -> pb.SessionResponse:
        self.send(opening(session_id, grace_s, client_name))
        return pb.SessionResponse.FromString(next(self.call))

    def heartbeat(self) -> None:
        self.send(b"")

    def say_no_more(self) -> None:
        """End the requests; responses may still come."""
        self._requests.put(None)

    def break_off(self) -> None:
        self.call.cancel()
        self.say_no_more()

    def ending(self) -> tuple[grpc.StatusCode, str]:
        """Wait for the end: its code, and the reason that is given to programs."""
        try:
            surplus = list(self.call)
        except grpc.RpcError:
            return self.call.code(), _reason(self.call.trailing_metadata())
        finally:
            self.say_no_more()
        assert surplus == [], "a session's stream has one response"
        return self.call.code(), ""


def _reason(metadata: Any) -> str:
    packed = dict(metadata or ()).get("grpc-status-details-bin", b"")
    info = error_details_pb2.ErrorInfo()
    for detail in status_pb2.Status.FromString(packed).details:
        if detail.Unpack(info):
            return str(info.reason)
    return ""
