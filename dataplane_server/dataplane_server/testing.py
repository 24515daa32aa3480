"""A server for tests and notebooks: real sockets and the real service, on an event loop in a separate thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future

from dataplane_server.config import ServerConfig
from dataplane_server.core.calls.limits import Limits
from dataplane_server.service.server import Server

_START_TIMEOUT_S = 300.0  # a checkpointer, which it waits for, may get no core for a minute

_running: set[ServerThread] = set()


def check_running_servers() -> None:
    """Check the core's invariants in every server of this process. Raises AssertionError if one is broken."""
    for server in list(_running):
        server.check_invariants()


class ServerThread:
    """A running server. `stop` ends it and checks the core's invariants."""

    def __init__(self, config: ServerConfig) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dataplane-server", daemon=True)
        self._thread.start()
        try:
            self.server = self._run(_start(config)).result(_START_TIMEOUT_S)
        except BaseException:
            self._end_loop()
            raise
        _running.add(self)

    @property
    def addresses(self) -> list[str]:
        """The addresses that it listens on, in the order of the configuration."""
        return self.server.addresses

    @property
    def http_address(self) -> str | None:
        return self.server.http_address

    def check_invariants(self) -> None:
        """Check the core's invariants. Raises AssertionError if one is broken."""
        self._run(_check(self.server)).result(_START_TIMEOUT_S)

    def stop(self, grace_s: float = 0.5) -> None:
        """Drain, close, and check the core's invariants (AssertionError). Blocks for at most about grace_s seconds."""
        _running.discard(self)
        try:
            self._run(_stop(self.server, grace_s)).result(_START_TIMEOUT_S + grace_s)
        finally:
            self._end_loop()

    def _run(self, coroutine: object) -> Future[Server]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)  # type: ignore[arg-type]

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_TIMEOUT_S)
        self._loop.close()


@contextlib.contextmanager
def running_server(
    *,
    listen: str = "127.0.0.1:0",
    direct: str | None = None,
    memory_bytes: int = 256 << 20,
    limits: Limits | None = None,
) -> Iterator[str]:
    """Run a server for a `with` block. Yields its address, for `dataplane_client.connect`.

    At the end of the block the server drains and the core's invariants are checked (AssertionError).
    """
    config = ServerConfig(listen=(listen,), direct=direct, limits=limits or Limits(memory_bytes=memory_bytes))
    thread = ServerThread(config)
    try:
        yield thread.addresses[0]
    finally:
        thread.stop()


async def _start(config: ServerConfig) -> Server:
    server = Server(config)
    try:
        await server.start()
    except BaseException:
        await server.stop(0)
        raise
    return server


async def _check(server: Server) -> Server:
    server.plane.check_invariants()
    return server


async def _stop(server: Server, grace_s: float) -> Server:
    await server.stop(grace_s)
    return await _check(server)
