"""Heartbeats of a session: the stream that carries them, and when the next one is due."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import grpc

from dataplane_client._connect.connection_errors import says_nothing_listens
from dataplane_client._connect.error_table import translated
from dataplane_client.errors import DataPlaneError, UnavailableError
from rl_dataplane.v1 import data_plane_pb2 as pb

_BEATS_A_GRACE = 3
_BEAT_TIMES_S = 0.5
_SHORT_INTERVAL_S = 1.0


class HeartbeatStream:
    """One stream of heartbeats. When it ends, it puts itself into a mailbox."""

    def __init__(self, stub: Any, opening: pb.OpenSession) -> None:
        self._requests: queue.SimpleQueue[pb.SessionRequest | None] = queue.SimpleQueue()
        self._requests.put(pb.SessionRequest(open=opening))
        self.opened = False
        requests: Iterator[pb.SessionRequest] = iter(self._requests.get, None)
        self.call: Any = stub.Session(requests)

    def answer(self) -> pb.SessionResponse:
        """Wait for the first and only response. Raises RpcError or StopIteration when the stream ends without one."""
        response: pb.SessionResponse = next(self.call)
        self.opened = True
        return response

    def post_end(self, mailbox: queue.SimpleQueue[object]) -> None:
        """Put this stream into the mailbox when it has ended."""
        if not self.call.add_callback(lambda: mailbox.put(self)):
            mailbox.put(self)

    def beat(self) -> None:
        if self._requests.empty():  # otherwise the server reads nothing, and another heartbeat would not help
            self._requests.put(pb.SessionRequest())

    def close(self) -> None:
        """Ask the server to end the session, and then the stream."""
        self._requests.put(pb.SessionRequest(close=True))
        self._requests.put(None)

    def end(self) -> None:
        """End the stream, and with it gRPC's own thread. Does nothing if the stream has ended."""
        self._requests.put(None)
        self.call.cancel()

    @property
    def broke_off(self) -> bool:
        """Of a stream that has ended: whether its connection broke, or could not be made though something listens."""
        return self.call.code() is grpc.StatusCode.UNAVAILABLE and not says_nothing_listens(self.call.details() or "")

    def error(self, target: str) -> DataPlaneError:
        """Why the stream has ended. An end without an error counts as a broken stream."""
        if self.call.code() is grpc.StatusCode.OK:
            return UnavailableError(f"Session at {target}: the server ended the stream")
        return translated(self.call, "Session", target)


def beat_interval_s(grace_s: float) -> float:
    """The longest time between two heartbeats, in seconds. Three fit into a grace, so two may be lost or late."""
    return grace_s / _BEATS_A_GRACE


def until_next_beat_s(grace_s: float, wall_clock_s: float) -> float:
    """Seconds from now, which is `wall_clock_s` by the wall clock, until the next heartbeat; always above 0.

    All clients send at the same times of the wall clock, half a second apart: a server of a thousand clients then finds
    many heartbeats each time it wakes up. Reading one costs it about 10 us, waking up about 300. Intervals below 1 s
    are too short for that; their heartbeats are evenly spaced.
    """
    interval_s = beat_interval_s(grace_s)
    if interval_s < _SHORT_INTERVAL_S:
        return interval_s
    return interval_s - (wall_clock_s + interval_s) % _BEAT_TIMES_S
