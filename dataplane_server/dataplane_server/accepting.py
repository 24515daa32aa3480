"""Accepts connections by hand, a few at a time.

When the process is out of descriptors, asyncio's own servers try 128 times for each connection that waits, each with a
log entry and a timer that tries again. Here a failure is followed by a pause, and logged once a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from dataplane_server.log import get_log

_PAUSE_S = 0.1
_LOG_EVERY_S = 60.0


AT_A_TIME = 8
"""Connections that are taken over together. It takes a few passes of the event loop, whose passes are long when it has
much to do; and one connection for each few passes would keep callers waiting that could be refused.
"""
Serve = Callable[[socket.socket], Awaitable[None]]
"""Takes a connection over."""


def tcp_listener(family: socket.AddressFamily, address: tuple[Any, ...], backlog: int) -> socket.socket:
    """A listener at host and port. [::] takes IPv4, too, as it does for gRPC. OSError."""
    both = address[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address[:2], family=family, backlog=backlog, dualstack_ipv6=both)


def accepting(listener: socket.socket, name: str, serve: Serve) -> asyncio.Task[None]:
    """Accepts connections of a non-blocking listener, and closes it when the task is cancelled, begun or not. name: of
    the listener, in the log.
    """
    task = asyncio.get_running_loop().create_task(_accept_forever(listener, name, serve))
    task.add_done_callback(lambda _: listener.close())
    return task


async def _accept_forever(listener: socket.socket, name: str, serve: Serve) -> None:
    loop, failures, logged = asyncio.get_running_loop(), 0, -_LOG_EVERY_S
    while True:
        try:
            peer, _ = await loop.sock_accept(listener)
        except OSError as error:  # noqa: PERF203  # mostly, no descriptor is left until another connection closes
            failures += 1
            if time.monotonic() - logged >= _LOG_EVERY_S:
                get_log().warning("accept_failed", listener=name, error=str(error), failures=failures)
                failures, logged = 0, time.monotonic()
            await asyncio.sleep(_PAUSE_S)
        else:
            await asyncio.gather(*map(serve, [peer, *_others(listener, AT_A_TIME - 1)]))


def _others(listener: socket.socket, at_most: int) -> Iterator[socket.socket]:
    """Connections that wait, too."""
    with contextlib.suppress(OSError):
        for _ in range(at_most):
            peer = listener.accept()[0]
            peer.setblocking(False)
            yield peer
