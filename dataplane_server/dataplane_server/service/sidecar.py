"""A program that is started beside the server, by the name of an entry point: the server knows nothing else of it.

An installed distribution names its module in the group `rl_dataplane.sidecars`. The server runs `python -m MODULE` with

    --server ADDRESS     a Unix socket of gRPC, for the sidecar alone, where the tokens that it passes on decide
    --listen HOST:PORT   the public address, as the server was given it
    --fd N               a socket that listens there already
    --until-stdin-ends   the server ends, by whatever cause, when standard input does
    --tls-cert, --tls-key, --tls-client-ca, --tokens (callers need tokens), --insecure, --allow-user: as of the server

If the program ends by itself it is started again. Connections wait in the queue of the socket meanwhile, and at first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from importlib.metadata import entry_points
from importlib.util import find_spec

from dataplane_server.accepting import tcp_listener
from dataplane_server.config import ServerConfig, with_port
from dataplane_server.log import get_log
from dataplane_server.service.binding import check_port

GROUP = "rl_dataplane.sidecars"
_PAUSE_S = 1.0
_END_S = 5.0
_BACKLOG = 128


class Sidecar:
    """A sidecar of a server on the running event loop: `start` it when the server serves `listen`, then `stop`. name:
    of its entry point and of the flag that starts it. Raises OSError if it is not installed, or has no place to listen.
    """

    def __init__(self, name: str, address: str, config: ServerConfig) -> None:
        modules = [entry.module for entry in entry_points(group=GROUP, name=name) if find_spec(entry.module)]
        if not modules:
            raise OSError(f"--{name}: no program is installed that has the entry point {name!r} in {GROUP!r}")
        self._name = name
        family, place = check_port(name, address)[0]
        self._listener = tcp_listener(family, place, _BACKLOG)
        self.address = with_port(address, self._listener.getsockname()[1])
        self._folder = tempfile.mkdtemp(prefix=f"dataplane-{name}-")
        self.listen = f"unix://{self._folder}/grpc"
        self._command = [sys.executable, "-m", modules[0], *self._flags(config)]
        self._running: asyncio.Task[None] | None = None

    def _flags(self, config: ServerConfig) -> list[str]:
        flags = ["--server", self.listen, "--listen", self.address, "--fd", str(self._listener.fileno())]
        flags += ["--until-stdin-ends", *(f"--allow-user={user}" for user in sorted(config.allowed_users))]
        flags += [flag for flag, on in (("--tokens", config.access), ("--insecure", config.insecure)) if on]
        if config.tls is not None:
            files = (config.tls.certificate, config.tls.key, config.tls.client_ca)
            names = ("--tls-cert", "--tls-key", "--tls-client-ca")
            flags += [f"{name}={file}" for name, file in zip(names, files, strict=True) if file is not None]
        return flags

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End the process, and those of its requests that still wait."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _run(self) -> None:
        while True:
            try:
                status: int | str = await self._run_once()
            except OSError as error:  # no memory or descriptor for a process, for now
                status = str(error)
            get_log().error("sidecar_ended", name=self._name, status=status)
            await asyncio.sleep(_PAUSE_S)

    async def _run_once(self) -> int:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            pass_fds=[self._listener.fileno()],
            env={key: value for key, value in os.environ.items() if not key.startswith("DATAPLANE_")},
        )
        try:
            return await process.wait()
        finally:
            await _ended(process)


async def _ended(process: asyncio.subprocess.Process) -> None:
    """End a process: ask it, wait, then kill it."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _END_S)
        except asyncio.TimeoutError:
            process.kill()
            await process.wait()
