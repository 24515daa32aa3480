"""One question at a time from a trainer to an engine, each answered: ZeroMQ's REQ and REP with deadlines.

The messages are MessagePack maps; nothing is pickled. A REQ socket whose question was not answered cannot ask again,
so a channel that failed is closed and another one made.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import msgpack

try:
    import zmq
except ImportError:  # pragma: no cover  # told by _zmq()
    zmq = None  # type: ignore[assignment]

_LINGER_MS = 1000
"""How long a closing channel waits for its last answer to leave."""


class RequestChannel:
    """The trainer's side, which listens at the endpoint. `usable` is False once the engine was silent or refused."""

    def __init__(self, endpoint: str, timeout_s: float) -> None:
        """Raises zmq.ZMQError where the endpoint cannot be made, a path that is too long say."""
        self._endpoint, self._timeout_s = endpoint, timeout_s
        self._context, self._socket = _open(_zmq().REQ, timeout_s)
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
        """Raises TimeoutError where no engine is there."""
        try:
            self._socket.send(msgpack.packb(message))
        except zmq.Again:
            raise self._timeout_error("no engine came to") from None
        self._awaits_answer = True

    def await_answer(self) -> None:
        """Wait until the last message is answered; back at once where it is, or where there was none.

        Raises TimeoutError where the engine is silent, RuntimeError with its reason where it refuses.
        """
        if not self._awaits_answer:
            return
        try:
            error = msgpack.unpackb(self._socket.recv())["error"]
        except zmq.Again:
            raise self._timeout_error("no answer from the engine at") from None
        self._awaits_answer = False
        if error is not None:
            self.usable = False
            raise RuntimeError(f"the engine at {self._endpoint} refused the weights: {error}")

    def close(self) -> None:
        """The socket's file goes too, which ZeroMQ leaves, unless another trainer has made it anew."""
        if self._file is not None and self._file == _inode(self._endpoint):
            _path(self._endpoint).unlink(missing_ok=True)
        self._context.destroy(linger=0)

    def _timeout_error(self, what: str) -> TimeoutError:
        self.usable = False
        return TimeoutError(f"{what} {self._endpoint} within {self._timeout_s} s")


class AnswerChannel:
    """The engine's side. `waits` tells whether the trainer has an unanswered question."""

    def __init__(self, endpoint: str, timeout_s: float) -> None:
        self._endpoint, self._timeout_s = endpoint, timeout_s
        self._context, self._socket = _open(_zmq().REP, timeout_s)
        self._socket.connect(endpoint)
        self.has_unanswered = False

    def receive(self) -> dict[str, Any]:
        """Raises TimeoutError where the trainer is silent, ValueError for what is no message."""
        try:
            body = self._socket.recv()
        except zmq.Again:
            text = f"no message from the trainer at {self._endpoint} within {self._timeout_s} s"
            raise TimeoutError(text) from None
        self.has_unanswered = True
        message = msgpack.unpackb(body)
        if not isinstance(message, dict):
            raise ValueError(f"the trainer at {self._endpoint} sent {message!r:.80}, which is no message")
        return message

    def answer(self, error: str | None) -> None:
        """error: why the weights are refused; None: the message is done with."""
        self._socket.send(msgpack.packb({"error": error}))
        self.has_unanswered = False

    def close(self) -> None:
        """Back when the last answer has left."""
        self._context.destroy(linger=_LINGER_MS)


def _open(kind: int, timeout_s: float) -> tuple[zmq.Context[Any], zmq.Socket[Any]]:
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


def _zmq() -> ModuleType:
    if zmq is None:
        raise ImportError("streaming weights needs pyzmq: install rl-dataplane[trainer]")
    return zmq
