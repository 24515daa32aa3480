"""One request at a time from a trainer to an engine, each with an answer: ZeroMQ's REQ and REP with deadlines.

Messages are MessagePack maps; nothing is pickled. A REQ socket without an answer to its request cannot send again, so a
failed channel is closed and a new one is made.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgpack

if TYPE_CHECKING:
    import zmq

_LINGER_MS = 1000
"""How long a closing channel waits for its last answer to be sent."""


class RequestChannel:
    """The trainer's side, which listens at the endpoint. `usable` is False once the engine timed out or refused."""

    def __init__(self, endpoint: str, timeout_s: float) -> None:
        """Raises zmq.ZMQError if the endpoint cannot be made, for example because its path is too long."""
        self._endpoint, self._timeout_s = endpoint, timeout_s
        self._zmq = _require_zmq()
        self._context, self._socket = _open(self._zmq, self._zmq.REQ, timeout_s)
        self._awaits_answer = False
        self.usable = True
        self._file: int | None = None
        try:
            self._socket.bind(endpoint)
            self._file = _inode(endpoint)
        except BaseException:
            self.close()
            raise

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. TimeoutError if no engine is connected."""
        try:
            self._socket.send(msgpack.packb(message))
        except self._zmq.Again:
            raise self._timeout_error("no engine connected to") from None
        self._awaits_answer = True

    def await_answer(self) -> None:
        """Wait for the answer to the last message; returns at once if there is none to wait for.

        Raises TimeoutError if the engine does not answer in time, RuntimeError with its reason if it refuses.
        """
        if not self._awaits_answer:
            return
        try:
            error = msgpack.unpackb(self._socket.recv())["error"]
        except self._zmq.Again:
            raise self._timeout_error("no answer from the engine at") from None
        except self._zmq.ZMQError as failed:
            if failed.errno != int(self._zmq.EFSM):
                raise
            # ZeroMQ has dropped the request, because its connection ended meanwhile.
            self.usable = False
            raise RuntimeError(f"the engine at {self._endpoint} left before it answered") from None
        self._awaits_answer = False
        if error is not None:
            self.usable = False
            raise RuntimeError(f"the engine at {self._endpoint} refused the weights: {error}")

    def close(self) -> None:
        """Close the channel and remove the socket's file, which ZeroMQ leaves, unless another trainer has made a new
        one.
        """
        if self._file is not None and self._file == _inode(self._endpoint):
            _path(self._endpoint).unlink(missing_ok=True)
        self._context.destroy(linger=0)

    def _timeout_error(self, what: str) -> TimeoutError:
        self.usable = False
        return TimeoutError(f"{what} {self._endpoint} within {self._timeout_s} s")


class AnswerChannel:
    """The engine's side. `has_unanswered`: the trainer waits for an answer."""

    def __init__(self, endpoint: str, timeout_s: float) -> None:
        self._endpoint, self._timeout_s = endpoint, timeout_s
        self._zmq = _require_zmq()
        self._context, self._socket = _open(self._zmq, self._zmq.REP, timeout_s)
        self._socket.connect(endpoint)
        self.has_unanswered = False

    def receive(self) -> dict[str, Any]:
        """Return the next message. TimeoutError if the trainer sends none in time, ValueError for an invalid
        message.
        """
        try:
            body = self._socket.recv()
        except self._zmq.Again:
            text = f"no message from the trainer at {self._endpoint} within {self._timeout_s} s"
            raise TimeoutError(text) from None
        self.has_unanswered = True
        message = msgpack.unpackb(body)
        if not isinstance(message, dict):
            raise ValueError(f"the trainer at {self._endpoint} sent {message!r:.80}, which is not a message (a map)")
        return message

    def answer(self, error: str | None) -> None:
        """Answer the last message. error: why the weights are refused; None: the message is processed."""
        self._socket.send(msgpack.packb({"error": error}))
        self.has_unanswered = False

    def close(self) -> None:
        """Close the channel; returns when the last answer is sent."""
        self._context.destroy(linger=_LINGER_MS)


def _open(zmq: ModuleType, kind: int, timeout_s: float) -> tuple[zmq.Context[Any], zmq.Socket[Any]]:
    context = zmq.Context()
    socket = context.socket(kind)
    socket.setsockopt(zmq.SNDTIMEO, int(timeout_s * 1000))
    socket.setsockopt(zmq.RCVTIMEO, int(timeout_s * 1000))
    return context, socket


def _path(endpoint: str) -> Path:
    return Path(endpoint.removeprefix("ipc://"))


def _inode(endpoint: str) -> int | None:
    try:
        return _path(endpoint).stat().st_ino
    except FileNotFoundError:
        return None


def _require_zmq() -> ModuleType:
    try:
        import zmq  # optional
    except ImportError as error:
        raise ImportError("streaming weights needs pyzmq: install rl-dataplane[trainer]") from error
    return zmq
