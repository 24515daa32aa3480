"""Clients as processes, so that a promise can kill and stop them. Every wait for one has a deadline."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from dataplane_conformance.system import Driver, RefusedError, Space

ANSWER_S = 30.0
"""How long a caller may take to answer where no promise says less; the machine may be busy."""
NO_ANSWER = "no answer within"
_CONNECT_S = 60.0
_END_S = 5.0


class FailedError(Exception):
    """A call failed, or its process did; it is unknown whether it took effect."""


class Caller:
    """A client in a process of its own. One call at a time: `begin` sends it, `end` waits for its answer."""

    def __init__(self, driver: type[Driver], address: str, space: Space) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, driver.__module__])  # whose imports take a second
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, driver, address, space), daemon=True)
        self._process.start()
        theirs.close()
        self._connected = False

    def begin(self, verb: str | Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Send a call of a verb, or of a function that gets the client before its arguments. The first one waits until
        the client is connected, up to a minute.
        """
        if not self._connected:
            self.end(_CONNECT_S)
            self._connected = True
        self._pipe.send((verb, args, kwargs))

    def end(self, wait_s: float = ANSWER_S) -> Any:
        """The answer to the call. Raises RefusedError, or FailedError; without an answer the process is killed."""
        try:
            if not self._pipe.poll(wait_s):
                self.kill()
                raise FailedError(f"{NO_ANSWER} {wait_s:.0f} s")
            kind, answer = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise FailedError("the client's process ended") from error
        if kind == "answer":
            return answer
        raise (RefusedError if kind == "refused" else FailedError)(answer)

    def __call__(self, verb: str | Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.begin(verb, *args, **kwargs)
        return self.end()

    def kill(self) -> None:
        """SIGKILL: the client says nothing more."""
        self._process.kill()
        self._process.join(_END_S)

    def pause(self, stopped: bool) -> None:
        """SIGSTOP, or SIGCONT."""
        os.kill(self._process.pid or 0, signal.SIGSTOP if stopped else signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        self._pipe.close()


def _serve(pipe: Connection, driver: type[Driver], address: str, space: Space) -> None:
    """What the process does: calls in, answers out, until the other end is gone. The first answer is that it is
    connected.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the kit, which ends us
    client: object = None

    def connect() -> None:
        nonlocal client
        client = driver.connect(address, space)

    _answer(pipe, connect)
    while True:
        try:
            verb, args, kwargs = pipe.recv()
        except EOFError:
            return
        call = getattr(client, verb) if isinstance(verb, str) else partial(verb, client)
        _answer(pipe, partial(call, *args, **kwargs))


def _answer(pipe: Connection, call: Callable[[], Any]) -> None:
    try:
        pipe.send(("answer", call()))
    except RefusedError as error:
        pipe.send(("refused", str(error)))
    except Exception as error:  # noqa: BLE001 - whatever a system's client raises is an answer
        pipe.send(("failed", f"{type(error).__name__}: {error}"[:500]))
